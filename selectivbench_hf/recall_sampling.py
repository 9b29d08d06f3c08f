"""The sequences of recall tasks, drawn in whole blocks (protocol sections 2 and 7). Axes: N sequences, T steps, D pairs, V symbols."""

from __future__ import annotations

import functools
from dataclasses import replace

import numpy as np

from .recall import DELIMITER, IGNORED, LETTERS, OF_MQAR, RecallTask
from .streams import stream

ROWS = 2_000  # drawn together: their tables of unused symbols stay in the cache
# shares of the strings of a copying task: a string belongs to one split by its hash, so that short ones cannot stand in two
BUCKETS = {"train": (0, 8), "validation": (8, 9), "test": (9, 10)}


class RecallSplit:
    """Some sequences of a split: `input_ids` (N, T), `labels` (N, T) int16, and the lengths (N,) of the real steps."""

    distractors = None

    def __init__(self, input_ids, labels, lengths):
        self.input_ids, self.labels, self.lengths = input_ids, labels, lengths

    def __len__(self):
        return len(self.input_ids)

    @property
    def items(self) -> np.ndarray:
        """(N, T): what makes a sequence another one, for the proof that splits are disjoint."""
        return self.input_ids

    @staticmethod
    def join(task, parts) -> RecallSplit:
        """The sequences of all parts, one after another."""
        return RecallSplit(
            *(np.concatenate([getattr(p, n) for p in parts]) for n in ("input_ids", "labels", "lengths"))
        )

    def steps(self) -> np.ndarray:
        """(N,) int64: steps of each sequence."""
        return self.lengths

    def layout(self, indices=slice(None)):
        """The chosen sequences one after another; `item_ids` counts the questions of a sequence, -1 between them."""
        from .layout import Layout

        lengths = self.lengths[indices]
        labels = self.labels[indices]
        inside = np.arange(self.input_ids.shape[1]) < lengths[:, None]
        return Layout(lengths, self.input_ids[indices][inside], labels[inside], question_ids(labels)[inside])


def question_ids(labels: np.ndarray) -> np.ndarray:
    """(..., T) int32: the 0-based number of the question that each step asks, by its label; -1 where it asks nothing."""
    asked = labels != IGNORED
    return np.where(asked, np.cumsum(asked, -1) - 1, -1).astype(np.int32)


def draw_block(task: RecallTask, split: str, block: int, start: int, stop: int) -> RecallSplit:
    """Sequences start..stop of one block of a split; the block is always drawn whole, so that any cut agrees."""
    whole_block = _block(replace(task, name="x", num_train=1, num_validation=1, num_test=1), split, block)
    return RecallSplit(*(part[start:stop] for part in whole_block))


@functools.lru_cache(maxsize=1)
def _block(task, split, block):
    from .sampling import block_size

    law = [str(getattr(task, name)) for name in ("length", *OF_MQAR)]
    source = stream(task.kind, *law, task.sample_seed, split, block)
    return (_mqar if task.kind == "mqar" else _copying)(task, split, block_size(split), source)


def _mqar(task, split, count, source):
    length, pairs, half, dtype = task.length, task.num_pairs, task.vocab_size // 2, np.uint16
    ids, labels = np.zeros((count, length), dtype), np.full((count, length), IGNORED, np.int16)
    slots = (length - 2 * pairs) // 2
    log_weight = (task.alpha - 1) * np.log(np.arange(1, slots + 1))
    for first in range(0, count, ROWS):
        rows = min(ROWS, count - first)
        here = np.arange(rows)
        keys = _shuffled(np.arange(1, half, dtype=dtype), rows, pairs, source)
        values = _shuffled(np.arange(half, task.vocab_size, dtype=dtype), rows, pairs, source)
        own, asked = ids[first : first + rows], labels[first : first + rows]
        if task.filler != "zero":
            unused = (half - 1 - pairs) + (half - pairs) if task.filler == "clean" else task.vocab_size
            drawn = _below(source, rows * (length - 2 * pairs), unused).reshape(rows, -1)
            if task.filler == "clean":  # the unused keys, then the unused values
                left = np.concatenate([keys[:, pairs:], values[:, pairs:]], 1)
                drawn = np.take_along_axis(left, drawn, 1)
            own[:, 2 * pairs :] = drawn
        own[:, 0 : 2 * pairs : 2], own[:, 1 : 2 * pairs : 2] = keys[:, :pairs], values[:, :pairs]
        slot = _ordered_slots(source, rows, log_weight)[:, :pairs]
        at = 2 * pairs + 2 * slot
        own[here[:, None], at] = keys[:, :pairs]
        asked[here[:, None], at] = values[:, :pairs].astype(np.int16)
    return ids, labels, np.full(count, length, np.int64)


def _below(source, count, bound):
    """`count` integers uniform below `bound` (to 2^-32 of it)."""
    words = source.random_raw((count + 1) // 2).astype("<u8", copy=False).view("<u4")[:count]
    return ((words.astype(np.uint64) * np.uint64(bound)) >> np.uint64(32)).astype(np.int64)


def _shuffled(pool, rows, chosen, source):
    """(rows, len(pool)): in each row `pool` with its first `chosen` entries drawn without replacement, the others behind them."""
    out = np.repeat(pool[None], rows, 0)
    here = np.arange(rows)
    for i in range(chosen):
        j = i + _below(source, rows, len(pool) - i)
        out[here, i], out[here, j] = out[here, j], out[here, i].copy()
    return out


def _ordered_slots(source, rows, log_weight):
    """(rows, slots): the slots in the order in which drawing without replacement takes them.

    Sorting log weight plus Gumbel noise does that (all of it: a partition would not keep the order). Rounded to 2^-30, so that the last
    bit of a logarithm has no effect but by chance hits of a rounding boundary.
    """
    uniform = ((source.random_raw(rows * log_weight.size) >> np.uint64(12)) + 0.5) / 2**52  # never 0 or 1
    keys = log_weight - np.log(-np.log(uniform.reshape(rows, -1)))
    return np.argsort(-np.round(keys * 2**30).astype(np.int64), axis=1, kind="stable")


def _copying(task, split, count, source):
    longest = task.length
    lengths = np.zeros(count, np.int64)
    letters = np.zeros((count, longest), np.int64)
    low, high = BUCKETS[split]
    open_rows = np.arange(count)
    lengths[:] = 1 + _below(source, count, longest)
    while open_rows.size:  # a string that belongs to another split is drawn again, of the same length
        drawn = 1 + _below(source, open_rows.size * longest, LETTERS).reshape(-1, longest)
        drawn[np.arange(longest) >= lengths[open_rows, None]] = 0
        letters[open_rows] = drawn
        bucket = string_bucket(drawn)
        open_rows = open_rows[(bucket < low) | (bucket >= high)]
    steps = 2 * longest + 1
    ids, labels = np.zeros((count, steps), np.uint8), np.full((count, steps), IGNORED, np.int16)
    ids[:, :longest] = letters
    here = np.arange(count)
    ids[here, lengths] = DELIMITER
    at = lengths[:, None] + 1 + np.arange(longest)
    inside = np.arange(longest) < lengths[:, None]
    labels[np.broadcast_to(here[:, None], at.shape)[inside], at[inside]] = letters[inside]
    return ids, labels, lengths + 1 + longest


def string_bucket(letters: np.ndarray) -> np.ndarray:
    """(N,) 0..9: which tenth of all strings each row of letters (N, L), filled up with 0, belongs to."""
    multipliers = stream("copying-buckets").random_raw(letters.shape[1]) | np.uint64(1)
    total = np.zeros(len(letters), np.uint64)
    for column, multiplier in zip(letters.T, multipliers, strict=True):
        total += column.astype(np.uint64) * multiplier
    total ^= total >> np.uint64(32)
    total *= np.uint64(0x9E3779B97F4A7C15)
    return ((total >> np.uint64(32)) * np.uint64(10)) >> np.uint64(32)
