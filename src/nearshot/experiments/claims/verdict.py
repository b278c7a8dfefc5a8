"""Judging a statement by the results: confirmed, contradicted, undecided or not yet run.

A statement sets limits to differences (`Limits`). It is confirmed if all 95 % intervals lie within them, and
contradicted if one lies outside. "Better" means above zero, and "no difference" within a point of it, so a small
difference can satisfy both. Intervals are between training seeds where there are several: Welch's for two runs,
Student's for one run that is measured in two ways. The spread between seeds is pooled over all comparisons of a
statement on the same split with the same number of shots. For a single seed intervals are over episodes, and a margin
is added for seed variance (`differences.seed_margin`). The same holds for two seeds that agree within the margin, where
it is smaller than their interval. The verdict names the margin, and says so where the margin alone fills the limits, so
that nothing could confirm the statement. One of many comparisons contradicts a statement only after Bonferroni's
correction.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

from nearshot.experiments.differences import SAME, Difference, pool_spread
from nearshot.text import counted

Status = Literal["confirmed", "contradicted", "undecided", "not yet run"]
LISTED = 6  # differences that a verdict lists; more are counted


class Limits(NamedTuple):
    """The range, in points, in which a difference must lie for a statement to hold."""

    low: float = -math.inf
    high: float = math.inf

    def room(self, one: Difference) -> float:
        """Return how far within them the whole interval is; negative where some of it is outside."""
        return min(one.low - self.low, self.high - one.high)

    def fail(self, one: Difference) -> bool:
        """Return whether the whole interval is outside."""
        return one.high < self.low or one.low > self.high

    def are_filled_by(self, one: Difference) -> bool:
        """Return whether the margin alone is as wide as the limits, so that no difference could hold."""
        return 2 * one.margin >= self.high - self.low


class Judged(NamedTuple):
    """A difference, and the limits in which it must lie."""

    difference: Difference
    limits: Limits


class Verdict(NamedTuple):
    """The status of a statement, with the numbers behind it.

    Attributes:
        note: what to know beside the differences, or instead of them.
        judged: all differences, those that speak most against the statement first.
        n_against: how many of them, from the first, contradict it or leave it undecided.
        n_missing: how many more are not run yet.
    """

    status: Status
    note: str = ""
    judged: tuple[Judged, ...] = ()
    n_against: int = 0
    n_missing: int = 0

    @property
    def text(self) -> str:
        """All of it in words, with the first differences: those that speak against it, or any if none does."""
        if not self.judged:
            return self.note
        which = {"contradicted": "Contradicted by", "undecided": "Undecided for"}.get(self.status)
        lead = f"{which} {self.n_against} of {len(self.judged)}: " if self.n_against else ""
        shown = [one for one, _ in self.judged[: self.n_against or None]]
        first = "; ".join(map(str, shown[:LISTED]))
        more = f"; and {len(shown) - LISTED} more" if len(shown) > LISTED else ""
        return f"{self.note}{lead}{first}{more} ({about_intervals(shown)}).{self.caveats}"

    @property
    def caveats(self) -> str:
        """Why more of the same cannot confirm it, and what is missing; empty, or sentences after a space."""
        never = {one.n_seeds for one, limits in self.judged if limits.are_filled_by(one)}
        is_open = self.status == "undecided" and self.n_against > 0
        cannot = f" {'One seed' if 1 in never else 'Two seeds'} cannot confirm this." if never and is_open else ""
        n_all = len(self.judged) + self.n_missing
        return cannot + (f" {self.n_missing} of {n_all} comparisons are not run yet." if self.n_missing else "")

    def reason(self, n_seeds: int = 0) -> str:
        """Return the reason in one line: how many comparisons say so, and the seeds of the one that decides.

        The number of seeds is left out if it is `n_seeds`, which the reader knows already.

        >>> one = Judged(Difference("a minus b", 0.5, 0.3, 3), Limits(low=0.0))
        >>> Verdict("confirmed", judged=(one, one)).reason()
        '2 of 2 in favour, 3 seeds'
        """
        if not self.judged:
            return self.note
        decides = self.judged[0].difference
        side = "in favour" if not self.n_against else "against" if self.status == "contradicted" else "undecided"
        said = f"{self.n_against or len(self.judged)} of {len(self.judged)} {side}"
        missing = f", {self.n_missing} not run" if self.n_missing else ""
        return said + missing + ("" if decides.n_seeds == n_seeds else f", {counted(decides.n_seeds, 'seed')}")


ABOVE = Limits(low=0.0)
CLEARLY_ABOVE = Limits(low=SAME)
NOT_ABOVE = Limits(high=SAME / 2)
NONE = Limits(-SAME, SAME)


def judge(*stated: tuple[Sequence[Difference | None], Limits]) -> Verdict:
    """Confirm if all differences are within their limits, contradict if one is outside; otherwise it is undecided.

    None is a missing difference.
    """
    limits = [within for differences, within in stated for one in differences if one is not None]
    if not limits:
        return Verdict("not yet run")
    pooled = pool_spread([one for differences, _ in stated for one in differences if one is not None])
    n_missing = sum(len(differences) for differences, _ in stated) - len(pooled)
    judged = sorted(map(Judged, pooled, limits), key=lambda two: two.limits.room(two.difference))
    failing = [two for two in judged if two.limits.fail(two.difference._replace(n_compared=len(judged)))]
    if failing:
        rest = [two for two in judged if two not in failing]
        return Verdict("contradicted", "", (*failing, *rest), len(failing), n_missing)
    n_undecided = sum(two.limits.room(two.difference) <= 0 for two in judged)
    # A statement about all comparisons is confirmed by all of them only.
    status: Status = "undecided" if n_undecided or n_missing else "confirmed"
    return Verdict(status, "", tuple(judged), n_undecided, n_missing)


def about_intervals(differences: Sequence[Difference]) -> str:
    """Return the number of training seeds of some differences, what ± is over, and the margins."""
    n_seeds = sorted({one.n_seeds for one in differences})
    seeds = "one seed" if n_seeds == [1] else f"{' or '.join(map(str, n_seeds))} seeds"
    between = [one.freedom > 0 for one in differences]
    seeds += ", ± between seeds" if any(between) else ", ± over episodes"
    if any(between) and not all(between):
        seeds += ", or over episodes where they are too few"
    margins = sorted({one.margin for one in differences if one.margin}, reverse=True)
    if not margins:
        return seeds
    points = f"{margins[0]:g} point{'' if margins[0] == 1 else 's'}"
    if len(margins) > 1:  # with what each is for
        kinds = [sorted({one.kind for one in differences if one.margin == margin}) for margin in margins]
        both = zip(margins, kinds, strict=True)
        points = " or ".join(f"{margin:.2g} ({' and '.join(alike)})" for margin, alike in both) + " points"
    return f"{seeds}; {'then ' if any(between) else ''}plus {points} for seed variance"
