"""Ways to adapt to the support set (Appendix G): the trained NCA network on CIFAR-FS, 5-way 5-shot.

Batch norm frozen, or in training mode on the support set alone; one, two or five steps; the exact
loss, or the published arithmetic; and a Mahalanobis matrix with several settings of its optimiser.
All of them, and no adaptation, are measured on the same episodes, so that differences are paired.
(There is no 1-shot row: one image a class has no positive pair.)

    python benchmarks/fine_tuning_variants.py     # minutes on a GPU
    python benchmarks/fine_tuning_variants.py --only "frozen, 2 steps" "support, 2 steps"
    python benchmarks/fine_tuning_variants.py --split test --only "support, 2 steps"    # CPU: hours

Prints a table and writes benchmarks/results/fine-tuning-variants.json and .md (with "-test" in the
name for the test split); rows that the file has are kept.
"""

import argparse
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from nearshot.data import Store, open_or_prepare
from nearshot.devices import chosen_device
from nearshot.evaluation import (
    Accuracy,
    Adam,
    compare,
    evaluate_features,
    evaluate_fine_tuned,
    evaluate_mahalanobis,
)
from nearshot.losses import nca_loss
from nearshot.models import load_backbone
from nearshot.runs.network import TrainedNetwork

RESULTS = Path(__file__).parent / "results"
# The result's files, by split.
NAMES = {"val": "fine-tuning-variants", "test": "fine-tuning-variants-test"}
SPLITS = {"val": "validation", "test": "test"}
BACKBONE = "resnet12-nca-cifar-fs"
PLAIN = "no adaptation"
N_SHOT = 5
PUBLISHED = ", background 1e-10"
LOSSES: dict[str, Callable[..., Tensor]] = {
    "": nca_loss,
    PUBLISHED: partial(nca_loss, background=1e-10),
}


@dataclass(frozen=True)
class FineTuning:
    """How a network is fine-tuned on a support set."""

    batch_norm: Literal["frozen", "support"]
    n_steps: int
    loss: Callable[..., Tensor]


def fine_tunings() -> dict[str, FineTuning]:
    """Return the procedures of fine-tuning, by name."""
    result = {}
    for batch_norm in ("frozen", "support"):
        for suffix, loss in LOSSES.items():
            for n_steps in (1, 2, 5):
                steps = "1 step" if n_steps == 1 else f"{n_steps} steps"
                name = f"{batch_norm}, {steps}{suffix}"
                result[name] = FineTuning(batch_norm, n_steps, loss)
    return result


FINE_TUNED = fine_tunings()
MAHALANOBIS: dict[str, Adam] = {
    f"Mahalanobis, {n_steps} steps at {lr:g}": Adam(n_steps=n_steps, lr=lr, weight_decay=0.0)
    for lr, n_steps in ((1e-3, 20), (1e-4, 20), (1e-4, 5), (1e-4, 10), (3e-4, 5))
}
VARIANTS = (*FINE_TUNED, *MAHALANOBIS)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=str(__doc__), formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--data-dir", type=Path, help="where datasets live (default: ~/.cache/nearshot)"
    )
    parser.add_argument("--output", type=Path, default=RESULTS, help="the folder of the result")
    parser.add_argument(
        "--split", choices=SPLITS, default="val", help="test is for what validation chose"
    )
    parser.add_argument("--episodes", type=int, default=600)
    parser.add_argument("--only", nargs="+", choices=VARIANTS, default=VARIANTS, metavar="VARIANT")
    options = parser.parse_args()
    device = chosen_device(None)
    network = TrainedNetwork(load_backbone(BACKBONE), BACKBONE, device=device, precision="float32")
    store = open_or_prepare("cifar-fs", options.split, options.data_dir)
    plain = evaluate_features(
        network.features(store),
        store.labels,
        n_shot=N_SHOT,
        n_episodes=options.episodes,
        centre=network.centre(),
        split=options.split,
        fingerprint=store.fingerprint,
        progress=False,
    )
    add_row(options, PLAIN, row_of(plain, plain))
    images = None
    if any(name in FINE_TUNED for name in options.only):
        images = network.images(store).to(device)
    for name in options.only:
        accuracy = adapted(name, network, store, images, options.split, options.episodes)
        print(f"{name}: {accuracy}; {compare(accuracy, plain)}", flush=True)
        report = add_row(options, name, row_of(accuracy, plain))
    print(markdown(report))


def adapted(
    name: str,
    network: TrainedNetwork,
    store: Store,
    images: Tensor | None,
    split: str,
    n_episodes: int,
) -> Accuracy:
    """Return the accuracy of a variant."""
    if name in MAHALANOBIS:
        return evaluate_mahalanobis(
            network.features(store),
            store.labels,
            loss=nca_loss,
            optimiser=MAHALANOBIS[name],
            n_shot=N_SHOT,
            n_episodes=n_episodes,
            centre=network.centre(),
            split=split,
            fingerprint=store.fingerprint,
            progress=False,
        )
    if images is None:
        raise ValueError("images are missing, which fine-tuning needs.")
    procedure = FINE_TUNED[name]
    return evaluate_fine_tuned(
        network.network(),
        images,
        store.labels,
        loss=procedure.loss,
        optimiser=Adam(n_steps=procedure.n_steps),
        batch_norm=procedure.batch_norm,
        n_shot=N_SHOT,
        n_episodes=n_episodes,
        centre=network.centre(),
        split=split,
        fingerprint=store.fingerprint,
        progress=False,
    )


def row_of(accuracy: Accuracy, plain: Accuracy) -> dict[str, Any]:
    return {
        "mean": accuracy.mean,
        "interval95": accuracy.interval95,
        "paired": asdict(compare(accuracy, plain)),
        "protocol": str(accuracy.protocol),
        "per_episode": [round(value, 3) for value in accuracy.per_episode.tolist()],
    }


def add_row(options: argparse.Namespace, name: str, row: dict[str, Any]) -> dict[str, Any]:
    """Put a row into the result's files and return the whole."""
    file = options.output / f"{NAMES[options.split]}.json"
    rows = json.loads(file.read_text())["rows"] if file.is_file() else {}
    rows[name] = row
    order = (PLAIN, *VARIANTS)
    report = {
        "backbone": BACKBONE,
        "dataset": "cifar-fs",
        "split": options.split,
        "episodes": options.episodes,
        "torch": torch.__version__,
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
        "precision": "float32; on a GPU convolutions multiply in TF32, PyTorch's default",
        "rows": {name: rows[name] for name in sorted(rows, key=order.index)},
    }
    options.output.mkdir(exist_ok=True, parents=True)
    file.write_text(json.dumps(report) + "\n")
    file.with_suffix(".md").write_text(markdown(report))
    return report


def markdown(report: dict[str, Any]) -> str:
    """Return the table for the documentation."""
    lines = [
        f"Adaptation of `{report['backbone']}` to the support set; CIFAR-FS's "
        f"{SPLITS[report['split']]} split, 5-way "
        f"5-shot, nearest centroid, {report['episodes']} episodes, the same for all rows; "
        f"{report['device']}.",
        "",
        "| adaptation | accuracy | paired difference from none |",
        "|---|---:|---:|",
    ]
    for name, row in report["rows"].items():
        paired = row["paired"]
        difference = (
            "" if name == PLAIN else f"{paired['difference']:+.2f} ± {paired['interval95']:.2f}"
        )
        words = f"fine-tuned, batch norm {name}" if name in FINE_TUNED else name
        lines.append(f"| {words} | {row['mean']:.2f} ± {row['interval95']:.2f} | {difference} |")
    pairs = [(row, report["rows"].get(name + PUBLISHED)) for name, row in report["rows"].items()]
    changed = [
        sum(a != b for a, b in zip(exact["per_episode"], published["per_episode"], strict=True))
        for exact, published in pairs
        if published is not None
    ]
    if changed:
        lines += [
            "",
            f"The published arithmetic changes the accuracy of at most {max(changed)} episodes of "
            "a row.",
        ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
