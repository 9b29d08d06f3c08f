"""Routes of discussions and pull requests."""

from .handler import REPO, route
from .store import HubError, now


def _event(number, count, user, kind, data) -> dict:
    return {"id": f"{number}-{count}", "type": kind, "createdAt": now(), "author": {"name": user}, "data": data}


def _text(text, user) -> dict:
    latest = {"raw": text, "html": text, "updatedAt": now(), "author": {"name": user}}
    return {"latest": latest, "history": [], "edited": False, "hidden": False}


def open_discussion(repo, title, text, user, base: str | None, status) -> dict:
    """A new one in `repo`, not saved yet. base: the branch that a pull request is for; None for a discussion."""
    number = len(repo["discussions"]) + 1
    repo["discussions"][str(number)] = opened = {
        "num": number,
        "title": title,
        "status": status,
        "author": {"name": user},
        "createdAt": now(),
        "isPullRequest": base is not None,
        "base": base,
        "merge": None,
        "events": [_event(number, 0, user, "comment", _text(text, user))],
    }
    return opened


def _details(repo, d) -> dict:
    found = {key: d[key] for key in ("num", "title", "status", "author", "createdAt", "isPullRequest", "events")}
    found |= {"repo": {"name": repo["id"], "type": repo["type"]}, "pinned": False, "numComments": 1}
    if d["isPullRequest"]:
        merged = {"mergeCommitId": d["merge"]} if d["merge"] else {}
        found |= {"changes": {"base": "refs/heads/" + d["base"], **merged}, "filesWithConflicts": [], "diff": ""}
    return found


@route("GET", REPO + r"/discussions")
def discussions(handler, store, kind, name):
    query = handler.query
    found = [d for d in handler.repo["discussions"].values() if query.get("author") in (None, d["author"]["name"])]
    if query.get("type") in ("pull_request", "discussion"):
        found = [d for d in found if d["isPullRequest"] == (query["type"] == "pull_request")]
    if query.get("status") in ("open", "closed"):
        found = [d for d in found if (d["status"] in ("open", "draft")) == (query["status"] == "open")]
    return handler.send({"discussions": [_details(handler.repo, d) for d in found], "count": len(found), "start": 0})


@route("POST", REPO + r"/discussions")
def new_discussion(handler, store, kind, name):
    handler.need_user()
    wanted, repo = handler.json_body(), handler.repo
    pull = bool(wanted.get("pullRequest"))
    text = wanted.get("description", "")
    opened = open_discussion(
        repo, wanted["title"], text, handler.user, "main" if pull else None, "draft" if pull else "open"
    )
    if pull:
        repo["branches"][f"refs/pr/{opened['num']}"] = repo["branches"]["main"]
    store.save(repo)
    return handler.send({"num": opened["num"]})


def _found(handler, number) -> dict:
    if number not in handler.repo["discussions"]:
        raise HubError(404, "no such discussion")
    return handler.repo["discussions"][number]


@route("GET", REPO + r"/discussions/(?P<number>\d+)")
def discussion(handler, store, kind, name, number):
    return handler.send(_details(handler.repo, _found(handler, number)))


@route("POST", REPO + r"/discussions/(?P<number>\d+)/(?P<what>comment|status|title|merge)")
def change_discussion(handler, store, kind, name, number, what):
    wanted, d = handler.json_body(), _found(handler, number)
    anyone = what == "comment" or (what != "merge" and d["author"]["name"] == handler.user)
    handler.need_user(None if anyone else name)
    if what == "comment":
        event = ("comment", _text(wanted["comment"], handler.user))
    elif what == "title":
        event = ("title-change", {"from": d["title"], "to": wanted["title"]})
        d["title"] = wanted["title"]
    elif what == "status":
        event = ("status-change", {"status": wanted["status"]})
        d["status"] = wanted["status"]
    else:
        d["merge"] = _merge(store, handler, d, wanted.get("comment") or "")
        event = ("status-change", {"status": "merged"})
        d["status"] = "merged"
    event = _event(number, len(d["events"]), handler.user, *event)
    d["events"].append(event)
    store.save(handler.repo)
    return handler.send({"newMessage": event, "newStatus": event, "newTitle": event})


def _merge(store, handler, d, message) -> str:
    """The three-way merge, file by file, of a pull request into its base; the new commit."""
    if d["status"] not in ("open", "draft"):
        raise HubError(400, f"this pull request is {d['status']}")
    repo = handler.repo
    top, tip = repo["branches"][d["base"]], repo["branches"][f"refs/pr/{d['num']}"]
    above, fork = set(_ancestors(repo, top)), tip
    while fork not in above:
        fork = repo["commits"][fork]["parent"]
    old, ours, theirs = (repo["commits"][oid]["tree"] for oid in (fork, top, tip))
    new = dict(ours)
    for path in set(old) | set(theirs):
        if old.get(path) == theirs.get(path):
            continue
        if ours.get(path) not in (old.get(path), theirs.get(path)):
            raise HubError(409, f"conflict in {path}")
        new.pop(path, None)
        if path in theirs:
            new[path] = theirs[path]
    return store.commit(repo, d["base"], new, f"{d['title']} (#{d['num']})", message, handler.user, top)


def _ancestors(repo, oid):
    while oid:
        yield oid
        oid = repo["commits"][oid]["parent"]
