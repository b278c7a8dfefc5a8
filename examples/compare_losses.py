"""Train one small network with four losses on equally many images, and compare them on classes never seen.

The images are scikit-learn's handwritten digits (8×8 pixels, ten classes). Training sees 0 to 5; each of 2,000 test
episodes asks to tell 6, 7, 8 and 9 apart from one example of each. Takes a minute on two cores, downloads nothing.

    python examples/compare_losses.py --help
"""

import argparse
import time

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.table import Table
from sklearn.datasets import load_digits
from torch import Tensor

from nearshot.data import EpisodeBatches, EpisodeShape
from nearshot.losses import count_pairs, episode_loss
from nearshot.models import Backbone, build_backbone

TRAINING = EpisodeShape(n_way=6, n_shot=5, n_query=11)  # batches of 96
TEST = EpisodeShape(n_way=4, n_shot=1, n_query=15)
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
    parser.add_argument("--seeds", type=int, default=3, help="how often to train with each loss (default: 3)")
    options = parser.parse_args()

    images, labels = digits()
    seen = labels < 6
    table = Table(title=f"One-shot accuracy on unseen digits after {options.steps} steps; {options.seeds} seeds")
    for heading in ("loss", "pairs a batch", "accuracy %", "lowest … highest", "s a run"):
        table.add_column(heading, justify="left" if heading == "loss" else "right")
    for name, choice in METHODS.items():
        start = time.perf_counter()
        accuracies = []
        for seed in range(options.seeds):
            torch.manual_seed(seed)
            backbone = build_backbone("conv4-32", input_size=28)
            if choice is not None:
                train(backbone, images[seen], labels[seen], *choice, n_steps=options.steps, seed=seed)
            accuracies.append(100 * one_shot_accuracy(backbone, images[~seen], labels[~seen]))
        seconds = (time.perf_counter() - start) / options.seeds
        pairs = f"{count_pairs(TRAINING, prototypes=choice[0], separate=choice[1]).total:,}" if choice else "–"
        mean = sum(accuracies) / len(accuracies)
        table.add_row(name, pairs, f"{mean:.1f}", f"{min(accuracies):.1f} … {max(accuracies):.1f}", f"{seconds:.1f}")
    Console(width=90).print(table)


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


@torch.no_grad()
def one_shot_accuracy(backbone: Backbone, images: Tensor, labels: Tensor) -> float:
    """Return the share of queries whose nearest support image is of their class, over 2,000 episodes."""
    embeddings = F.normalize(backbone.eval()(images))
    episodes = torch.stack(list(EpisodeBatches(labels, TEST, n_batches=2000, seed=0)))
    support, query = embeddings[episodes[:, : TEST.n_support]], embeddings[episodes[:, TEST.n_support :]]
    nearest = torch.cdist(query, support).argmin(2)  # (episode, query)
    truth = torch.arange(TEST.n_way).repeat_interleave(TEST.n_query)
    return (nearest == truth).double().mean().item()


if __name__ == "__main__":
    main()
