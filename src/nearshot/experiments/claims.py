"""What the paper claims, and whether the results bear it out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from nearshot.experiments.recipe import Found

__all__ = ["Claim", "Verdict", "check_claims"]


@dataclass(frozen=True)
class Claim:
    """A statement of the paper, and where it stands."""

    name: str
    statement: str
    where: str


@dataclass(frozen=True)
class Verdict:
    """What the results say of a claim."""

    status: Literal["confirmed", "contradicted", "not yet run"]
    text: str


def check_claims(found: Found, dataset: str) -> list[tuple[Claim, Verdict]]:
    """Return every claim about a dataset with its verdict."""
    return []
