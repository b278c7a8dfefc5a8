"""Prototypical and Matching Networks, and the ablations between them and NCA: losses on support and query images."""

from __future__ import annotations

import torch
from torch import Tensor

from nearshot.distances import Distance, DistanceName, full_precision
from nearshot.episode_shape import EpisodeShape
from nearshot.errors import InputError
from nearshot.losses.blocks import Roles
from nearshot.losses.neighbours import loss_of_roles, neighbour_loss
from nearshot.losses.preconditions import check_embeddings, checked_labels, values_can_be_read

__all__ = ["episode_loss", "episode_roles", "matching_loss", "prototypical_loss"]


def prototypical_loss(
    support: Tensor,
    support_labels: Tensor,
    query: Tensor,
    query_labels: Tensor,
    *,
    temperature: float | Tensor = 1.0,
    background: float = 0.0,
    distance: DistanceName | Distance = "euclidean",
) -> Tensor:
    """Return the loss of Prototypical Networks (Section 2.2): a query picks among the classes' mean support embeddings.

    Args:
        support: (support image, dim).
        support_labels: (support image,), in any order and with any number of images a class.
        query: (query image, dim).
        query_labels: (query image,), each of a class that has support.
        temperature: as for `neighbour_loss`, like `background` and `distance`.
        background: 0 is the exact loss, 1e-10 the arithmetic of the published experiments.
        distance: "euclidean", "cosine", or a callable.

    Grouping by label reads the labels, which makes an accelerator wait; `episode_loss` groups by position.

    >>> support, query = torch.tensor([[0.0], [2.0], [9.0]]), torch.tensor([[1.0], [8.0]])
    >>> prototypical_loss(support, torch.tensor([0, 0, 1]), query, torch.tensor([0, 1])) < 1e-9
    tensor(True)
    """
    check_embeddings(support, "support")
    support_labels = checked_labels(support_labels, support, "support_labels")
    classes, class_of_image, class_sizes = support_labels.unique(return_inverse=True, return_counts=True)
    sums = full_precision(support).new_zeros(len(classes), support.shape[1])
    sums = sums.index_add(0, class_of_image, full_precision(support))  # (class, dim)
    prototypes = sums / class_sizes[:, None]
    return _queries_pick(prototypes, classes, query, query_labels, temperature, background, distance)


def matching_loss(
    support: Tensor,
    support_labels: Tensor,
    query: Tensor,
    query_labels: Tensor,
    *,
    temperature: float | Tensor = 1.0,
    background: float = 0.0,
    distance: DistanceName | Distance = "euclidean",
) -> Tensor:
    """Return the loss of Matching Networks (Section 2.2): a query picks among the support images themselves.

    The arguments are those of `prototypical_loss`, and with one shot the two are equal. `distance="cosine"` is the
    choice of Vinyals et al.; the paper finds the Euclidean distance better and uses it throughout.

    >>> support, query = torch.tensor([[0.0], [2.0], [9.0]]), torch.tensor([[1.0], [8.0]])
    >>> matching_loss(support, torch.tensor([0, 0, 1]), query, torch.tensor([0, 1])) < 1e-9
    tensor(True)
    """
    check_embeddings(support, "support")
    support_labels = checked_labels(support_labels, support, "support_labels")
    return _queries_pick(support, support_labels, query, query_labels, temperature, background, distance)


def episode_loss(
    embeddings: Tensor,
    labels: Tensor,
    shape: EpisodeShape,
    *,
    prototypes: bool,
    separate: bool,
    temperature: float | Tensor = 1.0,
    background: float = 0.0,
    distance: DistanceName | Distance = "euclidean",
) -> Tensor:
    """Return the loss of an episodic batch, for each of the paper's ablations (Section 3.4, Appendix B).

    | prototypes | separate | is                                                              | row of Figure 4 |
    |------------|----------|-----------------------------------------------------------------|-----------------|
    | True       | True     | Prototypical Networks                                           | 5 (4: one shot) |
    | False      | True     | Matching Networks                                               | 6               |
    | True       | False    | NCA on the queries and the prototypes together                  | 7               |
    | False      | False    | NCA on the whole batch, which has a fixed composition           | 3               |

    Args:
        embeddings: (image, dim), laid out as `EpisodeShape` says: support class by class, then query class by class.
        labels: (image,) whole numbers in the same layout.
        shape: ways, shots and queries.
        prototypes: average the support images of each class.
        separate: only queries are anchors, and only support (or prototypes) are candidates.
        temperature: as for `neighbour_loss`, like `background` and `distance`.
        background: 0 is the exact loss, 1e-10 the arithmetic of the published experiments.
        distance: "euclidean", "cosine", or a callable.

    >>> shape = EpisodeShape(n_way=2, n_shot=2, n_query=1)
    >>> labels = torch.tensor([7, 7, 3, 3, 7, 3])
    >>> embeddings = torch.randn(6, 4, generator=torch.Generator().manual_seed(0))
    >>> episode = episode_loss(embeddings, labels, shape, prototypes=False, separate=True)
    >>> torch.isclose(episode, matching_loss(embeddings[:4], labels[:4], embeddings[4:], labels[4:]))
    tensor(True)
    """
    check_embeddings(embeddings, "embeddings")
    labels = checked_labels(labels, embeddings, "labels")
    roles = episode_roles(full_precision(embeddings), labels, shape, prototypes=prototypes, separate=separate)
    return loss_of_roles(roles, temperature, background, distance)


def episode_roles(
    embeddings: Tensor, labels: Tensor, shape: EpisodeShape, *, prototypes: bool, separate: bool
) -> Roles:
    """Choose the anchors and the candidates of an episode; the ablations differ in this choice alone."""
    support, query = shape.split(embeddings)
    support_labels, query_labels = shape.split(labels)
    _check_layout(support_labels, query_labels, shape)
    if prototypes:
        support = support.view(shape.n_way, shape.n_shot, -1).mean(1)  # (way, dim)
        support_labels = support_labels.view(shape.n_way, shape.n_shot)[:, 0]  # (way,)
    if separate:
        return Roles(query, query_labels, support, support_labels, same_set=False)
    everything, all_labels = torch.cat([support, query]), torch.cat([support_labels, query_labels])
    return Roles(everything, all_labels, everything, all_labels, same_set=True)


def _queries_pick(
    candidates: Tensor,
    candidate_labels: Tensor,
    query: Tensor,
    query_labels: Tensor,
    temperature: float | Tensor,
    background: float,
    distance: DistanceName | Distance,
) -> Tensor:
    check_embeddings(query, "query")
    query_labels = checked_labels(query_labels, query, "query_labels")
    if values_can_be_read(query_labels):
        strangers = query_labels[~torch.isin(query_labels, candidate_labels)]
        if len(strangers):
            raise InputError(
                f"Query label {int(strangers[0])} has no support image. Every query needs its class there."
            )
    return neighbour_loss(
        query,
        query_labels,
        candidates,
        candidate_labels,
        temperature=temperature,
        background=background,
        distance=distance,
    )


def _check_layout(support_labels: Tensor, query_labels: Tensor, shape: EpisodeShape) -> None:
    if not values_can_be_read(support_labels):
        return
    support_classes = support_labels.view(shape.n_way, shape.n_shot)
    query_classes = query_labels.view(shape.n_way, shape.n_query)
    classes = support_classes[:, :1]  # (way, 1)
    if not ((support_classes == classes).all() and (query_classes == classes).all()):
        raise InputError(
            f"The labels are not laid out as an episode: expected {shape.n_shot} support images of each of "
            f"{shape.n_way} classes, class by class, then {shape.n_query} queries of each in the same order."
        )
    if len(classes.unique()) < shape.n_way:
        raise InputError(f"The episode has {len(classes.unique())} different classes; its shape says {shape.n_way}.")
