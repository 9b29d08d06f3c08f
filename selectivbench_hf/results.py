"""The result record: one strict-JSON line per run in RUN/results.jsonl, described by schemas/result.schema.json.

Three writers at most touch a run folder in turn (the run, the resumed run, ...); each replaces its own line and keeps all others.
"""

import importlib.metadata
import json
import math
import platform
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from .checkpointing import strict_json, write_text
from .errors import unknown

RECORD = "results.jsonl"
RECORD_VERSION = 1
STATUSES = ("finished", "failed", "interrupted")
_PACKAGES = (
    "torch",
    "transformers",
    "accelerate",
    "datasets",
    "flash-linear-attention",
    "fla-core",
    "triton",
    "numpy",
    "safetensors",
    "numba",
)


def schema() -> dict:
    """The JSON Schema (2020-12) of one record."""
    return json.loads((Path(__file__).parent / "schemas" / "result.schema.json").read_text(encoding="utf-8"))


def versions() -> dict:
    """Installed versions of what can change a number; null where not installed."""
    out = {"python": platform.python_version()}
    for name in _PACKAGES:
        try:
            out[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            out[name] = None
    return out


def finite(value):
    """`value` with every NaN and infinity replaced by None, NumPy scalars by Python's, tuples by lists, paths by text."""
    if isinstance(value, dict):
        return {str(k): finite(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(v) for v in value]
    if isinstance(value, Path):
        return str(value)
    if hasattr(value, "item") and not isinstance(value, (str, bytes)):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def validate(record: dict) -> None:
    """ValueError with the first fault when `record` does not follow the schema (checked where jsonschema is installed)."""
    try:
        import jsonschema
    except ImportError:
        return
    error = jsonschema.exceptions.best_match(jsonschema.Draft202012Validator(schema()).iter_errors(record))
    if error is not None:
        raise ValueError(
            f"the result record does not follow its schema at {'/'.join(map(str, error.path)) or 'the top'}: {error.message}"
        )


def read(path) -> list[dict]:
    """All records of a results.jsonl file or of a run folder. A cut or unreadable line is skipped with a notice on stderr."""
    path = Path(path)
    path = path / RECORD if path.is_dir() else path
    out = []
    if not path.exists():
        return out
    with open(path, encoding="utf-8", errors="replace") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                record = json.loads(line, parse_constant=_refuse)
                if not isinstance(record, dict):
                    raise ValueError("not an object")
                out.append(record)
            except (ValueError, RecursionError):
                cut = "" if line.endswith("\n") else ", cut in mid-line,"
                print(f"notice: line {number} of {path}{cut} is no record and is skipped", file=sys.stderr)
    return out


def gaps(record) -> str | None:
    """What a record lacks that its readers need ("task/fingerprint"), by the schema's required names; None when it is whole."""
    top = schema()
    for name in top["required"]:
        if name not in record:
            return name
        inner = top["properties"][name]
        if inner.get("type") == "object":
            if not isinstance(record[name], dict):
                return name
            for key in inner.get("required", ()):
                if key not in record[name]:
                    return f"{name}/{key}"
    for split, scores in record["scores"].items():
        for key in top["properties"]["scores"]["additionalProperties"]["required"]:
            if not isinstance(scores, dict) or key not in scores:
                return f"scores/{split}/{key}"
    return None


def latest(path, run_id: str | None = None) -> tuple[dict | None, str | None]:
    """(the last whole record of a run folder or file, None), or (None, one sentence that says what is wrong with the file)."""
    path = Path(path)
    path = path / RECORD if path.is_dir() else path
    if not path.is_file():
        return None, f"there is no {path}: the run has written no record yet"
    lines = read(path)
    if not lines:
        empty = not path.read_bytes().strip()
        return None, f"{path} {'is empty' if empty else 'is damaged: none of its lines is a record'}"
    lines = [r for r in lines if run_id is None or r.get("run_id") == run_id]
    if not lines:
        return None, f"{path} holds no record of this run"
    missing = gaps(lines[-1])
    if missing:
        return None, f"{path} is damaged: its last record has no {missing}"
    return lines[-1], None


def _refuse(word):
    raise ValueError(f"{word} is not JSON")


def write(folder, record: dict) -> dict:
    """Put `record` in folder/results.jsonl, in place of an earlier line with the same run_id. Returns it as written."""
    record = finite(record)
    validate(record)
    path = Path(folder) / RECORD
    lines = [r for r in read(path) if r.get("run_id") != record["run_id"]] + [record]
    write_text(path, "".join(strict_json(r) + "\n" for r in lines))
    return record


def now() -> str:
    """UTC, ISO 8601, seconds."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def device_name(device) -> str:
    """'cuda: NVIDIA H200' or 'cpu: x86_64, 2 threads'."""
    import torch

    device = torch.device(device)
    if device.type == "cuda":
        return f"cuda: {torch.cuda.get_device_name(device)}"
    return f"{device.type}: {platform.processor() or platform.machine()}, {torch.get_num_threads()} threads"


@dataclass
class Result:
    """What sb.train returns: the record as written, the run folder, and the model that was scored (best on validation)."""

    record: dict
    output_dir: Path
    model: object = field(repr=False, default=None)

    @property
    def scores(self) -> dict:
        """Split name -> counts, accuracies and loss; in prediction also KL, cross-entropy and so on."""
        return self.record["scores"]

    def accuracy(self, split: str = "test") -> float | None:
        """Item accuracy in [0, 1]; None when the split has no items."""
        if split not in self.scores:
            raise unknown("scored split", split, self.scores, f"the run {self.output_dir}")
        return self.scores[split]["accuracy"]


def table(scores: dict) -> str:
    """Scores as lines a person can read, one split a line, with the 95 % interval of the accuracy or, in prediction, of the KL."""
    if any("kl" in s for s in scores.values()):
        return _prediction_table(scores)
    lines = [
        f"{'split':<14}{'sequences':>10}{'correct':>10}{'items':>10}{'accuracy':>10}{'first':>9}{'last':>9}{'loss':>9}  95 %"
    ]
    for split, s in scores.items():
        nothing = "not finite" if s["steps"] else "no items"
        shown = [
            f"{s[k]:.4f}" if s[k] is not None and math.isfinite(s[k]) else nothing if k == "loss" else "no items"
            for k in ("accuracy", "accuracy_first", "accuracy_last", "loss")
        ]
        lines.append(
            f"{split:<14}{s['sequences']:>10}{s['correct']:>10}{s['total']:>10}{shown[0]:>10}{shown[1]:>9}{shown[2]:>9}{shown[3]:>9}"
            + _between(s.get("interval"))
        )
        if s.get("sequences_right"):
            lines.append(f"  sequences with every item right: {s['sequences_right']} of {s['sequences']}")
        if own := s.get("headline"):
            accuracy = "no items" if own["accuracy"] is None else f"{own['accuracy']:.4f}"
            lines.append(f"  {own['of']}: {accuracy} ({own['correct']} of {own['total']}){_between(own['interval'])}")
    return "\n".join(lines)


def _between(interval) -> str:
    return f"  {interval[0]:.4f} to {interval[1]:.4f}" if interval else ""


def _prediction_table(scores: dict) -> str:
    lines = [
        f"{'split':<14}{'sequences':>10}{'items':>10}{'KL':>9}{'cross-ent.':>11}{'entropy':>9}{'perplexity':>11}{'accuracy':>10}  KL, 95 %"
    ]
    reasons = {}
    for split, s in scores.items():
        cells = []
        for key, width in (("kl", 9), ("cross_entropy", 11), ("entropy", 9), ("perplexity", 11), ("accuracy", 10)):
            number = s[key]
            known = number is not None and math.isfinite(number)
            lacks = "no items" if not s["total"] else "unknown" if number is None and s["kl_reason"] else "not finite"
            cells.append(f"{number if known else lacks:>{width}{'.4f' if known else ''}}")
        lines.append(f"{split:<14}{s['sequences']:>10}{s['total']:>10}{''.join(cells)}{_between(s['kl_interval'])}")
        if s["kl_reason"]:
            reasons.setdefault(s["kl_reason"], []).append(split)
    lines += [
        f"the law: {note}" for note in dict.fromkeys(s["law_note"] for s in scores.values() if s.get("law_note"))
    ]
    lines += [f"no KL on {', '.join(splits)}: {why}" for why, splits in reasons.items()]
    return "\n".join(lines)


def build_record(run, status: str, reason: str | None, scores: dict, which: str | None) -> dict:
    """The result record (schemas/result.schema.json)."""
    import platform

    import torch

    from . import __version__, models

    args, plan, state, task = run.args, run.plan, run.state, run.task
    config = run.model.config if run.own_model else None
    size = models.state_size(config) if config is not None else None
    seen = plan.sequences_before(state.step)
    if state.best:
        by = "highest validation item accuracy"
        if "kl" in state.best:
            by = "lowest validation " + ("cross-entropy" if state.best["kl"] is None else "KL")
        selection = f"{by} (ties: lower loss, then earlier)"
    elif not task.splits["validation"]:
        selection = "none: the task has no validation sequences"
    elif state.history:
        selection = "none: the best model was lost (see the notes)"
    else:
        selection = "none: the run ended before its first validation"
    module = run.model if run.own_model else run.model.module
    counts = models.parameter_counts(run.model)
    return {
        "record_version": RECORD_VERSION,
        "run_id": run.folder.run_id,
        "status": status,
        "reason": reason,
        "created": run.folder.created,
        "updated": now(),
        "task": {
            "name": task.name,
            "data_version": task.data_version,
            "fingerprint": task.fingerprint,
            "description": task.describe(),
            "split_fingerprints": {s: task.split_fingerprint(s) for s in task.splits},
            "builder_keywords": args.task_kwargs,
            "chance": task.chance if task.family == "recall" else None,
        },
        "model": {
            "name": args.mixer if run.own_model and args.mixer != "module" else type(module).__name__,
            "parameters": sum(p.numel() for p in run.model.parameters()),
            "trainable_parameters": sum(p.numel() for p in run.parameters),
            "parameter_counts": counts,
            "state_size": size,
            "sizing": run.sizing.as_dict() if run.sizing is not None else None,
            "kernel_backend": run.backend(),
            "config": finite(json.loads(config.to_json_string(use_diff=False))) if config is not None else None,
        },
        "self_check": run.self_check,
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
            "objective": args.objective,
            "selection": selection,
            "precision": "fp32",
            "max_sequences": args.max_eval_sequences,
            "seconds": state.eval_seconds,
            "processes": plan.processes,
            "validation_history": state.history,
        },
        "scores": scores,
        "versions": {"selectivbench_hf": __version__, **versions()},
        "hardware": {
            "device": device_name(run.device),
            "processes": plan.processes,
            "threads": torch.get_num_threads(),
            "platform": platform.platform(),
        },
    }
