"""A dataset small enough to train on in seconds, written in the store's own format."""

from pathlib import Path

import numpy as np
from PIL import Image

from nearshot.data import Store, open_files, plan_folder, prepare_plan

SIDE = 16


def prepare_tiny(
    data_dir: Path,
    *,
    n_classes: int = 16,
    n_images: int = 20,
    seed: int = 0,
    split_seed: int | None = None,
    contrast: int = 200,
    name: str = "tiny",
) -> dict[str, Store]:
    """Prepare a dataset of noisy patterns, one pattern per class.

    With little contrast they are hard to tell apart. The classes have the same names for any seed,
    and are split by it too, or by a seed of their own.
    """
    rng = np.random.default_rng(seed)
    folder = data_dir / "pictures"
    for label in range(n_classes):
        (folder / f"class{label:02d}").mkdir(parents=True)
        pattern = rng.integers(0, contrast, (4, 4, 3)).repeat(4, 0).repeat(4, 1)
        for number in range(n_images):
            pixels = (pattern + rng.integers(0, 56, pattern.shape)).astype(np.uint8)
            Image.fromarray(pixels).save(folder / f"class{label:02d}" / f"{number:02d}.png")
    plan = plan_folder(open_files([folder]), seed=seed if split_seed is None else split_seed)
    return prepare_plan(name, plan, data_dir=data_dir, side=SIDE)
