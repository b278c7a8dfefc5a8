"""The pair counts: Table 1, Appendices A and E, by counting on the losses' own masks."""

import math

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings
from tests import reference

from nearshot.episode_shape import EpisodeShape
from nearshot.losses import PairCounts, count_pairs, expected_pairs
from nearshot.paper.numbers import BATCH_SIZE_TABLE, ERRATA, BatchSizeRow

few = settings(max_examples=40, deadline=None)
shapes = st.builds(EpisodeShape, st.integers(2, 9), st.integers(1, 7), st.integers(1, 7))


def episodes(shape: EpisodeShape) -> PairCounts:
    return count_pairs(shape, prototypes=True, separate=True)


def whole_batch(shape: EpisodeShape) -> PairCounts:
    return count_pairs(shape, prototypes=False, separate=False)


@few
@given(shapes)
def test_table_1_and_row_7_of_figure_4(shape: EpisodeShape) -> None:
    w = shape.n_way
    n = shape.n_shot
    m = shape.n_query
    everything = whole_batch(shape)
    some = episodes(shape)
    assert everything == reference.count_image_pairs(w, n, m, separate=False)
    assert some == reference.count_image_pairs(w, n, m, separate=True)
    assert some == count_pairs(shape, prototypes=False, separate=True)
    assert everything.positives >= some.positives  # Appendix A
    assert everything.negatives > some.negatives
    assert everything == (math.comb(m + n, 2) * w, math.comb(w, 2) * (m + n) ** 2)
    assert some == (w * m * n, w * (w - 1) * m * n)
    # The end of Appendix A.
    assert 2 * (everything.total - some.total) == w * (w * (m**2 + n**2) - m - n)
    # Query and query, query and prototype, which counts for its images, and prototype and
    # prototype, which is one.
    positives = w * (math.comb(m, 2) + m * n)
    negatives = math.comb(w, 2) * (m**2 + 2 * m * n + 1)
    assert count_pairs(shape, prototypes=True, separate=False) == (positives, negatives)


def test_appendix_e_rows_of_the_ablation_at_batch_256() -> None:
    shape = EpisodeShape.from_batch(256, n_shot=5, images_per_class=8)
    assert count_pairs(shape, prototypes=False, separate=True) == (480, 14_880)  # row 6
    # Row 7. Erratum: the paper prints 20,170 negatives. 14,880 (query to prototype, which counts
    # for its five images) + 4,464 (query to query) + 496 (prototype to prototype, once) are 19,840;
    # the 576 positives do follow.
    assert count_pairs(shape, prototypes=True, separate=False) == (576, 19_840)
    assert whole_batch(shape) == (896, 31_744)  # row 3
    # Section 2.1: more than 150 per cent more.
    snells = EpisodeShape(n_way=20, n_shot=5, n_query=15)
    assert whole_batch(snells).positives > 2.5 * episodes(snells).positives
    assert whole_batch(snells).negatives > 2.5 * episodes(snells).negatives


# Rows of Appendix E's table whose printed numbers disagree with the paper's own formulas.
WRONG = {erratum.row for erratum in ERRATA if erratum.about == "pairs"}


@pytest.mark.parametrize("row", BATCH_SIZE_TABLE, ids=lambda row: f"{row.batch_size} {row.shape}")
def test_appendix_e(row: BatchSizeRow) -> None:
    """NCA: 64 classes in a batch."""
    shape = row.shape or EpisodeShape(64, 1, row.batch_size // 64 - 1)
    counts = whole_batch(shape) if row.shape is None else episodes(shape)
    is_printed = (*counts, counts.total) == (row.positives, row.negatives, row.total)
    assert is_printed == ((row.batch_size, (shape.n_shot, shape.images_per_class)) not in WRONG)


@few
@given(st.lists(st.integers(1, 4), min_size=1, max_size=4), st.data())
def test_pairs_of_shuffled_batches_are_the_mean_over_all_batches(
    sizes: list[int], data: st.DataObject
) -> None:
    batch_size = data.draw(st.integers(1, min(sum(sizes), 7)))
    assert expected_pairs(sizes, batch_size) == pytest.approx(
        reference.mean_image_pairs(sizes, batch_size), abs=1e-12
    )


@pytest.mark.parametrize(
    ("batch_size", "rounded"), [(512, (2041, 0.2)), (256, (509, 4.6)), (128, (127, 17.3))]
)
def test_pairs_of_shuffled_batches_of_cifar_fs(batch_size: int, rounded: tuple[int, float]) -> None:
    """C(b, 2) · 599 / 38,399 positives."""
    expected = expected_pairs([600] * 64, batch_size)
    assert expected.positives == pytest.approx(math.comb(batch_size, 2) * 599 / 38_399)
    assert (round(expected.positives), round(expected.anchors_without_positive, 1)) == rounded
    assert expected.total == pytest.approx(math.comb(batch_size, 2))
