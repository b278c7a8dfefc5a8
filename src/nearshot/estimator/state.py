"""The state of a fitted classifier: one immutable object, which learning more replaces.

A thread that predicts reads it once. Its labels, features, temperature and threshold then belong to the same support
set, even if another thread calls `fit` or `forget` meanwhile.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from nearshot.errors import InputError
from nearshot.estimator.calibration import choose_temperature, typical_temperature
from nearshot.estimator.embedder import Embedder
from nearshot.estimator.leave_one_out import held_out_scores
from nearshot.estimator.novelty import Spread, choose_threshold, class_spread, held_out_novelties, novelties
from nearshot.estimator.settings import ClassifierSettings, are_mixed, warn_about_repeated_images, without_tensors
from nearshot.estimator.support import Support, class_scores
from nearshot.evaluation import prepare_features

__all__ = ["Fitted", "Labelled", "Learnt", "learn"]

Array = npt.NDArray[Any]


class Labelled(NamedTuple):
    """Labelled images."""

    features: Array  # (image, dim) as embedded
    labels: Array  # (image,)
    names: list[str]
    columns: Array | None  # the names of the feature columns, if they have any


@dataclass(frozen=True, eq=False)
class Learnt:
    """What a classifier learns from its support images."""

    classes: Array  # (class,) the labels
    features: Array  # (image, dim) as embedded
    codes: npt.NDArray[np.int64]  # (image,) indices into `classes`
    names: list[str]
    centre: Array | None  # (dim,) the mean to subtract, if any
    temperature: float  # the divisor of the scores
    threshold: float  # the novelty above which an image is unknown


@dataclass(frozen=True, eq=False)
class Fitted:
    """A fitted classifier."""

    settings: ClassifierSettings
    learnt: Learnt
    embedder: Embedder | None  # None if features are given
    columns: Array | None  # the names of the feature columns, if they have any

    @cached_property
    def support(self) -> Support:
        """The prepared support set."""
        learnt = self.learnt
        return Support(self.prepare(learnt.features), torch.from_numpy(learnt.codes), len(learnt.classes))

    @cached_property
    def spread(self) -> Spread:
        """The statistics that novelty is computed from."""
        return class_spread(self.support)

    def prepare(self, features: Array) -> Tensor:
        """Return new features centred and normalised."""
        return _prepared(features, self.learnt.centre, self.settings)

    def scores(self, query: Tensor) -> Tensor:
        """Return the scores of the classes for prepared features, (query, class)."""
        return class_scores(query, self.support, self.settings.classifier, self.settings.n_neighbors)

    def probabilities(self, scores: Tensor) -> Tensor:
        """Return the probabilities of the classes, (query, class)."""
        return (scores / self.learnt.temperature).softmax(1)

    def novelties(self, query: Tensor) -> Tensor:
        """Return the novelty of prepared features, (query,)."""
        return novelties(query, self.spread)

    def answers(self, codes: Tensor, novelty: Tensor) -> Array:
        """Return the labels of class indices, or the unknown label where the novelty is above the threshold."""
        labels: Array = self.learnt.classes[codes.numpy()]
        if not np.isfinite(self.learnt.threshold):
            return labels
        unknown = np.asarray(self.settings.unknown_label)
        if are_mixed(labels, unknown):
            labels, unknown = labels.astype(object), unknown.astype(object)
        return np.where((novelty > self.learnt.threshold).numpy(), unknown, labels)

    def labels(self) -> Array:
        """Return the label of each support image, (image,)."""
        labels: Array = self.learnt.classes[self.learnt.codes]
        return labels


def learn(settings: ClassifierSettings, given: Labelled, embedder: Embedder | None) -> Fitted:
    """Return the state for a support set."""
    classes, codes = np.unique(given.labels, return_inverse=True)
    if settings.unknown_rate is not None and settings.unknown_label in classes.tolist():
        raise InputError(f"unknown_label must not be the label of a class (got {settings.unknown_label!r}).")
    centre = _centre(settings, given.features, embedder)
    support = Support(_prepared(given.features, centre, settings), torch.from_numpy(codes), len(classes))
    if embedder is not None:
        warn_about_repeated_images(support, given.names, classes.tolist())
    temperature, threshold = _temperature(settings, support), _threshold(settings, support)
    learnt = Learnt(classes, given.features, codes, given.names, centre, temperature, threshold)
    return Fitted(settings, learnt, embedder, given.columns)


def _prepared(features: Array, centre: Array | None, settings: ClassifierSettings) -> Tensor:
    """Centre and normalise in float64, so that rounding does not decide near ties."""
    given = torch.from_numpy(np.array(features, dtype=np.float64))
    offset = None if centre is None else torch.from_numpy(np.array(centre, dtype=np.float64))
    return prepare_features(given, centre=offset, normalise=bool(settings.normalise))


def _centre(settings: ClassifierSettings, features: Array, embedder: Embedder | None) -> Array | None:
    if settings.centre is None:
        return None
    if isinstance(settings.centre, str):
        if settings.centre == "support":
            return np.asarray(features.mean(0))
        return None if embedder is None else embedder.centre
    return np.asarray(without_tensors(settings.centre), dtype=features.dtype)


def _temperature(settings: ClassifierSettings, support: Support) -> float:
    if settings.temperature != "auto":
        return float(settings.temperature)
    scores, codes, _ = held_out_scores(support, settings.classifier, settings.n_neighbors)
    return choose_temperature(scores, codes) * typical_temperature(support, settings.classifier, settings.n_neighbors)


def _threshold(settings: ClassifierSettings, support: Support) -> float:
    if settings.unknown_rate is None:
        return float("inf")
    if len(support.codes) == 1:
        raise InputError("unknown_rate needs at least 2 labelled images (got 1). Add one, or drop unknown_rate.")
    return choose_threshold(held_out_novelties(support), float(settings.unknown_rate))
