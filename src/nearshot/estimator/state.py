"""What a classifier knows after `fit`, as one thing that never changes: learning more makes another one.

So a thread that answers by it has labels, features, temperature and threshold of one and the same support set, whatever
another thread learns or forgets meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, Self, TypeVar, overload

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from nearshot.errors import InputError
from nearshot.estimator.arrays import without_tensors
from nearshot.estimator.bundle import Learnt
from nearshot.estimator.calibration import choose_temperature, usual_temperature
from nearshot.estimator.embedder import Embedder
from nearshot.estimator.leave_one_out import left_out_scores
from nearshot.estimator.novelty import Spread, choose_threshold, class_spread, left_out_novelties, novelties
from nearshot.estimator.scores import Support, class_scores
from nearshot.estimator.settings import warn_of_repeated
from nearshot.evaluation import prepare_features
from nearshot.evaluation.classifiers import ClassifierName

__all__ = ["NUMBERS", "Fitted", "FittedAttribute", "Labelled", "Settings", "is_mixed", "learn"]

Array = npt.NDArray[Any]
Value = TypeVar("Value")
NUMBERS = "biuf"  # kinds of NumPy's types


class Settings(NamedTuple):
    """The parameters of a classifier that its answers depend on, as they were when it was fitted."""

    classifier: ClassifierName
    n_neighbors: int | None
    centre: Any
    normalise: bool
    temperature: Any
    unknown_rate: float | None
    unknown_label: Any


class Labelled(NamedTuple):
    """Labelled images.

    Attributes:
        features: (image, dim) as embedded.
        labels: (image,).
        names: what to call the images.
        columns: the names of the features' columns, where they came with some.
    """

    features: Array
    labels: Array
    names: list[str]
    columns: Array | None


@dataclass(frozen=True, eq=False)
class Fitted:
    """All that it takes to answer.

    Attributes:
        settings: those that it was fitted with.
        learnt: the support images, and what was chosen by them.
        embedder: what embeds pictures; None where features are given.
        columns: the names of the features' columns, where they came with some.
        support: the prepared support set.
        spread: what novelty is measured with.
    """

    settings: Settings
    learnt: Learnt
    embedder: Embedder | None
    columns: Array | None
    support: Support
    spread: Spread

    @classmethod
    def of(cls, settings: Settings, learnt: Learnt, embedder: Embedder | None, columns: Array | None) -> Self:
        """Return the state of what was learnt, now or before it was saved."""
        prepared = _prepared(learnt.features, learnt.centre, settings)
        support = Support(prepared, torch.from_numpy(learnt.codes), len(learnt.classes))
        return cls(settings, learnt, embedder, columns, support, class_spread(support))

    def prepare(self, features: Array) -> Tensor:
        """Return new features centred and normalised."""
        return _prepared(features, self.learnt.centre, self.settings)

    def scores(self, query: Tensor) -> Tensor:
        """Return the scores of the classes for prepared features, (query, class)."""
        return class_scores(query, self.support, self.settings.classifier, self.settings.n_neighbors)

    def probabilities(self, scores: Tensor) -> Tensor:
        """Return the probabilities of the classes by their scores, (query, class)."""
        return (scores / self.learnt.temperature).softmax(1)

    def novelties(self, query: Tensor) -> Tensor:
        """Return how unlike any class prepared features are, (query,)."""
        return novelties(query, self.spread)

    def answers(self, codes: Tensor, newness: Tensor) -> Array:
        """Return labels, or the unknown one where an image is too new."""
        labels: Array = self.learnt.classes[codes.numpy()]
        if not np.isfinite(self.learnt.threshold):
            return labels
        unknown = np.asarray(self.settings.unknown_label)
        if is_mixed(labels, self.settings.unknown_label):
            labels, unknown = labels.astype(object), unknown.astype(object)
        return np.where((newness > self.learnt.threshold).numpy(), unknown, labels)

    def labels(self) -> Array:
        """Return the label of each support image, (image,)."""
        labels: Array = self.learnt.classes[self.learnt.codes]
        return labels


class FittedAttribute(Generic[Value]):
    """An attribute of a classifier that is its `Fitted`'s; without one, there is no such attribute.

    scikit-learn may write it into a copy that has no `Fitted` while it checks new features; that comes first there.
    """

    def __init__(self, get: Callable[[Fitted], Value | None], *, may_be_none: bool = False) -> None:
        self.get, self.may_be_none = get, may_be_none

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    @overload
    def __get__(self, model: None, owner: type) -> Self: ...

    @overload
    def __get__(self, model: object, owner: type) -> Value: ...

    def __get__(self, model: object | None, owner: type) -> Self | Value:
        """Return the attribute of a classifier."""
        if model is None:
            return self
        fitted = vars(model).get("_fitted")
        value = None if fitted is None else self.get(fitted)
        if value is None and (fitted is None or not self.may_be_none):
            raise AttributeError(f"{owner.__name__!r} object has no attribute {self.name!r}")
        return value  # type: ignore[return-value]


def is_mixed(labels: Array, unknown_label: Any) -> bool:
    """Whether one of the labels and the unknown one is a number and the other a text: they have no common type."""
    return (np.asarray(unknown_label).dtype.kind in NUMBERS) != (labels.dtype.kind in NUMBERS)


def learn(settings: Settings, given: Labelled, embedder: Embedder | None) -> Fitted:
    """Return the state of a support set."""
    classes, codes = np.unique(given.labels, return_inverse=True)
    if settings.unknown_rate is not None and settings.unknown_label in classes.tolist():
        raise InputError(f"{settings.unknown_label!r} is a class's label; choose another unknown_label.")
    centre = _centre(settings, given.features, embedder)
    support = Support(_prepared(given.features, centre, settings), torch.from_numpy(codes), len(classes))
    if embedder is not None:
        warn_of_repeated(support, given.names, classes.tolist())
    temperature, threshold = _temperature(settings, support), _threshold(settings, support)
    learnt = Learnt(classes, given.features, codes, given.names, centre, temperature, threshold)
    return Fitted(settings, learnt, embedder, given.columns, support, class_spread(support))


def _prepared(features: Array, centre: Array | None, settings: Settings) -> Tensor:
    """Centre and normalise, in float64: near ties are decided by the features and not by rounding."""
    given = torch.from_numpy(np.array(features, dtype=np.float64))
    offset = None if centre is None else torch.from_numpy(np.array(centre, dtype=np.float64))
    return prepare_features(given, centre=offset, normalise=bool(settings.normalise))


def _centre(settings: Settings, features: Array, embedder: Embedder | None) -> Array | None:
    if settings.centre is None:
        return None
    if isinstance(settings.centre, str):
        if settings.centre == "support":
            return np.asarray(features.mean(0))
        return None if embedder is None else embedder.centre
    return np.asarray(without_tensors(settings.centre), dtype=features.dtype)


def _temperature(settings: Settings, support: Support) -> float:
    if settings.temperature != "auto":
        return float(settings.temperature)
    scores, codes, _ = left_out_scores(support, settings.classifier, settings.n_neighbors)
    return choose_temperature(scores, codes) * usual_temperature(support, settings.classifier, settings.n_neighbors)


def _threshold(settings: Settings, support: Support) -> float:
    if settings.unknown_rate is None:
        return float("inf")
    if len(support.codes) == 1:
        raise InputError(
            "A single image does not tell how far is too far, so nothing can be unknown. Give a second one, of any "
            "class, or unknown_rate=None."
        )
    return choose_threshold(left_out_novelties(support), float(settings.unknown_rate))
