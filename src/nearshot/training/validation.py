"""Validation during training: measure on episodes of the validation split, and keep the best epoch for each measure."""

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
from nearshot.training.checkpoint import Progress
from nearshot.training.classes import TrainingClasses
from nearshot.training.config import TrainConfig
from nearshot.training.embedding import embed_images
from nearshot.training.run_folder import RunFolder

if TYPE_CHECKING:
    from lightning_fabric import Fabric

__all__ = ["Validator", "validation_queries"]

CLASSIFIERS: tuple[ClassifierName, ...] = ("centroid", "soft")  # the best epoch is kept for each


class Validator:
    """Measures a backbone, and writes its weights if they are the best by any measure.

    Args:
        fabric: for the device and the precision.
        config: shots, ways and episodes.
        stores: the training split, whose mean feature centres all others, and the validation split, if there is one.
        feed: the training images.
        run: where weights are written.
        network: a function that embeds in place of the backbone, such as the compiled backbone.
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
        self.classes = TrainingClasses(stores["train"].dataset, stores["train"].class_names)
        self.bfloat16 = "bf16" in str(fabric.strategy.precision.precision)

    def __call__(self, backbone: Backbone, progress: Progress) -> dict[str, float]:
        """Return the mean accuracies; the best so far are recorded in the progress."""
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
            notes |= self.classes.as_note()
            save_backbone(backbone, self.run.weights_of(progress.epoch), training_mean=centre, notes=notes)
        return means

    def warm_up(self, backbone: Backbone) -> None:
        """Embed one image, so that a network that compiles on first use does so before the first epoch."""
        if self.network is not None:
            self._embed(backbone, ImageFeed(self.stores["train"].images[:1], self.device))

    def _measure(self, backbone: Backbone, centre: torch.Tensor) -> dict[str, Accuracy]:
        if "val" not in self.stores:
            return {}
        store = self.stores["val"]
        features = self._embed(backbone, ImageFeed(store.images, self.device))
        results = evaluate_many(
            FeatureSet(features, store.labels, centre, store.class_names, split="val", fingerprint=store.fingerprint),
            n_way=self.config.validation_way,
            n_shots=self.config.validation_shots,
            n_query=validation_queries(self.config, self.stores),
            n_episodes=self.config.validation_episodes,
            classifiers=CLASSIFIERS,
            training_classes=self.classes.class_names,
            small_classes="leave out",
            progress=False,
        )
        return {f"{measured.n_shot}-shot {measured.classifier}": accuracy for measured, accuracy in results.items()}

    def _embed(self, backbone: Backbone, feed: ImageFeed) -> torch.Tensor:
        return embed_images(backbone, feed, device=self.device, network=self.network, bfloat16=self.bfloat16)


def validation_queries(config: TrainConfig, stores: dict[str, Store]) -> int:
    """Return the queries per class of validation episodes: those of the settings, or all that the classes have.

    Settings for which there are too few classes or images raise an error, before the first epoch.
    """
    if "val" not in stores:
        return config.validation_queries
    n_way, n_shot = config.validation_way, max(config.validation_shots)
    sizes = ImagesByClass(stores["val"].labels).sizes.sort(descending=True).values
    n_usable = int((sizes > n_shot).sum())
    if n_usable < n_way:
        raise InputError(
            f"validation_way must be at most {n_usable}, the number of validation classes of more than {n_shot} "
            f"images, not {n_way}. Lower validation_way or validation_shots, or give the split more classes."
        )
    return min(config.validation_queries, int(sizes[n_way - 1]) - n_shot)
