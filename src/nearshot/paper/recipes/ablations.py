"""Figure 4 and Appendix H: from NCA to episodes, one difference at a time.

    nearshot reproduce ablations --dataset cifar-fs --seeds 3

Rows 1 to 7 with batches of 128, 256 and 512 and m+n = 8; validation split. Rows 1 and 2: NCA on
shuffled batches and with replacement; 3: NCA on batches of fixed composition; 4 and 5: PN with one
shot and five; 6: without prototypes; 7: without the separation of support and query. The Matching
Networks version has rows 1 to 3, MN with one shot (the same as row 4) and five (row 6), with soft
assignment. The paper gives no numbers beyond those of Figure 2. Time: 21 runs a seed, five minutes
each on an H200 at 84×84.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial

from matplotlib.figure import Figure as Drawing

from nearshot.paper.accuracy_table import both_shots, our_cell
from nearshot.paper.figures import dots, finish, heading, new_drawing
from nearshot.paper.numbers import BATCH_SIZES, FLOOR, SHOTS, TITLES, figure_config
from nearshot.paper.recipe import Recipe, Row
from nearshot.paper.results import Measurement, Results
from nearshot.paper.tables import Figure, Table
from nearshot.training import Method, TrainConfig
from nearshot.training.methods import NCA, MatchingNetworks, NCAWithPrototypes, PrototypicalNetworks

ROWS = {
    1: "NCA",
    2: "NCA, with replacement",
    3: "NCA, fixed batch composition",
    4: "PN 1-shot",
    5: "PN 5-shot",
    6: "PN 5-shot, no prototypes",
    7: "PN 5-shot, no support/query",
}


@dataclass(frozen=True)
class Version:
    """The rows of one version of the figure: that of Prototypical or of Matching Networks."""

    name: str
    rows: Mapping[int, str]
    classifier: str
    where: str  # in the paper


PROTOTYPICAL = Version("pn", ROWS, "centroid", "Figure 4")
MATCHING = Version(
    "mn",
    {1: ROWS[1], 2: ROWS[2], 3: ROWS[3], 4: "MN 1-shot", 6: "MN 5-shot"},
    "soft",
    "Appendix H",
)
VERSIONS = (PROTOTYPICAL, MATCHING)


def row_config(dataset: str, row: int, batch_size: int) -> TrainConfig:
    """Return the settings of a row of Figure 4."""
    five_shots = PrototypicalNetworks(n_shot=5, background=FLOOR)
    methods: dict[int, Method] = {
        1: NCA(background=FLOOR),
        2: NCA(background=FLOOR),
        3: NCA(background=FLOOR),
        4: replace(five_shots, n_shot=1),
        5: five_shots,
        6: MatchingNetworks(n_shot=5, background=FLOOR),
        7: NCAWithPrototypes(n_shot=5, background=FLOOR),
    }
    config = figure_config(dataset, methods[row], batch_size, images_per_class=8)
    if row == 2:
        return replace(config, batches="independent")
    if row == 3:
        return replace(config, batches="episodes")
    return config


def rows(dataset: str) -> list[Row]:
    """Return the rows with each batch size, the largest first."""
    result = []
    for size in reversed(BATCH_SIZES):
        for number, title in ROWS.items():
            labels = (str(number), title)
            config = row_config(dataset, number, size)
            result.append(Row(labels, config, both_shots(), from_validation=True))
    return result


def tables(results: Results, dataset: str) -> list[Table]:
    """Return a table for each version."""
    return [_table(results, dataset, version) for version in VERSIONS]


def _table(results: Results, dataset: str, version: Version) -> Table:
    name = results.dataset(dataset)
    columns = ["row", "trained with"]
    for n_shot in SHOTS:
        columns += [f"{n_shot}-shot, {size}" for size in BATCH_SIZES]
    table = Table(
        f"ablations-{name}-{version.name}",
        f"Ablations ({version.where}): {name}, validation split, {TITLES[version.classifier]}",
        columns,
        results.label,
    )
    for number, title in version.rows.items():
        cells = []
        for n_shot in SHOTS:
            measurement = Measurement("val", n_shot, version.classifier)
            for size in BATCH_SIZES:
                side = (row_config(dataset, number, size), measurement)
                cells.append(our_cell(results, side))
        table.add_row(str(number), title, *cells)
    return table


def figures(results: Results, dataset: str) -> list[Figure]:
    """Return Figure 4, with both versions."""
    name = results.dataset(dataset)
    title = f"Ablations on the validation split of {name} (Figure 4 and Appendix H)"
    return [Figure(f"ablations-{name}", title, results.label, partial(_draw, results, dataset))]


def _draw(results: Results, dataset: str) -> Drawing:
    """Draw the rows that were run with some batch size; all of a version where none of it was."""
    was_run = set()
    for number in ROWS:
        if any(results.runs(row_config(dataset, number, size)) for size in BATCH_SIZES):
            was_run.add(number)
    shown = {}
    for version in VERSIONS:
        shown[version.name] = [number for number in version.rows if number in was_run]
        if not shown[version.name]:
            shown[version.name] = list(version.rows)
    heights = [len(shown[version.name]) for version in VERSIONS]
    drawing = new_drawing(9.5, 2.4 + 0.38 * sum(heights))
    panels = drawing.subplots(
        2, 2, sharex="col", sharey="row", gridspec_kw={"height_ratios": heights}
    )
    for version, row_of_panels in zip(VERSIONS, panels, strict=True):
        names = [f"{number}. {version.rows[number]}" for number in shown[version.name]]
        for axes, n_shot in zip(row_of_panels, SHOTS, strict=True):
            measurement = Measurement("val", n_shot, version.classifier)
            groups = {}
            for size in BATCH_SIZES:
                configs = [row_config(dataset, number, size) for number in shown[version.name]]
                accuracies = [results.accuracy(config, measurement) for config in configs]
                groups[f"batches of {size}"] = accuracies
            dots(axes, names, groups)
            axes.set_title(f"{n_shot}-shot, {TITLES[version.classifier]}", fontsize=10)
            axes.tick_params(axis="x", labelbottom=True)
    for axes in panels[-1]:
        axes.set_xlabel("accuracy, %", fontsize=9)
    title = heading(results, "whiskers")
    if sum(heights) < len(PROTOTYPICAL.rows) + len(MATCHING.rows):
        title += "; rows not run yet are skipped"
    finish(drawing, title, handle_length=2.0)
    return drawing


RECIPE = Recipe(
    "ablations",
    "Figure 4 and Appendix H: from NCA to episodes, one difference at a time",
    ("cifar-fs", "mini-imagenet"),
    rows,
    tables,
    figures,
)
