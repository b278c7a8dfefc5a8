"""Validation while training: measure on episodes of the validation split, and keep the best epoch for each number."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from nearshot.data import Store
from nearshot.data.loader import ImageFeed
from nearshot.episode_shape import ImagesByClass
from nearshot.errors import InputError
from nearshot.evaluation import Accuracy, FeatureSet, evaluate_many, select_best
from nearshot.evaluation.classifiers import ClassifierName
from nearshot.models import Backbone, save_backbone
from nearshot.training.classes import TrainedOn
from nearshot.training.config import TrainConfig
from nearshot.training.embedding import embed_images
from nearshot.training.run_folder import RunFolder
from nearshot.training.state import Progress

if TYPE_CHECKING:
    from lightning_fabric import Fabric

__all__ = ["Validator", "validation_queries"]

CLASSIFIERS: tuple[ClassifierName, ...] = ("centroid", "soft")  # the best epoch is kept for each


class Validator:
    """Measures a backbone, and writes its weights if they are the best for anything.

    Args:
        fabric: for the device and the precision.
        config: shots, ways and episodes.
        stores: the training split, whose mean feature centres all others, and the validation split, if there is one.
        feed: the training images.
        run: where weights go.
        network: what embeds in the backbone's place, such as the backbone compiled.
    """

    def __init__(
        self,
        fabric: Fabric,
        config: TrainConfig,
        stores: dict[str, Store],
        feed: ImageFeed,
        run: RunFolder,
        network: Callable[[torch.Tensor], torch.Tensor] | None = None,
    ) -> None:
        self.device, self.config, self.stores, self.feed, self.run = fabric.device, config, stores, feed, run
        self.network = network
        self.trained_on = TrainedOn(stores["train"].dataset, stores["train"].class_names)
        self.bfloat16 = "bf16" in str(fabric.strategy.precision.precision)
        self.n_query = validation_queries(config, stores)

    def __call__(self, backbone: Backbone, progress: Progress) -> dict[str, float]:
        """Return the mean accuracies; the best so far are noted in the progress."""
        centre = self._embed(backbone, self.feed).mean(0)
        means = {}
        for name, accuracy in self._measure(backbone, centre).items():
            means[name] = accuracy.mean
            before = progress.best.get(name)
            candidates = {"before": Accuracy.from_dict(before)} if before else {}
            if select_best(candidates | {"now": accuracy}) == "now":
                progress.best[name] = {"epoch": progress.epoch} | accuracy.as_dict()
        is_best = any(best["epoch"] == progress.epoch for best in progress.best.values())
        if is_best or progress.epoch == self.config.epochs:
            notes = {"run": self.run.path.name, "epoch": str(progress.epoch), "dataset": self.config.dataset}
            notes |= self.trained_on.as_note()
            save_backbone(backbone, self.run.weights_of(progress.epoch), training_mean=centre, notes=notes)
        return means

    def warm_up(self, backbone: Backbone) -> None:
        """Embed a few images, so that a network that compiles on first use does so before the first epoch."""
        if self.network is not None:
            few = ImageFeed(self.stores["train"].images[:1], self.device)
            self._embed(backbone, few)

    def _measure(self, backbone: Backbone, centre: torch.Tensor) -> dict[str, Accuracy]:
        if "val" not in self.stores:
            return {}
        store = self.stores["val"]
        features = self._embed(backbone, ImageFeed(store.images, self.device))
        results = evaluate_many(
            FeatureSet(features, store.labels, centre, store.class_names, split="val", fingerprint=store.fingerprint),
            n_way=self.config.validation_way,
            n_shots=self.config.validation_shots,
            n_query=self.n_query,
            n_episodes=self.config.validation_episodes,
            classifiers=CLASSIFIERS,
            training_classes=self.trained_on.class_names,
            small_classes="leave out",
            progress=False,
        )
        return {f"{measured.n_shot}-shot {measured.classifier}": accuracy for measured, accuracy in results.items()}

    def _embed(self, backbone: Backbone, feed: ImageFeed) -> torch.Tensor:
        return embed_images(backbone, feed, device=self.device, network=self.network, bfloat16=self.bfloat16)


def validation_queries(config: TrainConfig, stores: dict[str, Store]) -> int:
    """Return how many queries of a class validation episodes have: what is asked for, or what the classes have.

    What validation would refuse after some epochs of training is refused here, before them.
    """
    if "val" not in stores:
        return config.validation_queries
    n_way, n_shot = config.validation_way, max(config.validation_shots)
    sizes = ImagesByClass(stores["val"].labels).sizes.sort(descending=True).values
    if len(sizes) < n_way:
        raise InputError(
            f"The validation split has {len(sizes)} classes, and an episode {n_way}: lower validation_way, or give "
            "the validation split more classes."
        )
    n_left = int(sizes[n_way - 1]) - n_shot  # in the smallest of the classes that it takes
    if n_left < 1:
        raise InputError(
            f"Only {int((sizes > n_shot).sum())} classes of the validation split have images left for queries after "
            f"{n_shot} shots, and an episode has {n_way}: lower validation_shots or validation_way."
        )
    return min(config.validation_queries, n_left)
