"""A scene as one HTML page, which loads nothing and runs nothing."""

from __future__ import annotations

import base64
import io
from pathlib import Path, PurePath
from typing import Any

import numpy as np
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from PIL import Image

from nearshot._version import __version__
from nearshot.data.images import Pixels
from nearshot.estimator.plot.scene import Places, Scene, place_names
from nearshot.styles import class_style
from nearshot.text import counted

WIDTH, HEIGHT, MARGIN = 900, 560, 50
MAX_OF_A_CLASS, MAX_QUERIES, MAX_NAMED = 40, 300, 40

# The markers of `nearshot.styles` as paths around the origin, about 12 wide.
SHAPES = {
    "o": "M-6 0a6 6 0 1 0 12 0a6 6 0 1 0 -12 0Z",
    "D": "M0 -8L6 0L0 8L-6 0Z",
    "s": "M-5.5 -5.5H5.5V5.5H-5.5Z",
    "^": "M0 -7L7 6H-7Z",
    "v": "M0 7L7 -6H-7Z",
    "P": "M-2.5 -7H2.5V-2.5H7V2.5H2.5V7H-2.5V2.5H-7V-2.5H-2.5Z",
    "*": "M0 -8L2 -2.6L7.6 -2.5L3.2 1L4.7 6.5L0 3.3L-4.7 6.5L-3.2 1L-7.6 -2.5L-2 -2.6Z",
}


def html_page(scene: Scene) -> str:
    """Return the page. All text is escaped, and a content-security policy forbids scripts and requests."""
    files = FileSystemLoader(Path(__file__).parent)
    environment = Environment(
        loader=files, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    drawn = {label: class_style(number) for number, label in enumerate(scene.support)}
    styles = {label: {"colour": colour, "shape": SHAPES[marker]} for label, (colour, marker) in drawn.items()}
    marks, texts = _plane(scene, styles)
    return environment.get_template("page.html.jinja").render(
        scene=scene,
        styles=styles,
        marks=marks,
        texts=texts,
        width=WIDTH,
        height=HEIGHT,
        max_queries=MAX_QUERIES,
        max_of_a_class=MAX_OF_A_CLASS,
        version=__version__,
        counted=counted,
        data_uri=_data_uri,
        file_name=lambda name: PurePath(name).name,
    )


def _plane(scene: Scene, styles: dict[str, Any]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the markers on the plane of the principal axes, and the names and numbers beside them."""
    place = _scale(scene)
    marks = [
        _position(place(seen.place)) | {"kind": "support", "style": styles[label], "title": f"{label}: {seen.name}"}
        for label, group in scene.support.items()
        for seen in group
    ]
    for query in scene.queries:
        answer = query.explanation
        title = f"{query.name}: {answer.label}, {100 * answer.probability:.0f} %"
        kind = "unknown" if answer.is_unknown else "query"
        mark = {"kind": kind, "style": styles[str(answer.nearest)], "title": title}
        marks.append(_position(place(query.place)) | mark)
    texts = []
    if len(scene.support) <= MAX_NAMED:
        groups = [np.array([place(seen.place) for seen in group]) for group in scene.support.values()]
        queries = np.reshape([place(query.place) for query in scene.queries], (-1, 2))
        others = np.concatenate([queries, np.add(queries, (14, -11))])  # with their numbers
        spots = place_names(list(scene.support), groups, others, letter=8, room=10)
        for label, (x, y) in zip(scene.support, spots, strict=True):
            texts.append(_position(np.array([x, y + 4])) | {"text": label, "is_class": True})
    if len(scene.queries) <= MAX_NAMED:
        for number, query in enumerate(scene.queries, 1):
            texts.append(_position(np.add(place(query.place), (10, -7))) | {"text": number, "is_class": False})
    return marks, texts


def _scale(scene: Scene) -> Any:
    """Return a function from a place on the plane to the drawing; both axes have one scale, so distances are kept."""
    members = [seen for group in scene.support.values() for seen in group]
    everyone = np.stack([seen.place for seen in (*members, *scene.queries)])
    low, high = everyone.min(0), everyone.max(0)
    room = np.array([WIDTH, HEIGHT]) - 2 * MARGIN
    unit = min(1e6, *(room / np.maximum(high - low, 1e-9)))

    def place(at: Places) -> Places:
        scaled: Places = np.array([WIDTH, HEIGHT]) / 2 + (at - (low + high) / 2) * unit * (1, -1)
        return scaled

    return place


def _position(at: Places) -> dict[str, Any]:
    return {"x": f"{at[0]:.1f}", "y": f"{at[1]:.1f}"}


def _data_uri(pixels: Pixels) -> str:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "JPEG", quality=88)
    return f"data:image/jpeg;base64,{base64.b64encode(file.getvalue()).decode()}"
