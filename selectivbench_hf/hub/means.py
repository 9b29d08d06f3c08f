"""Means of one model's runs: exactly, grammar by grammar, with what their interval is over."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction


@dataclass(frozen=True)
class Score:
    """A mean over grammar seeds of the means over model seeds, in 0..1.

    accuracy          the mean
    low, high         its 95 % interval: Student's t over grammar seeds, over model seeds where there is one grammar, and for one run its own
                      bootstrap interval over test sequences
    over              which of these: "grammar seeds", "model seeds", "test sequences"; None where there is no interval
    between_grammars  standard deviation of the grammar seeds' means; None below two
    between_models    standard deviation over the model seeds of one grammar, pooled; None where no grammar has two
    """

    accuracy: float
    low: float | None
    high: float | None
    over: str | None
    between_grammars: float | None
    between_models: float | None


def _by_grammar(rows, value: Callable[[dict], float | None]) -> list[list[float]] | None:
    """The runs' values, grammar seed by grammar seed; None where one is not known."""
    groups = defaultdict(list)
    for row in rows:
        groups[str(row["grammar_seed"])].append(value(row))
    if any(v is None for values in groups.values() for v in values):
        return None
    return [sorted(values) for _, values in sorted(groups.items())]


def mean(rows, value) -> float | None:
    """Mean over grammar seeds of the mean over their runs; None where a value is not known. Exact, so that no order of rows changes a bit."""
    groups = _by_grammar(rows, value)
    return None if groups is None else float(_exact([_exact(values) for values in groups]))


def _exact(values) -> Fraction:
    return sum(map(Fraction, values), Fraction(0)) / len(values)


def score(rows, key: str, interval: str) -> Score | None:
    """The Score of one model's runs on one task by their field `key`, whose interval is in `interval`_low and _high; None where a run lacks it."""
    groups = _by_grammar(rows, lambda row: row[key])
    if groups is None:
        return None
    overall = mean(rows, lambda row: row[key])
    means = [float(_exact(values)) for values in groups]
    between = _deviation(means)
    pooled = [v for values in groups if len(values) > 1 for v in [_deviation(values) ** 2] * (len(values) - 1)]
    within = math.sqrt(math.fsum(pooled) / len(pooled)) if pooled else None
    if between is not None:
        low, high, over = *_student(overall, between, len(means)), "grammar seeds"
    elif len(rows) > 1:
        low, high, over = *_student(overall, within, len(rows)), "model seeds"
    else:
        low, high = rows[0][f"{interval}_low"], rows[0][f"{interval}_high"]
        over = None if low is None or high is None else "test sequences"
    return Score(overall, low, high, over, between, within)


def _deviation(values) -> float | None:
    """Standard deviation of a sample; None below two."""
    if len(values) < 2:
        return None
    mean = _exact(values)
    return math.sqrt(sum((Fraction(v) - mean) ** 2 for v in values) / (len(values) - 1))


def _student(mean: float, deviation: float, count: int) -> tuple[float, float]:
    """95 % interval of the mean of `count` values, kept within 0..1."""
    from scipy.special import stdtrit

    half = float(stdtrit(count - 1, 0.975)) * deviation / math.sqrt(count)
    return max(0.0, mean - half), min(1.0, mean + half)
