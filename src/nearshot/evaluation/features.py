"""Features: embedding, feature files, centring and normalising."""

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from nearshot.distances import full_precision
from nearshot.errors import FileFormatError, InputError
from nearshot.evaluation.leaks import check_evaluation_mode, check_unseen_classes
from nearshot.io import read_tensors, write_tensors

FORMAT = "nearshot-features"
VERSION = "1"
ARRAYS = ("features", "labels", "centre", "content")


@dataclass(frozen=True, eq=False)
class FeatureSet:
    """The features of a dataset split.

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


def as_feature_set(
    features: Tensor | FeatureSet,
    labels: Tensor | None,
    *,
    centre: Tensor | None = None,
    split: str | None = None,
    fingerprint: str | None = None,
    training_classes: Sequence[str] | None = None,
) -> FeatureSet:
    """Return features with their metadata, checked; arguments win over what a set has."""
    if isinstance(features, FeatureSet):
        data = features
        if labels is not None:
            data = replace(data, labels=labels)
    elif labels is None:
        raise InputError("labels must be given, one per image, unless features is a FeatureSet.")
    else:
        data = FeatureSet(features, labels)
    if centre is not None:
        data = replace(data, centre=centre)
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
    with torch.inference_mode():
        for batch in images.split(batch_size) if isinstance(images, Tensor) else images:
            embedded = network(batch if device is None else batch.to(device))
            features.append(embedded.to(batch.device))
    return torch.cat(features)  # outside inference mode, so an ordinary tensor again


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
    on_cpu = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    write_tensors(path, on_cpu, metadata)


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
    return FeatureSet(
        features,
        labels.long(),
        centre,
        class_names=tuple(json.loads(metadata.get("class_names", "[]"))),
        split=metadata.get("split") or None,
        fingerprint=metadata.get("fingerprint") or None,
        content=tensors.get("content"),
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
