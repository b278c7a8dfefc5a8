"""Section 3.5's table: NCA, Prototypical and Matching Networks and SimpleShot on the test splits.

    nearshot reproduce comparison --dataset cifar-fs --seeds 3
    nearshot reproduce comparison --dataset mini-imagenet --seeds 3 --only 'mini-imagenet-84-*'
    nearshot reproduce comparison --dataset tiny-tiered --seeds 3

Expected on CIFAR-FS, 1-shot / 5-shot: NCA 72.49 / 85.15 (nearest centroid) and 72.49 / 83.38 (soft
assignment), PN 70.41 / 84.61, MN 71.86 / 82.41, SimpleShot 69.98 / 84.40, and with Snell's episodes
PN 69.94 / 84.01, MN 69.28 / 80.79. Six runs a seed, ten minutes each on an H200 at 84×84 (240
epochs); on miniImageNet four more, with the settings for 84×84 files. On tiny-tiered, which is not
in the paper, four runs of three minutes; its differences stand beside the paper's on
tieredImageNet, from whose split its classes are. One 20-way 5-shot 15-query
model serves both columns of Snell's rows, as in the published experiments.
"""

from dataclasses import replace

from nearshot.paper.accuracy_table import QuotedRow, accuracy_table, both_shots
from nearshot.paper.numbers import COMPARISON, QUOTED, SHOTS
from nearshot.paper.recipe import Recipe, Row
from nearshot.paper.results import Measurement, Results
from nearshot.paper.tables import (
    Table,
    about_intervals,
    difference_cell,
    paper_difference_cell,
)
from nearshot.training import PRESETS, TrainConfig

# Row of the paper: the end of the preset's name, and the classifier.
ROWS = {
    "MN (Snell's episodes)": ("matching-snell", "soft"),
    "PN (Snell's episodes)": ("prototypical-snell", "centroid"),
    "MN (our episodes)": ("matching", "soft"),
    "PN (our episodes)": ("prototypical", "centroid"),
    "SimpleShot": ("simpleshot", "centroid"),
    "NCA soft assignment": ("nca", "soft"),
    "NCA nearest centroid": ("nca", "centroid"),
}
# Of rows with the same classifier.
PAIRS = {
    "NCA − PN": ("NCA nearest centroid", "PN (our episodes)"),
    "NCA − MN": ("NCA soft assignment", "MN (our episodes)"),
    "NCA − SimpleShot": ("NCA nearest centroid", "SimpleShot"),
    "PN, our − Snell's episodes": ("PN (our episodes)", "PN (Snell's episodes)"),
    "MN, our − Snell's episodes": ("MN (our episodes)", "MN (Snell's episodes)"),
}
# The presets for files of 84×84, of which the published crops magnify small patches.
SMALL_FILES = "mini-imagenet-84"
# The dataset of the paper whose split a dataset of ours has; only differences can be compared.
SPLIT_OF = {"tiny-tiered": "tiered-imagenet"}
NOTES = (
    "The validation split selected the epochs. Soft assignment where MN is a side, nearest "
    "centroid otherwise. The paper has the test split alone.",
)


def row_config(presets: str, label: str) -> TrainConfig:
    """Return the settings of a row: the presets are a dataset's, or those for 84×84 files."""
    preset, _ = ROWS[label]
    return PRESETS[f"{presets}-{preset}"]


def rows(dataset: str) -> list[Row]:
    """Return the rows of the table, then those for 84×84 files of miniImageNet."""
    return papers_rows(dataset) + rows_for_small_files(dataset)


def papers_rows(dataset: str) -> list[Row]:
    """Return the rows of the paper's table."""
    return rows_of(dataset, dataset)


def rows_for_small_files(dataset: str) -> list[Row]:
    """Return the rows with the settings for 84×84 files, which miniImageNet has."""
    return rows_of(SMALL_FILES, dataset) if dataset == "mini-imagenet" else []


def rows_of(presets: str, dataset: str) -> list[Row]:
    """Return the rows for which there are presets."""
    result = []
    for label, (preset, classifier) in ROWS.items():
        if f"{presets}-{preset}" in PRESETS:
            config = PRESETS[f"{presets}-{preset}"]
            measurements = both_shots("test", classifier)
            paper = COMPARISON[label].get(dataset, ())
            result.append(Row(label, config, measurements, paper))
    return result


def tables(results: Results, dataset: str) -> list[Table]:
    """Return the accuracies and the differences of pairs of rows, then both for 84×84 files."""
    name = results.dataset(dataset)
    quoted = []
    for label, numbers in QUOTED.items():
        if dataset in numbers:
            quoted.append(QuotedRow(label, numbers[dataset]))
    accuracies = accuracy_table(
        f"comparison-{name}",
        f"Comparison (Section 3.5): {name}, test split",
        results,
        papers_rows(dataset),
        with_paper=dataset not in SPLIT_OF,
        quoted=quoted,
    )
    differences = _differences(
        f"comparison-differences-{name}",
        f"Differences (Section 3.5): {name}, on the same episodes",
        results,
        papers_rows(dataset),
        SPLIT_OF.get(dataset, dataset),
    )
    small_rows = rows_for_small_files(dataset)
    if not small_rows:
        return [accuracies, differences]
    small_accuracies = accuracy_table(
        f"comparison-{name}-84",
        f"Comparison (Section 3.5) with settings for 84×84 files: {name}, test split",
        results,
        [replace(row, label=f"{row.label}, for 84×84 files") for row in small_rows],
        with_paper=True,
    )
    small_differences = _differences(
        f"comparison-differences-{name}-84",
        f"Differences (Section 3.5) with settings for 84×84 files: {name}, on the same episodes",
        results,
        small_rows,
        dataset,
    )
    return [accuracies, differences, small_accuracies, small_differences]


def _differences(
    name: str, title: str, results: Results, rows: list[Row], papers_dataset: str
) -> Table:
    """Return the differences on both splits, beside the paper's on a dataset."""
    notes = [about_intervals(len(results.seeds)), *NOTES]
    if results.size.is_own:
        notes.append(f"The paper's differences are on {papers_dataset}, which has other images.")
    columns = ["points"]
    for n_shot in SHOTS:
        columns += [f"{n_shot}-shot val", f"{n_shot}-shot test", "paper"]
    table = Table(name, title, columns, results.label, notes)
    by_label = {row.label: row for row in rows}
    for label, (first_label, second_label) in PAIRS.items():
        if first_label not in by_label or second_label not in by_label:
            continue
        first = by_label[first_label]
        second = by_label[second_label]
        _, classifier = ROWS[first_label]
        cells = []
        for column, n_shot in enumerate(SHOTS):
            for split in ("val", "test"):
                measurement = Measurement(split, n_shot, classifier)
                sides = ((first.config, measurement), (second.config, measurement))
                cells.append(difference_cell(results.difference(*sides), len(results.seeds)))
            if results.size.is_papers or results.size.is_own:
                papers_first = COMPARISON[first_label][papers_dataset][column]
                papers_second = COMPARISON[second_label][papers_dataset][column]
                cells.append(paper_difference_cell(papers_first, papers_second))
            else:
                cells.append(paper_difference_cell(None, None))
        table.add_row(label, *cells)
    return table


RECIPE = Recipe(
    "comparison",
    "Section 3.5's table: comparison on the test splits",
    ("cifar-fs", "mini-imagenet", "tiered-imagenet", "tiny-tiered"),
    rows,
    tables,
)
