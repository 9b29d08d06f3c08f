"""Artificial grammars: random construction, validity, entropy, JSON (protocol section 1).

S states, of which `#` (the end of a string) is 0 and instance j of letter l (1-based) is 1 + (sum of the depths before l) + j; V symbols, `#` = 0
and the letters 1..letters. A state has at most one edge for each letter, so a string's states follow from its start state and its letters.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter

import numpy as np

from .checks import MAX_DRAWS, is_whole, json_object, random_law, whole
from .errors import InputError
from .streams import stream, threshold32

JSON_FORMAT = "selectivbench-grammar-1"
WEIGHT_BITS = 20  # edge probabilities are integers out of 2^20


class Grammar:
    """A grammar: letters, instances of each letter, edges with their probabilities, and start states. Immutable; equal by content.

    Args:
        letters: number of letters, `#` not counted.
        depths: instances of each letter.
        successors: for each state 1..S-1 the state ids it leads to (`#` = 0 among them or not).
        start_states: distinct state ids, none of them 0. A string starts in one of them, drawn uniformly.
        weights: for each state 1..S-1 its edges' probabilities in units of 2^-20, summing to 2^20; None for uniform.
        min_length: least length of a string, its `#` counted.

    Raises:
        InputError: for ids out of range, a state without a way to `#` (the stuck states are named), two edges to one letter, and so on.

    Attributes:
        indptr, targets: the edges in compressed rows: those of state s are `targets[indptr[s]:indptr[s + 1]]`, ascending;
            row 0 holds the start states, since after `#` the next string starts.
        weights: as given, flat beside `targets` (row 0: zeros), or None.
        symbol_of: (S,) the symbol of each state, int64.
    """

    def __init__(self, letters, depths, successors, start_states, weights=None, min_length=1):
        letters = whole("letters", letters, 1)
        depths = tuple(whole("depth", d, 1) for d in depths)
        if len(depths) != letters:
            raise InputError(
                f"depth has {len(depths)} entries for {letters} letters; give one number or one entry per letter"
            )
        num_states = 1 + sum(depths)
        if len(successors) != num_states - 1:
            raise InputError(
                f"a grammar of {num_states} states needs {num_states - 1} rows of edges, got {len(successors)}"
            )
        lengths, targets = _flat(successors)
        if weights is not None:
            shape, weights = _flat(weights)
            if not np.array_equal(shape, lengths):
                raise InputError("weights must have one entry for each edge")
        if not (targets.dtype.kind in "iu" and (weights is None or weights.dtype.kind in "iu")):
            raise InputError(
                "edges of a grammar must be whole state ids, and their weights whole numbers, all below 2^63"
            )
        self._build(letters, depths, lengths, targets.astype(np.int64), start_states, weights, min_length)

    @classmethod
    def _from_flat(cls, letters, depths, lengths, targets, start_states, weights=None, min_length=1):
        self = cls.__new__(cls)
        self._build(letters, depths, lengths, targets, start_states, weights, min_length)
        return self

    def _build(self, letters, depths, lengths, targets, start_states, weights, min_length):
        self.letters, self.depths = letters, depths
        self.min_length = whole("min_length", min_length, 1)
        self.num_states, self.num_symbols = 1 + sum(depths), letters + 1
        starts = list(start_states)
        if (
            not starts
            or any(not is_whole(s) or not 0 <= s < self.num_states for s in starts)
            or len(set(starts)) != len(starts)
        ):
            raise InputError(
                f"start states must be distinct state ids from 1 to {self.num_states - 1}, got {starts[:8]}"
            )
        if 0 in starts:
            raise InputError("`#` (state 0) is the end of a string and cannot be a start state")
        self.start_states = tuple(sorted(int(s) for s in starts))
        if targets.size and (targets.min() < 0 or targets.max() >= self.num_states):
            bad = targets[(targets < 0) | (targets >= self.num_states)][0]
            raise InputError(
                f"an edge leads to the unknown state {bad}; state ids run from 0 to {self.num_states - 1}"
            )
        self.symbol_of = np.repeat(np.arange(self.num_symbols), (1, *depths))
        source = np.repeat(np.arange(1, self.num_states), lengths)
        ascending = (np.diff(source) > 0) | (np.diff(targets) > 0)
        order = slice(None) if ascending.all() else np.lexsort((targets, source))
        targets = targets[order]
        symbols = self.symbol_of[targets]
        twice = np.flatnonzero((np.diff(source) == 0) & (np.diff(symbols) == 0))
        if twice.size:
            where = self.state_label(source[twice[0]])
            raise InputError(
                f"state {where} has two edges to {self.symbol_label(symbols[twice[0]])}; at most one edge per symbol is allowed"
            )
        starts = np.array(self.start_states)
        self.targets = np.concatenate([starts, targets]).astype(np.int64)
        self.indptr = np.concatenate([[0], np.cumsum(np.concatenate([[starts.size], lengths]))]).astype(np.int64)
        self.weights = None
        stuck = np.flatnonzero(~self.can_end())
        if stuck.size:
            names = ", ".join(self.state_label(s) for s in stuck[:8]) + (", ..." if stuck.size > 8 else "")
            raise InputError(
                f"{stuck.size} of {self.num_states} states can never reach `#`: {names}; every state needs a way to the end"
            )
        if weights is not None:
            self.weights = np.concatenate([np.zeros(starts.size, np.int64), weights[order].astype(np.int64)])
            self._check_weights()
        for array in (self.targets, self.indptr, self.symbol_of, self.weights):
            if array is not None:
                array.flags.writeable = False

    def _check_weights(self):
        own = self.weights[self.indptr[1] :]
        sums = np.add.reduceat(own, self.indptr[1:-1] - self.indptr[1]) if own.size else np.zeros(0)
        if (own < 1).any() or (sums != 1 << WEIGHT_BITS).any():
            raise InputError(
                f"the weights of a state's edges must be positive whole numbers that sum to {1 << WEIGHT_BITS}"
            )

    # -- construction ------------------------------------------------------------------------------------------------

    @classmethod
    def random(
        cls,
        letters=26,
        depth=None,
        density=0.4,
        num_start_states=4,
        seed=1,
        *,
        dirichlet=None,
        min_length=1,
        all_reachable=False,
        max_redraws=1000,
    ) -> Grammar:
        """A random grammar by the law of protocol section 1.

        For each state but `#` and each letter an instance is drawn uniformly and the edge kept with probability `density`; an edge to `#` is
        added with probability density / (mean) depth; the start states are drawn uniformly from all states. The whole grammar is redrawn until
        every state can reach `#` and `#` is no start state.

        Args:
            letters: number of letters (at least 1); any number, not only 52.
            depth: instances of a letter: one number, one entry for each letter, or None for `letters` (the paper's choice).
            density: probability of an edge, in (0, 1].
            num_start_states: how many start states.
            seed: whole number; another seed, another grammar.
            dirichlet: None for uniform transition probabilities, else the concentration of the Dirichlet law they are drawn from.
            min_length: least length of a string, `#` counted.
            all_reachable: also redraw until every state can be reached from a start state.
            max_redraws: after so many redraws an error says which condition failed how often.

        Raises:
            InputError: for impossible requests, and when the redraws are used up.
        """
        letters, depths = random_law(letters, depth, density, num_start_states, seed, dirichlet, all_reachable)
        num_states, num_start_states = 1 + sum(depths), int(num_start_states)
        max_redraws = whole("max_redraws", max_redraws, 0)
        source = stream(
            "grammar",
            letters,
            depths,
            float(density),
            num_start_states,
            None if dirichlet is None else float(dirichlet),
            bool(all_reachable),
            seed,
        )
        budget = min(max_redraws, 10 * MAX_DRAWS // ((num_states - 1) * letters))
        failures: Counter = Counter()
        for _ in range(1 + budget):
            grammar = cls._draw(
                source, letters, depths, density, num_start_states, dirichlet, min_length, all_reachable, failures
            )
            if grammar is not None:
                return grammar
        told = "; ".join(f"{reason} in {n}" for reason, n in failures.most_common())
        raise InputError(
            f"no valid grammar in {1 + budget} draws with letters={letters}, density={density}, num_start_states={num_start_states}: "
            f"{told}. Raise the density or the number of letters, or lower the depth"
        )

    @classmethod
    def _draw(cls, source, letters, depths, density, num_start_states, dirichlet, min_length, all_reachable, failures):
        """One draw of the whole grammar: a Grammar, or None after counting the reason in `failures`."""
        num_states = 1 + sum(depths)
        depth = np.array(depths, dtype=np.uint64)
        first = 1 + np.concatenate([[0], np.cumsum(depths)[:-1]]).astype(np.int64)
        words = source.random_raw((num_states - 1) * letters).reshape(num_states - 1, letters)
        exits = source.random_raw(num_states - 1)
        keys = source.random_raw(num_states)
        starts = np.sort(np.argsort(keys, kind="stable")[:num_start_states])
        kept = (words & np.uint64(0xFFFFFFFF)) < np.uint64(threshold32(density))
        instance = ((words >> np.uint64(32)) * depth) >> np.uint64(32)
        exit_kept = (exits & np.uint64(0xFFFFFFFF)) < np.uint64(threshold32(density * letters / sum(depths)))
        # the edge to `#` first: it has the smallest id, so that each row is ascending
        targets = np.concatenate([np.zeros((num_states - 1, 1), np.int64), instance.astype(np.int64) + first], axis=1)
        mask = np.concatenate([exit_kept[:, None], kept], axis=1)
        lengths = mask.sum(1)
        targets = targets[mask]
        weights = None if dirichlet is None else _dirichlet(source, dirichlet, lengths)
        if starts[0] == 0:
            failures["`#` was drawn as a start state"] += 1
            return None
        reverse = _reached([0], np.repeat(np.arange(1, num_states), lengths), targets, num_states)
        if not reverse.all():
            failures["some state could not reach `#`"] += 1
            return None
        grammar = cls._from_flat(letters, depths, lengths, targets, starts, weights, min_length)
        if all_reachable and not grammar.reachable().all():
            failures["some state could not be reached from a start state"] += 1
            return None
        return grammar

    # -- what it says ------------------------------------------------------------------------------------------------

    def successors(self, state: int) -> np.ndarray:
        """The states that `state` leads to, ascending, int64; for `#` (0) the start states."""
        state = self._state(state)
        return self.targets[self.indptr[state] : self.indptr[state + 1]]

    def probabilities(self, state: int) -> np.ndarray:
        """p(s'|s) of each of `successors(state)`, float64, before strings are conditioned on their length."""
        state = self._state(state)
        if self.weights is None or state == 0:
            count = self.indptr[state + 1] - self.indptr[state]
            return np.full(count, 1 / count)
        return self.weights[self.indptr[state] : self.indptr[state + 1]] / (1 << WEIGHT_BITS)

    def state_label(self, state: int) -> str:
        """`#`, or the letter with its instance, counted from 1: `b3`. Letters beyond z are written `l27.3`."""
        state = self._state(state)
        if state == 0:
            return "#"
        symbol = self.symbol_of[state]
        instance = state - sum(self.depths[: symbol - 1])
        name = self.symbol_label(symbol)
        return f"{name}{instance}" if len(name) == 1 else f"{name}.{instance}"

    def symbol_label(self, symbol: int) -> str:
        """`#` for 0, a..z for 1..26, `l27`, `l28`, ... beyond."""
        return "#" if symbol == 0 else chr(96 + symbol) if symbol <= 26 else f"l{symbol}"

    def legal_symbols(self) -> np.ndarray:
        """(S, V) bool: whether a state has an edge to a symbol; for `#` the symbols of the start states."""
        legal = np.zeros((self.num_states, self.num_symbols), dtype=bool)
        legal[np.repeat(np.arange(self.num_states), np.diff(self.indptr)), self.symbol_of[self.targets]] = True
        return legal

    def can_end(self) -> np.ndarray:
        """(S,) bool: whether `#` can be reached from each state."""
        source = np.repeat(np.arange(1, self.num_states), np.diff(self.indptr)[1:])
        return _reached([0], source, self.targets[self.indptr[1] :], self.num_states)

    def reachable(self) -> np.ndarray:
        """(S,) bool: whether each state can be reached from a start state."""
        source = np.repeat(np.arange(1, self.num_states), np.diff(self.indptr)[1:])
        return _reached(self.start_states, self.targets[self.indptr[1] :], source, self.num_states)

    def topological_entropy(self) -> float:
        """Natural log of the spectral radius of the 0/1 transition matrix in which `#` leads to the start states, in nats per item."""
        from scipy.sparse import csr_matrix
        from scipy.sparse.linalg import ArpackNoConvergence, eigs

        ones = np.ones(self.targets.size)
        matrix = csr_matrix((ones, self.targets, self.indptr), shape=(self.num_states, self.num_states))
        if self.num_states < 100:
            radius = np.abs(np.linalg.eigvals(matrix.toarray())).max()
        else:
            try:  # the spectral radius of a non-negative matrix is an eigenvalue, the one with the largest real part
                radius = eigs(matrix, k=1, which="LR", v0=np.ones(self.num_states), return_eigenvectors=False)[0].real
            except ArpackNoConvergence:
                radius = np.abs(np.linalg.eigvals(matrix.toarray())).max()
        return float(np.log(radius))

    # -- identity and storage ----------------------------------------------------------------------------------------

    @property
    def hash(self) -> str:
        """SHA-256 (hex) of everything that decides a string's law; equal grammars have equal hashes."""
        if not hasattr(self, "_hash"):
            head = json.dumps(
                [JSON_FORMAT, self.letters, self.depths, self.start_states, self.min_length], separators=(",", ":")
            )
            digest = hashlib.sha256(head.encode())
            for array in (self.indptr, self.targets, self.weights):
                digest.update(b"|" if array is None else b"|" + array.astype("<i8").tobytes())
            self._hash = digest.hexdigest()
        return self._hash

    def __eq__(self, other):
        return isinstance(other, Grammar) and self.hash == other.hash

    def __hash__(self):
        return int(self.hash[:15], 16)

    def __repr__(self):
        return (
            f"Grammar(letters={self.letters}, states={self.num_states}, edges={self.targets.size - len(self.start_states)}, "
            f"start_states={len(self.start_states)}, hash={self.hash[:12]})"
        )

    def to_json(self) -> str:
        """The grammar as JSON text; `Grammar.from_json` gives an equal object back."""
        rows = np.split(self.targets, self.indptr[1:-1])[1:]
        data = {
            "format": JSON_FORMAT,
            "letters": self.letters,
            "depths": list(self.depths),
            "min_length": self.min_length,
            "start_states": list(self.start_states),
            "edges": [r.tolist() for r in rows],
        }
        if self.weights is not None:
            data["weights"] = [w.tolist() for w in np.split(self.weights, self.indptr[1:-1])[1:]]
        return json.dumps(data, separators=(",", ":"))

    @classmethod
    def from_json(cls, text) -> Grammar:
        """A grammar from JSON text, the dict in it, or a file that holds it, with the same checks as any other.

        Raises:
            InputError: naming what is wrong: an unknown key or state, a state that cannot reach `#`, ...
        """
        data = json_object("grammar", text)
        if data.get("format") != JSON_FORMAT:
            raise InputError(f'the grammar\'s JSON must be an object with "format": "{JSON_FORMAT}"')
        known = {"format", "letters", "depths", "min_length", "start_states", "edges", "weights"}
        missing = {"letters", "depths", "start_states", "edges"} - set(data)
        if set(data) - known or missing:
            raise InputError(
                f"the grammar's JSON has unknown keys {sorted(set(data) - known)} and lacks {sorted(missing)}; "
                f"the keys are {', '.join(sorted(known))}"
            )
        edges, depths, weights = data["edges"], data["depths"], data.get("weights")
        if not isinstance(depths, list) or not isinstance(data["start_states"], list):
            raise InputError("depths and start_states in the grammar's JSON must be lists")
        for name, rows in (("edges", edges), ("weights", weights)):
            if rows is not None and (
                not isinstance(rows, list)
                or not all(isinstance(r, list) and all(is_whole(x) for x in r) for r in rows)
            ):
                raise InputError(
                    f"{name} in the grammar's JSON must be a list of lists of whole numbers, one for each state but `#`"
                )
        if weights is not None and [len(r) for r in weights] != [len(r) for r in edges]:
            raise InputError("weights in the grammar's JSON must have the shape of edges")
        try:
            return cls(data["letters"], depths, edges, data["start_states"], weights, data.get("min_length", 1))
        except OverflowError:
            raise InputError(
                "the grammar's JSON holds numbers beyond 64 bits; state ids and weights are small"
            ) from None

    def _state(self, state):
        if not is_whole(state) or not 0 <= state < self.num_states:
            raise InputError(f"state must be an id from 0 to {self.num_states - 1}, got {state!r}")
        return int(state)


def _flat(rows) -> tuple[np.ndarray, np.ndarray]:
    """Lengths of the rows, and all rows one after another."""
    rows = [np.asarray(r) if len(r) else np.zeros(0, np.int64) for r in rows]
    return np.array([r.size for r in rows], dtype=np.int64), np.concatenate(rows)


def _reached(seeds, target, source, num_states) -> np.ndarray:
    """(S,) bool: the states reached from `seeds` along the edges source -> target."""
    order = np.argsort(source, kind="stable")
    target, counts = target[order], np.bincount(source, minlength=num_states)
    first = np.concatenate([[0], np.cumsum(counts)])
    seen = np.zeros(num_states, dtype=bool)
    frontier = np.unique(np.asarray(seeds, dtype=np.int64))
    while frontier.size:
        seen[frontier] = True
        n = counts[frontier]
        edges = np.repeat(first[frontier] - np.concatenate([[0], np.cumsum(n)[:-1]]), n) + np.arange(n.sum())
        frontier = np.unique(target[edges])
        frontier = frontier[~seen[frontier]]
    return seen


def _dirichlet(source, concentration, lengths) -> np.ndarray:
    """Flat edge weights, Dirichlet within each row, as integers of at least 1 that sum to 2^20 a row.

    The only place where floating-point functions decide data; the rounding to 2^-20 leaves their last bits without effect but for chance
    hits of a rounding boundary. The catalogue does not use it.
    """
    from scipy.special import gammaincinv

    uniform = ((source.random_raw(int(lengths.sum())) >> np.uint64(11)) + 0.5) / 2**53
    gamma = np.maximum(gammaincinv(concentration, uniform), 1e-300)
    out = []
    for row in np.split(gamma, np.cumsum(lengths)[:-1]):
        spare = (1 << WEIGHT_BITS) - row.size
        if row.size == 0:
            continue
        ideal = row / row.sum() * spare
        whole = np.floor(ideal).astype(np.int64)
        largest = np.argsort(whole - ideal, kind="stable")[: spare - int(whole.sum())]
        whole[largest] += 1
        out.append(whole + 1)
    return np.concatenate(out) if out else np.zeros(0, np.int64)
