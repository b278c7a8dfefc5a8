"""Settings for the tests of the estimator."""

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cache embeddings in a folder of the test, not in that of the user."""
    monkeypatch.setenv("NEARSHOT_DATA", str(tmp_path / "nearshot data"))
