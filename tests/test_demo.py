"""The demo at doll's size: what it writes, what a rerun keeps, what happens to it when it is killed or a model fails."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from selectivbench_hf import demo, demo_report
from selectivbench_hf.errors import InputError
from selectivbench_hf.tasks import get_task

RECIPE = """
task: lite_noisy_gaps
mixers: [transformer, gla]
training: {hidden_size: 16, num_hidden_layers: 1, max_steps: 2, per_device_train_batch_size: 4, learning_rate: 1e-3, max_eval_sequences: 2, num_heads: 2}
sequences: {test_gap_1: 3, test: 2, test_gap_100: 1}
transfer: lite
transfer_sequences: 3
"""


@pytest.fixture
def recipe(tmp_path):
    def write(**changes):
        text = RECIPE
        for old, new in changes.items():
            assert old in text
            text = text.replace(old, new)
        (tmp_path / "recipe.yaml").write_text(text)
        return "recipe.yaml"

    return write


def rows_of(folder, strict_json):
    return [strict_json(line) for line in (folder / "results.jsonl").read_text().splitlines()]


def test_demo_writes_report_figure_and_records_and_keeps_what_is_finished(
    selectivbench, recipe, tmp_path, strict_json
):
    first = selectivbench("demo", "--recipe", recipe(), "--output", "d", timeout=300)
    rows = rows_of(tmp_path / "d", strict_json)
    assert [(r["name"], r["status"]) for r in rows] == [("transformer", "finished"), ("gla", "finished")]
    task = get_task("lite_noisy_gaps")
    for row in rows:
        scores = row["scores"]
        assert {s: v["sequences"] for s, v in scores.items()} == {
            "test_gap_1": 3,
            "test": 2,
            "test_gap_100": 1,
            "lite/test": 3,
        }
        assert scores["test"]["total"] == 2 * task.num_items
        assert scores["test_gap_100"]["steps"] == 64 * 101
        assert (row["steps"], row["settings"]["fingerprints"]["task"]) == (2, task.fingerprint)
        assert (tmp_path / f"d/runs/{row['name']}/results.jsonl").exists()
    report = (tmp_path / "d/report.md").read_text()
    assert "| transformer | " in report
    assert "gap 100" in report
    assert "without any memory, gives 3" in report
    assert "## What the scores mean" in report
    assert (tmp_path / "d/figure.png").read_bytes()[:4] == b"\x89PNG"
    assert "accuracy, %" in first.stdout
    again = selectivbench("demo", "--recipe", recipe(), "--output", "d")
    assert "transformer: finished before with the same settings; kept" in again.stdout
    assert "training" not in again.stdout
    assert rows_of(tmp_path / "d", strict_json) == rows
    other = selectivbench("demo", "--recipe", recipe(), "--output", "d", "--max_steps", 3, "--mixers", "gla")
    assert "kept" not in other.stdout
    (row,) = rows_of(tmp_path / "d", strict_json)
    assert (row["name"], row["steps"]) == ("gla", 3)


def test_a_mixer_that_fails_is_told_and_the_others_stand(selectivbench, recipe, tmp_path, strict_json):
    file = recipe(**{"1e-3": "1e30", "max_steps: 2": "max_steps: 4", "[transformer, gla]": "[transformer]"})
    result = selectivbench("demo", "--recipe", file, "--output", "d", ok=False, timeout=300)
    assert result.returncode == 1
    (row,) = rows_of(tmp_path / "d", strict_json)
    assert row["status"] == "failed"
    assert row["reason"]
    assert "transformer failed: " in (tmp_path / "d/report.md").read_text()
    assert "Traceback" not in result.stderr


def test_killed_and_run_again(environment, selectivbench, recipe, tmp_path, strict_json):
    file = recipe(**{"max_steps: 2": "max_steps: 60, save_steps: 2, logging_steps: 1"})
    command = [
        sys.executable,
        "-m",
        "selectivbench_hf.cli",
        "demo",
        "--recipe",
        file,
        "--output",
        "d",
        "--workers",
        "1",
        "--mixers",
        "transformer",
    ]
    process = subprocess.Popen(
        command, cwd=tmp_path, env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    until = time.time() + 100
    while time.time() < until and not list((tmp_path / "d/runs/transformer/checkpoints").glob("*[0-9]")):
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.wait()
    time.sleep(2)  # its worker sees that its parent is gone
    log = tmp_path / "d/runs/transformer/log.jsonl"
    size = log.stat().st_size
    time.sleep(1)
    assert log.stat().st_size == size, "a worker trains on after its demo was killed"
    again = selectivbench("demo", "--recipe", file, "--output", "d", "--mixers", "transformer", timeout=300)
    assert again.returncode == 0
    (row,) = rows_of(tmp_path / "d", strict_json)
    assert (row["status"], row["steps"]) == ("finished", 60)
    (record,) = [json.loads(line) for line in (tmp_path / "d/runs/transformer/results.jsonl").read_text().splitlines()]
    assert record["training"]["resumes"] == 1


@pytest.mark.parametrize(("old", "new", "words"), [
    ("transfer: lite", "transfer: lyte", "unknown task 'lyte'"),
    ("[transformer, gla]", "[transfomer]", "unknown mixer 'transfomer' in .*; did you mean 'transformer'"),
    ("mixers:", "mixer:", "unknown setting 'mixer' in .*; did you mean 'mixers'"),
    ("hidden_size:", "hidden_sizes:", "unknown training argument 'hidden_sizes' in .*; did you mean 'hidden_size'"),
    ("test_gap_1:", "test_gap_2:", "unknown split 'test_gap_2'"),
    ("test_gap_1: 3", "test_gap_1: 0", "sequences.test_gap_1 in .* must be a whole number of at least 1"),
    ("transfer_sequences: 3", "", "lacks the setting 'transfer_sequences'"),
    ("[transformer, gla]", "transformer", "mixers in .* must be a list"),
])  # fmt: skip
def test_mistakes_in_a_recipe(recipe, tmp_path, old, new, words):
    with pytest.raises(InputError, match=words):
        demo.read_recipe(tmp_path / recipe(**{old: new}))


def test_mistakes_on_the_command_line(selectivbench, tmp_path):
    (tmp_path / "file").write_text("x")
    for arguments, words in [
        (["--mixers", "glaa"], "error: unknown mixer 'glaa'; did you mean 'gla'"),
        (["--steps", "3"], "error: unknown flag '--steps' in selectivbench demo"),
        (["--recipe", "nowhere.yaml"], "error: cannot read the configuration file 'nowhere.yaml'"),
        (["--output", "file"], "error: file is a file"),
    ]:
        result = selectivbench("demo", *arguments, ok=False)
        assert result.returncode == 2
        assert result.stderr.startswith(words), result.stderr


def test_the_packages_recipe_is_sound_and_small():
    recipe = demo.read_recipe()
    assert sorted(recipe["mixers"]) == ["gated_delta_net", "gla", "gpt", "mamba2", "transformer"]
    assert recipe["task"] == "lite_noisy_gaps"
    assert set(recipe["sequences"]) == set(get_task("lite_noisy_gaps").test_splits)


def test_letter_alone_is_what_a_model_without_memory_can_reach():
    task = get_task("lite")
    share = demo_report.letter_alone(task)
    assert 1 / task.num_states < 1 / 8 < share < 0.6


def test_the_report_holds_scores_against_the_ceiling():
    """Share of the exact filter's accuracy, and effective context, by each task's own ladder; where there is no filter it says why."""
    from selectivbench_hf import ceilings

    task, columns = get_task("lite_noisy_gaps"), [("test", "gap 10"), ("lite/test", "lite")]
    row = {"name": "gla", "scores": {"test": {"accuracy": 0.5}, "lite/test": {"accuracy": 0.2}}}
    perfect = {"name": "best", "scores": {"test": {"accuracy": 1.0}, "lite/test": {"accuracy": 1.0}}}
    text = "\n".join(demo_report._worth({"transfer": "lite"}, [row, perfect], columns, task))
    rungs = ceilings.ladder_of(task)
    assert f"| gla | 50.0 % | {rungs.effective_context(0.5):.1f} | below 1 |" in text
    assert f"| best | 100.0 % | above {len(rungs.accuracy)} | above {len(rungs.accuracy)} |" in text
    assert "; with 4 it reaches 95 %" in text
    hidden = get_task(task, noise="gaussian", noise_scale=0.5)
    text = "\n".join(demo_report._worth({"transfer": "lite"}, [row], columns, hidden))
    assert "No exact ceiling: the exact filter needs symbols" in text


@pytest.mark.skipif(os.name != "posix", reason="signals")
def test_ctrl_c_stops_the_workers(environment, recipe, tmp_path):
    file = recipe(**{"max_steps: 2": "max_steps: 5000, logging_steps: 1"})
    command = [
        sys.executable,
        "-m",
        "selectivbench_hf.cli",
        "demo",
        "--recipe",
        file,
        "--output",
        "d",
        "--mixers",
        "transformer",
    ]
    process = subprocess.Popen(
        command,
        cwd=tmp_path,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    log = tmp_path / "d/runs/transformer/log.jsonl"
    until = time.time() + 100
    while time.time() < until and not (log.exists() and log.stat().st_size):
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in errors
    size = log.stat().st_size
    time.sleep(1)
    assert log.stat().st_size == size
