"""From items to time steps: blanks, distractors, and the flat arrays of a split (protocol section 3).

Every item is one step; steps that follow it (blank ones, or a distractor) carry its state as label and its 0-based index as item id. A split is
kept compact, as states and gap lengths; the steps are laid out when they are asked for, any rows in any order, without a loop over steps.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from .errors import InputError
from .sampling import block_size, sample_block
from .streams import raw32, stream, threshold32


def smallest_unsigned(largest: int) -> np.dtype:
    """The smallest unsigned integer type that holds `largest`."""
    return np.min_scalar_type(int(largest))


@dataclass
class Layout:
    """Rows of different length, one after another in flat arrays of narrow unsigned integers.

    Attributes:
        lengths: (n,) int64 steps of each row.
        input_ids: symbol of each step, the blank id where nothing is shown.
        labels: state id of each step.
        item_ids: 0-based index of the item that each step belongs to.
    """

    lengths: np.ndarray
    input_ids: np.ndarray
    labels: np.ndarray
    item_ids: np.ndarray


class Split:
    """Some sequences of a split, compact: N sequences of T items.

    Attributes:
        states: (N, T) state ids.
        gaps: (N, T) steps after each item's own (blanks, or one distractor).
        distractors: (N, T) symbol of the distractor after each item, the blank id where there is none; None when the variant has none.
    """

    def __init__(self, task, states, gaps, distractors=None):
        self.states, self.gaps, self.distractors = states, gaps, distractors
        self.num_symbols, self.blank_id = task.num_symbols, task.blank_id
        self._symbol_of = task.grammar.symbol_of.astype(smallest_unsigned(task.blank_id))
        self._label_type = smallest_unsigned(task.num_states - 1)
        self._item_type = smallest_unsigned(max(self.num_items - 1, 0))

    def __len__(self):
        return self.states.shape[0]

    @property
    def num_items(self) -> int:
        return self.states.shape[1]

    @property
    def items(self) -> np.ndarray:
        """(N, T) symbol ids."""
        return self._symbol_of[self.states]

    @staticmethod
    def join(task, parts) -> Split:
        """The sequences of all parts, one after another."""
        join = [
            None if getattr(parts[0], name) is None else np.concatenate([getattr(p, name) for p in parts])
            for name in ("states", "gaps", "distractors")
        ]
        return Split(task, *join)

    def steps(self) -> np.ndarray:
        """(N,) int64: steps of each sequence."""
        return self.num_items + self.gaps.sum(1, dtype=np.int64)

    def layout(self, indices=slice(None)) -> Layout:
        """The chosen sequences laid out in time (`indices`: anything that indexes an axis of N)."""
        states = self.states[indices]
        n, items = states.shape
        per_item = self.gaps[indices].astype(np.int64).ravel() + 1
        first = np.cumsum(per_item) - per_item
        total = int(per_item.sum())
        input_ids = np.full(total, self.blank_id, dtype=self._symbol_of.dtype)
        if self.distractors is not None:
            shown = self.distractors[indices].ravel()
            at = np.flatnonzero(shown != self.blank_id)
            input_ids[first[at] + 1] = shown[at]
        input_ids[first] = self._symbol_of[states].ravel()
        labels = np.repeat(states.astype(self._label_type, copy=False).ravel(), per_item)
        item_ids = np.repeat(np.tile(np.arange(items, dtype=self._item_type), n), per_item)
        return Layout(per_item.reshape(n, items).sum(1), input_ids, labels, item_ids)


def draw_block(task, split: str, block: int, start: int = 0, stop: int | None = None):
    """A Split (a RecallSplit of a recall task): sequences `start`..`stop` (by default all) of one block of a split; the block's streams are
    always drawn whole, so any cut agrees."""
    stop = block_size(split) if stop is None else stop
    if task.family == "recall":
        from . import recall_sampling

        return recall_sampling.draw_block(task, split, block, start, stop)
    states = _states(task.grammar, task.max_string_length, task.num_items, task.sample_seed, split, block)[start:stop]
    gaps, distractors = _steps_between(task, split, block, states, start, stop)
    return Split(task, states, gaps, distractors)


@lru_cache(maxsize=1)
def _states(grammar, max_length, num_items, sample_seed, split, block):
    """A whole block's states, (block size, T), contiguous; the last one is remembered, since shards ask for it piece by piece."""
    return np.ascontiguousarray(sample_block(grammar, max_length, num_items, sample_seed, split, block).T)


def _steps_between(task, split, block, states, start, stop):
    size, items = block_size(split), task.num_items
    law = task.gap_law(split)
    if task.variant == "nongrammatical_gaps":
        return _distractors(task, split, block, states, start, stop)
    gaps = np.empty((stop - start, items), dtype=smallest_unsigned(max(law)))
    if len(law) == 1:
        gaps[:] = next(iter(law))
        return gaps, None
    # integer weights: a word scaled to 0..total-1 looks its gap up
    table = np.repeat(np.array(sorted(law), dtype=gaps.dtype), [law[g] for g in sorted(law)])
    source = stream("gaps", task.grammar.hash, task.sample_seed, split, block)
    for t in range(items):  # item by item, so that fewer items are a prefix of more
        words = raw32(source, size)[start:stop].astype(np.uint64)
        gaps[:, t] = table[(words * np.uint64(table.size)) >> np.uint64(32)]
    return gaps, None


def _distractors(task, split, block, states, start, stop):
    """From item `distractor_start` on, with probability `distractor_rate`, a symbol uniform over those the state has no edge to."""
    illegal, count = illegal_symbols(task.grammar)
    shown = np.full(states.shape, task.blank_id, dtype=smallest_unsigned(task.blank_id))
    limit = np.uint64(threshold32(task.distractor_rate))
    source = stream("distractors", task.grammar.hash, task.sample_seed, split, block)
    for t in range(task.distractor_start, task.num_items):
        words = source.random_raw(block_size(split))[start:stop]
        at = np.flatnonzero((words & np.uint64(0xFFFFFFFF)) < limit)
        state = states[at, t]
        options = count[state]
        at, state, options = at[options > 0], state[options > 0], options[options > 0]
        choice = ((words[at] >> np.uint64(32)) * options) >> np.uint64(32)
        shown[at, t] = illegal[state, choice.astype(np.int64)]
    return (shown != task.blank_id).astype(np.uint8), shown


@lru_cache(maxsize=2)
def illegal_symbols(grammar):
    """(S, V) symbols that each state has no edge to, ascending, filled up with anything; and (S,) uint64 how many there are."""
    legal = grammar.legal_symbols()
    order = np.argsort(legal, axis=1, kind="stable").astype(smallest_unsigned(grammar.num_symbols))
    return order, (~legal).sum(1).astype(np.uint64)


def load_split(task, split: str):
    """A whole split in memory, a Split or RecallSplit (te7 train: 160 MB), made in seconds; the last few are remembered.

    Raises:
        InputError: for a split that the task does not have.
    """
    return _load_split(task, task.check_split(split))


@lru_cache(maxsize=8)
def _load_split(task, split):
    size, block = task.splits[split], block_size(split)
    parts = [draw_block(task, split, b, 0, min(block, size - b * block)) for b in range(-(-size // block))]
    _states.cache_clear()
    if not parts:
        parts = [draw_block(task, split, 0, 0, 0)]
    if len(parts) == 1:
        return parts[0]
    return parts[0].join(task, parts)


# -- disjoint splits (protocol section 4.1) ------------------------------------------------------------------------------


def sequence_hashes(items: np.ndarray) -> np.ndarray:
    """(N,) uint64 hash of each sequence of symbols (N, T): equal for equal sequences, different ones meet with chance 2^-58."""
    multipliers = stream("sequence-hash").random_raw(items.shape[1]) | np.uint64(1)
    total = np.zeros(items.shape[0], dtype=np.uint64)
    for t in range(items.shape[1]):
        total += (items[:, t].astype(np.uint64) + np.uint64(1)) * multipliers[t]
    total ^= total >> np.uint64(32)
    total *= np.uint64(0x9E3779B97F4A7C15)
    return total ^ (total >> np.uint64(29))


def held_out_hashes(task) -> np.ndarray:
    """Sorted hashes of all validation and test sequences.

    Raises:
        InputError: when validation and test meet; says in how many sequences and which sizes would fit.
    """
    validation = sequence_hashes(load_split(task, "validation").items)
    test = sequence_hashes(load_split(task, "test").items)
    meet = np.isin(test, validation)
    if meet.any():
        raise _meeting(task, int(meet.sum()), "test", "validation", int(np.argmax(meet)), "num_test")
    return np.sort(np.concatenate([validation, test]))


def check_disjoint(task, items: np.ndarray, held_out: np.ndarray, first_id: int) -> None:
    """Refuse training sequences (N, T), the first of which has example id `first_id`, that stand in validation or test too."""
    hashes = sequence_hashes(items)
    if not held_out.size or not hashes.size:
        return
    place = np.minimum(np.searchsorted(held_out, hashes), held_out.size - 1)
    meet = held_out[place] == hashes
    if meet.any():
        raise _meeting(
            task, int(meet.sum()), "train", "validation or test", first_id + int(np.argmax(meet)), "num_train"
        )


def _meeting(task, count, split, other, first, field):
    fits = f"{field} up to {first} would fit; or raise" if first else f"no {field} would fit; raise"
    if task.family == "recall":
        what, sequences, longer, larger = "task", f"{task.length} steps", "length", "vocabulary"
    else:
        what, sequences, longer, larger = "grammar", f"{task.num_items} items", "num_items", "grammar"
    return InputError(
        f"{task.name}: {count} of the sequences in {split} stand in {other} too, so the splits are not disjoint: the {what} has too few sequences "
        f"of {sequences} for these sizes. By what was seen so far {fits} {longer}, or take a larger {larger}"
    )
