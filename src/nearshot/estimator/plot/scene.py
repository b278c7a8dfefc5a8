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
MAX_TRIED = 40  # images of a class beside which its name may stand
NAME_HEIGHT = 16.0
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
    support: dict[str, list[Seen]]  # of each class, in the order of classes
    queries: tuple[Query, ...]  # the most doubtful first: unknown ones, then by probability
    errors: tuple[str, ...]  # a sentence per image that could not be read
    shares: tuple[float, float]  # the fraction of the variance along each axis of the plane

    def support_image(self, name: str, label: str) -> Seen | None:
        """Return a support image by its name and class."""
        return next((seen for seen in self.support.get(label, []) if seen.name == name), None)


def make_scene(
    classifier: Any, images: Sequence[Any], n_neighbors: int = 3, title: str = "", notes: Sequence[str] = ()
) -> Scene:
    """Classify images by a fitted `FewShotClassifier` with a backbone, and collect what to draw."""
    fitted = classifier._ready()
    support, learnt = fitted.support.features.numpy(), fitted.learnt
    embedded = fitted.embedder.attempt(images) if images else []
    errors = tuple(str(one) for one in embedded if isinstance(one, NearshotError))
    good = [number for number, one in enumerate(embedded) if not isinstance(one, NearshotError)]
    features, explanations = support, []
    if good:
        query = fitted.prepare(np.stack([embedded[number] for number in good]))
        features, explanations = np.concatenate([support, query.numpy()]), explain_answers(fitted, query, n_neighbors)
    places, shares = principal_plane(features)
    names = [name_of(images[number], number) for number in good]
    by_class: dict[str, list[Seen]] = {str(label): [] for label in learnt.classes.tolist()}
    for name, code, thumbnail, place in zip(
        learnt.names, learnt.codes, _thumbnails(learnt.names), places, strict=False
    ):
        by_class[str(learnt.classes[code])].append(Seen(name, thumbnail, place))
    thumbnails = _thumbnails([images[number] for number in good])
    queries = map(Query, names, thumbnails, places[len(support) :], explanations)
    doubtful_first = sorted(queries, key=lambda one: (not one.explanation.is_unknown, one.explanation.probability))
    return Scene(title, tuple(notes), by_class, tuple(doubtful_first), errors, shares)


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


def place_names(
    names: Sequence[str], groups: Sequence[Places], others: Places, letter: float, room: float
) -> list[tuple[float, float]]:
    """Return the centre of each class's name: beside one of its images, where it covers the fewest markers and names.

    `groups` are the positions of the images of each class, (image, 2); `others` those of other markers; `letter` is the
    approximate width of a letter, and `room` the radius of a marker.
    """
    markers = np.concatenate([*groups, others])
    taken: list[tuple[float, float, float]] = []  # the centres of names, and half their widths
    for name, group in zip(names, groups, strict=True):
        half = len(name) * letter / 2
        beside = half + room + 3
        steps = np.array([(0, -NAME_HEIGHT), (0, NAME_HEIGHT), (beside, 0), (-beside, 0)])
        tried = (group[:MAX_TRIED, None] + steps).reshape(-1, 2)
        away = np.abs(tried[:, None] - markers)  # (tried, marker, 2)
        covered = ((away[..., 0] < half + room) & (away[..., 1] < NAME_HEIGHT / 2 + room / 2)).sum(1)
        for x, y, width in taken:
            covered += (np.abs(tried[:, 0] - x) < half + width) & (np.abs(tried[:, 1] - y) < NAME_HEIGHT)
        # Of equally good positions, the nearest to the middle of the class.
        x, y = tried[np.lexsort([((tried - group.mean(0)) ** 2).sum(1), covered])[0]].tolist()
        taken.append((x, y, half))
    return [(x, y) for x, y, _ in taken]


def _thumbnails(images: Sequence[Any]) -> list[Pixels | None]:
    read = read_each(images, lambda content: content.square(THUMBNAIL))
    return [None if isinstance(one, NearshotError) else one for one in read]
