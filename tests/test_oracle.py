"""The exact filter against enumeration of everything that could have happened, and the ladder against its definition."""

import itertools
from collections import defaultdict

import numpy as np
import pytest

import selectivbench_hf as sb
from selectivbench_hf import ladder, oracle
from selectivbench_hf.errors import InputError
from selectivbench_hf.layout import load_split

TINY = {"num_train": 3, "num_validation": 1, "num_test": 40, "num_items": 5, "max_string_length": 4}


def tiny(name, seed, **fields):
    """A task small enough to enumerate: 2 letters of 2 states, 5 items, strings of up to 4; validation and test may meet."""
    law = {"letters": 2, "depth": 2, "density": 0.6, "num_start_states": 2, "grammar_seed": seed}
    return sb.get_task(name, **{**TINY, **law, **fields})


def histories(task):
    """Every (probability, steps) that the law can produce; a step is (symbol seen, state, item)."""
    law = oracle.Law(task)
    grammar = task.grammar
    legal = grammar.legal_symbols()
    strings = sb.sampling.StringLaw(grammar, task.max_string_length)

    def successors(state, position):
        if state == 0:
            return [(s, p, 1) for s, p in zip(law.starts, strings.start_probabilities(), strict=True)]
        chances = strings.transition_probabilities(state, position)
        return [(s, p, position + 1) for s, p in zip(grammar.successors(state), chances, strict=True)]

    def grow(item, state, position, chance, steps):
        if item == task.num_items:
            yield chance, tuple(steps)
            return
        for to, p, at in successors(state, position):
            if p == 0:
                continue
            own = [*steps, (int(grammar.symbol_of[to]), int(to), item)]
            forbidden = np.flatnonzero(~legal[to])
            rate = task.distractor_rate if item >= task.distractor_start and forbidden.size else 0.0
            if rate < 1:
                yield from grow(item + 1, to, at, chance * p * (1 - rate), own)
            for symbol in forbidden if rate else ():
                shown = [*own, (int(symbol), int(to), item)]
                yield from grow(item + 1, to, at, chance * p * rate / forbidden.size, shown)

    yield from grow(0, 0, 0, 1.0, [])


def by_prefix(task):
    """What was seen so far -> P(state now), and -> P(symbol of the next item), by enumeration."""
    states, following = defaultdict(lambda: defaultdict(float)), defaultdict(lambda: defaultdict(float))
    total = 0.0
    for chance, steps in histories(task):
        total += chance
        for last in range(len(steps)):
            seen = tuple(symbol for symbol, _, _ in steps[: last + 1])
            states[seen][steps[last][1]] += chance
            after = next((s for s in steps[last + 1 :] if s[2] == steps[last][2] + 1), None)
            if after:
                following[seen][after[0]] += chance
    assert total == pytest.approx(1, abs=1e-9)
    normal = lambda table: {k: {s: w / sum(v.values()) for s, w in v.items()} for k, v in table.items()}
    return normal(states), normal(following)


def seen_so_far(task, row):
    """Of a test sequence: for each entry of the filter (item, step), the symbols up to it."""
    data = load_split(task, "test")
    out, seen = {}, ()
    for item in range(task.num_items):
        seen = (*seen, int(data.items[row, item]))
        out[item, 0] = seen
        if data.distractors is not None and data.distractors[row, item] != task.blank_id:
            seen = (*seen, int(data.distractors[row, item]))
            out[item, 1] = seen
    return out


CASES = [
    ("lite", {}),
    ("lite", {"dirichlet": 0.7}),
    ("lite", {"min_string_length": 2, "all_reachable": True}),
    ("lite_nongrammatical_gaps", {"distractor_rate": 0.4, "distractor_start": 1}),
    (
        "lite_nongrammatical_gaps",
        {"distractor_rate": 0.9, "distractor_start": 0, "letters": 3, "depth": 1, "num_items": 4},
    ),
]


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("case", range(len(CASES)))
def test_the_filter_equals_enumeration(case, seed):
    name, fields = CASES[case]
    task = tiny(name, seed, **fields)
    states, following = by_prefix(task)
    found = oracle.filter_split(task, "test", laws=True)
    assert len(found.rows) >= task.num_test * task.num_items
    contexts = [seen_so_far(task, row) for row in range(task.num_test)]
    sums = defaultdict(float)
    for row, item, step, state, weight in zip(
        found.rows, found.items, found.step, found.state, found.weight, strict=True
    ):
        assert weight == pytest.approx(states[contexts[row][item, step]].get(state, 0.0), abs=1e-9)
        sums[row, item, step] += weight
    assert len(sums) == sum(map(len, contexts))
    assert all(total == pytest.approx(1, abs=1e-9) for total in sums.values())
    for row, item in itertools.product(range(task.num_test), range(task.num_items - 1)):
        laws = [following[contexts[row][item, step]] for step in (0, 1) if (item, step) in contexts[row]]
        for symbol in range(task.num_symbols):
            wanted = np.mean([law.get(symbol, 0.0) for law in laws])
            assert found.laws[row, item, symbol] == pytest.approx(wanted, abs=1e-9)


def brute_ladder(task, k):
    """Expected accuracy of an observer of the last k items who does not know where in the sequence they stand, by its definition:
    all histories, items pooled; fewer than k items: all of them, from the true start."""
    joint, starts = defaultdict(lambda: defaultdict(float)), defaultdict(lambda: defaultdict(float))
    for chance, steps in histories(task):
        for i in range(task.num_items):
            window = tuple(steps[max(0, i - k + 1) : i + 1])
            table = joint if i >= k - 1 else starts
            key = tuple(symbol for symbol, _, _ in window)
            table[key][steps[i][1]] += chance / task.num_items
    return sum(max(v.values()) for table in (joint, starts) for v in table.values())


@pytest.mark.parametrize("seed", [1, 2, 3, 4])
def test_the_ladder_equals_its_definition(seed):
    """Counted over many sequences, within sampling error of the enumerated expectation; the last rung is the filter's."""
    task = tiny("lite", seed, num_test=1000)
    rungs = ladder.context_ladder(task, longest=5)
    for k, accuracy in enumerate(rungs.accuracy, 1):
        assert accuracy == pytest.approx(brute_ladder(task, k), abs=0.02), k
    assert rungs.accuracy[-1] == pytest.approx(rungs.limit, abs=1e-3)


def test_the_posterior_of_every_window_is_exact():
    """Not the mean alone: each window's largest posterior against enumeration, where it has neither `#` nor the start in it."""
    task = tiny("lite", 2, letters=3, num_items=6, max_string_length=6)
    law = oracle.law_of(task)
    joint = defaultdict(lambda: defaultdict(float))
    k = 3
    for chance, steps in histories(task):
        for i in range(k - 1, task.num_items):
            joint[tuple(s for s, _, _ in steps[i - k + 1 : i + 1])][steps[i][1]] += chance
    weights = law.pairs(k)
    for key, wanted in joint.items():
        if 0 in key:
            continue
        got = defaultdict(float)
        for first in np.flatnonzero(task.grammar.symbol_of == key[0]):
            state, path = first, 1.0
            for symbol in key[1:]:
                path *= law.chance[state, symbol] if state > 0 else 0.0
                state = law.follow[state, symbol]
            if state > 0:
                got[state] += path * weights[first, state]
        for state, weight in wanted.items():
            assert got[state] == pytest.approx(weight, abs=1e-9), (key, state)


def test_the_ceiling_agrees_with_its_expectation():
    """Two start states share a letter, so that the ceiling is below 1, and distractors can pass for items."""
    grammar = sb.Grammar(2, [2, 2], [[0, 1, 3], [2, 4], [0, 2, 4], [1, 3]], [1, 2])
    for name, fields in (("lite", {}), ("lite_nongrammatical_gaps", {"distractor_rate": 0.5, "distractor_start": 2})):
        task = sb.get_task(
            name,
            grammar=grammar,
            num_items=12,
            num_train=3,
            num_validation=1,
            num_test=1000,
            max_string_length=8,
            **fields,
        )
        best = oracle.ceiling(task)
        assert best.accuracy < 0.999
        spread = (
            best.expected_accuracy * (1 - best.expected_accuracy) / 1000
        ) ** 0.5  # as if a sequence were one item
        assert best.scores.accuracy_last == pytest.approx(best.expected_accuracy, abs=4 * spread)
        assert best.scores.total == 12_000 and best.cross_entropy > 0


def test_a_wrong_law_is_told(monkeypatch):
    """Planted errors: another grammar's law, and a position that is off by one."""
    task = tiny("lite", 1)
    kept = oracle.Law.__init__

    def off_by_one(self, task):
        kept(self, task)
        self.h = np.vstack([self.h[1:], self.h[-1:]])

    other = oracle.Law(tiny("lite", 2))
    with pytest.raises(InputError, match="another grammar"):
        oracle.Filter(task, other, False).run(
            load_split(task, "test").states.astype(np.int64), None, np.zeros((40, 5))
        )
    monkeypatch.setattr(oracle.Law, "__init__", off_by_one)
    oracle.law_of.cache_clear()
    try:
        found = oracle.filter_split(task, "test", laws=True)
    except InputError:
        return  # told at once
    finally:
        oracle.law_of.cache_clear()
    _, following = by_prefix(task)
    contexts = [seen_so_far(task, row) for row in range(task.num_test)]
    worst = max(
        abs(found.laws[row, item, symbol] - following[contexts[row][item, 0]].get(symbol, 0.0))
        for row in range(task.num_test)
        for item in range(task.num_items - 1)
        for symbol in range(task.num_symbols)
    )
    assert worst > 1e-3


def test_effective_context():
    rungs = ladder.Ladder((0.2, 0.5, 0.8, 0.96), (0.2, 0.5, 0.8, 0.96), 1.0)
    assert rungs.k95 == 4
    assert [rungs.effective_context(a) for a in (0.1, 0.2, 0.35, 0.8, 0.88, 0.97)] == pytest.approx(
        [0, 1, 1.5, 3, 3.5, float("inf")]
    )
    with pytest.raises(InputError, match="from 0 to 1"):
        rungs.effective_context(float("nan"))


def test_noise_that_hides_symbols_is_refused():
    with pytest.raises(InputError, match="gaussian noise of scale 0.5 can hide"):
        oracle.ceiling(sb.get_task("lite_noisy_gaps", noise="gaussian", noise_scale=0.5))
