"""Judging a statement by the results: confirmed, contradicted, undecided or not yet run.

A statement sets limits to differences. It is confirmed if all 95 % intervals lie within them, and
contradicted if one lies outside after Bonferroni's correction. `docs/judging.md` has all rules, and
`differences` the intervals.
"""

from collections.abc import Sequence
from typing import Literal, NamedTuple

from nearshot.paper.differences import SAME, Difference, Limits, pool_spread
from nearshot.text import counted

Status = Literal["confirmed", "contradicted", "undecided", "not yet run"]
LISTED = 6  # differences that a verdict lists; more are counted


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
    judged: tuple[Difference, ...] = ()
    n_against: int = 0
    n_missing: int = 0

    @property
    def text(self) -> str:
        """All of it in words, with the first differences: those that speak against it, or any if none does."""
        if not self.judged:
            return self.note
        which = {"contradicted": "Contradicted by", "undecided": "Undecided for"}.get(self.status)
        lead = f"{which} {self.n_against} of {len(self.judged)}: " if self.n_against else ""
        shown = self.judged[: self.n_against or None]
        first = "; ".join(map(str, shown[:LISTED]))
        more = f"; and {len(shown) - LISTED} more" if len(shown) > LISTED else ""
        return f"{self.note}{lead}{first}{more} ({about_intervals(shown)}).{self.caveats}"

    @property
    def caveats(self) -> str:
        """Why more of the same cannot confirm it, and what is missing; empty, or sentences after a space."""
        never = {one.n_seeds for one in self.judged if one.cannot_hold}
        is_open = self.status == "undecided" and self.n_against > 0
        cannot = (
            f" {'One seed' if 1 in never else 'Two seeds'} cannot confirm this."
            if never and is_open
            else ""
        )
        n_all = len(self.judged) + self.n_missing
        return cannot + (
            f" {self.n_missing} of {n_all} comparisons are not run yet." if self.n_missing else ""
        )

    def reason(self, n_seeds: int = 0) -> str:
        """Return the reason in one line: how many comparisons say so, and the seeds of the one that decides.

        The number of seeds is left out if it is `n_seeds`, which the reader knows already.

        >>> Verdict("confirmed", judged=(Difference("a minus b", 0.5, 0.3, 3),) * 2).reason()
        '2 of 2 in favour, 3 seeds'
        """
        if not self.judged:
            return self.note
        n_deciding = self.judged[0].n_seeds
        side = (
            "in favour"
            if not self.n_against
            else "against"
            if self.status == "contradicted"
            else "undecided"
        )
        said = f"{self.n_against or len(self.judged)} of {len(self.judged)} {side}"
        missing = f", {self.n_missing} not run" if self.n_missing else ""
        return (
            said + missing + ("" if n_deciding == n_seeds else f", {counted(n_deciding, 'seed')}")
        )


ABOVE = Limits(low=0.0)
CLEARLY_ABOVE = Limits(low=SAME)
NOT_ABOVE = Limits(high=SAME / 2)
NONE = Limits(-SAME, SAME)


def judge(*stated: tuple[Sequence[Difference | None], Limits]) -> Verdict:
    """Confirm if all differences are within their limits, contradict if one is outside; otherwise it is undecided.

    None is a missing difference.
    """
    every = [
        one and one._replace(limits=limits) for differences, limits in stated for one in differences
    ]
    there = [one for one in every if one is not None]
    if not there:
        return Verdict("not yet run")
    n_missing = len(every) - len(there)
    judged = sorted(pool_spread(there), key=lambda one: one.room)
    failing = [one for one in judged if one._replace(n_compared=len(judged)).fails]
    if failing:
        rest = [one for one in judged if one not in failing]
        return Verdict("contradicted", "", (*failing, *rest), len(failing), n_missing)
    n_undecided = sum(one.room <= 0 for one in judged)
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
        kinds = {
            margin: sorted({one.kind for one in differences if one.margin == margin})
            for margin in margins
        }
        points = (
            " or ".join(f"{margin:.2g} ({' and '.join(kind)})" for margin, kind in kinds.items())
            + " points"
        )
    return f"{seeds}; {'then ' if any(between) else ''}plus {points} for seed variance"
