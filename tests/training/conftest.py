import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.helpers.settings import TINY, change
from tests.helpers.tiny import prepare_tiny

from nearshot.training import Hardware, TrainResult, train


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
    train(
        change(TINY, epochs=5, validate_every=1), folder=folder, data_dir=data_dir, progress=False
    )
    return folder


@pytest.fixture(scope="session")
def teacher(data_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run with a head, a projection and averaged weights, which tests only read."""
    folder = tmp_path_factory.mktemp("runs") / "teacher"
    config = change(TINY, cross_entropy_weight=0.5, projection=12, ema_decay=0.9, epochs=2)
    train(config, folder=folder, data_dir=data_dir, progress=False)
    return folder


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    """A copy of the finished run, which a test may change."""
    return Path(shutil.copytree(trained, tmp_path / "run"))


@pytest.fixture
def train_tiny(data_dir: Path, tmp_path: Path) -> Callable[..., TrainResult]:
    """Train TINY with some settings changed, in a folder of the test's own."""

    def trained(
        folder: str = "run", hardware: Hardware | None = None, **changes: Any
    ) -> TrainResult:
        config = change(TINY, **changes)
        return train(
            config, folder=tmp_path / folder, data_dir=data_dir, hardware=hardware, progress=False
        )

    return trained
