"""None of these: novelty, and a threshold that keeps its promise."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import scipy.stats
import torch
from clouds import clouds
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import accuracy_score
from test_leave_one_out import support_of
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from nearshot import FewShotClassifier
from nearshot.estimator.novelty import choose_threshold, class_spread, held_out_novelties, novelties
from nearshot.estimator.support import between_classes


@settings(deadline=None)
@given(st.lists(st.integers(1, 6), min_size=1, max_size=4), st.integers(0, 1000))
def test_held_out_novelties_against_a_loop(sizes: list[int], seed: int) -> None:
    support = support_of(sizes, seed)
    features, codes = support.features.numpy(), support.codes.numpy()
    between = between_classes(support)
    usual = 0 if between is None else 2  # a class alone has no distances to others
    expected = []
    for image in range(len(codes)):
        kept = np.arange(len(codes)) != image
        if sizes[codes[image]] == 1 or sizes in ([1], [2]):
            continue
        classes = [features[kept & (codes == code)] for code in range(len(sizes))]
        squares = [((rows - rows.mean(0)) ** 2).sum() for rows in classes]
        shared = (usual * 0.225 * (between or 0) + sum(squares)) / (usual + sum(len(rows) - 1 for rows in classes))
        expected.append(
            min(
                ((features[image] - rows.mean(0)) ** 2).sum()
                / ((24 * shared + own) / (24 + len(rows) - 1) * (1 + 1 / len(rows)))
                for rows, own in zip(classes, squares, strict=True)
            )
        )
    np.testing.assert_allclose(held_out_novelties(support), expected, rtol=1e-6)


class Largest(TorchDispatchMode):
    """Notes how many numbers the largest tensor has that is made."""

    numel = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        self.numel = max([self.numel, *(one.numel() for one in tree_leaves(made) if isinstance(one, torch.Tensor))])
        return made


def test_many_images_of_many_classes_are_left_out_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The memory does not grow with images times classes, and the novelties are those of all at once."""
    support = support_of([2] * 100, seed=0)
    at_once = held_out_novelties(support), novelties(support.features, class_spread(support))
    for name in ("PAIRS_AT_ONCE", "PAIRS_HELD_OUT_AT_ONCE"):
        monkeypatch.setattr(f"nearshot.estimator.novelty.{name}", 2000)
    with Largest() as largest:  # type: ignore[no-untyped-call]
        in_blocks = held_out_novelties(support), novelties(support.features, class_spread(support))
    assert largest.numel <= 2000 < len(support.codes) * support.n_classes
    for found, expected in zip(in_blocks, at_once, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-9)


def test_novelty_knows_no_scale_and_no_place() -> None:
    drawn = clouds(0)
    plain = FewShotClassifier(normalise=False)
    expected = plain.fit(drawn.support, drawn.labels).novelty(drawn.query)
    moved = plain.fit(1000 * drawn.support + 7, drawn.labels).novelty(1000 * drawn.query + 7)
    np.testing.assert_allclose(moved, expected, rtol=1e-6)
    assert 0.5 < np.median(expected) < 1.5


SETS = [(way, shot, rate) for way, shot in [(5, 2), (5, 5), (2, 5), (1, 5), (20, 3)] for rate in (0.01, 0.05, 0.2)]
FAST = [(5, 5, 0.05), (1, 5, 0.2)]


@pytest.mark.parametrize(
    ("n_way", "n_shot", "rate"), [one if one in FAST else pytest.param(*one, marks=pytest.mark.slow) for one in SETS]
)
def test_the_rate_is_kept(n_way: int, n_shot: int, rate: float) -> None:
    """Over many support sets, so many of the known are taken for unknown; of the unknown far more."""
    rejected, found = [], []
    for seed in range(60):
        drawn = clouds(seed, n_way=n_way, n_shot=n_shot)
        model = FewShotClassifier(unknown_rate=rate).fit(drawn.support, drawn.labels)
        rejected.append((model.predict(drawn.query) == "unknown").mean())
        found.append((model.predict(drawn.strangers) == "unknown").mean())
    assert rate / 4 < np.mean(rejected) < 2 * rate
    assert np.mean(found) > 0.75


@given(st.lists(st.floats(0.05, 20), max_size=30), st.floats(0.001, 0.999))
def test_a_threshold_is_what_is_believed_after_one_image_after_another(values: list[float], rate: float) -> None:
    """A normal distribution, learnt image by image, and the more of them lie beyond the quantile, their own order."""
    mean, weight, squares, freedom = 0.95, 1.0, 4 * 0.14**2, 4.0
    roots = [value ** (1 / 3) for value in values]
    for root in roots:
        squares += weight / (weight + 1) * (root - mean) ** 2
        mean += (root - mean) / (weight + 1)
        weight, freedom = weight + 1, freedom + 1
    scale = math.sqrt(squares / freedom * (1 + 1 / weight))
    believed = scipy.stats.t(freedom) if roots else scipy.stats.norm()
    expected = mean + scale * float(believed.isf(rate))
    if roots:
        beyond = len(roots) * rate
        ordered = np.quantile(roots, min(1.0, (len(roots) + 1) * (1 - rate) / len(roots)))
        expected = (expected + beyond * float(ordered)) / (1 + beyond)
    found = choose_threshold(torch.tensor(values, dtype=torch.float64), rate)
    assert found == pytest.approx(max(expected, 0.0) ** 3, rel=1e-6, abs=1e-9)


def test_images_that_are_all_the_same() -> None:
    model = FewShotClassifier(unknown_rate=0.05).fit([[1.0, 0.0]] * 3 + [[0.0, 1.0]] * 3, ["a"] * 3 + ["b"] * 3)
    assert model.predict([[1.0, 0.0], [0.0, 1.0], [-1.0, -1.0]]).tolist() == ["a", "b", "unknown"]
    alike = FewShotClassifier(unknown_rate=0.05).fit([[1.0, 0.0]] * 3, ["a"] * 3)
    assert alike.predict([[1.0, 0.0], [0.0, 1.0]]).tolist() == ["a", "unknown"]


def test_what_unknown_is_called() -> None:
    drawn = clouds(2)
    numbers = np.repeat(np.arange(5), 5)
    with pytest.warns(UserWarning, match="unknown_label=-1"):
        text = FewShotClassifier(unknown_rate=0.1).fit(drawn.support, numbers)
    assert "unknown" in text.predict(drawn.strangers).tolist()
    with pytest.warns(UserWarning, match="unknown_label=.unknown"):
        FewShotClassifier(unknown_rate=0.1, unknown_label=-1).fit(drawn.support, drawn.labels.astype(object))
    whole = FewShotClassifier(unknown_rate=0.1, unknown_label=-1).fit(drawn.support, numbers)
    images, truth = np.concatenate([drawn.query, drawn.strangers]), [*np.repeat(np.arange(5), 15), *[-1] * 75]
    answers = whole.predict(images)
    assert answers.dtype.kind == "i"
    assert whole.score(images, truth) == accuracy_score(truth, answers) > 0.8
    assert text.score(drawn.query, np.repeat(np.arange(5), 15)) > 0.8  # though the answers have a text among them
    longer = FewShotClassifier(unknown_rate=0.1, unknown_label="none of these at all").fit(drawn.support, drawn.labels)
    assert "none of these at all" in longer.predict(drawn.strangers)
