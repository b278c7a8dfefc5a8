"""Parts of figures: lines with bands, dots with whiskers, styles that can be told apart in grey."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Drawing

from nearshot.evaluation import PooledAccuracy
from nearshot.paper.results import Results
from nearshot.styles import COLOURS, MARKERS

DASHES = ("-", "--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1)), (0, (1, 1)))
# Of the dots of three groups, distinct in grey too.
FACES = ("black", "white", "#D55E00")
GRID: dict[str, Any] = {"color": "0.85", "linewidth": 0.6, "zorder": 0.5}
POSITIVE: dict[str, Any] = {"color": "#0072B2", "linestyle": "-", "linewidth": 1.6, "zorder": 2}
NEGATIVE: dict[str, Any] = {
    "color": "#D55E00",
    "linestyle": (0, (2, 2)),
    "linewidth": 0.9,
    "zorder": 1,
}


def new_drawing(width: float, height: float) -> Drawing:
    """Return an empty drawing without a window."""
    return Drawing(figsize=(width, height), layout="constrained")


def style_of(number: int) -> dict[str, Any]:
    """Return colour, marker and dashes of a line by its number."""
    return {
        "color": COLOURS[number % len(COLOURS)],
        "marker": MARKERS[number % len(MARKERS)],
        "linestyle": DASHES[number % len(DASHES)],
        "markersize": 5,
    }


def line_with_band(
    axes: Axes,
    points: Sequence[tuple[float, PooledAccuracy | None]],
    label: str,
    style: Mapping[str, Any],
) -> None:
    """Draw accuracies as a line, with the 95 % interval as a band; missing points are skipped."""
    xs = [x for x, accuracy in points if accuracy is not None]
    accuracies = [accuracy for _, accuracy in points if accuracy is not None]
    if not accuracies:
        return
    means = np.array([accuracy.mean for accuracy in accuracies])
    half_widths = np.array([half_width(accuracy) for accuracy in accuracies])
    if len(accuracies) == 1:
        style_of_point = {**style, "linestyle": "none"}
        axes.errorbar(xs, means, half_widths, label=label, capsize=3, **style_of_point)
        return
    axes.plot(xs, means, label=label, **style)
    low = means - half_widths
    high = means + half_widths
    axes.fill_between(xs, low, high, color=style["color"], alpha=0.15, linewidth=0)


def half_width(accuracy: PooledAccuracy) -> float:
    """Return half the 95 % interval between training seeds, or over episodes for a single one.

    For two seeds return half their distance.
    The interval of two seeds' mean is thirteen times their distance, and would hide everything
    else.
    """
    if len(accuracy.per_seed) == 1:
        return accuracy.interval95
    if len(accuracy.per_seed) == 2:
        return (max(accuracy.per_seed) - min(accuracy.per_seed)) / 2
    return accuracy.between_seeds95


def heading(results: Results, drawn: str) -> str:
    """Return the heading of a figure: its size and seeds, and what the intervals are over."""
    if len(results.seeds) == 1:
        over = "95 % intervals over episodes"
    elif len(results.seeds) == 2:
        over = (
            "from one training seed to the other (95 % intervals over episodes where there is one)"
        )
    else:
        over = (
            "95 % intervals between training seeds (of two: from one to the other; "
            "of one: over episodes)"
        )
    return f"{results.label}\n{drawn}: {over}"


def finish(drawing: Drawing, title: str, handle_length: float = 3.0) -> None:
    """Add a title, and one legend for the lines of all panels, of which each may lack some."""
    by_name: dict[str, Any] = {}
    for axes in drawing.axes:
        handles, names = axes.get_legend_handles_labels()
        by_name |= dict(zip(names, handles, strict=True))
    drawing.legend(
        by_name.values(),
        by_name.keys(),
        loc="outside lower center",
        ncols=len(by_name) if len(by_name) < 5 else 3,
        fontsize=9,
        frameon=False,
        handlelength=handle_length,
    )
    drawing.suptitle(title, fontsize=8)


def dots(
    axes: Axes, names: Sequence[str], groups: Mapping[str, Sequence[PooledAccuracy | None]]
) -> None:
    """Draw accuracies as dots with whiskers, one line per name with one dot per group.

    Bars would have to start at zero, where differences of a point are invisible.
    """
    shade_every_other(axes, len(names))
    for number, (group, accuracies) in enumerate(groups.items()):
        means = []
        half_widths = []
        heights = []
        for height, accuracy in enumerate(accuracies):
            if accuracy is not None:
                means.append(accuracy.mean)
                half_widths.append(half_width(accuracy))
                heights.append(height + 0.26 * (number - (len(groups) - 1) / 2))
        if not means:
            continue
        style = {
            **style_of(number),
            "linestyle": "none",
            "markerfacecolor": FACES[number % len(FACES)],
        }
        axes.errorbar(
            means, heights, xerr=half_widths, label=group, elinewidth=1, capsize=2, **style
        )
    name_lines(axes, names)


def shade_every_other(axes: Axes, n_lines: int) -> None:
    """Shade every other of some horizontal lines, so that the eye can follow them."""
    for height in range(0, n_lines, 2):
        axes.axhspan(height - 0.5, height + 0.5, color="0.95", zorder=0)


def name_lines(axes: Axes, names: Sequence[str]) -> None:
    """Write the names of horizontal lines at the left, the first on top."""
    axes.set_yticks(range(len(names)), names, fontsize=8)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.tick_params(axis="y", length=0)
    axes.tick_params(axis="x", labelsize=8)
    axes.grid(axis="x", **GRID)
