"""The paper's statements, and what the results say about each."""

from nearshot.experiments.claims.statements import CLAIMS, Claim, check_claims, claims_as_table
from nearshot.experiments.claims.verdict import Verdict, judge

__all__ = ["CLAIMS", "Claim", "Verdict", "check_claims", "claims_as_table", "judge"]
