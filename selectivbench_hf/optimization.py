"""Which examples each optimiser step sees, how they are cut, the learning rate, and which parameters decay.

All are pure functions of the step, so a resumed run, two processes, or an accumulated batch follow the same course.
"""

import dataclasses
import functools
import math
import queue
import threading

from .arguments import GLOBAL_BATCH
from .errors import InputError


@dataclasses.dataclass(frozen=True)
class Plan:
    """The course of a run: step k (0-based) takes rows [k*G, (k+1)*G) of its epoch's order; the last batch of an epoch may be smaller."""

    sequences: int
    global_batch: int
    processes: int
    accumulation: int
    total_steps: int
    warmup_steps: int
    data_seed: int

    @classmethod
    def of(cls, args, sequences: int, processes: int) -> "Plan":
        """From the arguments; InputError for a training split without sequences."""
        if sequences < 1:
            raise InputError("the task has no training sequences (num_train is 0): there is nothing to train on")
        cuts = processes * args.gradient_accumulation_steps
        batch = GLOBAL_BATCH if args.per_device_train_batch_size is None else args.per_device_train_batch_size * cuts
        epoch = -(-sequences // batch)
        total = args.max_steps or max(1, math.ceil(args.num_train_epochs * epoch - 1e-9))
        warmup = min(1000, int(0.32 * total)) if args.warmup_steps is None else args.warmup_steps
        return cls(sequences, batch, processes, args.gradient_accumulation_steps, total, warmup, args.data_seed)

    @property
    def steps_per_epoch(self) -> int:
        return -(-self.sequences // self.global_batch)

    @property
    def micro_batch(self) -> int:
        """Most rows that one process sees in one forward pass."""
        return -(-min(self.global_batch, self.sequences) // (self.processes * self.accumulation))

    def example_ids(self, step: int):
        """(epoch, (n,) int64 example ids) of the global batch of `step`."""
        epoch, k = divmod(step, self.steps_per_epoch)
        return epoch, _order(self.sequences, self.data_seed, epoch)[
            k * self.global_batch : (k + 1) * self.global_batch
        ]

    def part(self, step: int, micro: int, process: int):
        """(epoch, ids) of one micro-batch on one process: piece micro*P + process of P*A nearly equal pieces; may be empty."""
        epoch, ids = self.example_ids(step)
        pieces, i = self.processes * self.accumulation, micro * self.processes + process
        small, more = divmod(len(ids), pieces)
        start = i * small + min(i, more)
        return epoch, ids[start : start + small + (i < more)]

    def sequences_before(self, step: int) -> int:
        """Sequences seen by the steps before `step`."""
        epochs, k = divmod(step, self.steps_per_epoch)
        return epochs * self.sequences + min(k * self.global_batch, self.sequences)


@functools.lru_cache(maxsize=2)
def _order(sequences, seed, epoch):
    from .features import epoch_order

    return epoch_order(sequences, seed, epoch)


def learning_rate(args, plan: Plan, step: int) -> float:
    """The rate of 0-based `step`: linear from lr/W to lr over W warm-up steps, then cosine or linear towards 0, or constant."""
    if step < plan.warmup_steps:
        return args.learning_rate * (step + 1) / plan.warmup_steps
    if args.lr_scheduler_type == "constant":
        return args.learning_rate
    done = min(1.0, (step - plan.warmup_steps) / max(1, plan.total_steps - plan.warmup_steps))
    return args.learning_rate * (
        0.5 * (1 + math.cos(math.pi * done)) if args.lr_scheduler_type == "cosine" else 1 - done
    )


def make_optimizer(model, args):
    """(AdamW, its groups as the record tells them): norms, biases, embeddings and what a layer marks never decay."""
    import torch

    from .models import parameter_groups

    groups = parameter_groups(model, args.weight_decay)
    if not groups:
        raise InputError("the model has no trainable parameters")
    told = [
        {
            "weight_decay": g["weight_decay"],
            "parameters": sum(p.numel() for p in g["params"]),
            "names": list(g["names"]),
        }
        for g in groups
    ]
    groups = [{"params": g["params"], "weight_decay": g["weight_decay"]} for g in groups]
    return torch.optim.AdamW(
        groups, lr=args.learning_rate, betas=(args.adam_beta1, args.adam_beta2), eps=args.adam_epsilon
    ), told


class Prefetch:
    """Iterator over this process's micro-batches from `start` on, built two ahead by one thread. A piece without rows is None.

    The order is a function of the plan alone: the thread holds no random state, so what it has built ahead is never part of a checkpoint.
    """

    def __init__(
        self, task, plan: Plan, start: int, process: int, pin: bool = False, objective: str = "classification"
    ):
        self._queue, self._stop = queue.Queue(maxsize=2), threading.Event()
        self._work = (task, plan, start, process, pin, objective)
        self._thread = threading.Thread(target=self._run, daemon=True, name="batches")
        self._thread.start()

    def _put(self, item) -> bool:
        while not self._stop.is_set():
            try:
                self._queue.put(item, timeout=0.2)
                return True
            except queue.Full:
                continue
        return False

    def _run(self):
        task, plan, start, process, pin, objective = self._work
        try:
            for step in range(start, plan.total_steps):
                for micro in range(plan.accumulation):
                    epoch, ids = plan.part(step, micro, process)
                    batch = training_batch(task, ids, epoch, plan.data_seed, pin, objective) if len(ids) else None
                    if not self._put((batch, None)):
                        return
        except BaseException as error:  # told in the main thread
            self._put((None, error))

    def __next__(self):
        batch, error = self._queue.get()
        if error is not None:
            raise error
        return batch

    def close(self):
        self._stop.set()
        self._thread.join(timeout=10)


def training_batch(task, ids, epoch: int, seed: int, pin: bool = False, objective: str = "classification") -> dict:
    """Torch tensors of the given training examples: input_features (B,T,V) float32, or for a recall task
    input_ids (B,T) int64, and labels (B,T) int64, -100 at padding and where nothing is asked."""
    import torch

    from .features import make_batch

    batch = make_batch(task, "train", ids, epoch=epoch, seed=seed, objective=objective)
    out = {name: torch.from_numpy(batch[name]) for name in (input_name(task), "labels")}
    return {k: v.pin_memory() for k, v in out.items()} if pin else out


def input_name(task) -> str:
    """What a model is fed with: features where inputs carry noise, ids where symbols come from a whole vocabulary."""
    return "input_features" if task.family == "grammar" else "input_ids"
