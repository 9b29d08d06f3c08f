"""The file of results in a model's repository: the Hub's own format, and what is refused of it."""

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from selectivbench_hf.errors import InputError
from selectivbench_hf.hub.eval_results import check_entries, entry, of_dataset, replaced, to_yaml

SHA = "1" * 5 + "e" + "2" * 34  # without quotes, a number to some readers
DATASET = "selectivbench/selectivbench"


def made(**changes):
    return entry(
        **{
            "dataset": DATASET,
            "revision": SHA,
            "task": "te3_noisy_gaps",
            "value": 73.123456,
            "date": "2026-11-30",
            "source_url": "https://huggingface.co/alice/gla",
            "source_name": "selectivbench.json",
            "source_user": "alice",
            "notes": 'mean of 8 runs, sd 0.4: grammar seeds 1\u20134 # "sealed" \\',
            **changes,
        }
    )


def told(text, sentence, **keywords):
    with pytest.raises(InputError) as caught:
        check_entries(text, "results.yaml", **keywords)
    message = str(caught.value)
    assert sentence in message and message.isprintable() and len(message) < 1000, message


def test_entries_come_back_from_the_file_as_every_reader_has_them():
    from huggingface_hub import EvalResultEntry, parse_eval_result_entries

    entries = [
        made(),
        made(task="te3_noisy_gaps_seed2", value=100, notes=None, source_url=None, source_name=None, source_user=None),
    ]
    text = to_yaml(entries)
    assert (
        check_entries(text, "f")
        == check_entries(text.encode(), "f", dataset=DATASET)
        == entries
        == yaml.safe_load(text)
    )
    first, second = parse_eval_result_entries(yaml.safe_load(text))
    assert first == EvalResultEntry(
        dataset_id=DATASET,
        task_id="te3_noisy_gaps",
        value=73.1235,
        dataset_revision=SHA,
        date="2026-11-30",
        source_url="https://huggingface.co/alice/gla",
        source_name="selectivbench.json",
        source_user="alice",
        notes=entries[0]["notes"],
    )
    assert (second.value, second.date, second.notes, second.source_url) == (100.0, "2026-11-30", None, None)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"value": float("nan")}, "must be a number of per cent, from 0 to 100"),
        ({"value": float("inf")}, "from 0 to 100"),
        ({"value": 100.01}, "from 0 to 100, got 100.01"),
        ({"value": -1e-3}, "from 0 to 100"),
        ({"value": True}, "a number of per cent, got True"),
        ({"value": "73"}, "a number of per cent, got '73'"),
        ({"task": "te9"}, "unknown task 'te9'"),
        ({"task": "te3_noisy_gaps_seed01"}, "unknown task"),
        ({"task": "horizon_8_seed2"}, "unknown task"),
        ({"task": None}, "must be text, got None"),
        ({"dataset": "selectivbench"}, "OWNER/NAME"),
        ({"dataset": "../x/y"}, "OWNER/NAME"),
        ({"revision": "v1.0.0"}, "40 hex digits, got 'v1.0.0'"),
        ({"revision": SHA[:7]}, "40 hex digits"),
        ({"revision": None}, "lacks the revision"),
        ({"date": "yesterday"}, "ISO 8601"),
        ({"date": "2026-02-30"}, "ISO 8601"),
        ({"date": 20261130}, "ISO 8601"),
        ({"source_url": None}, "source_url"),
        ({"source_url": "javascript:alert(1)"}, "http(s)://"),
        ({"source_url": "https://a@b.c"}, "http(s)://"),
        ({"source_url": 'https://a.b/" onclick="x'}, "http(s)://"),
        ({"source_name": "<script>"}, "'<' or '>'"),
        ({"notes": "a\u202eb"}, "U+202E"),
        ({"notes": "a\nb"}, "U+000A"),
        ({"notes": "x" * 1001}, "at most 1,000"),
    ],
)
def test_entries_that_are_not_made(changes, sentence):
    with pytest.raises(InputError) as caught:
        made(**changes)
    assert sentence in str(caught.value), str(caught.value)


GOOD = to_yaml([made()])


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ("73.1235", "high", "value of result 1 of results.yaml must be a number of per cent, from 0 to 100, got 'high'"),
        ("73.1235", "'73'", "got '73'"),
        ("73.1235", "true", "got True"),
        ("73.1235", ".nan", "quote it"),
        ("73.1235", ".inf", "quote it"),
        ("73.1235", "1e999", "too large a number"),
        ("73.1235", "1e3", "got 1000"),
        ("73.1235", "9" * 5000, "too large a whole number"),
        ("73.1235", "0b11", "quote it"),
        ("73.1235", "[1]", "got a list"),
        ('"2026-11-30"', "2026-11-30", "quote it"),
        ('"2026-11-30"', "!!timestamp 2026-11-30", "tags such as"),
        ('"2026-11-30"', "null", "ISO 8601"),
        (f'"{SHA}"', "main", "40 hex digits"),
        (f'"{SHA}"', SHA, "too large a number"),
        ("notes:", "verified:", "unknown key 'verified' in result 1"),
        ("task_id:", "task:", "lacks 'task_id'"),
        ("value:", "valu:", "lacks 'value'"),
        ("    name:", "    nmae:", "did you mean 'name'"),
        ("    url:", "    org:", "lacks 'url'"),
        ("dataset:", "dataset: &x", "anchors"),
        ("  date:", "  value:", "'value' stands twice"),
        ("- dataset", "dataset", "block end"),
        ('"te3_noisy_gaps"', "!!python/name:os.system ''", "tags such as"),
    ],
)  # fmt: skip
def test_files_that_are_refused(old, new, sentence):
    assert old in GOOD
    told(GOOD.replace(old, new, 1), sentence)


def test_whole_files_that_are_refused():
    told("", "a list of at least one result")
    told("[]", "a list of at least one result")
    told("a: b", "a list of at least one result")
    told("- 5", "must be a mapping with dataset, value, verifyToken, date, source, notes, got 5")
    told("- dataset: 5\n  value: 1", "dataset of result 1 of results.yaml must be a mapping")
    told(GOOD + GOOD, "result 2 of results.yaml is for the same task of the same data set as result 1")
    told(GOOD + GOOD.replace(DATASET, DATASET.upper()), "the same task of the same data set")
    told("- {dataset: {id: a/b, task_id: x}, value: 1}\n" * 301, "301 results; at most 300")
    told(GOOD + "#" * (50 << 20), "longer than the 65,536 bytes")
    told(GOOD.encode("utf-16"), "not UTF-8")
    told("- " * 10_000, "nests deeper")
    told("a: &a [x]\nb: *a", "anchors (&) and aliases (*)")


def test_entries_of_other_data_sets_stay_and_keep_apart():
    other = "- dataset: {id: cais/hle, task_id: default}\n  value: 20.9\n"
    told(GOOD + other, "unknown task 'default'")  # where nobody says which data set is ours, all must be
    entries = check_entries(GOOD + other, "f", dataset=DATASET)
    assert of_dataset(entries, DATASET.upper()) == [made()]
    assert check_entries(to_yaml(entries), "f", dataset=DATASET) == entries
    told((GOOD + other).replace("te3_noisy_gaps", "te9"), "unknown task 'te9'", dataset=DATASET)
    told(GOOD + other.replace("20.9", "-5"), "result 2", dataset=DATASET)
    told(GOOD + other.replace("cais/hle", "'<b>/x'"), "OWNER/NAME", dataset=DATASET)
    better, more = made(value=80), made(task="te1", value=50)
    assert replaced(entries, [more, better]) == [better, entries[1], more]


@settings(deadline=None, max_examples=300)
@given(st.integers(0, len(GOOD) - 1), st.text(max_size=6), st.integers(0, 40))
def test_a_damaged_file_is_one_sentence_or_sound(at, put, cut):
    text = GOOD[:at] + put + GOOD[at + cut :]
    try:
        entries = check_entries(text, "f")
    except InputError as error:
        assert len(str(error)) < 1500
        return
    assert all(0 <= one["value"] <= 100 for one in entries)
    assert yaml.safe_load(to_yaml(entries)) == entries
