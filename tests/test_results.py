"""The result record: schema, strict JSON, cut lines, one line a run."""

import json

import numpy as np
import pytest
import torch

import selectivbench_hf as sb
from selectivbench_hf import checkpointing, results
from selectivbench_hf.training import train


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    torch.set_num_threads(1)
    task = sb.get_task(
        "lite_noisy_gaps",
        num_train=16,
        num_validation=4,
        num_test=3,
        num_items=5,
        test_gaps=[10, 1],
        grammar_seed=3,
        sample_seed=2,
    )
    folder = tmp_path_factory.mktemp("results") / "run"
    return train(
        task,
        "gla",
        hidden_size=16,
        num_hidden_layers=2,
        max_steps=2,
        model_seed=5,
        data_seed=6,
        output_dir=folder,
        weight_decay=0.1,
    )


def test_the_schema_is_a_schema_and_the_record_follows_it(run):
    import jsonschema

    jsonschema.Draft202012Validator.check_schema(results.schema())
    results.validate(run.record)
    line = (run.output_dir / "results.jsonl").read_text()
    assert line.count("\n") == 1 and json.loads(line, parse_constant=pytest.fail) == run.record


def test_what_the_record_tells(run):
    r = run.record
    task = sb.get_task(str(run.output_dir / "task.json"))
    assert r["task"]["fingerprint"] == task.fingerprint and r["task"]["data_version"] == sb.DATA_VERSION
    assert r["task"]["split_fingerprints"]["test_gap_1"] == task.split_fingerprint("test_gap_1")
    assert r["seeds"] == {"grammar": 3, "sample": 2, "model": 5, "data": 6}
    assert r["model"]["name"] == "gla" and r["model"]["parameters"] == sum(p.numel() for p in run.model.parameters())
    assert r["model"]["state_size"] > 0 and r["model"]["kernel_backend"] == "cpu-chunked"
    assert (
        r["versions"]["selectivbench_hf"] == sb.__version__
        and r["versions"]["torch"] == torch.__version__.split("+")[0]
    ) or r["versions"]["torch"]
    assert {g["weight_decay"] for g in r["training"]["optimizer_groups"]} == {0.1, 0.0}
    assert (
        r["training"]["processes"] == 1
        and r["training"]["global_batch"] == 64
        and r["training"]["precision"] == "fp32"
    )
    assert r["arguments"]["weight_decay"] == 0.1 and r["status"] == "finished" and r["reason"] is None
    assert list(r["scores"]) == ["validation", "test", "test_gap_1"]
    for split, s in r["scores"].items():
        assert s["total"] == task.splits[split] * 5 and s["accuracy"] == s["correct"] / s["total"]
    assert r["evaluation"]["step"] == 2 and r["evaluation"]["validation_history"][0]["step"] == 2


def test_numbers_that_do_not_exist_are_null():
    value = {"a": float("nan"), "b": [float("-inf"), 1.5], "c": np.float32("inf"), "d": np.int64(3), "e": (True, None)}
    assert results.finite(value) == {"a": None, "b": [None, 1.5], "c": None, "d": 3, "e": [True, None]}
    with pytest.raises(ValueError):
        checkpointing.strict_json({"a": float("nan")})


def test_cut_and_foreign_lines_are_skipped_with_a_notice(run, tmp_path, capfd):
    good = json.dumps(run.record)
    other = json.dumps({**run.record, "run_id": "other"})
    path = tmp_path / "results.jsonl"
    path.write_text(f"{good}\n\nnot json\n[1]\n" + '{"a": NaN}\n' + f"{other}\n{good[:500]}")
    assert [r["run_id"] for r in results.read(path)] == [run.record["run_id"], "other"]
    said = capfd.readouterr().err
    assert (
        "line 3" in said and "line 4" in said and "line 5" in said and "line 7" in said and "cut in mid-line" in said
    )
    results.write(
        tmp_path, {**run.record, "status": "failed", "reason": "x"}
    )  # replaces its own line, keeps the other
    capfd.readouterr()
    assert [(r["run_id"], r["status"]) for r in results.read(path)] == [
        ("other", "finished"),
        (run.record["run_id"], "failed"),
    ]
    assert capfd.readouterr().err == ""


def test_a_record_against_the_schema_is_not_written(run, tmp_path):
    with pytest.raises(ValueError, match="status"):
        results.write(tmp_path, {**run.record, "status": "done"})
    with pytest.raises(ValueError, match="does not follow its schema"):
        results.write(tmp_path, {k: v for k, v in run.record.items() if k != "seeds"})
    assert list(tmp_path.iterdir()) == []


def test_text_is_replaced_in_one_step(tmp_path, monkeypatch):
    path = tmp_path / "a.json"
    checkpointing.write_text(path, "old")
    monkeypatch.setattr(
        checkpointing.os, "replace", lambda *a: (_ for _ in ()).throw(OSError(28, "No space left on device"))
    )
    with pytest.raises(OSError):
        checkpointing.write_text(path, "new")
    assert path.read_text() == "old" and [p.name for p in tmp_path.iterdir()] == ["a.json"]


def test_a_folder_is_replaced_whole_or_not_at_all(tmp_path):
    place = tmp_path / "best"
    for content in ("1", "2"):
        with checkpointing.new_folder(place) as part:
            (part / "model").write_text(content)
    assert (place / "model").read_text() == "2"
    with pytest.raises(RuntimeError), checkpointing.new_folder(place) as part:
        (part / "model").write_text("3")
        raise RuntimeError
    assert (place / "model").read_text() == "2" and [p.name for p in tmp_path.iterdir()] == ["best"]
    # killed between the two renames: the old one comes back
    place.rename(tmp_path / ".best.abcd1234.old")
    (tmp_path / ".best.ffff0000.part").mkdir()
    checkpointing.clean(tmp_path)
    assert (place / "model").read_text() == "2" and [p.name for p in tmp_path.iterdir()] == ["best"]
