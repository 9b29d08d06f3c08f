"""Checks of single values that grammars and tasks share; each failure is one sentence that names the value and what is allowed."""

import json
import math
import numbers

from .errors import InputError

MAX_GAP = 10_000
MAX_GAP_WEIGHTS = 1 << 20


def is_whole(value) -> bool:
    """Whether it is a whole number (of Python or NumPy, but no bool)."""
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def whole(name: str, value, least: int | None = None, most: int | None = None) -> int:
    """`value` as int if it is a whole number within the bounds, else InputError."""
    if is_whole(value) and (least is None or value >= least) and (most is None or value <= most):
        return int(value)
    if most is not None:
        span = f" from {least} to {most}"
    else:
        span = "" if least is None else f" of at least {least}"
    raise InputError(f"{name} must be a whole number{span}, got {value!r}")


def real(name: str, value, low: float, high: float) -> float:
    """`value` if it is a real number from `low` to `high` (NaN is not), else InputError."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real) or not low <= value <= high:
        raise InputError(f"{name} must be from {low} to {high}, got {value!r}")
    return value


def listed(name: str, value):
    """`value` if it is a list or tuple, a whole number as a tuple of itself, else InputError."""
    if is_whole(value):
        return (value,)
    if not isinstance(value, (list, tuple)):
        raise InputError(f"{name} must be a list of whole numbers, got {value!r}")
    return value


def read_gap_law(law) -> tuple:
    """(length, integer weight) pairs, ascending, in lowest terms, from a number of steps or a mapping (or the JSON text of one)."""
    given = law
    if isinstance(law, str):
        try:
            law = json.loads(law)
        except ValueError:
            law = None
    if is_whole(law):
        law = {law: 1}
    if isinstance(law, tuple) and all(isinstance(p, tuple) and len(p) == 2 for p in law):
        law = dict(law)
    try:
        pairs = sorted((int(k), w) for k, w in law.items())
        if len(dict(pairs)) != len(pairs) or any(str(int(k)) != str(k).strip() for k in law):
            raise ValueError
    except (AttributeError, TypeError, ValueError):
        raise InputError(f"train_gap must be a number of steps or {{length: integer weight}}, got {given!r}") from None
    if not pairs or any(not is_whole(w) or w < 1 for _, w in pairs):
        raise InputError(f"train_gap needs whole weights of at least 1, got {given!r}")
    if pairs[0][0] < 0 or pairs[-1][0] > MAX_GAP or sum(w for _, w in pairs) > MAX_GAP_WEIGHTS:
        raise InputError(
            f"train_gap lengths must be from 0 to {MAX_GAP} and the weights sum to at most {MAX_GAP_WEIGHTS}, got {given!r}"
        )
    common = math.gcd(*(w for _, w in pairs))
    return tuple((k, int(w) // common) for k, w in pairs)
