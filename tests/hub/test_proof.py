"""The proof: real clients in processes of their own against the loopback Hub. What is published is what is loaded; whatever is cut, killed or done
at the same time by two, nothing is lost and nothing is doubled; a version that was published never changes."""

import json
import time

import pytest

from selectivbench_hf.tasks import get_task

REPO = "selectivbench/selectivbench"
SMALL = {"num_train": 400, "num_validation": 30, "num_test": 50}

# A client in one process: commands, and what a reader does, held against what the generator draws.
CLIENT = f"""
import contextlib, io, json, os, urllib.request
import pyarrow as pa
from selectivbench_hf.cli import main

def run(*argv, code=0):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        got = main([str(word) for word in argv])
    assert got == code, (got, out.getvalue(), err.getvalue())
    return out.getvalue() if code == 0 else out.getvalue() + err.getvalue()

def verify(*flags, code=0):
    return run("verify", {REPO!r}, *flags, code=code)

def fault(**how):
    data = json.dumps(how).encode()
    urllib.request.urlopen(urllib.request.Request(os.environ["HF_ENDPOINT"] + "/_hub/fault", data, method="POST")).read()

def kinds(table):  # a stream calls the values of a list "element", Arrow "item"
    return [(field.name, str(getattr(field.type, "value_type", field.type))) for field in table.schema]

def same(name, task, revision):
    from datasets import load_dataset
    from selectivbench_hf.builder import iterate_tables
    from selectivbench_hf.tasks import get_task

    task = get_task(task)
    splits = load_dataset({REPO!r}, name, revision=revision, verification_mode="all_checks")
    streamed = load_dataset({REPO!r}, name, revision=revision, streaming=True).with_format("arrow")
    assert list(splits) == list(streamed) == list(task.splits), (list(splits), list(task.splits))
    for split, data in splits.items():
        drawn = pa.concat_tables(iterate_tables(task, split)).combine_chunks()
        for loaded in (data.data.table, pa.concat_tables(streamed[split].iter(1000))):
            assert kinds(loaded) == kinds(drawn), (kinds(loaded), kinds(drawn))
            assert loaded.cast(drawn.schema).combine_chunks().equals(drawn), (name, split)
"""


@pytest.fixture
def tasks(tmp_path):
    """tasks(NAME, ...) -> the paths of files with small tasks of these names."""

    def write(*names, **keywords):
        out = []
        for name in names:
            out.append(str(tmp_path / f"{name}.json"))
            (tmp_path / f"{name}.json").write_text(get_task(name, **(SMALL | keywords)).to_json())
        return out

    return write


def repository(hub):
    return hub.store.load("dataset", REPO)


def data_commits(hub):
    """Commits of main that changed something after the repository was made."""
    repo = repository(hub)
    at, out = repo["branches"]["main"], []
    while at:
        out.append(at)
        at = repo["commits"][at]["parent"]
    return out[:-1]


def sent(hub):
    """How often each object arrived whole."""
    counts = {}
    for request in hub.asked("PUT", r"^/_lfs/"):
        if request.get("status") == 200:
            counts[request["path"]] = counts.get(request["path"], 0) + 1
    return counts


def wait_for(condition, process, seconds=90):
    """Wait until the condition holds while the client runs."""
    end = time.monotonic() + seconds
    while not condition():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end, "the client never came so far"
        time.sleep(0.02)


def test_published_loaded_verified_and_published_again(hub, client, script, tasks):
    noisy, recall = tasks("lite_noisy_gaps", "mqar_lite")
    hub.fault("PUT", r"^/_lfs/", cut_after=2_000)  # the client tries again by itself
    argv = ["push", REPO, "--tag", "v1.0.0", "--tasks", noisy, recall]
    out, _ = client("alice")(argv)
    [commit] = data_commits(hub)
    assert f"commit {commit}" in out and repository(hub)["tags"] == {"v1.0.0": commit}
    assert hub.asked("PUT", r"^/_lfs/")[0]["status"] == 0 and set(sent(hub).values()) == {1}

    reading = f"""
from datasets import get_dataset_config_names
assert get_dataset_config_names({REPO!r}, revision="v1.0.0") == ["lite_noisy_gaps", "mqar_lite"]
same("lite_noisy_gaps", {noisy!r}, "v1.0.0")
same("mqar_lite", {recall!r}, "v1.0.0")
print(verify("--revision", "v1.0.0", "--sample", "all", "--json"))
"""
    rows = json.loads(script(None, home="reader")(CLIENT + reading))
    assert [row["name"] for row in rows[1:]] == ["lite_noisy_gaps", "mqar_lite"]
    assert all(row["differences"] == [] and row["drawn_again"] == row["sequences"] for row in rows)

    hub.log.clear()
    out, _ = client("alice")(argv)
    assert "nothing to do" in out and not [r for r in hub.log if r["method"] not in ("GET", "HEAD")]
    assert data_commits(hub) == [commit]


def test_what_the_hub_serves_wrongly_is_named_and_no_revision_is_guessed(hub, client, script, tasks):
    (noisy,) = tasks("lite_noisy_gaps")
    client("alice")(["push", REPO, "--tag", "v1.0.0", "--tasks", noisy])
    script(None)(
        CLIENT
        + """
assert "it has the tags v1.0.0" in verify("--revision", "v9.9.9", code=2)
fault(method="GET", path="^/_content/", cut_after=1000)
assert "a rerun goes on" in verify("--revision", "v1.0.0", code=1)
verify("--revision", "v1.0.0")
assert "neither a folder" in run("verify", "selectivbench/other", code=2)
"""
    )
    # Offline, datasets serves the newest copy in its cache, whatever the revision. Here that must stop.
    offline = """
for revision in ("v9.9.9", "v1.0.0"):
    said = verify("--revision", revision, code=1)
    assert "HF_HUB_OFFLINE is set" in said and "as stated" not in said
"""
    script(None)(CLIENT + offline, HF_HUB_OFFLINE="1")

    # Somebody with the right to write changes main: the tag still holds, main does not.
    said = script("bob")(
        CLIENT
        + f"""
from huggingface_hub import HfApi
api = HfApi()
path = "lite_noisy_gaps/test-00000-of-00001.parquet"
other = api.hf_hub_download({REPO!r}, path.replace("test-", "test_gap_1-"), repo_type="dataset")
api.upload_file(path_or_fileobj=other, path_in_repo=path, repo_id={REPO!r}, repo_type="dataset")
api.upload_file(path_or_fileobj=b"import os", path_in_repo="selectivbench.py", repo_id={REPO!r}, repo_type="dataset")
verify("--revision", "v1.0.0")
print(verify(code=1))
"""
    )
    assert "difference: selectivbench.py: it is no part of a published data set" in said
    assert (
        "lite_noisy_gaps, test, test-00000-of-00001.parquet, row 0, input_ids: it has 128 steps, drawn again" in said
    )


def test_killed_in_an_upload_and_in_a_commit(hub, client, start, tasks):
    """SIGKILL, twice; then a rerun. Nothing lost, nothing doubled, and never half a data set."""
    argv = ["push", REPO, "--tag", "v1.0.0", "--tasks", *tasks("lite_noisy_gaps", "mqar_lite")]
    hub.fault("PUT", r"^/_lfs/", delay=20)
    first = start("alice")(argv)
    wait_for(lambda: len(sent(hub)) >= 3, first)
    first.kill()
    first.wait()
    assert data_commits(hub) == [] and repository(hub)["tags"] == {}
    before = set(sent(hub))

    hub.fault("POST", r"/commit/main", delay=1)
    second = start("alice")(argv)
    wait_for(lambda: hub.asked("POST", r"/commit/main"), second)
    second.kill()
    second.wait()
    wait_for_answer = time.monotonic() + 30
    while "status" not in hub.asked("POST", r"/commit/main")[0]:
        assert time.monotonic() < wait_for_answer
        time.sleep(0.02)
    assert len(data_commits(hub)) <= 1 and repository(hub)["tags"] == {}

    client("alice")(argv)
    [commit] = data_commits(hub)
    assert repository(hub)["tags"] == {"v1.0.0": commit}
    assert set(sent(hub).values()) == {1} and before < set(sent(hub))
    out, _ = client(None)(["verify", REPO, "--revision", "v1.0.0"])
    assert "2 configs as stated" in out


def test_a_commit_that_does_not_arrive(hub, client, tasks):
    argv = ["push", REPO, "--tag", "v1.0.0", "--tasks", *tasks("lite_noisy_gaps")]
    hub.fault("POST", r"/commit/main", cut_after=200)
    assert "a rerun goes on where this stopped" in client("alice")(argv, code=1)[1]
    hub.fault("POST", r"/commit/main", status=503)
    assert "the Hub failed" in client("alice")(argv, code=1)[1]
    assert data_commits(hub) == [] and repository(hub)["tags"] == {}
    arrived = sent(hub)
    hub.fault("POST", r"/tag/", cut_answer=True)  # the tag is set, and the client does not know
    assert "a rerun goes on where this stopped" in client("alice")(argv, code=1)[1]
    out, _ = client("alice")(argv)
    assert "nothing to do" in out
    [commit] = data_commits(hub)
    assert repository(hub)["tags"] == {"v1.0.0": commit} and sent(hub) == arrived


def test_two_push_at_once(hub, client, script, start, tasks):
    """The same version by two people, then two versions: both ends are in the data set, once."""
    noisy, recall, copy = tasks("lite_noisy_gaps", "mqar_lite", "copy_lite")
    hub.fault("POST", r"/commit/main", delay=1.5, times=2)
    push = lambda user, tag, task, folder: start(user, home=user)(
        ["push", REPO, "--tag", tag, "--tasks", task, "--output", folder]
    )
    both = [push("alice", "v1.0.0", noisy, "a"), push("bob", "v1.0.0", noisy, "b")]
    for process in both:
        out, err = process.communicate(timeout=120)
        assert process.returncode == 0, (out, err)
    [commit] = data_commits(hub)
    assert repository(hub)["tags"] == {"v1.0.0": commit}

    hub.fault("POST", r"/commit/main", delay=1.5, times=2)
    both = [push("alice", "v1.1.0", recall, "a"), push("bob", "v1.2.0", copy, "b")]
    said = []
    for process in both:
        out, err = process.communicate(timeout=120)
        assert process.returncode == 0, (out, err)
        said.append(err)
    assert any("somebody else has committed" in err for err in said)
    assert len(data_commits(hub)) == 3 and set(repository(hub)["tags"]) == {"v1.0.0", "v1.1.0", "v1.2.0"}
    out, _ = client(None)(["verify", REPO])
    assert "3 configs as stated" in out


def test_a_new_version_leaves_the_old_one_as_it_was(hub, client, script, tasks):
    """v1.1.0 has a config less, another one more, and notes written by hand; both versions load whole, checked and streamed."""
    noisy, recall = tasks("lite_noisy_gaps", "mqar_lite")
    (two_files,) = tasks("lite", num_train=10_000)
    (copy,) = tasks("copy_lite")
    client("alice")(["push", REPO, "--tag", "v1.0.0", "--tasks", noisy, two_files, recall])
    old = hub.store.tree(repository(hub), "v1.0.0")
    assert "lite/train-00001-of-00002.parquet" in old
    script("bob")(f"""
from huggingface_hub import HfApi
api = HfApi()
path = api.hf_hub_download({REPO!r}, "README.md", repo_type="dataset")
text = open(path).read().replace("<!-- notes -->", "<!-- notes -->\\n\\nMeasured on a rainy day.\\n")
api.upload_file(path_or_fileobj=text.encode(), path_in_repo="README.md", repo_id={REPO!r}, repo_type="dataset")
""")
    client("alice")(["push", REPO, "--tag", "v1.1.0", "--tasks", two_files, copy, "--prune"])
    assert hub.store.tree(repository(hub), "v1.0.0") == old
    new = hub.store.tree(repository(hub), "v1.1.0")
    assert b"Measured on a rainy day." in hub.store.object(new["README.md"]["sha256"]).read_bytes()
    assert {path.split("/")[0] for path in new if "/" in path} == {"lite", "copy_lite"}
    assert all(new[path] == entry for path, entry in old.items() if path.startswith("lite/"))
    script(None, home="reader")(
        CLIENT
        + f"""
from datasets import get_dataset_config_names
tasks = dict(lite_noisy_gaps={noisy!r}, lite={two_files!r}, mqar_lite={recall!r}, copy_lite={copy!r})
for revision, names in (("v1.0.0", ["lite", "lite_noisy_gaps", "mqar_lite"]), ("v1.1.0", ["lite", "copy_lite"])):
    assert sorted(get_dataset_config_names({REPO!r}, revision=revision)) == sorted(names)
    for name in names:
        same(name, tasks[name], revision)
    assert f"{{len(names)}} configs as stated" in verify("--revision", revision)
"""
    )
