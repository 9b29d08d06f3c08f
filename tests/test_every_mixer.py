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
RECIPE, LONGER = (
    yaml.safe_load((ROOT / "recipes" / name).read_text()) for name in ("every_mixer.yaml", "without_forgetting.yaml")
)
MARGIN = 0.05  # above naming each letter's most frequent state
SEEN = ("test_gap_1", "test_gap_5", "test")  # gaps that training has seen


def best(scores: dict) -> float:
    """The highest accuracy among the gaps that training has seen, over an item's steps or at its first."""
    return max(scores[split][key] for split in SEEN for key in ("accuracy", "accuracy_first"))


def rows_of(folder: str) -> dict:
    """name -> row of a committed table."""
    lines = (ROOT / "docs" / folder / "results.jsonl").read_text().splitlines()
    return {row["name"]: row for row in map(json.loads, lines)}


def test_the_recipe_has_every_mixer():
    assert sorted(RECIPE["mixers"]) == sorted(MIXERS)


def test_the_committed_tables_have_every_mixer_above_the_baseline():
    """What forgets nothing, or by averaging alone, is not there after 300 steps: it is after 1,200, in a table of its own."""
    rows, longer = rows_of("every_mixer"), rows_of("every_mixer/longer")
    assert sorted(rows) == sorted(MIXERS) and sorted(longer) == sorted(LONGER["mixers"])
    assert all(row["status"] == "finished" for row in (*rows.values(), *longer.values()))
    bar = letter_alone(get_task(RECIPE["task"])) + MARGIN
    assert {name: best(row["scores"]) for name, row in (rows | longer).items() if best(row["scores"]) < bar} == {}
    report = (ROOT / "docs" / "every_mixer" / "report.md").read_text()
    assert all(f"| {name} |" in report for name in MIXERS)


@pytest.mark.slow
@pytest.mark.parametrize("mixer", MIXERS)
def test_every_mixer_learns(mixer, tmp_path):
    from selectivbench_hf.training import train

    training = (LONGER if mixer in LONGER["mixers"] else RECIPE)["training"]
    task = get_task(RECIPE["task"])
    result = train(
        task,
        model=mixer,
        output_dir=str(tmp_path / mixer),
        eval_splits=list(SEEN),
        **training,
    )
    assert best(result.scores) > letter_alone(task) + MARGIN
