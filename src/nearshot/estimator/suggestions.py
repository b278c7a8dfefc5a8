"""What to label next, and which labels look wrong."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from nearshot.estimator.classifier import FewShotClassifier
from nearshot.estimator.groups import SAME_IMAGE

# Variety decides among the most doubtful images: this many times the number to choose.
POOL = 2
# The probability from which another class than the label is suspicious.
SUSPICIOUS = 0.7

Floats = npt.NDArray[np.floating[Any]]
Indices = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class UnlabelledRanking:
    """The answers for images without labels, and which of them to label next.

    Attributes:
        probabilities: (image, class) in the order of `classes_`.
        is_novel: (image,) whether the classifier rejects the image.
        doubt: (image,) see `doubt_of`.
        label_next: the images to label next, the most useful first.
    """

    probabilities: Floats
    is_novel: Flags
    doubt: Floats
    label_next: Indices


def rank_unlabelled(
    classifier: FewShotClassifier,
    features: Floats,
    n: int,
    *,
    look_alike_cosine: float | None = None,
) -> UnlabelledRanking:
    """Answer features (image, dim) of the classifier's backbone, and choose up to n to label.

    `look_alike_cosine` is as in `choose_next`; by default the backbone's, if it tells labelled
    images apart.
    """
    state = classifier.fitted_state()
    if look_alike_cosine is None and state.embedder is not None and not state.are_chained:
        look_alike_cosine = state.embedder.look_alike_cosine
    query = state.prepare(features)
    answers = state.answer(query)
    probabilities = answers.probabilities.numpy()
    is_novel = answers.is_rejected.numpy()
    doubt = doubt_of(probabilities, is_novel)
    # Prepared features are compared for the most doubtful images only: there may be thousands.
    order = np.argsort(-doubt, kind="stable")
    plain = state.plain_columns(features)
    pool = first_distinct(plain, order, POOL * n, look_alike_cosine)
    directions = state.to_common(query[pool]).numpy()
    return UnlabelledRanking(
        probabilities=probabilities,
        is_novel=is_novel,
        doubt=doubt,
        label_next=pool[choose_next(directions, n, doubt[pool])],
    )


def are_labelled(classifier: FewShotClassifier, features: Floats) -> Flags:
    """Return which features (image, dim) of the classifier's backbone are of support images."""
    state = classifier.fitted_state()
    distances, _ = state.support.nearest(state.plain(state.prepare(features)), 1)
    return (distances[:, 0] < SAME_IMAGE).numpy()


def held_out_probabilities(classifier: FewShotClassifier) -> tuple[Indices, Floats]:
    """Return the support images that can be held out, and their probabilities (image, class) then.

    They are those of `estimate_accuracy`: images that are alone in their class are missing, and
    classifiers other than ridge test at most a thousand. Their own labels have no part in them.
    """
    held_out = classifier.fitted_state().held_out_answers
    return held_out.images.numpy(), held_out.scores.numpy()


def doubt_of(probabilities: Floats, is_novel: Flags) -> Floats:
    """Return how doubtful each answer is, (image,).

    It is 1 − (best − second probability), plus 1 if the image is novel.

    >>> doubt_of(np.array([[0.5, 0.5], [0.9, 0.1]]), np.array([False, True])).round(2)
    array([1. , 1.2])
    """
    if probabilities.shape[1] == 1:
        return is_novel.astype(np.float64)
    ordered = np.sort(probabilities, axis=1)
    best = ordered[:, -1]
    second = ordered[:, -2]
    return np.asarray(1 - (best - second) + is_novel)


def choose_next(
    directions: Floats,
    n: int,
    doubt: Floats | None = None,
    *,
    features: Floats | None = None,
    look_alike_cosine: float | None = None,
) -> Indices:
    """Return up to n images to label next, the most useful first.

    The first is the most doubtful one. Each of the others is the one of the most doubtful images
    that is farthest from those already chosen (greedy k-centre). Without `doubt`, as before the
    first label, all images take part, and the first is the one nearest to their mean.

    Args:
        directions: (image, dim) prepared features.
        n: how many to choose.
        doubt: (image,) see `doubt_of`.
        features: (image, dim) as embedded; by default `directions`.
        look_alike_cosine: images whose features have at least this cosine look alike, and one of
            them is enough. None: every image may be chosen.
    """
    if len(directions) == 0:
        return np.zeros(0, np.int64)
    if features is None:
        features = directions
    if doubt is None:
        from_mean = np.square(directions - directions.mean(0)).sum(1)
        order = np.argsort(from_mean, kind="stable")
        chosen = order[k_centres(directions[order], n)]
        return first_distinct(features, chosen, n, look_alike_cosine)
    order = np.argsort(-doubt, kind="stable")
    pool = first_distinct(features, order, POOL * n, look_alike_cosine)
    return np.asarray(pool[k_centres(directions[pool], n)])


def first_distinct(
    features: Floats, order: Indices, n: int, look_alike_cosine: float | None
) -> Indices:
    """Return the first n images of an order that look like none of those before.

    >>> features = np.array([[1.0, 0.0], [0.0, 1.0], [5.0, 0.1]])
    >>> first_distinct(features, np.array([2, 0, 1]), 3, 0.9)
    array([2, 1])
    """
    if look_alike_cosine is None:
        return order[:n]
    chosen: list[int] = []
    points = np.zeros((n, features.shape[1]), features.dtype)  # of unit length
    for image in order.tolist():
        if len(chosen) == n:
            break
        point = features[image] / max(float(np.linalg.norm(features[image])), 1e-12)
        cosines = points[: len(chosen)] @ point
        if cosines.max(initial=-1.0) < look_alike_cosine:
            points[len(chosen)] = point
            chosen.append(image)
    return np.array(chosen, dtype=np.int64)


def k_centres(points: Floats, n: int) -> Indices:
    """Choose up to n points: the first, then always the farthest from those already chosen.

    Of equally distant points, the first is chosen.
    """
    chosen = [0]
    distances = np.full(len(points), np.inf)
    while len(chosen) < min(n, len(points)):
        from_last = np.square(points - points[chosen[-1]]).sum(1)
        distances = np.minimum(distances, from_last)
        distances[chosen] = -1  # never again, even if all other points are equal to it
        chosen.append(int(distances.argmax()))
    return np.array(chosen, dtype=np.int64)


def suspicious_labels(probabilities: Floats, codes: Indices) -> Indices:
    """Return the images whose label looks wrong, the most suspicious first.

    `probabilities` (image, class) are those of held-out images with labels `codes`. A label is
    suspicious if another class has a probability of at least 0.7.

    >>> suspicious_labels(np.array([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4]]), np.array([0, 0, 1]))
    array([1])
    """
    others = probabilities.copy()
    others[np.arange(len(codes)), codes] = 0
    highest = others.max(1, initial=0)
    order = np.argsort(-highest, kind="stable")
    return np.asarray(order[highest[order] >= SUSPICIOUS])
