"""The best that any model can do: the exact filter.

P(state | everything seen so far) under the task's true law: strings conditioned on their length, restarts after `#`, the
unknown start state, distractors. A state has at most one edge per symbol, so a hypothesis (state, position in the string, items so far,
whether the last step was a distractor) either dies or has one successor at each step, except after `#`, where start states that share a
letter branch. Few hypotheses live at a time, and all sequences are filtered together.

Noise that one threshold removes leaves the symbols known, and blank steps say nothing about the state.

Axes: N sequences, T items, S states, V symbols, L longest string.
"""

from __future__ import annotations

import dataclasses
import functools

import numpy as np

from .checks import MAX_DRAWS
from .errors import InputError
from .layout import illegal_symbols, load_split
from .metrics import ItemScores

ROWS_AT_ONCE = 1_000  # sequences filtered together; fewer of long ones
ITEMS_AT_ONCE = 1 << 20


class Law:
    """The law of a task's items as tables.

    follow, chance   (S, V) the state that a symbol leads to (-1: none) and p(s'|s); row 0 is not used: `#` is followed by `starts`
    h                (L + 2, S) float64, P(a walk in s at position t ends within the bounds)
    onward           (L + 2, S) float64, the sum over successors of p h_{t+1}
    """

    def __init__(self, task):
        from .sampling import StringLaw

        grammar = task.grammar
        self.grammar, self.length, self.items = grammar, task.max_string_length, task.num_items
        self.states, self.symbols = grammar.num_states, grammar.num_symbols
        source = np.repeat(np.arange(1, self.states), np.diff(grammar.indptr)[1:])
        target = grammar.targets[grammar.indptr[1] :]
        p = np.concatenate([grammar.probabilities(s) for s in range(1, self.states)])
        self.edges = source, target, p
        self.follow = np.full((self.states, self.symbols), -1, dtype=np.int64)
        self.chance = np.zeros((self.states, self.symbols))
        self.follow[source, grammar.symbol_of[target]] = target
        self.chance[source, grammar.symbol_of[target]] = p
        self.h = StringLaw(grammar, self.length).survival.astype(float) / 2.0**40
        self.onward = np.zeros_like(self.h)
        for t in range(self.length):
            self.onward[t] = np.bincount(source, p * self.h[t + 1, target], minlength=self.states)
        self.starts = np.array(grammar.start_states)
        self.start_chance = self.h[1, self.starts] / self.h[1, self.starts].sum()

    @functools.cached_property
    def forward(self) -> np.ndarray:
        """(L + 1, S): P(a walk stands in s at position t) / P(it ends within the bounds); times h_t(s) the share of kept strings."""
        source, target, p = self.edges
        at = np.zeros((self.length + 1, self.states))
        at[1, self.starts] = 1 / len(self.starts)
        for t in range(1, self.length):
            at[t + 1] = np.bincount(target, at[t, source] * p, minlength=self.states)
        return at / (at[1] * self.h[1]).sum()

    @functools.cached_property
    def begins(self) -> np.ndarray:
        """(T,): P(a string begins at item i)."""
        lengths = self.forward[:, 0] * self.h[: self.length + 1, 0]
        begins = np.zeros(self.items)
        begins[0] = 1.0
        for i in range(1, self.items):
            back = np.arange(1, min(i, self.length) + 1)
            begins[i] = lengths[back] @ begins[i - back]
        return begins

    def pairs(self, k: int) -> np.ndarray:
        """(S, S): for the first and the last state of k items, the weight of all paths between them but for their p."""
        sums = np.concatenate(([0.0], np.cumsum(self.begins)))
        t = np.arange(1, self.length + 1)
        # the k items start at 0 .. T - k; a state at position t then stands in a string that began t - 1 items before
        pooled = sums[np.clip(self.items - k + 2 - t, 0, None)]
        last = np.zeros((self.length, self.states))
        fits = t + k - 1 <= self.length
        last[fits] = self.h[t[fits] + k - 1]
        return (self.forward[1:] * pooled[:, None]).T @ last


@functools.lru_cache(maxsize=4)
def law_of(task) -> Law:
    """The tables of a task's law.

    Raises:
        InputError: where noise can hide a symbol, so that what was seen is not known; for a custom grammar too large for tables.
    """
    if task.noise == "gaussian" or (task.noise == "uniform" and task.noise_scale > 1):
        raise InputError(
            f"the exact filter needs symbols that a threshold can tell from the noise, and {task.noise} noise of scale "
            f"{task.noise_scale:g} can hide them; use noise='none' or uniform noise of a scale up to 1"
        )
    # where symbols are examples of a class, the filter is told the class: `task.ceiling_note` says what that makes of a ceiling
    codes = task.symbol_source if task.symbols is not None and task.ceiling_note is None else None
    if codes is not None and task.noise != "none" and not codes.told_apart(task.noise_scale):
        raise InputError(
            f"the exact filter needs symbols that can be told from each other, and uniform noise of scale {task.noise_scale:g} can hide "
            f"the vectors of {task.name}; use noise='none', a smaller noise_scale or a larger width of symbols"
        )
    if task.num_states * task.num_symbols > MAX_DRAWS:
        raise InputError(
            f"{task.name} has {task.num_states:,} states and {task.num_symbols:,} symbols; the exact filter keeps tables of states x symbols, "
            f"of at most {MAX_DRAWS:,} entries"
        )
    return Law(task)


def rows_at_once(num_items: int) -> int:
    """How many sequences are filtered together: a bound on memory."""
    return max(1, min(ROWS_AT_ONCE, ITEMS_AT_ONCE // num_items))


@dataclasses.dataclass
class Filtered:
    """What the exact filter says about some sequences, step by step (blank steps say what the item before them said and are left out).

    rows, items    (M,) the sequence and the item of each entry
    step           (M,) 0 at the item's own step, 1 at its distractor
    state, weight  (M,) one hypothesis' state, and the probability of all hypotheses with that state
    laws           (N, T, V) or None: the law of the next item's symbol, mean over the item's steps (blank ones counted)
    """

    rows: np.ndarray
    items: np.ndarray
    step: np.ndarray
    state: np.ndarray
    weight: np.ndarray
    laws: np.ndarray | None


def filter_split(task, split: str, start: int = 0, stop: int | None = None, laws: bool = False) -> Filtered:
    """The exact filter over sequences start..stop of a split."""
    data, law = load_split(task, split), law_of(task)
    states = data.states[start:stop].astype(np.int64)
    shown = None if data.distractors is None else data.distractors[start:stop]
    return Filter(task, law, laws).run(states, shown, data.gaps[start:stop])


class Filter:
    """Hypotheses of all sequences in flat arrays: row, state, position, items seen, last step a distractor, weight (sums to 1 in a row)."""

    def __init__(self, task, law, laws):
        self.law, self.laws = law, laws
        self.rate, self.from_item = task.distractor_rate, task.distractor_start
        self.distracted = task.variant == "nongrammatical_gaps" and task.distractor_rate > 0
        legal = task.grammar.legal_symbols()
        self.illegal, self.forbidden = ~legal, illegal_symbols(task.grammar)[1].astype(float)
        symbol = task.grammar.symbol_of[law.starts]
        order = np.argsort(symbol, kind="stable")
        self.starts, self.start_chance = law.starts[order], law.start_chance[order]
        self.first_start = np.searchsorted(symbol[order], np.arange(law.symbols + 1))

    def run(self, states, shown, gaps):
        n, items = states.shape
        symbols = self.law.grammar.symbol_of[states]
        blank = self.law.symbols
        self.rows, self.state = np.arange(n), np.zeros(n, dtype=np.int64)
        self.position, self.seen = np.zeros(n, dtype=np.int64), np.zeros(n, dtype=np.int64)
        self.after_distractor, self.weight = np.zeros(n, dtype=bool), np.ones(n)
        self.count, found = n, []
        laws = np.zeros((n, items, self.law.symbols)) if self.laws else None
        everyone = np.ones(n, dtype=bool)
        for i in range(items):
            self._advance(everyone, symbols[:, i])
            found.append(self._entry(i, 0, everyone))
            if self.laws:
                share = 1 + (0 if shown is not None else gaps[:, i])
                laws[:, i] += self.next_law() * np.asarray(share)[..., None]
            if shown is not None:
                there = shown[:, i] != blank
                if there.any():
                    self._advance(there, shown[:, i])
                    found.append(self._entry(i, 1, there))
                    if self.laws:
                        laws[there, i] += self.next_law()[there]
        if self.laws:
            laws /= np.maximum(laws.sum(-1, keepdims=True), 1e-300)
        return Filtered(*(np.concatenate(part) for part in zip(*found, strict=True)), laws)

    def _entry(self, item, step, which):
        kept = which[self.rows]
        key, inverse = np.unique(self.rows[kept] * self.law.states + self.state[kept], return_inverse=True)
        weight = np.bincount(inverse, self.weight[kept], minlength=key.size)
        rows, state = np.divmod(key, self.law.states)
        return rows, np.full(key.size, item), np.full(key.size, step), state, weight

    def _chance_of_distractor(self):
        """P(the next step is a distractor) for each hypothesis."""
        may = ~self.after_distractor & (self.seen > self.from_item) & (self.forbidden[self.state] > 0)
        return np.where(may, self.rate, 0.0) if self.distracted else np.zeros(self.rows.size)

    def _advance(self, which, symbol):
        """One step further in the sequences `which`, where `symbol` (N,) was seen."""
        moves = which[self.rows]
        still = [part[~moves] for part in self._parts()]
        rows, state, position, seen, _, weight = (part[moves] for part in self._parts())
        chance = self._chance_of_distractor()[moves]
        x = symbol[rows].astype(np.int64)
        new = []
        if self.distracted:  # a symbol the state has no edge to can only be a distractor
            hit = self.illegal[state, x] & (chance > 0)
            new.append((rows[hit], state[hit], position[hit], seen[hit], np.ones(hit.sum(), bool),
                        weight[hit] * chance[hit] / self.forbidden[state[hit]]))  # fmt: skip
        goes_on = weight * (1 - chance) * (seen < self.law.items)
        inside = (state != 0) & (self.law.follow[state, x] >= 0)
        s, t = state[inside], position[inside]
        to = self.law.follow[s, x[inside]]
        step = self.law.chance[s, x[inside]] * self.law.h[t + 1, to]
        step = np.divide(step, self.law.onward[t, s], out=np.zeros_like(step), where=step > 0)
        new.append((rows[inside], to, t + 1, seen[inside] + 1, np.zeros(to.size, bool), goes_on[inside] * step))
        opened = np.flatnonzero(state == 0)  # one hypothesis for each start state of that letter
        many = self.first_start[x[opened] + 1] - self.first_start[x[opened]]
        back = np.repeat(opened, many)
        which_start = np.arange(back.size) - np.repeat(np.cumsum(many) - many, many) + self.first_start[x[back]]
        new.append((rows[back], self.starts[which_start], np.ones(back.size, np.int64), seen[back] + 1,
                    np.zeros(back.size, bool), goes_on[back] * self.start_chance[which_start]))  # fmt: skip
        joined = [np.concatenate(parts) for parts in zip(*new, strict=True)]
        joined = [part[joined[-1] > 0] for part in joined]
        total = np.bincount(joined[0], joined[-1], minlength=self.count)
        if (total[which] <= 0).any():
            raise InputError("a sequence is impossible under the task's law: was it made by another grammar?")
        joined[-1] = joined[-1] / total[joined[0]]
        self._set(*(np.concatenate(parts) for parts in zip(still, joined, strict=True)))

    def _parts(self):
        return self.rows, self.state, self.position, self.seen, self.after_distractor, self.weight

    def _set(self, rows, state, position, seen, after, weight):
        """Take the hypotheses, equal ones added together."""
        key = ((rows * self.law.states + state) * (self.law.length + 2) + position) * (self.law.items + 2) + seen
        key, first, inverse = np.unique(key * 2 + after, return_index=True, return_inverse=True)
        self.rows, self.state, self.position, self.seen, self.after_distractor = (
            part[first] for part in (rows, state, position, seen, after)
        )
        self.weight = np.bincount(inverse, weight, minlength=key.size)

    def next_law(self) -> np.ndarray:
        """(N, V): the law of the next item's symbol given what was seen, and that there is a next item."""
        weight = self.weight * (self.seen < self.law.items)
        law = np.zeros((self.count, self.law.symbols))
        at = np.flatnonzero(self.state == 0)
        for state, chance in zip(self.starts, self.start_chance, strict=True):
            np.add.at(law, (self.rows[at], self.law.grammar.symbol_of[state]), weight[at] * chance)
        at = np.flatnonzero(self.state != 0)
        s, t = self.state[at], self.position[at]
        to = self.law.follow[s]
        each = np.where(to >= 0, self.law.chance[s] * self.law.h[t[:, None] + 1, to], 0.0)
        each *= (weight[at] / self.law.onward[t, s])[:, None]
        np.add.at(law, self.rows[at], each)
        total = law.sum(1, keepdims=True)  # below 1 where a hypothesis says that this was the last item
        return np.divide(law, total, out=law, where=total > 0)


@dataclasses.dataclass(frozen=True)
class Ceiling:
    """The exact filter's score on a split.

    scores             counts under the protocol's scoring: sums over an item's steps, its first, its last step
    cross_entropy      mean over all steps of -log P(true state | seen so far), nats
    expected_accuracy  mean of the filter's largest posterior over the steps that show something: the accuracy to be expected on any sample

    Without distractors all steps of an item say the same, and the accuracies are one number, the best there is. With distractors in a grammar
    that leaves doubts they differ. The observer does not know which steps are distractors, the scoring does: an item that ends without one has
    not said so yet, and a sum over an item's steps counts a doubt that was settled wrongly against one that was not. So `accuracy` may lie
    above or below `expected_accuracy`, which is over steps for that reason.
    """

    scores: ItemScores
    cross_entropy: float
    expected_accuracy: float

    @property
    def accuracy(self) -> float:
        """Share of items right."""
        return self.scores.accuracy

    def as_dict(self) -> dict:
        """For JSON."""
        counts = self.scores
        return {
            "accuracy": self.accuracy,
            "correct": counts.correct,
            "total": counts.total,
            "accuracy_first": counts.accuracy_first,
            "accuracy_last": counts.accuracy_last,
            "cross_entropy": self.cross_entropy,
            "expected_accuracy": self.expected_accuracy,
        }


def ceiling(task, split: str = "test", max_sequences: int | None = None) -> Ceiling:
    """The best possible score on a split (its first `max_sequences`)."""
    data = load_split(task, task.check_split(split))
    count = len(data) if max_sequences is None else min(max_sequences, len(data))
    total, sure, shown, rows = ItemScores(), 0.0, 0, rows_at_once(task.num_items)
    for start in range(0, count, rows):
        stop = min(start + rows, count)
        found = filter_split(task, split, start, stop)
        total += _score(task, data, found, start, stop)
        step = (
            found.rows * task.num_items + found.items
        ) * 2 + found.step  # a number for each step that shows something
        first = np.flatnonzero(np.diff(np.sort(step), prepend=-1))
        best = np.maximum.reduceat(found.weight[np.argsort(step, kind="stable")], first)
        sure, shown = sure + float(best.sum()), shown + best.size
    return Ceiling(total, total.loss, sure / shown)


def _score(task, data, found: Filtered, start, stop):
    truth, gaps = data.states[start:stop].astype(np.int64), data.gaps[start:stop].astype(np.int64)
    n, items = truth.shape
    place = found.rows * items + found.items
    states = task.num_states
    last_step = np.zeros(n * items, dtype=np.int64)
    np.maximum.at(last_step, place, found.step)
    # how often each entry's step stands there: blank steps repeat what the item's own step said
    repeats = np.ones(place.size) if data.distractors is not None else 1.0 + gaps.ravel()[place]
    true_state = truth.ravel()[place]
    is_true = found.state == true_state
    if is_true.sum() != n * items + (0 if data.distractors is None else gaps.sum()):
        raise InputError("a sequence's labels are impossible under the task's law: was it made by another grammar?")
    losses = -np.log(found.weight[is_true]) * repeats[is_true]
    own, last = found.step == 0, found.step == last_step[place]
    correct = largest(place, found.state, found.weight, states)[0] == truth.ravel()
    first = largest(place[own], found.state[own], found.weight[own], states)[0] == truth.ravel()
    at_last = largest(place[last], found.state[last], found.weight[last], states)[0]
    return ItemScores(
        int(correct.sum()), int(first.sum()), int((at_last == truth.ravel()).sum()), n * items,
        float(losses.sum()), int(n * items + gaps.sum()), n, int(correct.reshape(n, items).all(1).sum()),
    )  # fmt: skip


def largest(place, state, weight, states):
    """For each place 0..max the state with the largest summed weight (the lowest id of equals), and that weight."""
    key, inverse = np.unique(place * states + state, return_inverse=True)
    weight = np.bincount(inverse, weight)
    place, state = np.divmod(key, states)
    # equal up to rounding counts as equal, as a sum of posteriors in another order would give
    order = np.lexsort((state, -np.round(weight, 12), place))
    first = order[np.flatnonzero(np.diff(place[order], prepend=-1))]
    return state[first], weight[first]
