"""What a push would change: the data set as it stands at a commit on the Hub, compared with configs that were built here.

A plan follows from the repository and the built folder alone, so it is the same however often a push is begun. Rules of versions:

- Under one name and one data version there is one content: other rows on main or under any tag are refused.
- The same rows packed into other bytes (another pyarrow) are the same: the Hub's files stay.
- Configs that are not in the push stay, unless they are pruned; no shard stays that no manifest lists.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ..configs import DATA_FILE, MANIFEST, TASK, check_name, files_of, read_manifest
from ..datacard import in_order
from ..errors import InputError
from . import cards, client, eval_yaml

CARD = "README.md"
KIND = "dataset"
MANIFEST_LIMIT = CARD_LIMIT = 4 << 20  # bytes


# -- what is on the Hub --------------------------------------------------------------------------------------------------


@dataclass
class Published:
    """A data set at one commit.

    sha: the commit, None for a repository that is not there; files: path -> {"size", "sha256", "oid"}; configs: name -> manifest.
    """

    sha: str | None
    files: dict[str, dict] = field(default_factory=dict)
    configs: dict[str, dict] = field(default_factory=dict)

    def holds(self, path: str, content: Path | bytes) -> bool:
        """Whether a file there has this content, or that of a local file."""
        there = self.files.get(path)
        if there is None:
            return False
        if not isinstance(content, bytes):
            content = content.read_bytes()
        if there["sha256"] is not None:
            return there["sha256"] == hashlib.sha256(content).hexdigest()
        return there["oid"] == hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()  # as git names blobs

    def fulfils(self, add: dict[str, Path | bytes], delete: Sequence[str]) -> bool:
        """Whether all that a plan adds is there, and nothing that it deletes."""
        return all(self.holds(path, content) for path, content in add.items()) and not set(delete) & set(self.files)

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
            try:
                check_name(name)
            except InputError as error:
                raise InputError(f"{path!a} of {self.repo} at {sha[:8]}: {error}; delete the folder there") from None
            manifest = read_manifest(client.fetch(self.repo, KIND, path, sha, limit=MANIFEST_LIMIT))
            if manifest is None or manifest["name"] != name or not _tells_a_card(manifest):
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


def _tells_a_card(manifest: dict) -> bool:
    """Whether a manifest holds all that a card says of a config, and no markup: readers' browsers would take it from our card."""
    if any(sign in json.dumps(manifest) for sign in "<>"):
        return False
    try:
        return bool(cards.render({manifest["name"]: manifest}, "OWNER/NAME", "v0.0.0"))
    except (KeyError, TypeError, ValueError, AttributeError, IndexError):
        return False


def _same_rows(a: dict, b: dict) -> bool:
    """Whether two manifests stand for the same rows, however these are packed."""
    rows = lambda m: {s: (e["num_sequences"], e["fingerprint"], e["content_hash"]) for s, e in m["splits"].items()}
    return a["fingerprint"] == b["fingerprint"] and rows(a) == rows(b)


def major(manifest: dict) -> str:
    return str(manifest["data_version"]).split(".")[0]


def refuse_other_rows(repo: str, where: str, there: dict[str, dict], ours: dict[str, dict]) -> None:
    """InputError where a config of ours has other rows at `where` under the same major data version."""
    for name in ours:
        old, new = there.get(name), ours[name]
        if old is None or major(old) != major(new) or _same_rows(old, new):
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


@dataclass(frozen=True)
class Choices:
    """prune: remove other configs; replace_card: also one that was edited, but for its notes; eval_yaml: write that file (else one that is there stays)."""

    prune: bool = False
    replace_card: bool = False
    eval_yaml: bool = True


def make_plan(
    reader: Reader, base: Published, folder: Path, ours: dict[str, dict], tag: str, choices: Choices
) -> Plan:
    """What makes `base` hold our configs (name -> manifest in the built `folder`), a card and an eval.yaml for `tag`."""
    others = {name: m for name, m in base.configs.items() if name not in ours}
    old = [name for name, m in base.configs.items() if major(m) != major(next(iter(ours.values())))]
    if old and not choices.prune:
        raise InputError(
            f"{reader.repo} holds {old[0]} of data version {base.configs[old[0]]['data_version']}; one data set holds one major version: --prune removes it"
        )
    kept = {} if choices.prune else others
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
    notes = "\n" if card is None else cards.notes_of(card, where, choices.replace_card)
    text = cards.render(merged, reader.repo, tag, notes)
    texts = {CARD: text} | ({eval_yaml.FILE: eval_yaml.render(merged)} if choices.eval_yaml else {})
    plan_add |= {path: t.encode() for path, t in texts.items() if not base.holds(path, t.encode())}
    plan = Plan(base, text, merged, plan_add, _orphans(base, merged, others if choices.prune else {}), status, said)
    if choices.prune and others:
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
