"""Figure 4 and Appendix H: from NCA to Prototypical and Matching Networks, one difference at a time.

    nearshot reproduce ablations --dataset cifar-fs --seeds 3

Rows 1 to 7 with batches of 128, 256 and 512 and m+n = 8; validation split. Rows 1 and 2: NCA on
shuffled batches and with replacement; 3: NCA on batches of fixed composition; 4 and 5: PN with one
shot and five; 6: without prototypes; 7: without the separation of support and query. The Matching
Networks version has rows 1 to 3, MN with one shot (the same as row 4) and five (row 6), with soft
assignment. The paper gives no numbers beyond those of Figure 2. Time: 21 runs a seed, five minutes
each on an H200 at 84×84.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

from matplotlib.figure import Figure as Drawing

from nearshot.paper.accuracy_table import AccuracyRow, AccuracyTable
from nearshot.paper.figures import dots, finish, heading, new_drawing
from nearshot.paper.numbers import BATCH_SIZES, SHOTS, TITLES, figure_config
from nearshot.paper.recipe import Found, Recipe
from nearshot.paper.results import Measurement
from nearshot.paper.tables import Figure
from nearshot.training import TrainConfig

ROWS = {
    1: "NCA",
    2: "NCA, with replacement",
    3: "NCA, fixed batch composition",
    4: "PN 1-shot",
    5: "PN 5-shot",
    6: "PN 5-shot, no prototypes",
    7: "PN 5-shot, no support/query",
}
MATCHING_ROWS = {1: ROWS[1], 2: ROWS[2], 3: ROWS[3], 4: "MN 1-shot", 6: "MN 5-shot"}
KINDS: tuple[
    tuple[str, Mapping[int, str], str, str], ...
] = (  # short name, rows, classifier, place in the paper
    ("pn", ROWS, "centroid", "Figure 4"),
    ("mn", MATCHING_ROWS, "soft", "Appendix H"),
)


def row_config(dataset: str, row: int, batch_size: int) -> TrainConfig:
    """Return the settings of a row of Figure 4."""
    five = figure_config(dataset, "prototypical", batch_size, shot=5, images_per_class=8)
    return {
        1: replace(five, method="nca"),
        2: replace(five, method="nca", batches="independent"),
        3: replace(five, method="nca", batches="episodes"),
        4: replace(five, n_shot=1),
        5: five,
        6: replace(five, method="matching"),
        7: replace(five, method="nca-prototypes"),
    }[row]


def _lines(rows: Mapping[int, str], classifier: str, dataset: str) -> list[AccuracyRow]:
    measured = [
        (Measurement("val", shot, classifier), size) for shot in SHOTS for size in BATCH_SIZES
    ]
    return [
        AccuracyRow(
            (str(row), title), [(row_config(dataset, row, size), one) for one, size in measured]
        )
        for row, title in rows.items()
    ]


TABLES = [
    AccuracyTable(
        f"ablations-{{on}}-{short}",
        f"Ablations ({where}): {{on}}, validation split, {TITLES[classifier]}",
        ("row", "trained with"),
        partial(_lines, rows, classifier),
        tuple(f"{shot}-shot, {size}" for shot in SHOTS for size in BATCH_SIZES),
    )
    for short, rows, classifier, where in KINDS
]


def _draw(found: Found, dataset: str) -> Drawing:
    """Draw the rows that were run with some batch size; all of a kind where none of it was."""
    run = [
        row
        for row in ROWS
        if any(found.runs(row_config(dataset, row, size)) for size in BATCH_SIZES)
    ]
    kinds = [
        ([row for row in rows if row in run] or [*rows], rows, classifier)
        for _, rows, classifier, _ in KINDS
    ]
    heights = [len(shown) for shown, *_ in kinds]
    drawing = new_drawing(9.5, 2.4 + 0.38 * sum(heights))
    panels = drawing.subplots(
        2, 2, sharex="col", sharey="row", gridspec_kw={"height_ratios": heights}
    )
    for (shown, rows, classifier), of_kind in zip(kinds, panels, strict=True):
        for axes, shot in zip(of_kind, SHOTS, strict=True):
            measured = Measurement("val", shot, classifier)
            groups = {
                f"batches of {size}": [
                    found.pooled(row_config(dataset, row, size), measured) for row in shown
                ]
                for size in BATCH_SIZES
            }
            dots(axes, [f"{row}. {rows[row]}" for row in shown], groups)
            axes.set_title(f"{shot}-shot, {TITLES[classifier]}", fontsize=10)
            axes.tick_params(axis="x", labelbottom=True)
    for axes in panels[-1]:
        axes.set_xlabel("accuracy, %", fontsize=9)
    missing = (
        "; rows not run yet are left out" if sum(heights) < len(ROWS) + len(MATCHING_ROWS) else ""
    )
    finish(drawing, heading(found, "whiskers") + missing, handle_length=2.0)
    return drawing


def _figures(found: Found, dataset: str) -> Sequence[Figure]:
    title = f"Ablations on the validation split of {found.on(dataset)} (Figure 4 and Appendix H)"
    return [
        Figure(f"ablations-{found.on(dataset)}", title, found.label, partial(_draw, found, dataset))
    ]


RECIPE = Recipe(
    name="ablations",
    title="Figure 4 and Appendix H: from NCA to episodes, one difference at a time",
    datasets=("cifar-fs", "mini-imagenet"),
    wanted=lambda dataset: {
        row_config(dataset, row, size): () for size in reversed(BATCH_SIZES) for row in ROWS
    },
    tables=lambda found, dataset: [one.table(found, dataset) for one in TABLES],
    figures=_figures,
)
