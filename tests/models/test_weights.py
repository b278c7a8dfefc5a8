"""Backbones on disk: they load unchanged, and other files raise an error."""

import json
import os
import pickle
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from tests.helpers.layouts import Call

import nearshot
from nearshot.errors import FileFormatError, InputError, NearshotError
from nearshot.evaluation import Accuracy
from nearshot.io import atomic_write, read_tensors
from nearshot.models import (
    BACKBONES,
    LinearHead,
    ProjectionHead,
    build_backbone,
    load_backbone,
    read_notes,
    save_backbone,
)
from nearshot.models.weights import PUBLISHED, load_head, published_file

ROOT = Path(__file__).parents[2]


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    path = tmp_path / "conv4.safetensors"
    save_backbone(build_backbone("conv4", input_size=16), path, training_mean=torch.arange(64.0))
    return path


def damage(
    path: Path,
    *,
    spec: Mapping[str, Any] | None = None,
    metadata: Mapping[str, str] | None = None,
    tensors: Mapping[str, torch.Tensor | None] | None = None,
) -> None:
    """Write a file again with other metadata or tensors; None removes a tensor."""
    old_metadata, old_tensors = read_tensors(path)
    new_spec = json.loads(old_metadata["spec"]) | dict(spec or {})
    new_metadata = old_metadata | {"spec": json.dumps(new_spec)} | dict(metadata or {})
    new_tensors = {**old_tensors, **(tensors or {})}
    left = {name: tensor for name, tensor in new_tensors.items() if tensor is not None}
    safetensors.torch.save_file(left, path, new_metadata)


@pytest.mark.parametrize("name", BACKBONES)
def test_every_backbone_comes_back_the_same(name: str, tmp_path: Path) -> None:
    torch.manual_seed(1)
    backbone = build_backbone(name, input_size=32)
    images = torch.randn(4, 3, 32, 32)
    backbone(images)  # moves the running statistics of batch norm
    mean = torch.randn(backbone.embedding_dim)
    file = tmp_path / "weights.safetensors"
    save_backbone(backbone, file, training_mean=mean, notes={"data": "noise"})
    loaded = nearshot.load_backbone(file)
    assert not loaded.training
    torch.testing.assert_close(loaded(images), backbone.eval()(images), rtol=0, atol=0)
    assert (loaded.spec.name, loaded.spec.input_size) == (name, 32)
    assert loaded.spec.normalisation == backbone.spec.normalisation
    assert read_notes(file) == {"data": "noise"}
    save_backbone(loaded, tmp_path / "again.safetensors")  # the mean goes along
    torch.manual_seed(1)
    again = load_backbone(tmp_path / "again.safetensors")
    drawn = torch.rand(1)
    torch.testing.assert_close(again.spec.training_mean, mean, rtol=0, atol=0)
    torch.manual_seed(1)
    assert torch.equal(torch.rand(1), drawn)  # loading draws no random numbers


def test_half_precision_on_disk_is_half_the_size_and_float32_in_memory(tmp_path: Path) -> None:
    backbone = build_backbone("conv4").eval()
    sizes = []
    for dtype in (None, torch.float16):
        save_backbone(backbone, tmp_path / "w.safetensors", dtype=dtype)
        sizes.append((tmp_path / "w.safetensors").stat().st_size)
    assert sizes[1] / sizes[0] == pytest.approx(0.5, abs=0.01)
    images = torch.randn(2, 3, 84, 84)
    embeddings = load_backbone(tmp_path / "w.safetensors")(images)
    assert embeddings.dtype == torch.float32
    torch.testing.assert_close(embeddings, backbone(images), rtol=0.02, atol=0.02)


def test_a_broken_or_unfitting_backbone_is_not_saved(tmp_path: Path) -> None:
    backbone = build_backbone("conv4", input_size=16)
    file = tmp_path / "w.safetensors"
    with pytest.raises(InputError, match=r"training_mean .*\(64,\).*\(3,\)"):
        save_backbone(backbone, file, training_mean=torch.zeros(3))
    with pytest.raises(InputError, match="torch.float16"):
        save_backbone(backbone, file, training_mean=torch.full((64,), 1e6), dtype=torch.float16)
    with pytest.raises(InputError, match="dtype .*torch.int8"):
        save_backbone(backbone, file, dtype=torch.int8)
    with pytest.raises(InputError, match="Notes"):
        save_backbone(backbone, file, notes={"accuracy": 0.5})  # type: ignore[dict-item]
    with pytest.raises(InputError, match="Linear"):
        save_backbone(torch.nn.Linear(3, 3), file)
    with torch.no_grad():
        next(backbone.parameters()).fill_(torch.nan)
    with pytest.raises(InputError, match="NaN"):
        save_backbone(backbone, file)
    assert os.listdir(tmp_path) == []


# Of torch.compile's own imports.
@pytest.mark.filterwarnings("ignore:.*script_method:DeprecationWarning")
def test_a_wrapped_backbone_is_saved_as_what_it_is(tmp_path: Path) -> None:
    backbone = build_backbone("conv4", input_size=16)
    compiled: Any = torch.compile(backbone)
    for wrapped in (compiled, torch.nn.DataParallel(backbone)):
        save_backbone(wrapped, tmp_path / "w.safetensors")
        loaded = load_backbone(tmp_path / "w.safetensors")
        # A GPU may have taken it.
        assert torch.equal(next(loaded.parameters()), next(backbone.parameters()).cpu())


def test_other_formats_are_refused_and_a_pickle_does_not_run(tmp_path: Path) -> None:
    evil = tmp_path / "evil.safetensors"
    evil.write_bytes(pickle.dumps(Call(Path.touch, tmp_path / "it-ran")))
    torch.save({"weights": Call(Path.touch, tmp_path / "it-ran")}, tmp_path / "evil.pt")
    for path in (evil, tmp_path / "evil.pt"):
        with pytest.raises(FileFormatError, match="evil.*not a safetensors file"):
            load_backbone(path)
    assert not (tmp_path / "it-ran").exists()
    safetensors.torch.save_file({"x": torch.zeros(1)}, tmp_path / "other.safetensors")
    with pytest.raises(FileFormatError, match="other.safetensors"):
        load_backbone(tmp_path / "other.safetensors")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"metadata": {"version": "2"}}, "'2'.*version 1"),
        ({"spec": {"name": "alexnet"}}, "'alexnet'"),
        ({"spec": {"name": "timm:hf-hub:someone/something"}}, "'timm:hf-hub:someone/something'"),
        ({"spec": {"input_size": 10**9}}, "description"),
        ({"spec": {"mean": [1, 2]}}, "description"),
        ({"spec": {"std": [1.0, 0.0, 1.0]}}, "description"),
        ({"metadata": {"spec": "[]"}}, "description"),
        ({"metadata": {"spec": "[" * 100_000}}, "description"),
        (
            {"tensors": {"backbone.blocks.0.0.weight": torch.zeros(1)}},
            r"blocks.0.0.weight.*\[1\].*\[64, 3, 3, 3\]",
        ),
        ({"tensors": {"backbone.blocks.0.0.weight": None}}, "conv4.*blocks.0.0.weight"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_damaged_files_say_what_is_wrong(
    saved: Path, changes: dict[str, Any], message: str
) -> None:
    damage(saved, **changes)
    with pytest.raises(FileFormatError, match=message):
        load_backbone(saved)


def test_a_missing_file_says_so(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="'resnet12-nca-cifarfs'.*resnet12-nca-cifar-fs"):
        load_backbone("resnet12-nca-cifarfs")
    with pytest.raises(NearshotError, match="such"):
        save_backbone(build_backbone("conv4"), tmp_path / "no" / "such" / "w.safetensors")


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_backbone_is_loaded_by_name_and_its_card_says_what_was_measured(
    name: str,
) -> None:
    backbone = load_backbone(name)
    assert backbone.spec.training_mean is not None
    assert not backbone.training
    card = published_file(name).with_suffix(".md").read_text()
    notes = read_notes(name)
    result = json.loads((ROOT / re.findall("`(results/.*?json)`", card)[0]).read_text())
    fingerprints = json.loads(notes["fingerprints"])
    assert fingerprints.items() <= result["fingerprints"].items()
    accuracies = {}
    for entry in result["accuracies"]:
        measurement = entry["measurement"]
        split = measurement.pop("split")
        n_shot = measurement.pop("n_shot")
        if measurement == {"classifier": "centroid", "layers": [], "how": ""}:
            accuracies[split, n_shot] = Accuracy.from_dict(entry["accuracy"])
    assert f"epoch {notes['epoch']}" in card
    for split in ("val", "test"):
        one_shot = accuracies[split, 1]
        five_shot = accuracies[split, 5]
        assert f"| {one_shot} | {five_shot} |" in card
        assert f"{split} 5-shot centroid {five_shot} %" in notes["accuracy"]


def test_a_damaged_published_file_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = next(iter(PUBLISHED))
    content = bytearray(published_file(name).read_bytes())
    content[-1] ^= 1
    (tmp_path / f"{name}.safetensors").write_bytes(content)
    monkeypatch.setattr("nearshot.models.weights.PUBLISHED_FOLDER", tmp_path)
    with pytest.raises(FileFormatError, match=f"{name}.safetensors .*is not the published file"):
        load_backbone(name)


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")
    with pytest.raises(KeyboardInterrupt), atomic_write(path) as file:
        file.write(b"half of the new")
        raise KeyboardInterrupt
    if Path("/dev/full").exists():
        with pytest.raises(NearshotError, match="full.*file"), atomic_write(path):
            Path("/dev/full").write_bytes(b"x")  # what the kernel says when a disk is full
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["file"]
    with pytest.raises(NearshotError, match="folder"), atomic_write(tmp_path):
        pass


def test_an_existing_file_keeps_its_permissions_and_a_link_its_place(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")
    usual = path.stat().st_mode
    path.chmod(0o600)
    (tmp_path / "link").symlink_to(path)
    for name in ("link", "new"):
        with atomic_write(tmp_path / name) as file:
            file.write(b"new")
    assert path.read_bytes() == b"new"
    assert path.stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "new").stat().st_mode == usual


@pytest.mark.parametrize("bias", [False, True])
def test_heads_are_kept_beside_the_backbone(bias: bool, tmp_path: Path) -> None:
    file = tmp_path / "weights.safetensors"
    backbone = build_backbone("conv4-32", input_size=16)
    projection = ProjectionHead(backbone.embedding_dim, 7, bias=bias)
    save_backbone(backbone, file)
    assert load_head(file, "projection") is None
    head = LinearHead(backbone.embedding_dim, 5)
    save_backbone(backbone, file, projection=projection, head=head)
    features = torch.randn(3, backbone.embedding_dim)
    for loaded, expected in (
        (load_head(file, "projection"), projection),
        (load_head(file, "head"), head),
    ):
        assert loaded is not None
        assert torch.equal(loaded(features), expected(features))
    images = torch.randn(2, 3, 16, 16)
    assert torch.equal(load_backbone(file)(images), backbone.eval()(images))


def test_what_looks_alike_is_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "conv4.safetensors"
    backbone = build_backbone("conv4", input_size=16)
    save_backbone(backbone, path)
    assert load_backbone(path).spec.look_alike_cosine is None
    backbone.spec = replace(backbone.spec, look_alike_cosine=0.9)
    save_backbone(backbone, path)
    assert load_backbone(path).spec.look_alike_cosine == 0.9
    damage(path, spec={"look_alike_cosine": 2.0})
    with pytest.raises(FileFormatError):
        load_backbone(path)
