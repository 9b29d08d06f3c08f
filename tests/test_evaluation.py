"""Evaluation: exact counts, chunks in time, long sequences in bounded memory, and `selectivbench evaluate` against the record."""

import json
import shutil

import numpy as np
import pytest
import torch

import selectivbench_hf as sb
from selectivbench_hf import evaluation, results
from selectivbench_hf.errors import InputError
from selectivbench_hf.evaluation import batch_rows, evaluate
from selectivbench_hf.training import train

COUNTS = ("correct", "correct_first", "correct_last", "total", "steps", "sequences")


@pytest.fixture(autouse=True)
def one_thread():
    torch.set_num_threads(1)


def task_of(test=11, **more):
    keywords = {
        "num_train": 40,
        "num_validation": 5,
        "num_test": test,
        "num_items": 6,
        "test_gaps": [10, 1, 60],
        **more,
    }
    return sb.get_task("lite_noisy_gaps", **keywords)


def model_for(task, mixer="transformer", **more):
    torch.manual_seed(0)
    config = sb.SelectivBenchConfig.for_task(task, mixer=mixer, hidden_size=16, num_hidden_layers=1, **more)
    model = sb.SelectivBenchForStateClassification(config)
    with torch.no_grad():
        model.classifier.weight.mul_(50)  # opinions, so that counts are neither all nor none
    return model


class Oracle(torch.nn.Module):
    """Names the state that the features carry in channel order: right wherever `good` says so (by example order)."""

    def __init__(self, task, split, wrong=()):
        super().__init__()
        self.task, self.split, self.wrong, self.seen = task, split, set(wrong), 0
        self.weight = torch.nn.Parameter(torch.zeros(()))

    def forward(self, x):
        ids = range(self.seen, self.seen + len(x))
        self.seen += len(x)
        labels = torch.from_numpy(sb_batch(self.task, self.split, ids)["labels"]).clamp(min=0)
        shift = torch.tensor([[i in self.wrong] for i in ids], dtype=torch.long)
        return torch.nn.functional.one_hot((labels + shift) % self.task.num_states, self.task.num_states).float() * 9


def sb_batch(task, split, ids):
    from selectivbench_hf.features import make_batch

    return make_batch(task, split, list(ids))


@pytest.mark.parametrize("size", [1, 5, 9, 97])
def test_counts_do_not_depend_on_the_batch_size(size):
    task = task_of(size)
    model = model_for(task)
    reference = None
    for rows in (1, 2, 7, 64, 2048):
        scores = evaluate(model, task, ["test", "test_gap_1"], batch_size=rows)
        counts = {s: [d[k] for k in COUNTS] for s, d in scores.items()}
        losses = {s: d["loss"] for s, d in scores.items()}
        reference = reference or (counts, losses)
        assert counts == reference[0]
        assert losses == pytest.approx(reference[1], abs=1e-6)
    assert scores["test"]["total"] == size * task.num_items and scores["test"]["sequences"] == size


def test_all_errors_in_the_last_sequence():
    task = task_of(9)
    for rows in (2, 4, 64):
        scores = evaluate(Oracle(task, "test", wrong=[8]), task, ["test"], batch_size=rows)["test"]
        assert (scores["correct"], scores["total"]) == (48, 54)
        assert scores["accuracy"] == 48 / 54 and scores["correct_first"] == scores["correct_last"] == 48


def test_chunks_in_time_give_what_whole_logits_give(monkeypatch):
    """Against the rule of the protocol written out in NumPy in float64."""
    task = task_of(7)
    model = model_for(task, mixer="gpt")
    batch = sb_batch(task, "test_gap_60", range(7))
    with torch.inference_mode():
        logits = model.eval()(input_features=torch.from_numpy(batch["input_features"])).logits.double().numpy()
    p = np.exp(logits - logits.max(-1, keepdims=True))
    p /= p.sum(-1, keepdims=True)
    right = first = last = 0
    losses = []
    for b in range(7):
        for item in range(task.num_items):
            at = np.flatnonzero(batch["item_ids"][b] == item)
            state = batch["labels"][b, at[0]]
            right += p[b, at].sum(0).argmax() == state
            first += p[b, at[0]].argmax() == state
            last += p[b, at[-1]].argmax() == state
            losses += list(-np.log(p[b, at, state]))
    for chunk in (1000, 64, 17):
        monkeypatch.setattr(evaluation, "CHUNK", chunk)
        scores = evaluate(model, task, ["test_gap_60"])["test_gap_60"]
        assert [scores[k] for k in COUNTS[:4]] == [right, first, last, 42]
        assert scores["loss"] == pytest.approx(np.mean(losses), abs=1e-6)


def test_the_head_never_sees_all_steps(monkeypatch):
    task = task_of(4, test_gaps=[10, 100])
    model = model_for(task)
    seen = []
    model.classifier.register_forward_hook(lambda module, inputs, output: seen.append(output.shape[1]))
    evaluate(model, task, ["test_gap_100"])
    assert max(seen) <= evaluation.CHUNK < 6 * 101 == sum(seen)


def test_rows_follow_the_length():
    assert batch_rows(100, 65, 64, True) == 64
    assert batch_rows(20_200, 1602, 64, True) == 3  # te7 test_gap_100: said to the user
    assert batch_rows(20_200, 1602, 64, False) == 3
    assert batch_rows(10**6, 65, 64, True) == 1
    assert batch_rows(100, 65, 2048, True) <= 655


def test_long_sequences_are_announced_and_time_is_estimated(monkeypatch):
    task = task_of(4)
    lines = []
    evaluate(model_for(task), task, ["test_gap_60"], say=lines.append)
    assert len(lines) == 1 and "scoring test_gap_60: 4 sequences, 1,464 steps; about" in lines[0]
    monkeypatch.setattr(evaluation, "_STEPS", 800)
    lines.clear()
    evaluate(model_for(task), task, ["test_gap_60"], say=lines.append)
    assert "sequences of up to 366 steps are scored 2 at a time instead of 64" in lines[0]


def test_limits_and_nothing():
    task = task_of(11)
    model = model_for(task).train()
    whole, part = (evaluate(model, task, ["test"], max_sequences=n)["test"] for n in (None, 4))
    assert model.training and (whole["sequences"], part["sequences"]) == (11, 4)
    nothing = evaluate(model, task, ["test"], max_sequences=0)["test"]
    assert nothing["total"] == 0 and nothing["accuracy"] is nothing["loss"] is nothing["sequences_per_second"] is None
    assert "no items" in results.table({"test": nothing})
    with pytest.raises(InputError, match="did you mean"):
        evaluate(model, task, ["test_gap_2"])


def test_every_evaluation_gives_the_same_number():
    task = task_of(5)
    model = model_for(task, mixer="transformer", dropout=0.5)
    a, b = (evaluate(model, task)["test"] for _ in range(2))
    assert all(a[k] == b[k] for k in (*COUNTS, "loss_sum"))


def test_any_module_is_scored_by_the_same_rule():
    task = task_of(5)
    model = model_for(task)

    class Plain(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = model

        def forward(self, x):
            return self.inner(input_features=x).logits

    a, b = evaluate(model, task)["test"], evaluate(Plain(), task)["test"]
    assert all(a[k] == b[k] for k in COUNTS)


# ---------------------------------------------------------------- selectivbench evaluate


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("evaluate") / "run"
    return train(
        task_of(11),
        "transformer",
        hidden_size=16,
        num_hidden_layers=1,
        max_steps=6,
        output_dir=folder,
        eval_steps=3,
        per_device_eval_batch_size=4,
    )


def command(*argv):
    return evaluation.main([str(a) for a in argv])


def test_evaluate_agrees_with_the_record(run, capfd):
    assert command(run.output_dir) == 0
    out = capfd.readouterr().out
    assert "equal to the record to the last count on 4 splits" in out
    assert command(run.output_dir, "--json", "--splits", "test", "test_gap_60") == 0
    rows = json.loads(capfd.readouterr().out, parse_constant=pytest.fail)
    assert [r["name"] for r in rows] == ["test", "test_gap_60"] and all(r["equal_to_record"] for r in rows)
    assert all(rows[0][k] == run.scores["test"][k] for k in COUNTS)
    assert command(run.output_dir / "best", "--task", run.output_dir / "task.json", "--splits", "test") == 0


def test_a_difference_is_told_and_fails(run, tmp_path, capfd):
    folder = tmp_path / "run"
    shutil.copytree(run.output_dir, folder)
    record = results.read(folder)[0]
    record["scores"]["test"]["correct"] += 1
    results.write(folder, record)
    assert command(folder) == 1
    assert (
        f"test: DIFFERS: correct {run.scores['test']['correct']} here, {run.scores['test']['correct'] + 1} recorded"
        in capfd.readouterr().out
    )
    record["hardware"]["device"] = "cuda: NVIDIA H200"
    results.write(folder, record)
    assert command(folder) == 0  # told, but another backend may differ
    assert "another backend" in capfd.readouterr().out


def test_transfer_to_another_task(run, capfd):
    assert command(run.output_dir, "--task", "lite", "--num_test", "4", "--num_items", "6") == 0
    out = capfd.readouterr().out
    assert "nothing to compare" in out and "24" in out
    assert command(run.output_dir, "--task", "te1") == 2
    assert "built for 9 symbols and 65 states; te1 has 21 and" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("argv", "sentence"),
    [
        (["nowhere"], "is no run folder"),
        (["{run}", "--task", "lite_noisy_gap"], "did you mean 'lite_noisy_gaps'"),
        (["{run}", "--splits", "tset"], "did you mean 'test'"),
        (["{run}", "--split", "test"], "unknown flag '--split'; did you mean '--splits'"),
        (["{run}", "--max_eval_sequences", "0"], "must be at least 1"),
        (["{run}", "--max_eval_sequences", "x"], "must be a whole number"),
        (["{run}/last"], None),
        (["{run}/checkpoints"], "is no run folder"),
    ],
)
def test_bad_input_of_evaluate(run, capfd, argv, sentence):
    code = command(*[a.replace("{run}", str(run.output_dir)) for a in argv])
    assert code == (0 if sentence is None else 2)
    if sentence:
        error = capfd.readouterr().err
        assert sentence in error and "Traceback" not in error and error.count("\n") <= 1


def test_a_module_of_the_users_own_cannot_be_built_by_the_command(tmp_path, capfd):
    task = task_of(3)

    class Net(torch.nn.Linear):
        pass

    run = train(task, Net(task.num_symbols, task.num_states), max_steps=2, output_dir=tmp_path / "run")
    assert command(run.output_dir) == 2
    assert "module of your own" in capfd.readouterr().err


@pytest.mark.slow
def test_te7_gap_100_stays_under_six_gigabytes(python):
    code = """
import resource, sys, torch
import selectivbench_hf as sb
from selectivbench_hf.evaluation import evaluate
task = sb.get_task("te7_noisy_gaps", num_train=8)
config = sb.SelectivBenchConfig.for_task(task, mixer="gla", hidden_size=256, num_hidden_layers=8)
scores = evaluate(sb.SelectivBenchForStateClassification(config), task, ["test_gap_100"], max_sequences=3, say=print)
print(scores["test_gap_100"]["steps"], resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20)
"""
    done = python("-c", code, timeout=900)
    assert done.returncode == 0, done.stderr
    steps, gib = done.stdout.split()[-2:]
    assert int(steps) == 3 * 20_200 and float(gib) < 6
