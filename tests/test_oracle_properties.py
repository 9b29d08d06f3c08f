"""The exact filter and the ladder on random small grammars of every kind, and the filter's score against the code that scores models."""

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from oracle_helper import TINY, filter_error, ladder_by_definition, tiny

import selectivbench_hf as sb
from selectivbench_hf import ladder, oracle
from selectivbench_hf.errors import InputError
from selectivbench_hf.layout import load_split

# two start states share letter a (1, 2), so that what was seen does not always say the state
SHARED = sb.Grammar(2, [2, 2], [[0, 1, 3], [2, 4], [0, 2, 4], [1, 3]], [1, 2])
QUICK = settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))


@st.composite
def tasks(draw, variants=("plain", "noisy", "distracted")):
    """Tasks of 1 to 3 letters with 1 to 3 states each, gaps, noise or distractors, 1 to 5 items."""
    letters = draw(st.integers(1, 3))
    depth = draw(st.lists(st.integers(1, 3), min_size=letters, max_size=letters))
    fields = {
        "letters": letters,
        "depth": depth,
        "density": draw(st.sampled_from([0.3, 0.6, 1.0])),
        "num_start_states": draw(st.integers(1, min(3, sum(depth)))),
        "grammar_seed": draw(st.integers(0, 1000)),
        "dirichlet": draw(st.sampled_from([None, 0.5])),
        "min_string_length": draw(st.integers(1, 3)),
        "max_string_length": draw(st.integers(3, 5)),
        "num_items": draw(st.integers(1, 5)),
        "num_test": 12,
    }
    name = {"plain": "lite", "noisy": "lite_noisy_gaps", "distracted": "lite_nongrammatical_gaps"}[
        draw(st.sampled_from(variants))
    ]
    if name == "lite":
        fields["train_gap"] = draw(st.integers(0, 2))
    if name == "lite_nongrammatical_gaps":
        fields |= {"distractor_rate": draw(st.sampled_from([0.2, 1.0])), "distractor_start": draw(st.integers(0, 2))}
    try:
        task = sb.get_task(name, **{**TINY, **fields})
        load_split(task, "test")
    except InputError:  # no such grammar, or no string of that length
        assume(False)
    return task


@QUICK
@given(tasks())
def test_the_filter_is_enumeration(task):
    assert filter_error(task) < 1e-9


@QUICK
@given(tasks(variants=("plain",)))
def test_the_ladder_is_its_definition(task):
    rungs = ladder.context_ladder(task)
    assert rungs.accuracy == pytest.approx(ladder_by_definition(task, len(rungs.accuracy)), abs=1e-9)
    assert rungs.limit - rungs.accuracy[-1] < ladder.SETTLED or len(rungs.accuracy) == task.num_items


def posteriors(task, split):
    """(steps of the split, S) log posteriors of the filter, laid out as a model's logits would be, row by row."""
    data, found = load_split(task, split), oracle.filter_split(task, split)
    table = np.full((len(data), task.num_items, 2, task.num_states), -np.inf)
    table[found.rows, found.items, found.step, found.state] = np.log(found.weight)
    for row, (states, gaps) in enumerate(zip(table, data.gaps, strict=True)):
        steps = []
        for item in range(task.num_items):
            steps.append(states[item, 0])
            steps += [states[item, 0 if data.distractors is None else 1]] * int(gaps[item])
        yield row, np.array(steps)


@pytest.mark.parametrize(
    ("name", "split", "fields"),
    [
        ("lite_noisy_gaps", "validation", {}),  # gaps of many lengths
        ("lite_noisy_gaps", "test_gap_5", {}),
        ("lite", "test", {"train_gap": 0}),
        ("lite_nongrammatical_gaps", "test", {"distractor_rate": 0.5, "distractor_start": 2}),
        ("lite_nongrammatical_gaps", "test", {"distractor_rate": 1.0, "distractor_start": 0}),
        ("lite", "test", {"num_items": 1}),
    ],
)
def test_the_ceiling_is_what_a_model_with_the_filters_outputs_would_score(name, split, fields):
    import torch

    from selectivbench_hf.metrics import ItemAccumulator, ItemScores

    sizes = {"num_items": 12, "num_train": 3, "num_validation": 60, "num_test": 60, "max_string_length": 8}
    task = sb.get_task(name, grammar=SHARED, **{**sizes, **fields})
    data, total = load_split(task, split), ItemScores()
    for row, logits in posteriors(task, split):
        laid = data.layout([row])
        column = lambda values: torch.from_numpy(values.astype(np.int64))[None]
        scored = ItemAccumulator(column(laid.labels), column(laid.item_ids))
        scored.add(torch.from_numpy(logits)[None], 0)
        total += scored.scores()
    best = oracle.ceiling(task, split)
    wanted, got = total.as_dict(), best.scores.as_dict()
    for loss in ("loss", "loss_sum"):
        assert got.pop(loss) == pytest.approx(wanted.pop(loss), rel=1e-5)
    assert got == wanted
    assert best.cross_entropy > 0 and best.scores.correct_last < best.scores.total


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("lite", {}),
        ("lite_noisy_gaps", {}),
        ("lite_nongrammatical_gaps", {"distractor_rate": 0.5, "distractor_start": 2}),
        ("lite_nongrammatical_gaps", {"distractor_rate": 1.0, "distractor_start": 0}),
    ],
)
def test_accuracy_agrees_with_its_expectation_within_sampling_error(name, fields):
    """At a step that shows something: right or not, minus how sure the filter was, has mean 0; its error is taken over sequences."""
    task = sb.get_task(name, grammar=SHARED, num_items=12, num_train=3, num_validation=1, num_test=1000, max_string_length=8, **fields)  # fmt: skip
    truth, found = load_split(task, "test").states.astype(np.int64), oracle.filter_split(task, "test")
    steps, step = np.unique((found.rows * 12 + found.items) * 2 + found.step, return_inverse=True)
    state, sure = oracle.largest(step, found.state, found.weight, task.num_states)
    surprise = np.bincount(steps // 24, (state == truth.ravel()[steps // 2]) - sure)
    assert abs(surprise.mean()) < 4 * surprise.std() / 1000**0.5
    best = oracle.ceiling(task)
    assert best.expected_accuracy == pytest.approx(sure.mean(), abs=1e-12)
    if name != "lite_nongrammatical_gaps":  # else the items are not all the steps, see Ceiling
        assert abs(best.accuracy - best.expected_accuracy) < 4 * surprise.std() / 12 / 1000**0.5
    assert 0.5 < best.expected_accuracy < 0.999


def test_every_gap_split_has_the_same_ceiling():
    """Blank steps say nothing; the items are the same."""
    task = sb.get_task("lite_noisy_gaps", grammar=SHARED, num_items=12, num_test=50, max_string_length=8)
    scores = [oracle.ceiling(task, split) for split in task.test_splits]
    assert len({(s.accuracy, s.expected_accuracy) for s in scores}) == 1
    assert [s.scores.steps for s in scores] == [600 * (1 + g) for g in task.test_gaps]
    assert [s.cross_entropy for s in scores] == pytest.approx([scores[0].cross_entropy] * 6)


def test_a_smaller_bound_on_memory_changes_no_number(monkeypatch):
    task = tiny("lite", 3, letters=3, depth=[1, 3, 2], num_items=12, max_string_length=9, num_test=200)
    whole, best = ladder.context_ladder(task), oracle.ceiling(task)
    monkeypatch.setattr(ladder, "OPENED_AT_ONCE", 50)
    monkeypatch.setattr(oracle, "ITEMS_AT_ONCE", 12 * 7)
    assert ladder.context_ladder(task).accuracy == pytest.approx(whole.accuracy, abs=1e-12)
    assert oracle.ceiling(task).as_dict() == pytest.approx(best.as_dict())


def test_what_would_exhaust_memory_is_refused_or_cut_and_told(monkeypatch):
    task = tiny("lite", 3, num_test=200)
    monkeypatch.setattr(ladder, "MAX_HYPOTHESES", 5 * 2 * 30)
    assert ladder.context_ladder(task).sequences == 30
    monkeypatch.setattr(ladder, "MAX_HYPOTHESES", 5 * 2 - 1)
    with pytest.raises(InputError, match="one sequence of 5 items with up to 2 states a letter"):
        ladder.context_ladder(task)
    monkeypatch.setattr(ladder, "MAX_STATES", 4)
    with pytest.raises(InputError, match="has 5 states; the context ladder .* takes at most 4"):
        ladder.context_ladder(task)
    monkeypatch.setattr(oracle, "MAX_DRAWS", 14)
    oracle.law_of.cache_clear()
    with pytest.raises(InputError, match="5 states and 3 symbols; the exact filter keeps tables"):
        oracle.ceiling(task)


def test_a_ladder_whose_limit_is_below_95_percent_ends_at_its_limit():
    task = sb.get_task("lite", grammar=SHARED, num_items=60, num_test=100, max_string_length=60)
    rungs = ladder.context_ladder(task)
    assert rungs.limit < 0.95 and rungs.k95 is None
    assert len(rungs.accuracy) < 60
    assert rungs.limit - rungs.accuracy[-1] < ladder.SETTLED
