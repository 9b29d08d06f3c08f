"""Rows: one run on one task, as a submission holds it and as the results data set has it, one line each (schemas/row.schema.json).

A row holds no structure deeper than a list of text, so that a row of Parquet, of JSON and of a table is the same thing; what is deeper stands in it
as JSON text. Rows come from outside: `check_rows` is used before a row is sent and whenever one is read.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from ..errors import InputError
from .row_checks import dataset_doubts, doubts, gap_in_se
from .row_format import (
    FIELDS,
    JSON_FIELDS,
    MOST_ROWS,
    ROW_VERSION,
    SCHEMA,
    canonical,
    check_row,
    check_rows,
    content,
    row_id,
    said,
)
from .row_making import make_row, recorded, row_of, score_entries
from .untrusted import read_bytes, shown

__all__ = [
    "FIELDS",
    "JSON_FIELDS",
    "MOST_ROWS",
    "ROW_VERSION",
    "SCHEMA",
    "arrow_schema",
    "canonical",
    "check_row",
    "check_rows",
    "content",
    "dataset_doubts",
    "doubts",
    "from_parquet",
    "gap_in_se",
    "make_row",
    "recorded",
    "row_id",
    "said",
    "row_of",
    "score_entries",
    "to_parquet",
]

PARQUET_BYTES = 64 << 20
UNPACKED_BYTES = 512 << 20
_BATCH = 200  # rows at a time: what a file whose footer lies can make us hold
_VERSION_KEY = b"selectivbench_row_version"


def arrow_schema():
    """The Arrow schema of a file of rows."""
    import pyarrow as pa

    types = {"integer": pa.int64(), "number": pa.float64(), "boolean": pa.bool_(), "array": pa.list_(pa.string())}

    def arrow(field):
        if "const" in field:
            return pa.int64()
        kind = field.get("type", "string")
        return types.get(kind if isinstance(kind, str) else kind[0], pa.string())

    fields = [pa.field(name, arrow(field)) for name, field in SCHEMA["properties"].items()]
    return pa.schema(fields, metadata={_VERSION_KEY: str(ROW_VERSION).encode()})


def to_parquet(rows: Sequence[dict], path) -> None:
    """Write checked rows to a Parquet file, whole or not at all; the same rows make the same bytes."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = Path(path)
    rows = check_rows(rows, str(path))
    table = pa.Table.from_pylist(rows, schema=arrow_schema())
    part = path.with_name(f".{path.name}.part")
    try:
        # without a dictionary the size of the columns in memory stands in the footer, and from_parquet can refuse by it
        pq.write_table(table, part, compression="zstd", use_dictionary=False)
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


def from_parquet(path) -> list[dict]:
    """The checked rows of a Parquet file. InputError for another schema, more than MOST_ROWS rows, more than PARQUET_BYTES or what unpacks to more
    than UNPACKED_BYTES, a damaged file, and the first row that is not sound."""
    import io

    import pyarrow as pa
    import pyarrow.parquet as pq

    data = read_bytes(path, PARQUET_BYTES)
    try:
        file = pq.ParquetFile(io.BytesIO(data))
        _check_footer(file, path)
        rows, size = [], 0
        for batch in file.iter_batches(_BATCH, use_threads=False):
            size += batch.nbytes
            if size > UNPACKED_BYTES or len(rows) > MOST_ROWS:
                raise InputError(f"{path} unpacks to more than its footer says")
            batch.validate(full=True)
            rows += batch.to_pylist()
    except InputError:
        raise
    except (pa.ArrowException, OSError, ValueError, OverflowError, MemoryError) as error:
        first = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise InputError(f"{path} is no sound Parquet file: {shown(first)}") from None
    return check_rows(rows, str(path))


def _check_footer(file, path) -> None:
    """InputError where the footer of a Parquet file promises anything else than rows of ours in a bearable number."""
    wanted, found = arrow_schema(), file.schema_arrow
    version = (found.metadata or {}).get(_VERSION_KEY, b"1")
    if version.isdigit() and len(version) < 5 and int(version) > ROW_VERSION:
        raise InputError(
            f"{path} has rows of version {int(version)}, and this package reads version {ROW_VERSION}: update selectivbench_hf"
        )
    if found.names != wanted.names:
        lacks = [n for n in wanted.names if n not in found.names]
        more = [n for n in found.names if n not in wanted.names]
        what = (
            f"lacks the column {lacks[0]!r}"
            if lacks
            else f"has the unknown column {shown(more[0])}"
            if more
            else "has its columns in another order or twice"
        )
        raise InputError(f"{path} holds no rows of version {ROW_VERSION}: it {what}")
    for field in wanted:
        if found.field(field.name).type != field.type:
            raise InputError(
                f"{path}: the column {field.name} must be {field.type}, got {shown(str(found.field(field.name).type))}"
            )
    meta = file.metadata
    if meta.num_rows > MOST_ROWS:
        raise InputError(f"{path} has {meta.num_rows:,} rows; at most {MOST_ROWS:,} are read")
    columns = [meta.row_group(g).column(c) for g in range(meta.num_row_groups) for c in range(meta.num_columns)]
    if any(c.has_dictionary_page for c in columns):
        raise InputError(
            f"{path} was not written by this package: a column is dictionary-encoded, so its size is not known"
        )
    if sum(c.total_uncompressed_size for c in columns) > UNPACKED_BYTES:
        raise InputError(f"{path} unpacks to more than {UNPACKED_BYTES:,} bytes")
