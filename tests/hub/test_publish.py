"""`selectivbench push` against the loopback Hub: what is sent, what is refused, what a rerun finds to do. Several pushes run in one client process."""

import json

from selectivbench_hf.hub import cards, eval_yaml
from selectivbench_hf.tasks import DATA_VERSION, get_task

REPO = "selectivbench/selectivbench"
SMALL = {"num_train": 400, "num_validation": 20, "num_test": 30, "num_items": 16}

# A client: push(*flags, code=0) -> what it printed, both streams; head(), tags(), tree(revision) of the data set as the Hub shows it.
CLIENT = f"""
import contextlib, io, json, sys
from pathlib import Path
from selectivbench_hf.cli import main
from huggingface_hub import CommitOperationAdd, HfApi
api = HfApi()
def push(*flags, code=0, repo={REPO!r}):
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        got = main(["push", repo, *map(str, flags)])
    assert got == code, (got, out.getvalue())
    return out.getvalue()
def head():
    return api.repo_info({REPO!r}, repo_type="dataset").sha
def tags():
    return {{t.name: t.target_commit for t in api.list_repo_refs({REPO!r}, repo_type="dataset").tags}}
def tree(revision="main"):
    files = api.list_repo_tree({REPO!r}, repo_type="dataset", revision=revision, recursive=True)
    return {{f.path: f.blob_id for f in files if hasattr(f, "blob_id")}}
def read(path, revision="main"):
    return Path(api.hf_hub_download({REPO!r}, path, repo_type="dataset", revision=revision)).read_text()
def write(path, text):
    api.create_commit({REPO!r}, [CommitOperationAdd(path, text.encode())], commit_message="by hand", repo_type="dataset")
def names(output):
    return {{row["name"]: row["status"] for row in json.loads(output[output.index("["):])}}
"""


def small(tmp_path, *names, **keywords):
    """Task files of small tasks of these names."""
    out = []
    for name in names:
        task = get_task(
            name, **{k: v for k, v in (SMALL | keywords).items() if k != "num_items" or "mqar" not in name}
        )
        path = tmp_path / f"{name}-{len(list(tmp_path.glob('*.json')))}.json"
        path.write_text(task.to_json())
        out.append(str(path))
    return out


def test_one_commit_and_a_tag_then_nothing_to_do(hub, client, script, tmp_path):
    tasks = small(tmp_path, "lite", "te1_noisy_gaps", "mqar_lite")
    dry, told = client(None)(["push", REPO, "--tag", "v1.0.0", "--tasks", *tasks, "--dry-run"])
    assert not [r for r in hub.log if r["method"] in ("POST", "PUT")]
    assert "writing 3 configs, 1,500 sequences" in told and "dry run: nothing was sent" in dry
    sizes = {
        path: (tmp_path / "selectivbench" / path).stat().st_size
        for path in ("lite/task.json", "te1_noisy_gaps/test_gap_100-00000-of-00001.parquet")
    }
    for path, size in sizes.items():
        assert f"{path} " in dry and f" {size:,}\n" in dry
    card = dry[dry.index("---\n") :]
    assert 'load_dataset("selectivbench/selectivbench", "te1_noisy_gaps", revision="v1.0.0")' in card
    rows = json.loads(client("alice")(["push", REPO, "--tag", "v1.0.0", "--tasks", *tasks, "--json", "--private"])[0])
    assert [(row["name"], row["status"], row["committed"], row["tagged"]) for row in rows] == [
        (name, "new", True, True) for name in ("lite", "te1_noisy_gaps", "mqar_lite")
    ]
    assert len(hub.asked("POST", "/commit/")) == 1 and len(hub.asked("POST", "/tag/")) == 1
    repo = hub.store.load("dataset", REPO)
    assert repo["private"] and repo["tags"] == {"v1.0.0": rows[0]["commit"]}
    seen = script("alice")(
        CLIENT
        + """
built = {str(p.relative_to("selectivbench")) for p in Path("selectivbench").rglob("*") if p.is_file()} - {".build.lock"}
assert set(tree("v1.0.0")) - {".gitattributes"} == built | {"eval.yaml"}, set(tree("v1.0.0")) ^ built
print(read("README.md", "v1.0.0"))
print("=====")
print(read("eval.yaml", "v1.0.0"))
"""
    )
    sent, _, evaluation = seen.partition("=====\n")
    assert sent.strip() == card.partition("\ndry run:")[0].strip()
    data = eval_yaml.check(evaluation)
    assert [task["id"] for task in data["tasks"]] == ["lite", "te1_noisy_gaps", "mqar_lite"]
    hub.log.clear()
    out, _ = client("alice")(["push", REPO, "--tag", "v1.0.0", "--tasks", *tasks])
    assert f"nothing to do: {REPO} holds all of it at {rows[0]['commit']}" in out
    assert not [r for r in hub.log if r["method"] != "GET" and r["method"] != "HEAD"]


def test_what_was_cut_is_finished_by_a_rerun(hub, client, tmp_path):
    tasks = small(tmp_path, "lite")
    argv = ["push", REPO, "--tag", "v1.0.0", "--tasks", *tasks]
    hub.fault("POST", "/commit/", cut_answer=True)  # the commit is made, and nobody hears of it
    _, told = client("alice")(argv, code=1)
    assert "a rerun goes on where this stopped" in told
    assert hub.store.load("dataset", REPO)["tags"] == {}
    head = hub.store.load("dataset", REPO)["branches"]["main"]
    out, _ = client("alice")(argv)
    assert "held all of it: no commit; set the tag v1.0.0" in out
    assert hub.store.load("dataset", REPO)["tags"] == {"v1.0.0": head}
    assert len(hub.asked("POST", "/commit/")) == 1


def test_versions_cards_and_other_configs(hub, script, tmp_path):
    """What a second push keeps, replaces, removes and refuses."""
    (lite, noisy, recall), (other,) = (
        small(tmp_path, "lite", "te1_noisy_gaps", "mqar_lite"),
        small(tmp_path, "lite", num_test=25),
    )
    script("alice")(
        CLIENT
        + f"""
lite, noisy, recall, other = {[lite, noisy, recall, other]!r}
push("--tag", "v1.0.0", "--tasks", lite, noisy)
first = tree("v1.0.0")

# the tag: its form, its major number, and that it stays
for tag in ("1.0.0", "v1.0", "v01.0.0", "v2.0.0", "main", "v1.0.0-rc1"):
    assert "--tag must be v1.Y.Z" in push("--tag", tag, "--tasks", lite, code=2)
assert "a tag is never moved" in push("--tag", "v1.0.0", "--tasks", recall, code=2)

# notes written by hand stay, the other config stays, and nothing of the old version moves
write("README.md", read("README.md").replace({cards.START!r}, {cards.START!r} + "\\n\\nWritten by hand.\\n"))
assert names(push("--tag", "v1.1.0", "--tasks", recall, "--json")) == {{"lite": "kept", "te1_noisy_gaps": "kept", "mqar_lite": "new"}}
card = read("README.md", "v1.1.0")
assert "Written by hand." in card and 'revision="v1.1.0"' in card and "config_name: mqar_lite" in card and "config_name: lite" in card
assert tree("v1.0.0") == first
assert "nothing to do" in push("--tag", "v1.0.0", "--tasks", lite, noisy)

# edits elsewhere are not lost
write("README.md", card.replace("## Versions and hashes", "## My own words"))
at = head()
assert "edited outside of its notes" in push("--tag", "v1.2.0", "--tasks", lite, code=2)
assert head() == at
push("--tag", "v1.2.0", "--tasks", lite, "--replace_card")
assert "My own words" not in read("README.md") and "Written by hand." in read("README.md")
write("README.md", "# Mine")
assert "was not written by `selectivbench push`" in push("--tag", "v1.3.0", "--tasks", lite, code=2)
push("--tag", "v1.3.0", "--tasks", lite, "--replace_card")
assert "# Mine" not in read("README.md") and "Written by hand" not in read("README.md")

# other rows under a published name: refused on main, and where a tag alone has them
said = push("--tag", "v1.4.0", "--tasks", other, "--output", "elsewhere", code=2)
assert "holds other data under the name lite at v1.0.0" in said, said
write("lite/train-00007-of-00008.parquet", "an orphan")
write("lite/notes.txt", "not a build's")
assert names(push("--tag", "v1.4.0", "--tasks", noisy, "--prune", "--json")) == {{"te1_noisy_gaps": "same"}}
left = set(tree())
assert left - {{".gitattributes"}} == {{p for p in first if not p.startswith("lite/")}} - {{".gitattributes"}} | {{"lite/notes.txt"}}, left
assert "holds other data under the name lite at v1.0.0" in push("--tag", "v1.5.0", "--tasks", other, "--output", "elsewhere", code=2)
assert read("eval.yaml").count("config:") == 1

# an orphan of an earlier cut, and a file that somebody damaged
write("te1_noisy_gaps/train-00007-of-00008.parquet", "an orphan")
write("te1_noisy_gaps/test-00000-of-00001.parquet", "damaged")
assert "damaged files (test-00000-of-00001.parquet" in push("--tag", "v1.5.0", "--tasks", recall, code=2)
assert names(push("--tag", "v1.5.0", "--tasks", noisy, "--json")) == {{"te1_noisy_gaps": "changed"}}
data = lambda files: {{p: o for p, o in files.items() if p.startswith("te1") and p.endswith("parquet")}}
assert data(tree()) == data(first)

# another major data version must be pruned
manifest = read("te1_noisy_gaps/manifest.json")
write("te1_noisy_gaps/manifest.json", manifest.replace('"data_version": "{DATA_VERSION}"', '"data_version": "0.9.0"'))
assert "holds te1_noisy_gaps of data version 0.9.0" in push("--tag", "v1.6.0", "--tasks", recall, code=2)
assert names(push("--tag", "v1.6.0", "--tasks", recall, "--prune", "--json")) == {{"mqar_lite": "new"}}
recorded = read("mqar_lite/manifest.json")
marked = recorded.replace('"description": "', '"description": "<script>', 1)
assert marked != recorded
for text in ("{{", json.dumps(json.loads(recorded) | {{"card": {{"family": "recall"}}}}), marked):
    write("mqar_lite/manifest.json", text)
    assert "mqar_lite/manifest.json of {REPO}" in push("--tag", "v1.7.0", "--tasks", recall, code=2)
assert set(tags()) == {{"v1.0.0", "v1.1.0", "v1.2.0", "v1.3.0", "v1.4.0", "v1.5.0", "v1.6.0"}}
"""
    )


def test_a_branch_of_the_tags_name_and_a_folder_of_a_bad_name_are_refused(hub, client, tmp_path):
    (lite,) = small(tmp_path, "lite")
    push = lambda code: client("alice")(["push", REPO, "--tag", "v1.0.0", "--tasks", lite], code=code)[1]
    hub.store.create("dataset", REPO, "alice", False)
    repo = hub.store.load("dataset", REPO)
    head = repo["branches"]["main"]
    hub.store.save(repo | {"branches": {"main": head, "v1.0.0": head}})
    assert f"{REPO} has a branch named v1.0.0, which would be read in place of the tag" in push(2)
    tree = hub.store.tree(repo) | {"1e3/manifest.json": hub.store.entry(b"{}")}
    hub.store.commit(repo, "main", tree, "by hand", "", "alice", head)
    assert f"'1e3/manifest.json' of {REPO} at " in push(2)
    assert not hub.store.load("dataset", REPO)["tags"]


def test_the_same_rows_in_other_bytes_are_the_same(hub, script, tmp_path):
    """Another pyarrow writes other bytes: the Hub's files stay. Here other row groups stand for it."""
    (lite,) = small(tmp_path, "lite")
    script("alice")(
        CLIENT
        + f"""
from selectivbench_hf import parquet
push("--tag", "v1.0.0", "--tasks", {lite!r})
before = tree()
parquet.rows_per_group = lambda task, split: 7
out = push("--tag", "v1.0.0", "--tasks", {lite!r}, "--output", "again")
assert Path("again/lite/train-00000-of-00001.parquet").read_bytes() != Path("selectivbench/lite/train-00000-of-00001.parquet").read_bytes()
assert "lite holds the same rows on the Hub in other bytes" in out and "nothing to do" in out
assert tree() == before
"""
    )


def test_a_pull_request_is_made_once_and_its_merge_is_tagged(hub, client, script, tmp_path):
    lite, noisy = small(tmp_path, "lite", "te1_noisy_gaps")
    script("alice")(CLIENT + f"push('--tag', 'v1.0.0', '--tasks', {lite!r})")
    script("mallory", home="other")(
        CLIENT
        + f"""
assert "the token has no right to write there" in push("--tag", "v1.1.0", "--tasks", {noisy!r}, code=2)
out = push("--tag", "v1.1.0", "--tasks", {noisy!r}, "--create-pr")
assert "proposed: " in out and "/discussions/1;" in out, out
again = push("--tag", "v1.1.0", "--tasks", {noisy!r}, "--create_pr")
assert "nothing to do: it is proposed already: " in again and "/discussions/1;" in again
assert "no data set mallory/none to which" in push("--tag", "v1.1.0", "--tasks", {noisy!r}, "--create-pr", code=2, repo="mallory/none")
assert "the token has no right" in push("--tag", "v1.1.0", "--tasks", {noisy!r}, code=2, repo="nobody/none")
"""
    )
    script("alice")(
        CLIENT
        + f"""
assert list(tags()) == ["v1.0.0"]
api.merge_pull_request({REPO!r}, 1, repo_type="dataset")
out = push("--tag", "v1.1.0", "--tasks", {noisy!r})
assert "held all of it: no commit; set the tag v1.1.0" in out
assert tags()["v1.1.0"] == head()
assert "public; --private only decides for a new one" in push("--tag", "v1.2.0", "--tasks", {noisy!r}, "--private", code=2)
"""
    )


def test_a_hub_that_does_not_know_the_framework(hub, script, tmp_path):
    """Its list of frameworks is closed: the refusal says what to do, and that works."""
    hub.frameworks = {"inspect-ai"}
    (lite,) = small(tmp_path, "lite")
    script("alice")(
        CLIENT
        + f"""
out = push("--tag", "v1.0.0", "--tasks", {lite!r}, code=2)
assert "evaluation_framework" in out and "--skip_eval_yaml publishes without" in out, out
assert tags() == {{}}
assert "published {REPO} as v1.0.0" in push("--tag", "v1.0.0", "--tasks", {lite!r}, "--skip_eval_yaml")
assert "eval.yaml" not in tree("v1.0.0") and "README.md" in tree("v1.0.0")
assert "nothing to do" in push("--tag", "v1.0.0", "--tasks", {lite!r}, "--skip_eval_yaml")
assert "other content (eval.yaml)" in push("--tag", "v1.0.0", "--tasks", {lite!r}, code=2)
"""
    )
    hub.frameworks = {"selectivbench"}
    script("alice")(CLIENT + f"push('--tag', 'v1.1.0', '--tasks', {lite!r}); assert 'eval.yaml' in tree('v1.1.0')")


def test_one_sentence_for_what_cannot_be_done(hub, client, tmp_path):
    (lite,) = small(tmp_path, "lite")
    argv = ["push", REPO, "--tag", "v1.0.0", "--tasks", lite]
    assert "there is no token" in client(None)(argv, code=2)[1]
    assert "HF_HUB_OFFLINE is set" in client("alice")(argv, code=1, HF_HUB_OFFLINE="1")[1]
    out, told = client("alice")([*argv, "--dry-run"], HF_HUB_OFFLINE="1")
    assert "shown is a push into a new data set" in told and "files, " in out
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/README.md").write_text("# my project\n")
    for flags, sentence in [
        (["--output", "dangling"], "is a dangling link"),
        (["--output", "mine"], "was not written by `selectivbench build`"),
        (["--grammar_seeds", "1", "1"], "name a config twice"),
    ]:
        _, told = client("alice")([*argv[:4], "--tasks", "lite", *flags], code=2)
        assert sentence in told and told.splitlines()[-1].startswith("error: ")
    for repo in ("selectivbench", "a/b/c", "../x", "a--b/c"):
        assert "must be OWNER/NAME" in client("alice")(["push", repo, *argv[2:]], code=2)[1]
    assert not hub.asked("POST", "/")
