"""The training arguments: one dataclass, read from flags, from a YAML file, or from keywords, with the same names everywhere.

    accelerate launch train.py --config recipe.yaml --learning_rate 3e-4        # flags override the file

Order of precedence: defaults, then (with --resume) what the run was started with, then the file, then the flags. An unknown name is an error that
names the nearest known one. Values are read by the type of their field, never by YAML 1.1's guesses: `1e-3` is a number, `mixed_precision: no`
is the word "no", and where no type says what is meant (mixer_kwargs), a word such as `no` or a number such as `010` is refused.
"""

import dataclasses
import json
import math
import re
import types
import typing
from dataclasses import dataclass, field
from pathlib import Path

from .errors import InputError, nearest, unknown
from .values import FLOAT, INT, LARGEST, NULL, Plain, load_yaml, nested, read_json, short

_CHOICES = {
    "block": ("matched", "paper"),
    "objective": ("classification", "prediction"),
    "lr_scheduler_type": ("cosine", "linear", "constant"),
    "mixed_precision": ("no", "bf16"),
    "tracker": ("none", "trackio", "tensorboard", "wandb"),
}
_AT_LEAST = {
    "hidden_size": 1,
    "match_params": 1,
    "match_state": 1,
    "num_hidden_layers": 1,
    "num_heads": 1,
    "max_steps": 1,
    "per_device_train_batch_size": 1,
    "per_device_eval_batch_size": 1,
    "gradient_accumulation_steps": 1,
    "warmup_steps": 0,
    "eval_steps": 1,
    "save_steps": 1,
    "logging_steps": 1,
    "save_total_limit": 1,
    "max_eval_sequences": 1,
    "num_processes": 1,
    "model_seed": 0,
    "data_seed": 0,
    "dropout": 0,
    "learning_rate": 0,
    "weight_decay": 0,
    "max_grad_norm": 0,
    "adam_beta1": 0,
    "adam_beta2": 0,
    "adam_epsilon": 0,
}
_ALIASES = {  # names of other trainers, or short for ours
    "lr": "learning_rate",
    "wd": "weight_decay",
    "bs": "per_device_train_batch_size",
    "batch_size": "per_device_train_batch_size",
    "train_batch_size": "per_device_train_batch_size",
    "eval_batch_size": "per_device_eval_batch_size",
    "epochs": "num_train_epochs",
    "num_epochs": "num_train_epochs",
    "steps": "max_steps",
    "num_steps": "max_steps",
    "seed": "model_seed",
    "warmup": "warmup_steps",
    "scheduler": "lr_scheduler_type",
    "layers": "num_hidden_layers",
    "num_layers": "num_hidden_layers",
    "heads": "num_heads",
    "model": "mixer",
    "output": "output_dir",
    "grad_accum": "gradient_accumulation_steps",
}
HIDDEN_SIZE = 256  # where neither a width nor a size to match is given
GLOBAL_BATCH = 64  # sequences per optimiser step where per_device_train_batch_size is not given (the paper's)


def _f(default, help):
    if isinstance(default, (dict, list)):
        return field(default_factory=lambda: type(default)(default), metadata={"help": help})
    return field(default=default, metadata={"help": help})


@dataclass(frozen=True)
class TrainingArguments:
    """Everything that decides a run. Defaults are the paper's: 200,000 sequences once, batch 64, AdamW without decay, 8 layers."""

    task: str = _f("te3_noisy_gaps", "task name, or the path of a task JSON")
    task_kwargs: dict = _f(
        {}, "builder keywords of the task as one mapping; each also is a flag of its own, e.g. --grammar_seed 2"
    )
    mixer: str = _f("gla", "sequence mixer (see `selectivbench models`)")
    hidden_size: int | None = _f(None, f"width of the model; default {HIDDEN_SIZE}")
    match_params: float | None = _f(
        None, "instead of --hidden_size: the width whose model comes nearest to so many parameters, such as 2e6"
    )
    match_state: float | None = _f(
        None, "instead of --hidden_size: the width whose state, over all layers, comes nearest to so many numbers"
    )
    num_hidden_layers: int = _f(8, "number of blocks")
    num_heads: int | None = _f(None, "heads; default: the mixer's own choice for this width")
    block: str = _f("matched", "block around the mixer: matched (pre-norm + SwiGLU) or paper")
    mlp: bool | None = _f(None, "whether blocks have the MLP; default: the block's own way")
    tie_word_embeddings: bool | None = _f(
        None, "recall tasks: whether the head's weight is that of the symbols' embedding, as in zoology; default false"
    )
    dropout: float = _f(0.2, "dropout on the residual branches")
    mixer_kwargs: dict = _f({}, "further arguments of the mixer, as JSON: '{\"expand\": 1.0}'")
    objective: str = _f("classification", "what is learned: each step's state, or the next item's symbol (prediction)")
    output_dir: str | None = _f(None, "run folder; default runs/TASK-MIXER, with a number when that exists")
    resume: bool = _f(False, "go on from the newest complete checkpoint in --output_dir")
    max_steps: int | None = _f(None, "optimiser steps; default: num_train_epochs over the training split")
    num_train_epochs: float = _f(1.0, "passes over the training split, where max_steps is not given")
    per_device_train_batch_size: int | None = _f(
        None,
        f"sequences per process and micro-batch; default: a global batch of {GLOBAL_BATCH}, divided over processes and accumulation",
    )
    per_device_eval_batch_size: int = _f(64, "sequences per evaluation batch (fewer where sequences are long)")
    gradient_accumulation_steps: int = _f(1, "micro-batches per optimiser step")
    learning_rate: float = _f(1e-3, "peak learning rate")
    weight_decay: float = _f(
        0.0, "AdamW's decay, on matrices only: not on norms, biases, embeddings, or what a layer marks"
    )
    adam_beta1: float = _f(0.9, "AdamW")
    adam_beta2: float = _f(0.999, "AdamW")
    adam_epsilon: float = _f(1e-8, "AdamW")
    warmup_steps: int | None = _f(None, "linear warm-up; default min(1000, 32 %% of the steps)")
    lr_scheduler_type: str = _f("cosine", "cosine or linear to 0, or constant, after the warm-up")
    max_grad_norm: float = _f(1.0, "clip the gradient's norm; 0 = off")
    mixed_precision: str | None = _f(None, "no or bf16; default: what the accelerate configuration says")
    model_seed: int = _f(0, "initial weights and dropout")
    data_seed: int = _f(0, "order of the batches and training noise")
    logging_steps: int = _f(10, "write loss, accuracy, speed to log.jsonl every so many steps")
    eval_steps: int = _f(500, "validate every so many steps (and at the end)")
    save_steps: int = _f(500, "checkpoint every so many steps (and at the end)")
    save_total_limit: int = _f(2, "checkpoints to keep")
    eval_splits: list | None = _f(None, "test splits scored at the end; default: all; `none`: no test split")
    max_eval_sequences: int | None = _f(None, "score only the first so many sequences of every split (recorded)")
    detail: bool = _f(False, "also record accuracy by item index, distance since the last #, gap and so on")
    self_check: bool = _f(
        True, "on CUDA, compare the mixer's kernels with the CPU's before training; false trains without (recorded)"
    )
    tracker: str = _f("none", "mirror the log to trackio, tensorboard or wandb")
    num_processes: int | None = _f(None, "expected number of processes: an error when another number runs")

    def __post_init__(self):
        hints = kinds()
        for name, value in vars(self).items():
            object.__setattr__(self, name, convert(name, hints[name], value))
        widths = [name for name in ("hidden_size", "match_params", "match_state") if getattr(self, name) is not None]
        if len(widths) > 1:
            raise InputError(f"{' and '.join(widths)} both say how wide the model is; give one of them")
        if not widths:
            object.__setattr__(self, "hidden_size", HIDDEN_SIZE)
        if not 0 <= self.dropout < 1:
            raise InputError(f"dropout must lie in [0, 1), not {self.dropout:g}")
        for name in ("adam_beta1", "adam_beta2"):
            if not 0 <= getattr(self, name) < 1:
                raise InputError(f"{name} must lie in [0, 1), not {getattr(self, name):g}")
        for name in ("num_train_epochs", "learning_rate"):
            if not getattr(self, name) > 0:
                raise InputError(f"{name} must be above 0, not {getattr(self, name):g}")
        if self.resume and self.output_dir is None:
            raise InputError("--resume needs --output_dir: the folder of the run to go on with")

    def as_dict(self) -> dict:
        """Plain values, ready for JSON or YAML."""
        return dataclasses.asdict(self)

    def replace(self, **changes) -> "TrainingArguments":
        return dataclasses.replace(self, **changes)


def kinds() -> dict:
    """Field name -> (type, is None allowed)."""
    out = {}
    for name, hint in typing.get_type_hints(TrainingArguments).items():
        parts = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
        out[name] = (parts[0], type(None) in parts)
    return out


def task_keywords() -> tuple[str, ...]:
    """Names of the task's keywords that get_task takes (each is a flag and a key of the file)."""
    from .tasks import TASK_KEYWORDS

    return TASK_KEYWORDS


# ---------------------------------------------------------------- values


def convert(name: str, kind: tuple, value):
    """`value` (text from a flag or a file, or a Python value) as the field's type; InputError with one sentence otherwise."""
    wanted, optional = kind
    text = value.strip() if isinstance(value, str) else None
    if value is None or (
        optional and text is not None and text.lower() in NULL and (name, text) != ("eval_splits", "none")
    ):
        if optional:
            return None
        raise InputError(f"{name} needs a value")
    if wanted is bool:
        if isinstance(value, bool):
            return value
        if text is not None and text.lower() in ("true", "false"):
            return text.lower() == "true"
        raise InputError(f"{name} must be true or false, not {value!r}")
    if wanted is int:
        if text is not None and INT.fullmatch(text.replace(",", "x")):
            value = int(text) if len(text) <= 20 else (-1 if text[0] == "-" else 1) * (LARGEST + 1)
            if abs(value) > LARGEST:
                raise _too_large(name, text)
        if isinstance(value, bool) or not hasattr(value, "__index__"):
            raise InputError(f"{name} must be a whole number such as 64, not {value if text is None else text!r}")
        value = int(value)
        if abs(value) > LARGEST:
            raise _too_large(name, str(value) if value.bit_length() < 10_000 else "the number given")
    elif wanted is float:
        try:
            value = float(value) if text is None or FLOAT.fullmatch(text) else math.nan
        except (TypeError, ValueError, OverflowError):
            value = math.nan
        if isinstance(value, bool) or not math.isfinite(value):
            raise InputError(f"{name} must be a finite number such as 1e-3, not {text or value!r}")
    elif wanted is dict:
        if text is not None:
            try:
                value = read_json(text)
            except ValueError as error:
                raise InputError(
                    f"{name} must be a JSON object such as '{{\"expand\": 1.0}}', not {short(text)!r} ({error})"
                ) from None
        if not isinstance(value, dict):
            raise InputError(f"{name} must be a mapping, not {value!r}")
        try:
            value = nested(value, name)
        except RecursionError:
            raise InputError(f"{name} nests too deeply, or holds itself") from None
    elif wanted is list:
        if text is not None:
            value = [part for part in re.split(r"[,\s]+", text.strip("[]")) if part]
        value = [str(v).strip("\"'") for v in value]
        twice = next((v for i, v in enumerate(value) if v in value[:i]), None)
        if twice is not None:
            raise InputError(f"{name} names {twice!r} twice")
        value = [] if [v.lower() for v in value] == ["none"] else value
    elif wanted is str:
        if name == "task" and not isinstance(value, str):
            return nested(value, name)  # a Task in Python, or the mapping that Task.to_json gives
        if not isinstance(value, (str, Path)):
            raise InputError(f"{name} must be text, not {value!r}")
        value = str(value)
    if name in _CHOICES and value not in _CHOICES[name]:
        raise unknown(name, value, _CHOICES[name])
    if name in _AT_LEAST and value < _AT_LEAST[name]:
        raise InputError(f"{name} must be at least {_AT_LEAST[name]}, not {value:g}")
    return value


def _too_large(name: str, text: str) -> InputError:
    least = _AT_LEAST.get(name, 0)
    return InputError(f"{name} must be a whole number from {least} to {LARGEST}, not {short(text)}")


def _unknown(kind: str, name: str, allowed, where: str = "") -> InputError:
    """errors.unknown, which also knows what other trainers call our arguments."""
    dashes = name[: len(name) - len(name.lstrip("-"))]
    ours = _ALIASES.get(name.lstrip("-").replace("-", "_").lower())
    if ours and dashes + ours in allowed:
        place = f" in {where}" if where else ""
        return InputError(f"unknown {kind} {name!r}{place}; did you mean {dashes + ours!r}?")
    return unknown(kind, name, allowed, where)


def task_value(name: str, value):
    """A builder keyword's value from a flag or a file: JSON where it is JSON, else text."""
    if isinstance(value, str) and not isinstance(value, Plain) and value[:1] in "[{":
        try:
            return read_json(value)
        except ValueError as error:
            raise InputError(f"{name}: {short(value)!r} cannot be read as JSON ({error})") from None
    return nested(value, name)


# ---------------------------------------------------------------- files and flags


def merge(*sources: tuple[str, dict]) -> dict:
    """Field values from (where, mapping) pairs, later ones winning; builder keywords are gathered in task_kwargs; unknown names refused."""
    fields, keywords = kinds(), None
    out, task_kwargs = {}, {}
    for where, values in sources:
        for name, value in values.items():
            if name in fields and name != "task_kwargs":
                out[name] = convert(name, fields[name], value)
                continue
            keywords = task_keywords() if keywords is None else keywords
            if name == "task_kwargs":
                task_kwargs.update(convert(name, fields[name], value))
            elif name in keywords:
                task_kwargs[name] = task_value(name, value)
            else:
                flag = "--" if where == "flags" else ""
                raise _unknown(
                    "flag" if flag else "argument",
                    flag + name,
                    [flag + n for n in (*fields, *keywords)],
                    "" if flag else where,
                )
    bad = [n for n in task_kwargs if n not in (keywords := keywords or task_keywords())]
    if bad:
        raise unknown("builder keyword", bad[0], keywords, "task_kwargs")
    if task_kwargs:
        out["task_kwargs"] = task_kwargs
    return out


def make_parser(prog=None, description=None):
    """argparse parser with one flag a field and one a builder keyword; every value stays text and is converted by `merge`."""
    import argparse

    from .task_flags import FLAGS

    class Parser(argparse.ArgumentParser):
        def error(self, message):
            raise InputError(message)

    parser = Parser(prog=prog, description=description, allow_abbrev=False, argument_default=argparse.SUPPRESS)
    parser.add_argument("--config", metavar="FILE", help="YAML file with the same names; flags override it")
    for f in dataclasses.fields(TrainingArguments):
        text = f.metadata["help"]
        default = f.default if f.default is not dataclasses.MISSING else None
        if default is not None:
            text += f" (default {default})"
        more = (
            {"nargs": "?", "const": "true", "metavar": "true|false"}
            if f.name in ("resume", "mlp", "detail", "self_check", "tie_word_embeddings")
            else {}
        )
        if f.name == "eval_splits":
            more = {"nargs": "+"}
        if f.name in _CHOICES:
            more = {"metavar": "|".join(_CHOICES[f.name])}
        parser.add_argument("--" + f.name, help=text, **{"metavar": f.name.upper()[:12], **more})
    group = parser.add_argument_group("builder keywords of the task (recorded in its fingerprint)")
    for name in task_keywords():
        _, metavar, line = FLAGS[name]
        group.add_argument("--" + name, metavar=metavar, nargs="+" if name == "test_gaps" else None, help=line)
    return parser


def from_argv(argv=None, prog=None, description=None) -> TrainingArguments:
    """Parse flags (and --config FILE, and, with --resume, the run folder's saved arguments). InputError on anything unknown."""
    parser = make_parser(prog, description)
    known, rest = parser.parse_known_args(argv)
    flags = vars(known)
    if rest:
        name = rest[0].split("=")[0]
        if not name.startswith("-"):
            raise InputError(f"unexpected argument {rest[0]!r}: every value belongs to a flag such as --task NAME")
        raise _unknown("flag", name, ["--config", *("--" + n for n in (*kinds(), *task_keywords()))])
    path = flags.pop("config", None)
    for name, value in flags.items():
        if name in task_keywords():
            parts = value if isinstance(value, list) else [value]
            parts = [Plain(p) if p[:1] not in "[{" else p for p in parts]
            flags[name] = (
                parts if len(parts) > 1 or (isinstance(value, list) and isinstance(parts[0], Plain)) else parts[0]
            )
        elif name == "eval_splits":
            flags[name] = " ".join(value)
    sources = [("flags", flags)]
    if path is not None:
        sources.insert(0, (str(path), load_yaml(path)))
    values = merge(*sources)
    if values.get("resume") and values.get("output_dir"):
        values = _going_on(values, chosen="task" in values or path is not None)
    return TrainingArguments(**values)


def _going_on(values: dict, chosen: bool) -> dict:
    """The flags and file of a resumption on top of what the run was started with. `chosen`: they say what to train where nothing is."""
    folder = Path(values["output_dir"])
    saved = folder / SAVED
    if not saved.is_file():
        if chosen:
            return values
        if (folder / "run.json").is_file():
            raise InputError(
                f"cannot resume {folder}: {SAVED} is missing, so what the run was started with is unknown; give --task and its flags again"
            )
        runs = [p.parent.name for p in folder.parent.glob("*/run.json")] if folder.parent.is_dir() else []
        close = nearest(folder.name, runs)
        hint = f"; did you mean {str(folder.parent / close[0])!r}?" if close else ""
        raise InputError(f"there is no run to resume at {folder}{hint}")
    base = started_with(saved)
    if base.get("mixer") == "module":
        raise InputError(
            f"{folder} was made by sb.train with a module of its own; resume it in Python with sb.train(task, module, ..., "
            f"output_dir={str(folder)!r}, resume=True)"
        )
    own = folder / "task.json"
    name = str(base.get("task", ""))
    if name.endswith(".json"):  # a Task made in Python: task.json holds its keywords, wherever the folder lies now
        base["task"] = str(own)
        try:
            name = json.loads(own.read_text(encoding="utf-8")).get("name")
        except (OSError, ValueError, AttributeError):
            name = None
        base.pop("task_kwargs", None)
        if values.get("task") == name:
            values = {k: v for k, v in values.items() if k != "task"}
    elif "task" in values and values["task"] != name:
        base.pop("task_kwargs", None)  # keywords belong to their task
    return merge((str(saved), base), ("flags", values))


def started_with(saved: Path) -> dict:
    """What training_args.yaml of a run folder says; InputError when nothing is left in it."""
    base = load_yaml(saved)
    missing = [n for n in ("task", "mixer", "hidden_size") if n not in base]
    if missing:
        what = f"lacks {', '.join(missing)}" if base else "is empty"
        raise InputError(
            f"cannot resume {saved.parent}: {saved} {what}; it is damaged, so what the run was started with is unknown (restore it)"
        )
    return base


SAVED = "training_args.yaml"  # in the run folder: feed it to --config to repeat the run


def to_yaml(arguments: TrainingArguments) -> str:
    """The arguments as YAML that `load_yaml` reads back equal. Text is always quoted, so that any reader agrees."""
    lines = [
        f"{name}: {json.dumps(value, ensure_ascii=False)}"
        for name, value in arguments.as_dict().items()
        if name != "resume"
    ]
    return "\n".join(lines) + "\n"
