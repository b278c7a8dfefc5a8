"""A loss of your own, trained and measured like the built-in ones: triplets of a batch.

    python examples/own_loss.py

On the command line, in this folder, its settings are options:

    nearshot train --method own_loss:HardestTriplets --help
    nearshot train --preset glyphs-nca --method own_loss:HardestTriplets --margin 0.5 --epochs 1
"""

import argparse
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from nearshot.evaluation import EvaluationSpec
from nearshot.runs import evaluate_run
from nearshot.training import PRESETS, Batch, Method, train


def hardest_triplet_loss(embeddings: Tensor, labels: Tensor, *, margin: float = 0.2) -> Tensor:
    """Pull each image's farthest positive closer than its nearest negative (Hermans et al., 2017).

    Args:
        embeddings: (image, dim).
        labels: (image,) whole numbers.
        margin: by how much.
    """
    distances = torch.cdist(embeddings, embeddings)  # (anchor, image)
    same_class = labels[:, None] == labels
    farthest_positive = distances.where(same_class, 0.0).amax(1)
    nearest_negative = distances.where(~same_class, torch.inf).amin(1)
    return F.softplus(farthest_positive - nearest_negative + margin).mean()


@dataclass(frozen=True)
class HardestTriplets(Method):
    """Each image is nearer to its farthest positive than to its nearest negative."""

    title: ClassVar[str] = "hardest triplets"

    margin: float = 0.2
    """By how much nearer."""

    def loss(self, batch: Batch) -> Tensor:
        """Return the loss of a batch."""
        return hardest_triplet_loss(batch.embeddings, batch.labels, margin=self.margin)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=100, help="training steps (default: 100)")
    parser.add_argument(
        "--data-dir", type=Path, help="where datasets live (default: ~/.cache/nearshot)"
    )
    parser.add_argument(
        "--output", type=Path, default=Path("runs"), help="where the runs go (default: runs)"
    )
    options = parser.parse_args()

    base = replace(PRESETS["glyphs-nca"], epochs=1, steps_per_epoch=options.steps)
    own = replace(base, method=HardestTriplets(margin=0.5))
    for name, config in {"nca": base, "hardest_triplets": own}.items():
        folder = options.output / name
        train(config, folder=folder, data_dir=options.data_dir, overwrite=True)
        specs = [EvaluationSpec(split="val", n_shot=n_shot) for n_shot in (1, 5)]
        for evaluation in evaluate_run(folder, specs, data_dir=options.data_dir):
            print(f"{name}, {evaluation.spec.n_shot}-shot: {evaluation.accuracy} %")


if __name__ == "__main__":
    main()
