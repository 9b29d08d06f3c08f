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
        env = environment(**hub.env(user), HF_HOME=str(tmp_path / home), HF_HUB_OFFLINE="0", OMP_NUM_THREADS="1")
        if user is None:
            env.pop("HF_TOKEN", None)
        return {**env, **{key: str(value) for key, value in more.items()}}

    return make


@pytest.fixture
def start(client_environment, tmp_path):
    """start(user)(argv, **env) -> a running `selectivbench ARGV`; what still runs at the end of the test is killed."""
    running = []

    def of(user, home="home"):
        def run(argv, **env):
            words = [sys.executable, "-m", "selectivbench_hf.cli", *map(str, argv)]
            pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
            running.append(subprocess.Popen(words, cwd=tmp_path, env=client_environment(user, home, **env), **pipes))
            return running[-1]

        return run

    yield of
    for process in running:
        if process.poll() is None:
            process.kill()
        process.communicate()


@pytest.fixture
def run_client(client_environment, tmp_path):
    """run_client(user, home, words, code, env) -> (out, err) of `python WORDS`, which must exit with `code`; it runs in tmp_path."""

    def run(user, home, words, code, env):
        result = subprocess.run(
            [sys.executable, *map(str, words)],
            cwd=tmp_path,
            env=client_environment(user, home, **env),
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert result.returncode == code, f"exit code {result.returncode}\n{result.stdout}\n{result.stderr}"
        return result.stdout, result.stderr

    return run


@pytest.fixture
def client(run_client):
    """client(user)(argv, code=0, **env) -> (out, err) of `selectivbench ARGV`."""

    def of(user, home="home"):
        return lambda argv, code=0, **env: run_client(user, home, ["-m", "selectivbench_hf.cli", *argv], code, env)

    return of


@pytest.fixture
def script(run_client):
    """script(user)(python_text, code=0, **env) -> stdout of the program."""

    def of(user, home="home"):
        return lambda text, code=0, **env: run_client(user, home, ["-c", text], code, env)[0]

    return of
