"""Appendix I: implementations of Prototypical Networks on the test split, quoted and ours.

    nearshot reproduce pn-implementations --dataset mini-imagenet --seeds 3

Expected on miniImageNet: 59.78 / 75.42 with Snell's episodes and 61.32 / 77.77 with the best ones.
The two runs are the comparison's.
"""

from dataclasses import replace

from nearshot.paper.accuracy_table import QuotedRow, accuracy_table, both_shots
from nearshot.paper.numbers import PN_IMPLEMENTATIONS
from nearshot.paper.recipe import Recipe, Row, like
from nearshot.paper.results import Results
from nearshot.paper.tables import Table
from nearshot.training import PRESETS

# Row: the end of the preset's name.
OURS = {
    "nearshot, Snell's episodes": "prototypical-snell",
    "nearshot, best episodes": "prototypical",
}


def rows(dataset: str) -> list[Row]:
    """Return our rows, with their architecture."""
    result = []
    for label, preset in OURS.items():
        config = PRESETS[f"{dataset}-{preset}"]
        result.append(Row((label, config.backbone), config, both_shots("test")))
    return result


def tables(results: Results, dataset: str) -> list[Table]:
    """Return the quoted rows, then ours with the backbone that was run."""
    quoted = []
    if dataset == "mini-imagenet":
        for (implementation, architecture), numbers in PN_IMPLEMENTATIONS.items():
            quoted.append(QuotedRow(implementation, numbers, (architecture,)))
    own_rows = []
    for row in rows(dataset):
        label, _ = row.labels
        backbone = results.size.change(row.config).backbone
        own_rows.append(replace(row, label=(label, backbone)))
    name = results.dataset(dataset)
    where = like("Appendix I", dataset)
    table = accuracy_table(
        f"pn-implementations-{name}",
        f"Implementations of Prototypical Networks ({where}): {name}, test split",
        results,
        own_rows,
        labels=("implementation", "architecture"),
        quoted=quoted,
    )
    return [table]


RECIPE = Recipe(
    "pn-implementations",
    "Appendix I: implementations of Prototypical Networks",
    ("mini-imagenet", "cifar-fs"),
    rows,
    tables,
)
