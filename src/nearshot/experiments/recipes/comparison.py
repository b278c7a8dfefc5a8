"""Section 3.5's big table, Appendices C and I: NCA, PN, MN, SimpleShot and SupCon on the test splits.

    nearshot reproduce comparison --dataset cifar-fs --seeds 3
    nearshot reproduce supcon pn-implementations --dataset mini-imagenet --seeds 3

**comparison** (Section 3.5): six runs a seed, ten minutes each on an H200 at 84×84 (240 epochs). Expected on CIFAR-FS:
NCA 72.49 / 85.15 (nearest centroid) and 72.49 / 83.38 (soft assignment), PN 70.41 / 84.61, MN 71.86 / 82.41, SimpleShot
69.98 / 84.40, and with Snell's episodes PN 69.94 / 84.01, MN 69.28 / 80.79. One 20-way 5-shot 15-query model serves
both columns of Snell's rows, as in the published experiments.

**supcon** (Appendix C): the loss of the published experiments, which the paper quotes at 51.05 / 63.36 on
miniImageNet's test split, and Khosla et al.'s own loss at their temperature 0.1; projection to 128, batches of 512.

**pn-implementations** (Appendix I): the rows of other papers are quoted. The paper's two rows are those of `comparison`
on miniImageNet, with ours below.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache, partial

from nearshot.experiments.accuracy_table import AccuracyRow, AccuracyTable, both_shots
from nearshot.experiments.differences import difference_cell, difference_of
from nearshot.experiments.paper import COMPARISON, PN_IMPLEMENTATIONS, QUOTED, SUPCON
from nearshot.experiments.recipe import Found, Recipe, Wanted
from nearshot.experiments.results import Measurement
from nearshot.experiments.scales import Scale
from nearshot.experiments.tables import Cell, Row, Table, cell, signed
from nearshot.training import PRESETS, TrainConfig

ROWS = {  # row of the paper: (the preset's method, the classifier)
    "MN (Snell's episodes)": ("matching-snell", "soft"),
    "PN (Snell's episodes)": ("prototypical-snell", "centroid"),
    "MN (our episodes)": ("matching", "soft"),
    "PN (our episodes)": ("prototypical", "centroid"),
    "SimpleShot": ("simpleshot", "centroid"),
    "NCA soft assignment": ("nca", "soft"),
    "NCA nearest centroid": ("nca", "centroid"),
}
PAIRS = {  # of rows with the same classifier
    "NCA − PN": ("NCA nearest centroid", "PN (our episodes)"),
    "NCA − MN": ("NCA soft assignment", "MN (our episodes)"),
    "NCA − SimpleShot": ("NCA nearest centroid", "SimpleShot"),
    "PN, our − Snell's episodes": ("PN (our episodes)", "PN (Snell's episodes)"),
    "MN, our − Snell's episodes": ("MN (our episodes)", "MN (Snell's episodes)"),
}
ORDER = ("nca", "prototypical", "matching", "simpleshot", "prototypical-snell", "matching-snell")
SUPCON_ROWS = ("SupCon, as published", "SupCon, Khosla et al.'s", "NCA")
OUR_PN = {"nearshot, Snell's episodes": "prototypical-snell", "nearshot, best episodes": "prototypical"}


def _lines(dataset: str) -> list[AccuracyRow]:
    lines = [
        AccuracyRow((f"{name} (quoted)",), (None, None), printed[dataset])
        for name, printed in QUOTED.items()
        if dataset in printed
    ]
    for row, (method, classifier) in ROWS.items():
        sides = both_shots(PRESETS[f"{dataset}-{method}"], "test", classifier)
        lines.append(AccuracyRow((row,), sides, COMPARISON[row][dataset]))
    return lines


TABLE = AccuracyTable(
    "comparison-{on}",
    "Comparison (Section 3.5): {on}, test split",
    ("trained with",),
    _lines,
    measured=True,
    with_paper=True,
)


def _wanted(dataset: str) -> Wanted:
    """Return the runs that other recipes share first."""
    wanted = TABLE.wanted(dataset)
    return {config: wanted[config] for config in (PRESETS[f"{dataset}-{method}"] for method in ORDER)}


def _differences(found: Found, dataset: str) -> Table:
    """Return the differences on both splits."""
    rows: list[Row] = []
    for name, (first, second) in PAIRS.items():
        configs = [PRESETS[f"{dataset}-{ROWS[row][0]}"] for row in (first, second)]
        cells: list[Cell] = []
        for place, shot in enumerate((1, 5)):
            for split in ("val", "test"):
                measured = Measurement(split, shot, ROWS[first][1])
                one = difference_of(found, name, *((config, measured) for config in configs))
                cells.append(difference_cell(one))
            papers = COMPARISON[first][dataset][place].mean - COMPARISON[second][dataset][place].mean
            cells.append(Cell(signed(papers), papers) if found.scale.is_papers else cell(None))
        rows.append((name, *cells))
    on = found.on(dataset)
    return Table(
        f"comparison-differences-{on}",
        f"Differences (Section 3.5): {on}, on the same episodes",
        found.label,
        ("points", "1-shot val", "1-shot test", "paper", "5-shot val", "5-shot test", "paper"),
        tuple(rows),
        (
            "± is Welch's interval between training seeds where both sides have several; otherwise it is over "
            "episodes, without seed variance. The validation split selected the epochs.",
            "Soft assignment where MN is a side, nearest centroid otherwise. The paper has the test split alone.",
        ),
    )


@cache
def supcon_config(dataset: str, row: str) -> TrainConfig:
    """Return the settings of a row of Appendix C."""
    published = PRESETS[f"{dataset}-supcon"]
    variants = (published, replace(published, supcon_variant="khosla", temperature=0.1), PRESETS[f"{dataset}-nca"])
    return variants[SUPCON_ROWS.index(row)]


def _supcon(dataset: str, row: str) -> AccuracyRow:
    printed = SUPCON if row == SUPCON_ROWS[0] and dataset == "mini-imagenet" else ()
    return AccuracyRow((row,), both_shots(supcon_config(dataset, row), "test"), printed)


def _backbone(config: TrainConfig, scale: Scale) -> str:
    return scale.change(config).backbone


def _pn_lines(dataset: str) -> list[AccuracyRow]:
    printed = PN_IMPLEMENTATIONS if dataset == "mini-imagenet" else {}
    lines = [AccuracyRow((f"{name} (quoted)", of), (None, None), shots) for (name, of), shots in printed.items()]
    for name, method in OUR_PN.items():
        config = PRESETS[f"{dataset}-{method}"]
        lines.append(AccuracyRow((name, partial(_backbone, config)), both_shots(config, "test")))
    return lines


COMPARE = Recipe(
    name="comparison",
    title="Section 3.5's table: comparison on the test splits",
    datasets=("cifar-fs", "mini-imagenet", "tiered-imagenet"),
    wanted=_wanted,
    tables=lambda found, dataset: [TABLE.table(found, dataset), _differences(found, dataset)],
)
SUPCON_TABLE = AccuracyTable(
    "supcon-{on}",
    "The supervised contrastive loss ({where}): {on}, test split, nearest centroid",
    ("trained with",),
    lambda dataset: [_supcon(dataset, row) for row in SUPCON_ROWS],
    place=("Appendix C", "mini-imagenet"),
    measured=True,
    with_paper=True,
)
CONTRAST = SUPCON_TABLE.recipe("Appendix C: the supervised contrastive loss", ("mini-imagenet", "cifar-fs"))
IMPLEMENTATIONS = AccuracyTable(
    "pn-implementations-{on}",
    "Implementations of Prototypical Networks ({where}): {on}, test split",
    ("implementation", "architecture"),
    _pn_lines,
    place=("Appendix I", "mini-imagenet"),
    measured=True,
).recipe("Appendix I: implementations of Prototypical Networks", ("mini-imagenet", "cifar-fs"))
