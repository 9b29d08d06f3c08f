"""Values as flags and files write them: YAML scalars without YAML 1.1's guesses, strict JSON, nothing doubled, recursive or without bounds."""

import json
import math
import re
from pathlib import Path

from .errors import InputError

LARGEST = 2**63 - 1  # of whole numbers: what a seed may be, and more than any other may mean


class Plain(str):
    """A YAML scalar without quotes."""


INT = re.compile(r"[+-]?(0|[1-9][0-9]*)")
FLOAT = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
NULL = ("", "~", "null", "none")
_GUESSED = re.compile(
    r"(?i:yes|no|on|off|y|n)|[+-]?0[0-9_]+|0[xob][0-9a-fA-F_]+|[0-9][0-9_]*_[0-9_]*|[+-]?[0-9]+(:[0-5]?[0-9])+|\d{4}-\d\d?-\d\d?([Tt ].*)?"
    r"|[+-]?\.(?i:inf|nan)|(?i:nan|[+-]?inf|infinity)"
)


def plain_value(text: str, where: str):
    """A value whose type no field names: JSON's numbers and words, else text; what YAML readers disagree about is refused."""
    if isinstance(text, str) and not isinstance(text, Plain):
        return text
    if text.lower() in ("", "~", "null"):
        return None
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    if INT.fullmatch(text):
        if len(text) > 20 or abs(int(text)) > LARGEST:
            raise InputError(f"{where}: {short(text)} is too large a whole number; at most {LARGEST}")
        return int(text)
    if _GUESSED.fullmatch(text):
        raise InputError(
            f"{where}: {short(str(text))!r} is read differently by different YAML readers; quote it if text is meant, or write true/false or a plain number"
        )
    if FLOAT.fullmatch(text):
        if not math.isfinite(float(text)):
            raise InputError(f"{where}: {short(text)} is too large a number")
        return float(text)
    return str(text)


def nested(value, where):
    """`value` with every plain scalar in it read by `plain_value`."""
    if isinstance(value, dict):
        return {str(k): nested(v, f"{where}.{k}") for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [nested(v, where) for v in value]
    return plain_value(value, where) if isinstance(value, Plain) else value


def short(text: str) -> str:
    """`text` for an error message: its beginning where it is long."""
    return text if len(text) <= 200 else f"{text[:60]}... ({len(text):,} characters)"


def read_json(text: str):
    """JSON from a flag or a file; ValueError for what is not strict: NaN, a key that stands twice, a nesting or a number without bounds."""

    def pairs(items):
        out = {}
        for key, value in items:
            if key in out:
                raise ValueError(f"the key {short(key)!r} stands twice")
            out[key] = value
        return out

    def whole(digits):
        if len(digits) > 80:  # a sealed seed, 256 bits, has 78
            raise ValueError(f"a whole number of {len(digits):,} digits is too large")
        return int(digits)

    def fraction(digits):
        if not math.isfinite(float(digits)):
            raise ValueError(f"{short(digits)} is too large a number")
        return float(digits)

    try:
        return json.loads(
            text, parse_constant=_no_constant, object_pairs_hook=pairs, parse_int=whole, parse_float=fraction
        )
    except RecursionError:
        raise ValueError("it nests too deeply") from None


def _no_constant(word):
    raise ValueError(f"{word} is not JSON")


def load_yaml(path) -> dict:
    """Read a YAML mapping as text, keeping whether a scalar was quoted; types come from the fields. Doubled keys and tags are refused."""
    import yaml

    try:
        node = yaml.compose(Path(path).read_text(encoding="utf-8"), Loader=yaml.SafeLoader)
    except RecursionError:
        raise InputError(f"{path} nests too deeply") from None
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(
            f"cannot read the configuration file {str(path)!r}: {getattr(error, 'strerror', None) or error}"
        ) from None
    except yaml.YAMLError as error:
        raise InputError(f"{path} is not valid YAML: {' '.join(str(error).split())}") from None
    if node is None:
        return {}
    if not isinstance(node, yaml.MappingNode):
        raise InputError(f"{path} must hold a mapping of argument names to values")
    return built(node, str(path))


def built(node, where, above=()):
    """The value of a composed YAML node, plain scalars as `Plain`. Doubled keys, tags and recursive aliases are refused."""
    import yaml

    if node in above:
        raise InputError(f"{where}: an alias such as *name stands inside the value that it names")
    if len(above) > 50:
        raise InputError(f"{where.split(':')[0]} nests too deeply")
    above = (*above, node)
    if isinstance(node, yaml.MappingNode):
        out = {}
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise InputError(f"{where}: keys must be names")
            if key.value in out:
                raise InputError(f"{where}: {short(key.value)!r} stands twice")
            out[key.value] = built(value, f"{where}: {key.value}", above)
        return out
    if isinstance(node, yaml.SequenceNode):
        return [built(v, where, above) for v in node.value]
    if node.tag.startswith("!") or node.tag.startswith("tag:yaml.org,2002:python"):
        raise InputError(f"{where}: tags such as {node.tag!r} are not allowed")
    return Plain(node.value) if node.style is None else str(node.value)
