"""`selectivbench verify`: whatever is wrong with a data set is named, with its place; nothing that it holds is trusted, and nothing is missed."""

import hashlib
import json
import os
import shutil

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from selectivbench_hf import datacard, materialise
from selectivbench_hf.configs import MANIFEST
from selectivbench_hf.errors import InputError
from selectivbench_hf.hub import data_files, verify, verify_split
from selectivbench_hf.tasks import get_task

SIZES = {"num_train": 300, "num_validation": 40, "num_test": 60}
NOISY, COPY = "lite_noisy_gaps", "copy_lite"
TRAIN = "train-00000-of-00001.parquet"


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    folder = tmp_path_factory.mktemp("built") / "data"
    tasks = [get_task(NOISY, test_gaps=[3, 1], **SIZES), get_task(COPY, **SIZES)]
    materialise.build(tasks, folder, progress=False)
    return folder


@pytest.fixture
def folder(built, tmp_path):
    return shutil.copytree(built, tmp_path / "data")


def found(folder, sample=verify.SAMPLE, names=None):
    rows = verify.verify(data_files.find(str(folder)), names, sample)
    return [difference for row in rows for difference in row["differences"]]


def only(folder, **keywords):
    """The one difference that there is."""
    [difference] = found(folder, **keywords)
    return difference


def manifest(folder, name, change):
    path = folder / name / MANIFEST
    data = json.loads(path.read_text())
    change(data)
    path.write_text(json.dumps(data))


def rewrite(folder, name, file, change, forge=()):
    """Replace a file's table by `change(table)`; forge: what is made to agree, of "file" (manifest and card) and "content"."""
    from selectivbench_hf.builder import content_hash

    path = folder / name / file
    table = change(pq.read_table(path))
    pq.write_table(table, path)

    def agree(data):
        split = data["splits"][file.split("-")[0]]
        if "file" in forge:
            digest = hashlib.sha256(path.read_bytes()).hexdigest()
            split["files"][0].update(bytes=path.stat().st_size, sha256=digest)
        if "content" in forge:
            split["content_hash"] = content_hash([table])

    manifest(folder, name, agree)
    if "file" in forge:
        manifests = {n: json.loads((folder / n / MANIFEST).read_text()) for n in (NOISY, COPY)}
        (folder / "README.md").write_text(datacard.render(manifests))


def with_value(column, row, step, value):
    """A change of one value of a list column."""

    def change(table):
        rows = table.column(column).to_pylist()
        rows[row][step] = value
        at = table.column_names.index(column)
        return table.set_column(at, table.schema.field(column), pa.array(rows, table.schema.field(column).type))

    return change


def test_what_build_wrote_is_as_stated(built):
    first, copy, noisy = verify.verify(data_files.find(str(built)), None, 25)
    assert not first["differences"] + copy["differences"] + noisy["differences"]
    assert (copy["splits"], copy["sequences"], copy["drawn_again"]) == (3, 400, 75)
    assert (noisy["splits"], noisy["sequences"], noisy["drawn_again"]) == (4, 460, 100)
    assert first["files"] + copy["files"] + noisy["files"] == sum(p.is_file() for p in built.rglob("*"))
    assert "num_train=300" in noisy["changed"]
    [_, row] = verify.verify(data_files.find(str(built)), [COPY], None)
    assert (row["name"], row["drawn_again"]) == (COPY, 400)


def test_sampled_rows_are_spread_and_new_each_time():
    rows = [verify_split.sampled(1000, 10) for _ in range(20)]
    assert all(np.array_equal(r // 100, np.arange(10)) for r in rows)
    assert len({tuple(r) for r in rows}) > 1
    assert verify_split.sampled(5, 5) is None and verify_split.sampled(5, None) is None


@pytest.mark.parametrize(
    ("name", "column", "step"), [(NOISY, "input_ids", 0), (NOISY, "labels", 3), (COPY, "labels", -1)]
)
def test_a_changed_value_is_named_even_where_every_hash_was_forged(folder, name, column, step):
    old = pq.read_table(folder / name / TRAIN).column(column)[17].as_py()[step]
    rewrite(folder, name, TRAIN, with_value(column, 17, step, (old + 1) % 4), ("file", "content"))
    difference = only(folder)
    place = (difference.config, difference.split, difference.file, difference.row, difference.column)
    assert place == (name, "train", TRAIN, 17, column)
    assert f"is {(old + 1) % 4}, drawn again {old}" in difference.what


def test_a_changed_value_is_named_whatever_the_sample(folder):
    rewrite(folder, NOISY, TRAIN, with_value("labels", 211, 0, 1), ("file",))
    content, value = found(folder, sample=1)
    assert "content hash" in content.what and (content.config, content.split) == (NOISY, "train")
    assert (value.row, value.column) == (211, "labels")


def test_a_changed_file_is_named_by_size_and_hash(folder):
    path = folder / NOISY / TRAIN
    path.write_bytes(path.read_bytes()[:-100])
    size, sha, unreadable = found(folder)
    assert (
        "bytes, the manifest says" in size.what
        and "SHA-256" in sha.what
        and "cannot be read as Parquet" in unreadable.what
    )
    assert {(d.config, d.file) for d in (size, sha, unreadable)} == {(NOISY, TRAIN)}


def test_hostile_bytes_in_a_file_are_refused(folder):
    (folder / COPY / TRAIN).write_bytes(b"PAR1" + b"\xff" * 500 + b"\xff\xff\xff\x7fPAR1")
    assert any("cannot be read as Parquet" in d.what for d in found(folder))


def test_missing_and_foreign_files(folder):
    (folder / NOISY / TRAIN).unlink()
    (folder / NOISY / "train-00001-of-00002.parquet").write_bytes(b"x")
    (folder / NOISY / "a").mkdir()
    (folder / NOISY / "a" / "b.py").write_text("x")
    (folder / "loader.py").write_text("x")
    places = {(d.config, d.file): d.what for d in found(folder)}
    assert places == {
        (None, "loader.py"): "it is no part of a published data set",
        (NOISY, "a/b.py"): "it is not in the manifest",
        (NOISY, "train-00001-of-00002.parquet"): "it is not in the manifest",
        (NOISY, TRAIN): "it is missing",
    }


@pytest.mark.parametrize("name", [NOISY, COPY])
def test_a_sequence_in_two_splits_is_found(folder, name):
    """A test sequence put into train, and every hash forged: still not disjoint, and not what the generator draws."""
    test = pq.read_table(folder / name / "test-00000-of-00001.parquet").slice(5, 1)

    def change(table):
        test_row = test.set_column(0, "example_id", pa.array([9], table.schema.field(0).type)).cast(table.schema)
        return pa.concat_tables([table.slice(0, 9), test_row, table.slice(10)])

    rewrite(folder, name, TRAIN, change, ("file", "content"))
    differences = found(folder, sample=1)
    meet = [d for d in differences if "not disjoint" in d.what]
    assert {(d.split, d.row) for d in meet} == {("train", 9)}
    assert all(d.what.startswith("1 of its sequences stand in test") for d in meet)


def test_rows_out_of_order_lost_and_doubled(folder):
    rewrite(folder, COPY, TRAIN, lambda t: pa.concat_tables([t.slice(0, 100), t.slice(101)]), ("file", "content"))
    texts = [str(d) for d in found(folder)]
    assert any("it has 299 rows, the manifest says 300" in t for t in texts)
    assert any("row 100, example_id: it is 101" in t for t in texts)
    assert any(t.endswith("more rows") for t in texts)


def test_columns_that_are_not_the_tasks(folder):
    def other_type(table):
        return table.set_column(0, "example_id", table.column(0).cast("int64"))

    rewrite(folder, COPY, TRAIN, other_type, ("file",))
    difference = only(folder)
    assert (difference.column, difference.what) == ("example_id", "it holds int64, it should hold uint16")
    rewrite(folder, COPY, TRAIN, lambda t: t.append_column("answer", pa.array([0] * 300)), ("file",))
    assert {d.column for d in found(folder)} == {"example_id", "answer"}
    rewrite(folder, COPY, TRAIN, lambda t: t.drop_columns(["labels"]), ("file",))
    assert {d.column for d in found(folder)} == {"example_id", "answer", "labels"}


def test_nulls_are_named(folder):
    rewrite(folder, NOISY, TRAIN, with_value("labels", 3, 2, None), ("file",))
    difference = only(folder)
    assert (difference.split, difference.column) == ("train", "labels") and "nulls" in difference.what


def test_a_row_group_that_would_fill_the_memory_is_not_read(folder, monkeypatch):
    def long_row(table):
        rows = table.column("labels").to_pylist()
        rows[3] = [0] * 2_000_000
        return table.set_column(2, table.schema.field(2), pa.array(rows, table.schema.field(2).type))

    rewrite(folder, COPY, TRAIN, long_row, ("file",))
    assert (folder / COPY / TRAIN).stat().st_size < 50_000  # two million zeros in next to nothing
    assert "row group 0 is not read: 300 rows with 2,0" in only(folder).what
    monkeypatch.setattr(verify_split, "MOST_GROUP", 1000)
    assert all("uncompressed; at most 1,000 are" in d.what for d in found(folder, names=[COPY]))


def test_a_file_that_is_too_large_is_not_read(folder, monkeypatch):
    monkeypatch.setattr(verify, "MOST_FILE", 3_000)
    monkeypatch.setattr(verify, "MOST_JSON", 20_000)
    large = {(d.config, d.file) for d in found(folder) if "at most 3,000 are read" in d.what}
    assert (NOISY, TRAIN) in large and large <= {(n, p.name) for n in (NOISY, COPY) for p in (folder / n).iterdir()}
    assert all("at most 3,000 are read" in d.what for d in found(folder))


def test_names_are_shown_in_printable_letters(folder):
    (folder / "\x1b[31mred").write_text("x")
    (folder / "\u202econfig").mkdir()
    (folder / "\u202econfig" / "x").write_text("x")
    texts = "\n".join(str(d) for d in found(folder))
    assert texts.isascii() and texts.replace("\n", "").isprintable() and "red" in texts and "config" in texts


def test_steps_that_make_no_sequence(folder):
    rewrite(folder, NOISY, TRAIN, with_value("item_ids", 4, 0, 9), ("file", "content"))
    assert {(d.row, d.column) for d in found(folder)} == {(4, "input_ids"), (4, "item_ids")}


# -- manifests and tasks

HOSTILE = {
    "a path out of the folder": lambda m: m["splits"]["train"]["files"][0].update(name="../../etc/passwd"),
    "another file's name": lambda m: m["splits"]["train"]["files"][0].update(name="test-00000-of-00001.parquet"),
    "negative bytes": lambda m: m["splits"]["train"]["files"][0].update(bytes=-1),
    "bytes as text": lambda m: m["task_file"].update(bytes="5"),
    "no hash": lambda m: m["splits"]["test"].pop("content_hash"),
    "rows that do not add up": lambda m: m["splits"]["test"].update(num_sequences=10**12),
    "a split of another name": lambda m: m["splits"].update({"<script>": m["splits"]["test"]}),
    "no splits": lambda m: m.update(splits={}),
    "another format": lambda m: m.update(format="selectivbench-build-9"),
    "another config": lambda m: m.update(name="te1"),
    "a fingerprint of another form": lambda m: m.update(fingerprint="x" * 64),
    "no card": lambda m: m.pop("card"),
    "a data version of another form": lambda m: m.update(data_version="1.0.0\n"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_hostile_manifest_is_one_difference(folder, case):
    manifest(folder, NOISY, HOSTILE[case])
    difference = only(folder)
    assert (difference.config, difference.file) == (NOISY, MANIFEST)
    assert "<script>" not in difference.what.replace("'<script>'", "") and len(difference.what) < 300


@pytest.mark.parametrize(
    "text", ["", "[]", "nonsense", '{"a": NaN}', '{"format": 1, "format": 2}', "[" * 50 + "]" * 50]
)
def test_a_manifest_that_is_no_strict_json(folder, text):
    (folder / NOISY / MANIFEST).write_text(text)
    assert only(folder).file == MANIFEST


def test_a_config_without_manifest_and_a_folder_without_configs(folder, tmp_path):
    (folder / NOISY / MANIFEST).unlink()
    difference = only(folder)
    assert (difference.config, difference.file, difference.what) == (NOISY, MANIFEST, "it is missing")
    (folder / COPY / MANIFEST).unlink()
    with pytest.raises(InputError, match=r"holds no config of SelectivBench"):
        found(folder)
    with pytest.raises(InputError, match="did you mean 'copy_lite'"):
        (folder / COPY / MANIFEST).write_text("{}")
        found(folder, names=["copy_light"])


def test_another_data_version(folder):
    manifest(folder, NOISY, lambda m: m.update(data_version="2.0.0"))
    texts = " ".join(str(d) for d in found(folder))
    assert "it is of data version 1.0.0, the manifest of 2.0.0" in texts and "of several data versions" in texts


def task_file(folder, name, change):
    path = folder / name / "task.json"
    data = json.loads(path.read_text())
    change(data)
    path.write_text(json.dumps(data))
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    manifest(folder, name, lambda m: m["task_file"].update(bytes=path.stat().st_size, sha256=digest))


def test_another_task_under_the_name(folder):
    task_file(folder, NOISY, lambda t: t.update(sample_seed=2))
    differences = found(folder, sample=5)
    assert sum("gives it the fingerprint" in d.what for d in differences) == 1
    assert {d.split for d in differences if "gives the split the fingerprint" in d.what} == {
        "train",
        "validation",
        "test",
        "test_gap_1",
    }
    assert {d.split for d in differences if d.row is not None} == {"train", "validation", "test", "test_gap_1"}


@pytest.mark.parametrize(
    "change",
    [
        lambda t: t.update(data_version="2.0.0"),
        lambda t: t.update(symbols={"dataset": "someone/else"}),
        lambda t: t.update(custom_grammar="/etc/passwd"),
        lambda t: t.update(letters=10**9),
        lambda t: t.update(surprise=1),
    ],
)
def test_a_task_that_cannot_be_made(folder, change):
    task_file(folder, NOISY, change)
    difference = only(folder)
    assert (difference.config, difference.file) == (
        NOISY,
        "task.json",
    ) and "no task can be made from it" in difference.what


# -- the card and eval.yaml


def card(folder, old, new):
    path = folder / "README.md"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


def test_a_card_that_says_something_else(folder):
    card(folder, "num_examples: 300", "num_examples: 301")
    difference = only(folder)
    assert (difference.file, difference.split) == ("README.md", "train") and "301" in difference.what
    card(folder, "num_examples: 301", "num_examples: 300")
    card(folder, f"path: {NOISY}/test_gap_1-*.parquet", f"path: {NOISY}/test-*.parquet")
    difference = only(folder)
    assert (difference.config, difference.split) == (NOISY, "test_gap_1")
    card(folder, f"config_name: {NOISY}", "config_name: te9")
    texts = [str(d) for d in found(folder)]
    assert any(f"{NOISY}, README.md: configs of the front matter lacks it" in t for t in texts)
    assert any("lists 'te9', which is not there" in t for t in texts)
    assert not found(folder, names=[COPY])


def test_a_published_card_that_was_edited_outside_of_its_notes(folder):
    from selectivbench_hf.hub import cards

    manifests = {name: json.loads((folder / name / MANIFEST).read_text()) for name in (NOISY, COPY)}
    text = cards.render(manifests, "alice/data", "v1.0.0")
    place = folder / "README.md"
    place.write_text(text.replace(cards.START, f"{cards.START}\n\nMy notes.\n"))
    assert not found(folder)
    place.write_text(text.replace("import hashlib", "import os, hashlib"))
    assert "edited outside of its notes" in only(folder).what
    assert only(folder, names=[COPY]).file == "README.md"


@pytest.mark.parametrize(
    "text", ["", "# no front matter\n", "---\na: &a [1]\nb: *a\n---\n", "---\nconfigs: 5\n---\n", "---\n- 1\n---\n"]
)
def test_a_card_that_is_none(folder, text):
    (folder / "README.md").write_text(text)
    assert {d.file for d in found(folder)} == {"README.md"}


def test_an_eval_yaml_of_tasks_that_are_not_there(folder):
    from selectivbench_hf.hub import eval_yaml

    (folder / "eval.yaml").write_text(eval_yaml.render([COPY, NOISY]))
    assert not found(folder)
    (folder / "eval.yaml").write_text(eval_yaml.render([COPY, NOISY, "te1"]))
    assert only(folder).file == "eval.yaml"


# -- the command


def test_the_command_on_a_folder(folder, selectivbench, strict_json):
    result = selectivbench("verify", folder)
    assert "2 configs as stated" in result.stdout and "not the catalogue's task" in result.stdout
    rewrite(folder, COPY, TRAIN, with_value("labels", 2, -1, 3))
    result = selectivbench("verify", folder, "--json", "--sample", "all", ok=False)
    assert result.returncode == 1
    rows = strict_json(result.stdout)
    assert all(row["name"] for row in rows)
    assert any(d["row"] == 2 and d["column"] == "labels" for row in rows for d in row["differences"])


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["nowhere"], "there is no folder 'nowhere'"),
        (["./data", "--revision", "v1.0.0"], "has no revisions"),
        (["data", "--sample", "0"], "must be a whole number of at least 1, got '0'; or 'all'"),
        ([""], "needs OWNER/NAME or a folder"),
    ],
)
def test_what_cannot_be_checked(folder, monkeypatch, capsys, argv, says):
    from selectivbench_hf.cli import main

    monkeypatch.chdir(folder.parent)
    assert main(["verify", *argv]) == 2
    assert says in capsys.readouterr().err


def test_a_pipe_or_a_dangling_link_is_no_file(folder):
    for name, make in ((COPY, os.mkfifo), (NOISY, lambda path: path.symlink_to("nowhere"))):
        (folder / name / TRAIN).unlink()
        make(folder / name / TRAIN)
    assert {(d.config, d.file, d.what) for d in found(folder)} == {(n, TRAIN, "it is missing") for n in (COPY, NOISY)}
