"""Routes that read: accounts, repositories, trees, files, the leaderboard."""

import contextlib
import hashlib
import json
import re
from urllib.parse import parse_qs, quote

from .checks import front_matter
from .handler import KINDS, REPO, route
from .store import HubError

_TRUE = ("true", "True", "1")


@route("GET", r"/api/whoami-v2")
def whoami(handler, store):
    handler.need_user()
    orgs = [{"name": org, "type": "org"} for org, members in store.orgs.items() if handler.user in members]
    token = {"type": "access_token", "accessToken": {"displayName": "loopback", "role": "write"}}
    return handler.send({"type": "user", "name": handler.user, "fullname": handler.user, "orgs": orgs, "auth": token})


@route("GET", r"/api/(?P<kinds>models|datasets|spaces)")
def listing(handler, store, kinds):
    repos = [
        r
        for r in store.all(KINDS[kinds])
        if not r["private"] or (handler.user and store.may_write(handler.user, r["id"]))
    ]
    found = [info(store, repo, None) for repo in repos]
    if handler.query.get("author"):
        found = [r for r in found if r["author"] == handler.query["author"]]
    wanted = handler.query.get("filter")
    if wanted == "benchmark:official" or handler.query.get("benchmark") == "official":
        found = [r for r in found if any(s["rfilename"] == "eval.yaml" for s in r["siblings"])]
    elif wanted:
        found = [r for r in found if wanted in r["tags"]]
    return handler.send(found)


def info(store, repo, revision, sizes=False) -> dict:
    oid = store.resolve(repo, revision)
    commit = repo["commits"][oid]
    meta = {}
    if "README.md" in commit["tree"]:
        with contextlib.suppress(Exception):  # a card that cannot be read has no metadata
            meta = front_matter(store.object(commit["tree"]["README.md"]["sha256"]).read_text()) or {}
    siblings = []
    for path, entry in sorted(commit["tree"].items()):
        item = tree_item(path, entry)
        more = {"size": item["size"], "blobId": item["oid"]}
        if "lfs" in item:
            more["lfs"] = {"sha256": entry["sha256"], "size": entry["size"], "pointerSize": 130}
        siblings.append({"rfilename": path, **(more if sizes else {})})
    found = {
        "_id": hashlib.sha1(repo["id"].encode()).hexdigest()[:24],
        "id": repo["id"],
        "author": repo["id"].split("/")[0],
        "sha": oid,
        "lastModified": commit["date"],
        "createdAt": repo["createdAt"],
        "private": repo["private"],
        "gated": False,
        "disabled": False,
        "downloads": 0,
        "likes": 0,
        "tags": meta.get("tags") or [],
        "cardData": meta,
        "siblings": siblings,
    }
    if repo["type"] == "model":
        found |= {"modelId": repo["id"], "evalResults": [_result(*r) for r in store.eval_results(repo)]}
    return found


def _result(path, item, pull, faults) -> dict:
    what = {"error": "; ".join(faults)} if faults else {"data": item}
    return {"filename": path, **what, **({"pullRequest": pull} if pull else {})}


@route("GET", REPO + r"(?:/revision/(?P<revision>[^/]+))?")
def repo_info(handler, store, kind, name, revision):
    return handler.send(info(store, handler.repo, revision, sizes=handler.query.get("blobs") in _TRUE))


@route("GET", REPO + r"/refs")
def refs(handler, store, kind, name):
    repo = handler.repo

    def branches(pulls):
        return [
            {"name": n, "ref": n if pulls else "refs/heads/" + n, "targetCommit": oid}
            for n, oid in repo["branches"].items()
            if n.startswith("refs/pr/") == pulls
        ]

    tags = [{"name": n, "ref": "refs/tags/" + n, "targetCommit": oid} for n, oid in repo["tags"].items()]
    pulls = {"pullRequests": branches(True)} if handler.query.get("include_prs") else {}
    return handler.send({"branches": branches(False), "converts": [], "tags": tags, **pulls})


@route("GET", REPO + r"/commits/(?P<revision>[^/]+)")
def commits(handler, store, kind, name, revision):
    found, oid = [], store.resolve(handler.repo, revision)
    while oid:
        commit = handler.repo["commits"][oid]
        text = {key: commit[key] for key in ("title", "message", "date")}
        found.append({"id": oid, **text, "authors": [{"user": commit["author"]}]})
        oid = commit["parent"]
    return handler.send(found)


def tree_item(path, entry) -> dict:
    item = {"type": "file", "path": path, "size": entry["size"], "oid": entry["oid"]}
    if entry["lfs"]:
        item["lfs"] = {"oid": entry["sha256"], "size": entry["size"], "pointerSize": 130}
    return item


def folder_item(path) -> dict:
    return {"type": "directory", "path": path, "size": 0, "oid": hashlib.sha1(path.encode()).hexdigest()}


@route("GET", REPO + r"/tree/(?P<revision>[^/]+)(?:/(?P<folder>.*))?")
def tree(handler, store, kind, name, revision, folder):
    prefix = folder.strip("/") + "/" if folder else ""
    inside = {p: e for p, e in store.tree(handler.repo, revision).items() if p.startswith(prefix)}
    if prefix and not inside:
        raise HubError(404, f'{folder} does not exist on "{revision}"', "EntryNotFound")
    deep = handler.query.get("recursive") in _TRUE
    items = {}
    for path, entry in sorted(inside.items()):
        parts = path[len(prefix) :].split("/")
        for depth in range(1, len(parts) if deep else min(2, len(parts))):
            above = prefix + "/".join(parts[:depth])
            items.setdefault(above, folder_item(above))
        if deep or len(parts) == 1:
            items[path] = tree_item(path, entry)
    start, size = int(handler.query.get("cursor", 0)), int(handler.query.get("limit", 1000))
    headers = {}
    if start + size < len(items):
        more = f"recursive={str(deep).lower()}&limit={size}&cursor={start + size}"
        headers["Link"] = f'<{handler.base}{handler.route}?{more}>; rel="next"'
    return handler.send(list(items.values())[start : start + size], headers=headers)


@route("POST", REPO + r"/paths-info/(?P<revision>[^/]+)")
def paths_info(handler, store, kind, name, revision):
    raw = handler.body().decode()
    paths = json.loads(raw)["paths"] if raw.startswith("{") else parse_qs(raw).get("paths", [])
    files = store.tree(handler.repo, revision)
    found = []
    for path in paths:
        if path in files:
            found.append(tree_item(path, files[path]))
        elif any(f.startswith(path.rstrip("/") + "/") for f in files):
            found.append(folder_item(path.rstrip("/")))
    return handler.send(found)


@route("GET", r"/api/datasets/(?P<dataset>[^/]+/[^/]+)/leaderboard")
def leaderboard(handler, store, dataset):
    task = handler.query.get("task_id") or handler.query.get("leaderboard_task_id")
    return handler.send(store.leaderboard(dataset, task))


@route(
    "GET HEAD",
    r"/(?:(?P<kind>datasets|spaces)/)?(?P<name>[^/]+(?:/[^/]+)?)/resolve/(?P<revision>[^/]+)/(?P<path>.+)",
)
def resolve_file(handler, store, kind, name, revision, path):
    oid = store.resolve(handler.repo, revision)
    entry = handler.repo["commits"][oid]["tree"].get(path)
    if entry is None:
        missing = {"X-Error-Code": "EntryNotFound", "X-Error-Message": "Entry not found", "X-Repo-Commit": oid}
        return handler.send({"error": "Entry not found"}, 404, missing)
    file_name = quote(path.split("/")[-1])
    headers = {
        "X-Repo-Commit": oid,
        "Accept-Ranges": "bytes",
        "Content-Disposition": f"inline; filename*=UTF-8''{file_name}",
        "ETag": f'"{entry["oid"]}"',
    }
    if not entry["lfs"]:
        return _send_object(handler, store, entry["sha256"], headers)
    headers |= {
        "Location": f"{handler.server.hub.content_url}/_content/{entry['sha256']}",
        "X-Linked-Size": str(entry["size"]),
        "X-Linked-ETag": f'"{entry["sha256"]}"',
    }
    return handler.send(b"", 302, headers, "text/plain")


@route("GET HEAD", r"/_content/(?P<sha>[0-9a-f]{64})")
def content(handler, store, sha):
    if not store.object(sha).exists():
        raise HubError(404, "no such object")
    return _send_object(handler, store, sha, {"ETag": f'"{sha}"', "Accept-Ranges": "bytes"})


def _send_object(handler, store, sha, headers) -> int:
    size = store.object(sha).stat().st_size
    first, end, status = 0, size, 200
    wanted = re.fullmatch(r"bytes=(\d*)-(\d*)", handler.headers.get("Range", ""))
    if wanted and any(wanted.groups()):
        low, high = wanted.groups()
        first = int(low) if low else max(0, size - int(high))
        end = min(size, int(high) + 1) if low and high else size
        if first >= size:
            return handler.send(b"", 416, {"Content-Range": f"bytes */{size}"})
        status, headers = 206, {**headers, "Content-Range": f"bytes {first}-{end - 1}/{size}"}
    with open(store.object(sha), "rb") as file:
        file.seek(first)
        data = file.read(end - first) if handler.command != "HEAD" else b""
    headers = {**headers, "Content-Length": str(end - first)}
    return handler.send(data, status, headers, "application/octet-stream")
