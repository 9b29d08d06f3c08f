"""The page's plots as SVG text: no library and no script, colours that follow the page's theme, every word escaped.

A plot is one `<figure>`: the picture, whose marks carry their numbers as titles, a legend, and the same numbers as a table to unfold, for
readers who do not see the picture.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ..plots import LETTER_COLOURS
from .page_html import table, text

WIDTH, HEIGHT = 460, 320  # of the view box: small, so that words stay legible where a phone shrinks it
LEFT, RIGHT, TOP, BOTTOM = 44, 12, 10, 46
SHAPES = ("circle", "square", "diamond", "triangle")  # the next one for each further round of colours
GROWS = "grows"  # the place on the axis of a state that grows with the sequence


@dataclass(frozen=True)
class Point:
    """A mark: x (None: at the place GROWS), the accuracy and its interval in per cent, and whether it is official (else drawn hollow)."""

    x: float | None
    y: float
    low: float | None = None
    high: float | None = None
    official: bool = True


@dataclass(frozen=True)
class Series:
    """The marks of one model; `joined` by a line in the order of x."""

    name: str
    points: Sequence[Point]
    joined: bool = False


def figure(
    title: str,
    x_label: str,
    series: Sequence[Series],
    *,
    others: Sequence[Point] = (),
    log: bool = False,
    ticks: dict[float, str] | None = None,
    empty: str = "nothing to show",
) -> str:
    """One plot of accuracy in per cent against x, as HTML.

    Args:
        series: picked models, each with a colour and a shape of its own.
        others: marks of all other models, in grey and without a name.
        log: x on a logarithmic scale (x > 0).
        ticks: the places of the x axis that are written out, all of them inside; None: round places between the marks.
        empty: the sentence that stands where there are no marks.
    """
    points = [p for s in series for p in s.points] + list(others)
    head = f"<h4>{text(title)}</h4>"
    if not points:
        return f'<figure class="sb-plot">{head}<p>{text(empty)}</p></figure>'
    axis = _Axis([p.x for p in points if p.x is not None] + list(ticks or ()), log, any(p.x is None for p in points))
    parts = [_frame(axis, x_label, ticks if ticks is not None else axis.ticks())]
    parts += [_mark(axis, p, "sb-other", "circle", "", 2.2) for p in others]
    for number, one in enumerate(series):
        colour = LETTER_COLOURS[number % len(LETTER_COLOURS)]
        shape = SHAPES[number // len(LETTER_COLOURS) % len(SHAPES)]
        parts.append(_line(axis, one, colour))
        parts += [_mark(axis, p, "sb-mark", shape, colour, 4.2, _told(one.name, p, x_label)) for p in one.points]
    label = f"{title}: accuracy in per cent against {x_label}; the numbers are in the table below"
    svg = f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{text(label)}">{"".join(parts)}</svg>'
    return f'<figure class="sb-plot">{head}{svg}{_numbers(series, x_label)}</figure>'


def legend(names: Sequence[str]) -> str:
    """The colours and shapes of picked models, in the order in which `figure` was given them, as HTML."""
    items = []
    for number, name in enumerate(names):
        colour = LETTER_COLOURS[number % len(LETTER_COLOURS)]
        shape = _shape(SHAPES[number // len(LETTER_COLOURS) % len(SHAPES)], 7, 7, 4.6, f'fill="{colour}"', "")
        items.append(
            f'<li><svg viewBox="0 0 14 14" width="14" height="14" aria-hidden="true">{shape}</svg> {text(name)}</li>'
        )
    return f'<ul class="sb-legend">{"".join(items)}</ul>' if items else ""


class _Axis:
    """Where x and y lie in the view box."""

    def __init__(self, xs: Sequence[float], log: bool, grows: bool):
        self.log, self.grows = log, grows
        self.right = WIDTH - RIGHT - (46 if grows else 0)
        scaled = [self._scale(x) for x in xs] or [0.0, 1.0]
        low, high = min(scaled), max(scaled)
        room = 0.06 * (high - low) or 0.5
        self.low, self.high = low - room, high + room

    def _scale(self, x: float) -> float:
        return math.log10(x) if self.log else x

    def x(self, value: float | None) -> float:
        if value is None:
            return WIDTH - RIGHT - 22
        return LEFT + (self._scale(value) - self.low) / (self.high - self.low) * (self.right - LEFT)

    @staticmethod
    def y(per_cent: float) -> float:
        return TOP + (100 - per_cent) / 100 * (HEIGHT - TOP - BOTTOM)

    def ticks(self) -> dict[float, str]:
        """At most eight round places inside the axis."""
        if self.log:
            powers = range(math.floor(self.low), math.ceil(self.high) + 1)
            places = [m * 10.0**p for p in powers for m in (1, 2, 5)]
            inside = [v for v in places if self.low <= math.log10(v) <= self.high]
            if len(inside) > 8:
                inside = [v for v in inside if str(f"{v:e}")[0] == "1"]
            return {v: short(v) for v in inside}
        step = 10.0 ** math.floor(math.log10(self.high - self.low))
        step = next(s for s in (step / 5, step / 2, step, 2 * step, 5 * step) if (self.high - self.low) / s <= 8)
        first = math.ceil(self.low / step)
        return {k * step: f"{k * step:g}" for k in range(first, math.floor(self.high / step) + 1)}


def short(value: float) -> str:
    """A count in at most five signs: 950, 2.05k, 1.2M."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.3g}{letter}"
    return f"{value:.3g}"


def _frame(axis: _Axis, x_label: str, ticks: dict[float, str]) -> str:
    bottom = HEIGHT - BOTTOM
    out = [f'<rect class="sb-frame" x="{LEFT}" y="{TOP}" width="{WIDTH - RIGHT - LEFT}" height="{bottom - TOP}"/>']
    for y in range(0, 101, 20):
        out.append(
            f'<line class="sb-grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{axis.y(y):.1f}" y2="{axis.y(y):.1f}"/>'
        )
        out.append(f'<text x="{LEFT - 6}" y="{axis.y(y) + 4.5:.1f}" text-anchor="end">{y}</text>')
    for x, word in ticks.items():
        at = axis.x(x)
        out.append(f'<line class="sb-frame" x1="{at:.1f}" x2="{at:.1f}" y1="{bottom}" y2="{bottom + 4}"/>')
        out.append(f'<text x="{at:.1f}" y="{bottom + 17}" text-anchor="middle">{text(word)}</text>')
    if axis.grows:
        out.append(f'<line class="sb-grid" x1="{axis.right}" x2="{axis.right}" y1="{TOP}" y2="{bottom}"/>')
        out.append(f'<text x="{axis.x(None):.1f}" y="{bottom + 17}" text-anchor="middle">{GROWS}</text>')
    middle = (TOP + bottom) / 2
    out.append(f'<text x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 8}" text-anchor="middle">{text(x_label)}</text>')
    out.append(
        f'<text x="11" y="{middle}" text-anchor="middle" transform="rotate(-90 11 {middle})">accuracy, %</text>'
    )
    return "".join(out)


def _line(axis: _Axis, one: Series, colour: str) -> str:
    placed = sorted((p.x, p.y) for p in one.points if p.x is not None)
    if not one.joined or len(placed) < 2:
        return ""
    path = " ".join(f"{axis.x(x):.1f},{axis.y(y):.1f}" for x, y in placed)
    return f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.6"/>'


def _mark(axis: _Axis, point: Point, kind: str, shape: str, colour: str, size: float, told: str = "") -> str:
    x, y = axis.x(point.x), axis.y(point.y)
    paint = (
        (f'fill="{colour}" stroke="{colour}"' if point.official else f'fill="none" stroke="{colour}"')
        if colour
        else ""
    )
    bar = ""
    if colour and point.low is not None and point.high is not None:
        bar = f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{axis.y(point.low):.1f}" y2="{axis.y(point.high):.1f}" stroke="{colour}" stroke-width="1.2"/>'
    return bar + _shape(shape, x, y, size, f'class="{kind}" {paint}', told)


def _shape(shape: str, x: float, y: float, r: float, attributes: str, told: str) -> str:
    title = f"<title>{text(told)}</title>" if told else ""
    if shape == "circle":
        return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{r}" {attributes}>{title}</circle>'
    corners = {
        "square": ((-0.9, -0.9), (0.9, -0.9), (0.9, 0.9), (-0.9, 0.9)),
        "diamond": ((0, -1.25), (1.25, 0), (0, 1.25), (-1.25, 0)),
        "triangle": ((0, -1.2), (1.1, 0.8), (-1.1, 0.8)),
    }[shape]
    points = " ".join(f"{x + r * dx:.1f},{y + r * dy:.1f}" for dx, dy in corners)
    return f'<polygon points="{points}" {attributes}>{title}</polygon>'


def _told(name: str, point: Point, x_label: str) -> str:
    between = "" if point.low is None or point.high is None else f" [{point.low:.1f}, {point.high:.1f}]"
    return f"{name}: {point.y:.1f} %{between} at {_place(point)} ({x_label})" + (
        "" if point.official else ", not sealed"
    )


def _numbers(series: Sequence[Series], x_label: str) -> str:
    rows = []
    for one in series:
        for p in one.points:
            between = "-" if p.low is None or p.high is None else f"{p.low:.1f} to {p.high:.1f}"
            kind = "sealed" if p.official else "published"
            rows.append([text(c) for c in (one.name, _place(p), f"{p.y:.1f}", between, kind)])
    if not rows:
        return ""
    shown = table(("model", x_label, "accuracy, %", "95 % interval", "tests"), rows)
    return f"<details><summary>The numbers</summary>{shown}</details>"


def _place(point: Point) -> str:
    return GROWS if point.x is None else f"{point.x:,.4g}" if point.x < 1e4 else f"{point.x:,.0f}"
