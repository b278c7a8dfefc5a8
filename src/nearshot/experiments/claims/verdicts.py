"""What has become of each statement, and all of them as a table."""

from __future__ import annotations

from collections import Counter

from nearshot.experiments.claims.judging import Claim, Verdict
from nearshot.experiments.claims.statements import CLAIMS
from nearshot.experiments.recipe import Found
from nearshot.experiments.tables import Row, Table

__all__ = ["check_claims", "claims_as_table"]

CLASSIFIERS = (
    "Both sides of a comparison have the same classifier, but where classifiers are compared: nearest centroid, where "
    "nothing else is said; soft is soft assignment, which Matching Networks are reported with."
)


def check_claims(found: Found, dataset: str) -> list[tuple[Claim, Verdict]]:
    """Return what the results say about each statement that can be judged on a dataset."""
    return [(claim, claim.check(found, dataset)) for claim in CLAIMS if dataset in claim.datasets]


def claims_as_table(found: Found, dataset: str) -> Table:
    """Return the statements with their verdicts and the numbers behind them."""
    checked = check_claims(found, dataset)
    rows: list[Row] = [
        (claim.statement, claim.where, verdict.status, verdict.text or "–") for claim, verdict in checked
    ]
    counts = Counter(verdict.status for _, verdict in checked)
    return Table(
        f"claims-{found.on(dataset)}",
        f"What the paper says, and what was found: {found.on(dataset)}",
        found.label,
        ("claim", "where", "verdict", "because"),
        tuple(rows),
        (", ".join(f"{number} {status}" for status, number in counts.items()) + ".", CLASSIFIERS),
    )
