"""Random support sets with classes of given sizes."""

import torch

from nearshot.estimator.support import Support


def random_support(sizes: list[int], seed: int, dim: int = 3) -> Support:
    """Return a support set in random order, whose classes have the given sizes."""
    generator = torch.Generator().manual_seed(seed)
    codes = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
    codes = codes[torch.randperm(len(codes), generator=generator)]
    noise = torch.randn(len(codes), dim, generator=generator, dtype=torch.float64)
    return Support(noise + codes[:, None], codes, len(sizes))
