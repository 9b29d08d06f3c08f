"""The README's Python, run as written, and its tables against the code."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from selectivbench_hf import get_task
from selectivbench_hf.recall import catalogue
from selectivbench_hf.tasks import BUILDER_KEYWORDS, LEVELS, grammar_task_names

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", README, re.S)


@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_python_block(number, tmp_path):
    env = {**os.environ, "PYTHONPATH": str(ROOT), "HF_DATASETS_CACHE": str(tmp_path / "cache"), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", BLOCKS[number]], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.strip()


def test_there_are_blocks():
    assert len(BLOCKS) >= 4


def test_catalogue_rows():
    k95 = {row["name"]: row["k95"] for row in json.loads((ROOT / "docs/ceilings/ladder.json").read_text())}
    for level in LEVELS:
        task = get_task(level)
        row = next(line for line in README.splitlines() if line.startswith(f"| `{level}` |"))
        cells = [c.strip() for c in row.strip("|").split("|")]
        nats = task.grammar.topological_entropy()
        sizes = " / ".join(f"{task.splits[s]:,}" for s in ("train", "validation", "test"))
        assert cells[1:] == [
            str(task.letters),
            f"{task.num_states:,}",
            f"{nats:.2f} = {nats / 0.6931471805599453:.2f}",
            str(task.num_items),
            sizes,
            str(k95[level]),
        ]


def test_the_demo_table_is_what_the_demo_wrote():
    rows = [json.loads(line) for line in (ROOT / "docs/demo/results.jsonl").read_text().splitlines()]
    splits = ("test_gap_1", "test_gap_5", "test", "test_gap_20", "test_gap_50", "test_gap_100", "lite/test")
    assert [r["name"] for r in rows] == ["mamba2", "gated_delta_net", "gpt", "transformer", "gla"]
    for row in rows:
        scores = {
            **row["scores"],
            **{k: v for k, v in row.items() if k.startswith("transfer") and isinstance(v, dict)},
        }
        shown = [f"{100 * scores[s]['correct'] / scores[s]['total']:.1f}" for s in splits]
        line = next(x for x in README.splitlines() if x.startswith(f"| {row['name']} |"))
        assert [c.strip() for c in line.strip("|").split("|")][1:] == shown
        assert line in (ROOT / "docs/demo/report.md").read_text()


def test_keywords_are_all_named():
    assert all(f"`{field}`" in README for field in BUILDER_KEYWORDS)
    assert all(f"`{name}`" in README for name in catalogue())
    assert "24 names of grammar tasks" in README
    assert len(grammar_task_names()) == 24
