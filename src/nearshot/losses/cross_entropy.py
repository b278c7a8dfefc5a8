"""Cross-entropy on a linear head, the loss of SimpleShot: alone, or mixed with NCA."""

import torch
import torch.nn.functional as F
from torch import Tensor

from nearshot.distances import Distance, DistanceName, full_precision
from nearshot.losses._checks import check_fraction, checked_labels
from nearshot.losses.nca import nca_loss


def cross_entropy_loss(logits: Tensor, labels: Tensor, *, label_smoothing: float = 0.0) -> Tensor:
    """Return the mean cross-entropy of `logits` (image, class) against `labels` (image,).

    Labels are in range(class). With `label_smoothing` s, the target is 1 − s for the label, plus s
    spread evenly over all classes.

    >>> cross_entropy_loss(torch.tensor([[9.0, 0.0], [0.0, 9.0]]), torch.tensor([0, 1])) < 1e-3
    tensor(True)
    """
    labels = checked_labels(labels, logits, "logits")
    with torch.autocast(logits.device.type, enabled=False):
        return F.cross_entropy(full_precision(logits), labels, label_smoothing=label_smoothing)


def mixed_loss(
    embeddings: Tensor,
    logits: Tensor,
    labels: Tensor,
    *,
    cross_entropy_weight: float,
    temperature: float | Tensor = 1.0,
    background: float = 0.0,
    distance: DistanceName | Distance = "euclidean",
    label_smoothing: float = 0.0,
) -> Tensor:
    """Return λ · cross-entropy(logits) + (1 − λ) · NCA(embeddings).

    Args:
        embeddings: (image, dim).
        logits: (image, class), the linear head's output for them.
        labels: (image,) in range(class).
        cross_entropy_weight: λ in [0, 1]; 0 is NCA alone and 1 is SimpleShot.
        temperature: as for `neighbour_loss`, like `background` and `distance`.
        background: 0 is the exact loss, 1e-10 the arithmetic of the published experiments.
        distance: "euclidean", "cosine", or a callable.
        label_smoothing: as for `cross_entropy_loss`.

    >>> embeddings, logits = torch.randn(6, 4), torch.randn(6, 3)
    >>> labels = torch.tensor([0, 0, 1, 1, 2, 2])
    >>> mixed = mixed_loss(embeddings, logits, labels, cross_entropy_weight=0.0)
    >>> mixed == nca_loss(embeddings, labels)
    tensor(True)
    """
    check_fraction(cross_entropy_weight, "cross_entropy_weight")
    if cross_entropy_weight == 1:
        return cross_entropy_loss(logits, labels, label_smoothing=label_smoothing)
    nca = nca_loss(
        embeddings, labels, temperature=temperature, background=background, distance=distance
    )
    if cross_entropy_weight == 0:
        return nca
    cross_entropy = cross_entropy_loss(logits, labels, label_smoothing=label_smoothing)
    return cross_entropy_weight * cross_entropy + (1 - cross_entropy_weight) * nca
