"""What ties among k neighbours cost: NCA on CIFAR-FS's validation split, 5-way 5-shot.

With five classes and five neighbours, two classes often have equally many votes. The paper does not
say which of them wins. In nearshot it is the one with the nearest image; by the mode of the labels,
as in scikit-learn, it is the first.

    python benchmarks/knn_ties.py      # minutes without a GPU

Prints a table and writes benchmarks/results/knn-ties.json and .md.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import torch

from nearshot.data import open_or_prepare
from nearshot.data.loader import ImageFeed
from nearshot.evaluation import Accuracy, evaluate_features, knn
from nearshot.models import load_backbone
from nearshot.paper.numbers import CLASSIFIERS_TABLE
from nearshot.training.embedding import embed_images

RESULTS = Path(__file__).parent / "results"
BACKBONE = "resnet12-nca-cifar-fs"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=str(__doc__), formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--data-dir", type=Path, help="where datasets live (default: ~/.cache/nearshot)"
    )
    options = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    backbone = load_backbone(BACKBONE).eval()
    backbone.to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    store = open_or_prepare("cifar-fs", "val", options.data_dir)
    features = embed_images(backbone, ImageFeed(store.images, device), progress=None).cpu()
    centre = backbone.spec.training_mean
    if centre is None:
        raise ValueError(f"{BACKBONE} has no training_mean, which features are centred by.")

    def measured(ties: Any) -> Accuracy:
        return evaluate_features(
            features, store.labels, classifier=knn(ties=ties), centre=centre.cpu(), split="val"
        )

    accuracies = {f"of equals, the {ties}": measured(ties) for ties in ("nearest", "first")}
    paper = CLASSIFIERS_TABLE["knn"]["cifar-fs"][0]
    report = {
        "backbone": BACKBONE,
        "fingerprint": store.fingerprint,
        "torch": torch.__version__,
        "device": device.type,
        "rows": {
            name: {"mean": accuracy.mean, "interval95": accuracy.interval95}
            for name, accuracy in accuracies.items()
        },
        "paper": {"mean": paper.mean, "interval95": paper.interval95},
        "protocol": str(next(iter(accuracies.values())).protocol),
    }
    lines = [
        f"k-NN with k = 5 on the features of `{BACKBONE}`, CIFAR-FS's validation split, 5-way "
        "5-shot, 10,000 episodes.",
        "",
        "| k-NN | accuracy |",
        "|---|---:|",
        *(f"| {name} | {accuracy} |" for name, accuracy in accuracies.items()),
        f"| the paper's (three other networks) | {paper} |",
    ]
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "knn-ties.json").write_text(json.dumps(report, indent=2) + "\n")
    (RESULTS / "knn-ties.md").write_text("\n".join(lines) + "\n")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
