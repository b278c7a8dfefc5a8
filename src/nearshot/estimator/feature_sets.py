"""Feature sets: what a backbone offers of one forward pass, as columns of one flat vector.

A classifier can weigh several views of an image: the embedding, an earlier block, a layout of
parts. `Embedder` returns them side by side, (image, dim), and `FeatureSets` names the columns.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Self

from nearshot.errors import InputError


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


def join_networks(
    networks: Sequence[FeatureSets], candidates: Sequence[Sequence[str]]
) -> FeatureSets:
    """Return the sets of several networks, whose flat vectors are put side by side.

    The sets of the first network are named "1/<name>", and so on; `candidates` uses those names.
    """
    sets = []
    offset = 0
    for number, network in enumerate(networks, start=1):
        for feature_set in network.sets:
            name = f"{number}/{feature_set.name}"
            start = offset + feature_set.start
            stop = offset + feature_set.stop
            sets.append(FeatureSet(name, start, stop, feature_set.is_rooted))
        offset += network.dim
    return FeatureSets(tuple(sets), tuple(tuple(candidate) for candidate in candidates))
