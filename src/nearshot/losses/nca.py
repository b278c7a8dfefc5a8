"""Neighbourhood Component Analysis: each image is an anchor, and all others are its candidates."""

import torch
from torch import Tensor

from nearshot.distances import Distance, DistanceName
from nearshot.errors import InputError
from nearshot.losses._checks import check_fraction, checked_labels
from nearshot.losses.neighbours import neighbour_loss, pair_masks


def nca_loss(
    embeddings: Tensor,
    labels: Tensor,
    *,
    temperature: float | Tensor = 1.0,
    background: float = 0.0,
    distance: DistanceName | Distance = "euclidean",
    keep_positives: float = 1.0,
    keep_negatives: float = 1.0,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Return the NCA loss of a batch (Section 2.2): no support, no queries, all pairs.

    Args:
        embeddings: (image, dim).
        labels: (image,) whole numbers.
        temperature: as for `neighbour_loss`, like `background` and `distance`.
        background: 0 is the exact loss, 1e-10 the arithmetic of the published experiments.
        distance: "euclidean", "cosine", or a callable.
        keep_positives: the fraction of ordered positive pairs to use, chosen at random (Section
            3.3); their number is exactly the fraction of all positive pairs of the batch, rounded
            down. Choosing takes memory quadratic in the batch.
        keep_negatives: the same for negatives.
        generator: the source of the random choice; needed when a fraction is under 1.

    >>> embeddings = torch.tensor([[0.0], [1.0], [5.0], [6.0]])
    >>> near = nca_loss(embeddings, torch.tensor([0, 0, 1, 1]))
    >>> near < nca_loss(embeddings, torch.tensor([0, 1, 0, 1]))
    tensor(True)
    """
    labels = checked_labels(labels, embeddings)
    check_fraction(keep_positives, "keep_positives")
    check_fraction(keep_negatives, "keep_negatives")
    kept_pairs = None
    if keep_positives < 1 or keep_negatives < 1:
        if generator is None:
            raise InputError(
                "generator must be given where keep_positives or keep_negatives is under 1: the "
                "pairs are chosen at random."
            )
        positive, negative = pair_masks(labels, labels, same_set=True)
        kept_positives = keep_exactly(positive, keep_positives, generator)
        kept_negatives = keep_exactly(negative, keep_negatives, generator)
        kept_pairs = kept_positives | kept_negatives
    return neighbour_loss(
        embeddings,
        labels,
        embeddings,
        labels,
        same_set=True,
        temperature=temperature,
        background=background,
        distance=distance,
        kept_pairs=kept_pairs,
    )


def keep_exactly(pairs: Tensor, fraction: float, generator: torch.Generator) -> Tensor:
    """Keep a random `fraction` of the true entries of a mask, their number rounded down.

    Each pair draws a number and the lowest are kept. No value is read on the host, so an
    accelerator does not wait.
    """
    draws = torch.rand(
        pairs.shape, dtype=torch.float64, device=generator.device, generator=generator
    )
    draws = torch.where(pairs, draws.to(pairs.device), 2.0)  # entries that are no pair come last
    n_kept = (pairs.sum().double() * fraction).floor()
    ranks = torch.arange(pairs.numel(), device=pairs.device)
    kept = torch.empty(pairs.numel(), dtype=torch.bool, device=pairs.device)
    kept[draws.flatten().argsort()] = ranks < n_kept
    return kept.view_as(pairs)
