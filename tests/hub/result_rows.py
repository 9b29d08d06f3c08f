"""Rows of results as a run would give them, on the task `lite`, for tests that need many."""

import functools
import hashlib
import json

from selectivbench_hf.hub.rows import gap_in_se
from selectivbench_hf.tasks import get_task

GRID = [
    {"learning_rate": 3e-4, "validation_accuracy": 0.4, "run_id": "grid-low"},
    {"learning_rate": 1e-3, "validation_accuracy": 0.6, "run_id": "run-1-1"},
    {"learning_rate": 3e-3, "validation_accuracy": None, "run_id": "grid-high"},
]


@functools.cache
def fingerprint(task: str, grammar_seed: int | None) -> str:
    return get_task(task, grammar_seed=grammar_seed).fingerprint


def counted(correct: int, total: int = 64_000, sequences: int = 1_000, spread: float = 0.004) -> dict:
    """A split's score; `spread`: half of its interval."""
    accuracy = correct / total
    ends = {"low": max(0.0, accuracy - spread), "high": min(1.0, accuracy + spread)}
    return {"correct": correct, "total": total, "sequences": sequences, "accuracy": accuracy, **ends}


def score(accuracy: float, sequences: int = 1000, items: int = 64, spread: float = 0.004) -> dict:
    """A split's score with the nearest whole count."""
    total = sequences * items
    return counted(round(accuracy * total), total, sequences, spread)


def text(value) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def with_id(row: dict) -> dict:
    """`row` with the row_id that belongs to its content."""
    rest = {k: v for k, v in row.items() if k != "row_id"}
    row["row_id"] = hashlib.sha256(text(rest).encode()).hexdigest()
    return row


def row(
    grammar_seed: int | None = 1, model_seed: int = 1, accuracy: float = 0.6, sealed: float | None = 0.6, **changes
):
    """One run of `lite` that breaks no rule of the closed track; `changes` are fields as they shall stand."""
    task = changes.get("task", "lite")
    published = score(accuracy)
    out = {
        "row_version": 1,
        "row_id": "",
        "run_id": f"run-{grammar_seed}-{model_seed}",
        "name": "gla",
        "repo": "alice/gla",
        "repo_revision": "a" * 40,
        "submitter": "alice",
        "trust": "weights",
        "replayed_by": None,
        "task": task,
        "data_version": "1.0.0",
        "task_fingerprint": fingerprint(task, grammar_seed),
        "objective": "classification",
        "grammar_seed": grammar_seed,
        "sample_seed": 1,
        "model_seed": model_seed,
        "data_seed": 1,
        "mixer": "gla",
        "block": "matched",
        "decay": "learned",
        "write_rule": "additive",
        "channel_mixing": "no",
        "nonlinear": "no",
        "parameters": 150_000,
        "state_size": 2048,
        "state_grows": False,
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "mixer_kwargs": "{}",
        "train_sequences": 20_000,
        "batch_size": 64,
        "learning_rate": 1e-3,
        "epochs_of_train": 1.0,
        "arguments": text({"dropout": 0.2, "num_train_epochs": 1.0, "model_seed": model_seed}),
        "command": "accelerate launch -m selectivbench_hf.training --task lite",
        "kernel_backend": "cpu-chunked",
        "device": "cpu",
        "precision": "fp32",
        "versions": text({"torch": "2.13.0"}),
        "max_sequences": None,
        "scores": text({"test": published}),
        "sealed_seed": None,
        "sealed_scores": None,
        "sealed_grammar_scores": None,
        "accuracy": published["accuracy"],
        "accuracy_low": published["low"],
        "accuracy_high": published["high"],
        "sealed_accuracy": None,
        "sealed_low": None,
        "sealed_high": None,
        "gap_in_se": None,
        "ceiling": 1.0,
        "effective_context": 2.0,
        "validation_accuracy": 0.6,
        "weights_sha256": hashlib.sha256(
            f"{changes.get('name')} {changes.get('repo')} {changes.get('submitter')} {grammar_seed} {model_seed}".encode()
        ).hexdigest(),
        "grid": text(GRID),
        "flags": [],
        "date": "2026-11-30",
        "source_url": None,
        "notes": None,
    }
    if sealed is not None:
        own = score(sealed)
        out |= {
            "sealed_seed": out["weights_sha256"],
            "sealed_scores": text({"test": own}),
            "sealed_accuracy": own["accuracy"],
            "sealed_low": own["low"],
            "sealed_high": own["high"],
            "gap_in_se": gap_in_se(published, own),
        }
    unknown = set(changes) - set(out)
    assert not unknown, unknown
    return with_id(out | changes)


def closed_rows(accuracy: float = 0.6, **changes) -> list[dict]:
    """Eight runs that together make a closed entry; the first was also trained on a sealed grammar."""
    rows = [
        row(g, m, accuracy + 0.01 * g + 0.002 * m, accuracy + 0.01 * g + 0.002 * m, **changes)
        for g in (1, 2, 3, 4)
        for m in (1, 2)
    ]
    rows[0] = with_id(rows[0] | {"sealed_grammar_scores": text({"test": score(accuracy)})})
    return rows
