"""Every mixer learns the laptop task on the CPU, well beyond what no memory gives; the table of docs/every_mixer is of such runs.

pytest -m slow tests/test_every_mixer.py          # half an hour on two cores; `-k gla` for one mixer
"""

import json
from pathlib import Path

import pytest
import yaml

from selectivbench_hf import get_task
from selectivbench_hf.demo_report import letter_alone
from selectivbench_hf.models.mixers import MIXERS

ROOT = Path(__file__).parent.parent
RECIPE = yaml.safe_load((ROOT / "recipes" / "every_mixer.yaml").read_text())
MARGIN = 0.05  # above naming each letter's most frequent state


def best(scores: dict) -> float:
    """The highest accuracy among the gaps that training has seen."""
    return max(scores[split]["accuracy"] for split in ("test_gap_1", "test_gap_5", "test"))


def test_the_recipe_has_every_mixer():
    assert sorted(RECIPE["mixers"]) == sorted(MIXERS)


def test_the_committed_table_has_every_mixer_above_the_baseline():
    rows = [json.loads(line) for line in (ROOT / "docs" / "every_mixer" / "results.jsonl").read_text().splitlines()]
    assert sorted(row["name"] for row in rows) == sorted(MIXERS)
    bar = letter_alone(get_task(RECIPE["task"])) + MARGIN
    assert {
        row["name"]: best(row["scores"]) for row in rows if row["status"] != "finished" or best(row["scores"]) < bar
    } == {}
    report = (ROOT / "docs" / "every_mixer" / "report.md").read_text()
    assert all(f"| {name} |" in report for name in MIXERS)


@pytest.mark.slow
@pytest.mark.parametrize("mixer", MIXERS)
def test_every_mixer_learns(mixer, tmp_path):
    from selectivbench_hf.training import train

    training = {name: str(value) if isinstance(value, str) else value for name, value in RECIPE["training"].items()}
    task = get_task(RECIPE["task"])
    result = train(
        task,
        model=mixer,
        output_dir=str(tmp_path / mixer),
        eval_splits=["test_gap_1", "test_gap_5", "test"],
        **training,
    )
    assert best(result.scores) > letter_alone(task) + MARGIN
