"""Accuracy by class: which classes features tell apart, over the episodes that an accuracy is of."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from nearshot.errors import FileFormatError
from nearshot.evaluation.arguments import as_feature_set, functions_of, source_of
from nearshot.evaluation.classifiers import FeatureClassifier, classifier_name
from nearshot.evaluation.engine import Job, Treated, answer
from nearshot.evaluation.episodes import Episodes, SmallClasses
from nearshot.evaluation.features import FeatureSet
from nearshot.evaluation.statistics import interval, with_interval

__all__ = ["ClassAccuracy", "evaluate_classes"]


@dataclass(frozen=True)
class ClassAccuracy:
    """How many of a class's queries were answered rightly, in per cent.

    Attributes:
        mean: the mean over the episodes that ask about it.
        interval95: half its 95 % interval over these episodes; NaN for a single one.
        n_episodes: how many ask about it.
    """

    mean: float
    interval95: float
    n_episodes: int

    def __str__(self) -> str:
        return with_interval(self.mean, self.interval95)

    def as_dict(self) -> dict[str, Any]:
        """Return it as JSON can hold it."""
        return vars(self) | {"interval95": None if math.isnan(self.interval95) else self.interval95}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> ClassAccuracy:
        """Return the accuracy of which `as_dict` gave the values."""
        try:
            half = values["interval95"]
            return cls(float(values["mean"]), math.nan if half is None else float(half), int(values["n_episodes"]))
        except (KeyError, TypeError, ValueError) as error:
            raise FileFormatError(f"This is no accuracy of a class: {error!r}.") from error


def evaluate_classes(
    features: Tensor | FeatureSet,
    labels: Tensor | None = None,
    *,
    n_way: int = 5,
    n_shot: int | None = None,
    n_query: int = 15,
    n_episodes: int = 10_000,
    classifier: str | FeatureClassifier = "centroid",
    centre: Tensor | None = None,
    normalise: bool = True,
    seed: int = 0,
    episodes: Episodes | None = None,
    small_classes: SmallClasses = "raise",
    inductive: bool | None = None,
    progress: bool | None = None,
) -> dict[str, ClassAccuracy]:
    """Return the accuracy of each class, by name or label: that of `evaluate_features`, on the same episodes, apart.

    A class is asked about together with others, drawn at random, so that it is hard if many of them are like it. One
    that no episode asks about is left out. The hardest first: `sorted(found, key=lambda name: found[name].mean)`.

    Args:
        features: (image, dim), or a `FeatureSet`, which brings its labels, centre and the classes' names.
        labels: (image,) whole numbers.
        n_way: classes in an episode.
        n_shot: support images of each class; by default 5, or as many as `episodes` has.
        n_query: query images of each class.
        n_episodes: how many episodes.
        classifier: "centroid", "soft", "knn", or a function as in `nearshot.evaluation.classifiers`.
        centre: (dim,) the mean feature of the training set, to be subtracted; None for nothing.
        normalise: whether to divide each feature by its length.
        seed: which episodes.
        episodes: these episodes instead; then the ways, queries, number and seed are theirs.
        small_classes: what to do about classes with too few images, as in `evaluate_features`.
        inductive: for a function of your own, whether it looks at each query alone.
        progress: whether to show a bar.

    >>> import torch
    >>> labels = torch.arange(4).repeat_interleave(30)
    >>> features = torch.eye(3)[labels.clamp(max=2)]  # the last two classes are alike
    >>> found = evaluate_classes(features, labels, n_way=3, n_episodes=200)
    >>> {label: one.mean == 100 for label, one in found.items()}
    {'0': True, '1': True, '2': False, '3': False}
    """
    data = as_feature_set(features, labels, centre)
    if n_shot is None:
        n_shot = 5 if episodes is None else episodes.shape.n_shot
    name = classifier_name(classifier)
    classify = functions_of({name: classifier}, inductive)[name]
    source = source_of(data, n_way, (n_shot,), n_query, n_episodes, seed, episodes, small_classes)
    job = Job.begin(n_shot, name, classify, source, data.features.device)
    answer([Treated(data.features.detach(), data.centre, normalise, [job])], source, data.content, progress)
    asked = data.labels.cpu()[source.draw(0, len(source))[:, :, 0]].flatten()  # the class of each episode's ways
    percent = 100 * job.n_correct.cpu().double().flatten() / source.shape.n_query
    names = dict(enumerate(data.class_names))
    found = {}
    for label in asked.unique().tolist():
        values = percent[asked == label]
        found[names.get(label, str(label))] = ClassAccuracy(float(values.mean()), interval(values), len(values))
    return found
