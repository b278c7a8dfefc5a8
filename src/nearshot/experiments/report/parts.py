"""Parts of the page: tables that sort and filter, figures, differences from the paper and claims."""

from __future__ import annotations

import base64
import io
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from urllib.parse import quote

import matplotlib as mpl

from nearshot.experiments.claims import check_claims
from nearshot.experiments.recipe import Found
from nearshot.experiments.report.charts import bar
from nearshot.experiments.report.contents import Collected, Part
from nearshot.experiments.results import RunResult
from nearshot.experiments.tables import Cell, Figure, Table
from nearshot.html import Html, element, joined
from nearshot.text import counted

__all__ = [
    "anchor_of",
    "badge",
    "claims_table",
    "claims_to_show",
    "difference_cell",
    "differences_table",
    "part_section",
    "plain_cell",
    "sortable",
]

SHORT_ID = 8  # characters of a run's id; enough to tell thousands apart
ROWS_TO_FILTER = 6  # a shorter table is seen at a glance
SIGNS = {"confirmed": "✓", "contradicted": "✗", "undecided": "?", "not yet run": "·"}


def sortable(
    headings: Sequence[str],
    bodies: Iterable[Html],
    *,
    name: str,
    numbers: Collection[int],
    caption: Html | str = "",
    filtered: bool = True,
) -> Html:
    """Return a table whose headings sort it and whose box filters it.

    Args:
        headings: of the columns.
        bodies: a `tbody` for each thing that is sorted, which may have several rows.
        name: what the table is called in the page.
        numbers: which columns hold numbers.
        caption: what stands above it.
        filtered: whether it has a box to filter it.
    """
    head = element("tr", *(_heading(heading, place, place in numbers) for place, heading in enumerate(headings)))
    box = element("input", type="search", placeholder="filter rows", aria_label=f"Filter {name}", data_filter=name)
    controls = element("p", box, element("output", ""), class_="filter") if filtered else Html("")
    table = element(
        "table", element("caption", caption), element("thead", head), joined(bodies), id=name, class_="sortable"
    )
    return element("div", controls, element("div", table, class_="wide"), class_="table")


def _heading(text: str, place: int, is_number: bool) -> Html:
    button = element("button", text, type="button", aria_label=None if text else f"column {place + 1}")
    return element("th", button, scope="col", class_="number" if is_number else None)


def plain_cell(text: str | Html, value: float | None = None, *, heading: bool = False) -> Html:
    """Return a cell, with the number that it sorts by."""
    kind = "number" if value is not None or text == "–" else None
    return element("th" if heading else "td", text, class_=kind, data_value=value, scope="row" if heading else None)


def difference_cell(item: Cell, largest: float) -> Html:
    """Return ours minus the paper's: with its sign, a bar to its side, and only then a colour."""
    if item.value is None:
        return plain_cell(item.text)
    kind = "up" if item.value > 0 else "down" if item.value < 0 else "even"
    return element("td", bar(item.value, largest), item.text, class_=f"number {kind}", data_value=item.value)


def anchor_of(run: RunResult) -> str:
    """Return the name of a run's place in the page."""
    return quote(f"run-{run.scale}-{run.id}", safe="")


def badge(scale: Collected) -> Html:
    """Return the scale's label, as a mark that cannot be overlooked."""
    return element("strong", scale.label, class_="badge paper" if scale.is_papers else "badge")


def part_section(part: Part, scale: Collected | None) -> Html:
    """Return a recipe's section: how much of it was run, its tables and its figures."""
    name = "-".join([part.recipe.name, part.dataset, scale.name if scale else "counted"])
    done = ""
    if scale is not None:
        are = "is" if len(part.runs) == 1 else "are"
        n_all = counted(part.n_trainings, "training")
        done = f"{len(part.runs)} of {n_all} {are} done for {_seeds(part.found.seeds)}."
    return element(
        "section",
        element(
            "h3",
            part.recipe.title,
            *([f" ({part.dataset})"] if scale and scale.scale and not scale.scale.dataset else []),
        ),
        element("p", *([badge(scale), " "] if scale else []), done),
        *(_table(table, part, f"{name}-{table.name}") for table in part.tables),
        *(_figure(figure) for figure in part.figures),
        id=quote(name, safe=""),
    )


def _seeds(seeds: Sequence[int]) -> str:
    return f"training seed{'s' if len(seeds) > 1 else ''} {', '.join(map(str, seeds))}"


def _table(table: Table, part: Part, name: str) -> Html:
    largest = max((abs(value) for row in table.rows for value in _differences(table, row)), default=0.0)
    bodies = []
    for row in table.rows:
        cells = [plain_cell(str(row[0]), heading=True)]
        for heading, item in zip(table.headings[1:], row[1:], strict=True):
            if isinstance(item, str):
                cells.append(plain_cell(item))
            elif heading == "difference":
                cells.append(difference_cell(item, largest))
            else:
                cells.append(_number_cell(item, part))
        bodies.append(element("tbody", element("tr", *cells)))
    caption = joined([element("b", f"{table.title}."), f" {table.label}."])
    notes = [element("p", note, class_="note") for note in table.notes]
    numbers = {place for row in table.rows for place, item in enumerate(row) if _is_number(item)}
    filtered = len(bodies) >= ROWS_TO_FILTER
    body = sortable(table.headings, bodies, name=name, numbers=numbers, caption=caption, filtered=filtered)
    return joined([body, *notes])


def _is_number(item: Cell | str) -> bool:
    return isinstance(item, Cell) and item.value is not None


def _differences(table: Table, row: Sequence[Cell | str]) -> list[float]:
    items = [item for heading, item in zip(table.headings, row, strict=True) if heading == "difference"]
    return [item.value for item in items if isinstance(item, Cell) and item.value is not None]


def _number_cell(item: Cell, part: Part) -> Html:
    """Return an accuracy that leads to the runs behind it, with its protocol on it."""
    runs = part.found.behind(item.accuracy)
    mean, bracket, more = item.text.partition(" (")
    text = joined([mean, element("small", bracket + more)]) if bracket else joined([mean])
    if not runs or item.accuracy is None:
        return plain_cell(text if item.value is not None else item.text, item.value)
    by_seed = ", ".join(f"seed {run.seed}: {mean:.2f}" for run, mean in zip(runs, item.accuracy.per_seed, strict=True))
    as_the_paper = f"± {item.accuracy.paper95:.2f} as the paper counts it"
    link = element(
        "a",
        text,
        href=f"#{anchor_of(runs[0])}",
        title=f"{by_seed}. {as_the_paper}. {item.accuracy.protocol}. Click for the runs behind it.",
        data_runs="|".join(run.id[:SHORT_ID] for run in runs),
    )
    return plain_cell(link, item.value)


def _figure(figure: Figure) -> Html:
    """Return a figure as an image that lies in the page: what is inside it cannot clash with anything outside."""
    buffer = io.BytesIO()
    with mpl.rc_context({"svg.hashsalt": figure.name}):  # the same figure is the same file
        figure.draw().savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    source = "data:image/svg+xml;base64," + base64.b64encode(buffer.getvalue()).decode()
    caption = element("figcaption", element("b", f"{figure.title}."), f" {figure.label}.")
    image = element("img", src=source, alt=f"{figure.title}. {figure.label}.")
    return element("figure", image, caption, class_="drawing")


@dataclass(frozen=True, eq=False)
class _Compared:
    """A number of ours and the paper's."""

    scale: Collected
    part: Part
    table: Table
    row: str
    what: str
    ours: Cell
    paper: Cell
    difference: Cell


def _compared(scales: Iterable[Collected]) -> list[_Compared]:
    """Return all numbers that the paper has too: the columns ours, paper, difference of every table."""
    found = []
    for scale in scales:
        for part in scale.parts:
            for table in part.tables:
                for place in (i for i, heading in enumerate(table.headings) if heading == "difference"):
                    for row in table.rows:
                        ours, paper, difference = row[place - 2 : place + 1]
                        if isinstance(ours, Cell) and isinstance(paper, Cell) and isinstance(difference, Cell):
                            name = ", ".join(item for item in row if isinstance(item, str))
                            what = table.headings[place - 2]
                            found.append(_Compared(scale, part, table, name, what, ours, paper, difference))
    return [one for one in found if one.difference.value is not None]


def differences_table(scales: Iterable[Collected]) -> Html:
    """Return ours minus the paper's, every number of every table."""
    everything = _compared(scales)
    if not everything:
        return element("p", "No number that the paper prints has been run yet.")
    largest = max(abs(one.difference.value or 0.0) for one in everything)
    bodies = [
        element(
            "tbody",
            element(
                "tr",
                plain_cell(one.row, heading=True),
                plain_cell(one.what),
                plain_cell(one.part.recipe.name),
                plain_cell(one.part.dataset),
                plain_cell(_short_scale(one.scale)),
                _number_cell(one.ours, one.part),
                plain_cell(one.paper.text, one.paper.value),
                difference_cell(one.difference, largest),
            ),
        )
        for one in everything
    ]
    headings = ("trained with", "measured", "recipe", "dataset", "scale", "ours", "paper", "difference")
    caption = "Every number that the paper prints too, and that was run."
    return sortable(headings, bodies, name="differences", numbers=(5, 6, 7), caption=caption)


def _short_scale(scale: Collected) -> Html:
    return element("span", scale.name, title=scale.label, class_="badge paper" if scale.is_papers else "badge")


ClaimRow = tuple[Collected, str, str, str, str, str]  # scale, dataset, statement, where, status, text


def claims_to_show(scales: Iterable[Collected]) -> list[ClaimRow]:
    """Return the paper's claims with their verdicts, for every scale and dataset that has runs."""
    rows: list[ClaimRow] = []
    for scale in scales:
        datasets = list(dict.fromkeys(part.dataset for part in scale.parts))
        for dataset in datasets:
            parts = [part for part in scale.parts if part.dataset == dataset]
            seeds = tuple(sorted({seed for part in parts for seed in part.found.seeds}))
            found = Found(parts[0].found.results, parts[0].found.scale, seeds)
            for claim, verdict in check_claims(found, dataset):
                shown = parts[0].found.scale.dataset or dataset
                rows.append((scale, shown, claim.statement, claim.where, verdict.status, verdict.text))
    return rows


def claims_table(rows: Sequence[ClaimRow]) -> Html:
    """Return a table of claims."""
    if not rows:
        return element("p", "No claim of the paper can be judged by what was run so far.")
    bodies = [
        element(
            "tbody",
            element(
                "tr",
                plain_cell(statement, heading=True),
                plain_cell(where),
                plain_cell(dataset),
                plain_cell(_short_scale(scale)),
                element("td", f"{SIGNS.get(status, '')} {status}", class_=f"verdict {status.split()[0]}"),
                plain_cell(text),
            ),
        )
        for scale, dataset, statement, where, status, text in rows
    ]
    headings = ("claim", "where", "dataset", "scale", "verdict", "because")
    return sortable(
        headings, bodies, name="claims-table", numbers=(), caption="What the paper says, and what was found."
    )
