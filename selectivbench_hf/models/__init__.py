"""Models: `SelectivBenchConfig`, `SelectivBenchForStateClassification`, and the table of mixers.

Importing this package registers the model with transformers' Auto classes: at once if transformers is imported, else right after its
import. It is light: the table needs neither torch nor transformers, the names below are looked up when first used, and fla is imported
when a layer of it is built.
"""

import importlib
import sys

from ..imports import after_import
from .mixers import MIXERS, check_mixer, get_mixer, mixer_names

_MODELING = (
    "SelectivBenchConfig",
    "SelectivBenchForCausalLM",
    "SelectivBenchForStateClassification",
    "model_class",
    "objective_of",
    "parameter_counts",
    "parameter_groups",
    "state_size",
    "wrap_module",
)
_SIZING = ("Sizing", "hidden_size_for")
__all__ = ["MIXERS", "check_mixer", "get_mixer", "mixer_names", *_MODELING, *_SIZING]


def __getattr__(name):
    if name in _MODELING or name in _SIZING:
        module = "modeling" if name in _MODELING else "sizing"
        value = getattr(importlib.import_module(f"{__name__}.{module}"), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__():
    return sorted(set(globals()) | set(__all__))


def _register():
    if f"{__name__}.configuration" not in sys.modules:  # else it does so itself, at its end
        importlib.import_module(f"{__name__}.modeling")


if "transformers" in sys.modules:
    _register()
else:
    after_import("transformers", _register)
