"""What `selectivbench evaluate --detail` writes: the finer scores as strict JSON, and a figure (with the extra `plot`)."""

from __future__ import annotations

import os
from pathlib import Path

from .checkpointing import strict_json, write_text
from .detail import DISTRACTED, INTERVALS
from .errors import InputError
from .results import finite

HEIGHT = 3.4  # inches of a panel
AXES = {
    "item_index": "item of the sequence (0-based)",
    "since_end": "items since the last #",
    "gap": "blank steps after the item",
    "question_index": "question of the sequence (0-based)",
    "distance": "steps from what is asked for to the question",
}


def write(folder, stem: str, task, model: str, objective: str, scores: dict) -> list[str]:
    """Write folder/stem.json and folder/stem.png.

    Args:
        folder: an existing folder. stem: name of both files without ending.
        model: what was scored, for the title. objective: "classification" or "prediction".
        scores: split -> what `evaluation.evaluate(..., detail=True)` gives.

    Returns:
        Sentences: what was written where, or why there is no figure.
    """
    folder = Path(folder)
    file = folder / f"{stem}.json"
    content = {
        "task": task.name,
        "fingerprint": task.fingerprint,
        "model": model,
        "objective": objective,
        "intervals": INTERVALS,
        "splits": scores,
    }
    write_text(file, strict_json(finite(content)) + "\n")
    from .plots import require_matplotlib

    try:
        plt = require_matplotlib()
    except InputError as error:
        return [f"finer scores: {file}", f"no figure: {error}"]
    picture = folder / f"{stem}.png"
    _draw(plt, picture, f"{model} on {task.name}", scores)
    return [f"finer scores: {file}; figure: {picture}"]


def _draw(plt, picture, title, scores):
    from .plots import INK, LETTER_COLOURS, PAPER

    scores = {split: s for split, s in scores.items() if s["total"]}
    axes_of = next(iter(scores.values()), {"detail": {}})["detail"]
    recall = "question_index" in axes_of
    names = [n for n in AXES if n in axes_of and n != "gap"]
    figure, panels = plt.subplots(
        1 if recall else 2, 2, figsize=(11, HEIGHT if recall else 2 * HEIGHT), facecolor=PAPER, layout="constrained"
    )
    panels, colours = panels.ravel(), dict(zip(scores, LETTER_COLOURS * len(scores), strict=False))
    for panel, name in zip(panels, names, strict=False):
        for split, s in scores.items():
            _curve(panel, s["detail"][name], split, colours[split])
        panel.set_xlabel(AXES[name])
        panel.set_ylabel(_quantity(scores, name))
    if not recall:
        _steps(panels[2], scores, colours)
        (_distractors if "distractor" in axes_of else _gaps)(panels[3], scores, colours)
    if any("cross_entropy" in s for s in scores.values()):  # prediction: what accuracy means there
        for panel in panels:
            if panel.get_ylabel() == "accuracy":
                panel.set_ylabel("accuracy of the likeliest symbol")
    for panel in panels:
        panel.spines[["top", "right"]].set_visible(False)
        panel.set_ylim(0, 1.06 * panel.get_ylim()[1])
    if scores:
        panels[0].legend(fontsize=8, frameon=False)
    figure.suptitle(title, color=INK, fontsize=12)
    figure.text(0.01, -0.02, f"Bands and bars: {INTERVALS}.", fontsize=8, color=INK, va="top")
    temporary = picture.with_name(f".{picture.stem}-{os.getpid()}.png")  # whole or not at all
    try:
        figure.savefig(temporary, dpi=130, bbox_inches="tight")
        os.replace(temporary, picture)
    finally:
        temporary.unlink(missing_ok=True)
        plt.close(figure)


def _quantity(scores, name):
    return "KL, nats per item" if any("kl" in s["detail"][name] for s in scores.values()) else "accuracy"


def _curve(panel, axis, split, colour):
    """KL where it is known, else accuracy with its band; a place that few sequences reach has no band."""
    import numpy as np

    value = axis["value"]
    if "kl" in axis:
        panel.plot(value, np.array(axis["kl"], dtype=float), color=colour, lw=1.3, label=split)
        return
    low, high = (np.array(axis[end], dtype=float) for end in ("low", "high"))
    panel.plot(value, np.divide(axis["correct"], axis["items"]), color=colour, lw=1.3, label=split)
    panel.fill_between(value, low, high, color=colour, alpha=0.2, lw=0)


def _steps(panel, scores, colours):
    """The sum over an item's steps with its interval, and the first and the last step alone."""
    for x, (split, s) in enumerate(scores.items()):
        _bar(panel, x, s["accuracy"], s["interval"], colours[split], "sum over the item's steps" if not x else None)
        for shift, marker, key in ((-0.2, "<", "first"), (0.2, ">", "last")):
            style = {"marker": marker, "s": 26, "facecolors": "none", "edgecolors": colours[split]}
            panel.scatter(x + shift, s[f"accuracy_{key}"], label=f"its {key} step alone" if not x else None, **style)
    _splits(panel, scores)
    panel.legend(fontsize=8, frameon=False)


def _distractors(panel, scores, colours):
    """Items that a distractor touches, and the others."""
    for x, (split, s) in enumerate(scores.items()):
        axis = s["detail"]["distractor"]
        for i, touched in enumerate(axis["value"]):
            ends = None if axis["low"][i] is None else (axis["low"][i], axis["high"][i])
            label = (DISTRACTED if touched else "the other items") if not x else None
            marker, shift = ("o", -0.12) if touched else ("s", 0.12)
            _bar(panel, x + shift, axis["correct"][i] / axis["items"][i], ends, colours[split], label, marker)
    _splits(panel, scores)
    panel.legend(fontsize=8, frameon=False)


def _gaps(panel, scores, colours):
    """Accuracy by the blank steps after the item; a split with a constant gap is one point."""
    for split, s in scores.items():
        axis = s["detail"]["gap"]
        for i, gap in enumerate(axis["value"]):
            ends = None if axis["low"][i] is None else (axis["low"][i], axis["high"][i])
            _bar(panel, gap, axis["correct"][i] / axis["items"][i], ends, colours[split], None)
    panel.set_xscale("symlog", linthresh=10)
    gaps = sorted({g for s in scores.values() for g in s["detail"]["gap"]["value"]})
    panel.set_xticks([g for g in gaps if g <= 1 or g % 5 == 0], labels=[str(g) for g in gaps if g <= 1 or g % 5 == 0])
    panel.minorticks_off()
    panel.set_xlabel(AXES["gap"])
    panel.set_ylabel("accuracy")


def _bar(panel, x, accuracy, ends, colour, label, marker="o"):
    spread = None if ends is None else [[max(accuracy - ends[0], 0)], [max(ends[1] - accuracy, 0)]]
    panel.errorbar(x, accuracy, spread, fmt=marker, color=colour, ms=4, capsize=2, lw=1, label=label)


def _splits(panel, scores):
    panel.set_xticks(range(len(scores)), labels=list(scores), rotation=20 if len(scores) > 3 else 0, fontsize=8)
    panel.set_xlim(-0.6, len(scores) - 0.4)
    panel.set_ylabel("accuracy")
