"""The neighbour loss of very large batches, exactly: value and gradient block by block, in linear memory.

A block is a range of anchors against all candidates. Its distances give the anchors' likelihoods,
and these give the loss's derivative by each distance. So a block's share of the gradient is added
up at once, and the block is freed: three matrix products in all, and no distance is kept or
computed twice. With l = −d² and q = 1 − p,

    dL/dl = −q · softmax of l over the positives      for a positive
            +q · softmax of l over the negatives      for a negative (0 where `background` stands in
            for their sum)

and a distance's derivative flows to its two ends as ∂d²/∂a = 2(a − c) = −∂d²/∂c.
"""

import math
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import FunctionCtx

from nearshot.errors import InputError

# The logit of a pair that does not exist. Finite, since −∞ − (−∞) is NaN, and far below any real
# −d².
NOTHING = -1e37
# On a CPU 16 MiB of float32: small beside any large batch, large enough that a matrix product runs
# at full speed. An accelerator has the memory, and needs larger pieces to be kept busy.
PAIRS_PER_BLOCK_CPU = 2**22
PAIRS_PER_BLOCK = 2**25


class Roles(NamedTuple):
    """The anchors and the candidates of a loss: the choice in which the paper's methods differ."""

    anchors: Tensor  # (anchor, dim)
    anchor_labels: Tensor  # (anchor,)
    candidates: Tensor  # (candidate, dim); the same tensor as the anchors where every image is both
    candidate_labels: Tensor  # (candidate,)
    same_set: bool  # the candidates are the anchors, and no anchor is its own candidate
    kept_pairs: Tensor | None = (
        None  # (anchor, candidate), true where a pair is used; None uses all
    )


def blockwise_loss(roles: Roles, background: float) -> Tensor:
    """Return `neighbour_loss` for T = 1, squared Euclidean distances and embeddings around zero."""
    wants_gradient = torch.is_grad_enabled() and (
        roles.anchors.requires_grad or roles.candidates.requires_grad
    )
    one_tensor = roles.anchors is roles.candidates
    loss: Tensor = _BlockwiseLoss.apply(*roles, background, one_tensor, wants_gradient)  # type: ignore[no-untyped-call]
    return loss


class _BlockwiseLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: FunctionCtx,
        anchors: Tensor,
        anchor_labels: Tensor,
        candidates: Tensor,
        candidate_labels: Tensor,
        same_set: bool,
        kept_pairs: Tensor | None,
        background: float,
        one_tensor: bool,
        wants_gradient: bool,
    ) -> Tensor:
        """Return the loss, and keep its gradient by anchors and by candidates."""
        n_anchors, n_candidates = len(anchors), len(candidates)
        step = max(
            1,
            (PAIRS_PER_BLOCK_CPU if anchors.device.type == "cpu" else PAIRS_PER_BLOCK)
            // n_candidates,
        )
        in_one_block = step >= n_anchors
        # Sorted by class, the positives of a block's anchors are adjacent, and most columns need no
        # mask. This reads the labels, which would make an accelerator wait.
        by_class = kept_pairs is None and anchors.device.type == "cpu" and not in_one_block
        if by_class:
            anchor_labels, anchor_order = anchor_labels.sort(stable=True)
            candidate_labels, candidate_order = candidate_labels.sort(stable=True)
            anchors, candidates = anchors[anchor_order], candidates[candidate_order]
        anchor_lengths, candidate_lengths = anchors.square().sum(1), candidates.square().sum(1)
        log_background = math.log(background) if background else -math.inf
        loss = anchors.new_zeros(())
        anchor_gradient, candidate_gradient = (
            torch.zeros_like(anchors),
            torch.zeros_like(candidates),
        )

        for start in range(0, n_anchors, step):
            rows = slice(start, min(start + step, n_anchors))
            # l + ‖a‖²: the constant of each row is added later                        (row,
            # candidate)
            logits = torch.addmm(candidate_lengths, anchors[rows], candidates.T, beta=-1, alpha=2)
            if same_set:
                logits[:, rows].fill_diagonal_(NOTHING)
            if kept_pairs is not None:
                logits.masked_fill_(~kept_pairs[rows], NOTHING)
            columns = (
                _columns_of_classes(anchor_labels[rows], candidate_labels)
                if by_class
                else slice(None)
            )
            same_class = anchor_labels[rows, None] == candidate_labels[columns]
            positives = torch.where(same_class, logits[:, columns], NOTHING)
            logits[:, columns].masked_fill_(same_class, NOTHING)

            log_positives, positives, positive_factor = _exponentiate(positives)
            log_negatives, negatives, negative_factor = _exponentiate(logits)
            log_positives -= anchor_lengths[rows, None]
            log_negatives -= anchor_lengths[rows, None]
            behind = (
                log_negatives < log_background
            )  # where the background stands in for the negatives
            log_ratio = log_positives - log_negatives.clamp(min=log_background)
            log_p = F.logsigmoid(log_ratio)
            counts = ~(
                (log_positives <= NOTHING / 2) | (log_p < log_background)
            )  # NaN stays visible
            loss -= torch.where(counts, log_p, 0.0).sum()
            if not wants_gradient:
                continue

            q = torch.where(counts, torch.sigmoid(-log_ratio), 0.0)  # (row, 1)
            by_distance = negatives.mul_(
                -q.masked_fill(behind, 0.0) * negative_factor
            )  # dL/dd² = −dL/dl
            by_distance[:, columns].addcmul_(positives, q * positive_factor)
            if (
                one_tensor and in_one_block
            ):  # each pair occurs from both ends: one product is enough
                by_distance = by_distance + by_distance.T
                anchor_gradient = (by_distance.sum(1, keepdim=True) * anchors).sub_(
                    by_distance @ anchors
                )
                break
            row_sums = q.masked_fill(~behind, 0.0)  # the two softmaxes cancel where both exist
            anchor_gradient[rows] = (row_sums * anchors[rows]).sub_(by_distance @ candidates)
            candidate_gradient.addcmul_(by_distance.sum(0)[:, None], candidates)
            candidate_gradient.sub_(by_distance.T @ anchors[rows])

        if wants_gradient:
            if by_class:
                anchor_gradient = anchor_gradient[anchor_order.argsort()]
                candidate_gradient = candidate_gradient[candidate_order.argsort()]
            ctx.save_for_backward(
                anchor_gradient.mul_(2 / n_anchors), candidate_gradient.mul_(2 / n_anchors)
            )
        return loss / n_anchors

    @staticmethod
    def backward(ctx: Any, loss_gradient: Tensor) -> tuple[Tensor | None, ...]:
        """Scale the gradients that were computed with the loss."""
        if (
            torch.is_grad_enabled()
        ):  # create_graph=True: without this, the second derivative would silently be zero
            raise InputError(
                "The loss of a large batch has no second derivative. Give the distance as a callable, such as "
                "nearshot.distances.squared_euclidean: then it does."
            )
        by_anchors, by_candidates = ctx.saved_tensors
        return by_anchors * loss_gradient, None, by_candidates * loss_gradient, *(None,) * 6


def _columns_of_classes(row_labels: Tensor, column_labels: Tensor) -> slice:
    """Return the columns that hold the classes of these rows; both labels are sorted."""
    first = torch.searchsorted(column_labels, row_labels[:1])
    last = torch.searchsorted(column_labels, row_labels[-1:], right=True)
    return slice(
        min(int(first), len(column_labels) - 1), max(int(last), int(first) + 1)
    )  # at least one


def _exponentiate(logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return log Σ exp (row, 1); exp in place, up to a factor per row; and the factor that makes it a softmax.

    A row without a pair has NOTHING for its sum and zero for its factor.
    """
    largest = logits.amax(1, keepdim=True)
    # What is smaller by e⁻⁷⁸ (float32) vanishes in the sum; letting it underflow makes exp ten
    # times slower.
    exponentials = (
        logits.sub_(largest).clamp_(min=0.9 * math.log(torch.finfo(logits.dtype).tiny)).exp_()
    )
    total = exponentials.sum(1, keepdim=True)
    empty = largest <= NOTHING / 2
    log_sum = (largest + total.log()).masked_fill_(empty, NOTHING)
    return log_sum, exponentials, total.reciprocal_().masked_fill_(empty, 0.0)
