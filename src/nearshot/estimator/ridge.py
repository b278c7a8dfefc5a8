"""Leave-one-out of ridge regression on many images: in closed form, or from one Gram matrix."""

import torch
from torch import Tensor

from nearshot.estimator.head import class_scores, fit_head
from nearshot.estimator.support import Support
from nearshot.evaluation.classifiers import PENALTY, RIDGE, SMALLEST_PENALTY, ridge_problem


class HeldOutRidge:
    """A ridge regression on a support set that scores held-out images without another fit.

    Let H be the matrix that turns targets into predictions. The errors of images B that are held
    out are then (I − H_BB)⁻¹ times the errors that they have while they take part. The weights of
    the images and the penalty remain those of the whole support set.
    """

    def __init__(self, support: Support) -> None:
        by_class = support.by_class
        problem = ridge_problem(support.features[by_class], support.counts)
        position = by_class.argsort()  # of each image in that order
        rows = problem.rows[position]  # (image, dim)
        self.roots = problem.roots[position]  # (image, 1) of the weights of the images
        self.targets = problem.targets[position]  # (image, class)
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
        n_classes = self.targets.shape[1]
        scores: Tensor = (self.targets[tested] - errors_of_tested) / self.roots[tested]
        return scores + 1 / n_classes

    def _residual_block(self, images: Tensor) -> Tensor:
        """Return the block of I − H for some images, (image, image)."""
        if self.has_fewer_images:
            return self.matrix[images][:, images]
        root = self.matrix[images]
        return torch.eye(len(images)).to(root) - root @ root.T


class ReweightedRidge:
    """A ridge regression that is fitted to the kept images of each round.

    Classes that lose different fractions of their images, as with groups, would not count equally
    with the weights of the whole support set. So the kept images are weighed anew, as
    `ridge_problem` does. All fits share the products of the images, which take the longest.
    """

    def __init__(self, support: Support) -> None:
        self.support = support
        self.centred = support.features - support.features.mean(0)
        n_images, dim = self.centred.shape
        self.products: Tensor | None = None  # (image, image), where that is the smaller system
        if n_images <= dim:
            self.products = self.centred @ self.centred.T

    def held_out_scores(self, tested: Tensor, kept: Tensor) -> Tensor:
        """Return the scores of tested images, (image, class), by the kept images."""
        remaining = self.support.subset(kept)
        if self.products is None:
            head = fit_head(RIDGE.name, remaining)
            return class_scores(self.support.features[tested], remaining, head)
        n_kept = len(kept)
        n_classes = self.support.n_classes
        weights = (n_kept / (n_classes * remaining.counts.to(self.centred)))[remaining.codes]
        shares = weights / n_kept  # (kept,) they add up to 1
        kept_products = self.products[kept][:, kept]
        tested_products = self.products[tested][:, kept]
        # The products of images around the weighted mean of the kept ones.
        from_mean = kept_products @ shares  # (kept,)
        square_of_mean = from_mean @ shares
        kept_products = kept_products - from_mean - from_mean[:, None] + square_of_mean
        tested_products = (
            tested_products - from_mean - (tested_products @ shares)[:, None] + square_of_mean
        )
        roots = weights.sqrt()
        gram = roots[:, None] * kept_products * roots
        # If all kept images are equal, only rounding is left of the products.
        rounding = 4 * torch.finfo(gram.dtype).eps * self.products.diagonal().max()
        penalty = PENALTY * gram.diagonal().sum() / n_kept + rounding
        penalty = penalty.clamp(min=SMALLEST_PENALTY)
        is_member = remaining.codes[:, None] == torch.arange(n_classes)
        targets = roots[:, None] * (is_member.to(gram) - 1 / n_classes)
        solution = torch.cholesky_solve(targets, _cholesky(gram, penalty))  # (kept, class)
        scores: Tensor = (tested_products * roots) @ solution
        return scores + 1 / n_classes


def _cholesky(gram: Tensor, penalty: Tensor) -> Tensor:
    """Return the Cholesky factor of a matrix with a penalty on its diagonal."""
    factor: Tensor = torch.linalg.cholesky(gram + penalty * torch.eye(len(gram)).to(gram))
    return factor
