"""Published backbones: there in a checkout, by name, and what their cards say is what was measured."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from nearshot import load_backbone
from nearshot.errors import FileFormatError, InputError
from nearshot.evaluation import Accuracy
from nearshot.models import read_notes
from nearshot.models.published import PUBLISHED, published_file

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_backbone_is_loaded_by_name(name: str) -> None:
    backbone = load_backbone(name)
    side = backbone.spec.input_size
    with torch.inference_mode():
        features = backbone(torch.zeros(1, 3, side, side))
    assert features.shape == (1, backbone.embedding_dim)
    assert backbone.spec.training_mean is not None
    assert not backbone.training


@pytest.mark.parametrize("name", PUBLISHED)
def test_its_card_says_what_was_measured(name: str) -> None:
    card = (ROOT / "weights" / f"{name}.md").read_text()
    notes = read_notes(published_file(name))
    result = json.loads((ROOT / "results" / "paper" / notes["dataset"] / f"{notes['run']}.json").read_text())
    assert f"epoch {notes['epoch']}" in card
    for split in ("val", "test"):
        numbers = [Accuracy.from_dict(result["accuracies"][f"{split} {shot}-shot centroid"]) for shot in (1, 5)]
        assert f"| {numbers[0]} | {numbers[1]} |" in card
        assert f"{split} 5-shot centroid {numbers[1]} %" in notes["accuracy"]


def test_a_damaged_or_missing_file_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = next(iter(PUBLISHED))
    content = bytearray(published_file(name).read_bytes())
    content[-1] ^= 1
    (tmp_path / f"{name}.safetensors").write_bytes(content)
    monkeypatch.setenv("NEARSHOT_WEIGHTS", str(tmp_path))
    with pytest.raises(FileFormatError, match="is not the published file"):
        load_backbone(name)
    with pytest.raises(InputError, match=f"there are: .*{name}"):
        load_backbone("resnet12-nca-cifar")
