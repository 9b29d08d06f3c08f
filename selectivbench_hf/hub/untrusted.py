"""Reading what comes from outside: bounded, strict, and never more than data. Everything that is refused is one InputError.

A file is read up to a limit; YAML is JSON's subset of it (no tags, anchors, aliases or merge keys); text is one visible line; a path stays inside its
repository; a safetensors file is checked by its header before anything loads it. Messages repeat at most `SHOWN` characters of what was given, escaped.
"""

from __future__ import annotations

import json
import os
import re
import stat
import unicodedata
from collections.abc import Iterable
from pathlib import Path

from ..errors import InputError, unknown
from ..values import LARGEST, built, nested, read_json

SHOWN = 60
JSON_BYTES = 4 << 20
YAML_BYTES = 64 << 10  # PyYAML reads about 100 kB a second
DEPTH = 12
NODES = 200_000
YAML_NODES = 5_000
HEADER_BYTES = 4 << 20  # of a safetensors file: about 30,000 tensors
DTYPES = {  # of safetensors -> bits
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E5M2", "F8_E4M3"), 8),
    **dict.fromkeys(("U16", "I16", "F16", "BF16"), 16),
    **dict.fromkeys(("U32", "I32", "F32"), 32),
    **dict.fromkeys(("U64", "I64", "F64", "C64"), 64),
}

_HIDDEN = frozenset(
    "\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0"
)  # invisible, though Unicode counts them as letters or marks
_PART = re.compile(r"[A-Za-z0-9._+=-]{1,128}")
_RESERVED = re.compile(r"(?i)(con|prn|aux|nul|com[0-9]|lpt[0-9])(\..*)?")  # of Windows, where a clone may land


def shown(value) -> str:
    """The beginning of something hostile for a message: text in quotes and printable ASCII, a number or a word as it is, else its type."""
    if value is None or isinstance(value, bool):
        return str(value)
    if isinstance(value, (int, float)):
        return f"{value:.6g}" if isinstance(value, float) or abs(value) < 10**15 else "a huge whole number"
    if not isinstance(value, str):
        return f"a {type(value).__name__}"
    cut = ascii(value[:SHOWN])[1:-1]
    return f"'{cut[:SHOWN]}'" + ("..." if len(value) > SHOWN or len(cut) > SHOWN else "")


# -- files ---------------------------------------------------------------------------------------------------------------


def read_bytes(path, limit: int) -> bytes:
    """The bytes of a regular file of at most `limit` bytes; a larger one is refused without being read."""
    try:
        with open(path, "rb", opener=_opener) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise InputError(f"{path} is no regular file")
            if (size := os.fstat(file.fileno()).st_size) > limit:
                raise InputError(f"{path} has {size:,} bytes; at most {limit:,} are read")
            data = file.read(limit + 1)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        if isinstance(error, InputError):
            raise
        raise InputError(f"cannot read {shown(str(path))}: {getattr(error, 'strerror', None) or error}") from None
    if len(data) > limit:  # it grew meanwhile
        raise InputError(f"{path} has more than {limit:,} bytes, which is the most that is read")
    return data


def _opener(path, flags):
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))  # a FIFO without a writer must not hold us up


def _decoded(text, where: str, limit: int) -> str:
    """Text of at most `limit` bytes, from text or from UTF-8."""
    if not isinstance(text, (str, bytes)):
        raise InputError(f"{where} must be text, got {shown(text)}")
    if len(text) > limit or (isinstance(text, str) and len(text) * 4 > limit and _utf8_length(text) > limit):
        raise InputError(f"{where} is longer than the {limit:,} bytes that are read")
    try:
        return text.decode("utf-8") if isinstance(text, bytes) else text
    except UnicodeDecodeError as error:
        raise InputError(f"{where} is not UTF-8 text (byte {error.start:,})") from None


def _utf8_length(text: str) -> int:
    return len(text.encode("utf-8", errors="replace"))


# -- JSON and YAML -------------------------------------------------------------------------------------------------------


def strict_json(text, where: str, limit: int = JSON_BYTES):
    """The value of JSON text (str or UTF-8 bytes): no NaN, no key twice, whole numbers of 64 bits, at most `DEPTH` levels and `NODES` values."""
    text = _decoded(text, where, limit)
    try:
        value = read_json(text)
    except ValueError as error:
        raise InputError(f"{where} is no strict JSON: {_message(error)}") from None
    return bounded(value, where)


def strict_yaml(text, where: str, limit: int = YAML_BYTES, nodes: int = YAML_NODES):
    """The value of one YAML document (str or UTF-8 bytes), types by `values.plain_value`: what YAML readers disagree about, such as a date
    without quotes, is refused; so are tags, anchors, aliases, merge keys and keys that stand twice."""
    import yaml

    text = _decoded(text, where, limit)
    try:
        loader = _loader(nodes)(text)
        try:
            node = loader.get_single_node()
        finally:
            loader.dispose()
        value = None if node is None else nested(built(node, where), where)
    except InputError as error:
        raise InputError(f"{where}: {_message(str(error).removeprefix(where).lstrip('.: '))}") from None
    except yaml.MarkedYAMLError as error:
        line = f", line {error.problem_mark.line + 1}" if error.problem_mark else ""
        raise InputError(f"{where} is no valid YAML: {_message(error.problem)}{line}") from None
    except (yaml.YAMLError, ValueError, OverflowError, RecursionError) as error:  # "\Uffffffff" is an OverflowError
        raise InputError(f"{where} is no valid YAML: {_message(getattr(error, 'reason', error))}") from None
    return bounded(value, where)


def _message(error) -> str:
    """The text of a parser's error, which may repeat the file."""
    text = "".join(c if " " <= c <= "~" else ascii(c)[1:-1] for c in str(error)[: 8 * SHOWN])
    return text[: 8 * SHOWN]


def _loader(most: int):
    """SafeLoader that composes plain nodes alone."""
    import yaml

    class Loader(yaml.SafeLoader):
        level = nodes = 0

        def compose_node(self, parent, index):
            event = self.peek_event()
            line = f"line {event.start_mark.line + 1}"
            if isinstance(event, yaml.AliasEvent) or event.anchor is not None:
                raise InputError(f"{line}: anchors (&) and aliases (*) are not allowed")
            if event.tag is not None:
                raise InputError(f"{line}: tags such as {shown(event.tag)} are not allowed")
            self.level, self.nodes = self.level + 1, self.nodes + 1
            if self.level > DEPTH:
                raise InputError(f"{line}: it nests deeper than {DEPTH} levels")
            if self.nodes > most:
                raise InputError(f"{line}: it has more than {most:,} values")
            node = super().compose_node(parent, index)
            self.level -= 1
            if node.tag == "tag:yaml.org,2002:merge":
                raise InputError(f"{line}: merge keys (<<) are not allowed")
            return node

    return Loader


def bounded(value, where: str):
    """`value`, made of JSON's types, if it keeps the bounds that a parser does not know: depth, number of values, size of whole numbers, no lone
    surrogates."""
    level, nodes = [value], 0
    for _ in range(DEPTH):
        below = []
        for item in level:
            kind = type(item)
            if kind is str:
                if not item.isascii() and any("\ud800" <= c <= "\udfff" for c in item):
                    raise InputError(f"{where} holds text that is no Unicode: {shown(item)}")
            elif kind is dict:
                below += item
                below += item.values()
            elif kind is list:
                below += item
            elif kind is int and abs(item) > LARGEST:
                raise InputError(f"{where} holds a whole number beyond {LARGEST}, which is the largest")
        nodes += len(below)
        if nodes > NODES:
            raise InputError(f"{where} has more than {NODES:,} values")
        level = below
    if level:
        raise InputError(f"{where} nests deeper than {DEPTH} levels")
    return value


# -- text and paths ------------------------------------------------------------------------------------------------------


def keys(value, known: Iterable[str], where: str, needed: Iterable[str] | None = None) -> dict:
    """`value` if it is a mapping with no other keys than `known`, and all those of `needed` (default: of `known`); else an InputError."""
    known = list(known)
    if not isinstance(value, dict):
        raise InputError(f"{where} must be a mapping with {', '.join(known)}, got {shown(value)}")
    for name in known if needed is None else needed:
        if name not in value:
            raise InputError(f"{where} lacks {name!r}")
    for name in value:
        if name not in known:
            raise unknown("key", shown(name)[1:-1], known, where)
    return value


def plain_text(value, where: str, most: int) -> str:
    """`value` if it is one line of 1 to `most` visible characters, without `<` and `>`, spaces but the ordinary one, or what turns the direction of text."""
    if not isinstance(value, str):
        raise InputError(f"{where} must be text, got {shown(value)}")
    if not value.strip():
        raise InputError(f"{where} is empty")
    if len(value) > most:
        raise InputError(f"{where} has {len(value):,} characters; at most {most:,} are allowed")
    if "<" in value or ">" in value:
        raise InputError(f"{where} must not hold '<' or '>', got {shown(value)}")
    if value != value.strip():
        raise InputError(f"{where} begins or ends with a space: {shown(value)}")
    if not (value.isascii() and value.isprintable()):
        _check_unicode(value, where)
    return value


def _check_unicode(value: str, where: str) -> None:
    marks = 0
    for letter in value:
        kind = unicodedata.category(letter)
        marks = marks + 1 if kind in ("Mn", "Me") else 0
        if not letter.isprintable() or letter in _HIDDEN or "\ufe00" <= letter <= "\ufe0f" or letter >= "\U000e0100":
            raise InputError(f"{where} holds the character U+{ord(letter):04X}, which is not visible text")
        if marks > 2:
            raise InputError(f"{where} stacks more than two marks on a letter: {shown(value)}")


def safe_name(path, where: str) -> str:
    """`path` if it is a file's path inside a repository: parts of A-Z a-z 0-9 . _ + = - joined by '/', none of them '.', '..' or '.git'."""
    if not isinstance(path, str):
        raise InputError(f"{where} must be a path inside the repository, got {shown(path)}")
    parts = path.split("/")
    for part in parts:
        if not _PART.fullmatch(part) or part.endswith(".") or part.lower() == ".git" or _RESERVED.fullmatch(part):
            raise InputError(
                f"{where} must be a path inside the repository, of letters, digits and . _ + = - between single '/', got {shown(path)}"
            )
    if len(path) > 255 or len(parts) > 8:
        raise InputError(f"{where} is too long a path: {shown(path)}; at most 255 characters and 8 parts are allowed")
    return path


# -- safetensors ---------------------------------------------------------------------------------------------------------


def check_safetensors(path, limit: int) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Tensor name -> (dtype, shape) of a safetensors file of at most `limit` bytes, from its header alone.

    The header must describe the file to the byte: known dtypes, offsets without gap or overlap up to the end, at most 8 axes.
    """
    path = Path(path)
    try:
        size = path.stat().st_size
        if not path.is_file():
            raise InputError(f"{path} is no regular file")
        if size > limit:
            raise InputError(f"{path} has {size:,} bytes; at most {limit:,} are allowed")
        with open(path, "rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if size < 10 or length > size - 8:
                raise InputError(f"{path} is no safetensors file: its header does not fit into it")
            if length > HEADER_BYTES:
                raise InputError(f"{path} has a header of {length:,} bytes; at most {HEADER_BYTES:,} are allowed")
            header = file.read(length)
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}") from None
    table = strict_json(header, f"the header of {path}", HEADER_BYTES)
    if not isinstance(table, dict):
        raise InputError(f"the header of {path} is no JSON object")
    _check_metadata(table.pop("__metadata__", {}), path)
    out, places = {}, []
    for name, entry in table.items():
        where = f"the tensor {shown(name)} of {path}"
        plain_text(name, f"a tensor's name in {path}", 300)
        places.append(_place(entry, where))
        out[name] = (entry["dtype"], tuple(entry["shape"]))
    end = 0
    for start, stop in sorted(places):
        if start != end:
            raise InputError(f"the tensors of {path} overlap or leave gaps at byte {min(start, end):,}")
        end = stop
    if end != size - 8 - length:
        raise InputError(f"the tensors of {path} end at byte {end:,} of {size - 8 - length:,}")
    return out


def _check_metadata(table, path) -> None:
    if not isinstance(table, dict) or not all(isinstance(v, str) for v in table.values()):
        raise InputError(f"the metadata of {path} must be text by name")
    if len(json.dumps(table)) > 4096:
        raise InputError(f"the metadata of {path} is longer than 4,096 characters")


def _place(entry, where) -> tuple[int, int]:
    """The bytes of a tensor, (first, end), if its entry is sound."""

    def whole_list(value, most):
        return isinstance(value, list) and len(value) <= most and all(type(n) is int and n >= 0 for n in value)

    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        raise InputError(f"{where} must have dtype, shape and data_offsets, and nothing else")
    if not isinstance(entry["dtype"], str) or entry["dtype"] not in DTYPES:
        raise InputError(f"{where} has the unknown dtype {shown(entry['dtype'])}; allowed: {', '.join(DTYPES)}")
    if (
        not whole_list(entry["shape"], 8)
        or not whole_list(entry["data_offsets"], 2)
        or len(entry["data_offsets"]) != 2
    ):
        raise InputError(f"{where} must have a shape of at most 8 whole numbers and two data_offsets")
    count = DTYPES[entry["dtype"]] // 8
    for n in entry["shape"]:
        count *= n
    start, stop = entry["data_offsets"]
    if stop - start != count:
        raise InputError(
            f"{where} has {stop - start:,} bytes where its shape needs {count if count < 1 << 62 else 'far more'}"
        )
    return start, stop
