"""Small charts of the page: their coordinates as SVG paths, which `templates/charts.html` draws."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

__all__ = ["Bar", "Chart", "bar_chart", "difference_bar", "histogram", "line_chart"]

LEFT, RIGHT, TOP, BOTTOM = 42.0, 312.0, 8.0, 130.0  # of the area inside the axes
CHARACTERS = 30  # of a bar's name
Points = Sequence[tuple[float, float]]


class Chart(NamedTuple):
    """A chart.

    Attributes:
        title: its caption.
        paths: the SVG path of each line.
        names: the names of the lines, if there are several.
        ends: the numbers at the ends of the axes: left, right, low and high.
        text: a sentence in place of a drawing.
        is_filled: whether paths are areas.
    """

    title: str
    paths: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    ends: tuple[str, str, str, str] = ("", "", "", "")
    text: str = ""
    is_filled: bool = False


def line_chart(title: str, series: Mapping[str, Points]) -> Chart | None:
    """Return lines over epochs; a single epoch in words."""
    points = [point for line in series.values() for point in line if math.isfinite(point[1])]
    if not points:
        return None
    xs, ys = ([point[axis] for point in points] for axis in (0, 1))
    if len(set(xs)) == 1:
        values = ", ".join(f"{name} {_round(line[0][1])}" for name, line in series.items() if line)
        return Chart(title, text=f"after epoch {_round(xs[0])}: {values}")
    across, up = _scaled(xs, LEFT, RIGHT), _scaled(ys, BOTTOM, TOP)
    paths = tuple(
        "M" + "L".join(f"{across(x):.1f} {up(y):.1f}" for x, y in line if math.isfinite(y)) for line in series.values()
    )
    ends = (_round(min(xs)), f"epoch {_round(max(xs))}", _round(min(ys)), _round(max(ys)))
    return Chart(title, paths, tuple(series) if len(series) > 1 else (), ends)


def histogram(title: str, counts: Sequence[int]) -> Chart | None:
    """Return how often each of equal steps from 0 to 100 occurs."""
    most = max(counts, default=0)
    if most == 0:
        return None
    width = (RIGHT - LEFT) / len(counts)
    path = "".join(
        f"M{LEFT + i * width:.1f} {BOTTOM:g}v{(TOP - BOTTOM) * count / most:.1f}h{0.9 * width:.1f}V{BOTTOM:g}"
        for i, count in enumerate(counts)
        if count
    )
    return Chart(title, (path,), ends=("0", "100", "0", f"{most:,}"), is_filled=True)


class Bar(NamedTuple):
    """A bar: its name, shortened, its value and its length."""

    name: str
    value: float
    length: float


def bar_chart(values: Mapping[str, float]) -> list[Bar]:
    """Return a bar for each name, from 0 to 100, the shortest first."""
    return [
        Bar(name if len(name) <= CHARACTERS else name[: CHARACTERS - 1] + "…", value, 272 * value / 100)
        for name, value in sorted(values.items(), key=lambda item: item[1])
    ]


def difference_bar(value: float, largest: float) -> tuple[float, float]:
    """Return where a bar begins, and its length: to the right of the middle, 40, for a positive value."""
    length = 0.0 if largest == 0 else 40 * abs(value) / largest
    return (40.0 if value >= 0 else 40 - length), length


def _scaled(values: Sequence[float], start: float, end: float) -> Callable[[float], float]:
    low, high = min(values), max(values)
    return lambda value: start + (0.5 if high == low else (value - low) / (high - low)) * (end - start)


def _round(value: float) -> str:
    return f"{value:.4g}"
