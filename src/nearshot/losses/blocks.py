"""The neighbour loss of very large batches, exactly, block by block in linear memory.

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

# The logit of a pair that does not exist. Finite, since −∞ − (−∞) is NaN, and far below any −d².
NO_PAIR = -1e37
# On a CPU 16 MiB of float32: small beside any large batch, large enough that a matrix product runs
# at full speed. An accelerator has the memory, and needs larger pieces to be kept busy.
PAIRS_PER_BLOCK_CPU = 2**22
PAIRS_PER_BLOCK = 2**25


def blockwise_loss(
    anchors: Tensor,
    anchor_labels: Tensor,
    candidates: Tensor,
    candidate_labels: Tensor,
    *,
    same_set: bool,
    background: float,
    kept_pairs: Tensor | None,
) -> Tensor:
    """Return `neighbour_loss` for T = 1, squared Euclidean distances and embeddings around zero.

    Where every image is anchor and candidate, `anchors` and `candidates` should be one tensor: its
    gradient is then computed in one pass.
    """
    wants_gradient = anchors.requires_grad or candidates.requires_grad
    loss: Tensor = _BlockwiseLoss.apply(  # type: ignore[no-untyped-call]
        anchors,
        anchor_labels,
        candidates,
        candidate_labels,
        same_set,
        kept_pairs,
        background,
        anchors is candidates,
        wants_gradient and torch.is_grad_enabled(),
    )
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
        n_anchors = len(anchors)
        on_cpu = anchors.device.type == "cpu"
        pairs_per_block = PAIRS_PER_BLOCK_CPU if on_cpu else PAIRS_PER_BLOCK
        step = max(1, pairs_per_block // len(candidates))
        in_one_block = step >= n_anchors
        # Sorted by class, the positives of a block's anchors are adjacent, and most columns need no
        # mask. This reads the labels, which would make an accelerator wait.
        by_class = kept_pairs is None and on_cpu and not in_one_block
        if by_class:
            anchor_labels, anchor_order = anchor_labels.sort(stable=True)
            candidate_labels, candidate_order = candidate_labels.sort(stable=True)
            anchors = anchors[anchor_order]
            candidates = candidates[candidate_order]
        anchor_lengths = anchors.square().sum(1)
        candidate_lengths = candidates.square().sum(1)
        log_background = math.log(background) if background else -math.inf
        loss = anchors.new_zeros(())
        anchor_gradient = torch.zeros_like(anchors)
        candidate_gradient = torch.zeros_like(candidates)

        for start in range(0, n_anchors, step):
            rows = slice(start, min(start + step, n_anchors))
            # l + ‖a‖²: the constant of each row is added later.  (row, candidate)
            logits = torch.addmm(candidate_lengths, anchors[rows], candidates.T, beta=-1, alpha=2)
            if same_set:
                logits[:, rows].fill_diagonal_(NO_PAIR)
            if kept_pairs is not None:
                logits.masked_fill_(~kept_pairs[rows], NO_PAIR)
            columns = slice(None)
            if by_class:
                columns = _columns_of_classes(anchor_labels[rows], candidate_labels)
            log_likelihood, derivative = _loss_of_block(
                logits,
                same_class=anchor_labels[rows, None] == candidate_labels[columns],
                columns=columns,
                lengths=anchor_lengths[rows, None],
                log_background=log_background,
                wants_gradient=wants_gradient,
            )
            loss -= log_likelihood
            if derivative is None:
                continue
            by_distance = derivative.by_distance
            if one_tensor and in_one_block:
                # Each pair occurs from both ends: one product is enough.
                by_distance = by_distance + by_distance.T
                row_sums = by_distance.sum(1, keepdim=True)
                anchor_gradient = (row_sums * anchors).sub_(by_distance @ anchors)
                break
            by_anchors = derivative.row_sums * anchors[rows]
            anchor_gradient[rows] = by_anchors.sub_(by_distance @ candidates)
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
        # With create_graph=True; without this error the second derivative would silently be zero.
        if torch.is_grad_enabled():
            raise InputError(
                "The loss of a large batch has no second derivative. Give distance as a callable, "
                "such as nearshot.distances.squared_euclidean: then it does."
            )
        by_anchors, by_candidates = ctx.saved_tensors
        return (
            by_anchors * loss_gradient,
            None,
            by_candidates * loss_gradient,
            None,
            None,
            None,
            None,
            None,
            None,
        )


class _Derivative(NamedTuple):
    """The derivative of a block's log p, summed and negated, by its distances d²."""

    by_distance: Tensor  # (row, candidate)
    row_sums: Tensor  # (row, 1)


def _loss_of_block(
    logits: Tensor,
    *,
    same_class: Tensor,
    columns: slice,
    lengths: Tensor,
    log_background: float,
    wants_gradient: bool,
) -> tuple[Tensor, _Derivative | None]:
    """Return the sum of log p over a block's anchors, and the derivative if it is needed.

    Args:
        logits: (row, candidate) l + ‖a‖²; it is overwritten.
        same_class: (row, column) whether a candidate of `columns` has the anchor's class.
        columns: the candidates among which all positives are.
        lengths: (row, 1) ‖a‖².
        log_background: the least logarithm of the sum over negatives.
        wants_gradient: whether the derivative is needed.
    """
    positives = torch.where(same_class, logits[:, columns], NO_PAIR)
    logits[:, columns].masked_fill_(same_class, NO_PAIR)
    log_positives, positives, positive_factor = _exponentiate(positives)
    log_negatives, negatives, negative_factor = _exponentiate(logits)
    log_positives -= lengths
    log_negatives -= lengths
    # Where the background stands in for the negatives.
    behind = log_negatives < log_background
    log_ratio = log_positives - log_negatives.clamp(min=log_background)
    log_p = F.logsigmoid(log_ratio)
    # NaN is not less, so it stays visible.
    counts = ~((log_positives <= NO_PAIR / 2) | (log_p < log_background))
    log_likelihood = torch.where(counts, log_p, 0.0).sum()
    if not wants_gradient:
        return log_likelihood, None

    q = torch.where(counts, torch.sigmoid(-log_ratio), 0.0)  # (row, 1)
    by_distance = negatives.mul_(-q.masked_fill(behind, 0.0) * negative_factor)  # −dL/dl
    by_distance[:, columns].addcmul_(positives, q * positive_factor)
    # The sums of the two softmaxes cancel where both exist.
    row_sums = q.masked_fill(~behind, 0.0)
    return log_likelihood, _Derivative(by_distance, row_sums)


def _columns_of_classes(row_labels: Tensor, column_labels: Tensor) -> slice:
    """Return the columns of the classes of these rows, at least one; both labels are sorted."""
    first = int(torch.searchsorted(column_labels, row_labels[:1]))
    last = int(torch.searchsorted(column_labels, row_labels[-1:], right=True))
    return slice(min(first, len(column_labels) - 1), max(last, first + 1))


def _exponentiate(logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return log Σ exp (row, 1); exp in place, up to a factor per row; and that softmax's factor.

    A row without a pair has NO_PAIR for its sum and zero for its factor.
    """
    largest = logits.amax(1, keepdim=True)
    # What is smaller by e⁻⁷⁸ (float32) vanishes in the sum; letting it underflow makes exp ten
    # times slower.
    smallest = 0.9 * math.log(torch.finfo(logits.dtype).tiny)
    exponentials = logits.sub_(largest).clamp_(min=smallest).exp_()
    total = exponentials.sum(1, keepdim=True)
    empty = largest <= NO_PAIR / 2
    log_sum = (largest + total.log()).masked_fill_(empty, NO_PAIR)
    return log_sum, exponentials, total.reciprocal_().masked_fill_(empty, 0.0)
