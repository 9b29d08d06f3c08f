"""Loading a saved model: whatever is wrong with a folder or a Hub repository becomes one InputError that names it."""

import contextlib
import json
import logging
import os
from pathlib import Path

from ..errors import InputError
from .mixer import sentence

# one logs a table of the keys that do not fit, which the error tells in one sentence; one that layers are not sharded, as ever
TALKERS = ("transformers.modeling_utils", "transformers.distributed.tensor_parallel")
SHOWN = 5


@contextlib.contextmanager
def one_sentence(where, model_type: str, subfolder: str = "", own_config: bool = False):
    """Context manager: errors inside become an InputError about `where`; a local folder's configuration is looked at first.

    own_config: the caller brought a configuration, so that of the folder is not read.
    """
    before = {name: logging.getLogger(name).level for name in TALKERS}
    try:
        _look(where, model_type, subfolder, own_config)
        for name in TALKERS:
            logging.getLogger(name).setLevel(logging.ERROR)
        yield
    except (ImportError, MemoryError):
        raise
    except InputError as error:
        if repr(str(where)) in str(error):
            raise
        raise InputError(f"cannot load a model from {str(where)!r}: {error}") from error
    except Exception as error:
        if "out of memory" in str(error):
            raise
        said = sentence(error)
        if type(error).__name__ == "SafetensorError":
            said = f"its weights file is damaged or cut off ({error})"
        raise InputError(f"cannot load a model from {str(where)!r}: {said}") from error
    finally:
        for name, level in before.items():
            logging.getLogger(name).setLevel(level)


def refuse_misfits(where, info) -> None:
    """Raise InputError if the file lacked a tensor, or had one too many or one of another shape."""
    parts = []
    for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        keys = [_key(key) for key in sorted(info.get(kind) or (), key=str)]
        if keys:
            parts.append(f"{kind.replace('_', ' ')}: {', '.join(keys[:SHOWN])}{' ...' * (len(keys) > SHOWN)}")
    if parts:
        raise InputError(
            f"the weights in {str(where)!r} do not fit the model of its configuration: " + "; ".join(parts)
        )


def _key(key) -> str:
    if isinstance(key, tuple) and len(key) == 3:
        name, found, wanted = key
        return f"{name} ({tuple(found)} in the file, {tuple(wanted)} in the model)"
    return str(key)


def check_config(where, config: object, model_type: str) -> None:
    """Raise InputError unless config.json, as read, is one of our models'."""
    if not isinstance(config, dict):
        raise InputError(
            f"config.json in {str(where)!r} holds {type(config).__name__}, not an object with the model's fields"
        )
    found = config.get("model_type")
    if found != model_type:
        raise InputError(
            f"config.json in {str(where)!r} is of "
            + ("no model type" if found is None else f"model type {found!r}")
            + f"; {model_type!r} is needed"
        )


def _look(where, model_type: str, subfolder: str, own_config: bool) -> None:
    if where is None:
        return  # the caller gives state_dict and config
    if not isinstance(where, str | os.PathLike):
        raise InputError(f"a saved model is the path of a folder or a Hub repository, not {type(where).__name__}")
    if not Path(where).is_dir():
        text = str(where)
        if (
            not isinstance(where, str)
            or Path(where).exists()
            or text.startswith((".", "/", "~"))
            or text.count("/") > 1
        ):
            raise InputError(f"cannot load a model from {text!r}: there is no such folder")
        return
    folder = Path(where, subfolder)
    if own_config:
        return
    if not (folder / "config.json").exists():
        raise InputError(f"cannot load a model from {str(where)!r}: it has no config.json")
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except ValueError as error:
        raise InputError(f"config.json in {str(where)!r} is not JSON ({error})") from error
    check_config(where, config, model_type)
