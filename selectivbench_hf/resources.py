"""Where the files that are not modules lie: recipes, card templates and train.py.

They live at the top of the repository. A wheel carries them in `selectivbench_hf/shipped/` (see `pyproject.toml`), a checkout has them beside the
package; `path` finds them in both.
"""

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent


def path(name: str) -> Path:
    """The file or folder `name`, such as `"recipes/demo.yaml"`; FileNotFoundError if this installation has none."""
    for root in (_PACKAGE / "shipped", _PACKAGE.parent):
        if (root / name).exists():
            return root / name
    raise FileNotFoundError(f"this installation of selectivbench_hf lacks {name}; install it again")


def text(name: str) -> str:
    """The content of the shipped text file `name`."""
    return path(name).read_text(encoding="utf-8")
