"""Small archives in the layouts in which datasets are distributed, and images for them."""

import gzip
import io
import json
import pickle
import tarfile
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from nearshot.data.store import FORMAT, HASH_BYTES, VERSION

Pixels = npt.NDArray[np.uint8]


def picture(seed: int, side: int = 32, width: int | None = None) -> Pixels:
    """An image that no other seed gives."""
    return np.random.default_rng(seed).integers(0, 256, (side, width or side, 3), dtype=np.uint8)


def encoded(pixels: Pixels, kind: str = "PNG") -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, kind)
    return file.getvalue()


def write_zip(path: Path, members: Mapping[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return path


def write_tar(path: Path, members: Mapping[str, bytes]) -> Path:
    content = tar_bytes(members)
    path.write_bytes(gzip.compress(content) if path.name.endswith("gz") else content)
    return path


def tar_bytes(members: Mapping[str, bytes]) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return file.getvalue()


def write_folder(path: Path, members: Mapping[str, bytes]) -> Path:
    for name, data in members.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(data)
    return path


def class_folders(
    classes: Iterable[str], per_class: int = 2, prefix: str = "", side: int = 32
) -> dict[str, bytes]:
    """<prefix><class>/<number>.png for every class; the seeds of the images are 0, 1, …."""
    members: dict[str, bytes] = {}
    for name in classes:
        for i in range(per_class):
            members[f"{prefix}{name}/{i}.png"] = encoded(picture(len(members), side))
    return members


class Call:
    """Pickles to a call of any function."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.call = (function, arguments)

    def __reduce__(self) -> Any:
        return self.call


def python2_pickle(value: Any) -> bytes:
    """A pickle in the old protocol in which CIFAR-100's are written."""
    return pickle.dumps(value, protocol=2)


def write_sparse_split(folder: Path, n_images: int, side: int, marked: Iterable[int]) -> Path:
    """A split of any size in the store's own format, quickly: black but for some marked images.

    Image i is `picture(i, side)` if i is marked. What was never written takes no room on the disk,
    and is read as zeros. The split can be opened, but not verified.
    """
    folder.mkdir(parents=True)
    with (folder / "images.u8").open("wb") as file:
        file.truncate(n_images * side * side * 3)
        for index in marked:
            pixels = picture(index, side)
            file.seek(index * pixels.nbytes)
            file.write(pixels.tobytes())
    with (folder / "hashes.bin").open("wb") as file:
        file.truncate(n_images * HASH_BYTES)
    np.save(folder / "labels.npy", np.arange(n_images) % 100)
    manifest = {
        "format": FORMAT,
        "version": VERSION,
        "dataset": "large",
        "split": folder.name,
        "n_images": n_images,
        "side": side,
        "fit": "crop",
        "interpolation": "none",
        "class_names": [f"class {label:02}" for label in range(100)],
        "broken": [],
        "origin": None,
        "source": "none",
        "preparation": {},
        "fingerprint": "none",
    }
    (folder / "manifest.json").write_text(json.dumps(manifest))
    return folder
