"""A mixture of ridge regressions: held-out images decide which features of a network count.

A backbone offers several feature sets of one forward pass. A candidate is a ridge regression on
some of them: its kernel is the mean of theirs. The first candidate is the plain one.

Each set x of an image is prepared as z = unit(unit(x) − mean of unit(x) over the support). A ridge
regression has an unpenalised intercept, so the mean of z need not be subtracted. With M candidates:

    π[m,T]   the posterior of the temperature T of candidate m, by its held-out scores
             (`nearshot.estimator.calibration`)
    L[m,i]   = Σ_T π[m,T] softmax(held-out scores of m for image i / T)[class of i]
    w        from 50 steps of expectation maximisation, with a prior a of 1 image on the plain
             candidate: r[m,i] = w[m] L[m,i] / Σ_m w[m] L[m,i];  w = (Σ_i r[.,i] + a) / (n + Σ a)
    answer   P = Σ_m w[m] Σ_T π[m,T] softmax(scores of m / T)

This is stacking of predictive distributions (Yao et al. 2018, doi:10.1214/17-BA1091) with a
Dirichlet prior. An image's vote, which it shares with images of its group, takes the place of 1 in
the sums over images. Images are held out as in `nearshot.estimator.leave_one_out`; classes with a
single image do not vote.

The expected accuracy needs held-out answers that had no part in π and w: those of a round come from
the π and w of all other rounds.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

from nearshot.estimator.calibration import (
    TYPICAL_RIDGE,
    Temperatures,
    class_probabilities,
    temperature_likelihoods,
    temperature_posterior,
)
from nearshot.estimator.feature_sets import FeatureSets
from nearshot.estimator.groups import Groups
from nearshot.estimator.leave_one_out import HeldOutScores, held_out_scores
from nearshot.estimator.ridge import LinearScores, fit_ridge
from nearshot.estimator.support import Support

MAX_STACKED = 4000  # labelled images; with more, the plain candidate answers alone
PRIOR_OF_PLAIN = 1.0  # in images
EM_STEPS = 50
NEGLIGIBLE = 0.01  # the weight below which a candidate is left out
LEAST_LENGTH = 1e-9
JITTER = 1e-12  # of a kernel's mean diagonal, so that it has a root


@dataclass(frozen=True)
class Mixture:
    """The candidates that answer, and how much each counts.

    Attributes:
        candidates: indices into `FeatureSets.candidates`.
        weights: of the candidates; they add up to 1.
        temperatures: of the candidates' scores.
    """

    candidates: tuple[int, ...]
    weights: tuple[float, ...]
    temperatures: tuple[Temperatures, ...]


def split_sets(feature_sets: FeatureSets, features: Tensor) -> tuple[Tensor, ...]:
    """Return each set, (image, dim of the set), of all sets side by side, (image, dim)."""
    dims = [feature_set.stop - feature_set.start for feature_set in feature_sets.sets]
    of_sets: tuple[Tensor, ...] = features.split(dims, dim=1)
    return of_sets


def plain_features(feature_sets: FeatureSets, features: Tensor) -> Tensor:
    """Return the plain features, (image, dim), of all sets side by side."""
    of_sets = split_sets(feature_sets, features)
    positions = [feature_sets.sets.index(feature_set) for feature_set in feature_sets.plain]
    if len(positions) == 1:
        of_set: Tensor = of_sets[positions[0]].contiguous()
        return of_set
    plain: Tensor = torch.cat([of_sets[position] for position in positions], dim=1)
    return plain / math.sqrt(len(positions))


def to_unit_length(rows: Tensor) -> Tensor:
    """Return rows divided by their lengths, which are at least `LEAST_LENGTH`."""
    lengths: Tensor = torch.linalg.vector_norm(rows, dim=1, keepdim=True)
    return rows / lengths.clamp(min=LEAST_LENGTH)


Combination = Sequence[tuple[int, float]]
"""The positions of feature sets, and the factor of each."""


def combine(combination: Combination, prepared: Sequence[Tensor]) -> Tensor:
    """Return some of the feature sets times their factors, side by side, (image, dim)."""
    return torch.cat([factor * prepared[position] for position, factor in combination], dim=1)


@dataclass(frozen=True, eq=False)
class SetSpace:
    """The spaces of the candidates.

    Attributes:
        feature_sets: the sets and the candidates.
        means: for each set, the mean of the support images at unit length, (dim of the set,).
    """

    feature_sets: FeatureSets
    means: tuple[Tensor, ...]

    @classmethod
    def of_support(cls, feature_sets: FeatureSets, features: Tensor) -> Self:
        """Return the space for support images, (image, dim): all sets at unit length."""
        means = [of_set.mean(0) for of_set in split_sets(feature_sets, features)]
        return cls(feature_sets, tuple(means))

    def prepare(self, features: Tensor) -> tuple[Tensor, ...]:
        """Return z of each set, (image, dim of the set), for all sets at unit length."""
        return tuple(
            to_unit_length(of_set - mean)
            for of_set, mean in zip(
                split_sets(self.feature_sets, features), self.means, strict=True
            )
        )

    def candidate(self, number: int) -> Combination:
        """Return the combination whose kernel is the mean kernel of the candidate's sets."""
        names = self.feature_sets.candidates[number]
        return [(self.position(name), 1 / math.sqrt(len(names))) for name in names]

    def common(self, mixture: Mixture) -> Combination:
        """Return the combination whose kernel is the weighted mean of the candidates' kernels."""
        weights = [0.0] * len(self.means)
        for number, weight in zip(mixture.candidates, mixture.weights, strict=True):
            names = self.feature_sets.candidates[number]
            for name in names:
                weights[self.position(name)] += weight / len(names)
        return [
            (position, math.sqrt(weight)) for position, weight in enumerate(weights) if weight > 0
        ]

    def position(self, name: str) -> int:
        """Return the position of a set."""
        return [feature_set.name for feature_set in self.feature_sets.sets].index(name)


@dataclass(frozen=True, eq=False)
class HeldOutMixture:
    """The scores that support images get from each candidate while they are held out.

    Attributes:
        scores: of each candidate, for the same images in the same rounds.
    """

    scores: tuple[HeldOutScores, ...]

    @property
    def plain(self) -> HeldOutScores:
        """The scores of the plain candidate."""
        return self.scores[0]


def hold_out(
    plain: HeldOutScores, space: SetSpace, prepared: Sequence[Tensor], codes: Tensor, groups: Groups
) -> HeldOutMixture:
    """Return the held-out scores of every candidate, given those of the plain one."""
    kernels = [features @ features.T for features in prepared]  # (image, image)
    scores = [plain]
    for number in range(1, len(space.feature_sets.candidates)):
        names = space.feature_sets.candidates[number]
        dim = sum(prepared[space.position(name)].shape[1] for name in names)
        if dim > len(codes):
            kernel = torch.stack([kernels[space.position(name)] for name in names]).mean(0)
            features = _root_of(kernel)
        else:
            features = combine(space.candidate(number), prepared)
        support = Support(features, codes, groups.n_classes)
        scores.append(held_out_scores(support, "ridge", groups=groups))
    return HeldOutMixture(tuple(scores))


def _root_of(kernel: Tensor) -> Tensor:
    """Return features, (image, image), with this kernel: a regression depends on nothing else."""
    jitter = JITTER * kernel.diagonal().mean()
    system = kernel + jitter * torch.eye(len(kernel)).to(kernel)
    factor: Tensor = torch.linalg.cholesky(system)
    return factor


def fit_mixture(held_out: HeldOutMixture, temperature: float | None = None) -> Mixture:
    """Return the mixture for held-out scores; `temperature` is the one to use, if it is given."""
    likelihoods = [_Likelihoods(scores, temperature) for scores in held_out.scores]
    rows = torch.arange(len(held_out.plain.codes))
    return _fit_rows(likelihoods, rows, held_out.plain.votes)


def held_out_answers(held_out: HeldOutMixture, temperature: float | None = None) -> HeldOutScores:
    """Return probabilities of held-out images in the place of scores, (image, class).

    Temperatures and weights for the images of a round come from all other rounds.
    """
    likelihoods = [_Likelihoods(scores, temperature) for scores in held_out.scores]
    plain = held_out.plain
    probabilities = torch.zeros_like(plain.scores)
    for number in plain.rounds.unique().tolist():
        in_round = plain.rounds == number
        others = (~in_round).nonzero()[:, 0]
        mixture = _fit_rows(likelihoods, others, plain.votes)
        for candidate, weight, temperatures in zip(
            mixture.candidates, mixture.weights, mixture.temperatures, strict=True
        ):
            scores = held_out.scores[candidate].scores[in_round] * TYPICAL_RIDGE
            probabilities[in_round] += weight * class_probabilities(scores, temperatures)
    return replace(plain, scores=probabilities)


class _Likelihoods:
    """The likelihood of held-out images at each temperature, by one candidate."""

    def __init__(self, held_out: HeldOutScores, temperature: float | None) -> None:
        self.temperature = temperature
        if temperature is not None:
            scores = held_out.scores * (TYPICAL_RIDGE / temperature)
            images = torch.arange(len(held_out.codes))
            self.values = [1.0]
            self.logarithms = scores.log_softmax(1)[images, held_out.codes][:, None]
        else:
            self.values, self.logarithms = temperature_likelihoods(held_out.scores, held_out.codes)

    def temperatures(self, rows: Tensor, votes: Tensor) -> Temperatures:
        """Return the temperatures by some held-out images, in multiples of the typical one."""
        if self.temperature is not None or len(rows) == 0:
            return Temperatures.single(1.0)
        return temperature_posterior(self.values, votes[rows] @ self.logarithms[rows])

    def averaged(self, temperatures: Temperatures, rows: Tensor) -> Tensor:
        """Return L of some held-out images, (image,)."""
        columns = [self.values.index(value) for value in temperatures.values]
        likelihoods = self.logarithms[rows][:, columns].exp()
        return likelihoods @ likelihoods.new_tensor(temperatures.weights)


def _fit_rows(likelihoods: Sequence[_Likelihoods], rows: Tensor, votes: Tensor) -> Mixture:
    """Return the mixture by some held-out images."""
    if len(rows) == 0:
        weights = [1.0]
        multiples = [likelihoods[0].temperatures(rows, votes)]
    else:
        multiples = [candidate.temperatures(rows, votes) for candidate in likelihoods]
        averaged = [
            candidate.averaged(temperatures, rows)
            for candidate, temperatures in zip(likelihoods, multiples, strict=True)
        ]
        weights = stacking_weights(torch.stack(averaged), votes[rows])
    typical = likelihoods[0].temperature or TYPICAL_RIDGE
    used = [number for number, weight in enumerate(weights) if weight > 0]
    return Mixture(
        candidates=tuple(used),
        weights=tuple(weights[number] for number in used),
        temperatures=tuple(multiples[number].times(typical) for number in used),
    )


def stacking_weights(likelihoods: Tensor, votes: Tensor) -> list[float]:
    """Return the weights of candidates for their likelihoods (candidate, image) and votes (image,).

    Weights that are negligible are 0.
    """
    prior = likelihoods.new_zeros(len(likelihoods))
    prior[0] = PRIOR_OF_PLAIN
    weights = torch.full_like(prior, 1 / len(prior))
    for _ in range(EM_STEPS):
        shares = weights[:, None] * likelihoods
        shares = shares / shares.sum(0)
        weights = (shares @ votes + prior) / (votes.sum() + prior.sum())
    weights = torch.where(weights < NEGLIGIBLE, 0.0, weights)
    return (weights / weights.sum()).tolist()


@dataclass(frozen=True, eq=False)
class SetScores:
    """Scores that are linear in several feature sets.

    Attributes:
        positions: of the sets.
        weights: of each of them, (dim of the set, class).
        offset: (class,).
    """

    positions: tuple[int, ...]
    weights: tuple[Tensor, ...]
    offset: Tensor

    @classmethod
    def of_combination(
        cls, combination: Combination, space: SetSpace, linear: LinearScores
    ) -> Self:
        """Return what equals scores that are linear in a combination of sets."""
        dims = [len(space.means[position]) for position, _ in combination]
        of_sets = linear.weights.split(dims)
        scaled = [scale * weights for (_, scale), weights in zip(combination, of_sets, strict=True)]
        return cls(
            positions=tuple(position for position, _ in combination),
            weights=tuple(scaled),
            offset=linear.shares - (linear.mean @ linear.weights)[0],
        )

    def scores(self, prepared: Sequence[Tensor]) -> Tensor:
        """Return the scores, (query, class), for z of each set."""
        scores = self.offset
        for position, weights in zip(self.positions, self.weights, strict=True):
            scores = scores + prepared[position] @ weights
        return scores


def fit_candidates(
    mixture: Mixture, space: SetSpace, prepared: Sequence[Tensor], plain: Support
) -> dict[int, SetScores]:
    """Fit the candidates that have a weight, but the plain one, to the support set."""
    fitted = {}
    for number in mixture.candidates:
        if number > 0:
            combination = space.candidate(number)
            features = combine(combination, prepared)
            linear = fit_ridge(Support(features, plain.codes, plain.n_classes))
            fitted[number] = SetScores.of_combination(combination, space, linear)
    return fitted


def mean_scores(mixture: Mixture, held_out: HeldOutMixture) -> Tensor:
    """Return the weighted mean of the candidates' held-out scores, (image, class)."""
    mean = torch.zeros_like(held_out.plain.scores)
    for number, weight in zip(mixture.candidates, mixture.weights, strict=True):
        mean = mean + weight * held_out.scores[number].scores * TYPICAL_RIDGE
    return mean


def mix(
    mixture: Mixture,
    plain_scores: Tensor,
    candidates: Mapping[int, Callable[[Sequence[Tensor]], Tensor]],
    prepared: Sequence[Tensor],
) -> tuple[Tensor, Tensor]:
    """Return the mean scores and the probabilities, (query, class), given those of the plain one.

    `prepared` is z of each set, and `candidates` are the scores of the others.
    """
    mean = torch.zeros_like(plain_scores)
    probabilities = torch.zeros_like(plain_scores)
    for number, weight, temperatures in zip(
        mixture.candidates, mixture.weights, mixture.temperatures, strict=True
    ):
        scores = plain_scores if number == 0 else candidates[number](prepared)
        mean = mean + weight * scores
        probabilities = probabilities + weight * class_probabilities(scores, temperatures)
    return mean, probabilities
