"""Random features in several sets, of which the plain one says least."""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from nearshot.estimator.feature_sets import FeatureSet, FeatureSets

Array = npt.NDArray[Any]

SETS = FeatureSets(
    sets=(
        FeatureSet("head", 0, 6),
        FeatureSet("block", 6, 10),
        FeatureSet("rooted", 10, 15, is_rooted=True),
    ),
    candidates=(("head",), ("block",), ("head", "block"), ("rooted", "block")),
)
SPREADS = {"head": 1.5, "block": 0.6, "rooted": 0.9}  # within classes; between them it is 1


class SetClouds(NamedTuple):
    """Support images with their labels, and queries with theirs; the features are of `SETS`."""

    support: Array
    labels: Array
    query: Array
    query_labels: Array


def set_clouds(seed: int, sizes: list[int], n_query: int = 5) -> SetClouds:
    """Draw classes of these sizes."""
    generator = np.random.default_rng(seed)
    columns = []
    codes = np.repeat(np.arange(len(sizes)), sizes)
    query_codes = np.repeat(np.arange(len(sizes)), n_query)
    every_code = np.concatenate([codes, query_codes])
    for feature_set in SETS.sets:
        dim = feature_set.stop - feature_set.start
        means = generator.normal(size=(len(sizes), dim))
        rows = means[every_code]
        rows = rows + SPREADS[feature_set.name] * generator.normal(size=rows.shape)
        columns.append(np.abs(rows) if feature_set.is_rooted else rows)
    features = np.concatenate(columns, axis=1)
    return SetClouds(features[: len(codes)], codes, features[len(codes) :], query_codes)
