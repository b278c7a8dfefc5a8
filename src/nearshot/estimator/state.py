"""The parameters and the state of a fitted classifier: one immutable object, which learning more replaces.

A thread that predicts reads it once. Its labels, features, temperature and threshold then belong to
the same support set, even if another thread calls `fit` or `forget` meanwhile.
"""

import itertools
import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from numbers import Real
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from nearshot.checks import check_count
from nearshot.distances import squared_euclidean
from nearshot.errors import InputError, NearshotError
from nearshot.estimator.embedder import Embedder
from nearshot.estimator.read_images import read_each, without_tensors
from nearshot.estimator.leave_one_out import (
    HeldOut,
    choose_temperature,
    held_out_scores,
    typical_temperature,
)
from nearshot.estimator.novelty import (
    TYPICAL_BY_SCORE,
    choose_threshold,
    class_variances,
    held_out_novelties,
    novelties,
    weigh_by_score,
)
from nearshot.estimator.support import Head, Support, class_scores, classifier_of, fit_head
from nearshot.evaluation import prepare_features
from nearshot.evaluation.classifiers import RIDGE, first_best
from nearshot.text import format_list

NUMBERS = "biuf"  # kinds of NumPy types
SAME_IMAGE = 1e-5  # the rounding difference between two embeddings of one image, relative to the feature's length
SAME_SIDE = 64  # of the squares whose pixels are compared

Array = npt.NDArray[Any]


class ClassifierSettings(NamedTuple):
    """The parameters of a classifier that its answers depend on."""

    classifier: str
    n_neighbors: int | None
    centre: Any
    normalise: bool
    temperature: Any
    unknown_rate: Any
    unknown_label: Any

    def check(self) -> Self:
        """Return the settings; raise an error if a value is invalid."""
        classifier_of(self.classifier)
        if self.n_neighbors is not None:
            check_count(self.n_neighbors, "n_neighbors")
        temperature, rate = self.temperature, self.unknown_rate
        if (
            not (isinstance(temperature, Real) and 0 < float(temperature) < math.inf)
            and temperature != "auto"
        ):
            raise InputError(
                f"temperature must be 'auto' or a number above 0 (got {temperature!r})."
            )
        if rate is not None:
            check_unknown_rate(rate)
        if isinstance(self.centre, str) and self.centre not in ("auto", "support"):
            raise InputError(
                f"centre must be 'auto', 'support', an array or None (got {self.centre!r})."
            )
        return self


class Answers(NamedTuple):
    """What a classifier says about queries."""

    scores: Tensor  # (query, class)
    codes: Tensor  # (query,) the indices of the classes with the highest scores
    probabilities: Tensor  # (query, class)
    novelty: Tensor  # (query,)
    is_unknown: Tensor  # (query,) whether the novelty is above the threshold


@dataclass(frozen=True, eq=False)
class Fitted:
    """A fitted classifier: its settings, and what it has learnt from its support images."""

    settings: ClassifierSettings
    embedder: Embedder | None  # None if features are given
    classes: Array  # (class,) the labels
    features: Array  # (image, dim) as embedded
    codes: npt.NDArray[np.int64]  # (image,) indices into `classes`
    names: list[str]
    columns: Array | None  # the names of the feature columns, if they have any
    centre: Array | None  # (dim,) the mean to subtract, if any
    temperature: float = 1.0  # the divisor of the scores
    threshold: float = math.inf  # the novelty above which an image is unknown

    @cached_property
    def support(self) -> Support:
        """The prepared support set."""
        return Support(self.prepare(self.features), torch.from_numpy(self.codes), len(self.classes))

    @cached_property
    def head(self) -> Head:
        """The classifier, fitted to the support set."""
        return fit_head(self.settings.classifier, self.support, self.settings.n_neighbors)

    @cached_property
    def held_out(self) -> HeldOut:
        """The scores that support images get when they are held out."""
        return held_out_scores(self.support, self.settings.classifier, self.settings.n_neighbors)

    @cached_property
    def variances(self) -> Tensor:
        """The variance of each class, (class,), which novelty is relative to."""
        return class_variances(self.support)

    def prepare(self, features: Array) -> Tensor:
        """Return new features centred and normalised; in float64, so that rounding does not decide near ties."""
        offset = (
            None
            if self.centre is None
            else torch.from_numpy(np.array(self.centre, dtype=np.float64))
        )
        given = torch.from_numpy(np.array(features, dtype=np.float64))
        return prepare_features(given, centre=offset, normalise=bool(self.settings.normalise))

    def answer(self, query: Tensor) -> Answers:
        """Return the answers for prepared features, (query, dim)."""
        scores = class_scores(query, self.support, self.head)
        novelty = novelties(query, self.support, self.variances)
        if self.head.classifier is RIDGE:
            novelty = weigh_by_score(novelty, scores)
        probabilities = (scores / self.temperature).softmax(1)
        return Answers(scores, first_best(scores), probabilities, novelty, novelty > self.threshold)

    def labels(self, answers: Answers) -> Array:
        """Return the label of each answer, or the unknown label where the novelty is above the threshold."""
        labels: Array = self.classes[answers.codes.numpy()]
        if not np.isfinite(self.threshold):
            return labels
        unknown = np.asarray(self.settings.unknown_label)
        if are_mixed(labels, unknown):
            labels, unknown = labels.astype(object), unknown.astype(object)
        return np.where(answers.is_unknown.numpy(), unknown, labels)


def learn(
    settings: ClassifierSettings,
    embedder: Embedder | None,
    features: Array,
    labels: Array,
    names: list[str],
    columns: Array | None,
) -> Fitted:
    """Return the state for labelled images, given by their features (image, dim), labels and names."""
    classes, codes = np.unique(labels, return_inverse=True)
    centre, temperature, rate = settings.centre, settings.temperature, settings.unknown_rate
    if rate is not None and settings.unknown_label in classes.tolist():
        what = f'A class is named "{settings.unknown_label}"'
        raise InputError(f"{what}. Rename its folder, or use --unknown-label other.")
    if rate is not None and len(codes) == 1:
        raise InputError(
            "unknown_rate needs at least 2 labelled images (got 1). Add one, or drop unknown_rate."
        )
    if isinstance(centre, str):
        stored = None if embedder is None else embedder.centre
        centre = features.mean(0) if centre == "support" else stored
    elif centre is not None:
        centre = np.asarray(without_tensors(centre), dtype=features.dtype)
    fitted = Fitted(settings, embedder, classes, features, codes, names, columns, centre)
    typical, threshold = (
        typical_temperature(fitted.support, settings.classifier, settings.n_neighbors),
        math.inf,
    )
    if temperature == "auto":
        temperature = choose_temperature(fitted.held_out.scores, fitted.held_out.codes) * typical
    if rate is not None and classifier_of(settings.classifier) is RIDGE and len(classes) > 1:
        by_distance = held_out_novelties(fitted.support, fitted.held_out.images)
        novelty = weigh_by_score(by_distance, fitted.held_out.scores * typical)
        threshold = choose_threshold(novelty, float(rate), TYPICAL_BY_SCORE)
    elif rate is not None:
        threshold = choose_threshold(held_out_novelties(fitted.support), float(rate))
    return replace(fitted, temperature=float(temperature), threshold=threshold)


def check_unknown_rate(rate: Any) -> None:
    """Raise an error unless a rate is a number between 0 and 1."""
    if not (isinstance(rate, Real) and 0 < float(rate) < 1):
        raise InputError(f"unknown_rate must be between 0 and 1, such as 0.05 (got {rate!r}).")


def are_mixed(labels: Array, others: Any) -> bool:
    """Return whether one of two sets of labels holds numbers and the other strings."""
    return (labels.dtype.kind in NUMBERS) != (np.asarray(others).dtype.kind in NUMBERS)


def warn_about_repeated_images(fitted: Fitted, images: Sequence[Any]) -> None:
    """Warn about support images that are in two classes, or twice in one; `images` are all of them, or their paths.

    Images are the same if their pixels are. Only those with nearly equal embeddings are compared,
    and one that can no longer be read is skipped.
    """
    support, labels, suspects = fitted.support, fitted.classes[fitted.codes].tolist(), list[int]()
    for rows in support.blocks(torch.arange(len(labels))):
        features = support.features[rows]
        near = (
            squared_euclidean(features, support.features)
            < (SAME_IMAGE * features.norm(dim=1)).square()[:, None]
        )
        suspects += rows[near.sum(1) > 1].tolist()  # another image than itself
    places: dict[bytes, list[int]] = {}
    squares = read_each(
        [images[place] for place in suspects], lambda content: content.square(SAME_SIDE)
    )
    for place, square in zip(suspects, squares, strict=True):
        if not isinstance(square, NearshotError):
            places.setdefault(square.tobytes(), []).append(place)
    same = [pair for group in places.values() for pair in itertools.combinations(group, 2)]
    for in_one_class, where in ((False, "in two classes"), (True, "twice in one class")):
        pairs = [pair for pair in same if (labels[pair[0]] == labels[pair[1]]) == in_one_class]
        if pairs:
            named = format_list(
                pairs,
                lambda pair: " and ".join(f"{fitted.names[i]} in {labels[i]!r}" for i in pair),
            )
            warnings.warn(f"The same image is {where}: {named}. Keep one of them.", stacklevel=4)
