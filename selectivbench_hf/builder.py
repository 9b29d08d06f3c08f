"""The `datasets` builder behind `load_dataset("selectivbench", NAME, **keywords)`.

Rows: `example_id` (0-based in its split), `input_ids`, `labels`, `item_ids`, in the smallest unsigned types; a recall task has no
`item_ids`, and `labels` in int16, -100 where nothing is asked. The tables are made by NumPy in
whole shards and handed to Arrow without a Python loop over rows. `registration.py` lets `load_dataset` find this module.
"""

from __future__ import annotations

import errno
import functools
import hashlib
import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
from datasets.builder import Key

from . import checks, errors, grammar, layout, recall, recall_sampling, sampling, streams, tasks, values
from .children import children_leave_with_us
from .errors import InputError, unknown
from .layout import check_disjoint, draw_block, held_out_hashes, smallest_unsigned
from .sampling import block_size
from .symbols import NOT_IN_ROWS
from .tasks import BUILDER_KEYWORDS, DATA_VERSION, Task, get_task, grammar_task_names, keywords_of, task_names

SHARD = 12_500  # sequences of a train shard; a divisor of the block, so that a shard never needs two blocks
STEPS_PER_TABLE = 4_000_000
CITATION = """@article{bouhadjar2026dissecting,
  title   = {Dissecting Linear Recurrent Models: How Different Gating Strategies Drive Selectivity and Generalization},
  author  = {Bouhadjar, Younes and Fabre, Maxime and Schmidt, Felix and Neftci, Emre},
  journal = {arXiv preprint arXiv:2601.12598},
  year    = {2026}
}"""


def generator_hash() -> str:
    """The part of the cache key that changes whenever the data could: the data version and the source of every module that makes data."""
    digest = hashlib.sha256(DATA_VERSION.encode())
    for module in (checks, errors, streams, grammar, sampling, layout, recall, recall_sampling, tasks, values):
        digest.update(Path(module.__file__).read_bytes())
    digest.update(Path(__file__).read_bytes())
    return digest.hexdigest()


@dataclass
class SelectivBenchBuilderConfig(datasets.BuilderConfig):
    """A configuration: a task of the catalogue and the task's fields that differ (None: as in the catalogue); see `tasks.Task` and
    `recall.RecallTask`."""

    letters: int | None = None
    depth: Any = None
    density: float | None = None
    num_start_states: int | None = None
    grammar_seed: int | None = None
    dirichlet: float | None = None
    all_reachable: bool | None = None
    min_string_length: int | None = None
    sample_seed: int | None = None
    max_string_length: int | None = None
    num_items: int | None = None
    num_train: int | None = None
    num_validation: int | None = None
    num_test: int | None = None
    train_gap: Any = None
    test_gaps: Any = None
    noise: str | None = None
    noise_scale: float | None = None
    distractor_rate: float | None = None
    distractor_start: int | None = None
    grammar: Any = None
    length: int | None = None
    num_pairs: int | None = None
    vocab_size: int | None = None
    alpha: float | None = None
    filler: str | None = None

    @functools.cached_property
    def task(self):
        return get_task(self.name, **{field: getattr(self, field) for field in BUILDER_KEYWORDS})

    def create_config_id(self, config_kwargs, custom_features=None) -> str:
        """The name where the data are the catalogue's, else name and fingerprint: one cache entry for one content, however it was asked for."""
        task = self.task
        own = (
            self.name
            if task.fingerprint == get_task(self.name).fingerprint
            else f"{self.name}-{task.fingerprint[:16]}"
        )
        return (
            own
            if custom_features is None
            else f"{own}-{hashlib.sha256(repr(custom_features).encode()).hexdigest()[:16]}"
        )


class SelectivBench(datasets.ArrowBasedBuilder):
    """Generates a task's splits: exact, disjoint, the same bytes for any number of processes and when streamed."""

    VERSION = datasets.Version(DATA_VERSION)
    BUILDER_CONFIG_CLASS = SelectivBenchBuilderConfig
    BUILDER_CONFIGS = [  # noqa: RUF012 - as `datasets` declares it
        SelectivBenchBuilderConfig(name=name, version=datasets.Version(DATA_VERSION)) for name in task_names()
    ]
    DEFAULT_CONFIG_NAME = "lite"

    def _create_builder_config(self, config_name=None, custom_features=None, config_id=None, **keywords):
        name = config_name or self.DEFAULT_CONFIG_NAME
        seeded = re.fullmatch(r"(.+)_seed(\d+)", name)
        if seeded and seeded[1] in grammar_task_names():  # as on the Hub
            name = seeded[1]
            if keywords.setdefault("grammar_seed", int(seeded[2])) != int(seeded[2]):
                raise InputError(f"{config_name} and grammar_seed={keywords['grammar_seed']} contradict each other")
        if name not in task_names():
            raise unknown("config", name, task_names(), "selectivbench")
        version = str(keywords.pop("version", DATA_VERSION) or DATA_VERSION)
        if version != DATA_VERSION:
            raise InputError(f"this package generates selectivbench {DATA_VERSION}, not {version}")
        if keywords.pop("symbols", None) is not None:
            raise InputError(NOT_IN_ROWS)
        for keyword in keywords:
            if keyword not in keywords_of(name):
                raise unknown("keyword", keyword, keywords_of(name), f"load_dataset('selectivbench', {name!r}, ...)")
        config = SelectivBenchBuilderConfig(name=name, version=self.VERSION, **keywords)
        return config, config_id or config.create_config_id(keywords, custom_features)

    def download_and_prepare(self, *args, **keywords):
        """As in `datasets`; a refusal of ours reaches the user as it is, not behind a general error, and a killed parent takes its processes
        along."""
        with children_leave_with_us():
            try:
                super().download_and_prepare(*args, **keywords)
            except datasets.exceptions.DatasetGenerationError as error:
                raise _plain(error) from error

    def _info(self):
        return datasets.DatasetInfo(
            description=self.config.task.describe(),
            features=features_of(self.config.task),
            citation=CITATION,
            license="apache-2.0",
            version=self.VERSION,
        )

    def _split_generators(self, dl_manager):
        task = self.config.task
        if self._output_dir.endswith(".incomplete") and os.path.isdir(
            self._output_dir
        ):  # files are about to be made on a local disk
            for left in os.scandir(
                self._output_dir
            ):  # by a killed load; `datasets` holds the lock and would keep them
                os.unlink(left.path)
            _check_space(self._output_dir, task)
        held_out = held_out_hashes(task)
        # an array, since `datasets` cuts lists among processes
        return [
            datasets.SplitGenerator(
                name=split,
                gen_kwargs={
                    "shards": shards(task, split),
                    "held_out": held_out if split == "train" else np.zeros(0, np.uint64),
                },
            )
            for split in task.splits
        ]

    def _generate_tables(self, shards, held_out) -> Iterator[tuple[Key, pa.Table]]:
        for shard, (split, start, stop) in enumerate(shards):
            for table, rows in enumerate(shard_tables(self.config.task, split, start, stop, held_out)):
                yield Key(shard, table), rows


def _plain(error: Exception) -> Exception:
    """The InputError or OSError that `datasets` (or a worker's pool, which keeps only text) wrapped, else the error itself."""
    at = error
    while at is not None:
        if isinstance(at, InputError):
            return InputError(str(at))
        if isinstance(at, OSError) and at.errno is not None:
            return type(at)(
                at.errno, f"{at.strerror or at} while the data were written; nothing half-made was left", at.filename
            )
        told = re.findall(r"^selectivbench_hf\.errors\.InputError: (.+)$", str(at), re.M)
        if told:
            return InputError(told[-1])
        at = at.__cause__ or at.__context__
    return error


def expected_bytes(task: Task) -> int:
    """About how many bytes the Arrow files of all splits take: steps expected by the gap laws, times the columns' types."""
    if task.family == "recall":
        steps = task.max_steps("train") * sum(task.splits.values())
        return steps * (2 + np.dtype(_name(task.num_symbols - 1)).itemsize) + 16 * sum(task.splits.values())
    widths = [np.dtype(_name(n)).itemsize for n in (task.blank_id, task.num_states - 1, task.num_items - 1)]
    total = 0.0
    for split, size in task.splits.items():
        law = task.gap_law(split)
        gap = sum(g * w for g, w in law.items()) / sum(law.values())
        extra = task.distractor_rate * max(0, task.num_items - task.distractor_start)
        total += size * (task.num_items * (1 + gap) + extra) * sum(widths) + 16 * size  # offsets and id
    return int(total)


def _check_space(folder: str, task: Task) -> None:
    """Refuse before writing when the disk has no room, with both numbers."""
    needed, free = expected_bytes(task), shutil.disk_usage(folder).free
    if needed > free:
        raise OSError(
            errno.ENOSPC,
            f"{task.name} needs about {needed:,} bytes in the cache and {free:,} are free; free some, or name another disk with cache_dir=",
            folder,
        )


def features_of(task: Task) -> datasets.Features:
    """Columns and types of a task's rows."""
    longest = max(task.splits.values())
    if task.family == "recall":
        return datasets.Features(
            {
                "example_id": datasets.Value(_name(longest - 1)),
                "input_ids": datasets.List(datasets.Value(_name(task.num_symbols - 1))),
                "labels": datasets.List(datasets.Value("int16")),
            }
        )
    return datasets.Features(
        {
            "example_id": datasets.Value(_name(longest - 1)),
            "input_ids": datasets.List(datasets.Value(_name(task.blank_id))),
            "labels": datasets.List(datasets.Value(_name(task.num_states - 1))),
            "item_ids": datasets.List(datasets.Value(_name(task.num_items - 1))),
        }
    )


def _name(largest):
    return smallest_unsigned(max(largest, 0)).name


def shards(task: Task, split: str) -> list[tuple[str, int, int]]:
    """(split, start, stop) of each shard: at least four in train, two in the others, so that num_proc has something to share."""
    size = task.splits[split]
    most, few = (SHARD, 4) if split == "train" else (block_size(split), 2)
    length = max(1, min(most, -(-size // few)))
    # shards stay within blocks: cut each block by itself
    out = []
    for block in range(0, size, block_size(split)):
        end = min(size, block + block_size(split))
        out += [(split, start, min(end, start + length)) for start in range(block, end, length)]
    return out or [(split, 0, 0)]


def shard_tables(
    task: Task, split: str, start: int, stop: int, held_out: np.ndarray, rows_per_table: int | None = None
) -> Iterator[pa.Table]:
    """Tables of the sequences start..stop of a split (within one block), some million steps each; train checks itself against `held_out`."""
    block, first = divmod(start, block_size(split))
    part = draw_block(task, split, block, first, first + stop - start)
    if split == "train":
        check_disjoint(task, part.items, held_out, start)
    rows = rows_per_table or max(1, STEPS_PER_TABLE // task.max_steps(split))
    schema = features_of(task).arrow_schema
    for lo in range(0, max(len(part), 1), rows):
        hi = min(lo + rows, len(part))
        laid = part.layout(slice(lo, hi))
        offsets = pa.array(np.concatenate([[0], np.cumsum(laid.lengths)]).astype(np.int32))
        lists = [pa.ListArray.from_arrays(offsets, pa.array(getattr(laid, name))) for name in schema.names[1:]]
        ids = np.arange(start + lo, start + hi).astype(schema.field("example_id").type.to_pandas_dtype())
        yield pa.table([pa.array(ids), *lists], names=schema.names).cast(schema)


def iterate_tables(task: Task, split: str, rows_per_table: int | None = None) -> Iterator[pa.Table]:
    """All of a split as pyarrow Tables in order of example id, at least one (empty for an empty split), with the builder's columns.

    Raises:
        InputError: when the splits are not disjoint.
    """
    task.check_split(split)
    held_out = held_out_hashes(task) if split == "train" else np.zeros(0, np.uint64)
    for _, start, stop in shards(task, split):
        yield from shard_tables(task, split, start, stop, held_out, rows_per_table)


def content_hash(tables) -> str:
    """SHA-256 (hex) of rows, whatever their cut into tables, chunks or files: ids, row lengths, and each column's values in its own type."""
    digests = {}
    for table in tables:
        for name in table.column_names:
            digest = digests.setdefault(name, (hashlib.sha256(), hashlib.sha256()))
            for chunk in table.column(name).chunks:
                if name != "example_id":
                    digest[1].update(np.diff(chunk.offsets.to_numpy()).astype("<i8").tobytes())
                    chunk = chunk.flatten()
                values = chunk.to_numpy()
                digest[0].update(values.astype(values.dtype.newbyteorder("<")).tobytes())
    return hashlib.sha256(
        "".join(d.hexdigest() for name in sorted(digests) for d in digests[name]).encode()
    ).hexdigest()
