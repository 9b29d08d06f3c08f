"""Rows: what a schema asks of them, what agrees inside of one, what is doubtful, and files of them."""

import datetime
import json
import math
import shlex

import jsonschema
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from selectivbench_hf import results
from selectivbench_hf.errors import InputError
from selectivbench_hf.hub import rows
from selectivbench_hf.hub.row_checks import check_claims
from selectivbench_hf.tasks import get_task

from .result_rows import counted as score

TASK = get_task("lite_noisy_gaps")
SHA = "a1" * 32


def scores(correct=50_000, **more):
    return {split: score(correct, **more) for split in TASK.test_splits}


def make(**changes):
    """A whole row of saved weights, none of whose fields is doubtful."""
    known = {
        "run_id": "run-1",
        "name": "GLA",
        "repo": "alice/gla",
        "repo_revision": "b" * 40,
        "submitter": "alice",
        "trust": "weights",
        "scores": scores(),
        "sealed_scores": scores(49_900),
        "sealed_seed": SHA,
        "weights_sha256": SHA,
        "learning_rate": 1e-3,
        "parameters": 1000,
        "mixer": "gla",
        "mixer_kwargs": {"expand_v": 1.0},
        "versions": {"torch": "2.13.0", "fla": None},
        "grid": [{"learning_rate": 1e-3, "validation_accuracy": 0.5, "run_id": "run-1"}],
        "ceiling": 0.95,
        "command": "accelerate launch -m selectivbench_hf.training --task lite_noisy_gaps",
    }
    return rows.make_row(TASK, **known | changes)


ROW = make()


def forged(**changes):
    """A row with fields changed after the fact, and a row_id that fits."""
    row = ROW | changes
    return row | {"row_id": rows.row_id(row)}


def refused(row, told):
    with pytest.raises(InputError) as caught:
        rows.check_rows([ROW, row], "rows.json")
    message = str(caught.value)
    assert told in message and "row 2 of rows.json" in message, message
    assert message.isprintable() and len(message) < 600
    return message


# -- the schema ----------------------------------------------------------------------------------------------------------


def test_a_row_follows_the_published_schema_and_is_found_sound():
    jsonschema.Draft202012Validator.check_schema(rows.SCHEMA)
    jsonschema.Draft202012Validator(rows.SCHEMA).validate(ROW)
    assert tuple(ROW) == rows.FIELDS == tuple(rows.SCHEMA["required"])
    assert rows.check_rows([ROW], "x") == [ROW] and ROW["flags"] == []
    assert ROW["accuracy"] == 50_000 / 64_000 and ROW["sealed_accuracy"] == 49_900 / 64_000
    assert rows.content(ROW, "mixer_kwargs") == {"expand_v": 1.0} and rows.content(ROW, "arguments") is None
    for name, field in rows.SCHEMA["properties"].items():
        assert "pattern" not in field or "$comment" in field, name


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"name": "<script>alert(1)</script>"}, "name of row 2 of rows.json must not hold '<' or '>'"),
        ({"name": "a\u202eb"}, "U+202E"),
        ({"name": "a\u200bb"}, "U+200B"),
        ({"name": "a  b"}, "two spaces"),
        ({"name": "x" * 101}, "at most 100"),
        ({"name": None}, "must be text, got None"),
        ({"flags": ["<b>"]}, "entry 1 of flags"),
        ({"flags": "no"}, "must be a list"),
        ({"flags": ["a"] * 51}, "at most 50"),
        ({"flags": [1]}, "must be text, got 1"),
        ({"notes": "<img src=x>"}, "'<' or '>'"),
        ({"command": "a\nb"}, "U+000A"),
        ({"accuracy": math.nan}, "must be a number or null"),
        ({"accuracy": math.inf}, "must be a number or null"),
        ({"accuracy": 1.1}, "must be from 0 to 1"),
        ({"accuracy": -0.1}, "must be from 0 to 1"),
        ({"accuracy": True}, "must be a number or null, got True"),
        ({"accuracy": "0.5"}, "must be a number or null, got '0.5'"),
        ({"parameters": True}, "must be a whole number"),
        ({"parameters": 1.5}, "must be a whole number"),
        ({"parameters": -1}, "from 0 to"),
        ({"parameters": 2**63}, "from 0 to"),
        ({"parameters": 10**400}, "from 0 to"),
        ({"learning_rate": 10**400}, "must be a number"),
        ({"learning_rate": "1e-3"}, "must be a number"),
        ({"state_grows": 1}, "true or false"),
        ({"trust": "verified"}, "unknown value 'verified'"),
        ({"trust": ["weights"]}, "must be one of"),
        ({"trust": None}, "must be one of"),
        ({"objective": None}, "must be one of"),
        ({"row_version": None}, "must be 1"),
        ({"repo": "../../etc"}, "OWNER/NAME"),
        ({"repo": "alice/x/y"}, "OWNER/NAME"),
        ({"repo_revision": "v1.0.0"}, "40 hex digits"),
        ({"repo_revision": "B" * 40}, "40 hex digits"),
        ({"run_id": "../x"}, "letters, digits"),
        ({"run_id": "a" * 65}, "at most 64"),
        ({"task": "te9_noisy_gaps"}, "unknown task 'te9_noisy_gaps'"),
        ({"task": "te3_noisy_gaps.json"}, "unknown task"),
        ({"task": "../x"}, "must be letters, digits"),
        ({"data_version": "1.0"}, "a version such as 1.0.0"),
        ({"data_version": "01.0.0"}, "a version such as 1.0.0"),
        ({"date": "2026-02-30"}, "no day of the calendar"),
        ({"date": "today"}, "YYYY-MM-DD"),
        ({"source_url": "javascript:alert(1)"}, "https://"),
        ({"source_url": "http://x"}, "https://"),
        ({"source_url": "https://a@b.c/x"}, "https://"),
        ({"source_url": 'https://a.b/"onclick=x'}, "https://"),
        ({"mixer_kwargs": "{"}, "no strict JSON"),
        ({"mixer_kwargs": "[]"}, "must be an object"),
        ({"mixer_kwargs": '{"a": NaN}'}, "NaN is not JSON"),
        ({"mixer_kwargs": '{"a": "\\u003cb\\u003e"}'}, "'<' or '>'"),
        ({"mixer_kwargs": '{"\\u202e": 1}'}, "U+202E"),
        ({"mixer_kwargs": '{"a": ' + "[" * 5_000 + "]" * 5_000 + "}"}, "mixer_kwargs"),
        ({"mixer_kwargs": {"a": 1}}, "must be text or null"),
        ({"versions": '{"a": 1}'}, "must be text or null"),
        ({"versions": '{"a": "' + "x" * 9_000 + '"}'}, "at most 8,000"),
        ({"nonlinear": "maybe"}, "unknown value"),
        ({"row_version": True}, "must be 1"),
        ({"row_version": "1"}, "must be 1"),
        ({"row_version": 0}, "must be 1"),
        ({"row_version": 2}, "is of version 2, and this package reads version 1: update"),
        ({"unknown_field": 1}, "unknown field 'unknown_field'"),
        ({"nmae": 1}, "did you mean 'name'"),
    ],
)
def test_fields_that_are_refused(changes, told):
    row = ROW | changes
    try:
        row["row_id"] = rows.row_id(row)
    except ValueError:  # NaN has no canonical JSON
        pass
    refused(row, told)


def test_a_field_that_lacks_and_rows_that_are_none():
    refused({k: v for k, v in ROW.items() if k != "notes"}, "lacks the field 'notes'")
    for nothing in (None, 5, "row", [ROW]):
        refused(nothing, "must be an object")
    with pytest.raises(InputError, match="must hold a list of rows, got a dict"):
        rows.check_rows({}, "x")
    with pytest.raises(InputError, match="row 2 of x is row 1 again"):
        rows.check_rows([ROW, dict(ROW)], "x")


def test_a_row_that_was_changed_after_it_was_made():
    refused(ROW | {"name": "Another"}, "row_id is not the SHA-256")
    assert rows.check_rows([forged(name="Another")], "x")[0]["name"] == "Another"
    shuffled = dict(reversed(ROW.items()))
    assert rows.check_rows([shuffled], "x") == [ROW] and tuple(rows.check_rows([shuffled], "x")[0]) == rows.FIELDS


values = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(),
    st.text(max_size=20),
    st.sampled_from(["1", SHA, "b" * 40, "{}", "[]", "weights", "2026-11-30", "yes", "1.0.0", '{"test":{}}']),
    st.lists(st.one_of(st.text(max_size=5), st.integers()), max_size=3),
    st.dictionaries(st.text(max_size=5), st.integers(), max_size=2),
)


@settings(deadline=None, max_examples=400)
@given(st.sampled_from([*rows.FIELDS, "another"]), values)
def test_only_an_input_error_comes_out_and_what_passes_follows_the_schema(field, value):
    try:
        row = forged(**{field: value})
    except (ValueError, TypeError):
        row = ROW | {field: value}
    try:
        (kept,) = rows.check_rows([row], "x")
    except InputError as error:
        assert str(error).isprintable() and len(str(error)) < 700
        return
    jsonschema.Draft202012Validator(rows.SCHEMA).validate(json.loads(json.dumps(kept, allow_nan=False)))


@settings(deadline=None, max_examples=300)
@given(st.sampled_from(rows.JSON_FIELDS), st.text('{}[]":,0123456789.-etcorlasudhigw \\<n', max_size=60))
def test_json_texts_of_any_kind(field, text):
    try:
        rows.check_rows([ROW | {field: text}], "x")
    except InputError as error:
        assert len(str(error)) < 700


# -- what must agree -----------------------------------------------------------------------------------------------------


def with_score(**changes):
    """Published scores whose split test has other numbers, as canonical JSON."""
    return rows.canonical(scores() | {"test": score(50_000) | changes})


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"accuracy": 0.9}, "accuracy of row 2 of rows.json is 0.9, but scores says 0.78125"),
        ({"accuracy_high": 1.0}, "accuracy_high"),
        ({"sealed_accuracy": None}, "sealed_accuracy"),
        ({"scores": with_score(accuracy=0.9, low=0.8, high=1.0)}, "must be correct / total, 0.78125"),
        ({"scores": with_score(correct=64_001)}, "64,001 items right of 64,000"),
        ({"scores": with_score(low=0.79)}, "outside of its interval"),
        ({"scores": with_score(high=None)}, "both ends of an interval"),
        ({"scores": with_score(correct=-1)}, "at least 0"),
        ({"scores": with_score(correct=True)}, "whole number"),
        ({"scores": with_score(correct=50_000.0)}, "whole number"),
        ({"scores": with_score(more=1)}, "unknown field 'more'"),
        ({"scores": rows.canonical({"test": {"correct": 1}})}, "lacks the field 'total'"),
        ({"scores": rows.canonical({"test/../x": score(1)})}, "those of splits"),
        ({"scores": rows.canonical({"<b>": score(1)})}, "'<' or '>'"),
        ({"scores": None}, "must be text, got None"),
        ({"max_sequences": 10}, "1,000 sequences, and max_sequences is 10"),
        ({"sealed_seed": None}, "both sealed_seed and sealed_scores"),
        ({"weights_sha256": "c" * 64}, "the sealed seed must be the SHA-256 of the weights"),
        ({"weights_sha256": None}, "trust 'weights' but no weights_sha256"),
        ({"replayed_by": "bob"}, "replayed_by but trust 'weights'"),
        ({"trust": "replayed"}, "trust 'replayed' but no replayed_by"),
        ({"trust": "replayed", "replayed_by": "Alice"}, "a replay must be somebody else's"),
        ({"trust": "replayed", "replayed_by": "bob", "command": None}, "but no command"),
        ({"repo": None}, "repo_revision but no repo"),
        ({"state_grows": True, "state_size": 5}, "although its state grows"),
        ({"grid": rows.canonical(2 * rows.content(ROW, "grid"))}, "names a run twice"),
    ],
)
def test_fields_that_contradict_each_other(changes, told):
    refused(forged(**changes), told)


def test_a_gap_needs_two_accuracies_and_a_sealed_grammar_its_seed():
    unsealed = make(sealed_scores=None, sealed_seed=None)
    assert unsealed["gap_in_se"] is None
    for changes, told in (
        ({"gap_in_se": 1.0}, "gap_in_se without both"),
        ({"sealed_grammar_scores": unsealed["scores"]}, "no sealed_seed"),
    ):
        row = unsealed | changes
        refused(row | {"row_id": rows.row_id(row)}, told)


def test_a_split_without_items_has_no_accuracy():
    nothing = {"correct": 0, "total": 0, "sequences": 3, "accuracy": None, "low": None, "high": None}
    row = make(scores=scores() | {"test": nothing}, sealed_scores=None, sealed_seed=None)
    assert row["accuracy"] is None and row["accuracy_low"] is None
    bad = row | {"scores": rows.canonical(scores() | {"test": nothing | {"low": 0.0, "high": 1.0}})}
    refused(bad | {"accuracy_low": 0.0, "accuracy_high": 1.0}, "none over no items")


def test_rows_of_other_data_versions():
    major = forged(data_version="2.0.0", task="te9_future")
    minor = forged(data_version="1.7.0", task="te9_future")
    assert len(rows.check_rows([major, minor], "x")) == 2
    assert "another major version" in rows.doubts(major)[0]
    assert "does not know the task te9_future" in rows.doubts(minor)[0]


# -- doubts --------------------------------------------------------------------------------------------------------------


def test_what_is_doubtful_about_a_row():
    def only(row, told):
        (doubt,) = rows.doubts(row)
        assert told in doubt and doubt in row["flags"]

    high = make(ceiling=0.7)
    assert [
        ("published" in d, "sealed" in d, "above the ceiling of the exact filter, 70.00%" in d) for d in high["flags"]
    ] == [
        (True, False, True),
        (False, True, True),
    ]
    assert make(ceiling=0.779)["flags"] == []  # by less than 3 standard errors
    assert len(rows.doubts(ROW, ceiling=0.7)) == 2  # a row's own ceiling may be forged
    only(make(sealed_scores=scores(40_000)), "differ by")
    only(forged_gap := make(gap_in_se=5.0), "differ by 5.0 standard errors")
    assert forged_gap["gap_in_se"] == 5.0
    hidden = make(sealed_scores=scores(40_000), gap_in_se=0.0)  # the counts tell what the field hides
    assert hidden["gap_in_se"] == 0.0 and "standard errors" in hidden["flags"][0]
    only(make(sealed_scores=None, sealed_seed=None), "no sealed score")
    only(make(scores={"test": score(50_000)}), "Of the published test splits these are missing: test_gap_1, ")
    only(make(sealed_scores={"test": score(49_900)}), "Of the sealed test splits these are missing")
    part = {split: score(500, 640, 10) for split in TASK.test_splits}
    only(make(scores=part, sealed_scores=part, max_sequences=10), "first 10 sequences")
    assert "has 10 sequences instead of 1,000" in make(scores=part, sealed_scores=part)["flags"][0]
    tomorrow = datetime.datetime.now(datetime.UTC).date() + datetime.timedelta(days=3)
    only(make(date=tomorrow.isoformat()), "in the future")
    other = get_task("lite_noisy_gaps", num_train=64)
    row = rows.make_row(
        other, run_id="r", name="x", trust="predictions", scores=scores(), sealed_seed=SHA, sealed_scores=scores()
    )
    only(row, "not lite_noisy_gaps as the catalogue has it")


def test_the_gap_in_standard_errors():
    one, other = score(50_000), score(49_000)
    by_hand = (one["accuracy"] - other["accuracy"]) / math.hypot(0.004 / 1.959964, 0.004 / 1.959964)
    assert rows.gap_in_se(one, other) == pytest.approx(by_hand) and rows.gap_in_se(other, one) == pytest.approx(
        -by_hand
    )
    full = score(64_000) | {"low": 1.0, "high": 1.0}
    almost = score(63_999) | {"low": 63_999 / 64_000, "high": 63_999 / 64_000}
    assert 0 < rows.gap_in_se(full, almost) < 1  # no spread is no certainty
    assert rows.gap_in_se(full, full) == 0
    assert rows.gap_in_se(full, {**full, "accuracy": None, "low": None, "high": None}) is None


def test_a_forged_revision_of_the_data_is_told():
    said = {"id": "o/selectivbench", "revision": "a" * 40, "tag": "v1.0.0"}
    assert rows.dataset_doubts(said, {"v1.0.0": "a" * 40}) == []
    assert "is not that of its tag v1.0.0" in rows.dataset_doubts(said, {"v1.0.0": "b" * 40})[0]
    assert "has no tag v1.0.0" in rows.dataset_doubts(said, {"v1.1.0": "a" * 40})[0]
    later = said | {"tag": "v2.0.0"}
    assert "another major version" in rows.dataset_doubts(later, {"v2.0.0": "a" * 40})[0]


def test_a_submission_cannot_say_what_only_others_can():
    replayed = forged(trust="replayed", replayed_by="bob")
    check_claims([ROW], "alice/gla")
    with pytest.raises(InputError, match="run run-1 of mallory/gla says that it belongs to alice/gla"):
        check_claims([ROW], "mallory/gla")
    with pytest.raises(InputError, match="run run-1 of alice/gla calls itself replayed"):
        check_claims([replayed], "alice/gla")


# -- from a record -------------------------------------------------------------------------------------------------------


def record(task, **arguments):
    """A finished run's record as training writes it, with what rows need."""
    from selectivbench_hf.arguments import TrainingArguments

    args = TrainingArguments(task="/home/me/runs/task.json", output_dir="/home/me/runs/x", **arguments).as_dict()
    counts = {
        "correct": 500,
        "correct_first": 0,
        "correct_last": 0,
        "total": 640,
        "accuracy": 500 / 640,
        "accuracy_first": 0.0,
    }
    split = counts | {"accuracy_last": 0.0, "loss": 1.0, "steps": 640, "sequences": 10, "interval": [0.7, 0.85]}
    split |= {"seconds": 1.0, "sequences_per_second": 10.0}
    made = {
        "record_version": 1,
        "run_id": "0123456789abcdef",
        "status": "finished",
        "reason": None,
        "created": "2026-11-29T10:00:00Z",
        "updated": "2026-11-30T10:00:00Z",
        "task": {
            "name": task.name,
            "data_version": task.data_version,
            "fingerprint": task.fingerprint,
            "description": task.describe(),
            "split_fingerprints": {},
            "builder_keywords": {},
        },
        "model": {
            "name": args["mixer"],
            "parameters": 1234,
            "trainable_parameters": 1234,
            "state_size": 512,
            "kernel_backend": "torch",
            "config": {"hidden_size": 32, "num_hidden_layers": 2},
        },
        "self_check": None,
        "arguments": args,
        "seeds": {"grammar": task.grammar_seed, "sample": 1, "model": args["model_seed"], "data": 0},
        "training": {
            "steps": 1, "total_steps": 1, "sequences": 128, "global_batch": 64, "micro_batch": 64, "accumulation": 1, "processes": 1,
            "warmup_steps": 0, "precision": "fp32", "optimizer_groups": [], "loss": 1.0, "token_accuracy": 0.5, "seconds": 1.0,
            "sequences_per_second": 1.0, "resumes": 0, "bit_exact": True, "notes": [],
        },
        "evaluation": {
            "checkpoint": "best", "step": 1, "objective": "classification", "selection": "x", "precision": "fp32", "max_sequences": 10,
            "seconds": 1.0, "processes": 1, "validation_history": [{"step": 1, "accuracy": 0.25}],
        },
        "scores": {split_name: dict(split) for split_name in task.test_splits},
        "versions": {"selectivbench_hf": "0.1.0", "python": "3.11", "torch": "2.13.0"},
        "hardware": {"device": "cpu: x86_64, 2 threads", "processes": 1, "threads": 2},
    }  # fmt: skip
    results.validate(made)
    return made


def test_the_row_of_a_record():
    task = get_task("lite_noisy_gaps", num_train=256, grammar_seed=3, train_gap={"1": 1, "2": 3}, test_gaps=[10, 20])
    run = record(task, mixer="gla", hidden_size=32, num_hidden_layers=2, model_seed=7, mixer_kwargs={"expand_v": 1.0})
    row = rows.row_of(
        run,
        task,
        name="GLA 32",
        trust="weights",
        weights_sha256=SHA,
        sealed_seed=SHA,
        sealed_scores=run["scores"],
        flags=["By hand."],
    )
    assert (row["task"], row["grammar_seed"], row["model_seed"], row["date"]) == (
        "lite_noisy_gaps",
        3,
        7,
        "2026-11-30",
    )
    assert (row["mixer"], row["decay"], row["write_rule"], row["channel_mixing"], row["nonlinear"], row["state_grows"]) == (
        "gla", "data-dependent vector", "additive", "none", "no", False,
    )  # fmt: skip
    assert row["epochs_of_train"] == 0.5 and row["validation_accuracy"] == 0.25 and row["max_sequences"] == 10
    assert row["accuracy"] == 500 / 640 and (row["accuracy_low"], row["accuracy_high"]) == (0.7, 0.85)
    assert row["gap_in_se"] == 0 and row["flags"][0] == "By hand." and "first 10 sequences" in row["flags"][1]
    assert "/home" not in json.dumps(row) and rows.content(row, "arguments")["task"] == "task.json"
    validated = rows.row_of(
        run,
        task,
        name="x",
        trust="weights",
        weights_sha256=SHA,
        scores=run["scores"] | {"validation": run["scores"]["test"]},
    )
    assert validated["validation_accuracy"] == 500 / 640


@pytest.mark.parametrize(
    ("name", "keywords", "arguments"),
    [
        ("lite_noisy_gaps", {"num_train": 256, "train_gap": {"1": 1, "2": 3}, "test_gaps": [10, 20]}, {"mixer_kwargs": {"expand_v": 1.0}}),
        ("te3_noisy_gaps", {"grammar_seed": 2}, {"learning_rate": 3e-4, "model_seed": 5, "dropout": 0.0, "block": "paper"}),
        ("horizon_8", {"num_train": 100}, {"mixer": "gru", "max_steps": 5, "mlp": False}),
        ("copy_lite", {"length": 8}, {"mixer": "transformer", "tie_word_embeddings": True, "match_params": 2e6, "hidden_size": None}),
    ],
)  # fmt: skip
def test_the_command_of_a_row_trains_the_same_again(name, keywords, arguments):
    from selectivbench_hf.arguments import from_argv

    task = get_task(name, **keywords)
    run = record(task, **{"mixer": "gla", "hidden_size": 32, **arguments})
    words = shlex.split(rows.recorded(run, task)["command"])
    assert words[:5] == ["accelerate", "launch", "-m", "selectivbench_hf.training", "--task"]
    again = from_argv(words[4:])
    assert get_task(again.task, **again.task_kwargs).fingerprint == task.fingerprint
    free = ("task", "task_kwargs", "output_dir", "mixed_precision")
    assert {k: v for k, v in again.as_dict().items() if k not in free} == {
        k: v for k, v in run["arguments"].items() if k not in free
    }


def test_what_no_flag_can_say_has_no_command():
    run = record(TASK, mixer="gla")
    run["model"]["config"] = None
    assert rows.recorded(run, TASK)["command"] is None and rows.recorded(run, TASK)["decay"] is None
    outside = record(TASK, mixer="os:system")  # a record comes from outside: nothing is imported for it
    assert rows.recorded(outside, TASK)["command"] is None and rows.recorded(outside, TASK)["decay"] is None
    with pytest.raises(InputError, match="of another task than lite_noisy_gaps"):
        rows.recorded(run | {"task": run["task"] | {"fingerprint": "0" * 64}}, TASK)


# -- Parquet -------------------------------------------------------------------------------------------------------------


def test_rows_go_through_parquet_unchanged(tmp_path):
    many = [make(run_id=f"run-{i}", notes="\u540d" if i else None, flags=["a", "b"] * (i % 2)) for i in range(3)]
    rows.to_parquet(many, tmp_path / "rows.parquet")
    assert rows.from_parquet(tmp_path / "rows.parquet") == many
    assert pq.read_schema(tmp_path / "rows.parquet").equals(rows.arrow_schema())
    rows.to_parquet(many, tmp_path / "again.parquet")
    assert (tmp_path / "again.parquet").read_bytes() == (tmp_path / "rows.parquet").read_bytes()
    rows.to_parquet([], tmp_path / "none.parquet")
    assert rows.from_parquet(tmp_path / "none.parquet") == []
    with pytest.raises(InputError, match="row 2 of .* must not hold '<' or '>'"):
        rows.to_parquet([many[0], forged(name="<b>")], tmp_path / "bad.parquet")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["again.parquet", "none.parquet", "rows.parquet"]


def test_files_that_are_refused(tmp_path, monkeypatch):
    path, schema = tmp_path / "rows.parquet", rows.arrow_schema()

    def write(table, **keywords):
        pq.write_table(table, path, **{"use_dictionary": False, **keywords})

    def told(sentence):
        with pytest.raises(InputError) as caught:
            rows.from_parquet(path)
        assert sentence in str(caught.value) and str(caught.value).isprintable(), str(caught.value)

    whole = pa.Table.from_pylist([ROW], schema=schema)
    for content in (b"", b"PAR1", b"PAR1" + b"\xff" * 100 + b"PAR1", b"\x80\x04K\x05."):
        path.write_bytes(content)
        told("no sound Parquet file")
    write(whole)
    good = path.read_bytes()
    path.write_bytes(good[: len(good) // 2] + b"\x00" * 64 + good[len(good) // 2 + 64 :])
    with pytest.raises(InputError):
        rows.from_parquet(path)
    write(whole.drop_columns(["notes"]))
    told("lacks the column 'notes'")
    write(whole.append_column("<b>\u202e", pa.array(["x"])))
    told(r"unknown column '<b>\u202e'")
    write(whole.select(list(reversed(rows.FIELDS))))
    told("in another order or twice")
    write(whole.set_column(rows.FIELDS.index("parameters"), "parameters", pa.array(["1000"])))
    told("the column parameters must be int64, got 'string'")
    write(whole.replace_schema_metadata({b"selectivbench_row_version": b"2"}).append_column("new", pa.array([1])))
    told("has rows of version 2, and this package reads version 1: update")
    write(whole, use_dictionary=True)
    told("dictionary-encoded")
    write(pa.Table.from_pylist([ROW, ROW | {"name": "Another"}], schema=schema))
    told(f"row 2 of {path}: row_id is not")
    write(pa.Table.from_pylist([ROW, ROW], schema=schema))
    told("row 2 of")
    names = whole.column_names
    torn = pa.array([b"\xff\xfe"]).cast(pa.binary()).view(pa.string())
    write(whole.set_column(names.index("name"), schema.field("name"), torn))
    told("no sound Parquet file")
    monkeypatch.setattr(rows, "UNPACKED_BYTES", 16 << 20)
    write(pa.Table.from_pylist([ROW | {"notes": "x" * 1_000_000}] * 20, schema=schema), compression="zstd")
    assert path.stat().st_size < 1 << 20
    told("unpacks to more than 16,777,216 bytes")
    with monkeypatch.context() as lies:  # a footer need not say what the columns hold
        lies.setattr(rows, "_check_footer", lambda file, path: None)
        told("unpacks to more than its footer says")
    write(
        pa.table({name: pa.nulls(rows.MOST_ROWS + 1, schema.field(name).type) for name in rows.FIELDS}, schema=schema)
    )
    told("100,001 rows; at most 100,000")
    with open(path, "wb") as large:
        large.truncate(rows.PARQUET_BYTES + 1)
    told("at most 67,108,864 are read")
    write(whole)
    assert rows.from_parquet(path) == [ROW]
