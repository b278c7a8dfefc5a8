"""Section 3.5's big table, Appendices C and I: NCA, PN, MN, SimpleShot and SupCon on the test splits.

    nearshot reproduce comparison epochs --dataset cifar-fs --seeds 3
    nearshot reproduce supcon pn-implementations --dataset mini-imagenet --seeds 3

**comparison** (Section 3.5): six runs a seed, ten minutes each on an H200 at 84×84 (240 epochs). Expected on CIFAR-FS:
NCA 72.49 / 85.15 (nearest centroid) and 72.49 / 83.38 (soft assignment), PN 70.41 / 84.61, MN 71.86 / 82.41, SimpleShot
69.98 / 84.40, and with Snell's episodes PN 69.94 / 84.01, MN 69.28 / 80.79. One 20-way 5-shot 15-query model serves
both columns of Snell's rows, as in the published experiments.

**supcon** (Appendix C): the loss of the published experiments, 51.05 / 63.36 on miniImageNet's test split, and Khosla
et al.'s own loss at their temperature 0.1; projection to 128, batches of 512.

**pn-implementations** (Appendix I): quoted rows, with ours below.

**epochs** (beyond the paper): validation accuracy by epoch, from the logs of `comparison`, which reports the epoch that
was best on the validation split. Expected on CIFAR-FS, 240 epochs: NCA is ahead of PN by 1.3 / 0.6 points at epoch 180
and behind by 0.5 / 0.9 at epoch 240.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from statistics import fmean

from matplotlib.figure import Figure as Drawing

from nearshot.experiments.accuracy_table import AccuracyRow, AccuracyTable, both_shots
from nearshot.experiments.differences import difference_cell, difference_of, welch_difference
from nearshot.experiments.figures import GRID, finish, new_drawing, style_of
from nearshot.experiments.paper import COMPARISON, PN_IMPLEMENTATIONS, QUOTED, SHOTS, SUPCON
from nearshot.experiments.recipe import Found, Recipe, Wanted
from nearshot.experiments.results import Measurement
from nearshot.experiments.tables import Cell, Figure, Row, Table, cell, difference, signed
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
# Of the figure and table by epoch.
SHOWN = ("NCA nearest centroid", "NCA soft assignment", "PN (our episodes)", "MN (our episodes)", "SimpleShot")
DRAWN = {"NCA": SHOWN[0], "PN": SHOWN[2], "MN, soft assignment": SHOWN[3], "SimpleShot": SHOWN[4]}
EARLY = 0.75  # of the epochs: after the learning rate's drop, where NCA is at its best


def _config(dataset: str, row: str) -> TrainConfig:
    return PRESETS[f"{dataset}-{ROWS[row][0]}"]


def _lines(dataset: str) -> list[AccuracyRow]:
    lines = [
        AccuracyRow((f"{name} (quoted)",), (None, None), printed[dataset])
        for name, printed in QUOTED.items()
        if dataset in printed
    ]
    for row, (_, classifier) in ROWS.items():
        sides = both_shots(_config(dataset, row), "test", classifier)
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
    for name, pair in PAIRS.items():
        cells: list[Cell] = []
        for place, shot in enumerate(SHOTS):
            for split in ("val", "test"):
                measured = Measurement(split, shot, ROWS[pair[0]][1])
                sides = ((_config(dataset, row), measured) for row in pair)
                cells.append(difference_cell(difference_of(found, *sides)))
            first, second = (COMPARISON[row][dataset][place] for row in pair)
            cells.append(difference(first, second) if found.scale.is_papers else cell(None))
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


def supcon_config(dataset: str, row: str) -> TrainConfig:
    """Return the settings of a row of Appendix C."""
    published = PRESETS[f"{dataset}-supcon"]
    variants = (published, replace(published, supcon_variant="khosla", temperature=0.1), PRESETS[f"{dataset}-nca"])
    return variants[SUPCON_ROWS.index(row)]


def _pn_lines(dataset: str) -> list[AccuracyRow]:
    lines = []
    for name, printed in PN_IMPLEMENTATIONS.items():
        implementation, architecture = name.split(" | ")
        if dataset in printed:
            lines.append(AccuracyRow((f"{implementation} (quoted)", architecture), (None, None), printed[dataset]))
    for name, method in OUR_PN.items():
        config = PRESETS[f"{dataset}-{method}"]
        lines.append(AccuracyRow((name, config), both_shots(config, "test")))
    return lines


def _curves(found: Found, dataset: str, row: str, shot: int) -> list[Mapping[int, float]]:
    """Return the validation accuracies of each seed by epoch, from its log."""
    name = f"{shot}-shot {ROWS[row][1]}"
    return [
        {line["epoch"]: line["validation"][name] for line in run.history if name in (line.get("validation") or {})}
        for run in found.runs(_config(dataset, row))
    ]


def _epochs_table(found: Found, dataset: str) -> Table:
    """Return accuracies at the last epoch that was validated by three quarters of training, and at the last."""
    curves = {(row, shot): _curves(found, dataset, row, shot) for row in SHOWN for shot in SHOTS}
    validated = sorted({epoch for row in SHOWN for curve in curves[row, SHOTS[0]] for epoch in curve})
    early = [epoch for epoch in validated if epoch <= EARLY * validated[-1]]
    places = [(shot, epoch) for shot in SHOTS for epoch in (*early[-1:], *validated[-1:])]

    def at(row: str, shot: int, epoch: int) -> list[float]:
        return [curve[epoch] for curve in curves[row, shot] if epoch in curve]

    rows: list[Row] = [(row, *(_mean_of_seeds(at(row, *place)) for place in places)) for row in SHOWN]
    for name, pair in PAIRS.items():
        if set(pair) <= set(SHOWN):
            rows.append((name, *(_difference(*(at(row, *place) for row in pair)) for place in places)))
    return Table(
        f"epochs-{found.on(dataset)}",
        f"Accuracy at an early and at the last epoch: {found.on(dataset)}, validation split",
        found.label,
        ("trained with", *(f"{shot}-shot, epoch {epoch}" for shot, epoch in places)),
        tuple(rows),
        (
            "Accuracies of all training seeds in brackets, from the runs' logs. MN, and NCA against it, with soft "
            "assignment. ± is Welch's interval between training seeds where both sides have several.",
        ),
    )


def _mean_of_seeds(means: Sequence[float]) -> Cell:
    if not means:
        return cell(None)
    seeds = f" ({', '.join(f'{mean:.2f}' for mean in means)})" if len(means) > 1 else ""
    return Cell(f"{fmean(means):.2f}{seeds}", fmean(means), details={"by seed": " ".join(map(str, means))})


def _difference(firsts: Sequence[float], seconds: Sequence[float]) -> Cell:
    if min(len(firsts), len(seconds)) > 1:
        return difference_cell(welch_difference("", firsts, seconds))
    if not firsts or not seconds:
        return cell(None)
    value = firsts[0] - seconds[0]
    return Cell(signed(value), value, details={"seeds": 1})


def _draw_epochs(found: Found, dataset: str) -> Drawing:
    drawing = new_drawing(9.5, 3.9)
    config = found.scale.change(_config(dataset, SHOWN[0]))
    for axes, shot in zip(drawing.subplots(1, 2), SHOTS, strict=True):
        late = []
        for number, (name, row) in enumerate(DRAWN.items()):
            curves, style = _curves(found, dataset, row, shot), style_of(number)
            late += [value for curve in curves for epoch, value in curve.items() if epoch >= config.epochs / 4]
            if not curves:
                continue
            shared = sorted(set.intersection(*map(set, curves)))
            axes.plot(shared, [fmean(curve[epoch] for curve in curves) for epoch in shared], label=name, **style)
            for curve in curves if len(curves) > 1 else ():
                axes.plot(shared, [curve[epoch] for epoch in shared], color=style["color"], linewidth=0.6, alpha=0.5)
        for fraction in config.milestones if config.schedule == "steps" else ():
            axes.axvline(fraction * config.epochs, color="0.6", linewidth=0.8, linestyle=":", zorder=0.6)
        axes.set_ylim(bottom=min(late) - 0.5)  # the first epochs would hide the differences of the last
        axes.set_title(f"{shot}-shot", fontsize=10)
        axes.set_xlabel("epoch", fontsize=9)
        axes.set_ylabel("accuracy, %", fontsize=9)
        axes.tick_params(labelsize=8)
        axes.grid(axis="y", **GRID)
    lines = "thick: mean over training seeds; thin: each seed; dotted: the learning rate drops"
    finish(drawing, f"{found.label}\n{lines}")
    return drawing


def _epochs_figures(found: Found, dataset: str) -> Sequence[Figure]:
    title = f"Accuracy on the validation split of {found.on(dataset)} by epoch"
    return [Figure(f"epochs-{found.on(dataset)}", title, found.label, partial(_draw_epochs, found, dataset))]


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
    lambda dataset: [
        AccuracyRow((row,), both_shots(supcon_config(dataset, row), "test"), paper.get(dataset, ()))
        for row, paper in zip(SUPCON_ROWS, (SUPCON, {}, {}), strict=True)
    ],
    place="Appendix C",
    measured=True,
    with_paper=True,
)
CONTRAST = SUPCON_TABLE.recipe("Appendix C: the supervised contrastive loss", ("mini-imagenet", "cifar-fs"))
IMPLEMENTATIONS = AccuracyTable(
    "pn-implementations-{on}",
    "Implementations of Prototypical Networks ({where}): {on}, test split",
    ("implementation", "architecture"),
    _pn_lines,
    place="Appendix I",
    measured=True,
).recipe("Appendix I: implementations of Prototypical Networks", ("mini-imagenet", "cifar-fs"))
EPOCHS = Recipe(
    name="epochs",
    title="Beyond the paper: validation accuracy against the epoch",
    datasets=("cifar-fs", "mini-imagenet", "tiered-imagenet"),
    wanted=lambda dataset: {_config(dataset, row): () for row in SHOWN},
    tables=lambda found, dataset: [_epochs_table(found, dataset)],
    figures=_epochs_figures,
)
