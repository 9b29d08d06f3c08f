"""The catalogue, builder keywords, fingerprints and versions."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import selectivbench_hf as sb
from selectivbench_hf import Grammar, InputError, get_task, task_names
from selectivbench_hf.tasks import DATA_VERSION, TASK_FIELDS

CATALOGUE = {
    "lite": (8, 64, 20_000),
    "te1": (20, 200, 200_000),
    "te2": (24, 200, 200_000),
    "te3": (26, 200, 200_000),
    "te4": (30, 200, 200_000),
    "te5": (34, 200, 200_000),
    "te6": (38, 200, 200_000),
    "te7": (40, 200, 200_000),
}


def test_catalogue():
    assert len({get_task(n).fingerprint for n in task_names()}) == len(task_names())
    assert task_names()[:24] == [level + v for level in CATALOGUE for v in ("", "_noisy_gaps", "_nongrammatical_gaps")]
    for level, (letters, items, train) in CATALOGUE.items():
        for suffix in ("", "_noisy_gaps", "_nongrammatical_gaps"):
            task = get_task(level + suffix)
            assert (task.num_states, task.num_symbols, task.blank_id) == (letters**2 + 1, letters + 1, letters + 1)
            assert task.num_items == task.max_string_length == items and task.grammar_seed == 1 and task.level == level
            assert [task.splits[s] for s in ("train", "validation", "test")] == [train, 1000, 1000]
            assert (task.noise, task.noise_scale) == (("uniform", 0.2) if suffix == "_noisy_gaps" else ("none", 0))
            assert get_task(task.to_json()) == task and get_task(task.to_json()).fingerprint == task.fingerprint
    assert "level 3 of 7; 26 letters; 2.34 nats = 3.38 bits" in get_task("te3").describe()


def test_versions_and_seed_suffix():
    assert DATA_VERSION == sb.DATA_VERSION == get_task("lite").data_version == "1.0.0"
    assert get_task("te1_noisy_gaps_seed3") == get_task("te1_noisy_gaps", grammar_seed=3)
    old = {**get_task("lite").to_dict(), "data_version": "0.9.0"}
    with pytest.raises(InputError, match="data version 0.9.0"):
        get_task(old)


def test_fingerprints_cover_what_decides_bytes_and_nothing_else():
    base = get_task("lite_noisy_gaps")
    changes = dict(
        grammar_seed=2,
        sample_seed=2,
        num_items=63,
        max_string_length=63,
        min_string_length=3,
        num_train=9,
        num_validation=9,
        num_test=9,
        train_gap=3,
        test_gaps=[10],
        noise="gaussian",
        noise_scale=0.3,
        density=0.5,
        num_start_states=3,
        dirichlet=1.0,
        letters=9,
        depth=7,
    )
    seen = {base.fingerprint}
    for name, value in changes.items():
        seen.add(get_task("lite_noisy_gaps", **{name: value}).fingerprint)
    seen.add(get_task("lite_nongrammatical_gaps", distractor_rate=0.2).fingerprint)
    seen.add(get_task("lite_nongrammatical_gaps", distractor_start=9).fingerprint)
    seen.add(get_task("lite_nongrammatical_gaps").fingerprint)
    assert len(seen) == len(changes) + 4
    same = get_task(
        "lite_noisy_gaps",
        grammar_seed=1,
        train_gap={n: 4 if 1 < n < 10 else 2 for n in range(1, 11)},
        noise="uniform",
        noise_scale=0.2,
    )
    assert same.fingerprint == base.fingerprint
    # a custom grammar equal to the drawn one gives the same data, so the same fingerprint
    assert get_task("lite_noisy_gaps", grammar=base.grammar).fingerprint == base.fingerprint
    # a split's own: the size of train does not touch test
    other = get_task("lite_noisy_gaps", num_train=9)
    assert other.split_fingerprint("test") == base.split_fingerprint("test")
    assert other.split_fingerprint("train") != base.split_fingerprint("train")
    assert len({base.split_fingerprint(s) for s in base.splits}) == 8


def test_numbers_of_any_type_make_one_fingerprint():
    plain = get_task("lite_noisy_gaps", num_items=20, noise_scale=1.0, test_gaps=[2])
    numpy = get_task("lite_noisy_gaps", num_items=np.int64(20), noise_scale=np.float64(1), test_gaps=(np.int32(2),))
    assert (
        numpy.fingerprint
        == plain.fingerprint
        == get_task("lite_noisy_gaps", num_items=20, noise_scale=1, test_gaps=2).fingerprint
    )
    assert get_task(numpy.to_json()) == plain


def test_what_says_the_same_is_the_same():
    assert (
        get_task("lite", depth=8)
        == get_task("lite")
        == get_task("lite", depth=[8] * 8)
        == get_task("lite", depth=np.full(8, 8))
    )
    assert get_task("lite", letters=9, depth=np.array([2] * 9)).to_dict()["depth"] == 2
    assert get_task("te3", density=0.9).level == "custom" and get_task("te3", grammar_seed=7).level == "te3"


def test_golden_fingerprints():
    assert get_task("lite").fingerprint.startswith("cf450d88") and get_task("te7_noisy_gaps").fingerprint.startswith(
        "5d660e3a"
    )


@settings(max_examples=30, deadline=None)
@given(
    st.fixed_dictionaries(
        {},
        optional={
            "grammar_seed": st.integers(0, 99),
            "num_items": st.integers(1, 99),
            "num_train": st.integers(1, 99),
            "noise_scale": st.floats(0.01, 9),
            "train_gap": st.one_of(
                st.integers(0, 9), st.dictionaries(st.integers(0, 99), st.integers(1, 9), min_size=1)
            ),
            "test_gaps": st.lists(st.integers(0, 99), unique=True, max_size=3),
            "depth": st.one_of(st.integers(1, 8), st.lists(st.integers(1, 5), min_size=8, max_size=8)),
        },
    )
)
def test_json_gives_an_equal_task_back(keywords):
    task = get_task("lite_noisy_gaps", **keywords)
    text = task.to_json()
    assert get_task(text) == task == get_task(json.loads(text))
    assert hash(get_task(text)) == hash(task)


def test_task_files(tmp_path):
    task = get_task("lite", grammar=Grammar.random(letters=5, seed=9))
    (tmp_path / "t.json").write_text(task.to_json())
    assert get_task(tmp_path / "t.json") == task and get_task(str(tmp_path / "t.json")).grammar == task.grammar
    (tmp_path / "g.json").write_text(task.grammar.to_json())
    assert (
        get_task("lite", grammar=str(tmp_path / "g.json")) == task == get_task("lite", grammar=task.grammar.to_json())
    )
    assert task.name == "lite_custom" and task.level == "custom"


@pytest.mark.parametrize(
    "call, words",
    [
        (lambda: get_task("te3_noisygaps"), "did you mean 'te3_noisy_gaps'"),
        (lambda: get_task("TE3"), "did you mean 'te3'"),
        (lambda: get_task("xyz"), "Allowed: lite, "),
        (lambda: get_task(3), "a task is a name"),
        (lambda: get_task("lite", grammar_sed=2), "did you mean 'grammar_seed'"),
        (lambda: get_task("lite", num_items=0), "num_items must be a whole number from 1"),
        (lambda: get_task("lite", num_items=2.5), "num_items must be a whole number"),
        (lambda: get_task("lite", num_test=0), "num_test must be a whole number from 1"),
        (lambda: get_task("lite", noise="gausian"), "did you mean 'gaussian'"),
        (lambda: get_task("lite_noisy_gaps", noise_scale=float("nan")), "noise_scale must be from 0"),
        (lambda: get_task("lite_noisy_gaps", train_gap={1: 0.5}), "whole weights"),
        (lambda: get_task("lite_noisy_gaps", train_gap=-1), "lengths must be from 0"),
        (lambda: get_task("lite_noisy_gaps", test_gaps=[1, 1]), "differ from each other"),
        (lambda: get_task("lite", distractor_rate=0.1), "nongrammatical_gaps only"),
        (lambda: get_task("lite_nongrammatical_gaps", train_gap=2), "no meaning"),
        (lambda: get_task("lite_nongrammatical_gaps", distractor_rate=2), "distractor_rate must be from 0 to 1"),
        (lambda: get_task("lite", grammar_seed="two"), "grammar_seed must be a whole number"),
        (lambda: get_task("lite", all_reachable="no"), "True or False"),
        (lambda: get_task("lite", letters="a"), "letters must be a whole number"),
        (lambda: get_task("lite", letters=-3), "letters must be a whole number of at least 1"),
        (lambda: get_task("lite", letters=True), "letters must be a whole number"),
        (lambda: get_task("lite", density=7), "density must be above 0 and at most 1"),
        (lambda: get_task("lite", density=True), "density must be above 0"),
        (lambda: get_task("lite", density="0.4"), "density must be above 0"),
        (lambda: get_task("lite", dirichlet=-1), "dirichlet must be None or a positive number"),
        (lambda: get_task("lite", num_start_states=0), "num_start_states must be a whole number of at least 1"),
        (lambda: get_task("lite", num_start_states=65), "more than the 64 states"),
        (lambda: get_task("lite", depth="8"), "depth must be a whole number or one entry per letter"),
        (lambda: get_task("lite", num_items=20_000), "num_items must be a whole number from 1 to 10000"),
        (lambda: get_task("lite", noise_scale=0.5), "contradict each other"),
        (lambda: get_task("lite_noisy_gaps", noise="none", noise_scale=0.3), "contradict each other"),
        (lambda: get_task("lite", noise="uniform", noise_scale=0), "contradict each other"),
        (lambda: get_task("lite", distractor_start=5), "nongrammatical_gaps only"),
        (lambda: get_task("lite_noisy_gaps", train_gap={1: 1, "1": 2}), "train_gap must be"),
        (lambda: get_task("lite_noisy_gaps", test_gaps="x"), "test_gaps must be a list"),
        (lambda: get_task({"name": "x", "test_gaps": None}), "test_gaps must be a list"),
        (lambda: get_task('{"name": "x", "num_items": 5, "num_items": 6}'), "'num_items' stands twice"),
        (lambda: get_task('{"name": "x", "noise_scale": NaN}'), "NaN is not JSON"),
        (lambda: get_task("lite_noisy_gaps", train_gap='{"1": 1, "1": 2}'), "train_gap must be"),
        (lambda: get_task({"name": 5}), "a task's name must be letters"),
        (lambda: get_task({"name": "x*"}), "a task's name must be letters"),
        (lambda: get_task({"name": None}), "a task's name must be letters"),
        (lambda: get_task("[" * 100_000), "not valid JSON"),
        (lambda: get_task("lite", grammar=""), "grammar is empty"),
        (lambda: get_task("lite", grammar=5), "must be a dict, JSON text or a file"),
        (lambda: get_task("lite", grammar=str(Path(__file__).parent / "golden")), "cannot read the grammar file"),
        (lambda: get_task("lite_noisy_gaps", train_gap={1.5: 1}), "train_gap must be"),
        (lambda: get_task("lite_noisy_gaps", train_gap="x"), "train_gap must be"),
        (lambda: get_task("lite", min_string_length=70), "above max_string_length"),
        (lambda: get_task("lite", grammar=Grammar.random(letters=5), letters=4), "letters cannot be given together"),
        (lambda: get_task("lite", grammar="nowhere.txt"), "cannot read the grammar file"),
        (lambda: get_task("nowhere.json"), "cannot read the task file"),
        (lambda: get_task('{"name": "x", "colour": 1}'), "colour"),
        (lambda: get_task('{"variant": "plain"}'), "lacks the field 'name'"),
        (lambda: get_task("{"), "not valid JSON"),
        (lambda: get_task("lite").check_split("tests"), "did you mean 'test'"),
        (lambda: get_task("lite").max_steps("test_gap_5"), "unknown split"),
    ],
)
def test_bad_input_gets_a_sentence(call, words):
    with pytest.raises(InputError, match=words):
        call()


def test_gap_law_in_lowest_terms_and_max_steps():
    task = get_task("lite_noisy_gaps", train_gap={3: 4, 1: 2})
    assert task.train_gap == ((1, 1), (3, 2)) and task.max_steps("train") == 64 * 4
    assert get_task("te7_noisy_gaps").max_steps("test_gap_100") == 20_200
    assert get_task("lite_nongrammatical_gaps").max_steps("train") == 64 + 56
    assert set(TASK_FIELDS) >= {"grammar", "grammar_seed", "num_items", "noise", "train_gap"}


def test_tasks_work_as_keys_and_across_processes():
    import pickle

    task = get_task("lite", num_train=10)
    assert pickle.loads(pickle.dumps(task)) == task and {task: 1}[get_task("lite", num_train=10)] == 1
    assert np.array_equal(pickle.loads(pickle.dumps(task)).grammar.targets, task.grammar.targets)
