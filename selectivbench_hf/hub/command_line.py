"""The command that trains a recorded run again, word by word."""

from __future__ import annotations

import json
import shlex

# which folder, how often something is kept or told: nothing of what is learned
_OF_THE_MACHINE = (
    "task",
    "task_kwargs",
    "output_dir",
    "resume",
    "tracker",
    "logging_steps",
    "save_steps",
    "save_total_limit",
    "num_processes",
    "mixed_precision",
)
_ALWAYS = ("mixer", "hidden_size", "num_hidden_layers", "learning_rate", "model_seed", "data_seed")


def retrain_command(record: dict, task) -> str | None:
    """`accelerate launch -m selectivbench_hf.training ...` of a run, with every argument that is not the default; None for a module from outside.

    A task with a grammar of its own is named by its file, task.json, which lies beside the record.
    """
    from ..arguments import TrainingArguments

    arguments = record["arguments"]
    if record["model"]["config"] is None or ":" in arguments["mixer"]:
        return None
    processes = record["training"]["processes"]
    launch = ["accelerate", "launch", *(("--multi_gpu", "--num_processes", str(processes)) if processes > 1 else ())]
    words = [*launch, "-m", "selectivbench_hf.training", *_task(task)]
    default = TrainingArguments().as_dict()
    sized = "hidden_size" if arguments.get("hidden_size") is not None else None
    for name in default:  # in the order of the fields, whatever order the arguments were kept in
        if name in _OF_THE_MACHINE or name not in arguments:
            continue
        if name == "hidden_size" and sized is None:
            continue  # match_params or match_state says it
        if name in _ALWAYS or arguments[name] != default[name]:
            words += _flag(name, arguments[name])
    words += ["--mixed_precision", "bf16" if "bf16" in record["training"]["precision"] else "no"]
    return shlex.join(words)


def _task(task) -> list[str]:
    from ..tasks import get_task, keywords_of

    if getattr(task, "custom_grammar", None) is not None:
        return ["--task", "task.json"]
    words, own, base = ["--task", task.name], task.to_dict(), get_task(task.name).to_dict()
    for name in keywords_of(task.name):
        if own.get(name) != base.get(name):
            words += _flag(name, own[name])
    return words


def _flag(name: str, value) -> list[str]:
    if name == "eval_splits":
        return [f"--{name}", *(value or ["none"])]
    if isinstance(value, (dict, list)):
        return [f"--{name}", json.dumps(value)]
    return [f"--{name}", str(value).lower() if isinstance(value, bool) or value is None else str(value)]
