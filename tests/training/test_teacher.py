"""Self-distillation: what is learnt from a teacher, and which teachers are refused."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning_fabric import Fabric
from settings import TINY
from test_resume import check_equal
from test_step import SIDE, batch, make_step
from tiny import prepare_tiny
from torch import Tensor

from nearshot.data.augment import Augmentation
from nearshot.errors import InputError, LeakError
from nearshot.losses import distillation_loss, neighbour_distillation_loss
from nearshot.models import load_backbone
from nearshot.models.weights import load_head
from nearshot.training import METHODS, Hardware, RunFolder, TrainResult, train
from nearshot.training.step import Learner, Step
from nearshot.training.teacher import Teacher


@pytest.fixture(scope="session")
def with_head(data_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with a linear head, a projection and averaged weights."""
    folder = tmp_path_factory.mktemp("runs") / "teacher"
    config = replace(TINY, cross_entropy_weight=0.5, projection=12, ema_decay=0.9, epochs=2)
    train(config, folder=folder, data_dir=data_dir, show=False)
    return folder


def test_heads_are_saved_with_the_weights_that_they_belong_to(with_head: Path) -> None:
    """The averaged ones, as the backbone."""
    file = RunFolder(with_head).weights_of(2)
    state = torch.load(with_head / "checkpoint.pt", weights_only=True)
    for kind in ("projection", "head"):
        layer = load_head(file, kind)
        assert layer is not None
        assert torch.equal(layer.weight, state["average"][f"{kind}.weight"])
        assert not torch.equal(layer.weight, state["learner"][f"{kind}.weight"])


@pytest.mark.parametrize("name", METHODS)
def test_any_method_learns_from_a_teacher(name: str, with_head: Path, train_tiny: Callable[..., TrainResult]) -> None:
    """Its loss is added with its weight: the first step's loss, before anything has changed, tells."""
    given = {"method": name, "epochs": 1, "steps_per_epoch": 1, "validate_every": 1}
    alone = train_tiny("alone", **given).history[0]["loss"]
    taught = [
        train_tiny(f"taught-{weight}", teacher=str(with_head), distillation_weight=weight, **given).history[0]["loss"]
        for weight in (1.0, 2.0)
    ]
    assert taught[0] > alone
    assert taught[1] - alone == pytest.approx(2 * (taught[0] - alone), rel=1e-3)


@pytest.mark.parametrize("has_head", [False, True])
@pytest.mark.parametrize("mixes", [False, True])
def test_the_loss_compares_the_answers_to_the_same_images(has_head: bool, mixes: bool, with_head: Path) -> None:
    """Class probabilities with a linear head, neighbours without; the teacher sees images before they are mixed."""
    settings: dict[str, Any] = {"cross_entropy_weight": 0.5 * has_head, "mixup": 1.0 * mixes}
    config = replace(TINY, teacher=str(with_head), distillation_temperature=3.0, distillation_weight=0.25, **settings)
    trained_on = RunFolder(with_head).read_trained_on()
    assert trained_on is not None
    torch.manual_seed(0)
    learner = Learner(config, SIDE, len(trained_on.class_names))
    teacher = Teacher(config, learner.backbone, trained_on.class_names)
    fabric, hardware = Fabric(accelerator="cpu", devices=1), Hardware(channels_last=False)
    step = Step(fabric, hardware, config, learner, teacher)
    images, labels = batch(config)
    unmixed = make_step(replace(config, teacher=None, mixup=0.0)).prepare(images).images  # from the same random state
    prepared = step.prepare(images)
    embedded = step.learner(prepared.images)
    weights = RunFolder(with_head).best_weights(5, "centroid")
    last = load_head(weights, "head" if has_head else "projection")
    assert last is not None
    with torch.no_grad():
        answers = last(load_backbone(weights)(unmixed))

    def apart(answers: Tensor) -> Tensor:
        if has_head:
            return distillation_loss(embedded.logits, answers, temperature=3.0)
        return neighbour_distillation_loss(embedded.embeddings, answers, distillation_temperature=3.0)

    share = float(step.mixup.share) if step.mixup is not None else 1.0
    assert (share < 1) == mixes
    expected = share * apart(answers) + (1 - share) * apart(answers[[i ^ 1 for i in range(len(answers))]])
    found = step.loss(embedded, labels, prepared) - step.loss(embedded, labels, prepared._replace(answers=None))
    torch.testing.assert_close(found, 0.25 * expected, rtol=1e-3, atol=1e-4)
    assert not any(weight.requires_grad for weight in teacher.parameters())


def test_a_stopped_run_with_all_of_it_resumes_exactly(with_head: Path, data_dir: Path, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"cross_entropy_weight": 0.5, "rotation_weight": 1.0, "ema_decay": 0.9}
    settings |= {"mixup": 1.0, "mix_stages": True, "cutmix": 1.0, "mix_probability": 0.8}
    config = replace(TINY, teacher=str(with_head), epochs=12, augmentation=Augmentation(n_operations=1), **settings)
    stopped = tmp_path / "stopped"

    def stop_after_an_epoch() -> None:
        log = stopped / "metrics.jsonl"
        while not log.is_file() or not log.read_bytes():
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGTERM)

    thread = threading.Thread(target=stop_after_an_epoch)
    thread.start()
    assert not train(config, folder=stopped, data_dir=data_dir, show=False).finished
    thread.join()
    assert train(config, folder=stopped, data_dir=data_dir, resume=True, show=False).finished
    assert train(config, folder=tmp_path / "whole", data_dir=data_dir, show=False).finished
    check_equal(tmp_path / "whole", stopped)


def test_another_teacher_is_refused_when_a_run_resumes(with_head: Path, data_dir: Path, tmp_path: Path) -> None:
    weights = tmp_path / "teacher.safetensors"
    weights.write_bytes(RunFolder(with_head).weights_of(2).read_bytes())
    config = replace(TINY, teacher=str(weights))
    train(config, folder=tmp_path / "run", data_dir=data_dir, show=False)
    other = replace(TINY, epochs=1, validate_every=1)
    train(other, folder=tmp_path / "other", data_dir=data_dir, show=False)
    weights.write_bytes(RunFolder(tmp_path / "other").weights_of(1).read_bytes())
    with pytest.raises(InputError, match="fingerprint of teacher"):
        train(config, folder=tmp_path / "run", data_dir=data_dir, resume=True, show=False)


def test_teachers_that_do_not_fit_are_refused(trained: Path, with_head: Path, data_dir: Path, tmp_path: Path) -> None:
    needs_head = replace(TINY, method="simpleshot", teacher=str(trained))
    with pytest.raises(InputError, match="linear head"):
        train(needs_head, folder=tmp_path / "run", data_dir=data_dir, show=False)
    with pytest.raises(InputError, match="teacher must be.*nowhere"):
        train(replace(TINY, teacher="nowhere"), folder=tmp_path / "run", data_dir=data_dir, show=False)
    other = tmp_path / "other"
    prepare_tiny(other, split_seed=1)  # other classes are for validation
    with pytest.raises(LeakError):
        train(replace(TINY, teacher=str(with_head)), folder=tmp_path / "run", data_dir=other, show=False)
    assert not (tmp_path / "run").exists()
