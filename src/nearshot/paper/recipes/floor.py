"""Beyond the paper: the floor of the published arithmetic, and what can replace it.

    nearshot reproduce floor --dataset cifar-fs --input-size 32 --seeds 1

The published experiments add 1e-10 to what is not a positive and skip anchors below it
(`background`). Without this floor PN loses points. Compared are the floor, the exact loss, and
other ways to keep the first steps from saturating. Validation split, nearest centroid, batches of
512, 5-shot episodes with m+n = 16. 24 runs a seed, two minutes each on an H200 at 32×32.
"""

from dataclasses import replace

from nearshot.paper.accuracy_table import PAPER_DATASETS, both_shots, our_cell
from nearshot.paper.numbers import FLOOR, SHOTS, figure_config
from nearshot.paper.recipe import Recipe, Row
from nearshot.paper.results import Results
from nearshot.paper.tables import Table
from nearshot.training import TrainConfig
from nearshot.training.methods import NCA, MatchingNetworks, PrototypicalNetworks

METHODS: dict[str, NCA | PrototypicalNetworks | MatchingNetworks] = {
    "NCA": NCA(background=FLOOR),
    "PN": PrototypicalNetworks(background=FLOOR),
    "MN": MatchingNetworks(background=FLOOR),
}
WARM_UP = "floor, warm-up of 10 epochs"
LEARNT_TEMPERATURE = "exact, temperature learnt from 640"


def variants(dataset: str, method: str) -> dict[str, TrainConfig]:
    """Return the settings of the variants of one of the methods, by label."""
    floor = METHODS[method]
    exact = replace(floor, background=0.0)
    learnt = replace(exact, temperature=640.0, learn_temperature=True)
    with_floor = figure_config(dataset, floor, 512)
    without_floor = figure_config(dataset, exact, 512)
    return {
        "floor 1e-10 (published)": with_floor,
        "exact": without_floor,
        "exact, warm-up of 10 epochs": replace(without_floor, warm_up=10.0),
        LEARNT_TEMPERATURE: figure_config(dataset, learnt, 512),
        "exact, temperature 64": figure_config(dataset, replace(exact, temperature=64.0), 512),
        "exact, temperature 640": figure_config(dataset, replace(exact, temperature=640.0), 512),
        "floor, Nesterov": replace(with_floor, nesterov=True),
        WARM_UP: replace(with_floor, warm_up=10.0),
    }


def rows(dataset: str) -> list[Row]:
    """Return every variant of every method."""
    result = []
    for method in METHODS:
        for label, config in variants(dataset, method).items():
            labels = (method, label)
            result.append(Row(labels, config, both_shots(), from_validation=True))
    return result


def tables(results: Results, dataset: str) -> list[Table]:
    """Return the accuracies: a row per variant, the methods side by side."""
    by_labels = {row.labels: row for row in rows(dataset)}
    name = results.dataset(dataset)
    columns = ["loss and schedule"]
    for method in METHODS:
        columns += [f"{method} {n_shot}-shot" for n_shot in SHOTS]
    table = Table(
        f"floor-{name}",
        f"The floor of the published arithmetic, and what can replace it: {name}, validation "
        "split, nearest centroid, best epoch",
        columns,
        results.label,
    )
    for label in variants(dataset, "NCA"):
        cells = []
        for method in METHODS:
            row = by_labels[method, label]
            cells += [our_cell(results, row.cell(column)) for column in range(len(SHOTS))]
        table.add_row(label, *cells)
    return [table]


RECIPE = Recipe(
    "floor",
    "Beyond the paper: the floor of the published arithmetic, and what can replace it",
    PAPER_DATASETS,
    rows,
    tables,
)
