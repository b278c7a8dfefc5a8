"""Write the README's table of results from the tables of the comparison (part of make fill)."""

import csv
from decimal import ROUND_HALF_UP, Decimal
from pathlib import Path

TABLES = Path(__file__).resolve().parent.parent / "results" / "tables"
# The end of a table's name, the name of the dataset, and what its rows add to their labels.
DATASETS = (
    ("cifar-fs", "CIFAR-FS", ""),
    ("mini-imagenet-84", "miniImageNet", ", for 84×84 files"),
)
ROWS = {
    "NCA": "NCA nearest centroid",
    "Prototypical Networks": "PN (our episodes)",
    "Matching Networks": "MN (our episodes)",
    "SimpleShot": "SimpleShot",
}
SHOTS = ("1-shot", "5-shot")


def summary() -> str:
    """Return a Markdown table of our accuracies, each with the paper's in brackets."""
    headings = ["trained with"]
    tables = []
    for table_name, name, ending in DATASETS:
        rows = _read(TABLES / "paper" / f"comparison-{table_name}.csv")
        tables.append({label.removesuffix(ending): row for label, row in rows.items()})
        headings.extend(f"{name}, {shot}" for shot in SHOTS)
    lines = [_line(headings), "|---|" + "---:|" * (len(headings) - 1)]
    for name, row in ROWS.items():
        cells = [name]
        for table in tables:
            cells.extend(_cell(table.get(row), shot) for shot in SHOTS)
        lines.append(_line(cells))
    return "\n".join(lines) + "\n"


def _line(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _read(path: Path) -> dict[str, dict[str, str]]:
    """Return the rows of a table by what was trained."""
    with path.open(encoding="utf-8", newline="") as file:
        return {row["trained with"]: row for row in csv.DictReader(file)}


def _cell(row: dict[str, str] | None, shot: str) -> str:
    """Return our accuracy, with its interval if it has several seeds, and the paper's."""
    if row is None or not row[f"{shot} seeds"]:
        return "–"
    accuracy = str(_rounded(row[shot]))
    if int(row[f"{shot} seeds"]) > 1:
        accuracy += f" ± {_rounded(row[f'{shot} ± between seeds'])}"
    return f"{accuracy} ({_rounded(row[f'{shot} paper'])})"


def _rounded(number: str) -> Decimal:
    return Decimal(number).quantize(Decimal("0.1"), ROUND_HALF_UP)


if __name__ == "__main__":
    (TABLES / "summary.md").write_text(summary(), encoding="utf-8")
