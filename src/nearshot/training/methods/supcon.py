"""Supervised contrastive learning, for Appendix C."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

from torch import Tensor, nn

from nearshot.episode_shape import EpisodeShape
from nearshot.losses import supervised_contrastive_loss
from nearshot.models import ProjectionHead
from nearshot.training.checks import check_choice, check_integer, check_number
from nearshot.training.methods.method import Batch, LearntTemperature, Method, PairsInBatch
from nearshot.training.methods.nca import pairs_of_all_images

Variant = Literal["khosla", "published"]


@dataclass(frozen=True)
class SupCon(Method):
    """The supervised contrastive loss of Khosla et al. (2020), on the cosines of a batch."""

    title: ClassVar[str] = "SupCon"

    temperature: float = 1.0
    """The divisor of cosines. Khosla et al. use 0.1, the published experiments 1."""
    learn_temperature: bool = False
    """Learn the temperature, starting from `temperature`."""
    variant: Variant = "khosla"
    """Khosla et al.'s loss, or the one that the paper's experiments ran."""
    projection: int | None = None
    """Train with a linear layer of this many dimensions between the network and the loss."""

    def __post_init__(self) -> None:
        check_number("temperature", self.temperature, above=0)
        check_choice("variant", self.variant, get_args(Variant))
        if self.projection is not None:
            check_integer("projection", self.projection, at_least=1)

    def modules(self, embedding_dim: int, n_classes: int) -> Mapping[str, nn.Module]:
        """Return the projection and the temperature, if they are used."""
        del n_classes
        modules: dict[str, nn.Module] = {}
        if self.projection is not None:
            modules["projection"] = ProjectionHead(embedding_dim, self.projection, bias=True)
        if self.learn_temperature:
            modules["temperature"] = LearntTemperature(self.temperature)
        return modules

    def loss(self, batch: Batch) -> Tensor:
        """Return `supervised_contrastive_loss`."""
        temperature = batch.modules["temperature"]() if self.learn_temperature else self.temperature
        return supervised_contrastive_loss(
            batch.embeddings, batch.labels, temperature=temperature, variant=self.variant
        )

    def pairs(self, labels: Tensor, shape: EpisodeShape | None) -> PairsInBatch:
        """Return the unordered pairs of a batch."""
        del shape
        return pairs_of_all_images(labels)
