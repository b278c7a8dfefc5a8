"""Self-distillation: what is learnt from a teacher, and which teachers are refused."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning_fabric import Fabric
from tests.helpers.settings import TINY, change
from tests.helpers.tiny import prepare_tiny
from tests.training.test_step import SIDE, batch, make_step
from torch import Tensor

from nearshot.errors import InputError, LeakError
from nearshot.losses import distillation_loss, neighbour_distillation_loss
from nearshot.models import load_backbone
from nearshot.models.weights import load_head
from nearshot.training import METHODS, Hardware, RunFolder, TrainResult, train
from nearshot.training.checkpoint import read_checkpoint
from nearshot.training.learner import Learner, Teacher
from nearshot.training.step import Step


def test_the_average_of_the_weights_is_what_is_saved(teacher: Path) -> None:
    """That of the backbone and of the heads."""
    file = RunFolder(teacher).weights_of(2)
    state = read_checkpoint(teacher / "checkpoint.pt")
    heads = {kind: load_head(file, kind) for kind in ("projection", "head")}
    for part, module in {"backbone": load_backbone(file), **heads}.items():
        assert module is not None
        saved = module.state_dict()
        assert all(
            torch.equal(value, state["average"][f"{part}.{name}"]) for name, value in saved.items()
        )
        assert not all(
            torch.equal(value, state["learner"][f"{part}.{name}"]) for name, value in saved.items()
        )


def test_a_run_learns_from_its_teacher(
    teacher: Path, train_tiny: Callable[..., TrainResult]
) -> None:
    """The loss of the first step, before anything has changed, tells."""
    given: dict[str, Any] = {"epochs": 1, "steps_per_epoch": 1}
    alone = train_tiny("alone", **given)
    taught = train_tiny("taught", teacher=str(teacher), **given)
    assert taught.history[0]["loss"] > alone.history[0]["loss"]


@pytest.mark.parametrize(
    "settings",
    [
        *({"method": name} for name in METHODS),
        {"cross_entropy_weight": 0.5},
        {"mixup": 1.0},
        {"method": "simpleshot", "mixup": 1.0},
    ],
    ids=str,
)
def test_any_method_compares_its_answers_to_the_same_images(
    settings: dict[str, Any], teacher: Path
) -> None:
    """Class probabilities with a linear head, neighbours without; images are not mixed yet."""
    config = change(
        TINY,
        teacher=str(teacher),
        distillation_temperature=3.0,
        distillation_weight=0.25,
        **settings,
    )
    trained_on = RunFolder(teacher).read_trained_on()
    torch.manual_seed(0)
    learner = Learner(config, SIDE, len(trained_on.class_names))
    has_head = learner.head is not None
    network = Teacher(config, learner, trained_on.class_names)
    step = Step(
        Fabric(accelerator="cpu", devices=1),
        Hardware(channels_last=False),
        config,
        learner,
        network,
    )
    images, labels = batch(config)
    unmixed = (
        make_step(replace(config, teacher=None, mixup=0.0)).prepare(images).images
    )  # from the same random state
    prepared = step.prepare(images)
    embedded = step.learner(prepared.images)
    weights = RunFolder(teacher).best_weights(5, "centroid")
    last = load_head(weights, "head" if has_head else "projection")
    assert last is not None
    with torch.no_grad():
        answers = last(load_backbone(weights)(unmixed))

    def apart(answers: Tensor) -> Tensor:
        if has_head:
            return distillation_loss(embedded.logits, answers, temperature=3.0)
        return neighbour_distillation_loss(
            embedded.embeddings, answers, distillation_temperature=3.0
        )

    share = float(step.mixup.share) if step.mixup is not None else 1.0
    assert (share < 1) == bool(config.mixup)
    expected = share * apart(answers) + (1 - share) * apart(
        answers[[i ^ 1 for i in range(len(answers))]]
    )
    distillation = step.loss(embedded, labels, prepared) - step.loss(
        embedded, labels, prepared._replace(answers=None)
    )
    torch.testing.assert_close(distillation, 0.25 * expected, rtol=1e-3, atol=1e-4)
    assert not any(weight.requires_grad for weight in network.parameters())


def test_another_teacher_is_refused_when_a_run_resumes(
    trained: Path, teacher: Path, data_dir: Path, tmp_path: Path
) -> None:
    weights = tmp_path / "teacher.safetensors"
    shutil.copy(RunFolder(teacher).weights_of(2), weights)
    config = change(TINY, teacher=str(weights), epochs=1, steps_per_epoch=1)
    train(config, folder=tmp_path / "run", data_dir=data_dir, progress=False)
    shutil.copy(RunFolder(trained).weights_of(5), weights)
    with pytest.raises(InputError, match="fingerprint of teacher"):
        train(config, folder=tmp_path / "run", data_dir=data_dir, resume=True, progress=False)


def test_teachers_that_do_not_fit_are_refused(
    trained: Path, teacher: Path, data_dir: Path, tmp_path: Path
) -> None:
    needs_head = change(TINY, method="simpleshot", teacher=str(trained))
    with pytest.raises(InputError, match="linear head"):
        train(needs_head, folder=tmp_path / "run", data_dir=data_dir, progress=False)
    other = tmp_path / "other"
    prepare_tiny(other, split_seed=1)  # other classes are for validation
    with pytest.raises(LeakError):
        train(
            change(TINY, teacher=str(teacher)),
            folder=tmp_path / "run",
            data_dir=other,
            progress=False,
        )
    assert not (tmp_path / "run").exists()
