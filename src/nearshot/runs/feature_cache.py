"""Features of a split on disk, so that a network embeds it once.

A file is named after the weights, the images and what is done to them. That does not tell what a
module of other code computes, so a few images are embedded again and compared with the file.
"""

import hashlib
import os
from contextlib import suppress
from pathlib import Path

import torch
from torch import Tensor, nn

from nearshot.data.store import data_folder
from nearshot.errors import NearshotError
from nearshot.io import read_tensors, write_tensors

__all__ = ["FeatureCache"]

MOST_FILES = 40  # of 30 MB each, for 12,000 images of 640 features


class FeatureCache:
    """The files of features in a folder.

    Args:
        data_dir: the folder of prepared datasets, in which the folder is.
    """

    def __init__(self, data_dir: str | Path | None) -> None:
        self.folder = data_folder(data_dir) / "embeddings" / "splits"

    def key(self, network: nn.Module, *description: object) -> str:
        """Return the hash of the weights and of what else determines the features."""
        content = hashlib.sha256(repr(description).encode())
        for name, tensor in sorted(network.state_dict().items()):
            content.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
            content.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy())
        return content.hexdigest()[:32]

    def read(self, key: str, rows: Tensor, features: Tensor, tolerance: float) -> Tensor | None:
        """Return cached features, if those of `rows` are `features`; else None.

        `tolerance` is the largest difference, relative to the length of the features.
        """
        file = self._file(key)
        if not file.is_file():
            return None
        try:
            _, tensors = read_tensors(file)
            cached = tensors["features"]
            difference = (cached[rows] - features.cpu()).norm()
        except (NearshotError, LookupError, RuntimeError):  # damaged: embed again
            return None
        if not difference <= tolerance * features.cpu().norm():
            return None
        os.utime(file)  # the oldest are removed
        return cached

    def write(self, key: str, features: Tensor) -> None:
        """Cache features; remove the files that were not used for longest."""
        with suppress(OSError, NearshotError):  # a full disk costs time only
            self.folder.mkdir(parents=True, exist_ok=True)
            write_tensors(self._file(key), {"features": features.cpu().contiguous()}, {})
            files = sorted(self.folder.glob("*.safetensors"), key=lambda file: file.stat().st_mtime)
            for file in files[:-MOST_FILES]:
                file.unlink()

    def _file(self, key: str) -> Path:
        return self.folder / f"{key}.safetensors"
