"""A finished run, scored again from its saved weights: every split of its record, held to the record, and the sealed tests of its weights."""

from __future__ import annotations

import sys
import warnings
from dataclasses import dataclass
from pathlib import Path

from ..errors import InputError
from . import sealed as sealing
from .row_making import score_entries

TOLERANCE = 0.001  # share of a split's items in which another kernel backend may differ from the record


class NotReproduced(RuntimeError):
    """Scores that were computed again differ from the record; the text is one sentence. Commands exit with 1."""


@dataclass
class Scored:
    """What is known of one run, or of one file of predictions, after it was scored here.

    task             the Task or RecallTask
    weights          the file whose SHA-256 is `sealed_seed`
    scores           published split -> correct, total, sequences, accuracy, low, high (95 %, over sequences)
    sealed_scores    the same of the sealed test splits
    record           the run's record; None for predictions
    config           the config.json beside the weights; None for a module of somebody else's, and for predictions
    max_sequences    only so many sequences of each split were scored; None: all
    """

    task: object
    weights: Path
    sealed_seed: str
    scores: dict
    sealed_scores: dict
    record: dict | None = None
    config: Path | None = None
    max_sequences: int | None = None


def score_run(where: str, module=None, say=None) -> Scored:
    """Score a run folder's saved model on every split of its record, all test splits of the task, and the sealed tests.

    Args:
        where: the run folder.
        module: of a run with a module of its own (`sb.train(task, MyModel(...))`): an nn.Module of that shape, or a function (task) -> module.
        say: called with lines for the user.

    Raises:
        InputError: for a run without scores, with a damaged record, or one that is no classification of states.
        NotReproduced: the scores differ from the record: by any count on the same kernel backend and device, by more than 0.1 % of a split's
            items on another.
        KernelMismatch: the kernels of this GPU compute something else than the CPU's.
    """
    from ..evaluation import evaluate, not_finite
    from ..results import device_name

    say = say or (lambda line: None)
    folder, record, task = open_run(where)
    model, device = _model(where, folder, record, task, module)
    own = hasattr(model, "save_pretrained")
    backend = backend_of(model, device, say) if own else None
    maximum, batch = (
        record["evaluation"]["max_sequences"],
        record["arguments"].get("per_device_eval_batch_size") or 64,
    )
    seed = sealing.sealed_seed(folder / "model.safetensors")

    def scored(of, splits):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # of what is raised in the next lines
            try:
                scores = evaluate(model, of, splits, max_sequences=maximum, batch_size=batch)
            except Exception as error:
                if own or isinstance(error, InputError):
                    raise
                raise InputError(f"{where}: the module given fails: {type(error).__name__}: {error}") from error
        if bad := not_finite(scores):
            raise InputError(f"{where} cannot be submitted: {bad[0]}")
        return scores

    splits = list(dict.fromkeys([*record["scores"], *task.test_splits]))
    say(f"{where}: scoring {task.name} again ({', '.join(splits)}), {device_name(device)}, kernels: {backend}")
    scores = scored(task, splits)
    _hold(where, scores, record, task, maximum, backend, device_name(device), say)
    say(f"{where}: scoring the sealed tests, seed {seed[:12]}...")
    sealed_scores = scored(sealing.sealed_task(task, seed), task.test_splits)
    return Scored(
        task,
        folder / "model.safetensors",
        seed,
        score_entries(scores),
        score_entries(sealed_scores),
        record,
        folder / "config.json" if own and ":" not in model.config.mixer else None,
        maximum,
    )


def open_run(where: str) -> tuple[Path, dict, object]:
    """(folder of the saved model, record, task) of a finished run; InputError, one sentence, for any other."""
    from ..saved import how_it_ended, open_saved
    from ..tasks import get_task, task_names

    cannot = f"{where} cannot be submitted"
    if not Path(where).is_dir():
        raise InputError(f"{cannot}: there is no such run folder")
    folder, record, why = open_saved(str(where))
    if record is None or not record["scores"]:
        raise InputError(f"{cannot}: {why or (record and how_it_ended(record)) or 'it has no record of a run'}")
    if record["status"] != "finished":
        raise InputError(f"{cannot}: the run was {record['status']}: {record['reason']}")
    if record["evaluation"].get("objective", "classification") != "classification":
        raise InputError(
            f"{cannot}: it predicts the next symbol (--objective prediction); results are of states that are classified"
        )
    if any(s["steps"] and s["loss"] is None for s in record["scores"].values()):
        raise InputError(f"{cannot}: its weights or scores are not finite (NaN), which its record says too")
    folder = Path(folder)
    place = next((p for p in (folder / "task.json", folder.parent / "task.json") if p.is_file()), None)
    if place is None:
        raise InputError(f"{cannot}: task.json is missing, which says what it was trained on")
    task = get_task(place)
    if task.name not in task_names():
        raise InputError(
            f"{cannot}: {task.name} is no task of the catalogue, so there is no table that it could stand in"
        )
    if task.fingerprint != record["task"]["fingerprint"]:
        raise InputError(
            f"{cannot}: {place} is of another task than its record (fingerprint {task.fingerprint[:12]}, recorded "
            f"{record['task']['fingerprint'][:12]})"
        )
    if not (folder / "model.safetensors").is_file():
        raise InputError(f"{cannot}: the weights must lie in one file, model.safetensors, whose hash seals the tests")
    return folder, record, task


def _model(where, folder: Path, record: dict, task, module):
    """The model with its saved weights, in float32 on the device that accelerate chooses, and that device."""
    from torch import nn

    from ..launching import new_accelerator
    from ..models import wrap_module
    from ..runs import load_weights
    from ..saved import load_model

    foreign = record["model"]["config"] is None
    if foreign and module is None:
        raise InputError(
            f"{where} was trained with a module of its own ({record['model']['name']}): give it with --module FILE.py:NAME, or in Python "
            "sb.submit(run, repo, model=MyModel(...))"
        )
    if module is not None and not foreign:
        raise InputError(f"{where} was trained with the mixer {record['model']['name']}, so it needs no module")
    if foreign:
        try:
            built = module if isinstance(module, nn.Module) else module(task)
        except Exception as error:  # whatever the submitter's own code raises
            raise InputError(f"{where}: the module given cannot be built: {type(error).__name__}: {error}") from error
        model = wrap_module(built, task)
        load_weights(model, folder)
    else:
        own = record["arguments"].get("mixer")  # the submitter's own run, and so the submitter's own code
        model = load_model(str(folder), own if ":" in str(own) else None)
    device = new_accelerator().device
    return model.float().to(device), device


def backend_of(model, device, say) -> str:
    """The kernels in use; on CUDA held to the CPU's first."""
    from .. import kernels

    if device.type == "cuda":
        from ..kernels.selfcheck import check_kernels, told

        say(told(check_kernels(model.config, device, train=False)))
    return kernels.backend(device, model.config.mixer)


def _hold(where, scores, record, task, maximum, backend, device, say) -> None:
    """Raise NotReproduced where new scores are not the record's."""
    from ..evaluate_command import compare

    _, lines, failed = compare(scores, record, task, maximum, backend, device)
    for line in lines:
        say(f"{where}: {line}")
    wrong = next((line for line in lines if "DIFFERS" in line), None)
    if failed:
        raise NotReproduced(
            f"{where} is not submitted, since its saved weights do not give its record on the same backend: {wrong}"
        )
    for split, old in record["scores"].items():
        new = scores[split]
        if new["sequences"] != old["sequences"] or new["total"] != old["total"]:
            raise NotReproduced(
                f"{where} is not submitted: {split} has {new['total']} items here and {old['total']} in its record"
            )
        off = max(abs(new[key] - old[key]) for key in ("correct", "correct_first", "correct_last"))
        if off > TOLERANCE * old["total"]:
            raise NotReproduced(
                f"{where} is not submitted: on {split} its saved weights give {off} items more or less than its record, more than "
                f"{TOLERANCE:.1%} of {old['total']}, which another backend does not explain"
            )


def load_module(text: str):
    """What FILE.py:NAME names: an nn.Module, or a function (task) -> module. It is the submitter's own code, run here alone."""
    import importlib.util

    path, _, name = text.rpartition(":")
    if not path.endswith(".py") or not name.isidentifier():
        raise InputError(f"--module must be FILE.py:NAME, such as my_model.py:build, got {text!r}")
    if not Path(path).is_file():
        raise InputError(f"--module: there is no file {path}")
    spec = importlib.util.spec_from_file_location(f"submitted_{Path(path).stem}", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise InputError(f"--module: {path} cannot be run: {type(error).__name__}: {error}") from None
    if not callable(getattr(module, name, None)):
        raise InputError(f"--module: {path} has no {name} that is a torch.nn.Module or a function (task) -> module")
    return getattr(module, name)
