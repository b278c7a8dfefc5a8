"""Figure 3: NCA with a random fraction of its pairs, and where Prototypical and Matching Networks lie on that curve.

    nearshot reproduce pair-subsampling --dataset mini-imagenet --seeds 3

Batches of 256; NCA keeps 1, 5, 10, 20, 40, 80 and 100 % of its positive and negative pairs; validation split. The paper
gives no numbers, only the figure: PN and MN lie close to the curve. Time: 14 runs a seed, five minutes each on an H200
at 84×84.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any

from nearshot.experiments.figures import panels
from nearshot.experiments.paper import SHOTS, TRAINING_CLASSES
from nearshot.experiments.recipe import Found, Recipe, Wanted, like
from nearshot.experiments.recipes.batch_size import IN_FIGURE, METHODS, PANELS, line_name, setup_config, setup_name
from nearshot.experiments.recipes.pairs import shuffled_pairs
from nearshot.experiments.results import Measurement
from nearshot.experiments.tables import Cell, Figure, Row, Table, cell, number_cell
from nearshot.losses import count_pairs
from nearshot.training import TrainConfig

BATCH_SIZE = 256
FRACTIONS = (0.01, 0.05, 0.1, 0.2, 0.4, 0.8, 1.0)
MEASURED = [Measurement("val", shot, classifier) for classifier in ("centroid", "soft") for shot in SHOTS]


def subsampled(dataset: str, fraction: float) -> TrainConfig:
    """Return NCA that keeps a fraction of its pairs."""
    return replace(setup_config(dataset, "nca", BATCH_SIZE, None), keep_positives=fraction, keep_negatives=fraction)


def share_of_pairs(config: TrainConfig) -> float:
    """Return the share of all pairs of the batch that a loss uses: NCA all of them."""
    if config.method == "nca":
        return 1.0
    n_images = config.shape.batch_size
    separate = count_pairs(config.shape, prototypes=False, separate=True)
    return separate.total / (n_images * (n_images - 1) / 2)


def _wanted(dataset: str) -> Wanted:
    episodic = [setup_config(dataset, method, BATCH_SIZE, setup) for setup in IN_FIGURE for method in METHODS]
    return dict.fromkeys((*(subsampled(dataset, fraction) for fraction in reversed(FRACTIONS)), *episodic), ())


def _table(found: Found, dataset: str) -> Table:
    rows: list[Row] = []
    for fraction in FRACTIONS:
        config = subsampled(dataset, fraction)
        values = [cell(found.pooled(config, measured)) for measured in MEASURED]
        rows.append(("NCA", Cell(f"{100 * fraction:g} %", fraction), _positives(found, config), *values))
    for (method, (_, classifier)), setup in product(METHODS.items(), IN_FIGURE):
        config = setup_config(dataset, method, BATCH_SIZE, setup)
        share = share_of_pairs(found.scale.change(config))
        values = [
            cell(found.pooled(config, measured)) if measured.classifier == classifier else Cell("")
            for measured in MEASURED
        ]
        shown = Cell(f"{100 * share:.1f} %", share)
        rows.append((setup_name(method, setup), shown, _positives(found, config), *values))
    config = setup_config(dataset, "prototypical", BATCH_SIZE, IN_FIGURE[0])
    episodes, shuffled = (_positives(found, one).value for one in (config, subsampled(dataset, 1.0)))
    # A share of all pairs is not a share of the positives, of which episodes have more.
    about_positives = (
        f"Shares are of all pairs of a batch, as in the paper. Positives are few: NCA's whole shuffled batch has "
        f"{shuffled:,.0f} on average, and 5-shot episodes with m+n={config.images_per_class} have {episodes:,.0f}, in "
        f"{100 * share_of_pairs(found.scale.change(config)):.0f} % of the pairs."
        if shuffled is not None
        else ""
    )
    on, where = found.on(dataset), like("Figure 3", dataset)
    return Table(
        f"pair-subsampling-{on}",
        f"A fraction of the pairs of a batch ({where}): {on}, validation split",
        found.label,
        ("trained with", "pairs", "positives", *(f"{one.n_shot}-shot {one.classifier}" for one in MEASURED)),
        tuple(rows),
        (about_positives,) if about_positives else (),
    )


def _positives(found: Found, config: TrainConfig) -> Cell:
    """Return the positives in a batch; for NCA's shuffled ones their mean, on the datasets of the paper."""
    changed = found.scale.change(config)
    if changed.method != "nca":
        return number_cell(count_pairs(changed.shape, prototypes=False, separate=True).positives)
    if changed.dataset not in TRAINING_CLASSES:
        return cell(None)
    mean = changed.keep_positives * shuffled_pairs(changed.dataset, changed.batch_size).positives
    return number_cell(mean, "{:,.0f}")


def _figures(found: Found, dataset: str) -> Sequence[Figure]:
    def lines(method: str) -> dict[str, list[tuple[float, TrainConfig]]]:
        drawn = {"NCA, subsampled": [(100 * fraction, subsampled(dataset, fraction)) for fraction in FRACTIONS]}
        for setup in IN_FIGURE:
            config = setup_config(dataset, method, BATCH_SIZE, setup)
            drawn[line_name(setup)] = [(100 * share_of_pairs(found.scale.change(config)), config)]
        return drawn

    on, where = found.on(dataset), like("Figure 3", dataset)
    title = f"Accuracy on the validation split of {on} with a fraction of the pairs ({where})"
    axis: dict[str, Any] = {"xlabel": "pairs used, % of all in a batch", "ticks": [100 * one for one in FRACTIONS]}
    draw = partial(panels, found, PANELS, lines, **axis, drawn="whiskers and band")
    return [Figure(f"pair-subsampling-{on}", title, found.label, draw)]


RECIPE = Recipe(
    name="pair-subsampling",
    title="Figure 3: a random fraction of the pairs against episodes",
    datasets=("mini-imagenet", "cifar-fs"),
    wanted=_wanted,
    tables=lambda found, dataset: [_table(found, dataset)],
    figures=_figures,
)
