"""Accuracy over episodes: of features, by class, and of what other code predicted."""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple, Self, Unpack

import torch
from torch import Tensor

from nearshot.checks import to_python
from nearshot.errors import InputError
from nearshot.evaluation.classifiers import ClassifierOrName, classifier_name
from nearshot.evaluation.engine import Tally, Task, TaskSettings, answer
from nearshot.evaluation.episodes import Episodes
from nearshot.evaluation.features import FeatureSet
from nearshot.evaluation.statistics import Accuracy, Protocol, interval, with_interval


class Treatment(NamedTuple):
    """What is done to features before they are classified: centring and normalising, each or not."""

    centred: bool
    normalised: bool


class Measured(NamedTuple):
    """The key of one accuracy of `evaluate_many`."""

    n_shot: int
    classifier: str
    treatment: Treatment


def evaluate_features(
    features: Tensor | FeatureSet, labels: Tensor | None = None, **settings: Unpack[TaskSettings]
) -> Accuracy:
    """Return the accuracy of a classifier on features, over episodes (Section 3.1).

    Args:
        features: (image, dim) in any floating type, on any device; or a `FeatureSet`, which has its
            own labels, centre, split, fingerprint and content.
        labels: (image,) whole numbers.
        settings: the fields of `EvaluationSpec` (n_way, n_shot, n_query, n_episodes, seed,
            classifier, normalise, small_classes, inductive) or `spec`, which has them all; and

            - centre: (dim,) the mean feature of the training set, which is subtracted;
            - episodes: the episodes to use instead of drawing them;
            - training_classes: the names of the classes that were trained on; evaluating one of
              them is refused. Needs a `FeatureSet` with class names;
            - split, fingerprint: of the dataset, for the result's protocol;
            - progress: whether to show a bar; by default on a terminal, for very many episodes.

    >>> generator = torch.Generator().manual_seed(0)
    >>> labels = torch.arange(10).repeat_interleave(30)
    >>> features = torch.randn(10, 16, generator=generator)[labels] + torch.randn(300, 16, generator=generator)
    >>> accuracy = evaluate_features(features, labels, n_episodes=1000)
    >>> print(f"{accuracy} %")
    94... ± 0... %
    """
    task = Task.of(features, labels, settings)
    tally = Tally.begin(task, task.spec)
    return task.accuracy(tally, answer(task, [tally]))


def evaluate_many(
    features: Tensor | FeatureSet,
    labels: Tensor | None = None,
    *,
    n_shots: Sequence[int] = (1, 5),
    classifiers: Sequence[ClassifierOrName] | Mapping[str, ClassifierOrName] = (
        "centroid",
        "soft",
        "knn",
    ),
    treatments: Sequence[Treatment] | None = None,
    **settings: Unpack[TaskSettings],
) -> dict[Measured, Accuracy]:
    """Measure many shots × classifiers × treatments of the features in one pass over the same episodes.

    Each result is that of `evaluate_features`. They are returned by (n_shot, classifier,
    treatment).

    The queries are the same for all numbers of shots, and fewer shots are the first of more.
    `classifiers` are names or functions, or a mapping of names of your own to them. Features are by
    default centred, if there is a centre, and normalised. All other arguments are those of
    `evaluate_features`.
    """
    n_shots = to_python(n_shots)
    if not isinstance(classifiers, Mapping):
        classifiers = {classifier_name(classifier): classifier for classifier in classifiers}
    wants_centre = treatments is not None and any(treatment.centred for treatment in treatments)
    extra: TaskSettings = {"centred": True} if wants_centre else {}
    task = Task.of(features, labels, {**settings, **extra, "n_shot": max(n_shots)})
    treatments = (
        [Treatment(bool(task.spec.centred), task.spec.normalise)]
        if treatments is None
        else treatments
    )
    tallies = {}
    for treatment, n_shot in itertools.product(treatments, n_shots):
        spec = replace(
            task.spec, n_shot=n_shot, centred=treatment.centred, normalise=treatment.normalised
        )
        for name, classifier in classifiers.items():
            own = replace(spec, classifier=classifier)
            tallies[Measured(n_shot, name, treatment)] = Tally.begin(task, own, name)
    digest = answer(task, list(tallies.values()))
    return {measured: task.accuracy(tally, digest) for measured, tally in tallies.items()}


@dataclass(frozen=True)
class ClassAccuracy:
    """The share of a class's queries that were answered correctly, in per cent.

    The mean and its 95 % interval are over the `n_episodes` episodes that contain the class; NaN
    for a single one.
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
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Return the accuracy of which `as_dict` gave the values."""
        half = values["interval95"]
        return cls(values["mean"], math.nan if half is None else half, values["n_episodes"])


def evaluate_classes(
    features: Tensor | FeatureSet, labels: Tensor | None = None, **settings: Unpack[TaskSettings]
) -> dict[str, ClassAccuracy]:
    """Return the accuracy of each class, by name or label, over the same episodes as `evaluate_features`.

    The arguments are those of `evaluate_features`. The other classes of an episode are drawn at
    random, so a class is hard if many are similar to it. A class that is in no episode has no
    result. The hardest comes first in `sorted(found, key=lambda name: found[name].mean)`.

    >>> labels = torch.arange(4).repeat_interleave(30)
    >>> features = torch.eye(3)[labels.clamp(max=2)]  # the last two classes are alike
    >>> found = evaluate_classes(features, labels, n_way=3, n_episodes=200)
    >>> {label: one.mean == 100 for label, one in found.items()}
    {'0': True, '1': True, '2': False, '3': False}
    """
    task = Task.of(features, labels, settings)
    tally = Tally.begin(task, task.spec)
    answer(task, [tally])
    classes = task.data.labels.cpu()[
        task.source.draw(0, len(task.source))[:, :, 0]
    ].flatten()  # (episode · way,)
    percent = 100 * tally.n_correct.cpu().double().flatten() / task.spec.n_query
    names = dict(enumerate(task.data.class_names))
    found = {}
    for label in classes.unique().tolist():
        values = percent[classes == label]
        found[names.get(label, str(label))] = ClassAccuracy(
            float(values.mean()), interval(values), len(values)
        )
    return found


def score_predictions(
    predictions: Tensor,
    episodes: Episodes,
    *,
    classifier: str,
    inductive: bool,
    adapted: str | None = None,
    split: str | None = None,
    fingerprint: str | None = None,
) -> Accuracy:
    """Score what other code predicted on exported episodes.

    `predictions` (episode, way, query) has the predicted way, a number under n_way, of each query
    of the file. The rest of the arguments are for the `Protocol` of the result; `classifier` says
    what made the predictions, in a few words.
    """
    shape, expected = episodes.shape, episodes.query.shape
    if predictions.shape != expected:
        came = tuple(predictions.shape)
        raise InputError(
            f"predictions must have shape {tuple(expected)}, (episode, way, query), not {came}."
        )
    if predictions.min() < 0 or predictions.max() >= shape.n_way:
        raise InputError(
            f"predictions must be ways, numbers from 0 to {shape.n_way - 1}. They are not the labels of the dataset."
        )
    truth = torch.arange(shape.n_way, device=predictions.device)[:, None]  # (way, 1)
    protocol = Protocol(
        **asdict(shape),
        n_episodes=len(episodes),
        seed=episodes.seed,
        episodes=episodes.digest,
        classifier=classifier,
        centred=None,
        normalised=None,
        adapted=adapted,
        inductive=inductive,
        split=split,
        fingerprint=fingerprint,
    )
    return Accuracy.of_counts((predictions == truth).flatten(1).sum(1), protocol)
