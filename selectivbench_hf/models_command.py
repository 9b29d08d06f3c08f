"""`selectivbench models`: what every mixer is and costs, as a table, as JSON, or as docs/models.md.

selectivbench models --hidden_size 256 --mixer gla mamba2
selectivbench models --markdown > docs/models.md
"""

import re
import sys
import warnings

from .arguments import TrainingArguments
from .console import number, print_table
from .errors import InputError

WIDTH = 128  # hidden size of the table: what a laptop trains
DEFAULTS = {f.name: f.default for f in TrainingArguments.__dataclass_fields__.values()}
SHORT = {"data-dependent scalar": "scalar(x)", "data-dependent vector": "vector(x)"}


def flags(parser) -> None:
    """Add the command's flags."""
    parser.add_argument("--mixer", nargs="+", metavar="NAME", help="these mixers only, or my_module:build")
    parser.add_argument("--hidden_size", type=number, default=WIDTH, metavar="N", help=f"width (default {WIDTH})")
    parser.add_argument("--num_heads", type=number, metavar="N", help="heads (default: by the rule of the width)")
    parser.add_argument(
        "--num_hidden_layers",
        type=number,
        default=DEFAULTS["num_hidden_layers"],
        metavar="N",
        help=f"blocks of the whole model (default {DEFAULTS['num_hidden_layers']})",
    )
    parser.add_argument(
        "--task", default=DEFAULTS["task"], help=f"task of the whole model (default {DEFAULTS['task']})"
    )
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print a JSON array of objects, each with `name`")
    form.add_argument("--markdown", action="store_true", help="print the page docs/models.md")


def run(arguments) -> int:
    """Print the mixers."""
    from .tasks import get_task

    task = get_task(arguments.task)
    rows = list(
        collect(arguments.mixer, arguments.hidden_size, arguments.num_heads, task, arguments.num_hidden_layers)
    )
    if arguments.json:
        import json

        print(json.dumps(rows, indent=2, allow_nan=False))
    elif arguments.markdown:
        print(markdown(rows, task.name, arguments.num_hidden_layers), end="")
    else:
        _print(rows, task, arguments)
    return 0


def collect(names=None, hidden_size=WIDTH, num_heads=None, task=None, num_hidden_layers=None, count=True):
    """The rows (models/taxonomy.py), with a bar on a terminal's stderr while they are made."""
    from tqdm.auto import tqdm

    from .models.mixers import MIXERS, get_mixer

    with warnings.catch_warnings():
        warnings.filterwarnings(
            "ignore", message="Triton is not supported"
        )  # fla's word for a CPU; the rows say it better
        names = list(MIXERS) if names is None else [get_mixer(name).name for name in names]
        from .models.taxonomy import describe

        for name in tqdm(names, desc="mixers", unit="mixer", leave=False, disable=None, file=sys.stderr):
            yield describe(name, hidden_size, num_heads, task, count=count, num_hidden_layers=num_hidden_layers)


def _print(rows, task, arguments) -> None:
    shown = [
        {
            "name": row["name"],
            "decay": SHORT.get(row["decay"], row["decay"]),
            "write": row["write"] and re.sub(", .*", ", ...", row["write"]),
            "mixing": row["mixing"],
            "parts": " ".join(
                part for part, there in (("gate", row["output_gate"]), ("conv", row["short_conv"])) if there
            ),
            "state": state_text(row),
            "parameters": row["layer_parameters"],
            "model": _short(row["model_parameters"]),
            "flops": _short(row["model_train_flops"]) + ("*" if row["flops_note"] else " "),
        }
        for row in rows
    ]
    for key in ("state", "model", "flops"):  # numbers with words: to the right by hand
        width = max(len(row[key]) for row in shown)
        for row in shown:
            row[key] = row[key].rjust(width)
    print_table(
        shown,
        {
            "name": "mixer",
            "decay": "decay",
            "write": "write",
            "mixing": "mixing",
            "parts": "parts",
            "state": "state",
            "parameters": "layer",
            "model": "model",
            "flops": "FLOPs",
        },
    )
    print()
    _say(legend(task.name, arguments.hidden_size, arguments.num_hidden_layers))
    for note in sorted({row["flops_note"] for row in rows if row["flops_note"]}):
        _say(f"* {note}: {', '.join(row['name'] for row in rows if row['flops_note'] == note)}")
    backends = {}
    for row in rows:
        backends.setdefault(row["backend_here"], []).append(row["name"])
    for backend, names in backends.items():
        if backend:
            _say(f"runs here as {backend}: {', '.join(names)}")
    for row in rows:
        if row["problem"]:
            print(f"{row['name']}: {row['problem']}")


def _say(text: str) -> None:
    """Print a paragraph as wide as the terminal, but no wider than is read easily."""
    import textwrap

    from .show import terminal_width

    print(textwrap.fill(text, max(40, min(terminal_width(), 120)), break_on_hyphens=False))


def legend(task: str, hidden_size: int, layers: int) -> str:
    """What the columns mean."""
    from .models.taxonomy import STEPS

    return (
        "decay: how the state forgets; (x): computed from the input. write: how a step enters the state. mixing: of channels "
        "inside the state from step to step. state: numbers that one layer carries from step to step, measured from its cache. "
        f"layer: its parameters at hidden_size {hidden_size}. model: parameters of {layers} blocks around it, with encoder and "
        f"head for {task} (learned positions apart). FLOPs: of that model a step of training, forward and backward, on sequences "
        f"of {STEPS} steps: the matrix products that torch's counter sees in the forms that run on a CPU; attention without a "
        "window or a decay is counted as the full square."
    )


def state_text(row) -> str:
    """'4,096', '256 a step', or '-'."""
    if row["state_size"] is not None:
        return f"{row['state_size']:,}"
    return f"{row['state_growth']:,} a step" if row["state_growth"] else "-"


def _short(value) -> str:
    """1,234,567 -> '1.23 M'."""
    if value is None:
        return "-"
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= limit:
            return f"{value / limit:.3g} {unit}"
    return str(value)


# ---------------------------------------------------------------- docs/models.md

COLUMNS = {
    "mixer": lambda row: f"`{row['name']}`",
    "decay": lambda row: row["decay"] or "-",
    "write": lambda row: row["write"] or "-",
    "mixing": lambda row: row["mixing"] or "-",
    "output gate": lambda row: _yes(row["output_gate"]),
    "short convolution": lambda row: _yes(row["short_conv"]),
    "state": state_text,
    "parameters": lambda row: "-" if row["layer_parameters"] is None else f"{row['layer_parameters']:,}",
    "model": lambda row: "-" if row["model_parameters"] is None else f"{row['model_parameters']:,}",
    "FLOPs": lambda row: _short(row["model_train_flops"]) + r"\*" * bool(row["flops_note"]),
    "paper": lambda row: _linked(row["paper"]) or "-",
}
COUNTED = "FLOPs"  # the column that depends on how today's kernels cut a sequence

HEAD = """# The mixers

Written by `selectivbench models --markdown > docs/models.md`; the same with the backend of your machine: `selectivbench models`, for programs `--json`,
at another width `--hidden_size 256`, of a mixer of your own `--mixer my_module:build` ([adding_a_mixer.md](adding_a_mixer.md)). All of this is for the
default arguments.

"""


def markdown(rows, task: str, layers: int) -> str:
    """The page docs/models.md."""
    from .models.knobs import KNOBS
    from .models.not_offered import NOT_OFFERED

    bad = next((row for row in rows if row["problem"]), None)
    if bad:
        raise InputError(f"the page needs every mixer, and {bad['name']!r} cannot be described: {bad['problem']}")
    lines = [HEAD + legend(task, rows[0]["hidden_size"], layers), ""]
    lines += [f"| {' | '.join(COLUMNS)} |", "|---" * len(COLUMNS) + "|"]
    lines += [f"| {' | '.join(cell(row) for cell in COLUMNS.values())} |" for row in rows]
    lines += ["", *(rf"\* {note}." for note in sorted({row["flops_note"] for row in rows} - {None}))]
    lines += ["", "## In a sentence", ""]
    lines += [f"- `{row['name']}`: {row['what']}" for row in rows]
    lines += [
        "",
        "## Knobs",
        "",
        "One name for one property, in `mixer_kwargs` (`--mixer_kwargs '{\"use_short_conv\": false}'`).",
        "",
    ]
    lines += ["| knob | what it turns | mixers |", "|---|---|---|"]
    for knob, text in KNOBS.items():
        having = [f"`{row['name']}`" for row in rows if knob in row["knobs"]]
        lines.append(f"| `{knob}` | {text.replace('|', chr(92) + '|')} | {', '.join(having) or '-'} |")
    lines += ["", "## Layers of fla that are no mixers here", "", "| layer | why not |", "|---|---|"]
    lines += [f"| `{name}` | {reason} |" for name, reason in NOT_OFFERED.items()]
    return "\n".join(lines) + "\n"


def _yes(value) -> str:
    return {True: "yes", False: "no", None: "-"}[value]


def _linked(paper: str | None) -> str | None:
    return paper and re.sub(r"arXiv:(\d{4}\.\d{4,5})", r"[arXiv:\1](https://arxiv.org/abs/\1)", paper)
