"""Distillation: a network learns what an earlier one, its teacher, answers (Hinton et al., 2015)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from nearshot.distances import DISTANCES, DistanceName, full_precision
from nearshot.errors import InputError, look_up
from nearshot.losses.blocks import NOTHING
from nearshot.losses.preconditions import check_embeddings, check_temperature


def distillation_loss(logits: Tensor, teacher_logits: Tensor, *, temperature: float = 4.0) -> Tensor:
    """Return T² · KL(softmax(teacher / T) ‖ softmax(student / T)), the mean over images.

    Args:
        logits: (image, class), the student's.
        teacher_logits: (image, class), the teacher's; they get no gradient.
        temperature: T. The factor T² keeps the gradient's size for any T.

    >>> logits = torch.tensor([[1.0, 2.0, 3.0]])
    >>> distillation_loss(logits, logits + 5)
    tensor(0.)
    """
    check_embeddings(logits, "logits")
    check_embeddings(teacher_logits, "teacher_logits")
    if logits.shape != teacher_logits.shape:
        expected, found = tuple(logits.shape), tuple(teacher_logits.shape)
        raise InputError(f"teacher_logits must have the shape of logits, {expected}, not {found}.")
    check_temperature(temperature)
    with torch.autocast(logits.device.type, enabled=False):
        student, teacher = (
            (full_precision(one) / temperature).log_softmax(1) for one in (logits, teacher_logits.detach())
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

    The logits are −d²/T of an image to all others, so the teacher's embeddings may have another dimension.

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
