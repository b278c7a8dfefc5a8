"""Which backbone to use: `nearshot backbones` and the functions behind it."""

from pathlib import Path

import pytest
from tests.helpers.clouds import conv4
from tests.helpers.layouts import write_folder
from tests.helpers.small_project import CLASSES, pattern

from nearshot.cli import main
from nearshot.errors import InputError
from nearshot.estimator import AccuracyEstimate, FewShotClassifier
from nearshot.estimator.backbone_choice import BackboneChoice, best_choice, measure_backbone
from nearshot.models import save_backbone
from nearshot.models.recommended import MORE_ACCURATE, PHOTOS, SMALL, installed_backbones


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder, with three classes and an untrained backbone."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NEARSHOT_DATA", str(tmp_path / "data"))
    save_backbone(conv4(), tmp_path / "weights.safetensors")
    members = {
        f"support/{label}/{number}.png": pattern(code, number)
        for code, label in enumerate(CLASSES)
        for number in range(4)
    }
    return write_folder(tmp_path, members)


def choice(name: str, accuracy: float, speed: float) -> BackboneChoice:
    estimate = AccuracyEstimate(accuracy, accuracy, (0.0, 1.0), 10, 4, "", 10)
    return BackboneChoice(name, estimate, speed)


def test_a_faster_backbone_is_used_if_it_is_hardly_less_accurate() -> None:
    slow = choice("slow", 0.90, 10.0)
    fast = choice("fast", 0.895, 30.0)
    fastest = choice("fastest", 0.85, 100.0)
    assert best_choice([fastest, slow, fast]) is fast
    assert best_choice([fastest, slow]) is slow


def test_a_measurement_is_that_of_the_classifier(folder: Path) -> None:
    images = sorted((folder / "support").rglob("*.png"))
    labels = [path.parent.name for path in images]
    measured = measure_backbone("weights.safetensors", images, labels, device="cpu")
    classifier = FewShotClassifier("weights.safetensors", device="cpu").fit(images, labels)
    assert measured.estimate == classifier.estimate_accuracy()
    assert measured.name == "conv4-32"
    assert measured.photos_per_second > 0


def test_the_command_prints_a_line_for_each_backbone(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "nearshot.models.recommended.installed_backbones", lambda: ["weights.safetensors"]
    )
    pair = "weights.safetensors+weights.safetensors"
    assert main(["backbones", "--support", "support", "--try", pair]) == 0
    header, *lines, empty, advice = capsys.readouterr().out.splitlines()
    assert header.split("  ")[0] == "backbone"
    assert sorted(line.split()[0] for line in lines) == ["weights.safetensors", pair]
    for line in lines:
        cells = [cell for cell in line.split("  ") if cell]
        accuracy = float(cells[1].removesuffix(" %"))
        low, high = cells[2].strip().removesuffix(" %").split(" to ")
        assert float(low) <= accuracy <= float(high)
        assert float(cells[3]) > 0
    assert empty == ""
    assert advice.split()[-1] in ("weights.safetensors", pair)


def test_one_class_cannot_be_measured(folder: Path) -> None:
    images = sorted((folder / "support" / CLASSES[0]).iterdir())
    with pytest.raises(InputError, match="class"):
        measure_backbone("weights.safetensors", images, [CLASSES[0]] * len(images), device="cpu")


def test_installed_backbones(monkeypatch: pytest.MonkeyPatch) -> None:
    assert {SMALL, PHOTOS, MORE_ACCURATE} <= set(installed_backbones())
    monkeypatch.setattr("nearshot.models.recommended.weights_file", lambda name: None)
    assert installed_backbones() == [SMALL]
