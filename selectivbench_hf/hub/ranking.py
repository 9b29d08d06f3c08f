"""Rows of single runs -> entries of the leaderboard, one for each model, task, track, level of trust and major data version (docs/leaderboard.md).

Nothing is averaged that is not whole: what is double is counted once, what conflicts, is partial or withdrawn is kept apart with the reason.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace

from . import tracks
from .means import Score, mean, score
from .row_checks import doubts
from .sealed import GAP_LIMIT

TAXONOMY = ("mixer", "block", "decay", "write_rule", "channel_mixing", "nonlinear")
SEEDS = ("grammar_seed", "sample_seed", "model_seed", "data_seed")


@dataclass(frozen=True)
class Entry:
    """One line of the leaderboard.

    rank             1, 2, ... among the official entries of its table (task, data_major, objective, track; predictions apart); None for others
    official         whether every run has a sealed score
    sealed           the official Score; None without
    published        the Score on the published test
    splits           split -> {"published", "sealed"}: mean accuracy as above; None where some run lacks the split
    sealed_grammar   the lowest accuracy of a run on a sealed grammar; None without
    gap_in_se        the gap between published and sealed of the run where it is largest, in standard errors of the difference
    runs             number of runs in the means
    grammar_seeds    grammar seed (as text; "none" where the task draws no grammar) -> number of runs
    ceiling          mean over grammar seeds of what the exact filter reaches; None where it is not known
    effective_context  mean of the runs' number of last items that would give their score; None where one is not known
    closed_faults    what keeps it out of the closed track; empty in the closed track
    flags            what is doubtful, sentences
    notes            what a reader of the means must know, sentences
    """

    rank: int | None
    official: bool
    name: str
    repo: str | None
    repo_revision: str | None
    submitter: str | None
    trust: str
    replayed_by: str | None
    task: str
    data_major: int
    data_versions: tuple[str, ...]
    objective: str | None
    track: str
    tier: str | None
    sealed: Score | None
    published: Score
    splits: dict[str, dict[str, float | None]]
    sealed_grammar: float | None
    gap_in_se: float | None
    runs: int
    grammar_seeds: dict[str, int]
    ceiling: float | None
    effective_context: float | None
    parameters: int | None
    state_size: int | None
    state_grows: bool | None
    hidden_size: int | None
    num_hidden_layers: int | None
    mixer: str | None
    block: str | None
    decay: str | None
    write_rule: str | None
    channel_mixing: str | None
    nonlinear: str | None
    train_sequences: int | None
    learning_rate: float | None
    source_url: str | None
    date: str
    row_ids: tuple[str, ...] = field(repr=False)
    closed_faults: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def as_dict(self) -> dict:
        """For JSON."""
        return asdict(self)


@dataclass(frozen=True)
class Apart:
    """A row that is in no entry, and why, as the rest of a sentence about its run."""

    row: dict
    reason: str

    def __str__(self) -> str:
        return f"run {self.row['run_id'][:12]} ({self.row['name']} on {self.row['task']}) {self.reason}"


@dataclass(frozen=True)
class Ranking:
    """Entries, table by table (task, data major, objective, closed before open) and best first; rows kept apart; what else was noticed."""

    entries: list[Entry]
    apart: list[Apart]
    notes: list[str]


def rank(rows: Iterable[dict], withdrawn: Mapping[str, str] | None = None) -> Ranking:
    """Average and rank rows that `rows.check_rows` has let pass. The order in which they come changes nothing.

    Args:
        rows: of any models, tasks, tracks, levels of trust and data versions.
        withdrawn: row_id -> why the row was withdrawn.
    """
    single, notes = _once(rows)
    apart, whole = [], []
    for row in single:
        gone = (withdrawn or {}).get(row["row_id"])
        reason = f"was withdrawn: {gone}" if gone is not None else tracks.incomplete(row)
        if reason:
            apart.append(Apart(row, reason))
        else:
            whole.append(row)
    whole, conflicting = _without_conflicts(whole)
    apart += conflicting
    entries = []
    groups = _grouped(whole, _identity)
    replayed = _grouped((row for row in whole if row["trust"] == "replayed"), _model)
    shared = tracks.shared_weights(whole)
    for group in groups.values():
        entry, left = _entry(group, replayed.get(_model(group[0]), []))
        told = [said for row_id in entry.row_ids for said in shared.get(row_id, ())]
        entries.append(replace(entry, flags=(*entry.flags, *told)))
        apart += left
    return Ranking(
        _ranked(entries), sorted(apart, key=lambda a: (a.row["task"], a.row["name"], a.row["row_id"])), notes
    )


def _once(rows) -> tuple[list[dict], list[str]]:
    counted, single = defaultdict(int), {}
    for row in rows:
        counted[row["row_id"]] += 1
        single[row["row_id"]] = row
    doubled = [row_id for row_id, times in sorted(counted.items()) if times > 1]
    notes = []
    for row_id in doubled:
        row = single[row_id]
        notes.append(
            f"row {row_id[:12]} ({row['name']} on {row['task']}) is there {counted[row_id]} times: counted once"
        )
    return [single[row_id] for row_id in sorted(single)], notes


def run_key(row: dict) -> tuple:
    """What two rows share that are about the same run of the same task at the same level of trust: such rows must be equal.

    The repository is part of it: else whoever copies a run first would keep its owner out. (The same weights in two places are flagged in both.)
    """
    return row["run_id"], row["task"], row["trust"], row["replayed_by"], row["repo"]


def supersedes(row: dict, other: dict) -> bool:
    """Whether a row says of the same run all that the other does and its sealed scores besides: one pushed as recorded, later submitted."""
    return (
        run_key({**row, "repo": None}) == run_key({**other, "repo": None})
        and other["repo"] in (None, row["repo"])
        and row["sealed_seed"] is not None
        and other["sealed_seed"] is None
        and row["weights_sha256"] == other["weights_sha256"] is not None
    )


def superseded(rows: Iterable[dict]) -> dict[str, str]:
    """row_id of each row that another one supersedes -> row_id of that."""
    groups = _grouped(rows, lambda row: (row["run_id"], row["task"])).values()
    pairs = [(a["row_id"], b["row_id"]) for group in groups for a in group for b in group if supersedes(b, a)]
    return dict(sorted(pairs, reverse=True))


def _model(row) -> tuple:
    """The model and the task, whoever vouches for the score. Missing values stand as text, so that keys can be sorted."""
    return tuple(
        map(
            str, (row["name"], row["repo"], row["submitter"], row["task"], tracks.data_major(row), *tracks.recipe(row))
        )
    )


def _identity(row) -> tuple:
    return (*_model(row), row["trust"], str(row["replayed_by"]))


def _grouped(rows, key: Callable[[dict], tuple]) -> dict[tuple, list[dict]]:
    groups = defaultdict(list)
    for row in rows:
        groups[key(row)].append(row)
    return {k: groups[k] for k in sorted(groups)}


def _without_conflicts(rows) -> tuple[list[dict], list[Apart]]:
    """(rows that say nothing different about one run, the others). Two runs of one model with all seeds the same are one run, twice."""
    reasons = {
        i: f"is superseded by row {better[:12]}, which has sealed scores of the same weights"
        for i, better in superseded(rows).items()
    }
    for group in _grouped(rows, lambda row: tuple(map(str, run_key(row)))).values():
        group = [row for row in group if row["row_id"] not in reasons]
        for row in group if len(group) > 1 else ():
            reasons[row["row_id"]] = f"conflicts with {_others(group, row)}: the same run with other content"
    for group in _grouped(rows, lambda row: (*_identity(row), *(str(row[seed]) for seed in SEEDS))).values():
        group = [row for row in group if row["row_id"] not in reasons]
        for row in group if len(group) > 1 else ():
            reasons[row["row_id"]] = (
                f"conflicts with {_others(group, row)}: another run of this model with the same seeds"
            )
    good = [row for row in rows if row["row_id"] not in reasons]
    return good, [Apart(row, reasons[row["row_id"]]) for row in rows if row["row_id"] in reasons]


def _others(group, row) -> str:
    names = sorted(other["row_id"][:12] for other in group if other is not row)
    return f"row{'s' if len(names) > 1 else ''} {', '.join(names)}"


# -- one entry -----------------------------------------------------------------------------------------------------------


def _entry(rows: list[dict], replays: list[dict]) -> tuple[Entry, list[Apart]]:
    """The entry of one model's rows, and rows that it leaves out: grammar seeds that are none of the closed track's, in the closed track."""
    standard = [row for row in rows if row["grammar_seed"] is None or row["grammar_seed"] in tracks.GRAMMAR_SEEDS]
    faults, left = tracks.closed_faults(standard, replays), []
    if not faults:
        why = "closed entries are the mean over grammar seeds 1 to 4"
        left = [Apart(row, f"has grammar seed {row['grammar_seed']}: {why}") for row in rows if row not in standard]
        rows = standard
    elif len(standard) < len(rows):
        faults = tracks.closed_faults(rows, replays)
    first = rows[0]
    same = lambda key: first[key] if all(row[key] == first[key] for row in rows) else None
    sealed = score(rows, "sealed_accuracy", "sealed")
    counts = _counts(rows)
    gaps = [row["gap_in_se"] for row in rows if row["gap_in_se"] is not None]
    entry = Entry(
        rank=None,
        official=sealed is not None,
        name=first["name"],
        repo=first["repo"],
        repo_revision=same("repo_revision"),
        submitter=first["submitter"],
        trust=first["trust"],
        replayed_by=first["replayed_by"],
        task=first["task"],
        data_major=tracks.data_major(first),
        data_versions=tuple(sorted({row["data_version"] for row in rows})),
        objective=first["objective"],
        track="open" if faults else "closed",
        tier=tracks.tier(rows),
        sealed=sealed,
        published=score(rows, "accuracy", "accuracy"),
        splits=_splits(rows),
        sealed_grammar=tracks.sealed_grammar([*rows, *replays]),
        gap_in_se=max(gaps, key=abs) if gaps else None,
        runs=len(rows),
        grammar_seeds=counts,
        ceiling=mean(rows, lambda row: row["ceiling"]),
        effective_context=mean(rows, lambda row: row["effective_context"]),
        parameters=_largest(rows, "parameters"),
        state_size=_largest(rows, "state_size"),
        state_grows=same("state_grows"),
        hidden_size=first["hidden_size"],
        num_hidden_layers=first["num_hidden_layers"],
        **{key: same(key) for key in TAXONOMY},
        train_sequences=first["train_sequences"],
        learning_rate=first["learning_rate"],
        source_url=same("source_url"),
        date=max(row["date"] for row in rows),
        row_ids=tuple(sorted(row["row_id"] for row in rows)),
        closed_faults=tuple(faults),
        flags=_flags(rows, gaps),
        notes=_notes(rows, counts),
    )
    return entry, left


def _splits(rows) -> dict:
    published = {row["row_id"]: json.loads(row["scores"]) for row in rows}
    sealed = {row["row_id"]: json.loads(row["sealed_scores"] or "{}") for row in rows}
    names = sorted({split for scores in (*published.values(), *sealed.values()) for split in scores})
    accuracy = lambda scores, split: lambda row: scores[row["row_id"]].get(split, {}).get("accuracy")
    return {
        split: {"published": mean(rows, accuracy(published, split)), "sealed": mean(rows, accuracy(sealed, split))}
        for split in names
    }


def _largest(rows, key: str) -> int | None:
    values = [row[key] for row in rows]
    return None if None in values else max(values)


def _counts(rows) -> dict[str, int]:
    counts = defaultdict(int)
    for row in sorted(rows, key=lambda row: (row["grammar_seed"] is not None, row["grammar_seed"] or 0)):
        counts["none" if row["grammar_seed"] is None else str(row["grammar_seed"])] += 1
    return dict(counts)


def _flags(rows, gaps) -> tuple[str, ...]:
    # what is doubtful is looked for here: a row that somebody else made may not say it
    flags = sorted({flag for row in rows for flag in (*row["flags"], *doubts(row))})
    if beyond := [gap for gap in gaps if abs(gap) > GAP_LIMIT]:
        flags.append(
            f"{len(beyond)} of {len(rows)} runs score more than {GAP_LIMIT} standard errors apart on the published and the sealed test"
        )
    return tuple(flags)


def _notes(rows, counts) -> tuple[str, ...]:
    notes = []
    if len(set(counts.values())) > 1:
        notes.append("the seeds are unbalanced: " + ", ".join(f"{n} at grammar seed {g}" for g, n in counts.items()))
    if len(rows) == 1:
        notes.append("one run: neither the grammar's nor the training's part of the spread is known")
    sealed = sum(row["sealed_accuracy"] is not None for row in rows)
    if 0 < sealed < len(rows):
        notes.append(f"unofficial: {sealed} of {len(rows)} runs have a sealed score")
    sizes = {row["parameters"] for row in rows}
    if len(sizes) > 1 and None not in sizes:
        notes.append(f"parameters differ between runs: {min(sizes):,} to {max(sizes):,}")
    return tuple(notes)


# -- the order -----------------------------------------------------------------------------------------------------------


def _table(entry: Entry) -> tuple:
    """What is ranked together. Predictions are ranked apart, below: whoever knows the seed of a sealed test can write its labels down."""
    predictions = entry.trust == "predictions"
    return entry.task, entry.data_major, str(entry.objective), entry.track, predictions


def _ranked(entries: list[Entry]) -> list[Entry]:
    """Official entries by sealed score, ties by published score, then name; unofficial ones below, by published score, without a rank."""

    def order(entry):
        best = entry.sealed.accuracy if entry.official else 0.0
        who = (entry.name, str(entry.repo), str(entry.submitter), entry.trust, str(entry.replayed_by), entry.row_ids)
        return (*_table(entry), not entry.official, -best, -entry.published.accuracy, *who)

    out, places = [], defaultdict(int)
    for entry in sorted(entries, key=order):
        if entry.official:
            places[_table(entry)] += 1
            entry = replace(entry, rank=places[_table(entry)])
        out.append(entry)
    return out
