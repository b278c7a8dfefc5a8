"""The paper's statements as checks on what has been run."""

from nearshot.experiments.claims.judging import Claim, Gap, Verdict, gap, judged
from nearshot.experiments.claims.statements import CLAIMS
from nearshot.experiments.claims.verdicts import check_claims, claims_as_table

__all__ = ["CLAIMS", "Claim", "Gap", "Verdict", "check_claims", "claims_as_table", "gap", "judged"]
