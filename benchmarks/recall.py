"""Which models solve `mqar_lite` under one budget: the table and figure of docs/recall.md.

    python benchmarks/recall.py --output docs/recall                     # every model, one after another
    python benchmarks/recall.py --output docs/recall --models attention_1 attention_1_conv
    python benchmarks/recall.py --output docs/recall --models none       # table and figure of what is there

Each model is one training by recipes/mqar_lite.yaml with the changes below. A line of results.jsonl is kept, and its training not made again,
while the recipe and the data are the same.
"""

import argparse
import json
import tempfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
RECIPE = ROOT / "recipes/mqar_lite.yaml"
CONVOLUTION = {"mixer_kwargs": {"use_short_conv": True}}
MODELS = {
    "attention_2": {},
    "attention_2_tied": {"tie_word_embeddings": True},
    "attention_1": {"num_hidden_layers": 1},
    "attention_1_conv": {"num_hidden_layers": 1, **CONVOLUTION},
    "gated_delta_net_2": {"mixer": "gated_delta_net"},
    "gla_2": {"mixer": "gla"},
    "gla_2_conv": {"mixer": "gla", **CONVOLUTION},
    "mamba2_2": {"mixer": "mamba2"},
}
FILE = "results.jsonl"


def arguments(name: str) -> dict:
    """The training arguments of a model: the recipe with its changes."""
    from selectivbench_hf.arguments import load_yaml, merge

    return merge((str(RECIPE), load_yaml(RECIPE)), (name, MODELS[name]))


def measure(name: str) -> dict:
    """Train one model and return its line of results.jsonl."""
    import selectivbench_hf as sb

    with tempfile.TemporaryDirectory() as folder:
        fields = arguments(name)
        record = sb.train(fields.pop("task"), fields.pop("mixer"), output_dir=f"{folder}/run", **fields).record
    return {
        "name": name,
        "arguments": arguments(name),
        "fingerprint": record["task"]["fingerprint"],
        "parameters": record["model"]["parameters"],
        "state_size": record["model"]["state_size"],
        "history": [[e["step"], round(e["accuracy"], 4)] for e in record["evaluation"]["validation_history"]],
        "test": {key: record["scores"]["test"][key] for key in ("correct", "total", "loss")},
        "seconds": round(record["training"]["seconds"]),
        "device": record["hardware"]["device"],
        "torch": record["versions"]["torch"],
    }


def read(path: Path) -> dict[str, dict]:
    """Name -> line, the last where there are several, of models and recipes as they are now."""
    from selectivbench_hf import get_task

    lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    rows = {row["name"]: row for row in lines}
    fingerprint = get_task("mqar_lite").fingerprint
    return {
        name: rows[name]
        for name in MODELS
        if name in rows and rows[name]["arguments"] == arguments(name) and rows[name]["fingerprint"] == fingerprint
    }


def table(rows: dict[str, dict]) -> str:
    """The Markdown table of docs/recall.md."""
    from selectivbench_hf.recall import SOLVED

    lines = [
        "| model | layers | parameters | test, % of questions | 95 % on validation by step |",
        "|---|---:|---:|---:|---:|",
    ]
    for row in rows.values():
        given = row["arguments"]
        conv = " with short convolution" if given.get("mixer_kwargs", {}).get("use_short_conv") else ""
        conv += ", tied head" if given["tie_word_embeddings"] else ""
        solved = next((str(step) for step, accuracy in row["history"] if accuracy >= SOLVED), "not reached")
        share = 100 * row["test"]["correct"] / row["test"]["total"]
        lines.append(
            f"| {given['mixer']}{conv} | {given['num_hidden_layers']} | {row['parameters']:,} | {share:.1f} | {solved} |"
        )
    return "\n".join(lines)


def draw(rows: dict[str, dict], path: Path) -> None:
    """Validation accuracy against the step of training."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7.5, 4.2))
    for (name, row), marker in zip(rows.items(), "osv^DPX", strict=False):
        axes.plot(*zip((0, 0), *row["history"], strict=True), marker=marker, markersize=4, label=name)
    axes.axhline(0.95, color="grey", linestyle=":", linewidth=1)
    axes.axhline(0.25, color="grey", linestyle=":", linewidth=1)
    axes.text(0, 0.96, "solved", fontsize=8, color="grey")
    axes.text(0, 0.26, "any value of the sequence", fontsize=8, color="grey")
    axes.set(
        xlabel="optimiser step", ylabel="questions right (validation)", ylim=(0, 1.03), title="mqar_lite, one budget"
    )
    axes.legend(fontsize=8, frameon=False, loc="upper left", bbox_to_anchor=(1, 1))
    figure.savefig(path, dpi=150, bbox_inches="tight")
    plt.close(figure)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path("recall"))
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=[*MODELS, "none"])
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    args.output.mkdir(parents=True, exist_ok=True)
    path = args.output / FILE
    for name in args.models:
        if name != "none" and name not in read(path):
            row = measure(name)
            with open(path, "a", encoding="utf-8") as file:
                file.write(json.dumps(row, allow_nan=False) + "\n")
    rows = read(path)
    draw(rows, args.output / "figure.png")
    print(json.dumps(list(rows.values()), indent=1) if args.json else table(rows))


if __name__ == "__main__":
    main()
