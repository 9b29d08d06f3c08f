"""Items laid out in time: gap laws, distractors, labels, and disjoint splits."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_sampling import chi2

from selectivbench_hf import Grammar, InputError, get_task
from selectivbench_hf.layout import (
    check_disjoint,
    draw_block,
    held_out_hashes,
    illegal_symbols,
    load_split,
    sequence_hashes,
)
from selectivbench_hf.tasks import PAPER_GAPS


def by_hand(data, row, blank):
    """One sequence laid out step by step."""
    ids, labels, items = [], [], []
    for t in range(data.num_items):
        for step in range(1 + int(data.gaps[row, t])):
            shown = (
                data.items[row, t] if step == 0 else blank if data.distractors is None else data.distractors[row, t]
            )
            ids.append(int(shown))
            labels.append(int(data.states[row, t]))
            items.append(t)
    return ids, labels, items


@settings(max_examples=25, deadline=None)
@given(
    variant=st.sampled_from(["lite", "lite_noisy_gaps", "lite_nongrammatical_gaps"]),
    split=st.sampled_from(["train", "validation", "test"]),
    num_items=st.integers(1, 64),
    rows=st.lists(st.integers(0, 9), min_size=0, max_size=6),
)
def test_layout_equals_a_loop(variant, split, num_items, rows):
    task = get_task(variant, num_train=10, num_validation=10, num_test=10, num_items=num_items)
    data = draw_block(task, split, 0, 0, 10)  # the layout alone: short sequences cannot be disjoint
    laid = data.layout(np.array(rows, dtype=np.int64))
    expected = [by_hand(data, r, task.blank_id) for r in rows]
    assert laid.lengths.tolist() == [len(e[0]) for e in expected]
    for column, at in (("input_ids", 0), ("labels", 1), ("item_ids", 2)):
        assert getattr(laid, column).tolist() == [x for e in expected for x in e[at]]
    assert laid.lengths.max(initial=0) <= task.max_steps(split)


def test_plain_has_exactly_one_blank():
    data = load_split(get_task("lite", num_train=100), "train")
    assert (data.gaps == 1).all() and data.distractors is None


def test_gap_lengths_follow_the_law():
    data = load_split(get_task("lite_noisy_gaps"), "train")
    observed = np.bincount(data.gaps.ravel(), minlength=11)
    expected = np.array([0] + [PAPER_GAPS[n] for n in range(1, 11)]) / 18 * data.gaps.size
    assert observed[0] == 0 and -5 < chi2(observed, expected) < 5
    uniform = np.array([0] + [0.1] * 10) * data.gaps.size
    assert chi2(observed, uniform) > 100  # not uniform over 1..10
    tilted = expected * (1 + 0.01 * (-1) ** np.arange(11))
    assert chi2(observed, tilted / tilted.sum() * data.gaps.size) > 5
    # independent of the item before and of the position
    table = np.bincount(data.gaps[:, :-1].ravel() * 11 + data.gaps[:, 1:].ravel(), minlength=121).reshape(11, 11)[
        1:, 1:
    ]
    assert chi2(table, table.sum(1)[:, None] * table.sum(0) / table.sum(), 19) < 5


def test_test_gaps_are_constant_and_share_their_sequences():
    task = get_task("lite_noisy_gaps")
    assert list(task.splits) == [
        "train",
        "validation",
        "test",
        "test_gap_1",
        "test_gap_5",
        "test_gap_20",
        "test_gap_50",
        "test_gap_100",
    ]
    states = load_split(task, "test").states
    for split, gap in {
        "test": 10,
        "test_gap_1": 1,
        "test_gap_5": 5,
        "test_gap_20": 20,
        "test_gap_50": 50,
        "test_gap_100": 100,
    }.items():
        data = load_split(task, split)
        assert (data.gaps == gap).all() and np.array_equal(data.states, states)
        assert data.steps().tolist() == [64 * (gap + 1)] * 1000


def test_variants_share_their_strings():
    tasks = [get_task(n, num_train=500) for n in ("lite", "lite_noisy_gaps", "lite_nongrammatical_gaps")]
    for split in ("train", "validation", "test"):
        assert all(np.array_equal(load_split(t, split).states, load_split(tasks[0], split).states) for t in tasks)


@pytest.mark.parametrize("name, start", [("lite_nongrammatical_gaps", 8), ("te1_nongrammatical_gaps", 50)])
def test_distractors_follow_the_law(name, start):
    task = get_task(name, num_train=5000)
    data = load_split(task, "train")
    legal = task.grammar.legal_symbols()
    shown = data.distractors != task.blank_id
    assert task.distractor_start == start and not shown[:, :start].any() and np.array_equal(shown, data.gaps == 1)
    # never a symbol that the state leads to; after `#` never a start symbol
    assert not legal[data.states[shown], data.distractors[shown]].any()
    after_end = data.distractors[shown & (data.states == 0)]
    assert len(after_end) and not set(after_end) & set(task.grammar.symbol_of[list(task.grammar.start_states)])
    assert (data.distractors[shown] == 0).any()  # `#` may be a distractor
    # rate 0.1 wherever one exists, from every item index on
    possible = (illegal_symbols(task.grammar)[1] > 0)[data.states[:, start:]]
    n, k = possible.sum(), shown.sum()
    assert abs(k - 0.1 * n) < 5 * np.sqrt(n * 0.09) and abs(k - 0.104 * n) > 5 * np.sqrt(n * 0.09)
    # uniform over the options, state by state
    expected, observed = np.zeros(legal.shape), np.zeros(legal.shape)
    np.add.at(observed, (data.states[shown], data.distractors[shown]), 1)
    expected[:] = observed.sum(1, keepdims=True) * ~legal / np.maximum((~legal).sum(1, keepdims=True), 1)
    assert abs(chi2(observed, expected, int((observed.sum(1) > 50).sum()))) < 5
    tilted = expected * (1 + 0.1 * (-1) ** np.arange(legal.shape[1]))
    tilted *= observed.sum(1, keepdims=True) / np.maximum(tilted.sum(1, keepdims=True), 1e-9)
    if name.startswith("lite"):
        assert chi2(observed, tilted, int((observed.sum(1) > 50).sum())) > 5


def test_no_distractor_where_every_symbol_is_legal():
    full = Grammar(1, [1], [[0, 1]], [1])  # a leads to a and #; after # only a is legal, # is not
    task = get_task("lite_nongrammatical_gaps", grammar=full, distractor_rate=1.0, distractor_start=0)
    data = draw_block(task, "train", 0, 0, 100)
    assert (data.gaps[data.states == 1] == 0).all() and (data.gaps[data.states == 0] == 1).all()
    assert (data.distractors[data.states == 0] == 0).all()


def test_smaller_sizes_are_prefixes():
    small, large = (get_task("lite_noisy_gaps", num_train=n, num_validation=n // 10) for n in (1000, 60_000))
    for split, n in (("train", 1000), ("validation", 100)):
        a, b = load_split(small, split), load_split(large, split)
        assert np.array_equal(a.states, b.states[:n]) and np.array_equal(a.gaps, b.gaps[:n])
    assert len(load_split(large, "train")) == 60_000  # two blocks
    fewer = load_split(get_task("lite_noisy_gaps", num_train=1000, num_items=20), "train")
    assert np.array_equal(fewer.states, load_split(small, "train").states[:, :20])
    assert np.array_equal(fewer.gaps, load_split(small, "train").gaps[:, :20])


@pytest.mark.parametrize("name", ["lite", "te1", "te7"])
def test_splits_are_disjoint(name):
    task = get_task(name, num_train=20_000)
    rows = {split: {r.tobytes() for r in load_split(task, split).items} for split in ("train", "validation", "test")}
    assert not rows["train"] & (rows["validation"] | rows["test"]) and not rows["validation"] & rows["test"]
    check_disjoint(task, load_split(task, "train").items, held_out_hashes(task), 0)


def test_a_leak_is_caught_and_told():
    task = get_task("lite", num_train=1000)
    held_out = held_out_hashes(task)
    leaking = load_split(task, "train").items.copy()
    leaking[700] = load_split(task, "test").items[3]
    leaking[900] = load_split(task, "validation").items[0]
    with pytest.raises(
        InputError,
        match="lite: 2 of the sequences in train stand in validation or test too.* num_train up to 5700 would fit",
    ):
        check_disjoint(task, leaking, held_out, 5000)


def test_a_tiny_grammar_is_refused_with_sizes_that_fit():
    tiny = Grammar(2, [1, 1], [[0, 2], [0, 1]], [1, 2])
    task = get_task("lite", grammar=tiny, num_items=12, num_train=400, num_validation=5, num_test=5)
    with pytest.raises(InputError, match="stand in .* too, so the splits are not disjoint") as told:
        check_disjoint(task, load_split(task, "train").items, held_out_hashes(task), 0)
    assert "too few sequences of 12 items" in str(told.value) and "raise num_items" in str(told.value)


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 40), st.integers(1, 30), st.integers(0, 1000))
def test_sequence_hashes_tell_sequences_apart(n, items, seed):
    rows = np.random.default_rng(seed).integers(0, 3, (n, items)).astype(np.uint8)
    hashes = sequence_hashes(rows)
    same_rows = (rows[:, None] == rows[None]).all(-1)
    assert np.array_equal(hashes[:, None] == hashes[None], same_rows)
    assert np.array_equal(sequence_hashes(rows.astype(np.int64)), hashes)
