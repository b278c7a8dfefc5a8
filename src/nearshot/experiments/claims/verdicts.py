"""What has become of each statement, and all of them as a table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import get_args

from nearshot.experiments.claims.statements import CLAIMS
from nearshot.experiments.claims.verdict import Claim, Status, Verdict
from nearshot.experiments.recipe import Found
from nearshot.experiments.tables import Row, Table

__all__ = ["check_claims", "claims_as_table", "numbers_of"]

CLASSIFIERS = (
    "Both sides of a comparison have the same classifier, but where classifiers are compared: nearest centroid, where "
    "nothing else is said; soft is soft assignment, which Matching Networks are reported with."
)


def check_claims(found: Found, dataset: str) -> list[tuple[Claim, Verdict]]:
    """Return what the results say about each statement that can be judged on a dataset; those not yet run last."""
    checked = [(claim, claim.check(found, dataset)) for claim in CLAIMS if dataset in claim.datasets]
    return sorted(checked, key=lambda one: one[1].status == "not yet run")


def numbers_of(statuses: Iterable[str]) -> str:
    """Say how many statements have become what.

    >>> numbers_of(["undecided", "confirmed", "undecided"])
    '1 confirmed, 2 undecided'
    """
    numbers = Counter(statuses)
    return ", ".join(f"{numbers[status]} {status}" for status in get_args(Status) if numbers[status])


def claims_as_table(found: Found, dataset: str) -> Table:
    """Return the statements with their verdicts and the numbers behind them."""
    checked = check_claims(found, dataset)
    rows: list[Row] = [
        (claim.statement, claim.where, verdict.status, verdict.text or "–") for claim, verdict in checked
    ]
    return Table(
        f"claims-{found.on(dataset)}",
        f"What the paper says, and what was found: {found.on(dataset)}",
        found.label,
        ("claim", "where", "verdict", "because"),
        tuple(rows),
        (numbers_of(verdict.status for _, verdict in checked) + ".", CLASSIFIERS),
    )
