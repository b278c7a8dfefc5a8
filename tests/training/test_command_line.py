from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from tiny import prepare_tiny

from nearshot.cli import evaluate as evaluate_command
from nearshot.cli import main
from nearshot.models import build_backbone, save_backbone

QUICK = ["--backbone", "conv4-32", "--epochs", "2", "--batch-size", "32", "--n-shot", "2", "--images-per-class", "4"]
QUICK += ["--validation-episodes", "20", "--validation-way", "2"]


def test_train_then_evaluate(data_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    where = ["--data-dir", str(data_dir)]
    run = tmp_path / "run"
    assert main(["train", "--dataset", "tiny", *QUICK, *where, "--output", str(run)]) == 0
    out, err = capsys.readouterr()
    assert f"Next: nearshot evaluate {run}" in out
    assert "epoch 2/2: loss" in err
    measure = ["evaluate", str(run), *where, "--way", "2", "--episodes", "20", "--classifier", "centroid", "soft"]
    assert main(measure) == 0
    assert "centroid" in capsys.readouterr().out
    assert main([*measure, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [(one["n_shot"], one["classifier"]) for one in found] == [
        (1, "centroid"),
        (1, "soft"),
        (5, "centroid"),
        (5, "soft"),
    ]
    assert found[0]["accuracy"]["protocol"]["split"] == "test"
    assert main(["train", "--dataset", "tiny", *QUICK, *where, "--output", str(run)]) == 1
    assert "--resume" in capsys.readouterr().err


def test_a_dry_run_says_what_it_costs_and_does_nothing(
    data_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    arguments = ["--dataset", "tiny", *QUICK, "--data-dir", str(data_dir), "--dry-run"]
    assert main(["train", *arguments]) == 0
    out = capsys.readouterr().out
    assert json.loads(out[: out.index("\n}") + 2])["batch_size"] == 32
    assert "2 epochs of" in out
    assert "pairs a batch" in out
    assert not list(tmp_path.iterdir())


def test_a_preset_is_where_the_options_start(data_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["train", "--preset", "glyphs-matching", "--dataset", "tiny", *QUICK, "--data-dir", str(data_dir)]
    assert main([*arguments, "--dry-run"]) == 0
    out = capsys.readouterr().out
    settings = json.loads(out[: out.index("\n}") + 2])
    assert (settings["method"], settings["epochs"], settings["optimiser"]) == ("matching", 2, "adam")
    assert main(["train", "--preset=cifar-nca"]) == 1
    assert "cifar-fs-nca" in capsys.readouterr().err


def shown_classes(out: str) -> list[str]:
    """The names in the table by class, in their order."""
    table = out[out.index("By class, the hardest first") :]
    return [line.split("│")[1].strip() for line in table.splitlines() if line.startswith("│")]


def test_classes_are_told_the_hardest_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare_tiny(tmp_path, n_classes=25, contrast=20)
    torch.manual_seed(0)
    save_backbone(build_backbone("conv4", input_size=16), tmp_path / "own.safetensors")
    where = ["--dataset", "tiny", "--data-dir", str(tmp_path)]
    measure = ["evaluate", str(tmp_path / "own.safetensors"), *where, "--way", "2", "--episodes", "50", "--by-class"]
    assert main([*measure, "--json"]) == 0
    last = json.loads(capsys.readouterr().out)[-1]
    names = sorted(last["by_class"], key=lambda name: last["by_class"][name]["mean"])
    assert len({one["mean"] for one in last["by_class"].values()}) > 2
    assert main(measure) == 0
    out = capsys.readouterr().out
    assert f"By class, the hardest first: {len(names)} classes" in out
    assert shown_classes(out) == names
    assert "5-shot centroid %" in out
    hardest = last["by_class"][names[0]]
    assert f"{hardest['mean']:.2f} ± {hardest['interval95']:.2f}" in out
    monkeypatch.setattr(evaluate_command, "HARDEST", 1)
    monkeypatch.setattr(evaluate_command, "EASIEST", 1)
    assert main(measure) == 0
    few = [names[0], f"… {len(names) - 2} more, which --json has", names[-1]]
    assert shown_classes(capsys.readouterr().out) == few


@pytest.mark.parametrize("command", [["train"], ["evaluate"], ["train", "--preset", "cifar-fs-nca"]])
def test_help_teaches(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([*command, "--help"])
    assert ended.value.code == 0
    out = capsys.readouterr().out
    assert "Examples:" in out
    if "cifar-fs-nca" in command:
        assert "default: 240" in " ".join(out.split())


def test_what_is_no_run_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["evaluate", str(tmp_path)]) == 1
    assert "no config.json" in capsys.readouterr().err
    assert main(["evaluate", str(tmp_path / "weights.safetensors")]) == 1
    assert "no run or weights file" in capsys.readouterr().err


def test_a_wrong_value_is_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--preset", "glyphs-nca", "--epochs", "0"]) == 1
    assert capsys.readouterr().err == "nearshot: --epochs must be at least 1, not 0.\n"
    with pytest.raises(SystemExit):
        main(["train", "--epochs", "many"])
    assert "--epochs" in capsys.readouterr().err


def _photos(folder: Path, n_classes: int, n_images: int) -> Path:
    chance = np.random.default_rng(0)
    for number in range(n_classes):
        (folder / f"kind {number}").mkdir(parents=True)
        for image in range(n_images):
            pixels = chance.integers(256, size=(20, 20, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / f"kind {number}" / f"{image}.png")
    return folder


def test_a_folder_of_few_pictures_can_be_trained_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Eight pictures of a class leave three for queries; that is said, and it goes on."""
    photos = _photos(tmp_path / "photos", 20, 8)
    where = ["--dataset", str(photos), "--data-dir", str(tmp_path / "data"), "--output", str(tmp_path / "run")]
    small = ["--backbone", "conv4-32", "--epochs", "1", "--batch-size", "16", "--validation-way", "2"]
    small += ["--validation-episodes", "10"]
    assert main(["train", *where, *small]) == 0
    assert "the validation split has classes of 8: 3 queries." in capsys.readouterr().err
    assert main(["train", *where, *small, "--validation-shots", "8", "--overwrite"]) == 1
    assert "lower --validation-shots or --validation-way" in capsys.readouterr().err
    assert (tmp_path / "run" / "result.json").is_file()  # what is refused overwrites nothing


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--backbone", "resnet11"], "There is no backbone 'resnet11'"),
        (["--validation-way", "500"], "lower --validation-way"),
        (["--graph", "True"], "needs a single GPU"),
        (["--accelerator", "cpu", "--fuse", "True"], "Fusing conv4-32's batch norm is not possible on cpu"),
        (["--accelerator", "cpu", "--keep-positives", "3"], "--keep-positives must be over 0"),
    ],
)
def test_a_dry_run_refuses_what_the_training_would(
    options: list[str], sentence: str, data_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", "--dataset", "tiny", *QUICK, "--data-dir", str(data_dir), "--dry-run", *options]) == 1
    assert sentence in capsys.readouterr().err


def test_options_of_episodes_are_said_to_do_nothing_without_them(
    data_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["train", "--dataset", "tiny", *QUICK, "--data-dir", str(data_dir), "--dry-run", "--n-shot=2"]
    assert main(given) == 0
    assert "--n-shot and --images-per-class do nothing here: shuffled batches have no" in capsys.readouterr().err
    assert main([*given, "--method", "prototypical"]) == 0
    assert "nothing here" not in capsys.readouterr().err


def test_matching_networks_are_reported_with_soft_assignment(
    data_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ["--data-dir", str(data_dir)]
    run = tmp_path / "run"
    assert main(["train", "--dataset", "tiny", "--method", "matching", *QUICK, *where, "--output", str(run)]) == 0
    capsys.readouterr()
    assert main(["evaluate", str(run), *where, "--way", "2", "--episodes", "20", "--shots", "3", "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert found["classifier"] == "soft"
    assert len(found["accuracy"]["per_episode"]) == 20
    best = json.loads((run / "result.json").read_text())["best"]
    nearest = best["1-shot soft"]["epoch"]  # of 1 and 5, as far from 3, the smaller
    assert found["weights"] == f"epoch-{nearest:04d}.safetensors"
    assert main(["evaluate", str(tmp_path), *where]) == 1
    assert capsys.readouterr().err.count("it has no config.json") == 1


def test_before_many_images_are_embedded_a_line_says_so(
    data_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where nobody sees a bar, as here."""
    prepare_tiny(tmp_path / "data", n_images=180)  # three test classes
    where = ["--data-dir", str(tmp_path / "data")]
    run = tmp_path / "run"
    assert main(["train", "--dataset", "tiny", *QUICK, "--epochs", "1", *where, "--output", str(run)]) == 0
    capsys.readouterr()
    for said in (True, False):  # the second time nothing is measured again
        assert main(["evaluate", str(run), *where, "--episodes", "10"]) == 0
        line = "nearshot: Embedding 540 images of tiny with epoch-0001.safetensors on cpu.\n"
        assert (line in capsys.readouterr().err) == said


def test_on_a_terminal_a_bar_shows_how_far_embedding_is(
    data_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    where = ["--data-dir", str(data_dir)]
    assert main(["train", "--dataset", "tiny", *QUICK, "--epochs", "1", *where, "--output", str(run)]) == 0
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    assert main(["evaluate", str(run), *where, "--episodes", "10"]) == 0
    assert "embedding" in capsys.readouterr().err
