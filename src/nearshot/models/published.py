"""Published backbones, by name.

Their files are in the repository's folder `weights/`, each with a model card; the installed package does not have them.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from nearshot.errors import FileFormatError, InputError, did_you_mean

__all__ = ["PUBLISHED", "nothing_trained", "published_file"]

# Name: the sha256 of its file.
PUBLISHED: Mapping[str, str] = MappingProxyType(
    {"resnet12-nca-cifar-fs": "f78691b5d0db1d832199cb50aaf8d6fe07f5c4e788642364faef54d86222800f"}
)
FOLDER = "weights"


def published_file(name: str) -> Path:
    """Return the file of a published backbone: from $NEARSHOT_WEIGHTS, the repository, or ~/.cache/nearshot/weights."""
    folders = _folders()
    for folder in folders:
        path = folder / f"{name}.safetensors"
        if path.is_file():
            if hashlib.sha256(path.read_bytes()).hexdigest() != PUBLISHED[name]:
                raise FileFormatError(f"{path} is not the published file: it is damaged, or has another version.")
            return path
    raise InputError(
        f"The weights {name!r} are not installed. They are in the folder weights/ of nearshot's repository: copy "
        f"{name}.safetensors to {folders[-1]}, or set NEARSHOT_WEIGHTS to the folder that has it."
    )


def nothing_trained(path: str | Path, looked_for: str) -> InputError:
    """Return the error for a path that does not exist and is not the name of a published backbone either."""
    beside = Path(path).parent.iterdir() if Path(path).parent.is_dir() else ()
    return InputError(
        f"There is no {looked_for} {str(path)!r}, nor a trained backbone of that name; there are: "
        f"{', '.join(PUBLISHED)}, and timm:<model>.{did_you_mean(path, [*PUBLISHED, *beside])}"
    )


def _folders() -> list[Path]:
    given = os.environ.get("NEARSHOT_WEIGHTS")
    repository = Path(__file__).resolve().parents[3] / FOLDER
    return [*([Path(given).expanduser()] if given else []), repository, Path.home() / ".cache" / "nearshot" / FOLDER]
