"""Section 3.5's big table, Appendices C and I: NCA, PN, MN, SimpleShot and SupCon on the test splits.

    nearshot reproduce comparison --dataset cifar-fs --seeds 3
    nearshot reproduce comparison --dataset mini-imagenet --seeds 3 --only 'mini-imagenet-84-*'
    nearshot reproduce supcon pn-implementations --dataset mini-imagenet --seeds 3

**comparison** (Section 3.5): six runs a seed, ten minutes each on an H200 at 84×84 (240 epochs); on
miniImageNet four more, with the settings for 84×84 files. Expected on CIFAR-FS: NCA 72.49 / 85.15
(nearest centroid) and 72.49 / 83.38 (soft assignment), PN 70.41 / 84.61, MN 71.86 / 82.41,
SimpleShot 69.98 / 84.40, and with Snell's episodes PN 69.94 / 84.01, MN 69.28 / 80.79. One 20-way
5-shot 15-query model serves both columns of Snell's rows, as in the published experiments.

**supcon** (Appendix C): the loss of the published experiments, 51.05 / 63.36 on miniImageNet's test
split, and Khosla et al.'s own loss at their temperature 0.1; projection to 128, batches of 512.

**pn-implementations** (Appendix I): quoted rows, with ours below.

**snell-ways** (beyond the paper): Snell's rows with 20 ways, which the published experiments'
arguments have, and with 15, which their names say.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from nearshot.paper.accuracy_table import AccuracyRow, AccuracyTable, both_shots
from nearshot.paper.differences import difference_cell, difference_of
from nearshot.paper.numbers import COMPARISON, PN_IMPLEMENTATIONS, QUOTED, SHOTS, SUPCON
from nearshot.paper.recipe import Found, Recipe, Wanted
from nearshot.paper.results import Measurement
from nearshot.paper.tables import Cell, Row, Table, cell, difference
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
SMALL_FILES = "mini-imagenet-84"  # the presets for files of 84×84
ORDER = ("nca", "prototypical", "matching", "simpleshot", "prototypical-snell", "matching-snell")
SUPCON_ROWS = ("SupCon, as published", "SupCon, Khosla et al.'s", "NCA")
OUR_PN = {
    "nearshot, Snell's episodes": "prototypical-snell",
    "nearshot, best episodes": "prototypical",
}


def row_config(presets: str, row: str) -> TrainConfig:
    """Return the settings of a row: the presets are a dataset's, or those for 84×84 files of miniImageNet."""
    return PRESETS[f"{presets}-{ROWS[row][0]}"]


def _lines(dataset: str) -> list[AccuracyRow]:
    quoted = [
        AccuracyRow((f"{name} (quoted)",), (None, None), printed[dataset])
        for name, printed in QUOTED.items()
        if dataset in printed
    ]
    return [*quoted, *_own_lines(dataset, dataset)]


def _own_lines(presets: str, dataset: str) -> list[AccuracyRow]:
    lines = []
    for row, (method, classifier) in ROWS.items():
        if f"{presets}-{method}" in PRESETS:
            sides = both_shots(row_config(presets, row), "test", classifier)
            label = row if presets == dataset else f"{row}, for 84×84 files"
            lines.append(AccuracyRow((label,), sides, COMPARISON[row][dataset]))
    return lines


TABLE = AccuracyTable(
    "comparison-{on}",
    "Comparison (Section 3.5): {on}, test split",
    ("trained with",),
    _lines,
    measured=True,
    with_paper=True,
)


# With settings that suit 84×84 files, of which the published crops magnify small patches.
SMALL_FILES_TABLE = replace(
    TABLE,
    name="comparison-{on}-84",
    title="Comparison (Section 3.5) with settings for 84×84 files: {on}, test split",
    lines=partial(_own_lines, SMALL_FILES),
)


def _tables_of(dataset: str) -> dict[str, AccuracyTable]:
    """Return the tables by the presets that they compare."""
    return {dataset: TABLE} | (
        {SMALL_FILES: SMALL_FILES_TABLE} if dataset == "mini-imagenet" else {}
    )


def _wanted(dataset: str) -> Wanted:
    """Return the runs that other recipes share first."""
    wanted: dict[TrainConfig, Sequence[Measurement]] = {}
    for presets, table in _tables_of(dataset).items():
        of_table = table.wanted(dataset)
        configs = (PRESETS[name] for method in ORDER if (name := f"{presets}-{method}") in PRESETS)
        wanted |= {config: of_table[config] for config in configs}
    return wanted


def _tables(found: Found, dataset: str) -> list[Table]:
    return [
        made
        for presets, table in _tables_of(dataset).items()
        for made in (table.table(found, dataset), _differences(found, dataset, presets))
    ]


def _differences(found: Found, dataset: str, presets: str) -> Table:
    """Return the differences on both splits."""
    rows: list[Row] = []
    for name, pair in PAIRS.items():
        if not all(f"{presets}-{ROWS[row][0]}" in PRESETS for row in pair):
            continue
        cells: list[Cell] = []
        for place, shot in enumerate(SHOTS):
            for split in ("val", "test"):
                measured = Measurement(split, shot, ROWS[pair[0]][1])
                sides = ((row_config(presets, row), measured) for row in pair)
                cells.append(difference_cell(difference_of(found, *sides)))
            first, second = (COMPARISON[row][dataset][place] for row in pair)
            cells.append(difference(first, second) if found.scale.is_papers else cell(None))
        rows.append((name, *cells))
    on, small = found.on(dataset), presets == SMALL_FILES
    return Table(
        f"comparison-differences-{on}{'-84' * small}",
        f"Differences (Section 3.5){' with settings for 84×84 files' * small}: {on}, on the same episodes",
        found.label,
        ("points", "1-shot val", "1-shot test", "paper", "5-shot val", "5-shot test", "paper"),
        tuple(rows),
        (
            "± is Welch's interval between training seeds where both sides have several; otherwise it is over "
            "episodes, without seed variance. The validation split selected the epochs.",
            "Soft assignment where MN is a side, nearest centroid otherwise. The paper has the test split alone.",
        ),
    )


def supcon_config(dataset: str, row: str) -> TrainConfig:
    """Return the settings of a row of Appendix C."""
    published = PRESETS[f"{dataset}-supcon"]
    variants = (
        published,
        replace(published, supcon_variant="khosla", temperature=0.1),
        PRESETS[f"{dataset}-nca"],
    )
    return variants[SUPCON_ROWS.index(row)]


def _snell_lines(dataset: str) -> list[AccuracyRow]:
    lines = []
    for row in ("MN (Snell's episodes)", "PN (Snell's episodes)"):
        for n_way in (20, 15):
            config = replace(row_config(dataset, row), n_way=n_way)
            sides = both_shots(config, "test", ROWS[row][1])
            lines.append(AccuracyRow((row, str(n_way)), sides))
    return lines


def _pn_lines(dataset: str) -> list[AccuracyRow]:
    lines = []
    for name, printed in PN_IMPLEMENTATIONS.items():
        implementation, architecture = name.split(" | ")
        if dataset in printed:
            lines.append(
                AccuracyRow(
                    (f"{implementation} (quoted)", architecture), (None, None), printed[dataset]
                )
            )
    for name, method in OUR_PN.items():
        config = PRESETS[f"{dataset}-{method}"]
        lines.append(AccuracyRow((name, config), both_shots(config, "test")))
    return lines


COMPARE = Recipe(
    name="comparison",
    title="Section 3.5's table: comparison on the test splits",
    datasets=("cifar-fs", "mini-imagenet", "tiered-imagenet"),
    wanted=_wanted,
    tables=_tables,
)
SUPCON_TABLE = AccuracyTable(
    "supcon-{on}",
    "The supervised contrastive loss ({where}): {on}, test split, nearest centroid",
    ("trained with",),
    lambda dataset: [
        AccuracyRow((row,), both_shots(supcon_config(dataset, row), "test"), paper.get(dataset, ()))
        for row, paper in zip(SUPCON_ROWS, (SUPCON, {}, {}), strict=True)
    ],
    place="Appendix C",
    measured=True,
    with_paper=True,
)
CONTRAST = SUPCON_TABLE.recipe(
    "Appendix C: the supervised contrastive loss", ("mini-imagenet", "cifar-fs")
)
IMPLEMENTATIONS = AccuracyTable(
    "pn-implementations-{on}",
    "Implementations of Prototypical Networks ({where}): {on}, test split",
    ("implementation", "architecture"),
    _pn_lines,
    place="Appendix I",
    measured=True,
).recipe("Appendix I: implementations of Prototypical Networks", ("mini-imagenet", "cifar-fs"))
SNELL = AccuracyTable(
    "snell-ways-{on}",
    "Snell's episodes with 20 ways and with 15: {on}, test split",
    ("trained with", "ways"),
    _snell_lines,
    measured=True,
    notes=(
        "The arguments of the published experiments have 20 ways; their names say 15. Both take equally many steps, so "
        "15 ways see fewer images. (The quick form has 10 ways in both.)",
    ),
).recipe("Beyond the paper: the ways of Snell's episodes")
