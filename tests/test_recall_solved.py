"""docs/recall.md: its table is what its file says, and its main claim holds when trained again."""

import re
import sys
from pathlib import Path

import pytest

import selectivbench_hf as sb
from selectivbench_hf.recall import SOLVED, catalogue

sys.path.insert(0, str(Path(__file__).parent.parent / "benchmarks"))
from recall import arguments, read, table

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs/recall.md").read_text(encoding="utf-8")


def test_the_table_is_what_the_file_says():
    rows = read(ROOT / "docs/recall/results.jsonl")  # lines of the recipe and the data as they are now
    assert {"attention_1", "attention_2"} <= set(rows)
    assert table(rows) in PAGE
    assert all(f"`{name}`" in PAGE for name in catalogue())


def test_the_pages_python_runs(capsys):
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    exec(code, {})
    guessed = float(capsys.readouterr().out.split()[0])
    assert 0 < guessed < 0.03  # of 256 symbols


def accuracy(name, folder):
    fields = arguments(name)
    result = sb.train(fields.pop("task"), fields.pop("mixer"), output_dir=str(folder / name), **fields)
    return result.accuracy("test")


@pytest.mark.slow
def test_mqar_lite_is_solved_by_two_layers_of_attention_and_not_by_one(tmp_path):
    """The second paper's claim at laptop size: some minutes on one core."""
    assert accuracy("attention_2", tmp_path) >= SOLVED > 2 * accuracy("attention_1", tmp_path)
    assert accuracy("attention_1_conv", tmp_path) >= SOLVED
