"""From pictures to features: a backbone on its device, and a cache of what it has embedded before."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from nearshot.data.augment import normalise_images
from nearshot.data.images import Pixels
from nearshot.devices import chosen_device
from nearshot.errors import InputError, NearshotError
from nearshot.estimator.arrays import without_tensors
from nearshot.estimator.cache import EmbeddingCache
from nearshot.estimator.inputs import PREPROCESSING, Content, picture_list, read_each
from nearshot.evaluation.features import check_evaluation_mode
from nearshot.models import IMAGENET, Backbone, Normalisation, load_backbone
from nearshot.progress import with_progress

__all__ = ["Embedder"]

AT_ONCE = {"cuda": 256, "cpu": 32}
USUAL_SIZE = 224  # of the pictures that a network or function takes which does not say

Features = npt.NDArray[np.float32]


class Embedder:
    """Embeds pictures: paths, Pillow images or uint8 arrays in, features (picture, dim) float32 out.

    Args:
        backbone: a `Backbone` in evaluation mode, or the path of a weights file, or the name of one that is published
            or timm's (`timm:<name>`). Or any other network in evaluation mode, which is given images (image, 3, side,
            side) normalised as ImageNet's are; or any function, which is given a uint8 array (image, side, side, 3).
            These say what side they want by an attribute `input_size`; without, it is 224.
        device: "cpu", "cuda", …; "auto" is a GPU if there is one.
        cache_dir: a folder to keep embeddings in, so that a picture is embedded once; None for none. Only a
            backbone's embeddings are kept: nothing tells two other networks or functions apart.
        batch_size: how many pictures to embed at once; by default 32, and 256 on a GPU.
        copy: whether a network that is given is copied, so that it stays where and how it is. False takes it over, and
            saves the memory of a second one; what is loaded by a path or a name is never copied.

    Attributes:
        centre: (dim,) the backbone's mean feature of its training set, if it has one.
        key: identifies the weights and how pictures become their input; None where nothing does.
        input_size: the side that pictures are brought to.
        normalisation: what images are then normalised with, if a network is to embed them.
        network: that network on its device; None for a function.
        backbone: the network, or the function.

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
    ) -> None:
        if batch_size is not None and batch_size < 1:
            raise InputError(f"batch_size must be at least 1, not {batch_size}.")
        self.device = chosen_device(device)
        self.batch_size = batch_size or AT_ONCE.get(self.device.type, AT_ONCE["cpu"])
        if isinstance(backbone, str | Path):
            backbone, copy = load_backbone(backbone), False  # nobody else has it
        if not callable(backbone):
            raise InputError(
                f"A backbone is a path, a name, a network or a function of pictures, not {type(backbone).__name__}."
            )
        check_evaluation_mode(backbone)
        self.centre: Features | None = None
        self.key: str | None = None
        self.dim: int | None = None  # known of a backbone, and of anything once it was called
        self.cache: EmbeddingCache | None = None
        self.input_size = int(getattr(backbone, "input_size", USUAL_SIZE))
        self.normalisation: Normalisation = IMAGENET
        self.network: nn.Module | None = None
        if isinstance(backbone, nn.Module):
            network = deepcopy(backbone) if copy else backbone
            # Channels last is faster on a CPU too.
            self.network = network.to(self.device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.backbone = backbone if self.network is None else self.network  # one of the two, also in a pickle
        if isinstance(backbone, Backbone):
            spec = backbone.spec
            self.input_size, self.normalisation, self.dim = spec.input_size, spec.normalisation, backbone.embedding_dim
            mean = spec.training_mean
            self.centre = None if mean is None else mean.detach().cpu().float().clone().numpy()
            self.key = _key(backbone)
            if cache_dir is not None:
                self.cache = EmbeddingCache(cache_dir, self.key, self.dim)

    def __call__(self, pictures: Any, *, progress: bool | None = False) -> Features:
        """Embed pictures: (picture, dim). One that cannot be read is an error that names it.

        Args:
            pictures: a list of paths, Pillow images and uint8 arrays, or one array of all.
            progress: whether to show a bar; None shows it on a terminal.
        """
        found = self.attempt(pictures, progress=progress)
        bad = [one for one in found if isinstance(one, NearshotError)]
        if bad:
            more = f" ({len(bad) - 1} more of the {len(found)} cannot be used either.)" if len(bad) > 1 else ""
            raise type(bad[0])(f"{bad[0]}{more}") from bad[0]
        return np.stack([one for one in found if not isinstance(one, NearshotError)])

    def attempt(self, pictures: Any, *, progress: bool | None = False) -> list[Features | NearshotError]:
        """Embed what can be read: (dim,) for each picture, or the error that says why not."""
        pictures = picture_list(pictures)
        if not pictures:
            raise InputError("There are no pictures to embed.")
        found: dict[int, Features | NearshotError] = {}
        waiting: list[tuple[int, Content, Pixels]] = []
        read = read_each(pictures, self._prepare)
        for number in with_progress(range(len(pictures)), "embedding", show=progress):
            one = next(read)
            if isinstance(one, tuple):
                waiting.append((number, *one))
            else:
                found[number] = one
            if waiting and (len(waiting) == self.batch_size or number == len(pictures) - 1):
                features = self.embed_squares(np.stack([square for _, _, square in waiting]))
                for (place, content, _), feature in zip(waiting, features, strict=True):
                    found[place] = feature
                    self._keep(content.digest, feature)
                waiting.clear()
        if self.cache is not None:
            self.cache.prune()
        return [found[number] for number in range(len(pictures))]

    def embed_squares(self, squares: Pixels) -> Features:
        """Embed pictures of the right size, (picture, side, side, 3) uint8, without the cache and all at once."""
        if self.network is None:
            features = np.asarray(without_tensors(self.backbone(squares)), dtype=np.float32)
        else:
            with torch.inference_mode():
                features = self.network(self._normalised(squares)).float().cpu().numpy()
        if features.ndim != 2 or len(features) != len(squares) or (self.dim or features.shape[1]) != features.shape[1]:
            dim = "dim" if self.dim is None else self.dim
            raise InputError(
                f"The backbone gave features of shape {features.shape} for {len(squares)} pictures; "
                f"it must be ({len(squares)}, {dim})."
            )
        self.dim = features.shape[1]
        return features

    def _normalised(self, squares: Pixels) -> Tensor:
        images = torch.from_numpy(squares).to(self.device).permute(0, 3, 1, 2)  # channels last in memory, as they lie
        return normalise_images(images.float().div_(255), *self.normalisation)

    def _prepare(self, content: Content) -> Features | tuple[Content, Pixels]:
        known = None if self.cache is None else self.cache.get(content.digest)
        return known if known is not None else (content, content.square(self.input_size))

    def _keep(self, digest: str, feature: Features) -> None:
        if self.cache is None:
            return
        try:
            self.cache.put(digest, feature)
        except (OSError, NearshotError) as error:  # a full disk, no right to write: no reason to stop
            warnings.warn(f"Embeddings are not kept in {self.cache.folder}: {error}", stacklevel=2)
            self.cache = None


def _key(backbone: Backbone) -> str:
    """Return a SHA-256 of the weights, the network's name and how pictures become its input."""
    spec = backbone.spec
    described = hashlib.sha256(repr((spec.name, spec.input_size, tuple(spec.normalisation), PREPROCESSING)).encode())
    for name, tensor in sorted(backbone.state_dict().items()):
        described.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
        described.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return described.hexdigest()
