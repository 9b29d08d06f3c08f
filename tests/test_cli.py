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


@pytest.mark.parametrize("command", ["tasks", "show", "build", "ceiling", "models"])
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
    te7 = next(row for row in rows if row["name"] == "te7")
    assert (te7["name"], te7["states"], te7["symbols"], te7["splits"]["train"]) == ("te7", 1601, 41, 200_000)
    assert 2.6 < te7["entropy_nats"] < 2.95
    assert rows[1]["max_steps"]["test_gap_100"] == 64 * 101
    mqar, copying = (next(row for row in rows if row["name"] == name) for name in ("mqar_64_4", "copy_lite"))
    assert (mqar["family"], mqar["symbols"], mqar["num_pairs"], mqar["chance"]["any_value"]) == (
        "recall",
        8192,
        4,
        0.25,
    )
    assert copying["max_steps"] == {"train": 33, "validation": 33, "test": 33} and copying["num_pairs"] is None


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
            "error: selectivbench show: argument --num_sequences: must be a whole number of at least 1, got '0'",
        ),
        (
            ["show", "lite", "--grammar_sed", "2"],
            "error: unknown flag '--grammar_sed' in selectivbench show; did you mean '--grammar_seed'",
        ),
        (["show", "lite", "--grammar_seed", "two"], "error: "),
        (["show", "lite", "--density", "0"], "error: density must be above 0"),
        (["show", "nowhere.json"], "error: cannot read the task file"),
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


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--density", "nan"], "error: --density must be a number such as 0.4, got 'nan'"),
        (["--density", "1e999"], "error: --density must be a number such as 0.4, got '1e999'"),
        (["--letters", "0x1"], "error: --letters must be a whole number such as 8, got '0x1'"),
        (["--letters", "010"], "error: --letters must be a whole number such as 8, got '010'"),
        (["--num_train", "1_000"], "error: --num_train must be a whole number such as 8, got '1_000'"),
        (["--letters", "9" * 5000], "error: --letters must be a whole number"),
        (["--noise", ""], "error: unknown noise '' in lite; Allowed: none, uniform, gaussian"),
        (["--all_reachable", "yes"], "error: --all_reachable must be true or false, got 'yes'"),
        (["--train_gap", "{"], "error: --train_gap must be a whole number of steps such as 3, or"),
        (["--train_gap", ""], "error: --train_gap must be a whole number of steps such as 3, or"),
        (["--depth", "[1,"], "error: --depth must be a whole number such as 8, or one for each letter"),
        (["--depth", "[" * 100_000], "error: --depth must be a whole number such as 8, or one for each letter"),
        (["--test_gaps", "1", "x"], "error: --test_gaps must be whole numbers of steps such as 10 20 50"),
        (["--test_gaps", "[1, NaN]"], "error: --test_gaps must be whole numbers of steps such as 10 20 50"),
        (["--grammar", ""], "error: --grammar must be a grammar's JSON file"),
        (["--seed", "x"], "error: selectivbench show: argument --seed: must be a whole number of at least 0, got 'x'"),
        (["--num_sequences", "1_0"], "error: selectivbench show: argument --num_sequences: must be a whole number"),
        (["--plot", ""], "error: selectivbench show: argument --plot: needs the name of a picture, got ''"),
        (["--plot", "x" * 300 + ".png"], "error: "),
        (["--plot", "folder.png"], "error: folder.png is a folder"),
    ],
)
def test_bad_flag_values_say_what_is_allowed(selectivbench, tmp_path, arguments, sentence):
    (tmp_path / "folder.png").mkdir()
    result = selectivbench("show", "lite", *arguments, ok=False)
    assert result.returncode == 2, result.stderr
    assert result.stderr.startswith(sentence), result.stderr
    assert result.stderr.count("\n") == 1, result.stderr
    assert result.stdout == "" or "x" * 300 in str(arguments)


def test_every_builder_keyword_has_a_flag_that_says_what_it_takes(selectivbench):
    from selectivbench_hf import task_flags
    from selectivbench_hf.tasks import TASK_KEYWORDS

    assert tuple(task_flags.FLAGS) == TASK_KEYWORDS
    for command in ("show", "build"):
        out = selectivbench(command, "--help").stdout
        assert "VALUE" not in out
        assert '{"1": 1, "2": 3}' in " ".join(out.split())


def test_keywords_of_flags_are_those_of_get_task():
    from selectivbench_hf import task_flags
    from selectivbench_hf.console import Parser

    parser = Parser(prog="x")
    task_flags.add(parser)
    words = [
        "--letters",
        "5",
        "--depth",
        "[1, 2, 3, 2, 1]",
        "--density",
        ".5",
        "--train_gap",
        '{"1": 1, "2": 3}',
        "--test_gaps",
        "1",
        "5",
    ]
    given = task_flags.keywords(parser.parse_args([*words, "--all_reachable", "true", "--sample_seed", "-3"]))
    assert given == {
        "letters": 5,
        "depth": [1, 2, 3, 2, 1],
        "density": 0.5,
        "train_gap": {"1": 1, "2": 3},
        "test_gaps": [1, 5],
        "all_reachable": True,
        "sample_seed": -3,
    }
    assert task_flags.keywords(parser.parse_args(["--test_gaps", "[4, 2]"])) == {"test_gaps": [4, 2]}
    task_flags.task("lite_noisy_gaps", **given)


BAD_FILES = {
    "latin": b'{"name": "x\\u00fc", "\xfc": 1}',
    "deep": b"[" * 200_000,
    "deep_object": b'{"depth": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "huge": b'{"name": "x", "num_train": ' + b"9" * 6000 + b"}",
    "infinite": b'{"name": "x", "num_train": 1e999, "noise_scale": 1e999}',
    "large": b'{"name": "x", "letters": 1' + b"0" * 400 + b"}",
    "nul": b"\0\0",
    "empty": b"",
    "list": b"[1]",
    "number": b"5",
}


@pytest.mark.parametrize("kind", BAD_FILES)
@pytest.mark.parametrize("way", [["show", "F"], ["show", "lite", "--grammar", "F"], ["build", "F"], ["build", "lite", "--grammar", "F"]])  # fmt: skip
def test_bad_files_end_in_one_sentence(capsys, monkeypatch, tmp_path, kind, way):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bad.json").write_bytes(BAD_FILES[kind])
    code = cli.main([word.replace("F", "bad.json") for word in way])
    out, err = capsys.readouterr()
    assert (code, out) == (2, ""), err
    assert err.startswith("error: ") and err.count("\n") == 1, err
    assert [p.name for p in tmp_path.iterdir()] == ["bad.json"]


@pytest.mark.parametrize(
    "error", [RecursionError("x"), OverflowError("x"), UnicodeDecodeError("utf-8", b"x", 0, 1, "x")]
)
def test_whatever_reading_a_task_raises_is_one_sentence(capsys, monkeypatch, error):
    from selectivbench_hf import tasks

    def fail(*arguments, **keywords):
        raise error

    monkeypatch.setattr(tasks, "get_task", fail)
    assert cli.main(["show", "t.json", "--grammar", "g.json"]) == 2
    assert capsys.readouterr().err.startswith("error: cannot read the task t.json or the grammar g.json: ")


@pytest.mark.parametrize("output", ["", "readme", "locked/x", "x" * 300, "file/x"])
def test_impossible_outputs_are_bad_input(selectivbench, tmp_path, output):
    (tmp_path / "readme/README.md").mkdir(parents=True)
    (tmp_path / "file").write_text("x")
    if output.startswith("locked"):
        if subprocess.run(["id", "-u"], capture_output=True, text=True).stdout.strip() == "0":
            pytest.skip("nothing is locked to root")
        (tmp_path / "locked").mkdir(mode=0o555)
    before = sorted(tmp_path.rglob("*"))
    result = selectivbench("build", "lite", "--num_train", 300, "--output", output, ok=False)
    assert (result.returncode, result.stderr.count("\n")) == (2, 1), result.stderr
    assert sorted(tmp_path.rglob("*")) == before


def test_consoles_that_lack_letters_or_outputs(environment, tmp_path):
    def run(command, **more):
        command = command.replace("S", f"{sys.executable} -m selectivbench_hf.cli", 1)
        result = subprocess.run(["bash", "-c", command], env=environment(**more), cwd=tmp_path, capture_output=True)
        return result.returncode, result.stdout.decode(), result.stderr.decode()

    small = "--num_train 300 --num_validation 20 --num_test 30"
    code, out, err = run(f"S build lite {small} --output out_ü", PYTHONIOENCODING="ascii")
    assert (code, err) == (0, "") and 'load_dataset("./out_\\xfc", "lite")' in out
    code, out, err = run("S build lite --name ü", LC_ALL="C", PYTHONUTF8="0", PYTHONCOERCECLOCALE="0")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert run("S tasks >&-") == (1, "", "error: the standard output is closed, so nothing could be shown\n")
    assert run("S tsks 2>&-")[0] == 2
    assert run("S tasks >/dev/full") == (1, "", "error: No space left on device\n")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["out_ü"]


def test_more_sequences_than_there_are_is_said(selectivbench):
    result = selectivbench("show", "lite", "--num_test", 3, "--split", "test", "--num_sequences", 99999999)
    assert result.stderr == "lite has 3 sequences in test: showing all of them\n"
    assert result.stdout.count("test/") == 3
