"""`selectivbench show`: sequences of a task that a person can read, item by item: what is shown, in which state, and what follows it."""

from __future__ import annotations

import shutil
from dataclasses import dataclass

import numpy as np

from . import show_recall
from .errors import InputError


@dataclass(frozen=True)
class Shown:
    """One sequence, item by item.

    Attributes:
        name: `split/example_id`.
        example_id: 0-based in its split.
        steps: its length in steps.
        items, states: label of each item's symbol, and of its state.
        gaps: blank steps after each item.
        distractors: label of the ungrammatical symbol after each item, or None.
    """

    name: str
    example_id: int
    steps: int
    items: list[str]
    states: list[str]
    gaps: list[int]
    distractors: list[str | None]

    def as_dict(self) -> dict:
        return {
            "name": self.name,
            "example_id": self.example_id,
            "steps": self.steps,
            "items": self.items,
            "states": self.states,
            "gaps": self.gaps,
            "distractors": self.distractors,
        }


def sequences(task, split: str, count: int, seed: int | None = None) -> list[Shown | show_recall.ShownRecall]:
    """The first `count` sequences of a split, or, with a seed, as many drawn from the split without replacement.

    Only the blocks that hold them are drawn: under a second for any split.
    """
    size = task.splits[task.check_split(split)]
    if seed is not None and seed < 0:
        raise InputError(f"seed must be a whole number of at least 0, got {seed}")
    count = min(count, size)
    ids = range(count) if seed is None else sorted(np.random.default_rng(seed).choice(size, count, replace=False))
    return [_shown(task, split, int(i)) for i in ids]


def one(task, split: str, example_id: int):
    """A Split of one sequence."""
    from .layout import draw_block
    from .sampling import block_size

    block, row = divmod(example_id, block_size(split))
    return draw_block(task, split, block, row, row + 1)


def _shown(task, split, example_id) -> Shown | show_recall.ShownRecall:
    data = one(task, split, example_id)
    if task.family == "recall":
        return show_recall.shown(task, split, example_id, data)
    g = task.grammar
    states, gaps = data.states[0], data.gaps[0].astype(int)
    wrong = [None] * len(states)
    if data.distractors is not None:
        wrong = [g.symbol_label(int(d)) if d != task.blank_id else None for d in data.distractors[0]]
        gaps = gaps - np.array([w is not None for w in wrong])
    return Shown(
        name=f"{split}/{example_id}",
        example_id=example_id,
        steps=int(data.steps()[0]),
        items=[g.symbol_label(int(s)) for s in data.items[0]],
        states=[g.state_label(int(s)) for s in states],
        gaps=gaps.tolist(),
        distractors=wrong,
    )


def terminal_width() -> int:
    """Columns of the terminal; 100 where there is none."""
    return shutil.get_terminal_size((100, 24)).columns


def text(task, shown: list[Shown], width: int = 100) -> str:
    """The task in a line, then each sequence as aligned rows, folded to `width`, with a blank line between."""
    if task.family == "recall":
        parts = [task.describe(), show_recall.legend(task)]
        for sequence in shown:
            parts.append(f"\n{sequence.name}: {len(sequence.questions)} questions in {sequence.steps:,} steps")
            parts.append(show_recall.rows(task, sequence, width))
        return "\n".join(parts)
    parts = [task.describe(), _legend(task)]
    for sequence in shown:
        parts.append(f"\n{sequence.name}: {len(sequence.items)} items in {sequence.steps:,} steps")
        parts.append(_rows(task, sequence, width))
    return "\n".join(parts)


def _legend(task) -> str:
    lines = ["item: the symbol shown (# ends a string)   state: what is to be named (c3 = third state of letter c)"]
    if task.variant == "nongrammatical_gaps":
        lines.append("then: the distractor that follows, a symbol the state has no edge to (. = none)")
    else:
        lines.append("gap: blank steps that follow")
    if task.noise != "none":
        law = (
            f"uniform on [0, {task.noise_scale:g})"
            if task.noise == "uniform"
            else f"normal, deviation {task.noise_scale:g}"
        )
        lines.append(f"noise: {law}, in every channel of every step, drawn when a batch is made")
    return "\n".join(lines)


def _rows(task, sequence: Shown, width: int) -> str:
    last = (
        ("then", [d or "." for d in sequence.distractors])
        if task.variant == "nongrammatical_gaps"
        else ("gap", list(map(str, sequence.gaps)))
    )
    rows = [("item", sequence.items), ("state", sequence.states), last]
    number = [str(i) for i in range(len(sequence.items))]
    cell = max(len(value) for _, values in rows for value in values)
    head = max(len(name) for name, _ in rows) + 1
    fold = max(5, (width - head) // (cell + 1) // 5 * 5)
    lines = []
    for start in range(0, len(sequence.items), fold):
        part = slice(start, start + fold)
        ticks = "".join(n.ljust(5 * (cell + 1)) for n in number[part][::5])
        lines.append(" " * (head + 1) + ticks.rstrip())
        for name, values in rows:
            lines.append(name.ljust(head) + "".join(" " + v.ljust(cell) for v in values[part]).rstrip())
        lines.append("")
    return "\n".join(lines).rstrip("\n")
