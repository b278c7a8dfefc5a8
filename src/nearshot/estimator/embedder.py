"""Embed images: one network or two on a device, and a cache of their embeddings on disk."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import nn

from nearshot.checks import check_count
from nearshot.data.images import Pixels
from nearshot.devices import chosen_device
from nearshot.errors import InputError, NearshotError
from nearshot.estimator.embedding_cache import EmbeddingCache, Features
from nearshot.estimator.embedding_network import EmbeddingNetwork, Square
from nearshot.estimator.feature_sets import FeatureSets, pair_sets, single_set
from nearshot.estimator.read_images import (
    ImageContent,
    image_list,
    image_name,
    map_ahead,
    read_each,
)
from nearshot.evaluation.leaks import check_evaluation_mode
from nearshot.models import Backbone, BackboneSpec
from nearshot.models.pair import BackbonePair, load_network
from nearshot.text import with_progress

MOST_PIXELS_OF_A_SIDE = 4096
BATCH_SIZES = {"cuda": 256, "cpu": 8}  # a CPU's caches hold the maps of a few images

Item = TypeVar("Item")


Prepared = Sequence[Features | Square]
"""An image for each network: its cached feature, or what is to be embedded."""


@dataclass(frozen=True)
class _Embedding:
    """The feature of an image, (dim,), or its error, and what is new for each network's cache."""

    result: Features | NearshotError
    new: Sequence[tuple[EmbeddingNetwork, str, Features]] = ()


class Embedder:
    """Embeds images: a list of paths, Pillow images or uint8 arrays in, features (image, dim) out.

    Args:
        backbone: a `Backbone` in evaluation mode, or a path or name for `load_backbone`: a weights
            file, "auto", "efficientnet-lite0", `timm:<name>`, …. Or two of them, as a
            `BackbonePair` or "<name>+<name>"; an existing path wins over a "+". Or any other
            network in evaluation mode, called with images (image, 3, side, side) normalised by
            its attribute `normalisation` (mean, std), by default as for ImageNet. Or any function,
            called with a uint8 array (image, side, side, 3). An attribute `input_size` of the
            latter two gives the side; the default is 224.
        device: "cpu", "cuda", …; "auto" is a GPU if there is one.
        cache_dir: a folder that caches embeddings of a `Backbone` by content; None for no cache.
        batch_size: how many images to embed at once; by default 8, and 256 on a GPU.
        copy: whether to copy a given network, so that the caller's is not moved or changed. False
            saves memory.
        input_size: the side that images are resized to; by default the network's own.
        n_views: the number of views of each image whose embeddings a network averages: the image,
            its mirror image, and crops; see `nearshot.data.augment`.
        all_sets: whether a feature is all feature sets of a `Backbone` side by side, rounded to
            float16, rather than the embedding alone. They cost one forward pass.

    Attributes:
        feature_sets: the columns of a feature; None if it is the embedding of one network. Two
            networks have at least a set each.
        centre: (dim,) the mean embedding of the backbone's training set, if it is stored; 0 in the
            columns of other feature sets.
        key: identifies the weights and the preprocessing; None without a `Backbone`.
        spec: the `BackboneSpec`: the side that images are resized to, how they are, and how they
            are normalised; of two networks, that of the first.
        backbone: the network, on its device, or the function, or the two networks.
        networks: the networks, each with its own size of images and cache.

    >>> embedder = Embedder(lambda images: images.mean((1, 2)))
    >>> embedder([np.full((8, 6, 3), 100, np.uint8)])
    array([[100., 100., 100.]], dtype=float32)
    """

    def __init__(
        self,
        backbone: str | Path | nn.Module | Callable[[Pixels], Any],
        *,
        device: str | torch.device = "auto",
        cache_dir: str | Path | None = None,
        batch_size: int | None = None,
        copy: bool = True,
        input_size: int | None = None,
        n_views: int = 1,
        all_sets: bool = False,
    ) -> None:
        if input_size is not None:
            check_count(input_size, "input_size")
            if input_size > MOST_PIXELS_OF_A_SIDE:
                raise InputError(
                    f"input_size must be at most {MOST_PIXELS_OF_A_SIDE} pixels (got {input_size})."
                )
        check_count(n_views, "n_views")
        self.device = chosen_device(device)
        self.n_views = int(n_views)
        self.all_sets = all_sets
        self.batch_size = batch_size or BATCH_SIZES.get(self.device.type, BATCH_SIZES["cpu"])
        if isinstance(backbone, str | Path):
            backbone = load_network(backbone, input_size=input_size)
            copy = False
            input_size = None  # the network has it already
        if n_views > 1 and not isinstance(backbone, nn.Module):
            raise InputError(f"n_views must be 1 if backbone is a function (got {n_views}).")
        check_evaluation_mode(backbone)
        if isinstance(backbone, nn.Module):
            backbone = deepcopy(backbone) if copy else backbone
            # Channels last is faster, on a CPU as well.
            backbone.to(self.device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.backbone: Callable[..., Any] = backbone
        parts = list(backbone.networks) if isinstance(backbone, BackbonePair) else [backbone]
        self.networks = [
            EmbeddingNetwork(
                part,
                device=self.device,
                cache_dir=cache_dir,
                input_size=input_size,
                n_views=self.n_views,
                all_sets=all_sets,
            )
            for part in parts
        ]
        first = self.networks[0]
        self.spec: BackboneSpec = first.spec
        self.key = first.key
        self.centre = first.centre
        self.feature_sets = first.feature_sets
        if isinstance(backbone, BackbonePair):
            self.spec = backbone.spec
            self.key = "+".join(str(network.key) for network in self.networks)
            self.centre = _joined_centre(self.networks)
            self.feature_sets = _joined_sets(self.networks)

    @property
    def dim(self) -> int | None:
        """The dimension of a feature; None for a function that has not been called."""
        dims = [network.dim for network in self.networks]
        return None if None in dims else sum(dim for dim in dims if dim is not None)

    @dim.setter
    def dim(self, dim: int) -> None:
        """Let features of another dimension be refused."""
        if len(self.networks) == 1:
            self.networks[0].dim = dim

    @property
    def cache(self) -> EmbeddingCache | None:
        """The cache of the first network; None for no cache."""
        return self.networks[0].cache

    @property
    def look_alike_cosine(self) -> float | None:
        """The cosine of embeddings from which two images of a class look alike, if it is known."""
        return self.spec.look_alike_cosine

    @property
    def network(self) -> nn.Module | None:
        """The first network, with the batch norms of a `Backbone` folded; None for a function."""
        return self.networks[0].network

    def __call__(self, images: Any, *, progress: bool | None = False) -> Features:
        """Embed images, or one array of them: (image, dim) float32.

        An image that cannot be read is an error. `progress` is whether to show a progress bar; None
        shows it on a terminal.
        """
        features = []
        errors = []
        for result in self.attempt(images, progress=progress):
            if isinstance(result, NearshotError):
                errors.append(result)
            else:
                features.append(result)
        if errors:
            first = errors[0]
            message = str(first)
            if len(errors) > 1:
                n_images = len(errors) + len(features)
                message += f" ({len(errors) - 1} more of {n_images} images cannot be read.)"
            raise type(first)(message) from first
        return np.stack(features)

    def attempt(
        self, images: Any, *, progress: bool | None = False
    ) -> list[Features | NearshotError]:
        """Embed the readable images: (dim,) for each, or the error of an unreadable one."""
        images = image_list(images)
        if not images:
            raise InputError("images must have at least 1 image to embed (got 0).")
        results = self.stream(images)
        numbers = with_progress(range(len(images)), "embedding", progress=progress)
        return [result for _, result in zip(numbers, results, strict=True)]

    def stream(self, images: Sequence[Any]) -> Iterator[Features | NearshotError]:
        """Yield what `attempt` returns, image by image, while later ones are read and embedded.

        A feature of zeros has no direction, and is an error. Backbones return it for images that
        are far too small for them.
        """
        for number, embedding in enumerate(self._embeddings(images)):
            result = embedding.result
            if isinstance(result, NearshotError):
                yield result
                continue
            for network, digest, feature in embedding.new:
                network.store(digest, feature)
            if self._has_no_direction(result):
                name = image_name(images[number], number)
                yield InputError(
                    f"The network returns zeros for {name}, which is too small for it. "
                    "Use a larger input_size."
                )
            else:
                yield result
        for network in self.networks:
            if network.cache is not None:
                network.cache.prune()

    def _has_no_direction(self, feature: Features) -> bool:
        """Return whether the embedding of a `Backbone`, or of one of two, is zero."""
        if not isinstance(self.backbone, Backbone | BackbonePair):
            return False
        if self.feature_sets is None:
            return not feature.any()
        return any(not feature[plain.columns].any() for plain in self.feature_sets.plain)

    def _embeddings(self, images: Sequence[Any]) -> Iterator[_Embedding]:
        """Yield the embeddings of images in order, computed in threads, a few batches ahead."""
        # Threads that share a batch wait for each other after every layer, which is slow where
        # other programs run as well. So each thread of a CPU has a batch of its own. A network or
        # function of the user has one thread.
        is_own = isinstance(self.backbone, Backbone | BackbonePair)
        is_parallel = is_own and self.device.type == "cpu"
        n_threads = torch.get_num_threads() if is_parallel else 1
        limit_threads = partial(torch.set_num_threads, 1) if n_threads > 1 else None
        threads = ThreadPoolExecutor(n_threads, initializer=limit_threads)
        prepared = read_each(images, self._prepare)
        batches = _batches(prepared, self.batch_size)
        embedded = map_ahead(threads, self._embed_batch, batches, 2 * n_threads + 1)
        try:
            for batch in embedded:
                yield from batch
        finally:
            embedded.close()
            if n_threads > 1:
                torch.set_num_threads(n_threads)  # MKL has one number for all threads

    def _prepare(self, content: ImageContent) -> Prepared:
        """Return the image for each network, as that network alone would get it."""
        return [network.prepare(content) for network in self.networks]

    def _embed_batch(self, batch: Sequence[Prepared | NearshotError]) -> list[_Embedding]:
        """Embed the squares of a batch; the others are embedded already, or errors."""
        images = [image for image in batch if not isinstance(image, NearshotError)]
        columns = []
        for number, network in enumerate(self.networks):
            parts = [image[number] for image in images]
            columns.append(network.embed_prepared(parts))
        rows = iter(zip(*columns, strict=True))
        embeddings = []
        for image in batch:
            if isinstance(image, NearshotError):
                embeddings.append(_Embedding(image))
                continue
            features = next(rows)
            new = [
                (network, part.digest, feature)
                for network, part, feature in zip(self.networks, image, features, strict=True)
                if isinstance(part, Square)
            ]
            result = features[0] if len(features) == 1 else np.concatenate(features)
            embeddings.append(_Embedding(result, new))
        return embeddings


def _batches(items: Iterator[Item], size: int) -> Iterator[list[Item]]:
    """Yield lists of `size` items; the last may be shorter."""
    while batch := list(islice(items, size)):
        yield batch


def _joined_centre(networks: Sequence[EmbeddingNetwork]) -> Features | None:
    """Return the centre of several networks' features side by side, if any has one."""
    if all(network.centre is None for network in networks):
        return None
    centres = []
    for network in networks:
        centre = network.centre
        centres.append(np.zeros(network.dim or 0, np.float32) if centre is None else centre)
    return np.concatenate(centres)


def _joined_sets(networks: Sequence[EmbeddingNetwork]) -> FeatureSets:
    """Return the feature sets of two networks' features side by side."""
    described = [
        single_set(network.dim or 0) if network.feature_sets is None else network.feature_sets
        for network in networks
    ]
    return pair_sets(*described)
