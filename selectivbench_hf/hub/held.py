"""Runs held to the published data: the same fingerprint under the same name, and which tasks may have an entry in `.eval_results`."""

from __future__ import annotations

from ..errors import InputError
from . import client, eval_results, means, model_card, publish, submission


class Held:
    """The published data that runs are held to: `dataset` as a submission names it."""

    def __init__(self, repo: str):
        """The newest tag of this major data version. InputError where there is none."""
        from ..tasks import DATA_VERSION

        if client.head(repo, publish.KIND) is None:
            raise InputError(
                f"there is no data set {repo} on the Hub that you may read; --dataset names the published data"
            )
        major = f"v{DATA_VERSION.split('.')[0]}."
        found = client.tags(repo, publish.KIND).items()
        tags = {tag: sha for tag, sha in found if tag.startswith(major) and submission.TAG.fullmatch(tag)}
        if not tags:
            raise InputError(f"{repo} has no tag {major}Y.Z, so no data of version {DATA_VERSION} are published there")
        tag = max(tags, key=lambda t: [int(part) for part in t[1:].split(".")])
        self.dataset = {"id": repo, "revision": tags[tag], "tag": tag}
        self._reader, self._fingerprints = publish.Reader(repo), {}

    def published(self, row: dict) -> dict[str, str | None]:
        """Fingerprint of what is published under the name of the row's config, and under that of its task; None where nothing is."""
        names = {config_of(row), row["task"]}
        if lacking := names - set(self._fingerprints):
            there = self._reader.at(self.dataset["revision"], only=sorted(lacking)).configs
            self._fingerprints |= {name: there[name]["fingerprint"] if name in there else None for name in lacking}
        return {name: self._fingerprints[name] for name in names}

    def refuse_other_data(self, new: list[dict]) -> None:
        """InputError where a config of the runs' is published with other data."""
        for row in new:
            if (why := self._other_data(row)) is not None:
                raise InputError(why)

    def _other_data(self, row: dict) -> str | None:
        there = self.published(row)[config_of(row)]
        if there in (None, row["task_fingerprint"]):
            return None
        return (
            f"run {row['run_id'][:12]} was made with other data than {self.dataset['id']} has at {self.dataset['tag']} under the name "
            f"{config_of(row)}: fingerprint {row['task_fingerprint'][:12]}, published {there[:12]}"
        )

    def entries(self, all_rows: list[dict]) -> tuple[list, list[str]]:
        """(entries of .eval_results, one a task; sentences about tasks that have none)."""
        out, said = [], []
        for task, own in model_card.by_task(all_rows).items():
            why = next(filter(None, map(self._no_entry, own)), None)
            if why is None:
                out.append(_entry(task, own, self.dataset))
            else:
                said.append(f"{task} has no entry in {eval_results.PATH}: {why}")
        return out, said

    def _no_entry(self, row: dict) -> str | None:
        from .tracks import published_task

        run, config, there = f"run {row['run_id'][:12]}", config_of(row), self.published(row)
        if row["max_sequences"] is not None:
            return f"{run} is partial, scored on the first {row['max_sequences']:,} sequences of each split"
        if row["sealed_accuracy"] is None:
            return f"{run} has no sealed score"
        if there[config] is not None:
            return self._other_data(row)
        if there[row["task"]] is not None and published_task(row) is not None:
            return None  # another grammar seed of a published task, drawn here
        return f"{config} is not published in {self.dataset['id']} at {self.dataset['tag']}"


def _entry(task: str, own: list[dict], dataset: dict) -> dict:
    """The entry of .eval_results for a model's runs on one task: the mean sealed accuracy in per cent, with spread and seeds in its notes."""
    mean, published = means.score(own, "sealed_accuracy", "sealed"), means.score(own, "accuracy", "accuracy")
    listed = lambda key: ", ".join(dict.fromkeys(str(row[key]) for row in own if row[key] is not None)) or "none"
    runs = f"{len(own)} run{'s' if len(own) > 1 else ''}"
    notes = [
        f"mean of {runs} on the sealed test",
        f"grammar seeds {listed('grammar_seed')}",
        f"model seeds {listed('model_seed')}",
    ]
    for what, spread in (
        ("between grammar seeds", mean.between_grammars),
        ("between model seeds", mean.between_models),
    ):
        if spread is not None:
            notes.append(f"standard deviation {what} {100 * spread:.2f} points")
    if mean.low is not None:
        notes.append(f"95 % interval over {mean.over} {100 * mean.low:.2f} to {100 * mean.high:.2f}")
    notes.append(f"published test {100 * published.accuracy:.2f}")
    notes.append(f"trust: {', '.join(dict.fromkeys(row['trust'] for row in own))}")
    flagged = sum(bool(row["flags"]) for row in own)
    if flagged:
        notes.append(f"flagged runs: {flagged}")
    return eval_results.entry(
        dataset=dataset["id"],
        revision=dataset["revision"],
        task=task,
        value=100 * mean.accuracy,
        date=max(row["date"] for row in own),
        source_url=own[0]["source_url"],
        source_name=own[0]["name"],
        notes="; ".join(notes)[: eval_results.MOST_NOTES],
    )


def config_of(row: dict) -> str:
    """The name of the published config with a row's data, as `materialise.config_named` makes it."""
    return row["task"] if row["grammar_seed"] in (None, 1) else f"{row['task']}_seed{row['grammar_seed']}"
