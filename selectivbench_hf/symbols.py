"""Symbols as something else than one-hot vectors: fixed random vectors, binary codes, or random examples of a class of a data set.

    get_task("lite", symbols="digits")                                   # scikit-learn's digits: symbol k is some image of a k
    get_task("lite", symbols={"dataset": "OWNER/NAME", "width": 64})     # any `datasets` data set with a class label
    get_task("lite", symbols={"kind": "random_vectors", "width": 32, "seed": 1})

What a user gives becomes a *spec*: JSON that says everything, for a data set with the hash of its content, so that a task whose data set
changed is refused. Rows of `load_dataset` hold ids and do not depend on it. Which example is shown is a function of the sequence and the
step, keyed like noise; training steps take from one part of the data set, those of all other splits from the other part.

Axes: B sequences, T steps, V symbols, C channels, N examples.
"""

from __future__ import annotations

import functools
import json
import os
import sys
from dataclasses import dataclass

import numpy as np

from .checks import json_object, whole
from .errors import InputError, unknown
from .streams import normals, raw32, stream

FIELDS = {
    "one_hot": (),
    "random_vectors": ("width", "seed"),
    "binary": ("width",),
    "digits": ("width", "seed"),
    "dataset": ("dataset", "config", "split", "held_out", "column", "label", "width", "seed"),
}
WITH_EXAMPLES = ("digits", "dataset")
WIDTH = 64  # of random vectors, unless said
MAX_WIDTH = 1 << 16
NOT_IN_ROWS = (
    "symbols says what a model is shown, and rows hold ids, which are the same for every choice: leave it out here, and give it to get_task, "
    "sb.batches or train.py"
)


@dataclass(frozen=True, eq=False)
class Codes:
    """One vector for each symbol. table: (V + 1, C) float32, the last row, of the blank, is zero."""

    table: np.ndarray

    @property
    def channels(self) -> int:
        return self.table.shape[1]

    def told_apart(self, scale: float) -> bool:
        """Whether uniform noise in [0, scale) on every channel leaves no doubt which symbol, or none, was shown."""
        return all(
            (np.abs(self.table[at + 1 :] - row).max(1) >= scale).all() for at, row in enumerate(self.table[:-1])
        )


@dataclass(frozen=True, eq=False)
class Part:
    """Examples of one part of a data set, class by class.

    vectors       (N + 1, C) float32, the last one zero for blank steps
    first, count  (V + 1,) int64: where the examples of each symbol begin and how many there are; the blank has the zero vector alone
    """

    vectors: np.ndarray
    first: np.ndarray
    count: np.ndarray

    def index(self, ids: np.ndarray, words: np.ndarray) -> np.ndarray:
        """Rows of `vectors` for symbol ids, by one 32-bit word each."""
        return self.first[ids] + (words.astype(np.int64) * self.count[ids] >> 32)


@dataclass(frozen=True, eq=False)
class Examples:
    """A data set's two parts: `train` is shown in the training split, `held_out` in all others. content: SHA-256 of what both hold."""

    train: Part
    held_out: Part
    content: str

    @property
    def channels(self) -> int:
        return self.train.vectors.shape[1]


# -- specs ---------------------------------------------------------------------------------------------------------------


def resolve(given, num_symbols: int) -> tuple[str | None, Examples | None]:
    """(the spec as canonical JSON, None for one-hot symbols; the examples where they had to be loaded to make it).

    A spec that holds its content's hash already is not loaded here: a task's file can be read where the data set is not.

    Raises:
        InputError: for an unknown kind or key, impossible values, or a data set that cannot show V symbols.
    """
    spec = _read(given)
    kind = spec["kind"]
    if kind == "one_hot":
        return None, None
    loaded = None
    if kind == "random_vectors":
        spec.setdefault("width", WIDTH)
    elif kind == "binary":
        bits = (num_symbols - 1).bit_length()
        spec["width"] = whole(f"width of binary symbols (there are {num_symbols})", spec.get("width", bits), bits)
    elif "content" not in spec:
        from .symbol_data import load

        given = spec.get("dataset")
        loaded, spec = load(spec, num_symbols)
    text = _canonical(spec)
    if kind not in WITH_EXAMPLES:
        source(text, num_symbols)  # what is impossible is said now
    if loaded is not None and is_data_set(given):
        _GIVEN[text] = given
    return text, loaded


_GIVEN: dict = {}  # data sets given as Python objects: nothing in their spec says where to find them again


@functools.lru_cache(maxsize=4)
def source(spec: str, num_symbols: int) -> Codes | Examples:
    """What a resolved spec shows; remembered.

    Raises:
        InputError: where the data set is not there, or not what it was when the spec was made.
    """
    data = json.loads(spec)
    if data["kind"] not in WITH_EXAMPLES:
        table = _random_vectors(data, num_symbols) if data["kind"] == "random_vectors" else _binary(data, num_symbols)
        return Codes(np.concatenate([table, np.zeros((1, table.shape[1]), np.float32)]))
    from .symbol_data import load, name_of

    content = data.pop("content")
    if spec in _GIVEN:
        data["dataset"] = _GIVEN[spec]
    elif data.get("dataset", "") is None:
        raise InputError(
            f"this task's symbols are examples of a data set that was given in Python (content {content[:12]}...), which no file holds: give "
            "it again, get_task(task, symbols=the_data_set)"
        )
    examples, _ = load(data, num_symbols)
    if examples.content != content:
        raise InputError(
            f"{name_of(data)} is not what it was when this task was made: its content is {examples.content[:12]}... here and "
            f"{content[:12]}... in the task; give symbols= again to take it as it is now"
        )
    return examples


def identity(spec: str) -> dict:
    """The part of a task's fingerprint: what decides a byte of what is shown, a data set by its content and not by its name."""
    data = json.loads(spec)
    if data["kind"] not in WITH_EXAMPLES:
        return data
    width = data.get("width")
    return {"kind": "examples", "content": data["content"], "width": width, "seed": data["seed"] if width else None}


def describe(spec: str) -> str:
    """`each symbol shown as ...`, from the spec alone."""
    data = json.loads(spec)
    kind = data["kind"]
    if kind == "random_vectors":
        return f"each symbol shown as a random vector of {data['width']} channels (seed {data['seed']})"
    if kind == "binary":
        return f"each symbol shown as a code of {data['width']} bits"
    from .symbol_data import name_of

    width = f", projected to {data['width']} channels" if data.get("width") else ""
    return f"each symbol shown as a random example of its class in {name_of(data)}{width}"


def ceiling_note(spec: str | None) -> str | None:
    """What a reader of the exact filter's ceilings must know, or None where they are exact."""
    if spec is None or json.loads(spec)["kind"] not in WITH_EXAMPLES:
        return None
    return (
        "symbols are shown as examples of a class, and the exact filter, the ladder and the baselines are told the class, which a model has "
        "to recognise first"
    )


def _canonical(spec: dict) -> str:
    return json.dumps(spec, sort_keys=True, separators=(",", ":"))


def _read(given) -> dict:
    """The spec in whatever a user may give, its keys and values checked; `dataset` may still be a Python object."""
    if isinstance(given, str) and given.lstrip().startswith("{"):
        given = json_object("symbols", given)
    if isinstance(given, str):
        if given not in FIELDS or given == "dataset":
            said = unknown("symbols", given, [k for k in FIELDS if k != "dataset"])
            raise InputError(f'{said}; a data set is given as {{"dataset": NAME or folder}}')
        given = {"kind": given}
    elif is_data_set(given):
        given = {"kind": "dataset", "dataset": given}
    elif not isinstance(given, dict):
        raise InputError(
            f"symbols must be a name ({', '.join(k for k in FIELDS if k != 'dataset')}), a mapping such as "
            f'{{"dataset": NAME}}, or a data set of `datasets`, got {type(given).__name__}'
        )
    spec = {k: v for k, v in given.items() if v is not None or k == "dataset"}
    kind = spec.setdefault("kind", "dataset" if "dataset" in spec else None)
    if not isinstance(kind, str) or kind not in FIELDS:
        raise unknown("kind", kind, FIELDS, "symbols")
    allowed = ("kind", *FIELDS[kind], *(("content",) if kind in WITH_EXAMPLES else ()))
    for name in spec:
        if name not in allowed:
            raise unknown("key", name, allowed, f"symbols of kind {kind!r}")
    if "width" in spec:
        spec["width"] = whole("width of symbols", spec["width"], 1, MAX_WIDTH)
    if "seed" in FIELDS[kind]:
        spec["seed"] = whole("seed of symbols", spec.get("seed", 1))
    for name in ("config", "split", "held_out", "column", "label", "content"):
        if name in spec and (not isinstance(spec[name], str) or not spec[name]):
            raise InputError(f"{name} of symbols must be text, got {spec[name]!r}")
    if kind == "dataset":
        named = spec.get("dataset")
        if isinstance(named, os.PathLike):
            named = spec["dataset"] = os.fspath(named)
        known = (isinstance(named, str) and named.strip()) or is_data_set(named)
        if not known and not (named is None and "content" in spec):
            raise InputError(
                f"dataset of symbols must be a data set's name, its folder or a `datasets` Dataset, got {named!r}"
            )
    return spec


def is_data_set(value) -> bool:
    """Whether it is a Dataset or DatasetDict; does not import `datasets`, for nobody has one before that."""
    library = sys.modules.get("datasets")
    return library is not None and isinstance(value, library.Dataset | library.DatasetDict)


# -- codes ---------------------------------------------------------------------------------------------------------------


def _random_vectors(data: dict, num_symbols: int) -> np.ndarray:
    """(V, C) float32: directions uniform on the sphere, of length 1 as a one-hot vector is."""
    drawn = normals(stream("symbol-vectors", data["seed"], data["width"]), num_symbols * data["width"])
    drawn = drawn.reshape(num_symbols, data["width"])
    table = (drawn / np.sqrt((drawn**2).sum(1, keepdims=True))).astype(np.float32)
    if len(np.unique(table, axis=0)) < num_symbols:  # one channel holds +1 and -1 only
        raise InputError(
            f"random_vectors of width {data['width']} do not tell {num_symbols} symbols apart; take a width of at least 2"
        )
    return table


def _binary(data: dict, num_symbols: int) -> np.ndarray:
    """(V, C) float32: the bits of the symbol's id, the lowest first, as +1 and -1; the blank's zeros are no code."""
    bits = np.arange(num_symbols)[:, None] >> np.minimum(np.arange(data["width"]), 62) & 1
    return (2 * bits - 1).astype(np.float32)


# -- what is shown -------------------------------------------------------------------------------------------------------


def choices(task, split: str, example_id: int, steps: int, *, seed=None, epoch=None) -> np.ndarray:
    """(steps,) uint32: the words that choose the examples of one sequence, blank steps counted; keyed as features.noise is."""
    if epoch is None:
        key = ("symbol-examples", task.grammar.hash, task.sample_seed, split, int(example_id))
    else:
        key = ("training-symbol-examples", task.grammar.hash, int(seed), int(epoch), int(example_id))
    return raw32(stream(*key), steps)


def shown(task, input_ids: np.ndarray, lengths, split: str, example_ids, *, seed=None, epoch=None) -> np.ndarray:
    """Features without noise of a padded batch of a task whose symbols are not one-hot: zero at blanks and padding.

    Args:
        input_ids: (B, T) integers, the blank id at blanks and padding.
        lengths: (B,) steps of each sequence.
        split, example_ids, seed, epoch: what keys the choice of examples, see `choices`.

    Returns:
        (B, T, C) float32.
    """
    origin = task.symbol_source
    ids = input_ids.astype(np.int64)
    if isinstance(origin, Codes):
        return origin.table[ids]
    part = origin.train if split == "train" else origin.held_out
    words = np.zeros(ids.shape, np.uint32)
    for row, (example, length) in enumerate(zip(example_ids, lengths)):
        words[row, :length] = choices(task, split, example, int(length), seed=seed, epoch=epoch)
    return part.vectors[part.index(ids, words)]
