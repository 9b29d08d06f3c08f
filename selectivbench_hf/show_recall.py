"""`selectivbench show` of a recall task: what is to be remembered, what is asked at which step, and the whole sequence."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass

from .recall import DELIMITER, IGNORED


@dataclass(frozen=True)
class ShownRecall:
    """One sequence of a recall task.

    Attributes:
        name: `split/example_id`.
        example_id: 0-based in its split.
        steps: its length in steps.
        pairs: (key, value) in the order shown (mqar), else empty.
        string: the letters to be copied (copying), else None.
        questions: (step, symbol shown there, answer) in order.
        input_ids: symbol of each step.
    """

    name: str
    example_id: int
    steps: int
    pairs: list[tuple[int, int]]
    string: str | None
    questions: list[tuple[int, int, int]]
    input_ids: list[int]

    def as_dict(self) -> dict:
        return {
            "name": self.name,
            "example_id": self.example_id,
            "steps": self.steps,
            "pairs": [{"key": key, "value": value} for key, value in self.pairs],
            "string": self.string,
            "questions": [{"step": s, "symbol": symbol, "answer": answer} for s, symbol, answer in self.questions],
            "input_ids": self.input_ids,
        }


def letter(symbol: int) -> str:
    """A symbol of a copying task: a letter, `|` the delimiter, `.` a blank."""
    return "." if symbol == 0 else "|" if symbol == DELIMITER else chr(ord("a") + symbol - 1)


def shown(task, split: str, example_id: int, data) -> ShownRecall:
    """The sequence that stands first in `data`, a RecallSplit."""
    steps = int(data.lengths[0])
    ids, labels = data.input_ids[0, :steps].tolist(), data.labels[0, :steps].tolist()
    first = 2 * task.num_pairs if task.kind == "mqar" else 0
    return ShownRecall(
        name=f"{split}/{example_id}",
        example_id=example_id,
        steps=steps,
        pairs=list(zip(ids[0:first:2], ids[1:first:2], strict=True)),
        string="".join(map(letter, ids[: ids.index(DELIMITER)])) if task.kind == "copy" else None,
        questions=[(step, ids[step], label) for step, label in enumerate(labels) if label != IGNORED],
        input_ids=ids,
    )


def legend(task) -> str:
    """What the rows say."""
    if task.kind == "copy":
        return (
            "steps: the string, | the delimiter, . blanks; the first blank asks for the first letter, the second for the second, ...\n"
            + task.describe_chance()
        )
    filler = {"clean": "no key or value of the sequence", "any": "any symbol", "zero": "symbol 0"}[task.filler]
    return (
        f"pairs: key=value, in the order shown   questions: step:key=answer   steps: key? where one is asked; filler is {filler}\n"
        + task.describe_chance()
    )


def rows(task, sequence: ShownRecall, width: int) -> str:
    """The rows of one sequence, folded to `width`."""
    asked = {step for step, _, _ in sequence.questions}
    if task.kind == "copy":
        parts = {"string": [sequence.string], "steps": list(map(letter, sequence.input_ids))}
    else:
        parts = {
            "pairs": [f"{key}={value}" for key, value in sequence.pairs],
            "questions": [f"{step}:{key}={answer}" for step, key, answer in sequence.questions],
            "steps": [f"{symbol}{'?' if step in asked else ''}" for step, symbol in enumerate(sequence.input_ids)],
        }
    lines = []
    for name, words in parts.items():
        folded = textwrap.wrap(" ".join(words), max(20, width - 11))
        lines += [f"{name if i == 0 else '':<10} {line}" for i, line in enumerate(folded)]
    return "\n".join(lines)
