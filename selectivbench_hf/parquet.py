"""One split as Parquet files: how rows fall into files and row groups, written while the split's content hash is computed."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path

GROUP_BYTES = 8 << 20  # uncompressed, about: what a stream holds at a time
FILE_ROWS = (
    5_000  # a train split gets up to MAX_FILES files of at least so many rows, so that num_proc has something to share
)
MAX_FILES = 8


def rows_per_group(task, split: str) -> int:
    """Rows of a row group: about `GROUP_BYTES`, were every sequence as long as the longest (3 or 4 bytes a step)."""
    return max(50, min(10_000, GROUP_BYTES // (4 * task.max_steps(split))))


def rows_per_file(task, split: str) -> int:
    """Rows of a file: several files in train, two in other splits, so that `num_proc` has something to share."""
    rows = task.splits[split]
    files = max(1, min(MAX_FILES, rows // FILE_ROWS)) if split == "train" else 2 if rows >= 500 else 1
    return -(-rows // files)


def write_split(task, split: str, folder: Path, progress: Callable[[int], object]) -> dict:
    """Write one split into `folder` and put it on the disk; `progress` is called with the number of rows just written.

    Returns:
        {"num_sequences", "num_bytes" (in memory), "content_hash", "fingerprint", "files": [{"name", "rows", "bytes", "sha256"}]}.
    """
    from .builder import content_hash

    written = _Writer(task, split, folder, progress)
    digest = content_hash(written.tables())
    for entry in written.files:
        entry["bytes"] = (folder / entry["name"]).stat().st_size
        entry["sha256"] = file_hash(folder / entry["name"])
    return {
        "num_sequences": task.splits[split],
        "num_bytes": written.num_bytes,
        "content_hash": digest,
        "fingerprint": task.split_fingerprint(split),
        "files": written.files,
    }


class _Writer:
    """Writes a split's tables on their way to whoever iterates over `tables()`."""

    def __init__(self, task, split, folder, progress):
        self.task, self.split, self.folder, self.progress = task, split, folder, progress
        self.rows, self.per_file, self.group = (
            task.splits[split],
            rows_per_file(task, split),
            rows_per_group(task, split),
        )
        self.count = -(-self.rows // self.per_file)
        self.files, self.num_bytes = [], 0
        self._file = self._parquet = None

    def tables(self):
        from .builder import iterate_tables

        done = 0
        try:
            for table in iterate_tables(self.task, self.split, rows_per_table=self.group):
                self._write(table)
                done += table.num_rows
                self.num_bytes += table.nbytes
                self.progress(table.num_rows)
                yield table
            self._close()
        finally:
            if self._file is not None:  # given up: keep pyarrow from finishing the file when the writer is collected
                self._parquet.is_open = False
                self._file.close()
        if done != self.rows or len(self.files) != self.count:
            raise RuntimeError(
                f"{self.task.name} {self.split}: {done:,} rows in {len(self.files)} files, {self.rows:,} in {self.count} were due"
            )

    def _write(self, table):
        while table.num_rows:
            if self._parquet is None:
                self._open(table.schema)
            part = table.slice(0, self.per_file - self.files[-1]["rows"])
            self._parquet.write_table(part, row_group_size=self.group)
            self.files[-1]["rows"] += part.num_rows
            table = table.slice(part.num_rows)
            if self.files[-1]["rows"] == self.per_file:
                self._close()

    def _open(self, schema):
        import pyarrow.parquet as pq

        name = f"{self.split}-{len(self.files):05d}-of-{self.count:05d}.parquet"
        self._file = open(self.folder / name, "wb")  # noqa: SIM115 - lives until _close
        self._parquet = pq.ParquetWriter(self._file, schema, compression="zstd", use_dictionary=True)
        self.files.append({"name": name, "rows": 0})

    def _close(self):
        if self._parquet is not None:
            self._parquet.close()
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()
            self._parquet = self._file = None


def file_hash(path: Path) -> str:
    """SHA-256 of a file's bytes, hex."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
