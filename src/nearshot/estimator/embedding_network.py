"""One network of an embedder: from images of the right size to features, and their cache."""

import hashlib
import logging
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from nearshot.data.augment import normalise_images, view_of
from nearshot.data.images import Pixels
from nearshot.errors import InputError, NearshotError
from nearshot.estimator.embedding_cache import EmbeddingCache, Features
from nearshot.estimator.read_images import PREPROCESSING, ImageContent, without_tensors
from nearshot.models import IMAGENET, Backbone, BackboneSpec, Normalisation
from nearshot.models.feature_sets import FEATURE_SETS_VERSION, FeatureSets
from nearshot.models.layers import fold_batch_norms

logger = logging.getLogger(__name__)
DEFAULT_SIZE = 224  # the side of images for a network or function without `input_size`
LARGEST_HALF = float(np.finfo(np.float16).max)


@dataclass(frozen=True, eq=False)
class Square:
    """An image that is to be embedded: its digest, and its pixels (side, side, 3)."""

    digest: str
    pixels: Pixels


class EmbeddingNetwork:
    """A network or function on its device, and the cache of its features.

    The arguments are those of `Embedder`; a network is used as it is given.

    Attributes:
        backbone: the network or function.
        spec: the side that images are resized to, how they are, and how they are normalised.
        feature_sets: the columns of a feature; None if it is the embedding alone.
        dim: the dimension of a feature; None for a function that has not been called.
        centre: (dim,) the mean embedding of the backbone's training set, if it is stored; 0 in the
            columns of other feature sets.
        key: identifies the weights and the preprocessing; None without a `Backbone`.
        cache: None for no cache.
    """

    def __init__(
        self,
        backbone: nn.Module | Callable[[Pixels], Any],
        *,
        device: torch.device,
        cache_dir: str | Path | None,
        input_size: int | None,
        n_views: int,
        all_sets: bool,
    ) -> None:
        self.backbone: Callable[..., Any] = backbone
        self.device = device
        self.n_views = n_views
        self.feature_sets: FeatureSets | None = None
        self.dim: int | None = None
        self.centre: Features | None = None
        self.key: str | None = None
        self.cache: EmbeddingCache | None = None
        if not isinstance(backbone, Backbone):
            if input_size is None:
                input_size = getattr(backbone, "input_size", DEFAULT_SIZE)
            normalisation = getattr(backbone, "normalisation", None)
            if normalisation is None and isinstance(backbone, nn.Module):
                logger.warning(
                    "Images are normalised as for ImageNet. If %s was trained otherwise, give it "
                    "an attribute normalisation, (mean, std) by channel.",
                    type(backbone).__name__,
                )
            self.spec = BackboneSpec(
                type(backbone).__name__,
                int(input_size),
                IMAGENET if normalisation is None else Normalisation(*normalisation),
            )
            return
        if input_size is not None:
            backbone.set_input_size(input_size)
        self.spec = backbone.spec
        self.dim = backbone.embedding_dim
        if all_sets and backbone.feature_sets is not None:
            self.feature_sets = backbone.feature_sets
            self.dim = self.feature_sets.dim
        if backbone.spec.training_mean is not None:
            mean = backbone.spec.training_mean.detach().cpu().float().numpy()
            self.centre = np.zeros(self.dim, np.float32)
            self.centre[: len(mean)] = mean
        self.key = _cache_key(backbone, n_views, self.feature_sets)
        if cache_dir is not None:
            self.cache = EmbeddingCache(cache_dir, self.key, self.dim, is_half=self._is_rounded)

    @property
    def _is_rounded(self) -> bool:
        """Whether features are rounded to float16: many sets would be large on disk."""
        return self.feature_sets is not None

    @cached_property
    def network(self) -> nn.Module | None:
        """The network, with the batch norms of a `Backbone` folded; None for a function."""
        if isinstance(self.backbone, Backbone):
            return fold_batch_norms(self.backbone)
        return self.backbone if isinstance(self.backbone, nn.Module) else None

    def __getstate__(self) -> dict[str, Any]:
        # Without the network, which is made again from the backbone: half the size.
        return {name: value for name, value in vars(self).items() if name != "network"}

    def prepare(self, content: ImageContent) -> Features | Square:
        """Return the cached feature of an image, or its pixels as the network needs them."""
        if self.cache is not None:
            feature = self.cache.get(content.digest)
            if feature is not None:
                return feature
        spec = self.spec
        pixels = content.square(spec.input_size, spec.interpolation, spec.crop)
        return Square(content.digest, pixels)

    def store(self, digest: str, feature: Features) -> None:
        """Cache a feature; if that fails, such as on a full disk, warn and cache no more."""
        if self.cache is None:
            return
        try:
            self.cache.put(digest, feature)
        except (OSError, NearshotError) as error:
            warnings.warn(f"Embeddings are not cached: {error}", stacklevel=4)
            self.cache = None

    def embed_prepared(self, images: Sequence[Features | Square]) -> list[Features]:
        """Return the features of images that `prepare` returned, in one batch."""
        squares = [image.pixels for image in images if isinstance(image, Square)]
        new_features = iter(self.embed_squares(np.stack(squares)) if squares else ())
        return [next(new_features) if isinstance(image, Square) else image for image in images]

    def embed_squares(self, squares: Pixels) -> Features:
        """Embed images of the right size, (image, side, side, 3) uint8, in one batch, uncached."""
        if self.network is None:
            features = np.asarray(without_tensors(self.backbone(squares)), dtype=np.float32)
        else:
            features = self._embed_views(self.network, squares)
        is_right = features.ndim == 2 and len(features) == len(squares)
        if not is_right or self.dim not in (None, features.shape[1]):
            expected = f"({len(squares)}, {self.dim or 'dim'})"
            raise InputError(
                f"backbone must return features of shape {expected} (got {features.shape})."
            )
        self.dim = features.shape[1]
        return features

    def _embed_views(self, network: nn.Module, squares: Pixels) -> Features:
        """Return the mean feature of the views of each image, (image, dim)."""
        embed: Callable[[Tensor], Tensor] = network
        if isinstance(network, Backbone) and self.feature_sets is not None:
            embed = network.flat_features
        side = squares.shape[1]
        features = []
        with torch.inference_mode():
            images = torch.from_numpy(squares).to(self.device)
            for number in range(self.n_views):
                view = view_of(images, number, side)
                features.append(embed(normalise_images(view, *self.spec.normalisation)))
            mean = torch.stack(features).float().mean(0).cpu()
            # As the cache holds them, so that new and cached features are equal.
            rounded = round_to_half(mean) if self._is_rounded else mean
            return np.asarray(rounded.numpy())


def round_to_half(features: Tensor) -> Tensor:
    """Round features to float16, and return them as float32."""
    return features.clamp(-LARGEST_HALF, LARGEST_HALF).half().float()


def _cache_key(backbone: Backbone, n_views: int, feature_sets: FeatureSets | None) -> str:
    """Return a hash of the weights and of everything that is done to an image before them."""
    spec = backbone.spec
    description: tuple[Any, ...] = (
        spec.name,
        spec.input_size,
        tuple(spec.normalisation),
        spec.interpolation,
        spec.crop,
        PREPROCESSING,
        n_views,
    )
    if feature_sets is not None:
        description += (FEATURE_SETS_VERSION, feature_sets.sets)
    key = hashlib.sha256(repr(description).encode())
    for name, tensor in sorted(backbone.state_dict().items()):
        key.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
        key.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return key.hexdigest()
