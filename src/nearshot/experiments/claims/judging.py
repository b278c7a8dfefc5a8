"""Judging a statement by what was run: confirmed, contradicted, undecided or not yet run.

A difference counts if its 95 % interval leaves zero out: between training seeds, paired, where there are several; how
much seeds differ is taken from all comparisons of a statement on the same split with as many shots. For a single one it
is over episodes, and a margin is allowed for the chance in trainings, where two are compared (`gaps.luck_in`, and the
verdict says how much); so it is for two that agree within it, where that is less than their interval. "No difference"
is confirmed if the interval lies within a point of zero, so that a small difference can be both: there, and none to
speak of. Statements about many comparisons are contradicted by one of them only if that would be no chance among so
many (Bonferroni). Where neither a statement nor its opposite is more than chance, it is undecided.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from nearshot.experiments.gaps import SAME, Gap, Side, gap, pooled
from nearshot.experiments.recipe import Found

__all__ = [
    "Claim",
    "Pairs",
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
    check: Callable[[Found, str], Verdict]
    datasets: tuple[str, ...] = ("cifar-fs", "mini-imagenet")


Pairs = Callable[[str], Sequence[tuple[str, Side, Side]]]  # of a dataset: what is compared, one side, the other


def judged(gaps: Sequence[Gap | None], *, holds: Callable[[Gap], bool], fails: Callable[[Gap], bool]) -> Verdict:
    """Confirm if all gaps that were run hold, contradict if one fails, and leave it open otherwise; say which."""
    there = pooled([one for one in gaps if one is not None])
    if not there:
        return Verdict("not yet run", "")
    missing = f" {len(gaps) - len(there)} of {len(gaps)} comparisons are not run yet." if len(there) < len(gaps) else ""
    failing = [one for one in there if fails(one.among(len(there)))]
    open_ones = [one for one in there if not holds(one) and one not in failing]
    if failing:
        return Verdict("contradicted", f"Not so for {len(failing)} of {len(there)}: {listed(failing)}.{missing}")
    if open_ones:
        return Verdict("undecided", f"Open for {len(open_ones)} of {len(there)}: {listed(open_ones)}.{missing}")
    # A statement about all of them is confirmed by all of them.
    return Verdict("undecided" if missing else "confirmed", f"{listed(there)}.{missing}")


def listed(gaps: Sequence[Gap]) -> str:
    """Tell the gaps, those that are least beyond doubt first, over how many training seeds they are, and what ± is."""
    weakest = sorted(gaps, key=lambda one: abs(one.difference) - one.interval95 - one.luck)[:LISTED]
    more = f"; and {len(gaps) - LISTED} more" if len(gaps) > LISTED else ""
    n_seeds = sorted({one.n_seeds for one in gaps})
    seeds = "one seed" if n_seeds == [1] else f"{' or '.join(map(str, n_seeds))} seeds"
    between = any(one.freedom for one in gaps)
    seeds += ", ± between seeds" if between else ", ± over episodes"
    if between and not all(one.freedom for one in gaps):
        seeds += ", or over episodes where they are too few"
    if any(one.luck for one in gaps):
        seeds += f"; {'then ' if between else ''}{_allowed(gaps)} allowed for the chance in trainings"
    return f"{'; '.join(map(str, weakest))}{more} ({seeds})"


def _allowed(gaps: Sequence[Gap]) -> str:
    """Say how many points more are allowed; where that is not the same for all, for which."""
    margins = sorted({one.luck for one in gaps if one.luck}, reverse=True)
    if margins == [1]:
        return "a point more is"
    if len(margins) == 1:
        return f"{margins[0]:g} points more are"
    each = (
        f"{margin:g} ({' and '.join(sorted({one.kind for one in gaps if one.luck == margin}))})" for margin in margins
    )
    return f"{' or '.join(each)} points more are"


def above(pairs: Pairs) -> Callable[[Found, str], Verdict]:
    """Check that each first is above its second."""

    def check(found: Found, dataset: str) -> Verdict:
        return judged(
            _gaps(found, dataset, pairs), holds=lambda one: one.is_positive, fails=lambda one: one.is_negative
        )

    return check


def clearly_above(pairs: Pairs) -> Callable[[Found, str], Verdict]:
    """Check that each first is above its second by more than would pass for no difference."""

    def check(found: Found, dataset: str) -> Verdict:
        return judged(_gaps(found, dataset, pairs), holds=lambda one: one.low > SAME, fails=lambda one: one.high < SAME)

    return check


def same(pairs: Pairs) -> Callable[[Found, str], Verdict]:
    """Check that there is no difference to speak of."""

    def check(found: Found, dataset: str) -> Verdict:
        return judged(_gaps(found, dataset, pairs), holds=lambda one: one.is_none, fails=lambda one: one.is_some)

    return check


def not_above(pairs: Pairs) -> Callable[[Found, str], Verdict]:
    """Check that no first is above its second by half a point; where that could still be, it is undecided.

    What does not help may do harm, of which such a statement does not speak: what it costs, where that is more than
    chance, is said first.
    """

    def check(found: Found, dataset: str) -> Verdict:
        gaps = _gaps(found, dataset, pairs)
        verdict = judged(gaps, holds=lambda one: one.high < SAME / 2, fails=lambda one: one.low > SAME / 2)
        return Verdict(verdict.status, f"{_costs(gaps)}{verdict.text}")

    return check


def _costs(gaps: Sequence[Gap | None]) -> str:
    """Say how much is lost, and in how many comparisons; nothing where it may be chance."""
    there = pooled([one for one in gaps if one is not None])
    costs = sorted(-one.difference for one in there if one.among(len(there)).is_negative)
    if not costs:
        return ""
    least, most = f"{costs[0]:.1f}", f"{costs[-1]:.1f}"
    points = most if least == most else f"{least} to {most}"
    return f"It costs {points} points{'' if len(costs) == len(there) else f' in {len(costs)} of {len(there)}'}. "


def _gaps(found: Found, dataset: str, pairs: Pairs) -> list[Gap | None]:
    return [gap(found, what, one, other) for what, one, other in pairs(dataset)]
