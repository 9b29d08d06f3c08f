"""The wheel, not the checkout: built, installed with the constraints into a new environment, and used from another folder."""

import os
import subprocess
import sys
import zipfile

import pytest
from conftest import ROOT


def run(*command, cwd, timeout=900, **more):
    env = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")} | more
    result = subprocess.run(list(map(str, command)), cwd=cwd, env=env, capture_output=True, text=True, timeout=timeout)
    assert result.returncode == 0, f"{command}\n{result.stdout[-4000:]}\n{result.stderr[-4000:]}"
    return result.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    place = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", place, ROOT, cwd=place)
    (file,) = place.glob("selectivbench_hf-*.whl")
    return file


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    """The folder of a new environment's commands."""
    place = tmp_path_factory.mktemp("installed")
    run(sys.executable, "-m", "venv", place / "env", cwd=place)
    python = place / "env/bin/python"
    run(python, "-m", "pip", "install", "--quiet", "-c", ROOT / "constraints.txt", wheel, cwd=place)
    return python.parent


def test_the_wheel_carries_what_it_needs_and_nothing_else(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    inside = {n.removeprefix("selectivbench_hf/") for n in names if n.startswith("selectivbench_hf/")}
    shipped = {
        "train.py",
        "dataset_cards/dataset_card.md",
        "dataset_cards/grammar.md",
        "dataset_cards/recall.md",
        "dataset_cards/noise.py",
        "dataset_cards/content_hash.py",
        "recipes/demo.yaml",
    }
    assert {f"shipped/{n}" for n in shipped} <= inside
    modules = {str(p.relative_to(ROOT / "selectivbench_hf")) for p in (ROOT / "selectivbench_hf").rglob("*.py")}
    assert modules <= inside
    schemas = {f"schemas/{p.name}" for p in (ROOT / "selectivbench_hf/schemas").glob("*.json")}
    assert schemas
    assert schemas <= inside
    assert {n.split("/")[0].split("-")[0] for n in names} == {"selectivbench_hf"}
    assert any(n.endswith("licenses/LICENSE") for n in names)


def test_the_commands_work_where_there_is_no_checkout(installed, tmp_path):
    out = run(installed / "selectivbench", "tasks", cwd=tmp_path)
    assert "te3 (level 3 of 7; 26 letters; " in out
    where = run(installed / "python", "-c", "import selectivbench_hf; print(selectivbench_hf.__file__)", cwd=tmp_path)
    assert str(ROOT) not in where
    out = run(
        installed / "selectivbench", "build", "lite", "--output", "selectivbench", "--num_train", "200", cwd=tmp_path
    )
    assert "built" in out
    home = str(tmp_path / "home")
    code = "from datasets import load_dataset; print(load_dataset('selectivbench', 'lite', split='train').num_rows)"
    assert run(installed / "python", "-c", code, cwd=tmp_path, HF_HOME=home).strip() == "200"
    out = run(
        installed / "accelerate", "launch", "-m", "selectivbench_hf.training", "--help", cwd=tmp_path, HF_HOME=home
    )
    assert "--mixer" in out
    out = run(installed / "python", "-m", "pip", "check", cwd=tmp_path)
    assert "No broken requirements" in out
