"""Which crops and settings suit 84×84 files of miniImageNet: NCA, validation split.

The published crops, 8 to 100 % of the area, were cut from full-size files. From an 84×84 file a
small crop is magnified from few pixels. Each run is also evaluated at larger inputs: training crops
show objects larger than evaluation at 84×84 does, and blurred by magnification, while 84×84 inputs
are the files' own pixels. The two are not told apart here. The test split is not read. Short runs
may favour mild crops, so their order need not be that of long runs.

    python benchmarks/mini_imagenet_crops.py      # all crops; 2.5 minutes each on an H200
    python benchmarks/mini_imagenet_crops.py --epochs 120 --only "padded 8, jitter, average"

Prints a table and writes benchmarks/results/mini-imagenet-crops.json and .md, which keep their
other rows.
"""

import argparse
import json
import statistics
import time
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch

from nearshot.data import Store
from nearshot.data.augment import Augmentation
from nearshot.data.loader import ImageFeed
from nearshot.devices import chosen_device, uses_bfloat16
from nearshot.evaluation import EvaluationSpec, FeatureSet, evaluate_many
from nearshot.models import Backbone, load_backbone
from nearshot.models.kernels import can_fuse, fuse
from nearshot.paper.identity import run_id
from nearshot.training import PRESETS, RunFolder, TrainConfig, train
from nearshot.training.embedding import embed_images

RESULTS = Path(__file__).parent / "results"
NAME = "mini-imagenet-crops"
PRESET = "mini-imagenet-nca"
JITTER = 0.4
PADDED = Augmentation(crop="padded", padding=8)
# In the order in which they run.
CROPS: Mapping[str, Augmentation] = MappingProxyType(
    {
        "scale 0.35": Augmentation(scale=(0.35, 1.0)),
        "scale 0.08 (published)": Augmentation(),
        "padded 8": PADDED,
        "scale 0.2": Augmentation(scale=(0.2, 1.0)),
        "scale 0.5": Augmentation(scale=(0.5, 1.0)),
        "padded 8 with scale 0.7": Augmentation(crop="padded-random", padding=8, scale=(0.7, 1.0)),
    }
)
# What a variant may have beside its crops and "jitter", after a comma: a setting and its value.
CHANGES: Mapping[str, tuple[str, Any]] = MappingProxyType(
    {
        "weight decay 0.001": ("weight_decay", 1e-3),
        "weight decay 0.002": ("weight_decay", 2e-3),
        "average": ("ema_decay", 0.999),
        "cosine": ("schedule", "cosine"),
        "constant": ("schedule", "constant"),
        "late drop": ("milestones", (0.9,)),
        "warm-up": ("warm_up", None),
        "learning rate 0.2": ("learning_rate", 0.2),
        "batch 256": ("batch_size", 256),
        "DropBlock": ("backbone", "resnet12-dropblock"),
    }
)
INPUT_SIZES = (84, 92, 100)
N_EPISODES = 10_000
LONG = 100  # epochs of the runs whose accuracies are listed by epoch
SEED_OF_EPISODES = 1  # seed 0 chose the epochs
# The mean training feature at another input size is of every eighth training image.
CENTRE_FROM_EVERY = 8


def main() -> None:
    parser = argparse.ArgumentParser(
        description=str(__doc__), formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--data-dir", type=Path, help="where datasets live (default: ~/.cache/nearshot)"
    )
    parser.add_argument(
        "--runs", type=Path, default=Path("runs/mini-imagenet-crops"), help="the folder of the runs"
    )
    parser.add_argument("--output", type=Path, default=RESULTS, help="the folder of the result")
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--only", nargs="+", default=list(CROPS), metavar="VARIANT", help="crops, and changes"
    )
    options = parser.parse_args()
    for variant in options.only:
        row = measured(variant, options.epochs, options.seed, options.runs, options.data_dir)
        print(markdown(add_row(options.output, row)))


def config_of(variant: str) -> TrainConfig:
    """Return the settings of a variant: crops, and any of "jitter" and CHANGES."""
    crops, *others = variant.split(", ")
    augmentation = CROPS[crops]
    if "jitter" in others:
        augmentation = replace(augmentation, brightness=JITTER, contrast=JITTER, saturation=JITTER)
    return replace(PRESETS[PRESET], augmentation=augmentation, **changes_in(variant))


def changes_in(variant: str) -> dict[str, Any]:
    """Return a variant's settings beside its augmentation, by name."""
    return dict(CHANGES[part] for part in variant.split(", ")[1:] if part != "jitter")


def measured(
    variant: str, epochs: int, seed: int, runs: Path, data_dir: Path | None
) -> dict[str, Any]:
    """Train a variant and evaluate its weights at every input size."""
    config = replace(config_of(variant), epochs=epochs, seed=seed)
    started = time.perf_counter()
    slug = variant.replace(" (published)", "").replace(", ", "-").replace(" ", "-")
    result = train(
        config, folder=runs / f"{slug}-{epochs}-seed-{seed}", data_dir=data_dir, overwrite=True
    )
    trained = time.perf_counter()
    run = RunFolder(result.folder)
    stores = {split: Store.open(config.dataset, split, data_dir) for split in ("train", "val")}
    epochs_of = {f"best {n}-shot": result.best_epochs[f"{n}-shot centroid"] for n in (1, 5)} | {
        "last": epochs
    }
    sizes = {
        str(epoch): at_every_size(run.weights_of(epoch), stores, INPUT_SIZES)
        for epoch in sorted(set(epochs_of.values()))
    }
    timing = [json.loads(line) for line in (run.path / "timing.jsonl").read_text().splitlines()]
    metrics = [json.loads(line) for line in (run.path / "metrics.jsonl").read_text().splitlines()]
    return {
        "variant": variant,
        "epochs": epochs,
        "seed": seed,
        "augmentation": asdict(config.augmentation),
        "changes": changes_in(variant),
        "run": run_id(config),
        "fingerprints": {split: store.fingerprint for split, store in stores.items()},
        "torch": torch.__version__,
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
        "training_seconds": trained - started,
        "evaluation_seconds": time.perf_counter() - trained,
        "images_per_second": statistics.median(line["images_per_second"] for line in timing),
        "validation": {
            str(line["epoch"]): line["validation"] for line in metrics if line.get("validation")
        },
        "weights": epochs_of,
        "sizes": sizes,
    }


def at_every_size(
    weights: Path, stores: Mapping[str, Store], sizes: tuple[int, ...]
) -> dict[str, dict[str, Any]]:
    """Return the validation accuracy of nearest centroid, by input size and number of shots."""
    device = chosen_device(None)
    backbone = load_backbone(weights)
    backbone.to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    if can_fuse(backbone, device):
        fuse(backbone)
    feeds = {
        "train": ImageFeed(stores["train"].images[::CENTRE_FROM_EVERY], device),
        "val": ImageFeed(stores["val"].images, device),
    }
    return {str(size): at_size(backbone, feeds, stores["val"], size, device) for size in sizes}


def at_size(
    backbone: Backbone,
    feeds: Mapping[str, ImageFeed],
    store: Store,
    size: int,
    device: torch.device,
) -> dict[str, Any]:
    backbone.spec = replace(backbone.spec, input_size=size)
    bfloat16 = uses_bfloat16("auto", device.type)
    training, features = (
        embed_images(backbone, feeds[split], bfloat16=bfloat16) for split in ("train", "val")
    )
    data = FeatureSet(
        features, store.labels, centre=training.mean(0), split="val", fingerprint=store.fingerprint
    )
    specs = [
        EvaluationSpec(n_shot=n_shot, n_episodes=N_EPISODES, seed=SEED_OF_EPISODES)
        for n_shot in (1, 5)
    ]
    accuracies = {}
    for spec, accuracy in zip(specs, evaluate_many(data, specs=specs, progress=False), strict=True):
        accuracies[f"{spec.n_shot}-shot"] = {
            "mean": accuracy.mean,
            "interval95": accuracy.interval95,
        }
    return accuracies


def add_row(output: Path, row: dict[str, Any]) -> dict[str, Any]:
    """Add a row to the result's files, in place of an earlier one of the same run."""
    file = output / f"{NAME}.json"
    rows = json.loads(file.read_text())["rows"] if file.is_file() else []
    key = ("variant", "epochs", "seed")
    rows = [
        earlier
        for earlier in rows
        if [earlier[name] for name in key] != [row[name] for name in key]
    ] + [row]
    report = {
        "preset": PRESET,
        "split": "val",
        "episodes": N_EPISODES,
        "seed_of_episodes": SEED_OF_EPISODES,
        "centre_from_every": CENTRE_FROM_EVERY,
        "rows": rows,
    }
    output.mkdir(exist_ok=True, parents=True)
    file.write_text(json.dumps(report, indent=1) + "\n")
    (output / f"{NAME}.md").write_text(markdown(report))
    return report


def markdown(report: dict[str, Any]) -> str:
    """Return the table for the documentation: each run at 84×84 and at its best input size."""
    devices = ", ".join(sorted({row["device"] for row in report["rows"]}))
    lines = [
        f"NCA (`{report['preset']}` with other crops and settings), {devices}. "
        "miniImageNet from 84×84 files, validation split, 5-way, nearest centroid, "
        f"{report['episodes']:,} episodes, "
        "1-shot / 5-shot. Best: the epoch that was best for each number of shots on other "
        "episodes of these classes. "
        "The best input size was chosen on these episodes. One seed a row: the episodes' "
        "interval, ±0.2, does not "
        "cover seed variance. Compare rows of equal epochs only: short runs may favour mild "
        "crops. Average: a moving "
        "average of the weights, with a decay of 0.999 a step. The learning rate drops after 70 % "
        "of the epochs; late "
        "drop: after 90 %; constant: never.",
        "",
        "| crops and settings | epochs | seed | last, 84×84 | best, 84×84 | best, best input size "
        "|",
        "|---|---:|---:|---|---|---|",
    ]
    for row in sorted(report["rows"], key=lambda row: (row["epochs"], -best(row, 5, 84))):
        size = max(
            map(int, row["sizes"][str(row["weights"]["last"])]),
            key=lambda size: best(row, 1, size) + best(row, 5, size),
        )
        last = row["sizes"][str(row["weights"]["last"])]["84"]
        lines.append(
            f"| {row['variant']} | {row['epochs']} | {row['seed']} | {last['1-shot']['mean']:.2f} "
            "/ "
            f"{last['5-shot']['mean']:.2f} | {best(row, 1, 84):.2f} / {best(row, 5, 84):.2f} | "
            f"{best(row, 1, size):.2f} / {best(row, 5, size):.2f} at {size} |"
        )
    return "\n".join([*lines, "", *curves(report["rows"])]) + "\n"


def curves(rows: list[dict[str, Any]]) -> list[str]:
    """Return the lines of a table of the long runs' accuracies by epoch."""
    long = sorted((row for row in rows if row["epochs"] >= LONG), key=lambda row: best(row, 5, 84))
    epochs = [
        str(epoch) for epoch in range(40, max((row["epochs"] for row in long), default=0) + 1, 10)
    ]
    lines = [
        f"The runs of {LONG} epochs or more by epoch, on the episodes that chose the epochs:",
        "",
        f"| crops and settings | {' | '.join(epochs)} |",
        f"|---|{'---|' * len(epochs)}",
    ]
    for row in long:
        accuracies = [row["validation"].get(epoch) for epoch in epochs]
        cells = [
            f"{accuracy['1-shot centroid']:.1f} / {accuracy['5-shot centroid']:.1f}"
            if accuracy
            else "–"
            for accuracy in accuracies
        ]
        lines.append(f"| {row['variant']} | {' | '.join(cells)} |")
    return lines


def best(row: dict[str, Any], n_shot: int, size: int) -> float:
    """Return a row's accuracy at an input size, of the epoch that was best for so many shots."""
    of_epoch = row["sizes"][str(row["weights"][f"best {n_shot}-shot"])]
    return float(of_epoch[str(size)][f"{n_shot}-shot"]["mean"])


if __name__ == "__main__":
    main()
