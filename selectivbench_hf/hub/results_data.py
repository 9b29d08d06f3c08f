"""The results data set: one row a run, in Parquet files that are only ever added.

    data/rows-<first 16 digits of the file's SHA-256>.parquet   the rows of one push (hub/rows.py)
    withdrawn/<first 16 digits of a row_id>.json                a row that no longer counts, and why (hub/withdrawals.py)
    README.md                                                   the card: load_dataset reads the data set without this package

A push is one commit on top of the one it has read, so that two writers at once both succeed and nothing is doubled. A file's name tells its
content, so that a changed file is found by itself, and a file that has disappeared by the history of commits.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ..checkpointing import write_text
from ..errors import InputError
from ..parquet import file_hash
from . import client, rows, submission, withdrawals
from .ranking import run_key, superseded, supersedes

KIND = "dataset"
CARD = "README.md"
DIGITS = 16
MOST_LISTED = 300  # commits made by other means whose files are looked through
_ROWS = re.compile(r"data/rows-([0-9a-f]{16})\.parquet")
_OWN = re.compile(
    r"(?:Add|Withdraw) [^:]+: (data/rows-[0-9a-f]{16}\.parquet|withdrawn/[0-9a-f]{16}\.json)(?: \(#\d+\))?"
)


@dataclass
class Results:
    """The results data set as it was read.

    rows        every row of a sound file once, in the order of the files' names
    files       path -> number of rows
    faults      path -> what is wrong with that file, the rest of a sentence; its rows are left out
    withdrawn   row_id -> why
    notes       what else was noticed, sentences
    new         paths that were not here before
    """

    rows: list[dict] = field(default_factory=list)
    files: dict[str, int] = field(default_factory=dict)
    faults: dict[str, str] = field(default_factory=dict)
    withdrawn: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    new: set[str] = field(default_factory=set)

    def conflicts(self) -> list[str]:
        """A sentence for each run about which two rows say different things."""
        groups = defaultdict(list)
        counting = [row for row in self.rows if row["row_id"] not in self.withdrawn]
        weaker = superseded(counting)
        for row in counting:
            if row["row_id"] not in weaker:
                groups[run_key(row)].append(row)
        return [
            f"rows {', '.join(row['row_id'][:12] for row in group)} conflict: the same run, {_run(group[0])}, with other content"
            for group in groups.values()
            if len(group) > 1
        ]


def _run(row) -> str:
    return f"{row['run_id'][:12]} on {row['task']}"


# -- reading -------------------------------------------------------------------------------------------------------------


def read_folder(folder) -> Results:
    """The results in a folder that `pull` has written, in one file of rows, or in a selectivbench.json."""
    folder = Path(folder)
    if folder.name == submission.FILE:
        found = submission.read(folder).rows
        return Results(found, {folder.name: len(found)})
    if folder.is_file():
        path = f"data/{folder.name}"
        return _collected({path if _ROWS.fullmatch(path) else folder.name: folder}, {})
    data = {f"data/{p.name}": p for p in sorted((folder / "data").glob("*"))}
    gone = {f"withdrawn/{p.name}": p for p in sorted((folder / withdrawals.FOLDER).glob("*"))}
    if not data and not gone:
        raise InputError(f"{folder} holds no results: there is neither data/ nor {withdrawals.FOLDER}/ with files")
    return _collected(data, gone)


def read_hub(repo: str, sha: str, folder: Path) -> Results:
    """The results at a commit, by way of `folder`, where files stay for the next time: their names tell their content, so they never grow old."""
    listing = client.files(repo, KIND, sha)
    faults, new = {}, set()
    data, gone = {}, {}
    for path in sorted(listing):
        if path.startswith("data/"):
            found, most = data, rows.PARQUET_BYTES
        elif path.startswith(f"{withdrawals.FOLDER}/"):
            found, most = gone, withdrawals.MOST_BYTES
        else:
            continue
        if not (_ROWS.fullmatch(path) or withdrawals.NAME.fullmatch(path)):
            faults[path] = "is no file of this data set"
        elif listing[path]["size"] > most:
            faults[path] = f"has {listing[path]['size']:,} bytes; at most {most:,} are read"
        elif (bad := _not_its_name(path, listing[path]["sha256"])) is not None:
            faults[path] = bad
        else:
            local = folder / path
            if not (found is data and local.is_file() and _not_its_name(path, file_hash(local)) is None):
                new |= {path} if not local.exists() else set()
                _place(client.fetch(repo, KIND, path, sha), local)
            found[path] = local
    results = _collected(data, gone)
    results.faults = faults | results.faults
    for path, local in (data | gone).items():
        if path in results.faults:  # a reader of the folder must not meet it
            local.unlink(missing_ok=True)
    for place in sorted((folder / "data").glob("rows-*.parquet")):
        if f"data/{place.name}" not in listing:
            results.faults[f"data/{place.name}"] = f"was read before and is gone from {repo}; it stays in {folder}"
    results.new = new
    return results


def _place(source: Path, target: Path) -> None:
    """Copy a file, whole or not at all."""
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        shutil.copyfile(source, part)
        os.replace(part, target)
    except OSError as error:
        error.filename = str(target)  # copyfile names the source, which is not what lacks room
        raise
    finally:
        part.unlink(missing_ok=True)


def _not_its_name(path: str, sha256: str | None) -> str | None:
    """What is wrong where a file of rows has another content than its name says; None also where the hash is not known."""
    name = _ROWS.fullmatch(path)
    if name is None or sha256 is None or sha256.startswith(name[1]):
        return None
    return f"has changed: its content has the SHA-256 {sha256[:DIGITS]}..., and its name says {name[1]}"


def _collected(data: dict[str, Path], gone: dict[str, Path]) -> Results:
    out, seen = Results(), {}
    for path, place in data.items():
        try:
            if (bad := _not_its_name(path, file_hash(place))) is not None:
                out.faults[path] = bad
                continue
            found = rows.from_parquet(place)
        except InputError as error:
            out.faults[path] = f"is refused: {error}"
            continue
        out.files[path] = len(found)
        for row in found:
            if (first := seen.setdefault(row["row_id"], path)) != path:
                out.notes.append(f"row {row['row_id'][:12]} stands in {first} and in {path}: counted once")
            else:
                out.rows.append(row)
    for path, place in gone.items():
        try:
            row_id, reason = withdrawals.read(place, path)
            out.withdrawn[row_id] = reason
        except InputError as error:
            out.faults[path] = f"is refused: {error}"
    return out


def disappeared(repo: str, sha: str) -> tuple[dict[str, str], list[str]]:
    """(path -> when it was there last, of files that a commit before had and this one has not; what was not looked at, sentences).

    Titles of our own commits tell what they added; of commits made by other means, and of those before them, all files are listed.
    """
    commits = client.history(repo, KIND, sha)
    now, seen, listed = set(client.files(repo, KIND, sha)), {}, {}

    def look(at: str) -> None:
        if at not in listed and len(listed) < MOST_LISTED:
            listed[at] = client.files(repo, KIND, at)
            for path in listed[at]:
                if _ROWS.fullmatch(path) or withdrawals.NAME.fullmatch(path):
                    seen.setdefault(path, at)

    for number, (at, title) in enumerate(commits):
        own = _OWN.fullmatch(title)
        if own is None:
            for other, _ in commits[number : number + 2]:
                look(other)
        elif own[1] not in now:
            look(at)  # whether it was there, whatever the title says
    notes = []
    if len(listed) >= MOST_LISTED:
        notes.append(f"{repo} has many commits made by other means; the files of {MOST_LISTED} were looked through")
    return {
        path: f"was there at commit {at[:12]} and has disappeared" for path, at in seen.items() if path not in now
    }, notes


def pull(repo: str, folder: Path) -> tuple[str, Results]:
    """(commit SHA, the results at main, with whatever has disappeared among the faults), every sound file copied into `folder`."""
    sha = client.head(repo, KIND)
    if sha is None:
        raise InputError(f"there is no data set {repo} on the Hub that you may read")
    results = read_hub(repo, sha, folder)
    gone, notes = disappeared(repo, sha)
    results.faults |= gone
    results.notes += notes
    if not (results.files or results.faults):
        results.notes.append(f"{repo} holds no file of rows, data/rows-*.parquet; is it the data set of results?")
    return sha, results


def write_card(repo: str, folder: Path, say: Callable[[str], None]) -> None:
    """Put a card beside pulled files, by which load_dataset finds them; a README.md that is there and another one stays."""
    place, text = folder / CARD, card(repo)
    if place.exists() and place.read_text(encoding="utf-8", errors="replace") != text:
        say(f"notice: {place} is there and stays; it is not this data set's card")
    else:
        folder.mkdir(parents=True, exist_ok=True)
        write_text(place, text)


def cache_folder(repo: str) -> Path:
    """Where the files of a results data set are kept for the next time."""
    from huggingface_hub.constants import HF_HOME

    return Path(HF_HOME) / "selectivbench" / "results" / repo.replace("/", "--")


# -- writing -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Pushed:
    """What a push did. fresh: row_ids that were not there before; path: their file; commit: SHA, None where none was made; pull_request: address;
    held: row_id -> that of the row there which says the same, read at another commit or this one."""

    fresh: frozenset[str]
    path: str | None = None
    commit: str | None = None
    pull_request: str | None = None
    held: dict[str, str] = field(default_factory=dict)


def push(
    given: Sequence[dict], repo: str, say: Callable[[str], None], *, dry_run: bool = False, create_pr: bool = False
) -> Pushed:
    """Add rows to a results data set, which is made if there is none: one file, one commit. Rows that are there already are not sent again.

    Raises:
        InputError: an unsound row, or one that conflicts with another: the same run, task, level of trust and replayer, but other content.
    """
    given = rows.check_rows(given, "the rows to push")
    _refuse_conflicts(given, given)

    def attempt() -> Pushed:
        head = client.head(repo, KIND)
        there = Results() if head is None else read_hub(repo, head, cache_folder(repo))
        for path, fault in there.faults.items():
            say(f"warning: {path} of {repo} {fault}")
        counting = [row for row in there.rows if row["row_id"] not in there.withdrawn]
        held = _held(given, there.rows, counting)
        fresh = sorted((row for row in given if row["row_id"] not in held), key=lambda row: row["row_id"])
        _refuse_conflicts(fresh, counting)
        ids = frozenset(row["row_id"] for row in fresh)
        if not fresh or dry_run:
            return Pushed(ids, held=held)
        head = client.ensure(repo, KIND, head, say, private=False, create_pr=create_pr)
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "rows.parquet"
            rows.to_parquet(fresh, file)
            path = f"data/rows-{file_hash(file)[:DIGITS]}.parquet"
            title = f"Add {len(fresh):,} row{'s' if len(fresh) > 1 else ''}: {path}"
            return Pushed(ids, path, *add(repo, head, {path: file.read_bytes()}, title, create_pr), held)

    return client.guarded(attempt, say, repo)


def add(repo: str, head: str, content: dict[str, bytes], title: str, create_pr: bool) -> tuple[str, str | None]:
    """Commit new files on top of `head`, and the card where there is none. Returns (commit SHA, address of the pull request or None).

    An open pull request of the same title, which names a file by its content, is named instead of made again.
    """
    from huggingface_hub import CommitOperationAdd

    if create_pr and (found := client.open_pull_requests(repo, KIND, title)):
        return found[0][1], found[0][0]
    if CARD not in client.files(repo, KIND, head):
        content = content | {CARD: card(repo).encode()}
    operations = [CommitOperationAdd(path, data) for path, data in content.items()]
    client.upload(repo, KIND, operations, create_pr=create_pr)
    info = client.commit(repo, KIND, operations, title, parent=head, create_pr=create_pr)
    return info.oid, info.pr_url


def _held(given: Iterable[dict], there: Iterable[dict], counting: Sequence[dict]) -> dict[str, str]:
    """row_id of each given row that need not be added -> row_id of the one that says the same, or more (ranking.supersedes)."""
    known = {rows.said(row): row["row_id"] for row in there}
    out = {row["row_id"]: known[rows.said(row)] for row in given if rows.said(row) in known}
    for row in given:
        better = next((other["row_id"] for other in counting if supersedes(other, row)), None)
        if better is not None:
            out.setdefault(row["row_id"], better)
    return out


def _refuse_conflicts(fresh: Iterable[dict], there: Iterable[dict]) -> None:
    known = defaultdict(list)
    for row in there:
        known[run_key(row)].append(row)
    for row in fresh:
        for other in known[run_key(row)]:
            if other["row_id"] == row["row_id"] or supersedes(row, other):
                continue
            differ = [name for name in rows.FIELDS if name != "row_id" and other[name] != row[name]]
            raise InputError(
                f"row {row['row_id'][:12]} conflicts with row {other['row_id'][:12]}: both are about run {_run(row)}, trust {row['trust']}, and "
                f"differ in {', '.join(differ[:5])}{' ...' if len(differ) > 5 else ''}; rows are never changed: withdraw the earlier one first"
            )


def card(repo: str) -> str:
    """The data set's card."""
    from .. import resources
    from ..datacard import fill

    fields = "\n".join(
        f"| `{name}` | {rows.SCHEMA['properties'][name].get('description', '')} |" for name in rows.FIELDS
    )
    return fill(resources.text("dataset_cards/results_card.md"), {"repo": repo, "fields": fields})
