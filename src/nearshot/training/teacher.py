"""The earlier network that a run learns from as well, with `TrainConfig.teacher` (self-distillation)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from torch import Tensor, nn

from nearshot.errors import InputError
from nearshot.losses import distillation_loss, neighbour_distillation_loss
from nearshot.models import Backbone, load_backbone
from nearshot.models.weights import load_head
from nearshot.training.config import TrainConfig
from nearshot.training.methods import LossInputs, has_linear_head
from nearshot.training.run_folder import classes_of_network, weights_of_run


class Teacher(nn.Module):
    """A trained network in evaluation mode, without gradients.

    It gives logits where the student has a linear head, and embeddings, after the projection if it has one, otherwise.
    Of a run, it is the best epoch for five shots.
    """

    def __init__(self, config: TrainConfig, student: Backbone, class_names: Sequence[str]) -> None:
        super().__init__()
        path = teacher_file(config)
        self.backbone = load_backbone(path, input_size=student.spec.input_size)
        self.gives_logits = has_linear_head(config)
        self.last = load_head(path, "head" if self.gives_logits else "projection")
        if self.backbone.spec.normalisation != student.spec.normalisation:
            raise InputError(f"The teacher {config.teacher} must normalise images as {student.spec.name} does.")
        if self.gives_logits:
            trained_on = classes_of_network(str(config.teacher))
            known = () if trained_on is None else trained_on.class_names[: len(class_names)]
            if self.last is None or self.last.out_features != len(class_names) or known != tuple(class_names):
                raise InputError(
                    f"The teacher {config.teacher} must have a linear head for the {len(class_names)} training "
                    "classes. Train it with simpleshot, or with nca and cross_entropy_weight, on the same data."
                )
        self.eval().requires_grad_(False)

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits (image, class) or the embeddings (image, dim) of normalised images."""
        embeddings: Tensor = self.backbone(images)
        return embeddings if self.last is None else self.last(embeddings)

    def loss(self, inputs: LossInputs, answers: Tensor, config: TrainConfig) -> Tensor:
        """Return how far the student is from the teacher's answers to the whole batch."""
        if inputs.logits is not None:
            return distillation_loss(inputs.logits, answers, temperature=config.distillation_temperature)
        return neighbour_distillation_loss(
            inputs.embeddings,
            answers,
            temperature=inputs.temperature,
            distance=config.distance,
            distillation_temperature=config.distillation_temperature,
        )


def teacher_file(config: TrainConfig) -> Path:
    """Return the weights file of the teacher."""
    path = Path(weights_of_run(str(config.teacher)))
    if not path.is_file():
        raise InputError(f"teacher must be a run's folder or a weights file, and there is none at {config.teacher}.")
    return path
