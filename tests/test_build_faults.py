"""`selectivbench build` against what users have in the way: foreign files, hostile names, signals, odd consoles; nothing lost, no debris."""

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from selectivbench_hf import configs, materialise
from selectivbench_hf.errors import InputError
from selectivbench_hf.tasks import get_task

SMALL = {"num_train": 300, "num_validation": 20, "num_test": 30}
SMALL_FLAGS = [f for k, v in SMALL.items() for f in (f"--{k}", v)]


def files(folder):
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(Path(folder).rglob("*")) if p.is_file()}


def build(task, folder, **keywords):
    return materialise.build([task], folder, progress=False, **keywords)


# -- files of others ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "names",
    [["results1.parquet"], ["train-00000-of-00001.parquet"], ["task.json", "notes.txt"], ["task.json", "sub/b"], ["manifest.json", "x.parquet"]],
)  # fmt: skip
@pytest.mark.parametrize("overwrite", [False, True])
def test_a_folder_of_others_is_refused_and_untouched(tmp_path, names, overwrite):
    for name in names:
        (tmp_path / "q/lite" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "q/lite" / name).write_text("precious")
    before = files(tmp_path)
    with pytest.raises(InputError, match="was not written by `selectivbench build` and would be deleted"):
        build(get_task("lite", **SMALL), tmp_path / "q", overwrite=overwrite)
    assert files(tmp_path) == before


@pytest.mark.parametrize("name", ["notes.txt", "sub/b", "train-00000-of-00009.parquet"])
@pytest.mark.parametrize("damaged", [False, True])
def test_a_file_put_beside_a_builds_files_is_never_deleted(tmp_path, name, damaged):
    task, folder = get_task("lite", **SMALL), tmp_path / "q"
    build(task, folder)
    (folder / "lite" / name).parent.mkdir(exist_ok=True)
    (folder / "lite" / name).write_text("precious")
    if damaged:
        (folder / "lite/test-00000-of-00001.parquet").unlink()
        with pytest.raises(InputError, match="holds "):
            build(task, folder)
    else:
        assert build(task, folder)[0]["status"] == "kept"
        with pytest.raises(InputError, match="holds "):
            build(get_task("lite", num_items=20, **SMALL), folder, overwrite=True)
    assert (folder / "lite" / name).read_text() == "precious"
    assert (folder / "lite/train-00000-of-00001.parquet").exists()


def test_a_file_that_appears_during_the_build_is_not_deleted(tmp_path, monkeypatch):
    folder = tmp_path / "q"
    build(get_task("lite", **SMALL), folder)
    card, inner = (folder / "README.md").read_text(), materialise.write_splits

    def late(*arguments):
        (folder / "lite/notes.txt").write_text("precious")
        return inner(*arguments)

    monkeypatch.setattr(materialise, "write_splits", late)
    with pytest.raises(InputError, match=r"notes\.txt"):
        build(get_task("lite", num_items=20, **SMALL), folder, overwrite=True)
    assert (folder / "lite/notes.txt").read_text() == "precious"
    assert (folder / "README.md").read_text() == card


def test_a_config_moved_to_another_name_needs_overwrite(tmp_path):
    build(get_task("lite", **SMALL), tmp_path / "q")
    (tmp_path / "q/lite").rename(tmp_path / "q/te1")
    with pytest.raises(InputError, match="holds the config lite, moved from elsewhere"):
        build(get_task("te1", **SMALL), tmp_path / "q")
    assert build(get_task("te1", **SMALL), tmp_path / "q", overwrite=True)[0]["status"] == "built"


def test_an_overwrite_that_fails_leaves_the_old_config_listed(tmp_path, monkeypatch):
    folder = tmp_path / "q"
    build(get_task("lite", **SMALL), folder)
    before = files(folder)

    def fail(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(materialise, "write_splits", fail)
    with pytest.raises(KeyboardInterrupt):
        build(get_task("lite", num_items=20, **SMALL), folder, overwrite=True)
    assert files(folder) == before


# -- names --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["a|b", "a*", "a:b?", "a\nb", "[", "", " ", ".x", "-x", "x.", "ü", "no", "null", "1e3", "2020-01-01", "README.md", "x" * 101, 5,
     "a/b", "a\\b", "{", "x\x7f"]
)  # fmt: skip
def test_hostile_names_are_refused(name):
    with pytest.raises(InputError, match="config"):
        configs.check_name(name)


@pytest.mark.parametrize("name", ["a*", "", "a\nb", "ü", "no"])
def test_hostile_names_are_refused_before_anything_is_written(selectivbench, tmp_path, name):
    result = selectivbench("build", "lite", f"--name={name}", ok=False)
    assert (result.returncode, result.stderr.count("\n")) == (2, 1), result.stderr
    data = get_task("lite", **SMALL).to_dict() | {"name": name}
    (tmp_path / "task.json").write_text(json.dumps(data))
    result = selectivbench("build", "task.json", ok=False)
    assert (result.returncode, result.stderr.count("\n")) == (2, 1), result.stderr
    assert [p.name for p in tmp_path.iterdir()] == ["task.json"]


def test_odd_but_good_names_load(tmp_path):
    from datasets import get_dataset_config_names, load_dataset

    names = ["A.b-c_1", "__x", "2nd", "none"]
    for name in names:
        try:
            task = replace(get_task("lite", **SMALL), name=name)
        except InputError:  # tasks.py may allow fewer
            continue
        build(task, tmp_path / "q")
        assert name in get_dataset_config_names(str(tmp_path / "q"))
        assert len(load_dataset(str(tmp_path / "q"), name, split="test", cache_dir=tmp_path / "c")) == 30


# -- what it says ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("package", [True, False])
@pytest.mark.parametrize("output", ["selectivbench", "out", "./deep/er", "ABSOLUTE"])
def test_the_last_line_of_a_build_can_be_run(selectivbench, python, tmp_path, package, output):
    output = str(tmp_path / "abs") if output == "ABSOLUTE" else output
    line = selectivbench("build", "lite", *SMALL_FLAGS, "--name", "small", "--output", output).stdout.splitlines()[-1]
    call, said = line.split(" reads it")[0], line
    code = f"{'import selectivbench_hf' if package else ''}\nfrom datasets import load_dataset\nprint({call}['test'].num_rows)"
    result = python("-c", code)
    assert result.stdout.strip() == "30", result.stderr
    if output == "selectivbench":
        assert said.endswith('without importing the package, load_dataset("selectivbench", "small") from the folder that holds it reads it too')  # fmt: skip
        code = "from datasets import load_dataset\nprint(load_dataset('selectivbench', 'small')['test'].num_rows)"
        assert python("-c", code).stdout.strip() == "30"


@pytest.mark.parametrize("more", [["--num_items", 20], ["--name", "mine"], ["--grammar_seed", 2, "--name", "lite"], ["--grammar_seed", 3]])  # fmt: skip
def test_the_advice_for_a_damaged_config_repairs_it(selectivbench, tmp_path, more):
    selectivbench("build", "lite", *SMALL_FLAGS, *more, "--output", "a b")
    before = {k: v for k, v in files(tmp_path / "a b").items() if "/" in k}
    next((tmp_path / "a b").glob("*/test-*")).unlink()
    said = selectivbench("build", "te1", *SMALL_FLAGS, "--output", "a b").stderr
    words = shlex.split(said.split("`")[1])
    assert words[0] == "selectivbench"
    selectivbench(*words[1:])
    after = files(tmp_path / "a b")
    assert {k: after[k] for k in before} == before
    names = [c["config_name"] for c in yaml.safe_load((tmp_path / "a b/README.md").read_text().split("---")[1])["configs"]]  # fmt: skip
    assert len(names) == 2


# -- no debris --------------------------------------------------------------------------------------------------------------


def test_a_refused_build_leaves_nothing(selectivbench, tmp_path):
    (tmp_path / "own").mkdir()
    (tmp_path / "own/train.csv").write_text("a\n")
    too_small = ["--letters", 4, "--depth", 2, "--num_items", 5]
    for output in ("own", "new", "deep/new"):
        result = selectivbench("build", "lite", *SMALL_FLAGS, *too_small, "--output", output, ok=False)
        assert result.returncode == 2, result.stderr
        assert "disjoint" in result.stderr
    assert [str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*")] == ["own", "own/train.csv"]


def test_a_train_split_that_meets_test_says_the_same_with_processes(tmp_path):
    task = get_task("lite", letters=4, depth=2, num_items=6, num_train=20_000, num_validation=3, num_test=3)
    said = []
    for processes in (1, 3):
        with pytest.raises(InputError, match="disjoint") as error:
            build(task, tmp_path / "q", num_proc=processes)
        said.append(str(error.value))
    assert said[0] == said[1]
    assert not list(tmp_path.iterdir())


def test_train_is_shared_between_processes_and_stays_the_same(tmp_path):
    task = get_task("lite_noisy_gaps", num_train=53_000, num_items=40, num_validation=20, num_test=520)
    build(task, tmp_path / "one")
    build(task, tmp_path / "three", num_proc=3)
    names = sorted(p.name for p in (tmp_path / "one/lite_noisy_gaps").glob("*.parquet"))
    assert [n for n in names if n.startswith("train")] == [f"train-0000{i}-of-00002.parquet" for i in range(2)]
    assert len(names) == 2 + len(task.splits) - 1  # one file for each held-out split
    one, three = files(tmp_path / "one"), files(tmp_path / "three")
    assert one == three
    from selectivbench_hf.builder import content_hash, iterate_tables

    manifest = json.loads(one["lite_noisy_gaps/manifest.json"])
    for split in task.splits:
        assert manifest["splits"][split]["content_hash"] == content_hash(iterate_tables(task, split))


@pytest.mark.parametrize("output", ["selectivbench", "old"])
@pytest.mark.parametrize("processes", [1, 2])
@pytest.mark.parametrize(("kind", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_stops_at_once_and_cleans_up(environment, tmp_path, kind, code, processes, output):
    if output == "old":
        build(get_task("lite", **SMALL), tmp_path / "old")
    before = files(tmp_path)
    command = [sys.executable, "-m", "selectivbench_hf.cli", "build", "te3_noisy_gaps", "--output", output, "--num_proc", str(processes)]  # fmt: skip
    process = subprocess.Popen(command, cwd=tmp_path, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)  # fmt: skip
    until = time.time() + 60
    while time.time() < until and not list(tmp_path.glob(f"{output}/.selectivbench-incomplete-*/train-*.parquet")):
        time.sleep(0.02)
    began = time.perf_counter()
    process.send_signal(kind)  # to the build alone, not to its workers
    _, errors = process.communicate(timeout=60)
    assert time.perf_counter() - began < 5
    assert (process.returncode, errors) == (code, "stopped\n")
    assert files(tmp_path) == before
    assert (tmp_path / output).exists() == (output == "old")


def test_a_worker_that_dies_ends_in_a_sentence(environment, tmp_path):
    command = [sys.executable, "-m", "selectivbench_hf.cli", "build", "te3_noisy_gaps", "--num_proc", "2"]
    process = subprocess.Popen(command, cwd=tmp_path, env=environment(), stderr=subprocess.PIPE, text=True)
    until = time.time() + 60
    while time.time() < until and not list(tmp_path.glob("selectivbench/.selectivbench-incomplete-*/train-*.parquet")):
        time.sleep(0.02)
    workers = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
            if parent == process.pid and b"spawn_main" in (entry / "cmdline").read_bytes():
                workers.append(int(entry.name))
        except OSError:
            continue
    os.kill(workers[0], signal.SIGKILL)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 1
    assert errors.startswith("error: a worker process of the build of te3_noisy_gaps was killed"), errors
    assert errors.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_only_what_builds_left_is_swept(tmp_path):
    for name in (".incomplete-thesis", ".git", ".cache"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "x").write_text("precious")
    left = tmp_path / f"{materialise.INCOMPLETE}lite-abc"
    left.mkdir()
    build(get_task("lite", **SMALL), tmp_path)
    assert not left.exists()
    assert len(list(tmp_path.glob(".*/x"))) == 3
