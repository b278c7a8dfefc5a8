"""Leave-one-out of ridge regression on many images: in closed form, or from one Gram matrix."""

from dataclasses import dataclass

import torch
from torch import Tensor

from nearshot.estimator.support import Support
from nearshot.evaluation.classifiers import (
    PENALTY,
    SMALLEST_PENALTY,
    RidgeProblem,
    ridge_problem,
    solve_ridge,
)

MAX_CLASS_PRODUCTS = 1 << 26  # numbers held: 512 MiB of float64


def held_out_ridge(support: Support) -> "HeldOutRidge":
    """Return the ridge regression of a support set, whose images can be held out."""
    by_class = support.by_class
    problem = ridge_problem(support.features[by_class], support.counts)
    position = by_class.argsort()  # of each image in that order
    problem = problem._replace(
        roots=problem.roots[position],
        rows=problem.rows[position],
        targets=problem.targets[position],
    )
    shares = problem.targets.new_full((support.n_classes,), 1 / support.n_classes)
    return HeldOutRidge(problem, shares)


@dataclass(frozen=True, eq=False)
class LinearScores:
    """Scores that are linear in the features.

    Attributes:
        weights: (dim, class).
        mean: (1, dim) the features whose scores are `shares`.
        shares: (class,).
    """

    weights: Tensor
    mean: Tensor
    shares: Tensor

    def scores(self, query: Tensor) -> Tensor:
        """Return the scores, (query, class)."""
        return (query - self.mean) @ self.weights + self.shares


def fit_ridge(support: Support) -> LinearScores:
    """Return the scores of the ridge regression of a support set."""
    problem = ridge_problem(support.features[support.by_class], support.counts)
    shares = problem.targets.new_full((support.n_classes,), 1 / support.n_classes)
    return LinearScores(solve_ridge(problem), problem.mean, shares)


class HeldOutRidge:
    """A ridge regression that scores held-out images without another fit.

    Let H be the matrix that turns targets into predictions. The errors of images B that are held
    out are then (I − H_BB)⁻¹ times the errors that they have while they take part. The weights of
    the images and the penalty remain those of the whole support set.

    Args:
        problem: the regression; its rows are the images.
        shares: (class,) the mean of the targets over all images, which was subtracted from them.
    """

    def __init__(self, problem: RidgeProblem, shares: Tensor) -> None:
        rows = problem.rows  # (image, dim)
        self.roots = problem.roots  # (image, 1) of the weights of the images
        self.targets = problem.targets  # (image, class)
        self.shares = shares
        # H, but for the mean of the targets, by the smaller of two systems: that of the images
        # gives the matrix I − H, that of the dimensions a root R with R Rᵀ = H.
        n_images, dim = rows.shape
        self.has_fewer_images = n_images <= dim
        if self.has_fewer_images:
            factor = _cholesky(rows @ rows.T, problem.penalty)
            residual = problem.penalty * torch.cholesky_inverse(factor)
            self.matrix = residual  # (image, image)
            self.errors = residual @ self.targets  # (image, class)
        else:
            factor = _cholesky(rows.T @ rows, problem.penalty)
            root = torch.linalg.solve_triangular(factor, rows.T, upper=False).T
            self.matrix = root  # (image, dim)
            self.errors = self.targets - root @ (root.T @ self.targets)

    def held_out_scores(self, tested: Tensor, kept: Tensor) -> Tensor:
        """Return the scores of tested images, (image, class), by the kept images."""
        is_held_out = torch.ones(len(self.roots), dtype=torch.bool)
        is_held_out[kept] = False
        held_out = is_held_out.nonzero()[:, 0]
        mean = self.roots[held_out] / self.roots.norm()
        system = self._residual_block(held_out) - mean @ mean.T
        errors = torch.linalg.solve(system, self.errors[held_out])
        errors_of_tested = errors[torch.searchsorted(held_out, tested)]
        scores: Tensor = (self.targets[tested] - errors_of_tested) / self.roots[tested]
        return scores + self.shares

    def _residual_block(self, images: Tensor) -> Tensor:
        """Return the block of I − H for some images, (image, image)."""
        if self.has_fewer_images:
            return self.matrix[images][:, images]
        root = self.matrix[images]
        return torch.eye(len(images)).to(root) - root @ root.T


class ReweightedRidge:
    """A ridge regression that is fitted to the kept images of each round.

    Classes that lose different shares of their images, as uneven classes and groups do, would not
    count equally with the weights of the whole support set. So the kept images are weighed anew, as
    `ridge_problem` does. All fits share what takes longest: the products of the images, or of the
    dimensions of each class, whichever are the smaller system.
    """

    def __init__(self, support: Support) -> None:
        self.support = support
        self.centred = support.features - support.features.mean(0)
        # The largest rounding error of a sum of products, about.
        eps = torch.finfo(self.centred.dtype).eps
        self.rounding = 4 * eps * len(self.centred) * self.centred.square().sum(1).max()
        self.products: Tensor | None = None  # (image, image)
        self.class_products: Tensor | None = None  # (class, dim, dim), unless they are too large
        n_images, dim = self.centred.shape
        if n_images <= dim:
            self.products = self.centred @ self.centred.T
        elif support.n_classes * dim**2 <= MAX_CLASS_PRODUCTS:
            self.class_products = self.centred.new_empty(support.n_classes, dim, dim)
            for code in range(support.n_classes):
                rows = self.centred[support.codes == code]
                torch.mm(rows.T, rows, out=self.class_products[code])

    def held_out_scores(self, tested: Tensor, kept: Tensor) -> Tensor:
        """Return the scores of tested images, (image, class), by the kept images."""
        codes = self.support.codes
        counts = torch.bincount(codes[kept], minlength=self.support.n_classes)
        weight_of_class = len(kept) / (self.support.n_classes * counts.to(self.centred))
        weights = self.centred.new_zeros(len(codes))  # 0 where images are held out
        weights[kept] = weight_of_class[codes[kept]]
        if self.products is None:
            return self._scores_by_dimensions(tested, weight_of_class, weights)
        return self._scores_by_images(self.products, tested, weights)

    def _scores_by_images(self, products: Tensor, tested: Tensor, weights: Tensor) -> Tensor:
        """Return the scores by the products of images.

        With K the products, w the weights, D the diagonal matrix of √w and T the targets, times √w,
        the solution is α = (D K D + λI)⁻¹ (T − √w bᵀ), and b the constants for which √wᵀα = 0. A
        score is a row of K D α, plus b.
        """
        n_kept = weights.sum()
        roots = weights.sqrt()
        squares = products.diagonal()
        square_of_mean = weights @ (products @ weights) / n_kept**2
        penalty = self._penalty(weights @ squares / n_kept - square_of_mean)
        factor = _cholesky(products * roots * roots[:, None], penalty)
        is_member = self.support.codes[:, None] == torch.arange(self.support.n_classes)
        right_side = torch.cat([roots[:, None] * is_member, roots[:, None]], dim=1)
        solution = torch.cholesky_solve(right_side, factor)
        of_targets = solution[:, :-1]
        of_roots = solution[:, -1:]
        constants = (roots @ of_targets) / (roots @ of_roots)  # (class,)
        scores: Tensor = products[tested] @ (roots[:, None] * (of_targets - of_roots * constants))
        return scores + constants

    def _scores_by_dimensions(
        self, tested: Tensor, weight_of_class: Tensor, weights: Tensor
    ) -> Tensor:
        """Return the scores by the products of dimensions."""
        n_kept = weights.sum()
        means = self.support.class_sums(weights[:, None] * self.centred)  # (class, dim)
        means = means * self.support.n_classes / n_kept
        mean = means.mean(0)
        if self.class_products is None:
            rows = weights.sqrt()[:, None] * self.centred
            gram = rows.T @ rows
        else:
            is_held_out = weights == 0
            codes = self.support.codes[is_held_out]
            rows = weight_of_class[codes].sqrt()[:, None] * self.centred[is_held_out]
            gram = torch.tensordot(weight_of_class, self.class_products, dims=1)
            gram.addmm_(rows.T, rows, alpha=-1)
        gram.addr_(mean, mean, alpha=-float(n_kept))
        factor = _cholesky(gram, self._penalty(gram.trace() / n_kept))
        right_side = n_kept / self.support.n_classes * (means - mean).T
        solution = torch.cholesky_solve(right_side, factor)  # (dim, class)
        scores: Tensor = (self.centred[tested] - mean) @ solution
        return scores + 1 / self.support.n_classes

    def _penalty(self, mean_square: Tensor) -> Tensor:
        """Return the penalty for the mean squared distance of kept images from their mean.

        If they are all equal, only rounding is left of it.
        """
        return PENALTY * mean_square.clamp(min=0) + self.rounding + SMALLEST_PENALTY


def _cholesky(gram: Tensor, penalty: Tensor) -> Tensor:
    """Return the Cholesky factor of a matrix with a penalty on its diagonal."""
    system = gram.clone()
    system.diagonal().add_(penalty.flatten())
    factor: Tensor = torch.linalg.cholesky(system)
    return factor
