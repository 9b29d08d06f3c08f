"""What a row is: its fields (schemas/row.schema.json), its id, and whether it is sound."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence

from ..errors import InputError
from . import row_checks, schemas
from .untrusted import shown

ROW_VERSION = 1
SCHEMA = schemas.load("row")
FIELDS = tuple(SCHEMA["properties"])
JSON_FIELDS = tuple(name for name, field in SCHEMA["properties"].items() if "contentMediaType" in field)
MOST_ROWS = 100_000


def canonical(value) -> str:
    """The JSON text that stands for a value where a hash or a field needs one: keys sorted, no spaces, ASCII, no NaN (ValueError)."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def row_id(row: dict) -> str:
    """SHA-256 (64 hex digits) of the canonical JSON of all fields but row_id."""
    return hashlib.sha256(canonical({k: v for k, v in row.items() if k != "row_id"}).encode()).hexdigest()


def said(row: dict) -> str:
    """What a row says, wherever it was read, as a hash: a repository that has moved on says the same of its earlier runs."""
    return row_id({**row, "repo_revision": None})


def content(row: dict, field: str):
    """The value of a JSON field of a checked row; None where it is null."""
    return None if row[field] is None else json.loads(row[field])


def check_rows(rows: Sequence[dict], where: str) -> list[dict]:
    """The rows, in the order of FIELDS and with floats where numbers are asked for, if each is sound; InputError for the first fault.

    Args:
        rows: what JSON or Parquet gave.
        where: where they come from, for the message ("row 3 of WHERE: ...").
    """
    if not isinstance(rows, (list, tuple)):
        raise InputError(f"{where} must hold a list of rows, got {shown(rows)}")
    if len(rows) > MOST_ROWS:
        raise InputError(f"{where} has {len(rows):,} rows; at most {MOST_ROWS:,} are read")
    out, seen = [], {}
    for number, row in enumerate(rows, 1):
        row = check_row(row, f"row {number} of {where}")
        first = seen.setdefault(row["row_id"], number)
        if first != number:
            raise InputError(f"row {number} of {where} is row {first} again")
        out.append(row)
    return out


def check_row(row, where: str) -> dict:
    """As check_rows, of one row."""
    if not isinstance(row, dict):
        raise InputError(f"{where} must be an object, got {shown(row)}")
    version = row.get("row_version")
    if type(version) is int and version > ROW_VERSION:
        raise InputError(
            f"{where} is of version {shown(version)}, and this package reads version {ROW_VERSION}: update selectivbench_hf"
        )
    row = typed(row, where)
    row_checks.check_sense(row, {field: content(row, field) for field in JSON_FIELDS}, where)
    if row["row_id"] != row_id(row):
        raise InputError(
            f"{where}: row_id is not the SHA-256 of the other fields; the row was changed after it was made"
        )
    return row


def typed(row: dict, where: str) -> dict:
    """The row in the order of FIELDS and with floats where numbers are asked for, if it follows the schema, else InputError."""
    return schemas.check(row, SCHEMA, where, SCHEMA)
