"""Exact, vectorised sampling of strings conditioned on their length (protocol section 2).

A string starts in a uniformly drawn start state, walks until `#`, and is kept only if its length (with `#`) is within bounds. No string is ever
drawn and thrown away: with H_t(s) = P(a walk that stands in s at position t ends within the bounds), the kept strings follow

    P(s_1 = s)       proportional to H_1(s) over the start states
    P(s' | s, t)     proportional to p(s'|s) H_{t+1}(s')

which is the h_k law of the protocol, H_t = h_{L-t}, extended to a least length. Each step proposes a successor by p and accepts it with
probability H(s') / max H. Of what stays open it is first decided whether `#` comes; the letters are then proposed again, and what is still open
after a few rounds is drawn by inversion, so no law makes it slow.
"""

from __future__ import annotations

import functools
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from .errors import InputError
from .grammar import WEIGHT_BITS, Grammar
from .streams import stream

FIXED_POINT = 40  # H in units of 2^-40
ACCEPT_BITS = 23  # an acceptance probability is exact to 2^-23; 40 + 23 bits fill a signed word
ROUNDS = 6  # of proposals before inversion
EDGES_AT_ONCE = 1 << 21  # of inversion: bounds its memory
BLOCK = {"train": 50_000}  # sequences drawn together; always whole, then cut
BLOCK_HELD_OUT = 1_000
LOW32 = np.uint64(0xFFFFFFFF)


def block_size(split: str) -> int:
    """Sequences in one block of a split: 50,000 in train, 1,000 elsewhere."""
    return BLOCK.get(split, BLOCK_HELD_OUT)


class StringLaw:
    """The law of a grammar's strings of `grammar.min_length` to `max_length` items, `#` counted.

    Attributes:
        survival: (L + 2, S) uint64, H_t(s) in units of 2^-40 for t = 1..L (row 0 unused, row L + 1 zero).

    Raises:
        InputError: when no string fits the bounds.
    """

    def __init__(self, grammar: Grammar, max_length: int):
        if grammar.min_length > max_length:
            raise InputError(f"min_string_length={grammar.min_length} is above max_string_length={max_length}")
        self.grammar, self.max_length = grammar, int(max_length)
        table = np.zeros((self.max_length + 2, grammar.num_states), dtype=np.uint64)
        if table.nbytes > 1 << 30:
            raise InputError(
                f"max_string_length={max_length} with {grammar.num_states} states needs tables of {table.nbytes >> 30} GB each; "
                "lower one of them"
            )
        rows = grammar.indptr[1:-1] - grammar.indptr[1]
        targets = grammar.targets[grammar.indptr[1] :]
        degree = np.diff(grammar.indptr)[1:].astype(np.uint64)
        weights = None if grammar.weights is None else grammar.weights[grammar.indptr[1] :].astype(np.uint64)
        for t in range(self.max_length, 0, -1):
            after = table[t + 1]
            if weights is None:
                table[t, 1:] = np.add.reduceat(after[targets], rows) // degree
            else:
                table[t, 1:] = np.add.reduceat(after[targets] * weights, rows) >> np.uint64(WEIGHT_BITS)
            if t >= grammar.min_length:
                table[t, 0] = 1 << FIXED_POINT
        self.survival = table
        if not table[1, list(grammar.start_states)].any():
            raise InputError(
                f"no string of {grammar.min_length} to {max_length} items (with `#`) has a probability above 2^-{FIXED_POINT} in this "
                "grammar; raise max_string_length or lower min_string_length"
            )

    def start_probabilities(self) -> np.ndarray:
        """P(s_1) of each of `grammar.start_states`, float64."""
        weight = self.survival[1, list(self.grammar.start_states)].astype(float)
        return weight / weight.sum()

    def transition_probabilities(self, state: int, position: int) -> np.ndarray:
        """P(s' | state, position) of each of `grammar.successors(state)` for a state at a 1-based position of its string, float64."""
        weight = self.survival[position + 1, self.grammar.successors(state)] * self.grammar.probabilities(state)
        total = weight.sum()
        if not total:
            raise InputError(f"no string of this law stands in state {state} at position {position}")
        return weight / total

    def length_probabilities(self) -> np.ndarray:
        """(L + 1,) float64: P(a string has n items, `#` counted), by forward propagation of the law."""
        grammar = self.grammar
        source = np.repeat(np.arange(1, grammar.num_states), np.diff(grammar.indptr)[1:])
        targets = grammar.targets[grammar.indptr[1] :]
        plain = np.concatenate([grammar.probabilities(s) for s in range(1, grammar.num_states)])
        at = np.zeros(grammar.num_states)
        at[list(grammar.start_states)] = self.start_probabilities()
        lengths = np.zeros(self.max_length + 1)
        for t in range(1, self.max_length):
            flow = plain * self.survival[t + 1, targets]
            total = np.bincount(source, flow, minlength=grammar.num_states)[source]
            flow = np.divide(flow * at[source], total, out=np.zeros_like(flow), where=total > 0)
            at = np.bincount(targets, flow, minlength=grammar.num_states)
            lengths[t + 1] = at[0]
            at[0] = 0
        return lengths

    def sample(self, count: int, num_items: int, source: np.random.Philox) -> np.ndarray:
        """`count` sequences of independent strings, each with its `#`, concatenated and cut.

        Args:
            count: N, number of sequences.
            num_items: T, items of each.
            source: the stream; how much of it is used depends on what is drawn.

        Returns:
            (T, N) state ids, uint16 (uint32 beyond 65,536 states). The first T' rows for T' < T are what `num_items=T'` would give.
        """
        return _Walk(self, count, source).run(num_items)

    @functools.cached_property
    def tables(self) -> _Tables:
        """What the walk gathers from, flat over (position of the next item, state)."""
        grammar, letters = self.grammar, self.survival.copy()
        letters[:, 0] = 0
        best, best_letter, total = (np.zeros_like(self.survival) for _ in range(3))
        weights = None if grammar.weights is None else _own_weights(grammar)
        for t in range(1, self.max_length + 1):
            reached = self.survival[t][grammar.targets]
            best[t] = np.maximum.reduceat(reached, grammar.indptr[:-1])
            best_letter[t] = np.maximum.reduceat(letters[t][grammar.targets], grammar.indptr[:-1])
            total[t] = np.add.reduceat(reached if weights is None else reached * weights, grammar.indptr[:-1])
        end_weight = np.zeros(grammar.num_states, dtype=np.uint64)
        ends = np.flatnonzero(grammar.targets == 0)  # the least of its row
        end_weight[np.searchsorted(grammar.indptr, ends, side="right") - 1] = 1 if weights is None else weights[ends]
        return _Tables(
            (self.survival << np.uint64(ACCEPT_BITS)).ravel(),
            best.ravel(),
            best_letter.ravel(),
            total.ravel(),
            end_weight,
            weights,
            _alias(grammar),
        )


class _Tables(NamedTuple):
    """height: H << 23. best, best_letter: the largest H among all successors, among those that are not `#`. total: sum of weight x H over the
    successors. end_weight: (S,) weight of the edge to `#`, 0 where there is none. weights: of each edge, 1 for the start states; None: all 1."""

    height: np.ndarray
    best: np.ndarray
    best_letter: np.ndarray
    total: np.ndarray
    end_weight: np.ndarray
    weights: np.ndarray | None
    alias: tuple | None


def _own_weights(grammar) -> np.ndarray:
    return np.where(grammar.weights == 0, 1, grammar.weights).astype(np.uint64)


def _alias(grammar):
    """Walker's alias table of p(s'|s), per edge: (thresholds out of 2^32, the edge taken instead); None where p is uniform."""
    if grammar.weights is None:
        return None
    threshold = np.full(grammar.targets.size, 1 << 32, dtype=np.uint64)
    other = np.arange(grammar.targets.size)
    for s in range(1, grammar.num_states):
        lo, hi = grammar.indptr[s], grammar.indptr[s + 1]
        left = {e: int(grammar.weights[e]) * int(hi - lo) for e in range(lo, hi)}  # in units of 2^-20 of a cell
        small = [e for e, w in left.items() if w < 1 << WEIGHT_BITS]
        large = [e for e, w in left.items() if w > 1 << WEIGHT_BITS]
        while small and large:
            e, donor = small.pop(), large[-1]
            threshold[e], other[e] = left[e] << (32 - WEIGHT_BITS), donor
            left[donor] -= (1 << WEIGHT_BITS) - left[e]
            if left[donor] <= 1 << WEIGHT_BITS:
                large.pop()
                if left[donor] < 1 << WEIGHT_BITS:
                    small.append(donor)
    return threshold, other


class _Walk:
    """One vectorised walk of N lanes. All arrays are made once: at 50,000 lanes a fresh array a step costs more than the arithmetic."""

    def __init__(self, law, count, source):
        self.law, self.count, self.source = law, count, source
        grammar = law.grammar
        self.states = grammar.num_states
        self.first = grammar.indptr[:-1].copy()
        self.degree = np.diff(grammar.indptr).astype(np.uint64)
        self.targets = grammar.targets
        self.tables = law.tables
        self.height, self.best, self.alias = self.tables.height, self.tables.best, self.tables.alias

    def run(self, num_items):
        n = self.count
        dtype = np.uint16 if self.states <= 1 << 16 else np.uint32
        out = np.empty((num_items, n), dtype=dtype)
        state = np.zeros(n, dtype=np.int64)  # `#`: the first item is a start state
        position = np.zeros(n, dtype=np.int64)  # of `state` in its string; 0 for `#`, whose successor opens a string
        base, row = np.empty(n, np.int64), np.empty(n, np.int64)
        for t in range(num_items):
            np.multiply(position, state != 0, out=position)
            position += 1
            np.multiply(position, self.states, out=base)
            np.add(base, state, out=row)
            self._step(state, base, row)
            out[t] = state
        return out

    def _step(self, state, base, row):
        """Replace `state` (N,) by a successor of each lane; `base` = position of the next item x S, `row` = base + state."""
        accepted = self._propose(state, base, row, full=True)
        new = self.proposal
        lanes = np.flatnonzero(~accepted)
        if lanes.size:
            lanes = self._end_or_go_on(lanes, new, state, base, row)
        for _ in range(ROUNDS - 1):
            if not lanes.size:
                break
            accepted = self._propose(state[lanes], base[lanes], row[lanes])
            new[lanes[accepted]] = self.small_proposal[accepted]
            lanes = lanes[~accepted]
        if lanes.size:
            new[lanes] = self._invert(state[lanes], base[lanes])
        state[:] = new

    def _end_or_go_on(self, lanes, new, state, base, row):
        """Decide for the open lanes whether `#` comes, with its exact chance; returns those that go on to a letter.

        Where strings seldom end within the bounds, H(`#`) = 1 dwarfs every other H, and next to it no letter would be accepted.
        """
        end = self.tables.end_weight[state[lanes]] * (self.height[base[lanes]] >> np.uint64(ACCEPT_BITS))
        ends = _high_word(self.source.random_raw(lanes.size), self.tables.total[row[lanes]]) < end
        new[lanes[ends]] = 0
        return lanes[~ends]

    def _propose(self, state, base, row, full=False):
        n = state.size
        words = self.source.random_raw(n)
        if not full:
            high = words >> np.uint64(32)
            edge, self.small_proposal = self._edge(high, state)
            chance = self.tables.best_letter[row]
            chance *= words & np.uint64((1 << ACCEPT_BITS) - 1)
            return (chance < self.height[base + self.small_proposal]) & (self.small_proposal != 0)
        if not hasattr(self, "buffers"):
            self.buffers = (
                [np.empty(n, np.uint64) for _ in range(3)]
                + [np.empty(n, np.int64) for _ in range(3)]
                + [np.empty(n, bool)]
            )
        high, chance, height, edge, target, where, accepted = self.buffers
        np.right_shift(words, np.uint64(32), out=high)
        if self.alias is None:
            np.take(self.degree, state, out=chance, mode="clip")
            np.multiply(high, chance, out=high)
            np.right_shift(high, np.uint64(32), out=high)
            np.take(self.first, state, out=edge, mode="clip")
            np.add(edge, high.view(np.int64), out=edge)
            np.take(self.targets, edge, out=target, mode="clip")
        else:
            target[:] = self._edge(high, state)[1]
        np.add(base, target, out=where)
        np.take(self.height, where, out=height, mode="clip")
        np.take(self.best, row, out=chance, mode="clip")
        np.bitwise_and(words, np.uint64((1 << ACCEPT_BITS) - 1), out=words)
        np.multiply(chance, words, out=chance)
        np.less(chance, height, out=accepted)
        self.proposal = target
        return accepted

    def _edge(self, high, state):
        """The proposed edge and its target from 32 bits: the whole part of bits x degree is the cell, its fraction decides the alias."""
        scaled = high * self.degree[state]
        edge = self.first[state] + (scaled >> np.uint64(32)).view(np.int64)
        if self.alias is not None:
            threshold, other = self.alias
            edge = np.where((scaled & LOW32) < threshold[edge], edge, other[edge])
        return edge, self.targets[edge]

    def _invert(self, state, base):
        """A letter after each lane by inversion of its cumulative law: exact whatever the law, linear in the number of edges."""
        words = self.source.random_raw(state.size)
        degree = self.degree[state].astype(np.int64)
        out = np.empty(state.size, dtype=np.int64)
        group = np.cumsum(degree) // EDGES_AT_ONCE
        for part in np.split(np.arange(state.size), np.flatnonzero(np.diff(group)) + 1):
            out[part] = self._invert_some(state[part], base[part], degree[part], words[part])
        return out

    def _invert_some(self, state, base, degree, words):
        begin = np.cumsum(degree) - degree
        lane = np.repeat(np.arange(state.size), degree)
        edge = np.arange(lane.size) - begin[lane] + self.first[state][lane]
        target = self.targets[edge]
        weight = np.where(target == 0, np.uint64(0), self.height[base[lane] + target] >> np.uint64(ACCEPT_BITS))
        if self.tables.weights is not None:
            weight *= self.tables.weights[edge]
        summed = np.cumsum(weight)  # may wrap; differences within a lane do not
        inside = summed - (summed[begin] - weight[begin])[lane]
        point = _high_word(words, inside[begin + degree - 1])
        return target[begin + np.add.reduceat((inside <= point[lane]).astype(np.int64), begin)]


def _high_word(a, b):
    """The upper 64 bits of the product of two uint64 arrays: floor(a b / 2^64)."""
    s = np.uint64(32)
    a1, a0, b1, b0 = a >> s, a & LOW32, b >> s, b & LOW32
    middle = a1 * b0 + ((a0 * b0) >> s)
    return a1 * b1 + (middle >> s) + ((a0 * b1 + (middle & LOW32)) >> s)


@lru_cache(maxsize=8)
def string_law(grammar: Grammar, max_length: int) -> StringLaw:
    """The law of a grammar's strings, remembered for the last few grammars."""
    return StringLaw(grammar, max_length)


def sample_block(
    grammar: Grammar, max_length: int, num_items: int, sample_seed: int, split: str, block: int
) -> np.ndarray:
    """Block `block` of a split, whole: (T, block size) state ids. All `test_gap_*` splits share the sequences of `test`."""
    name = "test" if split.startswith("test") else split
    source = stream("strings", grammar.hash, sample_seed, name, block)
    return string_law(grammar, max_length).sample(block_size(name), num_items, source)
