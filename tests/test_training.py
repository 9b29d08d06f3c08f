"""The training loop in one process: cut of batches, course of the rate, decay groups, exact resume, failures, the run folder."""

import itertools
import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch

import selectivbench_hf as sb
from selectivbench_hf import checkpointing, results
from selectivbench_hf.arguments import TrainingArguments
from selectivbench_hf.errors import InputError
from selectivbench_hf.optimization import Plan, learning_rate, training_batch
from selectivbench_hf.runs import TrainingFailed
from selectivbench_hf.training import main, train

TINY = {"num_train": 44, "num_validation": 6, "num_test": 5, "num_items": 6, "test_gaps": [10, 1, 5]}
SMALL = {
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "per_device_train_batch_size": 8,
    "eval_steps": 4,
    "save_steps": 4,
    "logging_steps": 1,
}


@pytest.fixture(autouse=True)
def one_thread():
    torch.set_num_threads(1)


def tiny_task(**more):
    return sb.get_task("lite_noisy_gaps", **{**TINY, **more})


def tiny_run(folder, model="transformer", task=None, **more):
    return train(task or tiny_task(), model, **{**SMALL, "output_dir": folder, "max_steps": 8, **more})


def flags(folder, **more):
    values = {
        "task": "lite_noisy_gaps",
        "mixer": "transformer",
        "max_steps": 8,
        **SMALL,
        **TINY,
        "output_dir": folder,
        **more,
    }
    out = []
    for name, value in values.items():
        if value is not None:
            out += [f"--{name}", *(map(str, value) if isinstance(value, list) else [str(value)])]
    return out


def weights(folder, name="last"):
    from safetensors.torch import load_file

    return load_file(Path(folder) / name / "model.safetensors")


def same(a, b):
    return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)


def close(a, b, tolerance):
    return a.keys() == b.keys() and all(torch.allclose(a[k], b[k], rtol=0, atol=tolerance) for k in a)


def strict(text):
    def refuse(word):
        raise AssertionError(f"{word} in JSON")

    return json.loads(text, parse_constant=refuse)


# ---------------------------------------------------------------- the plan


def test_every_example_once_an_epoch_however_the_batch_is_cut():
    for processes, accumulation in ((1, 1), (2, 1), (1, 3), (2, 2), (5, 1)):
        plan = Plan(11, 4, processes, accumulation, 6, 0, data_seed=3)
        assert plan.steps_per_epoch == 3
        for epoch in (0, 1):
            seen = []
            for step in range(3 * epoch, 3 * epoch + 3):
                parts = [plan.part(step, a, p)[1] for a in range(accumulation) for p in range(processes)]
                assert np.array_equal(np.concatenate(parts), plan.example_ids(step)[1])
                assert max(map(len, parts)) - min(map(len, parts)) <= 1
                seen += [i for part in parts for i in part]
            assert sorted(seen) == list(range(11))
    assert not np.array_equal(plan.example_ids(0)[1], plan.example_ids(3)[1])  # another epoch, another order
    assert plan.sequences_before(4) == 15


def test_defaults_are_the_papers():
    args, task = TrainingArguments(), sb.get_task("te3_noisy_gaps")
    plan = Plan.of(args, task.splits["train"], 1)
    assert (plan.total_steps, plan.global_batch, plan.warmup_steps) == (3125, 64, 1000)
    assert Plan.of(args, 200_000, 2).global_batch == 64  # the default is the global batch, divided
    assert (args.learning_rate, args.weight_decay, args.dropout, args.max_grad_norm) == (1e-3, 0, 0.2, 1)
    assert args.num_hidden_layers == 8
    assert Plan.of(TrainingArguments(max_steps=100), 200_000, 1).warmup_steps == 32
    assert (
        Plan.of(
            TrainingArguments(per_device_train_batch_size=16, gradient_accumulation_steps=2), 200_000, 2
        ).global_batch
        == 64
    )


def test_the_rate_is_a_function_of_the_step():
    args = TrainingArguments(learning_rate=1.0, max_steps=100)
    plan = Plan.of(args, 1000, 1)
    rates = [learning_rate(args, plan, k) for k in range(100)]
    assert rates[0] == 1 / 32 and rates[31] == rates[32] == 1.0
    assert rates[33] < 1 and all(a > b for a, b in itertools.pairwise(rates[32:])) and 0 < rates[-1] < 1e-3
    assert rates[66] == pytest.approx(0.5 * (1 + math.cos(math.pi * 34 / 68)))
    assert learning_rate(args.replace(lr_scheduler_type="constant"), plan, 99) == 1
    assert learning_rate(args.replace(lr_scheduler_type="linear"), plan, 66) == pytest.approx(0.5)


def test_no_training_sequences_is_refused(tmp_path):
    with pytest.raises(InputError, match="num_train"):
        tiny_run(tmp_path / "run", task=tiny_task(num_train=0))
    assert not (tmp_path / "run").exists()


# ---------------------------------------------------------------- the loss of a global batch


@pytest.mark.parametrize("model", ["transformer", "gla"])
def test_the_result_does_not_depend_on_accumulation(tmp_path, model):
    """Unequal sequences, a last batch with fewer rows than pieces (44 = 5 x 8 + 4): 1 x 8, 2 x 4 and 8 x 1 agree."""
    runs = []
    for i, (rows, pieces) in enumerate(((8, 1), (4, 2), (1, 8))):
        folder = tmp_path / str(i)
        more = {"per_device_train_batch_size": rows, "gradient_accumulation_steps": pieces}
        runs.append((tiny_run(folder, model, dropout=0.0, **more), weights(folder)))
    for run, last in runs[1:]:
        assert close(last, runs[0][1], 2e-6)
        for a, b in zip(log(run.output_dir), log(runs[0][0].output_dir), strict=True):
            assert a["loss"] == pytest.approx(b["loss"], abs=1e-5) and a["learning_rate"] == b["learning_rate"]


def log(folder):
    return [e for e in results.read(Path(folder) / "log.jsonl") if "loss" in e]


def test_the_first_loss_is_the_mean_over_all_real_steps(tmp_path):
    run = tiny_run(tmp_path / "run", max_steps=1, dropout=0.0, gradient_accumulation_steps=3)
    plan = Plan.of(TrainingArguments(per_device_train_batch_size=8, gradient_accumulation_steps=3, max_steps=1), 44, 1)
    torch.manual_seed(0)
    task = tiny_task()
    config = sb.SelectivBenchConfig.for_task(
        task, mixer="transformer", hidden_size=16, num_hidden_layers=1, dropout=0.0
    )
    model = sb.SelectivBenchForStateClassification(config)
    _, ids = plan.example_ids(0)
    batch = training_batch(task, ids, 0, 0)
    loss = model(**batch).loss
    assert run.record["training"]["loss"] == pytest.approx(loss.item(), abs=1e-5)


# ---------------------------------------------------------------- decay groups


@pytest.mark.parametrize("mixer", ["transformer", "gpt", "gla"])
def test_only_matrices_decay(mixer):
    from selectivbench_hf.optimization import make_optimizer

    config = sb.SelectivBenchConfig.for_task(tiny_task(), mixer=mixer, hidden_size=32, num_hidden_layers=1)
    model = sb.SelectivBenchForStateClassification(config)
    optimizer, told = make_optimizer(model, TrainingArguments(weight_decay=0.1, learning_rate=0.1))
    before = {n: p.detach().clone() for n, p in model.named_parameters()}
    for _ in range(10):
        for p in model.parameters():
            p.grad = torch.zeros_like(p)
        optimizer.step()
    shrunk = {n for n, p in model.named_parameters() if not torch.equal(p, before[n])}
    decaying = {n for group in told if group["weight_decay"] for n in group["names"]}
    assert shrunk <= decaying and shrunk
    assert all(n in shrunk for n in decaying if before[n].abs().max() > 0)
    marked = {n for n, p in model.named_parameters() if getattr(p, "_no_weight_decay", False) or p.ndim < 2}
    assert not marked & decaying
    assert sum(g["parameters"] for g in told) == sum(p.numel() for p in model.parameters())


# ---------------------------------------------------------------- resume


@pytest.mark.parametrize("model", ["transformer", "gla"])
def test_four_steps_and_four_more_are_eight(tmp_path, model):
    whole = tiny_run(tmp_path / "whole", model)
    stopped_after(tmp_path / "cut", model, 4)
    again = tiny_run(tmp_path / "cut", model, resume=True)
    assert same(weights(tmp_path / "whole"), weights(tmp_path / "cut"))
    assert same(weights(tmp_path / "whole", "best"), weights(tmp_path / "cut", "best"))
    assert clean_scores(whole) == clean_scores(again)
    assert again.record["training"]["resumes"] == 1 and again.record["training"]["bit_exact"]
    assert [e["loss"] for e in log(tmp_path / "whole")] == [e["loss"] for e in log(tmp_path / "cut")]
    assert [e["learning_rate"] for e in log(tmp_path / "whole")] == [e["learning_rate"] for e in log(tmp_path / "cut")]
    assert again.record["evaluation"]["validation_history"] == whole.record["evaluation"]["validation_history"]
    assert len(results.read(tmp_path / "cut")) == 1  # the interrupted line has made way


def clean_scores(run):
    return {s: {k: v for k, v in d.items() if "second" not in k} for s, d in run.scores.items()}


def stopped_after(folder, model, steps, **more):
    """A run that is asked to stop once `steps` steps are done."""
    from selectivbench_hf import training
    from selectivbench_hf.launching import StopFlag, Stopped

    class After(StopFlag):
        calls = 0

    flag = After()
    args = TrainingArguments(task=tiny_task(), mixer=model, **{**SMALL, "output_dir": folder, "max_steps": 8, **more})
    original = training._Run.step

    def step(self):
        if self.state.step == steps - 1:
            flag.ask(143, "SIGTERM")
        return original(self)

    training._Run.step = step
    try:
        with pytest.raises(Stopped):
            training.run(args, stop=flag)
    finally:
        training._Run.step = original
    record = results.read(folder)[-1]
    assert record["status"] == "interrupted" and record["training"]["steps"] == steps and record["scores"] == {}


def test_a_stop_between_checkpoints_resumes_exactly(tmp_path):
    tiny_run(tmp_path / "whole")
    stopped_after(tmp_path / "cut", "transformer", 3)
    tiny_run(tmp_path / "cut", resume=True)
    assert same(weights(tmp_path / "whole"), weights(tmp_path / "cut"))


@pytest.mark.parametrize("call", [1, 3])
def test_a_stop_while_scoring_loses_nothing(tmp_path, monkeypatch, call):
    """In the validation after step 4 (call 1), and in the scoring of the test splits (call 3)."""
    from selectivbench_hf import evaluation, training
    from selectivbench_hf.launching import StopFlag, Stopped

    whole = tiny_run(tmp_path / "whole")
    flag, real, calls = StopFlag(), evaluation.evaluate, []

    def asked(*arguments, **keywords):
        calls.append(1)
        if len(calls) == call:
            flag.ask(143, "SIGTERM")
        return real(*arguments, **keywords)

    monkeypatch.setattr(evaluation, "evaluate", asked)
    with pytest.raises(Stopped):
        training.run(
            TrainingArguments(
                task=tiny_task(), mixer="transformer", **SMALL, output_dir=tmp_path / "cut", max_steps=8
            ),
            stop=flag,
        )
    monkeypatch.undo()
    assert (tmp_path / f"cut/checkpoints/step-{4 if call == 1 else 8:08d}").is_dir()
    again = tiny_run(tmp_path / "cut", resume=True)
    assert clean_scores(whole) == clean_scores(again)
    assert again.record["evaluation"]["validation_history"] == whole.record["evaluation"]["validation_history"]


def test_what_came_after_the_last_checkpoint_is_done_again(tmp_path):
    """A checkpoint behind the log and the best model, as SIGKILL leaves it."""
    whole = tiny_run(tmp_path / "whole", eval_steps=1, save_steps=3, save_total_limit=5)
    stopped_after(tmp_path / "cut", "transformer", 6, eval_steps=1, save_steps=3, save_total_limit=5)
    import shutil

    shutil.rmtree(tmp_path / "cut/checkpoints/step-00000006")
    (tmp_path / "cut/checkpoints/.step-00000006.abc.part").mkdir()
    again = tiny_run(tmp_path / "cut", resume=True, eval_steps=1, save_steps=3, save_total_limit=5)
    assert clean_scores(whole) == clean_scores(again)
    assert same(weights(tmp_path / "whole", "best"), weights(tmp_path / "cut", "best"))
    assert [e["step"] for e in log(tmp_path / "cut")] == list(range(1, 9))
    assert not list((tmp_path / "cut/checkpoints").glob(".*"))


@pytest.mark.parametrize("harm", ["halve", "empty", "delete", "flip", "manifest"])
def test_a_broken_checkpoint_is_named_and_passed_over(tmp_path, harm, capfd):
    whole = tiny_run(tmp_path / "whole", save_steps=2)
    stopped_after(tmp_path / "cut", "transformer", 4, save_steps=2)
    newest = tmp_path / "cut/checkpoints/step-00000004"
    harm_checkpoint(newest, harm)
    assert checkpointing.fault(newest)
    again = tiny_run(tmp_path / "cut", resume=True, save_steps=2)
    said = capfd.readouterr().err
    assert "step-00000004 is broken" in said and "resumed from step-00000002" in said
    assert same(weights(tmp_path / "whole"), weights(tmp_path / "cut"))
    assert clean_scores(whole) == clean_scores(again)
    assert any("step-00000004 is broken" in n for n in again.record["training"]["notes"])


def harm_checkpoint(folder, harm):
    file = folder / {
        "halve": "model.safetensors",
        "empty": "optimizer.pt",
        "delete": "rng.pt",
        "flip": "model.safetensors",
    }.get(harm, "manifest.json")
    data = file.read_bytes()
    if harm == "halve":
        file.write_bytes(data[: len(data) // 2])
    elif harm == "empty":
        file.write_bytes(b"")
    elif harm in ("delete", "manifest"):
        file.unlink()
    else:
        file.write_bytes(data[:-5] + bytes([data[-5] ^ 1]) + data[-4:])


def test_all_checkpoints_broken_starts_again(tmp_path, capfd):
    tiny_run(tmp_path / "whole")
    stopped_after(tmp_path / "cut", "transformer", 4)
    for path in checkpointing.listed(tmp_path / "cut/checkpoints"):
        harm_checkpoint(path, "flip")
    tiny_run(tmp_path / "cut", resume=True)
    assert "starting from the beginning" in capfd.readouterr().err
    assert same(weights(tmp_path / "whole"), weights(tmp_path / "cut"))


def test_resume_refuses_what_changed_and_names_it(tmp_path):
    stopped_after(tmp_path / "cut", "transformer", 4)
    with pytest.raises(InputError, match=r"learning_rate is 0\.5 here and was 0\.001"):
        tiny_run(tmp_path / "cut", resume=True, learning_rate=0.5)
    with pytest.raises(InputError, match="task or data version"):
        tiny_run(tmp_path / "cut", resume=True, task=tiny_task(sample_seed=7))
    with pytest.raises(InputError, match="global batch"):
        tiny_run(tmp_path / "cut", resume=True, per_device_train_batch_size=4)
    with pytest.raises(InputError, match="max_steps is 9"):
        tiny_run(tmp_path / "cut", resume=True, max_steps=9)
    again = tiny_run(tmp_path / "cut", resume=True, per_device_train_batch_size=4, gradient_accumulation_steps=2)
    assert not again.record["training"]["bit_exact"] and "pieces" in again.record["training"]["notes"][0]


def test_resume_of_a_finished_run_says_so(tmp_path, capfd):
    assert main(flags(tmp_path / "run")) == 0
    before = (tmp_path / "run/results.jsonl").read_bytes()
    capfd.readouterr()
    assert main(["--output_dir", str(tmp_path / "run"), "--resume"]) == 0  # everything else comes from the folder
    assert "already finished" in capfd.readouterr().err
    assert (tmp_path / "run/results.jsonl").read_bytes() == before
    assert main(["--output_dir", str(tmp_path / "run"), "--resume", "--dropout", "0.1"]) == 2
    assert "dropout is 0.1 here and was 0.2" in capfd.readouterr().err


def test_a_folder_with_something_in_it_is_refused(tmp_path, capfd):
    (tmp_path / "run").mkdir()
    (tmp_path / "run/thesis.tex").write_text("x")
    assert main(flags(tmp_path / "run")) == 2
    assert "is not empty" in capfd.readouterr().err
    assert main([*flags(tmp_path / "run"), "--resume"]) == 2
    assert "no run folder" in capfd.readouterr().err
    assert [p.name for p in (tmp_path / "run").iterdir()] == ["thesis.tex"]
    (tmp_path / "file").write_text("x")
    assert main(flags(tmp_path / "file")) == 2
    assert main(flags(tmp_path / "file/below")) == 2
    (tmp_path / "empty").mkdir()
    assert main([*flags(tmp_path / "empty"), "--resume"]) == 0  # a loop may always say --resume


def test_an_unknown_field_is_refused(tmp_path):
    with pytest.raises(
        InputError, match=r"unknown argument 'hiden_size' in train\(\.\.\.\); did you mean 'hidden_size'"
    ):
        train("lite", "transformer", hiden_size=3)
    with pytest.raises(InputError, match="unknown mixer 'transfomer'; did you mean 'transformer'"):
        train(tiny_task(), "transfomer", output_dir=tmp_path / "run")
    with pytest.raises(InputError, match="a model is the name of a mixer or a torch.nn.Module"):
        train(tiny_task(), 3, output_dir=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_one_run_at_a_time_in_a_folder(tmp_path):
    import fcntl

    stopped_after(tmp_path / "run", "transformer", 4)
    with open(tmp_path / "run/.lock", "w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(InputError, match="another process is training"):
            tiny_run(tmp_path / "run", resume=True)
    tiny_run(tmp_path / "run", resume=True)


# ---------------------------------------------------------------- failures


def test_a_loss_that_is_not_finite_stops_the_run(tmp_path, capfd):
    assert (
        main(
            flags(
                tmp_path / "run",
                learning_rate="1e9",
                max_grad_norm=0,
                max_steps=40,
                warmup_steps=0,
                lr_scheduler_type="constant",
            )
        )
        == 1
    )
    assert "became" in capfd.readouterr().err
    for line in (tmp_path / "run/results.jsonl").read_text().splitlines() + (
        tmp_path / "run/log.jsonl"
    ).read_text().splitlines():
        strict(line)
    record = results.read(tmp_path / "run")[-1]
    assert record["status"] == "failed" and "became" in record["reason"] and record["scores"] == {}
    results.validate(record)


class Poisoned(torch.nn.Module):
    """Gives NaN from the fourth call on."""

    def __init__(self, task):
        super().__init__()
        self.layer, self.calls = torch.nn.Linear(task.num_symbols, task.num_states), 0

    def forward(self, x):
        self.calls += 1
        return self.layer(x) * (float("nan") if self.calls > 3 else 1.0)


def test_a_nan_in_the_middle_is_null_in_the_record(tmp_path):
    with pytest.raises(TrainingFailed, match="loss became nan at step 4 of 8"):
        tiny_run(tmp_path / "run", Poisoned(tiny_task()))
    record = strict((tmp_path / "run/results.jsonl").read_text())
    assert record["status"] == "failed" and record["training"]["loss"] is None and record["training"]["steps"] == 3


def test_a_full_disk_leaves_the_last_checkpoint(tmp_path, monkeypatch):
    real = checkpointing.strict_json
    steps = []

    def fails_late(value, **kw):
        if isinstance(value, dict) and "state" in value:
            steps.append(value["state"]["step"])
            if len(steps) > 1:
                raise OSError(28, "No space left on device")
        return real(value, **kw)

    monkeypatch.setattr(checkpointing, "strict_json", fails_late)
    with pytest.raises(
        checkpointing.CheckpointError,
        match=r"No space left on device.*MB needed.*MB free.*last good checkpoint is step-00000004",
    ):
        tiny_run(tmp_path / "run")
    monkeypatch.undo()
    assert [p.name for p in (tmp_path / "run/checkpoints").iterdir()] == ["step-00000004"]
    assert results.read(tmp_path / "run")[-1]["status"] == "failed"
    tiny_run(tmp_path / "whole")
    tiny_run(tmp_path / "run", resume=True)
    assert same(weights(tmp_path / "whole"), weights(tmp_path / "run"))


# ---------------------------------------------------------------- sizes, precision, models of the user


def test_three_examples_take_real_steps(tmp_path):
    run = train(
        tiny_task(num_train=3),
        "transformer",
        **{**SMALL, "per_device_train_batch_size": None, "output_dir": tmp_path / "run", "num_train_epochs": 2},
    )
    assert run.record["training"]["steps"] == 2 and run.record["training"]["sequences"] == 6
    assert run.record["training"]["loss"] > 0


def test_bf16_is_recorded_and_weights_stay_fp32(tmp_path):
    run = tiny_run(tmp_path / "run", mixed_precision="bf16")
    assert run.record["training"]["precision"] == "bf16 autocast, fp32 weights"
    assert all(p.dtype == torch.float32 for p in run.model.parameters())
    other = tiny_run(tmp_path / "fp32", mixed_precision="no")
    assert other.record["training"]["precision"] == "fp32"
    assert run.record["training"]["loss"] == pytest.approx(other.record["training"]["loss"], abs=0.05)
    assert run.record["training"]["loss"] != other.record["training"]["loss"]


def test_a_module_of_the_user_trains_is_saved_and_resumes(tmp_path):
    def module():
        torch.manual_seed(1)
        task = tiny_task()
        gru = torch.nn.GRU(task.num_symbols, 16, batch_first=True)
        return torch.nn.Sequential(gru, First(), torch.nn.Dropout(0.1), torch.nn.Linear(16, task.num_states))

    run = train(tiny_task(), module(), **{**SMALL, "output_dir": tmp_path / "run", "max_steps": 8})
    assert run.record["model"]["name"] == "Sequential" and run.record["model"]["config"] is None
    fresh = module()
    fresh.load_state_dict(weights(tmp_path / "run", run.record["evaluation"]["checkpoint"]))
    from selectivbench_hf.evaluation import evaluate

    assert evaluate(fresh, tiny_task())["test"]["correct"] == run.scores["test"]["correct"]
    with pytest.raises(InputError, match="returned shape"):
        train(tiny_task(), torch.nn.Linear(9, 3), **{**SMALL, "output_dir": tmp_path / "bad", "max_steps": 2})


class First(torch.nn.Module):
    def forward(self, x):
        return x[0]


def test_the_effective_configuration_repeats_the_run(tmp_path, capfd):
    assert main(flags(tmp_path / "a")) == 0
    said = capfd.readouterr().err
    assert "configuration: task=lite_noisy_gaps" in said and "warm-up 2" in said
    assert main(["--config", str(tmp_path / "a/training_args.yaml"), "--output_dir", str(tmp_path / "b")]) == 0
    assert same(weights(tmp_path / "a"), weights(tmp_path / "b"))
    a, b = (results.read(tmp_path / n)[0] for n in "ab")
    assert a["task"]["fingerprint"] == b["task"]["fingerprint"] and a["run_id"] != b["run_id"]


def test_seeds_are_separate(tmp_path):
    base = tiny_run(tmp_path / "0", max_steps=1)
    losses = {base.record["training"]["loss"]}
    for i, change in enumerate(
        ({"model_seed": 1}, {"data_seed": 1}, {"task": tiny_task(sample_seed=2)}, {"task": tiny_task(grammar_seed=2)})
    ):
        losses.add(tiny_run(tmp_path / str(i + 1), max_steps=1, **change).record["training"]["loss"])
    assert len(losses) == 5
    assert tiny_run(tmp_path / "again", max_steps=1).record["training"]["loss"] == base.record["training"]["loss"]


def test_the_callers_random_state_is_left_alone(tmp_path):
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    tiny_run(tmp_path / "run", max_steps=1)
    assert torch.equal(torch.rand(3), expected)


def test_the_default_folder_is_a_new_one(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    first, second = (tiny_run(None, max_steps=1, eval_splits="none") for _ in range(2))
    assert (str(first.output_dir), str(second.output_dir)) == (
        "runs/lite_noisy_gaps-transformer",
        "runs/lite_noisy_gaps-transformer-2",
    )
    assert list(first.scores) == ["validation"]


def test_a_missing_tracker_is_one_sentence(tmp_path, capfd):
    import importlib.util

    absent = next((t for t in ("wandb", "trackio", "tensorboard") if importlib.util.find_spec(t) is None), None)
    if absent is None:
        pytest.skip("all trackers are installed")
    assert main([*flags(tmp_path / "run"), "--tracker", absent]) == 2
    assert "not installed" in capfd.readouterr().err and not (tmp_path / "run").exists()


def test_a_tracker_mirrors_the_log(tmp_path):
    pytest.importorskip("tensorboard")
    tiny_run(tmp_path / "run", tracker="tensorboard", max_steps=2)
    assert list((tmp_path / "run").rglob("*events*"))
