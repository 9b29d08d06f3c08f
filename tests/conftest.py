"""What all tests share: no network, caches of their own, and the commands run as a user runs them, in a process of their own."""

import atexit
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

# Before anything imports datasets or huggingface_hub, which read these once. xdist's workers inherit them from the first process.
if "SELECTIVBENCH_TEST_HOME" not in os.environ:
    _home = tempfile.mkdtemp(prefix="selectivbench-tests-")
    atexit.register(shutil.rmtree, _home, ignore_errors=True)
    os.environ["SELECTIVBENCH_TEST_HOME"] = os.environ["HF_HOME"] = _home
    os.environ.pop("HF_DATASETS_CACHE", None)
os.environ.update(HF_HUB_OFFLINE="1", HF_HUB_DISABLE_TELEMETRY="1", TOKENIZERS_PARALLELISM="false", MPLBACKEND="Agg")

import pytest

ROOT = Path(__file__).resolve().parent.parent


def _environment(**more):
    return {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "100", **more}


@pytest.fixture
def python(tmp_path):
    """Run Python code or a module in a fresh process: `python("-c", code)`; the result has returncode, stdout, stderr."""

    def run(*arguments, cwd=None, env=None, timeout=120, **keywords):
        return subprocess.run(
            [sys.executable, *map(str, arguments)],
            cwd=cwd or tmp_path,
            env=_environment(**(env or {})),
            capture_output=True,
            text=True,
            timeout=timeout,
            **keywords,
        )

    return run


@pytest.fixture
def selectivbench(python):
    """Run the command: `selectivbench("tasks", "--json")`; `ok=True` (default) asserts exit code 0."""

    def run(*arguments, ok=True, **keywords):
        result = python("-m", "selectivbench_hf.cli", *arguments, **keywords)
        assert not ok or result.returncode == 0, result.stderr
        return result

    return run


@pytest.fixture
def strict_json():
    """Parse JSON, refusing NaN and Infinity."""

    def refuse(word):
        raise AssertionError(f"{word} is not JSON")

    return lambda text: json.loads(text, parse_constant=refuse)


@pytest.fixture(scope="session")
def environment():
    return _environment
