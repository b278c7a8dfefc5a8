"""A network with trained weights, and the features that it gives. Each split is embedded once."""

import logging
import time
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
from nearshot.runs.feature_cache import FeatureCache
from nearshot.training.embedding import embed_images

__all__ = ["InPrecision", "TrainedNetwork"]

Layers = tuple[int, ...]
# Few images stay in a CPU's caches: of 84×84 pixels, 16 at once are a fifth faster than 256.
PIXELS_AT_ONCE_CPU = 16 * 84 * 84
MOST_AT_ONCE_CPU = 256
N_PROBES = 8  # images whose features are compared with cached ones, and whose time is taken
# How much features may differ from cached ones, relative to their length.
TOLERANCE = 1e-3
TOLERANCE_BFLOAT16 = 0.02
SECONDS_TO_MENTION = 10
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
        cache: where features are kept on disk; None for nowhere.
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
        cache: FeatureCache | None = None,
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
        self._cache = cache
        # By the folder of the split, the layers, the number of views, the power and the most images
        # of a class.
        self._features: dict[tuple[Path, Layers, int, float, int | None], Tensor] = {}
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
        self,
        store: Store,
        layers: Layers = (),
        *,
        n_views: int = 1,
        power: float = 1.0,
        max_images: int | None = None,
    ) -> Tensor:
        """Return the features of a split, or of `max_images` of each class: (image, dim) float32.

        The images are those of `rows_of`.
        """
        key = (store.folder, layers, n_views, power, max_images)
        if key not in self._features:
            rows = rows_of(store, max_images)
            self._features[key] = self._embed(store, layers, n_views, power, rows)
        return self._features[key]

    def centre(self, layers: Layers = (), *, power: float = 1.0) -> Tensor | None:
        """Return the mean feature of the training set, saved with the weights or computed here."""
        training_mean = self.backbone.spec.training_mean
        if not layers and power == 1 and not self._has_input_size:
            return training_mean
        if self._open_training_split is None and training_mean is None:
            return None  # of other code
        key = (layers, power)
        if key not in self._centres:
            training = None if self._open_training_split is None else self._open_training_split()
            if training is None:
                raise InputError(
                    "layers, power and input_size need the training split, to centre features, and "
                    "it is not prepared."
                )
            rows = torch.arange(len(training))
            self._centres[key] = self._embed(training, layers, 1, power, rows).mean(0)
        return self._centres[key]

    def feature_set(self, store: Store, spec: EvaluationSpec) -> FeatureSet:
        """Return a split's features, as the evaluation has them, with their metadata."""
        rows = rows_of(store, spec.max_images)
        features = self.features(
            store,
            spec.layers,
            n_views=spec.n_views,
            power=spec.power,
            max_images=spec.max_images,
        )
        fingerprint = store.fingerprint
        if spec.max_images is not None:
            fingerprint += f", {spec.max_images} images a class"
        return FeatureSet(
            features,
            store.labels[rows],
            None if spec.centred is False else self.centre(spec.layers, power=spec.power),
            store.class_names,
            spec.split,
            fingerprint,
        )

    def images(self, store: Store) -> Tensor:
        """Return a split's images as the network's input, (image, 3, height, width), on the CPU."""
        spec = self.backbone.spec
        images = torch.from_numpy(store.images.copy())
        return normalise_images(centre_crop(images, spec.input_size), *spec.normalisation)

    def _embed(
        self, store: Store, layers: Layers, n_views: int, power: float, rows: Tensor
    ) -> Tensor:
        """Return the features of the images of `rows`, from the cache if they are there."""
        feed = ImageFeed(store.images, self.device)
        probes = torch.linspace(0, len(rows) - 1, min(N_PROBES, len(rows))).long()
        self._embed_rows(feed, layers, n_views, rows[probes[:1]])  # the first call prepares
        start = time.monotonic()
        probed = self._embed_rows(feed, layers, n_views, rows[probes])
        seconds = (time.monotonic() - start) * (len(rows) / len(probes) - 1)
        cached = None
        if self._cache is not None:
            key = self._cache.key(
                self.backbone,
                self.backbone.spec.name,
                self.backbone.spec.input_size,
                tuple(self.backbone.spec.normalisation),
                self.bfloat16,
                layers,
                n_views,
                store.fingerprint,
                rows.tolist(),
            )
            tolerance = TOLERANCE_BFLOAT16 if self.bfloat16 else TOLERANCE
            cached = self._cache.read(key, probes, probed, tolerance)
        if cached is not None:
            return power_transform(cached.to(self.device), power)
        duration = f": {_in_words(seconds)}" if seconds > SECONDS_TO_MENTION else ""
        logger.info(
            "Embedding %s images of %s with %s on %s%s.",
            f"{len(rows):,}",
            store.dataset,
            self.name,
            self.device.type,
            duration,
        )
        features = self._embed_rows(feed, layers, n_views, rows, progress=None)
        if self._cache is not None:
            self._cache.write(key, features)
        return power_transform(features, power)

    def _embed_rows(
        self,
        feed: ImageFeed,
        layers: Layers,
        n_views: int,
        rows: Tensor,
        *,
        progress: bool | None = False,
    ) -> Tensor:
        at_once = None
        if self.device.type == "cpu":
            pixels = self.backbone.spec.input_size**2
            at_once = max(1, min(MOST_AT_ONCE_CPU, PIXELS_AT_ONCE_CPU // pixels))
        return embed_images(
            self.backbone,
            feed,
            network=self.network(layers).features,
            n_views=n_views,
            rows=rows,
            at_once=at_once,
            progress=progress,
        )


def rows_of(store: Store, max_images: int | None) -> Tensor:
    """Return the images to measure, (image,) int64: all, or so many of each class, evenly spaced.

    They are in the order of the split.
    """
    if max_images is None:
        return torch.arange(len(store))
    chosen = []
    for label in range(len(store.class_names)):
        rows = (store.labels == label).nonzero()[:, 0]
        n_chosen = min(max_images, len(rows))
        places = torch.arange(n_chosen) * len(rows) // max(1, n_chosen)
        chosen.append(rows[places])
    return torch.cat(chosen).sort().values


def _in_words(seconds: float) -> str:
    """Return a duration as a person says it.

    >>> _in_words(40), _in_words(500)
    ('about 40 seconds', 'about 8 minutes')
    """
    if seconds < 90:
        return f"about {seconds:.0f} seconds"
    return f"about {seconds / 60:.0f} minutes"
