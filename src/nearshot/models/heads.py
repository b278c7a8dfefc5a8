"""Heads for training; evaluation uses the backbone's own embeddings."""

from __future__ import annotations

import torch
from torch import nn


class ProjectionHead(nn.Linear):
    """A single linear layer on top of the embeddings, (image, dim) to (image, `projected_dim`).

    The projection network A of Appendix F. A bias changes no Euclidean distance, but it changes cosines.
    """

    def __init__(self, embedding_dim: int, projected_dim: int = 128, *, bias: bool = False) -> None:
        super().__init__(embedding_dim, projected_dim, bias=bias, dtype=torch.float32)


class LinearHead(nn.Linear):
    """A classifier of the training classes, (image, dim) to logits (image, class), for cross-entropy (SimpleShot)."""

    def __init__(self, embedding_dim: int, n_classes: int) -> None:
        super().__init__(embedding_dim, n_classes, dtype=torch.float32)
