"""`selectivbench push OWNER/NAME --tag vX.Y.Z`: tasks published as a data set on the Hub."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from ... import materialise, task_flags
from ...configs import MANIFEST, read_manifest
from ...console import number, path_of, print_table, seed, terminable
from ...errors import HubFailure, InputError
from .. import client, publish
from ..publish_plan import CARD, Choices, Plan


def flags(parser) -> None:
    parser.add_argument("repo", metavar="OWNER/NAME", help="the data set; it is made if there is none")
    parser.add_argument(
        "--tag", required=True, metavar="vX.Y.Z", help="the version; X is the data version's first number"
    )
    parser.add_argument(
        "--tasks",
        nargs="+",
        metavar="TASK",
        help="names or task JSON files (default: all tasks of random grammars, and the recall tasks)",
    )
    parser.add_argument(
        "--grammar_seeds",
        nargs="+",
        type=seed,
        metavar="N",
        help="grammar seeds of the tasks of random grammars; others than 1 become configs NAME_seedN (default 1)",
    )
    parser.add_argument(
        "--output",
        type=path_of("the path of a folder"),
        default="selectivbench",
        metavar="DIR",
        help="where it is written first, and kept for a rerun (default selectivbench)",
    )
    parser.add_argument("--num_proc", type=number, default=1, metavar="N", help="processes that write (default 1)")
    parser.add_argument(
        "--dry-run",
        "--dry_run",
        action="store_true",
        help="write locally, print files, sizes and (without --json) the card, and send nothing; needs neither token nor network",
    )
    parser.add_argument("--private", action="store_true", help="make a new data set private")
    parser.add_argument(
        "--create-pr", "--create_pr", action="store_true", help="propose it as a pull request; no tag is set then"
    )
    parser.add_argument(
        "--prune",
        action="store_true",
        help="remove configs from the Hub's main that are not in this push (tags keep them)",
    )
    parser.add_argument(
        "--replace_card", action="store_true", help="replace a card that was edited outside of its notes; these stay"
    )
    parser.add_argument(
        "--skip_eval_yaml",
        action="store_true",
        help="leave eval.yaml as it is on the Hub, or out: for as long as the Hub does not know the evaluation framework",
    )
    parser.add_argument(
        "--json", action="store_true", help="print a JSON array of objects, one a config, each with `name`"
    )


def run(arguments) -> int:
    say = lambda sentence: print(sentence, file=sys.stderr, flush=True)
    repo = client.repo_id(arguments.repo, "the data set")
    tag = publish.check_tag(arguments.tag)
    tasks = chosen(arguments.tasks, arguments.grammar_seeds, say)
    choices = Choices(arguments.prune, arguments.replace_card, not arguments.skip_eval_yaml)
    folder = Path(arguments.output)
    if not arguments.dry_run:
        client.who()  # a missing token is told before minutes of writing
    say(
        f"writing {_count(len(tasks), 'config')}, {sum(sum(t.splits.values()) for t in tasks):,} sequences, into {folder}"
    )
    with terminable():
        materialise.build(tasks, folder, num_proc=arguments.num_proc, progress=sys.stderr.isatty(), say=say)
        ours = {task.name: read_manifest(folder / task.name / MANIFEST) for task in tasks}
        show = lambda plan: None if arguments.json else _show(plan, repo, tag, arguments.dry_run)
        try:
            outcome = publish.push(
                repo,
                tag,
                folder,
                ours,
                show,
                say,
                choices,
                private=arguments.private,
                create_pr=arguments.create_pr,
                dry_run=arguments.dry_run,
                progress=sys.stderr.isatty(),
            )
        except HubFailure as failure:
            if not arguments.dry_run:
                raise
            say(f"{failure}; shown is a push into a new data set")
            outcome = publish.Outcome(publish.offline_plan(repo, tag, folder, ours, choices))
            show(outcome.plan)
    if arguments.json:
        print(json.dumps(_rows(outcome, repo, tag), indent=2, allow_nan=False))
    else:
        print(_ending(outcome, repo, tag, arguments.dry_run))
    return 0


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def chosen(names: Sequence[str] | None, seeds: Sequence[int] | None, say) -> list:
    """The tasks that are published; seeds multiply those of random grammars."""
    from ...horizon import MEMBERS
    from ...tasks import task_names

    given = [task_flags.task(name) for name in names or [n for n in task_names() if n not in MEMBERS]]
    out = []
    for task in given:
        if task.family == "recall" or task.automaton is not None or task.custom_grammar is not None or seeds is None:
            if seeds not in (None, [1]) and names:
                say(f"{task.name} has no random grammar, so it is published once, whatever --grammar_seeds says")
            out.append(materialise.config_named(task))
        else:
            out += [materialise.config_named(task_flags.task(task, grammar_seed=number)) for number in seeds]
    if names and len({task.name for task in out}) < len(out):
        raise InputError("--tasks and --grammar_seeds name a config twice; each is published once")
    return out


def _show(plan: Plan, repo: str, tag: str, dry_run: bool) -> None:
    sizes = plan.sizes()
    there = "a new data set" if plan.base.sha is None else f"now at {plan.base.sha[:8]}"
    print(
        f"{repo} ({there}) as {tag}: {_count(len(sizes), 'file')}, {sum(sizes.values()):,} bytes to send in one commit"
        + (f"; {_count(len(plan.delete), 'file')} to delete" if plan.delete else "")
    )
    for sentence in plan.said:
        print(sentence)
    heads = {"name": "name", "status": "status", "sequences": "sequences", "files": "files", "bytes": "bytes"}
    print_table([row | {"files": len(row["files"])} for row in _configs(plan)], heads)
    if dry_run:
        print("\nFiles to send:")
        print_table(
            [{"path": path, "bytes": size} for path, size in sizes.items()], {"path": "path", "bytes": "bytes"}
        )
        for path in plan.delete:
            print(f"delete {path}")
        print(f"\nThe card ({CARD}):\n\n{plan.card}")
    sys.stdout.flush()


def _configs(plan: Plan) -> list[dict]:
    """One row a config; `files`: its data files as they will be, sent or there."""
    out = []
    for name, manifest in plan.manifests.items():
        files = [
            {"name": f["name"], "rows": f["rows"], "bytes": f["bytes"]}
            for split in manifest["splits"].values()
            for f in split["files"]
        ]
        out.append(
            {
                "name": name,
                "status": plan.status[name],
                "sequences": sum(f["rows"] for f in files),
                "bytes": sum(f["bytes"] for f in files),
                "fingerprint": manifest["fingerprint"],
                "files": files,
            }
        )
    return out


def _rows(outcome: publish.Outcome, repo: str, tag: str) -> list[dict]:
    told = {
        "repo": repo,
        "tag": tag,
        "commit": outcome.commit,
        "committed": outcome.committed,
        "tagged": outcome.tagged,
        "pull_request": outcome.pull_request,
    }
    return [row | told for row in _configs(outcome.plan)]


def _ending(outcome: publish.Outcome, repo: str, tag: str, dry_run: bool) -> str:
    if dry_run:
        return "dry run: nothing was sent" + ("; there is nothing to do" if outcome.plan.empty else "")
    if outcome.pull_request:
        begin = "proposed" if outcome.committed else "nothing to do: it is proposed already"
        return f"{begin}: {outcome.pull_request}; once it is merged, the same command without --create-pr sets the tag {tag}"
    if outcome.committed:
        return f"published {repo} as {tag}, commit {outcome.commit}"
    if outcome.tagged:
        return f"{repo} held all of it: no commit; set the tag {tag} at {outcome.commit}"
    return f"nothing to do: {repo} holds all of it at {outcome.commit}"
