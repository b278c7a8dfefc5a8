"""Distillation (Hinton et al., 2015): a network learns what an earlier one answers, its teacher."""

import torch
import torch.nn.functional as F
from torch import Tensor

from nearshot.distances import DISTANCES, Distance, DistanceName, full_precision
from nearshot.errors import look_up
from nearshot.losses._checks import check_temperature
from nearshot.losses.blocks import NO_PAIR


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
        student = (full_precision(logits) / temperature).log_softmax(1)
        teacher = (full_precision(teacher_logits.detach()) / temperature).log_softmax(1)
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
        logits = _neighbour_logits(embeddings, measure, temperature)
        teacher_logits = _neighbour_logits(teacher_embeddings.detach(), measure, temperature)
    return distillation_loss(logits, teacher_logits, temperature=distillation_temperature)


def _neighbour_logits(embeddings: Tensor, measure: Distance, temperature: float | Tensor) -> Tensor:
    """Return −d²/T between all images (image, image); no image is its own neighbour."""
    embeddings = full_precision(embeddings)
    itself = torch.eye(len(embeddings), dtype=torch.bool, device=embeddings.device)
    return (-measure(embeddings, embeddings) / temperature).masked_fill(itself, NO_PAIR)
