"""Saved models, found and loaded: a run folder, a folder with a model, or a Hub repository. What is missing or damaged is one sentence."""

import json
import sys
from pathlib import Path

from .errors import InputError, nearest


def open_saved(where: str):
    """(model folder or Hub id, record or None, why there is none or None) of a run folder, a folder with a saved model, or the Hub.

    The reason is None where no record is to be expected: a model that lies in no run folder.
    """
    from .arguments import SAVED
    from .results import RECORD, latest

    path = Path(where)
    if (path / SAVED).is_file() or (path / "run.json").is_file():
        record, why = latest(path)
        which = (record or {}).get("evaluation", {}).get("checkpoint") or (
            "best" if (path / "best").is_dir() else "last"
        )
        if not (path / which).is_dir():
            raise InputError(
                f"{where} holds no saved model (no folder {which}/): {how_it_ended(record) or why or 'it was removed'}"
            )
        return str(path / which), record, why or how_it_ended(record)
    if path.is_dir() and any((path / name).exists() for name in ("config.json", "model.safetensors")):
        beside = path.parent if path.name in ("best", "last") else path
        record, why = latest(beside) if (beside / RECORD).is_file() else (None, None)
        if record and path.name in ("best", "last") and record["evaluation"]["checkpoint"] != path.name:
            return str(path), None, None  # the record is about the other one
        return str(path), record, why or how_it_ended(record)
    if path.exists() or where.count("/") != 1 or where.startswith((".", "/", "~")):
        what = "" if path.exists() else "does not exist: it "
        raise InputError(
            f"{where!r} {what}is no run folder, no folder with a saved model, and no Hub repository OWNER/NAME{_near(path)}"
        )
    if path.parent.is_dir():  # runs/glaa: a slip of the pen, nothing to ask the Hub for
        raise InputError(
            f"there is no folder {where}{_near(path)} (a Hub repository of that name is looked up only where no folder {path.parent}/ exists)"
        )
    print(f"notice: there is no folder {where}; looking for the repository {where} on the Hub", file=sys.stderr)
    return where, None, None


def _near(path: Path) -> str:
    """The folders beside a missing `path` that hold a run or a model and are called alike."""
    if path.exists() or not path.parent.is_dir():
        return ""
    signs = ("run.json", "training_args.yaml", "config.json")
    try:
        names = [p.name for p in path.parent.iterdir() if any((p / sign).is_file() for sign in signs)]
    except OSError:
        return ""
    close = nearest(path.name, names)
    return "; did you mean " + " or ".join(repr(str(path.parent / c)) for c in close) + "?" if close else ""


def how_it_ended(record: dict | None) -> str | None:
    """Why a record has no scores; None where it has some."""
    if record is None or record["scores"]:
        return None
    if record["status"] == "finished":
        return "the run scored no split"
    return f"the run {'FAILED' if record['status'] == 'failed' else 'was ' + record['status']}: {record['reason']}"


def load_model(where: str, mixer: str | None = None):
    """The saved model, in float32, from a folder or the Hub; one sentence when it cannot be.

    mixer: the `module:function` that its configuration may name; a saved configuration, which may be a stranger's, has no code from outside run.
    """
    from .models import SelectivBenchConfig, get_mixer, model_class
    from .models.mixers import NAMED
    from .runs import no_bars, read_weights

    folder = Path(where)
    if mixer is not None:
        get_mixer(mixer)
    if folder.is_dir():
        if not (folder / "config.json").is_file():
            raise InputError(
                f"{where} has weights but no config.json: it is a module of your own; build it, load the weights, and call "
                "selectivbench_hf.evaluation.evaluate"
            )
        named = _check_config(folder / "config.json")["mixer"]
        if isinstance(named, str) and ":" in named and named != mixer and named not in NAMED:
            raise InputError(
                f"{folder / 'config.json'} names the mixer {named!r}, code from outside this package; if you trust it, give --mixer {named} "
                f"(in Python: selectivbench_hf.models.get_mixer({named!r}))"
            )
        if not any(folder.glob("model-*.safetensors")):
            read_weights(folder)
    try:
        with no_bars():
            return model_class(SelectivBenchConfig.from_pretrained(where)).from_pretrained(where)
    except InputError as error:
        raise error if folder.is_dir() else InputError(f"{error} (and there is no folder {where})") from None
    except Exception as error:  # transformers and safetensors raise of every kind
        first = (str(error).strip() or type(error).__name__).splitlines()[0]
        at = "" if folder.is_dir() else f" (and there is no folder {where})"
        raise InputError(f"cannot load a model from {where!r}{at}: {first}") from None


def _check_config(path: Path) -> dict:
    text = path.read_text(encoding="utf-8", errors="replace")
    try:
        config = json.loads(text)
    except (ValueError, RecursionError) as error:
        what = "is empty" if not text.strip() else f"is no JSON ({error})"
        raise InputError(f"the model's configuration {path} {what}") from None
    if not isinstance(config, dict):
        raise InputError(f"the model's configuration {path} is no JSON object")
    missing = [n for n in ("model_type", "mixer", "num_symbols", "num_states", "hidden_size") if n not in config]
    if missing:
        raise InputError(f"the model's configuration {path} is damaged: it lacks {', '.join(missing)}")
    return config
