"""Figure 4 and its twin in Appendix H: rows of the ablations against each other."""

from __future__ import annotations

from nearshot.experiments.claims.compare import Compared, Pairs, by, gaps_of, on_val
from nearshot.experiments.claims.verdict import ABOVE, NONE, Limits, Verdict, judged
from nearshot.experiments.paired import SAME
from nearshot.experiments.paper_configs import BATCH_SIZES, SHOTS
from nearshot.experiments.recipe import Found
from nearshot.experiments.recipes.ablations import row_config

__all__ = ["gap_closes", "recovered", "rows"]


def rows(*compared: tuple[int, int], classifier: str = "centroid") -> Pairs:
    """Compare rows with rows, two and two, at every batch size."""

    def pairs(dataset: str) -> list[Compared]:
        return [
            _rows(dataset, *two, size, shot, classifier) for two in compared for size in BATCH_SIZES for shot in SHOTS
        ]

    return pairs


def _rows(dataset: str, first: int, second: int, size: int, shot: int, classifier: str = "centroid") -> Compared:
    return (
        f"row {first} minus row {second}, batch {size}, {by(classifier)}{shot}-shot",
        on_val(row_config(dataset, first, size), shot, classifier),
        on_val(row_config(dataset, second, size), shot, classifier),
    )


def recovered(found: Found, dataset: str) -> Verdict:
    """Row 3 is above row 5, and not below row 1, at every batch size."""
    above, level = (gaps_of(found, rows(two)(dataset)) for two in ((3, 5), (3, 1)))
    return judged((above, ABOVE), (level, Limits(low=-SAME)))


def gap_closes(found: Found, dataset: str) -> Verdict:
    """Rows 1 and 3: there is a gap at batch 128, and none at 512."""
    there, gone = (gaps_of(found, [_rows(dataset, 3, 1, size, shot) for shot in SHOTS]) for size in (128, 512))
    return judged((there, ABOVE), (gone, NONE))
