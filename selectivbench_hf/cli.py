"""The `selectivbench` command.

    selectivbench tasks | models | show TASK | build TASK... --output DIR | ceiling TASK... | evaluate RUN --task TASK | demo

Nothing heavy is imported before a command needs it: `selectivbench --help` answers at once. Bad input ends in one sentence on stderr, `error: ...`,
and exit code 2; a failure that is not the request's fault (a full disk) in exit code 1; Ctrl-C in 130, SIGTERM in 143.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from . import __version__, task_flags
from .console import BAD_PATH, Parser, Terminated, drop_output, path_of, prepare, print_table, seed, terminable
from .console import number as _number
from .errors import HubFailure, InputError, unknown


@dataclass(frozen=True)
class Command:
    """One command: the line in the overview, what adds its flags, and what runs it. `forward`: flags are parsed elsewhere."""

    line: str
    run: Callable
    flags: Callable | None = None
    forward: bool = False


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line `argv` (default: the process's) and return its exit code."""
    argv = list(sys.argv[1:] if argv is None else argv)
    if not prepare():
        return 1
    try:
        code = _dispatch(argv)
        sys.stdout.flush()
        return code
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except HubFailure as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        return 130
    except Terminated:
        print("stopped", file=sys.stderr)
        return 143
    except BrokenPipeError:  # the reader, such as `head`, has left
        drop_output()
        return 141
    except OSError as error:
        why = str(error) if error.strerror is None else error.strerror
        what = f"{why}: {error.filename}" if error.strerror and error.filename else why
        print(f"error: {what}", file=sys.stderr)
        try:
            sys.stdout.flush()
        except OSError:
            drop_output()
        return 2 if error.errno in BAD_PATH else 1


def _dispatch(argv) -> int:
    if not argv or argv[0] in ("-h", "--help", "help"):
        print(_overview())
        return 0
    if argv[0] in ("-V", "--version"):
        from .tasks import DATA_VERSION

        print(f"selectivbench_hf {__version__}, data version {DATA_VERSION}")
        return 0
    name, rest = argv[0], argv[1:]
    if name.startswith("-"):
        raise unknown("flag", name, ["--help", "--version"], "selectivbench")
    if name not in COMMANDS:
        raise unknown("command", name, COMMANDS)
    command = COMMANDS[name]
    if command.forward:
        return command.run(rest) or 0
    parser = Parser(prog=f"selectivbench {name}", description=command.line)
    command.flags(parser)
    return command.run(parser.parse_args(rest)) or 0


def _overview() -> str:
    lines = [f"  {name:<11} {command.line}" for name, command in COMMANDS.items()]
    return "\n".join(
        [
            "usage: selectivbench COMMAND [flags]      selectivbench COMMAND --help for its flags",
            "",
            *lines,
            "",
            "Training: accelerate launch -m selectivbench_hf.training --task te3_noisy_gaps --mixer gla ...",
        ]
    )


# -- flags that several commands share -----------------------------------------------------------------------------------


def _json_flag(parser):
    parser.add_argument("--json", action="store_true", help="print a JSON array of objects, each with `name`")


def _print_json(rows) -> int:
    print(json.dumps(rows, indent=2, allow_nan=False))
    return 0


# -- the commands --------------------------------------------------------------------------------------------------------


def _tasks_flags(parser):
    _json_flag(parser)
    parser.add_argument(
        "--verbose",
        action="store_true",
        help="also the exact filter's accuracy and k95, the least number of items enough for 95 %% (a minute or two at first, then kept)",
    )


def _tasks(arguments) -> int:
    from .tasks import get_task, task_names

    rows, group = [], None
    for name in task_names():
        task = get_task(name)
        rows.append(_recall_row(task) if task.family == "recall" else _grammar_row(task))
        if arguments.verbose and task.family != "recall":
            from .ceilings import summary

            rows[-1]["ceiling"] = summary(task)
        if arguments.json:
            continue
        if task.family == "recall":
            heading = "recall: " + {"mqar": "multi-query associative recall", "copy": "copying"}[task.kind]
        else:
            heading = f"{task.describe_level()}: {task.num_states:,} states, {task.num_symbols} symbols, {task.num_items} items a sequence"
        if heading != group:
            print(("" if group is None else "\n") + heading)
            group = heading
        sizes = "  ".join(f"{s} {n:,} ({task.max_steps(s):,})" for s, n in task.splits.items())
        print(f"  {name:<26} {sizes}" + (f"  {task.describe_size()}" if task.family == "recall" else ""), flush=True)
        if arguments.verbose:
            print(f"  {'':<26} {_worth(task, rows[-1])}", flush=True)
    if arguments.json:
        return _print_json(rows)
    print(
        "\nSequences of each split, and in brackets its longest sequence in steps. The number of a level is its rank, not its entropy."
    )
    return 0


def _worth(task, row) -> str:
    if task.family == "recall":
        return task.describe_chance()
    best = row["ceiling"]
    known = [] if best["accuracy"] is None else [f"exact filter {best['accuracy']:.2%}"]
    if best["ladder"] is not None:
        known.append(f"k95 {best['k95'] or 'none'}; the last item alone {best['ladder'][0]:.2%}")
    return "; ".join([*known, *([best["why"]] if best["why"] else [])])


def _grammar_row(task) -> dict:
    import math

    nats = task.grammar.topological_entropy()
    return {
        "name": task.name,
        "family": task.family,
        "level": task.level,
        "level_written_out": task.describe_level(),
        "variant": task.variant,
        "letters": task.grammar.letters,
        "symbols": task.num_symbols,
        "states": task.num_states,
        "entropy_nats": round(nats, 4),
        "entropy_bits": round(nats / math.log(2), 4),
        "items": task.num_items,
        "splits": task.splits,
        "max_steps": {s: task.max_steps(s) for s in task.splits},
        "noise": task.noise,
        "fingerprint": task.fingerprint,
    }


def _recall_row(task) -> dict:
    own = ("kind", "length", "num_pairs", "alpha", "filler")
    return {
        "name": task.name,
        "family": task.family,
        **{name: getattr(task, name) for name in own},
        "symbols": task.num_symbols,
        "chance": task.chance,
        "splits": task.splits,
        "max_steps": {s: task.max_steps(s) for s in task.splits},
        "fingerprint": task.fingerprint,
    }


def _models_flags(parser):
    from . import models_command

    models_command.flags(parser)


def _models(arguments) -> int:
    from . import models_command

    return models_command.run(arguments)


def _show_flags(parser):
    parser.add_argument(
        "task", metavar="TASK", help="name of a task (see `selectivbench tasks`) or a task's JSON file"
    )
    parser.add_argument("--split", default="train", help="which split (default train)")
    parser.add_argument("--num_sequences", type=_number, default=2, metavar="N", help="how many sequences (default 2)")
    parser.add_argument(
        "--seed", type=seed, metavar="N", help="show sequences drawn with this seed instead of the first ones"
    )
    parser.add_argument(
        "--plot",
        type=path_of("the name of a picture"),
        metavar="FILE",
        help="also draw a small grammar and one sequence in time into FILE (.png, .pdf, .svg)",
    )
    _json_flag(parser)
    task_flags.add(parser)


def _show(arguments) -> int:
    from . import show

    task = task_flags.task(arguments.task, **task_flags.keywords(arguments))
    if arguments.plot and task.family == "recall":
        raise InputError(f"--plot draws a grammar, and {task.name} is a recall task, which has none")
    if arguments.plot:  # before anything is printed
        from .plots import check_file, plot_task, require_matplotlib

        check_file(arguments.plot)
        require_matplotlib()
    size = task.splits[task.check_split(arguments.split)]
    if arguments.num_sequences > size:
        print(f"{task.name} has {size:,} sequences in {arguments.split}: showing all of them", file=sys.stderr)
    sequences = show.sequences(task, arguments.split, arguments.num_sequences, arguments.seed)
    if arguments.json:
        _print_json([s.as_dict() for s in sequences])
    else:
        print(show.text(task, sequences, width=show.terminal_width()))
    if arguments.plot:
        said = plot_task(
            task, arguments.plot, split=arguments.split, example_id=sequences[0].example_id if sequences else 0
        )
        print(said, file=sys.stderr if arguments.json else sys.stdout)
    return 0


def _ceiling_flags(parser):
    from . import ceiling_command

    ceiling_command.flags(parser)


def _ceiling(arguments) -> int:
    from . import ceiling_command

    return ceiling_command.run(arguments)


def _build_flags(parser):
    parser.add_argument(
        "tasks",
        nargs="+",
        metavar="TASK",
        help="names (see `selectivbench tasks`), task JSON files, or `all` for the whole catalogue",
    )
    parser.add_argument(
        "--output",
        type=path_of("the path of a folder"),
        default="selectivbench",
        metavar="DIR",
        help="folder to write; its path is what load_dataset takes, such as ./DIR (default selectivbench)",
    )
    parser.add_argument("--name", help="name of the config, where it shall not be the task's (one task only)")
    parser.add_argument(
        "--num_proc", type=_number, default=1, metavar="N", help="processes; they share the files (default 1)"
    )
    parser.add_argument(
        "--overwrite", action="store_true", help="replace configs of the same name that hold other data"
    )
    _json_flag(parser)
    task_flags.add(parser)


def _build(arguments) -> int:
    from dataclasses import replace

    from . import materialise
    from .configs import check_name
    from .tasks import task_names

    keywords = task_flags.keywords(arguments)
    names = [n for given in arguments.tasks for n in (task_names() if given == "all" else [given])]
    tasks = [task_flags.task(name, **keywords) for name in names]
    if arguments.name is not None:
        check_name(arguments.name)
        if len(tasks) != 1:
            raise InputError(f"--name names one config, but {len(tasks)} tasks were given")
        tasks = [replace(tasks[0], name=arguments.name)]
    else:
        tasks = [materialise.config_named(task) for task in tasks]
    with terminable():
        rows = materialise.build(
            tasks,
            arguments.output,
            num_proc=arguments.num_proc,
            overwrite=arguments.overwrite,
            progress=sys.stderr.isatty(),
            say=lambda sentence: print(sentence, file=sys.stderr),
        )
    if arguments.json:
        return _print_json(rows)
    print_table(
        rows,
        {
            "name": "name",
            "status": "status",
            "sequences": "sequences",
            "files": "files",
            "bytes": "bytes",
            "seconds": "seconds",
        },
    )
    print(_how_to_load(arguments.output, rows[0]["name"]))
    return 0


def _how_to_load(output: str, name: str) -> str:
    """The call that reads a built folder. To `load_dataset` the bare name `selectivbench` is this package's generated data once it is imported."""
    path = output if os.path.isabs(output) or output.split("/")[0] in (".", "..") else f"./{output}"
    call = "load_dataset({}, {})".format
    quote = lambda text: json.dumps(text, ensure_ascii=False)
    line = f"{call(quote(path), quote(name))} reads it, with or without this package"
    if os.path.basename(os.path.abspath(output)) == "selectivbench":
        line += f"; without importing the package, {call(quote('selectivbench'), quote(name))} from the folder that holds it reads it too"
    return line


def _evaluate(argv) -> int:
    from .evaluation import main as run

    return run(argv)


def _demo(argv) -> int:
    from .demo import main as run

    return run(argv)


def _on_the_hub(name: str, line: str) -> Command:
    """A command whose module, `hub/commands/NAME.py`, is imported when it is called."""
    import importlib

    module = lambda: importlib.import_module(f".hub.commands.{name}", __package__)
    return Command(line, lambda arguments: module().run(arguments), lambda parser: module().flags(parser))


COMMANDS = {
    "tasks": Command("the catalogue: levels written out, splits, sizes, states, entropies", _tasks, _tasks_flags),
    "models": Command("every mixer: what it is, what it costs, what it runs on here", _models, _models_flags),
    "show": Command(
        "a few sequences of a task, readable; --plot draws the grammar and one sequence", _show, _show_flags
    ),
    "build": Command(
        "tasks as a folder of Parquet files that load_dataset reads without this package", _build, _build_flags
    ),
    "ceiling": Command(
        "the best score there is: exact filter, an observer of the last k items, learned baselines, chance",
        _ceiling,
        _ceiling_flags,
    ),
    "evaluate": Command("the score of a saved model, computed again", _evaluate, forward=True),
    "push": _on_the_hub("push", "tasks published as a data set on the Hub, in one commit, with a tag"),
    "verify": _on_the_hub(
        "verify", "a published or built data set checked: hashes, disjoint splits, a sample drawn again"
    ),
    "sealed": _on_the_hub("sealed", "the test that a file of weights seals: its seed, its data, how to predict on it"),
    "submit": _on_the_hub("submit", "runs or predictions scored again, on sealed tests too, and published on the Hub"),
    "replay": _on_the_hub("replay", "a submission trained again from its recorded command, and compared"),
    "results": _on_the_hub("results", "push | pull | check | withdraw: the data set of results, one row a run"),
    "leaderboard": _on_the_hub("leaderboard", "the leaderboard as a page, from the Hub or a local folder"),
    "demo": Command("the main job at laptop size: five models trained and compared in minutes", _demo, forward=True),
}


if __name__ == "__main__":
    sys.exit(main())
