"""`selectivbench build`: the folder loads without the package, equals the generated data, and survives whatever happens on the way."""

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from processes import parent

from selectivbench_hf import datacard, materialise
from selectivbench_hf.errors import InputError
from selectivbench_hf.tasks import get_task

SMALL = {"num_train": 300, "num_validation": 20, "num_test": 30}
SMALL_FLAGS = [f for k, v in SMALL.items() for f in (f"--{k}", v)]

# Reads the folder as a user without the package would; our import is forbidden.
LOAD = """
import sys, json
class Refuse:
    def find_spec(self, name, *rest):
        if name.split(".")[0] == "selectivbench_hf":
            raise ImportError("the package is not there")
sys.meta_path.insert(0, Refuse())
sys.path[:] = [p for p in sys.path if p != {root!r}]
exec({recipe!r})
from datasets import get_dataset_config_names, load_dataset
out = {{"configs": get_dataset_config_names("selectivbench")}}
for name in sys.argv[1:]:
    data = load_dataset("selectivbench", name)
    out[name] = {{split: [len(rows), content_hash(rows), str(rows.features["labels"])] for split, rows in data.items()}}
print(json.dumps(out))
"""


@pytest.fixture
def load(python, tmp_path):
    from conftest import ROOT

    code = LOAD.format(root=str(ROOT), recipe=(ROOT / "dataset_cards/content_hash.py").read_text())

    def run(*names, cwd=tmp_path, ok=True):
        cache = cwd / f"cache-{time.time_ns()}"
        result = python("-c", code, *names, cwd=cwd, env={"HF_HOME": str(cache), "PYTHONPATH": ""})
        shutil.rmtree(cache, ignore_errors=True)
        if not ok:
            assert result.returncode, result.stdout
            return result.stderr.strip().splitlines()[-1]
        assert result.returncode == 0, result.stderr
        return json.loads(result.stdout)

    return run


def generated(task):
    """Split -> [rows, content hash] of the data as the builder makes them."""
    from selectivbench_hf.builder import content_hash, iterate_tables

    return {s: [n, content_hash(iterate_tables(task, s))] for s, n in task.splits.items()}


def tree(folder):
    """Path -> SHA-256 of every file below, lock aside."""
    return {
        str(p.relative_to(folder)): hashlib.sha256(p.read_bytes()).hexdigest()
        for p in sorted(Path(folder).rglob("*"))
        if p.is_file() and p.name != materialise.LOCK
    }


def test_a_built_folder_loads_without_the_package(selectivbench, load, tmp_path):
    from datasets import get_dataset_config_names

    names = ["lite", "lite_noisy_gaps", "lite_nongrammatical_gaps", "te1"]
    out = selectivbench("build", *names, *SMALL_FLAGS, "--output", "selectivbench", "--json").stdout
    assert [row["name"] for row in json.loads(out)] == names
    loaded = load(*names)
    assert loaded["configs"] == names
    for name in names:
        task = get_task(name, **SMALL)
        assert {s: v[:2] for s, v in loaded[name].items()} == generated(task)
    assert "uint16" in loaded["te1"]["train"][2]
    assert get_dataset_config_names(str(tmp_path / "selectivbench")) == names


def test_features_equal_the_builders(tmp_path):
    from datasets import load_dataset

    from selectivbench_hf.builder import SelectivBench, features_of

    task = get_task("te3_noisy_gaps", num_train=40, num_validation=5, num_test=5, num_items=30)
    materialise.build([task], tmp_path / "b", progress=False)
    data = load_dataset(str(tmp_path / "b"), "te3_noisy_gaps", cache_dir=tmp_path / "c")
    assert data["train"].features == features_of(task)
    assert SelectivBench.DEFAULT_CONFIG_NAME == datacard.DEFAULT


def test_streaming_slices_and_processes_read_the_folder(tmp_path):
    from datasets import load_dataset

    task = get_task("lite", num_train=10_000, num_items=30, num_validation=10, num_test=600)
    materialise.build([task], tmp_path / "b", progress=False)
    assert len(list((tmp_path / "b/lite").glob("train-*"))) == 2
    stream = load_dataset(str(tmp_path / "b"), "lite", split="train", streaming=True)
    assert [row["example_id"] for row in stream.take(3)] == [0, 1, 2]
    rows = load_dataset(str(tmp_path / "b"), "lite", split="test[590:]", num_proc=2, cache_dir=tmp_path / "c")
    assert rows["example_id"][:] == list(range(590, 600))


def test_a_rerun_keeps_what_is_whole(selectivbench, tmp_path):
    first = selectivbench("build", "lite", *SMALL_FLAGS)
    before = tree(tmp_path / "selectivbench")
    times = {p: p.stat().st_mtime_ns for p in (tmp_path / "selectivbench").rglob("*")}
    second = selectivbench("build", "lite", "lite_noisy_gaps", *SMALL_FLAGS, "--json")
    assert "built" in first.stdout
    assert [row["status"] for row in json.loads(second.stdout)] == ["kept", "built"]
    after = tree(tmp_path / "selectivbench")
    assert {k: v for k, v in after.items() if k.startswith("lite/")} == {
        k: v for k, v in before.items() if k.startswith("lite/")
    }
    lite = tmp_path / "selectivbench/lite"
    assert all(p.stat().st_mtime_ns == times[p] for p in lite.iterdir())


def test_the_files_do_not_depend_on_the_number_of_processes(tmp_path):
    task = get_task("lite_noisy_gaps", **SMALL)
    materialise.build([task], tmp_path / "one", progress=False)
    materialise.build([task], tmp_path / "two", progress=False, num_proc=2)
    assert tree(tmp_path / "one") == tree(tmp_path / "two")


def test_other_grammar_seeds_have_their_own_name(selectivbench, load, tmp_path):
    selectivbench("build", "lite", "--grammar_seed", 2, *SMALL_FLAGS)
    selectivbench("build", "lite", *SMALL_FLAGS)
    selectivbench("build", "lite", "--num_items", 20, *SMALL_FLAGS, "--name", "short")
    loaded = load("lite", "lite_seed2", "short")
    assert loaded["configs"] == ["lite", "lite_seed2", "short"]
    assert loaded["lite"]["train"][1] != loaded["lite_seed2"]["train"][1]
    task = get_task(tmp_path / "selectivbench/short/task.json")
    assert (task.num_items, task.name) == (20, "short")
    assert generated(task) == {s: v[:2] for s, v in loaded["short"].items()}
    assert "differs from the catalogue: `num_train=300`" in (tmp_path / "selectivbench/README.md").read_text()


def test_other_data_under_the_same_name_are_refused(selectivbench, load, tmp_path):
    selectivbench("build", "lite", *SMALL_FLAGS)
    before = tree(tmp_path)
    result = selectivbench("build", "te1", "lite", "--sample_seed", 5, *SMALL_FLAGS, ok=False)
    assert result.returncode == 2
    assert "holds other data under the same name" in result.stderr
    assert tree(tmp_path) == before
    selectivbench("build", "lite", "--sample_seed", 5, *SMALL_FLAGS, "--overwrite")
    assert load("lite")["lite"]["train"][1] == generated(get_task("lite", sample_seed=5, **SMALL))["train"][1]
    assert "--overwrite" in result.stderr


def test_one_folder_holds_one_data_version(tmp_path):
    folder, task = tmp_path / "b", get_task("lite", **SMALL)
    materialise.build([task], folder, progress=False)
    path = folder / "lite" / materialise.MANIFEST
    path.write_text(path.read_text().replace('"data_version": "1.', '"data_version": "0.'))
    with pytest.raises(InputError, match="one folder holds one version"):
        materialise.build([get_task("te1", **SMALL)], folder, progress=False)
    with pytest.raises(InputError, match="holds other data under the same name"):
        materialise.build([task], folder, progress=False)
    assert materialise.build([task], folder, progress=False, overwrite=True)[0]["status"] == "built"


@pytest.mark.parametrize("damage", ["cut", "missing", "byte", "manifest", "task"])
def test_damage_is_found_and_repaired(tmp_path, damage):
    folder, task, told = tmp_path / "b", get_task("lite", **SMALL), []
    materialise.build([task], folder, progress=False)
    before = tree(folder)
    file = folder / "lite/test-00000-of-00001.parquet"
    if damage == "cut":
        file.write_bytes(file.read_bytes()[:-10])
    elif damage == "missing":
        file.unlink()
    elif damage == "byte":
        data = bytearray(file.read_bytes())
        data[len(data) // 2] ^= 1
        file.write_bytes(data)
    elif damage == "manifest":
        (folder / "lite" / materialise.MANIFEST).write_text("{")
    else:
        (folder / "lite/task.json").write_text("{}")
    rows = materialise.build([task], folder, progress=False, say=told.append)
    assert rows[0]["status"] == "built"
    assert "building it again" in told[0]
    assert tree(folder) == before


def test_a_missing_file_does_not_load_as_less_data(selectivbench, load, tmp_path):
    selectivbench("build", "lite", "--num_train", 10_000, "--num_validation", 20, "--num_test", 20)
    (tmp_path / "selectivbench/lite/train-00001-of-00002.parquet").unlink()
    assert "NonMatchingSplitsSizesError" in load("lite", ok=False)
    other = selectivbench("build", "te1", *SMALL_FLAGS)
    assert (
        "lite in selectivbench is damaged (train-00001-of-00002.parquet is missing) and is no longer listed"
        in other.stderr
    )
    assert load("te1")["configs"] == ["te1"]


# -- folders that are something else -----------------------------------------------------------------------------------


def test_foreign_folders_are_left_alone(selectivbench, tmp_path):
    (tmp_path / "a_file").write_text("x")
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    (tmp_path / "checkout").mkdir()
    (tmp_path / "checkout/README.md").write_text("# my project\n")
    (tmp_path / "taken/lite").mkdir(parents=True)
    (tmp_path / "taken/lite/thesis.txt").write_text("x")
    before = tree(tmp_path)
    for folder, sentence in [
        ("a_file", "is a file"),
        ("dangling", "is a dangling link"),
        ("checkout", "was not written by `selectivbench build`"),
        ("taken", "was not written by `selectivbench build`"),
        ("a_file/below", "cannot be made"),
    ]:
        result = selectivbench("build", "lite", *SMALL_FLAGS, "--output", folder, "--overwrite", ok=False)
        assert result.returncode == 2, result.stderr
        assert sentence in result.stderr, result.stderr
        assert result.stderr.count("\n") == 1
    assert tree(tmp_path) == before


def test_files_of_others_in_the_folder_stay_and_are_not_taken_for_data(selectivbench, load, tmp_path):
    folder = tmp_path / "selectivbench"
    folder.mkdir()
    (folder / "ckpt.bin").write_bytes(b"weights")
    (folder / "train.csv").write_text("a,b\n1,2\n")
    selectivbench("build", "lite", *SMALL_FLAGS)
    assert load("lite")["configs"] == ["lite"]
    assert (folder / "ckpt.bin").read_bytes() == b"weights"
    assert (folder / "train.csv").exists()


# -- interruption, races, a full disk ----------------------------------------------------------------------------------


def test_an_unfinished_first_build_does_not_load_and_says_why(load, tmp_path):
    folder = tmp_path / "selectivbench"
    (folder / "lite").mkdir(parents=True)
    materialise._write_card(folder, {})
    materialise.write_splits(get_task("lite", **SMALL), folder / "lite", 1, _NoBar())
    for names in (["lite"], [None]):
        message = load(*filter(None, names), ok=False) if names != [None] else load("", ok=False)
        assert "unfinished_build__run_selectivbench_build_again" in message


class _NoBar:
    rows = 0

    def update(self, rows):
        pass


# The build with a kill at a chosen point: `when` counts the calls of os.fsync, rename and replace, where the folder's state changes.
KILLED = """
import os, signal, sys
from pathlib import Path
count, when = 0, int(sys.argv[1])
def step(inner):
    def call(*arguments, **keywords):
        global count
        count += 1
        if count == when:
            os.kill(os.getpid(), signal.SIGKILL)
        return inner(*arguments, **keywords)
    return call
os.fsync, os.replace, Path.rename = step(os.fsync), step(os.replace), step(Path.rename)
from selectivbench_hf.cli import main
code = main(["build", "lite", "lite_noisy_gaps", "--num_train", "300", "--num_validation", "20", "--num_test", "30", *sys.argv[2:]])
print(count)
sys.exit(code)
"""


def _whole_or_nothing(load, folder, expected):
    """Whatever load_dataset finds is whole: the listed configs equal the generated data, and nothing else loads."""
    if not (folder / "README.md").exists():
        assert not [p for p in folder.rglob("*.parquet") if not p.relative_to(folder).parts[0].startswith(".")]
        return []
    front = yaml.safe_load((folder / "README.md").read_text().split("---")[1])
    names = [c["config_name"] for c in front["configs"]]
    if names == [datacard.UNFINISHED]:
        return []
    loaded = load(*names, cwd=folder.parent)
    assert loaded["configs"] == names
    for name in names:
        assert {s: v[:2] for s, v in loaded[name].items()} in expected[name]
    return names


@pytest.mark.parametrize("overwrite", [False, True], ids=["first", "overwrite"])
@pytest.mark.parametrize("every", [pytest.param(1, marks=pytest.mark.slow), 6])
def test_killed_at_any_step_then_completed(python, load, tmp_path, overwrite, every):
    tasks = [get_task(n, **SMALL) for n in ("lite", "lite_noisy_gaps")]
    expected = {t.name: [generated(t)] for t in tasks}
    for task in tasks:  # ceilings are kept on the disk: with them, every run takes the same steps
        datacard.facts(task)
    old = replace(tasks[0], sample_seed=9)
    if overwrite:
        expected["lite"].append(generated(old))
    more = ["--overwrite"] if overwrite else []

    def start(name):
        place = tmp_path / name
        place.mkdir()
        if overwrite:
            materialise.build([old], place / "selectivbench", progress=False)
        return place

    clean = start("clean")
    result = python("-c", KILLED, 0, *more, cwd=clean)
    assert result.returncode == 0, result.stderr
    steps = int(result.stdout.splitlines()[-1])
    assert steps > 15
    whole = tree(clean / "selectivbench")
    seen = set()
    for when in range(1 + (every > 1) * (1 + 2 * overwrite), steps + 1, every):
        place = start(f"at{when}")
        killed = python("-c", KILLED, when, *more, cwd=place)
        assert killed.returncode == -signal.SIGKILL
        # a load takes seconds: at the steps around the renames, and some between
        front = (place / "selectivbench/README.md").read_text() if (place / "selectivbench/README.md").exists() else ""
        state = (front, tuple(sorted(p.name for p in (place / "selectivbench").iterdir() if p.name[0] != ".")))
        if state not in seen:
            seen.add(state)
            _whole_or_nothing(load, place / "selectivbench", expected)
        again = python("-c", KILLED, 0, *more, cwd=place)
        assert again.returncode == 0, again.stderr
        assert tree(place / "selectivbench") == whole
        assert [p.name for p in (place / "selectivbench").iterdir() if p.name.startswith(".")] == [materialise.LOCK]
        shutil.rmtree(place)
    assert len(seen) >= 3


def test_killed_in_the_midst_of_writing_with_workers(environment, load, tmp_path):
    command = [
        sys.executable,
        "-m",
        "selectivbench_hf.cli",
        "build",
        "te1_noisy_gaps",
        "--num_proc",
        "2",
        "--num_train",
        "60000",
    ]
    process = subprocess.Popen(
        command, cwd=tmp_path, env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    folder = tmp_path / "selectivbench"
    until = time.time() + 60
    while time.time() < until and not list(folder.glob(".selectivbench-incomplete-*/train-*.parquet")):
        time.sleep(0.02)
    workers = [int(p.name) for p in Path("/proc").glob("[0-9]*") if parent(p) == process.pid]
    process.kill()
    process.wait()
    assert len(workers) >= 2
    while time.time() < until + 60 and any(
        Path(f"/proc/{pid}").exists() and parent(Path(f"/proc/{pid}")) == 1 for pid in workers
    ):
        time.sleep(0.1)
    assert not any(parent(Path(f"/proc/{pid}")) for pid in workers), "workers outlive the build that was killed"
    assert list(folder.glob(".selectivbench-incomplete-*"))
    assert "unfinished_build__run_selectivbench_build_again" in load("te1_noisy_gaps", ok=False)
    task = get_task("te1_noisy_gaps", **SMALL)
    told = []
    materialise.build([task], folder, progress=False, say=told.append)
    assert "removed what an interrupted build had left" in told[0]
    assert not list(folder.glob(".selectivbench-incomplete-*"))


def test_two_builds_at_once(environment, load, tmp_path):
    command = [
        sys.executable,
        "-m",
        "selectivbench_hf.cli",
        "build",
        "lite",
        "lite_noisy_gaps",
        *map(str, SMALL_FLAGS),
        "--json",
    ]
    processes = [
        subprocess.Popen(
            command, cwd=tmp_path, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        for _ in range(3)
    ]
    outputs = [p.communicate(timeout=120) for p in processes]
    assert [p.returncode for p in processes] == [0, 0, 0], outputs
    statuses = [[row["status"] for row in json.loads(out)] for out, _ in outputs]
    assert sorted(statuses) == [["built", "built"], ["kept", "kept"], ["kept", "kept"]]
    loaded = load("lite", "lite_noisy_gaps")
    assert {s: v[:2] for s, v in loaded["lite"].items()} == generated(get_task("lite", **SMALL))


def test_a_file_size_limit_ends_in_a_sentence(python, tmp_path):
    code = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (1_300_000, 1_300_000))\n"
        "from selectivbench_hf.cli import main; sys.exit(main(['build', 'lite_noisy_gaps']))"
    )
    result = python("-c", code)
    assert result.returncode == 1
    assert "lite_noisy_gaps needs about" in result.stderr
    assert "bytes were free" in result.stderr
    assert result.stderr.count("\n") == 1, result.stderr
    assert not list(tmp_path.iterdir())


def test_a_full_disk_ends_in_a_sentence(selectivbench, tmp_path):
    place = tmp_path / "small"
    place.mkdir()
    if (
        os.geteuid() != 0
        or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", place], capture_output=True).returncode
    ):
        pytest.skip("needs the right to mount a small file system")
    try:
        selectivbench("build", "lite", *SMALL_FLAGS, cwd=place)
        before = tree(place)
        result = selectivbench("build", "lite_noisy_gaps", cwd=place, ok=False)
        assert result.returncode == 1
        assert result.stderr.startswith("error: the disk is full: lite_noisy_gaps needs about "), result.stderr
        assert tree(place) == before
    finally:
        subprocess.run(["umount", place], check=True)


def test_the_card_says_what_the_data_are(tmp_path):
    folder = tmp_path / "b"
    materialise.build([get_task("lite_noisy_gaps", **SMALL)], folder, progress=False)
    card = (folder / "README.md").read_text()
    front = yaml.safe_load(card.split("---")[1])
    assert front["dataset_info"][0]["splits"][0]["num_examples"] == 300
    for words in (
        "8 letters",
        "arXiv:2601.12598",
        "content hash",
        "are disjoint",
        "[0, 0.2)",
        "test_gap_100 30",
        datacard.MARKER,
    ):
        assert words in card
    assert "{{" not in card.replace("{{}}", "")
    manifest = json.loads((folder / "lite_noisy_gaps/manifest.json").read_text())
    for split in manifest["splits"].values():
        assert split["content_hash"] in card


@pytest.mark.parametrize("more", [{}, {"noise": "gaussian", "noise_scale": 0.5, "sample_seed": 4}])
def test_the_cards_recipe_draws_the_noise_of_the_package(tmp_path, more):
    import re

    from datasets import load_dataset

    from selectivbench_hf.features import make_batch

    task = get_task("te1_noisy_gaps", num_items=21, **SMALL, **more)
    materialise.build([task], tmp_path / "b", progress=False)
    card = (tmp_path / "b/README.md").read_text()
    code = next(c for c in re.findall(r"```python\n(.*?)```", card, re.DOTALL) if "def features" in c)
    scope = {}
    exec(code, scope)
    for split in ("test", "validation"):
        rows = load_dataset(str(tmp_path / "b"), "te1_noisy_gaps", split=split, cache_dir=tmp_path / "c")
        batch = make_batch(task, split, [0, 13])
        for i, example in enumerate((0, 13)):
            ids = rows[example]["input_ids"]
            mine = scope["features"]("te1_noisy_gaps", split, example, ids)
            assert mine.shape == (len(ids), task.num_symbols)
            assert (mine == batch["input_features"][i, : len(ids)]).all()


def test_recall_tasks_are_built_and_loaded_as_the_others(selectivbench, load, tmp_path):
    """Without the package the folder gives the generated rows to the byte, and the card says law, columns, chance and score."""
    from selectivbench_hf.builder import content_hash, iterate_tables

    names = ("mqar_lite", "copy_lite")
    selectivbench("build", *names, "--num_proc", 2, *SMALL_FLAGS)
    loaded = load(*names)
    assert set(loaded["configs"]) == set(names)
    for name in names:
        task = get_task(name, **SMALL)
        for split, size in task.splits.items():
            rows, digest, labels = loaded[name][split]
            assert (rows, digest) == (size, content_hash(iterate_tables(task, split))) and "int16" in labels
        assert get_task(str(tmp_path / f"selectivbench/{name}/task.json")) == task
    card = (tmp_path / "selectivbench/README.md").read_text()
    for words in (
        "multi-query associative recall; 4 pairs in 64 steps; 256 symbols",
        "0.78% / 25.00%",
        "| `labels` | int16, one a step |",
        "-100 where nothing is asked",
        "strings reproduced whole",
        "arXiv:2508.19029",
        "associative-recall",
    ):
        assert words in card, words
    assert "{{" not in card and "Grammar tasks" not in card and "| `item_ids` |" not in card
    zero = get_task("mqar_lite", filler="zero", **SMALL)
    with pytest.raises(InputError, match="holds other data under the same name"):
        materialise.build([zero], tmp_path / "selectivbench", progress=False)
    rows = materialise.build(
        [get_task("copy_lite", **SMALL), replace(zero, name="mqar_zero")], tmp_path / "selectivbench", progress=False
    )
    assert [row["status"] for row in rows] == ["kept", "built"]
    assert "alpha 0.01, filler zero" in (tmp_path / "selectivbench/README.md").read_text()
