"""Scores of recall tasks from any framework: `predict_answers` picks a model's answers, `metrics.score` counts them here.

Axes: B, N sequences, T steps, V symbols, Q the most questions that a sequence of the task asks.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .errors import InputError
from .layout import load_split
from .metrics import Score, bootstrap
from .recall_sampling import question_ids

NOTHING = -1  # where a sequence asks fewer questions than another


@dataclass
class RecallScore(Score):
    """A Score whose items are questions.

    Attributes:
        sequences_right: sequences with every question answered right (copying: strings reproduced whole).
    """

    sequences_right: int = 0

    def as_dict(self) -> dict:
        return {**super().as_dict(), "sequences": len(self.per_sequence), "sequences_right": self.sequences_right}


def predict_answers(outputs, item_ids, task) -> np.ndarray:
    """The answer to each question of some sequences of a recall task.

    Args:
        outputs: (B, T, V) probabilities or logits of each step, of which the largest counts; or (B, T) the symbols chosen.
        item_ids: (B, T) the question that each step asks, -1 for none, as in a batch of `batches`.
        task: the RecallTask, or its name.

    Returns:
        (B, Q) int64 with Q = task.num_items, filled up with -1 where a sequence asks fewer: what `score` takes once all batches are stacked.

    Raises:
        InputError: when the shapes differ or the task is no recall task.
    """
    from .tasks import get_task

    task = get_task(task)
    if task.family != "recall":
        raise InputError(f"predict_answers is for recall tasks; for {task.name} there is predict_items")
    outputs, item_ids = np.asarray(outputs), np.asarray(item_ids)
    if outputs.ndim not in (2, 3) or item_ids.ndim != 2 or outputs.shape[:2] != item_ids.shape:
        raise InputError(
            f"outputs (B, T, V) or (B, T) and item_ids (B, T) do not fit: {outputs.shape} and {item_ids.shape}"
        )
    if item_ids.dtype.kind not in "iu" or item_ids.max(initial=-1) >= task.num_items:
        raise InputError(
            f"item_ids must be whole numbers below {task.num_items}, the most questions of {task.name}, and -1 between them"
        )
    rows, steps = np.nonzero(item_ids >= 0)
    chosen = outputs[rows, steps]
    if outputs.ndim == 3:
        if chosen.dtype.kind not in "fiu" or not np.isfinite(chosen).all():
            raise InputError("outputs must be finite real numbers; these hold NaN, infinite or complex ones")
        chosen = chosen.argmax(-1)
    answers = np.full((len(item_ids), task.num_items), NOTHING, np.int64)
    answers[rows, item_ids[rows, steps]] = chosen
    return answers


def score_answers(task, split: str, predictions) -> RecallScore:
    """`metrics.score` of a recall task: predictions (N, Q) are symbols, -1 after a sequence's last question."""
    data = load_split(task, split)
    try:
        given = np.asarray(predictions)
    except ValueError:
        raise InputError(
            f"predictions must be one array (N, {task.num_items}); fill up rows that ask fewer questions with -1"
        ) from None
    if given.ndim != 2 or given.shape[1] != task.num_items or not 1 <= given.shape[0] <= len(data):
        raise InputError(
            f"predictions for {task.name}/{split} must have the shape (N, {task.num_items}) with N from 1 to {len(data)}, got {given.shape}"
        )
    if given.dtype.kind not in "iu" and not (given.dtype.kind == "f" and np.array_equal(given, np.floor(given))):
        raise InputError(
            f"predictions must be symbols, whole numbers from 0 to {task.num_symbols - 1}; got {given.dtype}"
        )
    given = given.astype(np.int64)
    labels = data.labels[: len(given)]
    rows, steps = np.nonzero(labels >= 0)
    want = np.full_like(given, NOTHING)
    want[rows, question_ids(labels)[rows, steps]] = labels[rows, steps]
    asked = want != NOTHING
    if given.min() < NOTHING or given.max() >= task.num_symbols:
        raise InputError(
            f"predictions must be symbols from 0 to {task.num_symbols - 1}, got {given.min()}..{given.max()}"
        )
    for wrong, sentence in (
        (asked & (given == NOTHING), "every question needs an answer, and {} has none for question {}"),
        (
            ~asked & (given != NOTHING),
            "{} asks fewer questions than it has answers for; fill up with -1 from question {} on",
        ),
    ):
        if wrong.any():
            row, column = np.argwhere(wrong)[0]
            raise InputError(f"predictions for {task.name}: " + sentence.format(f"{split}/{row}", column))
    hits = (given == want) & asked
    right, questions = hits.sum(1), asked.sum(1)
    low, high = bootstrap(right[:, None], questions[:, None])[:, 0]
    correct, total = int(right.sum()), int(questions.sum())
    whole = int((right == questions).sum())
    return RecallScore(correct, total, correct / total, (float(low), float(high)), right, split, whole)
