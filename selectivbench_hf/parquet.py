"""One split as Parquet files: how rows fall into files and row groups, written while the split's content hash is computed."""

from __future__ import annotations

import functools
import hashlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path

GROUP_BYTES = 8 << 20  # uncompressed, about: what a stream holds at a time
# Train gets up to MAX_FILES files of at least FILE_ROWS rows, so that num_proc has something to share. No more than two: the published set is one
# commit, and what the Hub's client sends at a time is 256 files.
FILE_ROWS = 5_000
MAX_FILES = 2


def rows_per_group(task, split: str) -> int:
    """Rows of a row group: about `GROUP_BYTES`, were every sequence as long as the longest (3 or 4 bytes a step)."""
    return max(50, min(10_000, GROUP_BYTES // (4 * task.max_steps(split))))


def file_ranges(task, split: str) -> list[tuple[int, int]]:
    """(first row, end) of each file: up to `MAX_FILES` in train, one in other splits."""
    rows = task.splits[split]
    files = max(1, min(MAX_FILES, rows // FILE_ROWS)) if split == "train" else 1
    each = -(-rows // files)
    return [(start, min(rows, start + each)) for start in range(0, rows, each)]


def write_split(task, split: str, folder: Path, progress: Callable[[int], object]) -> dict:
    """Write one split into `folder` and put it on the disk; `progress` is called with the number of rows just written.

    Returns:
        {"num_sequences", "num_bytes" (in memory), "content_hash", "fingerprint", "files": [{"name", "rows", "bytes", "sha256"}]}.
    """
    files = []

    def tables(number):
        writing = _writing(task, split, number, folder, progress, held_out(task, split))
        files.append((yield from writing))

    return split_entry(task, split, hash_split(task, split, tables), files)


def split_entry(task, split: str, hashed: dict, files: list[dict]) -> dict:
    """A split's part of the manifest, from what `hash_split` and, for each file in order, `write_file` gave."""
    rows = sum(file["rows"] for file in files)
    if rows != task.splits[split] or len(files) != len(file_ranges(task, split)):
        raise RuntimeError(
            f"{task.name} {split}: {rows:,} rows in {len(files)} files, {task.splits[split]:,} were due"
        )
    return {
        "num_sequences": task.splits[split],
        **hashed,
        "fingerprint": task.split_fingerprint(split),
        "files": files,
    }


def hash_split(task, split: str, tables: Callable[[int], Iterator] | None = None) -> dict:
    """Size in memory and content hash of a whole split; `tables(number)`, by default drawn here, gives the tables of file `number`."""
    from .builder import content_hash

    if tables is None:
        tables = lambda number: file_tables(task, split, number, held_out(task, split))
    num_bytes = 0

    def rows():
        nonlocal num_bytes
        for number in range(len(file_ranges(task, split))):
            for table in tables(number):
                num_bytes += table.nbytes
                yield table

    digest = content_hash(rows())
    return {"num_bytes": num_bytes, "content_hash": digest}


def write_file(task, split: str, number: int, folder: Path, progress: Callable[[int], object]) -> dict:
    """Write one file of a split; whether train meets the other splits is left to `hash_split`, which sees the rows in order."""
    import numpy as np

    writing = _writing(task, split, number, folder, progress, np.zeros(0, np.uint64))
    while True:
        try:
            next(writing)
        except StopIteration as end:
            return end.value


@functools.lru_cache(maxsize=1)
def _held_out(task):
    from .layout import held_out_hashes

    return held_out_hashes(task)


def held_out(task, split: str):
    """What the rows of a split are checked against: hashes of validation and test for train, nothing for the others."""
    import numpy as np

    return _held_out(task) if split == "train" else np.zeros(0, np.uint64)


def file_tables(task, split: str, number: int, held_out) -> Iterator:
    """The rows of one file as tables, each a row group. The cut depends on the file alone, not on who writes it."""
    from .builder import SHARD, shard_tables
    from .sampling import block_size

    start, end = file_ranges(task, split)[number]
    while start < end:
        block_end = (start // block_size(split) + 1) * block_size(split)
        stop = min(end, block_end, start + SHARD)
        yield from shard_tables(task, split, start, stop, held_out, rows_per_group(task, split))
        start = stop


def _writing(task, split, number, folder, progress, held_out) -> Iterator:
    """Write a file's tables on their way to whoever iterates; the generator returns the file's part of the manifest."""
    import pyarrow.parquet as pq

    name = f"{split}-{number:05d}-of-{len(file_ranges(task, split)):05d}.parquet"
    path, rows, parquet = folder / name, 0, None
    with open(path, "wb") as file:
        try:
            for table in file_tables(task, split, number, held_out):
                if parquet is None:
                    parquet = pq.ParquetWriter(file, table.schema, compression="zstd", use_dictionary=True)
                parquet.write_table(table, row_group_size=rows_per_group(task, split))
                rows += table.num_rows
                progress(table.num_rows)
                yield table
            parquet.close()
            parquet = None
        finally:
            if parquet is not None:  # given up: keep pyarrow from finishing the file when the writer is collected
                parquet.is_open = False
        file.flush()
        os.fsync(file.fileno())
    return {"name": name, "rows": rows, "bytes": path.stat().st_size, "sha256": file_hash(path)}


def file_hash(path: Path) -> str:
    """SHA-256 of a file's bytes, hex."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
