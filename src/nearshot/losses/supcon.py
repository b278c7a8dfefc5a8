"""The supervised contrastive loss of Khosla et al. (2020), for Appendix C."""

import math
from typing import Literal

import torch
from torch import Tensor

from nearshot.distances import full_precision, unit_length
from nearshot.errors import InputError
from nearshot.losses._checks import check_temperature, checked_labels
from nearshot.losses.blocks import NO_PAIR
from nearshot.losses.neighbours import pair_masks

# The published code clamps every cosine and every denominator to at least this, which also stops
# their gradient.
SMALLEST_PUBLISHED = 1e-10


def supervised_contrastive_loss(
    embeddings: Tensor,
    labels: Tensor,
    *,
    temperature: float | Tensor = 0.1,
    variant: Literal["khosla", "published"] = "khosla",
) -> Tensor:
    """Return the supervised contrastive loss of a batch, on the cosines s between its embeddings.

    "khosla" is the loss of Khosla et al. (their L_out), the mean over the anchors i of

        −1/|P(i)| Σ_{p ∈ P(i)} log ( exp(s_ip/T) / Σ_{a ≠ i} exp(s_ia/T) )

    "published" is what the experiments of Appendix C ran: negative cosines clamped to zero, only
    negatives in the denominator, and no division by the number of positives |P(i)|. An anchor
    without a positive adds nothing and counts in the mean.

    Args:
        embeddings: (image, dim), of any length; they are normalised here.
        labels: (image,) whole numbers.
        temperature: T, a number or a scalar tensor. Khosla et al. use 0.1, the published
            experiments 1.
        variant: "khosla" or "published", as above.

    >>> embeddings = torch.tensor([[1.0, 0.0], [1.0, 0.1], [0.0, 1.0], [0.1, 1.0]])
    >>> near = supervised_contrastive_loss(embeddings, torch.tensor([0, 0, 1, 1]))
    >>> near < supervised_contrastive_loss(embeddings, torch.tensor([0, 1, 0, 1]))
    tensor(True)
    """
    labels = checked_labels(labels, embeddings)
    check_temperature(temperature)
    if variant not in ("khosla", "published"):
        raise InputError(f"variant must be 'khosla' or 'published', not {variant!r}.")
    with torch.autocast(embeddings.device.type, enabled=False):
        directions = unit_length(full_precision(embeddings))
        cosines = directions @ directions.T  # (anchor, image)
        positive, negative = pair_masks(labels, labels, same_set=True)
        if variant == "published":
            cosines = cosines.clamp(min=SMALLEST_PUBLISHED)
            in_denominator = negative
            n_positives = torch.ones_like(labels)
        else:
            in_denominator = positive | negative
            n_positives = positive.sum(1).clamp(min=1)
        logits = cosines / temperature
        log_denominator = torch.where(in_denominator, logits, NO_PAIR).logsumexp(1, keepdim=True)
        if variant == "published":
            # Without a negative in the batch, the denominator is this floor.
            log_denominator = log_denominator.clamp(min=math.log(SMALLEST_PUBLISHED))
        log_likelihood = torch.where(positive, logits - log_denominator, 0.0).sum(1) / n_positives
        return -log_likelihood.mean()
