"""The one loss: each anchor should pick a same-class neighbour among its candidates."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from nearshot.distances import DISTANCES, Distance, DistanceName, full_precision, unit_length
from nearshot.errors import InputError, look_up
from nearshot.losses.blocks import NOTHING, BlockwiseLoss
from nearshot.losses.inputs import (
    check_embeddings,
    check_labels,
    check_non_negative,
    check_same_space,
    check_temperature,
    is_transformed,
    values_can_be_read,
)

__all__ = ["neighbour_loss", "pair_masks"]

# From so many pairs on, the loss is computed in blocks: on a CPU where that is faster, elsewhere where memory counts.
PAIRS_BEFORE_BLOCKS_CPU = 2**17
PAIRS_BEFORE_BLOCKS = 2**28


def neighbour_loss(
    anchors: Tensor,
    anchor_labels: Tensor,
    candidates: Tensor,
    candidate_labels: Tensor,
    *,
    same_set: bool = False,
    temperature: float | Tensor = 1.0,
    background: float = 0.0,
    distance: DistanceName | Distance = "euclidean",
    kept_pairs: Tensor | None = None,
    in_blocks: bool | None = None,
) -> Tensor:
    """Return the mean over anchors of −log p, the probability that an anchor picks a neighbour of its own class.

        p = Σ_positives exp(−d²/T) / (Σ_positives exp(−d²/T) + Σ_negatives exp(−d²/T))

    NCA, Matching and Prototypical Networks and the paper's ablations are this loss (Section 2.2, Appendix B); they
    differ in who is an anchor, who is a candidate, and whether support images are first averaged into prototypes.
    An anchor without a positive adds nothing, and counts in the mean.

    Args:
        anchors: (anchor, dim), in any floating type; the arithmetic is at least float32.
        anchor_labels: (anchor,) whole numbers.
        candidates: (candidate, dim).
        candidate_labels: (candidate,) whole numbers.
        same_set: the candidates are the anchors, in the same order, and no anchor is its own candidate.
        temperature: T, a number or a scalar tensor that may require a gradient.
        background: 0 gives the exact loss. A value b > 0 gives the arithmetic of the published experiments, which
            use 1e-10: the sum over negatives is at least b, and an anchor with p < b adds nothing.
        distance: "euclidean" (squared), "cosine" (one minus the cosine), or a callable of (anchor, dim) and
            (candidate, dim), at least float32, that returns (anchor, candidate).
        kept_pairs: (anchor, candidate), true where a pair may be used; by default all are.
        in_blocks: compute value and gradient block by block, in memory linear in the number of images. By default
            where it pays. The result is the same; second and forward-mode derivatives need `in_blocks=False`.

    >>> anchors, candidates = torch.tensor([[0.0]]), torch.tensor([[1.0], [2.0]])
    >>> loss = neighbour_loss(anchors, torch.tensor([7]), candidates, torch.tensor([7, 8]))
    >>> torch.isclose(loss, torch.tensor(math.log(1 + math.exp(1 - 4))))
    tensor(True)
    """
    check_embeddings(anchors, "anchors")
    if candidates is not anchors:  # which NCA's are
        check_embeddings(candidates, "candidates")
    check_same_space(anchors, candidates, "anchors and candidates")
    if anchors.dtype != candidates.dtype:
        common = torch.promote_types(anchors.dtype, candidates.dtype)
        anchors, candidates = anchors.to(common), candidates.to(common)
    anchor_labels = check_labels(anchor_labels, anchors, "anchor_labels")
    candidate_labels = check_labels(candidate_labels, candidates, "candidate_labels")
    check_temperature(temperature)
    check_non_negative(background, "background", below=1)
    if same_set:
        _check_same_set(anchor_labels, candidate_labels)
    if kept_pairs is not None and (
        kept_pairs.shape != (len(anchors), len(candidates)) or kept_pairs.dtype != torch.bool
    ):
        raise InputError(
            f"kept_pairs must be true or false, of shape ({len(anchors)}, {len(candidates)}), not {kept_pairs.dtype} "
            f"of shape {tuple(kept_pairs.shape)}."
        )

    with torch.autocast(anchors.device.type, enabled=False):
        if _use_blocks(in_blocks, anchors, candidates, distance):
            # exp(−d²/T) is exp(−d²) of embeddings divided by √T, and the cosine distance is half the squared distance
            # of unit vectors; so the blocks need to know neither, and a learnt T gets its gradient all the same.
            one_tensor = anchors is candidates
            offset = full_precision(candidates.detach()).mean(0)  # as in `squared_euclidean`, it saves digits
            anchors = _scaled(anchors, offset, distance, temperature)
            candidates = anchors if one_tensor else _scaled(candidates, offset, distance, temperature)
            return BlockwiseLoss.of(
                anchors, anchor_labels, candidates, candidate_labels, same_set, background, kept_pairs
            )
        logits = -_distances(anchors, candidates, distance) / temperature  # (anchor, candidate)
        positive, negative = pair_masks(anchor_labels, candidate_labels, same_set=same_set)
        if kept_pairs is not None:
            positive, negative = positive & kept_pairs, negative & kept_pairs

        log_positives = torch.where(positive, logits, NOTHING).logsumexp(1)  # (anchor,)
        log_negatives = torch.where(negative, logits, NOTHING).logsumexp(1)
        counts = positive.any(1)
        if background:
            log_negatives = log_negatives.clamp(min=math.log(background))
        log_p = F.logsigmoid(log_positives - log_negatives)  # p = 1 / (1 + negatives / positives)
        if background:
            counts = counts & ~(log_p < math.log(background))  # NaN is not less: it shows
        return -torch.where(counts, log_p, 0.0).mean()


def pair_masks(anchor_labels: Tensor, candidate_labels: Tensor, *, same_set: bool) -> tuple[Tensor, Tensor]:
    """Return which pairs are positives and which are negatives, each (anchor, candidate).

    >>> labels = torch.tensor([0, 0, 1])
    >>> positive, negative = pair_masks(labels, labels, same_set=True)
    >>> positive.int()
    tensor([[0, 1, 0],
            [1, 0, 0],
            [0, 0, 0]], dtype=torch.int32)
    """
    same_class = anchor_labels[:, None] == candidate_labels  # (anchor, candidate)
    if not same_set:
        return same_class, ~same_class
    itself = torch.eye(len(anchor_labels), dtype=torch.bool, device=anchor_labels.device)
    return same_class & ~itself, ~same_class & ~itself


def _check_same_set(anchor_labels: Tensor, candidate_labels: Tensor) -> None:
    n_anchors, n_candidates = len(anchor_labels), len(candidate_labels)
    if n_anchors != n_candidates:
        raise InputError(f"same_set needs as many candidates as anchors, not {n_candidates} and {n_anchors}.")
    if values_can_be_read(anchor_labels) and not torch.equal(anchor_labels, candidate_labels):
        raise InputError("same_set says that the candidates are the anchors, but their labels differ.")


def _use_blocks(in_blocks: bool | None, anchors: Tensor, candidates: Tensor, distance: DistanceName | Distance) -> bool:
    if not isinstance(distance, str):
        if in_blocks:
            raise InputError("Blocks need a distance by name, 'euclidean' or 'cosine'; a callable is not split up.")
        return False
    look_up(DISTANCES, distance, "distance")
    if any(map(is_transformed, (anchors, candidates))):
        if in_blocks:
            raise InputError("Blocks have their own gradient, which torch.func cannot use: leave in_blocks out there.")
        return False
    if in_blocks is not None:
        return in_blocks
    if anchors.device.type == "cpu":
        return values_can_be_read(anchors) and len(anchors) * len(candidates) >= PAIRS_BEFORE_BLOCKS_CPU
    return len(anchors) * len(candidates) >= PAIRS_BEFORE_BLOCKS


def _distances(anchors: Tensor, candidates: Tensor, distance: DistanceName | Distance) -> Tensor:
    """Return the distance of every pair, (anchor, candidate)."""
    measure = look_up(DISTANCES, distance, "distance") if isinstance(distance, str) else distance
    found = measure(full_precision(anchors), full_precision(candidates))
    # Another shape could be stretched to this one, and the loss would be of something else.
    if not isinstance(found, Tensor) or found.shape != (len(anchors), len(candidates)):
        shape = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
        raise InputError(
            f"The distance returned {shape}; expected ({len(anchors)}, {len(candidates)}), a number for every pair "
            "(anchor, candidate)."
        )
    return found


def _scaled(
    embeddings: Tensor, offset: Tensor, distance: DistanceName | Distance, temperature: float | Tensor
) -> Tensor:
    if distance == "cosine":
        return unit_length(full_precision(embeddings)) * (2 * temperature) ** -0.5
    centred = full_precision(embeddings) - offset
    return centred if isinstance(temperature, float) and temperature == 1.0 else centred * temperature**-0.5
