"""Publishing tasks as a data set on the Hub: written locally, compared with what is there, sent ahead, then one commit and one tag.

What a push would change is computed from the repository alone, so a push that was cut at any moment is finished by running it again: blobs that
arrived are not sent twice, a commit that arrived leaves nothing but its tag to set, and a finished push leaves nothing to do. Rules of versions:

- A tag is never moved. A tag whose content differs from what would be pushed needs a new version.
- Under one name and one data version there is one content: other rows on main or under any tag are refused.
- The same rows packed into other bytes (another pyarrow) are the same: the Hub's files stay.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ..configs import DATA_FILE, MANIFEST, TASK, check_name, files_of, read_manifest
from ..datacard import in_order
from ..errors import InputError
from . import cards, client, eval_yaml

CARD = "README.md"
KIND = "dataset"
MANIFEST_LIMIT = CARD_LIMIT = 4 << 20  # bytes
BATCH = 16  # files sent between two steps of the progress bar
_TAG = re.compile(r"v(0|[1-9]\d{0,5})\.(0|[1-9]\d{0,5})\.(0|[1-9]\d{0,5})")


def check_tag(tag: str) -> str:
    """`tag` if it is vX.Y.Z with the data version's X, else an InputError."""
    from ..tasks import DATA_VERSION

    major = DATA_VERSION.split(".")[0]
    match = _TAG.fullmatch(tag)
    if match is None or match[1] != major:
        raise InputError(
            f"--tag must be v{major}.Y.Z with whole numbers Y and Z, as the data version is {DATA_VERSION}, got {tag[:40]!r}"
        )
    return tag


# -- what is on the Hub --------------------------------------------------------------------------------------------------


@dataclass
class Published:
    """A data set at one commit.

    sha: the commit, None for a repository that is not there; files: path -> {"size", "sha256", "oid"}; configs: name -> manifest.
    """

    sha: str | None
    files: dict[str, dict] = field(default_factory=dict)
    configs: dict[str, dict] = field(default_factory=dict)

    def holds(self, path: str, content: bytes) -> bool:
        """Whether a file there has this content."""
        there = self.files.get(path)
        if there is None:
            return False
        if there["sha256"] is not None:
            return there["sha256"] == hashlib.sha256(content).hexdigest()
        return there["oid"] == hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()  # as git names blobs

    def lacks(self, name: str) -> str:
        """What is wrong with the files of a config by its manifest, or ''."""
        for file, said in files_of(self.configs[name]).items():
            there = self.files.get(f"{name}/{file}")
            if there is None:
                return f"{file} is missing"
            if there["size"] != said["bytes"] or there["sha256"] not in (None, said["sha256"]):
                return f"{file} is not the file of its {MANIFEST}"
        return ""


class Reader:
    """Reads commits of one repository; a manifest that stands unchanged in several is downloaded once."""

    def __init__(self, repo: str):
        self.repo, self._files, self._manifests = repo, {}, {}

    def at(self, sha: str | None, only: Sequence[str] | None = None) -> Published:
        """The data set at a commit, with the manifests of all its configs, or of those named in `only`."""
        if sha is None:
            return Published(None)
        if sha not in self._files:
            self._files[sha] = client.files(self.repo, KIND, sha)
        out = Published(sha, self._files[sha])
        for path, info in out.files.items():
            name, _, rest = path.partition("/")
            if rest == MANIFEST and (only is None or name in only):
                out.configs[name] = self._manifest(name, path, sha, info["oid"])
        return out

    def _manifest(self, name: str, path: str, sha: str, oid: str) -> dict:
        if (name, oid) not in self._manifests:
            check_name(name)
            manifest = read_manifest(client.fetch(self.repo, KIND, path, sha, limit=MANIFEST_LIMIT))
            if manifest is None or manifest["name"] != name:
                raise InputError(f"{path} of {self.repo} at {sha[:8]} cannot be read; delete the folder {name} there")
            self._manifests[name, oid] = manifest
        return self._manifests[name, oid]

    def card(self, at: Published) -> str | None:
        """The text of the card, None where there is none."""
        if CARD not in at.files:
            return None
        return client.fetch(self.repo, KIND, CARD, at.sha, limit=CARD_LIMIT).read_text(
            encoding="utf-8", errors="replace"
        )


def _same_rows(a: dict, b: dict) -> bool:
    """Whether two manifests stand for the same rows, however these are packed."""
    rows = lambda m: {s: (e["num_sequences"], e["fingerprint"], e["content_hash"]) for s, e in m["splits"].items()}
    return a["fingerprint"] == b["fingerprint"] and rows(a) == rows(b)


def _major(manifest: dict) -> str:
    return str(manifest["data_version"]).split(".")[0]


def refuse_other_rows(repo: str, where: str, there: dict[str, dict], ours: dict[str, dict]) -> None:
    """InputError where a config of ours has other rows at `where` under the same major data version."""
    for name in ours:
        old, new = there.get(name), ours[name]
        if old is None or _major(old) != _major(new) or _same_rows(old, new):
            continue
        raise InputError(
            f"{repo} holds other data under the name {name} at {where}: fingerprint {old['fingerprint'][:12]} of data version {old['data_version']}, "
            f"here {new['fingerprint'][:12]}"
            + (", with other content hashes" if old["fingerprint"] == new["fingerprint"] else "")
            + "; one data version has one content: publish it under another name, or raise the data version"
        )


# -- what a push would change --------------------------------------------------------------------------------------------


@dataclass
class Plan:
    """What one commit would do to the data set `base`.

    add: path -> a local file or the content; delete: paths; status: config -> "new", "changed" or "same" for those pushed, "kept" for others that
    are there; said: sentences about what is not as a reader would expect.
    """

    base: Published
    card: str
    manifests: dict[str, dict]
    add: dict[str, Path | bytes] = field(default_factory=dict)
    delete: list[str] = field(default_factory=list)
    status: dict[str, str] = field(default_factory=dict)
    said: list[str] = field(default_factory=list)

    @property
    def empty(self) -> bool:
        return not self.add and not self.delete

    def sizes(self) -> dict[str, int]:
        """Path -> bytes of each file that would be sent."""
        return {path: len(c) if isinstance(c, bytes) else c.stat().st_size for path, c in sorted(self.add.items())}


def make_plan(
    reader: Reader,
    base: Published,
    folder: Path,
    ours: dict[str, dict],
    tag: str,
    *,
    prune: bool = False,
    replace_card: bool = False,
) -> Plan:
    """What makes `base` hold our configs (name -> manifest in the built `folder`), a card and an eval.yaml for `tag`."""
    others = {name: m for name, m in base.configs.items() if name not in ours}
    major = _major(next(iter(ours.values())))
    old = [name for name, m in base.configs.items() if _major(m) != major]
    if old and not prune:
        raise InputError(
            f"{reader.repo} holds {old[0]} of data version {base.configs[old[0]]['data_version']}; one data set holds one major version: --prune removes it"
        )
    kept = {} if prune else others
    for name in kept:
        if bad := base.lacks(name):
            raise InputError(
                f"{reader.repo} holds {name}, which is not in this push, with damaged files ({bad}); push it again by --tasks, or remove it by --prune"
            )
    merged, plan_add, said, status = dict(kept), {}, [], dict.fromkeys(kept, "kept")
    for name, manifest in ours.items():
        merged[name], files = _merge(base, folder, name, manifest, said)
        plan_add |= files
        status[name] = "same" if not files else "changed" if name in base.configs else "new"
    merged = in_order(merged)
    card = reader.card(base)
    where = f"the card of {reader.repo}"
    notes = "\n" if card is None or replace_card else cards.notes_of(card, where)
    text = cards.render(merged, reader.repo, tag, notes)
    for path, content in ((CARD, text), (eval_yaml.FILE, eval_yaml.render(merged))):
        if not base.holds(path, content.encode()):
            plan_add[path] = content.encode()
    plan = Plan(base, text, merged, plan_add, _orphans(base, merged, others if prune else {}), status, said)
    if prune and others:
        plan.said.append(f"--prune removes {', '.join(others)}")
    return plan


def _merge(base: Published, folder: Path, name: str, manifest: dict, said: list[str]) -> tuple[dict, dict]:
    """The manifest that a config will have, and its files to send: the Hub's own files stay where they are whole and hold the same rows."""
    there = base.configs.get(name)
    if there is not None and _same_rows(there, manifest) and not base.lacks(name):
        if there["splits"] != manifest["splits"]:
            said.append(
                f"{name} holds the same rows on the Hub in other bytes, written by other versions; its files there stay"
            )
            manifest = manifest | {"splits": there["splits"]}
        data = {}
    else:
        data = {
            f"{name}/{file['name']}": folder / name / file["name"]
            for split in manifest["splits"].values()
            for file in split["files"]
            if base.files.get(f"{name}/{file['name']}", {}).get("sha256") != file["sha256"]
        }
    texts = {
        f"{name}/{TASK}": (folder / name / TASK).read_bytes(),
        f"{name}/{MANIFEST}": (json.dumps(manifest, indent=1, allow_nan=False) + "\n").encode(),
    }
    return manifest, data | {path: content for path, content in texts.items() if not base.holds(path, content)}


def _orphans(base: Published, merged: dict[str, dict], pruned: dict[str, dict]) -> list[str]:
    """Files of builds that no manifest lists any more: shards of an earlier cut, and all of the configs that are pruned."""
    own = {f"{name}/{file}" for name, m in merged.items() for file in (*files_of(m), MANIFEST)}
    out = []
    for path in sorted(base.files):
        name, _, rest = path.partition("/")
        built = DATA_FILE.fullmatch(rest) or rest in (TASK, MANIFEST)
        if built and path not in own and (name in merged or name in pruned):
            out.append(path)
    return out


# -- the push ------------------------------------------------------------------------------------------------------------


@dataclass
class Outcome:
    """What a push did: `commit` (SHA; None in a dry run), `committed` and `tagged` by this run, `pull_request` (address)."""

    plan: Plan
    commit: str | None = None
    committed: bool = False
    tagged: bool = False
    pull_request: str | None = None


def push(
    repo: str,
    tag: str,
    folder: Path,
    ours: dict[str, dict],
    show: Callable[[Plan], None],
    say: Callable[[str], None],
    *,
    private: bool = False,
    create_pr: bool = False,
    prune: bool = False,
    replace_card: bool = False,
    dry_run: bool = False,
    progress: bool = True,
) -> Outcome:
    """Publish our configs (name -> manifest) of the built `folder` as `repo` under `tag`.

    `show` is called once with the plan before anything is sent. Others who commit meanwhile are respected: the plan is made again.
    """
    reader, options = Reader(repo), {"prune": prune, "replace_card": replace_card}
    shown = []

    def show_once(plan):
        if not shown:
            show(plan)
        shown.append(plan)

    def attempt() -> Outcome:
        head = client.head(repo, KIND)
        tags = {} if head is None else client.tags(repo, KIND)
        _check_versions(reader, tags, ours)
        if tag in tags:
            plan = make_plan(reader, reader.at(tags[tag]), folder, ours, tag, **options)
            if not plan.empty:
                raise InputError(
                    f"{repo} has the tag {tag} already, with other content ({_changes(plan)}); a tag is never moved: choose the next version"
                )
            show_once(plan)
            return Outcome(plan, tags[tag])
        base = reader.at(head)
        refuse_other_rows(repo, "main", base.configs, ours)
        plan = make_plan(reader, base, folder, ours, tag, **options)
        show_once(plan)
        if dry_run:
            return Outcome(plan)
        if head is None:
            if create_pr:
                raise InputError(f"there is no data set {repo} to which a pull request could be made")
            client.create(repo, KIND, private=private)
            say(f"made the {'private ' if private else ''}data set {repo}")
            plan.base.sha = client.head(repo, KIND)
        elif private and not client.is_private(repo, KIND):
            raise InputError(
                f"{repo} is there and public; --private only decides for a new one: change it in its settings"
            )
        if create_pr:
            return _propose(reader, plan, tag, progress)
        oid = plan.base.sha if plan.empty else _commit(repo, plan, tag, False, progress).oid
        _set_tag(repo, tag, oid)
        return Outcome(plan, oid, committed=not plan.empty, tagged=True)

    return client.guarded(attempt, say, repo)


def offline_plan(repo: str, tag: str, folder: Path, ours: dict[str, dict]) -> Plan:
    """What a push into a new repository would do; asks nothing of the Hub."""
    return make_plan(Reader(repo), Published(None), folder, ours, tag)


def _check_versions(reader: Reader, tags: dict[str, str], ours: dict[str, dict]) -> None:
    """Our rows must be those of every tag of this major data version."""
    major = _major(next(iter(ours.values())))
    for tag, sha in sorted(tags.items()):
        match = _TAG.fullmatch(tag)
        if match and match[1] == major:
            refuse_other_rows(reader.repo, tag, reader.at(sha, only=list(ours)).configs, ours)


def _changes(plan: Plan) -> str:
    paths = [*plan.add, *plan.delete]
    return ", ".join(paths[:3]) + (f" and {len(paths) - 3} more files" if len(paths) > 3 else "")


def _commit(repo: str, plan: Plan, tag: str, create_pr: bool, progress: bool):
    """Send the files ahead, then commit all of it at once. Returns huggingface_hub's CommitInfo."""
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete
    from tqdm import tqdm

    known = {f"{n}/{file}": said["sha256"] for n, m in plan.manifests.items() for file, said in files_of(m).items()}
    additions, sizes = [], plan.sizes()
    with tqdm(total=sum(sizes.values()), unit="B", unit_scale=True, desc="upload", disable=not progress) as bar:
        paths = list(sizes)
        for start in range(0, len(paths), BATCH):
            batch = [CommitOperationAdd(path, plan.add[path]) for path in paths[start : start + BATCH]]
            for operation in batch:
                path = operation.path_in_repo
                if path in known and operation.upload_info.sha256.hex() != known[path]:
                    raise InputError(f"{plan.add[path]} has changed since it was built; run the push again")
            client.upload(repo, KIND, batch, create_pr=create_pr)
            additions += batch
            bar.update(sum(sizes[operation.path_in_repo] for operation in batch))
    deletions = [CommitOperationDelete(path) for path in plan.delete]
    names = [name for name, status in plan.status.items() if status in ("new", "changed")]
    return client.commit(
        repo,
        KIND,
        [*additions, *deletions],
        f"SelectivBench {tag}",
        parent=plan.base.sha,
        create_pr=create_pr,
        description=f"Configs: {', '.join(names)}." if names else "",
    )


def _propose(reader: Reader, plan: Plan, tag: str, progress: bool) -> Outcome:
    """A pull request with the plan; one that is open and holds exactly that already is named instead."""
    if plan.empty:
        return Outcome(plan, plan.base.sha)
    for address, sha in client.open_pull_requests(reader.repo, KIND, f"SelectivBench {tag}"):
        there = reader.at(sha, only=())
        done = all(_sent(there, plan, path) for path in plan.add) and not set(plan.delete) & set(there.files)
        if done:
            return Outcome(plan, sha, pull_request=address)
    info = _commit(reader.repo, plan, tag, True, progress)
    return Outcome(plan, info.oid, committed=True, pull_request=info.pr_url)


def _sent(there: Published, plan: Plan, path: str) -> bool:
    content = plan.add[path]
    return there.holds(path, content if isinstance(content, bytes) else content.read_bytes())


def _set_tag(repo: str, tag: str, oid: str) -> None:
    """Set the tag, unless another push of the same content has just done it."""
    try:
        client.tag(repo, KIND, tag, oid)
    except InputError:
        if client.tags(repo, KIND).get(tag) != oid:
            raise
