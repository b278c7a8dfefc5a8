"""The paper's statements, and what the results say about each."""

from nearshot.paper.claims.statements import CLAIMS, Claim, check_claims, claims_as_table
from nearshot.paper.claims.verdict import Verdict, judge

__all__ = ["CLAIMS", "Claim", "Verdict", "check_claims", "claims_as_table", "judge"]
