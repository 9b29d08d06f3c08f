"""Taking a run up again from its newest complete checkpoint, to the bit; what changed is refused, or told where only exactness is lost."""

import json
import shutil
from pathlib import Path

from . import checkpointing, results
from .arguments import SAVED, merge, started_with
from .errors import InputError
from .launching import on_main
from .runs import SELECTION, State, load_weights, surroundings

# What may differ between a run and its resumption without changing its course.
FREE = (
    "output_dir",
    "resume",
    "tracker",
    "logging_steps",
    "save_steps",
    "save_total_limit",
    "eval_splits",
    "num_processes",
    "per_device_eval_batch_size",
    "self_check",
    "detail",
)
CUT = (
    "per_device_train_batch_size",
    "gradient_accumulation_steps",
)  # may differ while the global batch stays; not bit-exact then


def random_state(device) -> dict:
    """Random states of this process, as plain tensors and numbers: torch (CPU, CUDA), Python, NumPy."""
    import random

    import numpy as np
    import torch

    name, keys, position, has, cached = np.random.get_state()  # noqa: NPY002  the legacy state is what a user's module may draw from
    out = {
        "torch": torch.get_rng_state(),
        "python": random.getstate(),
        "numpy": [name, keys.tolist(), position, has, cached],
    }
    if device.type == "cuda":
        out["cuda"] = torch.cuda.get_rng_state(device)
    return out


def set_random_state(state: dict, device) -> None:
    import random

    import numpy as np
    import torch

    torch.set_rng_state(state["torch"])
    version, words, gauss = state["python"]
    random.setstate((version, tuple(words), gauss))
    name, keys, position, has, cached = state["numpy"]
    np.random.set_state((name, np.array(keys, dtype=np.uint32), position, has, cached))  # noqa: NPY002
    if device.type == "cuda" and "cuda" in state:
        torch.cuda.set_rng_state(state["cuda"], device)


def seed_dropout(args, process: int, step: int) -> None:
    """Start each process's own dropout stream."""
    import numpy as np
    import torch

    torch.manual_seed(
        int(np.random.SeedSequence([args.model_seed, process, step]).generate_state(1, np.uint64)[0] >> np.uint64(1))
    )


def resume(run):
    """Bring `run` to where its newest complete checkpoint stands. A Result when the run had finished before; else None."""
    args, folder, a = run.args, run.folder, run.accelerator
    seed_dropout(args, a.process_index, 0)
    if folder.fresh:
        if args.resume:
            run.say(f"nothing to resume in {folder.path}: starting from the beginning")
        return None

    def look():
        saved = folder.path / SAVED
        if saved.is_file():
            _refuse_changes(args, merge((str(saved), started_with(saved))))
        done, fault = results.latest(folder.path, folder.run_id)
        path, notices = checkpointing.newest(folder.path / "checkpoints")
        if fault and (folder.path / results.RECORD).is_file():
            notices.append(fault)
        done = done if done and done["status"] == "finished" else None
        return done, str(path) if path else None, notices

    done, path, notices = on_main(a, look)
    for notice in notices:
        run.say("notice: " + notice)
    if done is not None:
        if done["task"]["fingerprint"] != run.task.fingerprint:
            raise InputError(f"cannot resume {folder.path}: {_other_task(run.task, folder.path)}")
        load_weights(run.model, folder.path / (done["evaluation"]["checkpoint"] or "last"))
        run.say(f"the run in {folder.path} has already finished ({done['training']['steps']} steps); nothing to do")
        return results.Result(done, folder.path, run.model)
    if path is None:
        run.say(f"no complete checkpoint in {folder.path}: starting from the beginning")
        _cut_back(run)
        run.state.notes += notices
        return None
    _take_up(run, Path(path), notices)
    _cut_back(run)
    return None


def _cut_back(run):
    """Put away what a later, lost part of the run left behind: log lines, checkpoints, and a best/ that the checkpoint does not know."""
    folder, state = run.folder, run.state

    def check():
        folder.cut_log(state.step)
        for notice in checkpointing.set_aside(folder.path / "checkpoints", state.step):
            run.say("notice: " + notice)
        best = folder.path / "best"
        try:
            step = json.loads((best / SELECTION).read_text(encoding="utf-8"))["step"]
        except (OSError, ValueError, KeyError):
            step = None
        if step is None or state.best is None or step != state.best["step"]:
            shutil.rmtree(best, ignore_errors=True)
            return state.best is not None
        return False

    if on_main(run.accelerator, check):
        # a later step had replaced it, so the steps that now run again will find a better one at the same place
        state.notes.append(
            f"best model of step {state.best['step']} was no longer there on resume at step {state.step}"
        )
        state.best = None


def _refuse_changes(args, saved: dict) -> None:
    now = args.as_dict()
    for name, value in saved.items():
        if name in FREE or name in CUT or name in ("task", "task_kwargs"):
            continue  # the task is compared by fingerprint, the cut by its global batch
        if now[name] != value:
            raise InputError(
                f"cannot resume {args.output_dir}: {name} is {now[name]!r} here and was {value!r} when the run began"
            )


def _other_task(task, folder: Path) -> str:
    """Which keyword of the task is not what it was when the run began."""
    try:
        before = json.loads((folder / "task.json").read_text(encoding="utf-8"))
        now = json.loads(task.to_json())
        differ = [
            f"{name} is {json.dumps(now.get(name))} here and was {json.dumps(before.get(name))}"
            for name in dict.fromkeys([*now, *before])
            if now.get(name) != before.get(name) and name not in ("fingerprint", "splits")
        ]
    except (OSError, ValueError, AttributeError):
        differ = []
    if not differ:
        return "the task or data version is another than when the run began"
    differ = [d if len(d) <= 200 else d.split(" is ")[0] + " is another" for d in differ[:3]]
    return f"the task or data version is another: {', '.join(differ)} when the run began"


def _take_up(run, path: Path, notices) -> None:
    weights, optimizer, random_states, kept = checkpointing.load(path)
    plan, folder = run.plan, run.folder
    if run.task.fingerprint != kept["fingerprint"]:
        raise InputError(f"cannot resume {folder.path}: {_other_task(run.task, folder.path)}")
    for what, new, old in (
        ("the global batch", plan.global_batch, kept["global_batch"]),
        ("the number of steps", plan.total_steps, kept["total_steps"]),
    ):
        if new != old:
            raise InputError(f"cannot resume {folder.path}: {what} is {new} here and was {old} when the run began")
    try:
        run.model.load_state_dict(weights, strict=True)
    except RuntimeError as error:
        raise InputError(
            f"cannot resume {folder.path}: the model differs from the checkpoint's ({str(error).splitlines()[-1].strip()})"
        ) from None
    try:
        run.optimizer.load_state_dict(optimizer)
    except ValueError as error:
        raise InputError(
            f"cannot resume {folder.path}: the optimiser differs from the checkpoint's ({error})"
        ) from None
    run.state = State(**kept["state"])
    state = run.state
    state.resumes += 1
    lost = [
        f"{k} {v!r} instead of {kept['surroundings'].get(k)!r}"
        for k, v in surroundings(run).items()
        if kept["surroundings"].get(k) != v
    ]
    if (plan.processes, plan.accumulation) != (kept["processes"], kept["accumulation"]):
        lost.append(
            f"{plan.processes} x {plan.accumulation} pieces of a batch instead of {kept['processes']} x {kept['accumulation']}"
        )
    rank = run.accelerator.process_index
    if rank < len(random_states) and plan.processes == kept["processes"]:
        set_random_state(random_states[rank], run.device)
    else:
        seed_dropout(run.args, rank, state.step)
    state.notes += notices
    if lost:
        state.bit_exact = False
        state.notes.append(f"resumed at step {state.step} with " + ", ".join(lost))
        run.say(f"notice: not bit-exact from here on: {state.notes[-1]}")
    run.say(f"resumed from {path.name}: step {state.step} of {plan.total_steps}")
