"""Results that lie in a local folder or file: files of rows as `results pull` writes them, submissions, run folders, and summaries of many runs.

A summary is a line of the results.jsonl that `selectivbench demo` writes: settings and scores of a run whose own record and weights need not be there.
"""

from __future__ import annotations

from pathlib import Path

from ..errors import InputError
from . import rows, schemas, submission, tracks
from .board import Board, from_rows, now
from .board_lines import budget, scores_only, size_tier
from .row_checks import check_score
from .untrusted import plain_text, read_bytes, shown, strict_json

SUMMARIES = "results.jsonl"
MOST_BYTES = 64 << 20  # of a file of summaries


def read(path: Path) -> Board:
    """The board of a folder or file; InputError where it holds no results."""
    from . import results_data, results_rows

    if path.name == "data" and any(path.glob("rows-*.parquet")):  # of a folder that `results pull` wrote
        path = path.parent
    source = f"Results in {path.name or path}"
    if path.suffix == ".parquet" or (path / "data").is_dir():
        found = results_data.read_folder(path)
        return from_rows(
            found.rows,
            source,
            [*(f"{name} {why}" for name, why in found.faults.items()), *found.notes],
            found.withdrawn,
        )
    if (place := path / submission.FILE if path.is_dir() else path).name == submission.FILE and place.is_file():
        notice = f"{place.name} was read as it is: the Hub was not asked whether the data that it names are published"
        return from_rows(submission.read(place).rows, source, [notice])
    notices: list[str] = []
    file = path / SUMMARIES if path.is_dir() else path
    if file.suffix == ".jsonl" and (found := _summaries(file)):
        lines = []
        for number, summary in found:
            try:
                lines.append(_line(summary, f"line {number} of {file}"))
            except InputError as error:
                notices.append(f"left out: {error}")
        lines.sort(key=lambda line: (line["task"], -line["published"], line["name"]))
        return Board(source, lines, [], notices, now())
    return from_rows(results_rows.gather([str(path)], None, None, notices.append), source, notices)


def _summaries(file: Path) -> list[tuple[int, dict]]:
    """(number of the line, summary) of a file whose lines are summaries; none where they are something else, such as records of runs."""
    if not file.is_file():
        return []
    out = []
    for number, line in enumerate(read_bytes(file, MOST_BYTES).splitlines(), 1):
        if line.strip():
            value = strict_json(line, f"line {number} of {file}")
            if not isinstance(value, dict) or "settings" not in value or "record_version" in value:
                return []
            out.append((number, value))
    return out


def _line(summary: dict, where: str) -> dict:
    """The line of a summary. Scores on another task than the one it was trained on ("lite/test") are no scores of this one and stay out."""
    from ..tasks import get_task, task_names
    from .row_making import of_mixer, score_entries

    try:
        name = plain_text(summary["name"], f"name of {where}", 100)
        if summary["status"] != "finished":
            raise InputError(
                f"{where}: the run of {name} was {plain_text(summary['status'], f'status of {where}', 40)}"
            )
        settings, training = summary["settings"], summary["settings"]["training"]
        if settings["task"] not in task_names():  # get_task would also read a file of that name
            raise InputError(f"{where} is of no task of the catalogue: {shown(settings['task'])}")
        task = get_task(settings["task"])
        if settings["fingerprints"]["task"] != task.fingerprint:
            raise InputError(f"{where} is of another {task.name} than this package's: their fingerprints differ")
        scores = score_entries({split: score for split, score in summary["scores"].items() if split in task.splits})
        scores = schemas.check(scores, rows.SCHEMA["$defs"]["scores"], f"scores of {where}", rows.SCHEMA)
        for split, score in scores.items():
            check_score(score, None, f"{split} of {where}")
        test, share = scores["test"], {split: 100 * score["accuracy"] for split, score in scores.items()}
        number = lambda field, value: schemas.check(
            value, rows.SCHEMA["properties"][field], f"{field} of {where}", rows.SCHEMA
        )
        trained = summary["steps"] * number("batch_size", int(training["per_device_train_batch_size"]))
        passes = number("train_sequences", trained) / task.splits["train"]
        parameters, state = number("parameters", summary["parameters"]), summary["state_size"]
        taxonomy = of_mixer(name)
        return scores_only(
            name, task.name, data=int(task.data_version.split(".")[0]), objective="classification", published=share["test"],
            published_low=100 * test["low"], published_high=100 * test["high"], over="test sequences", runs=1, mixer=name, **taxonomy,
            splits={split: {"published": accuracy, "sealed": None} for split, accuracy in share.items()},
            parameters=parameters, tier=size_tier(tracks.tier([summary]), parameters),
            state_size=number("state_size", state) if type(state) is int else None, budget=budget(passes),
            flags=[f"Not ranked: a summary of one run, scored on {test['sequences']:,} of {task.splits['test']:,} test sequences and on no sealed test."],
        )  # fmt: skip
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{where} is no summary of a run: {type(error).__name__} at {str(error)[:60]!r}") from None
