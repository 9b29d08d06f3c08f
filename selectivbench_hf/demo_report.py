"""The demo's report: a table for the terminal, report.md, and the figure of accuracy against gap length."""

from __future__ import annotations

from pathlib import Path

COLOURS = {
    "gpt": "#7f7f7f",
    "transformer": "#1f2430",
    "gla": "#0072b2",
    "gated_delta_net": "#d55e00",
    "mamba2": "#009e73",
}
OTHERS = ("#cc79a7", "#e69f00", "#56b4e9", "#8a6d3b", "#6f5bb5")
LABELS = {
    "gpt": "GPT-2",
    "transformer": "Transformer",
    "gla": "GLA",
    "gated_delta_net": "Gated DeltaNet",
    "mamba2": "Mamba-2",
}


def write(recipe: dict, rows: list[dict], output: Path) -> str:
    """Write output/report.md and output/figure.png; returns the table as text for the terminal."""
    from .checkpointing import write_text
    from .tasks import get_task

    task = get_task(recipe["task"])
    gaps = {split: next(iter(task.gap_law(split))) for split in recipe["sequences"]}
    memoryless = letter_alone(task)
    scored = [row for row in rows if row["status"] == "finished"]
    if scored:
        figure(scored, gaps, memoryless, task, recipe, output / "figure.png")
    write_text(output / "report.md", report(recipe, rows, gaps, memoryless, task))
    return table(rows, gaps, recipe)


def letter_alone(task) -> float:
    """Accuracy on `test` of naming, for each symbol, its most frequent state in training: what a model without memory can reach."""
    from .ceilings import baselines_of

    return baselines_of(task)["1-gram"]


def _columns(gaps, recipe):
    by_length = sorted(gaps, key=gaps.get)
    return [(split, f"gap {gaps[split]}") for split in by_length] + [
        (f"{recipe['transfer']}/test", recipe["transfer"])
    ]


def _value(row, split, key="accuracy"):
    value = row["scores"][split][key]
    return "-" if value is None else f"{100 * value:.1f}"


def table(rows, gaps, recipe) -> str:
    """Accuracy in % for the terminal."""
    columns = _columns(gaps, recipe)
    lines = [f"{'accuracy, %':<17}" + "".join(f"{head:>9}" for _, head in columns) + f"{'seconds':>9}"]
    for row in rows:
        if row["status"] != "finished":
            lines.append(f"{row['name']:<17}  failed: {row['reason']}")
            continue
        lines.append(
            f"{row['name']:<17}"
            + "".join(f"{_value(row, s):>9}" for s, _ in columns)
            + f"{row['training_seconds']:>9.0f}"
        )
    return "\n".join(lines)


def _markdown(head, lines):
    rule = "|---|" + "---:|" * (len(head) - 1)
    return "\n".join(
        ["| " + " | ".join(head) + " |", rule, *("| " + " | ".join(map(str, line)) + " |" for line in lines)]
    )


def _worth(recipe, scored, columns, task) -> list[str]:
    """The section that holds scores against the best there is: share of the exact filter's, and the items a model acts like remembering."""
    from .ceilings import filter_scores, ladder_of
    from .errors import InputError
    from .tasks import get_task

    of = lambda split: get_task(recipe["transfer"]) if "/" in split else task
    try:
        best = filter_scores(task)["accuracy"]
        ladders = {split: ladder_of(of(split)) for split, _ in columns}
    except InputError as error:
        return ["## What the scores mean", "", f"No exact ceiling: {error}.", ""]
    test = ladders["test"] if "test" in ladders else ladder_of(task)
    rows = []
    for row in scored:
        share = lambda split: row["scores"][split]["accuracy"]  # noqa: B023 - used in this turn only
        known = [ladders[split].describe_context(share(split)) for split, _ in columns]
        rows.append([row["name"], f"{100 * share('test') / best:.1f} %" if "test" in row["scores"] else "-", *known])
    enough = f"with {test.k95} it reaches 95 %" if test.k95 else "no number of them reaches 95 %"
    rungs = ", ".join(f"{100 * a:.1f} % for {k}" for k, a in enumerate(test.accuracy[:4], 1))
    return [
        "## What the scores mean", "",
        _markdown(["mixer", "share of the ceiling at `test`", *(head for _, head in columns)], rows), "",
        f"The exact filter, which knows the grammar and all that was shown, reaches {100 * best:.1f} %. The best observer of the last k items alone reaches "
        f"{rungs}; {enough}. The columns give the number of items that an observer of the last items would need for the mixer's score: the mixer acts as if "
        "it remembered so many (`selectivbench ceiling`).", "",
    ]  # fmt: skip


def report(recipe, rows, gaps, memoryless, task) -> str:
    """The text of report.md."""
    scored = [row for row in rows if row["status"] == "finished"]
    failed = [f"- {row['name']} failed: {row['reason']}" for row in rows if row["status"] != "finished"]
    columns, training = _columns(gaps, recipe), recipe["training"]

    def scores(key):
        return _markdown(
            ["mixer", *(head for _, head in columns)],
            [[r["name"], *(_value(r, s, key) for s, _ in columns)] for r in scored],
        )

    state = lambda row: (
        f"{row['state_size']:,}" if isinstance(row["state_size"], int) else row["state_size"] or "grows"
    )
    budget = [
        [
            r["name"],
            f"{r['parameters']:,}",
            state(r),
            r["kernel_backend"],
            f"{r['training_loss']:.3f}",
            f"{r['training_seconds']:.0f}",
        ]
        for r in scored
    ]
    device = scored[0]["device"] if scored else "none"
    versions = ", ".join(f"{k} {v}" for k, v in scored[0]["versions"].items() if v) if scored else ""
    sizes = ", ".join(f"{recipe['sequences'][s]} at {head}" for s, head in columns[:-1])
    return "\n".join([
        "# The demo's report", "",
        f"Task: {task.describe()}. One training for each mixer under the same budget: {training.get('max_steps')} steps of "
        f"{training.get('per_device_train_batch_size', 64)} sequences, {training.get('num_hidden_layers')} layers of width "
        f"{training.get('hidden_size')}, one seed. Trained with gaps of 1 to 10 blank steps; the gaps of a test split are all of one length.", "",
        "![accuracy against gap length](figure.png)", "",
        "## Accuracy, % of items (softmax summed over the item's steps)", "", scores("accuracy"), "",
        f"Last column: transfer to `{recipe['transfer']}`, the same grammar with neither noise nor long gaps, without further training. "
        f"Naming each letter's most frequent state, without any memory, gives {100 * memoryless:.1f} %; guessing gives {100 / task.num_states:.1f} %. "
        f"Test sequences scored: {sizes}, {recipe['transfer_sequences']} of `{recipe['transfer']}`.", "",
        *_worth(recipe, scored, columns, task),
        "## Accuracy at each item's first step alone, %", "", scores("accuracy_first"), "",
        "## Accuracy at each item's last step alone, %: pure holding", "", scores("accuracy_last"), "",
        "## Budget", "", _markdown(["mixer", "parameters", "state, elements", "kernels", "training loss", "seconds"], budget), "",
        *([*failed, ""] if failed else []),
        "A sketch, not a result: one seed, a laptop's budget, models far from converged. GPT-2's learned positions beyond the longest training sequence "
        "are never trained, which is part of its score at long gaps.", "",
        f"Device: {device}. Versions: {versions}. Data fingerprint: `{task.fingerprint[:16]}`. Records: `results.jsonl`, and `runs/MIXER/results.jsonl`.",
        "",
    ])  # fmt: skip


LINES_APART = 8  # more lines than that cannot be told apart by colour


def figure(rows, gaps, memoryless, task, recipe, file: Path):
    """Accuracy against gap length, summed over an item's steps and at its last step alone; for many mixers a line of dots each."""
    from .plots import FAINT, INK, require_matplotlib

    plt = require_matplotlib()
    if len(rows) > LINES_APART:
        return _dots(plt, rows, gaps, memoryless, task, recipe, file)
    splits = sorted(gaps, key=gaps.get)
    x = [gaps[s] for s in splits]
    fig, panels = plt.subplots(1, 2, figsize=(11.5, 5.2), sharey=True)
    titles = {"accuracy": "All steps of an item, summed", "accuracy_last": "Its last step alone: pure holding"}
    law = task.gap_law("train")
    for axes, (key, title) in zip(panels, titles.items()):
        axes.axvspan(max(min(law), 0.8) * 0.9, max(law) * 1.1, color="#eef1f5", zorder=0)
        axes.text(
            min(law) * 1.0,
            0.02,
            "gaps seen in training",
            fontsize=8.5,
            color=FAINT,
            va="bottom",
            transform=axes.get_xaxis_transform(),
        )
        axes.axhline(100 * memoryless, color=FAINT, lw=1, ls="--", zorder=1)
        axes.text(x[-1] * 1.12, 100 * memoryless, "letter alone,\nno memory", fontsize=8, color=FAINT, va="center")
        for i, row in enumerate(rows):
            colour = COLOURS.get(row["name"], OTHERS[i % len(OTHERS)])
            y = [100 * row["scores"][s][key] for s in splits]
            axes.plot(x, y, marker="o", ms=5, lw=2, color=colour, label=LABELS.get(row["name"], row["name"]), zorder=3)
        axes.set_xscale("log")
        axes.set_xticks(x, [str(g) for g in x])
        axes.minorticks_off()
        axes.set_xlim(0.85, x[-1] * 1.15)
        axes.set_xlabel("blank steps after each item (test)", color=INK)
        axes.set_title(title, loc="left", fontsize=11, color=INK)
        axes.grid(axis="y", color="#e3e7ee", lw=0.8)
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
    panels[0].set_ylabel("items named correctly, %", color=INK)
    panels[0].set_ylim(0, max(10, axes.get_ylim()[1]))
    steps = recipe["training"].get("max_steps")
    title = f"{task.name}: {len(rows)} models after {steps} training steps each"
    fig.text(0.065, 0.955, title, ha="left", va="center", fontsize=13, color=INK)
    handles = panels[0].get_legend_handles_labels()
    fig.legend(
        *handles,
        loc="center left",
        ncol=len(rows),
        frameon=False,
        fontsize=10,
        bbox_to_anchor=(0.058, 0.9),
        borderpad=0,
        handlelength=1.6,
    )
    fig.subplots_adjust(left=0.065, right=0.93, top=0.8, bottom=0.11, wspace=0.2)
    fig.savefig(file, dpi=150)
    plt.close(fig)


def _dots(plt, rows, gaps, memoryless, task, recipe, file: Path):
    """One line a mixer, best at the top, with a dot for each gap length."""
    from .plots import FAINT, INK

    splits = sorted(gaps, key=gaps.get)
    rows = sorted(rows, key=lambda row: row["scores"]["test"]["accuracy"])
    fig, axes = plt.subplots(figsize=(8.5, 1.6 + 0.27 * len(rows)))
    axes.axvline(100 * memoryless, color=FAINT, lw=1, ls="--", zorder=1)
    axes.text(100 * memoryless + 0.6, len(rows) - 0.3, "letter alone, no memory", fontsize=8, color=FAINT, va="bottom")
    shades = plt.get_cmap("viridis")
    for i, split in enumerate(splits):
        x = [100 * row["scores"][split]["accuracy"] for row in rows]
        colour = shades(0.9 * i / max(1, len(splits) - 1))
        axes.scatter(x, range(len(rows)), s=34, color=colour, label=f"gap {gaps[split]}", zorder=3)
    axes.set_yticks(range(len(rows)), [row["name"] for row in rows], fontsize=9, color=INK)
    axes.set_ylim(-0.6, len(rows) + 0.3)
    axes.set_xlabel("items named correctly, %", color=INK)
    axes.grid(color="#e3e7ee", lw=0.8)
    axes.legend(frameon=False, fontsize=9, loc="lower right")
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    steps = recipe["training"].get("max_steps")
    axes.set_title(
        f"{task.name}: {len(rows)} models after {steps} training steps each", loc="left", fontsize=12, color=INK
    )
    fig.tight_layout()
    fig.savefig(file, dpi=130)
    plt.close(fig)
