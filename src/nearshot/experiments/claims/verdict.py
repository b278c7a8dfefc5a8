"""Judging a statement by what was run: confirmed, contradicted, undecided or not yet run.

A statement sets limits to differences (`Limits`): it is confirmed if their 95 % intervals lie within them, and
contradicted if one lies outside. "Better" is above zero, and "no difference" within a point of it, so that a small one
can be both: there, and none to speak of. Intervals are between training seeds, paired, where there are several; how
much seeds differ is taken from all comparisons of a statement on the same split with as many shots. For a single seed
they are over episodes, and a margin is allowed for the chance in trainings (`gaps.luck_in`, and the verdict says how
much); so it is for two that agree within it, where that is less than their interval. Where the margin alone fills the
limits, nothing could confirm the statement, and the verdict says that too. Statements about many comparisons are
contradicted by one of them only if that would be no chance among so many (Bonferroni). Where neither a statement nor
its opposite is more than chance, it is undecided.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from nearshot.experiments.claims.compare import Pairs, gaps_of
from nearshot.experiments.paired import SAME, Gap, pooled
from nearshot.experiments.recipe import Found

__all__ = [
    "ABOVE",
    "NONE",
    "Claim",
    "Limits",
    "Status",
    "Verdict",
    "above",
    "clearly_above",
    "judged",
    "listed",
    "not_above",
    "same",
]

Status = Literal["confirmed", "contradicted", "undecided", "not yet run"]
LISTED = 6  # gaps that a verdict tells; more are counted


class Verdict(NamedTuple):
    """What has become of a statement, with the numbers."""

    status: Status
    text: str


Check = Callable[[Found, str], Verdict]  # of what was run, on a dataset


@dataclass(frozen=True)
class Claim:
    """A statement of the paper.

    Attributes:
        name: a short name.
        statement: what it says.
        where: the paper's section.
        check: what the results say, on a dataset.
        datasets: on which it is judged: where the paper says so, and a recipe has the trainings.
    """

    name: str
    statement: str
    where: str
    check: Check
    datasets: tuple[str, ...] = ("cifar-fs", "mini-imagenet")


class Limits(NamedTuple):
    """Between what a difference lies, in points, if a statement about it is so."""

    low: float = -math.inf
    high: float = math.inf

    def room(self, one: Gap) -> float:
        """Return how far within them all that it may be is; less than nothing where some of it is outside."""
        return min(one.low - self.low, self.high - one.high)

    def hold(self, one: Gap) -> bool:
        """Return whether all that it may be is within them."""
        return self.room(one) > 0

    def fail(self, one: Gap) -> bool:
        """Return whether all that it may be is outside."""
        return one.high < self.low or one.low > self.high

    def are_filled_by(self, one: Gap) -> bool:
        """Return whether its margin alone leaves no difference that would be within them."""
        return 2 * one.luck >= self.high - self.low


ABOVE = Limits(low=0.0)
CLEARLY_ABOVE = Limits(low=SAME)
NOT_ABOVE = Limits(high=SAME / 2)
NONE = Limits(-SAME, SAME)


def judged(*stated: tuple[Sequence[Gap | None], Limits]) -> Verdict:
    """Confirm if all gaps are within their limits, contradict if one is outside, and leave it open otherwise.

    The verdict says which they are, and begins with what speaks most against the statement, or least for it.
    """
    limits = [within for gaps, within in stated for one in gaps if one is not None]
    if not limits:
        return Verdict("not yet run", "")
    there = list(zip(pooled([one for gaps, _ in stated for one in gaps if one is not None]), limits, strict=True))
    there.sort(key=lambda two: two[1].room(two[0]))
    n_all = sum(len(gaps) for gaps, _ in stated)
    missing = f" {n_all - len(there)} of {n_all} comparisons are not run yet." if len(there) < n_all else ""
    failing = [one for one, within in there if within.fail(one.among(len(there)))]
    if failing:
        return Verdict("contradicted", f"Not so for {len(failing)} of {len(there)}: {listed(failing)}.{missing}")
    open_ones = [one for one, within in there if not within.hold(one)]
    if open_ones:
        never = {one.n_seeds for one, within in there if within.are_filled_by(one)}
        cannot = f" {'One seed' if 1 in never else 'Two seeds'} cannot confirm this." if never else ""
        return Verdict("undecided", f"Open for {len(open_ones)} of {len(there)}: {listed(open_ones)}.{cannot}{missing}")
    # A statement about all of them is confirmed by all of them.
    return Verdict("undecided" if missing else "confirmed", f"{listed([one for one, _ in there])}.{missing}")


def listed(gaps: Sequence[Gap]) -> str:
    """Tell the first gaps, over how many training seeds all of them are, and what ± is."""
    told = "; ".join(map(str, gaps[:LISTED]))
    more = f"; and {len(gaps) - LISTED} more" if len(gaps) > LISTED else ""
    n_seeds = sorted({one.n_seeds for one in gaps})
    seeds = "one seed" if n_seeds == [1] else f"{' or '.join(map(str, n_seeds))} seeds"
    between = any(one.freedom for one in gaps)
    seeds += ", ± between seeds" if between else ", ± over episodes"
    if between and not all(one.freedom for one in gaps):
        seeds += ", or over episodes where they are too few"
    if any(one.luck for one in gaps):
        seeds += f"; {'then ' if between else ''}{_allowed(gaps)} allowed for the chance in trainings"
    return f"{told}{more} ({seeds})"


def _allowed(gaps: Sequence[Gap]) -> str:
    """Say how many points more are allowed; where that is not the same for all, for which."""
    margins = sorted({one.luck for one in gaps if one.luck}, reverse=True)
    if len(margins) == 1:
        return {0.5: "half a point more is", 1.0: "a point more is"}.get(margins[0], f"{margins[0]:g} points more are")
    each = (
        f"{margin:g} ({' and '.join(sorted({one.kind for one in gaps if one.luck == margin}))})" for margin in margins
    )
    return f"{' or '.join(each)} points more are"


def above(pairs: Pairs) -> Check:
    """Check that each first is above its second."""
    return _within(ABOVE, pairs)


def clearly_above(pairs: Pairs) -> Check:
    """Check that each first is above its second by more than would pass for no difference."""
    return _within(CLEARLY_ABOVE, pairs)


def same(pairs: Pairs) -> Check:
    """Check that there is no difference to speak of."""
    return _within(NONE, pairs)


def _within(limits: Limits, pairs: Pairs) -> Check:
    return lambda found, dataset: judged((gaps_of(found, pairs(dataset)), limits))


def not_above(pairs: Pairs) -> Check:
    """Check that no first is above its second by half a point; where that could still be, it is undecided.

    What does not help may do harm, of which such a statement does not speak: what it costs, where that is more than
    chance, is said first.
    """

    def check(found: Found, dataset: str) -> Verdict:
        gaps = gaps_of(found, pairs(dataset))
        verdict = judged((gaps, NOT_ABOVE))
        return Verdict(verdict.status, f"{_costs(gaps)}{verdict.text}")

    return check


def _costs(gaps: Sequence[Gap | None]) -> str:
    """Say how much is lost, and in how many comparisons; nothing where it may be chance."""
    there = pooled([one for one in gaps if one is not None])
    costs = sorted(-one.difference for one in there if ABOVE.fail(one.among(len(there))))
    if not costs:
        return ""
    least, most = f"{costs[0]:.1f}", f"{costs[-1]:.1f}"
    points = most if least == most else f"{least} to {most}"
    return f"It costs {points} points{'' if len(costs) == len(there) else f' in {len(costs)} of {len(there)}'}. "
