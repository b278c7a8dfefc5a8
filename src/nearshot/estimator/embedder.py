"""Embed images: a backbone on its device, and a cache of its embeddings on disk."""

import hashlib
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import nn

from nearshot.checks import check_count
from nearshot.data.augment import normalise_images, view_of
from nearshot.data.images import Pixels
from nearshot.devices import chosen_device
from nearshot.errors import InputError, NearshotError
from nearshot.estimator.embedding_cache import EmbeddingCache, Features
from nearshot.estimator.read_images import (
    PREPROCESSING,
    ImageContent,
    image_list,
    image_name,
    map_ahead,
    read_each,
    without_tensors,
)
from nearshot.evaluation.leaks import check_evaluation_mode
from nearshot.models import Backbone, BackboneSpec, load_backbone
from nearshot.models.layers import fold_batch_norms
from nearshot.text import with_progress

BATCH_SIZES = {"cuda": 256, "cpu": 8}  # a CPU's caches hold the maps of a few images
DEFAULT_SIZE = 224  # the side of images for a network or function without `input_size`

Item = TypeVar("Item")


@dataclass(frozen=True)
class _Square:
    """An image that is to be embedded: its digest, and its pixels (side, side, 3)."""

    digest: str
    pixels: Pixels


@dataclass(frozen=True)
class _Embedding:
    """The feature of an image, (dim,), or its error; a new one has the digest to cache it by."""

    result: Features | NearshotError
    new_digest: str | None = None


class Embedder:
    """Embeds images: a list of paths, Pillow images or uint8 arrays in, features (image, dim) out.

    Args:
        backbone: a `Backbone` in evaluation mode, or a path or name for `load_backbone`: a weights
            file, "auto", "efficientnet-lite0", `timm:<name>`, …. Or any other network in evaluation
            mode, called with images (image, 3, side, side) normalised as for ImageNet. Or any
            function, called with a uint8 array (image, side, side, 3). An attribute `input_size` of
            the latter two gives the side; the default is 224.
        device: "cpu", "cuda", …; "auto" is a GPU if there is one.
        cache_dir: a folder that caches embeddings of a `Backbone` by content; None for no cache.
        batch_size: how many images to embed at once; by default 8, and 256 on a GPU.
        copy: whether to copy a given network, so that the caller's is not moved or changed. False
            saves memory.
        input_size: the side that images are resized to; by default the network's own.
        n_views: the number of views of each image whose embeddings a network averages: the image,
            its mirror image, and crops; see `nearshot.data.augment`.

    Attributes:
        centre: (dim,) the mean feature of the backbone's training set, if it is stored.
        key: identifies the weights and the preprocessing; None without a `Backbone`.
        dim: the dimension of a feature; None for a function that has not been called.
        spec: the `BackboneSpec`: the side that images are resized to, how they are, and how they
            are normalised.
        backbone: the network, on its device, or the function.

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
    ) -> None:
        if input_size is not None:
            check_count(input_size, "input_size")
        check_count(n_views, "n_views")
        self.device = chosen_device(device)
        self.n_views = int(n_views)
        self.batch_size = batch_size or BATCH_SIZES.get(self.device.type, BATCH_SIZES["cpu"])
        if isinstance(backbone, str | Path):
            backbone = load_backbone(backbone, input_size=input_size)
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
        self.centre: Features | None = None
        self.key: str | None = None
        self.dim: int | None = None
        self.cache: EmbeddingCache | None = None
        if isinstance(backbone, Backbone):
            if input_size is not None:
                backbone.set_input_size(input_size)
            self.spec = backbone.spec
            self.dim = backbone.embedding_dim
            if backbone.spec.training_mean is not None:
                mean = backbone.spec.training_mean.detach().cpu().float()
                self.centre = mean.clone().numpy()
            self.key = _cache_key(backbone, self.n_views)
            if cache_dir is not None:
                self.cache = EmbeddingCache(cache_dir, self.key, self.dim)
        else:
            if input_size is None:
                input_size = getattr(backbone, "input_size", DEFAULT_SIZE)
            self.spec = BackboneSpec(type(backbone).__name__, int(input_size))

    @property
    def look_alike_cosine(self) -> float | None:
        """The cosine of embeddings from which two images of a class look alike, if it is known."""
        return self.spec.look_alike_cosine

    @cached_property
    def network(self) -> nn.Module | None:
        """The network, with the batch norms of a `Backbone` folded; None for a function."""
        if isinstance(self.backbone, Backbone):
            return fold_batch_norms(self.backbone)
        return self.backbone if isinstance(self.backbone, nn.Module) else None

    def __getstate__(self) -> dict[str, Any]:
        # Without the network, which is made again from the backbone: half the size.
        return {name: value for name, value in vars(self).items() if name != "network"}

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
            if embedding.new_digest is not None:
                self._store(embedding.new_digest, result)
            if isinstance(self.backbone, Backbone) and not result.any():
                name = image_name(images[number], number)
                yield InputError(
                    f"The network returns zeros for {name}, which is too small for it. "
                    "Use a larger input_size."
                )
            else:
                yield result
        if self.cache is not None:
            self.cache.prune()

    def _embeddings(self, images: Sequence[Any]) -> Iterator[_Embedding]:
        """Yield the embeddings of images in order, computed in threads, a few batches ahead."""
        # Threads that share a batch wait for each other after every layer, which is slow where
        # other programs run as well. So each thread of a CPU has a batch of its own. A network or
        # function of the user has one thread.
        is_parallel = isinstance(self.network, Backbone) and self.device.type == "cpu"
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

    def _prepare(self, content: ImageContent) -> Features | _Square:
        """Return the cached embedding of an image, or its pixels as the backbone needs them."""
        if self.cache is not None:
            feature = self.cache.get(content.digest)
            if feature is not None:
                return feature
        spec = self.spec
        pixels = content.square(spec.input_size, spec.interpolation, spec.crop)
        return _Square(content.digest, pixels)

    def _embed_batch(self, batch: list[Features | NearshotError | _Square]) -> list[_Embedding]:
        """Embed the squares of a batch; the others are embedded already, or errors."""
        squares = [image.pixels for image in batch if isinstance(image, _Square)]
        new_features = iter(self.embed_squares(np.stack(squares)) if squares else ())
        embeddings = []
        for image in batch:
            if isinstance(image, _Square):
                embeddings.append(_Embedding(next(new_features), image.digest))
            else:
                embeddings.append(_Embedding(image))
        return embeddings

    def _store(self, digest: str, feature: Features) -> None:
        """Cache a feature; if that fails, such as on a full disk, warn and cache no more."""
        if self.cache is None:
            return
        try:
            self.cache.put(digest, feature)
        except (OSError, NearshotError) as error:
            warnings.warn(f"Embeddings are not cached: {error}", stacklevel=3)
            self.cache = None

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
        """Return the mean embedding of the views of each image, (image, dim)."""
        side = squares.shape[1]
        features = []
        with torch.inference_mode():
            images = torch.from_numpy(squares).to(self.device)
            for number in range(self.n_views):
                view = view_of(images, number, side)
                features.append(network(normalise_images(view, *self.spec.normalisation)))
            mean: Features = torch.stack(features).float().mean(0).cpu().numpy()
        return mean


def _batches(items: Iterator[Item], size: int) -> Iterator[list[Item]]:
    """Yield lists of `size` items; the last may be shorter."""
    while batch := list(islice(items, size)):
        yield batch


def _cache_key(backbone: Backbone, n_views: int) -> str:
    """Return a hash of the weights and of everything that is done to an image before them."""
    spec = backbone.spec
    description = (
        spec.name,
        spec.input_size,
        tuple(spec.normalisation),
        spec.interpolation,
        spec.crop,
        PREPROCESSING,
        n_views,
    )
    key = hashlib.sha256(repr(description).encode())
    for name, tensor in sorted(backbone.state_dict().items()):
        key.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
        key.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return key.hexdigest()
