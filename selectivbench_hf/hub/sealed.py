"""Sealed tests: test data drawn from the hash of the weights that are tested.

Test data that anyone can generate can be trained on. So the official score is taken on sequences whose sample seed is the SHA-256 of the submitted
file: nobody can know them before the weights are fixed, and anybody can draw them again in seconds. Beside it stands a sealed *grammar*, for models
that are trained anew: an automaton that is known can be written into weights without any training.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import replace
from pathlib import Path

from ..errors import InputError
from ..tasks import get_task

GAP_LIMIT = 4  # standard errors between published and sealed accuracy that chance does not explain
_GRAMMAR_DIGITS = (
    15  # hex digits of the hash that choose the grammar: 60 bits, a seed that JSON, Parquet and every flag can hold
)
_NORMAL = 2 * 1.959964  # widths of a 95 % interval in standard errors


def sealed_seed(path) -> str:
    """The SHA-256 of a file's bytes, 64 hex digits; of a model.safetensors on the Hub it is the `sha256` that the file's page shows.

    Raises:
        InputError: for an empty file, or none.
    """
    path = Path(path)
    if not path.is_file():
        raise InputError(
            f"there is no file {path}: a test is sealed by the bytes of one file, such as model.safetensors"
        )
    if not path.stat().st_size:
        raise InputError(f"{path} is empty, so it seals nothing")
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _seed_of(weights) -> str:
    """The seed, 64 hex digits, from itself or from the file that it is the hash of."""
    if isinstance(weights, str) and re.fullmatch(r"[0-9a-f]{64}", weights):
        return weights
    return sealed_seed(weights)


def sealed_task(task, weights):
    """The task whose test splits are the sealed tests of a file; everything but the sequences is as in `task`.

    Args:
        task: a Task or RecallTask, or what `get_task` takes.
        weights: the path of the file, or its SHA-256 (64 hex digits).

    Returns:
        The task with sample_seed = int(SHA-256, 16). Its train and validation splits mean nothing: score its `test_splits` alone.
    """
    return replace(get_task(task), sample_seed=int(_seed_of(weights), 16))


def sealed_grammar_task(task, weights):
    """The task with a random grammar drawn from the hash of a file: to be trained on anew, and then scored. Arguments as in `sealed_task`.

    Raises:
        InputError: for tasks without a random grammar.
    """
    task = get_task(task)
    if not has_random_grammar(task):
        raise InputError(
            f"{task.name} has no random grammar, so none can be drawn from a hash; its sealed tests stand alone"
        )
    return replace(task, grammar_seed=int(_seed_of(weights)[:_GRAMMAR_DIGITS], 16))


def has_random_grammar(task) -> bool:
    """Whether the task's grammar is drawn from a seed."""
    return task.family == "grammar" and task.custom_grammar is None and task.automaton is None


def overlap(task, sealed) -> dict[str, int]:
    """How many of the sealed test sequences stand in the published train, validation and test splits too (seconds for 200,000 sequences).

    Sequences of symbols are compared by a 64-bit hash. All test splits of a task lay out the same sequences, so `test` stands for them.
    """
    import numpy as np

    from ..layout import draw_block, load_split, sequence_hashes
    from ..sampling import block_size

    own = sequence_hashes(load_split(sealed, "test").items)
    out = {}
    for split in ("train", "validation", "test"):
        meet, size, block = np.zeros(len(own), bool), task.splits[split], block_size(split)
        for number in range(-(-size // block)):  # block by block: a whole train split need not be held in memory
            part = draw_block(task, split, number, 0, min(block, size - number * block))
            meet |= np.isin(own, sequence_hashes(part.items))
        out[split] = int(meet.sum())
    return out


def standard_error(score: dict) -> float:
    """The standard error of an accuracy, from `low` and `high`, its 95 % bootstrap interval over sequences, and `total`, its items.

    It is held to be at least one item's share: where all sequences score the same the bootstrap says 0. And at most what sequences would give whose
    items are all right or all wrong together, half as much again for chance: a claimed interval that is wider would excuse any difference.
    """
    share, total = (score["correct"] + 0.5) / (score["total"] + 1), score["total"]
    most = 1.5 * (share * (1 - share) / score["sequences"]) ** 0.5
    return max(min((score["high"] - score["low"]) / _NORMAL, most), 1 / total)


def lines(task, sealed) -> dict[str, str]:
    """Python that gives the sealed tests to anybody: `get_task` as a task of this package, `load_dataset` as rows.

    Tasks with a whole grammar of their own have no short name: their lines name a file TASK.json, which holds `task.to_json()`.
    """
    from ..datacard import changed
    from ..tasks import task_names

    keywords = changed(task)
    base = max((n for n in task_names() if task.name == n or task.name.startswith(n + "_")), key=len, default=None)
    seed = f"sample_seed=0x{sealed.sample_seed:064x}"
    keywords.pop("sample_seed", None)
    if base is None or "grammar" in keywords:
        return {"get_task": f'sb.get_task("TASK.json", {seed})'}
    others = "".join(f", {name}={value}" for name, value in keywords.items())
    rows = f'load_dataset("selectivbench", "{base}", split="test"{others}, {seed})'
    return {"get_task": f'sb.get_task("{base}"{others}, {seed})'} | (
        {} if "symbols" in keywords else {"load_dataset": rows}
    )
