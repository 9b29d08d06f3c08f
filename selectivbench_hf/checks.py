"""Checks of single values that grammars and tasks share; each failure is one sentence that names the value and what is allowed."""

import math
import numbers
import os

from .errors import InputError
from .values import read_json

MAX_DRAWS = 30_000_000  # (state, letter) pairs of one random grammar: about a second and half a gigabyte to draw
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


def random_law(letters, depth, density, num_start_states, seed, dirichlet, all_reachable) -> tuple:
    """Check the parameters of `Grammar.random` without drawing; returns (letters, depths) with one depth for each letter."""
    letters = whole("letters", letters, 1)
    if letters > MAX_DRAWS // letters:  # each has an instance; told before a list of them is made
        raise InputError(f"letters={letters:,} is too many: at most {MAX_DRAWS:,} possible edges can be drawn")
    depths = per_letter(letters, depth)
    if isinstance(density, bool) or not isinstance(density, numbers.Real) or not 0 < density <= 1:
        raise InputError(f"density must be above 0 and at most 1, got {density!r}; at 0 no state could reach `#`")
    if dirichlet is not None and (
        isinstance(dirichlet, bool) or not isinstance(dirichlet, numbers.Real) or not 0 < dirichlet < math.inf
    ):
        raise InputError(f"dirichlet must be None or a positive number, got {dirichlet!r}")
    if not isinstance(all_reachable, bool):
        raise InputError(f"all_reachable must be True or False, got {all_reachable!r}")
    states = sum(depths)
    whole("num_start_states", num_start_states, 1)
    if num_start_states > states:
        raise InputError(
            f"num_start_states={num_start_states} is more than the {states} states that can start a string "
            f"({letters} letters with {states} instances in all); lower it, or raise letters or depth"
        )
    whole("seed", seed)
    if states * letters > MAX_DRAWS:
        raise InputError(
            f"{letters} letters with {states} instances in all make {states:,} x {letters:,} possible edges; "
            f"at most {MAX_DRAWS:,} can be drawn: lower letters or depth"
        )
    return letters, depths


def per_letter(letters: int, depth) -> tuple[int, ...]:
    """The depth of each letter, from one number, one entry a letter, or None for `letters`."""
    if depth is None or is_whole(depth):
        return (whole("depth", letters if depth is None else depth, 1),) * letters
    depths = depth.tolist() if hasattr(depth, "tolist") else depth
    if not isinstance(depths, (list, tuple)):
        raise InputError(f"depth must be a whole number or one entry per letter, got {depth!r}")
    depths = tuple(whole("depth", d, 1) for d in depths)
    if len(depths) != letters:
        raise InputError(
            f"depth has {len(depths)} entries for {letters} letters; give one number or one entry per letter"
        )
    return depths


def json_object(kind: str, source):
    """The dict in `source`: a dict, JSON text, or the path of a file that holds it; `kind` names it in errors."""
    if isinstance(source, dict):
        return source
    if isinstance(source, os.PathLike) or (isinstance(source, str) and not source.lstrip().startswith(("{", "["))):
        if not str(source).strip():
            raise InputError(f"the {kind} is empty; give its JSON or the path of a file")
        try:
            with open(source, encoding="utf-8") as file:
                text = file.read()
        except (OSError, ValueError) as error:  # ValueError: not UTF-8, or a NUL in the name
            why = (
                "it is not UTF-8 text"
                if isinstance(error, UnicodeDecodeError)
                else getattr(error, "strerror", None) or error
            )
            raise InputError(f"cannot read the {kind} file {str(source)!r}: {why}") from None
    elif isinstance(source, (str, bytes)):
        text = source
    else:
        raise InputError(f"a {kind} must be a dict, JSON text or a file that holds it, got {type(source).__name__}")
    try:
        data = read_json(text)
    except ValueError as error:
        raise InputError(f"the {kind} is not valid JSON: {error}") from None
    if not isinstance(data, dict):
        raise InputError(f"the {kind}'s JSON must be an object, got {type(data).__name__}")
    return data


def listed(name: str, value):
    """`value` if it is a list or tuple (a NumPy array as a list), a whole number as a tuple of itself, else InputError."""
    if is_whole(value):
        return (value,)
    value = value.tolist() if hasattr(value, "tolist") else value
    if not isinstance(value, (list, tuple)):
        raise InputError(f"{name} must be a list of whole numbers, got {value!r}")
    return value


def read_gap_law(law) -> tuple:
    """(length, integer weight) pairs, ascending, in lowest terms, from a number of steps or a mapping (or the JSON text of one)."""
    given = law
    if isinstance(law, str):
        try:
            law = read_json(law)
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
