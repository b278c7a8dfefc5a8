"""A support set: prepared features with their classes."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from nearshot.checks import check_count
from nearshot.distances import squared_euclidean
from nearshot.evaluation.classifiers import TIE, nearest_in_order

PAIRS_AT_ONCE = 1 << 22  # distances held at a time: 32 MiB of float64


@dataclass(frozen=True, eq=False)
class Support:
    """Prepared features with their classes.

    Attributes:
        features: (image, dim) float64, centred and normalised as configured.
        codes: (image,) class indices; every class has at least one image.
        n_classes: the number of classes.
    """

    features: Tensor
    codes: Tensor
    n_classes: int

    @cached_property
    def counts(self) -> Tensor:
        """The number of images of each class, (class,)."""
        return torch.bincount(self.codes, minlength=self.n_classes)

    @cached_property
    def means(self) -> Tensor:
        """The mean feature of each class, (class, dim)."""
        return self.class_sums(self.features) / self.counts[:, None]

    @cached_property
    def residuals(self) -> Tensor:
        """The squared distance of each image to the mean of its class, (image,)."""
        return (self.features - self.means[self.codes]).square().sum(1)

    @cached_property
    def between(self) -> float | None:
        """The mean squared distance between images of different classes.

        None if there is a single class, or if all distances are zero. Over all pairs, Σ‖x − y‖² is
        2nΣ‖x‖² − 2‖Σx‖². The same holds within each class; the rest is between classes.
        """
        n_images = len(self.codes)
        centred = self.features - self.features.mean(0)
        squared_lengths = centred.square().sum(1)
        means = self.class_sums(centred) / self.counts[:, None]
        within = (self.counts * self.class_sums(squared_lengths)).sum()
        within = within - (self.counts[:, None] * means).square().sum()
        total = float(2 * (n_images * squared_lengths.sum() - within))
        n_pairs = n_images**2 - int(self.counts.square().sum())
        if n_pairs == 0 or total <= 0:
            return None
        return total / n_pairs

    @property
    def by_class(self) -> Tensor:
        """The indices of the images, (image,), first those of class 0, then those of class 1, ….

        Classifiers of `nearshot.evaluation` get images in this order.
        """
        return self.codes.argsort(stable=True)

    def class_sums(self, values: Tensor) -> Tensor:
        """Add up values of the images, (image, …), by class: (class, …)."""
        zeros = values.new_zeros(self.n_classes, *values.shape[1:])
        return zeros.index_add_(0, self.codes, values)

    def subset(self, images: Tensor) -> "Support":
        """Return the support set of some images, which must include every class."""
        return Support(self.features[images], self.codes[images], self.n_classes)

    def n_voters(self, n_neighbors: int | None) -> int:
        """Return how many images vote in k-NN.

        By default as many as the smallest class has, so that any class can win.
        """
        return min(n_neighbors or int(self.counts.min()), len(self.codes))

    def nearest(self, query: Tensor, n_neighbors: int) -> tuple[Tensor, Tensor]:
        """Return the distances to the nearest images and their indices, (query, neighbour).

        The nearest comes first. Of equally distant images, those of the first class come first, and
        of one class the first ones.
        """
        check_count(n_neighbors, "n_neighbors")
        n_nearest = min(int(n_neighbors), len(self.codes))
        by_class = self.by_class
        images = self.features[by_class]
        distances = []
        indices = []
        for rows in self.blocks(query):
            squares = squared_euclidean(rows, images)
            tolerance = TIE * squares.amax(1, keepdim=True)
            columns = nearest_in_order(squares, n_nearest, tolerance)
            distances.append(squares.gather(1, columns).sqrt())
            indices.append(by_class[columns])
        return torch.cat(distances), torch.cat(indices)

    def blocks(self, query: Tensor) -> Iterator[Tensor]:
        """Yield blocks of queries that fit in memory.

        A query needs its distances to all images, or a fraction of all pairs of classes.
        """
        pairs_per_query = max(len(self.codes), self.n_classes**2 // 8)
        yield from query.split(max(1, PAIRS_AT_ONCE // pairs_per_query))
