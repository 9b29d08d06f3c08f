"""docs/kernels.md says which functions and layers of fla run on the CPU; this runs them."""

import pytest

pytest.importorskip("triton")
pytest.importorskip("fla", reason="flash-linear-attention is not installed")

from kernels_coverage import PAGE, block, function_lines, layer_lines

TEXT = PAGE.read_text(encoding="utf-8")
HOW = "run: PYTHONPATH=. python tests/kernels_coverage.py"


def test_the_page_lists_the_functions():
    assert block(TEXT, "functions") == function_lines(), HOW


def test_the_page_says_which_layers_run():
    """Layer by layer yes or no; the reason, which has other libraries' words, is not compared."""

    def answers(lines):
        return {line.split("|")[1].strip(): line.split("|")[2].strip()[:3] for line in lines}

    assert answers(block(TEXT, "layers")) == answers(layer_lines()), HOW
