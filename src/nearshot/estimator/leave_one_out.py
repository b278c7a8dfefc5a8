"""Leave-one-out on a support set: scores of held-out images, and the accuracy to expect.

If only one image were held out at a time, its class would have one image fewer than the others.
With two images per class, that alone costs many answers. So one image of every class is held out at
a time. Images that show the same thing are one group, and are held out together: one group of every
class at a time. The images of a group in a class share one vote.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import scipy.stats
import torch
from torch import Tensor

from nearshot.errors import InputError
from nearshot.estimator.calibration import TYPICAL_RIDGE, typical_temperature
from nearshot.estimator.groups import Groups, notes_on_copies
from nearshot.estimator.head import class_scores, find_classifier, fit_head
from nearshot.estimator.ridge import HeldOutRidge, ReweightedRidge, held_out_ridge
from nearshot.estimator.support import Support
from nearshot.evaluation.classifiers import RIDGE, first_best
from nearshot.text import counted, upper_first

MAX_ROUNDS = 20  # larger classes are held out in twenty parts
MAX_TESTED = 1000  # images in all rounds, of classifiers other than ridge
# A class that loses so much more of its images than another one still counts about as much.
EVEN_SHARES = 0.05
MAX_REFITTED = 128  # support images of "ridge" up to which it is fitted in each round
# With n images per class, the ratio of what is recognised beyond chance to errors is about n to
# this power: it corrects for the held-out image. Held-out images share one support set, so they say
# as much as this share of independent ones. `benchmarks/honesty.py` measures what becomes of both.
GAIN_EXPONENT = 0.9
INDEPENDENT_SHARE = 0.7
# Held out: with fewer, the interval is over 40 points wide where four of five are recognised.
FEW_IMAGES = 20


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
        n_known: (image,) how many groups of its class remained.
        votes: (image,) how much each counts: 1, shared with the tested images of its part.
    """

    scores: Tensor
    codes: Tensor
    images: Tensor
    rounds: Tensor
    n_known: Tensor
    votes: Tensor

    def only(self, is_kept: Tensor, groups: Groups) -> "HeldOutScores":
        """Return the scores of some images, given by a mask (image,) of the support set."""
        rows = is_kept[self.images]
        images = self.images[rows]
        return HeldOutScores(
            scores=self.scores[rows],
            codes=self.codes[rows],
            images=images,
            rounds=self.rounds[rows],
            n_known=self.n_known[rows],
            votes=groups.votes(images),
        )


def leave_one_out_rounds(groups: Groups, max_tested: int = MAX_TESTED) -> Iterator[Round]:
    """Yield rounds that hold out one group of every class, or one of its twenty parts.

    The only group of a class is always kept, and never tested. A class with fewer groups than
    others has no group left to test in later rounds, but still gives up one group, in turn. A group
    that spans classes is held out in all of them in one round. At most `max_tested` images are
    tested, spread evenly over the classes.
    """
    round_of_group = _assign_rounds(groups)
    is_removable = round_of_group[groups.numbers] >= 0  # (image,)
    by_class = groups.codes.argsort(stable=True)
    is_chosen = _spread_over_classes(by_class[is_removable[by_class]], max_tested, len(by_class))
    position = _position_in_class(groups)  # (part,)
    for number in range(int(round_of_group.max()) + 1):
        is_tested = round_of_group == number  # (group,)
        is_tested_part = is_tested[groups.group_of_part]
        n_tested = torch.bincount(
            groups.class_of_part[is_tested_part], minlength=groups.n_classes
        )  # (class,)
        gives_up = (n_tested == 0) & (groups.counts > 1)
        in_turn = number % groups.counts  # (class,)
        is_given_up = gives_up[groups.class_of_part]
        is_given_up = is_given_up & (position == in_turn[groups.class_of_part])
        is_held_out = (is_tested_part | is_given_up)[groups.parts]
        kept = (~is_held_out).nonzero()[:, 0]
        tested = (is_tested[groups.numbers] & is_chosen).nonzero()[:, 0]
        yield Round(kept, tested)


def _are_even(groups: Groups) -> bool:
    """Return whether classes lose about equal shares of their images in a round."""
    n_rounds = min(int(groups.counts.max()), MAX_ROUNDS)
    most_lost = (groups.counts / n_rounds).ceil()
    shares = (most_lost / groups.counts).masked_fill(groups.counts == 1, 0)
    return groups.are_single and float(shares.max() - shares.min()) <= EVEN_SHARES


def _position_in_class(groups: Groups) -> Tensor:
    """Return the position of each part among those of its class, (part,)."""
    firsts = groups.counts.cumsum(0) - groups.counts
    return torch.arange(len(groups.class_of_part)) - firsts[groups.class_of_part]


def _assign_rounds(groups: Groups) -> Tensor:
    """Return the round in which each group is tested, (group,); -1 where it never is.

    A group cannot be tested if a class would have no image left.
    """
    n_groups = int(groups.numbers.max()) + 1
    is_alone = groups.counts[groups.class_of_part] == 1  # (part,)
    n_rounds = min(int(groups.counts.max()), MAX_ROUNDS)
    rounds = torch.full((n_groups,), -1)
    if len(groups.part_sizes) == n_groups:  # no group spans classes
        rounds[groups.group_of_part] = _position_in_class(groups) % n_rounds
        rounds[groups.group_of_part[is_alone]] = -1
        return rounds
    classes: list[list[int]] = [[] for _ in range(n_groups)]
    is_removable = [True] * n_groups
    for part, group in enumerate(groups.group_of_part.tolist()):
        classes[group].append(int(groups.class_of_part[part]))
        is_removable[group] = is_removable[group] and not bool(is_alone[part])
    # (round, class): how many groups of the class are tested in the round.
    loads = torch.zeros(n_rounds, groups.n_classes, dtype=torch.int64)
    most_classes_first = sorted(range(n_groups), key=lambda group: -len(classes[group]))
    for group in most_classes_first:
        if not is_removable[group]:
            continue
        number = _least_loaded_round(loads[:, classes[group]], groups.counts[classes[group]])
        if number == len(loads):
            loads = torch.cat([loads, loads.new_zeros(1, groups.n_classes)])
        loads[number, classes[group]] += 1
        rounds[group] = number
    return rounds


def _least_loaded_round(loads: Tensor, counts: Tensor) -> int:
    """Return the round for a group, given the loads (round, class) and the counts of its classes.

    It is the first round in which nothing is tested of its classes, or a new one. If there are
    enough rounds, it is the one with the least load that leaves each class a group.
    """
    n_rounds = len(loads)
    leaves_a_group = (loads + 1 < counts).all(1)
    highest = loads.amax(1).masked_fill(~leaves_a_group, int(counts.max()))
    number = int(highest.argmin())
    if not leaves_a_group[number] or (highest[number] > 0 and n_rounds < MAX_ROUNDS):
        return n_rounds
    return number


def _spread_over_classes(images: Tensor, max_chosen: int, n_images: int) -> Tensor:
    """Return a mask, (image,), of images chosen evenly from a list that goes class by class."""
    n_chosen = min(len(images), max_chosen)
    is_chosen = torch.zeros(n_images, dtype=torch.bool)
    is_chosen[images[torch.arange(n_chosen) * len(images) // n_chosen]] = True
    return is_chosen


def held_out_scores(
    support: Support,
    classifier: str,
    n_neighbors: int | None = None,
    groups: Groups | None = None,
) -> HeldOutScores:
    """Hold images out, round by round, and score the classes for them with the remaining images.

    `groups` are held out together; by default each image is one.
    """
    if groups is None:
        groups = Groups.singles(support.codes, support.n_classes)
    ridge: HeldOutRidge | ReweightedRidge | None = None
    max_tested = MAX_TESTED
    if find_classifier(classifier) is RIDGE and len(support.codes) > MAX_REFITTED:
        ridge = held_out_ridge(support) if _are_even(groups) else ReweightedRidge(support)
        max_tested = len(support.codes)
    scores = [support.features.new_zeros(0, support.n_classes)]
    images = [support.codes[:0]]
    rounds = [support.codes[:0]]
    n_known = [support.counts[:0]]
    for number, (kept, tested) in enumerate(leave_one_out_rounds(groups, max_tested)):
        if len(tested) == 0:
            continue
        if ridge is None:
            remaining = support.subset(kept)
            head = fit_head(classifier, remaining, n_neighbors)
            typical = typical_temperature(remaining, classifier, n_neighbors)
            scores.append(class_scores(support.features[tested], remaining, head) / typical)
        else:
            scores.append(ridge.held_out_scores(tested, kept) / TYPICAL_RIDGE)
        images.append(tested)
        rounds.append(torch.full_like(tested, number))
        kept_parts = groups.parts[kept].unique()
        n_kept = torch.bincount(groups.class_of_part[kept_parts], minlength=groups.n_classes)
        n_known.append(n_kept[support.codes[tested]])
    all_images = torch.cat(images)
    return HeldOutScores(
        scores=torch.cat(scores),
        codes=support.codes[all_images],
        images=all_images,
        rounds=torch.cat(rounds),
        n_known=torch.cat(n_known),
        votes=groups.votes(all_images),
    )


@dataclass(frozen=True)
class AccuracyEstimate:
    """An expected accuracy with a 95 % interval, as fractions of 1.

    It is the share of held-out images that were recognised, corrected for the missing image: the
    tested classifier has one image fewer per class (a twentieth of a class with more than 20). It
    holds for new images like these, equally often of each class with at least two images. The
    images of a group show the same thing: they are held out together and share one vote.

    Attributes:
        mean: the expected accuracy with all labelled images.
        recognised: the fraction of held-out images that were recognised.
        interval: (low, high); it holds the accuracy on many new images in more than 90 of 100
            support sets (`benchmarks/honesty.py`).
        n: the number of held-out images; of images in groups, the number of groups.
        n_known: the number of images, or groups, of a class while its own was held out, in the
            smallest class that was tested.
        method: a description, with the number of classes that could not be tested.
        n_images: the number of labelled images.
        n_copies: how many of them look like another one of their class that counts.
        look_alike_classes: the classes that cannot be tested, since all their images are one group.
    """

    mean: float
    recognised: float
    interval: tuple[float, float]
    n: int
    n_known: int
    method: str
    n_images: int
    n_copies: int = 0
    look_alike_classes: tuple[Any, ...] = ()

    @property
    def notes(self) -> tuple[str, ...]:
        """What people should know about images that look alike."""
        return notes_on_copies(self.n_copies, self.n_images, self.look_alike_classes)

    @property
    def has_few_images(self) -> bool:
        """Whether so few images were held out that the estimate says little."""
        return self.n < FEW_IMAGES

    def __str__(self) -> str:
        low, high = self.interval
        interval = f"95 % interval {100 * low:.0f} to {100 * high:.0f} %; {self.method}"
        interval = "; ".join([interval, *self.notes])
        if self.has_few_images:
            return f"{100 * self.mean:.0f} % (too few labels to tell: {interval})"
        return f"{100 * self.mean:.0f} % ({interval})"


def estimate_accuracy(
    held_out: HeldOutScores, groups: Groups, classes: Sequence[Any]
) -> AccuracyEstimate:
    """Return the estimate from the scores of held-out images.

    `groups` are those of all labelled images, and `classes` the names of the classes.
    """
    n_images_of_class = torch.bincount(groups.codes, minlength=groups.n_classes)
    if len(classes) == 1 or len(held_out.codes) == 0:
        number_of_classes = counted(len(classes), "class", "classes")
        largest = counted(int(n_images_of_class.max()), "image")
        message = (
            "An accuracy estimate needs at least 2 classes, and at least 2 images in one of them "
            f"(got {number_of_classes} of up to {largest}). Add images."
        )
        for note in groups.notes(classes):
            message += f" {upper_first(note)}."
        raise InputError(message)
    votes = held_out.votes
    n_tested = round(float(votes.sum()))
    is_right = first_best(held_out.scores) == held_out.codes
    n_right = float(votes[is_right].sum())
    recognised = n_right / n_tested
    share_known = held_out.n_known / groups.counts[held_out.codes]
    gains = votes.to(share_known) * share_known.pow(-GAIN_EXPONENT)
    gain = float(gains.sum() / n_tested)
    chance = 1 / len(classes)
    low, high = _binomial_interval(n_right * INDEPENDENT_SHARE, n_tested * INDEPENDENT_SHARE)
    return AccuracyEstimate(
        mean=_with_all_images(recognised, chance, gain),
        recognised=recognised,
        interval=(_with_all_images(low, chance, gain), _with_all_images(high, chance, gain)),
        n=n_tested,
        n_known=int(held_out.n_known.min()),
        method=_describe_method(n_tested, groups, n_images_of_class),
        n_images=len(groups.codes),
        n_copies=groups.n_copies,
        look_alike_classes=tuple(classes[code] for code in groups.look_alike_classes.tolist()),
    )


def _with_all_images(recognised: float, chance: float, gain: float) -> float:
    """Return the accuracy with all images, for the fraction that is recognised without some.

    The ratio of what is recognised beyond chance to errors grows by the factor `gain`. Where
    nothing beyond chance is recognised, more images do not help.
    """
    errors = 1 - recognised
    beyond_chance = recognised - chance
    if beyond_chance <= 0:
        return recognised
    return 1 - (1 - chance) * errors / (errors + beyond_chance * gain)


def _binomial_interval(n_right: float, n: float) -> tuple[float, float]:
    """Return Clopper and Pearson's 95 % interval of a proportion; the numbers may be fractions."""
    low = 0.0
    high = 1.0
    if n_right > 0:
        low = float(scipy.stats.beta.ppf(0.025, n_right, n - n_right + 1))
    if n_right < n:
        high = float(scipy.stats.beta.ppf(0.975, n_right + 1, n - n_right))
    return low, high


def _describe_method(n_tested: int, groups: Groups, n_images_of_class: Tensor) -> str:
    """Return which images were held out, and which classes could not be tested."""
    n_removable = int(groups.counts[groups.counts > 1].sum())
    n_single = int((n_images_of_class == 1).sum())
    images = "images" if groups.are_single else "groups of images"
    method = f"{n_tested:,} {images} held out"
    if n_tested < n_removable:
        method = f"{n_tested:,} of {n_removable:,} {images} held out"
    if int(groups.counts.max()) > MAX_ROUNDS:
        method += f" in {MAX_ROUNDS} parts"
    if n_single > 0:
        method += f"; not tested: {counted(n_single, 'class', 'classes')} with a single image"
    return method
