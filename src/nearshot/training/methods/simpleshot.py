"""SimpleShot: cross-entropy alone."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn

from nearshot.errors import InputError
from nearshot.losses import cross_entropy_loss
from nearshot.models import LinearHead
from nearshot.training.checks import check_number
from nearshot.training.methods.method import Batch, Method


@dataclass(frozen=True)
class SimpleShot(Method):
    """A linear classifier of the training classes, which evaluation does not need."""

    title: ClassVar[str] = "SimpleShot"

    label_smoothing: float = 0.0
    """How much of each target is spread evenly over all classes, such as 0.1."""

    def __post_init__(self) -> None:
        check_number("label_smoothing", self.label_smoothing, at_least=0, at_most=1)

    def modules(self, embedding_dim: int, n_classes: int) -> Mapping[str, nn.Module]:
        """Return the linear classifier."""
        return {"head": LinearHead(embedding_dim, n_classes)}

    def loss(self, batch: Batch) -> Tensor:
        """Return `cross_entropy_loss`."""
        if batch.logits is None:
            raise InputError("SimpleShot needs the logits of its head.")
        return cross_entropy_loss(batch.logits, batch.labels, label_smoothing=self.label_smoothing)
