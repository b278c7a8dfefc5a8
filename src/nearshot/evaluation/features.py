"""Features: embedding, feature files, centring and normalising."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from nearshot.distances import full_precision
from nearshot.errors import FileFormatError, InputError, LeakError
from nearshot.io import read_tensors, write_tensors

FORMAT, VERSION = "nearshot-features", "1"
SAFE_LENGTH = 1e-15
NAMES = ("features", "labels", "centre", "content")


@dataclass(frozen=True, eq=False)
class FeatureSet:
    """The features of a dataset split.

    Attributes:
        features: (image, dim) in any floating type.
        labels: (image,) whole numbers.
        centre: (dim,) the mean feature of the training set, if known.
        class_names: the names of the labels 0, 1, …; empty if unknown.
        split: the name of the split, such as "val" or "test", if known.
        fingerprint: the fingerprint of the dataset split, if known.
        content: (image,) a number for each image's pixels, equal for equal images, such as a store's. If given, a query
            that is the same image as a support image is refused.
        training_classes: the names of the classes that were trained on; evaluating one of them is refused.
    """

    features: Tensor
    labels: Tensor
    centre: Tensor | None = None
    class_names: tuple[str, ...] = ()
    split: str | None = None
    fingerprint: str | None = None
    content: Tensor | None = None
    training_classes: Sequence[str] | None = None


def embed(
    network: Callable[[Tensor], Tensor],
    images: Tensor | Iterable[Tensor],
    *,
    batch_size: int = 512,
    device: torch.device | str | None = None,
) -> Tensor:
    """Embed images in batches, without gradients: (image, dim).

    Args:
        network: a network in evaluation mode, or any function of a batch of images. `backbone.multi_layer` gives the
            multi-layer features of Appendix G.
        images: (image, 3, height, width), or batches of them.
        batch_size: how many images to embed at once, if `images` is one tensor.
        device: where to embed; by default where the images are. The features are returned to where the images are.
    """
    check_evaluation_mode(network)
    features = []
    with torch.inference_mode():
        for batch in images.split(batch_size) if isinstance(images, Tensor) else images:
            if not isinstance(batch, Tensor):
                raise InputError(
                    f"images must be tensors (image, 3, height, width), not {type(batch).__name__}. If a loader also "
                    "gives labels, use embed(network, (batch[0] for batch in …))."
                )
            embedded = network(batch if device is None else batch.to(device))
            if not isinstance(embedded, Tensor):
                raise InputError(f"The network returned {type(embedded).__name__}; expected a tensor (image, dim).")
            features.append(embedded.to(batch.device))
    if not features:
        raise InputError("images must not be empty: there are no images to embed.")
    return torch.cat(features)  # outside inference mode, so an ordinary tensor again


def check_evaluation_mode(network: Callable[..., object]) -> None:
    """Refuse a network whose embeddings depend on the rest of the batch, as in training mode."""
    while isinstance(network, functools.partial):
        network = network.func
    owner = getattr(network, "__self__", network)  # of a bound method, such as backbone.multi_layer
    if not isinstance(owner, nn.Module):
        return
    for name, module in owner.named_modules():
        if module.training:
            raise LeakError(
                "The network is in training mode: its batch norm would let the images of a batch see each other. "
                "Call network.eval() first."
            )
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and module.running_mean is None:
            raise LeakError(
                f"The network's batch norm {name!r} keeps no running statistics, so images of a batch see each other."
            )


def power_transform(features: Tensor, power: float) -> Tensor:
    """Raise each number to a power, and keep its sign: with 0.5, features of many images are less skewed (Hu et al.).

    Centre transformed features with the mean of transformed training features, not with the transformed mean.

    >>> power_transform(torch.tensor([[4.0, -9.0, 0.0]]), 0.5)
    tensor([[ 2., -3.,  0.]])
    """
    if not power > 0:
        raise InputError(f"power must be positive (got {power}).")
    return features if power == 1 else features.sign() * features.abs().pow(power)


def prepare_features(features: Tensor, *, centre: Tensor | None = None, normalise: bool = True) -> Tensor:
    """Subtract the training set's mean feature and divide by the length (Section 3.1), each if requested.

    Features (image, dim) are of any floating type; half precision is converted to float32. The centre is (dim,).

    >>> prepare_features(torch.tensor([[4.0, 4.0]]), centre=torch.tensor([1.0, 0.0]))
    tensor([[0.6000, 0.8000]])
    """
    if features.ndim != 2 or not features.is_floating_point() or features.numel() == 0:
        raise InputError(
            f"features must be floating-point of shape (image, dim), not {features.dtype} {tuple(features.shape)}."
        )
    features = full_precision(features)
    if not features.sum().isfinite():  # the sum is fast, but may overflow
        bad_rows = (~features.isfinite()).any(1).nonzero()
        if len(bad_rows):
            raise InputError(f"features must be finite; image {int(bad_rows[0])} has NaN or infinity.")
    if centre is not None:
        if not isinstance(centre, Tensor) or centre.shape != features.shape[1:] or not centre.isfinite().all():
            came = f"{type(centre).__name__} of shape {tuple(np.shape(centre))}"
            raise InputError(f"centre must be a tensor of shape ({features.shape[1]},) without NaN (got {came}).")
        features = features - centre.to(features)
    if not normalise:
        if not features.square().sum().isfinite():
            raise InputError("features are so large that squared distances are infinite. Normalise or scale them.")
        return features
    lengths: Tensor = features.norm(dim=1, keepdim=True)
    if not (lengths.min() > SAFE_LENGTH and lengths.max() < 1 / SAFE_LENGTH):  # the squares may be 0 or infinite
        largest = features.abs().amax(1, keepdim=True)
        if not largest.all():
            row = int((largest[:, 0] == 0).nonzero()[0])
            after = " once the centre is subtracted" if centre is not None else ""
            raise InputError(
                f"The feature of image {row} is zero{after}, so it has no direction. "
                "Use normalise=False, or find out why the network returns zeros."
            )
        features = features / largest
        lengths = features.norm(dim=1, keepdim=True)
        return features / lengths
    # In place if the memory is ours: fresh memory costs more than the division.
    return features / lengths if centre is None else features.div_(lengths)


def save_features(features: FeatureSet, path: str | Path) -> None:
    """Write features to a safetensors file, atomically."""
    if features.labels.is_floating_point():
        raise InputError(f"labels must be whole numbers, one per image, not {features.labels.dtype}.")
    tensors = {name: getattr(features, name) for name in NAMES} | {"labels": features.labels.long()}
    metadata = {"format": FORMAT, "version": VERSION, "class_names": json.dumps(features.class_names)}
    metadata |= {"split": features.split or "", "fingerprint": features.fingerprint or ""}
    given = {name: t.detach().cpu().contiguous() for name, t in tensors.items() if t is not None}
    write_tensors(path, given, metadata)


def load_features(path: str | Path) -> FeatureSet:
    """Read features that `save_features` wrote, or a NumPy `.npz` file of another program.

    Either has arrays `features` (image, dim) and `labels` (image,), and may have `centre` (dim,). Nothing in the file
    is executed.
    """
    path = Path(path)
    if not path.is_file():
        raise InputError(f"There is no features file {path}.")
    try:
        metadata, tensors = _read(path)
        class_names = tuple(map(str, json.loads(metadata.get("class_names", "[]"))))
    except FileFormatError:
        raise
    except Exception as error:  # NumPy's reader of .npz files raises many kinds
        raise FileFormatError(f"{path} is not a features file, or is damaged: {error}.") from error
    for name in ("features", "labels"):
        if name not in tensors:
            raise FileFormatError(f"{path} has no array {name!r}.")
    features, labels, centre = tensors["features"], tensors["labels"], tensors.get("centre")
    right = features.ndim == 2 and labels.shape == features.shape[:1]
    right &= centre is None or centre.shape == features.shape[1:]
    if not right or not features.is_floating_point() or labels.is_floating_point():
        raise FileFormatError(
            f"{path} has features of type {features.dtype} and shape {tuple(features.shape)} and labels of type "
            f"{labels.dtype} and shape {tuple(labels.shape)}; they must be floating-point (image, dim) and one whole "
            "number per image, and a centre must have a feature's shape."
        )
    return FeatureSet(
        features,
        labels.long(),
        centre,
        class_names,
        content=tensors.get("content"),
        split=metadata.get("split") or None,
        fingerprint=metadata.get("fingerprint") or None,
    )


def _read(path: Path) -> tuple[dict[str, str], dict[str, Tensor]]:
    with path.open("rb") as opened:
        is_archive = opened.read(2) == b"PK"  # as every `.npz` file
    if not is_archive:
        metadata, tensors = read_tensors(path)
        if metadata.get("format") != FORMAT or metadata.get("version") != VERSION:
            raise FileFormatError(f"{path} is not a features file of format version {VERSION}.")
        return metadata, tensors
    with path.open("rb") as opened, np.load(opened, allow_pickle=False) as arrays:
        found = {name: arrays[name] for name in NAMES if name in arrays.files}
    for name, array in found.items():
        if array.dtype.kind not in "biuf":
            raise FileFormatError(f"{path} has {name} of type {array.dtype}, not numbers. Number the classes from 0.")
    # torch knows this machine's byte order only.
    return {}, {name: torch.from_numpy(a.astype(a.dtype.newbyteorder("="), copy=False)) for name, a in found.items()}
