"""load_dataset("selectivbench", ...): names, keywords, cache, streaming, processes, revisions; golden content."""

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

import selectivbench_hf as sb
from selectivbench_hf import get_task, task_names
from selectivbench_hf.builder import content_hash, features_of, iterate_tables, shards
from selectivbench_hf.tasks import grammar_task_names

sys.path.insert(0, str(Path(__file__).parent / "golden"))
from regenerate import SIZES

GOLDEN = json.loads((Path(__file__).parent / "golden" / "content_hashes.json").read_text())
ROOT = Path(__file__).parent.parent


@pytest.fixture()
def load(tmp_path, monkeypatch):
    """load_dataset with a cache of its own, in an empty working directory."""
    import datasets

    (tmp_path / "cwd").mkdir()
    monkeypatch.chdir(tmp_path / "cwd")
    datasets.disable_progress_bars()
    return lambda *args, **kw: datasets.load_dataset("selectivbench", *args, cache_dir=str(tmp_path / "cache"), **kw)


@pytest.mark.parametrize("name", grammar_task_names())
def test_golden_content(name, load, tmp_path):
    """Every config at reduced size: the same hashes by one process, by two, and streamed, as committed."""
    one = load(name, **SIZES)
    assert {s: content_hash([d.data.table]) for s, d in one.items()} == GOLDEN[name]
    import datasets

    streamed = load(name, streaming=True, **SIZES)
    for split, expected in GOLDEN[name].items():
        tables = streamed[split].with_format("arrow").iter(batch_size=4)
        assert content_hash(tables) == expected
    two = datasets.load_dataset("selectivbench", name, cache_dir=str(tmp_path / "other"), num_proc=2, **SIZES)
    assert {s: content_hash([d.data.table]) for s, d in two.items()} == GOLDEN[name]


def test_columns_types_and_slices(load):
    ds = load("te3_noisy_gaps", num_train=64, num_validation=4, num_test=4)
    assert ds["train"].column_names == ["example_id", "input_ids", "labels", "item_ids"]
    kinds = {k: getattr(v, "feature", v).dtype for k, v in ds["train"].features.items()}
    assert kinds == {"example_id": "uint8", "input_ids": "uint8", "labels": "uint16", "item_ids": "uint8"}
    assert ds["train"]["example_id"][:] == list(range(64))
    row = ds["test_gap_100"][0]
    assert len(row["input_ids"]) == 20_200 and row["input_ids"][1] == 27
    part = load("te3_noisy_gaps", num_train=64, num_validation=4, num_test=4, split="train[10:13]")
    assert part["example_id"][:] == [10, 11, 12]
    assert features_of(get_task("te3"))["example_id"].dtype == "uint32"


def test_default_config_names_and_infos(load):
    import datasets

    assert datasets.get_dataset_config_names("selectivbench") == task_names()
    assert datasets.get_dataset_default_config_name("selectivbench") == "lite"
    assert datasets.get_dataset_split_names("selectivbench", "te1") == ["train", "validation", "test"]
    builder = datasets.load_dataset_builder("selectivbench", "te7", grammar_seed=2)
    assert "te7 (level 7 of 7; 40 letters" in builder.info.description and str(builder.info.version) == "1.0.0"
    assert load(num_train=10)["train"].num_rows == 10  # without a name: the default config


@pytest.mark.parametrize(
    "keywords",
    [
        dict(grammar_seed=2),
        dict(num_items=80, max_string_length=64),
        dict(train_gap={1: 1, 30: 1}, test_gaps=[2]),
        dict(noise="gaussian", noise_scale=0.5),
        dict(grammar=sb.Grammar.random(letters=70, depth=1, seed=4)),
        dict(letters=60, depth=3),
    ],
)
def test_keywords_reach_the_data(load, keywords):
    sizes = dict(num_train=12, num_validation=3, num_test=3)
    ds = load("lite_noisy_gaps", **sizes, **keywords)
    task = get_task("lite_noisy_gaps", **sizes, **keywords)
    assert list(ds) == list(task.splits)
    for split in ds:
        assert content_hash([ds[split].data.table]) == content_hash(iterate_tables(task, split))
    other = dict(ds["train"][0])
    assert other != get_first(load("lite_noisy_gaps", **sizes)) or "noise" in keywords


def get_first(ds):
    return dict(ds["train"][0])


def test_one_content_one_cache_entry(load):
    sizes = dict(num_train=12, num_validation=3, num_test=3)
    files = [
        load("lite", **sizes, **kw)["train"].cache_files[0]["filename"]
        for kw in ({}, {"grammar_seed": 1}, {"density": 0.4}, {"grammar_seed": 2})
    ]
    assert files[0] == files[1] == files[2] != files[3]
    before = os.stat(files[0]).st_mtime_ns
    load("lite", **sizes)
    assert os.stat(files[0]).st_mtime_ns == before  # read from the cache


def test_names_with_a_seed_as_on_the_hub(load):
    sizes = dict(num_train=12, num_validation=3, num_test=3)
    seeded, said = load("lite_seed2", **sizes), load("lite", grammar_seed=2, **sizes)
    assert seeded["train"].cache_files == said["train"].cache_files
    with pytest.raises(ValueError, match="contradict each other"):
        load("lite_seed2", grammar_seed=3)


def test_the_cache_key_covers_version_and_every_generating_module(monkeypatch, tmp_path):
    from selectivbench_hf import builder, tasks

    first = builder.generator_hash()
    monkeypatch.setattr(builder, "DATA_VERSION", "1.0.1")
    assert builder.generator_hash() != first
    monkeypatch.undo()
    for module in ("checks", "errors", "streams", "grammar", "sampling", "layout", "tasks", "values"):
        changed = tmp_path / f"{module}.py"
        changed.write_bytes(Path(getattr(builder, module).__file__).read_bytes() + b"\n# changed\n")
        monkeypatch.setattr(getattr(builder, module), "__file__", str(changed))
        assert builder.generator_hash() != first
        monkeypatch.undo()
    assert builder.generator_hash() == first and tasks.DATA_VERSION == "1.0.0"


@pytest.mark.parametrize(
    "name, keywords, words",
    [
        ("te9", {}, "unknown config 'te9' in selectivbench; did you mean 'te7'"),
        ("te3_noisy", {}, "did you mean 'te3_noisy_gaps'"),
        ("te3", {"revision": "v9.9.9"}, "this package generates v1.0.0"),
        ("te3", {"revision": "abc1234"}, "this package generates v1.0.0"),
        ("te3", {"gramar_seed": 2}, "did you mean 'grammar_seed'"),
        ("te3", {"data_dir": "x"}, "data_dir has no meaning"),
        ("te3", {"data_files": "x.csv"}, "data_files has no meaning"),
        ("te3", {"num_items": -1}, "num_items must be a whole number from 1"),
        ("te3", {"num_validation": 0}, "num_validation must be a whole number from 1"),
        ("lite", {"num_items": 2, "num_train": 100}, "the splits are not disjoint"),
    ],
)
def test_refusals(load, name, keywords, words):
    with pytest.raises(Exception, match=words) as told:
        load(name, **keywords)
    assert isinstance(told.value, (ValueError, FileNotFoundError)) or "DatasetGeneration" in type(told.value).__name__


@pytest.mark.parametrize("revision", ["main", "v1.0.0", "1.0.0", None])
def test_known_revisions(load, revision):
    assert load("lite", revision=revision, num_train=5, num_validation=2, num_test=2)["train"].num_rows == 5


def test_other_names_go_through_untouched(load, tmp_path):
    import datasets

    (tmp_path / "x.csv").write_text("a\n1\n")
    ds = datasets.load_dataset("csv", data_files=str(tmp_path / "x.csv"), cache_dir=str(tmp_path / "c"))
    assert ds["train"][0] == {"a": 1}


def test_a_folder_of_the_same_name_does_not_take_it(load):
    kw = dict(num_train=5, num_validation=2, num_test=2)
    reference = load("lite", **kw)["train"]._fingerprint
    os.mkdir("selectivbench")
    assert load("lite", **kw)["train"]._fingerprint == reference
    Path("selectivbench/ckpt.bin").write_bytes(b"x")
    assert load("lite", **kw)["train"]._fingerprint == reference
    Path("selectivbench/ckpt.bin").unlink()
    os.rmdir("selectivbench")
    Path("selectivbench").write_text("a file")
    assert load("lite", **kw)["train"]._fingerprint == reference
    Path("selectivbench").unlink()
    os.symlink("nowhere", "selectivbench")
    assert load("lite", **kw)["train"]._fingerprint == reference


def run(code, cwd, **env):
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=300,
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "HF_HUB_OFFLINE": "1",
            "HF_DATASETS_CACHE": str(cwd / "cache"),
            **env,
        },
    )


@pytest.mark.parametrize(
    "order",
    [
        "import selectivbench_hf\nfrom datasets import load_dataset",
        "from datasets import load_dataset\nimport selectivbench_hf",
        "import datasets.load\nimport selectivbench_hf\nfrom datasets import load_dataset",
    ],
)
def test_either_order_of_imports_offline(tmp_path, order):
    done = run(
        order
        + """
ds = load_dataset("selectivbench", "lite", num_train=5, num_validation=2, num_test=2)
import datasets.inspect, datasets.load
assert datasets.inspect.dataset_module_factory is datasets.load.dataset_module_factory
print(ds["train"].num_rows)
""",
        tmp_path,
    )
    assert done.stdout.strip().endswith("5"), done.stderr


def test_the_import_is_light(tmp_path):
    done = run(
        """
        import sys, selectivbench_hf
        assert selectivbench_hf.__version__
        print([m for m in ("torch", "transformers", "datasets", "fla", "numpy", "scipy", "pyarrow") if m in sys.modules])
        """,
        tmp_path,
    )
    assert done.stdout.strip() == "[]", done.stdout + done.stderr


def test_a_changed_signature_is_told_when_the_name_is_loaded(tmp_path):
    done = run(
        """
        import datasets.load
        datasets.load.dataset_module_factory = lambda where, which=None, **kw: None
        import selectivbench_hf
        try:
            datasets.load_dataset("selectivbench", "lite")
        except RuntimeError as error:
            print(error)
        """,
        tmp_path,
    )
    assert "changed how it finds builders" in done.stdout, done.stderr


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_num_proc_under_other_start_methods(tmp_path, method):
    script = tmp_path / "main.py"
    script.write_text(
        textwrap.dedent(f"""
        import multiprocess, sys
        import selectivbench_hf
        from datasets import load_dataset
        if __name__ == "__main__":
            multiprocess.set_start_method("{method}", force=True)
            ds = load_dataset("selectivbench", "lite", num_train=8, num_validation=2, num_test=2, num_proc=2)
            print(ds["train"]["example_id"][:])
        """)
    )
    done = subprocess.run(
        [sys.executable, str(script)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "PYTHONPATH": str(ROOT), "HF_DATASETS_CACHE": str(tmp_path / "cache")},
    )
    assert done.stdout.strip().endswith("[0, 1, 2, 3, 4, 5, 6, 7]"), done.stderr[-2000:]


@pytest.mark.parametrize("world", [1, 2, 3, 5])
def test_streams_split_by_node_lose_and_double_nothing(load, world):
    from datasets.distributed import split_dataset_by_node

    stream = load("lite", num_train=103, streaming=True)["train"]
    ids = [[r["example_id"] for r in split_dataset_by_node(stream, rank, world)] for rank in range(world)]
    assert sorted(i for rank in ids for i in rank) == list(range(103))
    shuffled = stream.shuffle(seed=1, buffer_size=20)
    shuffled.set_epoch(3)
    assert sorted(r["example_id"] for r in shuffled) == list(range(103))
    assert [r["example_id"] for r in stream.skip(7).take(10)] == list(range(7, 17))


def test_a_loader_with_workers_sees_every_row_once(load):
    from torch.utils.data import DataLoader

    stream = load("lite", num_train=103, streaming=True)["train"].with_format("torch")
    seen = [int(i) for batch in DataLoader(stream, batch_size=10, num_workers=3) for i in batch["example_id"]]
    assert sorted(seen) == list(range(103))


def test_narrow_types_reach_every_framework(load):
    """uint16 labels through the formats of `datasets`; the loss receives int64 (`Collator`)."""
    import torch

    ds = load("te3", num_train=8, num_validation=2, num_test=2)["train"]
    expected = np.array(ds[0]["labels"])
    assert np.array_equal(ds.with_format("numpy")[0]["labels"], expected)
    assert np.array_equal(ds.with_format("torch")[0]["labels"].to(torch.int64).numpy(), expected)
    assert np.array_equal(ds.to_pandas()["labels"][0], expected)
    batch = sb.Collator(get_task("te3", num_train=8), "train")([ds[i] for i in range(8)])
    assert batch["labels"].dtype == torch.int64 and np.array_equal(batch["labels"][0], expected)
    assert torch.nn.functional.cross_entropy(torch.zeros(400, 677), batch["labels"][0]).item() == pytest.approx(
        np.log(677)
    )


@pytest.mark.parametrize(
    "name, sizes",
    [("te7", {}), ("lite", {}), ("lite", dict(num_train=3, num_test=1)), ("te1_noisy_gaps", dict(num_train=50_001))],
)
def test_shards_cover_and_share(name, sizes):
    task = get_task(name, **sizes)
    for split, size in task.splits.items():
        cut = shards(task, split)
        assert [s for _, s, _ in cut] + [size] == [0] + [e for _, _, e in cut]
        assert len(cut) >= min(size, 4 if split == "train" else 2)
        for _, start, stop in cut:
            block = 50_000 if split == "train" else 1000
            assert start // block == (stop - 1) // block
