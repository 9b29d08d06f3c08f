"""The files of a published or built data set, at one commit on the Hub or in a folder: their sizes and hashes, and each as a local path."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from ..errors import InputError
from . import client

_NOT_DATA = (".cache", ".git")  # what `hf download --local-dir` and git keep beside the files


@dataclass(frozen=True)
class DataFiles:
    """where: for messages; listing: path -> {"size", "sha256" (None where only reading tells)}; `repo` and `revision` (40 hex) on the Hub, else None."""

    where: str
    listing: dict[str, dict]
    root: Path | None = None
    repo: str | None = None
    revision: str | None = None

    @property
    def bytes(self) -> int:
        return sum(file["size"] for file in self.listing.values())

    def path(self, name: str) -> Path:
        """A listed file, downloaded where it is not here."""
        if self.repo is None:
            return self.root / name
        return client.fetch(self.repo, "dataset", name, self.revision)


def find(where: str, revision: str | None = None) -> DataFiles:
    """The data set `where`: a folder, or OWNER/NAME on the Hub; always the Hub where a revision is given.

    The revision is asked of the Hub each time, so that neither an unknown one nor another one can be served from a cache.
    """
    if revision is None and Path(where).is_dir():
        return _in_folder(Path(where))
    if Path(where).exists() and revision is not None and not _may_be_repo(where):
        raise InputError(f"{where} is on this machine and has no revisions; leave --revision out")
    if not _may_be_repo(where):
        raise InputError(f"there is no folder {where!r}, and it is no repository OWNER/NAME on the Hub")
    repo = client.repo_id(where, "the data set")
    sha = client.head(repo, "dataset", revision)
    if sha is None:
        raise InputError(f"there is neither a folder {where} nor a data set {where} on the Hub that you may read")
    return DataFiles(f"{repo} at {sha[:12]}", client.files(repo, "dataset", sha), repo=repo, revision=sha)


def _may_be_repo(where: str) -> bool:
    return where.count("/") == 1 and not where.startswith((".", "/", "~"))


def _in_folder(root: Path) -> DataFiles:
    def failed(error):
        raise error

    listing = {}
    for folder, inside, names in os.walk(root, onerror=failed):
        if Path(folder) == root:
            inside[:] = [name for name in inside if name not in _NOT_DATA]
        for name in names:
            path = Path(folder) / name
            if path.is_file():  # a dangling link is a file that is missing, and a pipe is none
                listing[path.relative_to(root).as_posix()] = {"size": path.stat().st_size, "sha256": None}
    return DataFiles(str(root), listing, root=root)
