"""What the loopback Hub keeps, as files under one root.

objects/AA/SHA256                 every file's bytes
repos/TYPE/OWNER/NAME.json        commits (path -> object), branches, tags, discussions
A file of state is replaced by a rename, so a killed server comes back with its last commit.
"""

import datetime
import hashlib
import json
import os
import re
import tempfile
import threading
from pathlib import Path

import yaml

from .checks import eval_results_faults


class HubError(Exception):
    """A refusal: the HTTP status, the sentence, and the Hub's X-Error-Code."""

    def __init__(self, status, message, code=None):
        super().__init__(message)
        self.status, self.message, self.code = status, message, code


def now() -> str:
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.000Z")


def _git_oid(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


def _lfs_pointer(sha: str, size: int) -> bytes:
    return f"version https://git-lfs.github.com/spec/v1\noid sha256:{sha}\nsize {size}\n".encode()


class Store:
    """Objects and repositories. `lock` is held by whoever reads, changes and saves a repository."""

    def __init__(self, root, orgs=None):
        self.root, self.orgs, self.lock = Path(root), dict(orgs or {}), threading.RLock()
        for folder in ("objects", "repos", "parts"):
            (self.root / folder).mkdir(parents=True, exist_ok=True)

    # -- objects

    def object(self, sha: str) -> Path:
        return self.root / "objects" / sha[:2] / sha

    def put_bytes(self, data: bytes) -> str:
        sha = hashlib.sha256(data).hexdigest()
        if not self.object(sha).exists():
            self.adopt(self.spool([data]), sha)
        return sha

    def spool(self, pieces) -> str:
        """A temporary file of the pieces; nothing stays of it when one of them raises."""
        descriptor, name = tempfile.mkstemp(dir=self.root, prefix="tmp-")
        try:
            with os.fdopen(descriptor, "wb") as file:
                for piece in pieces:
                    file.write(piece)
        except BaseException:
            os.unlink(name)
            raise
        return name

    def adopt(self, temporary: str, sha: str) -> None:
        self.object(sha).parent.mkdir(parents=True, exist_ok=True)
        os.replace(temporary, self.object(sha))

    # -- repositories

    def path(self, kind: str, name: str) -> Path:
        if not re.fullmatch(r"[\w.-]+(/[\w.-]+)?", name) or ".." in name:
            raise HubError(400, f"not a repo id: {name}")
        return self.root / "repos" / kind / (name + ".json")

    def load(self, kind: str, name: str) -> dict:
        path = self.path(kind, name)
        if not path.exists():
            raise HubError(404, f"Repository Not Found: {kind} {name}", "RepoNotFound")
        return json.loads(path.read_text())

    def save(self, repo: dict) -> None:
        path = self.path(repo["type"], repo["id"])
        path.parent.mkdir(parents=True, exist_ok=True)
        os.replace(self.spool([json.dumps(repo, indent=0).encode()]), path)

    def all(self, kind: str) -> list[dict]:
        return [json.loads(p.read_text()) for p in sorted((self.root / "repos" / kind).glob("**/*.json"))]

    def may_write(self, user: str, name: str) -> bool:
        owner = name.split("/")[0]
        return user == owner or user in self.orgs.get(owner, ())

    def create(self, kind: str, name: str, user: str, private: bool) -> None:
        repo = {"type": kind, "id": name, "private": private, "createdAt": now()}
        repo |= {"commits": {}, "branches": {}, "tags": {}, "discussions": {}}
        tree = {".gitattributes": self.entry(b"*.parquet filter=lfs diff=lfs merge=lfs -text\n")}
        self.commit(repo, "main", tree, "initial commit", "", user, None)

    def entry(self, data: bytes) -> dict:
        return {"sha256": self.put_bytes(data), "size": len(data), "oid": _git_oid(data), "lfs": False}

    def lfs_entry(self, sha: str) -> dict:
        size = self.object(sha).stat().st_size
        return {"sha256": sha, "size": size, "oid": _git_oid(_lfs_pointer(sha, size)), "lfs": True}

    def commit(self, repo, branch, tree, title, message, user, parent) -> str:
        body = json.dumps([tree, title, message, parent, now(), len(repo["commits"])], sort_keys=True)
        oid = hashlib.sha1(body.encode()).hexdigest()
        repo["commits"][oid] = {
            "tree": tree,
            "title": title,
            "message": message,
            "author": user,
            "date": now(),
            "parent": parent,
        }
        repo["branches"][branch] = oid
        self.save(repo)
        return oid

    def resolve(self, repo: dict, revision: str | None) -> str:
        """The commit that a branch, a tag or a commit's first digits name."""
        revision = revision or "main"
        for table in (repo["branches"], repo["tags"]):
            if revision in table:
                return table[revision]
        if revision.startswith("refs/heads/"):
            return self.resolve(repo, revision.removeprefix("refs/heads/"))
        hits = [c for c in repo["commits"] if len(revision) >= 7 and c.startswith(revision)]
        if len(hits) == 1:
            return hits[0]
        raise HubError(404, f"Invalid rev id: {revision}", "RevisionNotFound")

    def tree(self, repo: dict, revision: str | None = None) -> dict:
        """Path -> object of a revision."""
        return repo["commits"][self.resolve(repo, revision)]["tree"]

    # -- results and leaderboard

    def eval_results(self, repo: dict) -> list[tuple]:
        """(file name, result or None, number of the pull request or None, faults) of main and of the open pull requests."""
        heads = [(None, "main")]
        heads += [
            (int(number), f"refs/pr/{number}")
            for number, d in repo["discussions"].items()
            if d["isPullRequest"] and d["status"] in ("open", "draft")
        ]
        found, seen = [], set()
        for pull, branch in heads:
            for path, entry in self.tree(repo, branch).items():
                if not re.fullmatch(r"\.eval_results/[^/]+\.ya?ml", path) or (path, entry["oid"]) in seen:
                    continue
                seen.add((path, entry["oid"]))
                try:
                    data = yaml.safe_load(self.object(entry["sha256"]).read_bytes())
                    faults = eval_results_faults(data)
                except yaml.YAMLError as error:
                    data, faults = None, [str(error)]
                found += [(path, item, pull, faults) for item in ([None] if faults else data)]
        return found

    def leaderboard(self, dataset: str, task: str | None) -> list[dict]:
        tree = self.tree(self.load("dataset", dataset))
        if "eval.yaml" not in tree:
            raise HubError(404, "This dataset is not a benchmark (no eval.yaml)")
        benchmark = yaml.safe_load(self.object(tree["eval.yaml"]["sha256"]).read_bytes())
        task = task or benchmark["tasks"][0]["id"]
        best = {}
        for model in self.all("model"):
            for path, item, pull, faults in self.eval_results(model):
                if faults or (item["dataset"]["id"], item["dataset"]["task_id"]) != (dataset, task):
                    continue
                row = self._row(model["id"], path, item, pull)
                worth = ("pullRequest" not in row, row["value"])  # what is merged comes before what is proposed
                if model["id"] not in best or worth > best[model["id"]][0]:
                    best[model["id"]] = (worth, row)
        rows = sorted((row for _, row in best.values()), key=lambda row: (-row["value"], row["modelId"]))
        return [{"rank": i + 1, **row} for i, row in enumerate(rows)]

    def _row(self, model: str, path: str, item: dict, pull: int | None) -> dict:
        owner = model.split("/")[0]
        author = {"type": "org" if owner in self.orgs else "user", "name": owner, "fullname": "", "avatarUrl": ""}
        row = {"modelId": model, "value": item["value"], "filename": path, "verified": False, "author": author}
        more = {"source": item.get("source"), "notes": item.get("notes"), "pullRequest": pull}
        return row | {key: value for key, value in more.items() if value is not None}
