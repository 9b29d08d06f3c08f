"""Tasks: the catalogue of protocol section 6, and every parameter that a user may turn.

A `Task` holds all that decides a byte of its data or scoring, so its fingerprint does too. Builder keywords of `load_dataset` and of
`get_task`, flags of `selectivbench build` and of `train.py` are the fields listed in `TASK_FIELDS`, for a recall task those of
`recall.keywords_of`.
"""

from __future__ import annotations

import functools
import hashlib
import json
import math
import os
import re
from dataclasses import dataclass, fields, replace

from . import horizon, recall, symbols
from .checks import MAX_GAP, is_whole, json_object, listed, random_law, read_gap_law, real, whole
from .errors import InputError, unknown
from .grammar import Grammar
from .recall import RecallTask

MAX_ITEMS = 10_000  # a train block of 50,000 sequences is drawn whole, and at 10,000 items fills a gigabyte
DATA_VERSION = "1.0.0"  # major: any byte of data or scoring changed; minor: configs added

LEVELS = {"lite": 8, "te1": 20, "te2": 24, "te3": 26, "te4": 30, "te5": 34, "te6": 38, "te7": 40}
VARIANTS = ("plain", "noisy_gaps", "nongrammatical_gaps")
NOISES = ("none", "uniform", "gaussian")
PAPER_GAPS = {1: 1, **dict.fromkeys(range(2, 10), 2), 10: 1}  # what rounding a uniform draw from [1, 10] gives


def task_names() -> list[str]:
    """The names of the catalogue: the 24 tasks of random grammars, level by level, the horizon family, then the recall tasks."""
    return [*grammar_task_names(), *horizon.MEMBERS, *_recall_tasks()]


def grammar_task_names() -> list[str]:
    """The 24 names of the tasks of random grammars, level by level."""
    return [level + ("" if v == "plain" else f"_{v}") for level in LEVELS for v in VARIANTS]


@functools.cache
def _recall_tasks() -> dict[str, RecallTask]:
    return recall.catalogue()


def keywords_of(name: str) -> tuple[str, ...]:
    """The builder keywords that a task of the catalogue takes."""
    if name in _recall_tasks():
        return recall.keywords_of(_recall_tasks()[name])
    return tuple(f for f in TASK_FIELDS if name not in horizon.MEMBERS or f not in horizon.REFUSED)


@dataclass(frozen=True)
class Task:
    """One task: a grammar, how its items are laid out in time, the splits and the noise. Immutable; made by `get_task`.

    Fields:
        name: name of the catalogue, or of the user's choice.
        variant: `plain`, `noisy_gaps` or `nongrammatical_gaps`.
        letters, depth, density, num_start_states, grammar_seed, dirichlet, all_reachable, min_string_length: the law of the random grammar
            (`Grammar.random`); with `custom_grammar` they are None but for min_string_length.
        custom_grammar: JSON of a whole grammar instead of a random one.
        automaton: a member of the horizon family instead of a random grammar (`horizon.MEMBERS`).
        sample_seed: seed of the sequences.
        max_string_length: L, the longest string with its `#`.
        num_items: items of a sequence.
        num_train, num_validation, num_test: sequences of each split; a smaller number is a prefix of a larger.
        train_gap: blank steps after an item in train and validation, as (length, integer weight) pairs.
        test_gaps: constant numbers of blank steps; the first is split `test`, the others `test_gap_N`. Empty: test follows train_gap.
        noise: `none`; `uniform` in [0, noise_scale); `gaussian` with standard deviation noise_scale. On every channel of every step.
        distractor_rate, distractor_start: probability of a distractor after an item, from this 0-based item on.
        symbols: how a symbol is shown: None for one-hot, else JSON of a spec (`symbols.py`; a name, a mapping or a Dataset becomes one).
    """

    name: str
    variant: str = "plain"
    letters: int | None = 26
    depth: int | tuple | None = None
    density: float | None = 0.4
    num_start_states: int | None = 4
    grammar_seed: int | None = 1
    dirichlet: float | None = None
    all_reachable: bool = False
    min_string_length: int = 1
    custom_grammar: str | None = None
    automaton: str | None = None
    sample_seed: int = 1
    max_string_length: int = 200
    num_items: int = 200
    num_train: int = 200_000
    num_validation: int = 1_000
    num_test: int = 1_000
    train_gap: tuple = ((1, 1),)
    test_gaps: tuple = ()
    noise: str = "none"
    noise_scale: float = 0.0
    distractor_rate: float = 0.0
    distractor_start: int = 0
    symbols: str | None = None

    family = "grammar"

    def __post_init__(self):
        _check(self)

    # -- the grammar and the sizes that models need ----------------------------------------------------------------------

    @functools.cached_property
    def grammar(self) -> Grammar:
        """The grammar, drawn when first asked for (0.02 s at level te7)."""
        if self.automaton is not None:
            return horizon.grammar(self.automaton, self.num_items)
        if self.custom_grammar is not None:
            return Grammar.from_json(self.custom_grammar)
        depth = list(self.depth) if isinstance(self.depth, tuple) else self.depth
        return Grammar.random(
            self.letters,
            depth,
            self.density,
            self.num_start_states,
            self.grammar_seed,
            dirichlet=self.dirichlet,
            min_length=self.min_string_length,
            all_reachable=self.all_reachable,
        )

    @property
    def num_symbols(self) -> int:
        """V: letters and `#`."""
        return self.grammar.num_symbols

    @functools.cached_property
    def symbol_source(self):
        """What shows the symbols where they are not one-hot, a `symbols.Codes` or `symbols.Examples`; loaded when first asked for."""
        return symbols.source(self.symbols, self.num_symbols)

    @property
    def num_channels(self) -> int:
        """C: the channels of an input step, V where symbols are one-hot."""
        return self.num_symbols if self.symbols is None else self.symbol_source.channels

    @property
    def ceiling_note(self) -> str | None:
        """What a reader of the exact filter's ceilings must know, or None where they are exact."""
        return symbols.ceiling_note(self.symbols)

    @property
    def num_states(self) -> int:
        """S: the classes."""
        return self.grammar.num_states

    @property
    def blank_id(self) -> int:
        """The id of a blank step in `input_ids`, V; its features are the zero vector."""
        return self.grammar.num_symbols

    @property
    def level(self) -> str:
        """`lite`, `te1`..`te7`, a member of the horizon family, or `custom`."""
        if self.automaton is not None:
            return self.automaton
        head = self.name.split("_")[0]
        usual = (LEVELS.get(head), None, 0.4, 4, None, False, 1)
        own = (
            self.letters,
            self.depth,
            self.density,
            self.num_start_states,
            self.dirichlet,
            self.all_reachable,
            self.min_string_length,
        )
        return head if own == usual and self.custom_grammar is None else "custom"

    # -- splits ----------------------------------------------------------------------------------------------------------

    @property
    def splits(self) -> dict[str, int]:
        """Sequences of each split: train, validation, test, then the test splits with longer or shorter gaps."""
        extra = {f"test_gap_{gap}": self.num_test for gap in self.test_gaps[1:]}
        return {"train": self.num_train, "validation": self.num_validation, "test": self.num_test, **extra}

    @property
    def test_splits(self) -> list[str]:
        return [s for s in self.splits if s.startswith("test")]

    def check_split(self, split: str) -> str:
        """`split` if the task has it, else an InputError that names the nearest."""
        if split not in self.splits:
            raise unknown("split", split, self.splits, self.name)
        return split

    def gap_law(self, split: str) -> dict[int, int]:
        """{blank steps after an item: integer weight} in a split; {0: 1} where only distractors follow items."""
        self.check_split(split)
        if self.variant == "nongrammatical_gaps":
            return {0: 1}
        if split.startswith("test") and self.test_gaps:
            return {self.test_gaps[0] if split == "test" else int(split.rsplit("_", 1)[1]): 1}
        return dict(self.train_gap)

    def max_steps(self, split: str) -> int:
        """The longest a sequence of the split can be, in steps."""
        if self.variant == "nongrammatical_gaps":
            self.check_split(split)
            return self.num_items + max(0, self.num_items - self.distractor_start)
        return self.num_items * (1 + max(self.gap_law(split)))

    # -- identity --------------------------------------------------------------------------------------------------------

    @property
    def data_version(self) -> str:
        return DATA_VERSION

    def _law(self) -> dict:
        """Everything but sizes that decides a byte, grammar by content, under the major data version."""
        shown = {} if self.symbols is None else {"symbols": symbols.identity(self.symbols)}
        return shown | {
            "data": DATA_VERSION.split(".")[0],
            "grammar": self.grammar.hash,
            "sample_seed": self.sample_seed,
            "variant": self.variant,
            "max_string_length": self.max_string_length,
            "num_items": self.num_items,
            "noise": self.noise,
            "noise_scale": self.noise_scale,
            "distractor_rate": self.distractor_rate,
            "distractor_start": self.distractor_start,
        }

    @property
    def fingerprint(self) -> str:
        """SHA-256 (64 hex digits) over every parameter that decides a byte of the data or of the scores; the name is none of them."""
        return digest({**self._law(), "train_gap": self.train_gap, "test_gaps": self.test_gaps, "splits": self.splits})

    def split_fingerprint(self, split: str) -> str:
        """The same for one split: two tasks whose split is the same to the byte share it."""
        size = self.splits[self.check_split(split)]
        return digest({**self._law(), "gap": sorted(self.gap_law(split).items()), "split": split, "size": size})

    def to_dict(self) -> dict:
        """All fields as JSON types; `get_task` takes it back."""
        out = {f.name: getattr(self, f.name) for f in fields(self)}
        out["train_gap"] = {str(k): w for k, w in self.train_gap}
        out["test_gaps"] = list(self.test_gaps)
        out["depth"] = list(self.depth) if isinstance(self.depth, tuple) else self.depth
        for name in ("custom_grammar", "symbols"):
            out[name] = None if out[name] is None else json.loads(out[name])
        return {"data_version": DATA_VERSION, **out}

    def to_json(self) -> str:
        return json.dumps(self.to_dict(), indent=2)

    def __hash__(self):
        return hash(self.fingerprint + self.name)

    # -- words -----------------------------------------------------------------------------------------------------------

    def describe_level(self) -> str:
        """`te3 (level 3 of 7; 26 letters; 2.34 nats = 3.38 bits)`."""
        nats = self.grammar.topological_entropy()
        entropy = f"{nats:.2f} nats = {nats / math.log(2):.2f} bits"
        if self.automaton is not None:
            return horizon.describe(self, entropy)
        place = (
            f"level {self.level[2]} of 7; "
            if self.level.startswith("te")
            else "laptop size; "
            if self.level == "lite"
            else ""
        )
        return f"{self.level} ({place}{self.grammar.letters} letters; {entropy})"

    def describe(self) -> str:
        """One line: the level written out, the variant, and what stands in time."""
        what = {
            "plain": "a constant gap after each item",
            "noisy_gaps": "noise, and gaps of random length after each item",
            "nongrammatical_gaps": "ungrammatical distractors between the items",
        }[self.variant]
        shown = "" if self.symbols is None else f"; {symbols.describe(self.symbols)}"
        return f"{self.name}: {self.describe_level()}; {what}; {self.num_items} items a sequence, {self.num_states} states{shown}"


LAW = (
    "letters",
    "depth",
    "density",
    "num_start_states",
    "grammar_seed",
    "dirichlet",
    "all_reachable",
)  # of the random grammar
OWN_FIELDS = ("name", "variant", "custom_grammar", "automaton")  # what makes a task of the catalogue itself
TASK_FIELDS = (*(f.name for f in fields(Task) if f.name not in OWN_FIELDS), "grammar")
BUILDER_KEYWORDS = tuple(
    n for n in dict.fromkeys(TASK_FIELDS + recall.RECALL_FIELDS) if n != "symbols"
)  # of any task's rows
TASK_KEYWORDS = (*BUILDER_KEYWORDS, "symbols")  # of any task


@functools.cache
def _catalogue_fields(name: str) -> tuple:
    if name in horizon.MEMBERS:
        return tuple(horizon.task_fields(name).items())
    level, _, variant = name.partition("_")
    lite = level == "lite"
    out = {"variant": variant or "plain", "letters": LEVELS[level]}
    if lite:
        out |= {"max_string_length": 64, "num_items": 64, "num_train": 20_000}
    if variant == "noisy_gaps":
        out |= {
            "train_gap": tuple(PAPER_GAPS.items()),
            "test_gaps": (10, 1, 5, 20, 50, 100),
            "noise": "uniform",
            "noise_scale": 0.2,
        }
    if variant == "nongrammatical_gaps":
        out |= {"distractor_rate": 0.1, "distractor_start": 8 if lite else 50, "train_gap": ((0, 1),)}
    return tuple(out.items())


def get_task(task, **keywords) -> Task | RecallTask:
    """A task of the catalogue, by name, with any builder keyword changed.

    Args:
        task: a name (`te3_noisy_gaps`; `te3_noisy_gaps_seed2` is short for grammar_seed=2), a Task, the dict or JSON text of
            `Task.to_json`, or the path of a file that holds it.
        keywords: fields of `Task` that differ (for a recall task, of `recall.RecallTask`); `grammar=` takes a whole custom grammar (a `Grammar`,
            its JSON, or a JSON file).
            `train_gap` is a number of steps or {length: integer weight}; None means the catalogue's value. `symbols` is a name
            ("one_hot", "random_vectors", "binary", "digits"), a mapping such as {"dataset": NAME, "width": 64}, or a Dataset.

    Raises:
        InputError: for unknown names or keywords (the nearest are named) and impossible values.
    """
    base = _base(task)
    keywords = {k: v for k, v in keywords.items() if v is not None}
    if isinstance(base, RecallTask):
        return recall.changed(base, keywords)
    grammar = keywords.pop("grammar", None)
    for name in keywords:
        if name not in TASK_FIELDS:
            raise unknown("task keyword", name, TASK_FIELDS, base.name)
    if "train_gap" in keywords:
        keywords["train_gap"] = read_gap_law(keywords["train_gap"])
    if grammar is not None:
        clash = sorted(set(keywords) & {*LAW, "min_string_length"})
        if clash:
            raise InputError(f"{clash[0]} cannot be given together with a whole grammar, which decides it")
        g = _read_grammar(grammar)
        keywords |= dict.fromkeys(LAW) | {
            "custom_grammar": g.to_json(),
            "automaton": None,
            "all_reachable": False,
            "min_string_length": g.min_length,
        }
        if base.custom_grammar is None:
            keywords["name"] = base.name + "_custom"
    elif base.automaton is not None:
        keywords = horizon.changed(base, keywords)
    if keywords.get("noise") == "none":
        keywords.setdefault("noise_scale", 0.0)
    elif keywords.get("noise") and not base.noise_scale and "noise_scale" not in keywords:
        keywords["noise_scale"] = 0.2
    out = replace(base, **keywords)
    if grammar is not None:  # parsed once
        out.__dict__["grammar"] = g
    return out


def _base(task) -> Task | RecallTask:
    if isinstance(task, Task | RecallTask):
        return task
    if isinstance(task, os.PathLike) or (
        isinstance(task, str) and (task.lstrip()[:1] in ("{", "[") or task.endswith(".json"))
    ):
        task = json_object("task", task)
    if isinstance(task, dict):
        return _from_dict(task)
    if not isinstance(task, str):
        raise InputError(f"a task is a name, a Task, its JSON or a file with it, got {type(task).__name__}")
    seeded = re.fullmatch(r"(.+)_seed(\d+)", task)
    name = seeded[1] if seeded else task
    if not seeded and name in _recall_tasks():
        return _recall_tasks()[name]
    if name not in grammar_task_names() and (seeded or name not in horizon.MEMBERS):
        raise unknown("task", task, task_names())
    base = Task(name=name, **dict(_catalogue_fields(name)))
    return replace(base, grammar_seed=int(seeded[2])) if seeded else base


def _from_dict(data: dict) -> Task:
    data = dict(data)
    version = data.pop("data_version", DATA_VERSION)
    if str(version).split(".")[0] != DATA_VERSION.split(".")[0]:
        raise InputError(f"the task was made for data version {version}; this package generates {DATA_VERSION}")
    if "name" not in data:
        raise InputError("the task's JSON lacks the field 'name'")
    if "kind" in data:
        return recall.from_dict(data)
    known = [f.name for f in fields(Task)]
    for name in data:
        if name not in known:
            raise unknown("field", name, known, "the task's JSON")
    if data.get("custom_grammar") is not None:
        data["custom_grammar"] = _read_grammar(data["custom_grammar"]).to_json()
    if "train_gap" in data:
        data["train_gap"] = read_gap_law(data["train_gap"])
    return Task(**data)


def _read_grammar(grammar) -> Grammar:
    return grammar if isinstance(grammar, Grammar) else Grammar.from_json(grammar)


def _check(task: Task) -> None:
    """Everything that can be told without drawing the grammar; one sentence for the first thing that is wrong.

    Numbers become plain int and float, so that 1, 1.0 and NumPy's 1 make the same fingerprint.
    """

    def keep(name, value):
        object.__setattr__(task, name, value)

    if not isinstance(task.name, str) or not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]*", task.name):
        raise InputError(
            f"a task's name must be letters, digits, '_', '-' and '.', and begin with a letter or digit, got {task.name!r}"
        )
    if task.variant not in VARIANTS:
        raise unknown("variant", task.variant, VARIANTS, task.name)
    if task.noise not in NOISES:
        raise unknown("noise", task.noise, NOISES, task.name)
    for name, least, most in (
        ("num_train", 1, 100_000_000),  # `datasets` cannot hold an empty split
        ("num_validation", 1, 100_000_000),
        ("num_test", 1, 100_000_000),
        ("num_items", 1, MAX_ITEMS),
        ("max_string_length", 1, 100_000),
        ("min_string_length", 1, None),
        ("distractor_start", 0, None),
        ("sample_seed", None, None),
    ):
        keep(name, whole(name, getattr(task, name), least, most))
    if task.automaton is not None:
        horizon.check(task)
    elif task.custom_grammar is None:
        depth = task.depth
        keep("grammar_seed", whole("grammar_seed", task.grammar_seed))
        letters, depths = random_law(
            task.letters,
            depth,
            task.density,
            task.num_start_states,
            task.grammar_seed,
            task.dirichlet,
            task.all_reachable,
        )
        keep("letters", letters)
        if depth is not None:
            keep("depth", depths[0] if is_whole(depth) or len(set(depths)) == 1 else depths)
        keep("depth", None if task.depth == letters else task.depth)  # the paper's choice, said or not
        keep("num_start_states", int(task.num_start_states))
        keep("density", float(task.density))
        keep("dirichlet", None if task.dirichlet is None else float(task.dirichlet))
    if task.min_string_length > task.max_string_length:
        raise InputError(
            f"min_string_length={task.min_string_length} is above max_string_length={task.max_string_length}"
        )
    keep("test_gaps", tuple(whole("test_gaps", gap, 0, MAX_GAP) for gap in listed("test_gaps", task.test_gaps)))
    if len(set(task.test_gaps)) != len(task.test_gaps):
        raise InputError(f"test_gaps must differ from each other, got {list(task.test_gaps)}")
    for name, high in (("noise_scale", 1000), ("distractor_rate", 1)):
        keep(name, float(real(name, getattr(task, name), 0, high)))
    if (task.noise == "none") != (task.noise_scale == 0):
        raise InputError(
            f"noise={task.noise!r} and noise_scale={task.noise_scale} contradict each other; noise 'none' has scale 0, the others a scale above 0"
        )
    for name in ("distractor_rate", "distractor_start"):
        if task.variant != "nongrammatical_gaps" and getattr(task, name):
            raise InputError(f"{name} has a meaning in nongrammatical_gaps only; {task.name} is {task.variant}")
    if task.variant == "nongrammatical_gaps" and (task.train_gap != ((0, 1),) or task.test_gaps):
        raise InputError(
            f"train_gap and test_gaps have no meaning in nongrammatical_gaps ({task.name}); its gaps are distractors"
        )
    if task.symbols is not None:
        _resolve_symbols(task)


def _resolve_symbols(task: Task) -> None:
    v = task.num_symbols if task.letters is None else task.letters + 1  # a random grammar need not be drawn for it
    spec, loaded = symbols.resolve(task.symbols, v)
    object.__setattr__(task, "symbols", spec)
    if loaded is not None:
        task.__dict__["symbol_source"] = loaded


def digest(data) -> str:
    """SHA-256 (hex) of JSON data."""
    return hashlib.sha256(json.dumps(data, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
