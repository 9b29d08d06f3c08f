"""Submitting against a loopback Hub with real clients: what is sent, what a rerun sends, what is refused, and how it comes back."""

import hashlib
import json
import re
import shlex
import shutil

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import selectivbench_hf as sb
from selectivbench_hf.errors import InputError
from selectivbench_hf.hub import rows, scoring, sending, submission
from selectivbench_hf.hub.command_line import retrain_command

SIZES = {"num_train": 64, "num_validation": 8, "num_test": 12, "test_gaps": [10, 1]}
SMALL = {"hidden_size": 16, "num_hidden_layers": 1, "max_steps": 2, "per_device_train_batch_size": 8}
DATASET = "selectivbench/selectivbench"
MODULE = """
from torch import nn
def build(task):
    return nn.Sequential(nn.Linear(task.num_symbols, 8), nn.Linear(8, task.num_states))
"""


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A folder of finished runs: m0, m1 (model seeds), fast (another learning rate), mine (a module of its own), next_symbol; and task.json."""
    folder = tmp_path_factory.mktemp("runs")
    (folder / "mine.py").write_text(MODULE)

    def train(name, model="transformer", **keywords):
        own = {} if model == "transformer" else {"hidden_size": 256, "num_hidden_layers": 8}
        sb.train("lite_noisy_gaps", model, output_dir=folder / name, **{**SMALL, **own, **SIZES, **keywords})

    task = sb.get_task("lite_noisy_gaps", **SIZES)
    train("m0")
    train("m1", model_seed=1)
    train("fast", learning_rate=1e-2)
    train("mine", scoring.load_module(f"{folder / 'mine.py'}:build")(task))
    train("next_symbol", objective="prediction")
    plain = {key: value for key, value in SIZES.items() if key != "test_gaps"}
    result = sb.train("lite", "transformer", output_dir=folder / "plain", **SMALL, **plain, max_eval_sequences=5)
    assert result.record["evaluation"]["max_sequences"] == 5
    (folder / "plain.json").write_text(sb.get_task("lite", **plain).to_json())
    (folder / "task.json").write_text(task.to_json())
    (folder / "other.json").write_text(sb.get_task(task, num_train=65).to_json())
    return folder


def record_of(run) -> dict:
    return json.loads((run / "results.jsonl").read_text())


def row_of(run, **keywords) -> dict:
    _, record, task = scoring.open_run(str(run))
    known = {
        "name": "tiny",
        "trust": "weights",
        "weights_sha256": "0" * 64,
        "source_url": "https://huggingface.co/alice/tiny",
    }
    return rows.row_of(record, task, **known, **keywords)


# -- without a Hub -------------------------------------------------------------------------------------------------------


def test_scored_again(runs):
    told = []
    scored = scoring.score_run(str(runs / "m0"), say=told.append)
    record = record_of(runs / "m0")
    assert {s: v["correct"] for s, v in scored.scores.items()} == {
        s: v["correct"] for s, v in record["scores"].items()
    }
    assert list(scored.sealed_scores) == ["test", "test_gap_1"] and scored.config.name == "config.json"
    assert scored.sealed_seed == hashlib.sha256((runs / "m0/best/model.safetensors").read_bytes()).hexdigest()
    assert any("equal to the record to the last count on 3 splits" in line for line in told)
    mine = scoring.score_run(str(runs / "mine"), scoring.load_module(f"{runs / 'mine.py'}:build"))
    assert (
        mine.config is None and mine.scores["test"]["correct"] == record_of(runs / "mine")["scores"]["test"]["correct"]
    )


def changed(run, tmp_path, change):
    """A copy of a run in whose record `change` was made."""
    copy = tmp_path / "copy"
    shutil.copytree(run, copy)
    record = record_of(copy)
    change(record)
    (copy / "results.jsonl").write_text(json.dumps(record) + "\n")
    return copy


def _counts(record, off):
    for split in record["scores"].values():
        split["correct"] += off


def _elsewhere(record):
    record["model"]["kernel_backend"], record["hardware"]["device"] = "fla", "cuda: another"


def test_not_reproduced(runs, tmp_path):
    copy = changed(runs / "m0", tmp_path, lambda r: _counts(r, 1))
    with pytest.raises(scoring.NotReproduced, match=r"validation: DIFFERS: correct \d+ here, \d+ recorded"):
        scoring.score_run(str(copy))
    shutil.rmtree(copy)
    near = lambda off: lambda r: (_counts(r, off), _elsewhere(r))
    copy = changed(runs / "m0", tmp_path, near(8))  # 768 items of test: 0.1 % is not one
    with pytest.raises(scoring.NotReproduced, match="8 items more or less than its record, more than 0.1% of 512"):
        scoring.score_run(str(copy))
    shutil.rmtree(copy)
    copy = changed(runs / "m0", tmp_path, _elsewhere)
    assert scoring.score_run(str(copy)).record["hardware"]["device"] == "cuda: another"
    shutil.rmtree(copy)
    copy = changed(runs / "m0", tmp_path, lambda r: None)
    tensors = load_file(copy / "best/model.safetensors")
    save_file(
        {name: np.flip(t).copy() for name, t in tensors.items()},
        copy / "best/model.safetensors",
        metadata={"format": "pt"},
    )
    with pytest.raises(scoring.NotReproduced, match="on the same backend"):
        scoring.score_run(str(copy))
    save_file(
        {name: t * np.nan for name, t in tensors.items()}, copy / "best/model.safetensors", metadata={"format": "pt"}
    )
    with pytest.raises(InputError, match="the loss is not finite"):
        scoring.score_run(str(copy))


REFUSED = {
    "no run": (None, "there is no such run folder"),
    "interrupted": (
        lambda r: r.update(status="interrupted", reason="stopped by SIGTERM", scores={}),
        "the run was interrupted: stopped by SIGTERM",
    ),
    "failed": (
        lambda r: r.update(status="failed", reason="the loss became nan", scores={}),
        "the run FAILED: the loss became nan",
    ),
    "NaN": (lambda r: r["scores"]["test"].update(loss=None), "not finite"),
    "another task": (lambda r: r["task"].update(fingerprint="0" * 64), "another task than its record"),
    "prediction": ("next_symbol", "--objective prediction"),
    "a module": ("mine", r"give it with --module FILE.py:NAME"),
}


@pytest.mark.parametrize("change, told", REFUSED.values(), ids=REFUSED)
def test_refused_runs(runs, tmp_path, change, told):
    run = (
        runs / change
        if isinstance(change, str)
        else tmp_path / "none"
        if change is None
        else changed(runs / "m0", tmp_path, change)
    )
    with pytest.raises(InputError, match=told):
        scoring.score_run(str(run))


def test_mixed_runs(runs):
    m0, m1, fast, mine = (row_of(runs / name, grid=None) for name in ("m0", "m1", "fast", "mine"))
    for row, digit in ((m0, "0"), (m1, "1"), (fast, "2"), (mine, "3")):
        row["weights_sha256"] = digit * 64
    sending.refuse_mixed([m0, m1])
    for pair, told in (
        ([m0, fast | {"model_seed": 7}], "were trained in different ways"),
        ([m0, mine], "not of one model: mixer is 'transformer' and 'Sequential'"),
        ([m0, m0 | {"run_id": "other", "weights_sha256": "9" * 64}], "the same task and seeds"),
        ([m0, m1 | {"weights_sha256": "0" * 64}], "the same weights"),
        ([m0, m1 | {"task": "mqar_lite"}], "tasks of another kind"),
        ([m0, m1 | {"data_version": "2.0.0"}], "never compared"),
    ):
        with pytest.raises(InputError, match=told):
            sending.refuse_mixed(pair)


def test_command_trains_the_same(runs):
    """The command, read as train.py reads it, asks for what the record says."""
    from selectivbench_hf.arguments import from_argv

    for name, keywords in (("m1", {}), ("fast", {})):
        record, task = record_of(runs / name), sb.get_task(runs / name / "task.json")
        words = shlex.split(retrain_command(record, task))
        assert words[:4] == ["accelerate", "launch", "-m", "selectivbench_hf.training"]
        again = from_argv(words[4:])
        assert sb.get_task(again.task, **again.task_kwargs) == task
        skipped = ("output_dir", "task", "task_kwargs", "mixed_precision", *keywords)
        now = {k: v for k, v in again.as_dict().items() if k not in skipped}
        assert now == {k: v for k, v in record["arguments"].items() if k not in skipped}
    assert retrain_command(record_of(runs / "mine"), task) is None
    record = record_of(runs / "m0")
    record["training"]["processes"] = 2
    record["arguments"] |= {
        "match_params": 2e6,
        "hidden_size": None,
        "eval_splits": [],
        "mixer_kwargs": {"expand": 1.5},
    }
    command = retrain_command(record, sb.get_task("mqar_lite", num_train=100, alpha=1))
    assert "--multi_gpu --num_processes 2 -m" in command and "--task mqar_lite --alpha 1.0 --num_train 100" in command
    again = from_argv(shlex.split(command)[7:])
    assert (again.match_params, again.hidden_size, again.eval_splits, again.mixer_kwargs) == (
        2e6,
        None,
        [],
        {"expand": 1.5},
    )


def test_submission_file(runs, tmp_path):
    made = submission.Submission(
        {"id": DATASET, "revision": "0" * 40, "tag": "v1.0.0"}, [row_of(runs / "m0"), row_of(runs / "m1")]
    )
    text = submission.write(made)
    assert submission.read(text) == made
    (tmp_path / "s.json").write_text(text)
    assert submission.read(tmp_path / "s.json") == made
    jsonschema, referencing = pytest.importorskip("jsonschema"), pytest.importorskip("referencing")
    inner = referencing.Resource.from_contents(rows.SCHEMA)
    registry = referencing.Registry().with_resources(
        [("selectivbench/row.schema.json", inner), ("row.schema.json", inner)]
    )
    jsonschema.Draft202012Validator(submission.schema(), registry=registry).validate(json.loads(text))
    for change, told in (
        (lambda d: d.update(format="selectivbench-submission-2"), "format is 'selectivbench-submission-2'"),
        (lambda d: d.update(more=1), "unknown key 'more'"),
        (lambda d: d.pop("rows"), "lacks 'rows'"),
        (lambda d: d["dataset"].update(revision="v1.0.0"), "40 hex digits"),
        (lambda d: d["dataset"].update(tag="latest"), "must be a version"),
        (lambda d: d["dataset"].update(id="../../etc"), "must be OWNER/NAME"),
        (lambda d: d["rows"].clear(), "1 to 500 runs"),
        (lambda d: d["rows"][0].update(run_id="../up"), "run_id"),
        (lambda d: d["rows"][0].update(name="<script>"), "must not hold '<' or '>'"),
        (lambda d: d["rows"][0].update(accuracy=0.99), "accuracy"),
    ):
        data = json.loads(text)
        change(data)
        with pytest.raises(InputError, match=re.escape(told)):
            submission.read(json.dumps(data))
    for text, told in (
        ("{", "no strict JSON"),
        ('{"a": NaN}', "no strict JSON"),
        (" " * (submission.MOST_BYTES + 1), "longer than"),
    ):
        with pytest.raises(InputError, match=told):
            submission.read(text)


def test_which_data_have_an_entry(runs, monkeypatch):
    """Entries need published data of the run's fingerprint; another grammar seed of a published task may be drawn here."""
    from selectivbench_hf.hub.held import Held

    def row(**changed):
        task = sb.get_task("lite", grammar_seed=changed["grammar_seed"])
        scores = {"test": {"correct": 5, "total": 10, "sequences": 2, "accuracy": 0.5, "low": 0.4, "high": 0.6}}
        known = {
            "task": "lite",
            "task_fingerprint": task.fingerprint,
            "run_id": "r",
            "max_sequences": None,
            "sealed_accuracy": 0.5,
        }
        return row_of(runs / "m0") | known | {"sealed_scores": json.dumps(scores), **changed}

    held = object.__new__(Held)
    held.dataset = {"id": DATASET, "revision": "0" * 40, "tag": "v1.0.0"}
    published = {"lite": sb.get_task("lite").fingerprint, "lite_seed2": "0" * 64}
    monkeypatch.setattr(
        held,
        "published",
        lambda row: {n: published.get(n) for n in ("lite", f"lite_seed{row['grammar_seed']}")},
        raising=False,
    )
    good, drawn = (
        row(grammar_seed=1, sealed_low=0.4, sealed_high=0.6),
        row(grammar_seed=3, sealed_low=0.4, sealed_high=0.6),
    )
    [entry], said = held.entries([good, drawn])
    assert entry["value"] == 50.0 and "grammar seeds 1, 3" in entry["notes"] and not said
    for other, told in (
        (row(grammar_seed=2), "made with other data than"),
        (row(grammar_seed=3, task_fingerprint="1" * 64), "lite_seed3 is not published"),
        (row(grammar_seed=1, sealed_accuracy=None), "has no sealed score"),
    ):
        entries, said = held.entries([good, other])
        assert not entries and told in said[0]
    held.refuse_other_data([good, drawn])
    with pytest.raises(InputError, match="made with other data than"):
        held.refuse_other_data([row(grammar_seed=2)])


def test_config_of_a_stranger():
    good = {"model_type": "selectivbench", "mixer": "gla"}
    submission.check_config(good, "config.json")
    for change, told in (
        ({"mixer": "os:system"}, "code of others is not run"),
        ({"mixer": None}, "code of others is not run"),
        ({"model_type": "llama"}, "model_type is 'llama'"),
        ({"auto_map": {"AutoModel": "evil.Model"}}, "auto_map names code"),
    ):
        with pytest.raises(InputError, match=told):
            submission.check_config(good | change, "config.json")


def test_grid(runs, tmp_path):
    from selectivbench_hf.hub.submit import _grid

    opened = [scoring.open_run(str(runs / name)) for name in ("m1", "m0")]
    drafts = [row_of(runs / "m1"), row_of(runs / "m0")]
    failed = changed(
        runs / "fast", tmp_path, lambda r: r.update(run_id="failed", status="failed", reason="NaN", scores={})
    )
    ids = {name: record_of(runs / name)["run_id"] for name in ("m0", "m1", "fast", "plain")}
    grids = _grid([str(runs / "m0"), str(runs / "fast"), str(failed)], opened, drafts)
    assert list(grids) == [ids["m0"]]  # the run with the lowest seeds reports it
    told = [(entry["run_id"], entry["learning_rate"]) for entry in grids[ids["m0"]]]
    assert told == [(ids["m0"], 1e-3), *sorted([(ids["fast"], 1e-2), ("failed", 1e-2)])]
    values = {entry["run_id"]: entry["validation_accuracy"] for entry in grids[ids["m0"]]}
    assert values["failed"] is None and values[ids["m0"]] == record_of(runs / "m0")["scores"]["validation"]["accuracy"]
    for run, told in (
        ("m1", "the model seed"),
        ("plain", "is a run on lite, and no submitted run is"),
        ("none", "no record"),
    ):
        with pytest.raises(InputError, match=told):
            _grid([str(runs / run)], opened, drafts)
    shutil.rmtree(failed)
    longer = changed(runs / "fast", tmp_path, lambda r: r["arguments"].update(max_steps=3))
    with pytest.raises(InputError, match="differs in max_steps"):
        _grid([str(longer)], opened, drafts)


FLAGS = {
    "": "needs a run folder, or --predictions FILE",
    "x --predictions p": "--predictions stands alone; leave out a run folder",
    "--predictions p --repo a/b": "--predictions needs --model_file",
    "x --task lite": "--task belongs to --predictions FILE",
    "x": "--repo OWNER/model is needed",
    "x --repo a": "--repo must be OWNER/NAME",
    "x --repo a/b": "--dataset OWNER/selectivbench is needed",
    "x --to a/b": "it needs --create-pr",
    "x --module model.py": "--module must be FILE.py:NAME",
    "x --module none.py:build": "there is no file none.py",
    "x --dry_rum": "did you mean",
}


def test_flags(runs, capsys, monkeypatch):
    from selectivbench_hf.cli import main

    monkeypatch.delenv("SELECTIVBENCH_DATASET", raising=False)
    for line, told in FLAGS.items():
        assert main(["submit", *line.split()]) == 2, line
        assert told in capsys.readouterr().err
    monkeypatch.setenv("SELECTIVBENCH_DATASET", "selectivbench/selectivbench")
    assert main(["submit", "x", "--repo", "a/b"]) == 2
    assert "x cannot be submitted: there is no such run folder" in capsys.readouterr().err
    assert main(["submit", str(runs / "m0"), "--repo", "a/b", "--dry-run"]) == 1  # these tests are offline
    assert "HF_HUB_OFFLINE is set" in capsys.readouterr().err


def test_modules(tmp_path):
    path = tmp_path / "mine.py"
    for text, told in (("1/0", "ZeroDivisionError"), ("other = 1", "has no build"), ("build = 1", "has no build")):
        path.write_text(text)
        with pytest.raises(InputError, match=told):
            scoring.load_module(f"{path}:build")


def test_a_module_that_fails_is_one_sentence(runs):
    def unbuilt(task):
        raise RuntimeError("boom")

    def failing(task):
        model = scoring.load_module(f"{runs / 'mine.py'}:build")(task)
        model.register_forward_pre_hook(unbuilt_hook)
        return model

    def unbuilt_hook(*_):
        raise ZeroDivisionError("bang")

    for module, told in (
        (unbuilt, "cannot be built: RuntimeError: boom"),
        (failing, "fails: ZeroDivisionError: bang"),
    ):
        with pytest.raises(InputError, match=told):
            scoring.score_run(str(runs / "mine"), module)


# -- on the Hub ----------------------------------------------------------------------------------------------------------

START = """
import json, sys, warnings
import selectivbench_hf as sb
from selectivbench_hf.cli import main
from selectivbench_hf.errors import HubFailure, InputError
from selectivbench_hf.hub import submit as submitting
from pathlib import Path
R = Path(RUNS)
DATA = dict(dataset="selectivbench/selectivbench")
out = {}
def told(name, act):
    try:
        act()
        out[name] = None
    except (InputError, HubFailure) as error:
        out[name] = f"{type(error).__name__}: {error}"
"""
PUSH = """
tasks = ["--tasks", str(R / "task.json"), str(R / "plain.json")]
assert main(["push", "selectivbench/selectivbench", "--tag", "v1.0.0", *tasks, "--output", "built", "--json"]) == 0
"""
WRITE = """
m0, m1 = str(R / "m0"), str(R / "m1")
first = sb.submit(m0, "alice/tiny", dry_run=True, **DATA)
out["dry"] = [first.commit, sorted(first.plan.sizes())]
assert main(["push", "alice/other", "--tag", "v1.0.0", "--tasks", str(R / "other.json"), "--output", "other", "--json"]) == 0
told("fingerprint", lambda: sb.submit(m0, "alice/tiny", dataset="alice/other"))
told("no data set", lambda: sb.submit(m0, "alice/tiny", dataset="alice/nothing"))
told("no dataset named", lambda: sb.submit(m0, "alice/tiny"))
one = sb.submit(m0, "alice/tiny", grid=[R / "fast"], **DATA)
again = sb.submit(m0, "alice/tiny", grid=[R / "fast"], **DATA)
two = sb.submit([m1, R / "plain"], "alice/tiny", **DATA)
told("again otherwise", lambda: sb.submit(R / "fast", "alice/tiny", **DATA))
mine = sb.submit(R / "mine", "alice/mine", model=submitting.scoring.load_module(str(R / "mine.py") + ":build"), private=True, **DATA)
out["commits"] = [one.commit, again.commit, two.commit]
out["committed"] = [o.committed for o in (one, again, two, mine)]
out["said"] = two.plan.said
import torch
import selectivbench_hf.models
from transformers import AutoModelForTokenClassification
model = AutoModelForTokenClassification.from_pretrained("alice/tiny").eval()
local = AutoModelForTokenClassification.from_pretrained(R / "m0" / "best").eval()
out["same"] = all(torch.equal(a, b) for a, b in zip(model.state_dict().values(), local.state_dict().values(), strict=True))
from huggingface_hub import hf_hub_download, ModelCard
card = ModelCard.load("alice/tiny")
card.validate()
code = card.text.split("```python\\n")[1].split("```")[0]
scope = {}
exec(code, scope)
out["logits"] = list(scope["logits"].shape)
out["index"] = [(r.dataset_type, r.dataset_config, r.metric_value) for r in card.data.eval_results]
out["library"] = card.data.library_name
folder = hf_hub_download("alice/tiny", "runs/" + one.rows[0]["run_id"] + "/task.json").removesuffix("/task.json")
for name in ("config.json", "model.safetensors"):
    hf_hub_download("alice/tiny", "runs/" + one.rows[0]["run_id"] + "/" + name)
assert main(["evaluate", folder, "--json"]) == 0
print("\\n" + json.dumps(out))
"""


def program(runs, text):
    return START.replace("RUNS", repr(str(runs))) + text


def last_line(text) -> dict:
    return json.loads(text.strip().splitlines()[-1])


def files_of(hub, repo, revision=None) -> dict[str, bytes]:
    tree = hub.store.tree(hub.store.load("model", repo), revision)
    return {path: hub.store.object(file["sha256"]).read_bytes() for path, file in tree.items()}


def test_submit(hub, script, runs):
    out = last_line(script("alice")(program(runs, PUSH + WRITE)))
    ids = [record_of(runs / name)["run_id"] for name in ("m0", "m1", "plain")]
    own = ["config.json", "model.safetensors", "record.json", "task.json"]
    root = [".eval_results/selectivbench.yaml", "README.md", "config.json", "model.safetensors", "selectivbench.json"]
    assert out["dry"] == [None, sorted([*root, *(f"runs/{ids[0]}/{name}" for name in own)])]
    assert "published" in out["fingerprint"] and "other data than alice/other" in out["fingerprint"]
    assert (
        "there is no data set alice/nothing" in out["no data set"]
        and "--dataset OWNER/selectivbench is needed" in out["no dataset named"]
    )
    assert (
        "the same task and seeds: one run is submitted once (it holds 3 already; --replace drops them)"
        in out["again otherwise"]
    )
    # one commit each, none for what is there
    assert (
        out["committed"] == [True, False, True, True] and out["commits"][0] == out["commits"][1] != out["commits"][2]
    )
    repo = hub.store.load("model", "alice/tiny")
    assert len(repo["commits"]) == 3 and repo["branches"]["main"] == out["commits"][2]  # the first is the Hub's own
    files = files_of(hub, "alice/tiny")
    assert set(files) == {".gitattributes", *root, *(f"runs/{run}/{name}" for run in ids for name in own)}
    # what is there
    weights = files[f"runs/{ids[0]}/model.safetensors"]
    assert files["model.safetensors"] == weights == (runs / "m0/best/model.safetensors").read_bytes()
    made = submission.read(files["selectivbench.json"].decode())
    assert [row["run_id"] for row in made.rows] == ids and made.dataset["tag"] == "v1.0.0"
    data = hub.store.load("dataset", DATASET)
    assert made.dataset["revision"] == data["tags"]["v1.0.0"]
    first = made.rows[0]
    sha = hub.store.tree(repo)[f"runs/{ids[0]}/model.safetensors"]["sha256"]
    assert (
        first["sealed_seed"] == first["weights_sha256"] == sha
        and first["submitter"] == "alice"
        and first["name"] == "tiny"
    )
    assert [entry["learning_rate"] for entry in json.loads(first["grid"])] == [1e-3, 1e-2] and made.rows[1][
        "grid"
    ] is None
    assert first["trust"] == "weights" and first["ceiling"] == 1.0 and first["command"].startswith("accelerate launch")
    from selectivbench_hf.hub import eval_results

    text = files[".eval_results/selectivbench.yaml"].decode()
    [entry] = eval_results.check_entries(text, "it", DATASET)
    sealed = [row["sealed_accuracy"] for row in made.rows[:2]]
    [left_out] = out["said"]
    assert (
        left_out.startswith("lite has no entry")
        and "partial, scored on the first 5 sequences of each split" in left_out
    )
    assert made.rows[2]["max_sequences"] == 5 and json.loads(made.rows[2]["sealed_scores"])["test"]["sequences"] == 5
    assert (
        entry["value"] == pytest.approx(100 * sum(sealed) / 2, abs=1e-4)
        and entry["dataset"]["task_id"] == "lite_noisy_gaps"
    )
    assert (
        entry["dataset"]["revision"] == data["tags"]["v1.0.0"]
        and "mean of 2 runs" in entry["notes"]
        and "model seeds 0, 1" in entry["notes"]
    )
    assert str(runs) not in files[f"runs/{ids[0]}/record.json"].decode()  # no paths of the machine
    # how it comes back
    assert out["same"] and out["library"] == "selectivbench-hf" and out["logits"][0] == 4 and out["logits"][2] == 65
    assert out["index"] == [[DATASET, "lite_noisy_gaps", entry["value"]]]
    mine = files_of(hub, "alice/mine")
    assert hub.store.load("model", "alice/mine")["private"] and "config.json" not in mine
    assert (
        not any(name.endswith("config.json") for name in mine)
        and "What is missing is the module" in mine["README.md"].decode()
    )


PREPARE = """
from huggingface_hub import CommitOperationAdd, HfApi
api = HfApi()
def put(repo, **files):
    api.create_repo(repo, exist_ok=True)
    api.create_commit(repo, [CommitOperationAdd(path, text.encode()) for path, text in files.items()], commit_message="by hand")
put("alice/llama", **{"config.json": "{}", "README.md": "mine"})
put("alice/prose", **{"README.md": "# Written by hand"})
put("alice/broken", **{"selectivbench.json": "{}"})
entry = "- {dataset: {id: other/bench, task_id: whatever}, value: 12.5, date: '2026-01-01'}\\n"
put("alice/theirs", **{".eval_results/selectivbench.yaml": entry})
"""
PROPOSE = """
m0 = str(R / "m0")
hurry = lambda repo=None, **more: sb.submit(m0, repo, **DATA, **more)
told("403", lambda: hurry("alice/prose"))
told("owner", lambda: hurry("nobody/model"))
told("no pull request", lambda: hurry(to="alice/theirs"))
told("nowhere", lambda: hurry())
told("no name", lambda: hurry("alice/prose", name=" "))
told("nobody there", lambda: hurry(to="alice/nothing", create_pr=True))
told("llama", lambda: hurry("alice/llama", create_pr=True))
told("broken", lambda: hurry("alice/broken", create_pr=True))
first, second = (hurry(to="alice/theirs", create_pr=True) for _ in range(2))
out["proposed"] = [[o.pull_request, o.committed] for o in (first, second)]
whole = hurry("alice/prose", create_pr=True)
out["whole"] = [whole.committed, whole.pull_request is not None, whole.plan.said]
print("\\n" + json.dumps(out))
"""


def test_propose(hub, client, script, runs):
    """Pull requests by somebody who may not write, what is refused, and the way of an entry to the Hub's leaderboard."""
    script("alice")(program(runs, PUSH + PREPARE))
    before = files_of(hub, "alice/llama")
    out = last_line(script("bob")(program(runs, PROPOSE)))
    assert "no right to write" in out["403"] and "no right to write" in out["owner"]
    assert "needs --create-pr" in out["no pull request"] and "--repo OWNER/model is needed" in out["nowhere"]
    assert "there is no model alice/nothing" in out["nobody there"] and "got an empty one" in out["no name"]
    assert "holds another model (config.json, and no selectivbench.json)" in out["llama"]
    assert "selectivbench.json of alice/broken cannot be read, and is not replaced" in out["broken"]
    assert files_of(hub, "alice/llama") == before
    (address, sent), (again, twice) = out["proposed"]
    assert sent and not twice and address == again  # one pull request, however often it is asked for
    theirs = hub.store.load("model", "alice/theirs")
    assert list(theirs["discussions"]) == ["1"] and len(theirs["commits"]) == 3
    assert set(files_of(hub, "alice/theirs", "refs/pr/1")) == {".gitattributes", ".eval_results/selectivbench.yaml"}
    assert (
        out["whole"][:2] == [True, True]
        and "was not written by `selectivbench submit` and is kept" in out["whole"][2][0]
    )
    assert files_of(hub, "alice/prose", "refs/pr/1")["README.md"] == b"# Written by hand"
    [row] = [r for r in hub.store.leaderboard(DATASET, "lite_noisy_gaps") if r["modelId"] == "alice/theirs"]
    assert row["pullRequest"] == 1 and 0 <= row["value"] <= 100
    script("alice")("from huggingface_hub import HfApi; HfApi().merge_pull_request('alice/theirs', 1)")
    [row] = [r for r in hub.store.leaderboard(DATASET, "lite_noisy_gaps") if r["modelId"] == "alice/theirs"]
    assert (
        "pullRequest" not in row
        and "other/bench" in files_of(hub, "alice/theirs")[".eval_results/selectivbench.yaml"].decode()
    )


CUT = """
m0 = str(R / "m0")
told("cut", lambda: sb.submit(m0, "alice/tiny", **DATA))
after = sb.submit(m0, "alice/tiny", **DATA)
other = sb.submit(R / "fast", "alice/tiny", replace=True, **DATA)
out["committed"] = [after.committed, other.committed, len(other.rows), other.plan.said]
print("\\n" + json.dumps(out))
"""


def test_cut(hub, client, script, runs):
    """A connection that is cut in the upload, and an answer that is lost after the commit: a rerun finishes, and makes no second commit."""
    sha = hashlib.sha256((runs / "m0/best/model.safetensors").read_bytes()).hexdigest()
    hub.fault("PUT", rf"^/_lfs/.*{sha}", cut_after=1_000)
    hub.fault("POST", r"/api/models/alice/tiny/commit/", cut_answer=True)
    out = last_line(script("alice")(program(runs, PUSH + CUT)))
    assert [asked["status"] for asked in hub.asked("PUT", rf"^/_lfs/.*{sha}")] == [
        0,
        200,
    ]  # cut, and sent again by the client itself
    assert "HubFailure" in out["cut"] and "a rerun goes on where this stopped" in out["cut"]
    old, new = (record_of(runs / name)["run_id"] for name in ("m0", "fast"))
    assert out["committed"][:3] == [False, True, 1] and f"no longer in it are deleted: {old}" in out["committed"][3][0]
    assert (
        len(hub.store.load("model", "alice/tiny")["commits"]) == 3
    )  # the Hub's own, the one whose answer was lost, and --replace
    files = files_of(hub, "alice/tiny")
    assert (
        not any(old in path for path in files) and files["model.safetensors"] == files[f"runs/{new}/model.safetensors"]
    )
    run = ["submit", runs / "m0", "--dataset", DATASET, "--repo", "alice/new"]
    shown, error = client(None)([*run, "--dry-run"])
    assert "the rows of this dry run name no submitter" in error and "equal to the record to the last count" in error
    assert (
        "alice/new: 9 files" in shown
        and "would be sent in one commit" in shown
        and "library_name: selectivbench-hf" in shown
    )
    _, error = client(None)(run, code=2)
    assert "there is no token" in error
    assert "alice/new" not in [repo["id"] for repo in hub.store.all("model")]


PREDICT = """
import numpy as np
from safetensors.numpy import save_file
from selectivbench_hf.layout import load_split
task = sb.get_task(R / "task.json")
weights = R / "m0" / "best" / "model.safetensors"
Path("model.bin").write_bytes(b"a model of another framework")
def predict(file, wrong=()):
    given = {}
    for prefix, of in (("", task), ("sealed/", sb.sealed_task(task, file))):
        for split in of.test_splits:
            given[prefix + split] = load_split(of, split).states.astype(np.int16)
    for name in wrong:
        given[name][:] = 0
    save_file(given, "p.safetensors")
    return "p.safetensors"
submit = lambda file, repo, **more: submitting.submit_predictions(predict(file, **more), file, task, repo, **DATA)
good, again = submit(weights, "alice/numpy"), submit(weights, "alice/numpy")
leaked = submit("model.bin", "alice/leaked", wrong=("sealed/test", "sealed/test_gap_1"))
out["committed"] = [good.committed, again.committed, leaked.committed]
out["rows"] = [o.rows[0] for o in (good, leaked)]
print("\\n" + json.dumps(out))
"""


def test_predictions(hub, script, runs):
    out = last_line(script("alice")(program(runs, PUSH + PREDICT)))
    assert out["committed"] == [True, False, True]
    good, leaked = out["rows"]
    assert (good["trust"], good["accuracy"], good["sealed_accuracy"]) == ("predictions", 1.0, 1.0)
    assert good["command"] is None and good["mixer"] is None and good["effective_context"] is None
    assert (
        leaked["accuracy"] == 1.0
        and leaked["gap_in_se"] > 4
        and any("standard errors" in flag for flag in leaked["flags"])
    )
    assert any("The model's file is not in the repository" in flag for flag in leaked["flags"])
    files = files_of(hub, "alice/numpy")
    own = {f"runs/{good['run_id']}/{name}" for name in ("predictions.safetensors", "task.json", "model.safetensors")}
    assert own | {"selectivbench.json", "README.md", ".eval_results/selectivbench.yaml", ".gitattributes"} == set(
        files
    )
    assert "trust: predictions" in files[".eval_results/selectivbench.yaml"].decode()
    assert f"runs/{leaked['run_id']}/model.safetensors" not in files_of(hub, "alice/leaked")
    card = files_of(hub, "alice/leaked")["README.md"].decode()
    assert "Nothing can be loaded" in card and "What is doubtful" in card and "selectivbench sealed MODEL_FILE" in card
