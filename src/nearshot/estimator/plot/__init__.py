"""Draw a classifier: its support images, its answers, and the features of both on a plane."""

from __future__ import annotations

from pathlib import Path

from nearshot.errors import InputError
from nearshot.estimator.plot.figure import installed_fonts, make_figure
from nearshot.estimator.plot.html_page import html_page
from nearshot.estimator.plot.scene import Query, Scene, make_scene
from nearshot.io import atomic_write, readable

__all__ = ["Query", "Scene", "check_ending", "draw", "make_scene"]


def check_ending(path: str | Path) -> None:
    """Raise an error unless a path ends in .png or .html."""
    if Path(path).suffix.lower() not in (".png", ".html", ".htm"):
        raise InputError(f"output must end in .png or .html (got {Path(path).name!r}).")


def draw(scene: Scene, path: str | Path) -> None:
    """Write a scene to a PNG or a self-contained HTML page, by the file's ending, atomically."""
    check_ending(path)
    with atomic_write(path) as file:
        if Path(path).suffix.lower() == ".png":
            figure = make_figure(scene)
            with installed_fonts(figure):
                figure.savefig(file, format="png", dpi=100)
        else:
            file.write(readable(html_page(scene)).encode())
