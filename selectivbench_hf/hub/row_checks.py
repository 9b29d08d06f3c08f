"""What a schema cannot say about a row: whether its fields agree with each other, and what is doubtful about one whose fields do."""

from __future__ import annotations

import datetime
import functools
import json
import math
import re
from collections.abc import Iterable

from ..errors import InputError, unknown
from ..tasks import DATA_VERSION, get_task, task_names
from .sealed import GAP_LIMIT, standard_error
from .untrusted import shown

ABOVE_CEILING = 3.0  # standard errors
ROUNDING = 1e-9
_SCORES = ("scores", "sealed_scores", "sealed_grammar_scores")


# -- faults --------------------------------------------------------------------------------------------------------------


def check_sense(row: dict, parsed: dict, where: str) -> None:
    """InputError for the first two fields of a row that contradict each other.

    Args:
        row: a row that follows the schema.
        parsed: the values of its JSON fields.
        where: names the row in the message.
    """
    _check_task(row, where)
    check_date(row["date"], f"date of {where}")
    if "  " in row["name"]:  # a page shows one, so that two names would look the same
        raise InputError(f"name of {where} has two spaces in a row: {shown(row['name'])}")
    for field in _SCORES:
        for split, score in (parsed[field] or {}).items():
            check_score(score, row["max_sequences"], f"{field}/{split} of {where}")
    for field, names in (
        ("scores", ("accuracy", "accuracy_low", "accuracy_high")),
        ("sealed_scores", ("sealed_accuracy", "sealed_low", "sealed_high")),
    ):
        score = (parsed[field] or {}).get("test", {})
        for name, key in zip(names, ("accuracy", "low", "high")):
            if not _same(row[name], score.get(key)):
                raise InputError(
                    f"{name} of {where} is {shown(row[name])}, but {field} says {shown(score.get(key))} of the split test"
                )
    if (row["sealed_seed"] is None) != (row["sealed_scores"] is None):
        raise InputError(f"{where} must have both sealed_seed and sealed_scores, or neither")
    if row["sealed_grammar_scores"] is not None and row["sealed_seed"] is None:
        raise InputError(f"{where} has sealed_grammar_scores but no sealed_seed, which decides their grammar")
    if None not in (row["sealed_seed"], row["weights_sha256"]) and row["sealed_seed"] != row["weights_sha256"]:
        raise InputError(
            f"{where}: the sealed seed must be the SHA-256 of the weights, {row['weights_sha256'][:12]}..., got {row['sealed_seed'][:12]}..."
        )
    if row["gap_in_se"] is not None and None in (row["accuracy"], row["sealed_accuracy"]):
        raise InputError(f"{where} has gap_in_se without both accuracies that it compares")
    if row["repo_revision"] is not None and row["repo"] is None:
        raise InputError(f"{where} has repo_revision but no repo")
    if row["state_grows"] and row["state_size"] is not None:
        raise InputError(f"{where} has a state_size although its state grows with the sequence")
    _check_trust(row, where)
    runs = [entry["run_id"] for entry in parsed["grid"] or ()]
    if len(set(runs)) != len(runs):
        raise InputError(f"grid of {where} names a run twice")


def _check_task(row, where):
    version = row["data_version"].split(".")
    ours = DATA_VERSION.split(".")
    newer = version[0] == ours[0] and tuple(map(int, version[1:])) > tuple(map(int, ours[1:]))
    # what other versions of the data have, this package cannot know; the schema holds their names to letters, digits, '_', '-' and '.'
    if version[0] == ours[0] and not newer and row["task"] not in _tasks():
        raise unknown("task", row["task"][:60], _tasks(), where)


@functools.cache
def _tasks() -> tuple[str, ...]:
    return tuple(task_names())


def check_date(text: str, where: str) -> None:
    """InputError where "YYYY-MM-DD" is no day of the calendar."""
    try:
        datetime.date.fromisoformat(text)
    except ValueError:
        raise InputError(f"{where} is no day of the calendar: {shown(text)}") from None


def check_score(score, max_sequences, where):
    """InputError where a split's entry of scores contradicts itself, or `max_sequences` where that is no None."""
    if score["correct"] > score["total"]:
        raise InputError(f"{where} has {score['correct']:,} items right of {score['total']:,}")
    if max_sequences is not None and score["sequences"] > max_sequences:
        raise InputError(f"{where} has {score['sequences']:,} sequences, and max_sequences is {max_sequences:,}")
    true = score["correct"] / score["total"] if score["total"] else None
    if not _same(true, score["accuracy"]):
        raise InputError(
            f"accuracy of {where} must be correct / total, {shown(true)}, or null over no items, got {shown(score['accuracy'])}"
        )
    low, high = score["low"], score["high"]
    if true is None or None in (low, high):
        if (low, high) != (None, None):
            raise InputError(f"{where} must have both ends of an interval, and none over no items")
    elif not low - ROUNDING <= true <= high + ROUNDING:
        raise InputError(f"the accuracy {true:.4f} of {where} is outside of its interval, {low:.4f} to {high:.4f}")


def _same(one, other) -> bool:
    return one is other if None in (one, other) else abs(one - other) <= ROUNDING


def _check_trust(row, where):
    needs = {
        "predictions": (),
        "weights": ("weights_sha256",),
        "replayed": ("weights_sha256", "replayed_by", "submitter", "command"),
    }[row["trust"]]
    for field in needs:
        if row[field] is None:
            raise InputError(f"{where} has trust {row['trust']!r} but no {field}")
    if row["trust"] != "replayed" and row["replayed_by"] is not None:
        raise InputError(f"{where} has replayed_by but trust {row['trust']!r}")
    if row["trust"] == "replayed" and row["replayed_by"].lower() == row["submitter"].lower():
        raise InputError(
            f"{where}: a replay must be somebody else's, but {row['submitter']} is both submitter and replayed_by"
        )


def check_claims(rows: Iterable[dict], repo: str) -> None:
    """InputError where a row of the submission in a repository says what only others can: that it is another repository's, or replayed."""
    for row in rows:
        where = f"run {row['run_id']} of {repo}"
        if (row["repo"] or repo).lower() != repo.lower():
            raise InputError(f"{where} says that it belongs to {row['repo']}")
        if row["trust"] == "replayed":
            raise InputError(
                f"{where} calls itself replayed; that is for who replayed it to push (`selectivbench replay`)"
            )


# -- doubts --------------------------------------------------------------------------------------------------------------


def gap_in_se(published: dict, sealed: dict) -> float | None:
    """Published minus sealed accuracy in standard errors of the difference, from two entries of scores; None where either lacks something.

    A standard error is at least that of independent items at the pooled accuracy, with half an item right and half one wrong added: otherwise two
    scores without spread would differ by infinitely many.
    """
    both = (published, sealed)
    if any(score[key] is None for score in both for key in ("accuracy", "low", "high")):
        return None
    pooled = (sum(s["correct"] for s in both) + 0.5) / (sum(s["total"] for s in both) + 1)
    squares = sum(max(standard_error(s) ** 2, pooled * (1 - pooled) / s["total"]) for s in both)
    return (published["accuracy"] - sealed["accuracy"]) / math.sqrt(squares)


def doubts(row: dict, ceiling: float | None = None) -> list[str]:
    """What is doubtful about a checked row, a sentence each. They do not make a row wrong: the page shows them, and the closed track asks for none.

    Args:
        ceiling: accuracy of the exact filter on the published split test, where the caller has computed it; default: what the row says.
    """
    scores, sealed = json.loads(row["scores"]), json.loads(row["sealed_scores"] or "{}")
    out = _doubts_of_task(row, scores, sealed)
    out += above_ceiling(row, scores, sealed, ceiling)
    if row["sealed_seed"] is None:
        out.append("There is no sealed score: anybody can train on the published test.")
    elif "test" in scores and "test" in sealed:
        gaps = [g for g in (row["gap_in_se"], gap_in_se(scores["test"], sealed["test"])) if g is not None]
        widest = max(gaps, key=abs, default=0.0)
        if abs(widest) > GAP_LIMIT:
            out.append(
                f"The published and the sealed test differ by {abs(widest):.1f} standard errors "
                f"({scores['test']['accuracy']:.2%} and {sealed['test']['accuracy']:.2%}); chance gives no more than {GAP_LIMIT}."
            )
    if row["date"] > (datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=1)).date().isoformat():
        out.append(f"The date {row['date']} is in the future.")
    return out


def _doubts_of_task(row, scores, sealed) -> list[str]:
    out = []
    if row["data_version"].split(".")[0] != DATA_VERSION.split(".")[0]:
        return [
            f"The data are of version {row['data_version']}, of another major version than {DATA_VERSION} here: not comparable."
        ]
    if row["max_sequences"] is not None:
        out.append(f"The scores are over the first {row['max_sequences']:,} sequences of each split only.")
    task = published(row["task"], row["grammar_seed"])
    if task is None:
        return [*out, f"This package does not know the task {row['task']} of data version {row['data_version']}."]
    if task["fingerprint"] != row["task_fingerprint"]:
        return [*out, f"The task is not {row['task']} as the catalogue has it: another fingerprint."]
    for what, found in (("published", scores), ("sealed", sealed)):
        if what == "sealed" and row["sealed_seed"] is None:
            continue
        missing = [split for split in task["test_splits"] if split not in found]
        if missing:
            out.append(f"Of the {what} test splits these are missing: {', '.join(missing)}.")
        short = [s for s in task["test_splits"] if s in found and found[s]["sequences"] != task["splits"][s]]
        if short and row["max_sequences"] is None:
            first = short[0]
            out.append(
                f"The {what} split {first} has {found[first]['sequences']:,} sequences instead of {task['splits'][first]:,}."
            )
    return out


@functools.lru_cache(maxsize=4096)
def published(name: str, grammar_seed: int | None) -> dict | None:
    """{"fingerprint", "splits", "test_splits"} of the task of the catalogue that a row names (its grammar is drawn: about 0.02 s the first time);
    None where this package does not know it."""
    if name not in _tasks():
        return None
    try:
        task = get_task(name)
        if grammar_seed not in (None, task.grammar_seed):
            task = get_task(name, grammar_seed=grammar_seed)
    except InputError:  # a seed where there is no random grammar
        return None
    return {"fingerprint": task.fingerprint, "splits": task.splits, "test_splits": task.test_splits}


def above_ceiling(row, scores, sealed, ceiling: float | None = None) -> list[str]:
    """A sentence for each of the published and the sealed test whose accuracy is above what the exact filter reaches. Arguments as in `doubts`;
    scores, sealed: values of those fields."""
    best = row["ceiling"] if ceiling is None else ceiling
    out = []
    if best is None:
        return out
    for what, score in (("published", scores.get("test")), ("sealed", sealed.get("test"))):
        if score is None or score["accuracy"] is None or score["low"] is None:
            continue
        independent = math.sqrt(best * (1 - best) / score["total"])
        error = max(standard_error(score), independent)
        if score["accuracy"] > best + ABOVE_CEILING * error + ROUNDING:
            out.append(
                f"The accuracy on the {what} test, {score['accuracy']:.2%}, is more than {ABOVE_CEILING:.0f} standard errors above the "
                f"ceiling of the exact filter, {best:.2%}."
            )
    return out


def dataset_doubts(dataset: dict, tags: dict[str, str]) -> list[str]:
    """What is doubtful about the published data that a submission names, a sentence each.

    Args:
        dataset: {"id", "revision", "tag"} of a submission.
        tags: tag -> commit SHA as that repository has them (client.tags).
    """
    tag, revision = dataset["tag"], dataset["revision"]
    if tag not in tags:
        return [f"The data set {dataset['id']} has no tag {tag}."]
    if tags[tag] != revision:
        return [f"The revision {revision[:12]} of {dataset['id']} is not that of its tag {tag}, {tags[tag][:12]}."]
    if not re.fullmatch(rf"v{re.escape(DATA_VERSION.split('.')[0])}\.\d+\.\d+", tag):
        return [
            f"The tag {tag} of {dataset['id']} is of another major version than {DATA_VERSION} here: not comparable."
        ]
    return []
