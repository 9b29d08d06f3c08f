"""Rows for a push: from run folders, from folders of them, and from submissions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from ..errors import InputError
from . import client, row_making, scoring, sealed, submission
from .command_line import retrain_command
from .published import Files
from .row_checks import dataset_doubts
from .row_format import row_id, said

AS_RECORDED = "The scores are those that the run recorded; they were not computed again from its weights."


def gather(given: Sequence[str], name: str | None, submitter: str | None, say: Callable[[str], None]) -> list[dict]:
    """The rows of all that is given, each once.

    Args:
        given: run folders, their results.jsonl, folders of runs, selectivbench.json or a folder with one, or OWNER/NAME of a submission on the Hub.
        name: display name of the models in run folders; default: the mixer's.
        submitter: user name on the Hub, of run folders.
        say: called with a sentence for each run of a folder of runs that has no row, and why.
    """
    out, from_runs = [], 0
    for place in given:
        path = Path(place)
        folder = path.parent if path.name == submission.FILE and path.is_file() else path
        if (folder / submission.FILE).is_file() or not path.exists():
            out += _of_submission(str(folder))
        else:
            found = _of_runs(path, name, submitter, say)
            from_runs += len(found)
            out += found
    if name is not None and not from_runs:
        raise InputError("--name names the model of run folders; a submission has its own name")
    # read from the Hub and from a folder, a row tells its commit only once
    out.sort(key=lambda row: row["repo_revision"] is not None)
    return list({said(row): row for row in out}.values())


def _of_submission(where: str) -> list[dict]:
    """Its rows, with the commit that they were read at; refused where the published data that it names are not those of its tag."""
    files = Files.of(where)
    found = files.submission
    wrong = dataset_doubts(found.dataset, client.tags(found.dataset["id"], "dataset"))
    if wrong:
        raise InputError(f"the submission {where} was not held to published data: {wrong[0]}")
    if files.repo is None:
        return found.rows
    read_at = {"repo": files.repo, "repo_revision": files.revision}
    return [{**row, **read_at, "row_id": row_id({**row, **read_at})} for row in found.rows]


def _of_runs(path: Path, name, submitter, say) -> list[dict]:
    from ..results import RECORD

    if path.is_file() and path.name != RECORD:
        raise InputError(f"{path} is neither a run folder, nor {RECORD} in one, nor {submission.FILE}")
    folder = path.parent if path.is_file() else path
    if path.is_file() or (folder / RECORD).is_file() or (folder / "run.json").is_file():
        return [_of_run(folder, name, submitter)]
    runs = sorted(p.parent for p in folder.rglob(RECORD))
    out = []
    for run in runs:
        try:
            out.append(_of_run(run, name, submitter))
        except InputError as error:
            say(f"left out: {error}")
    if not out:
        raise InputError(f"{path} holds no {'finished run' if runs else 'run folder'}")
    return out


def _of_run(folder: Path, name: str | None, submitter: str | None) -> dict:
    """The row of a run folder as its record says; the weights are only hashed."""
    try:
        weights, record, task = scoring.open_run(str(folder))
    except InputError as error:
        raise InputError(str(error).replace(" cannot be submitted: ", " gives no row: ", 1)) from None
    return row_making.row_of(
        record,
        task,
        name=name or record["model"]["name"],
        trust="weights",
        submitter=submitter,
        weights_sha256=sealed.sealed_seed(weights / submission.WEIGHTS),
        command=retrain_command(record, task),
        flags=[AS_RECORDED],
    )
