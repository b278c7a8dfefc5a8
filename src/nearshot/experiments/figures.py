"""What the figures share: styles that hold in grey and for the colour-blind, lines with bands, bars with errors."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure as Drawing

from nearshot.evaluation import PooledAccuracy
from nearshot.styles import COLOURS, MARKERS

__all__ = ["NEGATIVE", "POSITIVE", "bars", "line_with_band", "new_drawing", "panels", "style_of"]

DASHES = ("-", "--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1)), (0, (1, 1)))
HATCHES = ("", "///", "...")
GREYS = ("0.35", "0.65", "0.9")
POSITIVE: dict[str, Any] = {"color": "#0072B2", "linestyle": "-", "linewidth": 1.6, "zorder": 2}
NEGATIVE: dict[str, Any] = {"color": "#D55E00", "linestyle": ":", "linewidth": 0.9, "zorder": 1}


def new_drawing(width: float, height: float) -> Drawing:
    """Return an empty drawing, without a window behind it."""
    return Drawing(figsize=(width, height), layout="constrained")


def style_of(number: int) -> dict[str, Any]:
    """Return colour, marker and dashes of the n-th line."""
    return {
        "color": COLOURS[number % len(COLOURS)],
        "marker": MARKERS[number % len(MARKERS)],
        "linestyle": DASHES[number % len(DASHES)],
        "markersize": 5,
    }


def line_with_band(
    axes: Axes, points: Sequence[tuple[float, PooledAccuracy | None]], label: str, style: Mapping[str, Any]
) -> None:
    """Draw accuracies against something, with the 95 % interval as a band; points that are missing are left out."""
    there = [(x, accuracy) for x, accuracy in points if accuracy is not None]
    if not there:
        return
    xs = [x for x, _ in there]
    means = [accuracy.mean for _, accuracy in there]
    half = [_half(accuracy) for _, accuracy in there]
    if len(there) == 1:
        axes.errorbar(xs, means, half, label=label, capsize=3, **{**style, "linestyle": "none"})
        return
    axes.plot(xs, means, label=label, **style)
    low, high = ([m + sign * h for m, h in zip(means, half, strict=True)] for sign in (-1, 1))
    axes.fill_between(xs, low, high, color=style["color"], alpha=0.15, linewidth=0)


def _half(accuracy: PooledAccuracy) -> float:
    """Return half the 95 % interval: between training seeds where there are several, over episodes for one."""
    return accuracy.interval95 if math.isnan(accuracy.between_seeds95) else accuracy.between_seeds95


def panels(
    label: str, methods: Sequence[tuple[str, str]], draw: Callable[[Axes, str, int], None], **settings: Any
) -> Drawing:
    """Draw a row of panels of accuracies, one for each method and one or five shots.

    Args:
        label: what stands above them all.
        methods: names of methods, and what to call them.
        draw: draws a panel's lines, given its axes, the method and the number of shots.
        settings: of all axes, such as `xlabel`.
    """
    drawing = new_drawing(13, 3.6)
    for number, (method, title, shot) in enumerate([(*method, shot) for method in methods for shot in (1, 5)], 1):
        axes = drawing.add_subplot(1, 2 * len(methods), number)
        draw(axes, method, shot)
        axes.set(title=f"{shot}-shot, {title}", **settings)
        if number == 1:
            axes.set_ylabel("accuracy, %")
        if axes.get_legend_handles_labels()[0]:  # a panel may have nothing yet
            axes.legend(fontsize=7)
    drawing.suptitle(label, fontsize=8)
    return drawing


def bars(axes: Axes, names: Sequence[str], groups: Mapping[str, Sequence[PooledAccuracy | None]]) -> None:
    """Draw groups of horizontal bars with errors, a bar of each group for each name."""
    height = 0.8 / len(groups)
    shown = [accuracy.mean for values in groups.values() for accuracy in values if accuracy is not None]
    for number, (group, values) in enumerate(groups.items()):
        places = [place + (number - (len(groups) - 1) / 2) * height for place in range(len(names))]
        there = [(y, accuracy) for y, accuracy in zip(places, values, strict=True) if accuracy is not None]
        axes.barh(
            [y for y, _ in there],
            [accuracy.mean for _, accuracy in there],
            height,
            xerr=[_half(accuracy) for _, accuracy in there],
            label=group,
            color=GREYS[number % 3],
            hatch=HATCHES[number % 3],
            edgecolor="black",
            linewidth=0.5,
            error_kw={"elinewidth": 0.8},
        )
    axes.set_yticks(range(len(names)), names, fontsize=7)
    axes.invert_yaxis()
    if shown:
        axes.set_xlim(max(0, min(shown) - 4), min(100, max(shown) + 2))
        axes.legend(fontsize=7)
    axes.set_xlabel("accuracy, %")
