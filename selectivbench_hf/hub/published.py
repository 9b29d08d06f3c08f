"""A submission's runs, from a folder or the Hub, read as what a stranger sends: listed files alone, by safe names, within limits, never code."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path

from ..checkpointing import sha256
from ..errors import InputError, unknown
from . import client, submission
from .row_checks import check_claims
from .untrusted import check_safetensors, safe_name, shown, strict_json

MOST_WEIGHTS = 2 << 30  # bytes of a run's weights: 500 M parameters
MOST_LAYERS, WIDEST = 256, 1 << 16
MOST_ITEMS = 400_000_000  # of a task's splits together; the catalogue's largest has 41.6 M
LONGEST = 200_000  # steps of a sequence; the catalogue's longest has 20,200
MOST_CHANNELS = 4096  # of an input step
SAFE_SYMBOLS = ("one_hot", "random_vectors", "binary", "digits")


@dataclass(frozen=True)
class Files:
    """The files of a submission: in a folder, or at one commit of a model repository (`repo` and `revision`, else None)."""

    where: str
    repo: str | None = None
    revision: str | None = None

    @classmethod
    def of(cls, where: str) -> Files:
        """A folder that exists, else OWNER/NAME on the Hub at what main is now."""
        if Path(where).is_dir():
            return cls(where)
        if Path(where).exists() or where.count("/") != 1 or where.startswith((".", "/", "~")):
            raise InputError(f"there is no folder {where!r}, and it is no Hub repository OWNER/NAME")
        revision = client.head(client.repo_id(where, "the submission"), "model")
        if revision is None:
            raise InputError(
                f"there is neither a folder {where} nor a repository {where} on the Hub that you may read"
            )
        return cls(where, where, revision)

    def path(self, name: str, limit: int) -> Path:
        """A file of at most `limit` bytes, downloaded where it is not here; InputError where there is none."""
        safe_name(name, f"a file of {self.where}")
        if self.repo is not None:
            return client.fetch(self.repo, "model", name, self.revision, limit=limit)
        path, root = Path(self.where) / name, Path(self.where).resolve()
        if not path.is_file():
            raise InputError(f"{self.where} has no file {name}")
        if not path.resolve().is_relative_to(root):
            raise InputError(f"{name} of {self.where} is a link that leads out of it")
        if (size := path.stat().st_size) > limit:
            raise InputError(f"{path} has {size:,} bytes; at most {limit:,} are read")
        return path

    @functools.cached_property
    def submission(self) -> submission.Submission:
        found = submission.read(self.path(submission.FILE, submission.MOST_BYTES))
        check_claims(found.rows, self.repo or found.rows[0]["repo"] or self.where)
        return found

    def has(self, name: str) -> bool:
        if self.repo is None:
            return (Path(self.where) / name).is_file()
        return name in client.files(self.repo, "model", self.revision)

    def runs(self, run_id: str | None = None) -> list[Run]:
        """All runs, or the one of that id."""
        ids = [row["run_id"] for row in self.submission.rows]
        if run_id is not None and run_id not in ids:
            raise unknown("run", run_id, ids, self.where)
        return [Run(self, row) for row in self.submission.rows if run_id in (None, row["run_id"])]


@dataclass(frozen=True)
class Run:
    """One run of a submission: its row, and its files when they are asked for."""

    files: Files
    row: dict

    @property
    def where(self) -> str:
        return f"run {self.row['run_id']} of {self.files.where}"

    def json(self, name: str) -> dict:
        """config.json, record.json or task.json of the run."""
        path = self.files.path(submission.run_file(self.row["run_id"], name), submission.MOST_JSON)
        return submission.read_json(path, f"{name} of {self.where}")

    @functools.cached_property
    def task(self):
        """The run's task, by its own file; InputError where it is not the one that the row names."""
        from ..tasks import get_task

        data, where = self.json(submission.TASK), f"{submission.TASK} of {self.where}"
        _refuse_outside_data(data, where)
        try:
            task = get_task(data)
        except InputError as error:
            raise InputError(f"{where}: {error}") from None
        _check_size(task, where)
        if task.fingerprint != self.row["task_fingerprint"]:
            raise InputError(
                f"{where} is another task than the row says: its fingerprint is {task.fingerprint}, the row's {self.row['task_fingerprint']}"
            )
        return task

    @functools.cached_property
    def record(self) -> dict:
        """The run's result record, whose counts must be the row's."""
        from ..results import gaps

        record, where = self.json(submission.RECORD), f"{submission.RECORD} of {self.where}"
        try:
            lacks = gaps(record)
        except (TypeError, AttributeError, KeyError):
            lacks = "sound parts"
        if lacks:
            raise InputError(f"{where} is damaged: it has no {lacks}")
        if record["run_id"] != self.row["run_id"] or record["task"]["fingerprint"] != self.row["task_fingerprint"]:
            raise InputError(f"{where} is the record of another run or task")
        for split, score in self.scores("scores").items():
            recorded = record["scores"].get(split)
            if recorded is None or (recorded["correct"], recorded["total"]) != (score["correct"], score["total"]):
                raise InputError(f"{where} and the row have other counts for {split}")
        return record

    def recorded(self, part: str, name: str, least: int = 0) -> float | None:
        """A finite number of the record of at least `least`, None where there is none."""
        value = self.record[part].get(name) if isinstance(self.record[part], dict) else None
        return value if isinstance(value, (int, float)) and not isinstance(value, bool) and value >= least else None

    def scores(self, field: str) -> dict[str, dict]:
        """Split -> score of a row's JSON text (`scores`, `sealed_scores`); empty where it is null."""
        text = self.row[field]
        return {} if text is None else strict_json(text, f"{field} of {self.where}")

    @functools.cached_property
    def arguments(self) -> dict:
        """The recorded training arguments as the row has them, unchecked; empty where it has none."""
        given = (
            {}
            if self.row["arguments"] is None
            else strict_json(self.row["arguments"], f"the arguments of {self.where}")
        )
        if not isinstance(given, dict):
            raise InputError(f"the arguments of {self.where} must be an object of names and values")
        return given

    @property
    def eval_batch_size(self) -> int:
        size = self.arguments.get("per_device_eval_batch_size")
        return size if type(size) is int and size > 0 else 64

    @property
    def command(self) -> str | None:
        """The command that the recorded arguments make; None where they make none."""
        from .command_line import retrain_command

        training = {
            "processes": int(self.recorded("training", "processes", 1) or 1),
            "precision": self.row["precision"] or "",
        }
        try:
            return retrain_command(
                {"arguments": self.arguments, "model": self.record["model"], "training": training}, self.task
            )
        except (TypeError, ValueError, KeyError):  # no training records arguments of such types
            return None

    @functools.cached_property
    def weights(self) -> Path:
        return self.files.path(submission.run_file(self.row["run_id"], submission.WEIGHTS), MOST_WEIGHTS)

    @functools.cached_property
    def weights_sha256(self) -> str | None:
        """Of the file in the repository; None where predictions came without their model's file."""
        name = submission.run_file(self.row["run_id"], submission.WEIGHTS)
        if self.row["trust"] == "predictions" and not self.files.has(name):
            return None
        return sha256(self.weights)

    def predicted(self) -> dict[str, dict]:
        """Published and (with the prefix `sealed/`) sealed test split -> score of the run's file of predictions."""
        from . import predictions

        name = submission.run_file(self.row["run_id"], submission.PREDICTIONS)
        path = self.files.path(name, predictions.MOST_BYTES)
        published, sealed = predictions.score_file(path, self.task, self.row["sealed_seed"])
        return published | {predictions.PREFIX + split: score for split, score in sealed.items()}

    def config(self):
        """The SelectivBenchConfig in config.json: this class's own fields alone, a mixer of this package, a size that can be built."""
        from ..models.configuration import SelectivBenchConfig, own_fields
        from ..models.mixers import check_mixer

        if not self.files.has(submission.run_file(self.row["run_id"], submission.CONFIG)):
            raise InputError(
                f"{self.where} has no {submission.CONFIG}: its model is a module of the submitter's own, whose code is not here, or the file is missing. "
                "It can be neither scored again nor trained again"
            )
        data, where = self.json(submission.CONFIG), f"{submission.CONFIG} of {self.where}"
        submission.check_config(data, where)
        for name, most in (
            ("num_hidden_layers", MOST_LAYERS),
            ("hidden_size", WIDEST),
            ("intermediate_size", 8 * WIDEST),
        ):
            value = data.get(name)
            if isinstance(value, int) and value > most:
                raise InputError(f"{where}: {name} is {value:,}; at most {most:,} is built")
        try:
            config = SelectivBenchConfig(**{name: data[name] for name in own_fields() if name in data})
            check_mixer(config.mixer, config.hidden_size, config.num_heads, config.mixer_kwargs)
        except (InputError, TypeError, ValueError) as error:
            raise InputError(f"{where}: {str(error).splitlines()[0]}") from None
        self._refuse_other_sizes(config, where)
        return config

    def _refuse_other_sizes(self, config, where) -> None:
        task, row = self.task, self.row
        told = [
            (name, getattr(config, name), row[name])
            for name in ("mixer", "objective", "hidden_size", "num_hidden_layers")
        ]
        told += [
            (f"{name} of the task", getattr(config, name), getattr(task, name))
            for name in ("num_symbols", "num_states")
        ]
        if task.family == "grammar":
            told.append(("num_channels of the task", config.input_channels, task.num_channels))
        for name, here, wanted in told:
            if here != wanted:
                raise InputError(f"{where} does not fit: {name} is {shown(here)} there and should be {shown(wanted)}")

    def model(self):
        """The model with the run's weights, in float32 on the CPU. Built only after its shapes were found in the weights' header."""
        import torch
        from transformers import initialization

        from ..models import model_class
        from ..runs import load_weights

        config = self.config()
        table = check_safetensors(self.weights, MOST_WEIGHTS)
        with torch.device("meta"), initialization.no_init_weights():
            empty = model_class(config)(config)
        here = {name: tuple(tensor.shape) for name, tensor in empty.state_dict().items()}
        for name, (_, shape) in table.items():
            if here.get(name) != shape:
                has = f"the shape {here[name]}" if name in here else "no such tensor"
                raise InputError(
                    f"the weights of {self.where} do not fit: {shown(name)} has the shape {shape} there, the model {has}"
                )
        if sum(p.numel() for p in empty.parameters()) > sum(_size(shape) for _, shape in table.values()):
            raise InputError(
                f"the weights of {self.where} do not fill the model that its {submission.CONFIG} describes"
            )
        model = model_class(config)(config)
        load_weights(model, self.weights.parent)
        return model.float()


def _size(shape) -> int:
    out = 1
    for n in shape:
        out *= n
    return out


def _check_size(task, where: str) -> None:
    """InputError for a task whose data would not fit here."""
    items = sum(task.splits.values()) * getattr(task, "num_items", getattr(task, "length", 1))
    longest = max(task.max_steps(split) for split in task.splits)
    channels = getattr(task, "num_channels", 1)
    for what, found, most in (
        ("splits together, in items", items, MOST_ITEMS),
        ("longest sequence, in steps", longest, LONGEST),
        ("input, in channels", channels, MOST_CHANNELS),
    ):
        if found > most:
            raise InputError(f"{where}: the size of its {what}, is {found:,}; at most {most:,} are drawn here")


def _refuse_outside_data(data: dict, where: str) -> None:
    """A task's file may hold everything it needs, and nothing that would be looked for elsewhere."""
    spec = data.get("symbols")
    kind = spec.get("kind") if isinstance(spec, dict) else spec
    if kind is not None and kind not in SAFE_SYMBOLS:
        raise InputError(
            f"{where} shows symbols by a data set; one that a submission names is never loaded. Allowed: {', '.join(SAFE_SYMBOLS)}"
        )
    if not isinstance(data.get("custom_grammar"), dict | None):
        raise InputError(f"{where}: custom_grammar must be the grammar itself")
