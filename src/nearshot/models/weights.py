"""Backbones on disk: one safetensors file with the weights and all that is needed to use them, and no code.

The file's tensors are `backbone.<parameter or buffer>` and, if known, `training_mean`. Its metadata has `format`
("nearshot-backbone"), `version` ("1") and `spec`, a JSON object of name, input_size, mean, std and free-form notes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from nearshot.errors import FileFormatError, InputError
from nearshot.files import write_whole
from nearshot.models.backbone import Backbone, Normalisation
from nearshot.models.pretrained import PREFIX as TIMM_PREFIX
from nearshot.models.pretrained import TimmBackbone
from nearshot.models.registry import BACKBONES, build_backbone

__all__ = ["load_backbone", "read_notes", "save_backbone"]

FORMAT, VERSION = "nearshot-backbone", "1"
LARGEST_INPUT = 4096


def save_backbone(
    backbone: Backbone,
    path: str | Path,
    *,
    training_mean: Tensor | None = None,
    dtype: torch.dtype | None = None,
    notes: Mapping[str, str] | None = None,
) -> None:
    """Write a backbone to a safetensors file, whole or not at all.

    Args:
        backbone: made by `build_backbone`; its `spec` is written too.
        path: the file, by custom ending in `.safetensors`.
        training_mean: (dim,) the mean embedding of the training set; by default the one in the backbone's `spec`.
        dtype: store floating-point tensors in this type, such as torch.float16; by default as they are.
        notes: anything worth knowing (data, command, accuracy), as text.

    """
    mean = backbone.spec.training_mean if training_mean is None else training_mean
    tensors = {f"backbone.{name}": tensor for name, tensor in backbone.state_dict().items()}
    if mean is not None:
        _check_mean(mean, backbone)
        tensors["training_mean"] = mean
    tensors = {name: _stored(name, tensor, dtype) for name, tensor in tensors.items()}
    spec = {
        "name": backbone.spec.name,
        "input_size": backbone.spec.input_size,
        "mean": list(backbone.spec.normalisation.mean),
        "std": list(backbone.spec.normalisation.std),
        "notes": dict(notes or {}),
    }
    metadata = {"format": FORMAT, "version": VERSION, "spec": json.dumps(spec)}
    with write_whole(path) as file:
        file.write(safetensors.torch.save(tensors, metadata))


def load_backbone(path_or_name: str | Path) -> Backbone:
    """Return a trained backbone, in evaluation mode and float32: from a file, or by name `timm:<model>`.

    Nothing in the file is executed; a file that is damaged, of another format or of another network is refused.
    """
    if str(path_or_name).startswith(TIMM_PREFIX):
        return TimmBackbone(str(path_or_name), pretrained=True).eval()
    path = Path(path_or_name)
    if not path.is_file():
        raise InputError(f"There is no weights file {str(path)!r}, and no trained backbone of that name.")
    spec, tensors = _read(path)
    name = spec["name"]
    if name not in BACKBONES and not (name.startswith(TIMM_PREFIX) and _is_plain(name.removeprefix(TIMM_PREFIX))):
        raise FileFormatError(f"{path} is for a backbone {name!r}, which this version of nearshot does not have.")
    backbone = build_backbone(name, input_size=spec["input_size"])
    mean = tensors.pop("training_mean", None)
    weights = {key.removeprefix("backbone."): tensor for key, tensor in tensors.items()}
    _check_fit(weights, backbone, path)
    backbone.load_state_dict(weights)
    if mean is not None:
        _check_mean(mean, backbone)
    normalisation = Normalisation(tuple(spec["mean"]), tuple(spec["std"]))
    backbone.spec = replace(backbone.spec, normalisation=normalisation, training_mean=mean)
    return backbone.eval()


def read_notes(path: str | Path) -> dict[str, str]:
    """Return the notes that were saved with a backbone."""
    notes: dict[str, str] = _read_spec(Path(path))["notes"]
    return notes


def _read(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    spec = _read_spec(path)
    try:
        tensors = safetensors.torch.load_file(path)
    except (SafetensorError, ValueError) as error:
        raise FileFormatError(f"{path} is damaged: {error}.") from error
    return spec, {name: tensor.float() if tensor.is_floating_point() else tensor for name, tensor in tensors.items()}


def _read_spec(path: Path) -> dict[str, Any]:
    try:
        with safe_open(path, "pt") as file:
            metadata = file.metadata() or {}
    except SafetensorError as error:
        raise FileFormatError(
            f"{path} is not a safetensors file, or is damaged ({error}). Other formats are not read: they can run code."
        ) from error
    if metadata.get("format") != FORMAT:
        raise FileFormatError(f"{path} is a safetensors file, but not a backbone saved by nearshot.")
    if metadata.get("version") != VERSION:
        raise FileFormatError(
            f"{path} has format version {metadata.get('version')!r}; this nearshot reads version {VERSION}. Update it."
        )
    try:
        spec = json.loads(metadata["spec"])
        valid = (
            isinstance(spec["name"], str)
            and type(spec["input_size"]) is int
            and 1 <= spec["input_size"] <= LARGEST_INPUT
            and all(_three_numbers(spec[key]) for key in ("mean", "std"))
            and all(isinstance(k, str) and isinstance(v, str) for k, v in spec["notes"].items())
        )
    except (KeyError, TypeError, AttributeError, ValueError):
        valid = False
    if not valid:
        raise FileFormatError(f"{path} is damaged: its description of the backbone cannot be read.")
    return dict(spec)


def _three_numbers(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 3 and all(isinstance(x, float | int) for x in value)


def _is_plain(model_name: str) -> bool:
    """Whether a name can only mean a model of the installed library, not an address to fetch one from."""
    return all(character.isalnum() or character in "._-" for character in model_name)


def _stored(name: str, tensor: Tensor, dtype: torch.dtype | None) -> Tensor:
    tensor = tensor.detach().cpu()
    if not tensor.isfinite().all():
        raise InputError(f"{name} has NaN or infinity; a broken backbone is not saved.")
    if dtype is None or not tensor.is_floating_point():
        return tensor.contiguous()
    stored = tensor.to(dtype).contiguous()
    if not stored.isfinite().all():
        raise InputError(f"{name} does not fit {dtype}; save it in float32 or bfloat16.")
    return stored


def _check_mean(mean: Tensor, backbone: Backbone) -> None:
    if tuple(mean.shape) != (backbone.embedding_dim,):
        raise InputError(
            f"The training-set mean must have shape ({backbone.embedding_dim},) like an embedding, "
            f"not {tuple(mean.shape)}."
        )


def _check_fit(weights: dict[str, Tensor], backbone: Backbone, path: Path) -> None:
    expected = backbone.state_dict()
    for name in expected.keys() | weights.keys():
        if name not in weights:
            raise FileFormatError(f"{path} lacks the tensor {name!r} of {backbone.spec.name}.")
        if name not in expected:
            raise FileFormatError(f"{path} has a tensor {name!r} that {backbone.spec.name} does not have.")
        if weights[name].shape != expected[name].shape:
            raise FileFormatError(
                f"{path} has {name!r} of shape {tuple(weights[name].shape)}; {backbone.spec.name} needs "
                f"{tuple(expected[name].shape)}."
            )
