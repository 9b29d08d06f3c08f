"""Recall tasks (protocol section 7): multi-query associative recall and copying.

**MQAR** (Arora et al. 2023; arXiv 2508.19029). D pairs, key and value in turn, fill the first 2 D steps. Then each key stands once more,
at step 2 D + 2 g for its slot g, and the label there is its value; slots are drawn one after another without replacement with
P(g) proportional to (g + 1)^(alpha - 1). All other steps are filler.

**Copying.** A string of letters, a delimiter, and L blank steps; the label at blank i is letter i.

Rows are `input_ids` and `labels`, -100 where nothing is asked; `recall_sampling.py` draws them. Axes: T steps, D pairs, V symbols.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

from .checks import real, whole
from .errors import InputError, unknown

IGNORED = -100
FILLERS = ("clean", "any", "zero")
LETTERS = 26
DELIMITER = LETTERS + 1
KINDS = ("mqar", "copy")
SOLVED = 0.95  # the second paper's mark


@dataclass(frozen=True)
class RecallTask:
    """A recall task. Immutable; made by `get_task`.

    Fields:
        name: name of the catalogue, or of the user's choice.
        kind: `mqar` or `copy`.
        length: T, steps of a sequence (mqar), or L, the longest string (copy).
        num_pairs: D (mqar).
        vocab_size: V, symbols (mqar): keys from 1..V/2 - 1, values from V/2..V - 1.
        alpha: exponent of the law of the slots (mqar); 1 is uniform, 0.01 mostly early.
        filler: `clean`: uniform over what is neither key nor value of the sequence, so that no pair is contradicted; `any`: the whole
            vocabulary; `zero`: id 0 (mqar).
        sample_seed: seed of the sequences.
        num_train, num_validation, num_test: sequences of each split; a smaller number is a prefix of a larger.
    """

    name: str
    kind: str = "mqar"
    length: int = 64
    num_pairs: int | None = 4
    vocab_size: int | None = 8192
    alpha: float | None = 0.01
    filler: str | None = "clean"
    sample_seed: int = 1
    num_train: int = 100_000
    num_validation: int = 3_000
    num_test: int = 3_000

    family = "recall"
    noise = "none"
    grammar_seed = None  # there is no grammar

    def __post_init__(self):
        _check(self)

    # -- the sizes that models need ------------------------------------------------------------------------------------

    @property
    def num_symbols(self) -> int:
        """V: the ids of `input_ids` run from 0 to V - 1."""
        return self.vocab_size if self.kind == "mqar" else LETTERS + 2

    @property
    def num_states(self) -> int:
        """The classes: the symbols, since what is asked for is one."""
        return self.num_symbols

    @property
    def blank_id(self) -> int:
        """The id that pads `input_ids` of a batch, V."""
        return self.num_symbols

    # -- splits --------------------------------------------------------------------------------------------------------

    @property
    def splits(self) -> dict[str, int]:
        """Sequences of each split."""
        return {"train": self.num_train, "validation": self.num_validation, "test": self.num_test}

    @property
    def test_splits(self) -> list[str]:
        return ["test"]

    def check_split(self, split: str) -> str:
        """`split` if the task has it, else an InputError that names the nearest."""
        if split not in self.splits:
            raise unknown("split", split, self.splits, self.name)
        return split

    def max_steps(self, split: str) -> int:
        """The longest a sequence can be, in steps."""
        self.check_split(split)
        return self.length if self.kind == "mqar" else 2 * self.length + 1

    @property
    def num_items(self) -> int:
        """The most questions of one sequence."""
        return self.num_pairs if self.kind == "mqar" else self.length

    # -- what a model can get without remembering ----------------------------------------------------------------------

    @property
    def chance(self) -> dict[str, float]:
        """Accuracy without any memory: `guess`, one of the possible answers; `any_value` (mqar), one of the sequence's values."""
        if self.kind == "copy":
            return {"guess": 1 / LETTERS}
        return {"guess": 1 / (self.vocab_size // 2), "any_value": 1 / self.num_pairs}

    def describe_chance(self) -> str:
        """How to read a score, in one line."""
        told = {"guess": "guessing one of the possible answers", "any_value": "naming any value of the sequence"}
        worth = ", ".join(f"{told[name]} is worth {share:.2%}" for name, share in self.chance.items())
        return f"share of questions answered right; {worth}; {self.name} counts as solved from {SOLVED:.0%} on"

    # -- identity ------------------------------------------------------------------------------------------------------

    @property
    def data_version(self) -> str:
        from .tasks import DATA_VERSION

        return DATA_VERSION

    def _law(self) -> dict:
        own = {
            f.name: getattr(self, f.name) for f in fields(self) if f.name != "name" and not f.name.startswith("num_t")
        }
        del own["num_validation"]
        return {"data": self.data_version.split(".")[0], **own}

    @property
    def fingerprint(self) -> str:
        """SHA-256 (64 hex digits) over every parameter that decides a byte of the data; the name is none of them."""
        from .tasks import digest

        return digest({**self._law(), "splits": self.splits})

    def split_fingerprint(self, split: str) -> str:
        """The same for one split: two tasks whose split is the same to the byte share it."""
        from .tasks import digest

        size = self.splits[self.check_split(split)]
        return digest({**self._law(), "split": split, "size": size})

    def to_dict(self) -> dict:
        """All fields as JSON types; `get_task` takes it back."""
        return {"data_version": self.data_version, **{f.name: getattr(self, f.name) for f in fields(self)}}

    def to_json(self) -> str:
        import json

        return json.dumps(self.to_dict(), indent=2)

    def __hash__(self):
        return hash(self.fingerprint + self.name)

    # -- words ---------------------------------------------------------------------------------------------------------

    def describe_level(self) -> str:
        """What is asked, with the sizes."""
        return f"{self.name} ({'copying' if self.kind == 'copy' else 'multi-query associative recall'}; {self.describe_size()})"

    def describe_size(self) -> str:
        """The sizes alone."""
        if self.kind == "copy":
            return f"1 to {self.length} of {LETTERS} letters"
        return f"{self.num_pairs} pairs in {self.length} steps; {self.vocab_size:,} symbols"

    def describe(self) -> str:
        """One line."""
        return f"{self.describe_level()}; an answer counts as right only at the step that asks for it"


RECALL_FIELDS = tuple(f.name for f in fields(RecallTask) if f.name not in ("name", "kind"))
OF_MQAR = ("num_pairs", "vocab_size", "alpha", "filler")


def keywords_of(task: RecallTask) -> tuple[str, ...]:
    """The builder keywords that a task takes."""
    return tuple(name for name in RECALL_FIELDS if task.kind == "mqar" or name not in OF_MQAR)


def catalogue() -> dict[str, RecallTask]:
    """The recall tasks by name."""
    small = {"num_train": 20_000, "num_validation": 1_000, "num_test": 1_000}
    copying = {"kind": "copy", **dict.fromkeys(OF_MQAR)}
    tasks = [
        RecallTask("mqar_64_4"),
        RecallTask("mqar_128_8", length=128, num_pairs=8),
        RecallTask("mqar_256_16", length=256, num_pairs=16),
        RecallTask("mqar_512_64", length=512, num_pairs=64),
        RecallTask("mqar_256_64", length=256, num_pairs=64),
        RecallTask("mqar_lite", vocab_size=256, **small),
        RecallTask("copy_64", length=64, **copying),
        RecallTask("copy_256", length=256, **copying),
        RecallTask("copy_lite", length=16, **copying, **small),
    ]
    return {task.name: task for task in tasks}


def from_dict(data: dict) -> RecallTask:
    """A task from the dict of `to_dict`."""
    known = [f.name for f in fields(RecallTask)]
    for name in data:
        if name not in known:
            raise unknown("field", name, known, "the task's JSON")
    return RecallTask(**data)


def changed(task: RecallTask, keywords: dict) -> RecallTask:
    """The task with other fields. Raises InputError for a keyword that it has not."""
    for name in keywords:
        if name not in keywords_of(task):
            raise unknown("task keyword", name, keywords_of(task), task.name)
    return replace(task, **keywords)


def _check(task: RecallTask) -> None:
    import re

    def keep(name, value):
        object.__setattr__(task, name, value)

    if not isinstance(task.name, str) or not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]*", task.name):
        raise InputError(
            f"a task's name must be letters, digits, '_', '-' and '.', and begin with a letter or digit, got {task.name!r}"
        )
    if task.kind not in KINDS:
        raise unknown("kind", task.kind, KINDS, task.name)
    for name in ("num_train", "num_validation", "num_test"):
        keep(name, whole(name, getattr(task, name), 1, 100_000_000))
    keep("sample_seed", whole("sample_seed", task.sample_seed))
    keep("length", whole("length", task.length, 1 if task.kind == "copy" else 4, 100_000))
    if task.kind == "copy":
        for name in OF_MQAR:
            if getattr(task, name) is not None:
                raise InputError(f"{name} has a meaning in mqar tasks only; {task.name} is a copying task")
        return
    keep("vocab_size", whole("vocab_size", task.vocab_size, 4, 1 << 15))  # labels are int16
    if task.vocab_size % 2:
        raise InputError(f"vocab_size must be even, half keys and half values, got {task.vocab_size}")
    keep("num_pairs", whole("num_pairs", task.num_pairs, 1))
    keep("alpha", float(real("alpha", task.alpha, 0.0, 100.0)))
    if task.filler not in FILLERS:
        raise unknown("filler", task.filler, FILLERS, task.name)
    if 4 * task.num_pairs > task.length:
        raise InputError(
            f"num_pairs={task.num_pairs} needs a length of at least {4 * task.num_pairs} steps (two for a pair, two for its question), "
            f"got length={task.length}"
        )
    if task.num_pairs > task.vocab_size // 2 - 1:
        raise InputError(
            f"num_pairs={task.num_pairs} distinct keys need a vocab_size of at least {2 * (task.num_pairs + 1)}, got {task.vocab_size}"
        )
