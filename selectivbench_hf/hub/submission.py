"""What a model repository holds of a submission: `selectivbench.json` with one row a run, and the files of each run.

    selectivbench.json                 the rows (schemas/submission.schema.json, schemas/row.schema.json)
    runs/RUN_ID/model.safetensors      the weights that were scored; their SHA-256 is the seed of the sealed tests
    runs/RUN_ID/config.json            of a model of this package; a module of somebody else's has none
    runs/RUN_ID/record.json            the run's result record (schemas/result.schema.json)
    runs/RUN_ID/task.json              the task, as `get_task` takes it
    runs/RUN_ID/predictions.safetensors  in place of weights: predicted states, one tensor a split
    config.json, model.safetensors     of one run, so that `from_pretrained("OWNER/model")` works

All of it comes from outside: only JSON, YAML and safetensors are ever read, within limits, and no code of the repository is run.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path

from ..checkpointing import strict_json
from ..errors import InputError
from . import client, rows, untrusted

FILE = "selectivbench.json"
FORMAT = "selectivbench-submission-1"
WEIGHTS, CONFIG, RECORD, TASK, PREDICTIONS = (
    "model.safetensors",
    "config.json",
    "record.json",
    "task.json",
    "predictions.safetensors",
)
MOST_BYTES = 8 << 20  # of selectivbench.json
MOST_RUNS = 500
MOST_JSON = 4 << 20  # of a config.json, record.json or task.json
TAG = re.compile(r"v[0-9]{1,4}\.[0-9]{1,4}\.[0-9]{1,4}")
_RUN = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")


@dataclass(frozen=True)
class Submission:
    """The content of selectivbench.json.

    dataset    {"id": "OWNER/selectivbench", "revision": commit SHA, "tag": "v1.0.0"}: the published data that the runs were held to
    rows       one dict a run, as schemas/row.schema.json has it
    """

    dataset: dict
    rows: list[dict]


def read(source) -> Submission:
    """A submission from a Path, or from the text itself.

    Raises:
        InputError: one sentence for whatever does not follow the format; nothing of it is used then.
    """
    where = FILE
    if isinstance(source, Path):
        where, source = str(source), untrusted.read_bytes(source, MOST_BYTES)
    data = untrusted.strict_json(source, where, MOST_BYTES)
    untrusted.keys(data, ("format", "dataset", "rows"), where)
    if data["format"] != FORMAT:
        raise InputError(f"{where}: format is {untrusted.shown(data['format'])}; this package reads {FORMAT!r}")
    _check_dataset(data["dataset"], f"{where}: dataset")
    if not isinstance(data["rows"], list) or not 1 <= len(data["rows"]) <= MOST_RUNS:
        raise InputError(f"{where}: rows must be a list of 1 to {MOST_RUNS} runs")
    found, seen = rows.check_rows(data["rows"], where), set()
    for row in found:
        check_run_id(row["run_id"], where)
        if row["run_id"] in seen:
            raise InputError(f"{where}: the run {row['run_id']} stands twice")
        seen.add(row["run_id"])
    return Submission(data["dataset"], found)


def write(submission: Submission) -> str:
    """The text of selectivbench.json; `read` gives the same submission back (and is what checks it here)."""
    text = strict_json({"format": FORMAT, "dataset": submission.dataset, "rows": submission.rows}, indent=1) + "\n"
    read(text)
    return text


def run_file(run_id: str, name: str) -> str:
    """The path of a run's file in the repository."""
    return f"runs/{run_id}/{name}"


def check_run_id(run_id, where: str) -> str:
    """`run_id` if it can be the name of a folder; else an InputError."""
    if not isinstance(run_id, str) or not _RUN.fullmatch(run_id):
        raise InputError(
            f"{where}: run_id {untrusted.shown(run_id)} must be 1 to 64 letters, digits, '-' and '_', since a folder is called so"
        )
    return run_id


def read_json(path: Path, where: str) -> dict:
    """The object in a JSON file of a submission: config.json, record.json, task.json."""
    data = untrusted.strict_json(untrusted.read_bytes(path, MOST_JSON), where, MOST_JSON)
    if not isinstance(data, dict):
        raise InputError(f"{where} must hold an object, got {type(data).__name__}")
    return data


def check_config(config: dict, where: str) -> None:
    """Refuse a model's configuration from outside that would have anything but this package's own code built.

    A mixer may be named "my_module:build", which imports a module: right for one's own runs, never for a stranger's file.
    """
    from ..models import mixer_names

    if config.get("model_type") != "selectivbench":
        raise InputError(
            f"{where}: model_type is {untrusted.shown(config.get('model_type'))}; 'selectivbench' is needed"
        )
    if config.get("mixer") not in mixer_names():
        raise InputError(
            f"{where}: the mixer {untrusted.shown(config.get('mixer'))} is none of this package's, and code of others is not run"
        )
    own = [name for name in ("auto_map", "custom_pipelines") if name in config]
    if own:
        raise InputError(f"{where}: {own[0]} names code of the repository, which is never run; leave it out")


def _check_dataset(data, where: str) -> None:
    untrusted.keys(data, ("id", "revision", "tag"), where)
    client.repo_id(data["id"], f"{where}.id")
    if not isinstance(data["revision"], str) or not re.fullmatch(r"[0-9a-f]{40}", data["revision"]):
        raise InputError(
            f"{where}.revision must be a commit SHA of 40 hex digits, got {untrusted.shown(data['revision'])}"
        )
    if not isinstance(data["tag"], str) or not TAG.fullmatch(data["tag"]):
        raise InputError(f"{where}.tag must be a version such as 'v1.0.0', got {untrusted.shown(data['tag'])}")


def schema() -> dict:
    """The JSON Schema (2020-12) of selectivbench.json."""
    folder = Path(__file__).parent.parent / "schemas"
    return json.loads((folder / "submission.schema.json").read_text(encoding="utf-8"))
