"""From items and steps to what a model eats: one-hot features (or what `symbols.py` shows) with noise, padded batches, the order of an
epoch (protocol section 6).

NumPy in, NumPy out: any framework can train from `batches`. Axes: B sequences, T steps, V symbols (`#` and the letters), C channels (V for
one-hot symbols), S states.

Noise is not stored: it is a function of the example. Evaluation: key (task's grammar and sample seed, split, example id), so every evaluation of
a checkpoint gives the same number. Training: key (data seed, epoch, example id), so a resumed run sees what it would have seen.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from .checks import whole
from .errors import InputError
from .layout import load_split
from .recall_sampling import question_ids
from .streams import normals, raw32, stream
from .symbols import shown

IGNORED = -100  # label of padding


def epoch_order(num_sequences: int, seed: int, epoch: int) -> np.ndarray:
    """The order in which an epoch visits a split's example ids: (N,) int64, a function of its three arguments alone."""
    words = stream("epoch-order", int(seed), int(epoch)).random_raw(num_sequences)
    return np.argsort(words, kind="stable")


def noise(
    task, split: str, example_id: int, steps: int, *, seed: int | None = None, epoch: int | None = None
) -> np.ndarray:
    """The noise of one sequence: (steps, C) float32, for each channel of the features (V where symbols are one-hot).

    `uniform`: (32-bit word >> 8) x noise_scale / 2^24, in [0, noise_scale). `gaussian`: Box-Muller from the same words, standard deviation
    noise_scale. With `epoch` the training noise of (seed, epoch, example id), without it the evaluation noise of (split, example id).
    """
    if epoch is None:
        source = stream("noise", task.grammar.hash, task.sample_seed, split, int(example_id))
    else:
        source = stream("training-noise", task.grammar.hash, int(seed), int(epoch), int(example_id))
    count = steps * task.num_channels
    if task.noise == "gaussian":
        drawn = normals(source, count, task.noise_scale).astype(np.float32)
    else:
        drawn = (raw32(source, count) >> np.uint32(8)).astype(np.float32) * np.float32(task.noise_scale / 2**24)
    return drawn.reshape(steps, task.num_channels)


def encode(
    task, input_ids: np.ndarray, lengths: np.ndarray, split: str, example_ids, *, seed=None, epoch=None
) -> np.ndarray:
    """Features of a padded batch: symbols as the task shows them (one-hot, unless `task.symbols` says otherwise; zero for a blank) plus
    the task's noise; zero at padding.

    Args:
        input_ids: (B, T) integers, the blank id at blanks and padding.
        lengths: (B,) steps of each sequence.
        split, example_ids, seed, epoch: what keys the noise, see `noise`, and the choice of examples, see `symbols.choices`.

    Returns:
        (B, T, C) float32; C is `task.num_channels`, V for one-hot symbols.
    """
    if task.symbols is not None:
        features = shown(task, input_ids, lengths, split, example_ids, seed=seed, epoch=epoch)
    else:
        batch, steps = input_ids.shape
        features = np.zeros(
            (batch, steps, task.num_symbols + 1), dtype=np.float32
        )  # one channel more takes the blanks
        np.put_along_axis(features, input_ids[..., None].astype(np.int64), 1, axis=-1)
        features = np.ascontiguousarray(features[..., : task.num_symbols])
    if task.noise != "none":
        for row, (example, length) in enumerate(zip(example_ids, lengths)):
            features[row, :length] += noise(task, split, example, int(length), seed=seed, epoch=epoch)
    return features


def make_batch(
    task,
    split: str,
    example_ids,
    *,
    epoch: int | None = None,
    seed: int | None = None,
    objective: str = "classification",
) -> dict[str, np.ndarray]:
    """A batch of the given sequences of a split, in the given order.

    Args:
        task: a Task.
        split: its split.
        example_ids: (B,) whole numbers.
        epoch, seed: training noise of this epoch and data seed; without them the evaluation noise.
        objective: `prediction` makes `labels` the symbol of the next item at each step, -100 in the last item.

    Returns:
        dict of `input_features` (B, T, C) float32 (not for a recall task, whose models are fed with ids), `input_ids` (B, T) int64 (blank
        id at padding), `labels` (B, T) int64 (-100 at padding and where nothing is asked), `item_ids` (B, T) int64 (-1 there), `lengths`
        (B,) and `example_id` (B,) int64. T is the longest sequence of the batch.

    Raises:
        InputError: for an unknown split, ids outside it, or an epoch without a seed.
    """
    data = load_split(task, split)
    ids = np.asarray(example_ids, dtype=np.int64).reshape(-1)
    if ids.size and (ids.min() < 0 or ids.max() >= len(data)):
        raise InputError(
            f"example ids of {task.name}/{split} run from 0 to {len(data) - 1}, got {ids.min()}..{ids.max()}"
        )
    if epoch is not None and seed is None:
        raise InputError("training noise needs a data seed beside the epoch")
    laid = data.layout(ids)
    padded = _pad(laid, task)
    if task.family == "grammar":
        padded["input_features"] = encode(task, padded["input_ids"], laid.lengths, split, ids, seed=seed, epoch=epoch)
    padded["example_id"] = ids
    if objective != "classification":
        from .prediction import check_objective, next_symbols

        check_objective(task, objective)
        padded["labels"] = next_symbols(task, padded["labels"], padded["item_ids"])
    return padded


def _pad(laid, task):
    steps = int(laid.lengths.max()) if laid.lengths.size else 0
    inside = np.arange(steps) < laid.lengths[:, None]
    out = {"lengths": laid.lengths}
    for name, filler in (("input_ids", task.blank_id), ("labels", IGNORED), ("item_ids", -1)):
        out[name] = np.full(inside.shape, filler, dtype=np.int64)
        out[name][inside] = getattr(laid, name)
    return out


def batches(
    task,
    split: str,
    batch_size: int,
    *,
    epoch: int = 0,
    seed: int = 0,
    shuffle: bool | None = None,
    drop_last: bool = False,
    max_sequences: int | None = None,
    objective: str = "classification",
) -> Iterator[dict[str, np.ndarray]]:
    """The batches of one pass over a split, as NumPy arrays: train from any framework.

    Args:
        task: a Task or a task's name.
        split: `train` is shuffled by (seed, epoch) and gets that epoch's noise; the other splits come in order with the evaluation noise.
        batch_size: B; the last batch may be smaller unless `drop_last`.
        shuffle: override the order (the noise follows the split all the same).
        max_sequences: only the first so many sequences of the split.
        objective: as for `make_batch`.

    Yields:
        dicts as `make_batch` returns them.

    Raises:
        InputError: for an unknown split or sizes below 1, at the call and not at the first batch.
    """
    from .prediction import check_objective
    from .tasks import get_task

    task = get_task(task)
    task.check_split(split)
    check_objective(task, objective)
    whole("batch_size", batch_size, 1)
    whole("seed", seed)
    whole("epoch", epoch, 0)
    count = (
        task.splits[split]
        if max_sequences is None
        else min(whole("max_sequences", max_sequences, 1), task.splits[split])
    )
    training = split == "train"
    order = epoch_order(count, seed, epoch) if (training if shuffle is None else shuffle) else np.arange(count)
    stop = count - count % batch_size if drop_last else count
    if stop == 0:
        raise InputError(
            f"drop_last leaves no batch: {task.name}/{split} has {count} sequences and batch_size is {batch_size}"
        )
    keys = {"objective": objective} | ({"epoch": epoch, "seed": seed} if training else {})
    return (
        make_batch(task, split, order[at : min(at + batch_size, stop)], **keys) for at in range(0, stop, batch_size)
    )


class Collator:
    """Rows of the `datasets` columns to a padded batch of torch tensors, for `Trainer` or a `DataLoader`.

    Rows of a recall task have no `item_ids`: they are counted from the labels, and the batch has `input_ids` (B, T) int64 in the place of features.

    Args:
        task: a Task or a task's name.
        split: the split that the rows come from; it keys the evaluation noise. For `train` the noise is that of (seed, epoch): call
            `set_epoch` to renew it each epoch.
        seed: data seed of the training noise.
        with_item_ids: also return `item_ids` (B, T) and `lengths` (B,), which scoring needs and the model's forward does not take.
        objective: as for `make_batch`.

    Returns (when called with a list of rows):
        dict of `input_features` (B, T, C) float32 and `labels` (B, T) int64 (-100 at padding, and where a recall task asks nothing).
    """

    def __init__(
        self,
        task,
        split: str = "train",
        seed: int = 0,
        with_item_ids: bool = False,
        objective: str = "classification",
    ):
        from .prediction import check_objective
        from .tasks import get_task

        self.task = get_task(task)
        self.objective = check_objective(self.task, objective)
        self.split, self.seed, self.epoch, self.with_item_ids = self.task.check_split(split), seed, 0, with_item_ids

    def set_epoch(self, epoch: int) -> None:
        self.epoch = int(epoch)

    def __call__(self, rows):
        import torch

        from .prediction import next_symbols

        if not rows:
            raise InputError("a batch needs at least one row")
        recall = self.task.family == "recall"
        if recall:
            rows = [
                {**row, "item_ids": question_ids(np.asarray(row["labels"]))} if "labels" in row else row
                for row in rows
            ]
        missing = {"example_id", "input_ids", "labels", "item_ids"} - set(rows[0])
        if missing:
            raise InputError(
                f"the rows lack the columns {sorted(missing)}; with Trainer set remove_unused_columns=False"
            )
        lengths = np.array([len(r["input_ids"]) for r in rows], dtype=np.int64)
        for row, length in zip(rows, lengths, strict=True):
            if len(row["labels"]) != length or len(row["item_ids"]) != length:
                raise InputError(f"row {row['example_id']}: input_ids, labels and item_ids must have one length")
        steps = int(lengths.max())
        padded = {}
        for name, filler in (("input_ids", self.task.blank_id), ("labels", IGNORED), ("item_ids", -1)):
            padded[name] = np.full((len(rows), steps), filler, dtype=np.int64)
            for at, row in enumerate(rows):
                padded[name][at, : lengths[at]] = np.asarray(row[name])
        keys = {"seed": self.seed, "epoch": self.epoch} if self.split == "train" else {}
        ids = [int(r["example_id"]) for r in rows]
        if recall:
            inputs = {"input_ids": torch.from_numpy(padded["input_ids"])}
        else:
            features = encode(self.task, padded["input_ids"], lengths, self.split, ids, **keys)
            inputs = {"input_features": torch.from_numpy(features)}
        if self.objective == "prediction":
            padded["labels"] = next_symbols(self.task, padded["labels"], padded["item_ids"])
        out = {**inputs, "labels": torch.from_numpy(padded["labels"])}
        if self.with_item_ids:
            out |= {"item_ids": torch.from_numpy(padded["item_ids"]), "lengths": torch.from_numpy(lengths)}
        return out
