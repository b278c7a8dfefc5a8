"""Train one small network with four losses on the very same batches, and compare them on scripts never seen.

The images are nearshot's own glyphs: letters of many scripts, made here in half a minute and downloaded from nowhere.
Training sees Latin, Greek, Cyrillic, Georgian and others; each of 10,000 test episodes asks to tell five letters of
Armenian, Hebrew, Tifinagh and Lao apart from one example of each. Takes three minutes on two cores.

    python examples/compare_losses.py --help
"""

import argparse
import time
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from nearshot.data import EpisodeBatches, EpisodeShape, Store, prepare
from nearshot.evaluation import Accuracy, compare, embed, evaluate_features, pool_seeds
from nearshot.losses import count_pairs, episode_loss
from nearshot.models import Backbone, build_backbone

SHAPE = EpisodeShape.from_batch(256, n_shot=5, images_per_class=8)  # 32 classes, 5 support and 3 query images of each
# name: (prototypes, separate), the two choices in which the paper's methods differ
METHODS = {
    "untrained": None,
    "Matching Networks": (False, True),
    "Prototypical Networks": (True, True),
    "NCA with prototypes": (True, False),
    "NCA": (False, False),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__), formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=100, help="training steps for each loss (default: 100)")
    parser.add_argument("--seeds", type=int, default=3, help="how often to train with each loss (default: 3)")
    parser.add_argument(
        "--data-dir", type=Path, help="where datasets live (default: $NEARSHOT_DATA or ~/.cache/nearshot)"
    )
    parser.add_argument("--output", type=Path, help="also write the table to this file")
    options = parser.parse_args()

    stores = prepare("glyphs", data_dir=options.data_dir)
    train_images, test_images = pixels(stores["train"]), pixels(stores["test"])
    results: dict[str, list[Accuracy]] = {}
    seconds = {}
    for name, choice in METHODS.items():
        start = time.perf_counter()
        results[name] = []
        for seed in range(options.seeds):
            torch.manual_seed(seed)
            backbone = build_backbone("conv4-32", input_size=28)
            train(backbone, train_images, stores["train"].labels, choice, options.steps if choice else 1, seed)
            features = embed(backbone.eval(), scaled(test_images))
            results[name].append(evaluate_features(features, stores["test"].labels, n_shot=1, split="test"))
        seconds[name] = (time.perf_counter() - start) / options.seeds

    table = Table(title=f"One-shot accuracy on unseen scripts after {options.steps} steps; {options.seeds} seeds")
    for heading in ("loss", "pairs a batch", "accuracy %", "between seeds", "NCA minus it", "s a run"):
        table.add_column(heading, justify="left" if heading == "loss" else "right")
    for name, choice in METHODS.items():
        pairs = f"{count_pairs(SHAPE, prototypes=choice[0], separate=choice[1]).total:,}" if choice else "–"
        pooled = pool_seeds(results[name])
        gaps = [compare(nca, it).difference for nca, it in zip(results["NCA"], results[name], strict=True)]
        table.add_row(
            name,
            pairs,
            f"{pooled.mean:.2f} ± {pooled.interval95:.2f}",
            f"± {pooled.between_seeds95:.1f}",
            "" if name == "NCA" else " ".join(f"{gap:+.1f}" for gap in gaps),
            f"{seconds[name]:.0f}",
        )
    console = Console(width=110, record=True)
    console.print(table)
    if options.output:
        lines = console.export_text().splitlines()
        options.output.write_text("\n".join(line.rstrip() for line in lines) + "\n")


def pixels(store: Store) -> Tensor:
    """Return a store's images, (image, 28, 28, 3) uint8."""
    return torch.from_numpy(store.images.copy())


def scaled(images: Tensor) -> Tensor:
    """Return images as the network takes them, (image, 3, 28, 28) around zero."""
    return images.permute(0, 3, 1, 2).float() / 127.5 - 1


def train(
    backbone: Backbone, images: Tensor, labels: Tensor, choice: tuple[bool, bool] | None, n_steps: int, seed: int
) -> None:
    """Train on episodes; all losses see the very same batches. Without a choice, only let batch norm see a batch."""
    optimiser = torch.optim.Adam(backbone.parameters(), lr=1e-3)
    for batch in EpisodeBatches(labels, SHAPE, n_batches=n_steps, seed=seed):
        embeddings = backbone(scaled(images[batch]))
        if choice is None:
            continue
        prototypes, separate = choice
        loss = episode_loss(
            embeddings, labels[batch], SHAPE, prototypes=prototypes, separate=separate, background=1e-10
        )
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()


if __name__ == "__main__":
    main()
