"""Write the README's table of results from the tables of the comparison (part of make fill)."""

import csv
from decimal import ROUND_HALF_UP, Decimal
from pathlib import Path

TABLES = Path(__file__).resolve().parent.parent / "results" / "tables"
DATASETS = {"cifar-fs": "CIFAR-FS", "mini-imagenet": "miniImageNet"}
ROWS = {
    "NCA": "NCA nearest centroid",
    "Prototypical Networks": "PN (our episodes)",
    "Matching Networks": "MN (our episodes)",
    "SimpleShot": "SimpleShot",
}


def summary() -> str:
    """Return a Markdown table: one row per method, and ours with the paper's number in brackets for each column."""
    shots = ("1-shot", "5-shot")
    found = {dataset: _read(TABLES / "paper" / f"comparison-{dataset}.csv") for dataset in DATASETS}
    lines = [
        f"| trained with | {' | '.join(f'{name}, {shot}' for name in DATASETS.values() for shot in shots)} |"
    ]
    lines.append("|---|" + "---:|" * (len(DATASETS) * len(shots)))
    for name, row in ROWS.items():
        cells = [_cell(found[dataset].get(row), shot) for dataset in DATASETS for shot in shots]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _read(path: Path) -> dict[str, dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return {row["trained with"]: row for row in csv.DictReader(file)}


def _cell(row: dict[str, str] | None, shot: str) -> str:
    if row is None or not row[f"{shot} seeds"]:
        return "–"
    ours, paper = (
        Decimal(row[name]).quantize(Decimal("0.1"), ROUND_HALF_UP)
        for name in (shot, f"{shot} paper")
    )
    return f"{ours}{'' if int(row[f'{shot} seeds']) > 1 else '*'} ({paper})"


if __name__ == "__main__":
    (TABLES / "summary.md").write_text(summary(), encoding="utf-8")
