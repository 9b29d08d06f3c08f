"""`selectivbench show`: the rows agree with the data, fold to the terminal, and the pictures are pictures."""

import struct

import numpy as np
import pytest

from selectivbench_hf import plots, show
from selectivbench_hf.errors import InputError
from selectivbench_hf.layout import load_split
from selectivbench_hf.tasks import get_task


@pytest.mark.parametrize("name", ["lite", "lite_noisy_gaps", "lite_nongrammatical_gaps"])
def test_rows_say_what_the_data_are(name):
    task = get_task(name, num_train=50)
    data, g = load_split(task, "train"), task.grammar
    for shown in show.sequences(task, "train", 3, seed=5):
        laid = data.layout([shown.example_id])
        rebuilt = []
        for item, gap, wrong in zip(shown.items, shown.gaps, shown.distractors, strict=True):
            rebuilt += [item] + ([wrong] if wrong else []) + ["."] * gap
        ids = [g.symbol_label(int(i)) if i != task.blank_id else "." for i in laid.input_ids]
        assert rebuilt == ids
        assert shown.states == [g.state_label(int(s)) for s in data.states[shown.example_id]]
        assert shown.steps == len(ids)


def test_sequences_of_any_block_are_those_of_the_whole_split():
    task = get_task("te1", num_test=2_500)
    data = load_split(task, "test")
    for example in (0, 999, 1_000, 2_400):
        assert (show.one(task, "test", example).states[0] == data.states[example]).all()


def test_a_seed_draws_the_same_sequences_again():
    task = get_task("lite")
    ids = [[s.example_id for s in show.sequences(task, "test", 5, seed)] for seed in (1, 1, 2)]
    assert ids[0] == ids[1] != ids[2]
    assert [s.example_id for s in show.sequences(task, "test", 3)] == [0, 1, 2]
    assert len(show.sequences(get_task("lite", num_test=2), "test", 10)) == 2


@pytest.mark.parametrize("name", ["lite_noisy_gaps", "te7", "te3_nongrammatical_gaps"])
@pytest.mark.parametrize("width", [60, 100, 173])
def test_rows_are_aligned_and_folded(name, width):
    task = get_task(name, num_train=5)
    (shown,) = show.sequences(task, "train", 1)
    lines = show.text(task, [shown], width).splitlines()
    at = next(i for i, line in enumerate(lines) if line.startswith("train/0"))
    rows = lines[at + 1 :]
    assert all(len(line) <= width for line in rows)
    items, states, ticks = [], [], []
    for i in range(0, len(rows), 5):
        tick, item, state, last = rows[i : i + 4]
        columns = [j for j in range(7, len(item)) if item[j] != " " and item[j - 1] == " "]
        assert [j for j in range(7, len(state)) if state[j] != " " and state[j - 1] == " "] == columns
        assert [j for j in range(7, len(last)) if last[j] != " " and last[j - 1] == " "] == columns
        assert [j for j in range(7, len(tick)) if tick[j] != " " and tick[j - 1] == " "] == columns[::5]
        items, states, ticks = items + item.split()[1:], states + state.split()[1:], ticks + tick.split()
    assert (items, states) == (shown.items, shown.states)
    assert ticks == list(map(str, range(0, len(items), 5)))


def test_show_json(selectivbench, strict_json):
    out = selectivbench("show", "lite_nongrammatical_gaps", "--split", "test", "--num_sequences", 2, "--json").stdout
    rows = strict_json(out)
    assert [row["name"] for row in rows] == ["test/0", "test/1"]
    assert any(rows[0]["distractors"])


def _png_size(path):
    data = path.read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    return struct.unpack(">II", data[16:24])


@pytest.mark.parametrize("name", ["te3_noisy_gaps", "lite_nongrammatical_gaps", "lite"])
def test_pictures(selectivbench, tmp_path, name):
    from matplotlib.image import imread

    out = selectivbench("show", name, "--num_sequences", 1, "--plot", "p.png").stdout
    assert "p.png: a grammar of the same law with 4 letters of 3 states each (the task's own has " in out
    assert min(_png_size(tmp_path / "p.png")) > 1_000
    picture = imread(tmp_path / "p.png")[..., :3]
    assert len(np.unique((picture * 255).astype(np.uint8).reshape(-1, 3), axis=0)) > 50
    assert 0.5 < picture.mean() < 0.99  # neither empty nor covered


def test_a_small_grammar_is_drawn_itself(tmp_path):
    task = get_task("lite", letters=4, depth=3, num_start_states=2, num_train=10)
    said = plots.plot_task(task, tmp_path / "p.svg")
    assert "the grammar of lite: 13 states" in said
    text = (tmp_path / "p.svg").read_text()
    assert text.startswith("<?xml")
    big = get_task("lite", grammar=get_task("te1").grammar, num_train=10)
    assert "as many edges per letter" in plots.plot_task(big, tmp_path / "q.svg")


@pytest.mark.parametrize(
    ("file", "words"), [("a.docx", "must end in one of .png"), ("nowhere/a.png", "the folder nowhere")]
)
def test_impossible_pictures_are_refused(file, words):
    with pytest.raises(InputError, match=words):
        plots.plot_task(get_task("lite"), file)


def test_a_picture_is_whole_or_not_there(python, tmp_path):
    (tmp_path / "old.png").write_bytes(b"old")
    code = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (2_000, 2_000))\n"
        "from selectivbench_hf.cli import main; sys.exit(main(['show', 'lite', '--num_sequences', '1', '--plot', sys.argv[1]]))"
    )
    for name in ("new.png", "old.png"):
        result = python("-c", code, name, env={"MPLCONFIGDIR": str(tmp_path.parent / "mpl")})
        assert result.returncode == 1
        assert result.stderr.splitlines()[-1].startswith("error: File too large"), result.stderr
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == {"old.png": b"old"}


@pytest.mark.parametrize(
    ("name", "keywords"), [("mqar_lite", {}), ("mqar_512_64", {"filler": "zero"}), ("copy_lite", {})]
)
def test_recall_sequences_say_what_the_data_are(name, keywords):
    task = get_task(name, num_train=50, **keywords)
    data = load_split(task, "train")
    for shown in show.sequences(task, "train", 3, seed=5):
        row, labels = data.input_ids[shown.example_id], data.labels[shown.example_id]
        assert shown.input_ids == row[: shown.steps].tolist() and shown.steps == data.lengths[shown.example_id]
        assert [(s, i, a) for s, i, a in shown.questions] == [
            (s, row[s], labels[s]) for s in np.flatnonzero(labels >= 0)
        ]
        if task.kind == "mqar":
            assert dict(shown.pairs) == {key: answer for _, key, answer in shown.questions}
        else:
            assert [ord(c) - 96 for c in shown.string] == [answer for *_, answer in shown.questions]
        text = show.text(task, [shown], 80)
        assert all(len(line) <= 80 for line in text[text.index("\n\n") :].splitlines())
        if task.kind == "mqar":
            words = text[text.index("\nsteps") :].split()[1:]
            assert [int(w.rstrip("?")) for w in words] == shown.input_ids
            assert [i for i, w in enumerate(words) if w.endswith("?")] == [s for s, _, _ in shown.questions]


def test_show_of_a_recall_task(selectivbench, strict_json):
    out = selectivbench("show", "mqar_lite", "--num_pairs", "2", "--filler", "zero").stdout
    assert (
        "mqar_lite (multi-query associative recall; 2 pairs in 64 steps; 256 symbols)" in out
        and "is worth 50.00%" in out
    )
    (row,) = strict_json(selectivbench("show", "copy_lite", "--num_sequences", "1", "--json").stdout)
    assert row["name"] == "train/0" and len(row["questions"]) == len(row["string"]) == row["input_ids"].index(27)
    for arguments, sentence in (
        (
            ["mqar_lite", "--plot", "a.png"],
            "error: --plot draws a grammar, and mqar_lite is a recall task, which has none",
        ),
        (["mqar_lite", "--letters", "3"], "error: unknown task keyword 'letters' in mqar_lite; Allowed: length, num_pairs, vocab_size"),
        (["copy_lite", "--alpha", "1"], "error: unknown task keyword 'alpha' in copy_lite"),
        (["lite", "--num_pairs", "3"], "error: unknown task keyword 'num_pairs' in lite"),
    ):
        result = selectivbench("show", *arguments, ok=False)
        assert result.returncode == 2 and result.stderr.startswith(sentence), result.stderr
