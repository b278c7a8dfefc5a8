"""Mixup, CutMix and rotations: against loops over the images, and with any method."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import beta, kstest
from tests.helpers.dispatched import BETWEEN_HOST_AND_DEVICE, Dispatched
from tests.helpers.settings import TINY, change
from tests.training.test_step import batch, make_step

from nearshot.losses import cross_entropy_loss
from nearshot.models import Backbone, build_backbone
from nearshot.training import TrainConfig
from nearshot.training.methods import METHODS, Batch
from nearshot.training.mixup import Mixup

CPU = torch.device("cpu")
NOT_EPISODIC = [name for name, kind in METHODS.items() if not kind.needs_episodes]


def make_mixup(backbone: Backbone | None = None, **settings: Any) -> Mixup:
    return Mixup(
        TrainConfig(**settings), backbone or build_backbone("conv4-32", input_size=16), CPU
    )


@pytest.mark.parametrize("alpha", [0.2, 1.0, 2.0])
def test_the_share_of_mixup_has_the_beta_distribution(alpha: float) -> None:
    generator = torch.Generator().manual_seed(0)
    mixup = make_mixup(mixup=alpha)
    shares = []
    for _ in range(1000):
        mixup.draw(generator)
        shares.append(float(mixup.share))
    assert kstest(shares, beta(alpha, alpha).cdf).pvalue > 1e-3


@pytest.mark.parametrize("stages", [False, True])
def test_a_mixed_image_is_the_sum_of_two(stages: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    mixup = make_mixup(mixup=1.0, mix_stages=stages)
    images = torch.rand(6, 3, 16, 16)
    patterns = []
    for _ in range(40):
        mixup.draw(generator)
        share = float(mixup.share)
        weights = mixup.weights.tolist()
        patterns.append([weight > 0 for weight in weights])
        mixed = mixup.images(images)
        for number, image in enumerate(images):
            expected = (1 - weights[0]) * image + weights[0] * images[number ^ 1]
            torch.testing.assert_close(mixed[number], expected)
        assert sum(weights) == pytest.approx(1 - share)
        assert float(mixup.share) == pytest.approx(
            share
        )  # mixing images changes it for CutMix only
    assert {pattern.index(True) for pattern in patterns} == set(range(4 if stages else 1))
    assert all(sum(pattern) == 1 for pattern in patterns)


def test_a_cut_image_has_a_box_of_its_partner_of_the_share_that_is_lost() -> None:
    generator = torch.Generator().manual_seed(0)
    mixup = make_mixup(cutmix=1.0)
    side = 40
    images = torch.stack([torch.full((3, side, side), float(value)) for value in range(4)])
    areas = []
    for _ in range(200):
        mixup.draw(generator)
        mixed = mixup.images(images)
        foreign = mixed[0, 0] == 1
        rows = foreign.any(1).nonzero()
        columns = foreign.any(0).nonzero()
        height = int(rows[-1] - rows[0]) + 1 if len(rows) else 0
        width = int(columns[-1] - columns[0]) + 1 if len(columns) else 0
        assert int(foreign.sum()) == height * width  # one box
        assert float(mixup.share) == pytest.approx(1 - height * width / side**2, abs=1e-6)
        for number in range(4):
            assert torch.equal(mixed[number, 1] == number ^ 1, foreign)
            assert torch.equal(mixed[number, 2] == number, ~foreign)
        inside = (
            len(rows)
            and rows[0] > 0
            and rows[-1] < side - 1
            and columns[0] > 0
            and columns[-1] < side - 1
        )
        areas += [height / width] if inside else []
    assert np.median(areas) == pytest.approx(1, abs=0.1)  # squares, unless the border cuts them


def test_mixup_and_cutmix_share_the_batches_and_some_are_left_alone() -> None:
    generator = torch.Generator().manual_seed(0)
    mixup = make_mixup(mixup=1.0, cutmix=1.0, mix_probability=0.6)
    images = torch.rand(2, 3, 32, 32)
    kinds = {"mixed": 0, "cut": 0, "alone": 0}
    for _ in range(1000):
        mixup.draw(generator)
        mixed = mixup.images(images)
        added = float(mixup.weights.sum()) > 0
        changed = (mixed != images).any(1)[0]
        kinds["mixed" if added else "cut" if changed.any() else "alone"] += 1
        assert not added or changed.all()
    assert kinds["mixed"] == pytest.approx(300, abs=50)
    assert kinds["cut"] == pytest.approx(300, abs=60)  # a few boxes are smaller than a pixel
    assert kinds["alone"] == pytest.approx(400, abs=60)


@pytest.mark.parametrize("name", ["conv4-32", "resnet12", "resnet12-metaopt"])
def test_stages_are_mixed_one_at_a_time_and_in_training_only(name: str) -> None:
    backbone = build_backbone(name, input_size=16)
    mixup = make_mixup(backbone, mixup=1.0, mix_stages=True)
    images = torch.rand(4, 3, 16, 16)
    backbone.eval()
    mixup.weights.copy_(torch.tensor([0.0, 0.0, 0.4, 0.0]))
    with torch.no_grad():
        plain = build_backbone(name, input_size=16)
        plain.load_state_dict(backbone.state_dict())
        assert torch.equal(backbone(images), plain.eval()(images))  # nothing is mixed in evaluation
        backbone.training = (
            True  # of the network alone: batch norm and dropout stay in evaluation mode
        )
        maps = images if not hasattr(plain, "stem") else plain.stem(images)  # type: ignore[operator]
        for number, block in enumerate(plain.blocks):
            maps = block(maps)
            if number == 1:
                maps = torch.stack([0.6 * maps[i] + 0.4 * maps[i ^ 1] for i in range(4)])
        torch.testing.assert_close(backbone.stages(images)[-1], maps)


@pytest.mark.parametrize("name", NOT_EPISODIC)
def test_the_loss_is_that_of_the_labels_and_of_the_partners(name: str) -> None:
    config = change(TINY, method=name, mixup=1.0)
    step = make_step(config)
    images, labels = batch(config)
    prepared = step.prepare(images)
    assert step.mixup is not None
    embedded = step.learner(prepared.images)
    share = float(step.mixup.share)
    assert 0 < share < 1
    of_labels = [
        config.method.loss(Batch(embedded.embeddings, given, embedded.logits))
        for given in (labels, labels[[i ^ 1 for i in range(len(labels))]])
    ]
    torch.testing.assert_close(
        step.loss(embedded, labels, prepared), share * of_labels[0] + (1 - share) * of_labels[1]
    )


@pytest.mark.parametrize("name", METHODS)
def test_a_head_tells_by_how_much_images_are_turned_with_any_method(name: str) -> None:
    config = change(TINY, method=name, rotation_weight=0.7)
    step = make_step(config)
    plain = make_step(replace(config, rotation_weight=0.0))
    images, labels = batch(config)
    states = step.generator.get_state()
    upright = plain.prepare(images).images
    step.generator.set_state(states)
    prepared = step.prepare(images)
    assert prepared.turns is not None
    assert set(prepared.turns.tolist()) == {0, 1, 2, 3}
    for image, turned, quarters in zip(
        upright, prepared.images, prepared.turns.tolist(), strict=True
    ):
        assert np.array_equal(turned.numpy(), np.rot90(image.numpy(), quarters, axes=(1, 2)))
    embedded = step.learner(prepared.images)
    assert embedded.turns.shape == (len(images), 4)
    without = plain.loss(embedded._replace(turns=None), labels, prepared)
    expected = without + 0.7 * cross_entropy_loss(embedded.turns, prepared.turns)
    torch.testing.assert_close(step.loss(embedded, labels, prepared), expected)


EVERYTHING: dict[str, Any] = {
    "rotation_weight": 1.0,
    "mixup": 1.0,
    "mix_stages": True,
    "cutmix": 1.0,
    "cross_entropy_weight": 0.5,
    "label_smoothing": 0.1,
}


def test_nothing_goes_between_host_and_device() -> None:
    """So that a step with all of it can be captured in a graph."""
    step = make_step(change(TINY, **EVERYTHING))
    images, _ = batch(step.config)
    with Dispatched() as operations:
        step.learner(step.prepare(images).images)
    assert "flip" in operations.names
    assert not operations.names & BETWEEN_HOST_AND_DEVICE


def test_in_parts_everything_is_as_in_the_whole_batch() -> None:
    config = change(TINY, **EVERYTHING)
    images, labels = batch(config)
    steps = [
        make_step(replace(config, micro_batch=part), without_batch_norm=True) for part in (None, 8)
    ]
    losses = [[float(step(images, labels)) for _ in range(3)] for step in steps]
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)
