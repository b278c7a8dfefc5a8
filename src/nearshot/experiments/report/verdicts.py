"""The first screen: each claim with its verdict, and the difference that decides it on an axis that all share."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple, get_args

from nearshot.experiments.claims import Claim, Verdict, check_claims
from nearshot.experiments.claims.verdict import Status
from nearshot.experiments.differences import Difference
from nearshot.experiments.recipe import Found
from nearshot.experiments.report.contents import ScaleContents
from nearshot.experiments.tables import signed

STATUSES = get_args(Status)  # the last is not yet run
WIDTH, HEIGHT = 210, 20  # of a chart
FARTHEST = 6  # points from zero that the axis shows; an arrow points to what is beyond
ROWS = 32  # that are unfolded, if the first study has no more


class Study(NamedTuple):
    """The claims on a dataset at a scale."""

    found: Found
    dataset: str
    judged: Sequence[tuple[Claim, Verdict]]  # by verdict
    not_run: Sequence[tuple[Claim, Verdict]]

    @property
    def counts(self) -> dict[str, int]:
        """How many claims have each status."""
        numbers = Counter(verdict.status for _, verdict in (*self.judged, *self.not_run))
        return {status: numbers[status] for status in STATUSES}


def studies_of(scales: Sequence[ScaleContents]) -> list[Study]:
    """Judge the paper's claims for every scale and dataset that has runs."""
    studies = []
    for _, _, parts in scales:
        for dataset in dict.fromkeys(part.dataset for part in parts):
            founds = [part.found for part in parts if part.dataset == dataset]
            seeds = tuple(sorted({seed for one in founds for seed in one.seeds}))
            found = replace(founds[0], seeds=seeds, n_asked=None)
            checked = sorted(check_claims(found, dataset), key=lambda one: STATUSES.index(one[1].status))
            n_judged = sum(verdict.status != "not yet run" for _, verdict in checked)
            studies.append(Study(found, found.on(dataset), checked[:n_judged], checked[n_judged:]))
    return studies


def n_unfolded(studies: Sequence[Study]) -> int:
    """Return how many studies fit on the first screen, at least one."""
    sizes = [len(study.judged) for study in studies]
    return max(1, sum(sum(sizes[: i + 1]) <= ROWS for i in range(len(sizes))))


class Axis(NamedTuple):
    """The shared axis of all charts, in points of accuracy."""

    low: int
    high: int

    def x(self, points: float) -> float:
        """Return where a value is in a chart; at its edge if it is beyond."""
        return round(WIDTH * (min(max(points, self.low), self.high) - self.low) / (self.high - self.low), 1)

    @property
    def ticks(self) -> range:
        """The values with a line: every point, or every other one on a long axis."""
        step = 1 if self.high - self.low <= FARTHEST else 2
        return range(math.ceil(self.low / step) * step, self.high + 1, step)


def axis_of(studies: Iterable[Study]) -> Axis:
    """Return the axis for the deciding differences of some studies; two points on both sides of zero, at least."""
    deciding = [verdict.judged[0].difference for study in studies for _, verdict in study.judged if verdict.judged]
    ends = [end for one in deciding for end in (one.low, one.high) if math.isfinite(end)]  # one episode has no interval
    low, high = math.floor(min(ends, default=0.0)), math.ceil(max(ends, default=0.0))
    return Axis(max(-FARTHEST, min(-2, low)), min(FARTHEST, max(2, high)))


def numbers(one: Difference) -> str:
    """Return a difference with its interval and, if it has one, its margin.

    >>> numbers(Difference("a minus b", -0.5, 0.3, 1, allowed=2.5))
    '−0.50 ± 0.30 + 2.5'
    """
    return f"{signed(one.difference)} ± {one.interval95:.2f}" + (f" + {one.margin:.2g}" if one.margin else "")
