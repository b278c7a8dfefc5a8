"""Strays: labelled images of none of the classes, as one more class of a ridge regression.

All strays together weigh as much as five images, however many there are. The margin of an image is
the highest score of a class minus the score of the strays. It takes the place of the highest score
in the novelty (`nearshot.estimator.novelty`). The classes' own scores do not depend on strays.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from nearshot.estimator.groups import Groups
from nearshot.estimator.leave_one_out import MAX_ROUNDS, leave_one_out_rounds
from nearshot.estimator.ridge import HeldOutRidge, LinearScores
from nearshot.estimator.support import Support
from nearshot.evaluation.classifiers import PENALTY, SMALLEST_PENALTY, RidgeProblem, solve_ridge

WEIGHT_OF_STRAYS = 5.0  # of all strays together, in images
MAX_REFITTED = 500  # images and strays up to which the regression is fitted in each round


@dataclass(frozen=True)
class RejectionEstimate:
    """How often images are rejected, estimated by holding them out; None where that is impossible.

    Attributes:
        own: the share of images of the classes that are rejected.
        strays: the share of strays like the given ones that are rejected.
        n_own: how many images of the classes were held out; images of a group count once.
        n_strays: how many strays were held out.
    """

    own: float | None
    strays: float | None
    n_own: int
    n_strays: int

    def __str__(self) -> str:
        rates = []
        if self.own is not None:
            rates.append(f"{100 * self.own:.0f} % of your photos rejected")
        if self.strays is not None:
            rates.append(f"{100 * self.strays:.0f} % of strays like these")
        if not rates:
            return "nothing can be held out"
        return ", ".join(rates)


class StrayRidge:
    """The ridge regression of a support set and its strays.

    Args:
        support: the labelled images.
        strays: (stray, dim) in the same space.
        weight: of all strays together, in images.
    """

    def __init__(self, support: Support, strays: Tensor, weight: float = WEIGHT_OF_STRAYS) -> None:
        self.support = support
        self.strays = strays
        problem, shares = stray_problem(support, strays, weight)
        self.linear = LinearScores(weights=solve_ridge(problem), mean=problem.mean, shares=shares)

    def margins(self, query: Tensor) -> Tensor:
        """Return how far strays are behind the best class for each query, (query,)."""
        return margins_of(self.linear.scores(query))

    def held_out_margins(self, groups: Groups) -> tuple[Tensor, Tensor]:
        """Return images that can be held out, (image,), and their margins then."""
        support = self.support
        n_images = len(support.codes)
        is_refitted = n_images + len(self.strays) <= MAX_REFITTED
        closed_form = None if is_refitted else HeldOutRidge(*stray_problem(support, self.strays))
        every_stray = torch.arange(n_images, n_images + len(self.strays))
        images = [support.codes[:0]]
        margins = [support.features.new_zeros(0)]
        for kept, tested in leave_one_out_rounds(groups, n_images):
            if len(tested) == 0:
                continue
            images.append(tested)
            if closed_form is None:
                # Classes that lose half of their images would else lose against strays.
                weight = WEIGHT_OF_STRAYS * len(kept) / n_images
                remaining = StrayRidge(support.subset(kept), self.strays, weight)
                margins.append(remaining.margins(support.features[tested]))
            else:
                scores = closed_form.held_out_scores(tested, torch.cat([kept, every_stray]))
                margins.append(margins_of(scores))
        return torch.cat(images), torch.cat(margins)

    def held_out_stray_margins(self) -> Tensor:
        """Return the margin of each stray while it is held out, (stray,); none of a single one.

        One stray is held out at a time, or one of twenty parts.
        """
        n_strays = len(self.strays)
        if n_strays == 1:
            return self.strays.new_zeros(0)
        part = torch.arange(n_strays) % MAX_ROUNDS
        margins = self.strays.new_zeros(n_strays)
        for number in part.unique().tolist():
            is_held_out = part == number
            remaining = StrayRidge(self.support, self.strays[~is_held_out])
            margins[is_held_out] = remaining.margins(self.strays[is_held_out])
        return margins


def margins_of(scores: Tensor) -> Tensor:
    """Return the margins, (query,), for scores (query, class + 1) of which strays are the last."""
    return scores[:, :-1].amax(1) - scores[:, -1]


def stray_problem(
    support: Support, strays: Tensor, weight: float = WEIGHT_OF_STRAYS
) -> tuple[RidgeProblem, Tensor]:
    """Return the regression, images first, and the share of each class of all weight, (class,).

    Strays are the last class.
    """
    n_images = len(support.codes)
    n_classes = support.n_classes
    weight_of_class = n_images / (n_classes * support.counts.to(support.features))
    weights = torch.cat(
        [
            weight_of_class[support.codes],  # 1 on average
            strays.new_full((len(strays),), weight / len(strays)),
        ]
    )
    codes = torch.cat([support.codes, torch.full((len(strays),), n_classes)])
    rows = torch.cat([support.features, strays])
    is_member = (codes[:, None] == torch.arange(n_classes + 1)).to(rows)
    total = weights.sum()
    shares = weights @ is_member / total
    mean = (weights @ rows / total)[None]
    roots = weights.sqrt()[:, None]
    centred = roots * (rows - mean)
    eps = torch.finfo(rows.dtype).eps
    rounding = (4 * eps) ** 2 * rows.square().sum()
    penalty = (PENALTY * centred.square().sum() + rounding) / total
    problem = RidgeProblem(
        mean=mean,
        roots=roots,
        rows=centred,
        targets=roots * (is_member - shares),
        penalty=penalty.clamp(min=SMALLEST_PENALTY)[None, None],
    )
    return problem, shares
