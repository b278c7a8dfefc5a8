"""Classifiers that look at all queries of an episode together: they are not inductive.

Each is a function of `support` (episode, class, shot, dim) and `query` (episode, query, dim) that
returns scores (episode, query, class), and assumes centred and normalised features, the default of
`evaluate_features`. Such a function cannot classify one image at a time, so `FewShotClassifier` has
none of them. Their defaults were chosen on the validation classes of CIFAR-FS with the shipped
network; `benchmarks/transductive.py` measures them.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType

import torch
from torch import Tensor

__all__ = ["TRANSDUCTIVE", "bd_cspn", "laplacian_shot", "optimal_transport"]

SINKHORN_STEPS = 100


def laplacian_shot(
    support: Tensor,
    query: Tensor,
    *,
    weight: float = 0.3,
    n_neighbours: int = 3,
    n_steps: int = 20,
) -> Tensor:
    """Return the class probabilities of LaplacianShot (Ziko et al., 2020, Equation 10).

    Queries that are near each other should have the same class. From y_q = softmax(−a_q), where a_q
    are the squared distances to the class means, each step is

        y_q ← softmax(−a_q + weight · Σ_p y_p)   over the nearest queries p of q.

    Args:
        support: (episode, class, shot, dim).
        query: (episode, query, dim).
        weight: λ, of the neighbours. The paper chose it for each dataset, from 0.1 to 1.5.
        n_neighbours: the number of neighbours of a query.
        n_steps: the number of steps.
    """
    to_means = torch.cdist(query, support.mean(2)).square()  # (episode, query, class)
    between = torch.cdist(query, query)
    between.diagonal(dim1=1, dim2=2).fill_(torch.inf)  # a query is no neighbour of itself
    n_neighbours = min(n_neighbours, query.shape[1] - 1)
    nearest = between.topk(n_neighbours, largest=False).indices
    is_neighbour = torch.zeros_like(between).scatter_(2, nearest, 1.0)
    answers = (-to_means).softmax(2)
    for _ in range(n_steps):
        answers = (weight * is_neighbour @ answers - to_means).softmax(2)
    return answers


def bd_cspn(support: Tensor, query: Tensor, *, n_pseudo: int = 8, scale: float = 2.0) -> Tensor:
    """Return the cosines of BD-CSPN: rectified prototypes (Liu et al., 2020).

    Queries are shifted by the difference of the means of support and queries. The class means then
    label them, and the most confident ones of each class join its support images. A prototype is
    the sum of a class's images, weighted by the softmax of their cosines with the first class mean.

    The shift assumes that queries have about equally many images of each class.

    Args:
        support: (episode, class, shot, dim).
        query: (episode, query, dim).
        n_pseudo: Z, how many queries of each class join at most.
        scale: ε, of the cosines in the softmax; the paper has 10.
    """
    n_queries = query.shape[1]
    shift = support.mean((1, 2)) - query.mean(1)  # (episode, dim)
    query = query + shift[:, None]
    means = support.mean(2)
    cosines = _cosines(query, means)  # (episode, query, class)
    best = cosines.argmax(2, keepdim=True)
    is_label = torch.zeros_like(cosines).scatter_(2, best, 1.0).bool()
    confidence = (scale * cosines).softmax(2).masked_fill(~is_label, -1.0)
    chosen = confidence.topk(min(n_pseudo, n_queries), dim=1).indices
    is_chosen = torch.zeros_like(cosines).scatter_(1, chosen, 1.0).bool() & is_label
    of_support = (support * means[:, :, None]).sum(3) / (
        support.norm(dim=3) * means.norm(dim=2, keepdim=True)
    )  # (episode, class, shot) cosines
    of_query = cosines.masked_fill(~is_chosen, -torch.inf).mT  # (episode, class, query)
    weights = (scale * torch.cat([of_support, of_query], 2)).softmax(2)
    n_shot = support.shape[2]
    prototypes = (weights[:, :, :n_shot, None] * support).sum(2)
    prototypes = prototypes + weights[:, :, n_shot:] @ query
    return _cosines(query, prototypes)


def optimal_transport(
    support: Tensor,
    query: Tensor,
    *,
    scale: float = 10.0,
    rate: float = 0.2,
    n_steps: int = 20,
) -> Tensor:
    """Return the transport plan of PT-MAP: queries to equally large classes (Hu et al., 2021).

    It assumes that an episode has equally many queries of each class, as benchmarks have, and as
    one's own images do not: it is no fair comparison with classifiers that do not know this.

    Each step computes the plan M of Sinkhorn for the squared distances to the class centres, with
    entropic regularisation: rows sum to 1, columns to the number of queries of a class. The centres
    then move to the means of the support images and of the queries weighted by M.

    Args:
        support: (episode, class, shot, dim).
        query: (episode, query, dim).
        scale: λ, of the distances; a larger one gives a harder plan.
        rate: α, how far the centres move in a step.
        n_steps: the number of steps.
    """
    n_classes, n_shot = support.shape[1:3]
    n_of_class = query.shape[1] / n_classes
    sums = support.sum(2)
    centres = sums / n_shot
    for _ in range(n_steps):
        plan = _sinkhorn(query, centres, scale, n_of_class)
        means = (sums + plan.mT @ query) / (n_shot + plan.sum(1)[:, :, None])
        centres = centres + rate * (means - centres)
    return _sinkhorn(query, centres, scale, n_of_class)


def _sinkhorn(query: Tensor, centres: Tensor, scale: float, n_of_class: float) -> Tensor:
    """Return the plan (episode, query, class) with rows of 1 and columns of `n_of_class`."""
    plan = (-scale * torch.cdist(query, centres).square()).softmax(2)
    for _ in range(SINKHORN_STEPS):
        plan = plan * (n_of_class / plan.sum(1, keepdim=True))
        plan = plan / plan.sum(2, keepdim=True)
    return plan


def _cosines(query: Tensor, points: Tensor) -> Tensor:
    """Return the cosines (episode, query, point)."""
    unit_query = torch.nn.functional.normalize(query, dim=2)
    return unit_query @ torch.nn.functional.normalize(points, dim=2).mT


TRANSDUCTIVE: Mapping[str, Callable[[Tensor, Tensor], Tensor]] = MappingProxyType(
    {
        "laplacian-shot": laplacian_shot,
        "bd-cspn": bd_cspn,
        "optimal-transport": optimal_transport,
    }
)
"""The transductive classifiers by name."""
