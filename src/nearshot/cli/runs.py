"""`nearshot runs`."""

import csv
import io
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro
from rich.console import Console

from nearshot.cli._tables import aligned
from nearshot.evaluation.statistics import with_interval
from nearshot.runs import table
from nearshot.runs.runs_table import BEST_EPOCH, COLUMNS

MEASURED = (*COLUMNS, "mean", "interval95", "between_runs95", "n_runs", "per_run", "n_unfinished")
LEGEND = (
    "Per cent. ± is the 95 % interval between runs (Student's t); with (episodes), of a single run "
    "over its episodes. Of two runs, both are shown.",
    "* the validation that chose the best epoch, so a little too high.",
)


@dataclass(frozen=True)
class Runs:
    """List runs: the settings that differ, and their accuracies, pooled over seeds.

    Accuracies are those that nearshot evaluate stored, and those of the validation that chose the
    best epoch. csv and json have a row for each accuracy, as nearshot.runs.table returns them for
    pandas.

    Examples:
      nearshot runs
      nearshot runs sweep --group temperature
      nearshot runs sweep --format csv > sweep.csv
    """

    folders: tyro.conf.Positional[tuple[Path, ...]] = field(default_factory=lambda: (Path("runs"),))
    """Run folders, or folders that have run folders in them."""
    group: Annotated[tuple[str, ...], tyro.conf.arg(metavar="SETTING ...")] = ()
    """The settings to group by; by default all that differ but the seed."""
    format: Literal["table", "csv", "json"] = "table"
    """What to print."""

    def run(self, console: Console) -> None:
        """Print the table."""
        rows = table(self.folders, group=self.group or None)
        if self.format == "json":
            console.print(json.dumps(rows, indent=2))
        elif self.format == "csv":
            console.print(_as_csv(rows), end="")
        else:
            for line in _as_lines(rows):
                console.print(line)


def _as_csv(rows: list[dict[str, Any]]) -> str:
    """Return a line for each row; lists are separated by spaces."""
    output = io.StringIO()
    writer = csv.DictWriter(output, fieldnames=list(rows[0]), lineterminator="\n")
    writer.writeheader()
    for row in rows:
        cells = {}
        for name, value in row.items():
            cells[name] = " ".join(map(str, value)) if isinstance(value, list) else value
        writer.writerow(cells)
    return output.getvalue()


def _as_lines(rows: list[dict[str, Any]]) -> list[str]:
    """Return a line for each group, with a column for each kind of accuracy, and a legend."""
    settings = [name for name in rows[0] if name not in (*MEASURED, "runs")]
    accuracies: dict[str, dict[str, str]] = {}
    groups: dict[str, list[str]] = {}
    for row in rows:
        group = json.dumps([row[name] for name in settings])
        unfinished = f", {row['n_unfinished']} unfinished" if row["n_unfinished"] else ""
        cells = ["" if row[name] is None else str(row[name]) for name in settings]
        groups.setdefault(group, [*cells, f"{row['n_runs']}{unfinished}"])
        if row["mean"] is not None:
            accuracies.setdefault(_heading(row), {})[group] = _cell(row)
    lines = [[*settings, "runs", *accuracies]]
    for group, cells in groups.items():
        lines.append([*cells, *(column.get(group, "") for column in accuracies.values())])
    return [*aligned(lines), "", *LEGEND]


def _heading(row: dict[str, Any]) -> str:
    split = row["split"]
    if row["evaluation"] == BEST_EPOCH:
        split += "*"
    elif row["evaluation"]:
        split += f" ({row['evaluation']})"
    return f"{split} {row['n_shot']}-shot {row['classifier']}"


def _cell(row: dict[str, Any]) -> str:
    if row["n_runs"] == 2:  # an interval would be thirteen times as wide as they differ
        return f"{row['mean']:.2f} ({', '.join(f'{mean:.2f}' for mean in row['per_run'])})"
    interval = row["interval95"] if row["n_runs"] == 1 else row["between_runs95"]
    if interval is None:
        return f"{row['mean']:.2f}"
    text = with_interval(row["mean"], interval)
    return f"{text} (episodes)" if row["n_runs"] == 1 else text
