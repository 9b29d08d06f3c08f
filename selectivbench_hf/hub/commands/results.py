"""`selectivbench results push | pull | check | withdraw`: the data set of results, one row a run."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from ...console import Parser, path_of, print_table, terminable
from ...errors import InputError
from .. import client, results_data, withdrawals

VARIABLE = "SELECTIVBENCH_RESULTS"


class _Action(Parser):
    """A subcommand's parser: what is left over is told with the subcommand's own flags."""

    def parse_known_args(self, args=None, namespace=None):
        known, rest = super().parse_known_args(args, namespace)
        self.refuse(rest)
        return known, rest


def flags(parser) -> None:
    actions = parser.add_subparsers(
        dest="action", metavar="push|pull|check|withdraw", required=True, parser_class=_Action
    )

    def add(name, line):
        action = actions.add_parser(name, help=line, description=line)
        action.add_argument("--json", action="store_true", help="print a JSON array of objects, each with `name`")
        return action

    push = add("push", "rows of finished runs added to the data set, which is made if there is none, in one commit")
    push.add_argument(
        "runs",
        nargs="+",
        type=path_of("a path"),
        metavar="RUN",
        help="run folders, results.jsonl files, folders of runs, submissions (selectivbench.json, a folder with one, OWNER/MODEL)",
    )
    push.add_argument("--name", help="display name of the models in run folders (default: the mixer's)")
    push.add_argument(
        "--dry-run", "--dry_run", action="store_true", help="print what would be added, and write nothing"
    )
    _writing(push)

    pull = add("pull", "every row, checked, as a folder that load_dataset reads; and whether any file has disappeared")
    pull.add_argument("repo", nargs="?", metavar="OWNER/NAME", help=f"the data set (default ${VARIABLE})")
    pull.add_argument(
        "--output", type=path_of("the path of a folder"), required=True, metavar="DIR", help="folder to write"
    )

    check = add("check", "a file or folder of results, or the data set on the Hub with its history, checked")
    check.add_argument("where", type=path_of("a path"), metavar="FILE|DIR|OWNER/NAME")

    withdraw = add("withdraw", "rows that no longer count, named with the reason; they stay in the data set")
    withdraw.add_argument("rows", nargs="+", metavar="ROW_ID", help="row_id, or at least its first 12 digits")
    withdraw.add_argument("--reason", required=True, help="one line, for everybody to read")
    _writing(withdraw)


def _writing(action) -> None:
    action.add_argument("--results", metavar="OWNER/NAME", help=f"the data set (default ${VARIABLE})")
    action.add_argument("--create-pr", "--create_pr", action="store_true", help="propose it as a pull request")


def run(arguments) -> int:
    act = {"push": _push, "pull": _pull, "check": _check, "withdraw": _withdraw}[arguments.action]
    with terminable():
        return act(arguments)


def _say(sentence: str) -> None:
    print(sentence, file=sys.stderr, flush=True)


def _repo(given: str | None, where: str) -> str:
    given = given or os.environ.get(VARIABLE)
    if not given:
        raise InputError(f"{where} OWNER/NAME is needed: the data set of results (or set {VARIABLE})")
    return client.repo_id(given, where)


def _push(arguments) -> int:
    from .. import results_rows

    repo = _repo(arguments.results, "--results")
    try:
        user = client.who()
    except InputError as error:
        if not arguments.dry_run:
            raise
        _say(f"notice: {error}; the rows of this dry run have no submitter")
        user = None
    given = results_rows.gather(arguments.runs, arguments.name, user, _say)
    pushed = results_data.push(given, repo, _say, dry_run=arguments.dry_run, create_pr=arguments.create_pr)
    done = "would be added" if arguments.dry_run else "proposed" if pushed.pull_request else "added"
    told = [
        {
            **{key: row[key] for key in ("name", "task", "grammar_seed", "model_seed", "accuracy", "sealed_accuracy")},
            "status": done if row["row_id"] in pushed.fresh else "already there",
            "row_id": pushed.held.get(row["row_id"], row["row_id"]),
            "run_id": row["run_id"],
            "file": pushed.path if row["row_id"] in pushed.fresh else None,
            "commit": pushed.commit,
            "pull_request": pushed.pull_request,
        }
        for row in given
    ]
    if arguments.json:
        return _print_json(told)
    heads = {
        "name": "name",
        "task": "task",
        "grammar_seed": "grammar seed",
        "model_seed": "model seed",
        "status": "status",
    }
    print_table(
        [
            row
            | {"row": row["row_id"][:12], "test": _share(row["accuracy"]), "sealed": _share(row["sealed_accuracy"])}
            for row in told
        ],
        heads | {"test": "test", "sealed": "sealed test", "row": "row"},
    )
    print(_ending(pushed, repo, arguments.dry_run))
    return 0


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.2%}"


def _ending(pushed: results_data.Pushed, repo: str, dry_run: bool) -> str:
    count = f"{len(pushed.fresh):,} row{'' if len(pushed.fresh) == 1 else 's'}"
    if not pushed.fresh:
        return f"nothing to do: {repo} has all of it"
    if dry_run:
        return f"dry run: {count} would be added to {repo}; nothing was sent"
    if pushed.pull_request:
        return f"proposed {count} to {repo}: {pushed.pull_request}"
    return f"added {count} to {repo} as {pushed.path}, commit {pushed.commit}"


def _pull(arguments) -> int:
    repo, folder = _repo(arguments.repo, "the data set"), Path(arguments.output)
    if folder.exists() and not folder.is_dir():
        raise InputError(f"--output {folder} is a file; a folder is needed")
    sha, results = results_data.pull(repo, folder)
    results_data.write_card(repo, folder, _say)
    return _tell(results, arguments.json, f"{repo} at {sha[:12]}", f" in {folder}")


def _check(arguments) -> int:
    where = arguments.where
    path = Path(where)
    if not path.exists():
        if where.count("/") != 1 or where.startswith((".", "/", "~")):
            raise InputError(f"there is no file or folder {where!r}, and it is no repository OWNER/NAME on the Hub")
        repo = client.repo_id(where, "the data set")
        sha, results = results_data.pull(repo, results_data.cache_folder(repo))
        results.new = set()  # to the cache
        return _tell(results, arguments.json, f"{repo} at {sha[:12]}", "", conflicts_fail=True)
    return _tell(results_data.read_folder(path), arguments.json, where, "", conflicts_fail=True)


def _tell(results, as_json: bool, where: str, place: str, conflicts_fail: bool = False) -> int:
    """Print each file and what is wrong with it; the exit code."""
    told = [
        {
            "name": path,
            "rows": results.files.get(path),
            "status": "WRONG" if path in results.faults else "new" if path in results.new else "sound",
            "problem": results.faults.get(path),
        }
        for path in sorted({*results.files, *results.faults})
    ]
    if as_json:
        _print_json(told)
    elif told:
        print_table(told, {"name": "file", "rows": "rows", "status": "status"})
    for path, fault in results.faults.items():
        _say(f"error: {path} {fault}")
    conflicts = results.conflicts()
    for sentence in [*results.notes, *conflicts]:
        _say(f"notice: {sentence}")
    gone = sum(row["row_id"] in results.withdrawn for row in results.rows)
    if not as_json:
        bad = f"; {len(results.faults)} of its files are wrong and left out" if results.faults else ""
        print(f"{where}: {len(results.rows):,} rows{place}, {gone:,} of them withdrawn{bad}")
    return 1 if results.faults or (conflicts_fail and conflicts) else 0


def _withdraw(arguments) -> int:
    repo = _repo(arguments.results, "--results")
    told = []
    for given in arguments.rows:
        outcome = withdrawals.withdraw(given, arguments.reason, repo, _say, create_pr=arguments.create_pr)
        told.append({"name": outcome["row_id"][:12], **outcome})
    if arguments.json:
        return _print_json(told)
    print_table(told, {"name": "row", "status": "status", "commit": "commit", "pull_request": "pull request"})
    return 0


def _print_json(told) -> int:
    print(json.dumps(told, indent=2, allow_nan=False))
    return 0
