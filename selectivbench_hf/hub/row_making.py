"""Rows made from result records, or from predictions that have none."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from pathlib import PurePosixPath, PureWindowsPath

from ..errors import InputError
from . import row_checks, row_format
from .command_line import retrain_command

_OF_THE_MACHINE = ("output_dir", "resume", "tracker")


def score_entries(scores: Mapping[str, Mapping]) -> dict[str, dict]:
    """{split: {correct, total, sequences, accuracy, low, high}} from what `evaluate` returns or a record holds, by split."""
    out = {}
    for split, score in scores.items():
        low, high = score.get("interval") or (score.get("low"), score.get("high"))
        out[split] = {key: score[key] for key in ("correct", "total", "sequences", "accuracy")} | {
            "low": low,
            "high": high,
        }
    return out


def row_of(record: dict, task, *, scores: Mapping | None = None, **known) -> dict:
    """The row of a finished run, checked.

    Args:
        record: the run's result record (schemas/result.schema.json), whole.
        task: the Task or RecallTask it was trained on.
        scores: split -> score of the saved weights as evaluated again; default: the record's.
        known: what a record does not say, as `make_row` takes it: name, trust, repo, submitter, sealed_seed, sealed_scores, weights_sha256, ...

    Raises:
        InputError: where the record is of another task, or the row would not be sound.
    """
    said = recorded(record, task)
    scores = record["scores"] if scores is None else scores
    if "validation" in scores:
        said["validation_accuracy"] = scores["validation"]["accuracy"]
    return make_row(
        task, scores=scores, **{**said, **known, "flags": [*_doubts_of_run(record), *known.get("flags", ())]}
    )


def recorded(record: dict, task) -> dict:
    """The fields of a row that a result record alone decides, JSON fields as values."""
    if record["task"]["fingerprint"] != task.fingerprint:
        raise InputError(
            f"the record of run {record['run_id']} is of another task than {task.name}: their fingerprints differ"
        )
    model, config, training = record["model"], record["model"]["config"], record["training"]
    evaluation, arguments = record["evaluation"], record["arguments"]
    own = config is not None
    return {
        "run_id": record["run_id"],
        "objective": evaluation.get("objective", "classification"),
        "grammar_seed": task.grammar_seed,
        "sample_seed": task.sample_seed,
        "model_seed": record["seeds"]["model"],
        "data_seed": record["seeds"]["data"],
        **of_mixer(arguments["mixer"] if own else None),
        "mixer": model["name"],
        "block": arguments["block"] if own else None,
        "mixer_kwargs": arguments["mixer_kwargs"] if own else None,
        "hidden_size": config["hidden_size"] if own else None,
        "num_hidden_layers": config["num_hidden_layers"] if own else None,
        "parameters": model["parameters"],
        "state_size": model["state_size"] if type(model["state_size"]) is int else None,
        "train_sequences": training["sequences"],
        "batch_size": training["global_batch"],
        "learning_rate": arguments["learning_rate"],
        "epochs_of_train": training["sequences"] / task.splits["train"],
        "arguments": {**arguments, "task": _file_name(arguments["task"])} | dict.fromkeys(_OF_THE_MACHINE),
        "command": retrain_command(record, task),
        "kernel_backend": model["kernel_backend"],
        "device": record["hardware"]["device"],
        "precision": training["precision"],
        "versions": record["versions"],
        "max_sequences": evaluation["max_sequences"],
        "validation_accuracy": _validation(record),
        "date": record["updated"][:10],
    }


def make_row(task, *, scores: Mapping, sealed_scores: Mapping | None = None, flags=(), **known) -> dict:
    """A checked row on `task` from fields by name; JSON fields as values, what is not given is null.

    Accuracies and, where it is not given, the gap follow from the scores, `row_checks.doubts` are put behind `flags`, and the date is today's (UTC) by
    default. Scores are as `evaluate` returns them.
    """
    scores = score_entries(scores)
    sealed = None if sealed_scores is None else score_entries(sealed_scores)
    if grammar := known.get("sealed_grammar_scores"):
        known["sealed_grammar_scores"] = score_entries(grammar)
    row = dict.fromkeys(row_format.FIELDS) | {
        "row_version": row_format.ROW_VERSION,
        "task": task.name,
        "data_version": task.data_version,
        "task_fingerprint": task.fingerprint,
        "grammar_seed": task.grammar_seed,
        "sample_seed": task.sample_seed,
        "objective": "classification",
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
    }
    for name, of in (("", scores), ("sealed_", sealed or {})):
        test = of.get("test", {})
        ends = ("sealed_low", "sealed_high") if name else ("accuracy_low", "accuracy_high")
        row |= {f"{name}accuracy": test.get("accuracy"), ends[0]: test.get("low"), ends[1]: test.get("high")}
    if "test" in scores and sealed and "test" in sealed:
        row["gap_in_se"] = row_checks.gap_in_se(scores["test"], sealed["test"])
    row |= known | {"scores": scores, "sealed_scores": sealed, "flags": list(flags)}
    for field in row_format.JSON_FIELDS:
        if row.get(field) is not None:
            row[field] = row_format.canonical(row[field])
    row = _signed(row)
    return _signed({**row, "flags": list(dict.fromkeys([*row["flags"], *row_checks.doubts(row)]))})


def _signed(row: dict) -> dict:
    """`row` with its row_id, checked. Floats come first: 1 and 1.0 would make two ids."""
    where = f"the row of run {row.get('run_id')}"
    row = row_format.typed(row | {"row_id": "0" * 64}, where)
    return row_format.check_row(row | {"row_id": row_format.row_id(row)}, where)


def of_mixer(name: str | None) -> dict:
    """The taxonomy of a mixer of ours; nothing of one from outside, which is not imported for it."""
    from ..models import MIXERS

    if name not in MIXERS:
        return dict.fromkeys(("decay", "write_rule", "channel_mixing", "nonlinear", "state_grows"))
    mixer = MIXERS[name]
    return {
        "decay": mixer.decay,
        "write_rule": mixer.write,
        "channel_mixing": mixer.mixing,
        "nonlinear": "yes" if mixer.write == "nonlinear" else "no",
        "state_grows": mixer.state is None,
    }


def _file_name(task):
    """A task's name, of a task's file the last part: folders tell of the machine that ran it."""
    return PureWindowsPath(PurePosixPath(task).name).name if isinstance(task, str) else task


def _validation(record) -> float | None:
    """Accuracy on validation of the weights that were scored, as the run saw it at that step."""
    step = record["evaluation"]["step"]
    seen = [entry.get("accuracy") for entry in record["evaluation"]["validation_history"] if entry["step"] == step]
    return seen[-1] if seen else None


def _doubts_of_run(record) -> list[str]:
    out = []
    if (record.get("self_check") or {}).get("status") == "failed":
        out.append("The kernels' check against the CPU's failed before training.")
    if not record["training"]["bit_exact"]:
        out.append(
            "A resume changed processes, batches, threads or versions, so a replay need not give the same weights."
        )
    return out
