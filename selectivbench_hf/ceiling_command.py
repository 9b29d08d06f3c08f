"""`selectivbench ceiling`: what can be reached on a task, as a table, as JSON, as a figure.

selectivbench ceiling te7_noisy_gaps
selectivbench ceiling te1 te7 --json --plot ladder.png
"""

from __future__ import annotations

import json
import sys

from . import task_flags
from .console import path_of, print_table
from .errors import InputError

RUNGS = (
    1,
    2,
    3,
    4,
    6,
    8,
    12,
    16,
    24,
    32,
    48,
    64,
)  # of the ladder that the table shows, beside k95 and the last; JSON has all
CHANCE = {
    "guess": "a guess among all answers",
    "guess_of_symbol": "a guess among the symbol's states",
    "any_value": "any value of the sequence",
}


def flags(parser) -> None:
    """Add the command's flags."""
    parser.add_argument(
        "tasks", nargs="+", metavar="TASK", help="names of tasks (see `selectivbench tasks`) or their JSON files"
    )
    parser.add_argument("--split", default="test", help="which split (default test)")
    parser.add_argument(
        "--plot",
        type=path_of("the name of a picture"),
        metavar="FILE",
        help="draw the ladders of all tasks given into FILE (.png, .pdf, .svg)",
    )
    parser.add_argument("--json", action="store_true", help="print a JSON array of objects, each with `name`")
    task_flags.add(parser)


def run(arguments) -> int:
    """Print what can be reached on each task."""
    from .ceilings import ceiling

    keywords = task_flags.keywords(arguments)
    tasks = [task_flags.task(name, **keywords) for name in arguments.tasks]
    for task in tasks:
        task.check_split(arguments.split)
    if arguments.plot:  # before anything is computed
        from .plots import check_file, require_matplotlib

        if all(task.family == "recall" for task in tasks):
            raise InputError(f"--plot draws context ladders, and {tasks[0].name} is a recall task, which has none")
        check_file(arguments.plot)
        require_matplotlib()
    found = []
    for task in tasks:
        found.append(ceiling(task, arguments.split))
        if not arguments.json:
            print(("\n" if len(found) > 1 else "") + task.describe())
            _print(task, found[-1])
    if arguments.json:
        print(json.dumps([one.as_dict() for one in found], indent=1, allow_nan=False))
    if arguments.plot:
        said = plot(tasks, found, arguments.plot)
        print(said, file=sys.stderr if arguments.json else sys.stdout)
    return 0


def _print(task, found) -> None:
    recall = task.family == "recall"
    sequences = task.splits[found.split]
    items = "" if recall else f", {found.ceiling['total']:,} items"
    print(f"split {found.split}: {sequences:,} sequences{items}\n")
    percent = lambda share: f"{share:8.2%}"
    rows = [{"who": CHANCE[name], "accuracy": percent(share)} for name, share in found.chance.items()]
    rows += [{"who": f"learned: {name}", "accuracy": percent(share)} for name, share in found.baselines.items()]
    if found.ladder is not None:
        rungs = found.ladder.accuracy
        shown = sorted({k for k in RUNGS if k <= len(rungs)} | {len(rungs)} | ({found.k95} if found.k95 else set()))
        rows += [{"who": f"the last {k} item{'s' if k > 1 else ''}", "accuracy": percent(rungs[k - 1])} for k in shown]
    rows.append(
        {"who": "everything shown" if recall else "everything: the exact filter", "accuracy": percent(found.accuracy)}
    )
    print_table(rows, {"who": "who knows", "accuracy": "accuracy"})
    print()
    if not recall:
        best = found.ceiling
        print(
            f"exact filter: {best['accuracy_first']:.2%} at an item's first step, {best['accuracy_last']:.2%} at its last (expected "
            f"{best['expected_accuracy']:.2%}); cross-entropy {best['cross_entropy']:.4f} nats a step"
        )
        print(f"learned: counted on the first {found.baseline_sequences:,} training sequences")
    if found.ladder is not None:
        rungs, over = found.ladder.accuracy, f"items known as such; {found.ladder.sequences:,} sequences"
        if found.k95:
            print(f"k95 = {found.k95}: the least number of last items with which the best possible observer reaches 95 % ({over})")  # fmt: skip
        else:
            print(f"no k95: of the last {len(rungs)} items {rungs[-1]:.2%} is the best, of all items {found.ladder.limit:.2%} ({over})")  # fmt: skip
    for note in found.notes:
        print(f"no ladder: {note}")
    if found.upper_bound:
        print(f"upper bounds: {found.upper_bound}")


def plot(tasks, found, file) -> str:
    """Draw the ladders, accuracy against the number of last items known; returns a sentence that says what lies where.

    Raises:
        InputError: where no task has a ladder.
    """
    from .plots import FAINT, INK, check_file, require_matplotlib, save

    path, plt = check_file(file), require_matplotlib()
    drawn = [(task, one) for task, one in zip(tasks, found) if one.ladder is not None]
    if not drawn:
        raise InputError("there is no ladder to draw: " + "; ".join(note for one in found for note in one.notes))
    figure, axes = plt.subplots(figsize=(8.5, 5), layout="constrained")
    longest = max(len(one.ladder.accuracy) for _, one in drawn)
    axes.axhline(95, color=FAINT, lw=1, ls="--", zorder=1)
    axes.text(longest + 0.3, 94.3, "95 %", color=FAINT, fontsize=9, ha="right", va="top")
    shades = plt.get_cmap("viridis")
    for i, (_, one) in enumerate(drawn):
        colour = "#0072b2" if len(drawn) == 1 else shades(0.92 * i / (len(drawn) - 1))
        steps = range(1, len(one.ladder.accuracy) + 1)
        label = f"{one.name} (k95 = {one.k95 or 'none'})"
        axes.plot(steps, [100 * a for a in one.ladder.accuracy], marker="o", ms=4.5, lw=1.8, color=colour, label=label, zorder=3)  # fmt: skip
        if len(drawn) == 1:
            grams = [100 * share for name, share in one.baselines.items() if name != "majority"]
            label = f"k-grams of {one.baseline_sequences:,} training sequences"
            axes.plot(
                range(1, len(grams) + 1), grams, marker="s", ms=4.5, lw=1.2, ls=":", color="#d55e00", label=label
            )
            axes.axhline(100 * one.accuracy, color=INK, lw=1, zorder=2, label=f"exact filter, {one.accuracy:.2%}")
    axes.set_xlabel("last items known, k", color=INK)
    axes.set_ylabel("items named correctly by the best possible observer, %", color=INK)
    axes.set_ylim(0, 103)
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.grid(color="#e3e7ee", lw=0.8)
    axes.legend(frameon=False, fontsize=9, loc="lower right")
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    title = drawn[0][1].name if len(drawn) == 1 else f"{len(drawn)} tasks"
    axes.set_title(f"{title}: what the last k items are worth", loc="left", fontsize=12, color=INK)
    save(figure, path)
    return f"{path}: the ladder of {', '.join(one.name for _, one in drawn)}"
