"""Leave-one-out on a support set: scores of held-out images, and the accuracy to expect.

If only one image were held out at a time, its class would have one image fewer than the others.
With two images per class, that alone costs many answers. So one image of every class is held out at
a time.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import scipy.stats
import torch
from torch import Tensor

from nearshot.errors import InputError
from nearshot.estimator.calibration import typical_temperature
from nearshot.estimator.head import class_scores, find_classifier, fit_head
from nearshot.estimator.ridge import HeldOutRidge
from nearshot.estimator.support import Support
from nearshot.evaluation.classifiers import RIDGE, first_best
from nearshot.text import counted

MAX_ROUNDS = 20  # larger classes are held out in twenty parts
MAX_TESTED = 1000  # images in all rounds, of classifiers other than ridge
MAX_REFITTED = 128  # support images of "ridge" up to which it is fitted in each round
# With n images per class, errors are about n to the minus this power: it corrects for the held-out
# image. Held-out images share one support set, so they say as much as this share of independent
# ones. Both are chosen in `benchmarks/honesty.py`.
ERROR_EXPONENT = 0.35
INDEPENDENT_SHARE = 0.7
FEW_IMAGES = 20  # held out: with fewer, the interval is about 40 points wide or wider


class Round(NamedTuple):
    """The indices of the images that stay in the support set, and of those that are tested."""

    kept: Tensor
    tested: Tensor


@dataclass(frozen=True, eq=False)
class HeldOutScores:
    """The scores that support images get while they are held out.

    Attributes:
        scores: (image, class) divided by the typical temperature of the remaining images.
        codes: (image,) the classes of the images.
        images: (image,) the indices of the images in the support set.
        rounds: (image,) the number of the round in which each was held out.
        n_known: (image,) how many images of its class remained.
    """

    scores: Tensor
    codes: Tensor
    images: Tensor
    rounds: Tensor
    n_known: Tensor


def leave_one_out_rounds(support: Support, max_tested: int = MAX_TESTED) -> Iterator[Round]:
    """Yield rounds that hold out one image of every class, or one of its twenty parts.

    The only image of a class is always kept, and never tested. A class with fewer images than
    others has no image left to test in later rounds, but still gives up one image, in turn. At most
    `max_tested` images are tested, spread evenly over the classes.
    """
    counts = support.counts
    if int(counts.max()) < 2:
        return
    by_class = support.by_class
    first_of_class = counts.cumsum(0) - counts  # (class,) in that order
    position = torch.empty_like(by_class)  # of an image in its class
    position[by_class] = torch.arange(len(by_class)) - first_of_class[support.codes[by_class]]
    class_size = counts[support.codes]  # (image,)
    is_removable = class_size > 1
    is_chosen = _spread_over_classes(by_class[is_removable[by_class]], max_tested, len(by_class))
    n_rounds = min(int(counts.max()), MAX_ROUNDS)
    for number in range(n_rounds):
        is_tested = (position % n_rounds == number) & is_removable
        is_given_up = (position == number % class_size) & (number >= class_size) & is_removable
        kept = (~(is_tested | is_given_up)).nonzero()[:, 0]
        tested = (is_tested & is_chosen).nonzero()[:, 0]
        yield Round(kept, tested)


def _spread_over_classes(images: Tensor, max_chosen: int, n_images: int) -> Tensor:
    """Return a mask, (image,), of images chosen evenly from a list that goes class by class."""
    n_chosen = min(len(images), max_chosen)
    is_chosen = torch.zeros(n_images, dtype=torch.bool)
    is_chosen[images[torch.arange(n_chosen) * len(images) // n_chosen]] = True
    return is_chosen


def held_out_scores(
    support: Support, classifier: str, n_neighbors: int | None = None
) -> HeldOutScores:
    """Hold images out, round by round, and score the classes for them with the remaining images."""
    ridge = None
    max_tested = MAX_TESTED
    if find_classifier(classifier) is RIDGE and len(support.codes) > MAX_REFITTED:
        ridge = HeldOutRidge(support)
        max_tested = len(support.codes)
    scores = [support.features.new_zeros(0, support.n_classes)]
    images = [support.codes[:0]]
    rounds = [support.codes[:0]]
    n_known = [support.counts[:0]]
    for number, (kept, tested) in enumerate(leave_one_out_rounds(support, max_tested)):
        if len(tested) == 0:
            continue
        remaining = support.subset(kept)
        if ridge is None:
            head = fit_head(classifier, remaining, n_neighbors)
            scores_of_tested = class_scores(support.features[tested], remaining, head)
        else:
            scores_of_tested = ridge.held_out_scores(tested, kept)
        scores.append(scores_of_tested / typical_temperature(remaining, classifier, n_neighbors))
        images.append(tested)
        rounds.append(torch.full_like(tested, number))
        n_known.append(remaining.counts[support.codes[tested]])
    all_images = torch.cat(images)
    return HeldOutScores(
        scores=torch.cat(scores),
        codes=support.codes[all_images],
        images=all_images,
        rounds=torch.cat(rounds),
        n_known=torch.cat(n_known),
    )


@dataclass(frozen=True)
class AccuracyEstimate:
    """An expected accuracy with a 95 % interval, as fractions of 1.

    It is the share of held-out images that were recognised, corrected for the missing image: the
    tested classifier has one image fewer per class (a twentieth of a class with more than 20). It
    holds for new images like these, equally often of each class with at least two images. Near
    copies of an image, such as a burst of photos, make it too high.

    Attributes:
        mean: the expected accuracy with all labelled images.
        recognised: the fraction of held-out images that were recognised.
        interval: (low, high); it holds the accuracy on many new images in more than 90 of 100
            support sets (`benchmarks/honesty.py`).
        n: the number of held-out images.
        n_known: the number of images of a class while its own was held out, in the smallest class
            that was tested.
        method: a description, with the number of classes that could not be tested.
    """

    mean: float
    recognised: float
    interval: tuple[float, float]
    n: int
    n_known: int
    method: str

    @property
    def has_few_images(self) -> bool:
        """Whether so few images were held out that the estimate says little."""
        return self.n < FEW_IMAGES

    def __str__(self) -> str:
        low, high = self.interval
        interval = f"95 % interval {100 * low:.0f} to {100 * high:.0f} %; {self.method}"
        if self.has_few_images:
            return f"{100 * self.mean:.0f} % (too few labels to tell: {interval})"
        return f"{100 * self.mean:.0f} % ({interval})"


def estimate_accuracy(held_out: HeldOutScores, counts: Tensor) -> AccuracyEstimate:
    """Return the estimate from the scores of held-out images and the sizes of all classes."""
    n_tested = len(held_out.codes)
    if len(counts) == 1 or n_tested == 0:
        classes = counted(len(counts), "class", "classes")
        largest = counted(int(counts.max()), "image")
        raise InputError(
            "An accuracy estimate needs at least 2 classes, and at least 2 images in one of them "
            f"(got {classes} of up to {largest}). Add images."
        )
    n_right = int((first_best(held_out.scores) == held_out.codes).sum())
    recognised = n_right / n_tested
    share_known = held_out.n_known / counts[held_out.codes]
    remaining_errors = float(share_known.pow(ERROR_EXPONENT).mean())
    low, high = _binomial_interval(n_right * INDEPENDENT_SHARE, n_tested * INDEPENDENT_SHARE)
    return AccuracyEstimate(
        mean=1 - (1 - recognised) * remaining_errors,
        recognised=recognised,
        interval=(1 - (1 - low) * remaining_errors, 1 - (1 - high) * remaining_errors),
        n=n_tested,
        n_known=int(held_out.n_known.min()),
        method=_describe_method(n_tested, counts),
    )


def _binomial_interval(n_right: float, n: float) -> tuple[float, float]:
    """Return Clopper and Pearson's 95 % interval of a proportion; the numbers may be fractions."""
    low = 0.0
    high = 1.0
    if n_right > 0:
        low = float(scipy.stats.beta.ppf(0.025, n_right, n - n_right + 1))
    if n_right < n:
        high = float(scipy.stats.beta.ppf(0.975, n_right + 1, n - n_right))
    return low, high


def _describe_method(n_tested: int, counts: Tensor) -> str:
    """Return which images were held out, and which classes could not be tested."""
    n_removable = int(counts[counts > 1].sum())
    n_single = int((counts == 1).sum())
    method = f"{n_tested:,} images held out"
    if n_tested < n_removable:
        method = f"{n_tested:,} of {n_removable:,} images held out"
    if int(counts.max()) > MAX_ROUNDS:
        method += f" in {MAX_ROUNDS} parts"
    if n_single > 0:
        method += f"; not tested: {counted(n_single, 'class', 'classes')} with a single image"
    return method
