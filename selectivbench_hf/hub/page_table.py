"""The table of the page: which lines of the board it shows, in which order, in which columns, and the same as CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence

from ..errors import unknown

FILTERS = {  # a line's field -> how the page calls it
    "track": "track",
    "tier": "size tier",
    "budget": "training budget",
    "trust": "trust",
    "decay": "decay",
    "write_rule": "write rule",
    "channel_mixing": "channel mixing",
}
UNKNOWN = "unknown"  # what a filter calls a field that is null
SORTS = {  # the word on the page -> (a line's field, largest first)
    "rank": ("rank", False),
    "sealed accuracy": ("sealed", True),
    "published accuracy": ("published", True),
    "parameters": ("parameters", False),
    "state size": ("state_size", False),
    "effective context": ("effective_context", True),
    "model": ("name", False),
}
COLUMNS = {  # head -> (type of the page's table, width in pixels)
    "rank": ("number", 56),
    "model": ("str", 170),
    "sealed, %": ("number", 92),
    "95 % interval": ("str", 132),
    "published, %": ("number", 122),
    "doubts": ("number", 74),
    "repository": ("str", 170),
    "track": ("str", 76),
    "size tier": ("str", 112),
    "trust": ("str", 104),
    "mixer": ("str", 150),
    "parameters": ("number", 108),
    "state": ("str", 96),
    "context, items": ("number", 112),
    "runs": ("number", 62),
    "decay": ("str", 150),
    "write rule": ("str", 150),
    "channel mixing": ("str", 150),
    "training budget": ("str", 170),
    "what is doubtful": ("str", 420),
}
_FORMULA = ("=", "+", "-", "@", "\t", "\r")  # what makes a spreadsheet compute a cell


def choices(lines: Iterable[dict], field: str) -> list[str]:
    """The values of a field to choose from, sorted; UNKNOWN last where some line has none."""
    found = {line[field] for line in lines}
    return sorted(v for v in found if v is not None) + ([UNKNOWN] if None in found else [])


def select(lines: Iterable[dict], table: str | None = None, search: str = "", **wanted: Sequence[str]) -> list[dict]:
    """The lines that pass every filter.

    Args:
        table: one table of the board; None for all.
        search: a part of the model's name, its repository or its mixer, whatever the case.
        wanted: field of FILTERS -> values to keep; none given keeps all.
    """
    for field in wanted:
        if field not in FILTERS:
            raise unknown("filter", field, FILTERS)
    part = search.strip().lower()
    return [
        line
        for line in lines
        if (table is None or line["table"] == table)
        and all(not values or (line[field] or UNKNOWN) in values for field, values in wanted.items())
        and (not part or any(part in (line[f] or "").lower() for f in ("name", "repo", "mixer")))
    ]


def sort(lines: Iterable[dict], by: str = "rank", reverse: bool = False) -> list[dict]:
    """The lines in an order of SORTS, what has no value last in both directions; equal ones stay as they were."""
    if by not in SORTS:
        raise unknown("order", by, SORTS)
    field, largest_first = SORTS[by]
    lines = list(lines)
    known = [line for line in lines if line[field] is not None]
    key = (lambda line: line[field].lower()) if field == "name" else (lambda line: line[field])
    return sorted(known, key=key, reverse=largest_first != reverse) + [line for line in lines if line[field] is None]


def cells(line: dict) -> list:
    """The values of COLUMNS for a line; text stays text, a number is None where there is none."""
    return [
        line["rank"],
        line["model"],
        _round(line["sealed"]),
        interval(line["sealed_low"], line["sealed_high"])
        if line["sealed"] is not None
        else interval(line["published_low"], line["published_high"]),
        _round(line["published"]),
        len(line["flags"]) or None,
        line["repo"],
        line["track"],
        line["tier"],
        line["trust"],
        line["mixer"],
        line["parameters"],
        state(line),
        _round(line["effective_context"]),
        line["runs"],
        line["decay"],
        line["write_rule"],
        line["channel_mixing"],
        line["budget"],
        " ".join(line["flags"]),
    ]


def state(line: dict) -> str:
    """The recurrent state in numbers a sequence; `grows` where it is as long as the sequence."""
    if line["state_grows"]:
        return "grows"
    return "" if line["state_size"] is None else f"{line['state_size']:,}"


def interval(low: float | None, high: float | None) -> str:
    """An interval in per cent."""
    return "" if low is None or high is None else f"{low:.1f} to {high:.1f}"


def to_csv(lines: Iterable[dict]) -> str:
    """Lines as CSV, one column a field. Text that a spreadsheet would compute gets an apostrophe in front, so that it stays text."""
    lines = list(lines)
    fields = [f for f in lines[0] if not isinstance(lines[0][f], dict)] if lines else ["name"]
    out = io.StringIO()
    writer = csv.writer(out)
    writer.writerow(fields)
    for line in lines:
        writer.writerow([_csv_cell(line[f]) for f in fields])
    return out.getvalue()


def _csv_cell(value):
    if isinstance(value, (list, tuple)):
        value = " ".join(str(v) for v in value)
    if isinstance(value, str) and value.startswith(_FORMULA):
        return "'" + value
    return value


def _round(value: float | None) -> float | None:
    return None if value is None else round(value, 2)
