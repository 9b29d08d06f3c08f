"""Rows that no longer count: a row is never removed, a file beside it says that it was withdrawn, by whom and why."""

from __future__ import annotations

import datetime
import json
import re
from collections.abc import Callable
from pathlib import Path

from ..errors import InputError
from . import client, untrusted
from .row_checks import check_date

FOLDER = "withdrawn"
FORMAT = "selectivbench-withdrawal-1"
MOST_BYTES = 4096
LONGEST_REASON = 400
NAME = re.compile(r"withdrawn/([0-9a-f]{16})\.json")
_KEYS = ("format", "row_id", "reason", "by", "date")


def read(place: Path, where: str) -> tuple[str, str]:
    """(row_id, "reason (who, when)") of a file; InputError for whatever does not follow the format."""
    data = untrusted.strict_json(untrusted.read_bytes(place, MOST_BYTES), where)
    if (
        not isinstance(data, dict)
        or sorted(data) != sorted(_KEYS)
        or not all(isinstance(v, str) for v in data.values())
    ):
        raise InputError(f"{where} must be an object of text with the keys {', '.join(_KEYS)}, and no others")
    if data["format"] != FORMAT:
        raise InputError(f"{where}: format is {untrusted.shown(data['format'])}; this package reads {FORMAT!r}")
    if not re.fullmatch(r"[0-9a-f]{64}", data["row_id"]) or not where.endswith(f"{data['row_id'][:16]}.json"):
        raise InputError(f"{where}: row_id must be 64 hex digits that begin as the file's name")
    check_date(data["date"], f"date of {where}")
    reason = untrusted.plain_text(data["reason"], f"reason of {where}", LONGEST_REASON)
    return data["row_id"], f"{reason} ({untrusted.plain_text(data['by'], f'by of {where}', 96)}, {data['date']})"


def withdraw(given: str, reason: str, repo: str, say: Callable[[str], None], *, create_pr: bool = False) -> dict:
    """Withdraw the row whose row_id begins with `given` (at least 12 hex digits).

    Returns:
        {"row_id", "status" ("withdrawn", "proposed" or "already withdrawn"), "commit", "pull_request"}.
    """
    from . import results_data

    reason = untrusted.plain_text(reason, "--reason", LONGEST_REASON)
    if not re.fullmatch(r"[0-9a-f]{12,64}", given):
        raise InputError(
            f"a row is named by at least the first 12 hex digits of its row_id, got {untrusted.shown(given)}"
        )
    user = client.who()

    def attempt() -> dict:
        head = client.head(repo, results_data.KIND)
        if head is None:
            raise InputError(f"there is no data set {repo} on the Hub that you may read")
        there = results_data.read_hub(repo, head, results_data.cache_folder(repo))
        found = [row["row_id"] for row in there.rows if row["row_id"].startswith(given)]
        if len(found) != 1:
            raise InputError(
                f"{repo} has {'no row' if not found else f'{len(found)} rows'} whose row_id begins with {given}"
            )
        out = {"row_id": found[0], "status": "already withdrawn", "commit": None, "pull_request": None}
        if found[0] in there.withdrawn:
            return out
        path = f"{FOLDER}/{found[0][:16]}.json"
        today = datetime.datetime.now(datetime.UTC).date().isoformat()
        data = dict(zip(_KEYS, (FORMAT, found[0], reason, user, today)))
        content = (json.dumps(data, indent=1, ensure_ascii=False) + "\n").encode()
        commit, address = results_data.add(repo, head, {path: content}, f"Withdraw a row: {path}", create_pr)
        status = "withdrawn" if address is None else "proposed"
        return out | {"status": status, "commit": commit, "pull_request": address}

    return client.guarded(attempt, say, repo)
