"""The one loss: each anchor should pick a same-class neighbour among its candidates.

The paper's methods differ in who is an anchor, who is a candidate, and whether support images are
first averaged into prototypes:

| method                           | anchors              | candidates           |
|----------------------------------|----------------------|----------------------|
| NCA                              | all images           | all other images     |
| Matching Networks                | query images         | support images       |
| Prototypical Networks            | query images         | prototypes           |
| NCA on prototypes (Appendix B)   | query and prototypes | the others of these  |

A candidate of the anchor's class is a positive, any other a negative.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from nearshot.distances import DISTANCES, Distance, DistanceName, full_precision, unit_length
from nearshot.errors import InputError, look_up
from nearshot.losses._checks import (
    check_temperature,
    checked_labels,
    is_transformed,
    values_can_be_read,
)
from nearshot.losses.blocks import NO_PAIR, blockwise_loss

# From this many pairs, the loss is computed in blocks: on a CPU where that is faster, elsewhere to
# save memory.
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
) -> Tensor:
    """Return the mean over anchors of −log p, where p is the probability of picking a positive.

        p = Σ_positives exp(−d²/T) / (Σ_positives exp(−d²/T) + Σ_negatives exp(−d²/T))

    NCA, Matching and Prototypical Networks and the paper's ablations are this loss (Section 2.2,
    Appendix B). An anchor without a positive adds nothing, and counts in the mean.

    Large batches are computed block by block, in memory linear in the number of images. The result
    is the same, but has no second derivative; with a callable as the distance it has one.

    Args:
        anchors: (anchor, dim), in any floating type; the arithmetic is at least float32.
        anchor_labels: (anchor,) whole numbers.
        candidates: (candidate, dim).
        candidate_labels: (candidate,) whole numbers.
        same_set: the candidates are the anchors, in the same order, and no anchor is its own
            candidate.
        temperature: T, a number or a scalar tensor that may require a gradient.
        background: 0 gives the exact loss. A value b > 0 gives the arithmetic of the published
            experiments, which use 1e-10: the sum over negatives is at least b, and an anchor with
            p < b adds nothing.
        distance: "euclidean" (squared), "cosine" (one minus the cosine), or a callable of
            (anchor, dim) and (candidate, dim), at least float32, that returns (anchor, candidate).
        kept_pairs: (anchor, candidate) booleans, true for the pairs to use; by default all.

    >>> anchors, candidates = torch.tensor([[0.0]]), torch.tensor([[1.0], [2.0]])
    >>> loss = neighbour_loss(anchors, torch.tensor([7]), candidates, torch.tensor([7, 8]))
    >>> torch.isclose(loss, torch.tensor(math.log(1 + math.exp(1 - 4))))
    tensor(True)
    """
    anchor_labels = checked_labels(anchor_labels, anchors, "anchors")
    candidate_labels = checked_labels(candidate_labels, candidates, "candidates")
    check_temperature(temperature)
    all_pairs = (len(anchors), len(candidates))
    if same_set:
        _check_same_set(anchor_labels, candidate_labels)
    if kept_pairs is not None and (kept_pairs.shape != all_pairs or kept_pairs.dtype != torch.bool):
        raise InputError(
            f"kept_pairs must be a boolean for each pair, {all_pairs}, not {kept_pairs.dtype} of "
            f"shape {tuple(kept_pairs.shape)}."
        )
    common_type = torch.promote_types(anchors.dtype, candidates.dtype)
    anchors = anchors.to(common_type)
    candidates = candidates.to(common_type)
    with torch.autocast(anchors.device.type, enabled=False):
        if isinstance(distance, str):
            measure = look_up(DISTANCES, distance, "distance")
            if _needs_blocks(anchors, candidates):
                anchors, candidates = _scaled(anchors, candidates, distance, temperature)
                return blockwise_loss(
                    anchors,
                    anchor_labels,
                    candidates,
                    candidate_labels,
                    same_set=same_set,
                    background=background,
                    kept_pairs=kept_pairs,
                )
        else:
            measure = distance
        distances = measure(full_precision(anchors), full_precision(candidates))
        # Another shape could be broadcast, and the loss would be of something else.
        if distances.shape != all_pairs:
            raise InputError(
                f"distance must return {all_pairs}, a number per pair (anchor, candidate), "
                f"not {tuple(distances.shape)}."
            )
        positive, negative = pair_masks(anchor_labels, candidate_labels, same_set=same_set)
        if kept_pairs is not None:
            positive = positive & kept_pairs
            negative = negative & kept_pairs
        return _loss_of_logits(-distances / temperature, positive, negative, background)


def pair_masks(
    anchor_labels: Tensor, candidate_labels: Tensor, *, same_set: bool
) -> tuple[Tensor, Tensor]:
    """Return which pairs are positives and which are negatives, each (anchor, candidate)."""
    same_class = anchor_labels[:, None] == candidate_labels  # (anchor, candidate)
    if not same_set:
        return same_class, ~same_class
    itself = torch.eye(len(anchor_labels), dtype=torch.bool, device=anchor_labels.device)
    return same_class & ~itself, ~same_class & ~itself


def _loss_of_logits(
    logits: Tensor, positive: Tensor, negative: Tensor, background: float
) -> Tensor:
    """Return the loss of the logits −d²/T; all tensors are (anchor, candidate)."""
    log_positives = torch.where(positive, logits, NO_PAIR).logsumexp(1)  # (anchor,)
    log_negatives = torch.where(negative, logits, NO_PAIR).logsumexp(1)
    counts = positive.any(1)
    if background:
        log_negatives = log_negatives.clamp(min=math.log(background))
    log_p = F.logsigmoid(log_positives - log_negatives)  # p = 1 / (1 + negatives / positives)
    if background:
        counts = counts & ~(log_p < math.log(background))  # NaN is not less, so it stays visible
    return -torch.where(counts, log_p, 0.0).mean()


def _check_same_set(anchor_labels: Tensor, candidate_labels: Tensor) -> None:
    """Raise an error if anchors and candidates cannot be the same images."""
    is_same = anchor_labels.shape == candidate_labels.shape
    if is_same and values_can_be_read(anchor_labels):
        is_same = torch.equal(anchor_labels, candidate_labels)
    if not is_same:
        raise InputError(
            "same_set means that the candidates are the anchors, but their labels differ."
        )


def _needs_blocks(anchors: Tensor, candidates: Tensor) -> bool:
    """Whether there are so many pairs that the loss is computed block by block."""
    on_cpu = anchors.device.type == "cpu"
    limit = PAIRS_BEFORE_BLOCKS_CPU if on_cpu else PAIRS_BEFORE_BLOCKS
    if len(anchors) * len(candidates) < limit:
        return False
    # Blocks support neither `torch.func` nor, on a CPU, `torch.compile`.
    if is_transformed(anchors) or is_transformed(candidates):
        return False
    return not (on_cpu and torch.compiler.is_compiling())


def _scaled(
    anchors: Tensor, candidates: Tensor, distance: DistanceName, temperature: float | Tensor
) -> tuple[Tensor, Tensor]:
    """Return embeddings whose squared Euclidean distances are the distances divided by T.

    exp(−d²/T) is exp(−d²) of embeddings divided by √T, and the cosine distance is half the squared
    distance of unit vectors. So the blocks need to know neither, and a learnt T gets its gradient
    from autograd. One tensor in both roles stays one tensor.
    """
    # A common offset changes no distance; centring saves digits, as in `squared_euclidean`.
    offset = full_precision(candidates.detach()).mean(0)

    def scaled(embeddings: Tensor) -> Tensor:
        if distance == "cosine":
            return unit_length(full_precision(embeddings)) * (2 * temperature) ** -0.5
        centred = full_precision(embeddings) - offset
        if isinstance(temperature, float) and temperature == 1.0:
            return centred
        return centred * temperature**-0.5

    scaled_anchors = scaled(anchors)
    if candidates is anchors:
        return scaled_anchors, scaled_anchors
    return scaled_anchors, scaled(candidates)
