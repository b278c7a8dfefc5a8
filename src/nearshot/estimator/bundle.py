"""Save a classifier to one safetensors file, and load it. The file holds no code.

Its tensors are `support_features`, `support_labels`, `strays`, `centre` (if a mean is subtracted),
and the backbone's, as in a weights file (`nearshot.models.weights`); those of a second backbone
begin with "second/". Its metadata are `format` ("nearshot-classifier"), `version` ("3") and
`classifier`, a JSON object with everything else.
"""

import json
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from nearshot.errors import FileFormatError, InputError
from nearshot.estimator.calibration import Temperatures
from nearshot.estimator.feature_sets import FeatureSets
from nearshot.estimator.head import AUTO_CLASSIFIER
from nearshot.estimator.stacking import Mixture
from nearshot.estimator.state import Array, ClassifierSettings, FittedState, check_features
from nearshot.io import read_tensors, write_tensors
from nearshot.models import Backbone
from nearshot.models.pair import BackbonePair
from nearshot.models.weights import backbone_content, backbone_of_content

FORMAT = "nearshot-classifier"
VERSION = "3"
OWN_TENSORS = (
    "support_features",
    "support_labels",
    "strays",
    "centre",
)  # the others are the backbone's
SECOND = "second/"  # before the names of the second backbone's tensors
CENTRE_IS_A_TENSOR = "array"  # in the place of the parameter `centre`
LABEL_KINDS = "biufU"  # NumPy's kinds: booleans, numbers, strings
MAX_VIEWS = 1000  # of an image; each takes as long as the first
# Of all classes: a type such as <U500000000 would take gigabytes for a few letters.
MAX_LABEL_BYTES = 1 << 28


@dataclass(frozen=True, eq=False)
class Bundle:
    """The content of a file: `FittedState` without its embedder, and what it is made of.

    Attributes:
        settings, classes, features, codes, names, given_groups, feature_names, centre,
            feature_sets, strays, stray_names, temperatures, mixture, threshold, by_hand: as in
            `FittedState`.
        n_views: how many views of an image are embedded.
        backbone: the network, if it is in the file.
        needs_backbone: whether the classifier has a backbone that could not be saved.
    """

    settings: ClassifierSettings
    classes: Array
    features: Array
    codes: Array
    names: list[str]
    given_groups: list[str | None]
    feature_names: Array | None
    centre: Array | None
    feature_sets: FeatureSets | None
    strays: Array
    stray_names: list[str]
    temperatures: Temperatures
    mixture: Mixture | None
    threshold: float
    by_hand: npt.NDArray[np.bool_] | None
    n_views: int
    backbone: Backbone | BackbonePair | None
    needs_backbone: bool


def write_bundle(
    state: FittedState, path: str | Path, *, image_folder: str | Path | None = None
) -> None:
    """Write a fitted classifier to a safetensors file, atomically.

    For `image_folder` see `relative_names`.
    """
    classes = state.classes
    if classes.dtype == object and all(isinstance(label, str) for label in classes):
        classes = classes.astype(str)
    reject_label = _to_python(state.settings.reject_label)
    if classes.dtype.kind not in LABEL_KINDS or not isinstance(reject_label, str | int | float):
        raise InputError(
            f"Saved labels must be strings or numbers (got {classes.dtype} and {reject_label!r})."
        )
    backbone = None if state.embedder is None else state.embedder.backbone
    tensors = {
        "support_features": _to_tensor(state.features),
        "support_labels": _to_tensor(state.codes.astype(np.int64)),
        "strays": _to_tensor(state.strays),
    }
    if state.centre is not None:
        tensors["centre"] = _to_tensor(state.centre)
    names = relative_names([*state.names, *state.stray_names], image_folder)
    is_saved = isinstance(backbone, Backbone | BackbonePair)
    backbone_description = None
    second_description = None
    if isinstance(backbone, Backbone):
        weights, backbone_description = backbone_content(backbone)
        tensors |= weights
    elif isinstance(backbone, BackbonePair):
        weights, backbone_description = backbone_content(backbone.first)
        tensors |= weights
        weights, second_description = backbone_content(backbone.second)
        tensors |= {f"{SECOND}{name}": tensor for name, tensor in weights.items()}
    description = {
        "parameters": _parameters(state),
        "classes": classes.tolist(),
        "classes_type": classes.dtype.str,
        "names": names[: len(state.names)],
        "groups": state.given_groups,
        "by_hand": None if state.by_hand is None else state.by_hand.tolist(),
        "feature_sets": None if state.feature_sets is None else state.feature_sets.as_dict(),
        "stray_names": names[len(state.names) :],
        "temperatures": _describe_temperatures(state.temperatures),
        "mixture": None if state.mixture is None else _describe_mixture(state.mixture),
        "threshold": state.threshold if math.isfinite(state.threshold) else None,
        "feature_names": None if state.feature_names is None else state.feature_names.tolist(),
        "needs_backbone": backbone is not None and not is_saved,
        "backbone": backbone_description,
        "second_backbone": second_description,
    }
    metadata = {
        "format": FORMAT,
        "version": VERSION,
        "classifier": json.dumps(description, allow_nan=False),
    }
    write_tensors(path, tensors, metadata)


def relative_names(names: Sequence[str], folder: str | Path | None = None) -> list[str]:
    """Return the paths of images relative to a folder, so that a file tells nothing else of a disk.

    By default it is the deepest folder that holds all images with absolute paths. Other names, such
    as "image 3", are unchanged.

    >>> relative_names(["/home/eve/flowers/rose/01.jpg", "/home/eve/flowers/tulip/01.jpg"])
    ['rose/01.jpg', 'tulip/01.jpg']
    """
    if folder is None:
        parents = [os.path.dirname(name) for name in names if os.path.isabs(name)]  # noqa: PTH117, PTH120 (names are text)
        if not parents:
            return list(names)
        try:
            folder = os.path.commonpath(parents)
        except ValueError:  # on several drives
            folder = Path.cwd()
    return [_relative_name(name, os.path.abspath(folder)) for name in names]  # noqa: PTH100


def _relative_name(name: str, folder: str) -> str:
    absolute = os.path.abspath(name)  # noqa: PTH100 (links stay)
    if not os.path.isabs(name) and not Path(absolute).is_relative_to(folder):  # noqa: PTH117
        return name
    try:
        return Path(os.path.relpath(absolute, folder)).as_posix()
    except ValueError:  # on another drive
        return Path(name).name


def names_in_folder(names: Sequence[str], folder: str | Path) -> list[str]:
    """Return the paths of images in a folder; names of images that it lacks are unchanged."""
    paths = [Path(folder) / name for name in names]
    return [str(path) if path.is_file() else name for path, name in zip(paths, names, strict=True)]


def _describe_temperatures(temperatures: Temperatures) -> dict[str, list[float]]:
    return {"values": list(temperatures.values), "weights": list(temperatures.weights)}


def _describe_mixture(mixture: Mixture) -> list[dict[str, Any]]:
    """Return the candidates with their weights and temperatures."""
    return [
        {
            "candidate": candidate,
            "weight": weight,
            "temperatures": _describe_temperatures(temperatures),
        }
        for candidate, weight, temperatures in zip(
            mixture.candidates, mixture.weights, mixture.temperatures, strict=True
        )
    ]


def _parameters(state: FittedState) -> dict[str, Any]:
    """Return the constructor's parameters as JSON can hold them."""
    settings = state.settings
    classifier = settings.classifier
    if classifier == "auto" and state.feature_sets is None:
        classifier = AUTO_CLASSIFIER.name  # whatever "auto" is when the file is read
    centre = settings.centre
    if centre is not None and not isinstance(centre, str):
        centre = CENTRE_IS_A_TENSOR
    parameters = {
        "classifier": classifier,
        "n_neighbors": _to_python(settings.n_neighbors),
        "centre": centre,
        "normalise": _to_python(settings.normalise),
        "temperature": _to_python(settings.temperature),
        "reject_rate": _to_python(settings.reject_rate),
        "reject_label": _to_python(settings.reject_label),
    }
    if state.embedder is not None and state.embedder.n_views > 1:
        parameters["n_views"] = int(state.embedder.n_views)
    return parameters


def _to_python(value: Any) -> Any:
    """Return a number of NumPy as Python's, which JSON can hold."""
    return value.item() if isinstance(value, np.generic) else value


def _to_tensor(array: Array) -> Tensor:
    return torch.from_numpy(np.array(array, order="C"))  # a copy: files share no memory


def read_bundle(path: str | Path) -> Bundle:
    """Read a classifier. Nothing in the file is executed.

    A damaged file, or one of another format, is an error.
    """
    path = Path(path)
    if not path.is_file():
        raise InputError(f"There is no classifier file {path}.")
    metadata, tensors = read_tensors(path)
    if metadata.get("format") != FORMAT:
        raise FileFormatError(
            f"{path} is a safetensors file, but not a classifier saved by nearshot."
        )
    version = metadata.get("version")
    if version != VERSION:
        raise FileFormatError(
            f"{path} has format version {version!r}; this nearshot reads version {VERSION}. "
            "Update nearshot."
        )
    weights = {name: tensor for name, tensor in tensors.items() if name not in OWN_TENSORS}
    try:
        own_tensors = {name: tensors[name].numpy() for name in OWN_TENSORS if name in tensors}
        description = json.loads(metadata["classifier"])
        parameters = description["parameters"]
        backbone_description = description["backbone"]
        second_description = description.get("second_backbone")
        feature_names = description["feature_names"]
        centre = own_tensors.get("centre")
        feature_sets = None
        if description["feature_sets"] is not None:
            feature_sets = FeatureSets.from_dict(description["feature_sets"])
        check_features(own_tensors["support_features"], "support_features")
        bundle = Bundle(
            settings=_read_settings(parameters, centre),
            classes=_read_classes(description["classes"], description["classes_type"]),
            features=own_tensors["support_features"],
            codes=own_tensors["support_labels"],
            names=list(description["names"]),
            given_groups=_read_groups(description["groups"]),
            feature_names=None if feature_names is None else np.array(feature_names, dtype=object),
            centre=centre,
            feature_sets=feature_sets,
            strays=own_tensors["strays"],
            stray_names=list(description["stray_names"]),
            temperatures=_read_temperatures(description["temperatures"]),
            mixture=_read_mixture(description["mixture"], feature_sets),
            threshold=_read_threshold(description["threshold"]),
            by_hand=_read_flags(description.get("by_hand"), len(description["names"])),
            n_views=_read_n_views(parameters),
            backbone=None,
            needs_backbone=bool(description["needs_backbone"]),
        )
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        raise FileFormatError(
            f"{path} is damaged: its description of the classifier cannot be read."
        ) from error
    except RecursionError:
        raise FileFormatError(f"{path} is damaged: its description is nested too deep.") from None
    if backbone_description is None:
        return bundle
    first = backbone_of_content(weights, backbone_description, path)
    if second_description is None:
        return replace(bundle, backbone=first)
    second_weights = {
        name.removeprefix(SECOND): tensor
        for name, tensor in weights.items()
        if name.startswith(SECOND)
    }
    second = backbone_of_content(second_weights, second_description, path)
    return replace(bundle, backbone=BackbonePair(first, second))


def _read_threshold(value: Any) -> float:
    if value is None:
        return math.inf
    if type(value) not in (int, float):
        raise TypeError(value)
    return float(value)


def _read_n_views(parameters: dict[str, Any]) -> int:
    n_views = parameters.get("n_views", 1)
    if type(n_views) is not int or not 1 <= n_views <= MAX_VIEWS:
        raise ValueError(n_views)
    return n_views


def _read_temperatures(description: dict[str, Any]) -> Temperatures:
    values = tuple(float(value) for value in description["values"])
    weights = tuple(float(weight) for weight in description["weights"])
    are_valid = all(0 < value < math.inf for value in values) and all(
        0 <= weight <= 1 for weight in weights
    )
    if len(values) != len(weights) or not are_valid or not math.isclose(sum(weights), 1.0):
        raise ValueError(description)
    return Temperatures(values, weights)


def _read_mixture(
    descriptions: list[dict[str, Any]] | None, feature_sets: FeatureSets | None
) -> Mixture | None:
    if descriptions is None:
        return None
    n_candidates = 0 if feature_sets is None else len(feature_sets.candidates)
    candidates = tuple(description["candidate"] for description in descriptions)
    weights = tuple(float(description["weight"]) for description in descriptions)
    are_candidates = all(
        type(candidate) is int and 0 <= candidate < n_candidates for candidate in candidates
    )
    are_weights = all(0 < weight <= 1 for weight in weights) and math.isclose(sum(weights), 1.0)
    if not are_candidates or not are_weights or len(set(candidates)) < len(candidates):
        raise ValueError(descriptions)
    temperatures = [_read_temperatures(description["temperatures"]) for description in descriptions]
    return Mixture(candidates, weights, tuple(temperatures))


def _read_groups(names: list[Any]) -> list[str | None]:
    if not all(name is None or isinstance(name, str) for name in names):
        raise ValueError(names)
    return list(names)


def _read_flags(flags: Any, n_images: int) -> npt.NDArray[np.bool_] | None:
    if flags is None:
        return None
    if len(flags) != n_images or not all(type(flag) is bool for flag in flags):
        raise ValueError(flags)
    return np.array(flags, dtype=bool)


def _read_settings(parameters: dict[str, Any], centre: Array | None) -> ClassifierSettings:
    is_label = isinstance(parameters["reject_label"], str | int | float)
    is_centre = parameters["centre"] is None or isinstance(parameters["centre"], str)
    if not is_label or not is_centre or type(parameters["normalise"]) is not bool:
        raise TypeError(parameters)
    return ClassifierSettings(
        classifier=parameters["classifier"],
        n_neighbors=parameters["n_neighbors"],
        centre=centre if parameters["centre"] == CENTRE_IS_A_TENSOR else parameters["centre"],
        normalise=parameters["normalise"],
        temperature=parameters["temperature"],
        reject_rate=parameters["reject_rate"],
        reject_label=parameters["reject_label"],
    )


def _read_classes(labels: list[Any], type_name: str) -> Array:
    kind = np.dtype(type_name)
    if kind.kind not in LABEL_KINDS or len(labels) * kind.itemsize > MAX_LABEL_BYTES:
        raise ValueError(kind)
    return np.array(labels, dtype=kind)
