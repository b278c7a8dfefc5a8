"""The paper's claims, judged by the results of all other recipes: a table of verdicts, and a chart.

    nearshot reproduce claims --dataset cifar-fs --seeds 3

Trains nothing. The chart shows every difference with its interval beside the range in which the
claim puts it. `nearshot reproduce --all` runs what the claims need.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from textwrap import fill

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Drawing
from matplotlib.patches import Rectangle

from nearshot.evaluation.statistics import Difference
from nearshot.paper.claim_differences import Compared
from nearshot.paper.claims import CLAIMS, LEAST_SEEDS, Claim, Expectation, Verdict, judge
from nearshot.paper.figures import finish, name_lines, new_drawing, shade_every_other
from nearshot.paper.recipe import Recipe, Row
from nearshot.paper.results import Results
from nearshot.paper.tables import Figure, Table, about_intervals, difference_cell, number_cell

COLOURS = {"confirmed": "#0072B2", "contradicted": "#D55E00", "undecided": "0.4", None: "0.6"}
TICKS = (-50, -20, -10, -5, -2, -1, 0, 1, 2, 5, 10, 20, 50)
ABOUT_CLASSIFIERS = (
    "Both sides of a difference use the same classifier, except where classifiers are compared: "
    "nearest centroid, unless another is named. The chart shows all differences."
)


@dataclass(frozen=True)
class JudgedClaim:
    """A claim with what the results say about it.

    Attributes:
        differences: those that are measured, by name; the first speaks most against the claim.
        n_compared: how many there are, measured or not.
        verdict: None if no difference has enough seeds.
    """

    claim: Claim
    differences: dict[str, Difference]
    n_compared: int
    verdict: Verdict | None


def judged_claims(results: Results, dataset: str) -> tuple[list[JudgedClaim], int]:
    """Return the measured claims about a dataset, in the paper's order, and how many are not."""
    judged = []
    n_missing = 0
    for claim in CLAIMS:
        if dataset in claim.datasets:
            compared = list(claim.differences(results, dataset))
            differences = _measured(claim.expectation, compared)
            if differences:
                verdict = judge(claim.expectation, compared)
                judged.append(JudgedClaim(claim, differences, len(compared), verdict))
            else:
                n_missing += 1
    return judged, n_missing


def _measured(expectation: Expectation, compared: Sequence[Compared]) -> dict[str, Difference]:
    measured = {}
    for pair in compared:
        if pair.seeds is not None:
            measured[pair.name] = pair.seeds.difference()

    def room(name: str) -> float:
        """Return how far inside the expectation an interval is."""
        difference = measured[name]
        half_width = float(np.nan_to_num(difference.half_width))
        above_low = difference.mean - half_width - expectation.low
        return min(above_low, expectation.high - difference.mean - half_width)

    return {name: measured[name] for name in sorted(measured, key=room)}


def rows(dataset: str) -> list[Row]:
    """Return no rows: the runs are those of other recipes."""
    return []


def tables(results: Results, dataset: str) -> list[Table]:
    """Return the claims with their verdicts."""
    judged, n_missing = judged_claims(results, dataset)
    on = results.dataset(dataset)
    notes = [_counts(judged), about_intervals(len(results.seeds)), ABOUT_CLASSIFIERS]
    if any(judged_claim.verdict is None for judged_claim in judged):
        notes.append(
            f"No verdict: fewer than {LEAST_SEEDS} training seeds on a side of every difference."
        )
    if n_missing:
        command = _command(results, dataset)
        notes.append(f"{n_missing} more claims are not measured; `{command}` measures them.")
    table = Table(
        f"claims-{on}",
        f"The paper's claims: {on}",
        ("claim", "where", "verdict", "differences", "points", "least favourable"),
        results.label,
        notes,
    )
    for judged_claim in judged:
        name, difference = next(iter(judged_claim.differences.items()))
        table.add_row(
            judged_claim.claim.sentence,
            judged_claim.claim.section,
            judged_claim.verdict or "no verdict",
            number_cell(judged_claim.n_compared),
            difference_cell(difference, len(results.seeds)),
            name,
        )
    return [table]


def _command(results: Results, dataset: str) -> str:
    """Return the command that runs what all claims need."""
    command = f"nearshot reproduce --all --seeds {LEAST_SEEDS}"
    if results.size.dataset is not None:
        return f"{command} --quick"
    if results.size.is_papers or results.size.is_own:
        return f"{command} --dataset {dataset}"
    return f"{command} --dataset {dataset} --input-size {results.size.input_size}"


def _counts(judged: Sequence[JudgedClaim]) -> str:
    counts = []
    for verdict in ("confirmed", "contradicted", "undecided", None):
        n_claims = sum(judged_claim.verdict == verdict for judged_claim in judged)
        if n_claims:
            counts.append(f"{n_claims} {verdict or 'without a verdict'}")
    return f"{', '.join(counts)}."


def figures(results: Results, dataset: str) -> list[Figure]:
    """Return the chart of the claims."""
    name = results.dataset(dataset)
    title = f"The paper's claims and the differences that were found: {name}"
    return [Figure(f"claims-{name}", title, results.label, partial(_draw, results, dataset))]


def _draw(results: Results, dataset: str) -> Drawing:
    """Draw a line per claim: a dot with its interval for each difference, and the claimed range."""
    judged, _ = judged_claims(results, dataset)
    drawing = new_drawing(9.5, 1.4 + 0.42 * len(judged))
    axes = drawing.subplots()
    axes.set_xscale("symlog", linthresh=2)
    lowest, highest = _range(judged)
    ticks = [tick for tick in TICKS if lowest <= tick <= highest]
    axes.set_xlim(lowest, highest)
    axes.set_xticks(ticks, [f"{tick:+g}".replace("-", "−") if tick else "0" for tick in ticks])
    shade_every_other(axes, len(judged))
    for height, judged_claim in enumerate(judged):
        _draw_claim(axes, height, judged_claim)
    axes.axvline(0, color="black", linewidth=0.8, zorder=0.6)
    name_lines(axes, [fill(judged_claim.claim.sentence, 60) for judged_claim in judged])
    axes.tick_params(axis="y", labelsize=6.5)
    axes.set_xlabel("difference in points; shaded: where the claim puts it", fontsize=9)
    about_dots = "dots: differences, with 95 % intervals between seeds (of one: over episodes)"
    finish(drawing, f"{results.label}\n{about_dots}")
    return drawing


def _range(judged: Sequence[JudgedClaim]) -> tuple[int, int]:
    """Return the ticks between which all intervals are, at least −2 and +2."""
    lowest = -2.0
    highest = 2.0
    for judged_claim in judged:
        for difference in judged_claim.differences.values():
            half_width = float(np.nan_to_num(difference.half_width))
            lowest = min(lowest, difference.mean - half_width)
            highest = max(highest, difference.mean + half_width)
    left = max((tick for tick in TICKS if tick <= lowest), default=TICKS[0])
    right = min((tick for tick in TICKS if tick >= highest), default=TICKS[-1])
    return left, right


def _draw_claim(axes: Axes, height: int, judged_claim: JudgedClaim) -> None:
    expectation = judged_claim.claim.expectation
    low = max(expectation.low, TICKS[0])
    high = min(expectation.high, TICKS[-1])
    claimed = Rectangle((low, height - 0.42), high - low, 0.84, color="#E69F00", alpha=0.2)
    axes.add_patch(claimed)
    differences = list(judged_claim.differences.values())
    means = [difference.mean for difference in differences]
    half_widths = np.nan_to_num([difference.half_width for difference in differences])
    spread = 0.3 if len(differences) > 1 else 0.0
    axes.errorbar(
        means,
        height + np.linspace(-spread, spread, len(differences)),
        xerr=half_widths,
        label=judged_claim.verdict or "no verdict",
        color=COLOURS[judged_claim.verdict],
        linestyle="none",
        marker="o",
        markersize=2.5,
        elinewidth=0.6,
    )


RECIPE = Recipe(
    "claims",
    "The paper's claims: what the results say about each",
    ("cifar-fs", "mini-imagenet", "tiered-imagenet", "tiny-tiered"),
    rows,
    tables,
    figures,
)
