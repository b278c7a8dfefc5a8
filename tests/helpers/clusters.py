"""Features of 8 classes with 25 images each, in overlapping clusters."""

import torch
from torch import Tensor

LABELS = torch.arange(8).repeat_interleave(25)


def features_for(labels: Tensor, dim: int = 6, noise: float = 1.0, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    means = torch.randn(int(labels.max()) + 1, dim, generator=generator, dtype=torch.float64)
    return means[labels] + noise * torch.randn(
        len(labels), dim, generator=generator, dtype=torch.float64
    )


FEATURES = features_for(LABELS)
