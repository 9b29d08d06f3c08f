"""The stand-in itself, with the real client: files, large files in parts, tags, stale parents, pull requests, cuts, refusals, the leaderboard."""

WRITE = """
from huggingface_hub import HfApi, CommitOperationAdd as Add, errors
import os
api = HfApi()
api.create_repo("selectivbench/data", repo_type="dataset")
big = os.urandom(300_000)
first = api.create_commit("selectivbench/data", [Add("a/x.parquet", big), Add("README.md", b"---\\nlicense: apache-2.0\\n---\\nhello")],
                          commit_message="one", repo_type="dataset", parent_commit=api.dataset_info("selectivbench/data").sha)
api.create_tag("selectivbench/data", tag="v1.0.0", repo_type="dataset")
second = api.create_commit("selectivbench/data", [Add("eval.yaml", b"name: x\\ndescription: x\\nevaluation_framework: x\\ntasks: [{id: t}]\\n")],
                           commit_message="two", repo_type="dataset", parent_commit=first.oid)
for name, wrong, status in [
    ("stale", lambda: api.create_commit("selectivbench/data", [Add("b", b"b")], commit_message="x", repo_type="dataset", parent_commit=first.oid), 412),
    ("moved", lambda: api.create_tag("selectivbench/data", tag="v1.0.0", repo_type="dataset"), 409),
    ("owner", lambda: api.create_repo("nobody/data", repo_type="dataset"), 403),
    ("yaml", lambda: api.create_commit("alice/m", [Add(".eval_results/x.yaml", b"- {value: high}")], commit_message="x"), 400),
]:
    if name == "yaml":
        api.create_repo("alice/m")
    try:
        wrong()
        raise SystemExit(name + " was not refused")
    except errors.HfHubHTTPError as error:
        assert error.response.status_code == status, (name, error)
refs = api.list_repo_refs("selectivbench/data", repo_type="dataset")
assert [(t.name, t.target_commit) for t in refs.tags] == [("v1.0.0", first.oid)]
path = api.hf_hub_download("selectivbench/data", "a/x.parquet", repo_type="dataset", revision="v1.0.0")
assert open(path, "rb").read() == big
assert sorted(api.list_repo_files("selectivbench/data", repo_type="dataset", revision="v1.0.0")) == [".gitattributes", "README.md", "a/x.parquet"]
"""

PROPOSE = """
from huggingface_hub import HfApi, CommitOperationAdd as Add, errors
api = HfApi()
entry = b"- {dataset: {id: selectivbench/data, task_id: t}, value: 73.1, date: '2026-11-30'}\\n"
add = lambda: [Add(".eval_results/x.yaml", entry)]
try:
    api.create_commit("alice/m", add(), commit_message="mine")
    raise SystemExit("bob wrote to alice")
except errors.HfHubHTTPError as error:
    assert error.response.status_code == 403
print(api.create_commit("alice/m", add(), commit_message="mine", create_pr=True).pr_num)
"""


def test_write_tag_propose_merge(hub, script):
    hub.part_size = 100_000
    hub.fault("PUT", r"^/_lfs/", cut_after=50_000)
    script("alice")(WRITE)
    cut, *parts = hub.asked("PUT", r"^/_lfs/")
    assert cut["status"] == 0 and len(parts) == 3  # the client sent the part that was cut again
    assert script("bob")(PROPOSE).strip() == "1"
    [row] = hub.store.leaderboard("selectivbench/data", None)
    assert (row["modelId"], row["value"], row["pullRequest"]) == ("alice/m", 73.1, 1)
    script("alice")("from huggingface_hub import HfApi; HfApi().merge_pull_request('alice/m', 1)")
    [row] = hub.store.leaderboard("selectivbench/data", None)
    assert "pullRequest" not in row and ".eval_results/x.yaml" in hub.store.tree(hub.store.load("model", "alice/m"))


def test_lost_answer(hub, script):
    """`cut_answer`: the request was carried out, the client does not know."""
    hub.fault("POST", r"/commit/", cut_answer=True)
    program = """
from huggingface_hub import HfApi, CommitOperationAdd as Add, errors
api = HfApi()
api.create_repo("alice/m")
try:
    api.create_commit("alice/m", [Add("x", b"x")], commit_message="x")
    raise SystemExit("no error")
except errors.HTTPError as error:
    print(type(error).__name__)
assert api.file_exists("alice/m", "x")
"""
    assert script("alice")(program)
    [cut] = hub.asked("POST", r"/commit/")
    assert cut["status"] == 0
