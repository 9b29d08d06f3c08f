"""`selectivbench leaderboard` over the loopback Hub, and the Space as its README says to deploy it."""

import json
import os
import re
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

from .result_rows import closed_rows, row
from .test_page import free_port

ROOT = Path(__file__).parents[2]
RESULTS = "selectivbench/selectivbench-results"
DATASET = "selectivbench/selectivbench"
BENCHMARK = f"""
from huggingface_hub import HfApi
from selectivbench_hf.hub import eval_results, eval_yaml
api = HfApi()
api.create_repo({DATASET!r}, repo_type="dataset")
api.upload_file(path_or_fileobj=eval_yaml.render(["lite", "te3_noisy_gaps"]).encode(), path_in_repo="eval.yaml", repo_id={DATASET!r}, repo_type="dataset")
for name, value in (("alice/gla", 71.5), ("alice/gru", 80.25)):
    api.create_repo(name)
    entry = eval_results.entry(dataset={DATASET!r}, task="te3_noisy_gaps", value=value, revision="a" * 40, date="2026-11-30")
    api.upload_file(path_or_fileobj=eval_results.to_yaml([entry]).encode(), path_in_repo=".eval_results/selectivbench.yaml", repo_id=name)
"""


@pytest.fixture
def results(script, tmp_path):
    """The results data set with a closed entry and one run of another model."""
    rows = [*closed_rows(0.7), row(accuracy=0.8, sealed=0.8, name="alone", run_id="alone")]
    (tmp_path / "rows.json").write_text(json.dumps(rows))
    script("alice")(
        f"import json; from selectivbench_hf.hub.results_data import push; push(json.load(open('rows.json')), {RESULTS!r}, print)"
    )


def test_the_lines_of_a_results_data_set_and_of_the_hubs_own_leaderboard(client, script, results):
    lines = json.loads(client(None)(["leaderboard", "--source", RESULTS, "--json"])[0])
    assert [(line["name"], line["track"], line["rank"], line["runs"]) for line in lines] == [
        ("gla", "closed", 1, 8),
        ("alone", "open", 1, 1),
    ]
    lines = json.loads(client(None)(["leaderboard", "--json"], SELECTIVBENCH_RESULTS=RESULTS)[0])
    assert len(lines) == 2
    script("alice")(BENCHMARK)
    out, told = client(None)(["leaderboard", "--source", DATASET, "--json"])[:2]
    assert out == "[]\n" and "published data are read by --dataset" in told
    lines = json.loads(client(None)(["leaderboard", "--dataset", DATASET, "--json"])[0])
    assert [(line["name"], line["rank"], line["sealed"], line["task"]) for line in lines] == [
        ("alice/gru", 1, 80.25, "te3_noisy_gaps"), ("alice/gla", 2, 71.5, "te3_noisy_gaps"),
    ]  # fmt: skip


# What is wrong with a command line is told without a Hub.
@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["--json"], "say where the results are: --source OWNER/selectivbench-results"),
        (["--source", "a/b", "--dataset", "a/c"], "two places to read from; give one"),
        (["--source", "nowhere", "--json"], "--source, if no file or folder here, must be OWNER/NAME"),
        (["--source", ".", "--host", ""], "needs an address, got ''"),
        (["--source", ".", "--host", "192.0.2.1"], "choose another with --host"),
        (["--dataset", "nowhere", "--json"], "--dataset must be OWNER/NAME"),
        (["--source", ".", "--port", "99999"], "must be a port, 1 to 65535, got '99999'"),
        (["--source", "", "--json"], "needs OWNER/NAME of a results data set, or a folder of results"),
        (["--sorce", "x"], "did you mean '--source'"),
    ],
)
def test_bad_requests_are_one_sentence(capsys, monkeypatch, tmp_path, argv, says):
    from selectivbench_hf.cli import main

    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SELECTIVBENCH_RESULTS", raising=False)
    assert main(["leaderboard", *argv]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ") and says in error and error.count("\n") == 1


def without(folder: Path, *modules: str) -> Path:
    """A folder for PYTHONPATH in which Python finds out that some modules are not installed."""
    folder.mkdir()
    refuse = f"""
import sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {modules}:
            raise ModuleNotFoundError("not installed here", name=name)
sys.meta_path.insert(0, Refuse())
"""
    (folder / "sitecustomize.py").write_text(refuse)
    return folder


def test_the_space_as_its_readme_deploys_it(client_environment, script, results, tmp_path):
    (shell,) = re.findall(r"```sh\n(.*?)```", (ROOT / "leaderboard" / "README.md").read_text(), re.S)
    env = client_environment("alice")
    env["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{env['PATH']}"
    done = subprocess.run(
        ["bash", "-ec", shell.replace("OWNER", "selectivbench")],
        cwd=ROOT,
        env=env,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    script(None)(
        f"from huggingface_hub import snapshot_download as get; get('selectivbench/leaderboard', repo_type='space', local_dir={str(tmp_path / 'space')!r})"
    )
    front = (tmp_path / "space" / "README.md").read_text().split("---")[1]
    assert "app_file: app.py" in front and "  - test:rolling" in front

    heavy = without(
        tmp_path / "heavy",
        *["torch", "transformers", "datasets", "accelerate", "fla", "safetensors", "jsonschema", "matplotlib"],
    )
    port = free_port()
    env = client_environment(None, PYTHONPATH=heavy, SELECTIVBENCH_RESULTS=RESULTS, GRADIO_SERVER_PORT=port)
    started = subprocess.Popen(
        [sys.executable, "app.py"],
        cwd=tmp_path / "space",
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        deadline = time.monotonic() + 90
        while True:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/config") as answer:
                    config = answer.read().decode()
                break
            except OSError:
                assert started.poll() is None and time.monotonic() < deadline, started.communicate(timeout=5)[0]
                time.sleep(0.2)
    finally:
        started.terminate()
        out, _ = started.communicate(timeout=30)
    assert "alone" in config and f"Results of {RESULTS}" in out
    assert started.returncode == 143, out


def test_the_space_without_the_package_says_what_is_missing(tmp_path, environment):
    (tmp_path / "app.py").write_text((ROOT / "leaderboard" / "app.py").read_text())
    env = environment(PYTHONPATH=str(without(tmp_path / "gone", "selectivbench_hf")))
    done = subprocess.run([sys.executable, "app.py"], cwd=tmp_path, env=env, capture_output=True, text=True)
    assert done.returncode == 1 and done.stderr.startswith("error: the package lies neither beside app.py")


def test_the_front_matter_and_the_requirements_are_those_of_the_package():
    import tomllib

    import yaml
    from packaging.requirements import Requirement

    front = yaml.safe_load((ROOT / "leaderboard" / "README.md").read_text().split("---")[1])
    assert front["sdk"] == "gradio" and len(front["short_description"]) <= 60
    assert set(front["tags"]) == {"leaderboard", "submission:semiautomatic", "test:rolling", "judge:auto"}
    assert f"gradio=={front['sdk_version']}" in (ROOT / "constraints.txt").read_text().splitlines()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    known = {
        Requirement(r).name: Requirement(r)
        for r in project["dependencies"] + project["optional-dependencies"]["leaderboard"]
    }
    lines = (ROOT / "leaderboard" / "requirements.txt").read_text().splitlines()
    for wanted in (Requirement(line) for line in lines if line and not line.startswith("#")):
        assert known[wanted.name].specifier == wanted.specifier, wanted
