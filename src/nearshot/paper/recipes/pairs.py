"""Table 1, Appendix E's pair counts and Figure 1: how many distances a batch gives a loss, and which.

    nearshot reproduce pairs                        # no training; a second
    nearshot reproduce pairs --episode 2 4 1        # Figure 1 for another number of ways, shots and
    queries

Expected: equal to the paper, except for the errata that the table marks. All numbers are counted on
the losses' own choice of anchors and candidates. The paper counts NCA's pairs on a batch with
equally many images of each class. NCA trains on shuffled batches, whose expected numbers have a row
of their own.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
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
from nearshot.paper.recipe import Recipe
from nearshot.paper.tables import Cell, Figure, Row, Table, number_cell

LABEL = "counted, not trained"
FIGURE_1 = EpisodeShape(n_way=2, n_shot=4, n_query=1)
EXAMPLES = (FIGURE_1, EpisodeShape(20, 5, 15), EpisodeShape(32, 5, 11))
# Roles differ in grey too.
POINT: dict[str, Any] = {"color": "black", "linestyle": "none", "zorder": 3}
LOOKS = {
    "support image": POINT | {"marker": "o", "markerfacecolor": "0.45", "markersize": 7},
    "query image": POINT | {"marker": "s", "markerfacecolor": "white", "markersize": 7},
    "prototype: mean of the support": POINT
    | {"marker": "*", "markerfacecolor": "#F0E442", "markersize": 14},
    "image without a role": POINT | {"marker": "D", "markerfacecolor": "0.8", "markersize": 6},
    "positive: of one class": POSITIVE,
    "negative: of two classes": NEGATIVE,
}
ABLATION_ROWS = {3: (False, False), 6: (False, True), 7: (True, False)}
LOSSES = {
    "Prototypical Networks": (True, True),
    "Matching Networks": (False, True),
    "NCA: no episodes": (False, False),
}


def _table_1() -> Table:
    rows: list[Row] = [
        ("formula", "no episodes", "C(m+n, 2) w", "C(w, 2) (m+n)²"),
        ("formula", "episodes", "w m n", "w (w−1) m n"),
        ("formula", "pairs lost", "w/2 (m²+n²−m−n)", "w/2 (w−1) (m²+n²)"),
    ]
    for shape in EXAMPLES:
        name = f"w={shape.n_way}, n={shape.n_shot}, m={shape.n_query}"
        everything = count_pairs(shape, prototypes=False, separate=False)
        episodes = count_pairs(shape, prototypes=True, separate=True)
        lost = [one - other for one, other in zip(everything, episodes, strict=True)]
        shares = (
            Cell(f"{n:,} (+{100 * n / base:.0f} %)", n)
            for n, base in zip(lost, episodes, strict=True)
        )
        rows.append((name, "no episodes", *map(number_cell, everything)))
        rows.append((name, "episodes", *map(number_cell, episodes)))
        rows.append((name, "pairs lost", *shares))
    title = "Pairs that a batch gives with and without episodes (Table 1)"
    return Table(
        "pairs-table-1", title, LABEL, ("batch", "", "positives", "negatives"), tuple(rows)
    )


def _appendix_e() -> Table:
    n_classes, n_images = TRAINING_CLASSES["cifar-fs"]
    rows: list[Row] = []
    for row in BATCH_SIZE_TABLE:
        batch, has_episodes = f"batch {row.batch_size}", row.shape is not None
        shape = row.shape or EpisodeShape(n_classes, 1, row.batch_size // n_classes - 1)
        name = (
            f"PN {shape.n_shot}-shot m+n={shape.images_per_class}"
            if has_episodes
            else "NCA, balanced batch"
        )
        counts = count_pairs(shape, prototypes=has_episodes, separate=has_episodes)
        rows.append((batch, name, *_compared((*counts, counts.total), row[3:])))
        if not has_episodes:
            shuffled = shuffled_pairs("cifar-fs", row.batch_size)
            numbers = (number_cell(number, "{:,.0f}") for number in (*shuffled[:2], shuffled.total))
            rows.append((batch, "NCA, shuffled batches (expected)", *numbers))
    shape = EpisodeShape.from_batch(256, n_shot=5, images_per_class=8)
    for number, (prototypes, separate) in ABLATION_ROWS.items():
        counts = count_pairs(shape, prototypes=prototypes, separate=separate)
        compared = _compared(counts, ABLATION_PAIRS[number])
        total = number_cell(counts.total)  # which the paper does not print
        rows.append(("batch 256", f"ablations, row {number}", *compared, total))
    alone = " / ".join(
        f"{shuffled_pairs('cifar-fs', size).anchors_without_positive:.1f}" for size in BATCH_SIZES
    )
    about_shuffled = (
        f"The paper counts NCA's pairs on a batch with equally many images of each class. NCA trains on shuffled "
        f"batches, b of all {n_classes * n_images:,} images, which have C(b, 2) · {n_images - 1}/"
        f"{n_classes * n_images - 1:,} positives on average, and {alone} images without another of their class at "
        f"b = {' / '.join(map(str, BATCH_SIZES))}."
    )
    return Table(
        "pairs-appendix-e",
        "Pairs in the setups of Figures 2 and 4 (Appendix E); the paper's number in brackets where it differs",
        LABEL,
        ("batch", "loss", "positives", "negatives", "total"),
        tuple(rows),
        (about_shuffled, *(str(erratum) for erratum in ERRATA if erratum.about == "pairs")),
    )


def shuffled_pairs(dataset: str, batch_size: int) -> ExpectedPairs:
    """Return the mean counts of NCA's shuffled batches on a dataset of the paper."""
    n_classes, n_images = TRAINING_CLASSES[dataset]
    return expected_pairs([n_images] * n_classes, batch_size)


def _compared(counts: Sequence[int], printed: Sequence[int]) -> list[Cell]:
    return [
        Cell(f"{here:,}" if here == there else f"{here:,} (paper: {there:,})", here)
        for here, there in zip(counts, printed, strict=True)
    ]


def _figure(shape: EpisodeShape) -> Figure:
    name = f"pairs-{shape.n_way}-way-{shape.n_shot}-shot-{shape.n_query}-query"
    title = f"Distances used by {shape.n_way} ways, {shape.n_shot} shots and {shape.n_query} queries (Figure 1)"
    return Figure(name, title, LABEL, lambda: _draw(shape))


def drawn_pairs(
    shape: EpisodeShape, *, prototypes: bool, separate: bool
) -> tuple[torch.Tensor, list[str], list[tuple[int, int, bool]]]:
    """Return the points (point, 2) that a loss compares, their looks, and its pairs: two points, and if of one class.

    Anchors and candidates are the loss's own choice; prototypes are points of their own.
    """
    places, labels = _places(shape)
    roles = episode_roles(places, labels, shape, prototypes=prototypes, separate=separate)
    positive, negative = pair_masks(
        roles.anchor_labels, roles.candidate_labels, same_set=roles.same_set
    )
    if separate:
        points, offset = torch.cat([roles.anchors, roles.candidates]), len(roles.anchors)
        candidate = "prototype: mean of the support" if prototypes else "support image"
        names = ["query image"] * offset + [candidate] * len(roles.candidates)
    else:  # each pair once
        points, offset, names = roles.anchors, 0, ["image without a role"] * len(roles.anchors)
        positive, negative = positive.triu(1), negative.triu(1)
    pairs = [
        (int(one), int(other) + offset, is_positive)
        for mask, is_positive in ((negative, False), (positive, True))
        for one, other in mask.nonzero()
    ]
    return points, names, pairs


def _places(shape: EpisodeShape) -> tuple[torch.Tensor, torch.Tensor]:
    """Return coordinates and labels: classes around a circle, images around their class, support before query.

    Queries are on the inner side, slightly rotated, and radii differ, so that no lines of Figure 1
    overlap.
    """
    ways, of_class = torch.arange(shape.n_way), torch.arange(shape.images_per_class)
    labels = torch.cat(
        [ways.repeat_interleave(shape.n_shot), ways.repeat_interleave(shape.n_query)]
    )
    numbers = torch.cat(
        [of_class[: shape.n_shot].repeat(shape.n_way), of_class[shape.n_shot :].repeat(shape.n_way)]
    )
    around = math.pi + 2 * math.pi * labels / shape.n_way
    inwards = (
        numbers - shape.n_shot - (shape.n_query - 1) / 2
    )  # in images, from the middle of the queries
    within = around + math.pi + 0.58 + 2 * math.pi * inwards / shape.images_per_class
    radius = 1 - 0.1 * (numbers % 2)
    distance = (
        1.5 if shape.n_way == 2 else 1.6 / math.sin(math.pi / shape.n_way)
    )  # of classes, whose radius is one
    centres = distance * torch.stack([around.cos(), around.sin()], 1)
    return centres + radius[:, None] * torch.stack([within.cos(), within.sin()], 1), labels


def _draw(shape: EpisodeShape) -> Drawing:
    places, labels = _places(shape)
    (left, bottom), (right, top) = (places.amin(0) - 0.5).tolist(), (places.amax(0) + 0.5).tolist()
    drawing = new_drawing(9.5, 1.2 + 3.1 * (top - bottom) / (right - left))
    for axes, (title, (prototypes, separate)) in zip(
        drawing.subplots(1, 3), LOSSES.items(), strict=True
    ):
        points, looks, pairs = drawn_pairs(shape, prototypes=prototypes, separate=separate)
        for label in labels.unique():
            own = places[labels == label]
            middle = own.mean(0)
            radius = float((own - middle).norm(dim=1).max()) + 0.3
            axes.add_patch(
                Circle(
                    (float(middle[0]), float(middle[1])),
                    radius,
                    color="0.93",
                    linewidth=0,
                    zorder=0,
                )
            )
        supports = places[: shape.n_way * shape.n_shot].reshape(shape.n_way, shape.n_shot, 2)
        for support in supports if prototypes else ():  # which a line joins to its prototype
            for image in support:
                axes.plot(
                    *torch.stack([image, support.mean(0)]).T, color="0.55", linewidth=0.7, zorder=1
                )
            axes.plot(*support.T, **LOOKS["support image"])
        for one, other, positive in pairs:
            axes.plot(*points[[one, other]].T, **(POSITIVE if positive else NEGATIVE))
        for look in dict.fromkeys(looks):
            axes.plot(*points[[one == look for one in looks]].T, **LOOKS[look])
        n_positive = sum(positive for *_, positive in pairs)
        counts = count_pairs(shape, prototypes=prototypes, separate=separate)
        lines = f"{n_positive:,} positive and {len(pairs) - n_positive:,} negative distances"
        stand_for = f",\nfor {counts.positives:,} and {counts.negatives:,} pairs of images"
        axes.set_title(
            f"{title}\n{lines}" + ("\n" if len(pairs) == counts.total else stand_for), fontsize=9
        )
        axes.set(xlim=(left, right), ylim=(bottom, top), aspect="equal", anchor="N")
        axes.axis("off")
    handles = [Line2D([], [], label=label, **look) for label, look in LOOKS.items()]
    drawing.legend(handles=handles, loc="outside lower center", ncols=3, fontsize=8, frameon=False)
    return drawing


RECIPE = Recipe(
    name="pairs",
    title="Table 1, Appendix E's counts, Figure 1: the pairs that a batch gives a loss",
    datasets=("cifar-fs",),
    wanted=lambda dataset: {},
    tables=lambda found, dataset: (_table_1(), _appendix_e()),
    figures=lambda found, dataset: (_figure(found.episode or FIGURE_1),),
)
