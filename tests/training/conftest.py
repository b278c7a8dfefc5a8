from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from settings import TINY
from tiny import prepare_tiny

from nearshot.training import train


@pytest.fixture(scope="session")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder with the dataset "tiny"."""
    folder = tmp_path_factory.mktemp("data")
    prepare_tiny(folder)
    return folder


@pytest.fixture(scope="session")
def trained(data_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished run, which tests only read."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    train(replace(TINY, epochs=5, validate_every=1), folder=folder, data_dir=data_dir, show=False)
    return folder


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    """A copy of the finished run, which a test may change."""
    return Path(shutil.copytree(trained, tmp_path / "run"))
