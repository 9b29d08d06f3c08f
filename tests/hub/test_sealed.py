"""Sealed tests and predictions: what a file of weights decides, what is counted, and what of a file of predictions is refused. No Hub is needed."""

import hashlib
import json
from dataclasses import replace

import numpy as np
import pytest
from safetensors.numpy import save_file

import selectivbench_hf as sb
from selectivbench_hf.errors import InputError
from selectivbench_hf.features import make_batch
from selectivbench_hf.hub.predictions import names, score_predictions
from selectivbench_hf.hub.sealed import lines, overlap, sealed_grammar_task, sealed_seed, sealed_task, standard_error
from selectivbench_hf.layout import load_split

SMALL = {"num_train": 200, "num_validation": 16, "num_test": 12}
SEED = "ab" * 32


@pytest.fixture
def weights(tmp_path):
    path = tmp_path / "model.safetensors"
    save_file({"w": np.arange(6.0)}, path)
    return path


def test_the_seed_is_the_hash_of_the_bytes(weights, tmp_path):
    assert sealed_seed(weights) == hashlib.sha256(weights.read_bytes()).hexdigest()
    (tmp_path / "empty").touch()
    for path, told in (
        (tmp_path / "empty", "is empty"),
        (tmp_path / "none", "there is no file"),
        (tmp_path, "there is no file"),
    ):
        with pytest.raises(InputError, match=told):
            sealed_seed(path)


@pytest.mark.parametrize(
    "name", ["lite_noisy_gaps", "lite_nongrammatical_gaps", "horizon_8", "mqar_lite", "copy_lite"]
)
def test_another_bit_is_another_test(name, weights):
    task = sb.get_task(name, **SMALL)
    sealed = sb.sealed_task(task, weights)
    assert sealed == sealed_task(task, sealed_seed(weights)) and sealed.splits == task.splits
    assert sealed.fingerprint != task.fingerprint and sealed.num_states == task.num_states
    assert sb.get_task(sealed.to_json()) == sealed  # 256 bits survive JSON
    other = sealed_task(task, f"{int(sealed_seed(weights), 16) ^ 1:064x}")
    items = [load_split(t, "test").items for t in (task, sealed, other)]
    assert not any(np.array_equal(a, b) for a, b in ((items[0], items[1]), (items[1], items[2])))
    if task.noise != "none":  # the noise is another too
        noise = [make_batch(t, "test", range(2))["input_features"][:, :64] % 0.5 for t in (sealed, other)]
        assert not np.array_equal(*noise)


def test_a_claimed_interval_excuses_no_difference():
    score = {"correct": 900, "total": 1000, "sequences": 100, "accuracy": 0.9, "low": 0.88, "high": 0.92}
    assert standard_error(score) == pytest.approx(0.0102, abs=1e-4)
    assert standard_error(score | {"low": 0.0, "high": 1.0}) < 0.05


def test_sealed_grammar():
    task = sealed_grammar_task("lite_noisy_gaps", SEED)
    assert task.grammar_seed == int(SEED[:15], 16) < 2**60 and task.sample_seed == 1
    assert task.grammar.hash != sb.get_task("lite").grammar.hash and sb.get_task(task.to_json()) == task
    custom = sb.get_task("lite", grammar=sb.Grammar.random(4, 4, 0.5, 2, 1))
    for without in ("mqar_lite", "horizon_8", custom):
        with pytest.raises(InputError, match="has no random grammar"):
            sealed_grammar_task(without, SEED)


def test_overlap_counts():
    task = sb.get_task("lite", **SMALL)
    assert overlap(task, sealed_task(task, SEED)) == {"train": 0, "validation": 0, "test": 0}
    assert overlap(task, task) == {"train": 0, "validation": 0, "test": task.num_test}
    strings = sb.get_task("copy_lite")  # short strings come again, but each belongs to one split
    meet = overlap(strings, sealed_task(strings, SEED))
    assert meet["train"] == meet["validation"] == 0 < meet["test"] < strings.num_test
    blocks = sb.get_task(
        "lite", num_train=60_000
    )  # more than one block of 50,000; a train split of which the last is the sealed test
    last = load_split(blocks, "train").items[-1:]
    sealed = sealed_task(blocks, SEED)
    load_split(sealed, "test").states[0] = load_split(blocks, "train").states[-1]
    try:
        assert np.array_equal(load_split(sealed, "test").items[:1], last)
        assert overlap(blocks, sealed)["train"] == 1
    finally:
        load_split.__globals__["_load_split"].cache_clear()


@pytest.mark.parametrize(
    "task",
    [
        sb.get_task("lite_noisy_gaps", grammar_seed=3, num_test=5, test_gaps=[10, 1]),
        sb.get_task("mqar_lite"),
        sb.get_task("horizon_8"),
    ],
    ids=lambda task: task.name,
)
def test_lines_are_the_data(task):
    sealed = sealed_task(task, SEED)
    how = lines(task, sealed)
    assert eval(how["get_task"], {"sb": sb}) == sealed
    keywords = eval(
        how["load_dataset"].replace("load_dataset(", "dict(name=").replace('"selectivbench", ', "", 1),
        {"dict": _arguments},
    )
    assert sb.get_task(keywords.pop("name"), **keywords) == sealed


def _arguments(name=None, split=None, **keywords):
    assert split == "test"
    return {"name": name, **keywords}


def test_command(selectivbench, strict_json, weights):
    result = selectivbench("sealed", weights, "--task", "lite", "--num_test", "7", "--grammar_seed", "2", "--json")
    [row] = strict_json(result.stdout)
    assert row["name"] == "lite" and row["splits"] == {"test": 7} and row["in_published"]["train"] == 0
    assert int(row["sample_seed"]) == int(row["sealed_seed"], 16) == int(sealed_seed(weights), 16)
    assert row["fingerprint"] == sealed_task(sb.get_task("lite", num_test=7, grammar_seed=2), weights).fingerprint
    assert "load_dataset(" in selectivbench("sealed", weights, "--task", "lite").stdout
    for arguments, told in (
        ((weights, "--task", "liite"), "lite"),
        (("nothing", "--task", "lite"), "no file nothing"),
        ((weights,), "--task"),
    ):
        failed = selectivbench("sealed", *arguments, ok=False)
        assert failed.returncode == 2 and failed.stderr.startswith("error: ") and told in failed.stderr


# -- predictions ---------------------------------------------------------------------------------------------------------


def truth(task, weights) -> dict:
    """What a perfect model predicts, and on the sealed `test` with the first half of each sequence wrong."""
    out = {}
    for prefix, of in (("", task), ("sealed/", sealed_task(task, weights))):
        for split in task.test_splits:
            out[prefix + split] = load_split(of, split).states.astype(np.int32)
    wrong = out["sealed/test"]
    wrong[:, : task.num_items // 2] = (wrong[:, : task.num_items // 2] + 1) % task.num_states
    return out


def test_predictions(weights, tmp_path):
    task = sb.get_task("lite_noisy_gaps", test_gaps=[10, 1], **SMALL)
    path = tmp_path / "predictions.safetensors"
    save_file(truth(task, weights), path)
    scored = score_predictions(path, task, weights)
    assert scored.sealed_seed == sealed_seed(weights)
    assert {split: score["accuracy"] for split, score in scored.scores.items()} == {"test": 1.0, "test_gap_1": 1.0}
    assert scored.sealed_scores["test"] == {
        "correct": 384,
        "total": 768,
        "sequences": 12,
        "accuracy": 0.5,
        "low": 0.5,
        "high": 0.5,
    }
    assert names(task) == ["test", "test_gap_1", "sealed/test", "sealed/test_gap_1"]


def test_answers_of_a_recall_task(weights, tmp_path):
    from selectivbench_hf.recall_scoring import predict_answers

    task, given = sb.get_task("copy_lite", **SMALL), {}
    for prefix, of in (("", task), ("sealed/", sealed_task(task, weights))):
        batch = make_batch(of, "test", range(task.num_test))
        given[prefix + "test"] = predict_answers(np.maximum(batch["labels"], 0), batch["item_ids"], of)
    save_file(given, tmp_path / "p.safetensors")
    scored = score_predictions(tmp_path / "p.safetensors", task, weights)
    assert scored.scores["test"]["accuracy"] == scored.sealed_scores["test"]["accuracy"] == 1.0


BAD = {
    "a split is missing": (lambda t: t.pop("sealed/test_gap_1"), "lacks the predictions of sealed/test_gap_1"),
    "an unknown split": (lambda t: t.update({"sealed/test_gap_2": t["test"]}), "unknown split 'sealed/test_gap_2'"),
    "too few sequences": (
        lambda t: t.update(test=t["test"][:-1]),
        r"test must be whole numbers of the shape \(12, 64\)",
    ),
    "logits": (lambda t: t.update(test=t["test"].astype(np.float32)), "got F32"),
    "no state": (lambda t: t["sealed/test"].__setitem__((0, 0), 9999), "state ids from 0 to 64"),
}


@pytest.mark.parametrize("change, told", BAD.values(), ids=BAD)
def test_bad_predictions(change, told, weights, tmp_path):
    task = sb.get_task("lite_noisy_gaps", test_gaps=[10, 1], **SMALL)
    given = truth(task, weights)
    change(given)
    save_file({k: np.ascontiguousarray(v) for k, v in given.items()}, tmp_path / "p.safetensors")
    with pytest.raises(InputError, match=told):
        score_predictions(tmp_path / "p.safetensors", task, weights)


def test_no_predictions(weights, tmp_path):
    for name, content, told in (("none", None, "no file of predictions"), ("p", b"pickle", "no safetensors file")):
        path = tmp_path / name
        if content is not None:
            path.write_bytes(content)
        with pytest.raises(InputError, match=told):
            score_predictions(path, sb.get_task("lite"), weights)


def test_a_grammar_of_its_own_has_no_short_line():
    task = sb.get_task("lite", grammar=sb.Grammar.random(4, 4, 0.5, 2, 1))
    how = lines(task, sealed_task(task, SEED))
    assert list(how) == ["get_task"] and json.dumps("TASK.json") in how["get_task"]
    assert replace(task, sample_seed=int(SEED, 16)) == sealed_task(task, SEED)
