"""The run folder: what lies in it, how a run is taken up again, and what its record says.

training_args.yaml  task.json  run.json  log.jsonl  checkpoints/step-*/  best/  last/  results.jsonl
"""

import dataclasses
import json
import os
import uuid
from pathlib import Path

from . import checkpointing, results
from .checkpointing import CheckpointError, new_folder, out_of_room, strict_json, write_text
from .errors import InputError
from .launching import on_main

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
    def open(cls, args, task, accelerator) -> "RunFolder":
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
                text = (path / "run.json").read_text(encoding="utf-8", errors="replace")
            except OSError as error:
                raise InputError(f"cannot use output_dir {path}: {error.strerror or error}") from None
            try:
                run = json.loads(text)
                if not all(isinstance(run[name], str) for name in ("run_id", "created")):
                    raise ValueError
            except (ValueError, TypeError, KeyError, RecursionError):
                what = "is empty" if not text.strip() else "does not hold the run's run_id and created"
                raise InputError(
                    f"cannot resume {path}: {path / 'run.json'} {what}; it is damaged, so restore it or choose another --output_dir"
                ) from None
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
        try:
            with open(self.path / "log.jsonl", "a", encoding="utf-8") as file:
                file.write(strict_json(results.finite(entry)) + "\n")
        except OSError as error:
            raise CheckpointError(out_of_room(error, self.path, "log.jsonl") + _last_good(self.path)) from None

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
    """Load best/ or last/ into `model`; InputError when the file is missing or damaged, or holds another model's tensors."""
    target = model if hasattr(model, "save_pretrained") else model.module
    loaded = read_weights(folder)
    own = target.state_dict()
    tied = {
        n: loaded[m]
        for n in own
        if n not in loaded
        for m in loaded
        if m in own and own[n].data_ptr() == own[m].data_ptr()
    }
    try:
        target.load_state_dict({**loaded, **tied}, strict=True)
    except RuntimeError as error:
        raise InputError(
            f"the weights in {folder} are another model's: {str(error).splitlines()[-1].strip()}"
        ) from None


def read_weights(folder) -> dict:
    """The tensors of folder/model.safetensors; InputError when it is missing or damaged."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    path = Path(folder) / "model.safetensors"
    if not path.is_file():
        raise InputError(f"the saved model {folder} has no weights: model.safetensors is missing")
    try:
        return load_file(path)
    except (SafetensorError, OSError, ValueError) as error:
        what = "is empty" if not path.stat().st_size else f"is damaged ({error})"
        raise InputError(f"the weights {path} cannot be read: the file {what}") from None


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
