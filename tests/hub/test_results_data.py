"""`selectivbench results` against the loopback Hub: rows are only added, once each, whoever else writes and whatever is cut."""

import json
import signal
import time
from types import SimpleNamespace

import pytest

from selectivbench_hf.errors import InputError
from selectivbench_hf.hub import results_data, results_rows, rows, submission, withdrawals
from selectivbench_hf.parquet import file_hash

from .result_rows import closed_rows, row, with_id

REPO = "selectivbench/selectivbench-results"
DATASET = {"id": "selectivbench/selectivbench", "revision": "b" * 40, "tag": "v1.0.0"}


@pytest.fixture
def submitted(tmp_path, request):
    """submitted(name, rows) -> the path of a selectivbench.json with them; the data that it names are on the Hub, where there is one."""
    if "hub" in request.fixturenames:
        store = request.getfixturevalue("hub").store
        store.create("dataset", DATASET["id"], "alice", False)
        store.save(store.load("dataset", DATASET["id"]) | {"tags": {DATASET["tag"]: DATASET["revision"]}})

    def write(name, given):
        folder = tmp_path / name
        folder.mkdir(exist_ok=True)
        path = folder / submission.FILE
        path.write_text(submission.write(submission.Submission(DATASET, given)))
        return path

    return write


# A client of several commands: do(*argv, code=0) -> (out, err) of `selectivbench results ARGV`.
CLIENT = """
import contextlib, io, json
from selectivbench_hf.cli import main
def do(*argv, code=0):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        got = main(["results", *argv])
    assert got == code, (got, out.getvalue(), err.getvalue())
    return out.getvalue(), err.getvalue()
"""


@pytest.fixture
def pushed(hub, tmp_path):
    """Put files into the data set as another client might; None deletes. A file of rows is named by its rows."""

    def commit(files, title="by hand", name=REPO):
        with hub.store.lock:
            if not hub.store.path("dataset", name).exists():
                hub.store.create("dataset", name, "alice", False)
            repo = hub.store.load("dataset", name)
            head = repo["branches"]["main"]
            tree = dict(repo["commits"][head]["tree"])
            for path, data in files.items():
                tree.pop(path, None)
                if data is not None:
                    tree[path] = hub.store.lfs_entry(hub.store.put_bytes(data))
            return hub.store.commit(repo, "main", tree, title, "", "alice", head)

    return commit


def parquet(folder, given):
    """(path in the data set, bytes) of a file of rows."""
    folder.mkdir(exist_ok=True)
    path = folder / "rows.parquet"
    rows.to_parquet(sorted(given, key=lambda r: r["row_id"]), path)
    return f"data/rows-{file_hash(path)[:16]}.parquet", path.read_bytes()


def commits(hub):
    return hub.store.load("dataset", REPO)["commits"] if hub.store.path("dataset", REPO).exists() else {}


def on_main(hub):
    """Path -> bytes of the files of rows on main."""
    tree = hub.store.tree(hub.store.load("dataset", REPO))
    return {p: hub.store.object(e["sha256"]).read_bytes() for p, e in tree.items() if p.startswith("data/")}


def row_ids(hub, tmp_path):
    out = []
    for path, data in on_main(hub).items():
        place = tmp_path / path.replace("/", "-")
        place.write_bytes(data)
        out += [r["row_id"] for r in rows.from_parquet(place)]
    return out


def ids(given):
    return {r["row_id"] for r in given}


def test_the_rows_of_these_tests_are_sound():
    rows.check_rows(closed_rows(), "the test")


def test_push_again_pull_check_and_load(hub, client, script, submitted, tmp_path):
    given = closed_rows()
    file, more = submitted("one", given[:5]), submitted("two", given[3:])
    push = ["results", "push", "--results", REPO]
    out, err = client("alice")([*push, file, "--dry-run"])
    assert f"dry run: 5 rows would be added to {REPO}; nothing was sent" in out
    assert not commits(hub)
    out, err = client("alice")([*push, file])
    assert f"made the data set {REPO}" in err
    assert f"added 5 rows to {REPO} as data/rows-" in out
    before = len(commits(hub))
    out, _ = client("alice")([*push[:2], file, "--json"], SELECTIVBENCH_RESULTS=REPO)
    assert {r["status"] for r in json.loads(out)} == {"already there"}
    assert len(commits(hub)) == before, "nothing new, no commit"
    out, _ = client("bob")([*push, more, file, "--json"])
    told = json.loads(out)
    assert len(told) == 8 and sum(r["status"] == "added" for r in told) == 3
    assert all(r["name"] == "gla" and r["commit"] for r in told)
    assert len(on_main(hub)) == 2 and sorted(row_ids(hub, tmp_path)) == sorted(ids(given))

    out, _ = client("carol")(["results", "pull", REPO, "--output", "pulled", "--json"])
    assert {(f["rows"], f["status"], f["problem"]) for f in json.loads(out)} == {(5, "new", None), (3, "new", None)}
    out, _ = client("carol")(["results", "pull", REPO, "--output", "pulled"])
    assert "8 rows in pulled, 0 of them withdrawn" in out and "sound" in out and "new" not in out
    client("carol")(["results", "check", "pulled"])
    assert ids(results_data.read_folder(tmp_path / "pulled").rows) == ids(given)
    loaded = script("carol")(
        "from datasets import load_dataset\n"
        f"hub = load_dataset({REPO!r}, split='train')\n"
        "folder = load_dataset('./pulled', 'rows', split='train')\n"
        "assert sorted(hub['row_id']) == sorted(folder['row_id'])\n"
        "print(hub.num_rows, hub.column_names == folder.column_names, len(hub.column_names), set(hub['task']))"
    )
    assert loaded.split("\n")[-2] == f"8 True {len(rows.FIELDS)} {{'lite'}}"


def test_conflicts_are_refused_and_a_correction_follows_a_withdrawal(hub, script, submitted):
    first, other = row(1, 1, 0.5), row(1, 1, 0.7)
    submitted("first", [first])
    submitted("other", [other, row(1, 2)])
    replayed = with_id(first | {"trust": "replayed", "replayed_by": "bob"})
    submitted("forged", [replayed])
    lacking = ("sealed_seed", "sealed_scores", "sealed_accuracy", "sealed_low", "sealed_high", "gap_in_se")
    submitted("recorded", [with_id(row(3, 1) | dict.fromkeys(lacking))])
    submitted("recorded_again", [with_id(row(3, 1) | dict.fromkeys(lacking) | {"name": "another"})])
    submitted("sealed", [row(3, 1)])
    submitted("moved", [with_id(first | {"repo_revision": "e" * 40})])
    script("alice")(
        CLIENT
        + f"""
from selectivbench_hf.hub import results_data
first, other, repo = {first["row_id"]!r}, {other["row_id"]!r}, {REPO!r}
push = lambda name, code=0: do("push", name, "--results", repo, code=code)
push("first")
out = push("moved")[0]
assert "already there" in out and first[:12] in out, "the same row, read at a later commit of its repository"
push("recorded"), push("sealed")  # of the same weights: the one supersedes the other
assert "conflict" not in "".join(do("check", repo))
out, _ = push("recorded_again")
assert "already there" in out and {row(3, 1)["row_id"][:12]!r} in out, "the submission says more"
_, err = push("other", code=2)
assert f"row {{other[:12]}} conflicts with row {{first[:12]}}: both are about run run-1-1" in err, err
assert "differ in" in err and "accuracy" in err and "withdraw the earlier one first" in err, err
assert "calls itself replayed" in push("forged", code=2)[1]
results_data.push([{replayed!r}], repo, print)  # as `selectivbench replay` does
withdraw = lambda reason, row_id, *more, code=0: do(
    "withdraw", row_id, "--results", repo, "--reason", reason, *more, code=code
)
assert "--reason must not hold '<' or '>'" in withdraw("no <b>", first[:12], code=2)[1]
assert "has no row whose row_id begins with" in withdraw("a wrong seed", "0" * 12, code=2)[1]
assert "at least the first 12 hex digits" in withdraw("a wrong seed", "0", code=2)[1]
assert json.loads(withdraw("a wrong seed", first[:12], "--json")[0])[0]["status"] == "withdrawn"
assert "already withdrawn" in withdraw("a wrong seed", first)[0]
push("other")
assert "6 rows, 1 of them withdrawn" in do("check", repo)[0]
"""
    )
    titles = [commit["title"].split(":")[0] for commit in commits(hub).values()]
    assert titles == ["initial commit", *["Add 1 row"] * 4, "Withdraw a row", "Add 2 rows"]


def test_two_writers_at_once_and_the_row_of_neither_is_lost_or_doubled(hub, client, start, submitted, tmp_path):
    given = closed_rows()
    client("alice")(["results", "push", submitted("zero", given[:1]), "--results", REPO])
    # both have read main before either commits
    hub.fault("POST", r"/api/datasets/.*/commit/", times=2, delay=1.5)
    writers = [
        start(user, home=user)(["results", "push", submitted(user, part), "--results", REPO, "--json"])
        for user, part in (("alice", given[:5]), ("bob", given[4:]))
    ]
    outcomes = [(*w.communicate(timeout=120), w.returncode) for w in writers]
    assert [code for *_, code in outcomes] == [0, 0], outcomes
    assert any("somebody else has committed" in err for _, err, _ in outcomes)
    assert sorted(row_ids(hub, tmp_path)) == sorted(ids(given))
    assert len(hub.asked("POST", "/commit/")) == 4


def test_cut_or_killed_at_any_moment_a_rerun_completes(hub, client, start, submitted, tmp_path):
    given = closed_rows()
    push = ["results", "push", submitted("all", given), "--results", REPO]
    hub.fault("PUT", "/_lfs/", cut_after=100)  # the client sends it again by itself
    hub.fault("POST", r"/api/datasets/.*/commit/", cut_after=10)  # before the Hub has it
    _, err = client("alice")(push, code=1)
    assert "a rerun goes on where this stopped" in err
    assert not on_main(hub)
    assert len(hub.asked("PUT", "/_lfs/")) == 2
    hub.fault("POST", r"/api/datasets/.*/commit/", delay=60)
    process = start("alice")(push)
    deadline = time.time() + 60
    while not hub.asked("POST", "/commit/")[1:] and time.time() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not on_main(hub)
    hub.fault("POST", r"/api/datasets/.*/commit/", cut_answer=True)  # carried out, and the answer is lost
    client("alice")(push, code=1)
    assert sorted(row_ids(hub, tmp_path)) == sorted(ids(given))
    before = len(commits(hub))
    out, _ = client("alice")(push)
    assert "nothing to do" in out
    assert len(commits(hub)) == before and sorted(row_ids(hub, tmp_path)) == sorted(ids(given))


def test_what_was_pushed_must_stay_and_what_is_bad_is_left_out(hub, client, pushed, tmp_path):
    first, second = row(1, 1), row(1, 2)
    one, data = parquet(tmp_path / "one", [first])
    two, other = parquet(tmp_path / "two", [second])
    pushed({one: data}, f"Add 1 row: {one}")
    pushed({two: other}, "uploaded by other means")
    out, _ = client("carol")(["results", "pull", REPO, "--output", "pulled"])
    assert "2 rows in pulled" in out

    pushed({one: None}, "Delete a file")
    pushed({two: None}, "Delete another")
    _, err = client("carol")(["results", "check", REPO], code=1)
    assert f"error: {one} was there at commit" in err and f"error: {two} was there at commit" in err
    _, err = client("dave", home="dave")(["results", "pull", REPO, "--output", "pulled"], code=1)
    assert f"{one} was there at commit" in err
    assert (tmp_path / "pulled" / one).exists(), "what was pulled stays"

    bad = "data/rows-0123456789abcdef.parquet"
    broken = b"PAR1 no parquet at all"
    name = f"data/rows-{results_data.file_hash(_file(tmp_path, broken))[:16]}.parquet"
    pushed({one: data, two: other, bad: data, name: broken, "data/evil.parquet": data, "data/rows.py": b"print()"})
    out, err = client("carol")(["results", "pull", REPO, "--output", "fresh", "--json"], code=1)
    told = {f["name"]: f for f in json.loads(out)}
    assert {p for p, f in told.items() if f["status"] == "WRONG"} == {bad, name, "data/evil.parquet", "data/rows.py"}
    assert "its name says 0123456789abcdef" in told[bad]["problem"]
    assert "no sound Parquet file" in told[name]["problem"]
    assert told["data/evil.parquet"]["problem"] == "is no file of this data set"
    assert sorted(p.name for p in (tmp_path / "fresh" / "data").iterdir()) == sorted(p[5:] for p in (one, two))
    assert ids(results_data.read_folder(tmp_path / "fresh").rows) == ids([first, second])

    hub.store.path("dataset", REPO).unlink()  # the history written anew, without the first row
    pushed({two: other})
    _, err = client("carol")(["results", "pull", REPO, "--output", "fresh"], code=1)
    assert (
        f"error: {one} was read before and is gone from {REPO}; it stays in fresh" in err and err.count("error") == 1
    )


def _file(folder, data):
    path = folder / "some.bytes"
    path.write_bytes(data)
    return path


def test_proposals_by_those_without_rights(hub, client, script, submitted, tmp_path):
    push = ["results", "push", "--results", REPO]
    client("alice")([*push, submitted("first", [row(1, 1)])])
    mine = submitted("mine", [row(2, 1, submitter="carol", repo="carol/gla")])
    _, err = client("carol")([*push, mine], code=2)
    assert "no right to write" in err
    _, err = client(None)([*push, mine], code=2)
    assert "hf auth login" in err
    out, _ = client("carol")([*push, mine, "--create-pr"])
    address = out.rsplit(" ", 1)[1].strip()
    assert address.endswith("/discussions/1")
    out, _ = client("carol")([*push, mine, "--create-pr", "--json"])
    assert json.loads(out)[0]["pull_request"] == address, "the same proposal is not made twice"
    assert len(row_ids(hub, tmp_path)) == 1
    withdraw = ["results", "withdraw", "--results", REPO, row(1, 1)["row_id"], "--reason", "a wrong seed"]
    out, _ = client("carol")([*withdraw, "--create-pr", "--json"])
    assert json.loads(out)[0]["status"] == "proposed", "nothing is withdrawn before it is merged"
    script("alice")(f"from huggingface_hub import HfApi\nHfApi().merge_pull_request({REPO!r}, 1, repo_type='dataset')")
    out, _ = client("carol")(["results", "pull", REPO, "--output", "pulled"])
    assert "2 rows in pulled" in out


def test_requests_that_cannot_be_served(script, tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "a.txt").write_text("no")
    cases = [
        (["push", "empty", "--results", REPO], "empty holds no run folder"),
        (["push", "a.txt", "--results", REPO], "a.txt is neither a run folder"),
        (["push", "nothing", "--results", REPO], "there is no folder 'nothing'"),
        (
            ["push", "alice/nothing", "--results", REPO],
            "neither a folder alice/nothing nor a repository alice/nothing",
        ),
        (["push", "empty"], "--results OWNER/NAME is needed"),
        (["push", "empty", "--results", "results"], "--results must be OWNER/NAME"),
        (["push", "empty", "--resluts", REPO], "did you mean '--results'"),
        (["pull", REPO, "--output", "out"], f"there is no data set {REPO} on the Hub"),
        (["check", "empty"], "empty holds no results"),
        (["check", "nothing"], "there is no file or folder 'nothing'"),
    ]
    script("alice")(
        CLIENT
        + f"""
for argv, sentence in {cases!r}:
    out, err = do(*argv, code=2)
    assert sentence in err and err.count("error: ") == 1 and not out, (argv, out, err)
"""
    )
    assert not (tmp_path / "out").exists()


# -- without a client ----------------------------------------------------------------------------------------------------


def test_a_folder_tells_doubles_conflicts_and_changes(tmp_path):
    folder = tmp_path / "results"
    (folder / "data").mkdir(parents=True)
    same, other = row(1, 1, 0.5), row(1, 1, 0.6)
    for number, given in enumerate(([same], [same, row(1, 2)], [other])):
        path, data = parquet(tmp_path / str(number), given)
        (folder / path).write_bytes(data)
    results = results_data.read_folder(folder)
    assert ids(results.rows) == ids([same, other, row(1, 2)]) and len(results.rows) == 3
    assert [n.endswith("counted once") for n in results.notes] == [True]
    (conflict,) = results.conflicts()
    assert "the same run, run-1-1 on lite, with other content" in conflict
    results.withdrawn[other["row_id"]] = "wrong"
    assert results.conflicts() == []
    (folder / path).write_bytes(data + b"x")
    assert "has changed" in results_data.read_folder(folder).faults[path]
    assert "has changed" in results_data.read_folder(folder / path).faults[path]


@pytest.mark.parametrize(
    "change",
    [
        {"format": "other"},
        {"row_id": "1" * 64},
        {"row_id": "not hex"},
        {"reason": "<script>"},
        {"reason": ""},
        {"date": "2026-02-30"},
        {"by": None},
        {"more": "x"},
    ],
)
def test_a_withdrawal_is_read_strictly(tmp_path, change):
    good = {"format": withdrawals.FORMAT, "row_id": "a" * 64, "reason": "wrong", "by": "bob", "date": "2026-12-01"}
    where, path = f"withdrawn/{'a' * 16}.json", tmp_path / "w.json"
    path.write_text(json.dumps(good))
    assert withdrawals.read(path, where) == ("a" * 64, "wrong (bob, 2026-12-01)")
    path.write_text(json.dumps(good | change))
    with pytest.raises(InputError):
        withdrawals.read(path, where)


def test_the_card_is_one_that_the_hub_reads():
    from huggingface_hub import DatasetCard

    card = DatasetCard(results_data.card(REPO))
    assert card.data.license == "apache-2.0" and card.data.configs[0]["data_files"][0]["path"] == "data/rows-*.parquet"
    assert f'load_dataset("{REPO}", split="train")' in card.text
    assert [line.split("`")[1] for line in card.text.splitlines() if line.startswith("| `")] == list(rows.FIELDS)
    assert "{{" not in card.text


def test_one_file_by_itself(tmp_path, submitted):
    path = tmp_path / "some.parquet"
    rows.to_parquet([row(1, 1), row(1, 2)], path)
    for place in (path, submitted("one", [row(1, 1), row(1, 2)])):
        results = results_data.read_folder(place)
        assert results.files == {place.name: 2} and ids(results.rows) == ids([row(1, 1), row(1, 2)])
    path.write_bytes(b"PAR1")
    assert "no sound Parquet file" in results_data.read_folder(path).faults["some.parquet"]


def test_a_submission_names_the_data_of_a_tag(submitted, monkeypatch):
    """A forged revision of the data, or data that were never published, is refused."""
    path, tags = submitted("one", [row(1, 1)]), {}
    monkeypatch.setattr(results_rows.client, "tags", lambda repo, kind: tags)
    with pytest.raises(InputError, match="was not held to published data: .* has no tag v1.0.0"):
        results_rows.gather([str(path)], None, "alice", print)
    tags["v1.0.0"] = "c" * 40
    with pytest.raises(InputError, match="revision bbbbbbbbbbbb .* is not that of its tag v1.0.0, cccccccccccc"):
        results_rows.gather([str(path)], None, "alice", print)


def test_rows_of_a_repository_tell_the_commit_that_they_were_read_at(monkeypatch):
    given = [row(1, 1, repo=None, repo_revision=None)]
    found = submission.Submission(DATASET, given)
    files = SimpleNamespace(repo="alice/gla", revision="d" * 40, submission=found)
    monkeypatch.setattr(results_rows, "Files", SimpleNamespace(of=lambda where: files))
    monkeypatch.setattr(results_rows.client, "tags", lambda repo, kind: {DATASET["tag"]: DATASET["revision"]})
    (read,) = rows.check_rows(results_rows.gather(["alice/gla"], None, "alice", print), "the test")
    assert read == with_id(given[0] | {"repo": "alice/gla", "repo_revision": "d" * 40})


def test_a_data_set_without_rows_is_said_to_be_one(monkeypatch, tmp_path):
    monkeypatch.setattr(results_data.client, "head", lambda repo, kind: "a" * 40)
    monkeypatch.setattr(
        results_data.client, "files", lambda *_: {"README.md": {"size": 1, "sha256": None, "oid": "b"}}
    )
    monkeypatch.setattr(results_data.client, "history", lambda *_: [("a" * 40, "Add data")])
    _, found = results_data.pull("alice/data", tmp_path)
    assert found.notes == ["alice/data holds no file of rows, data/rows-*.parquet; is it the data set of results?"]


def test_name_is_for_run_folders(submitted, monkeypatch):
    monkeypatch.setattr(results_rows.client, "tags", lambda repo, kind: {DATASET["tag"]: DATASET["revision"]})
    path = submitted("one", [row(1, 1)])
    assert results_rows.gather([str(path), str(path.parent)], None, "alice", print) == [row(1, 1)]
    with pytest.raises(InputError, match="--name names the model of run folders"):
        results_rows.gather([str(path)], "mine", "alice", print)


def test_rows_of_run_folders(tmp_path):
    import torch

    import selectivbench_hf as sb

    torch.set_num_threads(1)
    small = {"num_train": 16, "num_validation": 4, "num_test": 8, "num_items": 4}
    model = {"hidden_size": 8, "num_hidden_layers": 1, "per_device_train_batch_size": 8, "max_steps": 2}
    runs = tmp_path / "runs"
    result = sb.train(sb.get_task("lite", **small), "transformer", **model, output_dir=runs / "good")
    (runs / "bad").mkdir()
    (runs / "bad" / "results.jsonl").write_text("")
    said = []
    (made,) = results_rows.gather([str(runs)], "mine", "alice", said.append)
    assert len(said) == 1 and said[0].startswith("left out: ") and f"{runs / 'bad'}" in said[0], said
    assert (made["name"], made["submitter"], made["trust"], made["task"]) == ("mine", "alice", "weights", "lite")
    assert made["accuracy"] == result.accuracy("test") and made["sealed_accuracy"] is None
    assert made["weights_sha256"] == file_hash(next((runs / "good").glob("*/model.safetensors")))
    assert results_rows.AS_RECORDED in made["flags"] and "There is no sealed score" in " ".join(made["flags"])
    for place in (runs / "good", runs / "good" / "results.jsonl"):
        assert results_rows.gather([str(place), str(runs)], "mine", "alice", said.append) == [made]
    (other,) = results_rows.gather([str(runs / "good")], None, None, said.append)
    assert other["name"] == "transformer"
    (runs / "good" / "task.json").unlink()
    with pytest.raises(InputError, match="good gives no row: task.json is missing"):
        results_rows.gather([str(runs / "good")], None, None, said.append)
    with pytest.raises(InputError, match="is no run folder"):
        results_rows.gather([str(runs / "bad")], None, None, said.append)
