"""Train one small network with four losses on equally many images, and compare them on classes never seen.

The images are scikit-learn's handwritten digits (8×8 pixels, ten classes). Training sees 0 to 5; each of
10,000 test episodes asks to tell 6, 7, 8 and 9 apart from one example of each. Takes 90 seconds on two cores, downloads
nothing.

    python examples/compare_losses.py --help
"""

import argparse
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.table import Table
from sklearn.datasets import load_digits
from torch import Tensor

from nearshot.data import EpisodeBatches, EpisodeShape
from nearshot.evaluation import embed, evaluate_features, pool_seeds
from nearshot.losses import count_pairs, episode_loss
from nearshot.models import Backbone, build_backbone

TRAINING = EpisodeShape(n_way=6, n_shot=5, n_query=11)  # batches of 96
# name: (prototypes, separate), the two choices in which the paper's methods differ
METHODS = {
    "untrained": None,
    "Matching Networks": (False, True),
    "Prototypical Networks": (True, True),
    "NCA, prototypes + queries": (True, False),
    "NCA": (False, False),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__), formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=150, help="training steps for each loss (default: 150)")
    parser.add_argument("--seeds", type=int, default=5, help="how often to train with each loss (default: 5)")
    parser.add_argument("--output", type=Path, help="also write the table to this file")
    options = parser.parse_args()

    images, labels = digits()
    seen = labels < 6
    table = Table(title=f"One-shot accuracy on unseen digits after {options.steps} steps; {options.seeds} seeds")
    for heading in ("loss", "pairs a batch", "accuracy %", "between seeds", "s a run"):
        table.add_column(heading, justify="left" if heading == "loss" else "right")
    for name, choice in METHODS.items():
        start = time.perf_counter()
        accuracies = []
        for seed in range(options.seeds):
            torch.manual_seed(seed)
            backbone = build_backbone("conv4-32", input_size=28)
            if choice is not None:
                train(backbone, images[seen], labels[seen], *choice, n_steps=options.steps, seed=seed)
            features = embed(backbone.eval(), images[~seen])
            accuracies.append(evaluate_features(features, labels[~seen], n_way=4, n_shot=1))
        seconds = (time.perf_counter() - start) / options.seeds
        pairs = f"{count_pairs(TRAINING, prototypes=choice[0], separate=choice[1]).total:,}" if choice else "–"
        pooled = pool_seeds(accuracies)
        between = f"± {pooled.between_seeds95:.1f}"
        table.add_row(name, pairs, f"{pooled.mean:.2f} ± {pooled.interval95:.2f}", between, f"{seconds:.1f}")
    console = Console(width=90, record=True)
    console.print(table)
    if options.output:
        lines = console.export_text().splitlines()
        options.output.write_text("\n".join(line.rstrip() for line in lines) + "\n")


def digits() -> tuple[Tensor, Tensor]:
    """Return scikit-learn's digits as colour images, (image, 3, 28, 28), and their labels."""
    data = load_digits()
    images = torch.tensor(data.images, dtype=torch.float32)[:, None] / 8 - 1
    return F.interpolate(images, size=28, mode="bilinear").expand(-1, 3, -1, -1), torch.tensor(data.target)


def train(
    backbone: Backbone, images: Tensor, labels: Tensor, prototypes: bool, separate: bool, *, n_steps: int, seed: int
) -> None:
    """Train on episodes of all training classes; the losses see the very same batches."""
    optimiser = torch.optim.Adam(backbone.parameters(), lr=1e-3)
    for batch in EpisodeBatches(labels, TRAINING, n_batches=n_steps, seed=seed):
        optimiser.zero_grad()
        embeddings = backbone(images[batch])
        loss = episode_loss(embeddings, labels[batch], TRAINING, prototypes=prototypes, separate=separate)
        loss.backward()
        optimiser.step()


if __name__ == "__main__":
    main()
