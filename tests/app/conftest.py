"""A small project and its session."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.helpers.clouds import conv4
from tests.helpers.layouts import write_folder
from tests.helpers.small_project import CLASSES, pattern

from nearshot.app.project import Project
from nearshot.app.session import Session
from nearshot.estimator import Embedder


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """A folder with six photos of each of three classes."""
    members = {}
    for code, label in enumerate(CLASSES):
        for i in range(6):
            members[f"{label}{i}.png"] = pattern(code, i)
    return write_folder(tmp_path / "photos", members)


@pytest.fixture
def session(tmp_path: Path, photos: Path) -> Iterator[Session]:
    """A running session of these photos, without labels."""
    project = Project(tmp_path / "project", [photos])
    session = Session(project, Embedder(conv4(), cache_dir=tmp_path / "cache"))
    session.start()
    yield session
    session.stop()
