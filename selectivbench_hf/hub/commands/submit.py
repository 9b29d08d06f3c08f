"""`selectivbench submit`: runs, or predictions of any framework, scored again and published in a model repository."""

from __future__ import annotations

import json
import sys

from ... import task_flags
from ...console import path_of, print_table, terminable
from ...errors import InputError, KernelMismatch

_ROW = (
    "task",
    "grammar_seed",
    "model_seed",
    "trust",
    "accuracy",
    "sealed_accuracy",
    "gap_in_se",
    "ceiling",
    "sealed_seed",
    "flags",
)
_TABLE = {
    "name": "run",
    "task": "task",
    "grammar_seed": "grammar",
    "model_seed": "model seed",
    "accuracy": "test",
    "sealed_accuracy": "sealed test",
    "gap_in_se": "gap in SE",
    "ceiling": "ceiling",
}


def flags(parser) -> None:
    parser.add_argument("runs", nargs="*", metavar="RUN", help="run folders of one model, over its seeds")
    parser.add_argument(
        "--repo", metavar="OWNER/model", help="the repository that holds the submission; made if there is none"
    )
    parser.add_argument(
        "--dataset",
        metavar="OWNER/selectivbench",
        help="the published data (default: the environment variable SELECTIVBENCH_DATASET)",
    )
    parser.add_argument("--name", help="the model's display name (default: the repository's)")
    parser.add_argument(
        "--grid",
        nargs="+",
        default=[],
        metavar="RUN",
        help="the other runs of the learning-rate grid, failed ones too",
    )
    parser.add_argument(
        "--module",
        metavar="FILE.py:NAME",
        help="your own module, or a function (task) -> module, of a run that was trained with one; it is run here",
    )
    parser.add_argument(
        "--to",
        metavar="OTHER/model",
        help="propose the results alone for somebody else's model, by --create-pr; --repo then only says where they come from",
    )
    parser.add_argument("--create-pr", "--create_pr", action="store_true", help="as a pull request")
    parser.add_argument(
        "--dry-run",
        "--dry_run",
        action="store_true",
        help="everything but sending: print files, sizes and (without --json) the card",
    )
    parser.add_argument("--private", action="store_true", help="make a new repository private")
    parser.add_argument("--replace", action="store_true", help="drop the runs that the repository holds already")
    parser.add_argument(
        "--json", action="store_true", help="print a JSON array of objects, one a run, each with `name`"
    )
    group = parser.add_argument_group("predictions of any framework, in place of runs")
    group.add_argument(
        "--predictions",
        type=path_of("a safetensors file"),
        metavar="FILE.safetensors",
        help="tensors (sequences, items) called test, test_gap_1, ... and sealed/test, ... (`selectivbench sealed` says on which data)",
    )
    group.add_argument(
        "--model_file",
        type=path_of("a file"),
        metavar="FILE",
        help="the file that holds the model: its hash seals the tests",
    )
    group.add_argument("--task", help="task name, or a task's JSON file")


def run(arguments) -> int:
    from ..scoring import NotReproduced

    try:
        with terminable():
            outcome = _submit(arguments)
    except (NotReproduced, KernelMismatch) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    _show(outcome, arguments)
    return 0


def _submit(arguments):
    from .. import scoring, submit

    options = {
        name: getattr(arguments, name)
        for name in ("dataset", "to", "name", "create_pr", "private", "replace", "dry_run")
    }
    options["say"] = lambda line: print(line, file=sys.stderr, flush=True)
    if arguments.predictions is None:
        for name in ("model_file", "task"):
            if getattr(arguments, name) is not None:
                raise InputError(f"--{name} belongs to --predictions FILE; a run says its own")
        if not arguments.runs:
            raise InputError("selectivbench submit needs a run folder, or --predictions FILE")
        module = None if arguments.module is None else scoring.load_module(arguments.module)
        return submit.submit(arguments.runs, arguments.repo, model=module, grid=arguments.grid, **options)
    for what, given in (("a run folder", arguments.runs), ("--grid", arguments.grid), ("--module", arguments.module)):
        if given:
            raise InputError(f"--predictions stands alone; leave out {what}")
    for name in ("model_file", "task"):
        if getattr(arguments, name) is None:
            raise InputError(f"--predictions needs --{name}")
    task = task_flags.task(arguments.task)
    return submit.submit_predictions(arguments.predictions, arguments.model_file, task, arguments.repo, **options)


def _show(outcome, arguments) -> None:
    plan, rows = outcome.plan, outcome.rows
    target = arguments.to or arguments.repo
    for sentence in plan.said:
        print(f"notice: {sentence}", file=sys.stderr)
    if arguments.json:
        sent = {
            "repo": target,
            "commit": outcome.commit,
            "committed": outcome.committed,
            "pull_request": outcome.pull_request,
        }
        out = [
            {"name": row["run_id"], **{key: row[key] for key in _ROW}, **sent, "files": plan.sizes()} for row in rows
        ]
        print(json.dumps(out, indent=2, allow_nan=False))
        return
    shown = ("accuracy", "sealed_accuracy", "ceiling", "gap_in_se")
    print_table([{**row, "name": row["run_id"][:12]} | {k: _rounded(row[k]) for k in shown} for row in rows], _TABLE)
    for row in rows:
        for flag in row["flags"]:
            print(f"flag, run {row['run_id'][:12]}: {flag}")
    sizes = plan.sizes()
    if arguments.dry_run:
        print(f"\n{target}: {len(sizes)} files, {sum(sizes.values()):,} bytes would be sent in one commit")
        for path, size in sizes.items():
            print(f"  {size:>12,}  {path}")
        for path in plan.delete:
            print(f"       deleted  {path}")
        card = plan.add.get("README.md")
        if card is not None:
            print(f"\n{card.decode()}")
        return
    if outcome.pull_request:
        print(f"\n{'proposed' if outcome.committed else 'proposed already'}: {outcome.pull_request}")
    elif outcome.committed:
        print(f"\nsubmitted: {target} at {outcome.commit} ({len(sizes)} files)")
    else:
        print(f"\n{target} holds all of it already: nothing was sent")


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)
