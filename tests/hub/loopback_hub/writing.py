"""Routes that write: repositories, LFS objects, commits, tags and branches."""

import base64
import hashlib
import json
import os
import re

import yaml

from .checks import eval_results_faults, eval_yaml_faults, front_matter
from .discussions import open_discussion
from .handler import REPO, route
from .store import HubError

_LFS_SUFFIXES = (".parquet", ".arrow", ".safetensors", ".bin", ".pt", ".npz", ".npy", ".zst", ".gz", ".zip", ".tar")
_LFS_BYTES = 10 * 1024 * 1024


def _named(handler) -> tuple[str, str]:
    """(type, OWNER/NAME) of a repository that the body names; the user may write there."""
    wanted = handler.json_body()
    handler.need_user()
    name = f"{wanted.get('organization') or handler.user}/{wanted['name']}"
    handler.need_user(write_to=name)
    return wanted.get("type") or "model", name


@route("POST", r"/api/repos/create")
def create(handler, store):
    kind, name = _named(handler)
    url = handler.page(kind, name)
    if store.path(kind, name).exists():
        return handler.send({"error": "You already created this repo", "url": url}, 409)
    wanted = handler.json_body()
    store.create(kind, name, handler.user, wanted.get("visibility") == "private" or bool(wanted.get("private")))
    return handler.send({"url": url, "name": name, "id": name})


@route("DELETE", r"/api/repos/delete")
def delete(handler, store):
    kind, name = _named(handler)
    store.load(kind, name)
    store.path(kind, name).unlink()
    return handler.send({})


@route("POST", r"/api/validate-yaml")
def validate_yaml(handler, store):
    try:
        meta = front_matter(handler.json_body()["content"])
    except yaml.YAMLError as error:
        return handler.send({"errors": [{"message": f"invalid YAML: {error}"}], "warnings": []}, 400)
    warnings = [] if meta else [{"message": "empty or missing yaml metadata in repo card"}]
    return handler.send({"errors": [], "warnings": warnings})


@route("POST", REPO + r"/preupload/(?P<revision>[^/]+)")
def preupload(handler, store, kind, name, revision):
    proposed = handler.query.get("create_pr") or revision.startswith("refs/pr/")
    handler.need_user(None if proposed else name)
    there = store.tree(handler.repo, revision)
    found = []
    for file in handler.json_body()["files"]:
        large = file["size"] > _LFS_BYTES or file["path"].lower().endswith(_LFS_SUFFIXES)
        entry = there.get(file["path"], {})
        oid = entry.get("sha256" if entry.get("lfs") else "oid")
        mode = "lfs" if large else "regular"
        found.append({"path": file["path"], "uploadMode": mode, "shouldIgnore": False, "oid": oid})
    return handler.send({"files": found})


@route("POST", r"/(?:(?P<kind>datasets|spaces)/)?(?P<name>[^/]+/[^/]+)\.git/info/lfs/objects/batch")
def lfs_batch(handler, store, kind, name):
    handler.need_user()
    wanted, part = handler.json_body(), handler.server.hub.part_size
    objects, transfer = [], "basic"
    for o in wanted["objects"]:
        row = {"oid": o["oid"], "size": o["size"]}
        if not store.object(o["oid"]).exists():  # what is there already is not sent again
            href = f"{handler.base}/_lfs/{o['oid']}?size={o['size']}"
            action = {"href": href}
            if o["size"] > part and "multipart" in wanted.get("transfers", []):
                transfer, parts = "multipart", -(-o["size"] // part)
                hrefs = {f"{i:05d}": f"{href}&part={i}" for i in range(1, parts + 1)}
                action = {"href": href + "&complete=1", "header": {"chunk_size": str(part), **hrefs}}
            verify = {"href": f"{handler.base}/_lfs/{o['oid']}/verify"}
            row |= {"authenticated": True, "actions": {"upload": action, "verify": verify}}
        objects.append(row)
    return handler.send({"transfer": transfer, "objects": objects}, content_type="application/vnd.git-lfs+json")


def _file_sha(path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@route("PUT", r"/_lfs/(?P<sha>[0-9a-f]{64})")
def lfs_put(handler, store, sha):
    temporary = store.spool(handler.body_pieces())
    got = _file_sha(temporary)
    if "part" in handler.query:
        os.replace(temporary, store.root / "parts" / f"{sha}.{int(handler.query['part']):05d}")
    elif got != sha:
        os.unlink(temporary)
        raise HubError(400, f"the bytes received hash to {got}, not {sha}")
    else:
        store.adopt(temporary, sha)
    return handler.send(b"", headers={"ETag": f'"{got[:32]}"'})


@route("POST", r"/_lfs/(?P<sha>[0-9a-f]{64})")
def lfs_complete(handler, store, sha):
    parts = [store.root / "parts" / f"{sha}.{p['partNumber']:05d}" for p in handler.json_body()["parts"]]
    temporary = store.spool(part.read_bytes() for part in parts)
    got = _file_sha(temporary)
    for part in parts:
        part.unlink()
    if got != sha:
        os.unlink(temporary)
        raise HubError(400, f"the parts hash to {got}, not {sha}")
    store.adopt(temporary, sha)
    return handler.send({"success": True})


@route("POST", r"/_lfs/(?P<sha>[0-9a-f]{64})/verify")
def lfs_verify(handler, store, sha):
    if not store.object(sha).exists() or store.object(sha).stat().st_size != handler.json_body()["size"]:
        raise HubError(422, "object missing or of another size")
    return handler.send({"success": True})


@route("POST", REPO + r"/commit/(?P<revision>[^/]+)")
def commit(handler, store, kind, name, revision):
    proposed = handler.query.get("create_pr") in ("1", "true")
    handler.need_user(None if proposed or revision.startswith("refs/pr/") else name)
    repo = handler.repo
    lines = [json.loads(line) for line in handler.body().splitlines() if line.strip()]
    head = next(line["value"] for line in lines if line["key"] == "header")
    if not proposed and revision not in repo["branches"]:
        raise HubError(404, f"Invalid rev id: {revision}", "RevisionNotFound")
    parent = store.resolve(repo, revision)
    if head.get("parentCommit"):
        if proposed:
            parent = store.resolve(repo, head["parentCommit"])
        elif not parent.startswith(head["parentCommit"]):
            raise HubError(412, "A commit has happened since. Please refresh and try again.")
    old = repo["commits"][parent]["tree"]
    new = _changed(store, old, [line for line in lines if line["key"] != "header"])
    faults = [f for path, e in new.items() if e != old.get(path) for f in _push_faults(handler, store, kind, path, e)]
    if faults:
        raise HubError(400, "; ".join(faults))
    title, text = head["summary"], head.get("description", "")
    answer, branch = {}, revision
    if proposed:
        number = open_discussion(repo, title, text, handler.user, revision, "open")["num"]
        branch, answer = f"refs/pr/{number}", {"pullRequestUrl": f"{handler.page(kind, name)}/discussions/{number}"}
    oid = store.commit(repo, branch, new, title, text, handler.user, parent)
    url = f"{handler.page(kind, name)}/commit/{oid}"
    return handler.send({"success": True, "commitOid": oid, "commitUrl": url, "hookOutput": "", **answer})


def _changed(store, tree: dict, lines: list[dict]) -> dict:
    new = dict(tree)
    for line in lines:
        value = line["value"]
        if line["key"] == "file":
            new[value["path"]] = store.entry(base64.b64decode(value["content"]))
        elif line["key"] == "lfsFile":
            if not store.object(value["oid"]).exists():
                raise HubError(400, f"LFS object {value['oid']} of {value['path']} was not uploaded")
            new[value["path"]] = store.lfs_entry(value["oid"])
        elif line["key"] == "deletedFile":
            if new.pop(value["path"], None) is None:
                raise HubError(404, f"{value['path']} does not exist", "EntryNotFound")
        elif line["key"] == "deletedFolder":
            prefix = value["path"].rstrip("/") + "/"
            new = {path: entry for path, entry in new.items() if not path.startswith(prefix)}
        else:
            raise HubError(400, f"unknown operation {line['key']}")
    return new


def _push_faults(handler, store, kind, path, entry) -> list[str]:
    """What the Hub says it checks when a file is pushed."""
    if kind == "dataset" and path == "eval.yaml":
        check = lambda data: eval_yaml_faults(data, handler.server.hub.frameworks)
    elif kind == "model" and re.fullmatch(r"\.eval_results/[^/]+\.ya?ml", path):
        check = eval_results_faults
    else:
        return []
    try:
        return [f"{path}: {fault}" for fault in check(yaml.safe_load(store.object(entry["sha256"]).read_bytes()))]
    except yaml.YAMLError as error:
        return [f"{path}: {error}"]


@route("POST", REPO + r"/(?P<what>tag|branch)/(?P<ref>[^/]+)")
def make_ref(handler, store, kind, name, what, ref):
    handler.need_user(name)
    wanted = handler.json_body()
    # A tag's path names the revision it is set at; a branch's path names the branch.
    new, start = (wanted["tag"], ref) if what == "tag" else (ref, wanted.get("startingPoint"))
    table = handler.repo["tags" if what == "tag" else "branches"]
    if new in table:
        raise HubError(409, f"Reference already exists: {new}")
    table[new] = store.resolve(handler.repo, start)
    store.save(handler.repo)
    return handler.send({})


@route("DELETE", REPO + r"/(?P<what>tag|branch)/(?P<ref>[^/]+)")
def drop_ref(handler, store, kind, name, what, ref):
    handler.need_user(name)
    if handler.repo["tags" if what == "tag" else "branches"].pop(ref, None) is None:
        raise HubError(404, f"no such {what}: {ref}", "RevisionNotFound")
    store.save(handler.repo)
    return handler.send({})
