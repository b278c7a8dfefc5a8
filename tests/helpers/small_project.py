"""Images that an untrained network tells apart, and steps of a session of the app."""

import time
from collections.abc import Callable

import numpy as np
from tests.helpers.layouts import encoded

from nearshot.app.session import Session

SIDE = 16
CLASSES = ("ant", "bee", "cat")


def pattern(label: int, seed: int) -> bytes:
    """Return a PNG file with the pattern of a class and noise."""
    squares = np.random.default_rng(label).integers(0, 200, (4, 4, 3))
    pixels = squares.repeat(SIDE // 4, 0).repeat(SIDE // 4, 1)
    noise = np.random.default_rng(1000 + seed).integers(0, 56, pixels.shape)
    return encoded((pixels + noise).astype(np.uint8))


def wait_until(condition: Callable[[], bool]) -> None:
    """Wait until a condition holds."""
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def wait_until_idle(session: Session) -> None:
    """Wait until the session has embedded and fitted everything."""
    wait_until(lambda: not session.is_busy or bool(session.failure))
    assert not session.failure


def label(session: Session, name: str, *numbers: int) -> None:
    """Label photos of a class, given by their numbers."""
    if name not in session.project.classes:
        session.change(lambda project: project.add_class(name))
    file_names = {f"{name}{number}.png" for number in numbers}
    ids = [photo.id for photo in session.project.present if photo.name in file_names]
    session.change(lambda project: project.set_label(ids, name))


def label_all(session: Session, *numbers: int) -> None:
    """Label photos of every class, and wait for the answers."""
    for name in CLASSES:
        label(session, name, *numbers)
    wait_until_idle(session)
