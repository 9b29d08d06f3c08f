"""Recall tasks: the law of their data against protocol section 7, splits, prefixes, golden bytes."""

import itertools
import json
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import selectivbench_hf as sb
from selectivbench_hf import InputError, get_task, layout
from selectivbench_hf.builder import content_hash, features_of, iterate_tables
from selectivbench_hf.features import make_batch
from selectivbench_hf.layout import held_out_hashes, load_split
from selectivbench_hf.recall import DELIMITER, IGNORED, LETTERS, RecallTask, catalogue
from selectivbench_hf.recall_sampling import BUCKETS, string_bucket

sys.path.insert(0, str(Path(__file__).parent / "golden"))
from regenerate import RECALL_SIZES, hashes

GOLDEN = json.loads((Path(__file__).parent / "golden" / "content_hashes.json").read_text())


def mqar(**fields):
    """Its validation split is cheap: a block of train is 50,000 sequences."""
    return RecallTask("mqar_test", **{"num_train": 1, "num_validation": 1_000, "num_test": 1, **fields})


@st.composite
def mqar_tasks(draw):
    pairs = draw(st.integers(1, 9))
    return mqar(
        num_pairs=pairs,
        length=draw(st.integers(4 * pairs, 4 * pairs + 40)),
        vocab_size=2 * draw(st.integers(pairs + 1, pairs + 40)),
        alpha=draw(st.sampled_from([0.0, 0.01, 0.5, 1, 2.5])),
        filler=draw(st.sampled_from(["clean", "any", "zero"])),
        sample_seed=draw(st.integers(0, 5)),
        num_validation=200,
    )


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(mqar_tasks())
def test_every_key_is_asked_once_and_its_value_is_never_contradicted(task):
    data = load_split(task, "validation")
    ids, labels = data.input_ids.astype(int), data.labels.astype(int)
    pairs, half, after = task.num_pairs, task.vocab_size // 2, 2 * task.num_pairs
    assert ids.shape == labels.shape == (200, task.length) and data.labels.dtype == np.int16
    keys, values = ids[:, 0:after:2], ids[:, 1:after:2]
    assert keys.min() >= 1 and keys.max() < half <= values.min() and values.max() < task.vocab_size
    asked = labels != IGNORED
    assert not asked[:, :after].any() and not asked[:, after + 1 :: 2].any()
    for row in range(len(ids)):
        value_of = dict(zip(keys[row], values[row], strict=True))
        assert len(value_of) == len(set(value_of.values())) == pairs
        questions = ids[row, asked[row]]
        assert sorted(questions) == sorted(value_of)
        assert [value_of[key] for key in questions] == labels[row, asked[row]].tolist()
    filler = np.where(asked, -1, ids)[:, after:]
    if task.filler == "zero":
        assert set(np.unique(filler)) <= {-1, 0}
    if task.filler == "any":
        assert filler.max(initial=0) < task.vocab_size
    if task.filler == "clean":
        assert not (filler == 0).any()
        assert not (filler[:, :, None] == ids[:, None, :after]).any()


def chi_square(counts, probabilities):
    """Deviations beyond 5 standard deviations of the statistic are faults: the draws are the same in every run."""
    counts, expected = np.asarray(counts, float), np.asarray(probabilities) * np.sum(counts)
    assert expected.min() > 5
    freedom = len(counts) - 1
    return ((counts - expected) ** 2 / expected).sum() < freedom + 5 * np.sqrt(2 * freedom)


def slots_of(task, split="validation"):
    """(N, D): the slot of each pair, in the order of presentation."""
    data = load_split(task, split)
    keys, after = data.input_ids[:, 0 : 2 * task.num_pairs : 2], 2 * task.num_pairs
    questions = np.where(data.labels != IGNORED, data.input_ids, 0)[:, None, after::2]
    return (questions == keys[:, :, None]).argmax(2)


@pytest.mark.parametrize("alpha", [0.0, 0.01, 0.5, 1.0, 3.0])
def test_slots_are_drawn_one_after_another_in_the_order_of_the_pairs(alpha):
    task = mqar(length=14, num_pairs=3, vocab_size=40, alpha=alpha, num_validation=20_000)  # 4 slots
    weight = np.arange(1, 5) ** (alpha - 1)
    orders = list(itertools.permutations(range(4), 3))
    exact = []
    for order in orders:
        probability, left = 1.0, weight.sum()
        for slot in order:
            probability, left = probability * weight[slot] / left, left - weight[slot]
        exact.append(probability)
    drawn = slots_of(task) @ [16, 4, 1]
    assert chi_square([(drawn == a * 16 + b * 4 + c).sum() for a, b, c in orders], exact)


def test_slots_of_the_setting_with_64_pairs():
    """The first pair is asked early, the last late: the order of presentation decides, where a partial sort would lose it."""
    slots = slots_of(get_task("mqar_256_64", num_validation=3_000), "validation")
    assert slots[:, 0].mean() == pytest.approx(12.6, abs=1.0) and slots[:, -1].mean() == pytest.approx(51.7, abs=1.0)
    weight = np.arange(1, 65) ** (0.01 - 1)
    assert chi_square(np.bincount(slots[:, 0], minlength=64)[:32], weight[:32] / weight[:32].sum())


def test_keys_values_and_filler_are_uniform():
    task = mqar(length=24, num_pairs=2, vocab_size=20, num_validation=4_000)
    data = load_split(task, "validation")
    ids = data.input_ids.astype(int)
    for column, (low, high) in enumerate([(1, 10), (10, 20), (1, 10), (10, 20)]):
        assert chi_square(np.bincount(ids[:, column], minlength=20)[low:high], np.full(high - low, 1 / (high - low)))
    unused = np.array([sorted(set(range(1, 20)) - set(row[:4])) for row in ids])
    filler = ids[:, 4:][(data.labels == IGNORED)[:, 4:]].reshape(len(ids), -1)
    rank = (filler[:, :, None] == unused[:, None]).argmax(2)
    assert chi_square(np.bincount(rank.ravel(), minlength=15), np.full(15, 1 / 15))
    assert chi_square(np.bincount((rank[:, 0] * 15 + rank[:, 1]), minlength=225), np.full(225, 1 / 225))


@settings(max_examples=15, deadline=None)
@given(st.integers(1, 30), st.integers(0, 3))
def test_copying_is_a_string_a_delimiter_and_blanks_that_ask_for_it(longest, seed):
    task = get_task("copy_lite", length=longest, sample_seed=seed, num_train=1, num_validation=300, num_test=1)
    batch = make_batch(task, "validation", np.arange(300))
    for row in range(300):
        steps = int(batch["lengths"][row])
        ids, labels = batch["input_ids"][row, :steps], batch["labels"][row, :steps]
        length = steps - 1 - longest
        assert 1 <= length <= longest and ids[length] == DELIMITER and not ids[length + 1 :].any()
        assert ids[:length].min() >= 1 and ids[:length].max() <= LETTERS
        assert (labels[: length + 1] == IGNORED).all() and (labels[2 * length + 1 :] == IGNORED).all()
        assert (labels[length + 1 : 2 * length + 1] == ids[:length]).all()
        assert (batch["input_ids"][row, steps:] == task.blank_id).all()
        assert (batch["item_ids"][row, length + 1 : 2 * length + 1] == np.arange(length)).all()
        assert (batch["item_ids"][row] >= 0).sum() == length


def test_lengths_and_letters_of_copying():
    data = load_split(get_task("copy_lite", num_train=20_000), "train")
    lengths = data.lengths - 17
    assert chi_square(np.bincount(lengths, minlength=17)[1:], np.full(16, 1 / 16))
    long = data.input_ids[lengths == 16, :16]
    assert chi_square(np.bincount(long.ravel(), minlength=27)[1:], np.full(26, 1 / 26))


def test_short_strings_stand_in_one_split_only():
    task = get_task("copy_lite")
    strings = {}
    for split in task.splits:
        data = load_split(task, split)
        rows = data.input_ids[:, :16] * (np.arange(16) < data.lengths[:, None] - 17)
        strings[split] = {bytes(row.astype(np.uint8)).rstrip(b"\0") for row in rows}
        assert {len(s) for s in strings[split]} == set(range(1, 17))  # every split has strings of every length
    assert not strings["train"] & (strings["validation"] | strings["test"])
    assert not strings["validation"] & strings["test"]
    single = np.zeros((LETTERS, 16), int)
    single[:, 0] = np.arange(1, 27)
    bucket = string_bucket(single)
    assert all(((bucket >= low) & (bucket < high)).any() for low, high in BUCKETS.values())


@pytest.mark.parametrize("name", ["mqar_lite", "copy_lite"])
def test_smaller_splits_are_prefixes_and_splits_are_disjoint(name):
    whole = get_task(name, num_validation=2_300, num_test=1_200)
    held_out_hashes(whole)  # validation and test: raises where they meet
    part = get_task(name, num_train=700, num_validation=1_001, num_test=3)
    rows = {}
    for split in whole.splits:
        large, small = load_split(whole, split), load_split(part, split)
        for column in ("input_ids", "labels", "lengths"):
            assert (getattr(small, column) == getattr(large, column)[: len(small)]).all()
        rows[split] = {row.tobytes() for row in large.items}
    assert not rows["train"] & (rows["validation"] | rows["test"]) and not rows["validation"] & rows["test"]
    assert part.fingerprint != whole.fingerprint
    assert part.split_fingerprint("train") != whole.split_fingerprint("train")
    assert get_task(name, num_train=700).split_fingerprint("train") == part.split_fingerprint("train")


def test_a_task_too_small_for_disjoint_splits_is_refused():
    tiny = mqar(length=4, num_pairs=1, vocab_size=4, filler="zero", num_validation=9, num_test=9)  # 2 sequences
    with pytest.raises(InputError, match="of the sequences in test stand in validation too.* no num_test would fit"):
        held_out_hashes(tiny)
    few = mqar(length=6, num_pairs=1, vocab_size=40, filler="zero", num_train=20_000, num_validation=1)  # 760
    with pytest.raises(InputError, match="too few sequences of 6 steps.* raise length, or take a larger vocabulary"):
        list(iterate_tables(few, "train"))


def test_edges_of_what_is_allowed():
    for fields in (
        {"length": 4, "num_pairs": 1, "vocab_size": 4},
        {"length": 64, "num_pairs": 16, "vocab_size": 34},
        {"vocab_size": 1 << 15},
    ):
        data = load_split(mqar(num_validation=20, **fields), "validation")
        assert ((data.labels != IGNORED).sum(1) == mqar(**fields).num_pairs).all()
    assert data.labels.max() < 1 << 15 and load_split(mqar(vocab_size=1 << 15), "validation").labels.max() > 32_000


@pytest.mark.parametrize(
    ("name", "keywords", "sentence"),
    [
        ("mqar_lite", {"vocab_size": 257}, "vocab_size must be even"),
        ("mqar_lite", {"vocab_size": 65_536}, "vocab_size must be a whole number from 4 to 32768"),
        ("mqar_lite", {"num_pairs": 17}, "needs a length of at least 68 steps"),
        ("mqar_lite", {"num_pairs": 8, "vocab_size": 16}, "need a vocab_size of at least 18"),
        ("mqar_lite", {"num_pairs": 0}, "num_pairs must be a whole number of at least 1"),
        ("mqar_lite", {"filler": "clear"}, "unknown filler 'clear' in mqar_lite; did you mean 'clean'"),
        ("mqar_lite", {"alpha": -1}, "alpha must be from 0.0 to 100.0"),
        ("mqar_lite", {"alpha": float("nan")}, "alpha must be from 0.0 to 100.0"),
        ("mqar_lite", {"grammar_seed": 2}, "unknown task keyword 'grammar_seed' in mqar_lite"),
        ("mqar_lite", {"num_items": 2}, "unknown task keyword 'num_items' in mqar_lite"),
        ("copy_lite", {"num_pairs": 2}, "unknown task keyword 'num_pairs' in copy_lite"),
        ("copy_lite", {"length": 0}, "length must be a whole number from 1"),
        ("lite", {"num_pairs": 2}, "unknown task keyword 'num_pairs' in lite"),
        ("mqar_lite", {"num_train": 0}, "num_train must be a whole number from 1"),
    ],
)
def test_what_is_refused(name, keywords, sentence):
    with pytest.raises(InputError, match=sentence.replace("(", r"\(")):
        get_task(name, **keywords)


def test_catalogue_and_fingerprints():
    sizes = {name: (t.length, t.num_pairs, t.vocab_size, *t.splits.values()) for name, t in catalogue().items()}
    large, small = (100_000, 3_000, 3_000), (20_000, 1_000, 1_000)
    assert sizes == {
        "mqar_64_4": (64, 4, 8192, *large),
        "mqar_128_8": (128, 8, 8192, *large),
        "mqar_256_16": (256, 16, 8192, *large),
        "mqar_512_64": (512, 64, 8192, *large),
        "mqar_256_64": (256, 64, 8192, *large),
        "mqar_lite": (64, 4, 256, *small),
        "copy_64": (64, None, None, *large),
        "copy_256": (256, None, None, *large),
        "copy_lite": (16, None, None, *small),
    }
    assert set(sizes) <= set(sb.task_names())
    base = get_task("mqar_lite")
    changes = {"length": 66, "num_pairs": 3, "vocab_size": 258, "alpha": 1, "filler": "any", "sample_seed": 2}
    changes |= {"num_train": 9, "num_validation": 9, "num_test": 9}
    seen = {base.fingerprint} | {get_task("mqar_lite", **{k: v}).fingerprint for k, v in changes.items()}
    assert len(seen) == len(changes) + 1
    assert (
        get_task(base.to_json()) == base
        and get_task({**base.to_dict(), "name": "mine"}).fingerprint == base.fingerprint
    )
    assert base.chance == {"guess": 1 / 128, "any_value": 1 / 4} and get_task("copy_64").chance == {"guess": 1 / 26}


@pytest.mark.parametrize("name", catalogue())
def test_golden_content(name):
    assert hashes(name) == GOLDEN[name]
    layout._load_split.cache_clear()


@pytest.mark.parametrize("name", ["mqar_lite", "copy_lite"])
def test_load_dataset(name, tmp_path):
    """The same bytes by one process, by two, and streamed, and the published types."""
    import datasets

    datasets.disable_progress_bars()
    one = datasets.load_dataset("selectivbench", name, cache_dir=str(tmp_path / "one"), **RECALL_SIZES)
    assert {s: content_hash([d.data.table]) for s, d in one.items()} == GOLDEN[name]
    two = datasets.load_dataset("selectivbench", name, cache_dir=str(tmp_path / "two"), num_proc=2, **RECALL_SIZES)
    assert {s: content_hash([d.data.table]) for s, d in two.items()} == GOLDEN[name]
    streamed = datasets.load_dataset("selectivbench", name, streaming=True, **RECALL_SIZES)
    for split, expected in GOLDEN[name].items():
        assert content_hash(streamed[split].with_format("arrow").iter(batch_size=4)) == expected
    assert one["train"].column_names == ["example_id", "input_ids", "labels"]
    kinds = {k: getattr(v, "feature", v).dtype for k, v in features_of(get_task(name)).items()}
    assert kinds == {"example_id": "uint16", "input_ids": "uint8", "labels": "int16"}
    assert one["train"].with_format("torch")[0]["labels"].min() == IGNORED  # torch takes int16, and keeps its sign
    part = datasets.load_dataset(
        "selectivbench", name, split="test[1:3]", cache_dir=str(tmp_path / "one"), **RECALL_SIZES
    )
    assert part["example_id"][:] == [1, 2]
    with pytest.raises(InputError, match="unknown keyword 'grammar_seed'"):
        datasets.load_dataset("selectivbench", name, grammar_seed=2)


def test_builder_keywords_of_recall_tasks_reach_the_data(tmp_path):
    import datasets

    keywords = {**RECALL_SIZES, "num_pairs": 2, "filler": "zero", "alpha": 1, "length": 20, "vocab_size": 50}
    data = datasets.load_dataset("selectivbench", "mqar_lite", cache_dir=str(tmp_path), **keywords)
    own = load_split(get_task("mqar_lite", **keywords), "test")
    assert data["test"]["input_ids"][:] == own.input_ids.tolist() and data["test"]["labels"][:] == own.labels.tolist()
