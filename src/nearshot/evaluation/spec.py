"""The settings of an evaluation, as one object and as keyword arguments."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypedDict

from nearshot.checks import convert_numpy_fields, is_integer
from nearshot.episode_shape import EpisodeShape
from nearshot.errors import InputError
from nearshot.evaluation.classifiers import ClassifierOrName

SmallClasses = Literal["raise", "leave out"] | int


@dataclass(frozen=True)
class EvaluationSpec:
    """An evaluation: which episodes are drawn, and how they are answered. The defaults are the paper's (Section 3.1).

    Attributes:
        n_way: classes per episode.
        n_shot: support images per class.
        n_query: query images per class.
        n_episodes: the number of episodes.
        seed: the seed of the episodes.
        classifier: a name in `CLASSIFIERS`, a `Classifier`, or a function of support and query features.
        centred: whether to subtract the training set's mean feature; by default, if it is known.
        normalise: whether to divide each feature by its length.
        small_classes: "raise" refuses classes with too few images; "leave out" skips them; a number skips those with
            fewer images than that.
        inductive: for a function of features, whether it looks at each query alone; the result says so.
    """

    n_way: int = 5
    n_shot: int = 5
    n_query: int = 15
    n_episodes: int = 10_000
    seed: int = 0
    classifier: ClassifierOrName = "centroid"
    centred: bool | None = None
    normalise: bool = True
    small_classes: SmallClasses = "raise"
    inductive: bool | None = None

    def __post_init__(self) -> None:
        convert_numpy_fields(self)
        EpisodeShape(self.n_way, self.n_shot, self.n_query)  # checks them
        if not is_integer(self.n_episodes) or not 1 <= self.n_episodes < 2**31:
            raise InputError(f"n_episodes must be a whole number from 1 to 2³¹ − 1 (got {self.n_episodes!r}).")
        if not is_integer(self.seed) or not 0 <= self.seed < 2**64:
            raise InputError(f"seed must be a whole number from 0 to 2⁶⁴ − 1 (got {self.seed!r}).")
        small = self.small_classes
        if small not in ("raise", "leave out") and not (is_integer(small) and int(small) > 0):
            raise InputError(f"small_classes must be 'raise', 'leave out' or a number of at least 1 (got {small!r}).")

    @property
    def shape(self) -> EpisodeShape:
        """Ways, shots and queries."""
        return EpisodeShape(self.n_way, self.n_shot, self.n_query)


class EvaluationSettings(TypedDict, total=False):
    """The fields of `EvaluationSpec`, as keyword arguments."""

    n_way: int
    n_shot: int
    n_query: int
    n_episodes: int
    seed: int
    classifier: ClassifierOrName
    centred: bool
    normalise: bool
    small_classes: SmallClasses
    inductive: bool | None
