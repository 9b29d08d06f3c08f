"""The `selectivbench` command.

    selectivbench tasks | models | show TASK | build TASK... --output DIR | evaluate RUN --task TASK | demo

Nothing heavy is imported before a command needs it: `selectivbench --help` answers at once. Bad input ends in one sentence on stderr, `error: ...`,
and exit code 2; a failure that is not the request's fault (a full disk) in exit code 1; Ctrl-C in 130.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from . import __version__
from .errors import InputError, unknown


class Parser(argparse.ArgumentParser):
    """argparse that reports through InputError, names the nearest flag, and abbreviates nothing."""

    def __init__(self, **keywords):
        super().__init__(allow_abbrev=False, formatter_class=argparse.RawDescriptionHelpFormatter, **keywords)

    def error(self, message):
        raise InputError(f"{self.prog}: {message}")

    def parse_args(self, argv):
        known, rest = self.parse_known_args(argv)
        if rest:
            name = rest[0].split("=")[0]
            if name.startswith("-"):
                raise unknown(
                    "flag", name, [o for a in self._actions for o in a.option_strings if o.startswith("--")], self.prog
                )
            raise InputError(f"{self.prog}: unexpected argument {rest[0]!r}")
        return known


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
    try:
        code = _dispatch(argv)
        sys.stdout.flush()
        return code
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader, such as `head`, has left; keep the interpreter's last flush from complaining
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except OSError as error:
        what = (
            str(error)
            if error.strerror is None
            else f"{error.strerror}: {error.filename}"
            if error.filename
            else error.strerror
        )
        print(f"error: {what}", file=sys.stderr)
        return 1


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
    lines = [f"  {name:<10} {command.line}" for name, command in COMMANDS.items()]
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


def _task_flags(parser):
    """One flag for each builder keyword, as in `load_dataset` and train.py."""
    from .tasks import TASK_FIELDS

    group = parser.add_argument_group("builder keywords (see the README; they enter the task's fingerprint)")
    for name in TASK_FIELDS:
        group.add_argument(f"--{name}", metavar="VALUE", nargs="+" if name == "test_gaps" else None)


def _task_keywords(arguments) -> dict:
    from .arguments import Plain, task_value
    from .tasks import TASK_FIELDS

    out = {}
    for name in TASK_FIELDS:
        value = getattr(arguments, name)
        if value is not None:
            parts = [v if v[:1] in "[{" else Plain(v) for v in (value if isinstance(value, list) else [value])]
            single = len(parts) == 1 and (name != "test_gaps" or not isinstance(parts[0], Plain))
            out[name] = task_value(name, parts[0] if single else parts)
    return out


def _number(text: str) -> int:
    value = int(text)
    if value < 1:
        raise ValueError
    return value


_number.__name__ = "whole number of at least 1"


def _print_json(rows) -> int:
    print(json.dumps(rows, indent=2, allow_nan=False))
    return 0


def print_table(rows: Sequence[dict], columns: dict[str, str]) -> None:
    """Print rows (dicts) as aligned columns; `columns` maps keys to heads. Numbers stand right, None is a dash."""

    def show(value):
        return (
            "-"
            if value is None
            else f"{value:,}"
            if isinstance(value, (int, float)) and not isinstance(value, bool)
            else str(value)
        )

    cells = [[show(row.get(key)) for key in columns] for row in rows]
    right = [all(isinstance(row.get(key), (int, float, type(None))) for row in rows) for key in columns]
    widths = [max(map(len, column)) for column in zip(columns.values(), *cells, strict=True)]
    for line in [list(columns.values()), *cells]:
        print("  ".join(c.rjust(w) if r else c.ljust(w) for c, w, r in zip(line, widths, right, strict=True)).rstrip())


# -- the commands --------------------------------------------------------------------------------------------------------


def _tasks(arguments) -> int:
    import math

    from .tasks import get_task, task_names

    rows, level = [], None
    for name in task_names():
        task = get_task(name)
        nats = _entropy(task)
        row = {
            "name": name,
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
        rows.append(row)
        if arguments.json:
            continue
        if task.level != level:
            level = task.level
            print(
                ("" if len(rows) == 1 else "\n")
                + f"{task.describe_level()}: {task.num_states:,} states, {task.num_symbols} symbols, "
                f"{task.num_items} items a sequence"
            )
        sizes = [(f"{s} {n:,}", f"({task.max_steps(s):,})") for s, n in task.splits.items()]
        print(f"  {name:<26} " + "  ".join(f"{a} {b}" for a, b in sizes), flush=True)
    if arguments.json:
        return _print_json(rows)
    print(
        "\nSequences of each split, and in brackets its longest sequence in steps. The number of a level is its rank, not its entropy."
    )
    return 0


def _entropy(task) -> float:
    return task.grammar.topological_entropy()


def _models(arguments) -> int:
    import warnings

    warnings.filterwarnings(
        "ignore", message="Triton is not supported"
    )  # fla's word for a CPU; the table says it better
    from .models.mixers import MIXERS

    rows = [_mixer_row(name, entry) for name, entry in MIXERS.items()]
    if arguments.json:
        return _print_json(rows)
    print_table(rows, {key: key.replace("_", " ") for key in rows[0]})
    return 0


def _mixer_row(name, entry) -> dict:
    import torch

    from . import kernels

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    kinds = {"attention": "attention", "lrm": "linear recurrent model", "module": "from outside"}
    row = {"name": name, "kind": kinds.get(entry.family, entry.family), "backend_here": kernels.backend(device, name)}
    if entry.family == "lrm":
        try:
            kernels.enable()
        except (ImportError, RuntimeError) as error:
            row["backend_here"] = f"not here: {error}"
    return row | {"what": " ".join((entry.build.__doc__ or "").split())}


def _show_flags(parser):
    parser.add_argument(
        "task", metavar="TASK", help="name of a task (see `selectivbench tasks`) or a task's JSON file"
    )
    parser.add_argument("--split", default="train", help="which split (default train)")
    parser.add_argument("--num_sequences", type=_number, default=2, metavar="N", help="how many sequences (default 2)")
    parser.add_argument(
        "--seed", type=int, metavar="N", help="show sequences drawn with this seed instead of the first ones"
    )
    parser.add_argument(
        "--plot",
        metavar="FILE",
        help="also draw a small grammar and one sequence in time into FILE (.png, .pdf, .svg)",
    )
    _json_flag(parser)
    _task_flags(parser)


def _show(arguments) -> int:
    from . import show
    from .tasks import get_task

    task = get_task(arguments.task, **_task_keywords(arguments))
    if arguments.plot:  # before anything is printed
        from .plots import check_file, plot_task, require_matplotlib

        check_file(arguments.plot)
        require_matplotlib()
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


def _build_flags(parser):
    parser.add_argument(
        "tasks",
        nargs="+",
        metavar="TASK",
        help="names (see `selectivbench tasks`), task JSON files, or `all` for the whole catalogue",
    )
    parser.add_argument(
        "--output",
        default="selectivbench",
        metavar="DIR",
        help="folder to write; load_dataset(DIR, NAME) reads it (default selectivbench)",
    )
    parser.add_argument("--name", help="name of the config, where it shall not be the task's (one task only)")
    parser.add_argument("--num_proc", type=_number, default=1, metavar="N", help="processes (default 1)")
    parser.add_argument(
        "--overwrite", action="store_true", help="replace configs of the same name that hold other data"
    )
    _json_flag(parser)
    _task_flags(parser)


def _build(arguments) -> int:
    from dataclasses import replace

    from . import materialise
    from .tasks import get_task, task_names

    keywords = _task_keywords(arguments)
    names = [n for given in arguments.tasks for n in (task_names() if given == "all" else [given])]
    tasks = [get_task(name, **keywords) for name in names]
    if arguments.name is not None:
        if len(tasks) != 1:
            raise InputError(f"--name names one config, but {len(tasks)} tasks were given")
        tasks = [replace(tasks[0], name=arguments.name)]
    else:
        tasks = [materialise.config_named(task) for task in tasks]
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
    print(f'load_dataset("{arguments.output}", "{rows[0]["name"]}") reads it, with or without this package')
    return 0


def _evaluate(argv) -> int:
    from .evaluation import main as run

    return run(argv)


def _demo(argv) -> int:
    from .demo import main as run

    return run(argv)


COMMANDS = {
    "tasks": Command("the catalogue: levels written out, splits, sizes, states, entropies", _tasks, _json_flag),
    "models": Command("every mixer, and the kernels it runs on here", _models, _json_flag),
    "show": Command(
        "a few sequences of a task, readable; --plot draws the grammar and one sequence", _show, _show_flags
    ),
    "build": Command(
        "tasks as a folder of Parquet files that load_dataset reads without this package", _build, _build_flags
    ),
    "evaluate": Command("the score of a saved model, computed again", _evaluate, forward=True),
    "demo": Command("the main job at laptop size: five models trained and compared in minutes", _demo, forward=True),
}


if __name__ == "__main__":
    sys.exit(main())
