"""Data sets with a class label as sources of symbols: which rows, which column, and the arrays that `symbols.Examples` holds.

Class k of the data set is symbol k (0 is `#`); classes beyond V are not shown. Training steps show one split of the data set (`train`, or
its only one), all others another (`test`, else `validation`); where there is only one split, a fifth of each class is held out.
A held-out example that also stands among the training ones is left out, so that no example of a test was ever trained on.
"""

from __future__ import annotations

import hashlib
import io
import itertools
import os
import warnings
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from .errors import InputError, unknown
from .streams import raw32, stream
from .symbols import Examples, Part, is_data_set

HELD_OUT_SHARE = 5  # one in so many of each class, where a data set has one split only
MAX_BYTES = 4 << 30
CHUNK = 1 << 24  # numbers that are read at once


@dataclass
class Rows:
    """Examples from one split of a data set.

    name     of the split
    classes  (N,) int64, -1 for a class that symbols do not know
    read     indices (of `classes`) -> their values in order
    numbers  (N,) rows of the split that they are, for messages
    """

    name: str
    classes: np.ndarray
    read: Callable
    numbers: np.ndarray


def name_of(spec: dict) -> str:
    """How a data set is called in sentences."""
    if spec["kind"] == "digits":
        return "scikit-learn's digits"
    named = spec.get("dataset")
    return f"the data set {named!r}" if isinstance(named, str) else "the data set given in Python"


def load(spec: dict, num_symbols: int) -> tuple[Examples, dict]:
    """The examples of a checked spec, and the spec with all that was chosen for the user, and the content's hash, filled in.

    Raises:
        InputError: where the data set cannot be loaded or cannot show V symbols.
    """
    what = name_of(spec)
    names, parts, chosen = _digits() if spec["kind"] == "digits" else _library(spec, what)
    if len(names) < num_symbols:
        raise InputError(
            f"{what} has {len(names)} classes and the task has {num_symbols} symbols, `#` among them; a class is needed for each: take fewer "
            "letters or another data set"
        )
    train, held_out = parts if len(parts) == 2 else _cut(parts[0], spec["seed"])
    ordered = [(part, np.argsort(part.classes, kind="stable")) for part in (train, held_out)]
    ordered = [(part, rows[part.classes[rows] >= 0]) for part, rows in ordered]
    reader = _Reader(what, chosen.get("column"), spec.get("width"), spec["seed"])
    (first, seen), (other, more) = (reader.read(part, rows) for part, rows in ordered)
    classes = [part.classes[rows] for part, rows in ordered]
    new = ~np.isin(more, seen)
    if not new.all():
        warnings.warn(
            f"{(~new).sum():,} of {len(new):,} held-out examples of {what} also stand among the training ones and are left out"
        )
        other, more, classes[1] = other[new], more[new], classes[1][new]
    content = hashlib.sha256(repr(reader.shape).encode())
    for labels, digests in zip(classes, (seen, more)):
        content.update(labels.astype("<i8").tobytes() + digests.tobytes())
    arrays = [
        _part(vectors, labels, names[:num_symbols], what, told)
        for vectors, labels, told in zip((first, other), classes, ("training", "held-out"))
    ]
    named = {"dataset": spec["dataset"] if isinstance(spec["dataset"], str) else None} if "dataset" in spec else {}
    return Examples(*arrays, content.hexdigest()), {**spec, **chosen, **named, "content": content.hexdigest()}


def _part(vectors, classes, names, what, told) -> Part:
    used = classes < len(names)
    count = np.bincount(classes[used], minlength=len(names))
    if not count.all():
        missing = names[int(np.argmin(count))]
        raise InputError(f"class {missing!r} of {what} has no {told} example; each class that is shown needs one")
    total = int(count.sum())  # rows stand class by class, so those used come first
    return Part(
        np.concatenate([vectors[:total], np.zeros((1, vectors.shape[1]), np.float32)]),
        np.append(np.cumsum(count) - count, total),
        np.append(count, 1),
    )


def _cut(rows: Rows, seed: int) -> tuple[Rows, Rows]:
    """One split cut in two by a fixed draw, class by class."""
    order = np.argsort(stream("symbol-cut", seed).random_raw(len(rows.classes)), kind="stable")
    order = order[np.argsort(rows.classes[order], kind="stable")]
    held = np.zeros(len(order), dtype=bool)
    for start, stop in _runs(rows.classes[order]):
        held[order[start : start + max(1, (stop - start) // HELD_OUT_SHARE)]] = True
    return tuple(
        Rows(rows.name, rows.classes[at], lambda indices, at=at: rows.read(at[indices]), at)
        for at in (np.flatnonzero(~held), np.flatnonzero(held))
    )


def _runs(values):
    edges = np.flatnonzero(np.diff(values, prepend=np.nan, append=np.nan))
    return itertools.pairwise(edges)


def _digits():
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        raise InputError(
            "symbols='digits' needs scikit-learn, which ships them: pip install 'selectivbench_hf[symbols]'"
        ) from None
    data = load_digits()
    pixels = (data.images / 16).astype(np.float32)
    rows = Rows("digits", data.target.astype(np.int64), lambda indices: pixels[indices], np.arange(len(pixels)))
    return [str(name) for name in data.target_names], [rows], {}


# -- the `datasets` library ----------------------------------------------------------------------------------------------


def _library(spec: dict, what: str):
    """(class names, one or two Rows, what was chosen: split, held_out, column, label)."""
    import datasets

    parts = spec["dataset"] if is_data_set(spec["dataset"]) else _open(spec, what)
    if isinstance(parts, datasets.Dataset):
        parts = {str(parts.split or "train"): parts}
    split = spec.get("split") or ("train" if "train" in parts else next(iter(parts)) if len(parts) == 1 else None)
    if split is None:
        raise InputError(f"split of symbols must say which of {', '.join(parts)} of {what} the training steps show")
    held_out = spec.get("held_out") or next((n for n in ("test", "validation") if n in parts and n != split), None)
    for name in filter(None, (split, held_out)):
        if name not in parts:
            raise unknown("split", name, parts, what)
    if split == held_out:
        raise InputError(
            f"split and held_out of symbols are both {split!r}: test sequences would show training examples"
        )
    features = parts[split].features
    label = _label(spec.get("label"), features, what)
    column = _column(spec.get("column"), features, label, what)
    names, classes = _classes(parts[split], label, f"{what}, split {split!r}")
    out = [Rows(split, classes, _values(parts[split], column, what), np.arange(len(classes)))]
    if held_out:
        if column not in parts[held_out].features or label not in parts[held_out].features:
            raise InputError(f"split {held_out!r} of {what} lacks the column {column!r} or {label!r}")
        _, classes = _classes(parts[held_out], label, f"{what}, split {held_out!r}", names)
        out.append(Rows(held_out, classes, _values(parts[held_out], column, what), np.arange(len(classes))))
    chosen = {"split": split, "column": column, "label": label} | ({"held_out": held_out} if held_out else {})
    return names, out, chosen


def _open(spec, what):
    import datasets

    name, config = spec["dataset"], spec.get("config")
    try:
        saved = [os.path.join(name, file) for file in ("dataset_dict.json", "state.json")]
        if config is None and any(map(os.path.isfile, saved)):
            return datasets.load_from_disk(name)
        return datasets.load_dataset(name, config)
    except Exception as error:  # whatever its loader meets: no such name, no network, a damaged file
        why = " ".join(str(error).split())
        raise InputError(f"cannot load {what} for symbols: {why[:300] or type(error).__name__}") from None


def _label(name, features, what) -> str:
    import datasets

    if name is not None:
        if name not in features:
            raise unknown("label column", name, features, what)
        return name
    found = [n for n, f in features.items() if isinstance(f, datasets.ClassLabel)]
    found = found or [n for n in ("label", "labels") if n in features]
    if len(found) != 1:
        raise InputError(
            f"label of symbols must say which column of {what} is the class: {'several are' if found else 'none is'} a class label; "
            f"columns: {', '.join(features)}"
        )
    return found[0]


def _column(name, features, label, what) -> str:
    import datasets

    if name is not None:
        if name not in features or name == label:
            raise unknown("column", name, [n for n in features if n != label], what)
        return name
    arrays = (datasets.Image, datasets.Audio, datasets.List, datasets.LargeList)
    arrays += (datasets.Array2D, datasets.Array3D, datasets.Array4D, datasets.Array5D)
    found = [n for n, f in features.items() if n != label and isinstance(f, arrays)]
    if len(found) != 1:
        raise InputError(
            f"column of symbols must say which column of {what} is shown: {'several hold' if found else 'none holds'} images, audio or "
            f"vectors; columns: {', '.join(features)}"
        )
    return found[0]


def _classes(data, label, where, names=None):
    """(names of the classes, (N,) index of each row's class). Classes are those of the feature, else the values found, in order."""
    feature, values = data.features[label], data.with_format(None)[label][:]
    unlabelled = -1 if hasattr(feature, "names") else None
    missing = next((at for at, v in enumerate(values) if v is None or v != v or v == unlabelled), None)
    if missing is not None:
        raise InputError(f"row {missing} of {where} has no class in column {label!r}")
    if hasattr(feature, "names"):
        return feature.names, np.array(values, dtype=np.int64)
    if not all(isinstance(v, int | str) for v in values):
        raise InputError(f"column {label!r} of {where} is no class label: it holds {type(values[0]).__name__} values")
    names = sorted(set(values)) if names is None else names
    at = {name: index for index, name in enumerate(names)}
    return names, np.array([at.get(v, -1) for v in values], dtype=np.int64)


def _values(data, column, what) -> Callable:
    """A function from row indices to the list of the column's values as arrays."""
    import datasets

    feature = data.features[column]
    data = data.select_columns([column])
    if isinstance(feature, datasets.Audio):
        data = data.cast_column(column, datasets.Audio(decode=False))
        return lambda indices: [_samples(v, column, what) for v in data.select(indices).with_format(None)[column][:]]
    data = data.with_format("numpy")
    if isinstance(feature, datasets.Image):
        return lambda indices: [_pixels(np.asarray(v)) for v in data.select(indices)[column][:]]
    return lambda indices: data.select(indices)[column][:]


def _pixels(image: np.ndarray) -> np.ndarray:
    """Whole numbers in [0, 1]."""
    top = np.iinfo(image.dtype).max if image.dtype.kind == "u" else 1
    return image.astype(np.float32) / np.float32(top)


def _samples(value: dict, column, what) -> np.ndarray:
    """A WAV file's samples, whole numbers in [-1, 1). No other format: its decoder would decide bytes of the data."""
    from scipy.io import wavfile

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", wavfile.WavFileWarning)  # a chunk that is no sound
            _, samples = wavfile.read(value["path"] if value["bytes"] is None else io.BytesIO(value["bytes"]))
    except (ValueError, OSError, TypeError) as error:
        raise InputError(
            f"audio in column {column!r} of {what} is no readable WAV ({error}); give the samples as a column of vectors"
        ) from None
    if samples.dtype.kind == "f":
        return samples
    middle = 128 if samples.dtype.kind == "u" else 0
    return (samples.astype(np.float64) - middle) / (128 if middle else -float(np.iinfo(samples.dtype).min))


# -- vectors -------------------------------------------------------------------------------------------------------------


class _Reader:
    """Values to (N, C) float32: flattened, checked, and projected where a width is asked for."""

    def __init__(self, what: str, column: str | None, width: int | None, seed: int):
        self.what, self.width, self.seed = what, width, seed
        self.column = f"column {column!r} of {what}" if column else what
        self.shape = self.projection = None

    def read(self, part: Rows, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(vectors, (N,) 16-byte digests of each before the projection) of the given rows, in order."""
        vectors, digests = None, np.empty(len(rows), "V16")
        start, size = 0, 1
        while start < len(rows):
            at = rows[start : start + size]
            block = self._block(part, at)
            digests[start : start + len(at)] = [hashlib.blake2b(r.tobytes(), digest_size=16).digest() for r in block]
            if self.width is not None:
                block = (block.astype(np.float64) @ self.projection).astype(np.float32)
            if vectors is None:
                if len(rows) * block.shape[1] * 4 > MAX_BYTES:
                    raise InputError(
                        f"{self.column} has {block.shape[1]:,} numbers in each of {len(rows):,} examples, more than the {MAX_BYTES >> 30} GB "
                        "held in memory; give a width to project them to"
                    )
                vectors = np.empty((len(rows), block.shape[1]), np.float32)
            vectors[start : start + len(at)] = block
            start, size = start + len(at), max(1, CHUNK // int(np.prod(self.shape)))
        if vectors is None:
            raise InputError(f"{self.what} has no example in {part.name!r}")
        return vectors, digests

    def _block(self, part, rows) -> np.ndarray:
        out = []
        for row, value in zip(part.numbers[rows], part.read(rows)):
            value = np.asarray(value)
            if value.dtype.kind not in "biuf":
                raise InputError(f"{self.column} must hold numbers of one size, row {row} of {part.name!r} does not")
            if self.shape is None:
                if not value.size:
                    raise InputError(f"{self.column} is empty in row {row} of {part.name!r}")
                self.shape = value.shape
                if self.width is not None:
                    self.projection = _projection(value.size, self.width, self.seed)
            if value.shape != self.shape:
                raise InputError(
                    f"{self.column} has examples of different sizes, {_size(self.shape)} and {_size(value.shape)} (row {row} of "
                    f"{part.name!r}); bring them to one size first"
                )
            out.append(value.astype("<f4").reshape(-1))
        out = np.stack(out)
        if not np.isfinite(out).all():
            bad = part.numbers[rows[int(np.argmin(np.isfinite(out).all(1)))]]
            raise InputError(f"{self.column} holds NaN or infinity in row {bad} of {part.name!r}")
        return out


def _size(shape) -> str:
    return " x ".join(map(str, shape)) or "a single number"


def _projection(size: int, width: int, seed: int) -> np.ndarray:
    """(size, width) float64: random signs / sqrt(width), which keeps squared lengths in the mean."""
    count = size * width
    words = raw32(stream("symbol-projection", seed, size, width), -(-count // 32)).astype("<u4")
    bits = np.unpackbits(words.view(np.uint8), count=count, bitorder="little").reshape(size, width)
    return (2.0 * bits - 1) / np.sqrt(width)
