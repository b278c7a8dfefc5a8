"""How near pictures are to each class: the three classifiers of Section 2.3, for classes of any sizes.

`nearshot.evaluation` answers thousands of episodes with equally many images of each class; here is one support set,
whose classes have as many images as people have photos. On equal sizes the answers are the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from nearshot.distances import squared_euclidean
from nearshot.evaluation.classifiers import SOFT, ClassifierName
from nearshot.evaluation.ties import TIE, n_behind, tied_nearest

__all__ = ["PAIRS_AT_ONCE", "Support", "class_means", "class_scores", "in_blocks", "n_voters", "tie_tolerance"]

PAIRS_AT_ONCE = 1 << 22  # distances held at a time: 32 MiB of float64


class Support(NamedTuple):
    """Prepared features with their classes.

    Attributes:
        features: (image, dim) float64, centred and normalised as wanted.
        codes: (image,) the number of each image's class; every class has an image.
        n_classes: how many classes there are.
    """

    features: Tensor
    codes: Tensor
    n_classes: int

    @property
    def counts(self) -> Tensor:
        """The number of images of each class, (class,)."""
        return torch.bincount(self.codes, minlength=self.n_classes)

    def subset(self, images: Tensor) -> Support:
        """Return the support set of some images, among which every class must still be."""
        return Support(self.features[images], self.codes[images], self.n_classes)


def class_means(support: Support) -> Tensor:
    """Return the mean feature of each class, (class, dim)."""
    sums = support.features.new_zeros(support.n_classes, support.features.shape[1])
    return sums.index_add_(0, support.codes, support.features) / support.counts[:, None]


def class_scores(query: Tensor, support: Support, classifier: ClassifierName, n_neighbors: int | None = None) -> Tensor:
    """Score every class for every query, (query, class); the highest is the answer.

    Args:
        query: (query, dim) prepared features.
        support: the prepared support set.
        classifier: "centroid": minus the squared distance to the class's mean. "soft": the log of the mean of exp(−d²)
            over the class's images; the mean, not the sum, so that having more photos makes no class more likely.
            "knn": how many of the nearest images are the class's, and under 1 for how near its nearest is; of images
            that are equally far, the first given are the nearer ones.
        n_neighbors: how many images vote in "knn"; by default as many as the smallest class has, so that any class
            could win all votes; never more than there are.

    >>> two = Support(torch.tensor([[0.0], [2.0], [7.0]]).double(), torch.tensor([0, 0, 1]), 2)
    >>> class_scores(torch.tensor([[3.0]]).double(), two, "centroid")
    tensor([[ -4., -16.]], dtype=torch.float64)
    """
    if classifier == "centroid":
        return -squared_euclidean(query, class_means(support))
    counts, order = support.counts.tolist(), support.codes.argsort(stable=True)  # a class's images beside each other
    scores = []
    for rows in in_blocks(query, support):
        squares = squared_euclidean(rows, support.features)
        of_classes = squares[:, order].split(counts, dim=1)
        if classifier == "soft":
            scores.append(SOFT.scores(-squares[:, order], support.counts))
        else:
            nearest = torch.stack([d2.amin(1) for d2 in of_classes], 1)  # (query, class)
            voters = tied_nearest(squares, n_voters(support, n_neighbors), tie_tolerance(squares))
            votes = torch.zeros_like(nearest).index_add_(1, support.codes, voters.to(nearest))
            # Between equals the class's nearest image decides, which counts under 1.
            scores.append(votes + n_behind(nearest, tie_tolerance(squares)).to(votes) / support.n_classes)
    return torch.cat(scores)


def tie_tolerance(squares: Tensor) -> Tensor:
    """Return by how much squared distances (query, image) may differ and still be tied, (query, 1)."""
    return TIE * squares.amax(1, keepdim=True)


def n_voters(support: Support, n_neighbors: int | None) -> int:
    """Return how many images vote in "knn"."""
    return min(n_neighbors or int(support.counts.min()), len(support.codes))


def in_blocks(query: Tensor, support: Support) -> Iterator[Tensor]:
    """Yield the queries, or what there is for each, so many at a time that distances to all images fit the memory."""
    yield from query.split(max(1, PAIRS_AT_ONCE // len(support.codes)))
