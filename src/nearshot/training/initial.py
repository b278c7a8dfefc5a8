"""The trained network that a run starts from, with `TrainConfig.init`: a name, a run's folder or a weights file."""

from __future__ import annotations

from pathlib import Path

import torch

from nearshot.errors import InputError
from nearshot.models import Backbone, load_backbone, read_notes
from nearshot.training.classes import NOTE, TrainingClasses
from nearshot.training.run_folder import RunFolder, weights_of_run


def load_initial(init: str, input_size: int | None = None) -> Backbone:
    """Return the initial network; of a run, the best epoch for five shots. `input_size` changes its input size."""
    return load_backbone(weights_of_run(init), input_size=input_size)


def initial_classes(init: str) -> TrainingClasses | None:
    """Return the classes that the initial network was trained on; None if they are not recorded."""
    if Path(init).is_dir():
        return RunFolder(init).read_trained_on()
    notes = read_notes(init)
    return TrainingClasses.from_json(notes[NOTE], f"The metadata {NOTE!r} of {init}") if NOTE in notes else None


def freeze_stages(backbone: Backbone, n_stages: int) -> None:
    """Freeze the first stages: all weights that the output of the last of them depends on."""
    if n_stages == 0:
        return
    side = backbone.spec.input_size
    outputs = backbone.stages(torch.zeros(1, 3, side, side))
    if n_stages >= len(outputs):
        raise InputError(f"freeze must be under {len(outputs)}, the stages of {backbone.spec.name}, not {n_stages}.")
    weights = list(backbone.parameters())
    gradients = torch.autograd.grad(outputs[n_stages - 1].sum(), weights, allow_unused=True)
    for weight, gradient in zip(weights, gradients, strict=True):
        weight.requires_grad_(gradient is None)
