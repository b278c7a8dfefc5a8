"""Embed images: a backbone on its device, and a cache of its embeddings on disk."""

import contextlib
import hashlib
import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from functools import cached_property, partial
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from nearshot.checks import check_count, is_integer
from nearshot.data.augment import normalise_images, view_of
from nearshot.data.images import Pixels
from nearshot.devices import chosen_device
from nearshot.errors import InputError, NearshotError
from nearshot.estimator.read_images import (
    PREPROCESSING,
    ImageContent,
    image_list,
    map_ahead,
    image_name,
    read_each,
    without_tensors,
)
from nearshot.evaluation.features import check_evaluation_mode
from nearshot.io import atomic_write
from nearshot.models import Backbone, BackboneSpec, load_backbone
from nearshot.models.layers import fold_batch_norms
from nearshot.text import with_progress

BATCH_SIZES = {"cuda": 256, "cpu": 8}  # a CPU's caches hold the maps of a few images
DEFAULT_SIZE = 224  # the side of images for a network or function without `input_size`
MAX_CACHED = 50_000  # per network: 200 MB at 640 dimensions
CHECK_BYTES = 16

Features = npt.NDArray[np.float32]


class Embedder:
    """Embeds images: a list of paths, Pillow images or uint8 arrays in, features (image, dim) float32 out.

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
        backbone: str | Path | Backbone | nn.Module | Callable[[Pixels], Any],
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
        self.device, self.n_views = chosen_device(device), n_views
        self.batch_size = batch_size or BATCH_SIZES.get(self.device.type, BATCH_SIZES["cpu"])
        if isinstance(backbone, str | Path):
            backbone, copy, input_size = load_backbone(backbone, input_size=input_size), False, None
        most = math.inf if isinstance(backbone, nn.Module) else 1
        if not is_integer(n_views) or not 1 <= n_views <= most:
            raise InputError(
                f"n_views must be a whole number of at least 1, and 1 for a function (got {n_views!r})."
            )
        check_evaluation_mode(backbone)
        self.backbone: Callable[..., Any] = backbone
        self.centre: Features | None = None
        self.key: str | None = None
        self.dim: int | None = None
        self.cache: EmbeddingCache | None = None
        side = getattr(backbone, "input_size", DEFAULT_SIZE) if input_size is None else input_size
        self.spec = BackboneSpec(type(backbone).__name__, int(side))
        if isinstance(backbone, nn.Module):
            network = deepcopy(backbone) if copy else backbone
            # Channels last is faster, on a CPU as well.
            self.backbone = network.to(self.device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        if isinstance(self.backbone, Backbone):
            if input_size is not None:
                self.backbone.set_input_size(input_size)
            self.spec, self.dim = self.backbone.spec, self.backbone.embedding_dim
            mean = self.spec.training_mean
            self.centre = None if mean is None else mean.detach().cpu().float().clone().numpy()
            self.key = _key(self.backbone, n_views)
            if cache_dir is not None:
                self.cache = EmbeddingCache(cache_dir, self.key, self.dim)

    @cached_property
    def network(self) -> nn.Module | None:
        """The network, with the batch norms of a `Backbone` folded; None for a function."""
        if isinstance(self.backbone, Backbone):
            return fold_batch_norms(self.backbone)
        return self.backbone if isinstance(self.backbone, nn.Module) else None

    def __getstate__(self) -> dict[str, Any]:
        return {
            name: value for name, value in vars(self).items() if name != "network"
        }  # half the size

    def __call__(self, images: Any, *, progress: bool | None = False) -> Features:
        """Embed images, or one array of them: (image, dim). An image that cannot be read is an error.

        `progress`: whether to show a progress bar; None shows it on a terminal.
        """
        found = self.attempt(images, progress=progress)
        bad = [one for one in found if isinstance(one, NearshotError)]
        if bad:
            more = (
                f" ({len(bad) - 1} more of {len(found)} images cannot be read.)"
                if len(bad) > 1
                else ""
            )
            raise type(bad[0])(f"{bad[0]}{more}") from bad[0]
        return np.stack([one for one in found if not isinstance(one, NearshotError)])

    def attempt(
        self, images: Any, *, progress: bool | None = False
    ) -> list[Features | NearshotError]:
        """Embed the readable images: (dim,) for each image, or the error of an unreadable one."""
        images = image_list(images)
        if not images:
            raise InputError("There must be at least 1 image to embed (got 0).")
        numbers = with_progress(range(len(images)), "embedding", show=progress)
        return [one for _, one in zip(numbers, self.stream(images), strict=True)]

    def stream(self, images: Sequence[Any]) -> Iterator[Features | NearshotError]:
        """Yield what `attempt` returns for each image, in order, while later images are read and embedded.

        A feature of zeros has no direction. Backbones return it for images that are far too small
        for them.
        """
        # Threads that share a batch wait for each other after every layer, which is slow where
        # other programs run as well. So each thread of a CPU has a batch of its own. A network or
        # function of the user has one thread.
        is_parallel = isinstance(self.network, Backbone) and self.device.type == "cpu"
        n_threads = torch.get_num_threads() if is_parallel else 1
        pool = ThreadPoolExecutor(
            n_threads, initializer=partial(torch.set_num_threads, 1) if n_threads > 1 else None
        )
        read = read_each(images, self._prepare)
        batches = iter(lambda: list(islice(read, self.batch_size)), [])
        embedded = map_ahead(pool, self._embed_batch, batches, 2 * n_threads + 1)
        try:
            for number, (digest, one) in enumerate(chain.from_iterable(embedded)):
                if digest is not None and self.cache is not None:
                    try:
                        self.cache.put(digest, one)
                    except (OSError, NearshotError) as error:  # such as a full disk
                        warnings.warn(f"Embeddings are not cached: {error}", stacklevel=2)
                        self.cache = None
                if (
                    isinstance(self.backbone, Backbone)
                    and isinstance(one, np.ndarray)
                    and not one.any()
                ):
                    name = image_name(images[number], number)
                    yield InputError(
                        f"The network sees nothing in {name}. Use a larger --input-size."
                    )
                else:
                    yield one
        finally:
            embedded.close()
            if n_threads > 1:
                torch.set_num_threads(n_threads)  # MKL has one number for all threads
        if self.cache is not None:
            self.cache.prune()

    def _prepare(self, content: ImageContent) -> Features | tuple[str, Pixels]:
        """Return the cached embedding of an image, or its digest and its pixels as the backbone needs them."""
        known = None if self.cache is None else self.cache.get(content.digest)
        if known is not None:
            return known
        return content.digest, content.square(
            self.spec.input_size, self.spec.interpolation, self.spec.crop
        )

    def _embed_batch(self, batch: list[Any]) -> list[tuple[str | None, Any]]:
        """Return the digest and the embedding of each image; None and what it is, if it is cached or an error."""
        squares = [one[1] for one in batch if isinstance(one, tuple)]
        new = iter(self.embed_squares(np.stack(squares)) if squares else ())
        return [(one[0], next(new)) if isinstance(one, tuple) else (None, one) for one in batch]

    def embed_squares(self, squares: Pixels) -> Features:
        """Embed images of the right size, (image, side, side, 3) uint8, in one batch and without the cache."""
        if self.network is None:
            features = np.asarray(without_tensors(self.backbone(squares)), dtype=np.float32)
        else:
            with torch.inference_mode():
                given, side = torch.from_numpy(squares).to(self.device), squares.shape[1]
                views = [view_of(given, number, side) for number in range(self.n_views)]
                embedded = [
                    self.network(normalise_images(view, *self.spec.normalisation)) for view in views
                ]
                features = torch.stack(embedded).float().mean(0).cpu().numpy()
        if (
            features.ndim != 2
            or len(features) != len(squares)
            or (self.dim or features.shape[1]) != features.shape[1]
        ):
            expected = f"({len(squares)}, {self.dim or 'dim'})"
            raise InputError(
                f"backbone must return features of shape {expected} (got {features.shape})."
            )
        self.dim = features.shape[1]
        return features


def _key(backbone: Backbone, n_views: int) -> str:
    spec = backbone.spec
    preprocessing = (
        spec.input_size,
        tuple(spec.normalisation),
        spec.interpolation,
        spec.crop,
        PREPROCESSING,
    )
    several = (
        (n_views,) if n_views > 1 else ()
    )  # with one view, the key is that of earlier versions
    described = hashlib.sha256(repr((spec.name, *preprocessing, *several)).encode())
    for name, tensor in sorted(backbone.state_dict().items()):
        described.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
        described.update(
            tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data
        )
    return described.hexdigest()


class EmbeddingCache:
    """The cached embeddings, of dimension `dim`, of the network with some `key`, by the content of the image.

    There is one folder per network, and one small file per image. Files are written atomically and
    have a checksum, so several processes can share a folder, and it can be deleted at any time.
    """

    def __init__(self, folder: str | Path, key: str, dim: int) -> None:
        self.folder, self.dim = Path(folder).expanduser() / key[:32], dim

    def get(self, digest: str) -> Features | None:
        """Return the embedding of an image; None if it is missing or damaged."""
        try:
            data = (self.folder / f"{digest}.f32").read_bytes()
        except OSError:
            return None
        check, values = data[:CHECK_BYTES], data[CHECK_BYTES:]
        if len(values) != 4 * self.dim or _check(values) != check:
            return None  # the next `put` replaces it
        return np.frombuffer(values, "<f4").astype(np.float32)

    def put(self, digest: str, feature: Features) -> None:
        """Store the embedding of an image."""
        values = feature.astype("<f4").tobytes()
        self.folder.mkdir(parents=True, exist_ok=True)
        with atomic_write(self.folder / f"{digest}.f32", durable=False) as file:
            file.write(_check(values) + values)

    def prune(self) -> None:
        """Remove the oldest entries above the limit."""
        entries = list(self.folder.glob("*.f32"))
        if len(entries) > MAX_CACHED:
            with contextlib.suppress(FileNotFoundError):  # another process removes them as well
                entries.sort(key=lambda path: path.stat().st_mtime)
                for path in entries[: len(entries) - MAX_CACHED * 9 // 10]:
                    path.unlink()


def _check(values: bytes) -> bytes:
    return hashlib.blake2b(values, digest_size=CHECK_BYTES).digest()
