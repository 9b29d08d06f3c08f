"""What it costs a model that symbols are not one-hot: the table of docs/symbols.md.

    python benchmarks/symbols.py --output docs/symbols                    # every form, one after another
    python benchmarks/symbols.py --output docs/symbols --forms digits
    python benchmarks/symbols.py --output docs/symbols --forms none       # the table of what is there

Each form is one training by recipes/digits.yaml with its own `symbols`. A line of results.jsonl is kept, and its training not made again,
while the recipe and the task are the same.
"""

import argparse
import json
import tempfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
RECIPE = ROOT / "recipes/digits.yaml"
FORMS = {
    "one_hot": "one_hot",
    "digits": "digits",
}
FILE = "results.jsonl"


def arguments(form: str) -> dict:
    """The training arguments of a form: the recipe with its symbols."""
    from selectivbench_hf.arguments import load_yaml, merge

    return merge((str(RECIPE), load_yaml(RECIPE)), (form, {"symbols": FORMS[form]}))


def task_of(form: str):
    """The task of a form."""
    from selectivbench_hf import get_task

    given = arguments(form)
    return get_task(given["task"], **given["task_kwargs"])


def measure(form: str) -> dict:
    """Train on one form and return its line of results.jsonl."""
    import selectivbench_hf as sb

    with tempfile.TemporaryDirectory() as folder:
        fields = arguments(form)
        record = sb.train(fields.pop("task"), fields.pop("mixer"), output_dir=f"{folder}/run", **fields).record
    return {
        "name": form,
        "arguments": arguments(form),
        "fingerprint": record["task"]["fingerprint"],
        "channels": record["model"]["config"]["num_channels"] or record["model"]["config"]["num_symbols"],
        "test": {key: record["scores"]["test"][key] for key in ("correct", "total", "interval", "loss")},
        "seconds": round(record["training"]["seconds"]),
        "device": record["hardware"]["device"],
        "torch": record["versions"]["torch"],
    }


def read(path: Path) -> dict[str, dict]:
    """Form -> line, the last where there are several, of the recipe and the tasks as they are now."""
    rows = {row["name"]: row for row in map(json.loads, path.read_text().splitlines())} if path.exists() else {}
    current = lambda form: (
        rows[form]["arguments"] == arguments(form) and rows[form]["fingerprint"] == task_of(form).fingerprint
    )
    return {form: rows[form] for form in FORMS if form in rows and current(form)}


def table(rows: dict[str, dict]) -> str:
    """The Markdown table of docs/symbols.md."""
    lines = ["| symbols | channels | test, % of items | 95 % |", "|---|---:|---:|---|"]
    for row in rows.values():
        share, interval = row["test"]["correct"] / row["test"]["total"], row["test"]["interval"]
        shown = f"`{json.dumps(FORMS[row['name']])}`"
        lines.append(
            f"| {shown} | {row['channels']} | {share:.1%} | {interval[0]:.1%} to {interval[1]:.1%} |".replace("%", "")
        )
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path("symbols"))
    parser.add_argument("--forms", nargs="+", default=list(FORMS), choices=[*FORMS, "none"])
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    given.output.mkdir(parents=True, exist_ok=True)
    for form in given.forms:
        if form != "none" and form not in read(given.output / FILE):
            line = measure(form)
            with open(given.output / FILE, "a") as file:
                file.write(json.dumps(line) + "\n")
    rows = read(given.output / FILE)
    print(json.dumps(list(rows.values()), indent=1) if given.json else table(rows))


if __name__ == "__main__":
    main()
