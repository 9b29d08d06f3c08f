"""Files, text and paths from outside: bounded, plain data, one sentence for everything else."""

import json
import os
import struct
import time

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from selectivbench_hf.errors import InputError
from selectivbench_hf.hub.untrusted import (
    DEPTH,
    HEADER_BYTES,
    JSON_BYTES,
    YAML_BYTES,
    check_safetensors,
    plain_text,
    read_bytes,
    safe_name,
    shown,
    strict_json,
    strict_yaml,
)

BOMB = "a: &a [x,x,x,x,x,x,x,x,x]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a,*a]\nc: &c [*b,*b,*b,*b,*b,*b,*b,*b,*b]\n"


def refused(function, *arguments) -> str:
    """The one sentence with which something is refused: printable ASCII, and short whatever was given."""
    with pytest.raises(InputError) as caught:
        function(*arguments)
    message = str(caught.value)
    assert message.isascii() and message.isprintable() and len(message) < 600, message
    return message


# -- YAML and JSON -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (BOMB, "line 1: anchors (&) and aliases (*) are not allowed"),
        (
            "a: !!python/object/apply:os.system [echo]",
            "tags such as 'tag:yaml.org,2002:python/object/apply:os.system'",
        ),
        ("a: !!str 5", "tags such as"),
        ("a: !x 5", "tags such as"),
        ("<<: {a: 1}", "merge keys (<<) are not allowed"),
        ("a: 1\na: 2", "'a' stands twice"),
        ('"a": 1\na: 2', "'a' stands twice"),
        ("date: 2026-11-30", "quote it"),
        ("v: .inf", "quote it"),
        ("v: .NaN", "quote it"),
        ("v: nan", "quote it"),
        ("v: 1e999", "too large a number"),
        ("v: " + "9" * 5_000, "too large a whole number"),
        ("v: yes", "quote it"),
        ("v: 0x10", "quote it"),
        ("v: 1_000", "quote it"),
        ("v: 12:30", "quote it"),
        ("[" * 10_000, f"nests deeper than {DEPTH} levels"),
        ("- " * 10_000 + "x", f"nests deeper than {DEPTH} levels"),
        ("[" + "1," * 6_000 + "]", "more than 5,000 values"),
        ("a: 1\n---\nb: 2", "found another document"),
        ("? [a, b]\n: c", "keys must be names"),
        ('a: "\\Uffffffff"', "no valid YAML"),
        ('a: "\\ud800"', "no Unicode"),
        ("%YAML " + "9" * 5_000 + ".1\n---\na", "no valid YAML"),
        ("a: \x00", "special characters are not allowed"),
        ("a: [", "line 1"),
        ("\t- a", "line 1"),
        (b"a: \xff", "not UTF-8"),
        ("a" * (YAML_BYTES + 1), "longer than the 65,536 bytes"),
        ("\u00e9" * (YAML_BYTES // 2 + 1), "longer than the 65,536 bytes"),
        ("k" * 900 + ": 1\n" + "k" * 900 + ": 2", "stands twice"),
        (5, "must be text"),
    ],
)
def test_yaml_that_is_refused(text, told):
    started = time.perf_counter()
    assert told in refused(strict_yaml, text, "results.yaml")
    assert time.perf_counter() - started < 5


def test_yaml_that_is_read():
    text = "- dataset: {id: a/b, revision: 'abc'}\n  value: 73.25\n  date: '2026-11-30'\n  n: [1, true, null, x y]\n# done\n"
    assert strict_yaml(text, "f") == [
        {
            "dataset": {"id": "a/b", "revision": "abc"},
            "value": 73.25,
            "date": "2026-11-30",
            "n": [1, True, None, "x y"],
        }
    ]
    assert strict_yaml("", "f") is None


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[NaN]", "NaN is not JSON"),
        ("-Infinity", "not JSON"),
        ("1e999", "too large a number"),
        ("9" * 19, "beyond 9223372036854775807"),
        ("9" * 100_000, "100,000 digits"),
        ('{"a": 1, "a": 2}', "'a' stands twice"),
        ('{"a": 1, "\\u0061": 2}', "'a' stands twice"),
        ("[" * 10_000 + "]" * 10_000, "nests too deeply"),
        ("[" * (DEPTH + 1) + "]" * (DEPTH + 1), "nests deeper"),
        ('["\\ud800"]', "no Unicode"),
        ('{"\\udfff": 1}', "no Unicode"),
        ("[" + "1," * 200_001 + "1]", "more than 200,000 values"),
        (b"\xff\xfe{}", "not UTF-8"),
        (b"\xef\xbb\xbf{}", "BOM"),
        ("", "Expecting value"),
        ('{"a": 1', "no strict JSON"),
        ("{} {}", "Extra data"),
        (" " * (JSON_BYTES + 1), "longer than"),
        ('{"' + "\u202e" * 5_000 + '":1,"' + "\u202e" * 5_000 + '":2}', "stands twice"),
    ],
)
def test_json_that_is_refused(text, told):
    assert told in refused(strict_json, text, "row.json")


def test_json_that_is_read():
    value = {"a": [1, 2.5, True, None, "\u540d\u524d"], "b": {"c": 2**63 - 1}}
    assert strict_json(json.dumps(value), "f") == value
    assert strict_json(json.dumps(value).encode(), "f") == value


anything = st.one_of(
    st.text(max_size=60),
    st.binary(max_size=60),
    st.text("[]{}:,-?!&*#|>'\"%@`\\ \n\tan0.:e~<", max_size=80),
)


@settings(deadline=None, max_examples=300)
@given(anything)
@example("a: !!binary =")
@example("\x85")
def test_nothing_but_an_input_error_comes_out_of_text(text):
    for read in (strict_yaml, strict_json):
        try:
            value = read(text, "f")
        except InputError as error:
            assert len(str(error)) < 600
        else:  # data alone, and such that strict JSON can hold it
            assert strict_json(json.dumps(value, allow_nan=False), "f") == value


# -- text and paths ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("<script>alert(1)</script>", "'<' or '>'"),
        ("a\u0000b", "U+0000"),
        ("a\nb", "U+000A"),
        ("a\u202egnp.exe", "U+202E"),
        ("a\u2066b", "U+2066"),
        ("a\u200bb", "U+200B"),
        ("a\ufeffb", "U+FEFF"),
        ("a\u00adb", "U+00AD"),
        ("a\u00a0b", "U+00A0"),
        ("a\u2028b", "U+2028"),
        ("\u3164", "U+3164"),
        ("a\ufe0fb", "U+FE0F"),
        ("a\ue000b", "U+E000"),
        ("a\ud800b", "U+D800"),
        ("a" + "\u0301" * 3, "more than two marks"),
        ("x" * 101, "101 characters"),
        ("", "is empty"),
        ("  ", "is empty"),
        (" a", "begins or ends with a space"),
        (5, "must be text, got 5"),
        (True, "must be text, got True"),
        (None, "must be text, got None"),
        (["a"], "must be text, got a list"),
    ],
)
def test_text_that_is_refused(text, told):
    assert told in refused(plain_text, text, "name", 100)


@pytest.mark.parametrize(
    "text", ["GLA (ours), 2 layers & more", "\u540d\u524d", "Zo\u00eb", "e\u0301", "\U0001f44d", "a'b\"c"]
)
def test_text_that_is_taken(text):
    assert plain_text(text, "name", 100) == text


@settings(deadline=None, max_examples=200)
@given(st.text(max_size=130))
def test_text_that_is_taken_is_visible(text):
    try:
        taken = plain_text(text, "name", 100)
    except InputError:
        return
    assert taken == text and taken.isprintable() and not set(taken) & set("<>\n\r\t\x00\u202e\u200b")
    taken.encode()


@pytest.mark.parametrize(
    "path",
    [
        "../x", "a/../../x", "..", ".", "a/./b", "/etc/passwd", "a//b", "a/", "", "a\\b", "..\\x", "C:/x", "C:x", "~/x", "a\x00b", "a\nb", "a b",
        "\u202ea", "runs/<b>", ".git/config", "a/.GIT/hooks", "con", "a/NUL.txt", "a.", "x" * 300, "/".join("a" * 9), "a%2e%2e/b", None, 5,
    ],
)  # fmt: skip
def test_paths_that_are_refused(path):
    refused(safe_name, path, "file")


@pytest.mark.parametrize("path", [".eval_results/selectivbench.yaml", "runs/ab-12/model.safetensors", "README.md"])
def test_paths_that_are_taken(path):
    assert safe_name(path, "file") == path


@settings(deadline=None, max_examples=200)
@given(st.text("a./\\.~:-\x00 ", max_size=20))
def test_a_path_that_is_taken_stays_inside(path):
    try:
        safe_name(path, "file")
    except InputError:
        return
    assert os.path.normpath(os.path.join("/root/x", path)) == "/root/x/" + path


def test_what_a_message_repeats_is_short_and_escaped():
    assert shown("\u202e<b>") == r"'\u202e<b>'"
    assert len(shown("\u202e" * 10_000)) < 70 and shown("a" * 100) == "'" + "a" * 60 + "'..."
    assert shown(10**5000) == "a huge whole number"
    assert shown({"a": "b" * 1000}) == "a dict"


# -- files ---------------------------------------------------------------------------------------------------------------


def test_files_are_read_up_to_a_limit(tmp_path):
    file = tmp_path / "f"
    file.write_bytes(b"abc")
    assert read_bytes(file, 3) == b"abc"
    assert "3 bytes; at most 2" in refused(read_bytes, file, 2)
    with open(tmp_path / "large", "wb") as large:
        large.truncate(50 << 20)  # holes: nothing is written, and nothing must be read
    started = time.perf_counter()
    assert "at most 1,024 are read" in refused(read_bytes, tmp_path / "large", 1024)
    assert time.perf_counter() - started < 1
    assert "No such file" in refused(read_bytes, tmp_path / "absent", 10)
    assert "directory" in refused(read_bytes, tmp_path, 10)
    assert "null byte" in refused(read_bytes, "a\x00b", 10)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no FIFOs")
def test_what_is_no_file_does_not_hold_us_up(tmp_path):
    os.mkfifo(tmp_path / "fifo")
    assert "no regular file" in refused(read_bytes, tmp_path / "fifo", 10)
    assert "no regular file" in refused(check_safetensors, tmp_path / "fifo", 10)


# -- safetensors ---------------------------------------------------------------------------------------------------------


def packed(header, data: bytes = b"", length: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def tensor(dtype="F32", shape=(2,), offsets=(0, 8), **more):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets), **more}


def test_safetensors_that_its_own_library_writes(tmp_path):
    from safetensors.numpy import save_file

    arrays = {
        "a.weight": np.zeros((3, 4), np.float32),
        "b": np.ones((), np.int16),
        "c": np.zeros((0, 5), np.uint8),
        "d": np.zeros(7, bool),
    }
    save_file(arrays, tmp_path / "m.safetensors", metadata={"format": "pt"})
    found = check_safetensors(tmp_path / "m.safetensors", 1 << 20)
    assert found == {"a.weight": ("F32", (3, 4)), "b": ("I16", ()), "c": ("U8", (0, 5)), "d": ("BOOL", (7,))}
    size = (tmp_path / "m.safetensors").stat().st_size
    assert f"{size:,} bytes; at most {size - 1:,}" in refused(check_safetensors, tmp_path / "m.safetensors", size - 1)


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"", "does not fit"),
        (b"\x80\x04K\x05.", "does not fit"),  # a pickle
        (packed({"a": tensor()}, bytes(8), length=1 << 60), "does not fit"),
        (packed({"a": tensor()}, bytes(8), length=1000), "does not fit"),
        (struct.pack("<Q", HEADER_BYTES + 1) + b"{" + b" " * (HEADER_BYTES + 10), "a header of 4,194,305 bytes"),
        (packed(b"[1]"), "no JSON object"),
        (packed(b"{" * 20_000), "no strict JSON"),
        (packed(b'{"a":' + b"[" * 50_000), "nests too deeply"),
        (packed(b'{"a": NaN}'), "NaN is not JSON"),
        (packed(b'{"a": 1, "a": 1}'), "stands twice"),
        (packed({"a": 5}), "dtype, shape and data_offsets"),
        (packed({"a": tensor(more=1)}, bytes(8)), "nothing else"),
        (packed({"a": tensor("object")}, bytes(8)), "unknown dtype 'object'"),
        (packed({"a": tensor(["F32"])}, bytes(8)), "unknown dtype a list"),
        (packed({"a": tensor(shape=(3,))}, bytes(8)), "has 8 bytes where its shape needs 12"),
        (packed({"a": tensor(shape=(2**40, 2**40), offsets=(0, 8))}, bytes(8)), "far more"),
        (packed({"a": tensor(shape=(-2, -1))}, bytes(8)), "whole numbers"),
        (packed({"a": tensor(shape=(True, 2))}, bytes(8)), "whole numbers"),
        (packed({"a": tensor(shape=(2.0,))}, bytes(8)), "whole numbers"),
        (packed({"a": tensor(shape=(1,) * 9)}, bytes(4)), "at most 8"),
        (packed({"a": tensor(offsets=(8, 0))}, bytes(8)), "has -8 bytes"),
        (packed({"a": tensor(), "b": tensor()}, bytes(8)), "overlap or leave gaps"),
        (packed({"a": tensor(), "b": tensor(offsets=(16, 24))}, bytes(24)), "overlap or leave gaps at byte 8"),
        (packed({"a": tensor()}, bytes(9)), "end at byte 8 of 9"),
        (packed({"a": tensor()}, bytes(4)), "end at byte 8 of 4"),
        (packed({"<b>": tensor()}, bytes(8)), "'<' or '>'"),
        (packed({"a\u202e": tensor()}, bytes(8)), "U+202E"),
        (packed({"__metadata__": {"a": 1}}), "must be text by name"),
        (packed({"__metadata__": [1]}), "must be text by name"),
        (packed({"__metadata__": {"a": "b" * 5000}}), "longer than 4,096"),
    ],
)
def test_safetensors_that_are_refused(tmp_path, content, told):
    (tmp_path / "m.safetensors").write_bytes(content)
    with pytest.raises(InputError) as caught:
        check_safetensors(tmp_path / "m.safetensors", 1 << 30)
    assert told in str(caught.value)


@settings(deadline=None, max_examples=150)
@given(st.integers(0, 200), st.integers(0, 255), st.integers(0, 120))
def test_a_damaged_header_is_one_sentence(tmp_path_factory, at, byte, cut):
    whole = bytearray(packed({"a": tensor(), "b": tensor("U8", (3,), (8, 11))}, bytes(11)))
    whole[min(at, len(whole) - 1)] = byte
    path = tmp_path_factory.getbasetemp() / "damaged.safetensors"
    path.write_bytes(bytes(whole[: len(whole) - max(0, cut - 100)]))
    try:
        found = check_safetensors(path, 1 << 20)
    except InputError:
        return
    from safetensors import safe_open

    with safe_open(path, "np") as file:  # what is let through, its own library reads
        assert set(file.keys()) == set(found)
