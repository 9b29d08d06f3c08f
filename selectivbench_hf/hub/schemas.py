"""The part of JSON Schema (2020-12) that our own schemas use, checked strictly and quickly, with errors that repeat little of what was given.

Stricter than the standard in three ways: 1.0 is no whole number, text must be `untrusted.plain_text`, and a text with contentMediaType
application/json is parsed and held to its contentSchema. Beside each pattern stands what it means in words, as its $comment.
"""

from __future__ import annotations

import functools
import json
import math
import re
from pathlib import Path

from ..errors import InputError, unknown
from .untrusted import SHOWN, plain_text, shown, strict_json

_TYPES = {
    "object": (dict, "an object"),
    "array": (list, "a list"),
    "string": (str, "text"),
    "integer": (int, "a whole number"),
    "number": (float, "a number"),
    "boolean": (bool, "true or false"),
    "null": (type(None), "null"),
}
_pattern = functools.cache(re.compile)


@functools.cache
def load(name: str) -> dict:
    """The schema schemas/NAME.schema.json."""
    return json.loads((Path(__file__).parents[1] / "schemas" / f"{name}.schema.json").read_text(encoding="utf-8"))


def check(value, schema: dict, where: str, root: dict):
    """`value` with whole numbers made floats where a number is asked for, and JSON texts left as they are; InputError for the first fault.

    root: the schema that "#/$defs/NAME" points into.
    """
    if "$ref" in schema:
        return check(value, root["$defs"][schema["$ref"].rpartition("/")[2]], where, root)
    if "const" in schema and (type(value) is not type(schema["const"]) or value != schema["const"]):
        raise InputError(f"{where} must be {schema['const']!r}, got {shown(value)}")
    if "type" in schema:
        value = _typed(value, schema["type"], where)
    if value is None and "type" in schema:  # which the type has let pass
        return value
    if "enum" in schema and (not isinstance(value, str) or value not in schema["enum"]):
        allowed = [word for word in schema["enum"] if word is not None]
        raise (
            unknown("value", value[:SHOWN], allowed, where)
            if isinstance(value, str)
            else InputError(f"{where} must be one of {', '.join(allowed)}, got {shown(value)}")
        )
    if isinstance(value, str):
        return _text(value, schema, where, root)
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        low, high = schema.get("minimum"), schema.get("maximum")
        if (low is not None and value < low) or (high is not None and value > high):
            span = f"at least {low:,}" if high is None else f"from {low:,} to {high:,}"
            raise InputError(f"{where} must be {span}, got {shown(value)}")
    elif isinstance(value, list):
        if len(value) > (most := schema.get("maxItems", len(value))):
            raise InputError(f"{where} has {len(value):,} entries; at most {most:,} are allowed")
        return [check(v, schema.get("items", {}), f"entry {i} of {where}", root) for i, v in enumerate(value, 1)]
    elif isinstance(value, dict):
        return _object(value, schema, where, root)
    return value


def _typed(value, types, where):
    types = (types,) if isinstance(types, str) else types
    kind = type(value)
    for name in types:
        if kind is _TYPES[name][0] and (kind is not float or math.isfinite(value)):
            return value
    if kind is int and "number" in types and abs(value) < 1 << 53:
        return float(value)
    raise InputError(f"{where} must be {' or '.join(_TYPES[t][1] for t in types)}, got {shown(value)}")


def _text(value, schema, where, root):
    most = schema.get("maxLength", 500)
    if schema.get("contentMediaType") == "application/json":
        parse(value, schema, where, root)
        return value
    plain_text(value, where, most)
    if "pattern" in schema and not _pattern(schema["pattern"]).search(value):
        raise InputError(f"{where} must be {schema['$comment']}, got {shown(value)}")
    return value


def parse(text: str, schema: dict, where: str, root: dict):
    """The checked value of a JSON text whose schema has contentMediaType, maxLength and contentSchema."""
    if len(text) > schema["maxLength"]:
        raise InputError(f"{where} has {len(text):,} characters; at most {schema['maxLength']:,} are allowed")
    value = strict_json(text, where)
    if "\\" in text or "<" in text or ">" in text or not (text.isascii() and text.isprintable()):
        _visible(value, where)
    return check(value, schema["contentSchema"], where, root)


def _visible(value, where):
    """InputError where a text inside of JSON is none that may be shown."""
    if isinstance(value, dict):
        for key, inner in value.items():
            _visible(key, where)
            _visible(inner, where)
    elif isinstance(value, list):
        for inner in value:
            _visible(inner, where)
    elif isinstance(value, str) and value.strip():
        plain_text(value.strip(" "), f"a text in {where}", len(value))


def _object(value, schema, where, root):
    known, others = schema.get("properties", {}), schema.get("additionalProperties", {})
    for name in schema.get("required", ()):
        if name not in value:
            raise InputError(f"{where} lacks the field {name!r}")
    pattern = schema.get("propertyNames", {}).get("pattern")
    out = {
        name: check(value[name], inner, f"{name} of {where}", root) for name, inner in known.items() if name in value
    }
    if len(out) == len(value):
        return out
    if others == {} and pattern is None:
        return out | {name: inner for name, inner in value.items() if name not in known}
    for name, inner in value.items():
        if name in known:
            continue
        if not isinstance(name, str):
            raise InputError(f"{where} has a field whose name is no text")
        if others is False:
            raise unknown("field", shown(name)[1:-1], known, where)
        if pattern and not _pattern(pattern).search(plain_text(name, f"a name in {where}", 100)):
            raise InputError(
                f"{where} has the entry {shown(name)}; names must be {schema['propertyNames']['$comment']}"
            )
        out[name] = check(inner, others, f"{shown(name)} of {where}", root)
    return out
