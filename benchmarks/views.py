"""What evaluation gains from views, a power transform and larger inputs: NCA on CIFAR-FS.

    python benchmarks/views.py                           # a quarter of an hour on a CPU
    python benchmarks/views.py --input-sizes 96 108      # larger inputs as well

Validation split, 5-way, nearest centroid. All rows have the same episodes, so that differences are
paired. By default only the first 100 images of each class take part; those of the training classes
make the centre. Writes benchmarks/results/views.json and .md after each row.
"""

import argparse
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nearshot.data import Store, open_or_prepare
from nearshot.data.augment import normalise_images, view_of
from nearshot.devices import chosen_device
from nearshot.evaluation import Accuracy, compare, embed, evaluate_features, power_transform
from nearshot.models import Backbone, load_backbone

RESULTS = Path(__file__).parent / "results"
BACKBONE = "resnet12-nca-cifar-fs"
SHOTS = (1, 5)
N_VIEWS = (1, 2, 4, 10)
POWERS = (1.0, 0.5)
PLAIN = "1 view"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=str(__doc__), formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--data-dir", type=Path, help="where datasets live (default: ~/.cache/nearshot)"
    )
    parser.add_argument("--images", type=int, default=100, help="of each class")
    parser.add_argument(
        "--input-sizes", type=int, nargs="*", default=[], help="other sides of the input"
    )
    parser.add_argument("--output", type=Path, default=RESULTS, help="the folder of the result")
    options = parser.parse_args()
    device = chosen_device(None)
    backbone = load_backbone(BACKBONE)
    backbone.to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    images, labels = first_images(
        open_or_prepare("cifar-fs", "val", options.data_dir), options.images
    )
    training, _ = first_images(
        open_or_prepare("cifar-fs", "train", options.data_dir), options.images
    )
    usual = backbone.spec.input_size
    accuracies: dict[str, dict[int, Accuracy]] = {}

    def measure(name: str, features: Tensor, of_training: Tensor, power: float = 1.0) -> None:
        centre = power_transform(of_training, power).mean(0)
        transformed = power_transform(features, power)
        accuracies[name] = {}
        for n_shot in SHOTS:
            accuracies[name][n_shot] = evaluate_features(
                transformed, labels, n_shot=n_shot, centre=centre, split="val", progress=False
            )
        write(accuracies, options, device, len(images))

    of_training = embedded(backbone, training, 0, usual)
    total = torch.zeros(())
    for number in range(max(N_VIEWS)):
        total = total + embedded(backbone, images, number, usual)
        n_views = number + 1
        if n_views not in N_VIEWS:
            continue
        for power in POWERS:
            name = "1 view" if n_views == 1 else f"{n_views} views"
            if power != 1:
                name += f", power {power:g}"
            measure(name, total / n_views, of_training, power)
    for size in options.input_sizes:
        backbone.set_input_size(size)
        measure(
            f"input size {size}",
            embedded(backbone, images, 0, size),
            embedded(backbone, training, 0, size),
        )
    print((options.output / "views.md").read_text())


def first_images(store: Store, n_images: int) -> tuple[Tensor, Tensor]:
    """Return the first images of each class, (image, height, width, 3), and their labels."""
    classes = store.labels.unique().tolist()
    rows = torch.cat([(store.labels == label).nonzero()[:n_images, 0] for label in classes])
    return torch.from_numpy(store.images[rows.numpy()]), store.labels[rows]


def embedded(backbone: Backbone, images: Tensor, view: int, size: int) -> Tensor:
    """Return the embeddings of one view of each image, on the CPU."""

    def network(batch: Tensor) -> Tensor:
        features: Tensor = backbone(
            normalise_images(view_of(batch, view, size), *backbone.spec.normalisation)
        )
        return features.float()

    return embed(network, images, batch_size=256, device=next(backbone.parameters()).device)


def write(
    measured: dict[str, dict[int, Accuracy]],
    options: argparse.Namespace,
    device: torch.device,
    n: int,
) -> None:
    rows: dict[str, Any] = {
        name: {
            f"{shot}-shot": {
                "mean": accuracy.mean,
                "interval95": accuracy.interval95,
                "paired": asdict(compare(accuracy, measured[PLAIN][shot])),
            }
            for shot, accuracy in accuracies.items()
        }
        for name, accuracies in measured.items()
    }
    about = (
        f"Features of `{BACKBONE}`; {n:,} images of CIFAR-FS's validation split, 5-way, nearest "
        "centroid, 10,000 episodes, the same for all rows; ± is over episodes. One network."
    )
    lines = [
        about,
        "",
        "| features | 1-shot | change | 5-shot | change |",
        "|---|---:|---:|---:|---:|",
    ]
    for name, row in rows.items():
        cells = []
        for accuracy in row.values():
            change = (
                f"{accuracy['paired']['difference']:+.2f} ± {accuracy['paired']['interval95']:.2f}"
            )
            cells += [
                f"{accuracy['mean']:.2f} ± {accuracy['interval95']:.2f}",
                "" if name == PLAIN else change.replace("-", "−"),
            ]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    report = {
        "backbone": BACKBONE,
        "images": options.images,
        "torch": torch.__version__,
        "device": device.type,
        "protocol": str(measured[PLAIN][5].protocol),
        "rows": rows,
    }
    options.output.mkdir(exist_ok=True, parents=True)
    (options.output / "views.json").write_text(json.dumps(report, indent=1) + "\n")
    (options.output / "views.md").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
