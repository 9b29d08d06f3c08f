"""Training a submission again from what it recorded: arguments that are data and nothing else, limits, and a budget that is told first.

The arguments go through the same dataclass as flags do (arguments.py), known fields alone; where a field says what happens on a machine (folders,
checkpoints, trackers, processes) it is ours. Training runs in this process, in a run folder that a later call takes up again.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ..errors import InputError, unknown
from .published import MOST_LAYERS, WIDEST
from .untrusted import shown, strict_json

MOST_STEPS = 200_000  # 64 passes over the published training split at batch 64
MOST_SEQUENCES = 20_000_000  # trained on and validated with: 100 times that split
MOST_AT_ONCE = 1 << 21  # time steps in one forward pass: 1,600 sequences of te3_noisy_gaps
SAVE_STEPS = 500
# arguments that say nothing about what is learned: a replay has its own
OURS = ("task", "task_kwargs", "output_dir", "resume", "tracker", "num_processes", "save_steps", "save_total_limit")
OURS += ("logging_steps", "self_check", "detail", "eval_splits", "mixed_precision")


def arguments_of(run, say):
    """The TrainingArguments of a run's recorded arguments, with a replay's own in place of OURS (the output folder is set by `train`).

    Raises:
        InputError: for a run without arguments, an unknown or misspelt field, a mixer from outside, or values beyond the limits.
    """
    from ..arguments import TrainingArguments, kinds, merge

    where = f"the arguments of {run.where}"
    if run.row["arguments"] is None:
        raise InputError(
            f"{run.where} records no training arguments, so it cannot be trained again; --rescore_only scores its weights"
        )
    given = run.arguments
    known = kinds()
    for name in given:
        if name not in known:
            raise unknown("argument", ascii(name)[1:-1][:60], known, where)
    _check_mixer(given.get("mixer"), where)
    for name, most in (("num_hidden_layers", MOST_LAYERS), ("hidden_size", WIDEST)):
        if isinstance(given.get(name), int) and given[name] > most:
            raise InputError(f"{where}: {name} is {given[name]:,}; at most {most:,} is trained")
    absent = [name for name in known if name not in given and name not in OURS]
    if absent:
        say(
            f"notice: {where} do not say {', '.join(absent)}; what this version of the package does by default is taken"
        )
    theirs, task = {name: value for name, value in given.items() if name not in OURS}, run.task.to_dict()
    try:
        args = TrainingArguments(**merge((where, theirs)), task=task)
    except InputError as error:
        raise InputError(f"{where}: {error}" if not str(error).startswith(where) else str(error)) from None
    now = args.as_dict()
    for name, value in theirs.items():
        if now[name] != value:
            raise InputError(f"{where}: {name} is {shown(value)}, which no training records")
    splits = [s for s in run.scores("scores") if s not in ("validation", "train")]
    args = args.replace(
        **_cut(run, args, say),
        eval_splits=splits,
        mixed_precision="bf16" if "bf16" in (run.row["precision"] or "") else "no",
        save_steps=SAVE_STEPS,
        save_total_limit=1,
        tracker="none",
    )
    _check_size(args, run, where)
    return args


def _check_mixer(mixer, where) -> None:
    from ..models import mixer_names

    if mixer == "module" or (isinstance(mixer, str) and ":" in mixer):
        raise InputError(
            f"{where}: the mixer {shown(mixer)} is code from outside this package, and a replay never runs code of a submission; it stays at `weights`"
        )
    if mixer not in mixer_names():
        raise InputError(
            f"{where}: the mixer {shown(mixer)} is none of this package's (`selectivbench models` shows them)"
        )


def _cut(run, args, say) -> dict:
    """One process does what several did: the same micro-batches, one after another."""
    processes = run.recorded("training", "processes", 1) or 1
    if processes == 1:
        return {}
    batch, pieces = run.recorded("training", "global_batch", 1), processes * args.gradient_accumulation_steps
    if not isinstance(batch, int) or batch % pieces:
        raise InputError(
            f"{run.where}: its record has {processes} processes and a global batch of {batch}, which one process cannot repeat"
        )
    say(
        f"notice: trained by {processes} processes, here by one: {pieces} micro-batches of {batch // pieces} a step; dropout draws other numbers, "
        "so the counts cannot be the same"
    )
    return {"per_device_train_batch_size": batch // pieces, "gradient_accumulation_steps": pieces}


@dataclass(frozen=True)
class Budget:
    """What one training takes. seconds: by the recorded speed, on the hardware of the record; None where it says nothing."""

    steps: int
    sequences: int
    validated: int
    seconds: float | None


def budget(args, run) -> Budget:
    from ..optimization import Plan

    plan = Plan.of(args, run.task.splits["train"], 1)
    sequences = plan.sequences_before(plan.total_steps)
    most = min(run.task.splits["validation"], args.max_eval_sequences or run.task.splits["validation"])
    speed = run.recorded("training", "sequences_per_second")
    return Budget(
        plan.total_steps,
        sequences,
        most * -(-plan.total_steps // args.eval_steps),
        sequences / speed if speed else None,
    )


def _check_size(args, run, where) -> None:
    from ..optimization import Plan

    if (args.max_steps or 0) > MOST_STEPS or args.num_train_epochs > MOST_STEPS:
        raise _too_long(where, f"{max(args.max_steps or 0, args.num_train_epochs):,.0f} steps or epochs")
    cost = budget(args, run)
    if cost.steps > MOST_STEPS or cost.sequences + cost.validated > MOST_SEQUENCES:
        raise _too_long(
            where, f"{cost.steps:,} steps over {cost.sequences:,} sequences, and {cost.validated:,} of validation"
        )

    plan = Plan.of(args, run.task.splits["train"], 1)
    if args.gradient_accumulation_steps > min(plan.global_batch, plan.sequences):
        raise InputError(
            f"{where}: gradient_accumulation_steps is {args.gradient_accumulation_steps:,}, more than a step has sequences"
        )
    if (steps := plan.micro_batch * run.task.max_steps("train")) > MOST_AT_ONCE:
        raise InputError(
            f"{where} put {steps:,} time steps into one forward pass; a replay takes at most {MOST_AT_ONCE:,}: train it by hand with `train.py`"
        )


def _too_long(where, what) -> InputError:
    return InputError(
        f"{where} ask for {what}; a replay trains at most {MOST_STEPS:,} steps and {MOST_SEQUENCES:,} sequences: train it by hand with `train.py`"
    )


def check_model(args, run) -> None:
    """InputError where the recorded arguments make another model than the one whose weights are published."""
    from ..models.configuration import own_fields
    from ..training import config_for

    made, published = config_for(args, run.task)[0], run.config()
    for name in own_fields():
        if getattr(made, name) != getattr(published, name):
            raise InputError(
                f"{run.where}: the recorded arguments make another model than the published one: {name} is {shown(getattr(made, name))} by the "
                f"arguments and {shown(getattr(published, name))} in its configuration"
            )


def train(args, task, folder: Path, stop, threads: int | None, say):
    """results.Result of a training in `folder`, begun there or taken up where an earlier call was stopped; finished ones are only read."""
    import os

    import torch

    from ..training import run as train_run

    before = torch.get_num_threads()
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if threads and not torch.cuda.is_available() and threads != before:
        if threads <= cores:
            torch.set_num_threads(threads)
            say(f"notice: training with {threads} thread(s), as recorded (this process had {before})")
        else:
            say(f"notice: recorded with {threads} threads; this machine has {cores} core(s), so {before} run")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        begun = (folder / "run.json").is_file()
        return train_run(args.replace(task=task.to_dict(), output_dir=str(folder), resume=begun), stop=stop)
    finally:
        torch.set_num_threads(before)


def differences(run, record: dict) -> list[str]:
    """What the two trainings ran on, where it is not the same: everything that may change a bit, named."""
    row = run.row
    old = dict(strict_json(row["versions"], f"versions of {run.where}") if row["versions"] else {})
    new = dict(record["versions"])
    old |= {
        "device": (row["device"] or "unknown").split(",")[0],
        "kernels": row["kernel_backend"],
        "precision": row["precision"],
    }
    new |= {
        "device": record["hardware"]["device"].split(",")[0],
        "kernels": record["model"]["kernel_backend"],
        "precision": record["training"]["precision"],
    }
    for name in ("threads", "processes"):
        old[name], new[name] = run.recorded("hardware", name), record["hardware"][name]
    return [
        f"{name} {shown(new.get(name))} instead of {shown(old.get(name))}"
        for name in dict.fromkeys([*old, *new])
        if old.get(name) != new.get(name)
    ]
