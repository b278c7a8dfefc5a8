"""Validation during training: measure on episodes of the validation split, and keep the best epoch for each measure."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from nearshot.data.loader import ImageFeed
from nearshot.evaluation import Accuracy, FeatureSet, evaluate_many, select_best
from nearshot.evaluation.classifiers import ClassifierName
from nearshot.models import Backbone, save_backbone
from nearshot.training.assembly import RunPlan
from nearshot.training.checkpoint import Progress
from nearshot.training.classes import TrainingClasses
from nearshot.training.embedding import embed_images

CLASSIFIERS: tuple[ClassifierName, ...] = ("centroid", "soft")  # the best epoch is kept for each


class Validator:
    """Measures a backbone, and writes its weights if they are the best by any measure.

    Args:
        plan: the run. The mean feature of its training split centres all others.
        feed: the training images.
        network: a function that embeds in place of the backbone, such as the compiled backbone.
    """

    def __init__(self, plan: RunPlan, feed: ImageFeed, network: Callable[[Tensor], Tensor] | None) -> None:
        self.plan, self.feed, self.network = plan, feed, network
        training = plan.stores["train"]
        self.classes = TrainingClasses(training.dataset, training.class_names)

    def __call__(self, backbone: Backbone, progress: Progress) -> dict[str, float]:
        """Return the mean accuracies; the best so far are recorded in the progress."""
        run, config = self.plan.run, self.plan.config
        centre = self._embed(backbone, self.feed).mean(0)
        means = {}
        for name, accuracy in self._measure(backbone, centre).items():
            means[name] = accuracy.mean
            before = progress.best.get(name)
            candidates = {"before": Accuracy.from_dict(before)} if before else {}
            if select_best(candidates | {"now": accuracy}) == "now":
                progress.best[name] = {"epoch": progress.epoch} | accuracy.as_dict()
        is_best = any(best["epoch"] == progress.epoch for best in progress.best.values())
        if is_best or progress.epoch == config.epochs:
            notes = {"run": run.path.name, "epoch": str(progress.epoch), "dataset": config.dataset}
            notes |= self.classes.as_note()
            save_backbone(backbone, run.weights_of(progress.epoch), training_mean=centre, notes=notes)
        return means

    def warm_up(self, backbone: Backbone) -> None:
        """Embed one image, so that a network that compiles on first use does so before the first epoch."""
        if self.network is not None:
            self._embed(backbone, ImageFeed(self.plan.stores["train"].images[:1], self.plan.fabric.device))

    def _measure(self, backbone: Backbone, centre: Tensor) -> dict[str, Accuracy]:
        store, config = self.plan.stores.get("val"), self.plan.config
        if store is None:
            return {}
        features = self._embed(backbone, ImageFeed(store.images, self.plan.fabric.device))
        results = evaluate_many(
            FeatureSet(features, store.labels, centre, store.class_names, split="val", fingerprint=store.fingerprint),
            n_way=config.validation_way,
            n_shots=config.validation_shots,
            n_query=self.plan.validation_queries,
            n_episodes=config.validation_episodes,
            classifiers=CLASSIFIERS,
            training_classes=self.classes.class_names,
            small_classes="leave out",
            progress=False,
        )
        return {f"{measured.n_shot}-shot {measured.classifier}": accuracy for measured, accuracy in results.items()}

    def _embed(self, backbone: Backbone, feed: ImageFeed) -> Tensor:
        fabric = self.plan.fabric
        bfloat16 = "bf16" in str(fabric.strategy.precision.precision)
        return embed_images(backbone, feed, device=fabric.device, network=self.network, bfloat16=bfloat16)
