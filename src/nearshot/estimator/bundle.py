"""A classifier on disk: one safetensors file with all that it takes to classify, and no code.

The file's tensors are `support_features`, `support_labels`, `centre` if something is subtracted, and the backbone's
as in a weights file (`nearshot.models.weights`). Its metadata has `format` ("nearshot-classifier"), `version` ("1")
and `classifier`, a JSON object of all the rest.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from nearshot.errors import FileFormatError, InputError
from nearshot.io import write_tensors
from nearshot.models import Backbone
from nearshot.models.weights import backbone_content, backbone_of_content

__all__ = ["Bundle", "Learnt", "read_bundle", "write_bundle"]

FORMAT, VERSION = "nearshot-classifier", "1"
OWN_TENSORS = ("support_features", "support_labels", "centre")
KINDS_OF_LABELS = "biufU"  # NumPy's: truth values, numbers, texts
MOST_BYTES_OF_LABELS = 1 << 28  # of all classes; a type such as <U500000000 would take gigabytes for a few letters


@dataclass(frozen=True, eq=False)
class Learnt:
    """What a classifier has learnt.

    Attributes:
        classes: (class,) the labels.
        features: (image, dim) of the support images.
        codes: (image,) their places in `classes`.
        names: what the images are called.
        centre: (dim,) what is subtracted, if anything.
        temperature: what scores are divided by.
        threshold: the novelty over which a picture is unknown.
    """

    classes: npt.NDArray[Any]
    features: npt.NDArray[Any]
    codes: npt.NDArray[np.int64]
    names: list[str]
    centre: npt.NDArray[Any] | None
    temperature: float
    threshold: float


@dataclass(frozen=True, eq=False)
class Bundle:
    """What a classifier is.

    Attributes:
        learnt: what it has learnt.
        parameters: those of its constructor that JSON can hold.
        feature_names: the names of columns, where features came with some.
        backbone: what embeds pictures; None for features, and where it is a function that no file can hold.
        needs_backbone: whether it is such a function.
    """

    learnt: Learnt
    parameters: dict[str, Any]
    feature_names: list[str] | None = None
    backbone: Backbone | None = None
    needs_backbone: bool = False


def write_bundle(bundle: Bundle, path: str | Path) -> None:
    """Write a classifier to a safetensors file, whole or not at all."""
    learnt, classes, label = bundle.learnt, bundle.learnt.classes, bundle.parameters["unknown_label"]
    if classes.dtype == object and all(isinstance(one, str) for one in classes):
        classes = classes.astype(str)
    if classes.dtype.kind not in KINDS_OF_LABELS or not isinstance(label, str | int | float):
        raise InputError(f"Labels can be saved if they are texts or numbers, not {classes.dtype} and {label!r}.")
    described: dict[str, Any] = {
        "parameters": bundle.parameters,
        "classes": classes.tolist(),
        "classes_type": classes.dtype.str,
        "names": learnt.names,
        "temperature": learnt.temperature,
        "threshold": learnt.threshold if math.isfinite(learnt.threshold) else None,
        "feature_names": bundle.feature_names,
        "needs_backbone": bundle.needs_backbone,
        "backbone": None,
    }
    arrays = {"support_features": learnt.features, "support_labels": learnt.codes.astype(np.int64)}
    if learnt.centre is not None:
        arrays["centre"] = learnt.centre
    tensors = {
        name: torch.from_numpy(np.array(array, order="C")) for name, array in arrays.items()
    }  # none shares memory
    if bundle.backbone is not None:
        weights, described["backbone"] = backbone_content(bundle.backbone)
        tensors |= weights
    metadata = {"format": FORMAT, "version": VERSION, "classifier": json.dumps(described, allow_nan=False)}
    write_tensors(path, tensors, metadata)


def read_bundle(path: str | Path) -> Bundle:
    """Read a classifier. Nothing in the file is executed; one that is damaged or of another format is refused."""
    path = Path(path)
    described, tensors = _read(path)
    try:
        centre, columns, backbone = tensors.get("centre"), described["feature_names"], described["backbone"]
        learnt = Learnt(
            classes=_labels(described["classes"], described["classes_type"]),
            features=tensors["support_features"].numpy(),
            codes=tensors["support_labels"].numpy(),
            names=list(map(str, described["names"])),
            centre=None if centre is None else centre.numpy(),
            temperature=float(described["temperature"]),
            threshold=math.inf if described["threshold"] is None else float(described["threshold"]),
        )
        bundle = Bundle(
            learnt,
            parameters=dict(described["parameters"]),
            feature_names=None if columns is None else list(map(str, columns)),
            backbone=None if backbone is None else backbone_of_content(_weights(tensors), backbone, path),
            needs_backbone=bool(described["needs_backbone"]),
        )
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        if isinstance(error, FileFormatError):
            raise
        raise FileFormatError(f"{path} is damaged: its description of the classifier cannot be read.") from error
    _check(bundle, path)
    return bundle


def _read(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    if not path.is_file():
        raise InputError(f"There is no classifier file {path}.")
    try:
        with safe_open(path, "pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError, ValueError) as error:
        raise FileFormatError(f"{path} is not a safetensors file, or is damaged: {error}.") from error
    if metadata.get("format") != FORMAT:
        raise FileFormatError(f"{path} is a safetensors file, but not a classifier saved by nearshot.")
    if metadata.get("version") != VERSION:
        raise FileFormatError(
            f"{path} has format version {metadata.get('version')!r}; this nearshot reads version {VERSION}. Update it."
        )
    for name, tensor in tensors.items():
        if not tensor.isfinite().all():
            raise FileFormatError(f"{path} is damaged: its tensor {name!r} has NaN or infinity.")
    try:
        described = json.loads(metadata["classifier"])
    except (KeyError, ValueError, RecursionError):
        described = None
    if not isinstance(described, dict):
        raise FileFormatError(f"{path} is damaged: its description of the classifier cannot be read.")
    return described, tensors


def _weights(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the backbone's tensors."""
    return {name: tensor for name, tensor in tensors.items() if name not in OWN_TENSORS}


def _labels(values: list[Any], name: str) -> npt.NDArray[Any]:
    kind = np.dtype(name)
    if kind.kind not in KINDS_OF_LABELS or len(values) * kind.itemsize > MOST_BYTES_OF_LABELS:
        raise ValueError(name)
    return np.array(values, dtype=kind)


def _check(bundle: Bundle, path: Path) -> None:
    """Refuse what is not a support set: shapes that do not fit, a class without an image, a temperature of 0."""
    learnt, unknown = bundle.learnt, bundle.parameters.get("unknown_label", "")
    features, codes, n_classes = learnt.features, learnt.codes, len(learnt.classes)
    good = (
        features.ndim == 2
        and features.dtype.kind == "f"
        and codes.dtype == np.int64
        and codes.shape == (len(features),) == (len(learnt.names),)
        and learnt.classes.shape == (n_classes,)
        and sorted(set(codes.tolist())) == list(range(n_classes))
        and len(set(learnt.classes.tolist())) == n_classes > 0
        and (learnt.centre is None or learnt.centre.shape == features.shape[1:])
        and (bundle.feature_names is None or len(bundle.feature_names) == features.shape[1])
        and (bundle.backbone is None or bundle.backbone.embedding_dim == features.shape[1])
        and 0 < learnt.temperature < math.inf
        and learnt.threshold >= 0
        and isinstance(unknown, str | int | float)
        and (learnt.threshold == math.inf or unknown not in learnt.classes.tolist())
    )
    if not good:
        raise FileFormatError(f"{path} is damaged: its support images, labels and settings do not fit each other.")
