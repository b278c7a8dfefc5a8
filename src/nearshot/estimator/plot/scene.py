"""The content of a drawing: images, answers, and positions on a plane."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from nearshot.data.images import Pixels
from nearshot.errors import NearshotError
from nearshot.estimator.explanation import Explanation, explain_answers
from nearshot.estimator.image_inputs import name_of, read_each

THUMBNAIL = 96
Places = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Seen:
    """An image and its position."""

    name: str  # its path, or "image 3"
    thumbnail: Pixels | None  # (96, 96, 3); None if it cannot be read any more
    place: Places  # (2,) on the plane


@dataclass(frozen=True, eq=False)
class Query(Seen):
    """A classified image and its answer."""

    explanation: Explanation

    @property
    def novelty(self) -> str:
        """The novelty and, if it is above the threshold, the threshold, with enough digits to differ."""
        novelty, threshold = self.explanation.novelty, self.explanation.threshold
        if not self.explanation.is_unknown:
            return f"{novelty:.2f}"
        digits = next((n for n in range(2, 9) if f"{novelty:.{n}f}" != f"{threshold:.{n}f}"), 9)
        return f"{novelty:.{digits}f}, above {threshold:.{digits}f}"


@dataclass(frozen=True, eq=False)
class Scene:
    """The content of a drawing."""

    title: str
    notes: tuple[str, ...]  # lines below the title
    images: tuple[Seen, ...]  # the support images
    support: dict[str, list[Seen]]  # the same by class, in the order of classes
    queries: tuple[Query, ...]  # the most doubtful first: unknown ones, then by probability
    errors: tuple[str, ...]  # a sentence per image that could not be read
    shares: tuple[float, float]  # the fraction of the variance along each axis of the plane


def make_scene(
    classifier: Any, images: Sequence[Any], n_neighbors: int = 3, title: str = "", notes: Sequence[str] = ()
) -> Scene:
    """Classify images by a fitted `FewShotClassifier` with a backbone, and collect what to draw."""
    fitted = classifier._ready()
    support = fitted.support.features.numpy()
    embedded = fitted.embedder.attempt(images) if images else []
    errors = tuple(str(one) for one in embedded if isinstance(one, NearshotError))
    good = [number for number, one in enumerate(embedded) if not isinstance(one, NearshotError)]
    features, explanations = support, []
    if good:
        query = fitted.prepare(np.stack([embedded[number] for number in good]))
        features, explanations = np.concatenate([support, query.numpy()]), explain_answers(fitted, query, n_neighbors)
    places, shares = principal_plane(features)
    names = [name_of(images[number], number) for number in good]
    seen = tuple(map(Seen, fitted.names, _thumbnails(fitted.names), places))
    codes = enumerate(fitted.classes.tolist())
    by_class = {str(label): [seen[place] for place in np.flatnonzero(fitted.codes == code)] for code, label in codes}
    thumbnails = _thumbnails([images[number] for number in good])
    queries = map(Query, names, thumbnails, places[len(support) :], explanations)
    doubtful_first = sorted(queries, key=lambda one: (not one.explanation.is_unknown, one.explanation.probability))
    return Scene(title, tuple(notes), seen, by_class, tuple(doubtful_first), errors, shares)


def principal_plane(features: npt.NDArray[np.float64]) -> tuple[Places, tuple[float, float]]:
    """Return the positions of features on their two principal axes, (feature, 2), and the variance of each axis."""
    left, values, axes = np.linalg.svd(features - features.mean(0), full_matrices=False)
    places = np.zeros((len(features), 2))
    n_axes = min(2, len(values))
    # The sign of an axis is arbitrary: make its largest weight positive, so that drawings are reproducible.
    signs = np.sign(axes[np.arange(n_axes), np.abs(axes[:n_axes]).argmax(1)])
    places[:, :n_axes] = left[:, :n_axes] * values[:n_axes] * signs
    total = float((values**2).sum()) or 1.0
    shares = [round(float(value**2) / total, 6) for value in values[:2]] + [0.0, 0.0]
    return places, (shares[0], shares[1])


def _thumbnails(images: Sequence[Any]) -> list[Pixels | None]:
    read = read_each(images, lambda content: content.square(THUMBNAIL))
    return [None if isinstance(one, NearshotError) else one for one in read]
