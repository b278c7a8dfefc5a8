"""The one description of an evaluation."""

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

from nearshot.checks import check_count, check_seed, is_integer, to_python
from nearshot.episode_shape import EpisodeShape
from nearshot.errors import InputError
from nearshot.evaluation.classifiers import ClassifierOrName, check_classifier_name, classifier_name


@dataclass(frozen=True, kw_only=True)
class EvaluationSpec:
    """An evaluation: what a run makes of images, the episodes, and how they are answered.

    The defaults are the paper's (Section 3.1). Functions that are given features do not read the
    fields about images, from `dataset` to `max_images`: those are for `nearshot.runs`.
    """

    dataset: str | None = None
    """A prepared dataset, or a folder; by default the one that the network was trained on."""
    split: str = "test"
    """The split. Choose between models on val, and look at test once."""
    side: int | None = None
    """The side of the images, where the dataset was prepared in several."""
    layers: tuple[int, ...] = ()
    """Use the pooled outputs of these stages together, such as 2 3 4 (Appendix G); by default the
    embedding."""
    n_views: int = 1
    """Average the embeddings of this many views of each image: the image, its mirror image, and
    crops."""
    power: float = 1.0
    """Raise each feature to this power before it is centred, such as 0.5; needs the training
    split."""
    input_size: int | None = None
    """The side of the images that the network sees, if not the one that it was trained with; needs
    the training split."""
    max_images: int | None = None
    """Use at most this many images of each class, evenly spaced, for a first look; by default
    all."""
    n_way: int = 5
    """Classes per episode."""
    n_shot: int = 5
    """Support images per class."""
    n_query: int = 15
    """Query images per class."""
    n_episodes: int = 10_000
    """The number of episodes."""
    seed: int = 0
    """The seed of the episodes."""
    least_images: int = 1
    """Skip classes with fewer images."""
    classifier: ClassifierOrName = "centroid"
    """A name in `CLASSIFIERS` or `TRANSDUCTIVE`, a `Classifier`, or a function of support and query
    features."""
    centred: bool | None = None
    """Subtract the training set's mean feature; by default, if it is known."""
    normalise: bool = True
    """Divide each feature by its length."""

    def __post_init__(self) -> None:
        EpisodeShape(self.n_way, self.n_shot, self.n_query)  # checks the three numbers
        if not is_integer(self.n_episodes) or not 1 <= self.n_episodes < 2**31:
            raise InputError(
                f"n_episodes must be an integer from 1 to 2³¹ − 1 (got {self.n_episodes!r})."
            )
        check_seed(self.seed)
        check_count(self.least_images, "least_images")
        check_count(self.n_views, "n_views")
        if self.max_images is not None:
            check_count(self.max_images, "max_images")
        if not self.power > 0:
            raise InputError(f"power must be positive (got {self.power!r}).")
        if not isinstance(self.layers, tuple):
            raise InputError(f"layers must be a tuple of integers (got {self.layers!r}).")
        if isinstance(self.classifier, str):
            check_classifier_name(self.classifier)

    @property
    def shape(self) -> EpisodeShape:
        """Ways, shots and queries."""
        return EpisodeShape(self.n_way, self.n_shot, self.n_query)

    @property
    def queries(self) -> "EvaluationSpec":
        """The spec without what does not change the queries. Equal ones share their episodes."""
        return replace(self, n_shot=1, classifier="centroid", centred=None, normalise=True)

    @property
    def treatment(self) -> "EvaluationSpec":
        """The spec without what does not change the features: shots and classifier."""
        return replace(self, n_shot=1, classifier="centroid")

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
        values["power"] = float(self.power)  # 2 and 2.0 are one evaluation
        values["classifier"] = classifier_name(self.classifier)
        return values

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Inverse of `as_dict`, for classifiers in `CLASSIFIERS`."""
        return cls(**{**values, "layers": tuple(values["layers"])})
