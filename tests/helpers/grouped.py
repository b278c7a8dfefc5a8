"""Images in groups: made-up support sets of things that were photographed several times."""

import numpy as np
import numpy.typing as npt
import torch

from nearshot.estimator.groups import Groups, in_order


def random_groups(class_sizes: list[int], seed: int, *, n_names: int = 0) -> Groups:
    """Draw groups within classes; `n_names` more groups may span classes."""
    generator = np.random.default_rng(seed)
    codes = np.repeat(np.arange(len(class_sizes)), class_sizes)
    generator.shuffle(codes)
    n_images = len(codes)
    numbers = n_images * codes + generator.integers(0, generator.integers(1, 7), n_images)
    if n_names > 0:
        has_name = generator.random(n_images) < 0.5
        names = -1 - generator.integers(0, n_names, n_images)
        numbers = np.where(has_name, names, numbers)
    return Groups(
        torch.from_numpy(in_order(numbers)), torch.from_numpy(codes), int(codes.max()) + 1
    )


def bursts(
    features: npt.NDArray[np.float64], n_copies: int, noise: float, seed: int
) -> npt.NDArray[np.float64]:
    """Return slightly different copies of each feature, one after the other: (copy, dim)."""
    generator = np.random.default_rng(seed)
    copies = np.repeat(features, n_copies, axis=0)
    return copies + noise * generator.normal(size=copies.shape)
