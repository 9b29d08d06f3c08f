"""The data card of a built folder: README.md with the front matter that `load_dataset` reads, from the template in `dataset_cards/`."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields

from . import resources
from .datacard_tables import (
    ceilings_table,
    columns_table,
    configs_table,
    family_of,
    fingerprints_table,
    hashes_table,
    recall_table,
)

MARKER = "<!-- Made by `selectivbench build`, which replaces this file; edits are lost at the next build. -->"
NOISE_INTRODUCTION = (
    "Noise is not stored. It is a function of the split and the example, so that every evaluation of a model sees the same noise. "
    "This NumPy code draws it exactly; training may use any noise of the same law."
)
DEFAULT = "lite"  # what load_dataset takes without a name, as in builder.py
# A folder without a whole config must not be loadable, and must say why: datasets quotes this name in its error.
UNFINISHED = "unfinished_build__run_selectivbench_build_again"


@dataclass(frozen=True)
class Source:
    """Where the readers of a card load its data from: a folder, or with `tag` a repository on the Hub."""

    path: str
    tag: str | None = None

    def load(self, config: str) -> str:
        """The call of load_dataset."""
        revision = "" if self.tag is None else f', revision="{self.tag}"'
        return f'load_dataset("{self.path}", "{config}"{revision})'

    def task(self, config: str) -> str:
        """The expression for the config's task.json."""
        if self.tag is None:
            return f'"{self.path}/{config}/task.json"'
        return f'hf_hub_download("{self.path}", "{config}/task.json", repo_type="dataset", revision="{self.tag}")'


LOCAL = Source("./selectivbench")


def facts(task) -> dict:
    """What the card says about a task, as JSON types; kept in the config's manifest so that a card needs no task."""
    import math

    if task.family == "recall":
        return _recall_facts(task)
    from .ceilings import summary

    nats = task.grammar.topological_entropy()
    return {
        "family": task.family,
        "level": task.describe_level(),
        "variant": task.variant,
        "letters": task.grammar.letters,
        "states": task.num_states,
        "symbols": task.num_symbols,
        "blank_id": task.blank_id,
        "items": task.num_items,
        "max_string_length": task.max_string_length,
        "entropy_nats": round(nats, 6),
        "entropy_bits": round(nats / math.log(2), 6),
        "edges": int(task.grammar.targets.size) - len(task.grammar.start_states),
        "noise": task.noise,
        "noise_scale": task.noise_scale,
        "sample_seed": task.sample_seed,
        "grammar_seed": task.grammar_seed,
        "grammar_hash": task.grammar.hash,
        "max_steps": {split: task.max_steps(split) for split in task.splits},
        "changed": changed(task),
        "column_types": column_types(task),
        "ceiling": summary(task),
    }


def _recall_facts(task) -> dict:
    return {
        "family": task.family,
        "description": task.describe_level(),
        **{name: getattr(task, name) for name in ("kind", "length", "num_pairs", "alpha", "filler", "sample_seed")},
        "symbols": task.num_symbols,
        "questions": task.num_items,
        "chance": task.chance,
        "noise": task.noise,
        "max_steps": {split: task.max_steps(split) for split in task.splits},
        "changed": changed(task),
        "column_types": column_types(task),
    }


def changed(task) -> dict:
    """Builder keywords in which a task differs from the catalogue's task of that name, as text."""
    from .tasks import get_task, keywords_of, task_names

    names = [n for n in task_names() if task.name == n or task.name.startswith(n + "_")]
    if not names:
        return {}
    base = get_task(max(names, key=len))
    keywords = keywords_of(base.name)
    out = {
        f.name: repr(getattr(task, f.name))
        for f in fields(task)
        if f.name in keywords and getattr(task, f.name) != getattr(base, f.name)
    }
    return {"grammar": "custom"} if getattr(task, "custom_grammar", None) is not None else out


def column_types(task) -> dict[str, str]:
    """Column name -> type: the smallest unsigned integers that fit."""
    from .builder import features_of

    return {field.name: str(getattr(field.type, "value_type", field.type)) for field in features_of(task).arrow_schema}


def render(manifests: dict[str, dict]) -> str:
    """The whole README.md for the configs in `manifests` (name -> manifest); none: a card with which nothing loads."""
    manifests = in_order(manifests)
    front = front_matter(manifests)
    if not manifests:
        unfinished = (
            "# An unfinished build\n\nNo config here is whole. Run the same `selectivbench build ...` again: it removes what an interrupted build "
            "left and makes the rest.\n"
        )
        return f"---\n{front}---\n{MARKER}\n\n{unfinished}"
    return f"---\n{front}---\n{MARKER}\n\n{body(manifests, LOCAL)}"


def body(manifests: dict[str, dict], source: Source, notes: str = "") -> str:
    """What stands below the front matter; `notes` follows the line that loads the data."""
    manifests = in_order(manifests)
    first = next(iter(manifests.values()))
    values = {
        "data_version": first["data_version"],
        "load": source.load(_example(manifests))
        + ("  # this folder's path, from where you run" if source == LOCAL else ""),
        "notes": notes,
        "sections": "\n\n".join(_sections(manifests, source)),
        "fingerprints": fingerprints_table(manifests),
        "hashes": hashes_table(manifests),
        "hash_recipe": resources.text("dataset_cards/content_hash.py").rstrip("\n"),
    }
    return fill(resources.text("dataset_cards/dataset_card.md"), values)


HEADLINE = "te3_noisy_gaps"  # the task named first, where several are named


def _example(manifests) -> str:
    noisy = (n for n in manifests if n.endswith("_noisy_gaps"))
    return HEADLINE if HEADLINE in manifests else next(noisy, next(iter(manifests)))


def _sections(manifests, source) -> list[str]:
    """What there is to say about each family of tasks that the folder holds: configs, columns, law, scoring, citation."""
    out = []
    for family, template, table in (
        ("grammar", "dataset_cards/grammar.md", configs_table),
        ("recall", "dataset_cards/recall.md", recall_table),
    ):
        own = {name: m for name, m in manifests.items() if family_of(m) == family}
        if own:
            values = {"configs": table(own), "changes": _changes(own), "columns": columns_table(own)}
            values |= {"noise_recipe": _noise_recipe(own), "ceilings": ceilings_table(own)}
            values |= {"horizon": _horizon(own)} | _example_values(own, source)
            out.append(fill(resources.text(template).rstrip("\n"), values))
    return out


def _horizon(manifests) -> str:
    """The law of the horizon family, where a config is of it."""
    any_there = any(m["card"].get("level", "").startswith("horizon_") for m in manifests.values())
    return "\n\n" + resources.text("dataset_cards/horizon.md").rstrip("\n") if any_there else ""


def _example_values(manifests, source) -> dict[str, str]:
    """What the runnable examples of a family's section say of its example config."""
    name = _example(manifests)
    manifest = manifests[name]
    return {
        "load": source.load(name),
        "task": source.task(name),
        "import": "" if source.tag is None else "\nfrom huggingface_hub import hf_hub_download",
        "fingerprint": manifest["fingerprint"],
        "symbols": str(manifest["card"]["symbols"]),
        "states": str(manifest["card"].get("states")),
        "seen": str(min(1_000, manifest["splits"]["train"]["num_sequences"])),
    }


def fill(template: str, values: dict[str, str]) -> str:
    """The template with each `{{ name }}` replaced; KeyError for a name without a value."""
    return re.sub(r"\{\{ (\w+) \}\}", lambda match: values[match[1]], template)


def in_order(manifests: dict[str, dict]) -> dict[str, dict]:
    """The configs in the catalogue's order, seeds of a task behind it, other names last."""
    from .tasks import task_names

    names = task_names()
    place = {name: i for i, name in enumerate(names)}

    def key(name):
        base = max((n for n in names if name == n or name.startswith(n + "_")), key=len, default=None)
        return (place.get(base, len(names)), name)

    return {name: manifests[name] for name in sorted(manifests, key=key)}


def front_matter(manifests: dict[str, dict]) -> str:
    """The card's YAML, without the lines of dashes: what `load_dataset` and the Hub read."""
    import yaml

    if not manifests:
        return yaml.safe_dump(
            {"configs": [{"config_name": UNFINISHED, "data_files": f"{UNFINISHED}.parquet"}]}, sort_keys=False
        )
    rows = sum(s["num_sequences"] for m in manifests.values() for s in m["splits"].values())
    data = {
        "pretty_name": "SelectivBench",
        "license": "apache-2.0",
        "annotations_creators": ["machine-generated"],
        "source_datasets": ["original"],
        "task_categories": ["token-classification"],
        "tags": [
            "synthetic",
            "benchmark",
            "state-tracking",
            "selectivity",
            "linear-recurrent-models",
            "state-space-models",
            "long-range",
            *(["associative-recall"] if any(family_of(m) == "recall" for m in manifests.values()) else []),
        ],
        "size_categories": [next((label for limit, label in SIZES if rows < limit), "10M<n<100M")],
        "configs": [_config_entry(name, m) for name, m in manifests.items()],
        "dataset_info": [_info_entry(name, m) for name, m in manifests.items()],
    }
    return yaml.safe_dump(data, sort_keys=False, allow_unicode=True, width=200)


# The Hub's words for the number of rows of all configs together.
SIZES = [
    (1_000, "n<1K"),
    (10_000, "1K<n<10K"),
    (100_000, "10K<n<100K"),
    (1_000_000, "100K<n<1M"),
    (10_000_000, "1M<n<10M"),
]


def _config_entry(name, manifest) -> dict:
    files = [{"split": split, "path": f"{name}/{split}-*.parquet"} for split in manifest["splits"]]
    return {"config_name": name, "data_files": files} | ({"default": True} if name == DEFAULT else {})


def _info_entry(name, manifest) -> dict:
    """Number of rows of each split: `load_dataset` refuses a folder in which a file is missing or cut."""
    splits, kinds = manifest["splits"], manifest["card"]["column_types"]
    features = [{"name": c, "dtype": t} if c == "example_id" else {"name": c, "list": t} for c, t in kinds.items()]
    return {
        "config_name": name,
        "features": features,
        "splits": [
            {"name": s, "num_bytes": m["num_bytes"], "num_examples": m["num_sequences"]} for s, m in splits.items()
        ],
        "download_size": sum(f["bytes"] for m in splits.values() for f in m["files"]),
        "dataset_size": sum(m["num_bytes"] for m in splits.values()),
    }


def _changes(manifests) -> str:
    lines = []
    for name, m in manifests.items():
        if m["card"]["changed"]:
            lines.append(
                f"- `{name}` differs from the catalogue: "
                + ", ".join(f"`{k}={v}`" for k, v in m["card"]["changed"].items())
                + "."
            )
    return "\n" + "\n".join(lines) + "\n" if lines else ""


def _noise_recipe(manifests) -> str:
    """The NumPy code that draws the noise, with what keys it for each config that has any; '' if none has."""
    noisy = {name: m["card"] for name, m in manifests.items() if m["card"]["noise"] != "none"}
    if not noisy:
        return "No config here has noise: features are the one-hot symbols alone."
    rows = [
        f'    "{name}": ("{c["grammar_hash"]}", {c["sample_seed"]}, {c["symbols"]}, "{c["noise"]}", {c["noise_scale"]}),'
        for name, c in noisy.items()
    ]
    table = "\n".join(["{", *rows, "}"])
    code = fill(resources.text("dataset_cards/noise.py"), {"noise_configs": table}).rstrip("\n")
    return f"{NOISE_INTRODUCTION}\n\n```python\n{code}\n```"
