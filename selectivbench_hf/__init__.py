"""SelectivBench for Hugging Face: tasks, exact data, models and scores for linear recurrent models and attention.

`import selectivbench_hf` is light: the names below are looked up when first used, so that neither torch, transformers, datasets nor fla
is loaded by the import itself. It also lets `datasets.load_dataset("selectivbench", ...)` find the data set (see `builder.py`).
"""

import importlib

from .registration import register as _register

__version__ = "0.1.0"

_PUBLIC = {
    "Grammar": "grammar",
    "Task": "tasks",
    "get_task": "tasks",
    "task_names": "tasks",
    "DATA_VERSION": "tasks",
    "batches": "features",
    "Collator": "features",
    "score": "metrics",
    "ceiling": "ceilings",
    "predict_items": "metrics",
    "predict_answers": "recall_scoring",
    "score_laws": "prediction",
    "item_laws": "prediction",
    "train": "training",
    "StateTrainer": "trainer",
    "sealed_task": "hub.sealed",
    "submit": "hub.submit",
    "InputError": "errors",
    "SelectivBenchConfig": "models",
    "SelectivBenchForCausalLM": "models",
    "SelectivBenchForStateClassification": "models",
}
__all__ = sorted([*_PUBLIC, "kernels", "__version__"])


def __getattr__(name):
    if name in _PUBLIC:
        value = getattr(importlib.import_module(f"{__name__}.{_PUBLIC[name]}"), name)
        globals()[name] = value
        return value
    if name in ("kernels", "models"):
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__():
    return sorted(set(globals()) | set(__all__))


_register()
