"""A scene as a file, PNG or HTML by its ending."""

from __future__ import annotations

from pathlib import Path

from nearshot.errors import InputError
from nearshot.estimator.plot.figure import figure_of
from nearshot.estimator.plot.fonts import letters_that_there_are
from nearshot.estimator.plot.page import page_of
from nearshot.estimator.plot.scene import Scene
from nearshot.io import atomic_write, readable

__all__ = ["check_ending", "draw"]


def check_ending(path: str | Path) -> None:
    """Refuse a file that is neither PNG nor HTML by its name."""
    if Path(path).suffix.lower() not in (".png", ".html", ".htm"):
        raise InputError(f"The picture is a .png or a .html file, not {Path(path).name!r}.")


def draw(scene: Scene, path: str | Path) -> None:
    """Draw a scene into a PNG or a page of HTML that needs nothing but itself, by the file's ending."""
    check_ending(path)
    png = Path(path).suffix.lower() == ".png"
    with atomic_write(path) as file:
        if png:
            figure = figure_of(scene)
            with letters_that_there_are(figure):
                figure.savefig(file, format="png", dpi=100)
        else:
            file.write(readable(page_of(scene)).encode())
