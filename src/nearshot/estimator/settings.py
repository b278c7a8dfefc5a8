"""What a user can get wrong about a classifier's settings and its support images."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from numbers import Real
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch
from PIL import Image

from nearshot.checks import is_integer
from nearshot.distances import squared_euclidean
from nearshot.errors import InputError
from nearshot.estimator.scores import Support, in_blocks
from nearshot.evaluation.classifiers import ClassifierName
from nearshot.text import format_list

__all__ = ["check_labels", "check_parameters", "check_whole", "refuse_pictures", "warn_of_repeated"]

# What rounding may differ by in two embeddings of one picture, as a share of a feature's length.
SAME_PICTURE = 1e-5
NAMED_PAIRS = 3  # of the same picture in two classes; of more, the number is said


def check_parameters(parameters: dict[str, Any]) -> None:
    """Refuse settings of a classifier that mean nothing."""
    classifier, temperature = parameters["classifier"], parameters["temperature"]
    rate, centre = parameters["unknown_rate"], parameters["centre"]
    if classifier not in get_args(ClassifierName):
        raise InputError(f"classifier must be one of {format_list(get_args(ClassifierName))}, not {classifier!r}.")
    if parameters["n_neighbors"] is not None:
        check_whole(parameters["n_neighbors"], "n_neighbors")
    if not (isinstance(temperature, Real) and 0 < float(temperature) < math.inf) and temperature != "auto":
        raise InputError(f"temperature must be 'auto' or a number over 0, not {temperature!r}.")
    if rate is not None and not (isinstance(rate, Real) and 0 < float(rate) < 1):
        raise InputError(f"unknown_rate must be None or between 0 and 1, such as 0.05, not {rate!r}.")
    if isinstance(centre, str) and centre not in ("auto", "support"):
        raise InputError(f"centre must be 'auto', 'support', an array or None, not {centre!r}.")


def check_whole(value: Any, name: str) -> None:
    """Refuse what is not a whole number of at least 1."""
    if not is_integer(value) or value < 1:
        raise InputError(f"{name} must be a whole number of at least 1, not {value!r}.")


def check_labels(labels: Any) -> None:
    """Refuse texts of which some are missing, or are no texts; scikit-learn would speak of '<'. It refuses the rest."""
    array = np.asarray(labels, dtype=object) if isinstance(labels, list | tuple) else np.asarray(labels)
    values = array.tolist() if array.ndim == 1 and array.dtype == object else []
    if not any(isinstance(value, str) or value is None for value in values):
        return
    for place, value in enumerate(values):
        if value is None or value != value:  # which only what is not a number does
            raise InputError(f"Image {place} (counted from 0) has the label {value}; every image needs one.")
    text = next(value for value in values if isinstance(value, str))  # as none is missing
    other = next((value for value in values if not isinstance(value, str)), None)
    if other is not None:
        raise InputError(f"Some labels are such as {text!r} and some such as {other!r}; give labels of one type.")


def refuse_pictures(features: Any) -> None:
    """Refuse paths and pictures where features are expected; scikit-learn would speak of conversions to float."""
    in_a_row = isinstance(features, Sequence) or getattr(features, "ndim", 0) == 1  # not a table, whose names are texts
    if in_a_row and isinstance(next(iter(features), None), str | Path | Image.Image):
        raise InputError(
            "These are pictures, and without a backbone features are expected. Give one, such as "
            'FewShotClassifier("resnet12-nca-cifar-fs").'
        )


def warn_of_repeated(support: Support, names: Sequence[str], labels: Sequence[Any]) -> None:
    """Warn of pictures that are in two classes, which cannot both be right.

    Args:
        support: the prepared support set.
        names: (image,) what to call the images.
        labels: (class,) what to call the classes.
    """
    images = torch.arange(len(support.codes))
    named: list[str] = []
    n_pairs = 0
    for rows in in_blocks(images, support):
        features, codes = support.features[rows], support.codes[rows]
        near = squared_euclidean(features, support.features) < (SAME_PICTURE * features.norm(dim=1)).square()[:, None]
        repeated = (near & (codes[:, None] != support.codes) & (rows[:, None] < images)).nonzero()
        n_pairs += len(repeated)
        for row, other in repeated[: NAMED_PAIRS - len(named)].tolist():
            pair = int(rows[row]), other
            named.append(" and ".join(f"{names[image]} in {labels[int(support.codes[image])]!r}" for image in pair))
    if named:
        more = f"; and {n_pairs - len(named)} more" if n_pairs > len(named) else ""
        places = "; ".join(named) + more
        warnings.warn(f"The same picture is in two classes: {places}. Keep it in one.", stacklevel=4)
