"""Trained runs and weights files, opened to be measured."""

import copy
import warnings
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from nearshot.data import Store, open_or_prepare
from nearshot.data.datasets import SOURCES
from nearshot.devices import Precision, chosen_device, uses_bfloat16
from nearshot.errors import InputError
from nearshot.evaluation import TrainingClasses
from nearshot.models import Backbone, Normalisation, load_backbone, read_notes
from nearshot.models.weights import load_head
from nearshot.runs.feature_cache import FeatureCache
from nearshot.runs.network import TrainedNetwork
from nearshot.runs.own_network import (
    NormalisationOrName,
    OwnNetwork,
    find_normalisation,
    is_own,
    load_own,
)
from nearshot.training.checkpoint import read_checkpoint
from nearshot.training.run_folder import Best, RunFolder, classes_of_network

USUAL_SIDE = 84  # of prepared images

__all__ = ["TrainedRun", "TrainedWeights", "Unfinished", "open_run", "open_weights"]


@dataclass(frozen=True)
class Unfinished:
    """The progress of a run that was measured before its end."""

    epochs_done: int
    epochs: int

    def __str__(self) -> str:
        return f"{self.epochs_done} of {self.epochs} epochs"


def open_run(
    folder: str | Path,
    *,
    data_dir: str | Path | None = None,
    device: torch.device | str | None = None,
    precision: Precision = "auto",
    unfinished: bool = False,
    cache: bool = False,
) -> "TrainedRun":
    """Open a run to measure it or to embed with its weights.

    Args:
        folder: the run's folder.
        data_dir: the folder of prepared datasets; by default $NEARSHOT_DATA, or ~/.cache/nearshot.
        device: where to compute; by default a GPU if there is one.
        precision: what the network computes in; "auto" is bfloat16 on a GPU, as in training.
        unfinished: open a run that was stopped, or is still training, with its best weights so far,
            instead of refusing to measure it.
        cache: keep the features of splits on disk, beside the prepared datasets.
    """
    run = RunFolder(folder)
    progress = None
    if unfinished and not run.is_finished:
        progress = _read_progress(run)
    return TrainedRun(
        run,
        data_dir=data_dir,
        device=chosen_device(device),
        precision=precision,
        progress=progress,
        cache=FeatureCache(data_dir) if cache else None,
    )


def _read_progress(run: RunFolder) -> dict[str, Any]:
    """Return the progress of an unfinished run, from its checkpoint."""
    progress: dict[str, Any] = {}
    if run.checkpoint.is_file():
        progress = read_checkpoint(run.checkpoint)["progress"]
    if not progress.get("best"):
        raise InputError(f"{run.path} has nothing to measure yet: no epoch has been validated.")
    return progress


class TrainedRun:
    """A run's best weights, opened once each, and the splits that they are measured on.

    `open_run` makes it.

    Attributes:
        run: the run's folder.
        config: its configuration.
        device: where its networks compute.
        precision: what they compute in.
        bfloat16: whether that is bfloat16 on this device.
        unfinished: the run's progress, if it is measured before its end.
    """

    def __init__(
        self,
        run: RunFolder,
        *,
        data_dir: str | Path | None,
        device: torch.device,
        precision: Precision,
        progress: dict[str, Any] | None,
        cache: FeatureCache | None = None,
    ) -> None:
        self.run = run
        self.config = run.read_config()
        self.data_dir = data_dir
        self.device = device
        self.precision: Precision = precision
        self.bfloat16 = uses_bfloat16(precision, device.type)
        self.unfinished: Unfinished | None = None
        self._cache = cache
        self._networks: dict[tuple[Path, int | None], TrainedNetwork] = {}
        self._best: Best | None = None
        self._backbones: dict[Path, Backbone] = {}
        if progress is not None:
            best: Best = progress["best"]
            self._best = best
            self.unfinished = Unfinished(int(progress["epoch"]) - 1, self.config.epochs)
            # Read at once, since a run that goes on may remove the files at any time.
            for epoch in {int(entry["epoch"]) for entry in best.values()}:
                weights = run.weights_of(epoch)
                self._backbones[weights] = load_backbone(weights)

    @property
    def classifier(self) -> str:
        """The name of the classifier that the run's method is reported with."""
        return self.config.method.classifier

    @cached_property
    def trained_on(self) -> TrainingClasses:
        """The classes that were trained on."""
        return self.run.read_trained_on()

    def store(self, split: str, dataset: str | None = None, side: int | None = None) -> Store:
        """Return a split to measure, by default of the dataset that was trained on.

        A split with classes that were trained on is refused. If another dataset has equal names,
        which may be other classes, there is a warning.
        """
        if side is None and dataset is None:
            side = self.config.side
        store = open_or_prepare(dataset or self.config.dataset, split, self.data_dir, side=side)
        check_classes(self.trained_on, store, split)
        return store

    def best_weights(self, n_shot: int, classifier: str) -> Path:
        """Return the weights of the epoch that was best on the validation split."""
        return self.run.best_weights(n_shot, classifier, self._best)

    def network(self, weights: Path, *, input_size: int | None = None) -> TrainedNetwork:
        """Return the network with the weights of a file."""
        key = (weights, input_size)
        if key not in self._networks:
            if weights in self._backbones:
                backbone = copy.deepcopy(self._backbones[weights])
            else:
                backbone = load_backbone(weights)
            projection = None
            if self.unfinished is None:
                projection = load_head(weights, "projection")
            self._networks[key] = TrainedNetwork(
                backbone,
                weights.name,
                device=self.device,
                precision=self.precision,
                open_training_split=lambda: self._training_split,
                projection=projection,
                input_size=input_size,
                cache=self._cache,
            )
        return self._networks[key]

    @cached_property
    def _training_split(self) -> Store | None:
        return open_training_split(self.config.dataset, self.data_dir, self.config.side)


def open_weights(
    network: str | Path | nn.Module,
    *,
    normalisation: NormalisationOrName | None = None,
    data_dir: str | Path | None = None,
    device: torch.device | str | None = None,
    precision: Precision = "auto",
    cache: bool = False,
) -> "TrainedWeights":
    """Open a network to measure it.

    Args:
        network: a file of `save_backbone`; a name that `load_backbone` knows; "module:function", a
            function of other code that returns a module; a `.pt2` file of `torch.export`, which
            should be one that you trust; or a module.
        normalisation: for networks of other code, which need it: "imagenet", "none" for pixels from
            0 to 1, or the mean and standard deviation of each channel.
        data_dir: the folder of prepared datasets; by default $NEARSHOT_DATA, or ~/.cache/nearshot.
        device: where to compute; by default a GPU if there is one.
        precision: what the network computes in; "auto" is bfloat16 on a GPU, as in training, and
            float32 for networks of other code.
        cache: keep the features of splits on disk, beside the prepared datasets.
    """
    return TrainedWeights(
        network,
        normalisation=normalisation,
        data_dir=data_dir,
        device=chosen_device(device),
        precision=precision,
        cache=FeatureCache(data_dir) if cache else None,
    )


class TrainedWeights:
    """A network, and the splits that it is measured on. `open_weights` makes it.

    Attributes:
        name: what results call it.
        dataset: the dataset that it was trained on, if it is known.
    """

    classifier = "centroid"  # to measure with, unless another is requested

    def __init__(
        self,
        network: str | Path | nn.Module,
        *,
        normalisation: NormalisationOrName | None = None,
        data_dir: str | Path | None,
        device: torch.device,
        precision: Precision,
        cache: FeatureCache | None = None,
    ) -> None:
        self.data_dir = data_dir
        self.device = device
        self.dataset: str | None = None
        self._cache = cache
        self._path: str | None = None
        self._own: nn.Module | None = None
        if isinstance(network, nn.Module):
            self.name = type(network).__name__
            self._own = copy.deepcopy(network)  # the caller's is not moved or changed
        elif is_own(str(network)):
            self.name = Path(network).name
            self._own = load_own(str(network))
        else:
            self.name = Path(network).name
            self._path = str(network)
            self.dataset = read_notes(self._path).get("dataset")
        self.normalisation: Normalisation | None = None
        if self._own is not None and not isinstance(self._own, Backbone):
            self.normalisation = find_normalisation(normalisation, self.name)
            if precision == "auto":
                precision = "float32"
        elif normalisation is not None:
            raise InputError(
                f"normalisation is that of {self.name}, which brings its own. Leave it out."
            )
        self.precision: Precision = precision
        self._networks: dict[tuple[int | None, int | None], TrainedNetwork] = {}

    def trained_on(self, side: int | None = None) -> TrainingClasses | None:
        """Return the classes that were trained on, if they are known.

        They are those in the file. If it has none, they are those of the training split, which is
        opened with images of a side.
        """
        if self._path is None:
            return None
        recorded = classes_of_network(self._path)
        if recorded is not None:
            return recorded
        training = open_training_split(self.dataset, self.data_dir, side)
        if training is None:
            return None
        return TrainingClasses(training.dataset, training.class_names)

    def store(self, split: str, dataset: str | None = None, side: int | None = None) -> Store:
        """Return a split to measure, as `TrainedRun.store` does."""
        chosen = dataset or self.dataset
        if chosen is None:
            raise InputError(
                f"{self.name} does not say what it was trained on; dataset must be given."
            )
        store = open_or_prepare(chosen, split, self.data_dir, side=side)
        trained_on = self.trained_on(side if chosen == self.dataset else None)
        if trained_on is not None:
            check_classes(trained_on, store, split)
        return store

    def network(
        self,
        *,
        input_size: int | None = None,
        side: int | None = None,
        prepared_side: int | None = None,
    ) -> TrainedNetwork:
        """Return the network; where it needs the training split, with images of a side.

        A network of other code sees images of `input_size`, by default as large as they were
        prepared.
        """
        if input_size is None and self.normalisation is not None:
            input_size = prepared_side
        key = (input_size, side)
        if key not in self._networks:
            open_training = None
            if self.dataset is not None:
                open_training = partial(open_training_split, self.dataset, self.data_dir, side)
            self._networks[key] = TrainedNetwork(
                self._backbone(input_size),
                self.name,
                device=self.device,
                precision=self.precision,
                open_training_split=open_training,
                input_size=None if self.normalisation is not None else input_size,
                cache=self._cache,
            )
        return self._networks[key]

    def _backbone(self, input_size: int | None) -> Backbone:
        if self._own is None:
            return load_backbone(str(self._path))
        if isinstance(self._own, Backbone):
            return copy.deepcopy(self._own).eval()
        normalisation = find_normalisation(self.normalisation, self.name)
        return OwnNetwork(self._own, self.name, normalisation, input_size or USUAL_SIDE)


def check_classes(trained_on: TrainingClasses, store: Store, split: str) -> None:
    """Refuse a split with classes that were trained on; warn about equal names that may be them."""
    trained_on.check_unseen(store.dataset, split, store.class_names, known_datasets=SOURCES)
    doubt = trained_on.warning_about(store.dataset, store.class_names)
    if doubt is not None:
        warnings.warn(doubt, stacklevel=3)


def open_training_split(
    dataset: str | None, data_dir: str | Path | None, side: int | None
) -> Store | None:
    """Return the split that was trained on, if it is available."""
    if dataset is None:
        return None
    try:
        return open_or_prepare(dataset, "train", data_dir, side=side)
    except InputError:
        return None
