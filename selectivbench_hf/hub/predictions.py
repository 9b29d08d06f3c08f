"""Predicted states from any framework, in one safetensors file: scored on the published tests and on those that the model's file seals.

Tensors are called like the splits, `test`, `test_gap_1`, ..., and `sealed/test`, `sealed/test_gap_1`, ...; each is (N, items) whole numbers, what
`sb.score` takes. The sealed sequences are those of `sb.sealed_task(task, model_file)`.
"""

from __future__ import annotations

from pathlib import Path

from ..errors import InputError, unknown
from . import sealed as sealing
from . import untrusted
from .scoring import Scored

MOST_BYTES = 512 << 20  # te3_noisy_gaps: 12 splits of 1,000 sequences and 200 items as int64 are 19 MB
WHOLE = ("I8", "U8", "I16", "U16", "I32", "U32", "I64")
PREFIX = "sealed/"


def names(task) -> list[str]:
    """The tensors that a file of predictions for `task` must hold."""
    return [*task.test_splits, *(PREFIX + split for split in task.test_splits)]


def score_predictions(path, task, model_file) -> Scored:
    """Score a file of predictions.

    Args:
        path: the safetensors file.
        task: a Task or RecallTask.
        model_file: the file that holds the model; its SHA-256 is the seed of the sealed tests.

    Raises:
        InputError: for a damaged file, a split that is missing, unknown or of another shape, and numbers that are no states.
    """
    seed = sealing.sealed_seed(model_file)
    return Scored(task, Path(model_file), seed, *score_file(path, task, seed))


def score_file(path, task, seed: str) -> tuple[dict, dict]:
    """(scores of the published tests, of the sealed ones) of a file of predictions, by the seed (64 hex digits) that its model's file gave."""
    given = _read(Path(path), task)
    sealed = sealing.sealed_task(task, seed)
    published = {split: _score(path, task, split, given[split]) for split in task.test_splits}
    return published, {split: _score(path, sealed, split, given[PREFIX + split]) for split in task.test_splits}


def _read(path: Path, task) -> dict:
    if not path.is_file():
        raise InputError(f"there is no file of predictions {path}")
    header = untrusted.check_safetensors(path, MOST_BYTES)
    wanted = names(task)
    missing = [name for name in wanted if name not in header]
    if missing:
        raise InputError(
            f"{path} lacks the predictions of {', '.join(missing)}; every test split of {task.name} is needed, and each again as "
            f"{PREFIX}SPLIT on the sequences of sb.sealed_task"
        )
    for name, (dtype, shape) in header.items():
        if name not in wanted:
            raise unknown("split", name, wanted, str(path))
        size = (task.splits[name.removeprefix(PREFIX)], task.num_items)
        if shape != size or dtype not in WHOLE:
            raise InputError(
                f"{path}: {name} must be whole numbers of the shape {size}, one row a sequence; got {dtype} of the shape {shape}"
            )
    from safetensors.numpy import load_file

    return load_file(path)


def _score(path, task, split: str, predicted) -> dict:
    from ..metrics import score

    try:
        result = score(task, split, predicted)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    low, high = result.interval
    return {
        "correct": result.correct,
        "total": result.total,
        "sequences": len(result.per_sequence),
        "accuracy": result.accuracy,
        "low": low,
        "high": high,
    }
