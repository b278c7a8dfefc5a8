"""What small files cost: files of 84×84 play full-size ones for networks that see 32×32 pixels.

The paper cut its crops from full-size files of miniImageNet; nearshot had JPEG files of 84×84, and
is below the paper with every method. Full-size files are not needed to ask what that costs: a
network of 32×32 inputs is trained on "large" files of 84×84, on the same files shrunk to 32×32
("small"), and on small files that were written as JPEG in that size, with the quality that the
84×84 files have. Three settings are also tried at 84×84. The test split is not read.

    python benchmarks/mini_imagenet_files.py      # two to five minutes a run on an H200

It needs miniImageNet with 84×84 and with 32×32 images (`nearshot data prepare mini-imagenet --from
PATH`, and again with `--side 32`). It trains what `--runs` lacks, and writes the accuracies by
epoch to benchmarks/results/mini-imagenet-files.json and .md.
"""

import argparse
import io
import json
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from PIL import Image

from nearshot.data import Store
from nearshot.data.augment import Augmentation
from nearshot.data.preparation import prepare_folder
from nearshot.training import PRESETS, TrainConfig, train

RESULTS = Path(__file__).parent / "results"
NAME = "mini-imagenet-files"
SMALL_SIDE = 32
JPEG_DATASET = "mini-imagenet-jpeg"
JPEG_QUALITY = 95  # of the 84×84 files, with halved chroma

BASE = replace(PRESETS["mini-imagenet-84-nca"], side=84)
PUBLISHED = PRESETS["mini-imagenet-nca"]
AT_32 = replace(BASE, input_size=SMALL_SIDE)
PADDED_SMALL = replace(BASE.augmentation, padding=3)
PUBLISHED_CROPS = Augmentation(brightness=0.4, contrast=0.4, saturation=0.4)


def with_temperature(config: TrainConfig, temperature: float) -> TrainConfig:
    """Return settings of NCA with another temperature."""
    return replace(config, method=replace(config.method, temperature=temperature))


# By the name of the run's folder: what the table calls it, and its settings.
RUNS: Mapping[str, tuple[str, TrainConfig]] = MappingProxyType(
    {
        "little-padded": (
            "small files, padded crops",
            replace(AT_32, side=SMALL_SIDE, augmentation=PADDED_SMALL),
        ),
        "jpeg-padded": (
            "small JPEG files, padded crops",
            replace(AT_32, dataset=JPEG_DATASET, side=SMALL_SIDE, augmentation=PADDED_SMALL),
        ),
        "large-padded": ("large files, padded crops", AT_32),
        "large-crops": (
            "large files, published crops",
            replace(AT_32, augmentation=PUBLISHED_CROPS),
        ),
        "little-crops": (
            "small files, published crops",
            replace(AT_32, side=SMALL_SIDE, augmentation=PUBLISHED_CROPS),
        ),
        "large-published": (
            "large files, published settings",
            replace(PUBLISHED, side=84, input_size=SMALL_SIDE),
        ),
        "little-published": (
            "small files, published settings",
            replace(PUBLISHED, side=SMALL_SIDE, input_size=SMALL_SIDE),
        ),
        "in92": ("84×84 files, input 92", replace(BASE, input_size=92, epochs=40)),
        "temp4": (
            "84×84 files, temperature 4",
            replace(with_temperature(BASE, 4.0), epochs=40),
        ),
        "batch256-temp4": (
            "84×84 files, temperature 4, batch 256",
            replace(with_temperature(BASE, 4.0), batch_size=256, ema_decay=0.9995, epochs=105),
        ),
    }
)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=str(__doc__), formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--data-dir", type=Path, help="where datasets live (default: ~/.cache/nearshot)"
    )
    parser.add_argument(
        "--runs", type=Path, default=Path("runs/mini-imagenet-files"), help="the folder of the runs"
    )
    parser.add_argument("--output", type=Path, default=RESULTS, help="the folder of the result")
    options = parser.parse_args()
    rows = []
    for name, (title, config) in RUNS.items():
        folder = options.runs / name
        if not (folder / "metrics.jsonl").is_file():
            if config.dataset == JPEG_DATASET:
                prepare_jpegs(options.data_dir)
            train(config, folder=folder, data_dir=options.data_dir)
        rows.append({"run": title, **read_run(folder)})
    options.output.mkdir(parents=True, exist_ok=True)
    content = {"rows": rows}
    (options.output / f"{NAME}.json").write_text(json.dumps(content, indent=1) + "\n")
    (options.output / f"{NAME}.md").write_text(markdown(rows))
    print(markdown(rows))


def prepare_jpegs(data_dir: Path | None) -> None:
    """Prepare the small files after writing each as JPEG; the test split is left out."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for split in ("train", "val"):
            store = Store.open("mini-imagenet", split, data_dir, side=SMALL_SIDE)
            for number, (image, label) in enumerate(zip(store.images, store.labels, strict=True)):
                class_folder = folder / split / store.class_names[int(label)]
                class_folder.mkdir(parents=True, exist_ok=True)
                file = io.BytesIO()
                Image.fromarray(image).save(file, "JPEG", quality=JPEG_QUALITY)
                (class_folder / f"{number:05}.jpg").write_bytes(file.getvalue())
        prepare_folder(folder, name=JPEG_DATASET, data_dir=data_dir, side=SMALL_SIDE)


def read_run(folder: Path) -> dict[str, Any]:
    """Return the validation accuracies of a run by epoch, and what it ran on."""
    validation = {}
    for line in (folder / "metrics.jsonl").read_text().splitlines():
        epoch = json.loads(line)
        if epoch.get("validation"):
            accuracies = epoch["validation"]
            validation[str(epoch["epoch"])] = {
                "1-shot": accuracies["1-shot centroid"],
                "5-shot": accuracies["5-shot centroid"],
            }
    environment = json.loads((folder / "environment.json").read_text())
    kept = {key: environment[key] for key in ("device", "torch") if key in environment}
    return {"validation": validation, **kept}


def markdown(rows: list[dict[str, Any]]) -> str:
    """Return the accuracies by epoch, and each run's best."""
    epochs = sorted({int(epoch) for row in rows for epoch in row["validation"]})
    device = rows[0].get("device", "an unknown device")
    lines = [
        f"NCA on miniImageNet, {device}, validation split, 5-way, nearest centroid, 10,000 "
        "episodes, 1-shot / 5-shot. Networks see 32×32 pixels unless a row says 84×84 files. "
        "Best: the best epoch for each number of shots. One seed a row: the episodes' interval, "
        "±0.2, does not cover seed variance.",
        "",
        "| files and crops | best | " + " | ".join(map(str, epochs)) + " |",
        "|---|---" + "|---" * len(epochs) + "|",
    ]
    for row in rows:
        validation = row["validation"].values()
        best = " / ".join(
            f"{max(accuracies[shots] for accuracies in validation):.1f}"
            for shots in ("1-shot", "5-shot")
        )
        cells = [row["run"], best]
        for epoch in epochs:
            accuracies = row["validation"].get(str(epoch))
            cell = "–"
            if accuracies is not None:
                cell = f"{accuracies['1-shot']:.1f} / {accuracies['5-shot']:.1f}"
            cells.append(cell)
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
