"""What an observer of the last k items can reach: how many items a task asks a model to remember.

The observer knows which steps are items, but not where in the sequence they stand. If `#` is among the k, or the start of the sequence,
what it knows is the exact filter's. Else the first of the k may be any state of its letter at any position, with the occupancy o(s, t)
of the law pooled over the sequence, and the weights of a path telescope:

    P(s_1 = s, letters, s_k = s') = (product of p along the path) x sum_t o(s, t) / h_t(s) x h_{t+k-1}(s')

so that one product (S x L)(L x S) serves all windows of a length.

Axes: N sequences, T items, S states, L longest string.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from .errors import InputError
from .layout import load_split
from .oracle import Filter, largest, law_of, rows_at_once

LONGEST_CONTEXT = 64  # items; a ladder that is still below 95 % there has no k95
TARGET = 0.95
SETTLED = 1e-3  # so close to the limit the ladder ends
MAX_STATES = 8_192  # `pairs` holds S x S float64: half a gigabyte there
MAX_HYPOTHESES = 1 << 24  # windows x states of a letter: half a gigabyte; fewer sequences where they would be more
OPENED_AT_ONCE = 1 << 20  # of them


@dataclasses.dataclass(frozen=True)
class Ladder:
    """What an observer of the last k items can reach, for k = 1, 2, ..., len(accuracy).

    accuracy   expected: mean over the items of some sequences of the largest posterior
    counted    share of these items right
    limit      expected accuracy of an observer of everything since the start
    sequences  how many were taken
    """

    accuracy: tuple[float, ...]
    counted: tuple[float, ...]
    limit: float
    sequences: int = 0

    @property
    def k95(self) -> int | None:
        """The least k that reaches 95 %; None if none does up to len(accuracy)."""
        return next((k for k, a in enumerate(self.accuracy, 1) if a >= TARGET), None)

    def effective_context(self, accuracy: float) -> float:
        """How many items an observer of the last k would need for that accuracy, between two k by linear interpolation.

        0 below what one item gives; infinity above the last k of the ladder, which ends within 0.001 of its limit.

        Raises:
            InputError: for what is no share.
        """
        if not 0 <= accuracy <= 1:
            raise InputError(f"accuracy must be a number from 0 to 1, got {accuracy!r}")
        steps = np.maximum.accumulate(self.accuracy)
        if accuracy < steps[0]:
            return 0.0
        if accuracy > steps[-1]:
            return float("inf")
        k = int(np.searchsorted(steps, accuracy))
        if k == 0:
            return 1.0
        return k + float((accuracy - steps[k - 1]) / (steps[k] - steps[k - 1]))

    def describe_context(self, accuracy: float) -> str:
        """`effective_context` in a table: `2.4`, `below 1`, or `above 8` where the ladder ends at 8."""
        items = self.effective_context(accuracy)
        if items in (0.0, float("inf")):
            return "below 1" if items == 0 else f"above {len(self.accuracy)}"
        return f"{items:.1f}"


def context_ladder(task, split: str = "test", max_sequences: int = 1_000, longest: int = LONGEST_CONTEXT) -> Ladder:
    """The ladder of a task, over the windows of a split. It depends on strings and number of items alone, not on gaps or distractors.

    The posterior of a window is exact; the mean is over the windows of the split's first `max_sequences` sequences (fewer where letters have
    so many states that memory would not do, see `Ladder.sequences`). It goes on until it is within 0.001 of its limit and at k95, if the
    limit is above that; at most to `longest`.

    Raises:
        InputError: for a grammar of too many states, and where noise can hide a symbol.
    """
    if task.num_states > MAX_STATES:
        raise InputError(
            f"{task.name} has {task.num_states:,} states; the context ladder holds a number for each pair of them, and takes at most {MAX_STATES:,}"
        )
    data, law = load_split(task, task.check_split(split)), law_of(task)
    fit = MAX_HYPOTHESES // (task.num_items * max(task.grammar.depths))
    if not fit:
        raise InputError(
            f"{task.name}: one sequence of {task.num_items:,} items with up to {max(task.grammar.depths):,} states a letter is more than the "
            f"context ladder can hold ({MAX_HYPOTHESES:,} pairs of item and state); lower num_items or depth"
        )
    states = data.states[: min(max_sequences, fit)].astype(np.int64)
    windows = _Windows(law, states, task.grammar.symbol_of[states], *_posterior_of_items(task, law, states))
    limit = windows.sure.mean()
    accuracy, counted = [], []
    for _ in range(min(longest, task.num_items)):
        sure, right = windows.next()
        accuracy.append(sure)
        counted.append(right)
        if limit - sure < SETTLED and (sure >= TARGET or limit < TARGET):
            break
    return Ladder(tuple(accuracy), tuple(counted), float(limit), len(states))


def _posterior_of_items(task, law, states):
    """(N, T): the largest posterior of an observer of all items, which are known as such, and whether its state is the true one."""
    plain = Filter(task, law, False)
    plain.distracted = False
    sure, right = np.empty(states.shape), np.empty(states.shape, bool)
    rows = rows_at_once(task.num_items)
    for start in range(0, len(states), rows):
        part = states[start : start + rows]
        found = plain.run(part, None, np.zeros_like(part))
        best, weight = largest(found.rows * states.shape[1] + found.items, found.state, found.weight, law.states)
        sure[start : start + len(part)] = weight.reshape(part.shape)
        right[start : start + len(part)] = best.reshape(part.shape) == part
    return sure, right


class _Windows:
    """All windows of k items of all sequences, one item longer with each call of `next`.

    Flat, one entry for each window (by the place of its first item) and state of its first letter from which its letters can be walked:
    place, begin, state (the last one), path (the product of p). Most die within two items, so they are opened some at a time at k = 2.
    """

    def __init__(self, law, states, symbols, sure, right):
        self.law, self.truth, self.symbols, self.items = law, states.ravel(), symbols.ravel(), states.shape[1]
        self.sure, self.right, self.k = sure.ravel(), right.ravel(), 0
        self.many = np.array([1, *law.grammar.depths])  # states of each symbol, and the first of them
        self.first = np.cumsum(self.many) - self.many

    def next(self) -> tuple[float, float]:
        """Expected and counted accuracy with one item more."""
        self.k += 1
        if self.k == 1:
            return self._one()
        if self.k == 2:
            places = np.flatnonzero(
                self.symbols != 0
            )  # a window that begins with `#` is known from there on, as the filter knows it
            at_once = max(1, OPENED_AT_ONCE // int(self.many.max()))
            parts = [self._open(places[i : i + at_once]) for i in range(0, max(1, places.size), at_once)]
            self.place, self.begin, self.state, self.path = (np.concatenate(part) for part in zip(*parts))
        else:
            self.place, self.begin, self.state, self.path = self._go_on(self.place, self.begin, self.state, self.path)
        weight = self.path * self.law.pairs(self.k)[self.begin, self.state]
        sure, right = self.sure.copy(), self.right.copy()
        if weight.size:
            end = self.place + self.k - 1
            opens = np.flatnonzero(np.diff(end, prepend=-1))  # places ascend
            row = np.repeat(np.arange(opens.size), np.diff(opens, append=end.size))
            used = end[opens]
            symbol = self.symbols[used]
            depth = int(self.many.max())
            column = self.state - self.first[symbol][row]
            table = np.bincount(row * depth + column, weight, minlength=used.size * depth).reshape(-1, depth)
            sure[used] = table.max(1) / table.sum(1)
            right[used] = table.argmax(1) + self.first[symbol] == self.truth[used]
        return float(sure.mean()), float(right.mean())

    def _one(self):
        """k = 1: what a symbol alone says."""
        weight = self.law.pairs(1).diagonal()
        total = np.add.reduceat(weight, self.first)
        share = np.divide(np.maximum.reduceat(weight, self.first), total, out=np.ones_like(total), where=total > 0)
        best = [first + int(weight[first : first + many].argmax()) for first, many in zip(self.first, self.many)]
        share[0] = 1.0  # `#` has one state
        return float(share[self.symbols].mean()), float((np.array(best)[self.symbols] == self.truth).mean())

    def _open(self, places):
        """All states of the first letters of windows at `places`, one item on."""
        many = self.many[self.symbols[places]]
        place = np.repeat(places, many)
        begin = np.arange(place.size) - np.repeat(np.cumsum(many) - many, many) + self.first[self.symbols[place]]
        place, begin = place.astype(np.int32), begin.astype(np.int32)  # half the memory, which is what this costs
        return self._go_on(place, begin, begin, np.ones(begin.size))

    def _go_on(self, place, begin, state, path):
        """The entries that have an edge to the window's k-th item, if the sequence is that long and the item is not `#`."""
        inside = place % self.items + self.k <= self.items
        symbol = self.symbols[np.minimum(place + self.k - 1, self.symbols.size - 1)]
        to = self.law.follow[state, symbol].astype(np.int32)
        alive = inside & (to > 0)
        return place[alive], begin[alive], to[alive], path[alive] * self.law.chance[state[alive], symbol[alive]]
