"""A loopback Hub for each test, and clients of it in processes of their own with a cold cache: huggingface_hub reads its settings once."""

import subprocess
import sys

import pytest

from .loopback_hub import LoopbackHub

ORGS = {"selectivbench": ["alice", "bob"]}


@pytest.fixture
def hub(tmp_path):
    """A started LoopbackHub; `hub.fault(...)`, `hub.log`, `hub.asked(method, path)`, `hub.store`."""
    with LoopbackHub(tmp_path / "hub", orgs=ORGS) as started:
        yield started


@pytest.fixture
def client_environment(hub, tmp_path, environment):
    """The environment of a user's clients; user None: no token. `home`: clients with the same one share a cache."""

    def make(user, home="home", **more):
        folder = tmp_path / home
        (folder / "work").mkdir(parents=True, exist_ok=True)
        env = environment(**hub.env(user), HF_HOME=str(folder), HF_HUB_OFFLINE="0", OMP_NUM_THREADS="1")
        for name in ("HF_TOKEN",) if user is None else ():
            env.pop(name, None)
        return {**env, **{key: str(value) for key, value in more.items()}}

    return make


@pytest.fixture
def start(client_environment, tmp_path):
    """start(user)(argv, **env) -> a running `selectivbench ARGV`; what still runs at the end of the test is killed."""
    running = []

    def of(user, home="home"):
        def run(argv, **env):
            process = subprocess.Popen(
                [sys.executable, "-m", "selectivbench_hf.cli", *map(str, argv)],
                cwd=tmp_path,
                env=client_environment(user, home, **env),
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            running.append(process)
            return process

        return run

    yield of
    for process in running:
        if process.poll() is None:
            process.kill()
        process.communicate()


@pytest.fixture
def client(client_environment, tmp_path):
    """client(user)(argv, code=0, **env) -> (out, err) of `selectivbench ARGV`, which must exit with `code`; it runs in tmp_path."""

    def of(user, home="home"):
        def run(argv, code=0, **env):
            result = subprocess.run(
                [sys.executable, "-m", "selectivbench_hf.cli", *map(str, argv)],
                cwd=tmp_path,
                env=client_environment(user, home, **env),
                capture_output=True,
                text=True,
                timeout=300,
            )
            assert result.returncode == code, f"exit code {result.returncode}\n{result.stdout}\n{result.stderr}"
            return result.stdout, result.stderr

        return run

    return of


@pytest.fixture
def script(client_environment, tmp_path):
    """script(user)(python_text, code=0, **env) -> stdout of the program, run in tmp_path."""

    def of(user, home="home"):
        def run(text, code=0, **env):
            result = subprocess.run(
                [sys.executable, "-c", text],
                cwd=tmp_path,
                env=client_environment(user, home, **env),
                capture_output=True,
                text=True,
                timeout=300,
            )
            assert result.returncode == code, f"exit code {result.returncode}\n{result.stdout}\n{result.stderr}"
            return result.stdout

        return run

    return of
