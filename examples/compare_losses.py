"""Train a small network with NCA, Prototypical and Matching Networks, and compare them.

The images are nearshot's own glyphs: letters of many scripts, drawn in half a minute without a
download. Training uses Latin, Greek, Cyrillic, Georgian and others. Each of 10,000 test episodes
has five letters of Armenian, Hebrew, Tifinagh and Lao, with one labelled example of each. Every
method sees equally many images.

    python examples/compare_losses.py --help
"""

import argparse
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path

import matplotlib
import torch
from rich.console import Console
from rich.table import Table

from nearshot.data import Store, prepare
from nearshot.data.augment import Augmentation, centre_crop, normalise_images
from nearshot.evaluation import (
    Accuracy,
    EvaluationSpec,
    compare,
    embed,
    evaluate_features,
    pool_seeds,
)
from nearshot.models import build_backbone
from nearshot.runs import evaluate_run
from nearshot.training import PRESETS, TrainConfig, train
from nearshot.training.methods import MatchingNetworks, PrototypicalNetworks, change_method

matplotlib.use("Agg")
import matplotlib.pyplot as plt

BASE = replace(PRESETS["glyphs-nca"], epochs=1, augmentation=Augmentation(crop="centre", flip=0.0))
METHODS = {
    "Matching Networks": replace(BASE, method=change_method(BASE.method, MatchingNetworks)),
    "Prototypical Networks": replace(BASE, method=change_method(BASE.method, PrototypicalNetworks)),
    "NCA, shuffled batches": replace(BASE, batches="shuffled"),
    "NCA": BASE,
}


@dataclass(frozen=True, eq=False)
class Row:
    """A row of the table: an accuracy for each seed, and how many pairs a batch has."""

    accuracies: list[Accuracy]
    pairs: float = 0.0
    without_positive: float = 0.0


def main() -> None:
    parser = argparse.ArgumentParser(
        description=str(__doc__), formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--steps", type=int, default=100, help="training steps for each run (default: 100)"
    )
    parser.add_argument(
        "--seeds", type=int, default=3, help="how often to train with each loss (default: 3)"
    )
    parser.add_argument(
        "--data-dir", type=Path, help="where datasets live (default: ~/.cache/nearshot)"
    )
    parser.add_argument(
        "--output", type=Path, default=Path(), help="where the table and the figure go (default: .)"
    )
    options = parser.parse_args()

    started = time.perf_counter()
    stores = prepare("glyphs", data_dir=options.data_dir)
    rows = {
        "raw pixels": Row([of_pixels(stores)]),
        "untrained network": Row([of_untrained(stores)]),
    }
    for name, config in METHODS.items():
        rows[name] = trained(
            replace(config, steps_per_epoch=options.steps), options.seeds, options.data_dir
        )
    console = Console(width=100, record=True)
    console.print(summary(rows, options.seeds), highlight=False)
    console.print(table_of(rows, options.steps, options.seeds))
    options.output.mkdir(parents=True, exist_ok=True)
    figure = options.output / "compare_losses.png"
    draw(rows, figure)
    lines = [line.rstrip() for line in console.export_text().splitlines()]
    (options.output / "compare_losses.txt").write_text("\n".join(lines) + "\n")
    print(
        f"Accuracy against pairs is plotted in {figure}. This took "
        f"{time.perf_counter() - started:.0f} s."
    )


def trained(config: TrainConfig, n_seeds: int, data_dir: Path | None) -> Row:
    """Train with some seeds, and measure each on the test split."""
    accuracies = []
    record = {}
    for seed in range(n_seeds):
        seeded = replace(config, seed=seed)
        with tempfile.TemporaryDirectory() as folder:
            result = train(seeded, folder=folder, data_dir=data_dir, progress=False)
            (evaluation,) = evaluate_run(folder, EvaluationSpec(n_shot=1), data_dir=data_dir)
        record = result.history[-1]
        accuracies.append(evaluation.accuracy)
    return Row(
        accuracies,
        pairs=record["positive_pairs"] + record["negative_pairs"],
        without_positive=record["anchors_without_positive"],
    )


def of_pixels(stores: dict[str, Store]) -> Accuracy:
    """Measure the images themselves, centred and normalised as features are."""
    train_pixels, pixels = (
        torch.from_numpy(stores[split].images.copy()).flatten(1).float()
        for split in ("train", "test")
    )
    return measured(pixels, stores["test"], train_pixels.mean(0))


def of_untrained(stores: dict[str, Store]) -> Accuracy:
    """Measure an untrained network, with batch-norm statistics of the training images."""
    torch.manual_seed(0)
    backbone = build_backbone(BASE.backbone, input_size=28)
    train_images, images = (
        normalise_images(
            centre_crop(torch.from_numpy(stores[split].images.copy()), 28),
            *backbone.spec.normalisation,
        )
        for split in ("train", "test")
    )
    with torch.no_grad():
        for batch in train_images[torch.randperm(len(train_images))].split(256)[:100]:
            backbone(batch)
    backbone.eval()
    return measured(embed(backbone, images), stores["test"], embed(backbone, train_images).mean(0))


def measured(features: torch.Tensor, store: Store, centre: torch.Tensor) -> Accuracy:
    return evaluate_features(
        features, store.labels, n_shot=1, centre=centre, split="test", fingerprint=store.fingerprint
    )


def summary(rows: dict[str, Row], n_seeds: int) -> str:
    """Return the result in a few sentences."""
    means = {name: pool_seeds(row.accuracies).mean for name, row in rows.items()}
    nca = rows["NCA"]
    prototypical = rows["Prototypical Networks"]
    shuffled = rows["NCA, shuffled batches"]
    n_wins = 0
    for accuracy, other in zip(nca.accuracies, prototypical.accuracies, strict=True):
        n_wins += accuracy.mean > other.mean
    is_below = means["NCA, shuffled batches"] < means["Prototypical Networks"]
    against = "below" if is_below else "above"
    return (
        f"Given one example each of five unseen letters, NCA recognises {means['NCA']:.1f} % of "
        f"new ones, Prototypical Networks {means['Prototypical Networks']:.1f} % and Matching "
        f"Networks {means['Matching Networks']:.1f} %. All trained on the same number of images, "
        f"but NCA learns from {nca.pairs:,.0f} pairs of each batch and the other two from "
        f"{prototypical.pairs:,.0f}. NCA is ahead of Prototypical Networks with {n_wins} of "
        f"{n_seeds} seeds. It trains on the same class-balanced batches as the others here; on the "
        f"paper's shuffled batches it reaches {means['NCA, shuffled batches']:.1f} %, {against} "
        "Prototypical Networks: with so many classes, "
        f"{shuffled.without_positive:.0f} of 256 images are alone in their class.\n"
    )


def table_of(rows: dict[str, Row], n_steps: int, n_seeds: int) -> Table:
    """Return the accuracies, and how far NCA is ahead."""
    shuffled = rows["NCA, shuffled batches"].without_positive
    table = Table(
        title=f"5-way 1-shot accuracy on unseen scripts, {n_steps} steps of 256 images, "
        f"{n_seeds} seeds",
        caption="±: 95 % over 10,000 episodes. Difference: mean and range over seeds. Batches have "
        f"32 letters × 8 images; in shuffled ones, {shuffled:.0f} of 256 images have no other "
        "image of their class.",
    )
    for heading in ("", "pairs per batch", "accuracy %", "between seeds", "NCA's lead"):
        table.add_column(heading, justify="right" if heading else "left", no_wrap=True)
    for name, row in rows.items():
        pooled = pool_seeds(row.accuracies)
        # What is not trained has one accuracy for all seeds.
        accuracies = row.accuracies * (n_seeds // len(row.accuracies))
        leads = [
            compare(nca, accuracy).difference
            for nca, accuracy in zip(rows["NCA"].accuracies, accuracies, strict=True)
        ]
        lead = f"{sum(leads) / len(leads):+.1f} ({min(leads):+.1f} to {max(leads):+.1f})"
        table.add_row(
            name,
            f"{row.pairs:,.0f}" if row.pairs else "",
            f"{pooled.mean:.2f} ± {pooled.interval95:.2f}",
            f"± {pooled.between_seeds95:.1f}" if len(row.accuracies) > 1 else "",
            "" if name == "NCA" else lead,
        )
    return table


def draw(rows: dict[str, Row], file: Path) -> None:
    """Draw accuracy against the pairs that a batch gives a loss."""
    figure, axes = plt.subplots(figsize=(6, 4), layout="constrained")
    for (name, row), marker in zip(rows.items(), "__osD^", strict=True):
        means = [accuracy.mean for accuracy in row.accuracies]
        if row.pairs:
            axes.plot([row.pairs] * len(means), means, marker, label=name)
        else:
            axes.axhline(
                means[0], linestyle=":" if "pixels" in name else "--", color="grey", label=name
            )
    axes.set(
        xscale="log",
        xlabel="pairs in a batch of 256 images",
        ylabel="5-way 1-shot accuracy on unseen scripts, %",
    )
    axes.legend()
    figure.savefig(file, dpi=150, metadata={"Software": None})
    plt.close(figure)


if __name__ == "__main__":
    main()
