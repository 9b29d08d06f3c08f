"""A submission on its way to a model repository: what is there is read, what is new is put beside it, and all of it is one commit or pull request.

What a submission would change is computed from the repository alone, so that one that was cut is finished by running it again, and one that is whole
leaves nothing to do.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ..errors import InputError
from . import client, eval_results, model_card, submission
from .publish import Published
from .submission import Submission

KIND = "model"
CARD = "README.md"
MOST_CARD = 4 << 20  # bytes
ROOT = (submission.CONFIG, submission.WEIGHTS)
SAME = ("name", "objective", "mixer", "block", "mixer_kwargs", "hidden_size", "num_hidden_layers")  # of one model
SEEDS = ("task", "task_fingerprint", "grammar_seed", "sample_seed", "model_seed", "data_seed")


@dataclass
class Plan:
    """What one commit would do to the model repository `base`.

    add: path -> a local file or the content; delete: paths; submission: what selectivbench.json says then; said: sentences about what a reader would
    not expect.
    """

    base: Published
    submission: Submission
    add: dict[str, Path | bytes] = field(default_factory=dict)
    delete: list[str] = field(default_factory=list)
    said: list[str] = field(default_factory=list)

    def sizes(self) -> dict[str, int]:
        """Path -> bytes of each file that would be sent."""
        return {path: len(c) if isinstance(c, bytes) else c.stat().st_size for path, c in sorted(self.add.items())}


@dataclass
class Outcome:
    """What became of a plan: `commit` (SHA; None in a dry run), `committed` by this call, `pull_request` (address)."""

    plan: Plan
    commit: str | None = None
    committed: bool = False
    pull_request: str | None = None

    @property
    def rows(self) -> list[dict]:
        return self.plan.submission.rows


def look(repo: str) -> tuple[Published, Submission | None]:
    """(a model repository as it stands, its submission or None). InputError where it holds something else under our names."""
    head = client.head(repo, KIND)
    if head is None:
        return Published(None), None
    base = Published(head, client.files(repo, KIND, head))
    if submission.FILE not in base.files:
        there = next((name for name in ROOT if name in base.files), None)
        if there is not None:
            raise InputError(
                f"{repo} holds another model ({there}, and no {submission.FILE}), which is not replaced: choose another --repo"
            )
        return base, None
    path = client.fetch(repo, KIND, submission.FILE, head, limit=submission.MOST_BYTES)
    try:
        return base, submission.read(path)
    except InputError as error:
        raise InputError(f"{submission.FILE} of {repo} cannot be read, and is not replaced: {error}") from None


def merged(old: Submission | None, new: Sequence[dict], repo: str, replace: bool) -> list[dict]:
    """The rows that the repository will have: those that it has, a run that is sent again in its place, then new ones.

    Raises:
        InputError: where they are not of one model, or two runs have the same seeds or weights.
    """
    by_id = {row["run_id"]: row for row in new}
    kept = [] if old is None or replace else [_later(row, by_id.pop(row["run_id"], row)) for row in old.rows]
    rows = [*kept, *by_id.values()]
    refuse_mixed(rows, f" (it holds {len(kept)} already; --replace drops them)" if kept else "")
    return rows


def _later(old: dict, new: dict) -> dict:
    """The new row of a run, unless it says nothing new but the day on which it was sent."""
    said = lambda row: {name: value for name, value in row.items() if name not in ("row_id", "date")}
    return old if said(old) == said(new) else new


def refuse_mixed(rows: Sequence[dict], hint: str = "") -> None:
    """InputError unless the rows are runs of one model, each once."""
    from ..tasks import get_task
    from . import tracks

    first = rows[0]
    for row in rows[1:]:
        if tracks.data_major(row) != tracks.data_major(first):
            raise InputError(
                f"runs {first['run_id'][:12]} and {row['run_id'][:12]} are on data of other major versions, {first['data_version']} and "
                f"{row['data_version']}, which are never compared{hint}"
            )
        differ = next((name for name in SAME if row[name] != first[name]), None)
        if differ is not None:
            raise InputError(
                f"runs {first['run_id'][:12]} and {row['run_id'][:12]} are not of one model: {differ} is {first[differ]!r} and {row[differ]!r}; one "
                f"repository holds one{hint}"
            )
        if get_task(row["task"]).family != get_task(first["task"]).family:
            raise InputError(
                f"{first['task']} and {row['task']} are tasks of another kind, whose scores are not comparable{hint}"
            )
    for number, row in enumerate(rows):
        for other in rows[:number]:
            if all(row[name] == other[name] for name in SEEDS):
                raise InputError(
                    f"runs {other['run_id'][:12]} and {row['run_id'][:12]} have the same task and seeds: one run is submitted once{hint}"
                )
            if row["weights_sha256"] is not None and row["weights_sha256"] == other["weights_sha256"]:
                raise InputError(f"runs {other['run_id'][:12]} and {row['run_id'][:12]} have the same weights{hint}")
            if row["task"] == other["task"] and tracks.recipe(row) != tracks.recipe(other):
                raise InputError(
                    f"runs {other['run_id'][:12]} and {row['run_id'][:12]} on {row['task']} were trained in different ways: of one model they differ "
                    f"in their seeds alone (a learning-rate grid is given by --grid){hint}"
                )


def make_plan(
    repo: str,
    base: Published,
    old: Submission | None,
    new: Sequence[dict],
    files: dict[str, Path | bytes],
    dataset: dict,
    entries: Callable[[list[dict]], tuple[list, list[str]]],
    *,
    replace: bool = False,
) -> Plan:
    """What makes `base` hold the new rows and their files.

    Args:
        old: the submission that is there. new: rows. files: path -> content of the runs' files.
        dataset: of the submission. entries: rows -> (entries of .eval_results, sentences about what is left out).
    """
    rows = merged(old, new, repo, replace)
    plan = Plan(base, Submission(dataset, rows))
    wanted = dict(files)
    lead = next((row for row in rows if model_card.has_model(row)), None)
    for name in ROOT if lead is not None else ():
        own = submission.run_file(lead["run_id"], name)
        if own in files:  # of an earlier submission, it is there already
            wanted[name] = files[own]
    wanted[submission.FILE] = submission.write(plan.submission).encode()
    found, plan.said = entries(rows)
    found = [*_entries_of_others(repo, base, dataset["id"]), *found]
    if found:
        wanted[eval_results.PATH] = eval_results.to_yaml(found).encode()
    elif eval_results.PATH in base.files:
        plan.delete.append(eval_results.PATH)
    card = model_card.render(rows, dataset, repo).encode()
    if CARD in base.files and model_card.MARKER not in _text(repo, base, CARD):
        plan.said.append(
            f"{CARD} of {repo} was not written by `selectivbench submit` and is kept as it is, so the card of this submission is not sent"
        )
    else:
        wanted[CARD] = card
    plan.add = {path: content for path, content in wanted.items() if not base.holds(path, content)}
    alive = {row["run_id"] for row in rows}
    gone = [path for path in base.files if path.startswith("runs/") and path.split("/")[1] not in alive]
    plan.delete += gone
    if gone:
        plan.said.append(
            f"files of runs that are no longer in it are deleted: {', '.join(sorted({p.split('/')[1] for p in gone}))}"
        )
    return plan


def _entries_of_others(repo: str, base: Published, dataset: str) -> list[dict]:
    """The results that stand in the repository for other copies of the data."""
    if eval_results.PATH not in base.files:
        return []
    where = f"{eval_results.PATH} of {repo}"
    there = eval_results.check_entries(_text(repo, base, eval_results.PATH), where, dataset)
    own = eval_results.of_dataset(there, dataset)
    return [one for one in there if one not in own]


def result_plan(to: str, submitted: Submission, entries: list, said: list[str]) -> Plan:
    """What adds `entries` to the results of somebody else's model: one file, in which entries of other tasks and data sets stay."""
    head = client.head(to, KIND)
    if head is None:
        raise InputError(f"there is no model {to} to which results could be proposed")
    if not entries:
        raise InputError(f"there is nothing to propose to {to}: {'; '.join(said)}")
    base = Published(head, client.files(to, KIND, head))
    if eval_results.PATH in base.files:
        dataset = submitted.dataset["id"]
        there = eval_results.check_entries(_text(to, base, eval_results.PATH), f"{eval_results.PATH} of {to}", dataset)
        entries = eval_results.replaced(there, entries)
    plan = Plan(base, submitted, said=list(said))
    text = eval_results.to_yaml(entries).encode()
    if not base.holds(eval_results.PATH, text):
        plan.add[eval_results.PATH] = text
    return plan


def send(repo: str, plan: Plan, title: str, *, create_pr: bool, private: bool, say) -> Outcome:
    """Carry out a plan; nothing to do is no commit, and a pull request that is open and holds all of it is named instead of a second one."""
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete

    plan.base.sha = client.ensure(repo, KIND, plan.base.sha, say, private=private, create_pr=create_pr)
    if not plan.add and not plan.delete:
        return Outcome(plan, plan.base.sha)
    if create_pr:
        for address, sha in client.open_pull_requests(repo, KIND, title):
            there = Published(sha, client.files(repo, KIND, sha))
            if there.fulfils(plan.add, plan.delete):
                return Outcome(plan, sha, pull_request=address)
    additions = [CommitOperationAdd(path, content) for path, content in plan.add.items()]
    distinct = {addition.upload_info.sha256: addition for addition in additions}
    client.upload(repo, KIND, list(distinct.values()), create_pr=create_pr)
    client.upload(
        repo, KIND, additions, create_pr=create_pr
    )  # the root's weights are a run's: the Hub has them by now
    operations = [*additions, *(CommitOperationDelete(path) for path in plan.delete)]
    info = client.commit(repo, KIND, operations, title, parent=plan.base.sha, create_pr=create_pr)
    return Outcome(plan, info.oid, committed=True, pull_request=info.pr_url)


def _text(repo: str, base: Published, path: str) -> str:
    return client.fetch(repo, KIND, path, base.sha, limit=MOST_CARD).read_text(encoding="utf-8", errors="replace")


def record_of(scored, row: dict) -> str:
    """The run's record as it is published: its arguments as the row has them, and nothing of the machine but device, threads and processes."""
    from ..checkpointing import strict_json

    hardware = {k: v for k, v in scored.record["hardware"].items() if k != "platform"}
    out = scored.record | {"arguments": json.loads(row["arguments"]), "hardware": hardware}
    return strict_json(out, indent=1) + "\n"
