"""load_dataset when things go wrong: killed half-way, two at once, no room on the disk."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from processes import parent

from selectivbench_hf import get_task
from selectivbench_hf.builder import content_hash, expected_bytes, iterate_tables

ROOT = Path(__file__).parent.parent
SIZES = dict(num_train=40_000, num_validation=20, num_test=20)
CODE = f"""
import json, sys
import selectivbench_hf
from datasets import load_dataset
from selectivbench_hf.builder import content_hash
print("go", flush=True)
ds = load_dataset("selectivbench", "lite_noisy_gaps", **{SIZES!r})
print(json.dumps({{s: content_hash([d.data.table]) for s, d in ds.items()}}), flush=True)
"""


def start(cache, *prefix, code=CODE):
    env = {**os.environ, "PYTHONPATH": str(ROOT), "HF_DATASETS_CACHE": str(cache), "HF_HUB_OFFLINE": "1"}
    return subprocess.Popen(
        [*prefix, sys.executable, "-c", code],
        cwd=cache,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.fixture(scope="module")
def expected():
    task = get_task("lite_noisy_gaps", **SIZES)
    return {split: content_hash(iterate_tables(task, split)) for split in task.splits}


def finish(process):
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err[-2000:]
    return json.loads(out.strip().splitlines()[-1])


@pytest.mark.parametrize("kind", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_killed_at_any_moment_then_whole(tmp_path, expected, kind):
    """Three moments after the call of load_dataset; then a plain load gives all the data."""
    for wait in (0.02, 0.15, 0.4):
        process = start(tmp_path)
        assert process.stdout.readline() == "go\n"
        time.sleep(wait)
        process.send_signal(kind)
        process.communicate(timeout=60)
    assert finish(start(tmp_path)) == expected


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads /proc")
def test_workers_of_a_killed_load_leave(tmp_path, expected):
    process = start(tmp_path, code=CODE.replace("**{", "num_proc=2, **{"))
    assert process.stdout.readline() == "go\n"
    until, workers = time.time() + 60, []
    while time.time() < until and len(workers) < 2:
        workers = [int(p.name) for p in Path("/proc").glob("[0-9]*") if parent(p) == process.pid]
    assert len(workers) >= 2
    time.sleep(0.1)
    process.kill()
    process.communicate(timeout=60)
    while time.time() < until and any(parent(Path(f"/proc/{pid}")) for pid in workers):
        time.sleep(0.1)
    assert not any(parent(Path(f"/proc/{pid}")) for pid in workers), "workers outlive the load that was killed"
    assert finish(start(tmp_path)) == expected
    assert len(list(tmp_path.glob("**/*train*.arrow"))) == 1


@pytest.mark.parametrize("num_proc", [None, 2])
def test_a_refusal_is_told_as_it_is(tmp_path, num_proc):
    import datasets

    from selectivbench_hf import InputError

    sizes = dict(num_validation=3, num_test=3, num_items=6, num_train=100_000)
    with pytest.raises(InputError, match="lite: [0-9]+ of the sequences in train stand in validation or test too"):
        datasets.load_dataset("selectivbench", "lite", cache_dir=str(tmp_path), num_proc=num_proc, **sizes)


def test_two_at_once_agree(tmp_path, expected):
    first, second = start(tmp_path), start(tmp_path)
    assert finish(first) == finish(second) == expected


def test_a_file_that_may_not_grow_leaves_nothing_half_made(tmp_path, expected):
    """`ulimit -f` stands in for a disk that fills up while writing."""
    process = start(tmp_path, "bash", "-c", 'ulimit -f 8000; exec "$@"', "bash")
    _, err = process.communicate(timeout=300)
    assert process.returncode != 0 and "File too large while the data were written; nothing half-made was left" in err
    assert not list(tmp_path.glob("**/*.arrow")) and not list(tmp_path.glob("**/*.incomplete"))
    assert finish(start(tmp_path)) == expected


def test_no_room_is_told_before_anything_is_written(tmp_path, monkeypatch):
    import shutil
    from collections import namedtuple

    import datasets

    monkeypatch.setattr(
        shutil, "disk_usage", lambda path: namedtuple("usage", "total used free")(1 << 30, 0, 1_000_000)
    )
    with pytest.raises(
        OSError,
        match=r"te7_noisy_gaps needs about 1,[0-9]{3},[0-9]{3},[0-9]{3} bytes in the cache and 1,000,000 are free",
    ):
        datasets.load_dataset("selectivbench", "te7_noisy_gaps", cache_dir=str(tmp_path))
    assert not list(tmp_path.glob("**/*.arrow"))


@pytest.mark.parametrize("name", ["lite", "lite_noisy_gaps", "lite_nongrammatical_gaps"])
def test_expected_bytes_are_close(name):
    task = get_task(name, num_train=2000, num_validation=100, num_test=100)
    real = sum(t.nbytes for split in task.splits for t in iterate_tables(task, split))
    assert expected_bytes(task) == pytest.approx(real, rel=0.06)
