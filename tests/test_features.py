"""Batches: one-hot plus noise, padding, the noise keys, the order of an epoch, and the collator."""

import hashlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import selectivbench_hf as sb
from selectivbench_hf import InputError, get_task
from selectivbench_hf.features import encode, epoch_order, make_batch, noise
from selectivbench_hf.layout import load_split

TASK = get_task("lite_noisy_gaps", num_train=50, num_validation=6, num_test=6)


@settings(max_examples=20, deadline=None)
@given(ids=st.lists(st.integers(0, 49), min_size=1, max_size=5), epoch=st.integers(0, 3), seed=st.integers(0, 3))
def test_a_batch_equals_a_loop_over_its_rows(ids, epoch, seed):
    batch = make_batch(TASK, "train", ids, epoch=epoch, seed=seed)
    data = load_split(TASK, "train")
    assert batch["input_features"].dtype == np.float32 and batch["labels"].dtype == np.int64
    for row, example in enumerate(ids):
        laid = data.layout([example])
        n = int(laid.lengths[0])
        assert batch["lengths"][row] == n and batch["example_id"][row] == example
        onehot = np.eye(TASK.num_symbols + 1, dtype=np.float32)[laid.input_ids][:, :-1]
        expected = onehot + noise(TASK, "train", example, n, seed=seed, epoch=epoch)
        assert np.array_equal(batch["input_features"][row, :n], expected)
        assert np.array_equal(batch["labels"][row, :n], laid.labels) and np.array_equal(
            batch["item_ids"][row, :n], laid.item_ids
        )
        assert (
            not batch["input_features"][row, n:].any()
            and (batch["labels"][row, n:] == -100).all()
            and (batch["item_ids"][row, n:] == -1).all()
        )
        assert (batch["input_ids"][row, n:] == TASK.blank_id).all()
        alone = make_batch(TASK, "train", [example], epoch=epoch, seed=seed)["input_features"][0]
        assert np.array_equal(alone, expected)  # whatever stands beside it


def test_noise_keys():
    one = noise(TASK, "test", 3, 20)
    assert np.array_equal(one, noise(TASK, "test", 3, 20)) and np.array_equal(one[:7], noise(TASK, "test", 3, 7))
    assert not np.array_equal(one, noise(TASK, "test", 4, 20)) and not np.array_equal(
        one, noise(TASK, "test_gap_1", 3, 20)
    )
    other_sizes = get_task("lite_noisy_gaps", num_train=7, num_test=4)
    assert np.array_equal(one, noise(other_sizes, "test", 3, 20))
    assert not np.array_equal(one, noise(get_task("lite_noisy_gaps", sample_seed=2), "test", 3, 20))
    training = [noise(TASK, "train", 3, 20, seed=s, epoch=e) for s, e in ((0, 0), (0, 1), (1, 0))]
    assert not any(np.array_equal(a, b) for at, a in enumerate(training) for b in training[:at])


def test_uniform_noise_law_and_stand_alone_recipe():
    drawn = noise(TASK, "test", 0, 5000)
    assert drawn.dtype == np.float32 and drawn.min() >= 0 and drawn.max() < np.float32(0.2)
    counts = np.histogram(drawn, 50, (0, 0.2))[0]
    assert abs(((counts - drawn.size / 50) ** 2 / (drawn.size / 50)).sum() - 49) < 5 * np.sqrt(98)
    # the recipe of the protocol, written out
    name = f"selectivbench-1/noise/{TASK.grammar.hash}/1/test/0"
    key = int.from_bytes(hashlib.sha256(name.encode()).digest()[:16], "little")
    words = np.random.Philox(key=key).random_raw(5000 * 9 // 2)
    low_first = np.stack([words & np.uint64(0xFFFFFFFF), words >> np.uint64(32)], 1).ravel()
    recipe = ((low_first >> np.uint64(8)).astype(np.float32) * np.float32(0.2 / 2**24)).reshape(5000, 9)
    assert np.array_equal(drawn, recipe)


def test_one_threshold_removes_the_papers_noise_but_not_gaussian():
    batch = make_batch(TASK, "test", [0, 1])
    onehot = np.eye(10, dtype=bool)[batch["input_ids"]][..., :9]
    assert np.array_equal(batch["input_features"] >= 1, onehot)
    hidden = get_task("lite_noisy_gaps", noise="gaussian", noise_scale=0.5)
    features = make_batch(hidden, "test", [0, 1])["input_features"]
    rest = features - onehot
    assert abs(rest.mean()) < 0.02 and rest.std() == pytest.approx(0.5, rel=0.02)
    from scipy.stats import kstest

    assert kstest(rest.ravel() / 0.5, "norm").pvalue > 1e-4
    assert (features[~onehot] > 1).any()


def test_without_noise_features_are_one_hot():
    batch = make_batch(get_task("lite", num_train=5), "train", [0, 4], epoch=0, seed=0)
    assert set(np.unique(batch["input_features"])) == {0, 1}
    assert np.array_equal(batch["input_features"].sum(-1) == 0, batch["input_ids"] == 9)


def test_batches_pass_over_every_sequence_once():
    for size in (1, 7, 50, 64):
        seen = [b["example_id"] for b in sb.batches(TASK, "train", size, epoch=2, seed=5)]
        assert sorted(np.concatenate(seen)) == list(range(50)) and all(len(s) == size for s in seen[:-1])
        assert np.array_equal(np.concatenate(seen), epoch_order(50, 5, 2))
    dropped = [len(b["example_id"]) for b in sb.batches(TASK, "train", 8, drop_last=True)]
    assert dropped == [8] * 6
    held = [b["example_id"].tolist() for b in sb.batches("lite", "validation", 2, max_sequences=5)]
    assert held == [[0, 1], [2, 3], [4]]
    again = [b["input_features"] for b in sb.batches(TASK, "test", 3)]
    assert all(np.array_equal(a, b["input_features"]) for a, b in zip(again, sb.batches(TASK, "test", 3)))


def test_epoch_order_is_a_uniform_permutation():
    assert sorted(epoch_order(1000, 1, 0)) == list(range(1000))
    assert not np.array_equal(epoch_order(1000, 1, 0), epoch_order(1000, 1, 1))
    assert not np.array_equal(epoch_order(1000, 1, 0), epoch_order(1000, 2, 0))
    first = np.bincount([epoch_order(10, 0, e)[0] for e in range(2000)], minlength=10)
    assert ((first - 200) ** 2 / 200).sum() < 9 + 5 * np.sqrt(18)
    assert epoch_order(0, 0, 0).shape == (0,)


@pytest.mark.parametrize(
    "call, words",
    [
        (lambda: sb.batches(TASK, "tests", 4), "did you mean 'test'"),
        (lambda: sb.batches(TASK, "test", 0), "at least 1"),
        (lambda: sb.batches(TASK, "test", 1.5), "batch_size must be a whole number"),
        (lambda: sb.batches(TASK, "test", 4, seed="x"), "seed must be a whole number"),
        (lambda: sb.batches(TASK, "test", 4, epoch=-1), "epoch must be a whole number of at least 0"),
        (lambda: sb.Collator(TASK)([]), "at least one row"),
        (
            lambda: sb.Collator(TASK)([{"example_id": 0, "input_ids": [1, 2], "labels": [1], "item_ids": [0, 0]}]),
            "must have one length",
        ),
        (lambda: sb.batches(TASK, "test", 4, max_sequences=0), "at least 1"),
        (lambda: sb.batches(TASK, "test", 64, drop_last=True), "leaves no batch"),
        (lambda: sb.batches("lit", "test", 4), "did you mean 'lite'"),
        (lambda: make_batch(TASK, "test", [6]), "run from 0 to 5"),
        (lambda: make_batch(TASK, "test", [-1]), "run from 0 to 5"),
        (lambda: make_batch(TASK, "train", [0], epoch=0), "needs a data seed"),
        (lambda: sb.Collator(TASK, "tset"), "did you mean 'test'"),
        (lambda: sb.Collator(TASK)([{"input_ids": [1]}]), "lack the columns .*remove_unused_columns"),
    ],
)
def test_bad_input_gets_a_sentence(call, words):
    with pytest.raises(InputError, match=words):
        call()


def test_collator_gives_what_batches_gives():
    import pyarrow as pa
    import torch
    from datasets import Dataset

    from selectivbench_hf.builder import iterate_tables

    for split in ("train", "test_gap_5"):
        rows = Dataset(pa.concat_tables(iterate_tables(TASK, split)), fingerprint="x")
        collator = sb.Collator(TASK, split, seed=4, with_item_ids=True)
        collator.set_epoch(2)
        got = collator([rows[i] for i in (3, 1, 5)])
        keys = {"epoch": 2, "seed": 4} if split == "train" else {}
        expected = make_batch(TASK, split, [3, 1, 5], **keys)
        for name in ("input_features", "labels", "item_ids", "lengths"):
            assert np.array_equal(got[name], expected[name])
        assert got["input_features"].dtype == torch.float32 and got["labels"].dtype == torch.int64


def test_encode_of_an_empty_batch():
    assert encode(TASK, np.zeros((0, 0), np.int64), np.zeros(0, np.int64), "test", []).shape == (0, 0, 9)
    assert make_batch(TASK, "test", [])["input_features"].shape == (0, 0, 9)
