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
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Literal, NamedTuple, get_args

from nearshot.experiments.differences import SAME, Difference, Side, difference_of, pool_spread
from nearshot.experiments.recipe import Found

Status = Literal["confirmed", "contradicted", "undecided", "not yet run"]
LISTED = 6  # differences that a verdict lists; more are counted


class Verdict(NamedTuple):
    """The status of a statement, with the numbers behind it."""

    status: Status
    text: str


Check = Callable[[Found, str], Verdict]  # of the results, on a dataset


class Claim(NamedTuple):
    """A statement of the paper, its section, and the check that judges it by the results on some datasets."""

    name: str
    statement: str
    where: str
    check: Check
    datasets: tuple[str, ...]


Compared = tuple[str, Side, Side]  # a name, and two measurements, each with its run: the first minus the second
Comparisons = Callable[[str], Iterable[Compared]]  # on a dataset


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


ABOVE = Limits(low=0.0)
CLEARLY_ABOVE = Limits(low=SAME)
NOT_ABOVE = Limits(high=SAME / 2)
NONE = Limits(-SAME, SAME)


def judge(*stated: tuple[Sequence[Difference | None], Limits]) -> Verdict:
    """Confirm if all differences are within their limits, contradict if one is outside; otherwise it is undecided.

    The verdict lists the differences, those that speak most against the statement first. None is a missing one.
    """
    limits = [within for differences, within in stated for one in differences if one is not None]
    if not limits:
        return Verdict("not yet run", "")
    there = [one for differences, _ in stated for one in differences if one is not None]
    judged = sorted(zip(pool_spread(there), limits, strict=True), key=lambda two: two[1].room(two[0]))
    n_all, n_there = sum(len(differences) for differences, _ in stated), len(there)
    missing = f" {n_all - n_there} of {n_all} comparisons are not run yet." if n_there < n_all else ""
    failing = [one for one, within in judged if within.fail(one._replace(n_compared=n_there))]
    if failing:
        text = f"Contradicted by {len(failing)} of {n_there}: {differences_in_words(failing)}.{missing}"
        return Verdict("contradicted", text)
    undecided = [one for one, within in judged if within.room(one) <= 0]
    if undecided:
        never = {one.n_seeds for one, within in judged if within.are_filled_by(one)}
        cannot = f" {'One seed' if 1 in never else 'Two seeds'} cannot confirm this." if never else ""
        text = f"Undecided for {len(undecided)} of {n_there}: {differences_in_words(undecided)}.{cannot}{missing}"
        return Verdict("undecided", text)
    # A statement about all comparisons is confirmed by all of them only.
    text = f"{differences_in_words([one for one, _ in judged])}.{missing}"
    return Verdict("undecided" if missing else "confirmed", text)


def differences_in_words(differences: Sequence[Difference]) -> str:
    """Return the first differences, the number of training seeds of all of them, and what ± is over."""
    first = "; ".join(map(str, differences[:LISTED]))
    more = f"; and {len(differences) - LISTED} more" if len(differences) > LISTED else ""
    n_seeds = sorted({one.n_seeds for one in differences})
    seeds = "one seed" if n_seeds == [1] else f"{' or '.join(map(str, n_seeds))} seeds"
    between = [one.freedom > 0 for one in differences]
    seeds += ", ± between seeds" if any(between) else ", ± over episodes"
    if any(between) and not all(between):
        seeds += ", or over episodes where they are too few"
    if any(one.margin for one in differences):
        seeds += f"; {'then ' if any(between) else ''}plus {_margins(differences)} for seed variance"
    return f"{first}{more} ({seeds})"


def _margins(differences: Sequence[Difference]) -> str:
    """Return the margins in points; where they differ, with what each is for."""
    margins = sorted({one.margin for one in differences if one.margin}, reverse=True)
    if len(margins) == 1:
        return f"{margins[0]:g} point{'' if margins[0] == 1 else 's'}"
    kinds = {margin: sorted({one.kind for one in differences if one.margin == margin}) for margin in margins}
    return " or ".join(f"{margin:g} ({' and '.join(kinds[margin])})" for margin in margins) + " points"


def within(*stated: tuple[Comparisons, Limits]) -> Check:
    """Return a check that comparisons are within limits."""
    return lambda found, dataset: judge(
        *((_differences(found, dataset, comparisons), limits) for comparisons, limits in stated)
    )


def above(comparisons: Comparisons) -> Check:
    """Return a check that each first is above its second."""
    return within((comparisons, ABOVE))


def not_above(comparisons: Comparisons) -> Check:
    """Return a check that no first is above its second by half a point; its verdict begins with significant losses."""

    def check(found: Found, dataset: str) -> Verdict:
        differences = _differences(found, dataset, comparisons)
        verdict = judge((differences, NOT_ABOVE))
        return Verdict(verdict.status, f"{_losses(differences)}{verdict.text}")

    return check


def _differences(found: Found, dataset: str, comparisons: Comparisons) -> list[Difference | None]:
    return [difference_of(found, *one) for one in comparisons(dataset)]


def _losses(differences: Sequence[Difference | None]) -> str:
    there = pool_spread([one for one in differences if one is not None])
    losses = sorted(-one.difference for one in there if ABOVE.fail(one._replace(n_compared=len(there))))
    if not losses:
        return ""
    least, most = f"{losses[0]:.1f}", f"{losses[-1]:.1f}"
    points = most if least == most else f"{least} to {most}"
    return f"It loses {points} points{'' if len(losses) == len(there) else f' in {len(losses)} of {len(there)}'}. "


def count_statuses(statuses: Iterable[str]) -> str:
    """Return how many statements have which status, such as "1 confirmed, 2 undecided"."""
    numbers = Counter(statuses)
    return ", ".join(f"{numbers[status]} {status}" for status in get_args(Status) if numbers[status])
