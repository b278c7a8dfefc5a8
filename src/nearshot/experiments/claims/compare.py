"""What statements compare: two measurements, each with its training, and what to call the difference."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from nearshot.experiments.paired import Gap, Side, gap
from nearshot.experiments.recipe import Found
from nearshot.experiments.results import Measurement
from nearshot.training import TrainConfig

__all__ = ["Compared", "Pairs", "by", "gaps_of", "on_val"]

Compared = tuple[str, Side, Side]
Pairs = Callable[[str], Sequence[Compared]]  # of a dataset


def on_val(config: TrainConfig, shot: int, classifier: str = "centroid") -> Side:
    """Return a training, measured on the validation split."""
    return config, Measurement("val", shot, classifier)


def by(classifier: str) -> str:
    """Return a classifier as a part of a comparison's name; nearest centroid goes without saying.

    >>> by("soft"), by("centroid")
    ('soft, ', '')
    """
    return "" if classifier == "centroid" else f"{classifier}, "


def gaps_of(found: Found, compared: Iterable[Compared]) -> list[Gap | None]:
    """Return the differences, None for each that was not run."""
    return [gap(found, *one) for one in compared]
