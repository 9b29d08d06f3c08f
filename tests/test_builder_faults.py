"""load_dataset when things go wrong: killed half-way, two at once, no room on the disk."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

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


def test_two_at_once_agree(tmp_path, expected):
    first, second = start(tmp_path), start(tmp_path)
    assert finish(first) == finish(second) == expected


def test_a_file_that_may_not_grow_leaves_nothing_half_made(tmp_path, expected):
    """`ulimit -f` stands in for a disk that fills up while writing."""
    process = start(tmp_path, "bash", "-c", 'ulimit -f 8000; exec "$@"', "bash")
    _, err = process.communicate(timeout=300)
    assert process.returncode != 0 and ("File too large" in err or "DatasetGenerationError" in err)
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
