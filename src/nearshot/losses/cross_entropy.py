"""Cross-entropy on a linear head, the loss of SimpleShot, alone or mixed with NCA; and distillation.

In distillation a network learns what an earlier one, its teacher, answers (Hinton et al., 2015).
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from nearshot.distances import DISTANCES, Distance, DistanceName, full_precision
from nearshot.errors import look_up
from nearshot.losses.blocks import NOTHING
from nearshot.losses.neighbours import check_fraction, check_temperature, checked_labels, nca_loss


def cross_entropy_loss(logits: Tensor, labels: Tensor, *, label_smoothing: float = 0.0) -> Tensor:
    """Return the mean cross-entropy of `logits` (image, class) against `labels` (image,) in range(class).

    With `label_smoothing` s, the target is 1 − s for the label, plus s spread evenly over all
    classes.

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
    """Return λ · cross-entropy(logits) + (1 − λ) · NCA(embeddings), with λ = `cross_entropy_weight` in [0, 1].

    Args:
        embeddings: (image, dim).
        logits: (image, class), the linear head's output for them.
        labels: (image,) in range(class).
        cross_entropy_weight: λ; 0 is NCA alone and 1 is SimpleShot.
        temperature: as for `neighbour_loss`, like `background` and `distance`.
        background: 0 is the exact loss, 1e-10 the arithmetic of the published experiments.
        distance: "euclidean", "cosine", or a callable.
        label_smoothing: as for `cross_entropy_loss`.

    >>> embeddings, logits, labels = torch.randn(6, 4), torch.randn(6, 3), torch.tensor([0, 0, 1, 1, 2, 2])
    >>> mixed_loss(embeddings, logits, labels, cross_entropy_weight=0.0) == nca_loss(embeddings, labels)
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


def distillation_loss(
    logits: Tensor, teacher_logits: Tensor, *, temperature: float = 4.0
) -> Tensor:
    """Return T² · KL(softmax(teacher / T) ‖ softmax(student / T)), the mean over images.

    Args:
        logits: (image, class), the student's.
        teacher_logits: (image, class), the teacher's; they get no gradient.
        temperature: T. The factor T² keeps the gradient's size for any T.

    >>> logits = torch.tensor([[1.0, 2.0, 3.0]])
    >>> distillation_loss(logits, logits + 5)
    tensor(0.)
    """
    check_temperature(temperature)
    with torch.autocast(logits.device.type, enabled=False):
        student, teacher = (
            (full_precision(one) / temperature).log_softmax(1)
            for one in (logits, teacher_logits.detach())
        )
        return temperature**2 * F.kl_div(student, teacher, reduction="batchmean", log_target=True)


def neighbour_distillation_loss(
    embeddings: Tensor,
    teacher_embeddings: Tensor,
    *,
    temperature: float | Tensor = 1.0,
    distance: DistanceName = "euclidean",
    distillation_temperature: float = 4.0,
) -> Tensor:
    """Return the `distillation_loss` of the neighbours that each image of a batch picks, as in NCA.

    The logits are −d²/T of an image to all others, so the teacher's embeddings may have another
    dimension.

    Args:
        embeddings: (image, dim), the student's, of at least two images.
        teacher_embeddings: (image, teacher's dim); they get no gradient.
        temperature: T of the loss that both were trained with.
        distance: "euclidean" (squared) or "cosine".
        distillation_temperature: the temperature of `distillation_loss`.
    """
    measure = look_up(DISTANCES, distance, "distance")
    with torch.autocast(embeddings.device.type, enabled=False):
        itself = torch.eye(len(embeddings), dtype=torch.bool, device=embeddings.device)
        logits = [
            (-measure(one, one) / temperature).masked_fill(itself, NOTHING)
            for one in (full_precision(embeddings), full_precision(teacher_embeddings.detach()))
        ]
    return distillation_loss(logits[0], logits[1], temperature=distillation_temperature)
