"""The closed track's rules, one by one: eight runs that keep all of them, then each rule broken alone."""

import json
from pathlib import Path

import pytest

from selectivbench_hf.hub import row_checks, sealed, tracks

from .result_rows import GRID, closed_rows, row, score, text, with_id


def changed(rows, which=None, **fields):
    """The rows with fields changed in all, or in the one at `which`."""
    return [with_id(r | fields) if which in (None, i) else r for i, r in enumerate(rows)]


def grid(*points):
    return text([{"learning_rate": r, "validation_accuracy": v, "run_id": i} for r, v, i in points])


def test_eight_runs_that_keep_every_rule_have_no_fault():
    assert tracks.closed_faults(closed_rows()) == []
    assert tracks.tier(closed_rows()) == "2M"


FAULTS = {  # what is changed -> the only fault then
    "batch": (dict(batch_size=32), "Each run had batches of 32 sequences; the rule is 64."),
    "batch unknown": (
        dict(batch_size=None),
        "Each run had batches of an unknown number of sequences; the rule is 64.",
    ),
    "two passes": (
        dict(train_sequences=40_000, epochs_of_train=2.0),
        "Each run saw 40,000 training sequences; the rule is all 20,000, each once.",
    ),
    "half a pass": (
        dict(train_sequences=10_000, epochs_of_train=0.5, arguments=text({"max_steps": 156})),
        "Each run saw 10,000 training sequences; the rule is all 20,000, each once.",
    ),
    "command": (dict(command=None), "Each run has no command that trains it again."),
    "objective": (dict(objective="prediction"), "Each run has the objective prediction; the rule is classification."),
    "too large": (
        dict(parameters=50_000_001),
        "It has 50,000,001 parameters; the tiers are at most 2,000,000, 10,000,000, 50,000,000.",
    ),
    "size unknown": (dict(parameters=None), "The number of parameters is not known."),
    "no grid": (dict(grid=None), "LOWEST does not report the grid of learning rates."),
    "grid too small": (
        dict(grid=grid((5e-4, 0.1, "a"), (1e-3, 0.6, "run-1-1"), (3e-3, 0.2, "b"))),
        "LOWEST has a grid without the learning rate 0.0003.",
    ),
    "not the best": (
        dict(grid=grid((3e-4, 0.7, "a"), (1e-3, 0.6, "run-1-1"), (3e-3, 0.2, "b"))),
        "LOWEST has a learning rate, 0.001, that is not the best of its grid by validation.",
    ),
    "at the edge": (
        dict(grid=grid((3e-4, 0.5, "a"), (1e-3, 0.55, "b"), (3e-3, 0.6, "run-1-1")), learning_rate=3e-3),
        "LOWEST has a learning rate, 0.003, at the edge of its grid, which must be made wider.",
    ),
    "another rate in the grid": (
        dict(learning_rate=2e-3),
        "LOWEST does not stand in its own grid of learning rates.",
    ),
    "grid of other runs": (
        dict(grid=grid((3e-4, 0.4, "a"), (1e-3, 0.6, "b"), (3e-3, 0.2, "c"))),
        "LOWEST does not stand in its own grid of learning rates.",
    ),
    "grid says otherwise": (
        dict(grid=grid((3e-4, 0.4, "a"), (1e-3, 0.9, "run-1-1"), (3e-3, 0.2, "c"))),
        "LOWEST has another validation accuracy in its grid than in its row.",
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_rule_broken_alone_is_one_sentence(name):
    fields, sentence = FAULTS[name]
    sentence = sentence.replace("LOWEST", "Run run-1-1, which has the lowest seeds,")
    assert tracks.closed_faults(changed(closed_rows(), **fields)) == [sentence]


def test_a_rule_broken_by_some_runs_names_them():
    faults = tracks.closed_faults(changed(closed_rows(), which=2, command=None))
    assert faults == ["Run run-2-1 has no command that trains it again."]


@pytest.mark.parametrize("parameters, name", [(2_000_000, "2M"), (2_000_001, "10M"), (50_000_000, "50M")])
def test_tiers_by_the_largest_run(parameters, name):
    assert tracks.tier(changed(closed_rows(), which=3, parameters=parameters)) == name


def test_the_grid_is_asked_of_the_run_at_the_lowest_seeds_alone():
    rows = closed_rows()
    assert tracks.closed_faults([rows[0], *changed(rows[1:], grid=None)]) == []
    assert tracks.closed_faults([*changed(rows[1:], grid=None)[::-1], rows[0]]) == []


def test_the_mean_of_the_grid_decides_where_a_rate_was_run_more_than_once():
    points = [(3e-4, 0.8, "a"), (3e-4, 0.2, "b"), (1e-3, 0.6, "run-1-1"), (3e-3, None, "c")]
    assert tracks.closed_faults(changed(closed_rows(), grid=grid(*points))) == []


def test_seeds():
    rows = closed_rows()
    assert tracks.closed_faults(rows[:-2]) == ["There are no runs at grammar seed 4; the rule is 1 to 4."]
    assert tracks.closed_faults(rows[:-1]) == ["There are fewer than 2 model seeds at grammar seed 4."]
    assert tracks.closed_faults([*rows, row(5, 1)]) == ["There are runs at grammar seed 5; the rule is 1 to 4 alone."]
    twice = changed(rows, which=7, model_seed=1, data_seed=2)
    assert tracks.closed_faults(twice) == ["There are fewer than 2 model seeds at grammar seed 4."]
    assert tracks.closed_faults([]) == ["There are no runs."]


def test_tasks_that_draw_no_grammar_need_four_model_seeds_and_no_sealed_grammar():
    own = {"task": "horizon_2", "train_sequences": 100_000}
    splits = {"scores": text({"test": score(0.5)}), "sealed_scores": text({"test": score(0.5)})}
    rows = [row(None, m, 0.5, 0.5, **own, **splits) for m in range(1, 5)]
    rows = changed(rows, grid=text([dict(p, run_id="run-None-1") if p["run_id"] == "run-1-1" else p for p in GRID]))
    assert tracks.closed_faults(rows) == []
    assert tracks.closed_faults(rows[:3]) == [
        "It has 3 model seeds; the rule is at least 4 where no grammar is drawn."
    ]


def test_sealed_scores_and_the_sealed_grammar():
    rows = closed_rows()
    without = changed(
        rows, which=1, **dict.fromkeys(("sealed_scores", "sealed_accuracy", "sealed_low", "sealed_high", "gap_in_se"))
    )
    assert tracks.closed_faults(without) == ["Run run-1-2 has no sealed score."]
    known = changed(rows, which=0, sealed_grammar_scores=None)
    assert tracks.closed_faults(known) == [
        "There is no score on a sealed grammar (`selectivbench replay --sealed-grammar`)."
    ]
    replay = with_id(rows[0] | {"trust": "replayed", "replayed_by": "bob"})
    assert tracks.closed_faults(known, [replay]) == [], "somebody else's replay is proof as well"
    compiled = changed(rows, which=0, sealed_grammar_scores=text({"test": score(0.1)}))
    (fault,) = tracks.closed_faults(compiled)
    assert fault.startswith("Trained on a sealed grammar it reaches 10.00%, where the rule is not below the mean")


def test_runs_of_different_recipes_are_not_one_model():
    rows = changed(closed_rows(), which=0, num_hidden_layers=4)
    assert tracks.closed_faults(rows) == [
        "The runs differ in num_hidden_layers: those of one model differ in nothing but their seeds."
    ]
    rows = changed(closed_rows(), which=0, arguments=text({"dropout": 0.0, "num_train_epochs": 1.0, "model_seed": 1}))
    assert tracks.closed_faults(rows) == [
        "The runs differ in their training arguments: those of one model differ in nothing but their seeds."
    ]


# -- whole results -------------------------------------------------------------------------------------------------------


def test_a_whole_row_is_no_part():
    assert tracks.incomplete(row()) is None
    assert tracks.incomplete(row(sealed=None)) is None, "a missing sealed score makes it unofficial, not partial"


PARTS = {
    "max_sequences": (dict(max_sequences=100), "was scored on the first 100 sequences of each split only"),
    "no accuracy": (dict(accuracy=None), "has no score on the published test"),
    "interrupted": (dict(epochs_of_train=0.25), "ended after 0.25 of 1 passes over the training split"),
    "fewer sequences": (
        dict(scores=text({"test": score(0.6, sequences=10)})),
        "was scored on 10 of the 1,000 sequences of test",
    ),
    "fewer sealed sequences": (
        dict(sealed_scores=text({"test": score(0.6, sequences=10)})),
        "was scored on 10 of the 1,000 sequences of the sealed test",
    ),
    "another task": (
        dict(task_fingerprint="0" * 64),
        "was not scored on the catalogue's lite at grammar seed 1: its fingerprint is another",
    ),
    "another sample seed": (
        dict(sample_seed=2),
        "was not scored on the catalogue's lite at grammar seed 1: its fingerprint is another",
    ),
    "no grammar seed where one is drawn": (
        dict(grammar_seed=None),
        "was not scored on the catalogue's lite: its fingerprint is another",
    ),
    "unknown task": (
        dict(task="mine", task_fingerprint="0" * 64),
        "was not scored on the catalogue's mine at grammar seed 1: its fingerprint is another",
    ),
    "above the ceiling": (
        dict(ceiling=0.5),
        "has an impossible score: the accuracy on the published test, 60.00%, is more than 3 standard errors above the ceiling of the "
        "exact filter, 50.00%",
    ),
}


@pytest.mark.parametrize("name", PARTS)
def test_what_is_no_whole_result_is_told_apart(name):
    fields, sentence = PARTS[name]
    assert tracks.incomplete(with_id(row() | fields)) == sentence


def test_a_missing_test_split_is_partial():
    other = row(task="lite_noisy_gaps")
    lacking = "test_gap_1, test_gap_5, test_gap_20, test_gap_50, test_gap_100"
    assert tracks.incomplete(other) == f"has no score on {lacking}"


def test_above_the_ceiling_on_the_sealed_test_alone():
    fault = tracks.incomplete(row(accuracy=0.5, sealed=0.9, ceiling=0.6))
    assert fault.startswith("has an impossible score: the accuracy on the sealed test, 90.00%")
    assert tracks.incomplete(row(accuracy=0.602, sealed=0.602, ceiling=0.6)) is None, "chance explains so much"


def test_a_row_of_another_major_data_version_is_held_to_no_task_of_this_one():
    assert tracks.incomplete(row(data_version="2.0.0", task_fingerprint="0" * 64)) is None
    assert json.loads(row()["scores"])["test"]["sequences"] == 1000


def test_the_written_rules_have_the_numbers_that_the_code_has():
    text = (Path(__file__).parents[2] / "docs" / "leaderboard.md").read_text(encoding="utf-8")
    tiers = [f"{n // 10**6} M" for n in tracks.TIERS.values()]
    for rule in (
        f"at most {tiers[0]}, {tiers[1]} or {tiers[2]} parameters",
        f"of {tracks.BATCH} sequences per optimiser step",
        f"grammar seeds {tracks.GRAMMAR_SEEDS[0]} to {tracks.GRAMMAR_SEEDS[-1]}, at least {tracks.MODEL_SEEDS} model seeds at each",
        f"at least {tracks.MODEL_SEEDS_FIXED} model seeds",
        "at least 3e-4, 1e-3 and 3e-3",
        f"more than {row_checks.ABOVE_CEILING:.0f} standard errors above what the exact filter reaches",
        f"differ by more than {sealed.GAP_LIMIT} standard errors the entry is flagged",
        f"over the submitted grammars by more than {sealed.GAP_LIMIT} standard errors",
    ):
        assert rule in " ".join(text.split()), rule
    assert tracks.LEARNING_RATES == (3e-4, 1e-3, 3e-3)
