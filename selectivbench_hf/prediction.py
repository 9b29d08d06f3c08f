"""Prediction mode (protocol section 5): at every step say the next item's symbol, and be held against the exact filter's law of it.

Targets are the symbol of item i + 1 at all steps of item i, -100 after the last item; inputs are those of classification. An item's
prediction q is the mean softmax over its steps. It is scored by KL(p || q) in nats per item, where p is the exact filter's law of
the next symbol (mean over the item's steps), by its cross-entropy, and by how often its most likely symbol comes.

    perplexity = exp(cross-entropy), at best about exp(entropy), the entropy being the mean of p's own: the source's entropy rate

Axes: N or B sequences, T steps, V symbols; E items of a batch.
"""

from __future__ import annotations

import functools
import math
from dataclasses import asdict, dataclass, field

import numpy as np

from .errors import InputError, unknown
from .layout import load_split
from .metrics import ItemAccumulator, ItemScores, Outcomes, bootstrap, item_sums

OBJECTIVES = ("classification", "prediction")
# The softmax of a model is never 0 but for float32's rounding; below this it is taken as this, so that no KL is infinite by rounding.
SMALLEST = float(np.finfo(np.float32).tiny)
ROWS_AT_ONCE, NUMBERS_AT_ONCE = 1_000, 1 << 23  # of the laws that are remembered together: sequences, float64 numbers


def check_objective(task, objective: str) -> str:
    """`objective`, if the task can be trained and scored by it, else an InputError that says why not."""
    if objective not in OBJECTIVES:
        raise unknown("objective", objective, OBJECTIVES)
    if objective == "prediction" and task.family == "recall":
        raise InputError(
            f"objective 'prediction' is for grammar tasks, whose next symbol has a law; {task.name} asks for answers: use 'classification'"
        )
    if objective == "prediction" and task.num_items < 2:
        raise InputError(f"objective 'prediction' needs sequences of at least 2 items; {task.name} has num_items=1")
    return objective


def num_classes(task, objective: str) -> int:
    """Outputs of a model: S states, or in prediction V symbols."""
    return task.num_symbols if objective == "prediction" else task.num_states


def standing(scores: dict) -> tuple:
    """What a model is selected by, larger is better: the lowest KL (where the law is not known, cross-entropy), or the highest accuracy;
    then the lower loss."""
    if "kl" not in scores:
        return scores["accuracy"], -scores["loss"]
    return -(scores["cross_entropy"] if scores["kl"] is None else scores["kl"]), -scores["loss"]


def next_symbols(task, labels: np.ndarray, item_ids: np.ndarray) -> np.ndarray:
    """The targets of prediction.

    Args:
        labels, item_ids: (B, T) int64 states and items of each step, -100 and -1 at padding.

    Returns:
        (B, T) int64: at each step the symbol of the next item; -100 in the last item and at padding.
    """
    batch = len(labels)
    items = int(item_ids.max(initial=-1)) + 1
    # by item; the last two columns: after the last item, and padding
    table = np.full((batch, items + 2), -100, dtype=np.int64)
    rows, at = np.nonzero(item_ids >= 0)
    table[rows, item_ids[rows, at]] = task.grammar.symbol_of[labels[rows, at]]
    return np.take_along_axis(table, np.where(item_ids >= 0, item_ids + 1, items + 1), 1)


def law_unknown(task) -> str | None:
    """Why the exact filter's law of the next symbol is not known for a task (noise can hide a symbol); None where it is."""
    from .oracle import law_of

    try:
        law_of(task)
    except InputError as error:
        return str(error)
    return None


def next_laws(task, split: str, example_ids) -> np.ndarray:
    """(B, items - 1, V) float64: the exact filter's law of each next symbol in the given sequences of a split.

    Laws are made for some hundred sequences at once, and the last ones are remembered.
    """
    if task.variant != "nongrammatical_gaps" and split.startswith("test"):
        split = "test"  # blank steps say nothing, and all test splits lay out the same sequences
    ids = np.asarray(example_ids, dtype=np.int64)
    shape = task.num_items - 1, task.num_symbols
    rows = min(max(1, NUMBERS_AT_ONCE // (shape[0] * shape[1])), ROWS_AT_ONCE)
    out = np.empty((len(ids), *shape))
    for block in np.unique(ids // rows):
        here = ids // rows == block
        out[here] = _laws(task, split, int(block) * rows, rows)[ids[here] - block * rows]
    return out


@functools.lru_cache(maxsize=4)
def _laws(task, split, start, rows):
    from .oracle import filter_split

    laws = filter_split(task, split, start, min(start + rows, task.splits[split]), laws=True).laws[:, :-1]
    laws.flags.writeable = False
    return laws


def divergence(law: np.ndarray, q: np.ndarray) -> np.ndarray:
    """KL(law || q) in nats over the last axis; infinite where q is 0 and the law is not."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(law > 0, law * (np.log(law) - np.log(q)), 0.0).sum(-1)


def entropy(law: np.ndarray) -> np.ndarray:
    """Entropy of each law in nats, over the last axis."""
    return -np.where(law > 0, law * np.log(np.where(law > 0, law, 1.0)), 0.0).sum(-1)


@dataclass
class PredictionScores(ItemScores):
    """Counts and sums of predictions; an item is right when its most likely symbol is the next item's.

    Attributes (beside those of ItemScores):
        cross_entropy_sum: sum over items of -log q(the symbol that came), nats.
        law_items: items whose true law is known.
        kl_sum, entropy_sum: sums over those of KL(law || q) and of the law's entropy, nats.
        law_cross_entropy_sum: sum over those of -log law(the symbol that came): what the exact filter gets on the same symbols.
    """

    cross_entropy_sum: float = 0.0
    law_items: int = 0
    kl_sum: float = 0.0
    entropy_sum: float = 0.0
    law_cross_entropy_sum: float = 0.0

    def as_dict(self) -> dict:
        """Counts, sums and the means made from them; None where there are no items, or no law."""
        known = lambda total: total / self.law_items if self.law_items else None
        cross = self.cross_entropy_sum / self.total if self.total else None
        return {
            **super().as_dict(),
            "kl": known(self.kl_sum),
            "cross_entropy": cross,
            "perplexity": None if cross is None else math.exp(cross),
            "entropy": known(self.entropy_sum),
            "source_perplexity": math.exp(known(self.entropy_sum)) if self.law_items else None,
            "law_cross_entropy": known(self.law_cross_entropy_sum),
        }


class PredictionAccumulator(ItemAccumulator):
    """Scores a batch of predictions from logits (B, C, V) that come chunk by chunk in time.

    Args:
        targets: (B, T) int64 as from `next_symbols`. item_ids: (B, T) int64, -1 at padding.
        laws: (B, items - 1, V) float64, or None where they are not known.
    """

    def __init__(self, targets, item_ids, laws=None):
        super().__init__(targets, item_ids.masked_fill(targets < 0, -1))
        self.result = PredictionScores(sequences=self.result.sequences)
        self.laws = laws
        self.kl = None if laws is None else np.zeros(self.flags.shape, np.float32)

    def ended(self, rows, items, labels, summed) -> None:
        """KL and cross-entropy of the items that ended."""
        q = summed.double().cpu().numpy()
        q = np.maximum(q / q.sum(-1, keepdims=True), SMALLEST)
        rows, items, labels = (index.cpu().numpy() for index in (rows, items, labels))
        here = np.arange(len(q))
        scores = self.result
        scores.cross_entropy_sum += float(-np.log(q[here, labels]).sum())
        if self.laws is None:
            return
        law = self.laws[rows, items]
        kl = divergence(law, q)
        self.kl[rows, items] = kl
        scores.law_items += len(law)
        scores.kl_sum += float(kl.sum())
        scores.entropy_sum += float(entropy(law).sum())
        scores.law_cross_entropy_sum += float(-np.log(law[here, labels]).sum())

    def outcomes(self) -> Outcomes:
        """Right or wrong, and the KL, item by item."""
        return Outcomes(super().outcomes().flags, self.kl)


# -- laws from any framework ---------------------------------------------------------------------------------------------


def item_laws(probabilities: np.ndarray, item_ids: np.ndarray) -> np.ndarray:
    """A model's law of each next symbol, as `score_laws` takes it once all batches are stacked.

    Args:
        probabilities: (B, T, V) softmax of a model at each step.
        item_ids: (B, T) item of each step, -1 at padding, as in a batch of `batches`.

    Returns:
        (B, items - 1, V) float64: mean over each item's steps; nothing follows the last item.

    Raises:
        InputError: as `predict_items`.
    """
    sums = item_sums(probabilities, item_ids)[:, :-1]
    total = sums.sum(-1, keepdims=True)
    return np.divide(sums, total, out=np.zeros_like(sums), where=total > 0)


@dataclass
class LawScore:
    """The score of predicted laws, nats per item.

    Attributes:
        kl: mean KL(exact filter's law || predicted law); infinite where a symbol that can come has probability 0; None where noise can
            hide a symbol, `reason` says so.
        cross_entropy: mean of -log of the probability of the symbol that came. perplexity: its exponential.
        entropy: mean entropy of the exact filter's law, the source's entropy rate. law_cross_entropy: the filter's own on these symbols.
        kl_interval: 95 % bootstrap interval of the KL over sequences; None where the KL is not finite.
        correct, total: items whose most likely symbol came (the lowest id of equals), and items. accuracy: their ratio.
        per_sequence: (N,) mean KL of each sequence, or None.
    """

    split: str
    kl: float | None
    reason: str | None
    cross_entropy: float
    entropy: float | None
    law_cross_entropy: float | None
    kl_interval: list | None
    correct: int
    total: int
    per_sequence: np.ndarray | None = field(repr=False, default=None)

    @property
    def perplexity(self) -> float:
        return math.exp(self.cross_entropy) if self.cross_entropy < 700 else math.inf

    @property
    def accuracy(self) -> float:
        return self.correct / self.total

    def as_dict(self) -> dict:
        """For JSON: numbers that are infinite are None."""
        out = {k: v for k, v in asdict(self).items() if k != "per_sequence"}
        out |= {"perplexity": self.perplexity, "accuracy": self.accuracy}
        return {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in out.items()}


def score_laws(task, split: str, laws) -> LawScore:
    """Score predicted laws of the next symbol from any framework.

    Args:
        task: a grammar Task or its name.
        split: the split predicted.
        laws: (N, items - 1, V): after each item but the last, the probability of each symbol as the next; first N sequences, in order.

    Raises:
        InputError: for another shape, or rows that are no probabilities (negative, not finite, sums more than 1e-3 from 1).
    """
    from .tasks import get_task

    task = get_task(task)
    check_objective(task, "prediction")
    data = load_split(task, split)
    try:
        q = np.asarray(laws, dtype=float)
    except (ValueError, TypeError):
        raise InputError("laws must be one array of numbers (N, items - 1, V)") from None
    shape = (task.num_items - 1, task.num_symbols)
    if q.ndim != 3 or q.shape[1:] != shape or not 1 <= len(q) <= len(data):
        raise InputError(
            f"laws for {task.name}/{split} must have the shape (N, {shape[0]}, {shape[1]}) with N from 1 to {len(data)}, got {q.shape}"
        )
    total = q.sum(-1, keepdims=True)
    bad = ~(np.isfinite(q).all(-1) & (q >= 0).all(-1) & (abs(total[..., 0] - 1) <= 1e-3))
    if bad.any():
        n, item = np.argwhere(bad)[0]
        raise InputError(
            f"laws must be probabilities that sum to 1 over the symbols; sequence {n} after item {item} has the sum {total[n, item, 0]:g} "
            f"and the least {q[n, item].min():g}"
        )
    q = q / total
    came = data.items[: len(q), 1:].astype(np.int64)
    right = int((q.argmax(-1) == came).sum())
    with np.errstate(divide="ignore"):
        cross = float(-np.log(np.take_along_axis(q, came[..., None], -1)).mean())
    why = law_unknown(task)
    if why is not None:
        return LawScore(split, None, why, cross, None, None, None, right, came.size)
    kl, entropies, own = np.empty(came.shape), 0.0, 0.0
    for start in range(0, len(q), ROWS_AT_ONCE):
        rows = slice(start, start + ROWS_AT_ONCE)
        law = next_laws(task, split, range(len(q))[rows])
        kl[rows] = divergence(law, q[rows])
        entropies += float(entropy(law).sum())
        own += float(-np.log(np.take_along_axis(law, came[rows, :, None], -1)).sum())
    per_sequence = kl.mean(1)
    interval = None
    if np.isfinite(per_sequence).all():
        interval = bootstrap(per_sequence[:, None], np.ones((len(q), 1)))[:, 0].tolist()
    means = float(kl.mean()), entropies / kl.size, own / kl.size
    return LawScore(split, means[0], None, cross, *means[1:], interval, right, came.size, per_sequence)
