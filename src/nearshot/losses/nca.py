"""Neighbourhood Component Analysis: every image of a batch is an anchor, and all the others are its candidates."""

from __future__ import annotations

import torch
from torch import Tensor

from nearshot.distances import Distance, DistanceName
from nearshot.errors import InputError
from nearshot.losses.inputs import check_embeddings, check_fraction, check_labels
from nearshot.losses.neighbours import neighbour_loss, pair_masks

__all__ = ["nca_loss"]


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
    in_blocks: bool | None = None,
) -> Tensor:
    """Return the NCA loss of a batch (Section 2.2): no support, no queries, all pairs.

    Args:
        embeddings: (image, dim).
        labels: (image,) whole numbers.
        temperature: as for `neighbour_loss`, like `background`, `distance` and `in_blocks`.
        background: 0 is the exact loss, 1e-10 the arithmetic of the published experiments.
        distance: "euclidean", "cosine", or a callable.
        keep_positives: the fraction of ordered positive pairs to use, chosen at random (Section 3.3); their number is
            exactly the fraction of all positive pairs of the batch, rounded down. Choosing takes memory quadratic in
            the batch.
        keep_negatives: the same for negatives.
        generator: where the random choice comes from; needed when a fraction is under 1.
        in_blocks: compute in memory linear in the number of images; by default where it pays.

    >>> embeddings = torch.tensor([[0.0], [1.0], [5.0], [6.0]])
    >>> nca_loss(embeddings, torch.tensor([0, 0, 1, 1])) < nca_loss(embeddings, torch.tensor([0, 1, 0, 1]))
    tensor(True)
    """
    check_embeddings(embeddings, "embeddings")
    labels = check_labels(labels, embeddings, "labels")
    check_fraction(keep_positives, "keep_positives")
    check_fraction(keep_negatives, "keep_negatives")
    kept_pairs = None
    if keep_positives < 1 or keep_negatives < 1:
        if generator is None:
            raise InputError("Keeping a random fraction of the pairs needs a generator.")
        positive, negative = pair_masks(labels, labels, same_set=True)
        kept_pairs = keep_exactly(positive, keep_positives, generator) | keep_exactly(
            negative, keep_negatives, generator
        )
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
        in_blocks=in_blocks,
    )


def keep_exactly(pairs: Tensor, fraction: float, generator: torch.Generator) -> Tensor:
    """Keep a random `fraction` of the true entries of a mask, their number rounded down.

    Each pair draws a lot and the lowest are kept. No value is read on the host, so an accelerator is not kept waiting.

    >>> keep_exactly(torch.ones(10, 10, dtype=torch.bool), 0.25, torch.Generator().manual_seed(0)).sum()
    tensor(25)
    """
    lots = torch.rand(pairs.shape, dtype=torch.float64, device=generator.device, generator=generator)
    lots = torch.where(pairs, lots.to(pairs.device), 2.0)  # what is no pair comes last
    n_kept = (pairs.sum().double() * fraction).floor()
    places = torch.arange(pairs.numel(), device=pairs.device)
    kept = torch.empty(pairs.numel(), dtype=torch.bool, device=pairs.device)
    kept[lots.flatten().argsort()] = places < n_kept
    return kept.view_as(pairs)
