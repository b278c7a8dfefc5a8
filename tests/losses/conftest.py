"""The two ways in which a loss is computed."""

import pytest

from nearshot.losses import neighbours


@pytest.fixture(params=[False, True], ids=["dense", "blocks"])
def in_blocks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Compute the losses of the test block by block, or not."""
    blocks: bool = request.param
    for limit in ("PAIRS_BEFORE_BLOCKS_CPU", "PAIRS_BEFORE_BLOCKS"):
        monkeypatch.setattr(neighbours, limit, 0 if blocks else 2**60)
    return blocks
