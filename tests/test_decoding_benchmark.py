"""benchmarks/decoding.py: what it says is kept is what grows or does not, and the committed figure's numbers say the same."""

import importlib.util
import json
from pathlib import Path

import pytest

from selectivbench_hf.models import MIXERS

ROOT = Path(__file__).parent.parent


@pytest.fixture
def benchmark():
    spec = importlib.util.spec_from_file_location("decoding_benchmark", ROOT / "benchmarks/decoding.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_small_run(benchmark, tmp_path, capsys):
    small = ["--rounds", "2", "--hidden_size", "32", "--num_hidden_layers", "1"]
    benchmark.main(
        [
            "--mixers",
            "transformer,sliding_window",
            "--contexts",
            "64,32",
            *small,
            "--output",
            str(tmp_path / "new/out"),
        ]
    )
    out = capsys.readouterr().out
    assert out.splitlines()[2].split() == ["mixer", "/", "quickest", "64", "32", "64"]
    written = json.loads((tmp_path / "new/out/decoding.json").read_text())
    rows = {row["name"]: row for row in written["rows"]}
    assert rows["transformer"]["bytes"] == {"32": 4 * 32 * 64, "64": 4 * 64 * 64}
    assert rows["sliding_window"]["bytes"] == {"32": 4 * 32 * 64, "64": 4 * 32 * 64}
    assert all(value > 0 for row in rows.values() for value in row["milliseconds"].values())
    assert (tmp_path / "new/out/figure.png").stat().st_size > 10_000
    benchmark.main(["--mixers", "transformer", "--contexts", "8", *small, "--json"])
    assert [row["name"] for row in json.loads(capsys.readouterr().out)] == ["transformer"]


def test_in_the_committed_run_only_attention_keeps_more_and_more():
    rows = json.loads((ROOT / "docs/decoding/decoding.json").read_text())["rows"]
    names = {row["name"] for row in rows}
    assert names <= set(MIXERS) and len(names) == len(rows) >= 28
    for row in rows:
        first, *_, last = row["bytes"].values()
        shortest, *_, longest = map(int, row["bytes"])
        if MIXERS[row["name"]].state is None:
            assert last / first == pytest.approx(longest / shortest, rel=0.05)
        else:
            assert last == pytest.approx(first, rel=0.01)
