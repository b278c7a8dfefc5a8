"""Losses of your own, trained and measured like the built-in ones: two of them have parameters.

    python examples/own_loss.py

On the command line, in this folder, their settings are options:

    nearshot train --method own_loss:HardestTriplets --help
    nearshot train --preset glyphs-nca --method own_loss:Proxies --start-scale 20 --epochs 1
    nearshot train --preset glyphs-prototypical --method own_loss:RelationNetwork --epochs 1
"""

import argparse
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

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


class ScaledProxies(nn.Module):
    """A vector for each training class, and a scale that is learnt."""

    def __init__(self, dim: int, n_classes: int, start_scale: float) -> None:
        super().__init__()
        self.proxies = nn.Parameter(torch.randn(n_classes, dim, dtype=torch.float32))
        self.log_scale = nn.Parameter(torch.tensor(math.log(start_scale), dtype=torch.float32))

    def forward(self, embeddings: Tensor) -> Tensor:
        """Return scaled cosines, (image, class)."""
        cosines = F.normalize(embeddings) @ F.normalize(self.proxies).mT
        return self.log_scale.exp() * cosines


@dataclass(frozen=True)
class Proxies(Method):
    """Each image picks the proxy of its class by cosine (Movshovitz-Attias et al., 2017)."""

    title: ClassVar[str] = "proxies"

    start_scale: float = 10.0
    """The scale of the cosines at the start."""

    def modules(self, embedding_dim: int, n_classes: int) -> Mapping[str, nn.Module]:
        """Return what is trained beside the network."""
        return {"proxies": ScaledProxies(embedding_dim, n_classes, self.start_scale)}

    def loss(self, batch: Batch) -> Tensor:
        """Return the cross-entropy of the scaled cosines."""
        return F.cross_entropy(batch.modules["proxies"](batch.embeddings), batch.labels)


class RelationModule(nn.Module):
    """How well two embeddings go together, from 0 to 1."""

    def __init__(self, dim: int, hidden: int) -> None:
        super().__init__()
        layers = (nn.Linear(2 * dim, hidden), nn.ReLU(), nn.Linear(hidden, 1), nn.Sigmoid())
        self.layers = nn.Sequential(*layers).float()

    def forward(self, queries: Tensor, classes: Tensor) -> Tensor:
        """Return the relation of each query to each class, (query, class)."""
        shape = (len(queries), len(classes), -1)
        pairs = torch.cat([queries[:, None].expand(shape), classes.expand(shape)], 2)
        relations: Tensor = self.layers(pairs)[:, :, 0]
        return relations


@dataclass(frozen=True)
class RelationNetwork(Method):
    """A module learns how queries relate to the sums of support images (Sung et al., 2018).

    Theirs compares feature maps; this one compares embeddings. Evaluation uses the embeddings
    alone, with the classifier that you choose.
    """

    title: ClassVar[str] = "relation network"
    needs_episodes: ClassVar[bool] = True

    n_shot: int = 5
    """Support images of each class in a training episode."""
    hidden: int = 64
    """The width of the module."""

    def modules(self, embedding_dim: int, n_classes: int) -> Mapping[str, nn.Module]:
        """Return what is trained beside the network."""
        del n_classes
        return {"relation": RelationModule(embedding_dim, self.hidden)}

    def loss(self, batch: Batch) -> Tensor:
        """Return the mean squared error of the relations: 1 for the query's class, else 0."""
        sums = batch.support.unflatten(0, (batch.episode.n_way, self.n_shot)).sum(1)
        relations = batch.modules["relation"](batch.query, sums)  # (query, way)
        class_of_way = batch.support_labels[:: self.n_shot]
        is_class = batch.query_labels[:, None] == class_of_way
        return F.mse_loss(relations, is_class.to(relations))


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

    nca = replace(PRESETS["glyphs-nca"], epochs=1, steps_per_epoch=options.steps)
    configs = {
        "nca": nca,
        "hardest_triplets": replace(nca, method=HardestTriplets(margin=0.5)),
        "proxies": replace(nca, method=Proxies()),
        "relation_network": replace(nca, method=RelationNetwork()),
    }
    for name, config in configs.items():
        folder = options.output / name
        train(config, folder=folder, data_dir=options.data_dir, overwrite=True)
        specs = [EvaluationSpec(split="val", n_shot=n_shot) for n_shot in (1, 5)]
        for evaluation in evaluate_run(folder, specs, data_dir=options.data_dir):
            print(f"{name}, {evaluation.spec.n_shot}-shot: {evaluation.accuracy} %")


if __name__ == "__main__":
    main()
