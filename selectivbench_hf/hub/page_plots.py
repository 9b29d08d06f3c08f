"""What the page plots: accuracy against the entropy level, parameters, recurrent state and gap length, of picked models."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Sequence

from . import page_svg as svg

MOST_PICKED = 12  # colours and shapes that stay apart at a glance


def default_models(lines: Iterable[dict], table: str | None, most: int = 6) -> list[str]:
    """The first models of a table, as it is ordered."""
    return list(dict.fromkeys(line["model"] for line in lines if line["table"] == table))[:most]


def render(lines: Sequence[dict], table: str | None, picked: Sequence[str]) -> str:
    """All plots of one table for the picked models, as HTML. Sealed scores where a line has them, else published ones, drawn hollow."""
    picked = list(picked)[:MOST_PICKED]
    here = [line for line in lines if line["table"] == table and score(line) is not None]
    if not here:
        return "<p>There are no scores of this task.</p>"
    best = _one_a_model(here)
    others = [line for line in best.values() if line["model"] not in picked]
    shown = [best[name] for name in picked if name in best]
    task = here[0]["task"]
    plots = [
        _scatter("Parameters", "parameters", "parameters", shown, others),
        _scatter("Recurrent state", "numbers of state a sequence", "state_size", shown, others),
        _gaps(task, shown),
        _levels(task, here[0], lines, picked),
    ]
    known = "Grey: the other models of the task. " if others else ""
    lacking = [name for name in picked if name not in best]
    known += f"No score of this task: {', '.join(lacking)}. " if lacking else ""
    hollow = "Hollow marks: published test only, not sealed. " if any(line["sealed"] is None for line in shown) else ""
    note = f'<p class="sb-note">{svg.text(known + hollow)}Bars: 95 % intervals.</p>'
    return f'{svg.legend([line["model"] for line in shown])}{note}<div class="sb-plots">{"".join(plots)}</div>'


def score(line: dict) -> float | None:
    """The score that counts: sealed, else published."""
    return line["sealed"] if line["sealed"] is not None else line["published"]


def _one_a_model(lines) -> dict[str, dict]:
    """Model -> its first line: the best ranked of several tracks and levels of trust."""
    best = {}
    for line in lines:
        best.setdefault(line["model"], line)
    return best


def _point(line: dict, x: float | None) -> svg.Point:
    which = "sealed" if line["sealed"] is not None else "published"
    return svg.Point(x, score(line), line[f"{which}_low"], line[f"{which}_high"], which == "sealed")


def _scatter(title, x_label, field, shown, others) -> str:
    def place(line):  # a size that is not known has no place; a state that grows has one of its own
        if field == "state_size" and line["state_grows"]:
            return [_point(line, None)]
        return [_point(line, line[field])] if line[field] else []

    series = [svg.Series(line["model"], place(line)) for line in shown]
    rest = [point for line in others for point in place(line)]
    return svg.figure(
        title, x_label, series, others=rest, log=True, empty=f"No model of this task tells its {title.lower()}."
    )


def _gaps(task: str, shown) -> str:
    lengths = gap_lengths(task)
    series = []
    for line in shown:
        which = "sealed" if any(found["sealed"] is not None for found in line["splits"].values()) else "published"
        points = [
            svg.Point(lengths[split], found[which], official=which == "sealed")
            for split, found in line["splits"].items()
            if split in lengths and found[which] is not None
        ]
        series.append(svg.Series(line["model"], points, joined=True))
    ticks = {float(gap): str(gap) for gap in sorted(lengths.values())}
    empty = "This task has one length of gaps." if not lengths else "No picked model has scores by gap length."
    return svg.figure("Gap length", "blank steps after an item", series, log=True, ticks=ticks, empty=empty)


def _levels(task: str, like: dict, lines, picked) -> str:
    levels = entropy_levels(task)
    same = [
        line
        for line in lines
        if line["task"] in levels
        and line["data"] == like["data"]
        and line["objective"] == like["objective"]
        and score(line) is not None
    ]
    series = []
    for name in picked:
        best = {}
        for line in same:
            if line["model"] == name:
                best.setdefault(line["task"], line)
        series.append(svg.Series(name, [_point(line, levels[t]) for t, line in best.items()], joined=True))
    ticks = {bits: f"{bits:.1f}" for bits in levels.values()}
    empty = (
        "This task has no levels of entropy." if not levels else "No picked model has scores on this task's levels."
    )
    return svg.figure("Entropy level", "bits a symbol (lite, te1 to te7)", series, ticks=_apart(ticks), empty=empty)


def _apart(ticks: dict[float, str]) -> dict[float, str]:
    """The ticks that leave room for each other: at least 0.15 bits apart."""
    out = {}
    for place, word in sorted(ticks.items()):
        if not out or place - max(out) >= 0.15:
            out[place] = word
    return out


@functools.lru_cache(maxsize=64)
def gap_lengths(task: str) -> dict[str, int]:
    """Test split -> blank steps after each item, for a task with constant gaps of several lengths; empty for others."""
    from ..tasks import get_task, task_names

    gaps = getattr(get_task(task), "test_gaps", ()) if task in task_names() else ()
    return {("test" if i == 0 else f"test_gap_{gap}"): gap for i, gap in enumerate(gaps)}


@functools.lru_cache(maxsize=64)
def entropy_levels(task: str) -> dict[str, float]:
    """Task of the same variant -> topological entropy in bits at grammar seed 1, for a random grammar's task; empty for others."""
    from ..tasks import LEVELS, get_task, grammar_task_names

    if task not in grammar_task_names():
        return {}
    suffix = task.removeprefix(get_task(task).level)
    return {level + suffix: get_task(level + suffix).grammar.topological_entropy() / math.log(2) for level in LEVELS}
