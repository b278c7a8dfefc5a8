"""The module that is trained: a backbone, and the heads between it and the loss."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor, nn

from nearshot.models import Backbone, build_backbone
from nearshot.models.heads import LinearHead, ProjectionHead
from nearshot.training.config import TrainConfig

__all__ = ["Embedded", "Learner"]


class Embedded(NamedTuple):
    """The output of the module: embeddings for the loss, and logits where there is a linear head."""

    embeddings: Tensor
    logits: Tensor | None


class Learner(nn.Module):
    """A backbone, with a projection and a linear head that are used in training only."""

    def __init__(self, config: TrainConfig, input_size: int, n_classes: int) -> None:
        super().__init__()
        self.backbone: Backbone = build_backbone(config.backbone, input_size=input_size)
        dim = self.backbone.embedding_dim
        self.projection = None if config.projection is None else ProjectionHead(dim, config.projection)
        needs_logits = config.method == "simpleshot" or config.cross_entropy_weight > 0
        self.head = LinearHead(dim, n_classes) if needs_logits else None

    def forward(self, images: Tensor) -> Embedded:
        """Embed normalised images, (image, 3, height, width)."""
        embeddings = self.backbone(images)
        logits = None if self.head is None else self.head(embeddings)
        return Embedded(embeddings if self.projection is None else self.projection(embeddings), logits)
