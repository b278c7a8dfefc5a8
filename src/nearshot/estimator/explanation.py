"""Explain answers by the nearest support images."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from nearshot.distances import squared_euclidean
from nearshot.estimator.state import FittedState
from nearshot.evaluation.classifiers import KNN, SOFT


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
        threshold: the novelty above which an image is rejected; infinite without rejection.
        neighbours: the nearest support images, nearest first.
    """

    label: Any
    probabilities: dict[Any, float]
    novelty: float
    threshold: float
    neighbours: tuple[Neighbour, ...]

    @property
    def nearest(self) -> Any:
        """The most probable class, even if the answer is "none of these"."""
        return next(iter(self.probabilities))

    @property
    def probability(self) -> float:
        """The probability of the most probable class."""
        return self.probabilities[self.nearest]

    @property
    def is_rejected(self) -> bool:
        """Whether the image is rejected."""
        return self.novelty > self.threshold

    def __str__(self) -> str:
        best_two = list(self.probabilities.items())[:2]
        answer = " or ".join(f"{label} ({100 * share:.0f} %)" for label, share in best_two)
        if self.is_rejected:
            answer = (
                f"{self.label}, since its novelty {self.novelty:.2f} is above "
                f"{self.threshold:.2f}; else {answer}"
            )
        images = ", ".join(
            f"{neighbour.name} ({neighbour.label}, {neighbour.distance:.2f})"
            for neighbour in self.neighbours
        )
        return f"{answer}; nearest images: {images}"


def explain_answers(state: FittedState, query: Tensor, n_neighbors: int) -> list[Explanation]:
    """Explain the answers to prepared features, (query, dim), by the nearest support images."""
    classes = state.classes.tolist()
    answers = state.answer(query)
    labels = state.answer_labels(answers).tolist()
    distances, indices = state.common.nearest(state.to_common(query), n_neighbors)
    plain = state.plain(query)
    # The answer comes first, even if another class leads by rounding.
    scores = answers.scores if state.mixture is None else answers.probabilities
    scores = scores.scatter(1, answers.codes[:, None], torch.inf)
    ranking = scores.argsort(dim=1, descending=True, stable=True).tolist()
    probabilities = answers.probabilities.tolist()
    explanations = []
    for row, label in enumerate(labels):
        weights = _image_weights(plain[row : row + 1], state)
        neighbours = []
        for image, distance in zip(indices[row].tolist(), distances[row].tolist(), strict=True):
            neighbours.append(
                Neighbour(
                    name=state.names[image],
                    label=classes[state.codes[image]],
                    index=image,
                    distance=distance,
                    weight=None if weights is None else weights[image],
                )
            )
        explanations.append(
            Explanation(
                label=label,
                probabilities={classes[code]: probabilities[row][code] for code in ranking[row]},
                novelty=float(answers.novelty[row]),
                threshold=state.threshold,
                neighbours=tuple(neighbours),
            )
        )
    return explanations


def _image_weights(query: Tensor, state: FittedState) -> list[float] | None:
    """Return the share of each support image in the decision for one query, (1, dim).

    None for classifiers in which single images do not decide.
    """
    support = state.support
    classifier = state.settings.definition
    if classifier is SOFT:
        squares = squared_euclidean(query, support.features)[0]
        return (-squares - support.counts[support.codes].double().log()).softmax(0).tolist()
    if classifier is KNN:
        n_voters = support.n_voters(state.settings.n_neighbors)
        _, voters = support.nearest(query, n_voters)
        weights = support.features.new_zeros(len(support.codes))
        weights[voters[0]] = 1 / n_voters
        return weights.tolist()
    return None
