"""Results as the Hub reads them: `.eval_results/selectivbench.yaml` in a model's repository, a list of entries in the Hub's format.

The Hub's client checks next to nothing of such a file (NaN, "high", a date without quotes pass), so `check_entries` holds each entry to more: before a
file is sent and whenever one is read. The file is ours, yet a model may be scored on several copies of the data: an entry of another data set than the
caller's must follow the format, its task may be any, and it stays where it is.
"""

from __future__ import annotations

import datetime
import json
import re
from collections.abc import Iterable, Sequence

from ..errors import InputError, unknown
from ..tasks import grammar_task_names, task_names
from . import client
from .untrusted import SHOWN, keys, plain_text, shown, strict_yaml

PATH = ".eval_results/selectivbench.yaml"
MOST_ENTRIES = 300
MOST_NOTES = 1000
DECIMALS = 4  # of a value in per cent
_KEYS = ("dataset", "value", "verifyToken", "date", "source", "notes")
_DATASET_KEYS = ("id", "task_id", "revision")
_SOURCE_KEYS = ("url", "name", "user", "org")
_DATE = re.compile(r"\d{4}-\d\d-\d\d(T\d\d:\d\d(:\d\d(\.\d{1,6})?)?(Z|[+-]\d\d:\d\d)?)?", re.ASCII)
_URL = re.compile(r"https?://[A-Za-z0-9.-]+(:[0-9]{1,5})?(/[A-Za-z0-9._~:/?#@!$&()*+,;=%-]*)?")
_TOKEN = re.compile(r"[A-Za-z0-9._=-]{1,5000}")
_SEEDED = re.compile(r"(.+)_seed(0|[1-9][0-9]{0,17})")


def entry(
    *,
    dataset: str,
    revision: str,
    task: str,
    value: float,
    date: str,
    source_url: str | None = None,
    source_name: str | None = None,
    source_user: str | None = None,
    notes: str | None = None,
) -> dict:
    """A checked entry, in the Hub's format.

    Args:
        dataset: OWNER/NAME of the published data. revision: commit SHA that its tag stands at. task: of the catalogue, also NAME_seedN.
        value: accuracy in per cent, 0 to 100; kept to `DECIMALS` decimals.
        date: YYYY-MM-DD, or a time of ISO 8601.
        source_url: where the score comes from; needed where source_name or source_user is given.
    """
    from huggingface_hub import EvalResultEntry, eval_result_entries_to_yaml

    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise InputError(f"value of an entry must be a number of per cent, got {shown(value)}")
    try:
        made = EvalResultEntry(
            dataset_id=dataset,
            task_id=task,
            value=round(float(value), DECIMALS),
            dataset_revision=revision,
            date=date,
            source_url=source_url,
            source_name=source_name,
            source_user=source_user,
            notes=notes,
        )
    except ValueError as error:
        raise InputError(f"an entry for {shown(task)}: {error}") from None
    return _checked(eval_result_entries_to_yaml([made])[0], f"the entry for {shown(task)}", None)


def to_yaml(entries: Sequence[dict]) -> str:
    """The text of the file; `check_entries` gives the same entries back.

    Texts are always quoted: a revision such as 12e4... would be a number to some readers, and a date a date.
    """
    lines = []
    for one in entries:
        start = len(lines)
        for key, value in one.items():
            if isinstance(value, dict):
                lines += [f"  {key}:", *(f"    {k}: {json.dumps(v, ensure_ascii=False)}" for k, v in value.items())]
            else:
                lines.append(f"  {key}: {json.dumps(value, ensure_ascii=False)}")
        lines[start] = "- " + lines[start][2:]
    text = "\n".join(lines) + "\n"
    datasets = {one["dataset"]["id"] for one in entries}
    check_entries(text, PATH, dataset=datasets.pop() if len(datasets) == 1 else "")
    return text


def check_entries(text, where: str, dataset: str | None = None) -> list[dict]:
    """The entries in a file's text (str or UTF-8 bytes), in their order, if each is sound; InputError for the first fault.

    Args:
        where: names the file in messages.
        dataset: OWNER/NAME of the published data; entries of others need not name a task or a revision of it. None: all must.
    """
    data = strict_yaml(text, where)
    if not isinstance(data, list) or not data:
        raise InputError(f"{where} must be a list of at least one result")
    if len(data) > MOST_ENTRIES:
        raise InputError(f"{where} has {len(data):,} results; at most {MOST_ENTRIES} are read")
    out, seen = [], {}
    for number, one in enumerate(data, 1):
        at = f"result {number} of {where}"
        one = _checked(one, at, dataset)
        key = _key(one)
        if key in seen:
            raise InputError(
                f"{at} is for the same task of the same data set as result {seen[key]}: {key[1]} of {key[0]}"
            )
        seen[key] = number
        out.append(one)
    return out


def of_dataset(entries: Iterable[dict], dataset: str) -> list[dict]:
    """The entries that are about one data set."""
    return [one for one in entries if one["dataset"]["id"].lower() == dataset.lower()]


def replaced(there: Iterable[dict], new: Sequence[dict]) -> list[dict]:
    """The entries of `there`, those for a task that `new` has too replaced in their place, then what is left of `new`."""
    fresh = {_key(one): one for one in new}
    return [*(fresh.pop(_key(one), one) for one in there), *fresh.values()]


def _key(one: dict) -> tuple[str, str]:
    return one["dataset"]["id"].lower(), one["dataset"]["task_id"]


# -- one entry -----------------------------------------------------------------------------------------------------------


def _checked(one, where: str, dataset: str | None) -> dict:
    """A sound entry with its keys in the order of the format; `dataset` as in `check_entries`."""
    keys(one, _KEYS, where, ("dataset", "value"))
    keys(one["dataset"], _DATASET_KEYS, f"dataset of {where}", ("id", "task_id"))
    name, task, revision = (one["dataset"].get(key) for key in _DATASET_KEYS)
    client.repo_id(name, f"dataset.id of {where}")
    plain_text(task, f"dataset.task_id of {where}", 100)
    if dataset is None or name.lower() == dataset.lower():
        check_task(task, where)
        if revision is None:
            raise InputError(f"dataset of {where} lacks the revision, the commit SHA of the data")
    if revision is not None and not (isinstance(revision, str) and re.fullmatch(r"[0-9a-f]{40}", revision)):
        raise InputError(f"dataset.revision of {where} must be a commit SHA of 40 hex digits, got {shown(revision)}")
    value = one["value"]
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= 100:
        raise InputError(f"value of {where} must be a number of per cent, from 0 to 100, got {shown(value)}")
    if "date" in one:
        check_time(one["date"], f"date of {where}")
    if "source" in one:
        _check_source(one["source"], f"source of {where}")
    if "notes" in one:
        plain_text(one["notes"], f"notes of {where}", MOST_NOTES)
    if "verifyToken" in one and not (isinstance(one["verifyToken"], str) and _TOKEN.fullmatch(one["verifyToken"])):
        raise InputError(f"verifyToken of {where} must be a token of letters, digits and . _ = -")
    return {key: float(value) if key == "value" else one[key] for key in _KEYS if key in one}


def check_task(task: str, where: str) -> None:
    """InputError where `task` is neither of the catalogue nor NAME_seedN of a task with a random grammar."""
    seeded = _SEEDED.fullmatch(task)
    if task not in task_names() and not (seeded and seeded[1] in grammar_task_names()):
        raise unknown("task", task[:SHOWN], task_names(), where)


def check_time(text, where: str) -> None:
    """InputError where `text` is no day (YYYY-MM-DD) or time of ISO 8601, as text."""
    good = isinstance(text, str) and _DATE.fullmatch(text)
    if good:
        try:
            datetime.datetime.fromisoformat(text)
        except ValueError:
            good = False
    if not good:
        raise InputError(
            f"{where} must be a day or time of ISO 8601 such as '2026-11-30', in quotes, got {shown(text)}"
        )


def _check_source(source, where: str) -> None:
    keys(source, _SOURCE_KEYS, where, ("url",))
    if not isinstance(source["url"], str) or len(source["url"]) > 500 or not _URL.fullmatch(source["url"]):
        raise InputError(f"url of {where} must be a web address, http(s)://..., got {shown(source['url'])}")
    for key in ("name", "user", "org"):
        if key in source:
            plain_text(source[key], f"{key} of {where}", 100)
