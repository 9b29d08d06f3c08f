"""The board: sources become lines, lines become a table, CSV, plots and a model's page, and hostile names stay text everywhere."""

import csv
import io
import json
import types
from pathlib import Path

import pytest

from selectivbench_hf.errors import HubFailure, InputError
from selectivbench_hf.hub import (
    board,
    board_lines,
    client,
    page_html,
    page_model,
    page_plots,
    page_svg,
    page_table,
    rows,
    submission,
)

from .result_rows import closed_rows, row, score, text

EVERY_MIXER = Path(__file__).parents[2] / "docs" / "every_mixer" / "results.jsonl"
HOSTILE = "</td><script>alert(1)</script>${alert(1)}{{constructor}}\"'&"


@pytest.fixture(scope="module")
def lines():
    """A closed entry, an open one, an unofficial one and a row kept apart; ranked in this order."""
    found = [
        *closed_rows(0.7, name="delta", repo="alice/delta", mixer="delta_net", write_rule="delta"),
        row(accuracy=0.9, sealed=0.9, name="big", repo="bob/big", submitter="bob", parameters=20_000_000, run_id="big"),
        row(accuracy=0.5, sealed=None, name="plain", repo=None, submitter="bob", mixer="gpt", state_grows=True, state_size=None, decay=None, run_id="plain"),
        row(accuracy=0.4, sealed=0.4, name="part", repo="bob/part", max_sequences=10, run_id="part"),
    ]  # fmt: skip
    return board.from_rows(found, "test rows")


def by_name(shown, name):
    (line,) = [line for line in shown.lines if line["name"] == name]
    return line


def test_entries_and_rows_kept_apart_are_lines_in_the_order_of_the_ranking(lines):
    assert [line["name"] for line in lines.lines] == ["delta", "big", "plain", "part"]
    assert all(set(line) == set(board_lines.FIELDS) for line in lines.lines)
    delta, big, plain, part = lines.lines
    assert (delta["track"], delta["rank"], delta["runs"], delta["official"]) == ("closed", 1, 8, True)
    assert delta["sealed"] == pytest.approx(72.8) and delta["over"] == "grammar seeds"
    assert delta["between_grammars"] == pytest.approx(1.291, abs=1e-3) and delta["between_models"] == pytest.approx(
        0.1414, abs=1e-3
    )
    assert delta["sealed_low"] < 72.8 < delta["sealed_high"] and len(delta["row_ids"]) == 8
    assert (big["track"], big["rank"], big["tier"]) == ("open", 1, "at most 50 M") and big["faults"]
    assert (plain["official"], plain["rank"], plain["sealed"]) == (False, None, None) and plain["published"] == 50
    assert part["track"] == "none" and part["rank"] is None and "the first 10 sequences" in part["flags"][0]
    assert [line["budget"] for line in lines.lines] == ["the training split once"] * 4
    assert any("kept apart" in notice for notice in lines.notices)
    json.dumps(lines.lines, allow_nan=False)


def test_names_that_several_models_share_are_told_apart():
    shown = board.from_rows(
        [row(repo="alice/gla"), row(repo="bob/gla", run_id="other"), row(name="own", run_id="own")], "rows"
    )
    assert shown.models() == ["gla (alice/gla)", "gla (bob/gla)", "own"]
    assert len(shown.of_model("gla (bob/gla)")[1]) == 1
    found = [row(repo="alice/gla"), row(repo="bob/gla", run_id="b"), row(name="gla (alice/gla)", repo="eve/x", run_id="e"),
             row(name="Own", repo=None, submitter=None, run_id="1"), row(name="own", run_id="2"), row(name="\uff2fwn", repo="eve/y", run_id="3")]  # fmt: skip
    names = [
        "gla (alice/gla)",
        "gla (alice/gla) (eve/x)",
        "gla (bob/gla)",
        "own (alice/gla)",
        "Own (by nobody named)",
        "\uff2fwn (eve/y)",
    ]
    assert board.from_rows(found, "rows").models() == names


def test_other_data_majors_and_objectives_are_other_tables_and_the_headline_task_comes_first():
    found = [row(), row(data_version="2.0.0", run_id="new"), row(objective="prediction", run_id="p"),
             row(task="te3_noisy_gaps", run_id="te3"), row(task="te1", run_id="te1")]  # fmt: skip
    assert board.from_rows(found, "rows").tables() == [
        "te3_noisy_gaps", "lite", "lite (data version 2)", "lite (objective prediction)", "te1",
    ]  # fmt: skip


def test_filters(lines):
    names = lambda **wanted: [line["name"] for line in page_table.select(lines.lines, **wanted)]
    assert names(table="lite") == ["delta", "big", "plain", "part"] and names(table="te1") == []
    assert names(track=["closed"]) == ["delta"] and names(track=["closed", "open"]) == ["delta", "big", "plain"]
    assert names(tier=["at most 50 M"]) == ["big"]
    assert names(write_rule=["delta"]) == ["delta"] and names(decay=[page_table.UNKNOWN]) == ["plain"]
    assert (
        names(search="BIG") == ["big"] and names(search="gpt") == ["plain"] and names(search="bob/") == ["big", "part"]
    )
    assert names(track=["open"], decay=["learned"]) == ["big"]
    assert page_table.choices(lines.lines, "decay") == ["learned", page_table.UNKNOWN]
    with pytest.raises(InputError, match="unknown filter 'trakc'.*'track'"):
        page_table.select(lines.lines, trakc=[])


def test_sorting_leaves_what_has_no_value_last_in_both_directions(lines):
    names = lambda *how: [line["name"] for line in page_table.sort(lines.lines, *how)]
    assert names("sealed accuracy") == ["big", "delta", "part", "plain"]
    assert names("sealed accuracy", True) == ["part", "delta", "big", "plain"]
    assert names("published accuracy")[0] == "big" and names("model") == ["big", "delta", "part", "plain"]
    assert names("state size")[-1] == "plain" == names("state size", True)[-1]
    assert names("parameters", True)[0] == "big"
    with pytest.raises(InputError, match="unknown order"):
        page_table.sort(lines.lines, "accuracy")


def test_cells_stand_under_their_heads(lines):
    for line in lines.lines:
        assert len(page_table.cells(line)) == len(page_table.COLUMNS)
    cells = dict(zip(page_table.COLUMNS, page_table.cells(by_name(lines, "plain"))))
    assert (cells["model"], cells["sealed, %"], cells["published, %"], cells["state"]) == (
        "plain",
        None,
        50.0,
        "grows",
    )
    assert cells["95 % interval"] == "49.6 to 50.4"
    cells = dict(zip(page_table.COLUMNS, page_table.cells(by_name(lines, "part"))))
    assert cells["doubts"] == 1 and cells["what is doubtful"].startswith(
        "Not ranked: run part was scored on the first 10"
    )


@pytest.mark.parametrize("name", ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", HOSTILE, "two\nlines", 'quote",comma'])
def test_csv_cells_stay_text(lines, name):
    line = by_name(lines, "plain") | {"name": name, "flags": ["=cmd()", "b"]}
    (back,) = csv.DictReader(io.StringIO(page_table.to_csv([line]), newline=""))
    assert back["name"] == ("'" + name if name[0] in "=+-@\t" else name)
    assert back["flags"] == "'=cmd() b" and back["published"] == "50.0" and back["rank"] == ""
    assert page_table.to_csv([]).split() == ["name"]


def hostile_board():
    """As no validator would let it pass: the page must not depend on one."""
    shown = board.from_rows([row(accuracy=0.6), row(2, accuracy=0.7, sealed=None)], "rows")
    bad = dict.fromkeys(("name", "model", "repo", "submitter", "mixer", "decay", "write_rule", "trust"), HOSTILE)
    line = (
        shown.lines[0]
        | bad
        | {"flags": [HOSTILE], "notes": [HOSTILE], "faults": [HOSTILE], "source_url": "javascript:alert(1)"}
    )
    run = (
        shown.rows[0]
        | bad
        | {"command": HOSTILE, "source_url": "javascript:alert(1)", "device": HOSTILE, "run_id": "../../x?" + HOSTILE}
    )
    return line, run | {"versions": json.dumps({HOSTILE: HOSTILE})}


def assert_inert(shown: str):
    assert "<script" not in shown and 'href="javascript' not in shown
    assert not {"$", "{", "}", "`"} & set(shown), "the page's HTML component would read these"
    assert "&lt;script&gt;" in shown


def test_hostile_text_is_inert_on_a_models_page():
    line, run = hostile_board()
    assert_inert(page_model.render([line], [run]))
    assert 'href="https://huggingface.co/%3C/td%3E' in page_model.render([line], [run])


def test_hostile_text_is_inert_in_plots():
    line, _ = hostile_board()
    assert_inert(page_plots.render([line], line["table"], [HOSTILE]))
    assert_inert(page_plots.render([line], line["table"], ["somebody", HOSTILE * 2]))


def test_links_lead_to_http_addresses_alone_and_tell_nothing_of_where_they_stood():
    assert (
        page_html.link("javascript:alert(1)", "x")
        == page_html.link("http://[", "x")
        == page_html.link(None, "x")
        == "x"
    )
    assert page_html.link("//host/x", "x") == page_html.link("data:text/html,x", "x") == "x"
    assert page_html.link("https://huggingface.co@b/", "x") == page_html.link("https://a/\u202e", "x") == "x"
    assert page_html.link('https://a/"><b>', "<i>") == (
        '<a href="https://a/&quot;&gt;&lt;b&gt;" target="_blank" rel="noopener noreferrer nofollow">&lt;i&gt;</a>'
    )
    assert page_model.repo_url("a/b", "c" * 40, "runs/x") == f"https://huggingface.co/a/b/tree/{'c' * 40}/runs/x"


def test_a_models_page_has_its_runs_records_command_and_what_is_doubtful(lines):
    shown = page_model.render(*lines.of_model("delta"))
    assert shown.count("https://huggingface.co/alice/delta/tree/" + "a" * 40 + "/runs/run-") == 8
    assert "accelerate launch -m selectivbench_hf.training --task lite" in shown and "torch 2.13.0" in shown
    assert "<td>1.29</td><td>0.14</td>" in shown  # standard deviations between grammars and between trainings
    assert "What is doubtful" not in shown
    shown = page_model.render(*lines.of_model("part"))
    assert "What is doubtful" in shown and "the first 10 sequences" in shown
    shown = page_model.render(*lines.of_model("big"))
    assert "is not in the closed track" in shown and "grammar seed 2, 3, 4" in shown


def test_plots_show_sizes_states_that_grow_gaps_and_levels():
    scores = {
        split: score(0.9 - gap / 500, items=200) for split, gap in page_plots.gap_lengths("te3_noisy_gaps").items()
    }
    changes = {"task": "te3_noisy_gaps", "scores": text(scores), "sealed_scores": text(scores)}
    shown = board.from_rows([
        row(accuracy=0.88, sealed=0.88, name="a", **changes),
        row(accuracy=0.88, sealed=0.88, name="b", state_grows=True, state_size=None, run_id="b", **changes),
        row(accuracy=0.5, sealed=0.5, name="a", task="te1_noisy_gaps", scores=text({**scores, "test": score(0.5)}), run_id="c"),
    ], "rows")  # fmt: skip
    drawn = page_plots.render(shown.lines, "te3_noisy_gaps", ["a"])
    assert (
        drawn.count('<svg viewBox="0 0 460 320"') == 4
        and page_svg.GROWS in drawn
        and "Grey: the other models" in drawn
    )
    assert "88.0 % at 10 (blank steps after an item)" in drawn and "70.0 % at 100 (blank" in drawn
    assert "at 3.027 (bits" in drawn and "at 3.378 (bits" in drawn  # te1 and te3
    assert page_plots.default_models(shown.lines, "te3_noisy_gaps") == ["a", "b"]
    assert "no scores of this task" in page_plots.render(shown.lines, "lite", ["a"])
    assert "No score of this task: zzz." in page_plots.render(shown.lines, "te3_noisy_gaps", ["zzz"])
    assert (
        page_plots.entropy_levels("horizon_4")
        == page_plots.gap_lengths("mqar_lite")
        == page_plots.gap_lengths("other")
        == {}
    )


def test_marks_lie_inside_the_frame_whatever_the_numbers():
    for log, xs in ((True, [1, 1e9]), (True, [5]), (False, [0.0]), (False, [-3.5, 1e5]), (True, [])):
        axis = page_svg._Axis(xs, log, grows=True)
        assert all(page_svg.LEFT <= axis.x(x) <= axis.right for x in xs)
        assert 1 <= len(axis.ticks()) <= 12 and all(
            page_svg.LEFT - 1 <= axis.x(t) <= axis.right + 1 for t in axis.ticks()
        )
        assert axis.right < axis.x(None) < page_svg.WIDTH
    assert page_svg._Axis.y(100) == page_svg.TOP and page_svg._Axis.y(0) == page_svg.HEIGHT - page_svg.BOTTOM
    assert [page_svg.short(v) for v in (0, 950, 2048, 1.2e6, 3e9)] == ["0", "950", "2.05k", "1.2M", "3G"]


# -- sources -------------------------------------------------------------------------------------------------------------


def test_summaries_of_the_every_mixer_table_are_lines_that_are_not_ranked():
    shown = board.read(str(EVERY_MIXER))
    assert len(shown.lines) == len(EVERY_MIXER.read_text().splitlines()) and not shown.rows
    assert [line["published"] for line in shown.lines] == sorted(
        (line["published"] for line in shown.lines), reverse=True
    )
    line = by_name(shown, "gated_delta_net")
    assert (line["write_rule"], line["rank"], line["official"], line["budget"]) == (
        "delta",
        None,
        False,
        "less than the training split",
    )
    assert "a summary of one run, scored on 100 of 1,000 test sequences" in line["flags"][0]
    assert set(line["splits"]) == {"test", "test_gap_1", "test_gap_5", "test_gap_20"}


def test_summaries_that_are_not_sound_are_left_out_with_a_sentence(tmp_path):
    good = json.loads(EVERY_MIXER.read_text().splitlines()[0])
    bad = [good | {"status": "failed"}, good | {"name": "<b>"}, good | {"scores": {}}, good | {"settings": []},
           good | {"settings": good["settings"] | {"fingerprints": {"task": "0"}}}]  # fmt: skip
    test = good["scores"]["test"]
    bad += [
        good | {"scores": {"test": test | wrong}} for wrong in ({"accuracy": "nan"}, {"accuracy": 2.0}, {"correct": 0})
    ]
    bad += [
        good | {"settings": good["settings"] | {"task": "/dev/zero"}},
        good | {"parameters": -5},
        good | {"parameters": 1e308},
        good | {"state_size": -5},
        good | {"steps": 10**18},
    ]
    (tmp_path / "results.jsonl").write_text("\n".join(json.dumps(line) for line in [good, *bad]))
    shown = board.read(str(tmp_path))
    assert len(shown.lines) == 1 and len(shown.notices) == len(bad)
    for part in ("was failed", "must not hold '<'", "KeyError", "TypeError", "their fingerprints differ"):
        assert any(part in notice for notice in shown.notices), (part, shown.notices)


def test_pulled_rows_are_read_and_damaged_files_are_told(tmp_path):
    from selectivbench_hf.parquet import file_hash

    (tmp_path / "data").mkdir()
    rows.to_parquet(closed_rows(), tmp_path / "rows.parquet")
    digest = file_hash(tmp_path / "rows.parquet")
    (tmp_path / "rows.parquet").rename(tmp_path / "data" / f"rows-{digest[:16]}.parquet")
    (tmp_path / "data" / f"rows-{'0' * 16}.parquet").write_bytes(b"PAR1")
    shown = board.read(str(tmp_path))
    assert [line["track"] for line in shown.lines] == ["closed"] and len(shown.rows) == 8
    assert [n for n in shown.notices if "0000" in n]
    assert board.read(str(tmp_path / "data")).lines == shown.lines


def test_a_submission_here_is_read_without_a_hub(tmp_path, monkeypatch):
    monkeypatch.setattr(client, "api", lambda: pytest.fail("the Hub was asked"))
    data = {"id": "selectivbench/selectivbench", "revision": "b" * 40, "tag": "v1.0.0"}
    (tmp_path / submission.FILE).write_text(submission.write(submission.Submission(data, closed_rows())))
    for place in (tmp_path, tmp_path / submission.FILE):
        shown = board.read(str(place))
        assert [line["name"] for line in shown.lines] == ["gla"] and "the Hub was not asked" in shown.notices[0]


def of_the_hub(**changes):
    known = {"rank": 1, "model_id": "alice/gla", "value": 71.5, "filename": ".eval_results/selectivbench.yaml", "verified": False,
             "source": {"url": "https://example.org/run"}, "pull_request": None, "notes": "mean of 8"}  # fmt: skip
    return types.SimpleNamespace(**known | changes)


def test_the_hubs_own_leaderboard_as_lines():
    found = [of_the_hub(), of_the_hub(model_id="bob/x", pull_request=3, source=None, notes=None)]
    lines, left_out = board_lines.from_hub(found, "te3_noisy_gaps")
    assert not left_out and all(set(line) == set(board_lines.FIELDS) for line in lines)
    assert (lines[0]["sealed"], lines[0]["rank"], lines[0]["notes"]) == (71.5, 1, ["mean of 8"])
    assert not lines[0]["official"]
    (odd,), _ = board_lines.from_hub([of_the_hub(rank=10**30, notes="a\u202eb")], "lite")
    assert odd["rank"] is None and odd["notes"] == ["ab"]
    assert lines[1]["flags"] == ["Proposed by pull request 3, which is not merged."]
    shown = page_model.render(lines[:1], [])
    assert (
        "holds scores only" in shown
        and 'href="https://example.org/run"' in shown
        and 'href="https://huggingface.co/alice/gla"' in shown
    )


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1, 100.1, True, "71", None])
def test_values_of_the_hub_that_are_none_are_left_out(value):
    lines, left_out = board_lines.from_hub([of_the_hub(value=value), of_the_hub(model_id="no owner")], "te1")
    assert not lines and len(left_out) == 2
    assert "must be a number from 0 to 100" in left_out[0] and "OWNER/NAME" in left_out[1]


def test_a_board_is_read_again_when_it_is_old_and_stays_when_that_fails():
    readings = iter([HubFailure("gone"), HubFailure("the Hub is away"), board.from_rows([row(), row(2)], "second")])

    def read():
        found = next(readings)
        if isinstance(found, Exception):
            raise found
        return found

    kept = board.Kept(lambda: board.from_rows([row()], "first"), again=1000)
    assert kept.look() == (kept.board, 1)
    kept = board.Kept(lambda: board.from_rows([row()], "first"), again=-1)
    kept._read = read
    kept.look()
    shown, number = kept.look()
    assert (
        number == 3
        and len(shown.notices) == 1
        and shown.source == "first"
        and "the Hub is away" in shown.notices[0]
        and len(shown.lines) == 1
    )
    assert kept.look()[0].source == "second"
