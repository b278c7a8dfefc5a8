"""What Prototypical and Matching Networks and row 7 of Figure 4 have in common."""

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, get_args

from torch import Tensor, nn

from nearshot.distances import DistanceName
from nearshot.episode_shape import EpisodeShape
from nearshot.losses import count_pairs, episode_loss
from nearshot.models import ProjectionHead
from nearshot.training.checks import check_choice, check_integer, check_number
from nearshot.training.methods.method import Batch, LearntTemperature, Method, PairsInBatch


@dataclass(frozen=True)
class EpisodicMethod(Method):
    """A method of support and query images. Its subclasses differ in `prototypes` and `separate`.

    Attributes:
        prototypes: average the support images of each class.
        separate: only queries are anchors, and only support (or prototypes) are candidates.
    """

    needs_episodes: ClassVar[bool] = True
    prototypes: ClassVar[bool] = False
    separate: ClassVar[bool] = False

    n_shot: int = 5
    """Support images of each class in a training episode."""
    temperature: float = 1.0
    """The divisor of squared distances."""
    learn_temperature: bool = False
    """Learn the temperature, starting from `temperature`."""
    distance: DistanceName = "euclidean"
    """Squared Euclidean, as in the paper, or one minus the cosine."""
    background: float = 0.0
    """0 for the exact loss; 1e-10 for the arithmetic of the published experiments, which ignores
    anchors that are far from everything. The paper's presets have 1e-10; with a warm-up it is not
    needed."""
    projection: int | None = None
    """Train with a linear layer of this many dimensions between the network and the loss."""

    def __post_init__(self) -> None:
        check_integer("n_shot", self.n_shot, at_least=1)
        check_number("temperature", self.temperature, above=0)
        check_choice("distance", self.distance, get_args(DistanceName))
        check_number("background", self.background, at_least=0)
        if self.projection is not None:
            check_integer("projection", self.projection, at_least=1)

    def modules(self, embedding_dim: int, n_classes: int) -> Mapping[str, nn.Module]:
        """Return the projection and the temperature, if they are used."""
        del n_classes
        modules: dict[str, nn.Module] = {}
        if self.projection is not None:
            # A bias changes cosines, but cancels in Euclidean distances.
            bias = self.distance == "cosine"
            modules["projection"] = ProjectionHead(embedding_dim, self.projection, bias=bias)
        if self.learn_temperature:
            modules["temperature"] = LearntTemperature(self.temperature)
        return modules

    def loss(self, batch: Batch) -> Tensor:
        """Return `episode_loss`."""
        temperature = batch.modules["temperature"]() if self.learn_temperature else self.temperature
        return episode_loss(
            batch.embeddings,
            batch.labels,
            batch.episode,
            prototypes=self.prototypes,
            separate=self.separate,
            temperature=temperature,
            background=self.background,
            distance=self.distance,
        )

    def pairs(self, labels: Tensor, shape: EpisodeShape | None) -> PairsInBatch | None:
        """Return the pairs of an episode, which are the same in each."""
        del labels
        return None if shape is None else _pairs(shape, self.prototypes, self.separate)


@functools.lru_cache(maxsize=1)
def _pairs(shape: EpisodeShape, prototypes: bool, separate: bool) -> PairsInBatch:
    counts = count_pairs(shape, prototypes=prototypes, separate=separate)
    return PairsInBatch(0, counts.positives, counts.negatives)
