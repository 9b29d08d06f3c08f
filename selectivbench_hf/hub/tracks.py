"""The tracks of the leaderboard: which rows are whole results, and which rules of the closed track a model's rows break (docs/leaderboard.md)."""

from __future__ import annotations

import functools
import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence

from . import comparison, row_checks

TIERS = {"2M": 2_000_000, "10M": 10_000_000, "50M": 50_000_000}  # most parameters, by the name of the size tier
BATCH = 64  # sequences per optimiser step
GRAMMAR_SEEDS = (1, 2, 3, 4)
MODEL_SEEDS = 2  # at each grammar seed
MODEL_SEEDS_FIXED = 4  # of a task that has one grammar or none: the horizon family and recall
LEARNING_RATES = (3e-4, 1e-3, 3e-3)  # the grid's least
ANOTHER_BACKEND = 0.001  # share of the items that it may decide otherwise

# of the recorded training arguments: which seed, where and how the run was done, and what other fields of a row say
NOT_RECIPE = frozenset((
    "task", "task_kwargs", "output_dir", "resume", "model_seed", "data_seed", "num_processes", "per_device_train_batch_size",
    "per_device_eval_batch_size", "gradient_accumulation_steps", "save_steps", "save_total_limit", "logging_steps", "tracker", "detail",
    "self_check", "eval_splits", "max_eval_sequences",
))  # fmt: skip
RECIPE = (
    "objective",
    "mixer",
    "block",
    "mixer_kwargs",
    "hidden_size",
    "num_hidden_layers",
    "train_sequences",
    "batch_size",
    "learning_rate",
    "epochs_of_train",
)  # fields in which the runs of one model are the same


def recipe(row: dict) -> tuple:
    """All in which the runs of one model must agree: everything but its seeds, and where and how it was run."""
    arguments = json.loads(row["arguments"]) if row["arguments"] else {}
    said = {k: v for k, v in arguments.items() if k not in NOT_RECIPE}
    return (*(row[name] for name in RECIPE), json.dumps(said, sort_keys=True))


def data_major(row: dict) -> int:
    """The major number of the data version: results of different ones are never compared."""
    return int(row["data_version"].split(".")[0])


def tier(rows: Iterable[dict]) -> str | None:
    """The size tier of a model's rows, by the largest; None where a size is not known or above all tiers."""
    sizes = [row["parameters"] for row in rows]
    if not sizes or None in sizes:
        return None
    return next((name for name, most in TIERS.items() if max(sizes) <= most), None)


@functools.lru_cache(maxsize=4096)
def _catalogue(name: str, grammar_seed: int | None):
    """(the catalogue's task at a grammar seed, its fingerprint), or (None, None)."""
    from ..errors import InputError
    from ..tasks import get_task, task_names

    if name not in task_names():
        return None, None
    try:
        task = get_task(name)
        if grammar_seed != task.grammar_seed:
            task = get_task(name, grammar_seed=grammar_seed)
    except InputError:  # a grammar seed where there is no random grammar
        return None, None
    return (task, task.fingerprint) if task.grammar_seed == grammar_seed else (None, None)


def published_task(row: dict):
    """The task of the catalogue that a row was scored on, with no keyword but the grammar seed changed; None if it is another.

    Of another major data version nothing can be generated here, so that it is None too.
    """
    task, fingerprint = _catalogue(row["task"], row["grammar_seed"])
    if task is None or fingerprint != row["task_fingerprint"] or row["sample_seed"] != task.sample_seed:
        return None
    return task


def incomplete(row: dict) -> str | None:
    """Why a row is no whole result that may be averaged with others, as the rest of a sentence; None where it is one."""
    from ..tasks import DATA_VERSION

    if row["max_sequences"] is not None:
        return f"was scored on the first {row['max_sequences']:,} sequences of each split only"
    if row["accuracy"] is None:
        return "has no score on the published test"
    early = _ended_early(row)
    if early:
        return early
    scores, sealed = json.loads(row["scores"]), json.loads(row["sealed_scores"] or "{}")
    if data_major(row) == int(DATA_VERSION.split(".")[0]):
        task = published_task(row)
        if task is None:
            seed = "" if row["grammar_seed"] is None else f" at grammar seed {row['grammar_seed']}"
            return f"was not scored on the catalogue's {row['task']}{seed}: its fingerprint is another"
        lacking = [s for s in task.test_splits if s not in scores]
        if lacking:
            return f"has no score on {', '.join(lacking)}"
        for what, of in (("", scores), ("the sealed ", sealed)):
            for split in (s for s in task.test_splits if s in of and of[s]["sequences"] != task.splits[s]):
                return f"was scored on {of[split]['sequences']:,} of the {task.splits[split]:,} sequences of {what}{split}"
    high = row_checks.above_ceiling(row, scores, sealed)
    return f"has an impossible score: {high[0][0].lower()}{high[0][1:-1]}" if high else None


def _ended_early(row) -> str | None:
    arguments = json.loads(row["arguments"]) if row["arguments"] else {}
    due = arguments.get("num_train_epochs")
    if row["epochs_of_train"] is None or not isinstance(due, (int, float)) or arguments.get("max_steps") is not None:
        return None
    if row["epochs_of_train"] < due * (1 - 1e-3):
        return f"ended after {row['epochs_of_train']:.3g} of {due:g} passes over the training split"
    return None


# -- the closed track ----------------------------------------------------------------------------------------------------


def closed_faults(rows: Sequence[dict], replays: Sequence[dict] = ()) -> list[str]:
    """The rules of the closed track that the rows of one model on one task break, each as a sentence; none where it is a closed entry.

    Args:
        rows: all runs of one model on one task, each once, at one level of trust.
        replays: runs that others replayed of the same model; they too may show its score on a sealed grammar.
    """
    if not rows:
        return ["There are no runs."]
    faults = []
    for rule in (_whole, _one_recipe, _trained, _size, _seeds, _grid, _sealed):
        faults += rule(rows)
    return faults + _sealed_grammar(rows, replays)


def _of_runs(rows, reasons: Callable[[dict], Iterable[str]]) -> list[str]:
    """One sentence for each different reason, with the runs that it is about."""
    found = defaultdict(list)
    for row in rows:
        for reason in reasons(row):
            found[reason].append(row["run_id"][:12])
    if len(rows) == 1:
        return [f"The run {reason}." for reason in found]
    whom = lambda runs: "Each run" if len(runs) == len(rows) else f"Run {', '.join(runs)}"
    return [f"{whom(runs)} {reason}." for reason, runs in found.items()]


def _whole(rows) -> list[str]:
    return _of_runs(rows, lambda row: [why for why in [incomplete(row)] if why])


def _one_recipe(rows) -> list[str]:
    differ = [name for name in ("task", *RECIPE) if len({row[name] for row in rows}) > 1]
    if differ:
        return [f"The runs differ in {', '.join(differ)}: those of one model differ in nothing but their seeds."]
    if len({recipe(row) for row in rows}) > 1:
        return ["The runs differ in their training arguments: those of one model differ in nothing but their seeds."]
    return []


def _trained(rows) -> list[str]:
    return _of_runs(rows, _not_as_published)


def _not_as_published(row) -> Iterator[str]:
    task = published_task(row)
    if task is None:
        yield f"was not trained and scored on the catalogue's {row['task']}: a keyword is changed"
    elif row["train_sequences"] != task.num_train or not _once(row["epochs_of_train"]):
        seen = "an unknown number of" if row["train_sequences"] is None else f"{row['train_sequences']:,}"
        yield f"saw {seen} training sequences; the rule is all {task.num_train:,}, each once"
    if row["batch_size"] != BATCH:
        known = "an unknown number of" if row["batch_size"] is None else f"{row['batch_size']:,}"
        yield f"had batches of {known} sequences; the rule is {BATCH}"
    if row["objective"] != "classification":
        yield f"has the objective {row['objective']}; the rule is classification"
    if not row["command"]:
        yield "has no command that trains it again"


def _once(epochs) -> bool:
    return epochs is not None and abs(epochs - 1) < 1e-3


def _size(rows) -> list[str]:
    if tier(rows):
        return []
    if any(row["parameters"] is None for row in rows):
        return ["The number of parameters is not known."]
    most = max(row["parameters"] for row in rows)
    return [f"It has {most:,} parameters; the tiers are at most {', '.join(f'{n:,}' for n in TIERS.values())}."]


def _seeds(rows) -> list[str]:
    seeds = defaultdict(set)
    for row in rows:
        seeds[row["grammar_seed"]].add(row["model_seed"])
    counted = {g: len(models - {None}) for g, models in seeds.items()}
    if set(counted) == {None}:  # the task has one grammar, or none
        if counted[None] >= MODEL_SEEDS_FIXED:
            return []
        return [
            f"It has {counted[None]} model seeds; the rule is at least {MODEL_SEEDS_FIXED} where no grammar is drawn."
        ]
    faults = []
    if lacking := [g for g in GRAMMAR_SEEDS if g not in counted]:
        faults.append(f"There are no runs at grammar seed {_listed(lacking)}; the rule is 1 to 4.")
    if more := [g for g in counted if g not in GRAMMAR_SEEDS]:
        faults.append(f"There are runs at grammar seed {_listed(more)}; the rule is 1 to 4 alone.")
    if few := [g for g in GRAMMAR_SEEDS if counted.get(g, MODEL_SEEDS) < MODEL_SEEDS]:
        faults.append(f"There are fewer than {MODEL_SEEDS} model seeds at grammar seed {_listed(few)}.")
    return faults


def _grid(rows) -> list[str]:
    """The run at the lowest seeds tells the grid that chose the learning rate of all: its own is the best by validation and not at an edge."""
    row = min(rows, key=lambda row: (row["grammar_seed"] or 0, row["model_seed"] or 0, row["row_id"]))
    return [f"Run {row['run_id'][:12]}, which has the lowest seeds, {why}." for why in _grid_faults(row)]


def _grid_faults(row) -> Iterator[str]:
    if row["grid"] is None:
        yield "does not report the grid of learning rates"
        return
    tried, own = defaultdict(list), None
    for point in json.loads(row["grid"]):
        tried[point["learning_rate"]].append(point["validation_accuracy"] or 0.0)  # none: a run that failed
        own = point if point["run_id"] == row["run_id"] else own
    if lacking := [f"{rate:g}" for rate in LEARNING_RATES if not any(_same(rate, r) for r in tried)]:
        yield f"has a grid without the learning rate {_listed(lacking)}"
    if own is None or row["learning_rate"] is None or not _same(own["learning_rate"], row["learning_rate"]):
        yield "does not stand in its own grid of learning rates"
        return
    seen = row["validation_accuracy"]
    if None in (seen, own["validation_accuracy"]) or abs(seen - own["validation_accuracy"]) > ANOTHER_BACKEND:
        yield "has another validation accuracy in its grid than in its row"
    means = {rate: sum(values) / len(values) for rate, values in tried.items()}
    rate = own["learning_rate"]
    if means[rate] < max(means.values()):
        yield f"has a learning rate, {rate:g}, that is not the best of its grid by validation"
    elif rate in (min(means), max(means)):
        yield f"has a learning rate, {rate:g}, at the edge of its grid, which must be made wider"


def _sealed(rows) -> list[str]:
    return _of_runs(rows, lambda row: ["has no sealed score"] if row["sealed_accuracy"] is None else [])


def _sealed_grammar(rows, replays) -> list[str]:
    """Trained again on a grammar that nobody could know, it must do as well as on the known ones."""
    if any(row["grammar_seed"] is None for row in rows):
        return []  # the automaton is fixed and public, or there is none
    found = [scores for row in (*rows, *replays) if (scores := _sealed_grammar_test(row)) is not None]
    if not found:
        return ["There is no score on a sealed grammar (`selectivbench replay --sealed-grammar`)."]
    grammars = defaultdict(list)
    for row in rows:
        if row["sealed_accuracy"] is not None:
            grammars[row["grammar_seed"]].append(json.loads(row["sealed_scores"])["test"])
    if not grammars:
        return []  # said above
    findings = [comparison.sealed_grammar("test", list(grammars.values()), score) for score in found]
    return [
        f"Trained on a sealed grammar it reaches {f.replayed:.2%}, where the rule is {f.rule}: {f.submitted:.2%}."
        for f in findings
        if f.verdict == comparison.LOWER
    ][:1]


def sealed_grammar(rows: Iterable[dict]) -> float | None:
    """The lowest accuracy on `test` that a run reached on a sealed grammar; None where none was trained on one."""
    found = [scores["accuracy"] for row in rows if (scores := _sealed_grammar_test(row)) is not None]
    return min(found, default=None)


def _sealed_grammar_test(row) -> dict | None:
    score = json.loads(row["sealed_grammar_scores"] or "{}").get("test")
    return None if score is None or score["accuracy"] is None else score


def _same(a: float, b: float) -> bool:
    return abs(a - b) <= 1e-9 * max(abs(a), abs(b))


def _listed(items) -> str:
    return ", ".join(str(i) for i in items)


# -- whose weights -------------------------------------------------------------------------------------------------------


def shared_weights(rows: Iterable[dict]) -> dict[str, list[str]]:
    """row_id -> a sentence for each other model on the same task that has the same weights: a run submitted under two names, or somebody else's."""
    groups = {}
    for row in rows:
        if row["weights_sha256"] is not None:
            groups.setdefault((row["weights_sha256"], row["task"]), []).append(row)
    whose = lambda row: (
        f"{row['name']} ({row['repo'] or 'no repository'}, submitted by {row['submitter'] or 'nobody named'})"
    )
    return {
        row["row_id"]: [f"The weights of run {row['run_id'][:12]} are those of {other} too." for other in others]
        for group in groups.values()
        for row in group
        if (others := sorted({whose(other) for other in group} - {whose(row)}))
    }
