"""A scene as one matplotlib figure."""

from __future__ import annotations

import logging
import math
import textwrap
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import PurePath
from typing import Any

import numpy as np
from matplotlib import font_manager
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke
from matplotlib.text import Text

from nearshot.estimator.plot.scene import Places, Query, Scene, Seen, place_names
from nearshot.io import readable
from nearshot.styles import class_style

WIDTH = 14.0  # inches
SHOWN_OF_A_CLASS, SHOWN_CLASSES, SHOWN_QUERIES = 5, 12, 24
COLUMNS = 4  # of queries
MAX_NAMED = 20  # classes
NUMBER_AT = (8, 6)  # points from a marker
INK, FAINT = "#1b1f24", "#5b6470"
DEFAULT_FONT = "DejaVu Sans"  # comes with matplotlib
PLACEHOLDERS = "Last Resort"  # a font that draws a box for every letter
NAME: dict[str, Any] = {
    "fontsize": 9,
    "weight": "bold",
    "color": INK,
    "zorder": 5,
    "path_effects": [withStroke(linewidth=3, foreground="white")],  # to be legible over markers
}


def make_figure(scene: Scene) -> Figure:
    """Return the figure: support images and the plane above, queries below."""
    n_classes = min(len(scene.support), SHOWN_CLASSES)
    n_queries = min(len(scene.queries), SHOWN_QUERIES)
    top = max(4.5, 0.72 * n_classes + 0.4)
    bottom = 1.5 * math.ceil(n_queries / COLUMNS)
    notes = [scene.title, *scene.notes, *_skipped(scene)]
    head = 0.25 + 0.26 * len(notes)
    height = head + top + bottom + 0.4
    figure = Figure(figsize=(WIDTH, height), facecolor="white")
    style: dict[str, Any] = {"fontsize": 13, "weight": "bold", "color": INK}
    for number, note in enumerate(notes):
        figure.text(0.02, 1 - (0.3 + 0.26 * number) / height, note, **style)
        style = {"fontsize": 9, "color": FAINT}
    up = 1 - head / height  # the top of the upper half
    _support(_in_inches(figure, (0.02, up - top / height, 0.42, top / height)), scene, n_classes)
    _plane(figure.add_axes((0.5, up - (top - 0.55) / height, 0.48, (top - 0.65) / height)), scene)
    if n_queries:
        _queries(_in_inches(figure, (0.02, 0.01, 0.96, bottom / height)), scene, n_queries)
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


def _in_inches(figure: Figure, box: tuple[float, float, float, float]) -> Axes:
    """Add axes without lines, whose unit is an inch."""
    axes = figure.add_axes(box)
    axes.set_axis_off()
    axes.set_xlim(0, figure.get_figwidth() * box[2])
    axes.set_ylim(0, figure.get_figheight() * box[3])
    return axes


def _support(axes: Axes, scene: Scene, n_classes: int) -> None:
    """Draw one row per class: its marker, its name, its first images."""
    height = axes.get_ylim()[1]
    row = min(0.72, height / max(n_classes, 1))
    for number, (label, members) in enumerate(list(scene.support.items())[:n_classes]):
        y = height - (number + 1) * row
        colour, marker = class_style(number)
        axes.plot(0.12, y + row / 2, marker=marker, color=colour, markersize=9, linestyle="none")
        axes.text(0.3, y + row / 2, _in_lines(label, 18), va="center", fontsize=10, color=INK)
        for place, seen in enumerate(members[:SHOWN_OF_A_CLASS]):
            _tile(axes, seen, 2.0 + place * row, y + 0.03, row - 0.06)
        if len(members) > SHOWN_OF_A_CLASS:
            more = f"+ {len(members) - SHOWN_OF_A_CLASS}"
            axes.text(2.05 + SHOWN_OF_A_CLASS * row, y + row / 2, more, va="center", color=FAINT)


def _queries(axes: Axes, scene: Scene, n_queries: int) -> None:
    """Draw each image, its answer, and the nearest support image."""
    step, height = axes.get_xlim()[1] / COLUMNS, axes.get_ylim()[1]
    for number, query in enumerate(scene.queries[:n_queries]):
        left, y = (number % COLUMNS) * step, height - (number // COLUMNS + 1) * 1.5

        def write(right: float, up: float, text: str, left: float = left, y: float = y, **style: Any) -> None:
            axes.text(left + right, y + up, text, **{"va": "top", "fontsize": 8, "color": FAINT, **style})

        answer, near = query.explanation, query.explanation.neighbours[0]
        _tile(axes, query, left, y + 0.1, 1.2, dashed=answer.is_unknown)
        sure = f"{_cut(str(answer.label), 26)} {100 * answer.probability:.0f} %"
        size = 11 if len(sure) <= 20 else 8
        write(1.3, 1.3, str(answer.label) if answer.is_unknown else sure, fontsize=size, weight="bold", color=INK)
        write(1.3, 1.08, f"novelty {query.novelty}", fontsize=9)
        seen = scene.support_image(near.name, str(near.label))
        if seen is not None:
            _tile(axes, seen, left + 1.3, y + 0.3, 0.55)
        write(1.93, 0.82, f"nearest, {near.distance:.2f}")
        write(1.93, 0.64, _cut(f"{near.label}: {PurePath(near.name).name}", 22), color=INK)
        write(1.3, 0.22, _cut(f"{number + 1} · {PurePath(query.name).name}", 30))


def _plane(axes: Axes, scene: Scene) -> None:
    """Draw features on the plane of their principal axes."""
    for number, members in enumerate(scene.support.values()):
        colour, marker = class_style(number)
        places = np.stack([seen.place for seen in members])
        axes.plot(*places.T, marker=marker, color=colour, linestyle="none", markersize=8, markeredgecolor="white")
    for number, query in enumerate(scene.queries, 1):
        _query_marker(axes, scene, query, str(number) if number <= SHOWN_QUERIES else "")
    axes.set_aspect("equal", adjustable="datalim")
    axes.margins(0.12)
    if len(scene.support) <= MAX_NAMED:
        _class_names(axes, scene)
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


def _query_marker(axes: Axes, scene: Scene, query: Query, number: str) -> None:
    """Draw a query: the hollow marker of the predicted class with a cross, or × if unknown."""
    answer, (x, y) = query.explanation, query.place.tolist()
    if answer.is_unknown:
        axes.plot(x, y, marker="x", color=INK, markersize=10, markeredgewidth=2, zorder=3)
    else:
        colour, marker = class_style(list(scene.support).index(str(answer.label)))
        hollow: dict[str, Any] = {"color": "none", "markeredgecolor": colour, "markeredgewidth": 1.8}
        axes.plot(x, y, marker=marker, markersize=15, zorder=3, **hollow)
        axes.plot(x, y, marker="+", color=INK, markersize=8, zorder=3)
    axes.annotate(number, (x, y), NUMBER_AT, textcoords="offset points", **{**NAME, "fontsize": 8})


def _class_names(axes: Axes, scene: Scene) -> None:
    axes.apply_aspect()  # fixes the limits
    point = axes.get_figure(root=True).dpi / 72  # type: ignore[union-attr]

    def at(some: Sequence[Seen]) -> Places:
        places: Places = axes.transData.transform(np.reshape([seen.place for seen in some], (-1, 2))) / point
        return places

    queries = at(scene.queries)
    labels, groups = [_cut(label, 24) for label in scene.support], [at(members) for members in scene.support.values()]
    others = np.concatenate([queries, queries[:SHOWN_QUERIES] + NUMBER_AT])
    for label, spot in zip(labels, place_names(labels, groups, others, 5.5, 8), strict=True):
        x, y = axes.transData.inverted().transform(np.array(spot) * point).tolist()
        axes.text(x, y, label, ha="center", va="center", **NAME)


def _tile(axes: Axes, seen: Seen, left: float, bottom: float, side: float, *, dashed: bool = False) -> None:
    limits = axes.get_xlim(), axes.get_ylim()
    if seen.thumbnail is None:
        axes.text(left + side / 2, bottom + side / 2, "?", ha="center", va="center", color=FAINT)
    else:
        extent = (left, left + side, bottom, bottom + side)
        axes.imshow(seen.thumbnail, extent=extent, interpolation="lanczos", aspect="auto")
    xs, ys = [left, left + side, left + side, left, left], [bottom, bottom, bottom + side, bottom + side, bottom]
    axes.plot(xs, ys, color=INK, linewidth=1.8 if dashed else 0.5, linestyle="--" if dashed else "-")
    axes.set_xlim(limits[0])  # imshow changes them
    axes.set_ylim(limits[1])


def _in_lines(text: str, width: int) -> str:
    r"""Return text in at most two lines of about `width` letters.

    >>> _in_lines("a very long name of a class", 14)
    'a very long\nname of a…'
    """
    return "\n".join(_cut(line, width) for line in textwrap.wrap(text, width, max_lines=2, placeholder="…")) or text


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


@contextmanager
def installed_fonts(figure: Figure) -> Iterator[None]:
    """Set fonts for the texts of a figure while it is saved; warn once about letters that no installed font has.

    Texts are never parsed as formulas, and bytes in names that are not UTF-8 are escaped.
    """
    texts = [text for text in figure.findobj(Text) if isinstance(text, Text)]
    for text in texts:
        text.set_parse_math(False)
        text.set_text(readable(text.get_text()))
    used = {letter for text in texts for letter in text.get_text() if letter.isprintable()}
    families, left = _fonts_with(used - _letters_of(font_manager.findfont(DEFAULT_FONT)))
    if families:
        for text in texts:
            text.set_fontfamily([DEFAULT_FONT, *families])
    if left:
        some = "".join(sorted(left)[:10]) + ("…" if len(left) > 10 else "")
        message = f"No installed font has {some}; boxes are drawn instead. An .html file shows all letters."
        warnings.warn(message, stacklevel=3)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from font")
        warnings.filterwarnings("ignore", "Matplotlib currently does not support .* natively")
        log = logging.getLogger("matplotlib.font_manager")  # logs missing font weights
        before = log.level
        log.setLevel(logging.ERROR)
        try:
            yield
        finally:
            log.setLevel(before)


def _fonts_with(letters: set[str]) -> tuple[list[str], set[str]]:
    """Return fonts that cover letters, and the letters that no font has."""
    families: list[str] = []
    for entry in font_manager.fontManager.ttflist:
        with suppress(OSError, RuntimeError):  # an unreadable font
            if letters and not entry.name.startswith(PLACEHOLDERS) and letters & _letters_of(entry.fname):
                families.append(entry.name)
                letters = letters - _letters_of(entry.fname)
    return families, letters


def _letters_of(file: str) -> set[str]:
    return {chr(code) for code in font_manager.get_font(file).get_charmap()}
