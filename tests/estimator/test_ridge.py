"""Leave-one-out of ridge regression on many images."""

from dataclasses import replace

import pytest
import torch
from tests import reference
from tests.helpers.supports import random_support

from nearshot.estimator import leave_one_out
from nearshot.estimator.groups import Groups
from nearshot.estimator.leave_one_out import (
    MAX_REFITTED,
    held_out_scores,
    leave_one_out_rounds,
)
from nearshot.estimator.ridge import held_out_ridge

N_CLASSES = 4


@pytest.mark.parametrize("dim", [2, 40])
def test_held_out_scores_against_fits_to_the_kept_images(dim: int) -> None:
    """With the weights and the penalty of all images."""
    generator = torch.Generator().manual_seed(0)
    support = random_support([2, 5, 3, 1], 3)
    codes = support.codes
    noise = torch.randn(len(codes), dim, generator=generator, dtype=torch.float64)
    features = noise + codes[:, None]
    ridge = held_out_ridge(replace(support, features=features))
    weights = len(codes) / N_CLASSES / support.counts.double()[codes]
    means = [features[codes == code].mean(0) for code in range(N_CLASSES)]
    squares = (features - torch.stack(means).mean(0)).square().sum(1)
    penalty = float((weights * squares).mean())
    n_tested = 0
    for kept, tested in leave_one_out_rounds(Groups.singles(codes, N_CLASSES)):
        scores = ridge.held_out_scores(tested, kept)
        kept_by_class = [kept[codes[kept] == code] for code in range(N_CLASSES)]
        for row, image in enumerate(tested):
            expected = reference.ridge_scores(
                [features[images] for images in kept_by_class],
                features[image],
                weights=weights[torch.cat(kept_by_class)].tolist(),
                penalty=penalty,
            )
            torch.testing.assert_close(
                scores[row], torch.tensor(expected, dtype=torch.float64), atol=1e-9, rtol=0
            )
            n_tested += 1
    assert n_tested == 10


# Fits weigh the kept images anew, where classes lose shares of their images that are more than five
# points apart. Otherwise weights and the penalty are about those of the fit.
@pytest.mark.parametrize(
    ("sizes", "tolerance"),
    [
        ([2, 3, 60, 100], 1e-9),
        ([1, 30, 100], 1e-9),
        ([9, 200], 1e-9),
        ([45, 45, 45], 5e-3),
        ([10, 40, 100], 0.02),
    ],
)
@pytest.mark.parametrize("dim", [5, 300])
def test_many_images_are_scored_as_if_refitted_in_each_round(
    sizes: list[int], tolerance: float, dim: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    support = random_support(sizes, 1, dim=dim)
    assert len(support.codes) > MAX_REFITTED
    held_out = held_out_scores(support, "ridge")
    monkeypatch.setattr(leave_one_out, "MAX_REFITTED", len(support.codes))
    refitted = held_out_scores(support, "ridge")
    assert held_out.images.tolist() == refitted.images.tolist()
    difference = float((held_out.scores - refitted.scores).abs().max())
    assert difference <= tolerance * float(refitted.scores.abs().max())
