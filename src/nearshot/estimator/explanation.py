"""Explain answers by the nearest support images."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from nearshot.distances import squared_euclidean
from nearshot.estimator.state import Fitted


@dataclass(frozen=True)
class Neighbour:
    """A support image near a query.

    Attributes:
        name: its path, or "image 3".
        label: its class.
        index: its index among the support images.
        distance: the distance between the prepared features.
        weight: its share of the decision: of the likelihood with "soft", of the votes with "knn".
            None with other classifiers, such as "centroid", where the class mean decides.
    """

    name: str
    label: Any
    index: int
    distance: float
    weight: float | None = None


@dataclass(frozen=True)
class Explanation:
    """An answer and what it is based on.

    Attributes:
        label: the answer of `predict`.
        probabilities: of each class, the most probable first.
        novelty: how unlike all classes the image is; about 1 for an image of a class.
        threshold: the novelty above which an image is unknown; infinite without rejection.
        neighbours: the nearest support images, nearest first.
    """

    label: Any
    probabilities: dict[Any, float]
    novelty: float
    threshold: float
    neighbours: tuple[Neighbour, ...]

    @property
    def nearest(self) -> Any:
        """The most probable class, even if the answer is "unknown"."""
        return next(iter(self.probabilities))

    @property
    def probability(self) -> float:
        """The probability of the most probable class."""
        return self.probabilities[self.nearest]

    @property
    def is_unknown(self) -> bool:
        """Whether the image is rejected."""
        return self.novelty > self.threshold

    def __str__(self) -> str:
        best = " or ".join(
            f"{label} ({100 * value:.0f} %)"
            for label, value in list(self.probabilities.items())[:2]
        )
        if self.is_unknown:
            best = f"{self.label}, since its novelty {self.novelty:.2f} is above {self.threshold:.2f}; else {best}"
        images = ", ".join(
            f"{one.name} ({one.label}, {one.distance:.2f})" for one in self.neighbours
        )
        return f"{best}; nearest images: {images}"


def explain_answers(fitted: Fitted, query: Tensor, n_neighbors: int) -> list[Explanation]:
    """Explain the answers to prepared features, (query, dim), by the nearest support images."""
    classes = fitted.classes.tolist()
    distances, indices = fitted.support.nearest(query, n_neighbors)
    answers = fitted.answer(query)
    probabilities, novelty = answers.probabilities.tolist(), answers.novelty.tolist()
    # The answer first, even if another leads by rounding.
    leading = answers.scores.scatter(1, answers.codes[:, None], torch.inf)
    ranking = leading.argsort(dim=1, descending=True, stable=True).tolist()
    explanations = []
    for row, label in enumerate(fitted.labels(answers).tolist()):
        weights = _image_weights(query[row : row + 1], fitted)
        neighbours = tuple(
            Neighbour(
                fitted.names[image],
                classes[fitted.codes[image]],
                image,
                distance,
                weights.get(image),
            )
            for distance, image in zip(distances[row].tolist(), indices[row].tolist(), strict=True)
        )
        ranked = {classes[code]: probabilities[row][code] for code in ranking[row]}
        explanations.append(Explanation(label, ranked, novelty[row], fitted.threshold, neighbours))
    return explanations


def _image_weights(query: Tensor, fitted: Fitted) -> dict[int, float]:
    """Return the share of each support image in the decision for one query, (1, dim), if single images decide."""
    support = fitted.support
    if fitted.settings.classifier == "soft":
        squares = squared_euclidean(query, support.features)[0]
        shares = (-squares - support.counts[support.codes].double().log()).softmax(0)
        return dict(enumerate(shares.tolist()))
    if fitted.settings.classifier == "knn":
        voters = support.nearest(query, support.n_voters(fitted.settings.n_neighbors))[1][
            0
        ].tolist()
        return dict.fromkeys(range(len(support.codes)), 0.0) | dict.fromkeys(
            voters, 1 / len(voters)
        )
    return {}
