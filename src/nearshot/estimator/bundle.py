"""Save a classifier to one safetensors file, and load it. The file holds no code.

Its tensors are `support_features`, `support_labels`, `centre` (if a mean is subtracted), and the backbone's, as in a
weights file (`nearshot.models.weights`). Its metadata are `format` ("nearshot-classifier"), `version` ("1") and
`classifier`, a JSON object with everything else.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nearshot.errors import FileFormatError, InputError
from nearshot.estimator.state import ClassifierSettings, Fitted, Learnt
from nearshot.estimator.support import AUTO
from nearshot.io import read_tensors, write_tensors
from nearshot.models import Backbone
from nearshot.models.weights import backbone_content, backbone_of_content

FORMAT, VERSION = "nearshot-classifier", "1"
SETTINGS = (*ClassifierSettings._fields, "n_views")
OWN_TENSORS = ("support_features", "support_labels", "centre")
LABEL_KINDS = "biufU"  # NumPy's kinds: booleans, numbers, strings
MAX_LABEL_BYTES = 1 << 28  # of all classes; a type such as <U500000000 would take gigabytes for a few letters


def write_bundle(fitted: Fitted, path: str | Path) -> None:
    """Write a fitted classifier to a safetensors file, atomically."""
    learnt, settings, classes = fitted.learnt, fitted.settings, fitted.learnt.classes
    if classes.dtype == object and all(isinstance(one, str) for one in classes):
        classes = classes.astype(str)
    parameters = {k: v.item() if isinstance(v, np.generic) else v for k, v in settings._asdict().items()}
    if settings.classifier == "auto":
        parameters["classifier"] = AUTO.name  # whatever "auto" stands for when the file is read
    if not (settings.centre is None or isinstance(settings.centre, str)):
        parameters["centre"] = "array"
    if classes.dtype.kind not in LABEL_KINDS or not isinstance(parameters["unknown_label"], str | int | float):
        raise InputError(
            f"Saved labels must be strings or numbers (got {classes.dtype} and {settings.unknown_label!r})."
        )
    backbone = None if fitted.embedder is None else fitted.embedder.backbone
    if fitted.embedder is not None and fitted.embedder.n_views > 1:
        parameters["n_views"] = int(fitted.embedder.n_views)
    described: dict[str, Any] = {
        "parameters": parameters,
        "classes": classes.tolist(),
        "classes_type": classes.dtype.str,
        "names": learnt.names,
        "temperature": learnt.temperature,
        "threshold": learnt.threshold if math.isfinite(learnt.threshold) else None,
        "feature_names": None if learnt.columns is None else learnt.columns.tolist(),
        "needs_backbone": backbone is not None and not isinstance(backbone, Backbone),
        "backbone": None,
    }
    arrays = {"support_features": learnt.features, "support_labels": learnt.codes.astype(np.int64)}
    if learnt.centre is not None:
        arrays["centre"] = learnt.centre
    tensors = {name: torch.from_numpy(np.array(array, order="C")) for name, array in arrays.items()}  # no shared memory
    if isinstance(backbone, Backbone):
        weights, described["backbone"] = backbone_content(backbone)
        tensors |= weights
    metadata = {"format": FORMAT, "version": VERSION, "classifier": json.dumps(described, allow_nan=False)}
    write_tensors(path, tensors, metadata)


def read_bundle(path: str | Path) -> tuple[Learnt, dict[str, Any], Backbone | None, bool]:
    """Read a classifier: what it learnt, its parameters, its backbone, and whether a backbone could not be saved.

    Nothing in the file is executed; a damaged file, or one of another format, is an error.
    """
    path = Path(path)
    if not path.is_file():
        raise InputError(f"There is no classifier file {path}.")
    metadata, tensors = read_tensors(path)
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
        learnt = _parse(described, tensors)
        parameters = {name: value for name, value in described["parameters"].items() if name in SETTINGS}
        if parameters.get("centre") == "array":
            parameters["centre"] = learnt.centre
        weights = {name: tensor for name, tensor in tensors.items() if name not in OWN_TENSORS}
        content = described["backbone"]
        backbone = None if content is None else backbone_of_content(weights, content, path)
        needs_backbone = bool(described["needs_backbone"])
        is_consistent = _is_consistent(learnt, parameters, backbone)
    except FileFormatError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError, RecursionError) as error:
        raise FileFormatError(f"{path} is damaged: its description of the classifier cannot be read.") from error
    if not is_consistent:
        raise FileFormatError(f"{path} is damaged: its support images, labels and settings do not match.")
    return learnt, parameters, backbone, needs_backbone


def _parse(described: dict[str, Any], tensors: dict[str, Tensor]) -> Learnt:
    centre, columns, threshold = tensors.get("centre"), described["feature_names"], described["threshold"]
    classes, kind = described["classes"], np.dtype(described["classes_type"])
    if kind.kind not in LABEL_KINDS or len(classes) * kind.itemsize > MAX_LABEL_BYTES:
        raise ValueError(kind)
    return Learnt(
        classes=np.array(classes, dtype=kind),
        features=tensors["support_features"].numpy(),
        codes=tensors["support_labels"].numpy(),
        names=list(map(str, described["names"])),
        columns=None if columns is None else np.array(list(map(str, columns)), dtype=object),
        centre=None if centre is None else centre.numpy(),
        temperature=float(described["temperature"]),
        threshold=math.inf if threshold is None else float(threshold),
    )


def _is_consistent(learnt: Learnt, parameters: dict[str, Any], backbone: Backbone | None) -> bool:
    """Return whether shapes match, every class has an image, and the temperature and threshold are valid."""
    features, codes, n_classes = learnt.features, learnt.codes, len(learnt.classes)
    unknown = parameters.get("unknown_label", "")
    return (
        features.ndim == 2
        and features.dtype.kind == "f"
        and codes.dtype == np.int64
        and codes.shape == (len(features),) == (len(learnt.names),)
        and learnt.classes.shape == (n_classes,)
        and sorted(set(codes.tolist())) == list(range(n_classes))
        and len(set(learnt.classes.tolist())) == n_classes > 0
        and (learnt.centre is None or learnt.centre.shape == features.shape[1:])
        and (learnt.columns is None or len(learnt.columns) == features.shape[1])
        and (backbone is None or backbone.embedding_dim == features.shape[1])
        and 0 < learnt.temperature < math.inf
        and learnt.threshold >= 0
        and isinstance(unknown, str | int | float)
        and (learnt.threshold == math.inf or unknown not in learnt.classes.tolist())
    )
