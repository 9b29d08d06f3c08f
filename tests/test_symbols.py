"""Symbols that are not one-hot: codes and examples of data sets, what they enter (fingerprint, model, training), and what is refused."""

import importlib.util
import io
import json
import pickle
from pathlib import Path

import datasets
import numpy as np
import pytest
from scipy.io import wavfile

import selectivbench_hf as sb
from selectivbench_hf import InputError, get_task
from selectivbench_hf.features import encode, make_batch, noise
from selectivbench_hf.symbols import choices

ROOT = Path(__file__).parent.parent
SIZES = {"num_train": 40, "num_validation": 6, "num_test": 6}
LETTERS = {"letters": 3, "num_items": 16, "max_string_length": 16, **SIZES}  # four symbols
DIGITS = get_task("lite_noisy_gaps", symbols="digits", noise="none", **SIZES)


def vectors(rows=40, classes=4, size=6, seed=0):
    """A data set of float vectors with a class label; row i has class i % classes."""
    drawn = np.random.default_rng(seed).random((rows, size)).astype(np.float32)
    labels = [i % classes for i in range(rows)]
    features = datasets.Features(
        {
            "x": datasets.List(datasets.Value("float32")),
            "label": datasets.ClassLabel(names=[f"class{c}" for c in range(classes)]),
        }
    )
    return datasets.Dataset.from_dict({"x": drawn.tolist(), "label": labels}, features=features)


def shown_rows(task, split, **more):
    """(all steps that show a symbol (N, C), their ids) of a whole split."""
    batch = make_batch(task, split, range(task.splits[split]), **more)
    inside = batch["input_ids"] < task.blank_id
    return batch["input_features"][inside], batch["input_ids"][inside]


# -- one-hot stays what it was -------------------------------------------------------------------------------------------


def test_one_hot_is_the_default_and_leaves_no_trace():
    plain = get_task("lite_noisy_gaps")
    assert plain.symbols is None and plain.num_channels == plain.num_symbols == 9 and plain.ceiling_note is None
    for said in ("one_hot", {"kind": "one_hot"}, '{"kind": "one_hot"}'):
        assert get_task("lite_noisy_gaps", symbols=said) == plain
    assert (
        get_task(DIGITS, symbols="one_hot").fingerprint
        == get_task("lite_noisy_gaps", noise="none", **SIZES).fingerprint
    )
    assert sb.SelectivBenchConfig.for_task(plain, mixer="transformer", hidden_size=16).num_channels is None


# -- codes ---------------------------------------------------------------------------------------------------------------


def test_random_vectors_have_length_one_and_their_own_seed_and_width():
    task = get_task("te1", symbols={"kind": "random_vectors", "width": 12, "seed": 3}, **SIZES)
    table = task.symbol_source.table
    assert table.shape == (22, 12) and table.dtype == np.float32 and not table[-1].any()
    assert np.allclose((table[:-1] ** 2).sum(1), 1, atol=1e-6)
    batch = make_batch(task, "test", [0, 1])
    assert np.array_equal(batch["input_features"], table[batch["input_ids"]])
    other = get_task("te1", symbols={"kind": "random_vectors", "width": 12, "seed": 4}, **SIZES)
    assert other.fingerprint != task.fingerprint and not np.allclose(other.symbol_source.table, table)
    assert get_task("te1", symbols="random_vectors").num_channels == 64


def test_binary_codes_are_the_bits_of_the_id():
    task = get_task("te1", symbols="binary", **SIZES)  # 21 symbols
    assert task.num_channels == 5
    for symbol, row in enumerate(task.symbol_source.table[:-1]):
        assert sum(1 << bit for bit, sign in enumerate(row) if sign == 1) == symbol and set(np.abs(row)) == {1}
    assert get_task("te1", symbols={"kind": "binary", "width": 7}).num_channels == 7
    with pytest.raises(InputError, match="there are 21.*at least 5, got 4"):
        get_task("te1", symbols={"kind": "binary", "width": 4})


def test_noise_lies_on_every_channel():
    task = get_task("lite_noisy_gaps", symbols="binary", **SIZES)
    batch = make_batch(task, "test", [2])
    n = int(batch["lengths"][0])
    rest = batch["input_features"][0, :n] - task.symbol_source.table[batch["input_ids"][0, :n]]
    assert np.allclose(rest, noise(task, "test", 2, n), atol=1e-6) and noise(task, "test", 2, n).shape == (n, 4)


def test_the_exact_filter_refuses_vectors_that_noise_can_confuse():
    from selectivbench_hf.oracle import law_of

    law_of(get_task("lite_noisy_gaps", symbols="random_vectors"))
    law_of(get_task("lite_noisy_gaps", symbols="binary"))
    narrow = {"kind": "random_vectors", "width": 2}
    law_of(get_task("lite", symbols=narrow))
    with pytest.raises(InputError, match="can hide the vectors"):
        law_of(get_task("lite_noisy_gaps", symbols=narrow))


def test_ceilings_say_when_they_are_upper_bounds(capsys, monkeypatch, tmp_path, strict_json):
    from selectivbench_hf.cli import main

    monkeypatch.setenv("HF_HOME", str(tmp_path))
    (tmp_path / "task.json").write_text(get_task("lite", symbols="digits", **SIZES).to_json())
    assert main(["ceiling", str(tmp_path / "task.json")]) == 0
    assert "upper bounds: symbols are shown as examples of a class" in capsys.readouterr().out
    assert main(["ceiling", str(tmp_path / "task.json"), "--json"]) == 0
    assert "told the class" in strict_json(capsys.readouterr().out)[0]["upper_bound"]
    assert get_task("lite", symbols="binary").ceiling_note is None


# -- examples ------------------------------------------------------------------------------------------------------------


def test_each_step_shows_an_image_of_its_own_class():
    from sklearn.datasets import load_digits

    data = load_digits()
    label_of = {(image / 16).astype(np.float32).tobytes(): c for image, c in zip(data.data, data.target)}
    for split in ("train", "validation", "test"):
        rows, ids = shown_rows(DIGITS, split)
        assert [label_of[row.tobytes()] for row in rows] == ids.tolist()
    batch = make_batch(DIGITS, "test", [0, 1])
    blank = batch["input_ids"] == DIGITS.blank_id
    assert blank.any() and not batch["input_features"][blank].any()


def test_no_image_of_a_test_is_ever_shown_in_training():
    source = DIGITS.symbol_source
    seen = {row.tobytes() for row in source.train.vectors[:-1]}
    held = {row.tobytes() for row in source.held_out.vectors[:-1]}
    assert not seen & held and len(seen) > 3 * len(held) > 500
    for epoch in range(3):
        assert {r.tobytes() for r in shown_rows(DIGITS, "train", epoch=epoch, seed=0)[0]} <= seen
    for split in DIGITS.splits:
        if split != "train":
            assert {r.tobytes() for r in shown_rows(DIGITS, split)[0]} <= held


def test_evaluation_is_deterministic_and_training_follows_seed_and_epoch():
    one = make_batch(DIGITS, "test", [3, 4])["input_features"]
    assert np.array_equal(one, make_batch(DIGITS, "test", [3, 4])["input_features"])
    alone = make_batch(DIGITS, "test", [4])["input_features"][0]
    assert np.array_equal(one[1, : len(alone)], alone)  # whatever stands beside it
    fresh = pickle.loads(pickle.dumps(get_task(DIGITS.to_json())))  # read anew
    assert np.array_equal(make_batch(fresh, "test", [4])["input_features"][0], alone)
    epochs = [make_batch(DIGITS, "train", [3], seed=s, epoch=e)["input_features"] for s, e in ((0, 0), (0, 1), (1, 0))]
    assert not any(np.array_equal(a, b) for at, a in enumerate(epochs) for b in epochs[:at])
    words = choices(DIGITS, "test", 3, 20)
    assert np.array_equal(words[:7], choices(DIGITS, "test", 3, 7))


def test_all_examples_of_a_class_come_up_equally_often():
    task = get_task(DIGITS, num_train=1500)
    rows, ids = shown_rows(task, "train", epoch=0, seed=0)
    part = task.symbol_source.train
    for symbol in (1, 2):
        counts = np.unique(rows[ids == symbol], axis=0, return_counts=True)[1]
        expected = (ids == symbol).sum() / part.count[symbol]
        assert len(counts) == part.count[symbol]
        chi = ((counts - expected) ** 2 / expected).sum()
        assert abs(chi - len(counts) + 1) < 5 * np.sqrt(2 * len(counts))


def test_the_collator_makes_the_same_features():
    import torch

    laid = make_batch(DIGITS, "train", [5, 1], epoch=2, seed=7)
    rows = [
        {"example_id": e, **{k: laid[k][at, : laid["lengths"][at]] for k in ("input_ids", "labels", "item_ids")}}
        for at, e in enumerate((5, 1))
    ]
    collator = sb.Collator(DIGITS, "train", seed=7)
    collator.set_epoch(2)
    assert torch.equal(collator(rows)["input_features"], torch.from_numpy(laid["input_features"]))


def test_images_audio_and_vectors_of_a_data_set(tmp_path):
    from PIL import Image

    drawn = np.random.default_rng(0).integers(0, 255, (40, 5, 7), dtype=np.uint8)
    labels = [i % 4 for i in range(40)]
    kinds = {"image": datasets.Image(), "label": datasets.ClassLabel(num_classes=4)}
    images = datasets.Dataset.from_dict(
        {"image": [Image.fromarray(a) for a in drawn], "label": labels}, features=datasets.Features(kinds)
    )
    task = get_task("lite", symbols=images, **LETTERS)
    assert task.num_channels == 35
    of = {(a / np.float32(255)).ravel().tobytes(): c for a, c in zip(drawn, labels)}
    rows, ids = shown_rows(task, "test")
    assert [of[r.tobytes()] for r in rows] == ids.tolist()

    def wav(samples):
        file = io.BytesIO()
        wavfile.write(file, 8000, samples)
        return {"bytes": file.getvalue(), "path": None}

    sounds = drawn.reshape(40, 35).astype(np.int16) * 100

    def recorded(files):  # cast, since `datasets` encodes audio with torchcodec only
        return datasets.Dataset.from_dict({"sound": files, "label": labels}).cast_column("sound", datasets.Audio())

    audio = recorded([wav(s) for s in sounds])
    of = {(s / 32768).astype(np.float32).tobytes(): c for s, c in zip(sounds, labels)}
    rows, ids = shown_rows(get_task("lite", symbols=audio, **LETTERS), "test")
    assert [of[r.tobytes()] for r in rows] == ids.tolist()

    unequal = recorded([wav(s[: 35 - (i == 9)]) for i, s in enumerate(sounds)])
    with pytest.raises(InputError, match=r"different sizes, 35 and 34 \(row 9"):
        get_task("lite", symbols=unequal, **LETTERS)
    broken = recorded([{"bytes": b"ID3 mp3", "path": None}] * 40)
    with pytest.raises(InputError, match="no readable WAV.*column of vectors"):
        get_task("lite", symbols=broken, **LETTERS)


def test_a_saved_data_set_with_its_own_test_split(tmp_path):
    parts = datasets.DatasetDict({"train": vectors(seed=1), "test": vectors(12, seed=2)})
    parts.save_to_disk(str(tmp_path / "data"))
    task = get_task("lite", symbols={"dataset": tmp_path / "data"}, **LETTERS)
    spec = json.loads(task.symbols)
    assert (spec["split"], spec["held_out"], spec["column"], spec["label"]) == ("train", "test", "x", "label")
    test = {np.float32(v).tobytes() for v in parts["test"]["x"]}
    assert {r.tobytes() for r in shown_rows(task, "test")[0]} <= test
    assert {r.tobytes() for r in shown_rows(task, "train")[0]} <= {
        np.float32(v).tobytes() for v in parts["train"]["x"]
    }
    # the same content under another name is the same task; another content is not
    given = get_task("lite", symbols=parts, **LETTERS)
    assert given.fingerprint == task.fingerprint and given != task
    changed = datasets.DatasetDict({"train": parts["train"], "test": vectors(12, seed=3)})
    assert get_task("lite", symbols=changed, **LETTERS).fingerprint != task.fingerprint
    # and where it changed behind a task's back, it is refused when it is read
    text = task.to_json()
    changed.save_to_disk(str(tmp_path / "other"))
    moved = json.loads(text)
    moved["symbols"]["dataset"] = str(tmp_path / "other")
    with pytest.raises(InputError, match="is not what it was when this task was made"):
        make_batch(get_task(moved), "test", [0])


def test_a_data_set_given_in_python_must_be_given_again_elsewhere(python):
    task = get_task("lite", symbols=vectors(), **LETTERS)
    features = make_batch(task, "test", [0])["input_features"]
    assert np.array_equal(make_batch(get_task(task.to_json()), "test", [0])["input_features"], features)  # known here
    assert np.array_equal(make_batch(pickle.loads(pickle.dumps(task)), "test", [0])["input_features"], features)
    code = (
        "import sys, selectivbench_hf as sb; t = sb.get_task(sys.stdin.read()); print(t.fingerprint)\n"
        "try: next(sb.batches(t, 'test', 1))\nexcept sb.InputError as e: print(e)"
    )
    out = python("-c", code, input=task.to_json()).stdout.splitlines()
    assert out[0] == task.fingerprint and "give it again, get_task(task, symbols=" in out[1]


def test_a_projection_keeps_lengths_and_is_fixed():
    task = get_task(DIGITS, symbols={"kind": "digits", "width": 48})
    assert task.num_channels == 48 and task.fingerprint != DIGITS.fingerprint
    wide, narrow = DIGITS.symbol_source.train.vectors[:-1], task.symbol_source.train.vectors[:-1]
    ratio = (narrow**2).sum(1) / (wide**2).sum(1)
    assert 0.9 < ratio.mean() < 1.1
    solved, *_ = np.linalg.lstsq(wide.astype(np.float64), narrow.astype(np.float64), rcond=None)
    assert np.allclose(wide @ solved, narrow, atol=1e-4)  # linear
    again = get_task("lite_noisy_gaps", symbols={"kind": "digits", "width": 48}, noise="none", **SIZES)
    assert np.array_equal(again.symbol_source.train.vectors[:-1], narrow)
    other = get_task(DIGITS, symbols={"kind": "digits", "width": 48, "seed": 2})
    assert other.fingerprint != task.fingerprint


def test_more_letters_of_the_same_data_set_keep_its_content():
    ds = vectors(60, 6)
    few = get_task("lite", symbols=ds, **LETTERS)
    more = get_task("lite", symbols=ds, **{**LETTERS, "letters": 5})
    assert json.loads(few.symbols)["content"] == json.loads(more.symbols)["content"]
    assert (
        make_batch(get_task(few, letters=5), "test", [0])["input_ids"].max() > 5
    )  # the same data set, asked for again
    assert get_task(few, letters=5) == more


def test_examples_that_stand_in_both_parts_are_left_out():
    train = vectors(40, seed=1)
    test = datasets.concatenate_datasets([vectors(12, seed=2), train.select(range(8))])
    with pytest.warns(UserWarning, match="8 of 20 held-out examples"):
        task = get_task("lite", symbols=datasets.DatasetDict(train=train, test=test), **LETTERS)
    assert task.symbol_source.held_out.count[:-1].sum() == 12


def test_classes_need_no_class_label_feature():
    ds = vectors()
    words = datasets.Dataset.from_dict({"x": ds["x"][:], "kind": [f"k{c}" for c in ds["label"][:]]})
    task = get_task("lite", symbols={"dataset": words, "label": "kind"}, **LETTERS)
    assert np.array_equal(
        make_batch(task, "test", [0])["input_features"],
        make_batch(get_task("lite", symbols=ds, **LETTERS), "test", [0])["input_features"],
    )


# -- refusals ------------------------------------------------------------------------------------------------------------


def nan_data():
    ds = vectors().to_dict()
    ds["x"][7][2] = float("nan")
    return datasets.Dataset.from_dict(ds, features=vectors().features)


BAD = [
    ("digit", "unknown symbols 'digit'; did you mean 'digits'?"),
    ("mnist", 'a data set is given as {"dataset": NAME or folder}'),
    (7, "symbols must be a name"),
    ({"kind": "digit"}, "unknown kind 'digit' in symbols; did you mean 'digits'?"),
    ({"kind": []}, "unknown kind"),
    ({"width": 3}, "unknown kind"),
    ({"kind": "binary", "seed": 3}, "unknown key 'seed' in symbols of kind 'binary'"),
    ({"kind": "random_vectors", "width": 0}, "width of symbols must be a whole number from 1 to"),
    ({"kind": "random_vectors", "width": 1}, "do not tell 4 symbols apart"),
    ({"kind": "random_vectors", "seed": "a"}, "seed of symbols must be a whole number"),
    ('{"kind": "binary"', "the symbols is not valid JSON"),
    ({"dataset": ""}, "dataset of symbols must be a data set's name"),
    ({"dataset": None}, "dataset of symbols must be a data set's name"),
    ({"dataset": "no/such_data_set_anywhere"}, "cannot load the data set 'no/such_data_set_anywhere' for symbols"),
    (lambda: vectors(30, 3), "has 3 classes and the task has 4 symbols"),
    (lambda: vectors().remove_columns("label"), "label of symbols must say which column"),
    (lambda: vectors().remove_columns("x"), "column of symbols must say which column"),
    (lambda: {"dataset": vectors(), "label": "labell"}, "unknown label column 'labell'"),
    (lambda: {"dataset": vectors().add_column("y", [[1.0]] * 40), "label": "y"}, "is no class label"),
    (lambda: {"dataset": vectors(), "column": "xx"}, "unknown column 'xx'"),
    (lambda: {"dataset": vectors(), "split": "trian"}, "unknown split 'trian'"),
    (lambda: {"dataset": vectors(), "split": "train", "held_out": "train"}, "are both 'train'"),
    (lambda: vectors(7), "has no training example"),
    (lambda: datasets.DatasetDict(train=vectors(), test=vectors(3, seed=9)), "class 'class3' of the data set given in Python has no held-out"),
    (lambda: vectors().add_column("y", [[1.0]] * 40), "column of symbols must say which column"),
    (lambda: vectors().map(lambda r: {"x": r["x"][: 6 - (r["label"] == 2)]}), "different sizes, 6 and 5"),
    (lambda: datasets.Dataset.from_dict({"x": [["a"]] * 40, "label": [0, 1, 2, 3] * 10}), "must hold numbers"),
    (lambda: datasets.Dataset.from_dict({"x": [[1.0]] * 39 + [None], "label": [0, 1, 2, 3] * 10}), "must hold numbers"),
    (lambda: datasets.Dataset.from_dict({"x": [[1.0]] * 4, "label": [0, 1, None, 3]}), "row 2 of .* has no class"),
    (nan_data, "holds NaN or infinity in row 7"),
]  # fmt: skip


@pytest.mark.parametrize(("given", "words"), BAD, ids=[w[:40] for _, w in BAD])
def test_bad_symbols_get_a_sentence(given, words):
    import re

    given = given() if callable(given) else given
    with pytest.raises(InputError, match=words if ".*" in words else re.escape(words)) as caught:
        get_task("lite", symbols=given, **LETTERS)
    assert "\n" not in str(caught.value)


def test_too_many_symbols_for_the_digits():
    with pytest.raises(InputError, match="scikit-learn's digits has 10 classes and the task has 21 symbols"):
        get_task("te1", symbols="digits")


def test_rows_do_not_depend_on_symbols_and_say_so(capsys, tmp_path):
    from datasets import load_dataset

    from selectivbench_hf.cli import main

    with pytest.raises(InputError, match="rows hold ids"):
        load_dataset("selectivbench", "lite", symbols="digits")
    file = tmp_path / "task.json"
    file.write_text(DIGITS.to_json())
    for words in (["lite", "--symbols", "digits"], [str(file)]):
        assert main(["build", *words, "--output", str(tmp_path / "out")]) == 2
        assert "rows hold ids" in capsys.readouterr().err and not (tmp_path / "out").exists()
    assert main(["show", str(file)]) == 0
    assert "random example of its class in scikit-learn's digits" in capsys.readouterr().out


def test_recall_tasks_have_no_such_symbols():
    with pytest.raises(InputError, match="unknown task keyword 'symbols'"):
        get_task("mqar_lite", symbols="binary")


# -- models and training -------------------------------------------------------------------------------------------------


def test_models_take_the_channels_and_refuse_ids():
    import torch

    task = get_task("lite", symbols={"kind": "random_vectors", "width": 9}, **SIZES)  # as many channels as symbols
    config = sb.SelectivBenchConfig.for_task(task, mixer="transformer", hidden_size=16, num_hidden_layers=1)
    model = sb.SelectivBenchForStateClassification(config).eval()
    assert config.num_channels == 9 and model.encoder.in_features == 9
    assert abs(model.encoder.weight.std().item() - 1 / 3) < 0.08
    batch = make_batch(task, "test", [0])
    assert model(input_features=torch.from_numpy(batch["input_features"])).logits.shape[-1] == task.num_states
    ids = torch.from_numpy(batch["input_ids"])
    for refusing in (model, sb.models.wrap_module(torch.nn.Linear(9, task.num_states), task)):
        with pytest.raises(InputError, match="not one-hot"):
            refusing(input_ids=ids)
    with pytest.raises(InputError, match="it must be .batch, steps, 64."):
        wide = sb.SelectivBenchConfig.for_task(DIGITS, mixer="transformer", hidden_size=16, num_hidden_layers=1)
        sb.SelectivBenchForStateClassification(wide)(input_features=torch.zeros(1, 4, 9))
    with pytest.raises(InputError, match="num_channels is 0"):
        sb.SelectivBenchConfig(num_channels=0)
    with pytest.raises(InputError, match="tie_word_embeddings needs one-hot"):
        sb.SelectivBenchConfig(num_channels=8, tie_word_embeddings=True)


def test_the_recipe_trains_and_is_scored_the_same_again(tmp_path, capsys):
    from selectivbench_hf import evaluate_command, resources, training
    from selectivbench_hf.arguments import from_argv

    run = str(tmp_path / "run")
    small = "--max_steps 4 --num_train 64 --num_validation 4 --num_test 6 --hidden_size 16 --mixer gru --eval_steps 2 --save_steps 2"
    recipe = str(resources.path("recipes/digits.yaml"))
    record = training.run(from_argv(["--config", recipe, *small.split(), "--output_dir", run])).record
    assert record["task"]["builder_keywords"]["symbols"] == "digits" and "digits" in record["task"]["description"]
    assert record["model"]["config"]["num_channels"] == 64 and record["training"]["steps"] == 4
    assert evaluate_command.main([run]) == 0
    assert "equal to the record to the last count" in capsys.readouterr().out
    assert evaluate_command.main([run, "--symbols", "one_hot"]) == 2
    assert "was built for 64 channels" in capsys.readouterr().err


def test_a_learner_of_digits_beats_chance_on_images_it_never_saw():
    """Nearest class mean of the training images on the held-out ones: the split is of one law, and labels fit vectors."""
    source = DIGITS.symbol_source
    train, held = source.train, source.held_out
    label = lambda part: np.repeat(np.arange(10), part.count)[:-1]
    means = np.stack([train.vectors[:-1][label(train) == c].mean(0) for c in range(9)])
    distance = ((held.vectors[:-1, None] - means) ** 2).sum(-1)
    assert (distance.argmin(1) == label(held)).mean() > 0.8


def test_the_table_of_the_docs_is_what_the_benchmark_wrote():
    spec = importlib.util.spec_from_file_location("symbols_benchmark", ROOT / "benchmarks/symbols.py")
    benchmark = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(benchmark)
    rows = benchmark.read(ROOT / "docs/symbols/results.jsonl")
    assert list(rows) == list(benchmark.FORMS)  # of the recipe and the tasks as they are now
    docs = (ROOT / "docs/symbols.md").read_text()
    assert docs.split("<!-- table -->\n")[1].split("\n<!-- /table -->")[0] == benchmark.table(rows)


def test_encode_needs_no_task_data():
    ids = np.array([[0, 3, 9, 2], [1, 9, 9, 9]])
    features = encode(DIGITS, ids, np.array([4, 2]), "test", [0, 1])
    assert features.shape == (2, 4, 64) and not features[0, 2].any() and not features[1, 2:].any()
