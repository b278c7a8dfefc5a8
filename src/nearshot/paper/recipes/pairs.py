"""Table 1, Appendix E's pair counts and Figure 1: the distances that a batch gives a loss.

    nearshot reproduce pairs
    nearshot reproduce pairs --episode 5 2 3

No training; a second. The second command draws Figure 1 also for 5 ways, 2 shots and 3 queries.
Expected: equal to the paper, except for the errata that the table marks. All numbers are counted on
the losses' own choice of anchors and candidates. The paper counts NCA's pairs on a batch with
equally many images of each class. NCA trains on shuffled batches, whose expected numbers have a row
of their own.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Drawing
from matplotlib.lines import Line2D
from matplotlib.patches import Circle

from nearshot.episode_shape import EpisodeShape
from nearshot.losses import ExpectedPairs, count_pairs, expected_pairs
from nearshot.losses.episodic import episode_roles
from nearshot.losses.neighbours import pair_masks
from nearshot.paper.figures import NEGATIVE, POSITIVE, new_drawing
from nearshot.paper.numbers import (
    ABLATION_PAIRS,
    BATCH_SIZE_TABLE,
    BATCH_SIZES,
    ERRATA,
    TRAINING_CLASSES,
)
from nearshot.paper.recipe import Recipe, Row
from nearshot.paper.results import Results
from nearshot.paper.tables import Cell, Figure, Table, number_cell

LABEL = "counted, not trained"
FIGURE_1 = EpisodeShape(n_way=2, n_shot=4, n_query=1)
EXAMPLES = (FIGURE_1, EpisodeShape(20, 5, 15), EpisodeShape(32, 5, 11))
# Roles differ in grey too.
POINT: dict[str, Any] = {"color": "black", "linestyle": "none", "zorder": 3}
SUPPORT: dict[str, Any] = {**POINT, "marker": "o", "markerfacecolor": "0.45", "markersize": 7}
QUERY: dict[str, Any] = {**POINT, "marker": "s", "markerfacecolor": "white", "markersize": 7}
PROTOTYPE: dict[str, Any] = {**POINT, "marker": "*", "markerfacecolor": "#F0E442", "markersize": 14}
IMAGE: dict[str, Any] = {**POINT, "marker": "D", "markerfacecolor": "0.8", "markersize": 6}
STYLES = {
    "support image": SUPPORT,
    "query image": QUERY,
    "prototype: mean of the support": PROTOTYPE,
    "image without a role": IMAGE,
    "positive: of one class": POSITIVE,
    "negative: of two classes": NEGATIVE,
}
# Of the losses: whether there are prototypes, and whether support and query are separate.
ABLATION_ROWS = {3: (False, False), 6: (False, True), 7: (True, False)}
LOSSES = {
    "Prototypical Networks": (True, True),
    "Matching Networks": (False, True),
    "NCA: no episodes": (False, False),
}


def rows(dataset: str) -> list[Row]:
    """Return no rows: everything is counted."""
    return []


def tables(results: Results, dataset: str) -> list[Table]:
    """Return Table 1 and the pair counts of Appendix E."""
    return [_table_1(), _appendix_e()]


def _table_1() -> Table:
    table = Table(
        "pairs-table-1",
        "Pairs that a batch gives with and without episodes (Table 1)",
        ("batch", "", "positives", "negatives"),
        LABEL,
    )
    table.add_row("formula", "no episodes", "C(m+n, 2) w", "C(w, 2) (m+n)²")
    table.add_row("formula", "episodes", "w m n", "w (w−1) m n")
    table.add_row("formula", "pairs lost", "w/2 (m²+n²−m−n)", "w/2 (w−1) (m²+n²)")
    for shape in EXAMPLES:
        name = f"w={shape.n_way}, n={shape.n_shot}, m={shape.n_query}"
        all_pairs = count_pairs(shape, prototypes=False, separate=False)
        episodes = count_pairs(shape, prototypes=True, separate=True)
        lost = []
        for n_all, n_episodic in zip(all_pairs, episodes, strict=True):
            n_lost = n_all - n_episodic
            lost.append(Cell(f"{n_lost:,} (+{100 * n_lost / n_episodic:.0f} %)", n_lost))
        table.add_row(name, "no episodes", *map(number_cell, all_pairs))
        table.add_row(name, "episodes", *map(number_cell, episodes))
        table.add_row(name, "pairs lost", *lost)
    return table


def _appendix_e() -> Table:
    n_classes, n_images = TRAINING_CLASSES["cifar-fs"]
    table = Table(
        "pairs-appendix-e",
        "Pairs in the setups of Figures 2 and 4 (Appendix E); the paper's number in brackets where "
        "it differs",
        ("batch", "loss", "positives", "negatives", "total"),
        LABEL,
        _notes(n_classes, n_images),
    )
    for row in BATCH_SIZE_TABLE:
        printed = (row.positives, row.negatives, row.total)
        batch = f"batch {row.batch_size}"
        if row.shape is not None:
            name = f"PN {row.shape.n_shot}-shot m+n={row.shape.images_per_class}"
            counts = count_pairs(row.shape, prototypes=True, separate=True)
            table.add_row(batch, name, *_compared((*counts, counts.total), printed))
        else:
            shape = EpisodeShape(n_classes, 1, row.batch_size // n_classes - 1)
            counts = count_pairs(shape, prototypes=False, separate=False)
            balanced = _compared((*counts, counts.total), printed)
            table.add_row(batch, "NCA, balanced batch", *balanced)
            shuffled = shuffled_pairs("cifar-fs", row.batch_size)
            expected = (shuffled.positives, shuffled.negatives, shuffled.total)
            cells = [number_cell(number, "{:,.0f}") for number in expected]
            table.add_row(batch, "NCA, shuffled batches (expected)", *cells)
    shape = EpisodeShape.from_batch(256, n_shot=5, images_per_class=8)
    for number, (prototypes, separate) in ABLATION_ROWS.items():
        counts = count_pairs(shape, prototypes=prototypes, separate=separate)
        compared = _compared(counts, ABLATION_PAIRS[number])
        # The paper does not print the total.
        total = number_cell(counts.total)
        table.add_row("batch 256", f"ablations, row {number}", *compared, total)
    return table


def _notes(n_classes: int, n_images: int) -> list[str]:
    by_size = [shuffled_pairs("cifar-fs", size) for size in BATCH_SIZES]
    alone = [f"{pairs.anchors_without_positive:.1f}" for pairs in by_size]
    about_shuffled = (
        "The paper counts NCA's pairs on a batch with equally many images of each class. NCA "
        f"trains on shuffled batches, b of all {n_classes * n_images:,} images, which have "
        f"C(b, 2) · {n_images - 1}/{n_classes * n_images - 1:,} positives on average, and "
        f"{' / '.join(alone)} images without another of their class at "
        f"b = {' / '.join(map(str, BATCH_SIZES))}."
    )
    return [about_shuffled, *(str(erratum) for erratum in ERRATA if erratum.about == "pairs")]


def shuffled_pairs(dataset: str, batch_size: int) -> ExpectedPairs:
    """Return the mean counts of NCA's shuffled batches on a dataset of the paper."""
    n_classes, n_images = TRAINING_CLASSES[dataset]
    return expected_pairs([n_images] * n_classes, batch_size)


def _compared(counts: Sequence[int], printed: Sequence[int]) -> list[Cell]:
    cells = []
    for ours, papers in zip(counts, printed, strict=True):
        text = f"{ours:,}" if ours == papers else f"{ours:,} (paper: {papers:,})"
        cells.append(Cell(text, ours))
    return cells


def figures(results: Results, dataset: str) -> list[Figure]:
    """Return Figure 1."""
    return [figure(FIGURE_1)]


def figure(shape: EpisodeShape) -> Figure:
    """Return Figure 1 for an episode of some shape."""
    name = f"pairs-{shape.n_way}-way-{shape.n_shot}-shot-{shape.n_query}-query"
    title = (
        f"Distances used by {shape.n_way} ways, {shape.n_shot} shots and {shape.n_query} queries "
        "(Figure 1)"
    )
    return Figure(name, title, LABEL, partial(_draw, shape))


@dataclass(frozen=True)
class Pair:
    """Two points, by their number, that a loss compares."""

    first: int
    second: int
    is_positive: bool


def drawn_pairs(
    shape: EpisodeShape, *, prototypes: bool, separate: bool
) -> tuple[torch.Tensor, list[str], list[Pair]]:
    """Return the points (point, 2) that a loss compares, the role of each, and the pairs.

    Anchors and candidates are the loss's own choice; prototypes are points of their own.
    """
    coordinates, labels = _layout(shape)
    roles = episode_roles(coordinates, labels, shape, prototypes=prototypes, separate=separate)
    positive, negative = pair_masks(
        roles.anchor_labels, roles.candidate_labels, same_set=roles.same_set
    )
    if separate:
        points = torch.cat([roles.anchors, roles.candidates])
        first_candidate = len(roles.anchors)
        candidate = "prototype: mean of the support" if prototypes else "support image"
        names = ["query image"] * len(roles.anchors) + [candidate] * len(roles.candidates)
    else:
        points = roles.anchors
        first_candidate = 0
        names = ["image without a role"] * len(roles.anchors)
        # Each pair once.
        positive = positive.triu(1)
        negative = negative.triu(1)
    pairs = []
    for mask, is_positive in ((negative, False), (positive, True)):
        for anchor, candidate_number in mask.nonzero().tolist():
            pairs.append(Pair(anchor, candidate_number + first_candidate, is_positive))
    return points, names, pairs


def _layout(shape: EpisodeShape) -> tuple[torch.Tensor, torch.Tensor]:
    """Return coordinates and labels of the images: support before query.

    Classes are around a circle, and images around their class.
    Queries are on the inner side, slightly rotated, and radii differ, so that no lines of Figure 1
    overlap.
    """
    ways = torch.arange(shape.n_way)
    of_class = torch.arange(shape.images_per_class)
    labels = torch.cat(
        [ways.repeat_interleave(shape.n_shot), ways.repeat_interleave(shape.n_query)]
    )
    numbers = torch.cat(
        [of_class[: shape.n_shot].repeat(shape.n_way), of_class[shape.n_shot :].repeat(shape.n_way)]
    )
    class_angles = math.pi + 2 * math.pi * labels / shape.n_way
    # In images, from the middle of the queries.
    from_middle = numbers - shape.n_shot - (shape.n_query - 1) / 2
    angles = class_angles + math.pi + 0.58 + 2 * math.pi * from_middle / shape.images_per_class
    radii = 1 - 0.1 * (numbers % 2)
    # Of classes from the middle; the radius of a class is one.
    distance = 1.5 if shape.n_way == 2 else 1.6 / math.sin(math.pi / shape.n_way)
    centres = distance * torch.stack([class_angles.cos(), class_angles.sin()], 1)
    return centres + radii[:, None] * torch.stack([angles.cos(), angles.sin()], 1), labels


def _draw(shape: EpisodeShape) -> Drawing:
    coordinates, _ = _layout(shape)
    left, bottom = (coordinates.amin(0) - 0.5).tolist()
    right, top = (coordinates.amax(0) + 0.5).tolist()
    drawing = new_drawing(9.5, 1.2 + 3.1 * (top - bottom) / (right - left))
    panels = drawing.subplots(1, 3)
    for axes, (title, (prototypes, separate)) in zip(panels, LOSSES.items(), strict=True):
        _draw_panel(axes, shape, title, prototypes=prototypes, separate=separate)
        axes.set(xlim=(left, right), ylim=(bottom, top), aspect="equal", anchor="N")
        axes.axis("off")
    handles = [Line2D([], [], label=label, **style) for label, style in STYLES.items()]
    drawing.legend(handles=handles, loc="outside lower center", ncols=3, fontsize=8, frameon=False)
    return drawing


def _draw_panel(
    axes: Axes, shape: EpisodeShape, title: str, *, prototypes: bool, separate: bool
) -> None:
    _draw_classes(axes, shape)
    if prototypes:
        _draw_support(axes, shape)
    points, roles, pairs = drawn_pairs(shape, prototypes=prototypes, separate=separate)
    for pair in pairs:
        ends = points[[pair.first, pair.second]]
        axes.plot(*ends.T, **(POSITIVE if pair.is_positive else NEGATIVE))
    for role in dict.fromkeys(roles):
        of_role = torch.tensor([other == role for other in roles])
        axes.plot(*points[of_role].T, **STYLES[role])
    n_positive = sum(pair.is_positive for pair in pairs)
    text = f"{title}\n{n_positive:,} positive and {len(pairs) - n_positive:,} negative distances"
    counts = count_pairs(shape, prototypes=prototypes, separate=separate)
    if len(pairs) == counts.total:
        text += "\n"
    else:
        text += f",\nfor {counts.positives:,} and {counts.negatives:,} pairs of images"
    axes.set_title(text, fontsize=9)


def _draw_classes(axes: Axes, shape: EpisodeShape) -> None:
    """Draw a grey disk behind the images of each class."""
    coordinates, labels = _layout(shape)
    for label in range(shape.n_way):
        images = coordinates[labels == label]
        middle = images.mean(0)
        radius = float((images - middle).norm(dim=1).max()) + 0.3
        centre = (float(middle[0]), float(middle[1]))
        axes.add_patch(Circle(centre, radius, color="0.93", linewidth=0, zorder=0))


def _draw_support(axes: Axes, shape: EpisodeShape) -> None:
    """Draw the support images, each joined to the prototype of its class."""
    coordinates, _ = _layout(shape)
    n_support = shape.n_way * shape.n_shot
    supports = coordinates[:n_support].reshape(shape.n_way, shape.n_shot, 2)
    for support in supports:  # (shot, 2)
        for image in support:
            ends = torch.stack([image, support.mean(0)])
            axes.plot(*ends.T, color="0.55", linewidth=0.7, zorder=1)
        axes.plot(*support.T, **SUPPORT)


RECIPE = Recipe(
    "pairs",
    "Table 1, Appendix E's counts, Figure 1: the pairs that a batch gives a loss",
    ("cifar-fs",),
    rows,
    tables,
    figures,
)
