"""The number of pairs that a loss learns from, counted on its own anchors and candidates."""

import math
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import torch

from nearshot.episode_shape import EpisodeShape
from nearshot.losses.episodic import episode_roles
from nearshot.losses.neighbours import pair_masks


class PairCounts(NamedTuple):
    """The distances of a batch that the loss uses: within classes, and between classes."""

    positives: int
    negatives: int

    @property
    def total(self) -> int:
        """Positives and negatives together."""
        return self.positives + self.negatives


def count_pairs(shape: EpisodeShape, *, prototypes: bool, separate: bool) -> PairCounts:
    """Return the number of pairs that `episode_loss` uses (Table 1, Appendices A and E).

    A pair of images counts once, whichever of them is the anchor. A prototype counts for the images
    that it averages, and a distance between two prototypes counts once.

    >>> shape = EpisodeShape.from_batch(256, n_shot=5, images_per_class=8)
    >>> count_pairs(shape, prototypes=True, separate=True)  # Prototypical Networks
    PairCounts(positives=480, negatives=14880)
    >>> count_pairs(shape, prototypes=False, separate=False)  # NCA on the same batch
    PairCounts(positives=896, negatives=31744)
    """
    # The embeddings are the rows of the identity: the non-zero entries of a prototype are the
    # images that it averages.
    images = torch.eye(shape.batch_size)
    classes = torch.arange(shape.n_way)
    support_labels = classes.repeat_interleave(shape.n_shot)
    query_labels = classes.repeat_interleave(shape.n_query)
    labels = torch.cat([support_labels, query_labels])
    roles = episode_roles(images, labels, shape, prototypes=prototypes, separate=separate)

    anchor_images = (roles.anchors > 0).sum(1)  # (anchor,)
    candidate_images = (roles.candidates > 0).sum(1)  # (candidate,)
    counts_for = anchor_images[:, None] * candidate_images  # (anchor, candidate)
    counts_for[(anchor_images > 1)[:, None] & (candidate_images > 1)] = 1
    times_met = 2 if roles.same_set else 1  # in one set, each pair occurs from both ends
    positive, negative = pair_masks(
        roles.anchor_labels, roles.candidate_labels, same_set=roles.same_set
    )
    return PairCounts(
        positives=int(counts_for[positive].sum()) // times_met,
        negatives=int(counts_for[negative].sum()) // times_met,
    )


class ExpectedPairs(NamedTuple):
    """The expected pairs of a random batch, and how many of its images are alone of their class."""

    positives: float
    negatives: float
    anchors_without_positive: float

    @property
    def total(self) -> float:
        """Positives and negatives together."""
        return self.positives + self.negatives


def expected_pairs(class_sizes: Sequence[int], batch_size: int) -> ExpectedPairs:
    """Return the mean number of pairs that `nca_loss` has, over all possible shuffled batches.

    Of N images, two of a batch are both of a class of n with probability n(n−1) / N(N−1). An image
    of that class is alone with probability C(N−n, b−1) / C(N−1, b−1): all others of the batch are
    of other classes.

    A balanced batch of 128, two images of each of 64 classes, has 64 positives; a random one:

    >>> expected_pairs([600] * 64, batch_size=128).positives
    126.79...
    """
    n_images = sum(class_sizes)
    n_pairs = math.comb(batch_size, 2)
    n_batches = math.comb(n_images - 1, batch_size - 1)  # that have a given image
    positives = 0.0
    alone = 0.0
    for size, n_classes in Counter(class_sizes).items():
        n_own = n_classes * size
        positives += n_pairs * n_own * (size - 1) / (n_images * max(n_images - 1, 1))
        # Integers of a thousand digits and more, whose ratio Python rounds correctly.
        alone_probability = math.comb(n_images - size, batch_size - 1) / n_batches
        alone += batch_size * n_own / n_images * alone_probability
    return ExpectedPairs(positives, n_pairs - positives, alone)
