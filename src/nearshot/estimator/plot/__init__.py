"""Draw a classifier: its support images, its answers, and the features of both on a plane."""

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
from nearshot.errors import InputError
from nearshot.estimator.plot.figure import make_figure, save_png
from nearshot.estimator.plot.scene import Query, Scene, Seen, make_scene
from nearshot.io import atomic_write, readable
from nearshot.styles import class_style
from nearshot.text import counted

__all__ = ["Query", "Scene", "check_ending", "draw", "make_scene"]

WIDTH, HEIGHT, MARGIN = 900, 560, 50  # of the plane on a page
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


def check_ending(path: str | Path) -> None:
    """Raise an error unless a path ends in .png or .html."""
    if Path(path).suffix.lower() not in (".png", ".html", ".htm"):
        raise InputError(f"output must end in .png or .html (got {Path(path).name!r}).")


def draw(scene: Scene, path: str | Path) -> None:
    """Write a scene to a PNG or a self-contained HTML page, by the file's ending, atomically."""
    check_ending(path)
    with atomic_write(path) as file:
        if Path(path).suffix.lower() == ".png":
            save_png(make_figure(scene), file)
        else:
            file.write(readable(_html_page(scene)).encode())


def _html_page(scene: Scene) -> str:
    """Return a page. All text is escaped, and a content-security policy forbids scripts and requests."""
    files = FileSystemLoader(Path(__file__).parent)
    environment = Environment(
        loader=files, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    drawn = {label: class_style(number) for number, label in enumerate(scene.support)}
    everyone = [*(seen for group in scene.support.values() for seen in group), *scene.queries]
    places = np.stack([seen.place for seen in everyone])
    low, high = places.min(0), places.max(0)
    unit = min(1e6, *((WIDTH - 2 * MARGIN, HEIGHT - 2 * MARGIN) / np.maximum(high - low, 1e-9)))

    def at(seen: Seen) -> Any:
        """Return its place on the page; both axes have one scale, so distances are kept."""
        return np.array([WIDTH, HEIGHT]) / 2 + (seen.place - (low + high) / 2) * unit * (1, -1)

    top = {label: max(group, key=lambda seen: seen.place[1]) for label, group in scene.support.items()}
    return environment.get_template("page.html.jinja").render(
        scene=scene,
        styles={label: {"colour": colour, "shape": SHAPES[marker]} for label, (colour, marker) in drawn.items()},
        at=at,
        top=top if len(top) <= MAX_NAMED else {},
        width=WIDTH,
        height=HEIGHT,
        max_queries=MAX_QUERIES,
        max_of_a_class=MAX_OF_A_CLASS,
        max_named=MAX_NAMED,
        version=__version__,
        counted=counted,
        data_uri=_data_uri,
        file_name=lambda name: PurePath(name).name,
    )


def _data_uri(pixels: Pixels) -> str:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "JPEG", quality=88)
    return f"data:image/jpeg;base64,{base64.b64encode(file.getvalue()).decode()}"
