"""The command line: what each command prints, and one sentence for each mistake."""

import signal
import subprocess
import sys
import time

import pytest

from selectivbench_hf import cli
from selectivbench_hf.tasks import task_names


def test_help_answers_at_once(selectivbench):
    seconds = []
    for _ in range(3):
        began = time.perf_counter()
        out = selectivbench("--help").stdout
        seconds.append(time.perf_counter() - began)
    assert min(seconds) < 1
    for name in cli.COMMANDS:
        assert f"  {name} " in out


@pytest.mark.parametrize("command", ["tasks", "show", "build", "models"])
def test_help_of_a_command_imports_nothing_heavy(python, command):
    code = (
        f"import sys; from selectivbench_hf import cli\ntry: cli.main([{command!r}, '--help'])\nexcept SystemExit as e: assert not e.code\n"
        "heavy = {'torch', 'transformers', 'datasets', 'fla', 'scipy', 'matplotlib', 'accelerate', 'pyarrow'} & set(sys.modules)\nassert not heavy, heavy"
    )
    result = python("-c", code)
    assert result.returncode == 0, result.stderr
    assert "usage: selectivbench" in result.stdout


def test_version(selectivbench):
    assert selectivbench("--version").stdout.startswith("selectivbench_hf 0.1.0, data version 1.")


def test_tasks_writes_levels_out(selectivbench):
    out = selectivbench("tasks").stdout
    assert "te3 (level 3 of 7; 26 letters; " in out
    assert " nats = " in out
    for name in task_names():
        assert f"  {name} " in out


def test_tasks_json(selectivbench, strict_json):
    rows = strict_json(selectivbench("tasks", "--json").stdout)
    assert [row["name"] for row in rows] == task_names()
    te7 = rows[-3]
    assert (te7["name"], te7["states"], te7["symbols"], te7["splits"]["train"]) == ("te7", 1601, 41, 200_000)
    assert 2.6 < te7["entropy_nats"] < 2.95
    assert rows[1]["max_steps"]["test_gap_100"] == 64 * 101


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["taks"], "error: unknown command 'taks'; did you mean 'tasks'?"),
        (["--verbose"], "error: unknown flag '--verbose' in selectivbench"),
        (["tasks", "--jsn"], "error: unknown flag '--jsn' in selectivbench tasks; did you mean '--json'?"),
        (["show", "te3_noisy_gap"], "error: unknown task 'te3_noisy_gap'; did you mean 'te3_noisy_gaps'"),
        (["show"], "error: selectivbench show: the following arguments are required: TASK"),
        (["show", "lite", "--split", "tests"], "error: unknown split 'tests' in lite; did you mean 'test'?"),
        (
            ["show", "lite", "--num_sequences", "0"],
            "error: selectivbench show: argument --num_sequences: invalid whole number of at least 1 value: '0'",
        ),
        (
            ["show", "lite", "--grammar_sed", "2"],
            "error: unknown flag '--grammar_sed' in selectivbench show; did you mean '--grammar_seed'",
        ),
        (["show", "lite", "--grammar_seed", "two"], "error: "),
        (["show", "lite", "--density", "0"], "error: density must be above 0"),
        (["show", "nowhere.json"], "error: cannot read the task file nowhere.json"),
        (["show", "lite", "--plot", "a.docx"], "error: "),
        (["build", "lite", "lite"], "error: lite was asked for twice"),
        (["build", "lite", "te1", "--name", "x"], "error: --name names one config"),
        (["build", "lite", "--name", "../x"], "error: '../x' cannot name a config"),
        (["build", "lite", "--num_proc", "-1"], "error: selectivbench build: argument --num_proc"),
    ],
)
def test_mistakes_end_in_one_sentence(selectivbench, arguments, sentence):
    result = selectivbench(*arguments, ok=False)
    assert result.returncode == 2
    assert result.stderr.startswith(sentence), result.stderr
    assert result.stderr.count("\n") == 1, result.stderr
    assert "Traceback" not in result.stderr
    assert result.stdout == ""


def test_a_reader_that_leaves_is_no_error(environment, tmp_path):
    command = f"{sys.executable} -m selectivbench_hf.cli tasks --json | head -c 1"
    result = subprocess.run(["bash", "-c", command], env=environment(), cwd=tmp_path, capture_output=True, text=True)
    assert (result.stdout, result.stderr) == ("[", "")


def test_ctrl_c_is_quiet(environment, tmp_path):
    code = (
        "from selectivbench_hf import cli, materialise\nimport time, sys\nmaterialise.build = lambda *a, **k: (print('x', flush=True), time.sleep(60))\n"
        "sys.exit(cli.main(['build', 'lite']))"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        env=environment(),
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout.readline() == "x\n"
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=20)
    assert (process.returncode, errors) == (130, "stopped\n")
