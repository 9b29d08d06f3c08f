"""Scoring (protocol section 5): exact counts of right items, over a whole split or merged from pieces.

An item's prediction sums the softmax over all its steps and takes the largest; beside it the item's first step alone and its last step alone
(the sum over a long gap is a vote; the last step is pure holding). Items are found by segment ids, never by an items x steps mask.
Ties go to the lowest state id.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

import numpy as np

from .errors import InputError
from .layout import load_split
from .streams import stream

BOOTSTRAP_DRAWS = 2_000
WORDS_AT_ONCE = 1 << 22  # of the bootstrap: a large split is drawn a few draws at a time
ASKED, RIGHT, RIGHT_FIRST, RIGHT_LAST = 1, 2, 4, 8  # what a flag of Outcomes holds


@dataclass
class ItemScores:
    """Counts of a split or a part of it; parts add up with `+` to exactly what one pass over all gives.

    Attributes:
        correct, correct_first, correct_last: items right by the sum over their steps, by their first step, by their last step.
        total: items.
        loss_sum: sum of the cross-entropies of all steps that are not padding, nats.
        steps: their number.
        sequences: sequences scored.
        sequences_right: sequences with every item right by the sum (copying: strings reproduced whole).
    """

    correct: int = 0
    correct_first: int = 0
    correct_last: int = 0
    total: int = 0
    loss_sum: float = 0.0
    steps: int = 0
    sequences: int = 0
    sequences_right: int = 0

    def __add__(self, other: ItemScores) -> ItemScores:
        return type(self)(*(a + b for a, b in zip(asdict(self).values(), asdict(other).values(), strict=True)))

    @property
    def accuracy(self) -> float | None:
        """Share of items right; None (not 0 or NaN) where there are no items."""
        return self.correct / self.total if self.total else None

    @property
    def accuracy_first(self) -> float | None:
        return self.correct_first / self.total if self.total else None

    @property
    def accuracy_last(self) -> float | None:
        return self.correct_last / self.total if self.total else None

    @property
    def loss(self) -> float | None:
        """Mean cross-entropy over all steps that are not padding, nats."""
        return self.loss_sum / self.steps if self.steps else None

    def as_dict(self) -> dict:
        """Counts and the means made from them, for a result record."""
        return {
            **asdict(self),
            "accuracy": self.accuracy,
            "accuracy_first": self.accuracy_first,
            "accuracy_last": self.accuracy_last,
            "loss": self.loss,
        }


@dataclass
class Outcomes:
    """What became of each item of some sequences, in their order: what intervals and finer scores are made of.

    Attributes:
        flags: (N, items) uint8, a sum of ASKED (the sequence has this item), RIGHT (by the sum over its steps), RIGHT_FIRST and RIGHT_LAST.
        kl: (N, items) float32 nats, in prediction where the true law is known, else None.
    """

    flags: np.ndarray
    kl: np.ndarray | None = None

    @staticmethod
    def join(parts) -> Outcomes:
        """All sequences, one after another; sequences with fewer items are filled up with items that are not asked."""
        parts = list(parts)
        items = max((p.flags.shape[1] for p in parts), default=0)

        def joined(arrays, dtype):
            out = np.zeros((sum(map(len, arrays)), items), dtype)
            at = 0
            for array in arrays:
                out[at : at + len(array), : array.shape[1]] = array
                at += len(array)
            return out

        known = bool(parts) and all(p.kl is not None for p in parts)
        return Outcomes(
            joined([p.flags for p in parts], np.uint8), joined([p.kl for p in parts], np.float32) if known else None
        )

    def has(self, flag: int) -> np.ndarray:
        """(N, items) bool: where `flag` is set."""
        return (self.flags & flag) != 0

    def interval(self) -> list[float] | None:
        """95 % bootstrap interval of the accuracy over sequences; None over no items."""
        return _interval(self.has(RIGHT).sum(1), self.has(ASKED).sum(1))

    def kl_interval(self) -> list[float] | None:
        """The same of the mean KL, nats per item; None where the law is not known."""
        return None if self.kl is None else _interval(self.kl.sum(1, dtype=float), self.has(ASKED).sum(1))


def _interval(numerators, denominators):
    if not denominators.sum() or not np.isfinite(numerators).all():
        return None
    return bootstrap(numerators[:, None], denominators[:, None])[:, 0].tolist()


class ItemAccumulator:
    """Scores a batch of sequences from logits that come chunk by chunk in time, holding (B, S) numbers and not (B, T, S).

    Args:
        labels: (B, T) int64 state ids, -100 at padding; torch tensor.
        item_ids: (B, T) int64 item of each step, -1 at padding; ascending along T.

    Feed `add(logits, start)` in order of time, then read `scores()` and `outcomes()`.
    """

    def __init__(self, labels, item_ids):
        import torch

        self.labels, self.item_ids = labels, item_ids
        self.open = None  # (B, S) softmax summed over the open item's steps so far
        after = torch.full_like(item_ids[:, :1], -1)
        self.is_first = (item_ids != torch.cat([after, item_ids[:, :-1]], 1)) & (item_ids >= 0)
        self.is_last = (item_ids != torch.cat([item_ids[:, 1:], after], 1)) & (item_ids >= 0)
        self.result = ItemScores(sequences=int((item_ids >= 0).any(1).sum()))
        items = int(item_ids.max()) + 1 if item_ids.numel() else 0
        self.flags = torch.zeros(len(item_ids), max(items, 0), dtype=torch.uint8, device=item_ids.device)

    def add(self, logits, start: int) -> None:
        """Take the logits (B, C, S) of the steps start..start + C."""
        import torch

        stop = start + logits.shape[1]
        labels, first, last = self.labels[:, start:stop], self.is_first[:, start:stop], self.is_last[:, start:stop]
        log_probs = torch.log_softmax(logits.float(), dim=-1)
        real = labels >= 0
        losses = -log_probs.gather(-1, labels.clamp(min=0)[..., None])[..., 0]
        self.result.loss_sum += float(losses[real].double().sum())
        self.result.steps += int(real.sum())
        probs = log_probs.exp_()
        right = probs.argmax(-1) == labels
        self.result.correct_first += int((right & first).sum())
        self.result.correct_last += int((right & last).sum())
        self.result.total += int(last.sum())
        # segment sums: rows of (sequence, item) met in this chunk; an item that began before adds what it had
        batch, steps, states = probs.shape
        begins = first.clone()
        begins[:, 0] = True
        segment = begins.reshape(-1).cumsum(0) - 1
        sums = probs.new_zeros(int(segment[-1]) + 1, states) if segment.numel() else probs.new_zeros(0, states)
        flat = probs.reshape(-1, states)
        flat = flat.masked_fill(~real.reshape(-1, 1), 0)
        sums.index_add_(0, segment, flat)
        if self.open is not None:
            goes_on = ~first[:, 0]
            head = segment.reshape(batch, steps)[:, 0]
            sums[head[goes_on]] += self.open[goes_on]
        ends = last.reshape(-1)
        summed = sums[segment[ends]]
        hits = summed.argmax(-1) == labels.reshape(-1)[ends]
        self.result.correct += int(hits.sum())
        self.open = sums[segment.reshape(batch, steps)[:, -1]]
        rows, at = first.nonzero(as_tuple=True)
        self.flags[rows, self.item_ids[rows, start + at]] += ASKED + RIGHT_FIRST * right[rows, at].byte()
        rows, at = last.nonzero(as_tuple=True)
        items = self.item_ids[rows, start + at]
        self.flags[rows, items] += RIGHT * hits.byte() + RIGHT_LAST * right[rows, at].byte()
        self.ended(rows, items, labels[rows, at], summed)

    def ended(self, rows, items, labels, summed) -> None:
        """Items (E,) that ended in the steps just added, with their labels and their softmax summed over their steps (E, S)."""

    def scores(self) -> ItemScores:
        """The counts of all that was added."""
        asked, right = (self.flags & ASKED) != 0, (self.flags & RIGHT) != 0
        self.result.sequences_right = int(((right | ~asked).all(1) & asked.any(1)).sum())
        return self.result

    def outcomes(self) -> Outcomes:
        """The same item by item."""
        return Outcomes(self.flags.cpu().numpy())


@dataclass
class Score:
    """The score of predicted states.

    Attributes:
        correct, total: items.
        accuracy: correct / total.
        interval: 95 % bootstrap interval of the accuracy, drawn over sequences because the items of one are correlated. It covers the
            choice of test sequences, not the grammar nor the training.
        per_sequence: (N,) int64 right items of each sequence.
    """

    correct: int
    total: int
    accuracy: float
    interval: tuple[float, float]
    per_sequence: np.ndarray
    split: str

    def as_dict(self) -> dict:
        return {
            "split": self.split,
            "correct": self.correct,
            "total": self.total,
            "accuracy": self.accuracy,
            "interval": list(self.interval),
        }


def predict_items(probabilities: np.ndarray, item_ids: np.ndarray) -> np.ndarray:
    """The predicted state of each item: the largest of the probabilities summed over the item's steps.

    Args:
        probabilities: (B, T, S) softmax of a model at each step.
        item_ids: (B, T) item of each step, -1 at padding, as in a batch of `batches`.

    Returns:
        (B, items) int64, what `score` takes once all batches are stacked.

    Raises:
        InputError: when the shapes differ or sequences of the batch have different numbers of items.
    """
    return item_sums(probabilities, item_ids).argmax(-1)


def item_sums(probabilities, item_ids) -> np.ndarray:
    """(B, items, S): the probabilities summed over each item's steps; arguments and errors as in `predict_items`."""
    probabilities, item_ids = np.asarray(probabilities), np.asarray(item_ids)
    if probabilities.ndim != 3 or probabilities.shape[:2] != item_ids.shape:
        raise InputError(
            f"probabilities (B, T, S) and item_ids (B, T) do not fit: {probabilities.shape} and {item_ids.shape}"
        )
    if item_ids.dtype.kind not in "iu" or item_ids.max(initial=-1) >= item_ids.shape[1]:
        raise InputError(
            f"item_ids must be whole numbers below the number of steps, {item_ids.shape[1]}, and -1 at padding"
        )
    if probabilities.dtype.kind not in "fiu" or not np.isfinite(probabilities).all():
        raise InputError("probabilities must be finite real numbers; these hold NaN, infinite or complex ones")
    counts = item_ids.max(1, initial=-1) + 1
    if (counts != counts[:1]).any():
        raise InputError(f"all sequences must have the same number of items, got {counts.min()} to {counts.max()}")
    items, batch = int(counts[0]) if counts.size else 0, len(item_ids)
    real = item_ids >= 0
    sums = np.zeros((batch * items, probabilities.shape[2]))
    np.add.at(sums, (np.arange(batch)[:, None] * items + item_ids)[real], probabilities[real])
    return sums.reshape(batch, items, -1)


def score(task, split: str, predictions) -> Score:
    """Score predicted states from any framework.

    Args:
        task: a Task or a task's name.
        split: the split predicted.
        predictions: (N, items) whole numbers: the state id of each item of the first N sequences of the split, in order. For a recall
            task the symbol that answers each question, as `predict_answers` gives them, and the score is a RecallScore.

    Raises:
        InputError: for another shape, numbers that are no state ids, or no predictions at all.
    """
    from .tasks import get_task

    task = get_task(task)
    if task.family == "recall":
        from .recall_scoring import score_answers

        return score_answers(task, split, predictions)
    data = load_split(task, split)
    try:
        given = np.asarray(predictions)
    except ValueError:
        raise InputError("predictions must be one array (N, items); the rows given have different lengths") from None
    if given.ndim != 2 or given.shape[1] != data.num_items or not 1 <= given.shape[0] <= len(data):
        raise InputError(
            f"predictions for {task.name}/{split} must have the shape (N, {data.num_items}) with N from 1 to {len(data)}, "
            f"got {given.shape}"
        )
    if not np.issubdtype(given.dtype, np.integer):
        if not np.issubdtype(given.dtype, np.floating) or not np.array_equal(given, np.floor(given)):
            raise InputError(
                f"predictions must be state ids, whole numbers from 0 to {task.num_states - 1}; got {given.dtype}"
            )
        given = given.astype(np.int64)
    if given.min() < 0 or given.max() >= task.num_states:
        raise InputError(
            f"predictions must be state ids from 0 to {task.num_states - 1}, got {given.min()}..{given.max()}"
        )
    right = (given == data.states[: len(given)]).sum(1)
    correct, total = int(right.sum()), given.size
    return Score(correct, total, correct / total, bootstrap_interval(right, data.num_items), right, split)


def bootstrap_interval(right: np.ndarray, num_items: int) -> tuple[float, float]:
    """The 2.5 % and 97.5 % points of the accuracy when sequences are drawn anew with replacement; the same for the same counts."""
    low, high = bootstrap(right[:, None], np.full((len(right), 1), num_items))[:, 0]
    return float(low), float(high)


def bootstrap(numerators: np.ndarray, denominators: np.ndarray) -> np.ndarray:
    """The 2.5 % and 97.5 % points of sum(numerators) / sum(denominators) when sequences are drawn anew with replacement.

    It covers the choice of test sequences, whose items are correlated, not the grammar nor the training. All columns see the same draws.

    Args:
        numerators, denominators: (N, columns), one row a sequence: what is right and what is asked in it.

    Returns:
        (2, columns) float64; draws in which a column has nothing are left out, NaN where all are.
    """
    n = len(numerators)
    source, at_once = stream("bootstrap", n), max(1, WORDS_AT_ONCE // n)
    both = np.concatenate([numerators, denominators], 1).astype(float)
    sums = np.empty((BOOTSTRAP_DRAWS, both.shape[1]))
    for at in range(0, BOOTSTRAP_DRAWS, at_once):
        draws = min(at_once, BOOTSTRAP_DRAWS - at)
        words = source.random_raw(draws * n).reshape(draws, n)
        chosen = (((words >> np.uint64(32)) * np.uint64(n)) >> np.uint64(32)).astype(np.int64)
        cells = chosen + n * np.arange(draws)[:, None]
        times = np.bincount(cells.ravel(), minlength=draws * n).reshape(draws, n)  # how often each sequence is drawn
        sums[at : at + draws] = times.astype(float) @ both
    top, below = np.split(sums, 2, axis=1)
    ratio = np.divide(top, below, out=np.full_like(top, np.nan), where=below > 0)
    out = np.full((2, ratio.shape[1]), np.nan)
    always = (below > 0).all(0)
    out[:, always] = np.quantile(ratio[:, always], [0.025, 0.975], axis=0)
    some = (below > 0).any(0) & ~always  # apart: nanquantile is slow
    out[:, some] = np.nanquantile(ratio[:, some], [0.025, 0.975], axis=0)
    return out
