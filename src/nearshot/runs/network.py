"""Trained weights, of finished and unfinished runs, and the features that they give. Each split is embedded once."""

from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor, nn

from nearshot.data import Store, open_or_prepare
from nearshot.data.augment import centre_crop, normalise_images
from nearshot.data.loader import ImageFeed
from nearshot.devices import Precision, chosen_device, uses_bfloat16
from nearshot.errors import InputError
from nearshot.evaluation import FeatureSet, power_transform
from nearshot.models import Backbone, load_backbone
from nearshot.models.weights import load_head
from nearshot.training.checkpoint import read_checkpoint
from nearshot.training.embedding import embed_images
from nearshot.training.run_folder import Best, RunFolder, TrainingClasses

__all__ = ["FeatureOptions", "InPrecision", "TrainedNetwork", "TrainedRun", "training_split"]

Layers = tuple[int, ...]


@dataclass(frozen=True)
class FeatureOptions:
    """How the features of images are made of their embeddings.

    Attributes:
        n_views: the number of views of each image whose embeddings are averaged; see `view_of`.
        power: each feature is raised to this power, with its sign, such as 0.5.
        input_size: the side of the images that the network sees; None for the one that it was
            trained with.
    """

    n_views: int = 1
    power: float = 1.0
    input_size: int | None = None

    @property
    def labels(self) -> list[str]:
        """The options that are not the defaults, in words."""
        parts = {
            f"{self.n_views} views": self.n_views != 1,
            f"power {self.power:g}": self.power != 1,
        }
        parts[f"input size {self.input_size}"] = self.input_size is not None
        return [part for part, is_given in parts.items() if is_given]


EMBEDDING = FeatureOptions()  # the embedding of one view, unchanged


class InPrecision(nn.Module):
    """A backbone that computes in bfloat16 or in float32; its features are float32 in any case.

    `layers` are the stages whose pooled outputs `features` gives, counted from 1; none for the
    embedding. With a `projection`, `forward` gives the projected embedding, which a loss sees in
    training; `features` are without it.
    """

    def __init__(
        self,
        backbone: Backbone,
        *,
        bfloat16: bool,
        layers: Layers = (),
        projection: nn.Module | None = None,
    ) -> None:
        super().__init__()
        self.backbone, self.in_bfloat16, self.layers = backbone, bfloat16, layers
        self.projection = projection
        self.train(backbone.training)

    def forward(self, images: Tensor) -> Tensor:
        """Embed normalised images."""
        embeddings = self._outputs(images, ())
        projected: Tensor = embeddings if self.projection is None else self.projection(embeddings)
        return projected

    def features(self, images: Tensor) -> Tensor:
        """Return the outputs of the layers, or the embedding where there are none."""
        return self._outputs(images, self.layers)

    def _outputs(self, images: Tensor, layers: Layers) -> Tensor:
        with torch.autocast(images.device.type, torch.bfloat16, enabled=self.in_bfloat16):
            outputs: Tensor = (
                self.backbone.multi_layer(images, layers) if layers else self.backbone(images)
            )
            return outputs.float()


class TrainedNetwork:
    """Trained weights on a device. A split is embedded once for each choice of layers.

    The backbone is in evaluation mode. Precision "auto" is bfloat16 on a GPU, as in training.
    Features are centred with the mean embedding that was saved with the weights. For layers, a
    power or another input size, it is computed from the training split, which they need; views have
    no part in it.
    """

    def __init__(
        self,
        backbone: Backbone,
        name: str,
        *,
        device: torch.device,
        precision: Precision = "auto",
        training: Store | None = None,
        projection: nn.Module | None = None,
        options: FeatureOptions = EMBEDDING,
    ) -> None:
        if options.input_size is not None:
            backbone.set_input_size(options.input_size)
        # Channels last is faster, on a CPU as well.
        self.backbone: Backbone = backbone.to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.projection = None if projection is None else projection.to(device)
        self.name, self.device, self.training, self.options = name, device, training, options
        self.bfloat16 = uses_bfloat16(precision, device.type)
        self.embedded: dict[tuple[Path, Layers], Tensor] = {}  # features, by the folders of splits
        self._centres: dict[Layers, Tensor] = {}

    def network(self, layers: Layers = (), *, projected: bool = False) -> InPrecision:
        """Return the module that embeds a batch of normalised images; `projected` as in training, if it was."""
        projection = self.projection if projected else None
        return InPrecision(
            self.backbone, bfloat16=self.bfloat16, layers=layers, projection=projection
        )

    def features(self, store: Store, layers: Layers = ()) -> Tensor:
        """Return the features of a split, (image, dim) float32."""
        key = (store.folder, layers)
        if key not in self.embedded:
            self.embedded[key] = self._embedded(store, layers, self.options.n_views)
        return self.embedded[key]

    def centre(self, layers: Layers = ()) -> Tensor | None:
        """Return the mean feature of the training set: the one saved with the weights, or one computed here."""
        if not layers and replace(self.options, n_views=1) == EMBEDDING:
            return self.backbone.spec.training_mean
        if layers not in self._centres:
            if self.training is None:
                raise InputError(
                    "layers, power and input_size need the training split, to centre features, and it is not prepared."
                )
            self._centres[layers] = self._embedded(self.training, layers).mean(0)
        return self._centres[layers]

    def feature_set(self, store: Store, split: str, layers: Layers = ()) -> FeatureSet:
        """Return a split's features with their metadata."""
        features, centre = self.features(store, layers), self.centre(layers)
        return FeatureSet(
            features, store.labels, centre, store.class_names, split, store.fingerprint
        )

    def images(self, store: Store) -> Tensor:
        """Return a split's images as the network's input, (image, 3, height, width), on the CPU."""
        spec, images = self.backbone.spec, torch.from_numpy(store.images.copy())
        return normalise_images(centre_crop(images, spec.input_size), *spec.normalisation)

    def _embedded(self, store: Store, layers: Layers, n_views: int = 1) -> Tensor:
        feed, network = ImageFeed(store.images, self.device), self.network(layers).features
        features = embed_images(self.backbone, feed, network=network, n_views=n_views, show=None)
        return power_transform(features, self.options.power)


@dataclass(frozen=True)
class Unfinished:
    """The progress of a run that was measured before its end."""

    epochs_done: int
    epochs: int

    def __str__(self) -> str:
        return f"{self.epochs_done} of {self.epochs} epochs"


class TrainedRun:
    """A run's best weights, opened once each, and the splits that they are measured on.

    The arguments are those of `evaluate_run`. With `unfinished`, a run that was stopped or is still
    training is opened with its best weights so far. Then the attribute `unfinished` is its
    progress; of a finished run it is None.
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        data_dir: str | Path | None = None,
        device: torch.device | str | None = None,
        precision: Precision = "auto",
        unfinished: bool = False,
    ) -> None:
        self.run = RunFolder(folder)
        self.config = self.run.read_config()
        self.data_dir, self.device = data_dir, chosen_device(device)
        self.precision, self.bfloat16 = precision, uses_bfloat16(precision, self.device.type)
        self._networks: dict[tuple[Path, FeatureOptions], TrainedNetwork] = {}
        self._best: Best | None = None
        self._backbones: dict[Path, Backbone] = {}
        self.unfinished: Unfinished | None = None
        if unfinished and not self.run.is_finished:
            progress = (
                read_checkpoint(self.run.checkpoint)["progress"]
                if self.run.checkpoint.is_file()
                else {}
            )
            self._best = progress.get("best")
            if not self._best:
                raise InputError(
                    f"{self.run.path} has nothing to measure yet: no epoch has been validated."
                )
            self.unfinished = Unfinished(int(progress["epoch"]) - 1, self.config.epochs)
            # Read at once, since a running training may remove the files at any time.
            files = {self.run.weights_of(int(one["epoch"])) for one in self._best.values()}
            self._backbones = {file: load_backbone(file) for file in files}

    def best_weights(self, n_shot: int, classifier: str) -> Path:
        """Return the weights of the epoch that was best on the validation split."""
        return self.run.best_weights(n_shot, classifier, self._best)

    def network(self, weights: Path, options: FeatureOptions = EMBEDDING) -> TrainedNetwork:
        """Return the network with the weights of a file."""
        key = (weights, options)
        if key not in self._networks:
            has_projection = self.unfinished is None and self.config.projection is not None
            self._networks[key] = TrainedNetwork(
                self._backbones.get(weights) or load_backbone(weights),
                weights.name,
                device=self.device,
                precision=self.precision,
                training=self._training,
                projection=load_head(weights, "projection") if has_projection else None,
                options=options,
            )
        return self._networks[key]

    @cached_property
    def _training(self) -> Store | None:
        """The training split as it is prepared now, if it is available."""
        return training_split(self.config.dataset, self.data_dir, self.config.side)

    @cached_property
    def trained_on(self) -> TrainingClasses:
        """The classes that were trained on."""
        return self.run.read_trained_on()

    def store(self, split: str, dataset: str | None = None, side: int | None = None) -> Store:
        """Return a split to measure, by default of the dataset that was trained on; trained classes are refused."""
        side = side or (self.config.side if dataset is None else None)
        store = open_or_prepare(dataset or self.config.dataset, split, self.data_dir, side=side)
        self.trained_on.check_unseen(store, split)
        return store


def training_split(
    trained_on: str | None, data_dir: str | Path | None, side: int | None
) -> Store | None:
    """Return the split that was trained on, if it is available."""
    if trained_on is None:
        return None
    try:
        return open_or_prepare(trained_on, "train", data_dir, side=side)
    except InputError:
        return None
