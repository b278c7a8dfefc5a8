"""Accuracy over episodes: features gathered once per episode and shared by all that is measured on it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from nearshot.episodes import EpisodeShape
from nearshot.errors import InputError, look_up
from nearshot.evaluation.classifiers import BY_CLOSENESS, CLASSIFIERS, Classifier, ClassifierName, closeness
from nearshot.evaluation.episodes import Episodes, EpisodeSource, SmallClasses, check_classes
from nearshot.evaluation.features import prepare_features
from nearshot.evaluation.statistics import Accuracy, Protocol
from nearshot.progress import with_progress

__all__ = ["Measured", "Treatment", "evaluate_features", "evaluate_many", "score_predictions"]

# Episodes are drawn in larger runs than they are gathered in: drawing has a fixed cost, gathered features should stay
# in the cache of a CPU, and fill a GPU.
EPISODES_PER_DRAW = 2048
GATHERED_BYTES_CPU = 8 * 2**20
GATHERED_BYTES = 2**29
EPISODES_FOR_PROGRESS = 50_000


class Treatment(NamedTuple):
    """What is done to features before they are classified: centring and normalising, each or not."""

    centred: bool
    normalised: bool


class Measured(NamedTuple):
    """What one accuracy of `evaluate_many` is of."""

    n_shot: int
    classifier: str
    treatment: Treatment


@dataclass(frozen=True)
class _Job:
    """One accuracy to be: which shots, features and classifier, and where its correct answers are counted."""

    measured: Measured
    classify: Classifier
    correct: Tensor  # (episode,)


def evaluate_features(
    features: Tensor,
    labels: Tensor,
    *,
    n_way: int = 5,
    n_shot: int = 5,
    n_query: int = 15,
    n_episodes: int = 10_000,
    classifier: ClassifierName | Classifier = "centroid",
    centre: Tensor | None = None,
    normalise: bool = True,
    seed: int = 0,
    episodes: Episodes | None = None,
    small_classes: SmallClasses = "raise",
    split: str | None = None,
    fingerprint: str | None = None,
    progress: bool | None = None,
) -> Accuracy:
    """Return the accuracy of a classifier on features, over episodes (Section 3.1).

    Args:
        features: (image, dim) in any floating type, on any device.
        labels: (image,) whole numbers.
        n_way: classes in an episode.
        n_shot: support images of each class.
        n_query: query images of each class.
        n_episodes: how many episodes.
        classifier: "centroid", "soft", "knn", or a function as in `nearshot.evaluation.classifiers`.
        centre: (dim,) the mean feature of the training set, to be subtracted; None for nothing.
        normalise: whether to divide each feature by its length.
        seed: which episodes.
        episodes: these episodes instead; then the shape, number and seed are theirs.
        small_classes: "raise" names a class with too few images; "leave out" goes on without such classes.
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
    if episodes is not None:
        n_way, n_shot, n_query = episodes.shape.n_way, episodes.shape.n_shot, episodes.shape.n_query
    name = classifier if isinstance(classifier, str) else _name(classifier)
    treatment = Treatment(centre is not None, normalise)
    results = evaluate_many(
        features,
        labels,
        n_way=n_way,
        n_shots=(n_shot,),
        n_query=n_query,
        n_episodes=n_episodes,
        classifiers={name: classifier},
        treatments=(treatment,),
        centre=centre,
        seed=seed,
        episodes=episodes,
        small_classes=small_classes,
        split=split,
        fingerprint=fingerprint,
        progress=progress,
    )
    return results[Measured(n_shot, name, treatment)]


def evaluate_many(
    features: Tensor,
    labels: Tensor,
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
    split: str | None = None,
    fingerprint: str | None = None,
    progress: bool | None = None,
) -> dict[Measured, Accuracy]:
    """Measure many shots × classifiers × treatments of the features in one pass over the same episodes.

    The arguments are those of `evaluate_features`, and so is each result, but for these:

    Args:
        features: (image, dim).
        labels: (image,).
        n_way: classes in an episode.
        n_shots: the numbers of shots. The queries are the same for all, and fewer shots are the first of more.
        n_query: query images of each class.
        n_episodes: how many episodes.
        classifiers: names, or a mapping of your own names to names or functions.
        treatments: combinations of centring and normalising; by default centred (if `centre` is given) and normalised.
        centre: (dim,) what centred treatments subtract.
        seed: which episodes.
        episodes: these episodes instead; `n_shots` must not exceed theirs.
        small_classes: what to do about classes with too few images for the most shots.
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
    _check_labels(features, labels)
    functions = _functions(classifiers)
    treatments = (Treatment(centre is not None, True),) if treatments is None else tuple(treatments)
    if centre is None and any(treatment.centred for treatment in treatments):
        raise InputError("A centred treatment needs a centre, the mean feature of the training set.")
    if not n_shots or not functions or not treatments:
        raise InputError("There is nothing to measure: give at least one number of shots, classifier and treatment.")
    source: EpisodeSource | Episodes
    if episodes is None:
        shape = EpisodeShape(n_way, max(n_shots), n_query)
        source = EpisodeSource(labels, shape, n_episodes=n_episodes, seed=seed, small_classes=small_classes)
    else:
        check_classes(episodes, labels)
        source = episodes
        if max(n_shots) > source.shape.n_shot:
            raise InputError(f"The episodes have {source.shape.n_shot} shots; {max(n_shots)} were asked for.")
    for n_shot in n_shots:
        EpisodeShape(source.shape.n_way, n_shot, source.shape.n_query)  # checks the number

    jobs = {
        treatment: [
            _Job(
                Measured(n_shot, name, treatment),
                function,
                torch.zeros(len(source), dtype=torch.int32, device=features.device),
            )
            for n_shot in n_shots
            for name, function in functions.items()
        ]
        for treatment in treatments
    }
    prepared = {
        treatment: prepare_features(
            features, centre=centre if treatment.centred else None, normalise=treatment.normalised
        ).contiguous()
        for treatment in treatments
    }
    _count_correct(prepared, source, jobs, progress)

    n_questions = source.shape.n_way * source.shape.n_query
    digest = source.digest
    results = {}
    for treatment in treatments:
        for job in jobs[treatment]:
            protocol = Protocol(
                n_way=source.shape.n_way,
                n_shot=job.measured.n_shot,
                n_query=source.shape.n_query,
                n_episodes=len(source),
                seed=source.seed,
                episodes=digest,
                classifier=job.measured.classifier,
                centred=treatment.centred,
                normalised=treatment.normalised,
                split=split,
                fingerprint=fingerprint,
            )
            results[job.measured] = Accuracy(100 * job.correct.cpu().double() / n_questions, protocol)
    return results


def score_predictions(
    predictions: Tensor,
    episodes: Episodes,
    *,
    classifier: str,
    inductive: bool,
    split: str | None = None,
    fingerprint: str | None = None,
) -> Accuracy:
    """Score what other code predicted on exported episodes.

    Args:
        predictions: (episode, way, query) the predicted way, a number under n_way, of each query of the file.
        episodes: the episodes that were asked.
        classifier: what made the predictions, in a few words, for the protocol.
        inductive: whether each query was classified without looking at the other queries.
        split: which split it is, for the protocol.
        fingerprint: its fingerprint, for the protocol.

    """
    shape = episodes.shape
    if predictions.shape != episodes.query.shape or predictions.is_floating_point():
        raise InputError(
            f"predictions must be whole numbers of shape {tuple(episodes.query.shape)} (episode, way, query), not "
            f"{predictions.dtype} {tuple(predictions.shape)}."
        )
    truth = torch.arange(shape.n_way, device=predictions.device)[:, None]  # (way, 1)
    correct = (predictions == truth).flatten(1).double().mean(1)
    protocol = Protocol(
        n_way=shape.n_way,
        n_shot=shape.n_shot,
        n_query=shape.n_query,
        n_episodes=len(episodes),
        seed=episodes.seed,
        episodes=episodes.digest,
        classifier=classifier,
        centred=False,
        normalised=False,
        inductive=inductive,
        split=split,
        fingerprint=fingerprint,
    )
    return Accuracy(100 * correct.cpu(), protocol)


def _count_correct(
    features: Mapping[Treatment, Tensor],
    source: EpisodeSource | Episodes,
    jobs: Mapping[Treatment, Sequence[_Job]],
    progress: bool | None,
) -> None:
    """Go through the episodes once and count every job's correct answers."""
    some_features = next(iter(features.values()))
    shape, dim, device = source.shape, some_features.shape[1], some_features.device
    n_queries, n_images = shape.n_way * shape.n_query, shape.batch_size
    truth = torch.arange(shape.n_way, device=device).repeat_interleave(shape.n_query)  # (query,)
    room = GATHERED_BYTES_CPU if device.type == "cpu" else GATHERED_BYTES
    n_at_once = max(1, min(EPISODES_PER_DRAW, room // (n_images * dim * some_features.element_size())))
    # One place for the gathered rows, used again and again: fresh memory would cost more than the gathering.
    buffer = torch.empty(n_at_once * n_images, dim, dtype=some_features.dtype, device=device)

    with torch.inference_mode():
        for start, drawn in _runs(source, progress):
            # queries of all ways, then support of all ways: (episode, image)
            order = torch.cat([drawn[:, :, : shape.n_query].flatten(1), drawn[:, :, shape.n_query :].flatten(1)], dim=1)
            order = order.to(device)
            for offset in range(0, len(order), n_at_once):
                rows = order[offset : offset + n_at_once]
                here = slice(start + offset, start + offset + len(rows))
                for treatment, all_features in features.items():
                    gathered = buffer[: rows.numel()]
                    torch.index_select(all_features, 0, rows.flatten(), out=gathered)
                    gathered = gathered.view(len(rows), n_images, dim)
                    query = gathered[:, :n_queries]  # (episode, query, dim)
                    support = gathered[:, n_queries:].unflatten(1, (shape.n_way, shape.n_shot))
                    for job, scores in _scores(jobs[treatment], support, query):
                        answers = scores.max(2).indices  # (episode, query)
                        job.correct[here] = (answers == truth).sum(1, dtype=torch.int32)


def _scores(jobs: Sequence[_Job], support: Tensor, query: Tensor) -> Iterator[tuple[_Job, Tensor]]:
    """Yield the scores of each job on some episodes; those that look at single support images share that look."""
    shared: dict[int, Tensor] = {}
    for job in jobs:
        n_shot = job.measured.n_shot
        shots = support[:, :, :n_shot]
        if job.classify in BY_CLOSENESS:
            if n_shot not in shared:
                shared[n_shot] = closeness(shots, query)
            scores = BY_CLOSENESS[job.classify](shared[n_shot])
        else:
            scores = job.classify(shots, query)
        _check_scores(scores, query, support.shape[1], job.measured.classifier)
        yield job, scores


def _runs(source: EpisodeSource | Episodes, progress: bool | None) -> Iterator[tuple[int, Tensor]]:
    """Yield runs of episodes, with their first number; under a progress bar if there are many and someone watches."""
    starts = range(0, len(source), EPISODES_PER_DRAW)
    if progress is None and len(source) < EPISODES_FOR_PROGRESS:
        progress = False  # it takes about a second
    for start in with_progress(starts, f"{len(source):,} episodes", show=progress):
        yield start, source.draw(start, min(start + EPISODES_PER_DRAW, len(source)))


def _functions(
    classifiers: Sequence[ClassifierName] | Mapping[str, ClassifierName | Classifier],
) -> dict[str, Classifier]:
    if isinstance(classifiers, str):
        raise InputError(f"classifiers must be several names; for one, write [{classifiers!r}].")
    entries = classifiers if isinstance(classifiers, Mapping) else {name: name for name in classifiers}
    return {
        name: look_up(CLASSIFIERS, entry, "classifier") if isinstance(entry, str) else entry
        for name, entry in entries.items()
    }


def _name(function: Callable[..., Tensor]) -> str:
    return str(getattr(function, "__name__", None) or type(function).__name__)


def _check_labels(features: Tensor, labels: Tensor) -> None:
    if labels.ndim != 1 or len(labels) != len(features):
        raise InputError(f"labels must be one per image: expected shape ({len(features)},), not {tuple(labels.shape)}.")


def _check_scores(scores: Tensor, query: Tensor, n_way: int, classifier: str) -> None:
    expected = (*query.shape[:2], n_way)
    if scores.shape != expected:
        raise InputError(
            f"Classifier {classifier!r} returned scores of shape {tuple(scores.shape)}; expected {expected}, "
            "(episode, query, way)."
        )
