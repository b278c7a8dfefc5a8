"""Figure 4 and its twin in Appendix H: rows of the ablations against each other."""

from __future__ import annotations

from nearshot.experiments.claims.comparing import SHOTS, Compared, on_val
from nearshot.experiments.claims.judging import Pairs, Verdict, judged, listed
from nearshot.experiments.gaps import SAME, gap, pooled
from nearshot.experiments.recipe import Found
from nearshot.experiments.recipes.ablations import row_config
from nearshot.experiments.settings import BATCH_SIZES

__all__ = ["gap_closes", "recovered", "rows"]


def rows(*compared: tuple[int, int], classifier: str = "centroid") -> Pairs:
    """Compare rows with rows, two and two, at every batch size."""

    def pairs(dataset: str) -> list[Compared]:
        return [
            _rows(dataset, *two, size, shot, classifier) for two in compared for size in BATCH_SIZES for shot in SHOTS
        ]

    return pairs


def _rows(dataset: str, first: int, second: int, size: int, shot: int, classifier: str = "centroid") -> Compared:
    by = "" if classifier == "centroid" else f"{classifier}, "
    return (
        f"row {first} minus row {second}, batch {size}, {by}{shot}-shot",
        on_val(row_config(dataset, first, size), shot, classifier),
        on_val(row_config(dataset, second, size), shot, classifier),
    )


def recovered(found: Found, dataset: str) -> Verdict:
    """Row 3 is above row 5, and not below row 1, at every batch size."""
    above = [gap(found, *pair) for pair in rows((3, 5))(dataset)]
    level = [gap(found, *pair) for pair in rows((3, 1))(dataset)]
    level_names = {one.what for one in level if one is not None}
    return judged(
        [*above, *level],
        holds=lambda one: one.low > (-SAME if one.what in level_names else 0),
        fails=lambda one: one.high < (-SAME if one.what in level_names else 0),
    )


def gap_closes(found: Found, dataset: str) -> Verdict:
    """Rows 1 and 3: the gap at batch 128 is larger than at 512, where there is none."""
    gaps = {(size, shot): gap(found, *_rows(dataset, 3, 1, size, shot)) for size in (128, 512) for shot in SHOTS}
    if any(one is None for one in gaps.values()):
        return Verdict("not yet run", "")
    there = dict(zip(gaps, pooled([one for one in gaps.values() if one is not None]), strict=True))
    text = f"{listed(list(there.values()))}."
    is_there = all(there[128, shot].is_positive for shot in SHOTS)
    is_gone = all(there[512, shot].is_none for shot in SHOTS)
    if is_there and is_gone:
        return Verdict("confirmed", text)
    among = {key: one.among(len(there)) for key, one in there.items()}
    is_not_so = any(among[128, shot].is_negative or among[512, shot].is_some for shot in SHOTS)
    return Verdict("contradicted" if is_not_so else "undecided", text)
