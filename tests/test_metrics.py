"""Scores: exact counts, whatever the batches and chunks; predictions from elsewhere."""

import json

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import selectivbench_hf as sb
from selectivbench_hf import InputError, get_task
from selectivbench_hf.features import make_batch
from selectivbench_hf.layout import load_split
from selectivbench_hf.metrics import ItemAccumulator, ItemScores, bootstrap_interval

TASK = get_task("lite_noisy_gaps", num_train=20, num_test=12, num_items=40)


def dense(logits, labels, item_ids):
    """The protocol's scoring as a loop over sequences and items."""
    out = ItemScores()
    for lg, lab, items in zip(logits, labels, item_ids):
        real = items >= 0
        probs = lg.double().softmax(-1)
        out.sequences += int(real.any())
        out.steps += int(real.sum())
        out.loss_sum += float(-lg.double().log_softmax(-1)[real, lab[real]].sum())
        before = out.correct, out.total
        for item in torch.unique(items[real]):
            at = torch.nonzero(items == item)[:, 0]
            state = lab[at[0]]
            out.total += 1
            out.correct += int(probs[at].sum(0).argmax() == state)
            out.correct_first += int(probs[at[0]].argmax() == state)
            out.correct_last += int(probs[at[-1]].argmax() == state)
        out.sequences_right += int(out.correct - before[0] == out.total - before[1] > 0)
    return out


@settings(max_examples=25, deadline=None)
@given(
    ids=st.lists(st.integers(0, 19), min_size=1, max_size=4),
    chunk=st.sampled_from([1, 2, 5, 33, 1000]),
    seed=st.integers(0, 999),
    pull=st.floats(0, 6),
)
def test_chunks_equal_the_dense_loop(ids, chunk, seed, pull):
    batch = make_batch(TASK, "train", ids, epoch=0, seed=0)
    labels, item_ids = torch.from_numpy(batch["labels"]), torch.from_numpy(batch["item_ids"])
    logits = torch.randn(*labels.shape, TASK.num_states, generator=torch.Generator().manual_seed(seed))
    logits += pull * torch.nn.functional.one_hot(labels.clamp(min=0), TASK.num_states)
    scores = ItemAccumulator(labels, item_ids)
    for start in range(0, logits.shape[1], chunk):
        scores.add(logits[:, start : start + chunk], start)
    got, expected = scores.scores(), dense(logits, labels, item_ids)
    assert got.loss_sum == pytest.approx(expected.loss_sum, rel=1e-5)
    got.loss_sum = expected.loss_sum
    assert got == expected and got.total == len(ids) * 40


def test_parts_add_up_whatever_the_batches():
    logits = {}
    totals = []
    for size in (1, 2, 5, 12):
        total = ItemScores()
        for batch in sb.batches(TASK, "test", size):
            labels, item_ids = torch.from_numpy(batch["labels"]), torch.from_numpy(batch["item_ids"])
            for row, example in enumerate(batch["example_id"]):
                logits.setdefault(
                    example,
                    torch.randn(labels.shape[1], 65, generator=torch.Generator().manual_seed(int(example)))
                    + 0.5 * torch.nn.functional.one_hot(labels[row].clamp(min=0), 65),
                )
            part = ItemAccumulator(labels, item_ids)
            part.add(torch.stack([logits[e] for e in batch["example_id"]]), 0)
            total += part.scores()
        totals.append(total)
    assert len({(t.correct, t.correct_first, t.correct_last, t.total, t.steps, t.sequences) for t in totals}) == 1
    assert totals[0].total == 12 * 40 and 0 < totals[0].correct < 480
    assert all(t.loss_sum == pytest.approx(totals[0].loss_sum, rel=1e-6) for t in totals)


def test_padding_is_never_counted():
    """The reference counts padded rows as right when sequences differ in length."""
    labels = torch.tensor([[5, 5, 7], [3, -100, -100]])
    item_ids = torch.tensor([[0, 0, 1], [0, -1, -1]])
    scores = ItemAccumulator(labels, item_ids)
    scores.add(torch.zeros(2, 3, 9), 0)  # ties go to state 0: all wrong
    assert scores.scores().as_dict() == {
        "correct": 0,
        "correct_first": 0,
        "correct_last": 0,
        "total": 3,
        "steps": 4,
        "sequences": 2,
        "sequences_right": 0,
        "loss_sum": pytest.approx(4 * np.log(9)),
        "accuracy": 0.0,
        "accuracy_first": 0.0,
        "accuracy_last": 0.0,
        "loss": pytest.approx(np.log(9)),
    }


def test_the_sum_votes_and_first_and_last_stand_alone():
    labels = torch.tensor([[1, 1, 1]])
    logits = torch.log(torch.tensor([[[0.9, 0.1], [0.3, 0.7], [0.3, 0.7]]]))
    scores = ItemAccumulator(labels, torch.zeros(1, 3, dtype=torch.long))
    scores.add(logits, 0)
    got = scores.scores()
    assert (got.correct, got.correct_first, got.correct_last) == (1, 0, 1)  # 0.1 + 0.7 + 0.7 = 1.5 of 3


def test_nothing_scored_is_no_accuracy():
    empty = ItemScores()
    assert empty.accuracy is None and empty.loss is None and json.dumps(empty.as_dict(), allow_nan=False)
    none = ItemAccumulator(torch.full((2, 3), -100), torch.full((2, 3), -1))
    none.add(torch.zeros(2, 3, 4), 0)
    assert none.scores() == empty


def test_score_of_predictions():
    truth = load_split(TASK, "test").states.astype(np.int64)
    assert sb.score(TASK, "test", truth).accuracy == 1
    wrong = truth.copy()
    wrong[-1] = (wrong[-1] + 1) % TASK.num_states  # all errors in the last sequence
    got = sb.score(TASK, "test", wrong.astype(float))
    assert (got.correct, got.total, got.accuracy) == (440, 480, 440 / 480)
    assert got.per_sequence.tolist() == [40] * 11 + [0] and got.interval[0] < got.accuracy < got.interval[1] <= 1
    assert sb.score(TASK, "test_gap_50", truth[:3]).total == 120  # the first three sequences
    assert json.dumps(got.as_dict(), allow_nan=False)


@pytest.mark.parametrize(
    "predictions, words",
    [
        (np.zeros((12, 39), int), r"must have the shape \(N, 40\)"),
        (np.zeros((0, 40), int), "N from 1 to 12"),
        (np.zeros((13, 40), int), "N from 1 to 12"),
        (np.zeros(40, int), "shape"),
        (np.full((2, 40), 0.5), "whole numbers"),
        (np.full((2, 40), np.nan), "whole numbers"),
        (np.full((2, 40), 65), "ids from 0 to 64"),
        (np.full((2, 40), -1), "ids from 0 to 64"),
        (np.full((2, 40), "a"), "whole numbers"),
    ],
)
def test_bad_predictions_get_a_sentence(predictions, words):
    with pytest.raises(InputError, match=words):
        sb.score(TASK, "test", predictions)


def test_bootstrap_respects_sequences():
    """Items of one sequence stand and fall together: the interval is that of 100 draws, not of 4,000."""
    right = np.array([40] * 50 + [0] * 50)
    low, high = bootstrap_interval(right, 40)
    assert low == pytest.approx(0.4, abs=0.03) and high == pytest.approx(0.6, abs=0.03)
    assert (low, high) == bootstrap_interval(right, 40)


def test_predict_items_equals_the_accumulator():
    batch = make_batch(TASK, "train", [3, 1, 4], epoch=0, seed=0)
    labels, item_ids = torch.from_numpy(batch["labels"]), torch.from_numpy(batch["item_ids"])
    logits = torch.randn(*labels.shape, 65, generator=torch.Generator().manual_seed(0))
    logits += torch.nn.functional.one_hot(labels.clamp(min=0), 65)
    accumulator = ItemAccumulator(labels, item_ids)
    accumulator.add(logits, 0)
    predicted = sb.predict_items(logits.softmax(-1).numpy(), batch["item_ids"])
    assert predicted.shape == (3, 40)
    assert int((predicted == load_split(TASK, "train").states[[3, 1, 4]]).sum()) == accumulator.scores().correct > 0


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: sb.predict_items(np.zeros((2, 3, 4)), np.zeros((2, 4), int)), "do not fit"),
        (lambda: sb.predict_items(np.zeros((2, 2, 4)), np.array([[0, 1], [0, -1]])), "same number of items"),
        (lambda: sb.predict_items(np.full((2, 2, 4), np.nan), np.array([[0, 1], [0, 1]])), "finite real numbers"),
        (lambda: sb.predict_items(np.full((2, 2, 4), 1j), np.array([[0, 1], [0, 1]])), "finite real numbers"),
        (lambda: sb.predict_items(np.zeros((2, 2, 4)), np.zeros((2, 2))), "item_ids must be whole numbers"),
        (lambda: sb.predict_items(np.zeros((2, 2, 4)), np.full((2, 2), 10**6)), "item_ids must be whole numbers"),
        (lambda: sb.score(TASK, "test", [[1, 2], [3]]), "different lengths"),
    ],
)
def test_predictions_that_cannot_be_scored(call, words):
    with pytest.raises(InputError, match=words):
        call()
