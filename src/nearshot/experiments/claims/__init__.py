"""The paper's statements as checks on what has been run."""

from nearshot.experiments.claims.statements import CLAIMS
from nearshot.experiments.claims.verdict import Claim, Verdict, judged
from nearshot.experiments.claims.verdicts import check_claims, claims_as_table

__all__ = ["CLAIMS", "Claim", "Verdict", "check_claims", "claims_as_table", "judged"]
