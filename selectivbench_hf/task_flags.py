"""The flags of `show` and `build` that are builder keywords: a help line for each, and how its text becomes a value."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable

from .errors import InputError

_WHOLE = re.compile(r"[+-]?(0|[1-9][0-9]{0,99})")
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")


def _refuse(name, text, allowed):
    return InputError(f"--{name} must be {allowed}, got {text!r}")


def _whole(name, text):
    if not _WHOLE.fullmatch(text):
        raise _refuse(name, text, "a whole number such as 8")
    return int(text)


def _number(name, text):
    if _WHOLE.fullmatch(text):
        return int(text)
    if not _NUMBER.fullmatch(text) or not math.isfinite(float(text)):
        raise _refuse(name, text, "a number such as 0.4")
    return float(text)


def _truth(name, text):
    if text.lower() not in ("true", "false"):
        raise _refuse(name, text, "true or false")
    return text.lower() == "true"


def _json(name, text, allowed):
    try:
        return json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        raise _refuse(name, text if len(text) < 80 else text[:77] + "...", allowed) from None


def _no_constant(word):
    raise ValueError(word)


def _depth(name, text):
    allowed = "a whole number such as 8, or one for each letter such as '[8, 7, 8]'"
    return _json(name, text, allowed) if text[:1] == "[" else _whole_of(name, text, allowed)


def _gap_law(name, text):
    allowed = 'a whole number of steps such as 3, or {length: integer weight} such as \'{"1": 1, "2": 3}\''
    return _json(name, text, allowed) if text[:1] == "{" else _whole_of(name, text, allowed)


def _gaps(name, texts):
    allowed = "whole numbers of steps such as 10 20 50, or a list such as '[10, 20, 50]'"
    if len(texts) == 1 and texts[0][:1] == "[":
        return _json(name, texts[0], allowed)
    return [_whole_of(name, text, allowed) for text in texts]


def _whole_of(name, text, allowed):
    if not _WHOLE.fullmatch(text):
        raise _refuse(name, text, allowed)
    return int(text)


def _word(name, text):
    return text


def _symbols(name, text):
    allowed = "a name such as digits, or a mapping such as '{\"dataset\": NAME}'"
    return _json(name, text, allowed) if text[:1] == "{" else text


def _grammar(name, text):
    if not text.strip():
        raise _refuse(name, text, "a grammar's JSON file, or its JSON")
    return text


# name -> (reads the text, what stands for the value in the help, help); in the order of TASK_KEYWORDS
FLAGS: dict[str, tuple[Callable, str, str]] = {
    "letters": (_whole, "N", "letters of the grammar, `#` not counted"),
    "depth": (_depth, "N", "instances of each letter: 8, or one number a letter: '[8, 7, ...]' (default: as many as letters)"),
    "density": (_number, "P", "probability of an edge, above 0 and at most 1 (catalogue: 0.4)"),
    "num_start_states": (_whole, "N", "states that a string can start in (catalogue: 4)"),
    "grammar_seed": (_whole, "N", "which random grammar (catalogue: 1)"),
    "dirichlet": (_number, "A", "unequal edge probabilities from a Dirichlet law, above 0 (catalogue: equal ones)"),
    "all_reachable": (_truth, "true|false", "only states that some string visits (catalogue: false)"),
    "min_string_length": (_whole, "N", "shortest string, its `#` counted (catalogue: 1)"),
    "sample_seed": (_whole, "N", "which sequences are drawn (catalogue: 1)"),
    "max_string_length": (_whole, "N", "longest string, its `#` counted (catalogue: 200; lite: 64)"),
    "num_items": (_whole, "N", "items of a sequence (catalogue: 200; lite: 64)"),
    "num_train": (_whole, "N", "training sequences (catalogue: 200000; lite: 20000)"),
    "num_validation": (_whole, "N", "validation sequences (catalogue: 1000)"),
    "num_test": (_whole, "N", "sequences of each test split (catalogue: 1000)"),
    "train_gap": (_gap_law, "GAP", "blank steps after an item in train and validation: 3, or lengths with weights: '{\"1\": 1, \"2\": 3}'"),
    "test_gaps": (_gaps, "N", "blank steps after an item in each test split: 10 20 50; the first is `test`, the others `test_gap_N`"),
    "noise": (_word, "NOISE", "none, uniform or gaussian (catalogue: none; noisy_gaps: uniform)"),
    "noise_scale": (_number, "X", "width of uniform noise, standard deviation of gaussian noise (noisy_gaps: 0.2)"),
    "distractor_rate": (_number, "P", "probability of a distractor after an item (nongrammatical_gaps: 0.1)"),
    "distractor_start": (_whole, "N", "first item with distractors (nongrammatical_gaps: 50; lite: 8)"),
    "grammar": (_grammar, "FILE.json", "a whole grammar instead of a random one (its JSON works too)"),
    "length": (_whole, "N", "recall tasks: steps of a sequence (mqar), or the longest string (copying)"),
    "num_pairs": (_whole, "N", "mqar: pairs of key and value"),
    "vocab_size": (_whole, "N", "mqar: symbols, an even number: half keys, half values (catalogue: 8192; mqar_lite: 256)"),
    "alpha": (_number, "A", "mqar: how late questions come: 0.01 mostly early, 1 uniform (catalogue: 0.01)"),
    "filler": (_word, "FILLER", "mqar: the other steps: clean (no key or value of the sequence), any, or zero (catalogue: clean)"),
    "symbols": (_symbols, "NAME|JSON", "how symbols are shown: one_hot, random_vectors, binary, digits, or a data set: '{\"dataset\": NAME, \"width\": 64}'"),
}  # fmt: skip


def add(parser) -> None:
    """One flag for each builder keyword, as in `load_dataset` and train.py."""
    from .tasks import TASK_KEYWORDS

    group = parser.add_argument_group(
        "builder keywords (default: the task's own; they enter its fingerprint; see the README)"
    )
    for name in TASK_KEYWORDS:
        _, metavar, line = FLAGS[name]
        group.add_argument(f"--{name}", metavar=metavar, nargs="+" if name == "test_gaps" else None, help=line)


def keywords(arguments) -> dict:
    """Builder keyword -> value of the flags that were given."""
    from .tasks import TASK_KEYWORDS

    given = {name: getattr(arguments, name) for name in TASK_KEYWORDS}
    return {name: FLAGS[name][0](name, value) for name, value in given.items() if value is not None}


def task(given: str, **keywords):
    """`get_task` for a command: whatever a file holds, one sentence."""
    from .tasks import get_task

    try:
        return get_task(given, **keywords)
    except (UnicodeDecodeError, RecursionError, OverflowError) as error:
        files = " or the grammar ".join(str(f) for f in (given, keywords.get("grammar")) if f is not None)
        why = {
            UnicodeDecodeError: "it is not UTF-8 text",
            RecursionError: "it is nested too deeply",
            OverflowError: "a number in it is too large",
        }
        raise InputError(f"cannot read the task {files}: {why[type(error)]}") from None
