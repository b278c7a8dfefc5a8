"""What it gives to see all queries of an episode, and to know that they are balanced.

    nearshot data prepare cifar-fs
    python benchmarks/transductive.py

Embeds the first images of each class with the shipped network, and answers the same episodes with
each classifier: once with 15 queries of each of 5 classes, and once with 75 queries whose classes
have shares drawn from Dirichlet(2), as of Veilleux et al. (2021). The defaults of the classifiers
were chosen on the validation split. Writes results/transductive.json and .md.
"""

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nearshot.data import Store
from nearshot.data.augment import centre_crop, normalise_images
from nearshot.evaluation import (
    CLASSIFIERS,
    TRANSDUCTIVE,
    FeatureSet,
    embed,
    load_features,
    prepare_features,
    sample_episodes,
    save_features,
)
from nearshot.evaluation.statistics import interval, with_interval
from nearshot.models import load_backbone

NETWORK = "resnet12-nca-cifar-fs"
N_WAY = 5
N_QUERIES = 75  # of an episode
AT_ONCE = 50  # episodes
SHOTS = (1, 5)
TITLES = {
    "centroid": "nearest centroid",
    "ridge": "ridge",
    "laplacian-shot": "LaplacianShot",
    "bd-cspn": "BD-CSPN",
    "optimal-transport": "optimal transport (PT-MAP)",
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    results = Path(__file__).parent / "results"
    parser.add_argument("--features", type=Path, help="a folder with {val,test}.safetensors")
    parser.add_argument("--n-images", type=int, default=200, help="of each class (default: 200)")
    parser.add_argument("--n-episodes", type=int, default=2000, help="(default: 2000)")
    parser.add_argument("--data-dir", type=Path, help="where datasets live")
    parser.add_argument("--output", type=Path, default=results)
    options = parser.parse_args()
    folder = options.features or options.output
    report: dict[str, Any] = {
        "network": NETWORK,
        "n_images": options.n_images,
        "n_episodes": options.n_episodes,
        "accuracies": {},
    }
    for split in ("val", "test"):
        file = folder / f"{split}.safetensors"
        if not file.is_file():
            save_features(embedded(split, options.n_images, options.data_dir), file)
        features = first_of_class(load_features(file), options.n_images)
        report["accuracies"][split] = measure(features, options.n_episodes)
    (options.output / "transductive.json").write_text(json.dumps(report, indent=1) + "\n")
    table = markdown(report)
    (options.output / "transductive.md").write_text(table)
    print(table)


def embedded(split: str, n_images: int, data_dir: Path | None) -> FeatureSet:
    """Return the features of the first images of each class of CIFAR-FS."""
    store = Store.open("cifar-fs", split, data_dir)
    backbone = load_backbone(NETWORK)
    spec = backbone.spec
    labels = store.labels
    rows = torch.cat([(labels == label).nonzero()[:n_images, 0] for label in labels.unique()])

    def batches() -> Any:
        for part in rows.split(16):
            images = torch.from_numpy(store.images[part.numpy()].copy())
            yield normalise_images(centre_crop(images, spec.input_size), *spec.normalisation)

    features = embed(backbone, batches())
    return FeatureSet(features, labels[rows], spec.training_mean, store.class_names, split)


def first_of_class(data: FeatureSet, n_images: int) -> FeatureSet:
    """Return the first images of each class."""
    rows = torch.cat(
        [(data.labels == label).nonzero()[:n_images, 0] for label in data.labels.unique()]
    )
    return FeatureSet(data.features[rows], data.labels[rows], data.centre, split=data.split)


def measure(data: FeatureSet, n_episodes: int) -> dict[str, Any]:
    """Return the mean and interval by classifier, shots, and whether queries are balanced."""
    features = prepare_features(data.features, centre=data.centre)
    classifiers: dict[str, Callable[[Tensor, Tensor], Tensor]] = {}
    for name in TITLES:
        classifiers[name] = TRANSDUCTIVE[name] if name in TRANSDUCTIVE else CLASSIFIERS[name]
    accuracies: dict[str, Any] = {name: {} for name in classifiers}
    for n_shot in SHOTS:
        episodes = sample_episodes(
            data.labels, n_way=N_WAY, n_shot=n_shot, n_query=N_QUERIES, n_episodes=n_episodes
        )
        for kind in ("balanced", "unbalanced"):
            sizes = sizes_of_classes(n_episodes, balanced=kind == "balanced")
            truth = torch.from_numpy(
                np.stack([np.arange(N_WAY).repeat(of_episode) for of_episode in sizes])
            )
            rows = torch.stack(
                [
                    torch.cat([way[:size] for way, size in zip(query, of_episode, strict=True)])
                    for query, of_episode in zip(episodes.query, sizes.tolist(), strict=True)
                ]
            )  # (episode, query)
            for name, classify in classifiers.items():
                is_right = []
                for start in range(0, n_episodes, AT_ONCE):
                    part = slice(start, start + AT_ONCE)
                    scores = classify(features[episodes.support[part]], features[rows[part]])
                    is_right.append(scores.argmax(2) == truth[part])
                percent = 100 * torch.cat(is_right).double().mean(1)
                accuracies[name][f"{n_shot}-shot {kind}"] = {
                    "mean": float(percent.mean()),
                    "interval95": interval(percent),
                }
    return accuracies


def sizes_of_classes(n_episodes: int, *, balanced: bool) -> Any:
    """Return how many queries each class has, (episode, way)."""
    if balanced:
        return np.full((n_episodes, N_WAY), N_QUERIES // N_WAY)
    rng = np.random.default_rng(0)
    shares = rng.dirichlet(np.full(N_WAY, 2.0), size=n_episodes)
    return np.stack([rng.multinomial(N_QUERIES, of_episode) for of_episode in shares])


def markdown(report: dict[str, Any]) -> str:
    """Return the table."""
    columns = [f"{n_shot}-shot {kind}" for n_shot in SHOTS for kind in ("balanced", "unbalanced")]
    header = ["classifier", "sees", *(column.replace(" ", ", ") for column in columns)]
    lines = [
        f"CIFAR-FS, test split, `{report['network']}`: 5-way accuracy in per cent over "
        f"{report['n_episodes']:,} episodes of {N_QUERIES} queries, from {report['n_images']} "
        "images of each class. Settings chosen on the validation split.",
        "",
        f"| {' | '.join(header)} |",
        f"| --- | --- |{' ---: |' * len(columns)}",
    ]
    for name, title in TITLES.items():
        seen = "all queries" if name in TRANSDUCTIVE else "one query"
        if name == "optimal-transport":
            seen = "all queries, and assumes balance"
        cells = []
        for column in columns:
            accuracy = report["accuracies"]["test"][name][column]
            cells.append(with_interval(accuracy["mean"], accuracy["interval95"]))
        lines.append(f"| {title} | {seen} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
