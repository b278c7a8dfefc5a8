"""A network with trained weights, and the features that it gives. Each split is embedded once."""

import logging
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

from nearshot.data import Store
from nearshot.data.augment import centre_crop, normalise_images
from nearshot.data.loader import ImageFeed
from nearshot.devices import Precision, uses_bfloat16
from nearshot.errors import InputError
from nearshot.evaluation import EvaluationSpec, FeatureSet, power_transform
from nearshot.models import Backbone
from nearshot.training.embedding import embed_images

__all__ = ["InPrecision", "TrainedNetwork"]

Layers = tuple[int, ...]
logger = logging.getLogger(__name__)


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
        self.backbone = backbone
        self.in_bfloat16 = bfloat16
        self.layers = layers
        self.projection = projection
        self.train(backbone.training)

    def forward(self, images: Tensor) -> Tensor:
        """Embed normalised images."""
        embeddings = self._outputs(images, ())
        if self.projection is None:
            return embeddings
        projected: Tensor = self.projection(embeddings)
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
    """Trained weights on a device. A split is embedded once for each choice of features.

    The backbone is in evaluation mode. Precision "auto" is bfloat16 on a GPU, as in training.
    Features are centred with the mean embedding that was saved with the weights. For layers, a
    power or another input size, it is computed from the training split, which they need; views have
    no part in it.

    Args:
        backbone: the network.
        name: the name of its weights file.
        device: where it computes.
        precision: what it computes in.
        open_training_split: returns the split that it was trained on, or None if it is not
            available.
        projection: what the loss saw the embeddings through in training, if anything.
        input_size: the side of the images that it sees; None for the one of its training.
    """

    def __init__(
        self,
        backbone: Backbone,
        name: str,
        *,
        device: torch.device,
        precision: Precision = "auto",
        open_training_split: Callable[[], Store | None] | None = None,
        projection: nn.Module | None = None,
        input_size: int | None = None,
    ) -> None:
        if input_size is not None:
            backbone.set_input_size(input_size)
        # Channels last is faster, on a CPU as well.
        self.backbone: Backbone = backbone.to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.projection = None if projection is None else projection.to(device)
        self.name = name
        self.device = device
        self.bfloat16 = uses_bfloat16(precision, device.type)
        self._open_training_split = open_training_split
        self._has_input_size = input_size is not None
        # By the folder of the split, the layers, the number of views and the power.
        self._features: dict[tuple[Path, Layers, int, float], Tensor] = {}
        self._centres: dict[tuple[Layers, float], Tensor] = {}

    def network(self, layers: Layers = (), *, projected: bool = False) -> InPrecision:
        """Return the module that embeds a batch of normalised images.

        With `projected` it is as in training, through the projection if there was one.
        """
        projection = self.projection if projected else None
        return InPrecision(
            self.backbone, bfloat16=self.bfloat16, layers=layers, projection=projection
        )

    def features(
        self, store: Store, layers: Layers = (), *, n_views: int = 1, power: float = 1.0
    ) -> Tensor:
        """Return the features of a split, (image, dim) float32."""
        key = (store.folder, layers, n_views, power)
        if key not in self._features:
            logger.info(
                "Embedding %s images of %s with %s on %s.",
                f"{len(store):,}",
                store.dataset,
                self.name,
                self.device.type,
            )
            self._features[key] = self._embed(store, layers, n_views, power)
        return self._features[key]

    def centre(self, layers: Layers = (), *, power: float = 1.0) -> Tensor | None:
        """Return the mean feature of the training set, saved with the weights or computed here."""
        if not layers and power == 1 and not self._has_input_size:
            return self.backbone.spec.training_mean
        key = (layers, power)
        if key not in self._centres:
            training = None if self._open_training_split is None else self._open_training_split()
            if training is None:
                raise InputError(
                    "layers, power and input_size need the training split, to centre features, and "
                    "it is not prepared."
                )
            self._centres[key] = self._embed(training, layers, 1, power).mean(0)
        return self._centres[key]

    def feature_set(self, store: Store, spec: EvaluationSpec) -> FeatureSet:
        """Return a split's features, as the evaluation has them, with their metadata."""
        return FeatureSet(
            self.features(store, spec.layers, n_views=spec.n_views, power=spec.power),
            store.labels,
            self.centre(spec.layers, power=spec.power),
            store.class_names,
            spec.split,
            store.fingerprint,
        )

    def images(self, store: Store) -> Tensor:
        """Return a split's images as the network's input, (image, 3, height, width), on the CPU."""
        spec = self.backbone.spec
        images = torch.from_numpy(store.images.copy())
        return normalise_images(centre_crop(images, spec.input_size), *spec.normalisation)

    def _embed(self, store: Store, layers: Layers, n_views: int, power: float) -> Tensor:
        feed = ImageFeed(store.images, self.device)
        network = self.network(layers).features
        features = embed_images(
            self.backbone, feed, network=network, n_views=n_views, progress=None
        )
        return power_transform(features, power)
