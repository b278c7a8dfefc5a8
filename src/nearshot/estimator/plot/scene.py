"""What there is to draw, whatever it is drawn on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from nearshot.data.images import Pixels
from nearshot.errors import NearshotError
from nearshot.estimator.explanation import Explanation, explain_answers
from nearshot.estimator.inputs import name_of, read_each

__all__ = ["Query", "Scene", "Seen", "make_scene", "principal_plane"]

THUMBNAIL = 96
Places = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Seen:
    """A picture and where it lies.

    Attributes:
        name: its path, or what it is called.
        thumbnail: (96, 96, 3) uint8; None if it cannot be read any more.
        place: (2,) in the plane.
    """

    name: str
    thumbnail: Pixels | None
    place: Places


@dataclass(frozen=True, eq=False)
class Query(Seen):
    """A picture that was asked about, and the answer."""

    explanation: Explanation

    @property
    def novelty(self) -> str:
        """How new it is and, if that is too much, the threshold, with as many digits as tell them apart."""
        new, most = self.explanation.novelty, self.explanation.threshold
        if not self.explanation.is_unknown:
            return f"{new:.2f}"
        digits = next((n for n in range(2, 9) if f"{new:.{n}f}" != f"{most:.{n}f}"), 9)
        return f"{new:.{digits}f}, over {most:.{digits}f}"


@dataclass(frozen=True, eq=False)
class Scene:
    """Everything that a drawing shows.

    Attributes:
        title: a line about it.
        notes: more lines.
        support: the support images of each class, in the order of classes.
        queries: what was asked.
        errors: what could not be read, in sentences.
        shares: the share of the features' variance that lies along the plane's two axes.
    """

    title: str
    notes: tuple[str, ...]
    support: dict[str, list[Seen]]
    queries: tuple[Query, ...]
    errors: tuple[str, ...]
    shares: tuple[float, float]

    def support_image(self, name: str, label: str) -> Seen | None:
        """Return a support image by its name and class."""
        return next((seen for seen in self.support.get(label, []) if seen.name == name), None)


def make_scene(
    classifier: Any,
    pictures: Sequence[Any],
    *,
    n_neighbors: int = 3,
    title: str = "",
    notes: Sequence[str] = (),
    errors: Sequence[str] = (),
) -> Scene:
    """Ask a classifier about pictures, and gather what there is to show.

    Args:
        classifier: a fitted `FewShotClassifier` with a backbone.
        pictures: what to ask about: paths, Pillow images or arrays that can be read.
        n_neighbors: how many of the nearest support images to show beside each.
        title: a line for the top.
        notes: more lines, under it.
        errors: what could not be read, in sentences.
    """
    fitted = classifier._ready()
    support, learnt = fitted.support.features.numpy(), fitted.learnt
    asked = classifier._query(pictures, fitted) if len(pictures) else None
    explanations = [] if asked is None else explain_answers(fitted, asked, n_neighbors)
    features = support if asked is None else np.concatenate([support, asked.numpy()])
    places, shares = principal_plane(features)
    thumbnails = _thumbnails(learnt.names)
    names = [name_of(picture, number) for number, picture in enumerate(pictures)]
    by_class: dict[str, list[Seen]] = {str(label): [] for label in learnt.classes.tolist()}
    for name, code, thumbnail, place in zip(learnt.names, learnt.codes, thumbnails, places, strict=False):
        by_class[str(learnt.classes[code])].append(Seen(name, thumbnail, place))
    queries = tuple(
        Query(name, thumbnail, place, explanation)
        for name, thumbnail, place, explanation in zip(
            names, _thumbnails(pictures), places[len(support) :], explanations, strict=True
        )
    )
    return Scene(title, tuple(notes), by_class, queries, tuple(errors), shares)


def principal_plane(features: npt.NDArray[np.float64]) -> tuple[Places, tuple[float, float]]:
    """Return where features lie on their two principal axes, (feature, 2), and each axis's share of the variance.

    >>> places, shares = principal_plane(np.array([[0.0, 1.0, 5.0], [4.0, 1.0, 5.0], [2.0, 2.0, 5.0], [2.0, 0.0, 5.0]]))
    >>> shares
    (0.8, 0.2)
    """
    around = features - features.mean(0)
    left, values, axes = np.linalg.svd(around, full_matrices=False)
    places = np.zeros((len(features), 2))
    n_axes = min(2, len(values))
    # An axis's direction is arbitrary: let its largest weight be positive, so that the same features look the same.
    signs = np.sign(axes[np.arange(n_axes), np.abs(axes[:n_axes]).argmax(1)])
    places[:, :n_axes] = left[:, :n_axes] * values[:n_axes] * signs
    total = float((values**2).sum()) or 1.0
    shares = [round(float(value**2) / total, 6) for value in values[:2]] + [0.0, 0.0]
    return places, (shares[0], shares[1])


def _thumbnails(pictures: Sequence[Any]) -> list[Pixels | None]:
    read = read_each(pictures, lambda content: content.square(THUMBNAIL))
    return [None if isinstance(one, NearshotError) else one for one in read]
