"""Runs that were damaged, stopped or asked for wrongly: what is told, what is kept, what is refused."""

import json
import os
import shutil

import pytest
import test_training
import torch
from test_training import First, flags, harm_checkpoint, same, stopped_after, tiny_run, tiny_task, weights

from selectivbench_hf import checkpointing, evaluation, results
from selectivbench_hf.errors import InputError
from selectivbench_hf.training import main, train

one_thread = test_training.one_thread


def test_a_broken_newest_checkpoint_does_not_push_out_the_new_ones(tmp_path, capfd):
    tiny_run(tmp_path / "whole", save_steps=1)
    stopped_after(tmp_path / "cut", "transformer", 6, save_steps=1, save_total_limit=3)
    for path in checkpointing.listed(tmp_path / "cut/checkpoints")[:2]:  # 6 and 5; 4 is left
        harm_checkpoint(path, "flip")
    more = {"save_steps": 1, "save_total_limit": 2, "resume": True}
    checkpointing_save = checkpointing.save
    kept = []

    def save(folder, *args, **keywords):
        path = checkpointing_save(folder, *args, **keywords)
        kept.append([p.name for p in checkpointing.listed(folder)])
        assert path.is_dir()
        return path

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpointing, "save", save)
        tiny_run(tmp_path / "cut", **more)
    assert kept[0] == ["step-00000005", "step-00000004"] and kept[-1] == ["step-00000008", "step-00000007"]
    said = capfd.readouterr().err
    assert "step-00000006 is kept as broken-step-00000006" in said
    assert (tmp_path / "cut/checkpoints/broken-step-00000005").is_dir()
    assert same(weights(tmp_path / "whole"), weights(tmp_path / "cut"))


# ---------------------------------------------------------------- damage


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("finished") / "run"
    assert main(flags(folder)) == 0
    return folder


def evaluated(folder, *more):
    return evaluation.main([str(folder), *more])


def cut(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def put(name, text):
    return lambda folder: (folder / name).write_text(text)


DAMAGE = {
    "weights missing": (lambda f: (f / "best/model.safetensors").unlink(), 2, "model.safetensors is missing"),
    "weights cut": (lambda f: cut(f / "best/model.safetensors"), 2, "model.safetensors cannot be read"),
    "weights empty": (put("best/model.safetensors", ""), 2, "the file is empty"),
    "task empty": (put("task.json", ""), 2, "task.json: "),
    "config {}": (put("best/config.json", "{}"), 2, "config.json is damaged: it lacks model_type"),
    "config []": (put("best/config.json", "[]"), 2, "config.json is no JSON object"),
    "config cut": (put("best/config.json", '{"mixer": '), 2, "config.json is no JSON"),
    "record short": (put("results.jsonl", '{"run_id":1}\n'), 1, "its last record has no record_version"),
    "record empty": (put("results.jsonl", ""), 1, "results.jsonl is empty"),
    "record garbage": (put("results.jsonl", "garbage\n"), 1, "none of its lines is a record"),
    "record gone": (lambda f: (f / "results.jsonl").unlink(), 1, "has written no record yet"),
    "no scores": (put("results.jsonl", ""), 1, "no recorded score to compare with"),
}


@pytest.mark.parametrize("harm", DAMAGE)
def test_evaluate_of_a_damaged_run_is_one_sentence(finished, tmp_path, capfd, harm):
    shutil.copytree(finished, tmp_path / "run")
    damage, code, sentence = DAMAGE[harm]
    damage(tmp_path / "run")
    assert evaluated(tmp_path / "run") == code
    out, err = capfd.readouterr()
    assert sentence in (err if code == 2 else out) and "Traceback" not in err
    if code == 2:
        assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("harm", "sentence"),
    [
        (lambda f: (f / "best/model.safetensors").unlink(), "model.safetensors is missing"),
        (lambda f: cut(f / "best/model.safetensors"), "cannot be read"),
        (put("run.json", ""), "run.json is empty"),
        (put("run.json", "[1]"), "run.json does not hold"),
        (put("training_args.yaml", ""), "training_args.yaml is empty"),
        (put("training_args.yaml", "task: lite\n"), "training_args.yaml lacks mixer"),
        (lambda f: (f / "training_args.yaml").unlink(), "training_args.yaml is missing"),
    ],
)
def test_resume_of_a_damaged_run_is_one_sentence(finished, tmp_path, capfd, harm, sentence):
    shutil.copytree(finished, tmp_path / "run")
    harm(tmp_path / "run")
    capfd.readouterr()
    assert main(["--resume", "--output_dir", str(tmp_path / "run")]) == 2
    error = capfd.readouterr().err
    assert sentence in error.splitlines()[-1] and "Traceback" not in error


def test_a_record_without_its_keys_does_not_stop_a_resume(finished, tmp_path, capfd):
    shutil.copytree(finished, tmp_path / "run")
    (tmp_path / "run/results.jsonl").write_text('{"run_id":1}\n')
    assert main(["--resume", "--output_dir", str(tmp_path / "run")]) == 0
    assert "holds no record of this run" in capfd.readouterr().err
    before, after = results.read(finished)[-1], results.read(tmp_path / "run")[-1]
    for scores in (*before["scores"].values(), *after["scores"].values()):
        scores.pop("seconds"), scores.pop("sequences_per_second")
    assert before["scores"] == after["scores"]


def test_weights_of_another_shape(tmp_path):
    task = tiny_task()
    more = {"max_steps": 2, "output_dir": tmp_path / "run", "per_device_train_batch_size": 8}
    train(task, torch.nn.Linear(task.num_symbols, task.num_states), **more)
    other = torch.nn.Sequential(torch.nn.Linear(task.num_symbols, 4), torch.nn.Linear(4, task.num_states))
    with pytest.raises(InputError, match="are another model's"):
        train(task, other, resume=True, **more)


def test_weights_that_are_nan_are_told(finished, tmp_path, capfd):
    from safetensors.torch import load_file, save_file

    shutil.copytree(finished, tmp_path / "run")
    file = tmp_path / "run/best/model.safetensors"
    save_file({k: v * float("nan") for k, v in load_file(file).items()}, file, metadata={"format": "pt"})
    assert evaluated(tmp_path / "run", "--splits", "test", "--json") == 1
    out, err = capfd.readouterr()
    assert "test: the loss is not finite (nan)" in err and json.loads(out)[0]["loss"] is None
    with pytest.warns(RuntimeWarning, match="the loss is not finite"):
        task = tiny_task()
        net = torch.nn.Linear(task.num_symbols, task.num_states)
        net.weight.data.fill_(float("nan"))
        evaluation.evaluate(net, task)


def test_a_test_loss_that_is_not_finite_has_its_reason_in_the_record(tmp_path, monkeypatch):
    from selectivbench_hf.metrics import ItemScores

    real = ItemScores.as_dict
    monkeypatch.setattr(
        ItemScores, "as_dict", lambda s: {**real(s), **({} if s.sequences == 6 else {"loss": math_nan})}
    )
    run = tiny_run(tmp_path / "run")
    assert run.record["scores"]["test"]["loss"] is None and run.record["scores"]["validation"]["loss"] is not None
    assert any("test: the loss is not finite" in note for note in run.record["training"]["notes"])


math_nan = float("nan")


# ---------------------------------------------------------------- what a run did not come to


def test_a_run_that_ended_before_its_first_validation(tmp_path, capfd):
    stopped_after(tmp_path / "cut", "transformer", 2)
    record = results.read(tmp_path / "cut")[-1]
    assert record["evaluation"]["selection"] == "none: the run ended before its first validation"
    assert evaluated(tmp_path / "cut") == 2
    assert "holds no saved model (no folder last/): the run was interrupted: stopped by" in capfd.readouterr().err


def test_evaluate_of_a_failed_run_says_why(finished, tmp_path, capfd):
    shutil.copytree(finished, tmp_path / "run")
    record = results.read(tmp_path / "run")[-1]
    record |= {"status": "failed", "reason": "the loss became nan at step 3 of 8", "scores": {}}
    results.write(tmp_path / "run", record)
    assert evaluated(tmp_path / "run") == 1
    assert "the run FAILED: the loss became nan at step 3" in capfd.readouterr().out


def test_a_missing_run_folder_is_not_looked_up_on_the_hub(finished, monkeypatch, capfd):
    monkeypatch.chdir(finished.parent.parent)
    assert evaluated(f"{finished.parent.name}/rum") == 2
    error = capfd.readouterr().err
    assert f"there is no folder {finished.parent.name}/rum; did you mean '{finished.parent.name}/run'?" in error
    # offline: the Hub is asked, and the answer says that no folder is there
    assert evaluated("some-owner/some-model", "--task", "lite") == 2
    error = capfd.readouterr().err
    assert "looking for the repository some-owner/some-model on the Hub" in error
    assert "and there is no folder some-owner/some-model" in error


# ---------------------------------------------------------------- asked for wrongly


def test_nothing_to_resume_is_an_error_unless_a_task_is_named(tmp_path, capfd, finished):
    assert main(["--resume", "--output_dir", str(tmp_path / "nowhere")]) == 2
    assert f"there is no run to resume at {tmp_path / 'nowhere'}" in capfd.readouterr().err
    assert main(["--resume", "--output_dir", str(finished.with_name("rum"))]) == 2
    assert f"did you mean '{finished}'" in capfd.readouterr().err
    assert not (tmp_path / "nowhere").exists()
    assert main([*flags(tmp_path / "new", max_steps=1), "--resume"]) == 0
    assert "nothing to resume" in capfd.readouterr().err


def test_resume_with_the_same_task_named_and_with_another_keyword(tmp_path, capfd, finished):
    go_on = ["--resume", "--output_dir", str(finished)]
    assert main([*go_on, "--task", "lite_noisy_gaps"]) == 0
    assert "already finished" in capfd.readouterr().err
    assert main([*go_on, "--num_items", "7"]) == 2
    assert "num_items is 7 here and was 6 when the run began" in capfd.readouterr().err
    stopped_after(tmp_path / "cut", "transformer", 4)  # a Task made in Python
    go_on = ["--resume", "--output_dir", str(tmp_path / "cut")]
    assert main([*go_on, "--task", "lite_noisy_gaps", "--sample_seed", "3"]) == 2
    assert "sample_seed is 3 here and was 1 when the run began" in capfd.readouterr().err
    assert main([*go_on, "--task", "lite_noisy_gaps"]) == 0


def test_the_command_does_not_resume_a_module_of_the_users(tmp_path, capfd):
    task = tiny_task()
    gru = torch.nn.GRU(task.num_symbols, task.num_states, batch_first=True)
    train(task, torch.nn.Sequential(gru, First()), max_steps=1, output_dir=tmp_path / "run")
    assert main(["--resume", "--output_dir", str(tmp_path / "run")]) == 2
    error = capfd.readouterr().err
    assert "was made by sb.train with a module of its own; resume it in Python with sb.train(" in error
    assert "resume=True" in error


def test_one_model_a_run(tmp_path):
    task = tiny_task()
    with pytest.raises(InputError, match="takes one model: 'gla' was given, and mixer='mamba2' beside it"):
        train(task, "gla", mixer="mamba2", output_dir=tmp_path / "run")
    with pytest.raises(InputError, match="takes one model: a Linear was given"):
        train(task, torch.nn.Linear(9, 65), mixer="gla", output_dir=tmp_path / "run")
    assert not os.listdir(tmp_path)


def test_splits_to_score(tmp_path):
    with pytest.raises(InputError, match="eval_splits names 'test' twice"):
        tiny_run(tmp_path / "run", eval_splits=["test", "test"])
    with pytest.raises(InputError, match="train is none of them"):
        tiny_run(tmp_path / "run", eval_splits=["train"])
    run = tiny_run(tmp_path / "run", eval_splits=["test"])
    with pytest.raises(InputError, match="(?s)unknown scored split 'test_gap_5'.*Allowed: validation, test"):
        run.accuracy("test_gap_5")
