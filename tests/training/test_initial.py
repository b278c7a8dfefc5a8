"""Training that starts from a trained network: what changes, what stays, and what is kept."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.helpers.settings import TINY, change
from tests.helpers.tiny import prepare_tiny

from nearshot.cli import main
from nearshot.errors import InputError, LeakError
from nearshot.models import build_backbone, load_backbone, read_notes, save_backbone
from nearshot.training import RunFolder, TrainConfig, TrainResult, train
from nearshot.training.learner import Learner, freeze_stages
from nearshot.training.plan import open_splits, plan_run, resolve_run

NAMES = {"1-shot centroid", "1-shot soft", "5-shot centroid", "5-shot soft"}


def continued(trained: Path, data_dir: Path, folder: Path, **changes: Any) -> TrainResult:
    config = change(TINY, init=str(trained), epochs=2, validate_every=1, **changes)
    return train(config, folder=folder, data_dir=data_dir, progress=False)


@pytest.mark.parametrize("freeze", [0, 2])
def test_weights_change_but_not_frozen_stages_nor_the_statistics_of_batch_norm(
    freeze: int, trained: Path, data_dir: Path, tmp_path: Path
) -> None:
    result = continued(trained, data_dir, tmp_path / "run", freeze=freeze)
    before = load_backbone(RunFolder(trained).best_weights(5, "centroid"))
    after = load_backbone(result.folder / "weights" / "epoch-0002.safetensors")
    images = torch.rand(2, 3, 16, 16)
    same = [
        torch.equal(maps_before, maps_after)
        for maps_before, maps_after in zip(before.stages(images), after.stages(images), strict=True)
    ]
    assert same == [True] * freeze + [False] * (4 - freeze)
    buffers = dict(before.named_buffers())
    assert all(torch.equal(buffers[name], buffer) for name, buffer in after.named_buffers())


def test_all_stages_cannot_be_frozen_nor_those_of_a_new_network(trained: Path) -> None:
    backbone = load_backbone(RunFolder(trained).best_weights(5, "centroid"))
    with pytest.raises(InputError, match="under 4.*got 4"):
        freeze_stages(backbone, 4)
    with pytest.raises(InputError, match="freeze needs init"):
        TrainConfig(freeze=1)
    assert all(weight.requires_grad for weight in backbone.parameters())


@pytest.mark.parametrize("learning_rate", [1e-3, 3.0])
def test_the_initial_network_is_kept_unless_an_epoch_is_better(
    learning_rate: float, trained: Path, data_dir: Path, tmp_path: Path
) -> None:
    result = continued(trained, data_dir, tmp_path / "run", learning_rate=learning_rate)
    assert result.initial.keys() == NAMES
    for name, best in result.best.items():
        later = [record["validation"][name] for record in result.history]
        assert best.mean == max(result.initial[name], *later)
        assert (result.best_epochs[name] == 0) == (result.initial[name] == best.mean)
    kept = {f"epoch-{epoch:04d}.safetensors" for epoch in {*result.best_epochs.values(), 2}}
    assert {file.name for file in (result.folder / "weights").iterdir()} == kept
    assert json.loads((result.folder / "result.json").read_text())["initial"] == result.initial


def test_classes_of_the_initial_network_are_never_validated_and_are_recorded(
    trained: Path, data_dir: Path, tmp_path: Path
) -> None:
    prepare_tiny(tmp_path / "anew", split_seed=1)
    with pytest.raises(LeakError, match="tiny had other splits"):
        continued(trained, tmp_path / "anew", tmp_path / "run")
    other = prepare_tiny(tmp_path / "other", split_seed=1)["train"].class_names
    for split in (tmp_path / "other" / "tiny").rglob("val"):
        split.rename(split.with_name("aside"))
    folder = continued(trained, tmp_path / "other", tmp_path / "run").folder
    classes = RunFolder(folder).read_trained_on()
    first = RunFolder(trained).read_trained_on()
    assert set(classes.class_names) == {*other, *first.class_names}
    noted = read_notes(folder / "weights" / "epoch-0002.safetensors")["training_classes"]
    assert json.loads(noted) == classes.as_dict()


def test_a_folder_of_photos_is_prepared_at_the_side_of_the_initial_network_and_the_result_compares(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prepare_tiny(tmp_path / "made", seed=3)
    photos = tmp_path / "made" / "pictures"
    run = tmp_path / "run"
    command = [
        "train",
        "--dataset",
        str(photos),
        "--data-dir",
        str(tmp_path / "data"),
        "--init",
        str(trained),
    ]
    command += [
        "--freeze",
        "0",
        "--epochs",
        "2",
        "--validation-episodes",
        "20",
        "--output",
        str(run),
    ]
    assert main(command) == 0
    out, err = capsys.readouterr()
    assert (tmp_path / "data" / "pictures" / "16").is_dir()
    assert "chance 33.33 %" in err
    assert "chance 33.33 %, before training" in " ".join(out.split())
    config = RunFolder(run).read_config()
    assert (config.backbone, config.input_size, config.optimiser) == ("conv4-32", 16, "adam")
    assert (
        main(["train", "--resume", "--output", str(run), "--data-dir", str(tmp_path / "data")]) == 0
    )
    assert RunFolder(run).read_config() == config
    assert main([*command, "--backbone", "conv4"]) == 1
    assert "init none" in capsys.readouterr().err


def test_photos_start_from_the_network_of_nearshot_where_no_better_is_installed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare_tiny(tmp_path / "made", n_images=8)
    command = [
        "train",
        "--dataset",
        str(tmp_path / "made" / "pictures"),
        "--data-dir",
        str(tmp_path),
        "--dry-run",
    ]
    monkeypatch.setattr("nearshot.models.recommended.weights_file", lambda name: None)
    assert main([*command, "--input-size", "88"]) == 0
    out, err = capsys.readouterr()
    settings = json.loads(out[: out.index("\n}") + 2])
    assert (settings["init"], settings["input_size"]) == ("resnet12-nca-cifar-fs", 88)
    assert ".[photos]" in err
    assert (tmp_path / "pictures" / "88").is_dir()


def test_weights_that_may_know_the_classes_of_a_part_of_imagenet_are_named(tmp_path: Path) -> None:
    prepare_tiny(tmp_path, name="mini-imagenet")
    save_backbone(build_backbone("conv4-32", input_size=16), tmp_path / "weights.safetensors")
    config = change(TINY, dataset="mini-imagenet", init=str(tmp_path / "weights.safetensors"))
    config, _, _ = resolve_run(config)
    plan = plan_run(config, open_splits(config, tmp_path))
    assert any("ImageNet" in message and "mini-imagenet" in message for message in plan.messages)


def test_what_looks_alike_to_the_initial_network_is_not_known_of_the_trained_one(
    tmp_path: Path,
) -> None:
    backbone = build_backbone("conv4-32", input_size=16)
    backbone.spec = replace(backbone.spec, look_alike_cosine=0.9)
    save_backbone(backbone, tmp_path / "weights.safetensors")
    config = change(TINY, init=str(tmp_path / "weights.safetensors"))
    learner = Learner(config, input_size=16, n_classes=3)
    assert learner.backbone.spec.look_alike_cosine is None
