"""Leave-one-out of ridge regression in closed form: no image is held out by another fit."""

import torch
from torch import Tensor

from nearshot.estimator.support import Support
from nearshot.evaluation.classifiers import ridge_problem


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


def _cholesky(gram: Tensor, penalty: Tensor) -> Tensor:
    """Return the Cholesky factor of a matrix with a penalty on its diagonal."""
    factor: Tensor = torch.linalg.cholesky(gram + penalty * torch.eye(len(gram)).to(gram))
    return factor
