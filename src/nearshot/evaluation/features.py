"""Features: embedding, feature files, centring and normalising."""

import json
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from nearshot.distances import full_precision
from nearshot.errors import FileFormatError, InputError
from nearshot.evaluation.leaks import check_evaluation_mode, check_unseen_classes
from nearshot.io import read_tensors, write_tensors

FORMAT = "nearshot-features"
VERSION = "1"
ARRAYS = ("features", "labels", "centre", "content")
# How many images `embed` embeds a second time, and by how much their features may differ then,
# relative to their length: bfloat16 and other batch sizes change less.
N_REPEATED = 8
LARGEST_CHANGE = 0.05

Array = Tensor | npt.NDArray[Any]


@dataclass(frozen=True, eq=False)
class FeatureSet:
    """The features of a dataset split. NumPy arrays become tensors.

    Attributes:
        features: (image, dim) in any floating type.
        labels: (image,) integers.
        centre: (dim,) the mean feature of the training set, if known.
        class_names: the names of the labels 0, 1, …; empty if unknown.
        split: the name of the split, such as "val" or "test", if known.
        fingerprint: the fingerprint of the dataset split, if known.
        content: (image,) a number for each image's pixels, equal for equal images, such as a
            store's. If given, a query that is the same image as a support image is refused.
        training_classes: the names of the classes that were trained on; evaluating one of them is
            refused.
    """

    features: Tensor
    labels: Tensor
    centre: Tensor | None = None
    class_names: tuple[str, ...] = ()
    split: str | None = None
    fingerprint: str | None = None
    content: Tensor | None = None
    training_classes: Sequence[str] | None = None

    def __post_init__(self) -> None:
        for name in ARRAYS:
            value = getattr(self, name)
            if value is not None:
                object.__setattr__(self, name, as_tensor(value, name))


def as_tensor(values: Array, name: str) -> Tensor:
    """Return a tensor unchanged, and an array of numbers as a tensor; `name` is for messages."""
    if isinstance(values, Tensor):
        return values
    array = np.asarray(values)
    if array.dtype.kind not in "biuf":
        raise InputError(
            f"{name} must be a tensor or array of numbers (got {array.dtype}). Number the classes "
            "from 0."
        )
    return torch.from_numpy(np.ascontiguousarray(array))


def as_feature_set(
    features: Array | FeatureSet,
    labels: Array | None,
    *,
    centre: Array | None = None,
    split: str | None = None,
    fingerprint: str | None = None,
    training_classes: Sequence[str] | None = None,
) -> FeatureSet:
    """Return features with their metadata, checked; arguments win over what a set has."""
    if isinstance(features, FeatureSet):
        data = features
        if labels is not None:
            data = replace(data, labels=as_tensor(labels, "labels"))
    elif labels is None:
        raise InputError("labels must be given, one per image, unless features is a FeatureSet.")
    else:
        data = FeatureSet(as_tensor(features, "features"), as_tensor(labels, "labels"))
    if centre is not None:
        data = replace(data, centre=as_tensor(centre, "centre"))
    if split is not None:
        data = replace(data, split=split)
    if fingerprint is not None:
        data = replace(data, fingerprint=fingerprint)
    if training_classes is not None:
        data = replace(data, training_classes=training_classes)
    expected = (len(data.features),)
    if tuple(data.labels.shape) != expected:
        raise InputError(
            f"labels must have shape {expected}, one per image (got {tuple(data.labels.shape)})."
        )
    if data.training_classes is not None:
        if not data.class_names:
            raise InputError(
                "training_classes needs a FeatureSet with class_names, to compare them with."
            )
        check_unseen_classes(data.training_classes, data.class_names)
    return data


def embed(
    network: Callable[[Tensor], Tensor],
    images: Tensor | Iterable[Tensor],
    *,
    batch_size: int = 512,
    device: torch.device | str | None = None,
) -> Tensor:
    """Embed images in batches, without gradients: (image, dim).

    The first images are embedded again in a smaller batch. If their features change, as those of a
    function that calls a network in training mode, there is a warning.

    Args:
        network: a network in evaluation mode, or any function of a batch of images.
            `backbone.multi_layer` gives the multi-layer features of Appendix G.
        images: (image, 3, height, width), or batches of them. For a loader that also gives labels,
            write `(batch[0] for batch in loader)`.
        batch_size: how many images to embed at once, if `images` is one tensor.
        device: where to embed; by default where the images are. The features are returned to where
            the images are.
    """
    check_evaluation_mode(network)
    features = []
    batches: Iterable[Tensor] = images.split(batch_size) if isinstance(images, Tensor) else images
    with torch.inference_mode():
        for number, batch in enumerate(batches):
            on_device = batch if device is None else batch.to(device)
            embedded = network(on_device)
            if number == 0:
                _warn_if_changing(network, on_device, embedded)
            features.append(embedded.to(batch.device))
    return torch.cat(features)  # outside inference mode, so an ordinary tensor again


def _warn_if_changing(
    network: Callable[[Tensor], Tensor], images: Tensor, features: Tensor
) -> None:
    """Warn if the first images of a batch have other features without the rest of the batch."""
    n_repeated = min(N_REPEATED, len(images) // 2)
    if n_repeated == 0:
        return
    first = features[:n_repeated].double()
    change = (network(images[:n_repeated]).double() - first).norm()
    if change > LARGEST_CHANGE * first.norm():
        warnings.warn(
            "The network embeds the same images differently from one call to the next, as in "
            "training mode (batch norm, dropout). Call network.eval() first.",
            stacklevel=3,
        )


def power_transform(features: Tensor, power: float) -> Tensor:
    """Raise each number to a power, and keep its sign.

    With 0.5, features of many images are less skewed (Hu et al.).

    Centre transformed features with the mean of transformed training features, not with the
    transformed mean.

    >>> power_transform(torch.tensor([[4.0, -9.0, 0.0]]), 0.5)
    tensor([[ 2., -3.,  0.]])
    """
    if power == 1:
        return features
    return features.sign() * features.abs().pow(power)


def prepare_features(
    features: Tensor, *, centre: Tensor | None = None, normalise: bool = True
) -> Tensor:
    """Subtract the training set's mean feature and divide by the length (Section 3.1).

    Features (image, dim) are of any floating type; half precision is converted to float32. The
    centre is (dim,).

    >>> prepare_features(torch.tensor([[4.0, 4.0]]), centre=torch.tensor([1.0, 0.0]))
    tensor([[0.6000, 0.8000]])
    """
    if features.ndim != 2 or not features.is_floating_point() or features.numel() == 0:
        raise InputError(
            "features must be floating-point of shape (image, dim) (got "
            f"{features.dtype} {tuple(features.shape)})."
        )
    features = full_precision(features)
    if centre is not None:
        if centre.shape != features.shape[1:]:
            raise InputError(
                f"centre must have shape ({features.shape[1]},) (got {tuple(centre.shape)})."
            )
        features = features - centre.to(features)
    if not features.sum().isfinite():  # the sum is fast, but may overflow
        bad_rows = (~features.isfinite()).any(1).nonzero()
        if len(bad_rows):
            raise InputError(
                f"features and centre must be finite; image {int(bad_rows[0])} has NaN or infinity."
            )
    if not normalise:
        return features
    lengths: Tensor = features.norm(dim=1, keepdim=True)
    if not 0 < lengths.min() <= lengths.max() < torch.inf:
        row = int(((lengths == 0) | lengths.isinf()).nonzero()[0, 0])
        problem = "zero" if lengths[row] == 0 else "too large"
        after = " once the centre is subtracted" if centre is not None else ""
        raise InputError(
            f"The feature of image {row} is {problem}{after}, so it has no direction. Use "
            "normalise=False, or find out why the network returns it."
        )
    if centre is None:
        return features / lengths
    # In place, since the memory is ours: fresh memory costs more than the division.
    return features.div_(lengths)


def save_features(features: FeatureSet, path: str | Path) -> None:
    """Write features to a safetensors file, atomically."""
    tensors = {"features": features.features, "labels": features.labels.long()}
    if features.centre is not None:
        tensors["centre"] = features.centre
    if features.content is not None:
        tensors["content"] = features.content
    metadata = {
        "format": FORMAT,
        "version": VERSION,
        "class_names": json.dumps(features.class_names),
        "split": features.split or "",
        "fingerprint": features.fingerprint or "",
    }
    if features.training_classes is not None:
        metadata["training_classes"] = json.dumps(list(features.training_classes))
    on_cpu = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    write_tensors(path, on_cpu, metadata)


def is_features_file(path: str | Path) -> bool:
    """Return whether a file has features, by its content or, for `.npz`, by its name."""
    file = Path(path)
    if not file.is_file() or file.suffix == ".npz":
        return file.suffix == ".npz"
    try:
        metadata, _ = read_tensors(file)
    except FileFormatError:
        return False
    return metadata.get("format") == FORMAT


def load_features(path: str | Path) -> FeatureSet:
    """Read features that `save_features` wrote, or a NumPy `.npz` file of another program.

    Either has arrays `features` (image, dim) and `labels` (image,), and may have `centre` (dim,).
    Nothing in the file is executed.
    """
    with Path(path).open("rb") as file:
        is_zip = file.read(2) == b"PK"  # as every `.npz` file
    if is_zip:
        return _feature_set(path, _read_npz(Path(path)), {})
    metadata, tensors = read_tensors(path)
    if metadata.get("format") != FORMAT or metadata.get("version") != VERSION:
        raise FileFormatError(f"{path} is not a features file of format version {VERSION}.")
    return _feature_set(path, tensors, metadata)


def _feature_set(
    path: str | Path, tensors: dict[str, Tensor], metadata: dict[str, str]
) -> FeatureSet:
    """Return the features of a file, checked."""
    features = tensors.get("features")
    labels = tensors.get("labels")
    centre = tensors.get("centre")
    if features is None or labels is None:
        raise FileFormatError(
            f"{path} must have the arrays 'features' and 'labels' (got {sorted(tensors)})."
        )
    is_valid = (
        features.ndim == 2
        and features.is_floating_point()
        and labels.shape == features.shape[:1]
        and not labels.is_floating_point()
        and (centre is None or centre.shape == features.shape[1:])
    )
    if not is_valid:
        raise FileFormatError(
            f"{path} must have floating-point features (image, dim), one integer label per image, "
            "and a centre, if any, of a feature's shape (got features of type "
            f"{features.dtype} and shape {tuple(features.shape)}, and labels of type "
            f"{labels.dtype} and shape {tuple(labels.shape)})."
        )
    training_classes = None
    if "training_classes" in metadata:
        training_classes = tuple(json.loads(metadata["training_classes"]))
    return FeatureSet(
        features,
        labels.long(),
        centre,
        class_names=tuple(json.loads(metadata.get("class_names", "[]"))),
        split=metadata.get("split") or None,
        fingerprint=metadata.get("fingerprint") or None,
        content=tensors.get("content"),
        training_classes=training_classes,
    )


def _read_npz(path: Path) -> dict[str, Tensor]:
    """Return the known arrays of a NumPy archive."""
    arrays = {}
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            for name in ARRAYS:
                if name in archive.files:
                    arrays[name] = archive[name]
    except Exception as error:  # NumPy's reader raises many kinds
        raise FileFormatError(f"{path} is not a features file, or is damaged: {error}.") from error
    for name, array in arrays.items():
        if array.dtype.kind not in "biuf":
            raise FileFormatError(
                f"{path} has {name} of type {array.dtype}, not numbers. Number the classes from 0."
            )
    return {name: torch.from_numpy(array) for name, array in arrays.items()}
