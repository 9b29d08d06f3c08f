"""The tables of the horizon family in docs/ceilings.md: the ladders, and which models track a parity beyond the length that they were trained on.

    selectivbench ceiling horizon_2 horizon_4 horizon_8 horizon_16 horizon_32 --json --plot docs/ceilings/horizon.png > docs/ceilings/horizon.json
    selectivbench ceiling horizon_parity horizon_s3 horizon_inf --num_test 200 --json > docs/ceilings/horizon_groups.json

    python benchmarks/horizon.py --output docs/ceilings                    # every model, one after another
    python benchmarks/horizon.py --output docs/ceilings --models gru
    python benchmarks/horizon.py --output docs/ceilings --models none      # the tables of what is there

The first two commands make the ladders and their figure. Each model is one training by recipes/horizon_parity.yaml with the changes below. A line of
horizon_parity.jsonl is kept, and its training not made again, while the recipe and the data are the same.
"""

import argparse
import json
import tempfile
from pathlib import Path

RECIPE = Path(__file__).parent.parent / "recipes/horizon_parity.yaml"
MODELS = {
    "gated_delta_net, eigenvalues from -1": {},
    "gated_delta_net, eigenvalues from 0": {"mixer_kwargs": {"allow_neg_eigval": False}},
    "gru": {"mixer": "gru", "mixer_kwargs": {}},
    "transformer": {"mixer": "transformer", "mixer_kwargs": {}},
}
NAMES = {name.replace(", eigenvalues from ", "_from_"): name for name in MODELS}
LENGTHS = (32, 64, 128, 256)  # items of a test sequence; 32 in training
SEQUENCES = 200  # of each length
FILE = "horizon_parity.jsonl"
LADDERS = ("horizon.json", "horizon_groups.json")
RUNGS = (1, 2, 4, 8, 16, 32, 64)


def arguments(name: str) -> dict:
    """The training arguments of a model: the recipe with its changes."""
    from selectivbench_hf.arguments import load_yaml, merge

    return merge((str(RECIPE), load_yaml(RECIPE)), (name, MODELS[name]))


def measure(name: str) -> dict:
    """Train one model and return its line of the file."""
    import selectivbench_hf as sb
    from selectivbench_hf.evaluation import evaluate

    with tempfile.TemporaryDirectory() as folder:
        fields = arguments(name)
        result = sb.train(fields.pop("task"), fields.pop("mixer"), output_dir=f"{folder}/run", **fields)
    scores = {}
    for items in LENGTHS:
        score = evaluate(
            result.model, sb.get_task("horizon_parity", num_items=items), ["test"], max_sequences=SEQUENCES
        )["test"]
        scores[items] = {key: score[key] for key in ("correct", "total")}
    record = result.record
    return {
        "name": name,
        "arguments": arguments(name),
        "fingerprint": record["task"]["fingerprint"],
        "parameters": record["model"]["parameters"],
        "history": [[e["step"], round(e["accuracy"], 4)] for e in record["evaluation"]["validation_history"]],
        "test": scores,
        "seconds": round(record["training"]["seconds"]),
        "device": record["hardware"]["device"],
        "torch": record["versions"]["torch"],
    }


def read(path: Path) -> dict[str, dict]:
    """Name -> line, the last where there are several, of models and recipes as they are now."""
    from selectivbench_hf import get_task

    lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    rows = {row["name"]: row for row in lines}
    return {
        name: rows[name]
        for name in MODELS
        if name in rows
        and rows[name]["arguments"] == arguments(name)
        and rows[name]["fingerprint"]
        == get_task("horizon_parity", num_items=arguments(name)["task_kwargs"]["num_items"]).fingerprint
    }


def measured(folder: Path) -> list[dict]:
    """What `selectivbench ceiling` wrote, of all members that are there."""
    return [row for name in LADDERS if (folder / name).exists() for row in json.loads((folder / name).read_text())]


def ladders(rows: list[dict]) -> str:
    """The Markdown table of the ladders: accuracy in % of an observer of the last k items. A ladder ends where it has reached its limit."""
    import numpy as np

    from selectivbench_hf import get_task, horizon
    from selectivbench_hf.layout import load_split

    lines = [
        "| name | memory | resets of 64 | states in use | " + " | ".join(f"k = {k}" for k in RUNGS) + " | k95 |",
        "|---|---|---:|---:|" + "---:|" * (len(RUNGS) + 1),
    ]
    for row in rows:
        member = horizon.MEMBERS[row["name"]]
        share = np.bincount(load_split(get_task(row["name"]), "test").states.ravel())[1:]
        share = share[share > 0] / share.sum()
        used = np.exp(-(share * np.log(share)).sum())
        accuracy = {rung["k"]: rung["accuracy"] for rung in row["ladder"]}
        cells = [f"{100 * accuracy.get(k, row['ladder_limit']):.1f}" for k in RUNGS]
        lines.append(
            f"| `{row['name']}` | {member.group} ({len(horizon.elements(member.group))}) | {member.resets} | {used:.0f} | "
            + " | ".join(cells)
            + f" | {row['k95'] or 'none'} |"
        )
    return "\n".join(lines)


def table(rows: dict[str, dict]) -> str:
    """The Markdown table of the trainings: % of items right."""
    lines = [
        "| model | parameters | " + " | ".join(f"{n} items" for n in LENGTHS) + " |",
        "|---|---:|" + "---:|" * len(LENGTHS),
    ]
    for name, row in rows.items():
        shares = [100 * row["test"][str(n)]["correct"] / row["test"][str(n)]["total"] for n in LENGTHS]
        lines.append(f"| {name} | {row['parameters']:,} | " + " | ".join(f"{share:.1f}" for share in shares) + " |")
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path("horizon"))
    parser.add_argument("--models", nargs="+", default=list(NAMES), choices=[*NAMES, "none"])
    parser.add_argument("--json", action="store_true", help="print the trainings as JSON")
    args = parser.parse_args()
    args.output.mkdir(parents=True, exist_ok=True)
    path = args.output / FILE
    for name in (NAMES[n] for n in args.models if n != "none"):
        if name not in read(path):
            row = measure(name)
            with open(path, "a", encoding="utf-8") as file:
                file.write(json.dumps(row, allow_nan=False) + "\n")
    rows = read(path)
    if args.json:
        return print(json.dumps(list(rows.values()), indent=1))
    if found := measured(args.output):
        print(ladders(found) + "\n")
    print(table(rows))


if __name__ == "__main__":
    main()
