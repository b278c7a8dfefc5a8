"""Leave-one-out on a support set: calibrated probabilities, and the accuracy to expect, from held-out images.

If only one image were held out at a time, its class would have one image fewer than the others.
With two images per class, that alone costs many answers. So one image of every class is held out at
a time.

Probabilities are the softmax of scores divided by the temperature that maximises the likelihood of
held-out images. A few images say little: if all are recognised, the likelihood alone would choose
zero. A log-normal prior therefore keeps it near a typical value, a fraction of the mean squared
distance between classes. Images are held out of a smaller support set, so they choose the ratio to
the typical temperature. `benchmarks/estimator.py` measures it.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import scipy.optimize
import scipy.stats
import torch
from torch import Tensor

from nearshot.errors import InputError
from nearshot.estimator.support import Support, class_scores, classifier_of, fit_head
from nearshot.evaluation.classifiers import RIDGE, first_best, ridge_problem
from nearshot.text import counted

MAX_ROUNDS = 20  # larger classes are held out in twenty parts
MAX_TESTED = 1000  # images in all rounds, of classifiers other than ridge
MAX_REFITTED = 128  # support images of "ridge" up to which it is fitted in each round
TYPICAL = (
    0.055  # of the mean squared distance between classes, times 1 + 1/n for n images per class
)
TYPICAL_VOTES = 0.35  # of the square root of the number of voters, for "knn"
TYPICAL_RIDGE = 0.06  # for "ridge", whose scores are about 1 for the right class and 0 for others
PRIOR_WIDTH = (
    0.7  # standard deviation of the temperature's logarithm: most are within a factor of 4
)
SEARCH_WIDTH = 8.0  # in logarithms


class HeldOut(NamedTuple):
    """The scores of held-out images."""

    scores: Tensor  # (image, class) divided by the typical temperature of the remaining images
    codes: Tensor  # (image,) their classes
    n_known: (
        int  # the number of remaining images in the smallest class that was tested; 0 if none was
    )
    images: Tensor  # (image,) their indices in the support set


def rounds(support: Support, most: int = MAX_TESTED) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the indices of kept and tested images, round by round: of each class one image, or one part of twenty.

    The only image of a class is always kept, and never tested. A class with fewer images than
    others has no image left to test in later rounds, but still gives up one image, in turn. At most
    `most` images are tested, spread evenly over the classes.
    """
    counts = support.counts
    if int(counts.max()) < 2:
        return
    order = support.codes.argsort(stable=True)
    position = torch.empty_like(order)  # of an image in its class
    position[order] = torch.arange(len(order)) - (counts.cumsum(0) - counts)[support.codes[order]]
    count = counts[support.codes]
    chosen = torch.zeros_like(count, dtype=torch.bool)
    possible = order[(count > 1)[order]]  # class by class
    n_chosen = min(len(possible), most)
    chosen[possible[torch.arange(n_chosen) * len(possible) // n_chosen]] = True
    n_rounds = min(int(counts.max()), MAX_ROUNDS)
    for number in range(n_rounds):
        tested = (position % n_rounds == number) & (count > 1)
        given_up = (position == number % count) & (number >= count) & (count > 1)
        yield (~(tested | given_up)).nonzero()[:, 0], (tested & chosen).nonzero()[:, 0]


def held_out_scores(support: Support, classifier: str, n_neighbors: int | None = None) -> HeldOut:
    """Hold images out, round by round, and score the classes for them with the remaining images."""
    scores, images, n_known = (
        [support.features.new_zeros(0, support.n_classes)],
        [support.codes[:0]],
        [],
    )
    is_ridge = classifier_of(classifier) is RIDGE
    ridge = SolvedRidge(support) if is_ridge and len(support.codes) > MAX_REFITTED else None
    for kept, tested in rounds(support, MAX_TESTED if ridge is None else len(support.codes)):
        if not len(tested):
            continue
        known, truth = support.subset(kept), support.codes[tested]
        typical = typical_temperature(known, classifier, n_neighbors)
        if ridge is None:
            own = class_scores(
                support.features[tested], known, fit_head(classifier, known, n_neighbors)
            )
        else:
            own = ridge.held_out_scores(tested, kept)
        scores.append(own / typical)
        images.append(tested)
        n_known.append(int(known.counts[truth].min()))
    in_order = torch.cat(images)
    return HeldOut(torch.cat(scores), support.codes[in_order], min(n_known, default=0), in_order)


class SolvedRidge:
    """A ridge regression on a support set that scores held-out images without another fit.

    If H times the targets is the prediction, then the errors of images B that are held out are (I −
    H_BB)⁻¹ times their errors while they were known. The weights of the images and the penalty
    remain those of the whole support set.
    """

    def __init__(self, support: Support) -> None:
        order = support.codes.argsort(stable=True)
        problem, place = ridge_problem(support.features[order], support.counts), order.argsort()
        self.roots, rows, self.targets = (
            problem.roots[place],
            problem.rows[place],
            problem.targets[place],
        )
        self.few, penalty = rows.shape[0] <= rows.shape[1], problem.penalty
        gram = rows @ rows.T if self.few else rows.T @ rows
        factor = torch.linalg.cholesky(gram + penalty * torch.eye(len(gram)).to(gram))
        if self.few:  # I − H, but for the mean of the targets, is the penalty times the inverse
            self.known = penalty * torch.cholesky_inverse(factor)
            self.errors = self.known @ self.targets
        else:  # H, but for the mean, is the square of this
            self.known = torch.linalg.solve_triangular(factor, rows.T, upper=False).T
            self.errors = self.targets - self.known @ (self.known.T @ self.targets)

    def held_out_scores(self, tested: Tensor, kept: Tensor) -> Tensor:
        """Return the scores of tested images, (image, class), by the kept images."""
        out = (
            torch.ones(len(self.roots), dtype=torch.bool)
            .index_fill_(0, kept, False)
            .nonzero()[:, 0]
        )
        known = self.known[out]
        rest = known[:, out] if self.few else torch.eye(len(out)).to(known) - known @ known.T
        mean = self.roots[out] / self.roots.norm()
        errors = torch.linalg.solve(rest - mean @ mean.T, self.errors[out])[
            torch.searchsorted(out, tested)
        ]
        scores: Tensor = (self.targets[tested] - errors) / self.roots[
            tested
        ] + 1 / self.targets.shape[1]
        return scores


def typical_temperature(support: Support, classifier: str, n_neighbors: int | None = None) -> float:
    """Return the temperature to expect before any image is held out.

    The error of a score comes from the spread of an image and that of a mean of n images, so it
    scales with 1 + 1/n. Scores of ridge regression have a scale of their own, whatever the number
    of images. Those of other classifiers than "knn" are taken to be on the scale of squared
    distances.
    """
    if classifier_of(classifier) is RIDGE:
        return TYPICAL_RIDGE
    if classifier == "knn":
        return TYPICAL_VOTES * math.sqrt(support.n_voters(n_neighbors))
    return TYPICAL * float(1 + (1 / support.counts.double()).mean()) * (support.between or 1.0)


def choose_temperature(scores: Tensor, codes: Tensor) -> float:
    """Return the most probable temperature for `HeldOut` scores and codes, as a multiple of the typical one."""
    if len(codes) == 0:
        return 1.0
    scores = scores - scores.amax(1, keepdim=True)

    def loss(log_ratio: float) -> float:
        logs = (scores / math.exp(log_ratio)).log_softmax(1)
        likelihood = float(logs[torch.arange(len(codes)), codes].sum())
        return (log_ratio / PRIOR_WIDTH) ** 2 / 2 - likelihood

    found = scipy.optimize.minimize_scalar(
        loss, bounds=(-SEARCH_WIDTH, SEARCH_WIDTH), method="bounded"
    )
    return math.exp(float(found.x))


@dataclass(frozen=True)
class AccuracyEstimate:
    """An expected accuracy with a 95 % interval, as fractions of 1.

    The tested classifier has one image fewer per class (a twentieth of a class with more than 20),
    so the estimate is slightly low, most of all with two images per class. It holds for new images
    like these, equally often of each class with at least two images. Near copies of an image, such
    as a burst of photos, make it too high.

    Attributes:
        mean: the fraction of held-out images that were recognised.
        interval: (low, high), exact for a binomial proportion (Clopper and Pearson).
        n: the number of held-out images.
        n_known: the number of images of a class while its own was held out, in the smallest class
            that was tested.
        method: a description, with the number of classes that could not be tested.
    """

    mean: float
    interval: tuple[float, float]
    n: int
    n_known: int
    method: str

    def __str__(self) -> str:
        low, high = self.interval
        return f"{100 * self.mean:.0f} % (95 % interval {100 * low:.0f} to {100 * high:.0f} %; {self.method})"


def estimate_from(held_out: HeldOut, counts: Tensor) -> AccuracyEstimate:
    """Return the estimate from the scores of held-out images and the sizes of all classes."""
    n = len(held_out.codes)
    if len(counts) == 1 or n == 0:
        raise InputError(
            "An accuracy estimate needs at least 2 classes, and at least 2 images in one of them (got "
            f"{counted(len(counts), 'class', 'classes')} of up to {counted(int(counts.max()), 'image')}). Add images."
        )
    n_right = int((first_best(held_out.scores) == held_out.codes).sum())
    interval = scipy.stats.binomtest(n_right, n).proportion_ci(0.95, method="exact")
    n_possible, n_alone = int(counts[counts > 1].sum()), int((counts == 1).sum())
    method = f"{n:,} {f'of {n_possible:,} ' if n < n_possible else ''}images held out"
    method += f" in {MAX_ROUNDS} parts" if int(counts.max()) > MAX_ROUNDS else ""
    method += (
        f"; not tested: {counted(n_alone, 'class', 'classes')} with a single image"
        if n_alone
        else ""
    )
    return AccuracyEstimate(
        n_right / n, (float(interval.low), float(interval.high)), n, held_out.n_known, method
    )
