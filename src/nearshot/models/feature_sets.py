"""Feature sets: what a backbone offers of one forward pass, side by side in one flat vector.

The last layers of a network see objects, earlier ones see parts, strokes and textures. A classifier
can weigh both. Here are the description of such a vector, and the functions that make its parts.
"""

import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from nearshot.errors import InputError

EMBEDDING = "embedding"
EMBEDDING_ROOT = "embedding-root"
PROJECTED_DIM = 1024
"""Sets with more dimensions are projected to this many, except for the embedding."""
LAYOUT_GRID = 8
# Of a place's energy: places without any contrast stay at zero.
LAYOUT_FLOOR = 1e-3
SIGNS_SEED = b"nearshot feature sets"
FEATURE_SETS_VERSION = 1
"""Part of the keys of cached features: increase it with every change to the values of a set."""


@dataclass(frozen=True)
class FeatureSet:
    """Some columns of an image's flat vector.

    Attributes:
        name: unique among the sets of a vector.
        start: the first column.
        stop: the column after the last.
        is_rooted: whether the square root of the values, none of which is negative, is taken before
            everything else. A rooted set may have the same columns as another set.
    """

    name: str
    start: int
    stop: int
    is_rooted: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise InputError(f"name must be a text that is not empty (got {self.name!r}).")
        if type(self.start) is not int or type(self.stop) is not int:
            raise InputError(
                f"start and stop must be integers (got {self.start!r} and {self.stop!r})."
            )
        if not 0 <= self.start < self.stop:
            raise InputError(
                f"start must be at least 0 and below stop (got {self.start} and {self.stop})."
            )
        if type(self.is_rooted) is not bool:
            raise InputError(f"is_rooted must be True or False (got {self.is_rooted!r}).")

    @property
    def columns(self) -> slice:
        """The columns as a slice."""
        return slice(self.start, self.stop)


@dataclass(frozen=True)
class FeatureSets:
    """The feature sets of a flat vector, and the combinations of them that a classifier may weigh.

    Attributes:
        sets: the sets, which together cover the vector from column 0 on.
        candidates: combinations of sets, by their names. The first is the plain one: what a
            classifier with a single feature vector uses.

    >>> sets = FeatureSets(
    ...     sets=(FeatureSet("head", 0, 4), FeatureSet("block", 4, 6)),
    ...     candidates=(("head",), ("head", "block")),
    ... )
    >>> sets.dim, sets.columns("block")
    (6, slice(4, 6, None))
    """

    sets: tuple[FeatureSet, ...]
    candidates: tuple[tuple[str, ...], ...]
    _by_name: Mapping[str, FeatureSet] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        by_name = {feature_set.name: feature_set for feature_set in self.sets}
        if not self.sets or len(by_name) != len(self.sets):
            names = [feature_set.name for feature_set in self.sets]
            raise InputError(f"sets must have different names, at least one (got {names}).")
        n_covered = 0
        for feature_set in sorted(self.sets, key=lambda feature_set: feature_set.start):
            if feature_set.start > n_covered:
                raise InputError(
                    f"sets must cover all columns (got none for column {n_covered}, before "
                    f"{feature_set.name!r})."
                )
            n_covered = max(n_covered, feature_set.stop)
        if not self.candidates or len(set(self.candidates)) != len(self.candidates):
            raise InputError(f"candidates must be different, at least one (got {self.candidates}).")
        for candidate in self.candidates:
            are_names = all(name in by_name for name in candidate)
            if not candidate or not are_names or len(set(candidate)) != len(candidate):
                raise InputError(
                    f"candidates must have different names of sets, of {list(by_name)} "
                    f"(got {candidate!r})."
                )
        object.__setattr__(self, "_by_name", by_name)

    @property
    def dim(self) -> int:
        """The length of the flat vector."""
        return max(feature_set.stop for feature_set in self.sets)

    def __getitem__(self, name: str) -> FeatureSet:
        """Return the set of a name."""
        return self._by_name[name]

    def columns(self, name: str) -> slice:
        """Return the columns of a set."""
        return self._by_name[name].columns

    @property
    def plain(self) -> tuple[FeatureSet, ...]:
        """The sets of the plain candidate."""
        return tuple(self._by_name[name] for name in self.candidates[0])

    def as_dict(self) -> dict[str, Any]:
        """Return a description that JSON can hold."""
        return {
            "sets": [asdict(feature_set) for feature_set in self.sets],
            "candidates": [list(candidate) for candidate in self.candidates],
        }

    @classmethod
    def from_dict(cls, description: Mapping[str, Any]) -> Self:
        """Inverse of `as_dict`; a description that is not one raises ValueError."""
        try:
            sets = [
                FeatureSet(
                    name=values["name"],
                    start=values["start"],
                    stop=values["stop"],
                    is_rooted=values["is_rooted"],
                )
                for values in description["sets"]
            ]
            candidates = [tuple(candidate) for candidate in description["candidates"]]
            return cls(sets=tuple(sets), candidates=tuple(candidates))
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"not a description of feature sets: {description!r:.100}") from error


def side_by_side(
    dims: Mapping[str, int],
    candidates: Sequence[Sequence[str]],
    *,
    rooted: Collection[str] = (),
) -> FeatureSets:
    """Return the description of what `Backbone.flat_features` returns.

    Args:
        dims: the dimension of each of `Backbone.named_features`, the embedding first, before large
            sets are projected.
        candidates: as in `FeatureSets`.
        rooted: the sets without negative values, of which square roots are taken. The roots of the
            embedding are one more set, `EMBEDDING_ROOT`.
    """
    sets = []
    start = 0
    for name, dim in dims.items():
        stop = start + (dim if name == EMBEDDING else min(dim, PROJECTED_DIM))
        if name != EMBEDDING:
            sets.append(FeatureSet(name, start, stop, is_rooted=name in rooted))
        else:
            sets.append(FeatureSet(EMBEDDING, start, stop))
            if EMBEDDING in rooted:
                sets.append(FeatureSet(EMBEDDING_ROOT, start, stop, is_rooted=True))
        start = stop
    return FeatureSets(tuple(sets), tuple(tuple(candidate) for candidate in candidates))


def sets_of_stages(
    embedding_dim: int, stage_dims: Sequence[int], *, is_rooted: bool
) -> FeatureSets | None:
    """Return the description of `features_of_stages`; None for fewer than two stages.

    `is_rooted` is whether the stages and the embedding have no negative values, so that square
    roots are taken.
    """
    if len(stage_dims) < 2:
        return None
    middle, late = chosen_stages(len(stage_dims))
    n_late = stage_dims[late]
    dims = {
        EMBEDDING: embedding_dim,
        "middle": stage_dims[middle],
        "late": n_late,
        "late-pairs": n_late * (n_late + 1) // 2,
    }
    embedding = EMBEDDING_ROOT if is_rooted else EMBEDDING
    candidates = [
        (EMBEDDING,),
        ("late",),
        (embedding, "late"),
        (embedding, "late", "middle"),
        ("late-pairs",),
        (embedding, "late", "late-pairs"),
    ]
    if is_rooted:
        candidates.append((EMBEDDING_ROOT,))
    rooted = (EMBEDDING, "middle", "late") if is_rooted else ()
    return side_by_side(dims, candidates, rooted=rooted)


def features_of_stages(embedding: Tensor, middle: Tensor, late: Tensor) -> dict[str, Tensor]:
    """Return feature sets, (image, n) each, of an embedding and the maps of `chosen_stages`."""
    return {
        EMBEDDING: embedding,
        "middle": pool(middle, 1).flatten(1),
        "late": pool(late, 1).flatten(1),
        "late-pairs": second_order(layout(late)),
    }


def chosen_stages(n_stages: int) -> tuple[int, int]:
    """Return the stages at a half and at three quarters of the depth, counted from 0.

    >>> chosen_stages(4), chosen_stages(12)
    ((1, 2), (5, 8))
    """
    return (n_stages + 1) // 2 - 1, (3 * n_stages + 3) // 4 - 1


def pool(maps: Tensor, grid: int) -> Tensor:
    """Average maps over a grid of windows.

    (image, channel, height, width) to (image, channel, grid, grid). Windows overlap where the grid
    does not divide a side, as in PyTorch's adaptive pooling.
    """
    rows = _window_weights(maps.shape[2], grid).to(maps)
    columns = _window_weights(maps.shape[3], grid).to(maps)
    # Matrix products: ONNX has no adaptive pooling.
    return rows @ maps @ columns.T


def _window_weights(n_places: int, n_windows: int) -> Tensor:
    """Return the weight of each place in the mean of each window, (window, place).

    >>> _window_weights(3, 2)
    tensor([[0.5000, 0.5000, 0.0000],
            [0.0000, 0.5000, 0.5000]])
    """
    windows = torch.arange(n_windows)[:, None]
    places = torch.arange(n_places)
    starts = windows * n_places // n_windows
    ends = ((windows + 1) * n_places + n_windows - 1) // n_windows  # rounded up
    is_inside = (places >= starts) & (places < ends)
    return is_inside.float() / is_inside.sum(1, keepdim=True)


def layout(maps: Tensor) -> Tensor:
    """Return where the channels of maps are strong, (image, channel, 8, 8).

    As HOG does with gradients: each place is relative to the mean of all places, and divided by the
    energy around it, so that contrast does not count.
    """
    cells = pool(maps, LAYOUT_GRID)
    cells = cells - cells.mean((2, 3), keepdim=True)
    energy = cells.square().sum(1, keepdim=True)
    energy = F.avg_pool2d(F.pad(energy, (1, 1, 1, 1), mode="replicate"), 3, stride=1)
    return cells / (energy.sqrt() + LAYOUT_FLOOR)


def second_order(maps: Tensor) -> Tensor:
    """Return the signed roots of the channels' covariances over places.

    (image, channel, height, width) to (image, channel · (channel + 1) / 2).
    """
    values = maps.flatten(2)
    values = values - values.mean(2, keepdim=True)
    covariance = values @ values.mT / values.shape[2]  # (image, channel, channel)
    n_channels = values.shape[1]
    rows, columns = np.triu_indices(n_channels)
    pairs = torch.from_numpy(rows * n_channels + columns).to(values.device)
    upper = covariance.flatten(1).index_select(1, pairs)
    return upper.sign() * upper.abs().sqrt()


def project(values: Tensor, dim: int = PROJECTED_DIM) -> Tensor:
    """Project values (image, n) to (image, dim), if there are more, by hashed signs.

    Each value is added, with its sign, to the sum that its position modulo `dim` names. Products of
    vectors keep their expected value.
    """
    n_values = values.shape[1]
    if n_values <= dim:
        return values
    signed = values * torch.from_numpy(_signs(n_values)).to(values)
    padded = F.pad(signed, (0, -n_values % dim))
    projected: Tensor = padded.unflatten(1, (-1, dim)).sum(1)
    return projected


@lru_cache
def _signs(n: int) -> npt.NDArray[np.int8]:
    """Return n signs, 1 or −1: the bits of a hash, the same everywhere and in every version."""
    digest = hashlib.shake_128(SIGNS_SEED).digest((n + 7) // 8)
    bits = np.unpackbits(np.frombuffer(digest, np.uint8))[:n]
    return 2 * bits.astype(np.int8) - 1
