"""Damaged files: nothing is silently wrong, and there is no traceback."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "benchmarks"))

from damage import DAMAGES, OUTCOMES, Reader, fuzz, make_files


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Reader]]:
    folder = tmp_path_factory.mktemp("files")
    return folder, make_files(folder)


@pytest.mark.parametrize("n_copies", [20, pytest.param(200, marks=pytest.mark.slow)])
def test_a_damaged_file_is_refused_or_makes_no_difference(
    n_copies: int, files: tuple[Path, dict[str, Reader]]
) -> None:
    folder, readers = files
    for name, reader in readers.items():
        for kind, counts in fuzz(folder, reader, n_copies, seed=n_copies).items():
            assert counts.total() == n_copies // len(DAMAGES)
            assert counts.keys() <= set(OUTCOMES), f"{name}: {kind}"
