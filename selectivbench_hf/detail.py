"""Finer scores: the items of one evaluation pass sorted by where they stand, as compact arrays, and their figure.

For grammar tasks, by
    item_index        0-based place in the sequence
    since_end         items since the last `#`, which itself is 0; a sequence begins like an item after `#`
    gap               blank steps after the item
    steps             steps of the item: its own, and the blank ones or the distractor that carry its state
    distractor        1: a distractor stands in the item's steps or right before it; 0: the other items (that variant alone)
for recall tasks, by
    question_index    0-based place among the questions of the sequence
    distance          steps from the pair's key, or from the letter to be copied, to the question

Intervals are drawn over sequences, whose items are correlated: they cover the choice of test sequences, not the grammar nor the training.

Axes: N sequences, T items.
"""

from __future__ import annotations

import numpy as np

from .layout import load_split
from .metrics import ASKED, RIGHT, RIGHT_FIRST, RIGHT_LAST, Outcomes, bootstrap

INTERVALS = "95 %, bootstrap over sequences: the choice of test sequences, neither the grammar nor the training"
LEAST = 8  # sequences: with fewer, draws without any of them would decide the interval
DISTRACTED = "items with a distractor in their steps or right before them"


def places(task, split: str, count: int) -> dict[str, np.ndarray]:
    """Where each item of the first `count` sequences stands: axis name -> (N, T) whole numbers."""
    data = load_split(task, split)
    if task.family == "recall":
        return _recall_places(task, data, count)
    states, gaps = data.states[:count], data.gaps[:count].astype(np.int64)
    index = np.broadcast_to(np.arange(states.shape[1]), states.shape)
    last_end = np.maximum.accumulate(np.where(states == 0, index, -1), axis=1)
    found = {"item_index": index, "since_end": index - last_end}
    if data.distractors is None:
        return found | {"gap": gaps, "steps": 1 + gaps}
    return found | {"gap": np.zeros_like(gaps), "steps": 1 + gaps, "distractor": _distracted(data, count).astype(int)}


def _distracted(data, count):
    there = data.distractors[:count] != data.blank_id
    before = np.zeros_like(there)
    before[:, 1:] = there[:, :-1]
    return there | before


def _recall_places(task, data, count):
    ids, asked = data.input_ids[:count], data.labels[:count] >= 0
    index = np.broadcast_to(np.arange(task.num_items), (len(ids), task.num_items))
    if task.kind == "copy":
        letters = asked.sum(1)  # letter i stands at step i, and is asked for one delimiter and a whole string later
        return {"question_index": index, "distance": np.broadcast_to(letters[:, None] + 1, index.shape)}
    at = np.nonzero(asked)[1].reshape(len(ids), task.num_pairs)
    keys, questions = ids[:, 0 : 2 * task.num_pairs : 2], np.take_along_axis(ids, at, 1)
    pair = np.empty_like(at)  # both hold the same keys: sorting them tells which question belongs to which pair
    np.put_along_axis(pair, np.argsort(questions, 1), np.argsort(keys, 1), 1)
    return {"question_index": index, "distance": at - 2 * pair}


def finer(task, split: str, outcomes: Outcomes) -> dict:
    """Scores by place.

    Returns:
        dict axis -> dict of lists of one length: `value`; `items`; `correct`, `correct_first`, `correct_last` (exact counts); `low` and
        `high` of the accuracy by the sum over steps (None where fewer than 8 sequences have such items); in prediction `kl` (mean, nats).
    """
    count, asked = len(outcomes.flags), outcomes.has(ASKED)
    out, columns = {}, []
    for name, place in places(task, split, count).items():
        place = place[:, : asked.shape[1]]
        values, bins = np.unique(place[asked], return_inverse=True)
        rows = np.nonzero(asked)[0]
        cells = rows * len(values) + bins

        def per_sequence(weights):
            return np.bincount(cells, weights, minlength=count * len(values)).reshape(count, len(values))  # noqa: B023

        items = per_sequence(None)
        counts = {
            key: per_sequence(outcomes.has(flag)[asked]).astype(np.int64)
            for key, flag in (("correct", RIGHT), ("correct_first", RIGHT_FIRST), ("correct_last", RIGHT_LAST))
        }
        out[name] = {
            "value": values.tolist(),
            "items": items.sum(0).tolist(),
            **{key: table.sum(0).tolist() for key, table in counts.items()},
        }
        if outcomes.kl is not None:
            kl = per_sequence(outcomes.kl[asked].astype(float)).sum(0) / items.sum(0)
            out[name]["kl"] = [round(x, 6) if np.isfinite(x) else None for x in kl.tolist()]
        columns.append((name, counts["correct"], items))
    if not asked.any():
        return {name: axis | {"low": [], "high": []} for name, axis in out.items()}
    low, high = bootstrap(*(np.concatenate([c[i] for c in columns], 1) for i in (1, 2)))
    at = 0
    for name, _, items in columns:
        enough = (items > 0).sum(0) >= LEAST
        for key, ends in (("low", low), ("high", high)):
            here = ends[at : at + items.shape[1]]
            out[name][key] = [round(float(x), 4) if e else None for x, e in zip(here, enough, strict=True)]
        at += items.shape[1]
    return out


def headline(task, split: str, outcomes: Outcomes) -> dict | None:
    """The variant's own score where it is not the plain accuracy: on the items that a distractor touches; else None.

    The other items of `nongrammatical_gaps` resemble the plain task, and are most of them.
    """
    if task.family != "grammar" or task.variant != "nongrammatical_gaps":
        return None
    count, items = outcomes.flags.shape  # in prediction there is one item less
    these = _distracted(load_split(task, split), count)[:, :items]
    part = Outcomes(np.where(these, outcomes.flags, 0).astype(np.uint8))
    correct, total = int(part.has(RIGHT).sum()), int(part.has(ASKED).sum())
    kl = {}
    if outcomes.kl is not None:
        kl["kl"] = float(outcomes.kl[part.has(ASKED)].mean(dtype=float)) if total else None
    return {
        "of": DISTRACTED,
        "correct": correct,
        "total": total,
        "accuracy": correct / total if total else None,
        "interval": part.interval(),
        **kl,
    }
