"""Save a classifier to one safetensors file, and load it. The file holds no code.

Its tensors are `support_features`, `support_labels`, `centre` (if a mean is subtracted), and the
backbone's, as in a weights file (`nearshot.models.weights`). Its metadata are `format`
("nearshot-classifier"), `version` ("1") and `classifier`, a JSON object with everything else.
"""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import torch

from nearshot.errors import FileFormatError, InputError
from nearshot.estimator.state import ClassifierSettings, Fitted
from nearshot.estimator.support import AUTO
from nearshot.io import read_tensors, write_tensors
from nearshot.models import Backbone
from nearshot.models.weights import backbone_content, backbone_of_content

FORMAT, VERSION = "nearshot-classifier", "1"
SETTINGS = (*ClassifierSettings._fields, "n_views")
OWN_TENSORS = ("support_features", "support_labels", "centre")
LABEL_KINDS = "biufU"  # NumPy's kinds: booleans, numbers, strings
MAX_LABEL_BYTES = (
    1 << 28
)  # of all classes; a type such as <U500000000 would take gigabytes for a few letters


def write_bundle(fitted: Fitted, path: str | Path) -> None:
    """Write a fitted classifier to a safetensors file, atomically."""
    settings, classes = fitted.settings, fitted.classes
    if classes.dtype == object and all(isinstance(one, str) for one in classes):
        classes = classes.astype(str)
    parameters = {
        k: v.item() if isinstance(v, np.generic) else v for k, v in settings._asdict().items()
    }
    if settings.classifier == "auto":
        parameters["classifier"] = AUTO.name  # whatever "auto" stands for when the file is read
    if not (settings.centre is None or isinstance(settings.centre, str)):
        parameters["centre"] = "array"
    if classes.dtype.kind not in LABEL_KINDS or not isinstance(
        parameters["unknown_label"], str | int | float
    ):
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
        "names": fitted.names,
        "temperature": fitted.temperature,
        "threshold": fitted.threshold if math.isfinite(fitted.threshold) else None,
        "feature_names": None if fitted.columns is None else fitted.columns.tolist(),
        "needs_backbone": backbone is not None and not isinstance(backbone, Backbone),
        "backbone": None,
    }
    arrays = {"support_features": fitted.features, "support_labels": fitted.codes.astype(np.int64)}
    if fitted.centre is not None:
        arrays["centre"] = fitted.centre
    tensors = {
        name: torch.from_numpy(np.array(array, order="C")) for name, array in arrays.items()
    }  # no shared memory
    if isinstance(backbone, Backbone):
        weights, described["backbone"] = backbone_content(backbone)
        tensors |= weights
    metadata = {
        "format": FORMAT,
        "version": VERSION,
        "classifier": json.dumps(described, allow_nan=False),
    }
    write_tensors(path, tensors, metadata)


def read_bundle(path: str | Path) -> tuple[dict[str, Any], dict[str, Any], Backbone | None, bool]:
    """Read a classifier: fields of `Fitted`, its parameters, its backbone, and whether a backbone could not be saved.

    Nothing in the file is executed; a damaged file, or one of another format, is an error.
    """
    path = Path(path)
    if not path.is_file():
        raise InputError(f"There is no classifier file {path}.")
    metadata, tensors = read_tensors(path)
    if metadata.get("format") != FORMAT:
        raise FileFormatError(
            f"{path} is a safetensors file, but not a classifier saved by nearshot."
        )
    if metadata.get("version") != VERSION:
        raise FileFormatError(
            f"{path} has format version {metadata.get('version')!r}; this nearshot reads version {VERSION}. Update it."
        )
    try:
        described = json.loads(metadata["classifier"])
        classes, kind = described["classes"], np.dtype(described["classes_type"])
        columns, threshold, content = (
            described[name] for name in ("feature_names", "threshold", "backbone")
        )
        if kind.kind not in LABEL_KINDS or len(classes) * kind.itemsize > MAX_LABEL_BYTES:
            raise ValueError(kind)  # noqa: TRY301 (caught with all other damage)
        arrays = {name: tensors.pop(name).numpy() for name in OWN_TENSORS if name in tensors}
        learnt: dict[str, Any] = {
            "classes": np.array(classes, dtype=kind),
            "features": arrays["support_features"],
            "codes": arrays["support_labels"],
            "names": list(described["names"]),
            "columns": None if columns is None else np.array(columns, dtype=object),
            "centre": arrays.get("centre"),
            "temperature": float(described["temperature"]),
            "threshold": math.inf if threshold is None else float(threshold),
        }
        parameters = {
            name: value for name, value in described["parameters"].items() if name in SETTINGS
        }
        needs_backbone = bool(described["needs_backbone"])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise FileFormatError(
            f"{path} is damaged: its description of the classifier cannot be read."
        ) from error
    codes, shape = learnt["codes"], learnt["features"].shape
    if (
        codes.shape != shape[:1]
        or len(learnt["names"]) != len(codes)
        or set(codes.tolist()) != {*range(len(classes))}
    ):
        raise FileFormatError(f"{path} is damaged: its support images and labels do not match.")
    if parameters.get("centre") == "array":
        parameters["centre"] = learnt["centre"]
    backbone = None if content is None else backbone_of_content(tensors, content, path)
    return learnt, parameters, backbone, needs_backbone
