"""Accuracy over episodes: of features, by class, and of what other code predicted."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor

from nearshot.errors import InputError
from nearshot.evaluation.classifiers import ClassifierOrName
from nearshot.evaluation.engine import Task, answer, begin_tallies
from nearshot.evaluation.episodes import Episodes, EpisodeSource
from nearshot.evaluation.features import Array, FeatureSet, as_feature_set
from nearshot.evaluation.spec import EvaluationSpec
from nearshot.evaluation.statistics import Accuracy, Protocol, interval, with_interval


def evaluate_features(
    features: Array | FeatureSet,
    labels: Array | None = None,
    *,
    n_way: int = 5,
    n_shot: int = 5,
    n_query: int = 15,
    n_episodes: int = 10_000,
    seed: int = 0,
    classifier: ClassifierOrName = "centroid",
    centre: Array | None = None,
    centred: bool | None = None,
    normalise: bool = True,
    least_images: int = 1,
    training_classes: Sequence[str] | None = None,
    inductive: bool | None = None,
    split: str | None = None,
    fingerprint: str | None = None,
    progress: bool | None = None,
) -> Accuracy:
    """Return the accuracy of a classifier on features, over episodes (Section 3.1).

    Args:
        features: (image, dim) in any floating type, on any device, or a NumPy array; or a
            `FeatureSet`, which has its own labels, centre, split, fingerprint and content.
        labels: (image,) integers.
        n_way: the classes of an episode.
        n_shot: the support images of each class.
        n_query: the query images of each class.
        n_episodes: the number of episodes.
        seed: the seed of the episodes.
        classifier: a name in `CLASSIFIERS` or `TRANSDUCTIVE`, a `Classifier`, or a function of
            support and query features.
        centre: (dim,) the mean feature of the training set.
        centred: whether to subtract the centre; by default, if it is known.
        normalise: whether to divide each feature by its length.
        least_images: classes with fewer images are skipped.
        training_classes: the names of the classes that were trained on; evaluating one of them is
            refused. Needs a `FeatureSet` with class names.
        inductive: for a function as classifier, whether it looks at each query alone.
        split: the name of the split, for the result's protocol.
        fingerprint: the fingerprint of the dataset split, for the result's protocol.
        progress: whether to show a bar; by default on a terminal, for very many episodes.

    >>> generator = torch.Generator().manual_seed(0)
    >>> labels = torch.arange(10).repeat_interleave(30)
    >>> features = torch.randn(10, 16, generator=generator)[labels]
    >>> features = features + torch.randn(300, 16, generator=generator)
    >>> accuracy = evaluate_features(features, labels, n_episodes=1000)
    >>> print(f"{accuracy} %")
    94... ± 0... %
    """
    spec = EvaluationSpec(
        n_way=n_way,
        n_shot=n_shot,
        n_query=n_query,
        n_episodes=n_episodes,
        seed=seed,
        classifier=classifier,
        centred=centred,
        normalise=normalise,
        least_images=least_images,
    )
    accuracies = evaluate_many(
        features,
        labels,
        specs=[spec],
        centre=centre,
        training_classes=training_classes,
        inductive=inductive,
        split=split,
        fingerprint=fingerprint,
        progress=progress,
    )
    return accuracies[0]


def evaluate_many(
    features: Array | FeatureSet,
    labels: Array | None = None,
    *,
    specs: EvaluationSpec | Sequence[EvaluationSpec],
    centre: Array | None = None,
    training_classes: Sequence[str] | None = None,
    inductive: bool | None = None,
    split: str | None = None,
    fingerprint: str | None = None,
    progress: bool | None = None,
) -> list[Accuracy]:
    """Return the accuracies of several evaluations of the same features, in the order of `specs`.

    Each is that of `evaluate_features` with the fields of the spec, whose fields about images are
    not read. Evaluations that differ only in shots, classifier, centring and normalising take one
    pass over the same episodes: the queries are the same for all numbers of shots, and fewer shots
    are the first of more. All other arguments are those of `evaluate_features`.

    >>> labels = torch.arange(5).repeat_interleave(30)
    >>> features = torch.randn(150, 8, generator=torch.Generator().manual_seed(0))
    >>> specs = [EvaluationSpec(n_shot=n_shot, n_episodes=200) for n_shot in (1, 5)]
    >>> one_shot, five_shot = evaluate_many(features, labels, specs=specs)
    >>> one_shot.protocol.episodes == five_shot.protocol.episodes
    True
    """
    data = as_feature_set(
        features,
        labels,
        centre=centre,
        split=split,
        fingerprint=fingerprint,
        training_classes=training_classes,
    )
    if isinstance(specs, EvaluationSpec):
        specs = [specs]
    same_queries: dict[EvaluationSpec, list[int]] = {}
    for position, spec in enumerate(specs):
        same_queries.setdefault(spec.queries, []).append(position)
    accuracies: dict[int, Accuracy] = {}
    for positions in same_queries.values():
        together = [specs[position] for position in positions]
        most_shots = max(together, key=lambda spec: spec.n_shot)
        source = EpisodeSource(data.labels, most_shots, data.class_names)
        task = Task(data, source, progress)
        tallies = begin_tallies(task, together, inductive=inductive)
        digest = answer(task, tallies)
        for position, tally in zip(positions, tallies, strict=True):
            accuracies[position] = task.accuracy(tally, digest)
    return [accuracies[position] for position in range(len(specs))]


def evaluate_episodes(
    features: Array | FeatureSet,
    labels: Array | None = None,
    *,
    episodes: Episodes,
    classifier: ClassifierOrName = "centroid",
    centre: Array | None = None,
    centred: bool | None = None,
    normalise: bool = True,
    training_classes: Sequence[str] | None = None,
    inductive: bool | None = None,
    split: str | None = None,
    fingerprint: str | None = None,
    progress: bool | None = None,
) -> Accuracy:
    """Return the accuracy of a classifier on features, over the given episodes.

    `episodes` are those of `sample_episodes` or `read_episodes`. All other arguments are those of
    `evaluate_features`.
    """
    data = as_feature_set(
        features,
        labels,
        centre=centre,
        split=split,
        fingerprint=fingerprint,
        training_classes=training_classes,
    )
    task = Task(data, episodes, progress)
    spec = EvaluationSpec(
        n_way=episodes.shape.n_way,
        n_shot=episodes.shape.n_shot,
        n_query=episodes.shape.n_query,
        n_episodes=len(episodes),
        classifier=classifier,
        centred=centred,
        normalise=normalise,
    )
    (tally,) = begin_tallies(task, [spec], inductive=inductive)
    return task.accuracy(tally, answer(task, [tally]))


@dataclass(frozen=True)
class ClassAccuracy:
    """The share of a class's queries that were answered correctly, in per cent.

    The mean and its 95 % interval are over the `n_episodes` episodes that contain the class; the
    interval is NaN for a single one.
    """

    mean: float
    interval95: float
    n_episodes: int

    def __str__(self) -> str:
        return with_interval(self.mean, self.interval95)

    def as_dict(self) -> dict[str, Any]:
        """Return it as JSON can hold it."""
        interval95 = None if math.isnan(self.interval95) else self.interval95
        return {"mean": self.mean, "interval95": interval95, "n_episodes": self.n_episodes}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Inverse of `as_dict`."""
        interval95 = values["interval95"]
        if interval95 is None:
            interval95 = math.nan
        return cls(values["mean"], interval95, values["n_episodes"])


def evaluate_classes(
    features: Array | FeatureSet,
    labels: Array | None = None,
    *,
    n_way: int = 5,
    n_shot: int = 5,
    n_query: int = 15,
    n_episodes: int = 10_000,
    seed: int = 0,
    classifier: ClassifierOrName = "centroid",
    centre: Array | None = None,
    centred: bool | None = None,
    normalise: bool = True,
    least_images: int = 1,
    training_classes: Sequence[str] | None = None,
    inductive: bool | None = None,
    progress: bool | None = None,
) -> dict[str, ClassAccuracy]:
    """Return the accuracy of each class, by name or label.

    The episodes are those of `evaluate_features`, and so are the arguments. The other classes of an
    episode are drawn at random, so a class is hard if many are similar to it. A class that is in no
    episode has no result.

    >>> labels = torch.arange(4).repeat_interleave(30)
    >>> features = torch.eye(3)[labels.clamp(max=2)]  # the last two classes are alike
    >>> accuracies = evaluate_classes(features, labels, n_way=3, n_episodes=200)
    >>> {label: accuracy.mean == 100 for label, accuracy in accuracies.items()}
    {'0': True, '1': True, '2': False, '3': False}
    >>> min(accuracies, key=lambda label: accuracies[label].mean) in ("2", "3")  # the hardest
    True
    """
    data = as_feature_set(features, labels, centre=centre, training_classes=training_classes)
    spec = EvaluationSpec(
        n_way=n_way,
        n_shot=n_shot,
        n_query=n_query,
        n_episodes=n_episodes,
        seed=seed,
        classifier=classifier,
        centred=centred,
        normalise=normalise,
        least_images=least_images,
    )
    _, by_class = evaluate_with_classes(data, spec, inductive=inductive, progress=progress)
    return by_class


def evaluate_with_classes(
    data: FeatureSet,
    spec: EvaluationSpec,
    *,
    inductive: bool | None = None,
    progress: bool | None = None,
) -> tuple[Accuracy, dict[str, ClassAccuracy]]:
    """Return the accuracy and that of each class, in one pass."""
    source = EpisodeSource(data.labels, spec, data.class_names)
    task = Task(data, source, progress)
    (tally,) = begin_tallies(task, [spec], inductive=inductive)
    digest = answer(task, [tally])
    first_images = source.draw(0, spec.n_episodes)[:, :, 0]
    classes = data.labels.cpu()[first_images].flatten()  # (episode · way,)
    percent = 100 * tally.n_correct.cpu().double().flatten() / spec.n_query
    names = dict(enumerate(data.class_names))
    by_class = {}
    for label in classes.unique().tolist():
        of_class = percent[classes == label]
        name = names.get(label, str(label))
        by_class[name] = ClassAccuracy(float(of_class.mean()), interval(of_class), len(of_class))
    return task.accuracy(tally, digest), by_class


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
    shape = episodes.shape
    expected = episodes.query.shape
    if predictions.shape != expected:
        raise InputError(
            f"predictions must have shape {tuple(expected)}, (episode, way, query) "
            f"(got {tuple(predictions.shape)})."
        )
    if predictions.min() < 0 or predictions.max() >= shape.n_way:
        raise InputError(
            f"predictions must be ways, numbers from 0 to {shape.n_way - 1}. They are not the "
            "labels of the dataset."
        )
    truth = torch.arange(shape.n_way, device=predictions.device)[:, None]  # (way, 1)
    protocol = Protocol(
        n_way=shape.n_way,
        n_shot=shape.n_shot,
        n_query=shape.n_query,
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
