"""Accuracy over episodes, of features, and of what other code predicted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from nearshot.checks import is_integer, to_python
from nearshot.errors import InputError
from nearshot.evaluation.arguments import as_feature_set, functions_of, source_of
from nearshot.evaluation.classifiers import BUILT_IN, Classifier, ClassifierName, classifier_name
from nearshot.evaluation.engine import Job, Treated, answer
from nearshot.evaluation.episodes import Episodes, SmallClasses
from nearshot.evaluation.features import FeatureSet
from nearshot.evaluation.guards import check_unseen_classes
from nearshot.evaluation.statistics import Accuracy, Protocol

__all__ = ["Measured", "Treatment", "evaluate_features", "evaluate_many", "score_predictions"]


class Treatment(NamedTuple):
    """What is done to features before they are classified: centring and normalising, each or not."""

    centred: bool
    normalised: bool


class Measured(NamedTuple):
    """What one accuracy of `evaluate_many` is of."""

    n_shot: int
    classifier: str
    treatment: Treatment


def evaluate_features(
    features: Tensor | FeatureSet,
    labels: Tensor | None = None,
    *,
    n_way: int = 5,
    n_shot: int | None = None,
    n_query: int = 15,
    n_episodes: int = 10_000,
    classifier: ClassifierName | Classifier = "centroid",
    centre: Tensor | None = None,
    normalise: bool = True,
    seed: int = 0,
    episodes: Episodes | None = None,
    small_classes: SmallClasses = "raise",
    training_classes: Sequence[str] | None = None,
    inductive: bool | None = None,
    split: str | None = None,
    fingerprint: str | None = None,
    progress: bool | None = None,
) -> Accuracy:
    """Return the accuracy of a classifier on features, over episodes (Section 3.1).

    Args:
        features: (image, dim) in any floating type, on any device; or a `FeatureSet`, which brings its labels, centre,
            split and fingerprint, and the content of its images, so that repeated pictures are found.
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
        small_classes: "raise" names a class with too few images; "leave out" goes on without such classes; a number
            goes on without those that have fewer images.
        training_classes: the names of the classes that were trained on; evaluating one of them is refused. Needs a
            `FeatureSet` with class names.
        inductive: for a function of your own, whether it looks at each query alone; the result says so.
        split: which split it is, for the result's protocol.
        fingerprint: the fingerprint of the split, for the result's protocol.
        progress: whether to show a bar; by default on a terminal, for very many episodes.

    >>> generator = torch.Generator().manual_seed(0)
    >>> labels = torch.arange(10).repeat_interleave(30)
    >>> features = torch.randn(10, 16, generator=generator)[labels] + torch.randn(300, 16, generator=generator)
    >>> accuracy = evaluate_features(features, labels, n_episodes=1000)
    >>> print(f"{accuracy} %")
    94... ± 0... %
    """
    data = as_feature_set(features, labels, centre, split, fingerprint)
    if n_shot is None:
        n_shot = 5 if episodes is None else episodes.shape.n_shot
    name = classifier_name(classifier)
    treatment = Treatment(data.centre is not None, normalise)
    results = evaluate_many(
        data,
        n_way=n_way,
        n_shots=(n_shot,),
        n_query=n_query,
        n_episodes=n_episodes,
        classifiers={name: classifier},
        treatments=(treatment,),
        seed=seed,
        episodes=episodes,
        small_classes=small_classes,
        training_classes=training_classes,
        inductive=inductive,
        progress=progress,
    )
    return results[Measured(n_shot, name, treatment)]


def evaluate_many(
    features: Tensor | FeatureSet,
    labels: Tensor | None = None,
    *,
    n_way: int = 5,
    n_shots: Sequence[int] = (1, 5),
    n_query: int = 15,
    n_episodes: int = 10_000,
    classifiers: Sequence[ClassifierName] | Mapping[str, ClassifierName | Classifier] = ("centroid", "soft", "knn"),
    treatments: Sequence[Treatment] | None = None,
    centre: Tensor | None = None,
    seed: int = 0,
    episodes: Episodes | None = None,
    small_classes: SmallClasses = "raise",
    training_classes: Sequence[str] | None = None,
    inductive: bool | None = None,
    split: str | None = None,
    fingerprint: str | None = None,
    progress: bool | None = None,
) -> dict[Measured, Accuracy]:
    """Measure many shots × classifiers × treatments of the features in one pass over the same episodes.

    The arguments are those of `evaluate_features`, and so is each result, but for these:

    Args:
        features: (image, dim), or a `FeatureSet`.
        labels: (image,).
        n_way: classes in an episode.
        n_shots: the numbers of shots. The queries are the same for all, and fewer shots are the first of more.
        n_query: query images of each class.
        n_episodes: how many episodes.
        classifiers: names, or a mapping of your own names to names or functions.
        treatments: combinations of centring and normalising; by default centred (if there is a centre) and normalised.
        centre: (dim,) what centred treatments subtract.
        seed: which episodes.
        episodes: these episodes instead; `n_shots` must not exceed theirs.
        small_classes: what to do about classes with too few images for the most shots.
        training_classes: the names of the classes that were trained on.
        inductive: for functions of your own, whether they look at each query alone.
        split: which split it is.
        fingerprint: its fingerprint.
        progress: whether to show a bar.

    Returns:
        The accuracies by (n_shot, classifier, treatment).

    >>> labels = torch.arange(10).repeat_interleave(30)
    >>> features = torch.randn(300, 16, generator=torch.Generator().manual_seed(0))
    >>> results = evaluate_many(features, labels, n_episodes=100)
    >>> [(key.n_shot, key.classifier) for key in results]
    [(1, 'centroid'), (1, 'soft'), (1, 'knn'), (5, 'centroid'), (5, 'soft'), (5, 'knn')]
    """
    data = as_feature_set(features, labels, centre, split, fingerprint)
    functions = functions_of(classifiers, inductive)
    treatments = (Treatment(data.centre is not None, True),) if treatments is None else tuple(treatments)
    if data.centre is None and any(treatment.centred for treatment in treatments):
        raise InputError("A centred treatment needs a centre, the mean feature of the training set.")
    n_shots = to_python(n_shots)
    if is_integer(n_shots):
        raise InputError(f"n_shots must be several numbers; for one, write [{n_shots}].")
    if not isinstance(n_shots, Sequence) or not n_shots or not functions or not treatments:
        raise InputError("There is nothing to measure: give a list of shots, of classifiers and of treatments.")
    if training_classes is not None:
        if not data.class_names:
            raise InputError("Training classes can be told from others only in a FeatureSet with class names.")
        check_unseen_classes(training_classes, data.class_names)
    source = source_of(data, n_way, n_shots, n_query, n_episodes, seed, episodes, small_classes)

    jobs = {
        Measured(n_shot, name, treatment): Job.begin(n_shot, name, function, source, data.features.device)
        for treatment in treatments
        for n_shot in n_shots
        for name, function in functions.items()
    }
    digest = answer(_treated(data, jobs), source, data.content, progress)

    base = Protocol(
        n_way=source.shape.n_way,
        n_shot=source.shape.n_shot,
        n_query=source.shape.n_query,
        n_episodes=len(source),
        seed=source.seed,
        episodes=digest,
        classifier="",
        centred=False,
        normalised=False,
        split=data.split,
        fingerprint=data.fingerprint,
        classes_left_out=source.n_classes_left_out,
    )
    return {
        measured: Accuracy.of_counts(
            job.n_correct.sum(1),
            replace(
                base,
                n_shot=measured.n_shot,
                classifier=measured.classifier,
                centred=measured.treatment.centred,
                normalised=measured.treatment.normalised,
                inductive=job.classify in BUILT_IN or bool(inductive),
            ),
        )
        for measured, job in jobs.items()
    }


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

    Args:
        predictions: (episode, way, query) the predicted way, a number under n_way, of each query of the file.
        episodes: the episodes that were asked.
        classifier: what made the predictions, in a few words, for the protocol.
        inductive: whether each query was classified without looking at the other queries.
        adapted: how the model was adapted to each support set, if it was, for the protocol.
        split: which split it is, for the protocol.
        fingerprint: its fingerprint, for the protocol.
    """
    if not isinstance(predictions, Tensor):
        raise InputError(f"predictions must be a tensor, not {type(predictions).__name__}. Use torch.as_tensor(…).")
    shape = episodes.shape
    if predictions.shape != episodes.query.shape or predictions.is_floating_point():
        raise InputError(
            f"predictions must be whole numbers of shape {tuple(episodes.query.shape)} (episode, way, query), not "
            f"{predictions.dtype} {tuple(predictions.shape)}."
        )
    if not 0 <= int(predictions.min()) <= int(predictions.max()) < shape.n_way:
        raise InputError(
            f"A prediction is the number of a way, from 0 to {shape.n_way - 1}, not a label of the dataset; these go "
            f"from {int(predictions.min())} to {int(predictions.max())}."
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


def _treated(data: FeatureSet, jobs: Mapping[Measured, Job]) -> list[Treated]:
    """Return each treatment of the features with the jobs that want it."""
    return [
        Treated(
            data.features.detach(),
            data.centre if treatment.centred else None,
            treatment.normalised,
            [job for measured, job in jobs.items() if measured.treatment == treatment],
        )
        for treatment in dict.fromkeys(measured.treatment for measured in jobs)
    ]
