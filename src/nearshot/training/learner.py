"""The network that is trained, the moving average of its weights, and its teacher."""

import copy
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple, Self, cast

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from nearshot.errors import InputError
from nearshot.losses import distillation_loss, neighbour_distillation_loss
from nearshot.models import Backbone, LinearHead, build_backbone, load_backbone
from nearshot.models.weights import load_head
from nearshot.training.config import TrainConfig
from nearshot.training.methods import Batch
from nearshot.training.run_folder import classes_of_network, weights_of_run

N_TURNS = 4  # quarters of a full turn


class Embedded(NamedTuple):
    """The output of a `Learner`."""

    embeddings: Tensor
    logits: Tensor | None = None  # of the training classes
    turns: Tensor | None = None  # of the quarter turns that the images may have had


class Learner(nn.Module):
    """What embeds images in training: a backbone, with layers that evaluation does not need.

    Attributes:
        loss_modules: the method's other modules, which its loss calls.
    """

    def __init__(self, config: TrainConfig, input_size: int, n_classes: int) -> None:
        super().__init__()
        self.is_pretrained = config.init is not None
        if config.init is None:
            self.backbone: Backbone = build_backbone(config.backbone, input_size=input_size)
        else:
            self.backbone = load_backbone(weights_of_run(config.init), input_size=input_size)
            # It was measured with the weights that training changes.
            self.backbone.spec = replace(self.backbone.spec, look_alike_cosine=None)
            if config.freeze:
                freeze_stages(self.backbone, config.freeze)
        dim = self.backbone.embedding_dim
        modules = dict(config.method.modules(dim, n_classes))
        self.projection = modules.pop("projection", None)
        self.head = modules.pop("head", None)
        self.turn_head = LinearHead(dim, N_TURNS) if config.rotation_weight else None
        # In a plain dictionary, so that they are not submodules: these do not see a device's share
        # of the images, but the whole batch, and data parallelism must not wait for them.
        self.loss_modules = modules

    def train(self, mode: bool = True) -> Self:
        """Switch to training or evaluation; an initial network keeps batch norm's statistics."""
        super().train(mode)
        if self.is_pretrained:
            for module in self.backbone.modules():
                if isinstance(module, _BatchNorm):
                    module.eval()
        return self

    def forward(self, images: Tensor) -> Embedded:
        """Embed normalised images, (image, 3, height, width)."""
        embeddings = self.backbone(images)
        logits = None if self.head is None else self.head(embeddings)
        turns = None if self.turn_head is None else self.turn_head(embeddings)
        if self.projection is not None:
            embeddings = self.projection(embeddings)
        return Embedded(embeddings, logits, turns)


def freeze_stages(backbone: Backbone, n_stages: int) -> None:
    """Freeze the first stages, at least one: all weights that the last of them depends on."""
    side = backbone.spec.input_size
    outputs = backbone.stages(torch.zeros(1, 3, side, side))
    if n_stages >= len(outputs):
        raise InputError(
            f"freeze must be under {len(outputs)}, the stages of {backbone.spec.name} "
            f"(got {n_stages})."
        )
    weights = list(backbone.parameters())
    gradients = torch.autograd.grad(outputs[n_stages - 1].sum(), weights, allow_unused=True)
    for weight, gradient in zip(weights, gradients, strict=True):
        weight.requires_grad_(gradient is None)


class WeightAverage(nn.Module):
    """The average of a learner's weights over the steps: its modules again, in evaluation mode.

    After step t, average ← average + w · (weights − average), with w = max(1 − decay,
    9 / (9 + t)): the first step weighs 0.9, so that short runs keep nothing of the initial weights.
    Batch norm's running statistics are averaged too, as timm and TensorFlow do: they then belong to
    the weights of the same steps.

    Nothing here waits for the device, so that a step can be captured in a graph. That is why this
    is not PyTorch's `AveragedModel`, which counts on the host.
    """

    n_steps: Tensor
    backbone: Backbone

    def __init__(self, learner: nn.Module, decay: float) -> None:
        super().__init__()
        self.decay = decay
        for name, module in learner.named_children():
            self.add_module(name, copy.deepcopy(module).eval().requires_grad_(False))
        device = next(learner.parameters()).device
        self.register_buffer("n_steps", torch.zeros((), dtype=torch.float32, device=device))

    @torch.no_grad()
    def update(self, learner: nn.Module) -> None:
        """Take a step's weights into the average."""
        self.n_steps += 1
        weight = (9 / (9 + self.n_steps)).clamp_(min=1 - self.decay)
        own = self.state_dict()
        averages = []
        weights = []
        for name, value in learner.state_dict().items():
            if value.is_floating_point():  # no counts of batches
                averages.append(own[name])
                weights.append(value)
        change = cast(list[Tensor], torch._foreach_sub(weights, averages))
        torch._foreach_mul_(change, weight)
        torch._foreach_add_(averages, change)


class Teacher(nn.Module):
    """A trained network in evaluation mode, without gradients.

    It gives logits where the student has a linear head, and embeddings, after the projection if it
    has one, otherwise. Of a run, it is the best epoch for five shots.
    """

    def __init__(self, config: TrainConfig, student: Learner, class_names: Sequence[str]) -> None:
        super().__init__()
        path = weights_of_run(str(config.teacher))
        spec = student.backbone.spec
        self.backbone = load_backbone(path, input_size=spec.input_size)
        self.gives_logits = student.head is not None
        self.last = load_head(path, "head" if self.gives_logits else "projection")
        if self.backbone.spec.normalisation != spec.normalisation:
            raise InputError(
                f"The teacher {config.teacher} must normalise images as {spec.name} does."
            )
        if self.gives_logits:
            trained_on = classes_of_network(str(config.teacher))
            known = () if trained_on is None else trained_on.class_names[: len(class_names)]
            fits = self.last is not None and self.last.out_features == len(class_names)
            if not fits or known != tuple(class_names):
                raise InputError(
                    f"The teacher {config.teacher} must have a linear head for the "
                    f"{len(class_names)} training classes. Train it with simpleshot, or with nca "
                    "and cross_entropy_weight, on the same data."
                )
        self.eval().requires_grad_(False)

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits (image, class) or the embeddings (image, dim) of normalised images."""
        embeddings: Tensor = self.backbone(images)
        return embeddings if self.last is None else self.last(embeddings)

    def loss(self, batch: Batch, answers: Tensor, config: TrainConfig) -> Tensor:
        """Return how far the student is from the teacher's answers to the whole batch."""
        if batch.logits is not None:
            return distillation_loss(
                batch.logits, answers, temperature=config.distillation_temperature
            )
        return neighbour_distillation_loss(
            batch.embeddings,
            answers,
            distance=config.distillation_distance,
            distillation_temperature=config.distillation_temperature,
        )
