"""Why a picture was given its label: the support images that it is nearest to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

__all__ = ["Explanation", "Neighbour"]


@dataclass(frozen=True)
class Neighbour:
    """A support image, as seen from a picture.

    Attributes:
        name: its path, or "image 3".
        label: its class.
        index: its place among the support images.
        distance: how far its prepared feature is from the picture's.
        weight: its share of the decision: of the likelihood with "soft", of the votes with "knn". None with "centroid",
            where the class's mean decides.
    """

    name: str
    label: Any
    index: int
    distance: float
    weight: float | None = None


@dataclass(frozen=True)
class Explanation:
    """An answer and what it rests on.

    Attributes:
        label: the answer, as `predict` gives it.
        probabilities: of each class, the most probable first.
        novelty: how unlike any class the picture is; about 1 for a picture of a class.
        threshold: the novelty over which a picture is unknown; infinite where nothing is rejected.
        neighbours: the nearest support images, nearest first.
    """

    label: Any
    probabilities: dict[Any, float]
    novelty: float
    threshold: float
    neighbours: tuple[Neighbour, ...]

    @property
    def nearest(self) -> Any:
        """The most probable class, also where the answer is "unknown"."""
        return next(iter(self.probabilities))

    @property
    def probability(self) -> float:
        """That class's probability."""
        return self.probabilities[self.nearest]

    @property
    def is_unknown(self) -> bool:
        """Whether it is none of the classes."""
        return self.novelty > self.threshold

    def __str__(self) -> str:
        best = " or ".join(f"{label} ({100 * value:.0f} %)" for label, value in list(self.probabilities.items())[:2])
        if self.is_unknown:
            best = f"{self.label}, as its novelty {self.novelty:.2f} is over {self.threshold:.2f}; else {best}"
        images = ", ".join(f"{one.name} ({one.label}, {one.distance:.2f})" for one in self.neighbours)
        return f"{best}; nearest images: {images}"
