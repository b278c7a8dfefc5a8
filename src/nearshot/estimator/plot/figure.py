"""A scene as one matplotlib figure."""

import logging
import math
import textwrap
import warnings
from contextlib import suppress
from pathlib import PurePath
from typing import IO, Any

import numpy as np
from matplotlib import font_manager
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke
from matplotlib.text import Text

from nearshot.estimator.plot import MAX_LETTERS, Query, Scene, Seen, shortened
from nearshot.io import readable
from nearshot.styles import class_style

WIDTH = 14.0  # inches
SHOWN_OF_A_CLASS, SHOWN_CLASSES, SHOWN_QUERIES = 5, 12, 24
COLUMNS = 4  # of queries
MAX_NAMED = 20  # classes
INK, FAINT = "#1b1f24", "#5b6470"
DEFAULT_FONT = "DejaVu Sans"  # comes with matplotlib
PLACEHOLDERS = "Last Resort"  # a font that draws a box for every letter
NUMBER: dict[str, Any] = {
    "fontsize": 8,
    "weight": "bold",
    "color": INK,
    "zorder": 5,
    "path_effects": [withStroke(linewidth=3, foreground="white")],  # to be legible over markers
}


def make_figure(scene: Scene) -> Figure:
    """Return the figure: the plane and the support images above, queries below."""
    n_classes, n_queries = min(len(scene.support), SHOWN_CLASSES), min(len(scene.queries), SHOWN_QUERIES)
    n_rows = math.ceil(n_queries / COLUMNS)
    notes = [scene.title, *scene.notes, *_skipped(scene)]
    head, top, bottom = 0.3 + 0.26 * len(notes), max(4.5, 0.72 * n_classes), 1.5 * n_rows  # inches
    height = head + top + bottom + 0.6
    figure = Figure(figsize=(WIDTH, height), facecolor="white")
    for number, note in enumerate(notes):
        style: dict[str, Any] = {"fontsize": 9, "color": FAINT} if number else {"fontsize": 13, "weight": "bold"}
        figure.text(0.02, 1 - (0.3 + 0.26 * number) / height, note, **style)
    upper, middle = 1 - head / height, (bottom + 0.6) / height
    _plane(figure.add_axes((0.5, middle, 0.48, upper - middle - 0.25 / height)), scene)
    low = upper - 0.72 * n_classes / height
    grid = figure.add_gridspec(n_classes, 2 + SHOWN_OF_A_CLASS, left=0.04, right=0.45, bottom=low, top=upper)
    for row, (label, members) in enumerate(list(scene.support.items())[:n_classes]):
        for column, seen in enumerate(members[:SHOWN_OF_A_CLASS], 2):
            _tile(figure.add_subplot(grid[row, column]), seen)
        colour, marker = class_style(row)
        name = figure.add_subplot(grid[row, :2], xlim=(0, 1), ylim=(-1, 1), frame_on=False, xticks=[], yticks=[])
        name.plot(0, 0, marker=marker, color=colour, markersize=9, clip_on=False)
        more = f" (+ {len(members) - SHOWN_OF_A_CLASS})" if len(members) > SHOWN_OF_A_CLASS else ""
        lines = textwrap.wrap(f"{label}{more}", MAX_LETTERS, max_lines=2, placeholder="…", break_long_words=False)
        name.text(0.1, 0, "\n".join(shortened(line, MAX_LETTERS) for line in lines), va="center", color=INK)
    if n_queries:
        sides = {"left": 0.02, "right": 0.98, "bottom": 0.02, "top": bottom / height}
        grid = figure.add_gridspec(n_rows, COLUMNS, **sides, wspace=0.1)
        for number, query in enumerate(scene.queries[:n_queries]):
            _query(figure.add_subplot(grid[divmod(number, COLUMNS)], anchor="W"), scene, query, number + 1)
    return figure


def _skipped(scene: Scene) -> list[str]:
    lines = list(scene.errors[:3])
    if len(scene.errors) > 3:
        lines.append(f"… and {len(scene.errors) - 3} more that cannot be read.")
    if len(scene.queries) > SHOWN_QUERIES:
        most = f"The {SHOWN_QUERIES} most doubtful of {len(scene.queries):,} images are shown"
        lines.append(f"{most}; an .html file shows more.")
    if len(scene.support) > SHOWN_CLASSES:
        lines.append(f"The first {SHOWN_CLASSES} of {len(scene.support):,} classes are shown; an .html file shows all.")
    return lines


def _query(axes: Axes, scene: Scene, query: Query, number: int) -> None:
    """Draw an image, and beside it its answer and the nearest support image."""
    answer, near = query.explanation, query.explanation.neighbours[0]
    _tile(axes, query, dashed=answer.is_unknown)
    _tile(axes.inset_axes((1.08, 0.2, 0.44, 0.44)), scene.images[near.index])
    sure = "" if answer.is_unknown else f" {100 * answer.probability:.0f} %"
    place: dict[str, Any] = {"va": "top", "transform": axes.transAxes}
    axes.text(
        1.08, 1.0, f"{shortened(str(answer.label), MAX_LETTERS)}{sure}", fontsize=10, color=INK, weight="bold", **place
    )
    axes.text(1.08, 0.83, f"novelty {query.novelty}", fontsize=9, color=FAINT, **place)
    nearest = shortened(f"{near.label}: {PurePath(near.name).name}", 20)
    axes.text(1.58, 0.62, f"nearest, {near.distance:.2f}\n{nearest}", fontsize=8, color=INK, **place)
    axes.text(1.08, 0.12, shortened(f"{number} · {PurePath(query.name).name}", 30), fontsize=8, color=FAINT, **place)


def _tile(axes: Axes, seen: Seen, *, dashed: bool = False) -> None:
    axes.set(xticks=[], yticks=[], box_aspect=1)
    if seen.thumbnail is None:
        axes.text(0.5, 0.5, "?", ha="center", va="center", transform=axes.transAxes, color=FAINT)
    else:
        axes.imshow(seen.thumbnail, interpolation="lanczos", aspect="auto")
    for spine in axes.spines.values():
        spine.set(linewidth=1.8 if dashed else 0.5, linestyle="--" if dashed else "-")


def _plane(axes: Axes, scene: Scene) -> None:
    """Draw features on the plane of their principal axes."""
    styles = {label: class_style(number) for number, label in enumerate(scene.support)}
    for label, members in scene.support.items():
        colour, marker = styles[label]
        places = np.stack([seen.place for seen in members])
        drawn: dict[str, Any] = {"marker": marker, "color": colour, "markersize": 8, "markeredgecolor": "white"}
        axes.plot(*places.T, linestyle="none", label=shortened(label, 24), **drawn)
    for number, query in enumerate(scene.queries, 1):
        answer, (x, y) = query.explanation, query.place.tolist()
        if answer.is_unknown:
            axes.plot(x, y, marker="x", color=INK, markersize=10, markeredgewidth=2, zorder=3)
        else:  # the hollow marker of the predicted class with a cross
            colour, marker = styles[str(answer.label)]
            hollow: dict[str, Any] = {"color": "none", "markeredgecolor": colour, "markeredgewidth": 1.8}
            axes.plot(x, y, marker=marker, markersize=15, zorder=3, **hollow)
            axes.plot(x, y, marker="+", color=INK, markersize=8, zorder=3)
        if number <= SHOWN_QUERIES:
            axes.annotate(str(number), (x, y), (8, 6), textcoords="offset points", **NUMBER)
    axes.set_aspect("equal", adjustable="datalim")
    axes.margins(0.12)
    if len(scene.support) <= MAX_NAMED:
        axes.legend(fontsize=8, labelcolor=INK)
    axes.tick_params(labelsize=7, colors=FAINT)
    first, second = scene.shares
    axes.set_xlabel(f"first principal axis: {100 * first:.0f} % of the variance", fontsize=9, color=FAINT)
    axes.set_ylabel(f"second: {100 * second:.0f} %", fontsize=9, color=FAINT)
    title = "prepared features"
    if scene.queries:
        unknown = " (× unknown)" if any(query.explanation.is_unknown for query in scene.queries) else ""
        some = "" if len(scene.queries) <= SHOWN_QUERIES else f"the first {SHOWN_QUERIES} "
        title += f"; queries with a cross, as predicted{unknown}, {some}by number"
    axes.set_title(title, fontsize=9, color=FAINT)


def save_png(figure: Figure, file: IO[bytes]) -> None:
    """Write a figure with fonts that have its letters; warn once about letters that no installed font has.

    Texts are never parsed as formulas, and bytes in names that are not UTF-8 are escaped.
    """
    texts = [text for text in figure.findobj(Text) if isinstance(text, Text)]
    for text in texts:
        text.set_parse_math(False)
        text.set_text(readable(text.get_text()))
    missing = {letter for text in texts for letter in text.get_text() if letter.isprintable()}
    missing -= _letters_of(font_manager.findfont(DEFAULT_FONT))
    families = [DEFAULT_FONT]
    for entry in font_manager.fontManager.ttflist if missing else ():
        with suppress(OSError, RuntimeError):  # an unreadable font
            found = missing & _letters_of(entry.fname)
            if found and not entry.name.startswith(PLACEHOLDERS):
                families.append(entry.name)
                missing -= found
    for text in texts:
        text.set_fontfamily(families)
    if missing:
        some = "".join(sorted(missing)[:10]) + ("…" if len(missing) > 10 else "")
        message = f"No installed font has {some}; boxes are drawn instead. An .html file shows all letters."
        warnings.warn(message, stacklevel=2)
    logging.getLogger("matplotlib.font_manager").setLevel(logging.ERROR)  # logs missing font weights
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from font")
        warnings.filterwarnings("ignore", "Matplotlib currently does not support .* natively")
        figure.savefig(file, format="png", dpi=100)


def _letters_of(file: str) -> set[str]:
    return {chr(code) for code in font_manager.get_font(file).get_charmap()}
