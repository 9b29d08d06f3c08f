"""One split of a data set that came from outside: its Parquet values read, hashed, and compared with what the generator draws.

Memory is bounded by a row group of the file and a block of the generator. N rows; a row has steps; T items of a sequence.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

MOST_GROUP = 256 << 20  # bytes of a row group, uncompressed; a build's have about 8 MiB
BATCH = 2_000  # rows decoded at a time
LISTED = 20  # rows of a column that are named one by one


@dataclass(frozen=True)
class Difference:
    """Something that is not as it should be, and where."""

    what: str
    config: str | None = None
    split: str | None = None
    file: str | None = None
    row: int | None = None
    column: str | None = None

    def __str__(self):
        places = [self.config, self.split, self.file]
        places += [None if self.row is None else f"row {self.row:,}", self.column]
        return ", ".join(place for place in places if place) + f": {self.what}"


@dataclass
class SplitCheck:
    """What was found of a split.

    Attributes:
        differences: in the order of the rows.
        hashes: (N,) uint64 of the sequences that could be read, for the proof that splits are disjoint.
        drawn: rows that were drawn again and compared.
        content_hash: of what was read; None where the columns are not the task's.
    """

    differences: list[Difference] = field(default_factory=list)
    hashes: np.ndarray = field(default_factory=lambda: np.zeros(0, np.uint64))
    drawn: int = 0
    content_hash: str | None = None


def sampled(size: int, sample: int | None) -> np.ndarray | None:
    """Rows of a split of `size`: `sample` of them spread over it, from a first one that nobody can know before; None for all."""
    if sample is None or sample >= size:
        return None
    start = secrets.randbelow(1 << 20) / (1 << 20)
    return np.minimum(((np.arange(sample) + start) * size / sample).astype(np.int64), size - 1)


def check_split(task, split: str, entry: dict, place: Callable[[str], Path | None], sample, progress) -> SplitCheck:
    """Read a split's files and compare.

    Args:
        task: the task whose data they should be.
        entry: the split's part of the manifest: "files" [{"name", "rows"}] and "content_hash".
        place: file name -> path, None where the file is missing (which is said elsewhere).
        sample: rows drawn again; None for all. Where the content hash differs, all are, so that the rows can be named.
        progress: called with the number of rows just read.
    """
    from ..builder import content_hash

    check = SplitCheck()
    files = [(file, place(file["name"])) for file in entry["files"]]
    whole = all(path is not None for _, path in files)
    reader = _Reader(task, split, sampled(task.splits[split], sample))
    digest = content_hash(reader.tables(files, progress))
    check.differences, check.drawn = reader.differences, reader.drawn
    check.hashes = np.concatenate([np.zeros(0, np.uint64), *reader.hashes])
    if whole and reader.sound:
        check.content_hash = digest
        if digest != entry["content_hash"]:
            what = f"the content hash of its values is {digest}, the manifest's {entry['content_hash']}"
            again = _Reader(task, split, None)
            for _ in again.tables(files, lambda rows: None):
                pass
            check.differences = [Difference(what, split=split), *again.differences]
            check.drawn = again.drawn
    return check


class _Reader:
    """Reads a split's files once, notes differences, and compares the rows in `chosen` (sorted; None: all) with the generator's."""

    def __init__(self, task, split, chosen):
        from ..builder import features_of

        self.task, self.split, self.chosen = task, split, chosen
        self.schema = features_of(task).arrow_schema
        self.differences, self.hashes, self.drawn = [], [], 0
        self.sound = True  # every file could be read and has the task's columns
        self._block = (None, None)
        self._named = {}

    def tables(self, files, progress) -> Iterator:
        """The tables, a row group each, in the columns of the task."""
        first = 0
        for file, path in files:
            self.file = file["name"]
            if path is not None:
                for table in self._groups(path, file["rows"]):
                    readable = self._check(table, first)
                    first += table.num_rows
                    progress(table.num_rows)
                    if readable:
                        yield table
            first = self._end_of(file, files)
        if not first:
            self.sound = False

    def _end_of(self, file, files) -> int:
        """The first row after a file, by the manifest: what is missing in one file must not shift the next."""
        ends = np.cumsum([f["rows"] for f, _ in files])
        return int(ends[[f["name"] for f, _ in files].index(file["name"])])

    def _groups(self, path, rows) -> Iterator:
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:
            with pq.ParquetFile(path) as parquet:
                if not self._columns(parquet.schema_arrow):
                    return
                meta = parquet.metadata
                if meta.num_rows != rows:
                    self._differ(f"it has {meta.num_rows:,} rows, the manifest says {rows:,}")
                    self.sound = False
                left = rows
                for group in range(meta.num_row_groups):
                    if too_large := self._too_large(meta.row_group(group)):
                        self._differ(f"row group {group} is not read: {too_large}")
                        self.sound = False
                        return
                    for batch in parquet.iter_batches(BATCH, row_groups=[group], columns=self.schema.names):
                        batch.validate(full=True)
                        yield pa.Table.from_batches([batch]).slice(0, left)
                        left -= batch.num_rows
                        if left <= 0:  # rows beyond are told by their number
                            return
        except (pa.ArrowException, OSError, ValueError, OverflowError, MemoryError) as error:
            why = str(error).splitlines()[0][:200] if str(error) else type(error).__name__
            self._differ(f"it cannot be read as Parquet ({ascii(why)[1:-1]})")
            self.sound = False

    def _too_large(self, group) -> str:
        """Why a row group is more than rows of this split can be, by the file's own account; ''. Repeated values pack into next to nothing."""
        if not 0 <= group.total_byte_size <= MOST_GROUP:
            return f"{group.total_byte_size:,} bytes uncompressed; at most {MOST_GROUP:,} are"
        most = group.num_rows * self.task.max_steps(self.split)
        for column in range(group.num_columns):
            values = group.column(column).num_values
            if values > most:
                return f"{group.num_rows:,} rows with {values:,} values; at most {most:,} fit the task"
        return ""

    def _columns(self, found) -> bool:
        """Whether a file has the task's columns with their types, in order."""
        wanted = [(f.name, _type(f.type)) for f in self.schema]
        here = [(f.name, _type(f.type)) for f in found]
        if here == wanted:
            return True
        self.sound = False
        for name, kind in wanted:
            if name not in dict(here):
                self._differ(f"the column is missing; it should hold {kind}", column=name)
            elif dict(here)[name] != kind:
                self._differ(f"it holds {dict(here)[name]}, it should hold {kind}", column=name)
        for name, kind in here:
            if name not in dict(wanted):
                self._differ(f"there should be no such column ({kind})", column=ascii(name[:60])[1:-1])
        if sorted(here) == sorted(wanted):
            self._differ(f"the columns stand in another order: {', '.join(n for n, _ in here)}")
        return False

    # -- the rows of one table

    def _check(self, table, first) -> bool:
        """Note what differs in the rows from number `first` on; False where they cannot be hashed."""
        import pyarrow as pa

        if not table.num_rows:
            return True
        columns = {}
        for name in self.schema.names:
            chunk = table.column(name).combine_chunks()
            chunk = chunk.chunk(0) if isinstance(chunk, pa.ChunkedArray) else chunk
            values = chunk if name == "example_id" else chunk.flatten()
            if chunk.null_count or values.null_count:
                self._differ(f"rows {first:,} to {first + table.num_rows - 1:,} hold nulls", column=name)
                self.sound = False
                return False
            if name == "example_id":
                ids = values.to_numpy()
            else:
                offsets = chunk.offsets.to_numpy().astype(np.int64)
                columns[name] = (offsets - offsets[0], values.to_numpy())
        expected = np.arange(first, first + table.num_rows)
        for at in np.flatnonzero(ids != expected):
            self._name(f"it is {ids[at]}", first + int(at), "example_id")
        self._hash(columns, first)
        rows = expected[expected < self.task.splits[self.split]]
        if self.chosen is not None:
            low, high = np.searchsorted(self.chosen, [first, first + table.num_rows])
            rows = self.chosen[low:high]
        if len(rows):
            self._compare(columns, rows, first)
        return True

    def _hash(self, columns, first):
        from ..layout import sequence_hashes

        items, sound = (_recall_items if self.task.family == "recall" else _grammar_items)(self.task, columns)
        for name, (offsets, _) in columns.items():
            sound_here = np.diff(offsets) == np.diff(columns["input_ids"][0])
            for at in np.flatnonzero(~sound_here):
                self._name("it has another number of steps than input_ids", first + int(at), name)
        for at in np.flatnonzero(~sound):
            self._name("its steps are not those of a sequence of this task", first + int(at), "input_ids")
        self.hashes.append(sequence_hashes(items))

    def _compare(self, columns, rows, first):
        """Name the values of `rows` (numbers in the split) that are not what the generator draws."""
        self.drawn += len(rows)
        for own in self._by_block(rows):
            drawn = self._drawn(own)
            ends = np.concatenate([[0], np.cumsum(drawn.lengths)])
            for name, (offsets, values) in columns.items():
                here = own - first
                wanted, lengths = getattr(drawn, name), offsets[here + 1] - offsets[here]
                got = values[_ranges(offsets[here], lengths)]
                if np.array_equal(lengths, drawn.lengths) and np.array_equal(got, wanted):
                    continue
                starts = np.concatenate([[0], np.cumsum(lengths)])
                for i, row in enumerate(own):
                    a, b = got[starts[i] : starts[i + 1]], wanted[ends[i] : ends[i + 1]]
                    if what := _unlike(a, b):
                        self._name(what, int(row), name)

    def _by_block(self, rows):
        from ..sampling import block_size

        blocks = rows // block_size(self.split)
        return [rows[blocks == block] for block in np.unique(blocks)]

    def _drawn(self, rows):
        """The layout of rows of one block; the block is kept, since the next rows are likely of it too."""
        from ..layout import draw_block
        from ..sampling import block_size

        size = block_size(self.split)
        block = int(rows[0]) // size
        if self._block[0] != block:
            last = min(size, self.task.splits[self.split] - block * size)
            self._block = (block, draw_block(self.task, self.split, block, 0, last))
        return self._block[1].layout(rows - block * size)

    # -- differences

    def _differ(self, what, row=None, column=None):
        self.differences.append(Difference(what, split=self.split, file=self.file, row=row, column=column))

    def _name(self, what, row, column):
        """A difference of one row; behind the first `LISTED` of a column of a file they are counted."""
        key = (self.file, column)
        count, at = self._named.get(key, (0, None))
        if count < LISTED:
            self._differ(what, row, column)
        else:
            more = Difference(f"and {count - LISTED + 1:,} more rows", split=self.split, file=self.file, column=column)
            if at is None:
                at = len(self.differences)
                self.differences.append(more)
            self.differences[at] = more
        self._named[key] = (count + 1, at)


def _type(kind) -> str:
    import pyarrow as pa

    return f"lists of {kind.value_type}" if pa.types.is_list(kind) else str(kind)


def _unlike(got, wanted) -> str:
    """How two rows of a column differ; '' if they do not."""
    common = min(len(got), len(wanted))
    at = np.flatnonzero(got[:common] != wanted[:common])
    if not at.size and len(got) == len(wanted):
        return ""
    if len(got) != len(wanted):
        return f"it has {len(got):,} steps, drawn again {len(wanted):,}"
    some = f", and {at.size - 1:,} more steps" if at.size > 1 else ""
    return f"step {at[0]:,} is {got[at[0]]}, drawn again {wanted[at[0]]}{some}"


def _ranges(starts, lengths) -> np.ndarray:
    """The indices start, ..., start + length - 1 of each, one after another."""
    ends = np.cumsum(lengths)
    return np.arange(ends[-1] if len(ends) else 0) - np.repeat(ends - lengths - starts, lengths)


def _grammar_items(task, columns) -> tuple[np.ndarray, np.ndarray]:
    """(M, T) symbols of the items of the rows that are sequences, and (N,) which rows those are."""
    offsets, ids = columns["input_ids"]
    own, items = columns["item_ids"]
    lengths = np.diff(offsets)
    if not np.array_equal(offsets, own):
        return np.zeros((0, task.num_items), ids.dtype), np.zeros(len(lengths), bool)
    first = np.ones(len(items), bool)
    first[1:] = items[1:] != items[:-1]
    first[offsets[:-1][lengths > 0]] = True
    of_row = np.repeat(np.arange(len(lengths)), lengths)
    sound = np.bincount(of_row[first], minlength=len(lengths)) == task.num_items
    kept = np.flatnonzero(first)[sound[of_row[first]]]
    numbered = (items[kept].reshape(-1, task.num_items) == np.arange(task.num_items)).all(1)
    symbols = ids[kept].reshape(-1, task.num_items)[numbered]
    sound[np.flatnonzero(sound)[~numbered]] = False
    return symbols, sound


def _recall_items(task, columns) -> tuple[np.ndarray, np.ndarray]:
    """(M, T) symbols of the rows that are no longer than the task's, filled up with 0, and (N,) which rows those are."""
    offsets, ids = columns["input_ids"]
    lengths, longest = np.diff(offsets), max(task.max_steps(split) for split in task.splits)
    sound = lengths <= longest
    out = np.zeros((int(sound.sum()), longest), ids.dtype)
    out[np.arange(longest) < lengths[sound, None]] = ids[_ranges(offsets[:-1][sound], lengths[sound])]
    return out, sound
