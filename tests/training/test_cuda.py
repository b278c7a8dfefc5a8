"""Training on a GPU: a replayed graph equals the eager step, and a run resumes."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.helpers.settings import TINY, change
from torch import Tensor

from nearshot.data.augment import Augmentation
from nearshot.data.loader import ImageFeed
from nearshot.models import build_backbone, save_backbone
from nearshot.training import METHODS, Hardware, TrainConfig, train
from nearshot.training.embedding import embed_images, images_at_once, in_one_size
from nearshot.training.learner import Learner, Teacher
from nearshot.training.step import Step, captured

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

SIDE = 16
N_CLASSES = 8


@pytest.fixture(autouse=True)
def _exact(monkeypatch: pytest.MonkeyPatch) -> None:
    """Convolutions in float32 instead of TF32, which has ten bits, and sums in a fixed order."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", True)


VARIANTS = {name: change(TINY, method=name) for name in METHODS} | {
    "keep": change(TINY, keep_positives=0.5, keep_negatives=0.5),
    "learnt temperature": change(TINY, learn_temperature=True),
    "adam": change(TINY, optimiser="adam", learning_rate=1e-3),
    "nesterov": change(TINY, nesterov=True),
    "average": change(TINY, ema_decay=0.9),
    "rotations": change(TINY, rotation_weight=1.0),
    "mixed": change(
        TINY, mixup=1.0, mix_stages=True, cutmix=1.0, cross_entropy_weight=0.5, label_smoothing=0.1
    ),
    "operations": change(TINY, augmentation=Augmentation(n_operations=2)),
}


PLAIN = Hardware(accelerator="cuda", fuse=False, compile=False)
LABELS = torch.arange(N_CLASSES).repeat_interleave(2).repeat(2)
BATCHES = torch.from_numpy(
    np.random.default_rng(1).integers(256, size=(4, 32, SIDE, SIDE, 3), dtype=np.uint8)
)
# torch's own compiler imports what it has deprecated itself.
ignore_torch = pytest.mark.filterwarnings("ignore:.*torch.jit.script_method:DeprecationWarning")


def step_of(config: TrainConfig, hardware: Hardware = PLAIN) -> Step:
    torch.manual_seed(0)
    exact = replace(config, precision="float32")
    learner = Learner(exact, SIDE, N_CLASSES)
    teacher = Teacher(exact, learner, ()) if exact.teacher else None
    return Step(hardware.fabric(exact), hardware, exact, learner, teacher)


def values_of(step: Step) -> list[Tensor]:
    """The weights, also of the loss, and their average where there is one, with its statistics."""
    average = [] if step.average is None else [*step.average.parameters(), *step.average.buffers()]
    return [*step.learner.parameters(), *step.loss_modules.parameters(), *average]


def check_same_steps(config: TrainConfig, hardware: Hardware) -> None:
    """Compare four steps, eager and captured, to float32's rounding, which grows step by step."""
    plain = step_of(config)
    other = step_of(config, hardware)
    take_other = captured(other, BATCHES[0].cuda(), LABELS.cuda())
    for value, twin in zip(*map(values_of, (plain, other)), strict=True):
        assert torch.equal(value, twin)
    for images in BATCHES.cuda():
        expected = float(plain(images, LABELS.cuda()))
        assert float(take_other(images, LABELS.cuda())) == pytest.approx(expected, rel=1e-3)
    for value, twin in zip(*map(values_of, (plain, other)), strict=True):
        torch.testing.assert_close(twin, value, rtol=1e-2, atol=1e-3)


@pytest.mark.parametrize("name", VARIANTS)
def test_a_graph_does_what_the_step_does(name: str) -> None:
    """Capturing leaves no trace, and replays take the same steps."""
    check_same_steps(VARIANTS[name], PLAIN)


def test_a_graph_asks_the_teacher(tmp_path: Path) -> None:
    file = tmp_path / "teacher.safetensors"
    save_backbone(build_backbone("conv4-32", input_size=SIDE), file)
    check_same_steps(change(TINY, teacher=str(file)), PLAIN)


@pytest.mark.parametrize("backbone", ["conv4-32", "resnet12"])
def test_a_fused_step_mixes_what_a_plain_one_does(backbone: str) -> None:
    config = change(
        VARIANTS["mixed"], backbone=backbone, background=0.0, temperature=100.0, rotation_weight=1.0
    )
    check_same_steps(config, Hardware(fuse=True))


@ignore_torch
@pytest.mark.parametrize("backbone", ["conv4-32", "resnet12"])
@pytest.mark.parametrize(
    "fast", [Hardware(compile=True), Hardware(fuse=True)], ids=["compiled", "fused"]
)
def test_a_fast_step_does_what_a_plain_one_does(fast: Hardware, backbone: str) -> None:
    config = change(
        TINY, backbone=backbone, background=0.0, temperature=100.0
    )  # raw distances leave no gradient
    check_same_steps(config, fast)


@ignore_torch
@pytest.mark.parametrize("compiles", [False, True])
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"micro_batch": 8},
        {"learn_temperature": True},
        {"optimiser": "adam"},
        {"ema_decay": 0.9},
    ],
)
def test_a_run_on_a_gpu_trains_and_is_resumed(
    changes: dict[str, Any], compiles: bool, data_dir: Path, tmp_path: Path
) -> None:
    config = change(TINY, epochs=4, **changes)
    gpu = Hardware(accelerator="cuda", compile=compiles or None)
    first = train(
        config,
        folder=tmp_path / "run",
        data_dir=data_dir,
        hardware=gpu,
        checkpoint_seconds=0,
        progress=False,
    )
    assert first.history[-1]["loss"] < first.history[0]["loss"]
    again = train(
        config,
        folder=tmp_path / "run",
        data_dir=data_dir,
        hardware=gpu,
        resume=True,
        progress=False,
    )
    assert again.history == first.history


def test_a_run_of_a_cpu_resumes_on_a_gpu(data_dir: Path, tmp_path: Path) -> None:
    config = change(TINY, epochs=2, optimiser="adam", learning_rate=1e-3)
    on = partial(train, config, folder=tmp_path / "run", data_dir=data_dir, progress=False)
    on(hardware=Hardware(accelerator="cpu"), checkpoint_seconds=0)
    (tmp_path / "run" / "result.json").unlink()
    assert on(hardware=Hardware(accelerator="cuda"), resume=True).finished


@ignore_torch
def test_a_compiled_backbone_embeds_the_same() -> None:
    """Also where the last batch is not full, up to rounding."""
    torch.manual_seed(0)
    device = torch.device("cuda")
    backbone = build_backbone("conv4-32", input_size=SIDE).to(device).eval()
    n_images = images_at_once(device) + 100
    feed = ImageFeed(
        np.random.default_rng(0).integers(256, size=(n_images, SIDE, SIDE, 3), dtype=np.uint8),
        device,
    )
    eager = embed_images(backbone, feed)
    fast = embed_images(
        backbone, feed, network=in_one_size(torch.compile(backbone, dynamic=False), device)
    )
    torch.testing.assert_close(fast, eager, rtol=1e-4, atol=1e-4)
