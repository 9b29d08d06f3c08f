"""`selectivbench replay`: a submission scored again, trained again from its recorded arguments, and compared."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from ...console import path_of, print_table
from ...errors import InputError, KernelMismatch


def flags(parser):
    parser.add_argument(
        "submission", metavar="OWNER/MODEL|FOLDER", help="a model repository with selectivbench.json, or a copy of one"
    )
    parser.add_argument("--run", metavar="RUN_ID", help="this run only (default: every run of the submission)")
    parser.add_argument(
        "--rescore_only",
        "--rescore-only",
        action="store_true",
        help="score the published weights again, and train nothing",
    )
    parser.add_argument(
        "--sealed-grammar",
        "--sealed_grammar",
        action="store_true",
        help="also train on a grammar drawn from the hash of the weights (with --rescore_only: that alone)",
    )
    parser.add_argument(
        "--output",
        type=path_of("the path of a folder"),
        metavar="DIR",
        help="folder for the trainings and replay.json; a call with the same one goes on (default replays/NAME)",
    )
    parser.add_argument(
        "--results",
        metavar="OWNER/DATASET",
        help="push there the rows of runs that were replayed, or that their submitter trained on a sealed grammar (default: push nothing)",
    )
    parser.add_argument(
        "--submitter", metavar="NAME", help="who you are on the Hub (default: whom the token belongs to)"
    )
    parser.add_argument("--json", action="store_true", help="print a JSON array of objects, each with `name`")


def run(arguments) -> int:
    from ...checkpointing import CheckpointError
    from ...launching import StopFlag, Stopped
    from ...runs import TrainingFailed

    try:
        with StopFlag().watched() as stop:
            return _run(arguments, stop)
    except Stopped as error:
        print(f"stopped by {error.why}; the same call goes on where it stopped", file=sys.stderr)
        return error.code
    except (TrainingFailed, CheckpointError, KernelMismatch) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


def _run(arguments, stop) -> int:
    from .. import client
    from ..published import Files
    from ..replay import FILE, Replayer

    def say(line):
        print(line, file=sys.stderr, flush=True)

    results = arguments.results
    if results is not None:
        client.repo_id(results, "--results")
        if arguments.rescore_only:
            raise InputError("--results pushes runs that were trained again, and with --rescore_only none is")
    files = Files.of(arguments.submission)
    by = _who(arguments, files)
    given, data = files.submission, files.submission.dataset
    say(
        f"{f'repository {files.repo} at {files.revision}' if files.repo else f'folder {files.where}'}: {len(given.rows)} run(s), submitted with the data "
        f"{data['id']} {data['tag']}; replayed by {by or 'somebody without a name'}"
    )
    output = Path(arguments.output or Path("replays") / os.path.basename(os.path.abspath(arguments.submission)))
    if output.exists() and not output.is_dir():
        raise InputError(f"--output {output} exists and is no folder")
    replayer = Replayer(files, output, say, stop, by, arguments.rescore_only, arguments.sealed_grammar)
    done = replayer.replay(arguments.run)
    if arguments.json:
        rows = [
            {"name": d.row["name"], "run_id": d.row["run_id"], "trust": d.row["trust"], **f.as_dict()}
            for d in done
            for f in d.findings
        ]
        print(json.dumps(rows, indent=2, allow_nan=False))
    else:
        _show(done)
    for d in done:
        say(_outcome(d))
    say(f"written: {output / FILE}")
    if results is not None:
        _push([d.row for d in done if _counts(d, by)], results, say)
    return 1 if any(d.differs for d in done) else 0


def _who(arguments, files) -> str | None:
    """Who replays. With --results it is whom the token belongs to, whatever the flag says, so that nobody signs for another."""
    from .. import client

    if arguments.submitter is not None and arguments.results is None:
        return arguments.submitter
    if arguments.results is None and files.repo is None:
        return None  # a folder: nothing is asked of the Hub
    try:
        name = client.who()
    except InputError:
        if arguments.results is not None:
            raise
        return None
    if arguments.submitter not in (None, name):
        raise InputError(
            f"--submitter is {arguments.submitter}, but the token belongs to {name}; with --results the two must agree"
        )
    return name


def _show(done) -> None:
    rows = []
    for d in done:
        for f in d.findings:
            shown = {k: None if (v := getattr(f, k)) is None else round(v, 4) for k in ("submitted", "replayed")}
            in_se = None if f.in_se is None else round(f.in_se, 2)
            rows.append({"run": d.row["run_id"][:12], **f.as_dict(), **shown, "in_se": in_se})
    columns = {"run": "run", "check": "check", "split": "of", "submitted": "submitted", "replayed": "here"}
    print_table(rows, columns | {"in_se": "std. errors", "verdict": "verdict", "rule": "rule"})


def _outcome(d) -> str:
    name = f"run {d.row['run_id']}"
    lines = [f"{name}: trained here with {', '.join(d.differences)}"] if d.differences else []
    if d.why_not_replayed is None:
        from ..comparison import LOWER

        lower = any(f.verdict == LOWER for f in d.findings)
        but = "; on the sealed grammar it is LOWER, which its row now says" if lower else ""
        lines.append(f"{name}: replayed by {d.row['replayed_by']}, and nothing differs{but}")
    else:
        lines.append(f"{name}: stays at `{d.row['trust']}`: {d.why_not_replayed}")
    return "\n".join(lines)


def _counts(d, by) -> bool:
    """Whether a row says something that the submission did not: it was replayed, or its own submitter has trained it on a sealed grammar."""
    own = d.row["submitter"] is not None and by.lower() == d.row["submitter"].lower()
    return not d.differs and (d.row["trust"] == "replayed" or (own and d.row["sealed_grammar_scores"] is not None))


def _push(rows, results, say) -> None:
    from ..results_data import push

    if not rows:
        say(f"nothing is pushed to {results}: no run has become `replayed`")
        return
    pushed = push(rows, results, say)
    if pushed.commit is None:
        say(f"{results} has all of it already: nothing was sent")
    else:
        say(f"pushed to {results}: {len(pushed.fresh)} row(s), {pushed.path}")
