"""Rows -> entries: what is averaged with what, what never is, and the order."""

import json
import math
import statistics

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from selectivbench_hf.hub import ranking

from .result_rows import closed_rows, row, score, text, with_id


def only(rows, **keywords):
    (entry,) = ranking.rank(rows, **keywords).entries
    return entry


def test_a_closed_entry_is_the_mean_over_grammars_of_the_means_over_model_seeds():
    rows = closed_rows()
    entry = only(rows)
    assert (entry.track, entry.rank, entry.official, entry.tier, entry.runs) == ("closed", 1, True, "2M", 8)
    assert entry.grammar_seeds == {"1": 2, "2": 2, "3": 2, "4": 2}
    means = [statistics.fmean(r["sealed_accuracy"] for r in rows if r["grammar_seed"] == g) for g in (1, 2, 3, 4)]
    assert entry.sealed.accuracy == pytest.approx(statistics.fmean(means), abs=1e-15)
    assert entry.sealed.between_grammars == pytest.approx(statistics.stdev(means), abs=1e-12)
    within = [statistics.variance(r["sealed_accuracy"] for r in rows if r["grammar_seed"] == g) for g in (1, 2, 3, 4)]
    assert entry.sealed.between_models == pytest.approx(math.sqrt(statistics.fmean(within)), abs=1e-12)
    half = 3.182446 * statistics.stdev(means) / 2  # Student's t with 3 degrees of freedom, 97.5 %
    assert entry.sealed.over == "grammar seeds"
    assert entry.sealed.high - entry.sealed.accuracy == pytest.approx(half, rel=1e-6)
    assert entry.sealed.accuracy - entry.sealed.low == pytest.approx(half, rel=1e-6)
    assert entry.splits["test"]["sealed"] == entry.sealed.accuracy
    assert entry.sealed_grammar == json.loads(rows[0]["sealed_grammar_scores"])["test"]["accuracy"]
    assert (entry.parameters, entry.state_size, entry.effective_context) == (150_000, 2048, 2.0)
    assert json.dumps(entry.as_dict(), allow_nan=False)


def test_unbalanced_seeds_are_weighted_by_grammar_and_said():
    rows = [row(1, 1, 0.2), row(1, 2, 0.4), row(2, 1, 0.9)]
    entry = only(rows)
    assert entry.published.accuracy == pytest.approx((0.3 + 0.9) / 2, abs=1e-12)
    assert "the seeds are unbalanced: 2 at grammar seed 1, 1 at grammar seed 2" in entry.notes
    assert entry.track == "open"
    assert any("no runs at grammar seed 3, 4" in fault for fault in entry.closed_faults)


def test_where_the_interval_comes_from():
    one = only([row(1, 1, 0.5)])
    assert one.published.over == "test sequences"
    assert (one.published.low, one.published.high) == (0.496, 0.504)
    assert one.published.between_grammars is None and one.published.between_models is None
    assert any(note.startswith("one run") for note in one.notes)
    two = only([row(1, 1, 0.5), row(1, 2, 0.52)])
    assert two.published.over == "model seeds"
    half = 12.706205 * statistics.stdev([0.5, 0.52]) / math.sqrt(2)
    assert two.published.high - two.published.accuracy == pytest.approx(half, rel=1e-6)
    wide = only([row(1, 1, 0.1), row(1, 2, 0.9)])
    assert (wide.published.low, wide.published.high) == (0.0, 1.0)


def test_the_order_is_by_sealed_then_published_then_name_and_unofficial_ones_below():
    rows = [
        row(1, 1, 0.7, 0.5, name="b", run_id="b"),
        row(1, 1, 0.6, 0.8, name="best", run_id="best"),
        row(1, 1, 0.7, 0.5, name="a", run_id="a"),
        row(1, 1, 0.8, 0.5, name="z", run_id="z"),
        row(1, 1, 0.9, None, name="unsealed", run_id="u"),
        row(1, 1, 0.95, None, name="unsealed too", run_id="u2"),
    ]
    entries = ranking.rank(rows).entries
    assert [(e.rank, e.name) for e in entries] == [
        (1, "best"),
        (2, "z"),
        (3, "a"),
        (4, "b"),
        (None, "unsealed too"),
        (None, "unsealed"),
    ]
    assert [e.official for e in entries] == [True] * 4 + [False] * 2


def test_tracks_tasks_objectives_and_data_majors_are_ranked_apart():
    closed = closed_rows(0.5)
    rows = [
        *closed,
        row(1, 1, 0.9, 0.9, name="open", run_id="open"),
        row(1, 1, 0.9, 0.9, name="old", run_id="old", data_version="0.9.0"),
        row(1, 1, 0.9, 0.9, name="predicts", run_id="predicts", objective="prediction"),
        row(1, 1, 0.9, 0.9, name="other", run_id="other", task="te1", train_sequences=200_000),
    ]
    rows[-1] = with_id(
        rows[-1]
        | {
            "scores": text({"test": score(0.9, items=200)}),
            "sealed_scores": text({"test": score(0.9, items=200)}),
        }
    )
    entries = ranking.rank(rows).entries
    assert all(e.rank == 1 for e in entries) and len(entries) == 5
    assert {(e.task, e.data_major, e.objective, e.track) for e in entries} == {
        ("lite", 1, "classification", "closed"),
        ("lite", 1, "classification", "open"),
        ("lite", 0, "classification", "open"),
        ("lite", 1, "prediction", "open"),
        ("te1", 1, "classification", "open"),
    }


def test_a_row_that_is_there_twice_counts_once_and_is_said():
    rows = closed_rows()
    twice = ranking.rank([*rows, rows[3], rows[3]])
    assert twice.entries == ranking.rank(rows).entries
    assert twice.notes == [f"row {rows[3]['row_id'][:12]} (gla on lite) is there 3 times: counted once"]


def test_conflicting_rows_are_both_left_out():
    rows = [row(1, 1, 0.5), row(1, 2, 0.6)]
    other = row(1, 1, 0.9)
    ranked = ranking.rank([*rows, other])
    assert ranked.entries[0].runs == 1 and ranked.entries[0].published.accuracy == pytest.approx(0.6)
    assert {a.row["row_id"] for a in ranked.apart} == {rows[0]["row_id"], other["row_id"]}
    reasons = {a.row["row_id"]: a.reason for a in ranked.apart}
    assert reasons[other["row_id"]] == f"conflicts with row {rows[0]['row_id'][:12]}: the same run with other content"


def test_another_run_with_the_same_seeds_is_a_conflict_and_not_a_second_sample():
    again = row(1, 1, 0.7, run_id="again")
    ranked = ranking.rank([row(1, 1, 0.5), again])
    assert ranked.entries == []
    assert all(a.reason.endswith("another run of this model with the same seeds") for a in ranked.apart)


def test_a_replay_is_an_entry_of_its_own_beside_the_first():
    first = row(1, 1, 0.5)
    replay = with_id(row(1, 1, 0.51) | {"trust": "replayed", "replayed_by": "bob"})
    entries = ranking.rank([first, replay]).entries
    assert sorted(e.trust for e in entries) == ["replayed", "weights"]
    assert all(e.runs == 1 for e in entries)


def test_a_sealed_grammar_replayed_by_somebody_else_opens_the_closed_track():
    rows = closed_rows()
    sealed = rows[0]["sealed_grammar_scores"]
    rows[0] = with_id(rows[0] | {"sealed_grammar_scores": None})
    assert only(rows).track == "open"
    replay = with_id(rows[0] | {"trust": "replayed", "replayed_by": "bob", "sealed_grammar_scores": sealed})
    tracks = {e.trust: e.track for e in ranking.rank([*rows, replay]).entries}
    assert tracks == {"weights": "closed", "replayed": "open"}


def test_models_that_differ_in_more_than_seeds_are_never_averaged():
    rows = [row(1, 1, 0.5), row(1, 2, 0.7, learning_rate=3e-3), row(2, 1, 0.9, submitter="bob")]
    assert [e.runs for e in ranking.rank(rows).entries] == [1, 1, 1]


def test_partial_and_withdrawn_rows_are_told_apart_with_the_reason():
    rows = [*closed_rows(), row(3, 3, 0.99, max_sequences=10, run_id="part")]
    ranked = ranking.rank(rows)
    assert [a.reason for a in ranked.apart] == ["was scored on the first 10 sequences of each split only"]
    assert str(ranked.apart[0]) == "run part (gla on lite) was scored on the first 10 sequences of each split only"
    gone = ranking.rank(rows, withdrawn={rows[0]["row_id"]: "trained on the test split"})
    assert gone.entries[0].track == "open" and gone.entries[0].runs == 7
    assert "was withdrawn: trained on the test split" in [a.reason for a in gone.apart]


def test_further_grammar_seeds_do_not_cost_the_closed_track():
    rows = [*closed_rows(), row(5, 1, 0.1, 0.1)]
    ranked = ranking.rank(rows)
    assert ranked.entries == ranking.rank(closed_rows()).entries
    assert [a.reason for a in ranked.apart] == [
        "has grammar seed 5: closed entries are the mean over grammar seeds 1 to 4"
    ]


def test_an_entry_is_official_only_when_all_its_runs_are_sealed():
    rows = closed_rows()
    lacking = dict.fromkeys(("sealed_scores", "sealed_accuracy", "sealed_low", "sealed_high", "gap_in_se"))
    rows[5] = with_id(rows[5] | lacking)
    entry = only(rows)
    assert not entry.official and entry.rank is None and entry.sealed is None
    assert "unofficial: 7 of 8 runs have a sealed score" in entry.notes
    assert entry.splits["test"]["sealed"] is None and entry.splits["test"]["published"] is not None


def test_a_submission_supersedes_the_row_of_its_run_folder():
    sealed = row(1, 1)
    lacking = dict.fromkeys(
        ("sealed_seed", "sealed_scores", "sealed_accuracy", "sealed_low", "sealed_high", "gap_in_se")
    )
    recorded = with_id(sealed | lacking | {"repo": None, "name": "gla_2"})
    both = ranking.rank([recorded, sealed])
    assert [e.row_ids for e in both.entries] == [(sealed["row_id"],)]
    assert [a.row["row_id"] for a in both.apart] == [recorded["row_id"]]
    assert f"is superseded by row {sealed['row_id'][:12]}" in both.apart[0].reason
    other = with_id(sealed | lacking | {"weights_sha256": "f" * 64})
    assert not ranking.rank([other, sealed]).entries, "of other weights: a conflict"


def test_a_copy_in_another_repository_keeps_nobody_out():
    mine = row(1, 1)
    copied = with_id(mine | {"repo": "mallory/gla", "submitter": "mallory", "name": "better"})
    entries = ranking.rank([mine, copied]).entries
    assert sorted(e.repo for e in entries) == ["alice/gla", "mallory/gla"]
    assert all(any("weights" in flag for flag in e.flags) for e in entries), "both are flagged"


def test_predictions_are_ranked_apart():
    made_up = row(
        1,
        1,
        0.99,
        0.99,
        name="oracle",
        repo="mallory/oracle",
        run_id="made-up",
        trust="predictions",
        weights_sha256="e" * 64,
    )
    made_up = with_id(made_up | {"sealed_seed": "e" * 64})
    entries = ranking.rank([made_up, row(1, 1)]).entries
    assert [(e.name, e.rank) for e in entries] == [("gla", 1), ("oracle", 1)], "below, and in a ranking of their own"


def test_a_gap_beyond_four_standard_errors_is_flagged():
    rows = [row(1, 1, 0.9, 0.5), row(1, 2, 0.6, 0.6, flags=["the device is unknown"])]
    entry = only(rows)
    assert entry.gap_in_se > 4
    assert entry.flags == (  # whether or not the row says so itself
        "The published and the sealed test differ by 138.6 standard errors (90.00% and 50.00%); chance gives no more than 4.",
        "the device is unknown",
        "1 of 2 runs score more than 4 standard errors apart on the published and the sealed test",
    )


# -- whatever the rows are -----------------------------------------------------------------------------------------------

shares = st.sampled_from([0.0, 0.25, 0.5, 0.6000, 0.7, 1.0])
any_row = st.builds(
    lambda g, m, a, s, name, run, part, **changes: row(
        g, m, a, s, name=name, run_id=f"{name}-{g}-{m}-{run}", max_sequences=part, **changes
    ),
    g=st.integers(1, 5),
    m=st.integers(1, 3),
    a=shares,
    s=st.one_of(st.none(), shares),
    name=st.sampled_from(["a", "b"]),
    run=st.integers(0, 1),
    part=st.sampled_from([None, None, None, 10]),
    submitter=st.sampled_from(["alice", None]),
    data_version=st.sampled_from(["1.0.0", "1.1.0", "0.9.0"]),
)
many = st.lists(any_row, max_size=12)


@settings(max_examples=60, deadline=None)
@given(many, st.randoms(use_true_random=False))
def test_the_order_of_rows_and_duplicates_change_nothing(rows, random):
    expected = ranking.rank(rows)
    shuffled = [*rows, *random.sample(rows, len(rows) // 2)]
    random.shuffle(shuffled)
    again = ranking.rank(shuffled)
    assert again.entries == expected.entries
    assert [(a.row["row_id"], a.reason) for a in again.apart] == [(a.row["row_id"], a.reason) for a in expected.apart]


@settings(max_examples=60, deadline=None)
@given(many, any_row)
def test_a_partial_row_never_changes_an_entry(rows, one):
    part = with_id(one | {"max_sequences": 7})
    assert ranking.rank([*rows, part]).entries == ranking.rank(rows).entries


@settings(max_examples=60, deadline=None)
@given(many)
def test_every_row_is_in_one_entry_or_apart_and_no_entry_mixes_what_must_not_be_mixed(rows):
    ranked = ranking.rank(rows)
    placed = [i for e in ranked.entries for i in e.row_ids] + [a.row["row_id"] for a in ranked.apart]
    assert sorted(placed) == sorted({r["row_id"] for r in rows})
    by_id = {r["row_id"]: r for r in rows}
    for entry in ranked.entries:
        own = [by_id[i] for i in entry.row_ids]
        assert len({(r["name"], r["submitter"], r["data_version"].split(".")[0]) for r in own}) == 1
        assert all(r["max_sequences"] is None for r in own)
        values = [r["accuracy"] for r in own]
        assert min(values) <= entry.published.accuracy <= max(values)
        assert 0 <= entry.published.low <= entry.published.accuracy <= entry.published.high <= 1
    for table in {(e.task, e.data_major, e.objective, e.track) for e in ranked.entries}:
        ranks = [e.rank for e in ranked.entries if (e.task, e.data_major, e.objective, e.track) == table]
        official = [r for r in ranks if r is not None]
        assert ranks == [*range(1, len(official) + 1), *[None] * (len(ranks) - len(official))]


def test_one_run_under_two_names_is_said_on_both():
    own, stolen = row(1, 1), row(1, 1, name="mine", repo="bob/mine", submitter="bob", run_id="other")
    assert not [e for e in ranking.rank([own, stolen]).entries if e.flags]
    stolen = with_id(stolen | {key: own[key] for key in ("weights_sha256", "sealed_seed")})
    replay = with_id(own | {"trust": "replayed", "replayed_by": "carol"})
    flags = {(e.name, e.trust): e.flags for e in ranking.rank([own, stolen, replay]).entries}
    said = ("The weights of run run-1-1 are those of mine (bob/mine, submitted by bob) too.",)
    assert flags[("gla", "weights")] == flags[("gla", "replayed")] == said
    assert flags[("mine", "weights")] == (
        "The weights of run other are those of gla (alice/gla, submitted by alice) too.",
    )
