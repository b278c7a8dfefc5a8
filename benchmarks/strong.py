"""Which ingredients make a single ResNet-12 stronger: runs with some of them, compared on the validation split.

    python benchmarks/strong.py cifar-fs "plain" "rotations" "rotations, mixup" --epochs 100
    python benchmarks/strong.py mini-imagenet "rotations, mixup, average" --teacher runs/strong/first

A variant is "plain", or names of INGREDIENTS with commas between them. The base of each dataset is cross-entropy on
shuffled batches. Every run is measured with nearest centroid, without and with views and a power transform. The test
split is not read. Every run that was tried stays in benchmarks/results/strong.json, from which the table is made.
"""

import argparse
import json
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch

from nearshot.data.augment import Augmentation
from nearshot.experiments.identity import run_id
from nearshot.runs.evaluate import Request, evaluate_run
from nearshot.training import TrainConfig, train

RESULTS = Path(__file__).parent / "results"
JITTER: dict[str, Any] = {"brightness": 0.4, "contrast": 0.4, "saturation": 0.4}
BASE = TrainConfig(
    method="simpleshot",
    backbone="resnet12-metaopt",
    batch_size=256,
    nesterov=True,
    schedule="cosine",
    warm_up=2.0,
)
BASES: Mapping[str, TrainConfig] = MappingProxyType(
    {
        "cifar-fs": replace(
            BASE, dataset="cifar-fs", input_size=32, augmentation=Augmentation(crop="padded", padding=4, **JITTER)
        ),
        "mini-imagenet": replace(
            BASE, dataset="mini-imagenet", input_size=84, augmentation=Augmentation(crop="padded", padding=8, **JITTER)
        ),
    }
)
# The settings that each ingredient changes; those of the augmentation have the prefix "augmentation.".
INGREDIENTS: Mapping[str, dict[str, Any]] = MappingProxyType(
    {
        "rotations": {"rotation_weight": 1.0},
        "mixup": {"mixup": 2.0},
        "mixup of stages": {"mixup": 2.0, "mix_stages": True},
        "cutmix": {"cutmix": 1.0},
        "half of the batches mixed": {"mix_probability": 0.5},
        "label smoothing": {"label_smoothing": 0.1},
        "with NCA": {"method": "nca", "cross_entropy_weight": 0.5, "temperature": 16.0},
        "average": {"ema_decay": 0.999},
        "weight decay 0.001": {"weight_decay": 1e-3},
        "two operations": {"augmentation.n_operations": 2},
        "random crops": {"augmentation.crop": "random", "augmentation.scale": (0.2, 1.0)},
        "mild crops": {"augmentation.crop": "padded-random", "augmentation.scale": (0.5, 1.0)},
        "the paper's network": {"backbone": "resnet12"},
        "constant rate": {"schedule": "constant"},
        "batch of 512": {"batch_size": 512},
    }
)
# How the features of a run are measured.
FEATURES: Mapping[str, dict[str, Any]] = MappingProxyType(
    {
        "one view": {},
        "2 views": {"n_views": 2},
        "10 views": {"n_views": 10},
        "10 views, power 0.5": {"n_views": 10, "power": 0.5},
    }
)
EPISODES: dict[str, Any] = {"split": "val", "n_episodes": 10_000, "seed": 1}  # seed 0 chose the epochs


def config_of(dataset: str, variant: str) -> TrainConfig:
    """Return the settings of a variant, such as "rotations, mixup".

    >>> config_of("cifar-fs", "rotations, mixup").rotation_weight
    1.0
    """
    config = BASES[dataset]
    for name in [] if variant == "plain" else variant.split(", "):
        changes = INGREDIENTS[name]
        prefix = "augmentation."
        of_images = {key.removeprefix(prefix): value for key, value in changes.items() if key.startswith(prefix)}
        others = {key: value for key, value in changes.items() if not key.startswith(prefix)}
        config = replace(config, augmentation=replace(config.augmentation, **of_images), **others)
    return config


def measured(config: TrainConfig, variant: str, folder: Path, data_dir: Path | None) -> dict[str, Any]:
    """Train a run, or resume it, and measure its features in every way."""
    started = time.perf_counter()
    result = train(config, folder=folder, data_dir=data_dir, resume=True)
    seconds = time.perf_counter() - started
    accuracies = {}
    for name, options in FEATURES.items():
        found = evaluate_run(folder, Request(**EPISODES, classifiers=("centroid",), **options), data_dir=data_dir)
        accuracies[name] = {
            f"{one.n_shot}-shot": {"mean": one.accuracy.mean, "interval95": one.accuracy.interval95} for one in found
        }
    return {
        "dataset": config.dataset,
        "variant": variant,
        "epochs": config.epochs,
        "seed": config.seed,
        "teacher": None if config.teacher is None else Path(config.teacher).name,
        "run": run_id(config),
        "torch": torch.__version__,
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
        "training_seconds": seconds,
        "best_epochs": result.best_epochs,
        "accuracies": accuracies,
    }


def markdown(rows: list[dict[str, Any]]) -> str:
    """Return the table for the documentation."""
    lines = [
        "Validation split, 5-way, nearest centroid, 10,000 episodes, 1-shot / 5-shot, the best epoch of each run. "
        "One seed a row: the episodes' interval, ±0.2, does not cover seed variance.",
        "",
        f"| dataset | ingredients | epochs | seed | teacher | minutes | {' | '.join(FEATURES)} |",
        f"|---|---|---:|---:|---|---:|{'---|' * len(FEATURES)}",
    ]
    for row in sorted(rows, key=lambda row: (row["dataset"], row["accuracies"]["one view"]["5-shot"]["mean"])):
        found = [
            " / ".join(f"{row['accuracies'][way][n]['mean']:.2f}" for n in ("1-shot", "5-shot")) for way in FEATURES
        ]
        about = (row["dataset"], row["variant"], row["epochs"], row["seed"], row["teacher"] or "–")
        lines.append(f"| {' | '.join(map(str, about))} | {row['training_seconds'] / 60:.1f} | {' | '.join(found)} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__), formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset", choices=BASES)
    parser.add_argument("variants", nargs="+", help='"plain", or ingredients: ' + ", ".join(INGREDIENTS))
    parser.add_argument("--epochs", type=int, default=100)
    parser.add_argument("--steps-per-epoch", type=int, help="fewer steps, for a trial")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--teacher", type=Path, help="a run to learn from as well")
    parser.add_argument("--data-dir", type=Path, help="where datasets live (default: ~/.cache/nearshot)")
    parser.add_argument("--runs", type=Path, default=Path("runs/strong"), help="the folder of the runs")
    parser.add_argument("--output", type=Path, default=RESULTS, help="the folder of the result")
    given = parser.parse_args()
    teacher = None if given.teacher is None else str(given.teacher.resolve())
    for variant in given.variants:
        config = replace(config_of(given.dataset, variant), epochs=given.epochs, seed=given.seed, teacher=teacher)
        config = replace(config, steps_per_epoch=given.steps_per_epoch)
        row = measured(config, variant, given.runs / run_id(config), given.data_dir)
        file = given.output / "strong.json"
        rows = json.loads(file.read_text()) if file.is_file() else []
        rows = [one for one in rows if one["run"] != row["run"]] + [row]
        given.output.mkdir(exist_ok=True, parents=True)
        file.write_text(json.dumps(rows, indent=1) + "\n")
        (given.output / "strong.md").write_text(markdown(rows))
        print(markdown([row]))


if __name__ == "__main__":
    main()
