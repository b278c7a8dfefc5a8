"""Checks of the parameters and support images of a classifier."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from numbers import Real
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torch import Tensor

from nearshot.checks import is_integer
from nearshot.distances import squared_euclidean
from nearshot.errors import InputError, look_up
from nearshot.estimator.support import Support, in_blocks
from nearshot.evaluation.classifiers import CLASSIFIERS

__all__ = [
    "NUMBERS",
    "ClassifierSettings",
    "are_mixed",
    "check_complete_labels",
    "check_count",
    "refuse_images",
    "warn_about_repeated_images",
    "without_tensors",
]

NUMBERS = "biuf"  # kinds of NumPy types
SAME_IMAGE = 1e-5  # the rounding difference between two embeddings of one image, relative to the feature's length
NAMED_PAIRS = 3  # pairs of equal images that a warning names


class ClassifierSettings(NamedTuple):
    """The parameters of a classifier that its answers depend on."""

    classifier: str
    n_neighbors: int | None
    centre: Any
    normalise: bool
    temperature: Any
    unknown_rate: Any
    unknown_label: Any

    def check(self) -> None:
        """Raise an error if a value is invalid."""
        look_up(CLASSIFIERS, self.classifier, "classifier")
        if self.n_neighbors is not None:
            check_count(self.n_neighbors, "n_neighbors")
        temperature, rate = self.temperature, self.unknown_rate
        if not (isinstance(temperature, Real) and 0 < float(temperature) < math.inf) and temperature != "auto":
            raise InputError(f"temperature must be 'auto' or a number above 0 (got {temperature!r}).")
        if rate is not None and not (isinstance(rate, Real) and 0 < float(rate) < 1):
            raise InputError(f"unknown_rate must be None or a number between 0 and 1, such as 0.05 (got {rate!r}).")
        if isinstance(self.centre, str) and self.centre not in ("auto", "support"):
            raise InputError(f"centre must be 'auto', 'support', an array or None (got {self.centre!r}).")


def check_count(value: Any, name: str) -> None:
    """Raise an error unless a value is an integer of at least 1."""
    if not is_integer(value) or value < 1:
        raise InputError(f"{name} must be an integer of at least 1 (got {value!r}).")


def check_complete_labels(labels: Any) -> None:
    """Raise an error if string labels are incomplete or mixed with others; scikit-learn checks the rest."""
    array = np.asarray(labels, dtype=object) if isinstance(labels, list | tuple) else np.asarray(labels)
    values = array.tolist() if array.ndim == 1 and array.dtype == object else []
    if not any(isinstance(value, str) or value is None for value in values):
        return
    for place, value in enumerate(values):
        if value is None or value != value:  # NaN
            raise InputError(f"Every image needs a label; image {place} (counted from 0) has {value}.")
    text = next(value for value in values if isinstance(value, str))
    other = next((value for value in values if not isinstance(value, str)), None)
    if other is not None:
        raise InputError(f"Labels must be of one type (got {text!r} and {other!r}).")


def are_mixed(labels: npt.NDArray[Any], others: Any) -> bool:
    """Return whether one of two sets of labels holds numbers and the other strings."""
    return (labels.dtype.kind in NUMBERS) != (np.asarray(others).dtype.kind in NUMBERS)


def refuse_images(features: Any) -> None:
    """Raise an error if paths or images are given instead of features."""
    in_a_row = isinstance(features, Sequence) or getattr(features, "ndim", 0) == 1  # not a table
    if in_a_row and isinstance(next(iter(features), None), str | Path | Image.Image):
        raise InputError(
            "X must be features, since backbone is None (got images). Give a backbone, such as "
            'FewShotClassifier("resnet12-nca-cifar-fs").'
        )


def without_tensors(values: Any) -> Any:
    """Return a tensor, or a list of tensors, as NumPy arrays, and anything else unchanged.

    >>> without_tensors(torch.ones(2, requires_grad=True))
    array([1., 1.], dtype=float32)
    """
    if isinstance(values, Tensor):
        plain = values.detach().cpu()
        return (plain.float() if plain.dtype == torch.bfloat16 else plain).numpy()  # NumPy has no bfloat16
    if isinstance(values, list | tuple) and any(isinstance(one, Tensor) for one in values):
        return [without_tensors(one) for one in values]
    return values


def warn_about_repeated_images(support: Support, names: Sequence[str], labels: Sequence[Any]) -> None:
    """Warn about images that are in two classes.

    Args:
        support: the prepared support set.
        names: (image,) the names of the images.
        labels: (class,) the labels of the classes.
    """
    images = torch.arange(len(support.codes))
    named: list[str] = []
    n_pairs = 0
    for rows in in_blocks(images, support):
        features, codes = support.features[rows], support.codes[rows]
        near = squared_euclidean(features, support.features) < (SAME_IMAGE * features.norm(dim=1)).square()[:, None]
        repeated = (near & (codes[:, None] != support.codes) & (rows[:, None] < images)).nonzero()
        n_pairs += len(repeated)
        for row, other in repeated[: NAMED_PAIRS - len(named)].tolist():
            pair = int(rows[row]), other
            named.append(" and ".join(f"{names[image]} in {labels[int(support.codes[image])]!r}" for image in pair))
    if named:
        more = f"; and {n_pairs - len(named)} more" if n_pairs > len(named) else ""
        warnings.warn(
            f"The same image is in two classes: {'; '.join(named)}{more}. Keep it in one of them.", stacklevel=4
        )
