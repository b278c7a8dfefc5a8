"""The one description of an evaluation."""

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from nearshot.checks import check_count, is_integer, to_python
from nearshot.episode_shape import EpisodeShape
from nearshot.errors import InputError, look_up
from nearshot.evaluation.classifiers import CLASSIFIERS, ClassifierOrName, classifier_name


@dataclass(frozen=True, kw_only=True)
class EvaluationSpec:
    """An evaluation: what a run makes of images, the episodes, and how they are answered.

    The defaults are the paper's (Section 3.1). Functions that are given features do not read the
    fields about images, from `dataset` to `input_size`: those are for `nearshot.runs`.

    Attributes:
        dataset: a prepared dataset or a folder; None for the one that was trained on.
        split: the name of the split.
        side: the side of the prepared images, where there are several.
        layers: the stages whose pooled outputs are the features, counted from 1; if empty, the
            network's embedding.
        n_views: the number of views of each image whose embeddings are averaged.
        power: each feature is raised to this power, with its sign, such as 0.5.
        input_size: the side of the images that the network sees; None for the one that it was
            trained with.
        n_way: the classes of an episode.
        n_shot: the support images of each class.
        n_query: the query images of each class.
        n_episodes: the number of episodes.
        seed: the seed of the episodes.
        least_images: classes with fewer images are skipped.
        classifier: a name in `CLASSIFIERS`, a `Classifier`, or a function of support and query
            features.
        centred: whether to subtract the training set's mean feature; None to do so if it is known.
        normalise: whether to divide each feature by its length.
    """

    dataset: str | None = None
    split: str = "test"
    side: int | None = None
    layers: tuple[int, ...] = ()
    n_views: int = 1
    power: float = 1.0
    input_size: int | None = None
    n_way: int = 5
    n_shot: int = 5
    n_query: int = 15
    n_episodes: int = 10_000
    seed: int = 0
    least_images: int = 1
    classifier: ClassifierOrName = "centroid"
    centred: bool | None = None
    normalise: bool = True

    def __post_init__(self) -> None:
        EpisodeShape(self.n_way, self.n_shot, self.n_query)  # checks the three numbers
        if not is_integer(self.n_episodes) or not 1 <= self.n_episodes < 2**31:
            raise InputError(
                f"n_episodes must be an integer from 1 to 2³¹ − 1 (got {self.n_episodes!r})."
            )
        if not is_integer(self.seed) or not 0 <= self.seed < 2**64:
            raise InputError(f"seed must be an integer from 0 to 2⁶⁴ − 1 (got {self.seed!r}).")
        check_count(self.least_images, "least_images")
        check_count(self.n_views, "n_views")
        if not self.power > 0:
            raise InputError(f"power must be positive (got {self.power!r}).")
        if not isinstance(self.layers, tuple):
            raise InputError(f"layers must be a tuple of integers (got {self.layers!r}).")
        if isinstance(self.classifier, str):
            look_up(CLASSIFIERS, self.classifier, "classifier")

    @property
    def shape(self) -> EpisodeShape:
        """Ways, shots and queries."""
        return EpisodeShape(self.n_way, self.n_shot, self.n_query)

    @property
    def queries(self) -> tuple[int, ...]:
        """What determines the queries: evaluations that agree in it can share their episodes."""
        return (self.n_way, self.n_query, self.n_episodes, self.seed, self.least_images)

    @property
    def identity(self) -> str:
        """A hash of the fields that differ from the defaults, whatever the order of the fields."""
        values = self.as_dict()
        different = {}
        for name, default in EvaluationSpec().as_dict().items():
            if values[name] != default:
                different[name] = values[name]
        content = json.dumps(different, sort_keys=True)
        return hashlib.sha256(content.encode()).hexdigest()[:16]

    def as_dict(self) -> dict[str, Any]:
        """Return it as JSON can hold it, with the classifier's name."""
        values = {}
        for field in dataclasses.fields(self):
            values[field.name] = to_python(getattr(self, field.name))
        values["classifier"] = classifier_name(self.classifier)
        return values

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Inverse of `as_dict`, for classifiers in `CLASSIFIERS`."""
        return cls(**{**values, "layers": tuple(values["layers"])})
