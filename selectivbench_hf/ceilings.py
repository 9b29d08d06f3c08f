"""What can be reached on a task: the exact filter, the context ladder, learned baselines, chance. Computed once and kept in the user's cache.

The cache is `selectivbench/ceilings` in huggingface's cache folder ($HF_HOME, else ~/.cache/huggingface). A file's name is a hash of what decides
its numbers: the data they are made of (all variants of a level share their ladder) and the code that computes them.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import sys
from pathlib import Path

from .checkpointing import write_text
from .errors import InputError
from .ladder import Ladder, context_ladder
from .tasks import digest, get_task

CODE = (
    "grammar",
    "streams",
    "sampling",
    "layout",
    "oracle",
    "ladder",
    "baselines",
)  # the modules that decide a number here


@dataclasses.dataclass(frozen=True)
class Ceilings:
    """What can be reached on a split of a task.

    name, split        of the task
    ceiling            of a grammar task, the exact filter (oracle.Ceiling.as_dict): `accuracy`, `accuracy_first`, `accuracy_last`, `cross_entropy` in
                       nats a step, `expected_accuracy`, counts; of a recall task `accuracy` 1, since what was shown says every answer
    chance             accuracy without memory or learning: `guess`, one of all answers; `guess_of_symbol`, one of the symbol's states;
                       of a recall task RecallTask.chance
    ladder             a Ladder; None for a recall task, and where the grammar is too large for one, which `notes` say
    baselines          learned by counting on `baseline_sequences` training sequences (baselines.k_grams)
    upper_bound        why no observer of what is shown may reach this, where symbols must be recognised first; else None
    """

    name: str
    split: str
    ceiling: dict
    chance: dict[str, float]
    ladder: Ladder | None = None
    baselines: dict[str, float] = dataclasses.field(default_factory=dict)
    baseline_sequences: int = 0
    notes: tuple[str, ...] = ()
    upper_bound: str | None = None

    @property
    def accuracy(self) -> float:
        """The exact filter's share of items right."""
        return self.ceiling["accuracy"]

    @property
    def k95(self) -> int | None:
        """The least number of items that are enough for 95 %; None where no ladder reaches it."""
        return None if self.ladder is None else self.ladder.k95

    def as_dict(self) -> dict:
        """For JSON; one entry a rung in `ladder`."""
        rungs = () if self.ladder is None else enumerate(zip(self.ladder.accuracy, self.ladder.counted), 1)
        return {
            "name": self.name,
            "task": self.name,
            "split": self.split,
            "ceiling": self.ceiling,
            "chance": self.chance,
            "ladder": [{"k": k, "accuracy": accuracy, "counted": counted} for k, (accuracy, counted) in rungs],
            "ladder_limit": None if self.ladder is None else self.ladder.limit,
            "ladder_sequences": None if self.ladder is None else self.ladder.sequences,
            "k95": self.k95,
            "baselines": self.baselines,
            "baseline_sequences": self.baseline_sequences,
            "notes": list(self.notes),
            "upper_bound": self.upper_bound,
        }


def ceiling(task, split: str = "test") -> Ceilings:
    """Everything that can be reached on a split; seconds at level te7, and at once the second time.

    Args:
        task: a Task or RecallTask, or what `get_task` takes.
        split: a split of it.

    Raises:
        InputError: where the exact filter does not exist: noise that can hide a symbol, or a grammar too large for tables.
    """
    from . import baselines

    task = get_task(task)
    task.check_split(split)
    if task.family == "recall":
        return Ceilings(task.name, split, {"accuracy": 1.0}, task.chance)
    best = filter_scores(task, split)
    ladder, notes = None, ()
    try:
        ladder = ladder_of(task, split)
    except InputError as error:
        notes = (str(error),)
    return Ceilings(
        task.name,
        split,
        best,
        _chance(task, split),
        ladder,
        baselines_of(task, split),
        min(task.num_train, baselines.SEQUENCES),
        notes,
        task.ceiling_note,
    )


def baselines_of(task, split: str = "test") -> dict[str, float]:
    """baselines.k_grams of a grammar task, from the cache if it is there."""
    from . import baselines

    key = {**_items(task, split), "train": min(task.num_train, baselines.SEQUENCES)}
    return _kept("baselines", key, lambda: baselines.k_grams(task, split))


def filter_scores(task, split: str = "test", max_sequences: int | None = None) -> dict:
    """oracle.ceiling of a grammar task as a dict, from the cache if it is there. Raises InputError as it does."""
    from . import oracle

    size = task.splits[task.check_split(split)]
    count = size if max_sequences is None else min(size, max_sequences)
    key = {"split": task.split_fingerprint(split), "sequences": count}
    return _kept("filter", key, lambda: oracle.ceiling(task, split, count).as_dict())


def summary(task) -> dict:
    """The short form for catalogues and cards, of a grammar task's test split (of long sequences the first million items).

    Keys `accuracy`, `expected_accuracy`, `cross_entropy` of the exact filter, `k95`, `ladder` (accuracy for k = 1, 2, ...), rounded; None each where
    it does not exist, and then `why`.
    """
    from . import oracle

    out = dict.fromkeys(("accuracy", "expected_accuracy", "cross_entropy", "k95", "ladder", "why"))
    try:
        best = filter_scores(task, "test", oracle.rows_at_once(task.num_items))
        out |= {key: round(best[key], 6) for key in ("accuracy", "expected_accuracy", "cross_entropy")}
        ladder = ladder_of(task)
        out |= {"k95": ladder.k95, "ladder": [round(a, 6) for a in ladder.accuracy]}
    except InputError as error:
        out["why"] = str(error)
    return out


def ladder_of(task, split: str = "test") -> Ladder:
    """ladder.context_ladder of a grammar task, from the cache if it is there. Raises InputError as it does."""
    from . import oracle

    oracle.law_of(task)  # refuses what a kept ladder of the level's plain task would not
    kept = _kept("ladder", _items(task, split), lambda: dataclasses.asdict(context_ladder(task, split)))
    return Ladder(tuple(kept["accuracy"]), tuple(kept["counted"]), kept["limit"], kept["sequences"])


def _items(task, split) -> dict:
    """What decides the items of a split, whatever stands between them."""
    return {
        "grammar": task.grammar.hash,
        "sample_seed": task.sample_seed,
        "max_string_length": task.max_string_length,
        "num_items": task.num_items,
        "split": "test" if split.startswith("test") else split,  # all test splits lay out the same items
        "size": task.splits[split],
    }


def _chance(task, split) -> dict:
    import numpy as np

    from .layout import load_split

    many = np.array([1, *task.grammar.depths])
    return {
        "guess": 1 / task.num_states,
        "guess_of_symbol": float((1 / many)[load_split(task, split).items].mean()),
    }


# -- the cache -----------------------------------------------------------------------------------------------------------


@functools.cache
def _code() -> str:
    """SHA-256 (hex) of the source of CODE."""
    here = Path(__file__).parent
    return hashlib.sha256(b"".join((here / f"{name}.py").read_bytes() for name in CODE)).hexdigest()


def cache_folder() -> Path:
    """Where results are kept."""
    from huggingface_hub.constants import HF_HOME

    return Path(HF_HOME) / "selectivbench" / "ceilings"


@functools.cache
def _say(sentence: str) -> None:
    """Print a sentence on stderr, once."""
    print(sentence, file=sys.stderr)


def _kept(kind: str, key: dict, compute):
    """`compute()`, a JSON value, from the cache where it is there and whole; else computed and put there."""
    name = digest({"kind": kind, "code": _code(), **key})
    file = cache_folder() / f"{kind}-{name[:32]}.json"
    try:
        text = file.read_text(encoding="utf-8")
    except FileNotFoundError:
        text = None
    except (OSError, UnicodeDecodeError):
        text = ""
    if text is not None:
        value = _whole(text, name)
        if value is not None:
            return value
        _say(f"{file} is damaged: computed again")
    value = compute()
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_text(file, json.dumps({"of": name, "sha256": digest(value), "value": value}, allow_nan=False) + "\n")
    except OSError as error:
        _say(f"ceilings are not kept for the next time, since {file.parent} cannot be written to: {error.strerror}")
    return value


def _whole(text: str, name: str):
    """The value in a cache file, or None if the file is not what was written."""
    try:
        data = json.loads(text)
        return data["value"] if data["of"] == name and data["sha256"] == digest(data["value"]) else None
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
