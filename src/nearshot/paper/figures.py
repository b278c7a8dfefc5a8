"""Parts of figures: styles that work in grey and for the colour-blind, lines with bands, dots with whiskers."""

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure as Drawing

from nearshot.evaluation import PooledAccuracy
from nearshot.paper.recipe import Found
from nearshot.styles import COLOURS, MARKERS

DASHES = ("-", "--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1)), (0, (1, 1)))
FACES = ("black", "white", "#D55E00")  # of the dots of three groups, distinct in grey too
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
    there = [(x, accuracy) for x, accuracy in points if accuracy is not None]
    if not there:
        return
    xs, means, half = zip(
        *((x, accuracy.mean, _half(accuracy)) for x, accuracy in there), strict=True
    )
    if len(there) == 1:
        axes.errorbar(xs, means, half, label=label, capsize=3, **{**style, "linestyle": "none"})
        return
    axes.plot(xs, means, label=label, **style)
    low, high = ([m + sign * h for m, h in zip(means, half, strict=True)] for sign in (-1, 1))
    axes.fill_between(xs, low, high, color=style["color"], alpha=0.15, linewidth=0)


def _half(accuracy: PooledAccuracy) -> float:
    """Return half the 95 % interval between training seeds; over episodes for one, half the distance for two.

    The interval of two seeds' mean is thirteen times their distance, and would hide everything
    else.
    """
    if len(accuracy.per_seed) == 2:
        return (max(accuracy.per_seed) - min(accuracy.per_seed)) / 2
    return accuracy.interval95 if len(accuracy.per_seed) == 1 else accuracy.between_seeds95


def heading(found: Found, drawn: str) -> str:
    """Return the heading of a figure: its scale and seeds, and what the intervals are over."""
    over = {
        1: "95 % intervals over episodes",
        2: "from one training seed to the other (95 % intervals over episodes where there is one)",
    }
    several = "95 % intervals between training seeds (of two: from one to the other; of one: over episodes)"
    return f"{found.label}\n{drawn}: {over.get(len(found.seeds), several)}"


def finish(drawing: Drawing, title: str, handle_length: float = 3.0) -> None:
    """Add a title, and one legend for the lines of all panels, of which each may lack some."""
    named: dict[str, Any] = {}
    for axes in drawing.axes:
        handles, names = axes.get_legend_handles_labels()
        named |= dict(zip(names, handles, strict=True))
    look: dict[str, Any] = {"fontsize": 9, "frameon": False, "handlelength": handle_length}
    n_columns = len(named) if len(named) < 5 else 3
    drawing.legend(
        named.values(), named.keys(), loc="outside lower center", ncols=n_columns, **look
    )
    drawing.suptitle(title, fontsize=8)


def dots(
    axes: Axes, names: Sequence[str], groups: Mapping[str, Sequence[PooledAccuracy | None]]
) -> None:
    """Draw accuracies as dots with whiskers, one line per name with one dot per group.

    Bars would have to start at zero, where differences of a point are invisible.
    """
    for place in range(0, len(names), 2):
        axes.axhspan(place - 0.5, place + 0.5, color="0.95", zorder=0)
    for number, (group, values) in enumerate(groups.items()):
        there = [(place, accuracy) for place, accuracy in enumerate(values) if accuracy is not None]
        if not there:
            continue
        means, half = (
            [accuracy.mean for _, accuracy in there],
            [_half(accuracy) for _, accuracy in there],
        )
        places = [place + 0.26 * (number - (len(groups) - 1) / 2) for place, _ in there]
        look = {
            **style_of(number),
            "linestyle": "none",
            "markerfacecolor": FACES[number % len(FACES)],
        }
        axes.errorbar(means, places, xerr=half, label=group, **look, elinewidth=1, capsize=2)
    axes.set_yticks(range(len(names)), names, fontsize=8)
    axes.set_ylim(len(names) - 0.5, -0.5)  # the first on top
    axes.tick_params(axis="y", length=0)
    axes.tick_params(axis="x", labelsize=8)
    axes.grid(axis="x", **GRID)
