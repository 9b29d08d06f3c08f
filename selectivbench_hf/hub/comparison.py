"""When two scores of one thing agree: weights scored twice, a command trained twice, a grammar that nobody knew.

A *score* is what a row keeps of one split: `correct`, `total`, `sequences`, `accuracy`, and `low`, `high`, the 95 % bootstrap interval over sequences.
Where an interval decides, give scores that were computed here: a row may claim any interval, and a wide one would hide a difference.
"""

from __future__ import annotations

import statistics
from dataclasses import asdict, dataclass

from .scoring import TOLERANCE
from .sealed import GAP_LIMIT, standard_error

EQUAL, AGREES, DIFFERS, LOWER = "equal", "agrees", "DIFFERS", "LOWER"


@dataclass(frozen=True)
class Finding:
    """One comparison of a replay.

    check: what was done again ("weights", "scored again", "trained again", "as stated", "sealed grammar"). split: of the data, or what else it is about.
    submitted, replayed: accuracies in 0..1, or None. in_se: replayed minus submitted, in standard errors of the difference, where that was the rule.
    verdict: equal, agrees, DIFFERS, or LOWER (of a sealed grammar). rule: the rule that decided, in words.
    """

    check: str
    split: str
    submitted: float | None
    replayed: float | None
    in_se: float | None
    verdict: str
    rule: str

    @property
    def differs(self) -> bool:
        return self.verdict == DIFFERS

    def as_dict(self) -> dict:
        return asdict(self)


def missing(check: str, split: str, old: dict | None, new: dict | None) -> Finding | None:
    """DIFFERS where only one of the two has the split, or they are over different sequences or items."""
    if old is None or new is None:
        rule = f"only the {'replay' if old is None else 'submission'} has this split"
    elif (old["sequences"], old["total"]) != (new["sequences"], new["total"]):
        rule = f"{old['total']:,} items of {old['sequences']:,} sequences submitted, {new['total']:,} of {new['sequences']:,} here"
    else:
        return None
    return Finding(check, split, *(None if s is None else s["accuracy"] for s in (old, new)), None, DIFFERS, rule)


def scored_again(split: str, old: dict, new: dict, same: bool) -> Finding:
    """Weights scored twice. same: on the same kernel backend and kind of device, where every count must be the same."""
    if (fault := missing("scored again", split, old, new)) is not None:
        return fault
    apart = abs(new["correct"] - old["correct"])
    allowed = 0 if same else int(TOLERANCE * old["total"])
    rule = "every count the same" if same else f"another backend: within {TOLERANCE:.1%} of the items"
    verdict = EQUAL if not apart else AGREES if apart <= allowed else DIFFERS
    if apart:
        rule += f"; {new['correct']:,} of {new['total']:,} right here, {old['correct']:,} submitted"
    return Finding("scored again", split, old["accuracy"], new["accuracy"], None, verdict, rule)


def interval(split: str, old: dict, new: dict) -> Finding | None:
    """DIFFERS where the stated interval is not the one that the sequences give here; None where it is, or there are none to compare."""
    ends = [score[end] for score in (old, new) for end in ("low", "high")]
    if None in ends or missing("as stated", split, old, new) is not None:
        return None
    room = 0.2 * (new["high"] - new["low"]) + TOLERANCE + 1 / new["total"]
    if abs(ends[0] - ends[2]) <= room and abs(ends[1] - ends[3]) <= room:
        return None
    rule = "the row's interval is {:.4f} to {:.4f}, the sequences give {:.4f} to {:.4f}".format(*ends)
    return Finding("as stated", split, old["accuracy"], new["accuracy"], None, DIFFERS, rule)


def apart(old: dict, new: dict | None) -> bool:
    """Whether two scores of the same split have other counts."""
    return new is None or (old["correct"], old["total"]) != (new["correct"], new["total"])


def trained_again(split: str, old: dict, new: dict, spread: float | None = None) -> Finding:
    """One command trained twice.

    spread: the standard deviation of the accuracy over trainings that differ in their seeds alone, where the submission has several; another order
    of the same sums makes another training of the same kind, so both accuracies have it.
    """
    if (fault := missing("trained again", split, old, new)) is not None:
        return fault
    if not apart(old, new):
        return Finding("trained again", split, old["accuracy"], new["accuracy"], 0.0, EQUAL, "every count the same")
    error = (standard_error(old) ** 2 + standard_error(new) ** 2 + 2 * (spread or 0.0) ** 2) ** 0.5
    in_se = (new["accuracy"] - old["accuracy"]) / error
    counted = "test sequences" if spread is None else f"test sequences and the spread over trainings ({spread:.4f})"
    rule = f"within {GAP_LIMIT} standard errors, of {counted}"
    verdict = AGREES if abs(in_se) <= GAP_LIMIT else DIFFERS
    return Finding("trained again", split, old["accuracy"], new["accuracy"], in_se, verdict, rule)


def sealed_grammar(split: str, grammars: list[list[dict]], new: dict) -> Finding:
    """A training on the sealed grammar against those on the submitted grammars.

    grammars: for each submitted grammar seed the scores of its trainings. With two grammars or more, how grammars differ is part of the error. Only a
    lower score is a fault: LOWER beyond 4 standard errors.
    """
    means = [statistics.fmean(s["accuracy"] for s in scores) for scores in grammars]
    mean, many = statistics.fmean(means), len(means)
    square = standard_error(new) ** 2
    square += sum(standard_error(s) ** 2 / len(scores) ** 2 for scores in grammars for s in scores) / many**2
    rule = f"not below the mean over {many} grammar{'s' if many > 1 else ''} by more than {GAP_LIMIT} standard errors, of test sequences"
    if many > 1:  # holds the error of the sequences too, which a small sample of grammars may miss
        square = max(square, statistics.variance(means) * (1 + 1 / many))
        rule += " and of the choice of grammars"
    else:
        rule += "; with one grammar submitted, how grammars differ is unknown and not counted"
    in_se = (new["accuracy"] - mean) / square**0.5
    verdict = LOWER if in_se < -GAP_LIMIT else AGREES
    return Finding("sealed grammar", split, mean, new["accuracy"], in_se, verdict, rule)
