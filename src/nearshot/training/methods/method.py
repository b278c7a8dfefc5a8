"""The base class of training methods, and what the loss of a method sees of a batch."""

import math
from collections.abc import Mapping
from dataclasses import Field, dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from nearshot.episode_shape import EpisodeShape
from nearshot.errors import InputError
from nearshot.evaluation.classifiers import ClassifierName


@dataclass(frozen=True)
class Batch:
    """A whole batch, gathered from all devices.

    Attributes:
        embeddings: (image, dim), after the projection if the method has one.
        labels: (image,) whole numbers.
        logits: (image, class), of the module "head" if the method has one.
        modules: the other modules of the method, by name.
        shape: the shape of the episode, where batches are episodes.
        generator: random numbers that are the same on all devices, for a loss that samples.
    """

    embeddings: Tensor
    labels: Tensor
    logits: Tensor | None = None
    modules: Mapping[str, nn.Module] = field(default_factory=dict)
    shape: EpisodeShape | None = None
    generator: torch.Generator | None = None

    @property
    def episode(self) -> EpisodeShape:
        """The shape of the episode; an error where batches are not episodes."""
        if self.shape is None:
            raise InputError("batches must be 'episodes' for a loss of support and query images.")
        return self.shape

    @property
    def support(self) -> Tensor:
        """The embeddings of the support images, (way · shot, dim), class by class."""
        return self.episode.split(self.embeddings)[0]

    @property
    def support_labels(self) -> Tensor:
        """The labels of the support images, (way · shot,)."""
        return self.episode.split(self.labels)[0]

    @property
    def query(self) -> Tensor:
        """The embeddings of the query images, (way · query, dim), class by class."""
        return self.episode.split(self.embeddings)[1]

    @property
    def query_labels(self) -> Tensor:
        """The labels of the query images, (way · query,)."""
        return self.episode.split(self.labels)[1]


class PairsInBatch(NamedTuple):
    """How many images of a batch are alone in their class, and the pairs that a loss uses."""

    anchors_without_positive: float
    positive_pairs: float
    negative_pairs: float


class Method:
    """Base class of training methods: a frozen dataclass of settings, with a loss.

    To write one, subclass it as a frozen dataclass, give each setting a default and a docstring,
    and define `loss`. `TrainConfig(method=...)` takes an instance, and `nearshot train --method
    module:Class` offers its settings as options. They identify a run, with the name of the class.

    Attributes:
        title: its name in tables and logs.
        classifier: the classifier that it is reported with.
        needs_episodes: whether its batches must be episodes; others are shuffled by default.
        n_shot: support images of each class in an episode; None for a method that does not split
            its batches.

    >>> @dataclass(frozen=True)
    ... class Triplet(Method):
    ...     margin: float = 0.2
    ...
    ...     def loss(self, batch: Batch) -> Tensor: ...
    """

    if TYPE_CHECKING:  # subclasses are dataclasses, which `dataclasses.replace` takes
        __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    title: ClassVar[str] = ""
    classifier: ClassVar[ClassifierName] = "centroid"
    needs_episodes: ClassVar[bool] = False
    n_shot: int | None = None

    def loss(self, batch: Batch) -> Tensor:
        """Return the loss of a batch, a tensor of one number."""
        raise NotImplementedError(f"{type(self).__name__} must define loss(batch).")

    def modules(self, embedding_dim: int, n_classes: int) -> Mapping[str, nn.Module]:
        """Return what is trained beside the network, by name; by default nothing.

        The modules are saved, resumed and moved with the network. Two names have a meaning: the
        network puts a "projection" between its embeddings and the batch's `embeddings`, and a
        "head" gives the batch's `logits`; weights files contain them. The loss calls the others,
        which are the batch's `modules`.
        """
        del embedding_dim, n_classes
        return {}

    def pairs(self, labels: Tensor, shape: EpisodeShape | None) -> PairsInBatch | None:
        """Return the pairs of a batch of labels (image,), for the log; None without pairs.

        `shape` is that of the episode, where batches are episodes.
        """
        del labels, shape
        return None


class LearntTemperature(nn.Module):
    """A temperature that is learnt. It stays positive, since its logarithm is the weight."""

    def __init__(self, start: float) -> None:
        super().__init__()
        self.log_temperature = nn.Parameter(torch.tensor(math.log(start), dtype=torch.float32))

    def forward(self) -> Tensor:
        """Return the temperature."""
        return self.log_temperature.exp()
