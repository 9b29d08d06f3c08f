"""The card of a submitted model: README.md with the Hub's front matter and `model-index`, made from the rows of its runs alone."""

from __future__ import annotations

import json
from collections.abc import Sequence

from .. import resources
from ..datacard import fill
from ..tasks import get_task
from . import submission
from .means import score

MARKER = "<!-- Made by `selectivbench submit`, which replaces this file; edits are lost at the next submission. -->"
LIBRARY = "selectivbench-hf"
ASKED = {
    "grammar": "items whose grammar state it names",
    "recall": "questions about what a sequence has shown that it answers right",
}
BEST = {
    "grammar": "what the exact filter reaches, which knows the grammar",
    "recall": "100, since every answer was shown",
}
TRUST = {
    "predictions": "predicted states were scored here; nobody but the submitter has run the model",
    "weights": "the saved weights were scored again",
    "replayed": "somebody else trained it again from its recorded command",
}


def render(rows: Sequence[dict], dataset: dict, repo: str) -> str:
    """The whole README.md.

    Args:
        rows: checked rows of the runs of one model, in the order of the submission.
        dataset: of the submission: {"id", "revision", "tag"}.
        repo: OWNER/NAME of the model.
    """
    from huggingface_hub import ModelCard

    first = rows[0]
    own = f"runs/{first['run_id']}"
    sealer = "MODEL_FILE" if first["trust"] == "predictions" else f"{own}/{submission.WEIGHTS}"
    values = {
        "name": _cell(first["name"]),
        "what": _what(rows),
        "dataset": dataset["id"],
        "asked": ASKED[get_task(first["task"]).family],
        "best": BEST[get_task(first["task"]).family],
        "results": _results(rows),
        "splits": _splits(rows),
        "doubts": _doubts(rows),
        "load": _load(rows, repo),
        "score": _score_again(rows, repo),
        "sealed": f"selectivbench sealed {sealer} --task {own}/task.json",
        "train": _train(rows),
        "made": _made(rows, dataset),
        "format": submission.FORMAT,
    }
    body = fill(resources.text("dataset_cards/model_card.md"), values)
    card = ModelCard(f"---\n{_metadata(rows, dataset, repo).to_yaml()}\n---\n{MARKER}\n\n{body}")
    return str(card)


def by_task(rows: Sequence[dict]) -> dict[str, list[dict]]:
    """Task name -> its rows, in their order."""
    out = {}
    for row in rows:
        out.setdefault(row["task"], []).append(row)
    return out


def has_model(row: dict) -> bool:
    """Whether a run's weights are a model of this package, which `from_pretrained` loads."""
    from ..models import mixer_names

    return row["trust"] != "predictions" and row["mixer"] in mixer_names()


def _metadata(rows, dataset, repo):
    from huggingface_hub import EvalResult, ModelCardData

    results = []
    for task, own in by_task(rows).items():
        mean = score(own, "sealed_accuracy", "sealed")
        if mean is None or any(row["max_sequences"] is not None for row in own):
            continue
        results.append(
            EvalResult(
                task_type="token-classification",
                task_name="State tracking",
                dataset_type=dataset["id"],
                dataset_name=f"SelectivBench {task}",
                dataset_config=task,
                dataset_split="test",
                dataset_revision=dataset["revision"],
                metric_type="accuracy",
                metric_name="Sealed test accuracy (per cent)",
                metric_value=round(100 * mean.accuracy, 4),
            )
        )
    return ModelCardData(
        library_name=LIBRARY,
        pipeline_tag="token-classification",
        tags=["selectivbench", "state-tracking", *sorted({row["mixer"] for row in rows if row["mixer"]})],
        datasets=[dataset["id"]],
        metrics=["accuracy"],
        model_name=rows[0]["name"],
        eval_results=results or None,
    )


def _what(rows) -> str:
    first = rows[0]
    parts = [_count(first["num_hidden_layers"], "layer") if first["num_hidden_layers"] else ""]
    parts += [f"width {first['hidden_size']}" if first["hidden_size"] else ""]
    sizes = sorted({row["parameters"] for row in rows if row["parameters"] is not None})
    parts += [f"{' to '.join(f'{n:,}' for n in dict.fromkeys((sizes[0], sizes[-1])))} parameters" if sizes else ""]
    if first["state_size"] is not None:
        parts.append(f"a recurrent state of {first['state_size']:,} numbers")
    elif first["state_grows"]:
        parts.append("a state that grows with the sequence")
    told = ", ".join(p for p in parts if p)
    runs = _count(len(rows), "run")
    what = f"A sequence model with the mixer {_code(first['mixer'])}" if first["mixer"] else "A sequence model"
    kinds = "; ".join(f"`{trust}`: {TRUST[trust]}" for trust in dict.fromkeys(row["trust"] for row in rows))
    return f"{what}{': ' + told if told else ''}. {runs}; level of trust {kinds}."


def _results(rows) -> str:
    lines = [
        "| task | grammar seed | model seed | test | sealed test | gap | ceiling | validation | run |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        gap = "-" if row["gap_in_se"] is None else f"{row['gap_in_se']:+.1f}"
        lines.append(
            f"| {row['task']} | {_or_dash(row['grammar_seed'])} | {_or_dash(row['model_seed'])} | {_shares(row, 'accuracy')} | "
            f"**{_shares(row, 'sealed')}** | {gap} | {_percent(row['ceiling'])} | {_percent(row['validation_accuracy'])} | `{row['run_id'][:12]}` |"
        )
    for task, own in by_task(rows).items():
        mean = score(own, "sealed_accuracy", "sealed")
        if len(own) > 1 and mean is not None:
            lines.append(
                f"| **{task}, mean** | {_listed(own, 'grammar_seed')} | {_listed(own, 'model_seed')} | | **{_percent(mean.accuracy)}"
                f"{_interval(mean.low, mean.high)}** | | | | {len(own)} runs |"
            )
    return "\n".join(lines)


def _splits(rows) -> str:
    """The tests with other gaps, one line a run, where there are any."""
    names = list(dict.fromkeys(s for row in rows for s in json.loads(row["scores"]) if s.startswith("test_")))
    if not names:
        return ""
    lines = [
        "\nThe other test splits, sealed (published):\n",
        "| run | " + " | ".join(names) + " |",
        "|---|" + "---|" * len(names),
    ]
    for row in rows:
        sealed, published = json.loads(row["sealed_scores"] or "{}"), json.loads(row["scores"])
        cells = [
            f"{_percent(sealed.get(s, {}).get('accuracy'))} ({_percent(published.get(s, {}).get('accuracy'))})"
            for s in names
        ]
        lines.append(f"| {row['task']} `{row['run_id'][:12]}` | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _doubts(rows) -> str:
    told = [f"- run `{row['run_id'][:12]}`: {_cell(flag)}" for row in rows for flag in row["flags"]]
    return "\nWhat is doubtful:\n\n" + "\n".join(told) + "\n" if told else ""


def _load(rows, repo) -> str:
    first = rows[0]
    if first["trust"] == "predictions":
        return "Nothing can be loaded: the repository holds predicted states, not the model. Their file is `runs/RUN_ID/predictions.safetensors`."
    if not has_model(first):
        return (
            f"The repository holds the weights alone (`runs/RUN_ID/model.safetensors`). What is missing is the module, "
            f"{_code(first['mixer'] or 'a module from outside')}, which is no part of the package selectivbench_hf: build it, then load the weights into it "
            "with `safetensors.torch.load_file`. No code of the repository is ever run."
        )
    recall = get_task(first["task"]).family == "recall"
    given, classes = ("input_ids", "symbols") if recall else ("input_features", "states")
    return (
        "With the package `selectivbench_hf` installed; the repository holds no code, and none is needed:\n\n"
        "```python\n"
        "import torch\n"
        "import selectivbench_hf as sb\n"
        "import selectivbench_hf.models  # registers the model with transformers\n"
        "from transformers import AutoModelForTokenClassification\n\n"
        f'model = AutoModelForTokenClassification.from_pretrained("{repo}").eval()\n'
        f'batch = next(iter(sb.batches("{first["task"]}", "test", batch_size=4)))\n'
        f'logits = model({given}=torch.from_numpy(batch["{given}"])).logits  # (sequences, steps, {classes})\n'
        "```\n\n"
        f"That is run `{first['run_id'][:12]}`; the weights of each run lie in `runs/RUN_ID/`."
    )


def _score_again(rows, repo) -> str:
    first = rows[0]
    if not has_model(first):
        return "Each run's task is in `runs/RUN_ID/task.json`; `sb.score(task, split, predicted)` scores predicted states of any framework."
    return (
        "From a clone of the repository:\n\n```\n"
        + "\n".join(f"selectivbench evaluate runs/{row['run_id']}" for row in rows)
        + f"\n```\n\nand everything at once, the sealed tests too: `selectivbench replay {repo} --rescore_only`."
    )


def _train(rows) -> str:
    commands = [row["command"] for row in rows if row["command"]]
    if not commands:
        return "No command was recorded: the model was made outside of this package, and how it was trained is the submitter's to tell."
    return "```\n" + "\n".join(commands) + "\n```"


def _made(rows, dataset) -> str:
    lines = [
        f"- data: `{dataset['id']}` at {dataset['tag']} (commit `{dataset['revision']}`), data version {rows[0]['data_version']}",
    ]
    for title, key in (("kernels", "kernel_backend"), ("device", "device"), ("precision", "precision")):
        told = dict.fromkeys(row[key] for row in rows if row[key])
        if told:
            lines.append(f"- {title} of the training: {'; '.join(_cell(t) for t in told)}")
    for text in dict.fromkeys(row["versions"] for row in rows if row["versions"]):
        known = {name: version for name, version in json.loads(text).items() if version}
        lines.append("- versions: " + ", ".join(f"{_cell(n)} {_cell(v)}" for n, v in known.items()))
    lines.append("- weights: " + ", ".join(f"`{row['weights_sha256']}`" for row in rows if row["weights_sha256"]))
    return "\n".join(line for line in lines if line != "- weights: ")


# -- cells ---------------------------------------------------------------------------------------------------------------


def _cell(text: str) -> str:
    """Text for Markdown: nothing of it can end a cell, open a link or a code span."""
    return "".join("\\" + c if c in "\\|`[]*_#" else c for c in text)


def _code(text: str) -> str:
    """Text as a code span."""
    return f"`{text.replace('`', '')}`"


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.2f}"


def _interval(low, high) -> str:
    return "" if low is None or high is None else f" [{_percent(low)}, {_percent(high)}]"


def _shares(row, of: str) -> str:
    value = row["sealed_accuracy" if of == "sealed" else "accuracy"]
    return _percent(value) + _interval(row[f"{of}_low"], row[f"{of}_high"])


def _or_dash(value) -> str:
    return "-" if value is None else str(value)


def _listed(rows, key) -> str:
    return ", ".join(dict.fromkeys(_or_dash(row[key]) for row in rows))
