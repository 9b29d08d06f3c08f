"""Submitting: runs are scored again and on their sealed tests, held to the published data, and put into a model repository in one commit.

    result = sb.train("te3_noisy_gaps", "gla", output_dir="runs/gla")
    sb.submit(result, "OWNER/model", dataset="OWNER/selectivbench", dry_run=True)

`selectivbench submit` does the same. Nothing is sent before everything has been checked.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..errors import HubFailure, InputError
from . import client, rows, scoring, sending, submission, untrusted
from .held import Held
from .published import MOST_WEIGHTS
from .sealed import sealed_seed
from .sending import Outcome
from .tracks import NOT_RECIPE

HUB = "https://huggingface.co"
DATASET = "SELECTIVBENCH_DATASET"


def submit(
    run,
    repo: str | None = None,
    *,
    dataset: str | None = None,
    model=None,
    to: str | None = None,
    grid: Sequence = (),
    name: str | None = None,
    create_pr: bool = False,
    private: bool = False,
    replace: bool = False,
    dry_run: bool = False,
    say: Callable[[str], None] | None = None,
) -> Outcome:
    """Submit finished runs of one model.

    Args:
        run: a run folder or a results.Result, or a list of them: runs over seeds of one model.
        repo: OWNER/model, the repository that holds the submission; made if there is none.
        dataset: OWNER/selectivbench, the published data; default: the environment variable SELECTIVBENCH_DATASET.
        model: for runs with a module of their own, an nn.Module of the same shape or a function (task) -> module.
        to: somebody else's model, to which only the results are proposed, as a pull request; nothing goes to `repo` then.
        grid: the other runs of the learning-rate grid.
        name: the model's display name; default: the one that the repository's runs have, else the repository's.
        create_pr: propose the submission to `repo` as a pull request.
        private: make a new repository private.
        replace: drop the runs that the repository holds already.
        dry_run: everything but sending.
        say: called with lines for the user.

    Raises:
        InputError: for runs that cannot be submitted, data that differ from the published, a repository that holds something else.
        scoring.NotReproduced: saved weights do not give the recorded scores.
        HubFailure: the Hub cannot be reached.
    """
    say = say or (lambda line: None)
    where = Target.of(repo, dataset, to, name, create_pr, private, dry_run, say)
    folders = [str(getattr(r, "output_dir", r)) for r in (run if isinstance(run, (list, tuple)) else [run])]
    opened = [scoring.open_run(folder) for folder in folders]
    where.ask()
    for path, _, _ in opened:
        untrusted.check_safetensors(path / submission.WEIGHTS, MOST_WEIGHTS)
    drafts = [
        rows.row_of(
            record, task, weights_sha256=sealed_seed(path / submission.WEIGHTS), trust="weights", **where.known()
        )
        for path, record, task in opened
    ]
    grids = _grid([str(getattr(r, "output_dir", r)) for r in grid], opened, drafts)
    held = Held(where.dataset)
    held.refuse_other_data(drafts)
    where.check_early(drafts, replace)
    scored = [scoring.score_run(folder, model, say) for folder in folders]
    new = [_row(s, where, grids) for s in scored]
    files = {}
    for s, row in zip(scored, new, strict=True):
        files |= _files(s, row)
    return _deliver(where, held, new, files, replace)


def submit_predictions(
    predictions: str,
    model_file: str,
    task,
    repo: str | None = None,
    *,
    dataset: str | None = None,
    to: str | None = None,
    name: str | None = None,
    create_pr: bool = False,
    private: bool = False,
    replace: bool = False,
    dry_run: bool = False,
    say: Callable[[str], None] | None = None,
) -> Outcome:
    """Submit predicted states from any framework (hub/predictions.py); other arguments and errors as in `submit`.

    Args:
        predictions: the safetensors file with a tensor for each test split, published and sealed.
        model_file: the file that holds the model, by whose hash the sealed tests are drawn. It is published only if it is a safetensors file.
        task: a Task, or what `get_task` takes.
    """
    from ..tasks import get_task
    from .predictions import score_predictions

    say = say or (lambda line: None)
    where = Target.of(repo, dataset, to, name, create_pr, private, dry_run, say)
    scored = score_predictions(predictions, get_task(task), model_file)
    where.ask()
    row = _prediction_row(scored, where)
    held = Held(where.dataset)
    held.refuse_other_data([row])
    where.check_early([row], replace)
    files = {
        submission.run_file(row["run_id"], submission.PREDICTIONS): Path(predictions),
        submission.run_file(row["run_id"], submission.TASK): (scored.task.to_json() + "\n").encode(),
    }
    if scored.weights.suffix == ".safetensors":
        untrusted.check_safetensors(scored.weights, MOST_WEIGHTS)
        files[submission.run_file(row["run_id"], submission.WEIGHTS)] = scored.weights
    return _deliver(where, held, [row], files, replace)


def dataset_id(given: str | None) -> str:
    """OWNER/selectivbench, as given or as the environment has it."""
    found = given or os.environ.get(DATASET)
    if not found:
        raise InputError(
            f"--dataset OWNER/selectivbench is needed, the published data (the environment variable {DATASET} may say it)"
        )
    return client.repo_id(found, "--dataset" if given else DATASET)


@dataclass
class Target:
    """Where a submission goes, and who sends it (None in a dry run without a token)."""

    repo: str | None
    dataset: str
    to: str | None
    name: str | None
    submitter: str | None
    create_pr: bool
    private: bool
    dry_run: bool
    say: Callable

    @classmethod
    def of(cls, repo, dataset, to, name, create_pr, private, dry_run, say) -> Target:
        """Flags alone are looked at; `ask` asks the Hub."""
        if repo is None and to is None:
            raise InputError("--repo OWNER/model is needed: the repository that will hold the submission")
        if to is not None and not create_pr:
            raise InputError("--to OTHER/model proposes results for somebody else's model, so it needs --create-pr")
        for flag, given in (("--repo", repo), ("--to", to)):
            if given is not None:
                client.repo_id(given, flag)
        if name is not None and not name.strip():
            raise InputError("--name must be the model's display name, got an empty one")
        return cls(repo, dataset_id(dataset), to, name, None, create_pr, private, dry_run, say)

    def ask(self) -> None:
        """Find out who sends it, and what the repository calls its model where no name was given."""
        try:
            self.submitter = client.who()
        except (InputError, HubFailure) as error:
            if not self.dry_run:
                raise
            self.say(f"notice: {error}; the rows of this dry run name no submitter")
        if self.to is not None and client.head(self.to, sending.KIND) is None:
            raise InputError(f"there is no model {self.to} to which results could be proposed")
        old = sending.look(self.repo)[1] if self.to is None else None
        self.name = self.name or (old.rows[0]["name"] if old else (self.to or self.repo).split("/")[1])

    def known(self) -> dict:
        """Fields of every row."""
        repo = self.repo or self.to
        return {"name": self.name, "repo": repo, "submitter": self.submitter, "source_url": f"{HUB}/{repo}"}

    def check_early(self, drafts: list[dict], replace: bool) -> None:
        """What would be refused after minutes of scoring is refused before."""
        if self.to is not None:
            sending.refuse_mixed(drafts)
            return
        sending.merged(sending.look(self.repo)[1], drafts, self.repo, replace)


# -- rows and files ------------------------------------------------------------------------------------------------------


def _grid(folders: list[str], opened: list[tuple], drafts: list[dict]) -> dict[str, list[dict]]:
    """run_id -> the learning-rate grid that it reports: of each task, the submitted run with the lowest seeds. Failed runs are part of a grid.

    Raises:
        InputError: for a run of another task, other seeds, or that was trained otherwise but for its learning rate.
    """
    from ..results import latest

    records, out = {record["run_id"]: record for _, record, _ in opened}, {}
    for folder in folders:
        record, why = latest(folder)
        if record is None:
            raise InputError(f"--grid {folder}: {why}")
        own = [row for row in drafts if row["task"] == record["task"]["name"]]
        if not own:
            raise InputError(f"--grid {folder}: it is a run on {record['task']['name']}, and no submitted run is")
        lead = min(own, key=lambda row: (row["grammar_seed"] or 0, row["model_seed"] or 0))
        if other := _unlike(record, records[lead["run_id"]]):
            raise InputError(
                f"--grid {folder}: a grid is the run with the lowest seeds, {lead['run_id'][:12]}, at other learning rates, and this one differs in {other}"
            )
        entries = out.setdefault(lead["run_id"], [_grid_entry(records[lead["run_id"]])])
        if record["run_id"] not in {entry["run_id"] for entry in entries}:
            entries.append(_grid_entry(record))
    return {run: sorted(grid, key=lambda e: (e["learning_rate"], e["run_id"])) for run, grid in out.items()}


def _unlike(one: dict, other: dict) -> str | None:
    """In what two records differ beside the learning rate; None where in nothing."""
    if one["task"]["fingerprint"] != other["task"]["fingerprint"]:
        return "the task's keywords"
    if one["seeds"]["model"] != other["seeds"]["model"]:
        return "the model seed"
    names = [n for n in one["arguments"] if n not in NOT_RECIPE and n != "learning_rate"]
    return next((n for n in names if one["arguments"][n] != other["arguments"].get(n)), None)


def _grid_entry(record: dict) -> dict:
    scores = record["scores"].get("validation")
    return {
        "learning_rate": record["arguments"]["learning_rate"],
        "validation_accuracy": scores["accuracy"] if scores and record["status"] == "finished" else None,
        "run_id": record["run_id"],
    }


def _row(scored: scoring.Scored, where: Target, grids: dict) -> dict:
    record, task = scored.record, scored.task
    flags = []
    if scored.config is None:
        flags.append("The model's code is not in the repository, so nobody but its submitter can score the weights.")
    return rows.row_of(
        record,
        task,
        scores=scored.scores,
        sealed_scores=scored.sealed_scores,
        sealed_seed=scored.sealed_seed,
        weights_sha256=scored.sealed_seed,
        trust="weights",
        grid=grids.get(record["run_id"]),
        flags=flags,
        notes=" ".join(record["training"]["notes"])[:2000] or None,
        **_worth(task, scored.sealed_scores["test"]["accuracy"], scored.max_sequences),
        **where.known(),
    )


def _prediction_row(scored: scoring.Scored, where: Target) -> dict:
    flags = []
    if scored.weights.suffix != ".safetensors":
        flags.append(
            "The model's file is not in the repository; only its hash is known, so nobody else can see what the tests were sealed by."
        )
    return rows.make_row(
        scored.task,
        run_id=f"{scored.sealed_seed[:32]}-{scored.task.fingerprint[:16]}",
        scores=scored.scores,
        sealed_scores=scored.sealed_scores,
        sealed_seed=scored.sealed_seed,
        weights_sha256=scored.sealed_seed,
        trust="predictions",
        flags=flags,
        **_worth(scored.task, scored.sealed_scores["test"]["accuracy"], None),
        **where.known(),
    )


def _worth(task, accuracy: float | None, maximum: int | None) -> dict:
    """`ceiling` of the published test, and `effective_context` of the sealed accuracy; null where they do not exist."""
    from .. import ceilings

    out = {"ceiling": None, "effective_context": None}
    if task.family == "recall":
        return out | {"ceiling": 1.0}
    try:
        out["ceiling"] = ceilings.filter_scores(task, "test", maximum)["accuracy"]
        items = ceilings.ladder_of(task).effective_context(accuracy)
        out["effective_context"] = items if items < float("inf") else None
    except InputError:  # noise that can hide a symbol, or a grammar too large for tables
        pass
    return out


def _files(scored: scoring.Scored, row: dict) -> dict[str, Path | bytes]:
    """Path in the repository -> content of a run's files."""
    path = lambda name: submission.run_file(row["run_id"], name)
    files = {
        path(submission.WEIGHTS): scored.weights,
        path(submission.RECORD): sending.record_of(scored, row).encode(),
        path(submission.TASK): (scored.task.to_json() + "\n").encode(),
    }
    return files | ({path(submission.CONFIG): scored.config} if scored.config is not None else {})


def _deliver(where: Target, held: Held, new: list[dict], files: dict, replace: bool) -> Outcome:
    title = f"SelectivBench: {where.name}"
    if where.to is not None:
        entries, said = held.entries(new)
        made = submission.Submission(held.dataset, new)

        def propose() -> Outcome:
            plan = sending.result_plan(where.to, made, entries, said)
            if where.dry_run:
                return Outcome(plan)
            return sending.send(where.to, plan, title, create_pr=True, private=False, say=where.say)

        return client.guarded(propose, where.say, where.to)

    def attempt() -> Outcome:
        base, old = sending.look(where.repo)
        plan = sending.make_plan(where.repo, base, old, new, files, held.dataset, held.entries, replace=replace)
        if where.dry_run:
            return Outcome(plan)
        return sending.send(where.repo, plan, title, create_pr=where.create_pr, private=where.private, say=where.say)

    return client.guarded(attempt, where.say, where.repo)
