"""Small charts as SVG inside the page: they take its colours, by day and by night, and a few hundred bytes each."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from nearshot.html import Html, element, joined

__all__ = ["bar", "bars", "histogram", "line_chart"]

WIDTH, HEIGHT = 320, 150
LEFT, RIGHT, TOP, BOTTOM = 42, 8, 8, 20  # margins, for the numbers on the axes
BAR_HEIGHT, NAME_WIDTH, CHARACTERS = 13, 190, 30
Points = Sequence[tuple[float, float]]


def line_chart(series: Mapping[str, Points], *, title: str) -> Html:
    """Draw lines over epochs; each has dashes of its own, and its name under the chart. A single epoch is told."""
    points = [point for line in series.values() for point in line if math.isfinite(point[1])]
    if not points:
        return Html("")
    xs, ys = ([point[axis] for point in points] for axis in (0, 1))
    if len(set(xs)) == 1:
        told = ", ".join(f"{name} {_round(line[0][1])}" for name, line in series.items() if line)
        return element("figure", element("figcaption", title), element("p", f"after epoch {_round(xs[0])}: {told}"))
    across, up = _scaled(xs, LEFT, WIDTH - RIGHT), _scaled(ys, HEIGHT - BOTTOM, TOP)
    lines = []
    for number, line in enumerate(series.values()):
        path = "M" + "L".join(f"{across(x):.1f} {up(y):.1f}" for x, y in line if math.isfinite(y))
        lines.append(element("path", d=path, class_=f"line line{number % 6}"))
    axes = _axes(_round(min(xs)), f"epoch {_round(max(xs))}", _round(min(ys)), _round(max(ys)))
    keys = [_key(name, number) for number, name in enumerate(series)] if len(series) > 1 else []
    return _chart(joined([axes, *lines]), title, keys)


def histogram(counts: Sequence[int], *, title: str, low: str, high: str) -> Html:
    """Draw how often each of equal steps occurs; the ends of the axis are given as texts."""
    most = max(counts, default=0)
    if most == 0:
        return Html("")
    width = (WIDTH - LEFT - RIGHT) / len(counts)
    room = HEIGHT - TOP - BOTTOM
    path = "".join(
        f"M{LEFT + i * width:.1f} {HEIGHT - BOTTOM}v{-room * count / most:.1f}h{0.9 * width:.1f}V{HEIGHT - BOTTOM}"
        for i, count in enumerate(counts)
        if count
    )
    axes = _axes(low, high, "0", f"{most:,}")
    return _chart(joined([axes, element("path", d=path, class_="fill")]), title, [])


def bars(values: Mapping[str, float], *, title: str) -> Html:
    """Draw a bar for each name, from 0 to 100, the shortest first."""
    room = WIDTH - 48
    rows = []
    for number, (name, value) in enumerate(sorted(values.items(), key=lambda item: item[1])):
        short = name if len(name) <= CHARACTERS else name[: CHARACTERS - 1] + "…"
        y = number * BAR_HEIGHT
        rows += [
            element("text", short, x=NAME_WIDTH - 6, y=y + 10, class_="end"),
            element("rect", x=NAME_WIDTH, y=y + 2, width=f"{room * value / 100:.1f}", height=9, class_="fill"),
            element("text", f"{value:.1f}", x=f"{NAME_WIDTH + room * value / 100 + 4:.1f}", y=y + 10),
        ]
    height = BAR_HEIGHT * len(values)
    drawing = _drawing(joined(rows), title, NAME_WIDTH + WIDTH, height)
    return element("figure", element("figcaption", title), drawing, class_="bars")


def bar(value: float, largest: float) -> Html:
    """Draw a bar to the right of a middle for a positive value, and to its left for a negative one."""
    length = 0.0 if largest == 0 else 40 * abs(value) / largest
    x = 40 if value >= 0 else 40 - length
    drawn = element("rect", x=f"{x:.1f}", y=2, width=f"{length:.1f}", height=8)
    middle = element("path", d="M40 0v12", class_="axis")
    return element("svg", drawn, middle, viewBox="0 0 80 12", width=80, height=12, class_="bar", aria_hidden="true")


def _chart(content: Html, title: str, keys: Sequence[Html]) -> Html:
    drawing = _drawing(content, title, WIDTH, HEIGHT)
    return element("figure", element("figcaption", title), drawing, *([element("p", *keys)] if keys else []))


def _drawing(content: Html, title: str, width: int, height: int) -> Html:
    box = f"0 0 {width} {height}"
    return element(
        "svg", content, viewBox=box, width=width, height=height, role="img", aria_label=title, class_="chart"
    )


def _key(name: str, number: int) -> Html:
    sample = element("path", d="M0 5h26", class_=f"line line{number % 6}")
    drawing = element("svg", sample, viewBox="0 0 26 10", width=26, height=10, class_="chart", aria_hidden="true")
    return element("span", drawing, f" {name}", class_="key")


def _axes(left: str, right: str, low: str, high: str) -> Html:
    frame = f"M{LEFT} {TOP}V{HEIGHT - BOTTOM}H{WIDTH - RIGHT}"
    return joined(
        [
            element("path", d=frame, class_="axis"),
            element("text", left, x=LEFT, y=HEIGHT - 5),
            element("text", right, x=WIDTH - RIGHT, y=HEIGHT - 5, class_="end"),
            element("text", low, x=LEFT - 4, y=HEIGHT - BOTTOM, class_="end"),
            element("text", high, x=LEFT - 4, y=TOP + 9, class_="end"),
        ]
    )


def _scaled(values: Sequence[float], start: float, end: float) -> Callable[[float], float]:
    low, high = min(values), max(values)

    def place(value: float) -> float:
        share = 0.5 if high == low else (value - low) / (high - low)
        return start + share * (end - start)

    return place


def _round(value: float) -> str:
    return f"{value:.4g}"
