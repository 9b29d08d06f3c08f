"""What the Hub is documented to check when eval.yaml and .eval_results/*.yaml are pushed (its docs, eval-results.md)."""

import math
import re

import yaml

_DATE = re.compile(r"\d{4}-\d\d-\d\d(T[\d:.]+(Z|[+-]\d\d:?\d\d)?)?")
_RESULT_KEYS = {"dataset", "value", "verifyToken", "date", "source", "notes"}


def front_matter(text: str):
    found = re.match(r"\A---\r?\n(.*?)\r?\n---\s*(\r?\n|\Z)", text, re.S)
    return yaml.safe_load(found.group(1)) if found else None


def eval_results_faults(data) -> list[str]:
    """What is wrong with a parsed `.eval_results/*.yaml`."""
    if not isinstance(data, list) or not data:
        return ["the file must be a non-empty list of results"]
    return [f"result {i}: {fault}" for i, entry in enumerate(data) for fault in _result_faults(entry)]


def _result_faults(entry) -> list[str]:
    if not isinstance(entry, dict):
        return ["not a mapping"]
    faults = []
    dataset = entry["dataset"] if isinstance(entry.get("dataset"), dict) else {}
    if not isinstance(dataset.get("id"), str) or "/" not in dataset["id"]:
        faults.append("dataset.id must be 'namespace/name'")
    if not isinstance(dataset.get("task_id"), str):
        faults.append("dataset.task_id is required")
    value = entry.get("value")
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        faults.append("value must be a finite number")
    if isinstance(entry.get("source"), dict) and not entry["source"].get("url"):
        faults.append("source.url is required when source is given")
    if entry.get("date") is not None and not _DATE.fullmatch(str(entry["date"])):
        faults.append("date must be ISO-8601, as a string")
    if unknown := set(entry) - _RESULT_KEYS:
        faults.append(f"unknown keys {sorted(unknown)}")
    return faults


def eval_yaml_faults(data, frameworks=None) -> list[str]:
    """What is wrong with a parsed `eval.yaml`. frameworks: the closed list of evaluation frameworks, if one is kept."""
    if not isinstance(data, dict):
        return ["eval.yaml must be a mapping"]
    faults = [
        f"'{key}' is required"
        for key in ("name", "description", "evaluation_framework")
        if not isinstance(data.get(key), str)
    ]
    if frameworks is not None and data.get("evaluation_framework") not in frameworks:
        faults.append("Invalid input at evaluation_framework")
    tasks = data.get("tasks")
    if not isinstance(tasks, list) or not tasks:
        return [*faults, "'tasks' must be a non-empty list"]
    ids = [task.get("id") if isinstance(task, dict) else None for task in tasks]
    if any(not isinstance(i, str) for i in ids):
        faults.append("every task needs a string id")
    if len(set(map(str, ids))) != len(ids):
        faults.append("task ids must be unique")
    return faults
