"""Finer scores: every place of an item against a plain loop over the batch's columns, exact counts, intervals, and what is written."""

import json
from collections import Counter

import numpy as np
import pytest
import torch

import selectivbench_hf as sb
from selectivbench_hf import detail, evaluation, results
from selectivbench_hf.evaluation import evaluate
from selectivbench_hf.features import make_batch
from selectivbench_hf.layout import load_split
from selectivbench_hf.metrics import ASKED, RIGHT, RIGHT_FIRST, RIGHT_LAST, Outcomes, bootstrap

SMALL = {"num_train": 20, "num_validation": 6, "num_test": 12}
TASKS = {
    "lite": sb.get_task("lite", num_items=20, **SMALL),
    "lite_noisy_gaps": sb.get_task("lite_noisy_gaps", num_items=20, test_gaps=[10, 1], **SMALL),
    "lite_nongrammatical_gaps": sb.get_task("lite_nongrammatical_gaps", num_items=40, distractor_rate=0.4, **SMALL),
    "mqar_lite": sb.get_task("mqar_lite", **SMALL),
    "copy_lite": sb.get_task("copy_lite", **SMALL),
}


@pytest.fixture(autouse=True)
def one_thread():
    torch.set_num_threads(1)


def walked(task, split):
    """{(sequence, item): {axis: value}} by walking through the columns step by step."""
    batch = make_batch(task, split, range(task.splits[split]))
    out = {}
    for n, (ids, labels, items, length) in enumerate(
        zip(batch["input_ids"], batch["labels"], batch["item_ids"], batch["lengths"], strict=True)
    ):
        ids, labels, items = ids[:length].tolist(), labels[:length].tolist(), items[:length].tolist()
        if task.family == "recall":
            for t in (t for t in range(length) if labels[t] != -100):
                began = ids.index(ids[t]) if task.kind == "mqar" else items[t]
                out[n, items[t]] = {"question_index": items[t], "distance": t - began}
            continue
        end, before = -1, False
        for i in range(max(items) + 1):
            steps = [t for t, item in enumerate(items) if item == i]
            shown = [ids[t] for t in steps[1:] if ids[t] != task.blank_id]
            end = i if ids[steps[0]] == 0 else end
            out[n, i] = {
                "item_index": i,
                "since_end": i - end,
                "gap": len(steps) - 1 - len(shown),
                "steps": len(steps),
            }
            if task.variant == "nongrammatical_gaps":
                out[n, i]["distractor"] = int(bool(shown) or before)
            before = bool(shown)
    return out


def outcomes_for(places, seed=0):
    """Random right and wrong for those items; sequence by sequence of different difficulty."""
    draw = np.random.default_rng(seed)
    shape = 1 + np.max(list(places), axis=0)
    flags = np.zeros(shape, np.uint8)
    ease = draw.random(shape[0])
    for n, i in places:
        flags[n, i] = ASKED + sum(flag * int(draw.random() < ease[n]) for flag in (RIGHT, RIGHT_FIRST, RIGHT_LAST))
    return Outcomes(flags)


@pytest.mark.parametrize("split", ["validation", "test"])
@pytest.mark.parametrize("name", TASKS)
def test_every_axis_equals_a_walk_through_the_columns(name, split):
    task = TASKS[name]
    places = walked(task, split)
    outcomes = outcomes_for(places)
    found = detail.finer(task, split, outcomes)
    axes = {axis for where in places.values() for axis in where}
    assert set(found) == axes and len(axes) >= 2
    for axis in axes:
        items, right = Counter(), Counter()
        for (n, i), where in places.items():
            items[where[axis]] += 1
            for key, flag in (("correct", RIGHT), ("correct_first", RIGHT_FIRST), ("correct_last", RIGHT_LAST)):
                right[key, where[axis]] += int(outcomes.flags[n, i] & flag > 0)
        values = sorted(items)
        assert found[axis]["value"] == values and found[axis]["items"] == [items[v] for v in values]
        for key in ("correct", "correct_first", "correct_last"):
            assert found[axis][key] == [right[key, v] for v in values]
    if name == "lite_nongrammatical_gaps":
        own = detail.headline(task, split, outcomes)
        at = found["distractor"]["value"].index(1)
        assert (own["correct"], own["total"]) == tuple(found["distractor"][k][at] for k in ("correct", "items"))
        assert own["total"] > 0 and own["interval"][0] <= own["accuracy"] <= own["interval"][1]
    else:
        assert detail.headline(task, split, outcomes) is None


def test_intervals_are_those_of_whole_sequences_drawn_anew():
    """Against drawing the sequences in a plain loop with the same words; all columns together or each alone."""
    from selectivbench_hf.streams import stream

    draw = np.random.default_rng(1)
    right, total = draw.integers(0, 5, (9, 3)), draw.integers(5, 9, (9, 3))
    words = stream("bootstrap", 9).random_raw(2000 * 9).reshape(2000, 9)
    rows = ((words >> np.uint64(32)) * np.uint64(9) >> np.uint64(32)).astype(int)
    ratios = np.array([right[r].sum(0) / total[r].sum(0) for r in rows])
    assert np.array_equal(bootstrap(right, total), np.quantile(ratios, [0.025, 0.975], axis=0))
    assert np.array_equal(bootstrap(right[:, :1], total[:, :1])[:, 0], bootstrap(right, total)[:, 0])


def test_a_large_split_is_drawn_piece_by_piece(monkeypatch):
    from selectivbench_hf import metrics

    right, total = np.arange(50)[:, None] % 7, np.full((50, 1), 7)
    whole = bootstrap(right, total)
    monkeypatch.setattr(metrics, "WORDS_AT_ONCE", 333)
    assert np.array_equal(bootstrap(right, total), whole)


def test_the_interval_of_a_split_is_that_of_score_and_few_sequences_have_none():
    task = TASKS["lite"]
    places = walked(task, "test")
    outcomes = outcomes_for(places, seed=3)
    truth = load_split(task, "test").states.astype(int)
    predicted = np.where(outcomes.has(RIGHT), truth, (truth + 1) % task.num_states)
    assert outcomes.interval() == pytest.approx(sb.score(task, "test", predicted).interval, abs=0)
    axis = detail.finer(task, "test", outcomes)["since_end"]
    holders = [len({n for (n, i), w in places.items() if w["since_end"] == v}) for v in axis["value"]]
    assert [low is None for low in axis["low"]] == [h < detail.LEAST for h in holders]
    assert None in axis["low"] and axis["low"][1] is not None
    assert all(lo is None or lo <= c / i + 1e-4 for lo, c, i in zip(axis["low"], axis["correct"], axis["items"]))
    part = Outcomes(outcomes.flags[:0])
    assert part.interval() is None and detail.finer(task, "test", part)["gap"]["value"] == []


def model_for(task):
    torch.manual_seed(0)
    model = sb.SelectivBenchForStateClassification(
        sb.SelectivBenchConfig.for_task(task, mixer="transformer", hidden_size=16, num_hidden_layers=1)
    )
    with torch.no_grad():  # opinions, so that counts are neither all nor none
        model.encoder.weight.mul_(50)
        if hasattr(model.classifier, "weight"):
            model.classifier.weight.mul_(50)
    return model


@pytest.mark.parametrize("name", TASKS)
def test_the_same_for_any_batch_size_and_adding_up_to_the_score(name):
    task = TASKS[name]
    model = model_for(task)
    reference = None
    for rows in (1, 5, 64):
        scores = evaluate(model, task, ["validation", "test"], batch_size=rows, detail=True)
        exact = {
            split: {k: s.get(k) for k in ("correct", "total", "interval", "headline", "sequences_right", "detail")}
            for split, s in scores.items()
        }
        reference = reference or exact
        assert exact == reference
    for s in scores.values():
        for axis in s["detail"].values():
            assert sum(axis["items"]) == s["total"]
            for key in ("correct", "correct_first", "correct_last"):
                assert sum(axis[key]) == s[key]
    plain = evaluate(model, task, ["test"])["test"]
    assert "detail" not in plain and plain["correct"] == scores["test"]["correct"]


def test_strings_reproduced_whole_are_counted():
    """A model that knows every second string, and but the last letter of the others."""
    task = TASKS["copy_lite"]
    batch = make_batch(task, "test", range(12))
    labels = torch.from_numpy(batch["labels"])

    class Half(torch.nn.Module):
        def forward(self, ids):
            answers = torch.empty(len(ids), ids.shape[1], dtype=torch.long)
            for row, given in enumerate(ids):
                n = next(i for i in range(12) if np.array_equal(batch["input_ids"][i, : len(given)], given))
                answers[row] = labels[n, : len(given)].clamp(min=0)
                if n % 2:
                    at = (labels[n] >= 0).nonzero().max()
                    answers[row, at] = (answers[row, at] + 1) % task.num_states
            return torch.nn.functional.one_hot(answers, task.num_states).float() * 9

    got = evaluate(Half(), task, ["test"], batch_size=12)["test"]
    assert (got["sequences_right"], got["sequences"]) == (6, 12)
    assert got["correct"] == got["total"] - 6
    assert "sequences with every item right: 6 of 12" in results.table({"test": got})


# ---------------------------------------------------------------- the command and the record


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("detail") / "run"
    return sb.train(
        TASKS["lite_nongrammatical_gaps"],
        "transformer",
        hidden_size=16,
        num_hidden_layers=1,
        max_steps=2,
        detail=True,
        output_dir=folder,
    )


def test_the_record_holds_them_when_asked(run):
    results.validate(run.record)
    assert run.record["arguments"]["detail"] is True
    assert set(run.scores["test"]["detail"]) == {"item_index", "since_end", "gap", "steps", "distractor"}
    assert run.scores["test"]["headline"]["total"] < run.scores["test"]["total"]
    assert len(run.scores["validation"]["interval"]) == 2
    broken = json.loads(json.dumps(run.record))
    del broken["scores"]["test"]["detail"]["gap"]["low"]
    with pytest.raises(ValueError, match="'low' is a required property"):
        results.validate(broken)


def test_evaluate_writes_them_into_the_run_folder(run, tmp_path, capfd, strict_json):
    pytest.importorskip("matplotlib")
    assert evaluation.main([str(run.output_dir), "--detail"]) == 0
    out = capfd.readouterr().out
    assert "detail.json" in out and detail.DISTRACTED in out
    written = strict_json((run.output_dir / "detail.json").read_text())
    assert written["splits"]["test"]["detail"] == run.scores["test"]["detail"]
    assert written["intervals"] == detail.INTERVALS and written["fingerprint"] == run.record["task"]["fingerprint"]
    assert (run.output_dir / "detail.png").read_bytes()[:4] == b"\x89PNG"
    # another task: files of its own, elsewhere if so wished
    other = [str(run.output_dir / "best"), "--task", "lite", "--num_test", "9", "--num_items", "6", "--detail"]
    assert evaluation.main([*other, "--output", str(tmp_path / "there")]) == 0
    assert sorted(p.name.rsplit("_", 1)[0] for p in (tmp_path / "there").iterdir()) == ["detail_lite", "detail_lite"]


def test_without_matplotlib_the_numbers_are_written_and_the_lack_is_told(run, tmp_path, capfd, monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "matplotlib", None)
    argv = [str(run.output_dir), "--detail", "--output", str(tmp_path), "--splits", "test"]
    assert evaluation.main(argv) == 0
    assert "no figure: pictures need matplotlib" in capfd.readouterr().out
    assert [p.name for p in tmp_path.iterdir()] == ["detail.json"]


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        (["--output", "x"], "give --detail too"),
        (["--detail", "--output", "{file}/x"], "cannot write to --output"),
        (["--objective", "predict"], "did you mean 'prediction'"),
        (["--objective", "prediction"], "made with objective 'classification'"),
    ],
)
def test_bad_input(run, tmp_path, capfd, more, sentence):
    (tmp_path / "file").write_text("")
    more = [m.replace("{file}", str(tmp_path / "file")) for m in more]
    assert evaluation.main([str(run.output_dir), *more]) == 2
    assert sentence in capfd.readouterr().err.splitlines()[-1]
