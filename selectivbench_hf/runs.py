"""The run folder: what lies in it, how a run is taken up again, and what its record says.

training_args.yaml  task.json  run.json  log.jsonl  checkpoints/step-*/  best/  last/  results.jsonl
"""

import dataclasses
import json
import os
import shutil
import uuid
from pathlib import Path

from . import checkpointing, results
from .arguments import SAVED, load_yaml, merge
from .checkpointing import CheckpointError, new_folder, out_of_room, strict_json, write_text
from .errors import InputError

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
)
CUT = (
    "per_device_train_batch_size",
    "gradient_accumulation_steps",
)  # may differ while the global batch stays; not bit-exact then
SELECTION = "selection.json"


class TrainingFailed(RuntimeError):
    """The run cannot go on (the loss is not finite, ...); the text is one clear sentence and stands in the record."""


@dataclasses.dataclass
class State:
    """Where a run stands: what a checkpoint keeps beside tensors. `best` and `history` hold validation scores."""

    step: int = 0
    loss: float | None = None
    token_accuracy: float | None = None
    learning_rate: float | None = None
    seconds: float = 0.0
    eval_seconds: float = 0.0
    resumes: int = 0
    bit_exact: bool = True
    best: dict | None = None
    history: list = dataclasses.field(default_factory=list)
    notes: list = dataclasses.field(default_factory=list)


class RunFolder:
    """An opened run folder. Only the main process writes; a lock keeps a second run out."""

    def __init__(self, path, run_id, created, fresh):
        self.path, self.run_id, self.created, self.fresh = Path(path), run_id, created, fresh
        self.lock = None

    @classmethod
    def open(cls, args, task, accelerator, on_main) -> "RunFolder":
        """Make or take up the folder of `args.output_dir`. InputError when it belongs to something else or another process holds it."""
        lock = []

        def make():
            path = (
                Path(args.output_dir)
                if args.output_dir
                else _free(Path("runs") / f"{task.name}-{args.mixer.replace(':', '-')}")
            )
            if path.exists() and not path.is_dir():
                raise InputError(f"output_dir {path} exists and is no folder")
            there = [p.name for p in path.iterdir() if p.name != ".lock"] if path.exists() else []
            known = (path / "run.json").is_file()
            if there and not args.resume:
                how = "go on with --resume" if known else "choose an empty one"
                raise InputError(f"output_dir {path} is not empty; {how}, or choose another --output_dir")
            if there and not known:
                raise InputError(f"cannot resume: {path} is not empty and no run folder (run.json is missing)")
            try:
                path.mkdir(parents=True, exist_ok=True)
                lock.append(_lock(path))
                if not known:
                    write_text(path / "task.json", task.to_json() + "\n")
                    write_text(
                        path / "run.json", strict_json({"run_id": uuid.uuid4().hex, "created": results.now()}) + "\n"
                    )
                for folder in (path, path / "checkpoints"):
                    checkpointing.clean(folder)
                run = json.loads((path / "run.json").read_text(encoding="utf-8"))
            except OSError as error:
                raise InputError(f"cannot use output_dir {path}: {error.strerror or error}") from None
            return str(path), run["run_id"], run["created"], not known

        folder = cls(*on_main(accelerator, make))
        folder.lock = lock[0] if lock else None
        return folder

    def close(self):
        if self.lock is not None:
            os.close(self.lock)  # also gives the lock back
            self.lock = None

    def task_name(self, args) -> str:
        """What `--task` would have to be: the name, or the folder's task.json for a Task made in Python."""
        return args.task if isinstance(args.task, str) else str(self.path / "task.json")

    def log(self, entry: dict) -> None:
        with open(self.path / "log.jsonl", "a", encoding="utf-8") as file:
            file.write(strict_json(results.finite(entry)) + "\n")

    def cut_log(self, step: int) -> None:
        """Drop what was logged after `step`: those steps are run again."""
        path = self.path / "log.jsonl"
        if path.exists():
            kept = [e for e in results.read(path) if e.get("step", 0) <= step]
            write_text(path, "".join(strict_json(e) + "\n" for e in kept))

    def save_model(self, name: str, model, step: int, entry: dict | None) -> None:
        """best/ or last/: config.json and model.safetensors for our models, weights alone for the user's, and which step it is."""
        try:
            with new_folder(self.path / name) as part:
                if hasattr(model, "save_pretrained"):
                    with no_bars():
                        model.save_pretrained(part)
                else:
                    from safetensors.torch import save_file

                    save_file(tensors(model.module), part / "model.safetensors")
                (part / SELECTION).write_text(
                    strict_json(results.finite({"step": step, "validation": entry})), encoding="utf-8"
                )
        except OSError as error:
            raise CheckpointError(
                out_of_room(error, self.path, f"the model {name}/") + _last_good(self.path)
            ) from None

    def save_checkpoint(self, run, random_states) -> None:
        state = {
            "state": results.finite(dataclasses.asdict(run.state)),
            "arguments": results.finite(run.args.as_dict()),
            "run_id": self.run_id,
            "fingerprint": run.task.fingerprint,
            "global_batch": run.plan.global_batch,
            "total_steps": run.plan.total_steps,
            "processes": run.plan.processes,
            "accumulation": run.plan.accumulation,
            "surroundings": surroundings(run),
        }
        checkpointing.save(
            self.path / "checkpoints",
            run.state.step,
            tensors(run.model),
            run.optimizer.state_dict(),
            random_states,
            state,
            keep=run.args.save_total_limit,
        )


class no_bars:
    """Context manager without transformers' progress bars: it shows one for every file it reads or writes."""

    def __enter__(self):
        from transformers.utils import logging

        self.kept = logging.is_progress_bar_enabled()
        logging.disable_progress_bar()

    def __exit__(self, *error):
        from transformers.utils import logging

        if self.kept:
            logging.enable_progress_bar()


def _free(base: Path) -> Path:
    path, number = base, 1
    while path.exists():
        number += 1
        path = base.with_name(f"{base.name}-{number}")
    return path


def _lock(path):
    try:
        import fcntl
    except ImportError:  # no flock on Windows
        return None
    fd = os.open(path / ".lock", os.O_CREAT | os.O_RDWR, 0o644)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        raise InputError(f"another process is training in {path}") from None
    return fd


def _last_good(path):
    last, _ = checkpointing.newest(path / "checkpoints")
    return f"; the last good checkpoint is {last.name if last else 'none'}"


def tensors(model) -> dict:
    """state_dict as contiguous CPU tensors that share no memory (safetensors wants neither)."""
    return {name: t.detach().cpu().clone().contiguous() for name, t in model.state_dict().items()}


def load_weights(model, folder) -> None:
    """Load best/ or last/ into `model`; a missing or extra tensor is an error."""
    from safetensors.torch import load_file

    target = model if hasattr(model, "save_pretrained") else model.module
    loaded = load_file(Path(folder) / "model.safetensors")
    own = target.state_dict()
    tied = {n: loaded[m] for n in own if n not in loaded for m in loaded if own[n].data_ptr() == own[m].data_ptr()}
    target.load_state_dict({**loaded, **tied}, strict=True)


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


def surroundings(run) -> dict:
    """What bit-exactness rests on besides the arguments."""
    import torch

    v = results.versions()
    return {
        "torch": v["torch"],
        "numpy": v["numpy"],
        "fla-core": v["fla-core"],
        "threads": torch.get_num_threads(),
        "precision": run.precision(),
        "kernels": run.backend(),
        "device": results.device_name(run.device).split(",")[0],
    }


def resume(run):
    """Bring `run` to where its newest complete checkpoint stands. A Result when the run had finished before; else None."""
    from .training import on_main

    args, folder, a = run.args, run.folder, run.accelerator
    seed_dropout(args, a.process_index, 0)
    if folder.fresh:
        if args.resume:
            run.say(f"nothing to resume in {folder.path}: starting from the beginning")
        return None

    def look():
        saved = folder.path / SAVED
        if saved.is_file():
            _refuse_changes(args, merge((str(saved), load_yaml(saved))))
        done = [r for r in results.read(folder.path) if r["run_id"] == folder.run_id and r["status"] == "finished"]
        path, notices = checkpointing.newest(folder.path / "checkpoints")
        return (done or [None])[-1], str(path) if path else None, notices

    done, path, notices = on_main(a, look)
    for notice in notices:
        run.say("notice: " + notice)
    if done is not None:
        if done["task"]["fingerprint"] != run.task.fingerprint:
            raise InputError(
                f"cannot resume {folder.path}: it was trained on {done['task']['name']}, another task or data version"
            )
        run.say(f"the run in {folder.path} has already finished ({done['training']['steps']} steps); nothing to do")
        load_weights(run.model, folder.path / done["evaluation"]["checkpoint"])
        return results.Result(done, folder.path, run.model)
    if path is None:
        run.say(f"no complete checkpoint in {folder.path}: starting from the beginning")
        _cut_back(run, notices, a, on_main)
        run.state.notes += notices
        return None
    _take_up(run, Path(path), notices)
    _cut_back(run, notices, a, on_main)
    return None


def _cut_back(run, notices, accelerator, on_main):
    """Drop what a later, lost part of the run left behind: log lines, and a best/ that the checkpoint does not know."""
    folder, state = run.folder, run.state

    def check():
        folder.cut_log(state.step)
        best = folder.path / "best"
        try:
            step = json.loads((best / SELECTION).read_text(encoding="utf-8"))["step"]
        except (OSError, ValueError, KeyError):
            step = None
        if step is None or state.best is None or step != state.best["step"]:
            shutil.rmtree(best, ignore_errors=True)
            return state.best is not None
        return False

    if on_main(accelerator, check):
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


def _take_up(run, path: Path, notices) -> None:
    weights, optimizer, random_states, kept = checkpointing.load(path)
    plan, folder = run.plan, run.folder
    for what, new, old in (
        ("task or data version", run.task.fingerprint, kept["fingerprint"]),
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
    run.optimizer.load_state_dict(optimizer)
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


def build_record(run, status: str, reason: str | None, scores: dict, which: str | None) -> dict:
    """The result record (schemas/result.schema.json)."""
    import platform

    import torch

    from . import __version__, models

    args, plan, state, task = run.args, run.plan, run.state, run.task
    config = run.model.config if run.own_model else None
    size = models.state_size(config) if config is not None else None
    seen = plan.sequences_before(state.step)
    selection = (
        "highest validation item accuracy (ties: lower loss, then earlier)"
        if state.best
        else "none: the task has no validation sequences"
    )
    module = run.model if run.own_model else run.model.module
    counts = models.parameter_counts(run.model)
    return {
        "record_version": results.RECORD_VERSION,
        "run_id": run.folder.run_id,
        "status": status,
        "reason": reason,
        "created": run.folder.created,
        "updated": results.now(),
        "task": {
            "name": task.name,
            "data_version": task.data_version,
            "fingerprint": task.fingerprint,
            "description": task.describe(),
            "split_fingerprints": {s: task.split_fingerprint(s) for s in task.splits},
            "builder_keywords": args.task_kwargs,
        },
        "model": {
            "name": args.mixer if run.own_model and args.mixer != "module" else type(module).__name__,
            "parameters": sum(p.numel() for p in run.model.parameters()),
            "trainable_parameters": sum(p.numel() for p in run.parameters),
            "parameter_counts": counts,
            "state_size": size,
            "kernel_backend": run.backend(),
            "config": results.finite(json.loads(config.to_json_string(use_diff=False)))
            if config is not None
            else None,
        },
        "arguments": args.as_dict(),
        "seeds": {
            "grammar": task.grammar_seed,
            "sample": task.sample_seed,
            "model": args.model_seed,
            "data": args.data_seed,
        },
        "training": {
            "steps": state.step,
            "total_steps": plan.total_steps,
            "sequences": seen,
            "global_batch": plan.global_batch,
            "micro_batch": plan.micro_batch,
            "accumulation": plan.accumulation,
            "processes": plan.processes,
            "warmup_steps": plan.warmup_steps,
            "precision": run.precision(),
            "optimizer_groups": run.groups,
            "loss": state.loss,
            "token_accuracy": state.token_accuracy,
            "seconds": state.seconds,
            "sequences_per_second": seen / state.seconds if state.seconds else None,
            "resumes": state.resumes,
            "bit_exact": state.bit_exact,
            "notes": state.notes,
        },
        "evaluation": {
            "checkpoint": which,
            "step": (state.best["step"] if which == "best" else state.step) if which else None,
            "selection": selection,
            "precision": "fp32",
            "max_sequences": args.max_eval_sequences,
            "seconds": state.eval_seconds,
            "processes": plan.processes,
            "validation_history": state.history,
        },
        "scores": scores,
        "versions": {"selectivbench_hf": __version__, **results.versions()},
        "hardware": {
            "device": results.device_name(run.device),
            "processes": plan.processes,
            "threads": torch.get_num_threads(),
            "platform": platform.platform(),
        },
    }
