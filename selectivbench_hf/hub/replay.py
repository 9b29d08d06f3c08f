"""`selectivbench replay`: a submission scored again from its weights, trained again from its recorded arguments, and compared.

    selectivbench replay OWNER/model --run RUN_ID --output replays/model --results OWNER/selectivbench-results

What is held against what, for each run:

weights          the SHA-256 of the file is the seed of its sealed tests, and what the row says
scored again     published and sealed tests, to the count on the same kernel backend and kind of device, within 0.1 % of the items on another
as stated        what the row says of model and training, and what the recorded arguments make
trained again    every split, published and sealed: `equal` where the counts are the same, as the same machine and versions give them; else `agrees`
                 within 4 standard errors, of the test sequences and, where the submission has several seeds, of the spread over trainings
sealed grammar   (--sealed-grammar) the same arguments on a grammar drawn from the weights' hash: LOWER than on the submitted grammars, or not

DIR/RUN_ID/trained_again and DIR/RUN_ID/sealed_grammar are run folders, and a later call with the same DIR goes on in them; DIR/replay.json has the rows
and the findings. A row becomes `replayed` where nothing differs and somebody else than the submitter has trained it again.
"""

from __future__ import annotations

import json
import statistics
from dataclasses import dataclass, field
from pathlib import Path

from ..checkpointing import strict_json, write_text
from ..console import duration
from ..errors import InputError
from . import comparison, predictions, retraining, row_format, rows, scoring, tracks
from .comparison import DIFFERS, EQUAL, LOWER, Finding
from .published import Files, Run
from .sealed import sealed_grammar_task, sealed_task

FILE = "replay.json"
FORMAT = "selectivbench-replay-1"
SEALED = predictions.PREFIX
# fields of a row that the recorded arguments and the model decide
STATED = (
    "objective", "grammar_seed", "sample_seed", "model_seed", "data_seed", "mixer", "block", "decay", "write_rule", "channel_mixing", "nonlinear",
    "parameters", "state_size", "state_grows", "hidden_size", "num_hidden_layers", "mixer_kwargs", "train_sequences", "batch_size", "learning_rate",
    "epochs_of_train", "precision",
)  # fmt: skip


@dataclass
class Replay:
    """What a replay found about one run. row: the row as it now stands. differences: what the two trainings ran on, where it is not the same."""

    run: Run
    row: dict
    findings: list[Finding] = field(default_factory=list)
    differences: list[str] = field(default_factory=list)
    why_not_replayed: str | None = None

    @property
    def differs(self) -> bool:
        return any(f.differs for f in self.findings)

    def as_dict(self) -> dict:
        return {
            "row": self.row,
            "findings": [f.as_dict() for f in self.findings],
            "differences": self.differences,
            "why_not_replayed": self.why_not_replayed,
        }


@dataclass
class Replayer:
    """One call of the command.

    files: the submission. output: DIR. by: user name of who replays, None where nobody says. say: called with lines for the user.
    stop: launching.StopFlag; Stopped is raised once it is set, and a later call goes on.
    """

    files: Files
    output: Path
    say: callable
    stop: object
    by: str | None = None
    rescore_only: bool = False
    grammar: bool = False
    scored: dict = field(default_factory=dict)  # run id -> its published weights' scores here

    def replay(self, run_id: str | None = None) -> list[Replay]:
        """Every run of the submission, or one. Everything that can be refused is refused before anything is trained."""
        runs = self.files.runs(run_id)
        arguments = {run.row["run_id"]: self._prepare(run) for run in runs}
        self._tell_budget(runs, arguments)
        out = []
        for run in runs:
            self.stop.check()
            out.append(self._replay(run, arguments[run.row["run_id"]]))
            self._write(out[-1])
        return out

    # -- before anything is computed ---------------------------------------------------------------------------------------

    def _prepare(self, run: Run):
        """The run's TrainingArguments, None with rescore_only; InputError for whatever cannot be replayed."""
        row = run.row
        if row["trust"] == "predictions":
            if not self.rescore_only:
                raise InputError(
                    f"{run.where} is a file of predictions, so there is nothing to train again; --rescore_only scores it again"
                )
            return None
        if self.rescore_only and not self.grammar:
            run.config()
            return None
        args = retraining.arguments_of(run, self.say)
        retraining.check_model(args, run)
        if self.grammar:
            sealed_grammar_task(run.task, row["sealed_seed"] or row["weights_sha256"])  # InputError where it has none
        return args

    def _tell_budget(self, runs, arguments) -> None:
        each = (not self.rescore_only) + self.grammar
        total, unknown = 0.0, False
        for run in runs:
            args = arguments[run.row["run_id"]]
            if args is None:
                continue
            cost = retraining.budget(args, run)
            took = (
                "the record has no speed"
                if cost.seconds is None
                else f"about {duration(cost.seconds)} at the recorded speed"
            )
            self.say(
                f"{run.where}: {run.row['task']}, {run.row['mixer']}, {run.row['parameters']:,} parameters: {each} training(s) of {cost.steps:,} steps, "
                f"{cost.sequences:,} sequences; {took} on {run.row['device'] or 'an unknown device'}"
            )
            total, unknown = total + each * (cost.seconds or 0), unknown or cost.seconds is None
        if len(runs) * each > 1 and total:
            more = " and more" if unknown else ""
            self.say(
                f"{len(runs) * each} trainings: about {duration(total)}{more} at the recorded speeds; scoring comes on top"
            )

    # -- one run -----------------------------------------------------------------------------------------------------------

    def _replay(self, run: Run, args) -> Replay:
        out = Replay(run, run.row)
        again = self._score_again(run, out.findings)
        sealed_scores, dates = None, []
        if out.differs:
            out.why_not_replayed = "its weights are not what the submission says, so it was not trained again"
        elif args is not None:
            if not self.rescore_only:
                dates.append(self._train_again(run, args, again, out))
            if self.grammar and not out.differs:
                sealed_scores, date = self._on_sealed_grammar(run, args, again, out)
                dates.append(date)
        self._finish(out, dates, sealed_scores)
        return out

    def _score_again(self, run: Run, findings: list[Finding]) -> dict[str, dict]:
        """Published and sealed split -> score, as the published weights or predictions give it here."""
        row = run.row
        if run.weights_sha256 is None:
            self.say(f"notice: {run.where}: its model's file is not published, so the sealed seed is taken as stated")
        else:
            findings.append(_weights(run))
            if findings[-1].differs:
                return self.scored.setdefault(row["run_id"], {})
        new, same = (run.predicted(), True) if row["trust"] == "predictions" else self._evaluate(run, findings)
        for prefix, name in (("", "scores"), (SEALED, "sealed_scores")):
            for split, old in run.scores(name).items():
                found = new.get(prefix + split)
                findings.append(comparison.scored_again(prefix + split, old, found, same))
                if not findings[-1].differs and (wrong := comparison.interval(prefix + split, old, found)):
                    findings.append(wrong)
        self.scored[row["run_id"]] = new
        return new

    def _evaluate(self, run: Run, findings) -> tuple[dict, bool]:
        from ..launching import new_accelerator
        from ..models import parameter_counts, state_size
        from ..results import device_name

        row, model, device = run.row, run.model(), new_accelerator().device
        model = model.to(device)
        backend = scoring.backend_of(model, device, self.say)
        here = device_name(device)
        same = row["kernel_backend"] == backend and (row["device"] or "").split(",")[0] == here.split(",")[0]
        self.say(
            f"{run.where}: scoring again on {here} with {backend}"
            + ("" if same else f"; submitted from {row['device']} with {row['kernel_backend']}: another backend")
        )
        counted = {"parameters": sum(parameter_counts(model).values()), "state_size": state_size(model.config)}
        findings += _as_stated(row, counted, "the published weights and configuration")
        return self._scores_of(model, run), same

    def _scores_of(self, model, run: Run) -> dict[str, dict]:
        """Every split that the row has, by this model: published as they are called, sealed with the prefix."""
        from ..evaluation import evaluate

        keywords = {
            "max_sequences": run.row["max_sequences"],
            "batch_size": run.eval_batch_size,
            "stop": self.stop,
        }
        out = rows.score_entries(evaluate(model, run.task, list(run.scores("scores")), **keywords))
        if sealed := run.scores("sealed_scores"):
            task = sealed_task(run.task, run.row["sealed_seed"])
            out |= {
                SEALED + s: score
                for s, score in rows.score_entries(evaluate(model, task, list(sealed), **keywords)).items()
            }
        return out

    def _train(self, run: Run, args, task, name: str):
        folder = self.output / run.row["run_id"] / name
        self.say(f"{run.where}: training in {folder}")
        threads = run.recorded("hardware", "threads", 1)
        return retraining.train(args, task, folder, self.stop, int(threads) if threads else None, self.say)

    def _train_again(self, run: Run, args, again, out: Replay) -> str:
        """The day on which the training ended."""
        result = self._train(run, args, run.task, "trained_again")
        out.differences = retraining.differences(run, result.record)
        stated = rows.row_of(
            result.record, run.task, name="replay", weights_sha256=run.weights_sha256, trust="weights"
        )
        out.findings += _as_stated(run.row, {name: stated[name] for name in STATED}, "the recorded arguments")
        new = self._scores_of(result.model.float(), run)
        for split, old in again.items():
            spread = self._spread(run, split) if comparison.apart(old, new.get(split)) else None
            out.findings.append(comparison.trained_again(split, old, new.get(split), spread))
        return result.record["updated"][:10]

    def _spread(self, run: Run, split: str) -> float | None:
        """Standard deviation of the accuracy over the submission's trainings on the same task with other seeds, from their weights as they score
        here, since a row is a claim; None where there is one only."""
        known = []
        for row in _siblings(run):
            if row["task_fingerprint"] == run.row["task_fingerprint"]:
                sibling, found = Run(self.files, row), []
                if row["run_id"] not in self.scored:
                    self._score_again(sibling, found)
                if not any(f.differs for f in found) and split in (scores := self.scored[row["run_id"]]):
                    known.append(scores[split]["accuracy"])
        known = [accuracy for accuracy in known if accuracy is not None]
        return statistics.stdev(known) if len(known) > 1 else None

    def _on_sealed_grammar(self, run: Run, args, again, out: Replay) -> tuple[dict, str]:
        """(split -> score of a training on the sealed grammar, on that grammar's tests; the day on which it ended)."""
        task = sealed_grammar_task(run.task, run.weights_sha256)
        self.say(f"{run.where}: a grammar of its own, grammar_seed {task.grammar_seed}, from the hash of its weights")
        result = self._train(run, args, task, "sealed_grammar")
        scores = {
            s: score for s, score in rows.score_entries(result.record["scores"]).items() if s in task.test_splits
        }
        for split, new in scores.items():
            grammars = _by_grammar(run, split, again, new)
            if grammars and new["accuracy"] is not None:
                out.findings.append(comparison.sealed_grammar(split, grammars, new))
        return scores, result.record["updated"][:10]

    # -- what becomes of it ------------------------------------------------------------------------------------------------

    def _finish(self, out: Replay, dates: list[str], sealed_scores: dict | None) -> None:
        """The row after the replay, and why it is not `replayed` where it is not. The same trainings make the same row, whenever it is read again."""
        row = dict(out.run.row)
        if self.files.repo is not None:
            row |= {"repo": self.files.repo, "repo_revision": self.files.revision}
        if sealed_scores is not None:
            row["sealed_grammar_scores"] = rows.canonical(sealed_scores)
        flags = [
            f"Replayed by {self.by or 'an unnamed person'}: {f.check}, {f.split}: {f.verdict} ({f.rule})."
            for f in out.findings
            if f.verdict in (DIFFERS, LOWER)
        ]
        if row["command"] is not None and row["command"] != out.run.command:
            flags.append(
                "The command of the row is not the one that its recorded arguments make; the arguments were replayed."
            )
            self.say(f"notice: {out.run.where}: {flags[-1]}")
        row["flags"] = [*row["flags"], *(flag[:400] for flag in flags)][:50]
        if out.why_not_replayed is None:
            out.why_not_replayed = self._why_not(row, out)
        if out.why_not_replayed is None:
            row |= {"trust": "replayed", "replayed_by": self.by}
            if sealed_scores is None and row["sealed_grammar_scores"] is not None:
                row["sealed_grammar_scores"] = None  # the submitter's, which this replay has not seen
                self.say(
                    f"notice: {out.run.where}: its scores on a sealed grammar are not replayed (--sealed-grammar)"
                )
        row["date"] = max([row["date"], *dates])
        where = f"the row of {out.run.where}"
        row = row_format.typed(row, where)
        out.row = rows.check_row({**row, "row_id": rows.row_id(row)}, where)

    def _why_not(self, row, out) -> str | None:
        if out.differs:
            return "the replay differs from the submission"
        if self.rescore_only:
            return "it was not trained again"
        if self.by is None:
            return "nobody says who replays: log in to the Hub, or give --submitter NAME"
        if row["submitter"] is None:
            return "the submission does not say who submitted it, so nobody can be told from them"
        if self.by.lower() in {row["submitter"].lower(), (row["repo"] or "/").split("/")[0].lower()}:
            return f"{self.by} submitted it: a replay counts when somebody else makes it"
        return None if row["command"] else "the submission has no command"

    def _write(self, done: Replay) -> None:
        """Put the run's outcome into DIR/replay.json, beside those of other runs of the same submission."""
        path = self.output / FILE
        source = {
            "submission": self.files.repo or str(Path(self.files.where).resolve()),
            "revision": self.files.revision,
        }
        kept = {}
        if path.is_file():
            try:
                before = json.loads(path.read_text(encoding="utf-8"))
                kept = before["runs"] if before["submission"] == source["submission"] else {}
            except (ValueError, KeyError, TypeError):
                self.say(f"notice: {path} was damaged and is written anew")
        kept[done.run.row["run_id"]] = done.as_dict()
        self.output.mkdir(parents=True, exist_ok=True)
        write_text(path, strict_json({"format": FORMAT, **source, "runs": kept}, indent=1) + "\n")


def _weights(run: Run) -> Finding:
    """Whether the file is the one that the row names and whose hash sealed the tests."""
    row, found = run.row, run.weights_sha256
    same = found == row["weights_sha256"] and row["sealed_seed"] in (None, found)
    rule = f"the file's SHA-256 is {found[:16]}..., " + (
        "as the row says" if same else f"the row says {row['weights_sha256'][:16]}..."
    )
    return Finding("weights", "model.safetensors", None, None, None, EQUAL if same else DIFFERS, rule)


def _as_stated(row: dict, made: dict, by: str) -> list[Finding]:
    """DIFFERS for each field that is another in the row; one `equal` where none is."""
    wrong = [name for name, value in made.items() if row[name] != value and not _near(row[name], value)]
    if not wrong:
        return [
            Finding(
                "as stated",
                ", ".join(made) if len(made) < 4 else "model and training",
                None,
                None,
                None,
                EQUAL,
                f"as {by} give it",
            )
        ]
    return [
        Finding(
            "as stated",
            name,
            None,
            None,
            None,
            DIFFERS,
            f"the row says {str(row[name])[:100]}, {by} give {str(made[name])[:100]}",
        )
        for name in wrong
    ]


def _near(one, other) -> bool:
    """Whether two numbers are the same but for rounding."""
    numbers = all(isinstance(v, (int, float)) and not isinstance(v, bool) for v in (one, other))
    return numbers and abs(one - other) <= 1e-9 * max(abs(one), abs(other))


def _siblings(run: Run) -> list[dict]:
    """Rows of the submission, this one included, whose runs differ from it in their seeds alone."""
    own = tracks.recipe(run.row)
    return [row for row in run.files.submission.rows if tracks.recipe(row) == own and row["task"] == run.row["task"]]


def _score(row: dict, split: str) -> dict | None:
    """A row's score of a split, sealed where the prefix says so."""
    field, split = ("sealed_scores", split.removeprefix(SEALED)) if split.startswith(SEALED) else ("scores", split)
    return (rows.content(row, field) or {}).get(split)


def _by_grammar(run: Run, split: str, again: dict, new: dict) -> list[list[dict]]:
    """For each grammar seed of the submission the scores of its trainings: sealed where there are some. Rows that were not scored here get the
    interval's width of `new`, since theirs is a claim."""
    half, out = (new["high"] - new["low"]) / 2, {}
    for row in _siblings(run):
        own = row["run_id"] == run.row["run_id"]
        score = (
            (again.get(SEALED + split) or again.get(split))
            if own
            else (_score(row, SEALED + split) or _score(row, split))
        )
        if score is not None and score["accuracy"] is not None:
            claimed = {} if own else {"low": score["accuracy"] - half, "high": score["accuracy"] + half}
            out.setdefault(row["grammar_seed"], []).append({**score, **claimed})
    return list(out.values())
