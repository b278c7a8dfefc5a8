"""The settings and the state of a fitted classifier: one immutable object, replaced by each fit.

A thread that predicts reads it once. Its labels, features, temperature and threshold then belong to
the same support set, even if another thread calls `fit` or `forget` meanwhile.
"""

import math
import warnings
from dataclasses import dataclass, replace
from functools import cached_property
from numbers import Real
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from nearshot.checks import check_count
from nearshot.errors import InputError
from nearshot.estimator.calibration import (
    Temperatures,
    class_probabilities,
    typical_temperature,
    weigh_temperatures,
)
from nearshot.estimator.embedder import Embedder
from nearshot.estimator.groups import Groups, find_groups
from nearshot.estimator.head import Head, class_scores, find_classifier, fit_head
from nearshot.estimator.leave_one_out import HeldOutScores, held_out_scores
from nearshot.estimator.novelty import (
    TYPICAL_BY_SCORE,
    choose_threshold,
    class_variances,
    held_out_images,
    held_out_novelties,
    novelties,
    weigh_by_score,
)
from nearshot.estimator.read_images import without_tensors
from nearshot.estimator.support import Support
from nearshot.evaluation import prepare_features
from nearshot.evaluation.classifiers import RIDGE, Classifier, first_best

CHAINED = (
    "Most photos of most classes look alike to this network, so each counts on its own. If they "
    "show the same thing, the expected accuracy is too high: give groups, or add other photos."
)
NUMBER_KINDS = "biuf"  # kinds of NumPy types

Array = npt.NDArray[Any]


@dataclass(frozen=True, eq=False, kw_only=True)
class ClassifierSettings:
    """The parameters of a `FewShotClassifier` that its answers depend on."""

    classifier: str
    n_neighbors: int | None
    centre: Literal["auto", "support"] | npt.ArrayLike | None
    normalise: bool
    temperature: Literal["auto"] | float
    reject_rate: float
    reject_label: Any

    @property
    def definition(self) -> Classifier:
        """The classifier of `nearshot.evaluation` that `classifier` names."""
        return find_classifier(self.classifier)

    def check(self) -> None:
        """Raise an error if a value is invalid."""
        find_classifier(self.classifier)
        if self.n_neighbors is not None:
            check_count(self.n_neighbors, "n_neighbors")
        check_reject_rate(self.reject_rate)
        if self.temperature != "auto" and not _is_number_between(self.temperature, 0, math.inf):
            raise InputError(
                f"temperature must be 'auto' or a number above 0 (got {self.temperature!r})."
            )
        if isinstance(self.centre, str) and self.centre not in ("auto", "support"):
            raise InputError(
                f"centre must be 'auto', 'support', an array or None (got {self.centre!r})."
            )


@dataclass(frozen=True, eq=False)
class Answers:
    """What a classifier says about queries.

    Attributes:
        scores: (query, class).
        codes: (query,) the indices of the classes with the highest scores.
        probabilities: (query, class).
        novelty: (query,).
        is_rejected: (query,) whether the novelty is above the threshold.
    """

    scores: Tensor
    codes: Tensor
    probabilities: Tensor
    novelty: Tensor
    is_rejected: Tensor


@dataclass(frozen=True, eq=False)
class FittedState:
    """A fitted classifier: its settings, and what it has learnt from its support images.

    Attributes:
        settings: the parameters at the time of the fit.
        embedder: turns images into features; None if features are given.
        classes: (class,) the labels, sorted.
        features: (image, dim) as embedded.
        codes: (image,) indices into `classes`.
        names: the names of the images.
        given_groups: the name of the group that was given for each image, or None.
        feature_names: the names of the feature columns, if they have any.
        centre: (dim,) the mean to subtract, if any.
        temperatures: the divisors of the scores, and their weights.
        threshold: the novelty above which an image is rejected.
    """

    settings: ClassifierSettings
    embedder: Embedder | None
    classes: Array
    features: Array
    codes: npt.NDArray[np.int64]
    names: list[str]
    given_groups: list[str | None]
    feature_names: Array | None
    centre: Array | None
    temperatures: Temperatures = Temperatures.single(1.0)  # noqa: RUF009 (it is immutable)
    threshold: float = math.inf

    @property
    def labels(self) -> Array:
        """The label of each support image, (image,)."""
        return self.classes[self.codes]

    @cached_property
    def support(self) -> Support:
        """The prepared support set."""
        return Support(self.prepare(self.features), torch.from_numpy(self.codes), len(self.classes))

    @cached_property
    def head(self) -> Head:
        """The classifier, fitted to the support set."""
        return fit_head(self.settings.classifier, self.support, self.settings.n_neighbors)

    @cached_property
    def held_out(self) -> HeldOutScores:
        """The scores that support images get while they are held out."""
        return held_out_scores(
            self.support, self.settings.classifier, self.settings.n_neighbors, self.groups
        )

    @cached_property
    def groups(self) -> Groups:
        """Which support images show the same thing, as far as it was found or given."""
        return self._found_groups[0]

    @property
    def are_chained(self) -> bool:
        """Whether most images of most classes look alike, so that no groups were found."""
        return self._found_groups[1]

    @cached_property
    def _found_groups(self) -> tuple[Groups, bool]:
        cosine = None if self.embedder is None else self.embedder.look_alike_cosine
        return find_groups(
            self.features, self.codes, look_alike_cosine=cosine, names=self.given_groups
        )

    @cached_property
    def variances(self) -> Tensor:
        """The variance of each class, (class,), which novelty is relative to."""
        return class_variances(self.support)

    def prepare(self, features: Array) -> Tensor:
        """Return features centred and normalised.

        In float64, so that rounding does not decide near ties.
        """
        centre = None
        if self.centre is not None:
            centre = torch.from_numpy(np.array(self.centre, dtype=np.float64))
        rows = torch.from_numpy(np.array(features, dtype=np.float64))
        return prepare_features(rows, centre=centre, normalise=bool(self.settings.normalise))

    def answer(self, query: Tensor) -> Answers:
        """Return the answers for prepared features, (query, dim)."""
        scores = class_scores(query, self.support, self.head)
        novelty = novelties(query, self.support, self.variances)
        if self.head.classifier is RIDGE:
            novelty = weigh_by_score(novelty, scores)
        return Answers(
            scores=scores,
            codes=first_best(scores),
            probabilities=class_probabilities(scores, self.temperatures),
            novelty=novelty,
            is_rejected=novelty > self.threshold,
        )

    def answer_labels(self, answers: Answers) -> Array:
        """Return the label of each answer, or `reject_label` where the image is rejected."""
        labels: Array = self.classes[answers.codes.numpy()]
        if not np.isfinite(self.threshold):
            return labels
        reject_label = np.asarray(self.settings.reject_label)
        if mix_numbers_and_strings(labels, reject_label):
            labels = labels.astype(object)
            reject_label = reject_label.astype(object)
        return np.where(answers.is_rejected.numpy(), reject_label, labels)


def fit_state(
    settings: ClassifierSettings,
    embedder: Embedder | None,
    features: Array,
    labels: Array,
    names: list[str],
    given_groups: list[str | None],
    feature_names: Array | None,
) -> FittedState:
    """Return the state for labelled images, given by features (image, dim), labels and names."""
    classes, codes = np.unique(labels, return_inverse=True)
    if settings.reject_rate > 0:
        _check_rejection(settings, classes, n_images=len(codes))
    uncalibrated = FittedState(
        settings=settings,
        embedder=embedder,
        classes=classes,
        features=features,
        codes=codes,
        names=names,
        given_groups=given_groups,
        feature_names=feature_names,
        centre=_find_centre(settings, embedder, features),
    )
    if uncalibrated.are_chained:
        warnings.warn(CHAINED, stacklevel=4)  # the caller of fit or partial_fit
    return replace(
        uncalibrated,
        temperatures=_find_temperatures(uncalibrated),
        threshold=_find_threshold(uncalibrated),
    )


def _check_rejection(settings: ClassifierSettings, classes: Array, n_images: int) -> None:
    if settings.reject_label in classes.tolist():
        raise InputError(
            f"reject_label must not be the name of a class (got {settings.reject_label!r}). "
            "Choose another reject_label, or rename the class."
        )
    if n_images == 1:
        raise InputError(
            "reject_rate needs at least 2 labelled images (got 1). Add one, or set it to 0."
        )


def _find_centre(
    settings: ClassifierSettings, embedder: Embedder | None, features: Array
) -> Array | None:
    """Return the mean to subtract from features, (dim,), if any."""
    if settings.centre is None:
        return None
    if not isinstance(settings.centre, str):
        return np.asarray(without_tensors(settings.centre), dtype=features.dtype)
    if settings.centre == "support":
        mean: Array = features.mean(0)
        return mean
    return None if embedder is None else embedder.centre


def _find_temperatures(state: FittedState) -> Temperatures:
    """Return the divisors of the scores, and their weights."""
    if state.settings.temperature != "auto":
        return Temperatures.single(float(state.settings.temperature))
    held_out = state.held_out
    multiples = weigh_temperatures(held_out.scores, held_out.codes, held_out.votes)
    return multiples.times(_typical_temperature(state))


def _find_threshold(state: FittedState) -> float:
    """Return the novelty above which an image is rejected; infinite if none is."""
    rate = state.settings.reject_rate
    if rate == 0:
        return math.inf
    support = state.support
    if state.settings.definition is RIDGE and support.between is not None:
        held_out = state.held_out
        by_distance = held_out_novelties(support, held_out.images, state.groups)
        return choose_threshold(
            weigh_by_score(by_distance, held_out.scores * _typical_temperature(state)),
            float(rate),
            votes=held_out.votes,
            typical=TYPICAL_BY_SCORE,
        )
    images = held_out_images(support, state.groups)
    return choose_threshold(
        held_out_novelties(support, images, state.groups),
        float(rate),
        votes=state.groups.votes(images),
    )


def _typical_temperature(state: FittedState) -> float:
    settings = state.settings
    return typical_temperature(state.support, settings.classifier, settings.n_neighbors)


def check_reject_rate(reject_rate: Any) -> None:
    """Raise an error unless a rate is a number from 0 to below 1."""
    is_rate = isinstance(reject_rate, Real) and 0 <= float(reject_rate) < 1
    if not is_rate:
        raise InputError(
            f"reject_rate must be at least 0 and below 1, such as 0.05 (got {reject_rate!r})."
        )


def _is_number_between(value: Any, low: float, high: float) -> bool:
    return isinstance(value, Real) and low < float(value) < high


def mix_numbers_and_strings(labels: Array, others: Array) -> bool:
    """Return whether one of two sets of labels holds numbers and the other strings."""
    return (labels.dtype.kind in NUMBER_KINDS) != (others.dtype.kind in NUMBER_KINDS)
