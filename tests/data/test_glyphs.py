"""The embedded dataset: its size, its splits, and that it repeats itself exactly."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from nearshot.data import Store, open_or_prepare
from nearshot.data.datasets.glyphs import SCRIPTS, _draw, _letters, plan_glyphs
from nearshot.data.inspection import repeated_images, shared_classes


@pytest.fixture(scope="module")
def stores(glyphs_dir: Path) -> dict[str, Store]:
    return {split: open_or_prepare("glyphs", split, glyphs_dir) for split in SCRIPTS}


def test_it_is_large_enough_and_splits_have_different_scripts() -> None:
    n_classes = 0
    for split, images in plan_glyphs().splits.items():
        counts = Counter(image.class_name for image in images)
        n_classes += len(counts)
        assert set(counts.values()) == {40}
        assert len(counts) >= 100
        assert {name.split(" ")[1].upper() for name in counts} <= set(SCRIPTS[split])
    assert n_classes >= 600


@pytest.mark.slow
def test_every_image_has_ink_and_splits_share_none(stores: dict[str, Store]) -> None:
    for store in stores.values():
        assert store.images.shape[1:] == (28, 28, 3)
        assert (store.images > 100).any(axis=(1, 2, 3)).all()
    assert shared_classes(stores) == []
    assert repeated_images(stores) == []


def test_letters_that_look_alike_are_kept_once() -> None:
    """The same shape in several scripts, and capitals that are large small letters."""
    kept = set().union(*_letters().values())
    for group in ("AΑА", "OΟОo", "HΗН", "cCсϲ", "xXхХ", "sSѕ"):
        assert len(kept & set(group)) == 1, group
    assert {"A", "B", "g"} <= kept


def test_the_same_letter_and_number_give_the_same_bytes() -> None:
    first = plan_glyphs().splits["train"][7]
    assert first.class_name.endswith("latin capital letter a")
    assert np.array_equal(_draw("A", 7), first.read())
    assert not np.array_equal(_draw("A", 7), _draw("A", 0))
    assert (_draw("A", 7) > 100).any()
