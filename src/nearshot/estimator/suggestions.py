"""What to label next, and which labels look wrong."""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from nearshot.estimator.classifier import FewShotClassifier
from nearshot.estimator.leave_one_out import choose_temperature
from nearshot.estimator.state import SAME_IMAGE

POOL = 2  # the most doubtful images, as a multiple of the number to choose, among which variety decides
SURE = 0.7  # the probability from which another class than the label is suspicious

Floats = npt.NDArray[np.floating[Any]]
Indices = npt.NDArray[np.int64]


class Ranked(NamedTuple):
    """The answers for images without labels, and which of them to label next."""

    probabilities: Floats  # (image, class) in the order of `classes_`
    is_novel: npt.NDArray[np.bool_]  # (image,) whether the classifier rejects the image
    doubt: Floats  # (image,) see `doubt_of`
    next: Indices  # the images to label next, the most useful first


def rank_unlabelled(classifier: FewShotClassifier, features: Floats, n: int) -> Ranked:
    """Answer features (image, dim) of the classifier's backbone, and choose up to n images to label next."""
    fitted = classifier._ready()
    query = fitted.prepare(features)
    answers = fitted.answer(query)
    probabilities, is_novel = answers.probabilities.numpy(), answers.is_unknown.numpy()
    doubt = doubt_of(probabilities, is_novel)
    return Ranked(probabilities, is_novel, doubt, label_next(query.numpy(), n, doubt))


def labelled_already(classifier: FewShotClassifier, features: Floats) -> npt.NDArray[np.bool_]:
    """Return which features (image, dim) of the classifier's backbone are those of support images, (image,)."""
    fitted = classifier._ready()
    distances, _ = fitted.support.nearest(fitted.prepare(features), 1)
    return (distances[:, 0] < SAME_IMAGE).numpy()


def held_out_probabilities(classifier: FewShotClassifier) -> tuple[Indices, Floats]:
    """Return the support images that can be held out, and the probabilities (image, class) that they get then.

    They are those of `estimate_accuracy`: images that are alone in their class are missing, and
    classifiers other than ridge test at most a thousand.
    """
    held_out = classifier._ready().held_out
    ratio = choose_temperature(held_out.scores, held_out.codes)
    return held_out.images.numpy(), (held_out.scores / ratio).softmax(1).numpy()


def doubt_of(probabilities: Floats, is_novel: npt.NDArray[np.bool_]) -> Floats:
    """Return how doubtful each answer is, (image,): 1 − (best − second probability), plus 1 if the image is novel.

    >>> doubt_of(np.array([[0.5, 0.5], [0.9, 0.1]]), np.array([False, True])).round(2)
    array([1. , 1.2])
    """
    if probabilities.shape[1] == 1:
        return is_novel.astype(np.float64)
    second, best = np.sort(probabilities, axis=1)[:, -2:].T
    return np.asarray(1 - (best - second) + is_novel)


def label_next(directions: Floats, n: int, doubt: Floats | None = None) -> Indices:
    """Return up to n images to label next, the most useful first, for directions (image, dim).

    The first is the most doubtful one. Each of the others is the one of the most doubtful images
    that is farthest from those already chosen (greedy k-centre). Without `doubt`, as before the
    first label, all images take part, and the first is the one nearest to their mean.
    """
    if len(directions) == 0:
        return np.zeros(0, np.int64)
    if doubt is None:
        pool = np.argsort(np.square(directions - directions.mean(0)).sum(1), kind="stable")
    else:
        pool = np.argsort(-doubt, kind="stable")[: POOL * n]
    return np.asarray(pool[k_centres(directions[pool], n)])


def k_centres(points: Floats, n: int) -> Indices:
    """Choose up to n points: the first, then always the one farthest from those already chosen; ties to the first."""
    chosen, distances = [0], np.full(len(points), np.inf)
    while len(chosen) < min(n, len(points)):
        distances = np.minimum(distances, np.square(points - points[chosen[-1]]).sum(1))
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
    best = others.max(1, initial=0)
    order = np.argsort(-best, kind="stable")
    return np.asarray(order[best[order] >= SURE])
