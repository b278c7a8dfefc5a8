import json
import re
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from tests.helpers.tiny import prepare_tiny

from nearshot.cli import evaluate as evaluate_command
from nearshot.cli import main
from nearshot.cli.train import parse
from nearshot.errors import InputError
from nearshot.models import build_backbone, save_backbone
from nearshot.training import PRESETS, Method, TrainConfig
from nearshot.training.methods import NCA, MatchingNetworks
from nearshot.training.presets import PHOTOS, PHOTOS_FROM_SCRATCH

Captured = pytest.CaptureFixture[str]


@dataclass(frozen=True)
class OwnMargin(Method):
    """A setting of a user's own."""

    margin: float = 0.2
    """By how much."""


QUICK = [
    "--backbone",
    "conv4-32",
    "--epochs",
    "2",
    "--batch-size",
    "32",
    "--images-per-class",
    "4",
]
QUICK += ["--validation-episodes", "20", "--validation-n-way", "2"]


def test_the_defaults_depend_on_the_preset() -> None:
    scratch = replace(PHOTOS_FROM_SCRATCH, dataset="photos")
    for typed, expected in {
        "--preset=cifar-fs-nca --epochs 3": replace(PRESETS["cifar-fs-nca"], epochs=3),
        "": PRESETS["glyphs-nca"],
        "--dataset cifar-fs": TrainConfig(dataset="cifar-fs"),
        "--dataset photos": replace(PHOTOS, dataset="photos"),
        "--dataset cifar-fs --init auto": replace(PHOTOS, dataset="cifar-fs"),
        "--dataset photos --init none": scratch,
        "--dataset photos --backbone resnet12": replace(scratch, backbone="resnet12"),
    }.items():
        assert parse(typed.split()).config == expected
    typed = "--dataset photos --method=matching --n_shot=3 --validation-n-shot 1 5"
    assert not {"n_shot", "validation_n_shot"} & set(parse(typed.split()).auto)
    with pytest.raises(InputError, match="'cifar-nca'.*cifar-fs-nca"):
        parse(["--preset", "cifar-nca"])


def test_a_setting_of_the_presets_method_is_an_option() -> None:
    config = parse(["--preset", "cifar-fs-nca", "--temperature", "0.5", "--epochs", "3"]).config
    assert config.method == NCA(background=1e-10, temperature=0.5)
    assert config == replace(PRESETS["cifar-fs-nca"], epochs=3, method=config.method)


def test_another_method_keeps_the_presets_settings_that_it_has() -> None:
    arguments = ["--preset", "cifar-fs-nca", "--method", "matching", "--n-shot", "3"]
    config = parse(arguments).config
    assert config.method == MatchingNetworks(background=1e-10, n_shot=3)
    assert config == replace(PRESETS["cifar-fs-nca"], method=config.method)


def test_a_method_of_ones_own_has_its_settings_as_options() -> None:
    name = f"{OwnMargin.__module__}:OwnMargin"
    assert parse(["--method", name, "--margin", "0.3"]).config.method == OwnMargin(margin=0.3)
    with pytest.raises(InputError, match="nowhere"):
        parse(["--method", "nowhere:OwnMargin"])


def test_help_shows_the_settings_of_the_method_only(capsys: Captured) -> None:
    shown = {}
    for name in ("simpleshot", "matching"):
        with pytest.raises(SystemExit):
            main(["train", "--method", name, "--help"])
        shown[name] = set(re.findall(r"^\W*(--[\w-]+)", capsys.readouterr().out, re.MULTILINE))
    assert "--label-smoothing" in shown["simpleshot"]
    assert not {"--temperature", "--n-shot"} & shown["simpleshot"]
    assert "--label-smoothing" not in shown["matching"]
    assert {"--temperature", "--n-shot"} <= shown["matching"]


@pytest.mark.parametrize(
    "arguments", [["--method", "simpleshot", "--temperature", "0.5"], ["--keep-pairs", "0.5"]]
)
def test_a_setting_that_the_method_does_not_have_is_an_error(
    arguments: list[str], capsys: Captured
) -> None:
    with pytest.raises(SystemExit):
        main(["train", *arguments])
    assert arguments[-2] in capsys.readouterr().err


def test_shots_of_a_method_without_shots_are_an_error() -> None:
    with pytest.raises(InputError, match="n_shot .* nca .*3"):
        parse(["--method", "nca", "--n-shot", "3"])


def test_small_images_of_mini_imagenet_have_presets_of_their_own(
    tmp_path: Path, capsys: Captured
) -> None:
    published = PRESETS["mini-imagenet-nca"]
    small = PRESETS["mini-imagenet-84-nca"]
    command = ["--preset", "mini-imagenet-nca", "--data-dir", str(tmp_path)]
    assert parse(command).config == published  # nothing is prepared
    prepare_tiny(tmp_path, name="mini-imagenet")  # 16×16
    assert parse(command).config == small
    assert parse([*command, "--weight-decay", "5e-4"]).config == replace(
        small, weight_decay=published.weight_decay
    )
    assert parse([*command, "--input-size", "8"]).config == replace(published, input_size=8)
    assert parse([*command, "--side", "256"]).config == replace(published, side=256)
    quick = [*QUICK, "--validation-n-shot", "1", "--input-size", "16", "--dry-run"]
    assert main(["train", *command, *quick]) == 0
    out, err = capsys.readouterr()
    assert "the preset is mini-imagenet-84-nca" in err
    assert json.loads(out[: out.index("\n}") + 2])["augmentation"]["crop"] == "padded"


def test_train_then_evaluate(data_dir: Path, tmp_path: Path, capsys: Captured) -> None:
    where = ["--data-dir", str(data_dir)]
    run = tmp_path / "run"
    train = [
        "train",
        "--dataset",
        "tiny",
        "--method",
        "matching",
        "--n-shot",
        "2",
        *QUICK,
        *where,
        "--output",
        str(run),
    ]
    assert main(train) == 0
    out, err = capsys.readouterr()
    assert f"nearshot evaluate {run}" in out
    assert "epoch 2/2: loss" in err
    measure = ["evaluate", str(run), *where, "--n-way", "2", "--n-episodes", "20"]
    assert main([*measure, "--classifier", "centroid", "soft", "--json"]) == 0
    evaluations = json.loads(capsys.readouterr().out)
    expected = [(1, "centroid"), (1, "soft"), (5, "centroid"), (5, "soft")]
    assert [
        (evaluation["spec"]["n_shot"], evaluation["spec"]["classifier"])
        for evaluation in evaluations
    ] == expected
    assert evaluations[0]["accuracy"]["protocol"]["split"] == "test"
    assert (
        main([*measure, "--n-shot", "3", "--json"]) == 0
    )  # Matching Networks are reported with soft assignment
    (evaluation,) = json.loads(capsys.readouterr().out)
    assert (evaluation["spec"]["classifier"], len(evaluation["accuracy"]["per_episode"])) == (
        "soft",
        20,
    )
    best = json.loads((run / "result.json").read_text())["best"]
    nearest = best["1-shot soft"]["epoch"]  # of 1 and 5, as far from 3, the smaller
    assert evaluation["weights"] == f"epoch-{nearest:04d}.safetensors"
    assert main(train) == 1
    assert "resume" in capsys.readouterr().err


def test_a_dry_run_prints_the_plan_and_trains_nothing(
    data_dir: Path, tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    arguments = ["train", "--dataset", "tiny", *QUICK, "--data-dir", str(data_dir), "--dry-run"]
    assert main([*arguments, "--batches", "shuffled"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out[: out.index("\n}") + 2])["batch_size"] == 32
    assert "2 epochs of 6 steps: 12 steps, 384 images" in out
    assert "pairs per batch" in out
    assert "images_per_class" in err
    assert not list(tmp_path.iterdir())
    assert main([*arguments, "--preset", "glyphs-matching", "--n-shot", "2"]) == 0
    assert "n_shot" not in capsys.readouterr().err


def test_classes_are_listed_the_hardest_first(
    tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare_tiny(tmp_path, n_classes=25, contrast=20)
    torch.manual_seed(0)
    save_backbone(build_backbone("conv4", input_size=16), tmp_path / "own.safetensors")
    where = ["--dataset", "tiny", "--data-dir", str(tmp_path)]
    measure = [
        "evaluate",
        str(tmp_path / "own.safetensors"),
        *where,
        "--n-way",
        "2",
        "--n-episodes",
        "50",
        "--by-class",
    ]
    assert main([*measure, "--json"]) == 0
    last = json.loads(capsys.readouterr().out)[-1]
    names = sorted(last["by_class"], key=lambda name: last["by_class"][name]["mean"])
    assert len({accuracy["mean"] for accuracy in last["by_class"].values()}) > 2
    hardest = last["by_class"][names[0]]
    for limit, expected in (
        (30, names),
        (1, [names[0], f"… {len(names) - 2} more, which --json has", names[-1]]),
    ):
        monkeypatch.setattr(evaluate_command, "HARDEST", limit)
        monkeypatch.setattr(evaluate_command, "EASIEST", limit)
        assert main(measure) == 0
        table = capsys.readouterr().out.partition("By class, the hardest first")[2]
        assert [
            line.split("│")[1].strip() for line in table.splitlines() if line.startswith("│")
        ] == expected
        assert f"{hardest['mean']:.2f} ± {hardest['interval95']:.2f}" in table


def test_a_setting_with_the_name_of_another_option_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`scale` is an option of the crops."""
    (tmp_path / "scaled_loss.py").write_text(
        "from dataclasses import dataclass\n"
        "from nearshot.training import Method\n\n\n"
        "@dataclass(frozen=True)\n"
        "class Scaled(Method):\n"
        "    scale: float = 1.0\n"
    )
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match="'scale'"):
        parse(["--method", "scaled_loss:Scaled"])
