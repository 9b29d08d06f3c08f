"""Pictures of a task: a small grammar as a graph, and the beginning of one sequence as the model sees it. Needs matplotlib (the extra `plot`)."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from .errors import InputError

LARGEST_DRAWN = 16  # states; beyond that arrows cover each other
STEPS = 56  # drawn of a sequence with long gaps; half as many where items follow each other closely
FORMATS = ("png", "pdf", "svg", "jpg", "webp")
INK, FAINT, PAPER = "#1f2430", "#9aa3b2", "#ffffff"
LETTER_COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#d55e00", "#56b4e9", "#8a6d3b", "#6f5bb5")


def require_matplotlib():
    """matplotlib.pyplot with a backend that needs no screen; InputError where it is not installed."""
    try:
        import matplotlib
    except ImportError:
        raise InputError("pictures need matplotlib: pip install 'selectivbench_hf[plot]'") from None
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    return plt


def check_file(file) -> Path:
    """The path of a picture, if its ending and folder are possible."""
    path = Path(file)
    if path.suffix.lstrip(".").lower() not in FORMATS:
        raise InputError(f"a picture's name must end in one of .{', .'.join(FORMATS)}, got {str(file)!r}")
    if not path.parent.is_dir():
        raise InputError(f"the folder {path.parent} for the picture does not exist")
    if path.is_dir():
        raise InputError(f"{path} is a folder; a picture needs the name of a file")
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise InputError(f"the folder {path.parent} for the picture cannot be written to")
    return path


def plot_task(task, file, *, split: str = "train", example_id: int = 0) -> str:
    """Draw the task's grammar, or a small one of the same law where it is too big, and the first steps of one sequence.

    Args:
        task: a Task.
        file: path of the picture; the ending says the format.
        split, example_id: the sequence that is drawn.

    Returns:
        A sentence that says what was drawn and where it lies.
    """
    path = check_file(file)
    plt = require_matplotlib()
    grammar, what = drawn_grammar(task)
    figure = plt.figure(figsize=(11, 9.2), facecolor=PAPER)
    top, below = figure.add_gridspec(
        2, 1, height_ratios=[1.35, 1], hspace=0.1, left=0.06, right=0.985, top=0.955, bottom=0.06
    )
    axes = figure.add_subplot(top)
    _draw_grammar(axes, grammar)
    figure.text(0.02, 0.972, what, fontsize=12, color=INK, va="center")
    notes = ["circle: a state", "ring: a start state", "arrow: an edge, in the colour of the", "letter it leads to; wider = more probable",
             "dashed: the string may end"]  # fmt: skip
    figure.text(0.02, 0.94, "\n".join(notes), ha="left", va="top", fontsize=9.5, color=INK, linespacing=1.5)
    axes = figure.add_subplot(below)
    shown = _draw_sequence(axes, task, split, example_id)
    axes.set_title(
        f"{task.name}, {split} sequence {example_id}: the first {shown} steps as the model sees them",
        loc="left",
        fontsize=12,
        color=INK,
    )
    save(figure, path)
    return f"{path}: {what[0].lower()}{what[1:]}, and the first {shown} steps of {split} sequence {example_id}"


def save(figure, path: Path) -> None:
    """Write a figure, whole or not at all, also on a full disk, and close it."""
    import matplotlib.pyplot as plt

    ending = path.suffix.lstrip(".").lower()
    temporary = path.with_name(f".picture-{os.getpid()}.{ending}")
    try:
        figure.savefig(temporary, dpi=150, format=ending)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
        plt.close(figure)


def drawn_grammar(task):
    """(grammar, title): the task's own, or, if that has too many states, a small one of the same law."""
    from . import horizon
    from .grammar import Grammar

    own = task.grammar
    if own.num_states <= LARGEST_DRAWN:
        return own, f"The grammar of {task.name}: {own.num_states} states"
    if task.automaton is not None:
        small = horizon.grammar("horizon_parity", 2)
        return (
            small,
            f"horizon_parity, the smallest of the family (the task's own grammar has {own.num_states:,} states)",
        )
    if task.custom_grammar is not None:
        mean = max(1, round((own.num_states - 1) / own.letters))
        edges = (own.targets.size - len(own.start_states)) / (own.num_states - 1)
        small = Grammar.random(4, min(3, mean), min(1.0, edges / own.letters), min(2, len(own.start_states)), seed=3)
        return (
            small,
            f"A small random grammar with as many edges per letter (the task's own has {own.num_states:,} states)",
        )
    starts = min(task.num_start_states, 2)
    small = Grammar.random(4, 3, task.density, starts, task.grammar_seed, dirichlet=task.dirichlet)
    return (
        small,
        f"A grammar of the same law with 4 letters of 3 states each (the task's own has {own.letters} letters and {own.num_states:,} states)",
    )


def _draw_grammar(axes, grammar):
    """States on an ellipse, those of one letter side by side, `#` in the middle; edges as arrows, as wide as they are probable."""
    from matplotlib.patches import Circle, FancyArrowPatch

    place, radius = _places(grammar), 0.15
    axes.set_xlim(-3.3, 3.3)
    axes.set_ylim(-1.72, 1.72)
    axes.set_aspect("equal")
    axes.axis("off")
    for state in range(1, grammar.num_states):
        for target, probability in zip(grammar.successors(state), grammar.probabilities(state)):
            target = int(target)
            style = {
                "color": FAINT if target == 0 else _colour(grammar.symbol_of[target]),
                "lw": 0.8 + 1.8 * float(probability),
                "alpha": 0.85,
                "zorder": 1,
            }
            if target == state:
                _loop(axes, place[state], radius, style)
                continue
            bend = 0.12 if target else 0.0
            arrow = FancyArrowPatch(place[state], place[target], connectionstyle=f"arc3,rad={bend}", arrowstyle="-|>", mutation_scale=11,
                                    shrinkA=0, shrinkB=0, linestyle="--" if target == 0 else "-", **style)  # fmt: skip
            _stop_at_circles(arrow, axes, radius, state in grammar.start_states, target in grammar.start_states)
            axes.add_patch(arrow)
    for state, (x, y) in place.items():
        colour = INK if state == 0 else _colour(grammar.symbol_of[state])
        start = state in grammar.start_states
        axes.add_patch(Circle((x, y), radius, facecolor=colour, edgecolor=PAPER, lw=1.5, zorder=3))
        if start:
            axes.add_patch(Circle((x, y), radius * 1.3, fill=False, edgecolor=INK, lw=1.6, zorder=3))
        label = grammar.state_label(state)
        axes.text(x, y, label, ha="center", va="center", color=PAPER, fontsize=11, weight="bold", zorder=4)


def _places(grammar) -> dict[int, tuple[float, float]]:
    place, count = {0: (0.0, 0.0)}, grammar.num_states - 1
    gap = 0.6 if grammar.letters > 1 else 0.0  # between letters, in units of the space between states
    position = 0.0
    positions = {}
    for state in range(1, count + 1):
        if state > 1 and grammar.symbol_of[state] != grammar.symbol_of[state - 1]:
            position += gap
        positions[state] = position
        position += 1.0
    total = position + gap
    for state, at in positions.items():
        angle = np.pi / 2 - 2 * np.pi * (at + 0.5) / total
        place[state] = (2.3 * np.cos(angle), 1.38 * np.sin(angle))
    return place


def _colour(symbol: int) -> str:
    return LETTER_COLOURS[(symbol - 1) % len(LETTER_COLOURS)]


def _stop_at_circles(arrow, axes, radius, from_ring, to_ring):
    """Let an arrow begin and end at the rims of its circles: shrink by the circle's radius in points, whatever the figure's size."""
    box, figure = axes.get_position(), axes.figure
    spans = (axes.get_xlim()[1] * 2, axes.get_ylim()[1] * 2)
    inches = min(box.width * figure.get_figwidth() / spans[0], box.height * figure.get_figheight() / spans[1])
    points = radius * inches * 72
    arrow.shrinkA, arrow.shrinkB = (points * (1.38 if ring else 1.08) for ring in (from_ring, to_ring))


def _loop(axes, centre, radius, style):
    """A self-loop on the outer side of a state."""
    from matplotlib.patches import FancyArrowPatch

    x, y = centre
    away = np.array([x, y]) / (np.hypot(x, y) or 1)
    side = np.array([-away[1], away[0]])
    begin, end = (np.array(centre) + radius * (0.75 * away + s * 0.75 * side) for s in (1, -1))
    axes.add_patch(
        FancyArrowPatch(
            tuple(begin), tuple(end), connectionstyle="arc3,rad=-1.9", arrowstyle="-|>", mutation_scale=10, **style
        )
    )


def _draw_sequence(axes, task, split, example_id) -> int:
    """The features (symbols x steps) with the states above, items separated; returns the number of steps drawn."""
    from .features import encode
    from .show import one

    laid = one(task, split, example_id).layout()
    close = laid.lengths[0] < 1.7 * task.num_items
    steps = min(STEPS // 2 if close else STEPS, int(laid.lengths[0]))
    keys = {"seed": 0, "epoch": 0} if split == "train" else {}
    features = encode(task, laid.input_ids[None, :], laid.lengths, split, [example_id], **keys)[0, :steps]
    axes.imshow(features.T, aspect="auto", cmap="Greys", vmin=0, vmax=1.15, interpolation="nearest", origin="lower")
    g = task.grammar
    items = laid.item_ids[:steps]
    edges = np.flatnonzero(np.diff(items.astype(int), prepend=-1))
    for i, at in enumerate(edges):
        end = edges[i + 1] if i + 1 < len(edges) else steps
        state, symbol = int(laid.labels[at]), int(laid.input_ids[at])
        colour = INK if state == 0 else _colour(g.symbol_of[state])
        axes.axvline(at - 0.5, color=FAINT, lw=0.6)
        axes.add_patch(_box(at - 0.5, symbol - 0.5, 1, 1, colour))
        axes.add_patch(_box(at - 0.5, g.num_symbols - 0.1, end - at, 0.055 * g.num_symbols, colour, clip=False))
        if end - at > 1 or close:
            axes.text((at + end - 1) / 2, g.num_symbols - 0.1 + 0.0275 * g.num_symbols, g.state_label(state), ha="center", va="center",
                      fontsize=8.5, color=PAPER, weight="bold")  # fmt: skip
        for step in range(at + 1, end):
            wrong = int(laid.input_ids[step])
            if wrong != task.blank_id:
                axes.add_patch(_box(step - 0.5, wrong - 0.5, 1, 1, "#c0182b"))
    axes.set_ylim(-0.5, g.num_symbols * 1.06)
    axes.set_yticks(
        range(g.num_symbols),
        [g.symbol_label(s) for s in range(g.num_symbols)],
        fontsize=9 if g.num_symbols < 20 else 6.5,
    )
    axes.set_xlabel(
        "step" + ("   (red: a distractor that the grammar forbids)" if task.variant == "nongrammatical_gaps" else ""),
        color=INK,
    )
    axes.set_ylabel("symbol (input channel)", color=INK)
    axes.text(-0.007, 1 - 0.026, "state", transform=axes.transAxes, ha="right", va="center", fontsize=8.5, color=INK)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    return steps


def _box(x, y, width, height, colour, clip=True):
    from matplotlib.patches import Rectangle

    return Rectangle((x, y), width, height, facecolor=colour, edgecolor="none", clip_on=clip, zorder=2)
