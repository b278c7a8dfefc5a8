"""The one loss: each anchor should pick a same-class neighbour among its candidates.

In Neighbourhood Component Analysis every image of a batch is an anchor, and all the others are its
candidates.

The checks at the end are those of all losses. Shapes and types are always checked. Values (NaN, a
negative temperature) are checked on the CPU only: reading a value from an accelerator makes the
host wait for it in every step. There, NaN in gives NaN out.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from nearshot.distances import DISTANCES, Distance, DistanceName, full_precision, unit_length
from nearshot.errors import InputError, look_up
from nearshot.losses.blocks import NOTHING, Roles, blockwise_loss

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
) -> Tensor:
    """Return the mean over anchors of −log p, the probability that an anchor picks a neighbour of its own class.

        p = Σ_positives exp(−d²/T) / (Σ_positives exp(−d²/T) + Σ_negatives exp(−d²/T))

    NCA, Matching and Prototypical Networks and the paper's ablations are this loss (Section 2.2,
    Appendix B); they differ in who is an anchor, who is a candidate, and whether support images are
    first averaged into prototypes. An anchor without a positive adds nothing, and counts in the
    mean.

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
            experiments, which use 1e-10: the sum over negatives is at least b, and an anchor with p
            < b adds nothing.
        distance: "euclidean" (squared), "cosine" (one minus the cosine), or a callable of (anchor,
            dim) and (candidate, dim), at least float32, that returns (anchor, candidate).

    >>> anchors, candidates = torch.tensor([[0.0]]), torch.tensor([[1.0], [2.0]])
    >>> loss = neighbour_loss(anchors, torch.tensor([7]), candidates, torch.tensor([7, 8]))
    >>> torch.isclose(loss, torch.tensor(math.log(1 + math.exp(1 - 4))))
    tensor(True)
    """
    anchor_labels = checked_labels(anchor_labels, anchors, "anchors")
    candidate_labels = checked_labels(candidate_labels, candidates, "candidates")
    if (
        same_set
        and values_can_be_read(anchor_labels)
        and not torch.equal(anchor_labels, candidate_labels)
    ):
        raise InputError(
            "same_set means that the candidates are the anchors, but their labels differ."
        )
    common = torch.promote_types(anchors.dtype, candidates.dtype)
    roles = Roles(
        anchors.to(common), anchor_labels, candidates.to(common), candidate_labels, same_set
    )
    return loss_of_roles(roles, temperature, background, distance)


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
    >>> nca_loss(embeddings, torch.tensor([0, 0, 1, 1])) < nca_loss(embeddings, torch.tensor([0, 1, 0, 1]))
    tensor(True)
    """
    labels = checked_labels(labels, embeddings)
    check_fraction(keep_positives, "keep_positives")
    check_fraction(keep_negatives, "keep_negatives")
    kept_pairs = None
    if keep_positives < 1 or keep_negatives < 1:
        if generator is None:
            raise InputError("Keeping a random fraction of the pairs needs a generator.")
        positive, negative = pair_masks(labels, labels, same_set=True)
        kept_pairs = keep_exactly(positive, keep_positives, generator)
        kept_pairs = kept_pairs | keep_exactly(negative, keep_negatives, generator)
    roles = Roles(embeddings, labels, embeddings, labels, same_set=True, kept_pairs=kept_pairs)
    return loss_of_roles(roles, temperature, background, distance)


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
    places = torch.arange(pairs.numel(), device=pairs.device)
    kept = torch.empty(pairs.numel(), dtype=torch.bool, device=pairs.device)
    kept[draws.flatten().argsort()] = places < n_kept
    return kept.view_as(pairs)


def loss_of_roles(
    roles: Roles, temperature: float | Tensor, background: float, distance: DistanceName | Distance
) -> Tensor:
    """Return `neighbour_loss` of anchors and candidates that have been checked already."""
    check_temperature(temperature)
    measure = look_up(DISTANCES, distance, "distance") if isinstance(distance, str) else distance
    device, all_pairs = roles.anchors.device.type, (len(roles.anchors), len(roles.candidates))
    is_large = math.prod(all_pairs) >= (
        PAIRS_BEFORE_BLOCKS_CPU if device == "cpu" else PAIRS_BEFORE_BLOCKS
    )
    # Blocks support neither `torch.func` nor, on a CPU, `torch.compile`.
    in_blocks = (
        is_large and not is_transformed(roles.anchors) and not is_transformed(roles.candidates)
    )
    in_blocks = in_blocks and not (device == "cpu" and torch.compiler.is_compiling())
    with torch.autocast(device, enabled=False):
        if isinstance(distance, str) and in_blocks:
            return blockwise_loss(_scaled(roles, distance, temperature), background)
        distances = measure(full_precision(roles.anchors), full_precision(roles.candidates))
        if (
            distances.shape != all_pairs
        ):  # it could be broadcast, and the loss would be of something else
            came = tuple(distances.shape)
            raise InputError(
                f"distance must return {all_pairs}, a number per pair (anchor, candidate), not {came}."
            )
        return _dense_loss(roles, -distances / temperature, background)


def _dense_loss(roles: Roles, logits: Tensor, background: float) -> Tensor:
    """Return the loss of the logits −d²/T of all pairs, (anchor, candidate)."""
    positive, negative = pair_masks(
        roles.anchor_labels, roles.candidate_labels, same_set=roles.same_set
    )
    if roles.kept_pairs is not None:
        positive, negative = positive & roles.kept_pairs, negative & roles.kept_pairs
    log_positives = torch.where(positive, logits, NOTHING).logsumexp(1)  # (anchor,)
    log_negatives = torch.where(negative, logits, NOTHING).logsumexp(1)
    counts = positive.any(1)
    if background:
        log_negatives = log_negatives.clamp(min=math.log(background))
    log_p = F.logsigmoid(log_positives - log_negatives)  # p = 1 / (1 + negatives / positives)
    if background:
        counts = counts & ~(log_p < math.log(background))  # NaN is not less, so it stays visible
    return -torch.where(counts, log_p, 0.0).mean()


def pair_masks(
    anchor_labels: Tensor, candidate_labels: Tensor, *, same_set: bool
) -> tuple[Tensor, Tensor]:
    """Return which pairs are positives and which are negatives, each (anchor, candidate)."""
    same_class = anchor_labels[:, None] == candidate_labels  # (anchor, candidate)
    if not same_set:
        return same_class, ~same_class
    itself = torch.eye(len(anchor_labels), dtype=torch.bool, device=anchor_labels.device)
    return same_class & ~itself, ~same_class & ~itself


def _scaled(roles: Roles, distance: DistanceName, temperature: float | Tensor) -> Roles:
    """Return the roles with embeddings whose squared Euclidean distances are the distances divided by T.

    exp(−d²/T) is exp(−d²) of embeddings divided by √T, and the cosine distance is half the squared
    distance of unit vectors. So the blocks need to know neither, and a learnt T gets its gradient
    from autograd.
    """
    offset = full_precision(roles.candidates.detach()).mean(
        0
    )  # centring saves digits, as in `squared_euclidean`

    def scaled(embeddings: Tensor) -> Tensor:
        if distance == "cosine":
            return unit_length(full_precision(embeddings)) * (2 * temperature) ** -0.5
        centred = full_precision(embeddings) - offset
        return (
            centred
            if isinstance(temperature, float) and temperature == 1.0
            else centred * temperature**-0.5
        )

    anchors = scaled(roles.anchors)
    candidates = anchors if roles.candidates is roles.anchors else scaled(roles.candidates)
    return roles._replace(anchors=anchors, candidates=candidates)


def values_can_be_read(tensor: Tensor) -> bool:
    """Whether reading a value is free: on the CPU, outside `torch.compile` and `torch.func`."""
    return (
        tensor.device.type == "cpu"
        and not torch.compiler.is_compiling()
        and not is_transformed(tensor)
    )


def is_transformed(tensor: Tensor) -> bool:
    """Whether a tensor is inside `torch.func`; False while compiling, where asking breaks the graph."""
    return not torch.compiler.is_compiling() and bool(
        torch._C._functorch.is_functorch_wrapped_tensor(tensor)
    )


def checked_labels(labels: Tensor, embeddings: Tensor, name: str = "embeddings") -> Tensor:
    """Return labels (image,) as int64; raise an error unless both are usable. `name` is that of the embeddings."""
    if embeddings.ndim != 2 or not embeddings.is_floating_point() or embeddings.numel() == 0:
        raise InputError(
            f"{name} must be a floating-point matrix (image, feature) with at least one of each, not "
            f"{embeddings.dtype} of shape {tuple(embeddings.shape)}."
        )
    if labels.shape != (len(embeddings),) or labels.is_floating_point():
        raise InputError(
            f"The labels of {name} must be one whole number per image: expected shape ({len(embeddings)},), not "
            f"{labels.dtype} of shape {tuple(labels.shape)}."
        )
    if (
        values_can_be_read(embeddings) and not embeddings.detach().sum().isfinite()
    ):  # the sum is quick to compute
        bad_rows = (~embeddings.detach().isfinite()).any(1).nonzero()
        if len(bad_rows):
            raise InputError(
                f"{name} has NaN or infinity, first in row {int(bad_rows[0])}. Did training diverge?"
            )
    return labels.long()


def check_temperature(temperature: float | Tensor) -> None:
    """Raise an error unless a temperature is one positive number."""
    if isinstance(temperature, Tensor):
        if not values_can_be_read(temperature):
            return
        temperature = float(temperature.detach())
    if not 0 < temperature < math.inf:
        raise InputError(f"temperature must be a positive number, not {temperature}.")


def check_fraction(value: float, name: str) -> None:
    """Raise an error unless a value is in [0, 1]."""
    if not 0 <= value <= 1:
        raise InputError(f"{name} must be between 0 and 1, not {value}.")
