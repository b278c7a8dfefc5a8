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
    `ridge_problem` does. All fits share the products of the images.
    """

    def __init__(self, support: Support) -> None:
        self.support = support
        self.products: Tensor | None = None  # (image, image), where that is the smaller system
        n_images, dim = support.features.shape
        if n_images <= dim:
            centred = support.features - support.features.mean(0)
            self.products = centred @ centred.T

    def held_out_scores(self, tested: Tensor, kept: Tensor) -> Tensor:
        """Return the scores of tested images, (image, class), by the kept images.

        With K the products, w the weights of the images (0 where they are held out), D the diagonal
        matrix of √w and T the targets, times √w, the solution is α = (D K D + λI)⁻¹ (T − √w bᵀ),
        and b the constants for which √wᵀα = 0. A score is a row of K D α, plus b.
        """
        support = self.support
        remaining = support.subset(kept)
        if self.products is None:
            head = fit_head(RIDGE.name, remaining)
            return class_scores(support.features[tested], remaining, head)
        n_kept = len(kept)
        weights = support.features.new_zeros(len(support.codes))
        weight_of_class = n_kept / (support.n_classes * remaining.counts.to(weights))
        weights[kept] = weight_of_class[remaining.codes]
        roots = weights.sqrt()
        squares = self.products.diagonal()
        square_of_mean = weights @ (self.products @ weights) / n_kept**2
        penalty = PENALTY * (weights @ squares / n_kept - square_of_mean)
        # If all kept images are equal, only rounding is left of the difference.
        rounding = 4 * torch.finfo(weights.dtype).eps * squares.max()
        penalty = penalty.clamp(min=0) + rounding + SMALLEST_PENALTY
        factor = _cholesky(self.products * roots * roots[:, None], penalty)
        is_member = support.codes[:, None] == torch.arange(support.n_classes)
        right_side = torch.cat([roots[:, None] * is_member, roots[:, None]], dim=1)
        solution = torch.cholesky_solve(right_side, factor)
        of_targets = solution[:, :-1]
        of_roots = solution[:, -1:]
        constants = (roots @ of_targets) / (roots @ of_roots)  # (class,)
        points = roots[:, None] * (of_targets - of_roots * constants)
        scores: Tensor = self.products[tested] @ points + constants
        return scores


def _cholesky(gram: Tensor, penalty: Tensor) -> Tensor:
    """Return the Cholesky factor of a matrix with a penalty on its diagonal."""
    system = gram.clone()
    system.diagonal().add_(penalty.flatten())
    factor: Tensor = torch.linalg.cholesky(system)
    return factor
