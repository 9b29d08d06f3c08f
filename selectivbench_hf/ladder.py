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
from .oracle import ROWS_AT_ONCE, Filter, largest, law_of

LONGEST_CONTEXT = 64  # items; a ladder that is still below 95 % there has no k95
TARGET = 0.95


@dataclasses.dataclass(frozen=True)
class Ladder:
    """What an observer of the last k items can reach, for k = 1, 2, ..., len(accuracy).

    accuracy   expected: mean over the items of a split of the largest posterior
    counted    share of these items right
    limit      expected accuracy of an observer of everything since the start
    """

    accuracy: tuple[float, ...]
    counted: tuple[float, ...]
    limit: float

    @property
    def k95(self) -> int | None:
        """The least k that reaches 95 %; None if none does up to len(accuracy)."""
        return next((k for k, a in enumerate(self.accuracy, 1) if a >= TARGET), None)

    def effective_context(self, accuracy: float) -> float:
        """How many items an observer of the last k would need for that accuracy, between two k by linear interpolation.

        0 below what one item gives; infinity above the last k of the ladder.
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


def context_ladder(task, split: str = "test", max_sequences: int = 1_000, longest: int = LONGEST_CONTEXT) -> Ladder:
    """The ladder of a task, over the windows of a split. It depends on strings and number of items alone, not on gaps or distractors.

    Goes on to k95 and until a further item adds less than 0.001, at most to `longest`.
    """
    data, law = load_split(task, task.check_split(split)), law_of(task)
    states = data.states[:max_sequences].astype(np.int64)
    symbols = task.grammar.symbol_of[states]
    full = _posterior_of_items(task, law, states)
    windows = _Windows(law, states, symbols, *full)
    accuracy, counted = [], []
    longest = min(longest, task.num_items)
    for _ in range(longest):
        sure, right = windows.next()
        accuracy.append(sure)
        counted.append(right)
        if accuracy[-1] >= TARGET and full[0].mean() - accuracy[-1] < 1e-3:
            break
    return Ladder(tuple(accuracy), tuple(counted), float(full[0].mean()))


def _posterior_of_items(task, law, states):
    """(N, T): the largest posterior of an observer of all items, which are known as such, and whether its state is the true one."""
    plain = Filter(task, law, False)
    plain.distracted = False
    sure, right = np.empty(states.shape), np.empty(states.shape, bool)
    for start in range(0, len(states), ROWS_AT_ONCE):
        part = states[start : start + ROWS_AT_ONCE]
        found = plain.run(part, None, np.zeros_like(part))
        best, weight = largest(found.rows * states.shape[1] + found.items, found.state, found.weight, law.states)
        sure[start : start + len(part)] = weight.reshape(part.shape)
        right[start : start + len(part)] = best.reshape(part.shape) == part
    return sure, right


class _Windows:
    """All windows of k items of all sequences, one item longer with each call of `next`."""

    def __init__(self, law, states, symbols, sure, right):
        self.law, self.states, self.symbols, self.sure, self.right, self.k = law, states, symbols, sure, right, 0
        place = np.flatnonzero(symbols.ravel() != 0)  # windows that begin with a letter
        depth = np.array([0, *law.grammar.depths])
        first = np.concatenate([[0], 1 + np.cumsum(depth)[:-1]])  # of each symbol's states
        self.first, self.depth = first, int(depth.max())
        many = depth[symbols.ravel()[place]]
        self.place = np.repeat(place, many)
        self.begin = np.arange(self.place.size) - np.repeat(np.cumsum(many) - many, many)
        self.begin += first[symbols.ravel()[self.place]]
        self.state, self.path = self.begin.copy(), np.ones(self.begin.size)

    def next(self) -> tuple[float, float]:
        """Expected and counted accuracy with one item more."""
        n, items = self.states.shape
        self.k += 1
        if self.k > 1:
            inside = self.place % items + self.k <= items
            to_symbol = self.symbols.ravel()[np.minimum(self.place + self.k - 1, n * items - 1)]
            to = self.law.follow[self.state, to_symbol]
            # a window with `#` in it is known from there on, as the filter knows it
            alive = inside & (to > 0)
            chance = self.law.chance[self.state[alive], to_symbol[alive]]
            self.place, self.begin, self.path = self.place[alive], self.begin[alive], self.path[alive] * chance
            self.state = to[alive]
        weight = self.path * self.law.pairs(self.k)[self.begin, self.state]
        end = self.place + self.k - 1
        sure, right = self.sure.copy().ravel(), self.right.copy().ravel()
        used = np.unique(end)
        best, share = self._posterior(used, end, weight)
        sure[used], right[used] = share, best == self.states.ravel()[used]
        return float(sure.mean()), float(right.mean())

    def _posterior(self, used, end, weight):
        row = np.searchsorted(used, end)
        column = self.state - self.first[self.symbols.ravel()[end]]
        table = np.bincount(row * self.depth + column, weight, minlength=used.size * self.depth).reshape(
            -1, self.depth
        )
        best = table.argmax(1)
        return best + self.first[self.symbols.ravel()[used]], table.max(1) / table.sum(1)
