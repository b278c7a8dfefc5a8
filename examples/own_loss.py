"""A loss of your own, trained and measured like the built-in ones: a triplet loss with the hardest pairs of a batch.

python examples/own_loss.py
"""

import argparse
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from nearshot.evaluation import EvaluationSpec
from nearshot.runs import evaluate_run
from nearshot.training import PRESETS, OwnLoss, train


def hardest_triplets(embeddings: Tensor, labels: Tensor) -> Tensor:
    """Pull each image's farthest positive closer than its nearest negative, by a margin (Hermans et al., 2017).

    Any function of embeddings (image, dim) and labels (image,) that returns a number will do.
    """
    distances = torch.cdist(embeddings, embeddings)
    same_class = labels[:, None] == labels
    farthest_positive = distances.where(same_class, 0.0).amax(1)
    nearest_negative = distances.where(~same_class, torch.inf).amin(1)
    return torch.nn.functional.softplus(farthest_positive - nearest_negative).mean()


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
    # The name identifies the loss in run folders and results, so another version of it needs
    # another name.
    own = replace(base, method=OwnLoss("hardest_triplets", hardest_triplets))
    for name, config in {"nca": base, "hardest_triplets": own}.items():
        folder = options.output / name
        train(config, folder=folder, data_dir=options.data_dir, overwrite=True)
        specs = [EvaluationSpec(split="val", n_shot=n_shot) for n_shot in (1, 5)]
        for evaluation in evaluate_run(folder, specs, data_dir=options.data_dir):
            print(f"{name}, {evaluation.spec.n_shot}-shot: {evaluation.accuracy} %")


if __name__ == "__main__":
    main()
