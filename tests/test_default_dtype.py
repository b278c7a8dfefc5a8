"""Networks are float32 and results equal, whatever `torch.set_default_dtype` is."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest
import torch
from tests.helpers.layouts import picture

from nearshot import FewShotClassifier
from nearshot.models import LinearHead, ProjectionHead, build_backbone, load_backbone, save_backbone

DTYPES = (torch.float64, torch.bfloat16)
SLOW = pytest.mark.slow
Result = TypeVar("Result")


@contextmanager
def by_default(dtype: torch.dtype) -> Iterator[None]:
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


def with_every_default(make: Callable[[], Result]) -> tuple[Result, list[Result]]:
    """Return the results with float32 as default, and with the others, from the same seed."""
    results = []
    for dtype in (torch.float32, *DTYPES):
        torch.manual_seed(0)
        with by_default(dtype):
            results.append(make())
            assert torch.get_default_dtype() == dtype
    return results[0], results[1:]


@pytest.mark.parametrize(
    "name",
    [
        "conv4-32-dropblock",
        *(pytest.param(n, marks=SLOW) for n in ("resnet12", "resnet12-metaopt")),
    ],
)
def test_new_and_loaded_backbones(name: str, tmp_path: Path) -> None:
    path = tmp_path / "weights.safetensors"

    def make() -> dict[str, torch.Tensor]:
        backbone = build_backbone(name, input_size=16)
        save_backbone(backbone, path)
        loaded = load_backbone(path)
        heads = torch.nn.ModuleList([LinearHead(4, 3), ProjectionHead(4, 2)])
        images = torch.zeros(2, 3, 16, 16, dtype=torch.float32)
        features = {"new": backbone.train()(images), "loaded": loaded(images)}
        head_tensors = {f"heads.{key}": tensor for key, tensor in heads.state_dict().items()}
        return backbone.state_dict() | head_tensors | features

    expected, others = with_every_default(make)
    for other in others:
        for key, tensor in expected.items():
            assert other[key].dtype == tensor.dtype
            assert torch.equal(other[key], tensor), key


def test_a_classifier(tmp_path: Path) -> None:
    backbone = build_backbone("conv4-32", input_size=16).eval()
    save_backbone(
        backbone,
        tmp_path / "weights.safetensors",
        training_mean=torch.zeros(backbone.embedding_dim),
    )
    images = [picture(seed, 16) for seed in range(24)]
    labels = np.arange(24) % 3

    def make() -> list[Any]:
        values = []
        for classifier in ("centroid", "soft", "knn"):
            model = FewShotClassifier(
                tmp_path / "weights.safetensors",
                classifier=classifier,
                reject_rate=0.1,
                reject_label=-1,
            ).fit(images[:15], labels[:15])
            model.save(tmp_path / "model.safetensors")
            loaded = FewShotClassifier.load(tmp_path / "model.safetensors", device="cpu")
            values += [
                model.temperature_,
                model.threshold_,
                loaded.predict_proba(images),
                model.novelty(images),
            ]
        return values

    expected, others = with_every_default(make)
    for other in others:
        for value, expected_value in zip(other, expected, strict=True):
            np.testing.assert_array_equal(value, expected_value)
