"""The exact filter against enumeration of everything that could have happened, and the ladder against its definition."""

from collections import defaultdict

import numpy as np
import pytest
from oracle_helper import TINY, filter_error, histories, ladder_by_definition, tiny

import selectivbench_hf as sb
from selectivbench_hf import ladder, oracle
from selectivbench_hf.errors import InputError
from selectivbench_hf.layout import load_split

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
    assert filter_error(tiny(name, seed, **fields)) < 1e-9


@pytest.mark.parametrize("seed", [1, 2, 3, 4])
def test_the_ladder_equals_its_definition(seed):
    """The last rung is the filter's."""
    task = tiny("lite", seed, num_test=300)
    rungs = ladder.context_ladder(task, longest=5)
    assert rungs.accuracy == pytest.approx(ladder_by_definition(task, 5)[: len(rungs.accuracy)], abs=1e-9)
    assert rungs.accuracy[-1] == pytest.approx(rungs.limit, abs=1e-3)
    assert rungs.sequences == 300


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


@pytest.fixture
def fresh():
    """Laws made anew, and forgotten afterwards."""
    oracle.law_of.cache_clear()
    yield
    oracle.law_of.cache_clear()


def test_another_grammars_law_is_told():
    task, other = tiny("lite", 1), oracle.Law(tiny("lite", 2))
    with pytest.raises(InputError, match="another grammar"):
        oracle.Filter(task, other, False).run(
            load_split(task, "test").states.astype(np.int64), None, np.zeros((40, 5))
        )


def _late(law):  # a string seems a position shorter than it is
    law.h = np.vstack([law.h[:1], law.h[2:], law.h[-1:]])


def _unbounded(law):  # strings of any length
    law.h[1:-1] = np.where(law.h[1:-1] > 0, 1.0, 0.0)


def _likely(law):  # letters that are all equally probable, whatever the grammar says
    law.chance = np.where(law.chance > 0, 0.5, 0.0)


PLANTED = [_late, _unbounded, _likely]


@pytest.mark.parametrize("planted", PLANTED)
def test_an_error_in_the_law_shows(planted, monkeypatch, fresh):
    """Each planted error moves some posterior or law by more than 1e-3, or ends in an error."""
    grammar = sb.Grammar(2, [2, 2], [[0, 1, 3], [2, 4], [0, 2, 4], [1, 3]], [1, 2])
    task, kept = sb.get_task("lite", grammar=grammar, **TINY), oracle.Law.__init__
    assert filter_error(task) < 1e-9

    def wrong(self, task):
        kept(self, task)
        planted(self)

    monkeypatch.setattr(oracle.Law, "__init__", wrong)
    oracle.law_of.cache_clear()
    try:
        assert filter_error(task) > 1e-3
    except InputError as error:
        assert "impossible" in str(error)


@pytest.mark.parametrize("off", [-1, 1])
def test_a_ladder_that_is_off_by_one_in_position_shows(off, monkeypatch):
    task = tiny("lite", 2, letters=3, num_items=6, max_string_length=6, num_test=200)
    wanted = ladder_by_definition(task, 3)
    assert ladder.context_ladder(task, longest=3).accuracy == pytest.approx(wanted, abs=1e-9)
    right = oracle.Law.pairs
    monkeypatch.setattr(oracle.Law, "pairs", lambda self, k: right(self, max(1, k + off)))
    with np.errstate(invalid="ignore"):  # windows that the wrong law calls impossible
        difference = np.subtract(ladder.context_ladder(task, longest=3).accuracy, wanted)
    assert not (abs(difference) < 1e-3).all()


def test_labels_that_the_law_forbids_are_told():
    task = tiny("lite", 1)
    data = load_split(task, "test")
    found = oracle.filter_split(task, "test")
    other = type(data)(task, np.where(data.states == 1, 2, np.where(data.states == 2, 1, data.states)), data.gaps)
    assert (other.items == data.items).all() and (other.states != data.states).any()
    with pytest.raises(InputError, match="labels are impossible"):
        oracle._score(task, other, found, 0, 40)


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
