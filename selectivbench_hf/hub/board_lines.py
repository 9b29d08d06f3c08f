"""Lines of the page: entries of the ranking, rows that are kept apart, and results that the Hub's own leaderboard knows, in one form.

A line is a dict of plain values. Accuracies are in per cent, and None stands for what is not known:

    name, repo, model                     as submitted; `model` is what the page calls it, and no two models share it
    table, task, data, objective          `table` is what the page calls a task at a major data version and an objective: never compared with another
    rank, official, track                 rank among the official ones of its table and track
    sealed, sealed_low, sealed_high       mean accuracy on the sealed `test` and its 95 % interval; so `published`
    over                                  what the interval is over: "grammar seeds", "model seeds" or "test sequences"
    between_grammars, between_models      standard deviation over grammar seeds' means, and over the model seeds of a grammar
    splits                                split -> {"published", "sealed"}, accuracies
    runs, tier, budget, trust, replayed_by, submitter, mixer, decay, write_rule, channel_mixing, nonlinear, parameters, state_size,
    state_grows, effective_context, ceiling, sealed_grammar, date, source_url, repo_revision
    flags, notes, faults                  what is doubtful; what a reader of the means must know; what keeps it out of the closed track
    row_ids                               of the runs it stands for
"""

from __future__ import annotations

import json
import unicodedata
from collections import defaultdict
from collections.abc import Iterable

from ..errors import InputError
from . import client, tracks
from .ranking import Apart, Entry, Ranking
from .untrusted import shown

FIELDS = (
    "name", "repo", "model", "table", "task", "data", "objective", "rank", "official", "track", "sealed", "sealed_low", "sealed_high",
    "published", "published_low", "published_high", "over", "between_grammars", "between_models", "splits", "runs", "tier", "budget",
    "trust", "replayed_by", "submitter", "mixer", "decay", "write_rule", "channel_mixing", "nonlinear", "parameters", "state_size",
    "state_grows", "effective_context", "ceiling", "sealed_grammar", "date", "source_url", "repo_revision", "flags", "notes", "faults",
    "row_ids",
)  # fmt: skip

ONCE, LESS, MORE = "the training split once", "less than the training split", "more than the training split once"
ABOVE = f"above {max(tracks.TIERS.values()) / 1e6:g} M"


def from_ranking(ranking: Ranking, rows: Iterable[dict]) -> list[dict]:
    """The lines of entries, in their order, and below them those of rows kept apart."""
    by_id = {row["row_id"]: row for row in rows}
    return _named([_entry(entry, by_id) for entry in ranking.entries] + [_apart(apart) for apart in ranking.apart])


def table_name(task: str, data_major: int, objective: str | None) -> str:
    """What the page calls a table of the ranking: the task, and what is unusual about it."""
    from ..tasks import DATA_VERSION

    unusual = [] if data_major == int(DATA_VERSION.split(".")[0]) else [f"data version {data_major}"]
    unusual += [] if objective in ("classification", None) else [f"objective {objective}"]
    return f"{task} ({', '.join(unusual)})" if unusual else task


def _named(lines: list[dict]) -> list[dict]:
    """The lines with what the page calls their models: the name alone where only one model has it, else with its repository or who submitted it.

    Names that differ in case or in variants of letters alone are one name here. One that ends like an addition is never shown without: no model
    passes for another's.
    """
    owners = defaultdict(set)
    same = lambda name: unicodedata.normalize("NFKC", name).casefold()
    for line in lines:
        owners[same(line["name"])].add((line["repo"], line["submitter"]))
    for line in lines:
        name, whose = line["name"], line["repo"] or f"by {line['submitter'] or 'nobody named'}"
        line["model"] = f"{name} ({whose})" if len(owners[same(name)]) > 1 or name.endswith(")") else name
    return [{field: line[field] for field in FIELDS} for line in lines]


def size_tier(tier: str | None, parameters: int | None) -> str | None:
    """What the page calls a size tier."""
    if tier is not None:
        return f"at most {tracks.TIERS[tier] / 1e6:g} M"
    return None if parameters is None else ABOVE


def budget(times: float | None) -> str | None:
    """How the page calls a training budget: so many passes over the training split, where once is the closed track's rule."""
    if times is None:
        return None
    return ONCE if abs(times - 1) < 1e-3 else LESS if times < 1 else MORE


def _entry(entry: Entry, by_id: dict[str, dict]) -> dict:
    same = ("name", "repo", "task", "objective", "rank", "official", "track", "runs", "trust", "replayed_by", "submitter", "mixer",
            "decay", "write_rule", "channel_mixing", "nonlinear", "parameters", "state_size", "state_grows", "effective_context", "date",
            "source_url", "repo_revision")  # fmt: skip
    return {
        **{key: getattr(entry, key) for key in same},
        "table": table_name(entry.task, entry.data_major, entry.objective),
        "data": entry.data_major,
        **_score("sealed", entry.sealed),
        **_score("published", entry.published),
        "over": (best := entry.sealed or entry.published).over,
        "between_grammars": _per_cent(best.between_grammars),
        "between_models": _per_cent(best.between_models),
        "splits": {split: {k: _per_cent(v) for k, v in found.items()} for split, found in entry.splits.items()},
        "tier": size_tier(entry.tier, entry.parameters),
        "budget": budget(by_id[entry.row_ids[0]]["epochs_of_train"]),
        "ceiling": _per_cent(entry.ceiling),
        "sealed_grammar": _per_cent(entry.sealed_grammar),
        "flags": list(entry.flags),
        "notes": list(entry.notes),
        "faults": list(entry.closed_faults),
        "row_ids": list(entry.row_ids),
    }


def _apart(apart: Apart) -> dict:
    row = apart.row
    same = ("name", "repo", "task", "objective", "trust", "replayed_by", "submitter", "mixer", "decay", "write_rule", "channel_mixing",
            "nonlinear", "parameters", "state_size", "state_grows", "effective_context", "date", "source_url", "repo_revision")  # fmt: skip
    published, sealed = json.loads(row["scores"]), json.loads(row["sealed_scores"] or "{}")
    accuracy = lambda scores, split: _per_cent(scores.get(split, {}).get("accuracy"))
    scores = {}
    for key, of in (("sealed", "sealed"), ("published", "accuracy")):
        scores[key] = _per_cent(row["sealed_accuracy" if of == "sealed" else of])
        scores |= {f"{key}_{end}": _per_cent(row[f"{of}_{end}"]) for end in ("low", "high")}
    return {
        **{key: row[key] for key in same},
        "table": table_name(row["task"], tracks.data_major(row), row["objective"]),
        "data": tracks.data_major(row),
        "rank": None,
        "official": False,
        "track": "none",
        **scores,
        "between_grammars": None,
        "between_models": None,
        "over": None if scores["published_low"] is None and scores["sealed_low"] is None else "test sequences",
        "splits": {
            s: {"published": accuracy(published, s), "sealed": accuracy(sealed, s)}
            for s in sorted({*published, *sealed})
        },
        "runs": 1,
        "tier": size_tier(tracks.tier([row]), row["parameters"]),
        "budget": budget(row["epochs_of_train"]),
        "ceiling": _per_cent(row["ceiling"]),
        "sealed_grammar": None,
        "flags": [f"Not ranked: run {row['run_id'][:12]} {apart.reason}.", *row["flags"]],
        "notes": [],
        "faults": [],
        "row_ids": [row["row_id"]],
    }


def scores_only(name: str, task: str, **known) -> dict:
    """A line of something that has no rows: what is not `known` is null, and it is in no track of ours."""
    empty = dict.fromkeys(FIELDS) | {
        "name": name,
        "model": name,
        "task": task,
        "table": task,
        "official": False,
        "track": "none",
    }
    return empty | {"splits": {}, "flags": [], "notes": [], "faults": [], "row_ids": []} | known


def from_hub(found: Iterable, task: str) -> tuple[list[dict], list[str]]:
    """(lines, sentences about what is left out) of huggingface_hub's DatasetLeaderboardEntry objects, whose values are per cent of `task`."""
    lines, left_out = [], []
    for entry in found:
        try:
            lines.append(_of_hub(entry, client.repo_id(entry.model_id, "the model of a leaderboard entry"), task))
        except InputError as error:
            left_out.append(f"an entry of the Hub's leaderboard is left out: {error}")
    return lines, left_out


def _of_hub(entry, repo: str, task: str) -> dict:
    value = entry.value
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= 100:  # NaN is not
        raise InputError(f"the value of {repo} must be a number from 0 to 100, got {shown(value)}")
    source = entry.source if isinstance(entry.source, dict) else {}
    notes = " ".join(entry.notes[:4000].split()) if isinstance(entry.notes, str) else ""
    notes = "".join(letter for letter in notes if letter.isprintable())  # no marks that turn the direction of text
    return scores_only(
        repo,
        task,
        repo=repo,
        rank=entry.rank if type(entry.rank) is int and 0 < entry.rank < 1 << 31 else None,
        official=False,  # anybody can write any value into a repository of theirs
        track="Hub",
        sealed=float(value),
        splits={"test": {"published": None, "sealed": float(value)}},
        source_url=source.get("url") if isinstance(source.get("url"), str) else None,
        flags=[]
        if entry.pull_request is None
        else [f"Proposed by pull request {shown(entry.pull_request)}, which is not merged."],
        notes=[notes[:2000]] if notes else [],
    )


def _score(key: str, score) -> dict:
    if score is None:
        return {key: None, f"{key}_low": None, f"{key}_high": None}
    return {key: _per_cent(score.accuracy), f"{key}_low": _per_cent(score.low), f"{key}_high": _per_cent(score.high)}


def _per_cent(value: float | None) -> float | None:
    return None if value is None else 100 * value
