from __future__ import annotations

from pathlib import Path

import pytest
from tiny import prepare_tiny


@pytest.fixture(scope="session")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder with the dataset "tiny"."""
    folder = tmp_path_factory.mktemp("data")
    prepare_tiny(folder)
    return folder
