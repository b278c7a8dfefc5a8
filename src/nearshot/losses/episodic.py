"""Losses on support and query images: Prototypical and Matching Networks, and the ablations."""

from typing import NamedTuple

import torch
from torch import Tensor

from nearshot.distances import Distance, DistanceName, full_precision
from nearshot.episode_shape import EpisodeShape
from nearshot.errors import InputError
from nearshot.losses._checks import checked_labels, values_can_be_read
from nearshot.losses.neighbours import neighbour_loss


class Roles(NamedTuple):
    """The anchors and the candidates of a loss: the choice in which the paper's methods differ."""

    anchors: Tensor  # (anchor, dim)
    anchor_labels: Tensor  # (anchor,)
    candidates: Tensor  # (candidate, dim); the same tensor as the anchors where `same_set`
    candidate_labels: Tensor  # (candidate,)
    same_set: bool  # the candidates are the anchors, and no anchor is its own candidate


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
    """Return the loss of Prototypical Networks (Section 2.2): a query picks among prototypes.

    A prototype is the mean embedding of the support images of a class.

    Args:
        support: (support image, dim).
        support_labels: (support image,), in any order and with any number of images a class.
        query: (query image, dim).
        query_labels: (query image,), each of a class that has support.
        temperature: as for `neighbour_loss`, like `background` and `distance`.
        background: 0 is the exact loss, 1e-10 the arithmetic of the published experiments.
        distance: "euclidean", "cosine", or a callable.

    Grouping by label reads the labels, which makes an accelerator wait; `episode_loss` groups by
    position.

    >>> support, query = torch.tensor([[0.0], [2.0], [9.0]]), torch.tensor([[1.0], [8.0]])
    >>> prototypical_loss(support, torch.tensor([0, 0, 1]), query, torch.tensor([0, 1])) < 1e-9
    tensor(True)
    """
    support_labels = checked_labels(support_labels, support, "support")
    classes, class_of_image, class_sizes = support_labels.unique(
        return_inverse=True, return_counts=True
    )
    sums = full_precision(support).new_zeros(len(classes), support.shape[1])
    sums = sums.index_add(0, class_of_image, full_precision(support))  # (class, dim)
    prototypes = sums / class_sizes[:, None]
    return matching_loss(
        prototypes,
        classes,
        query,
        query_labels,
        temperature=temperature,
        background=background,
        distance=distance,
    )


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
    """Return the loss of Matching Networks (Section 2.2): a query picks among support images.

    The arguments are those of `prototypical_loss`, and with one shot the two are equal.
    `distance="cosine"` is the choice of Vinyals et al.; the paper finds the Euclidean distance
    better and uses it throughout.
    """
    support_labels = checked_labels(support_labels, support, "support")
    query_labels = checked_labels(query_labels, query, "query")
    if values_can_be_read(query_labels):
        strangers = query_labels[~torch.isin(query_labels, support_labels)]
        if len(strangers):
            raise InputError(
                f"query_labels has the label {int(strangers[0])}, but support_labels does not. "
                "Add a support image of it."
            )
    return neighbour_loss(
        query,
        query_labels,
        support,
        support_labels,
        temperature=temperature,
        background=background,
        distance=distance,
    )


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
    """Return the loss of an episodic batch, for each of the paper's ablations.

    They are in Section 3.4 and Appendix B:

    | prototypes | separate | method                                     | row of Figure 4 |
    |------------|----------|--------------------------------------------|-----------------|
    | True       | True     | Prototypical Networks                      | 5; 4: one shot  |
    | False      | True     | Matching Networks                          | 6               |
    | True       | False    | NCA on queries and prototypes together     | 7               |
    | False      | False    | NCA on the batch, of a fixed composition   | 3               |

    Args:
        embeddings: (image, dim), laid out as `EpisodeShape` says: support class by class, then
            query class by class.
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
    >>> loss = episode_loss(embeddings, labels, shape, prototypes=False, separate=True)
    >>> matching = matching_loss(embeddings[:4], labels[:4], embeddings[4:], labels[4:])
    >>> torch.isclose(loss, matching)
    tensor(True)
    """
    labels = checked_labels(labels, embeddings)
    roles = episode_roles(
        full_precision(embeddings), labels, shape, prototypes=prototypes, separate=separate
    )
    return neighbour_loss(
        roles.anchors,
        roles.anchor_labels,
        roles.candidates,
        roles.candidate_labels,
        same_set=roles.same_set,
        temperature=temperature,
        background=background,
        distance=distance,
    )


def episode_roles(
    embeddings: Tensor, labels: Tensor, shape: EpisodeShape, *, prototypes: bool, separate: bool
) -> Roles:
    """Return the anchors and the candidates of an episode; the ablations differ in this alone."""
    support, query = shape.split(embeddings)
    support_labels, query_labels = shape.split(labels)
    classes = support_labels[:: shape.n_shot]  # (way,)
    if values_can_be_read(labels):
        _check_layout(labels, classes, shape)
    if prototypes:
        support = support.view(shape.n_way, shape.n_shot, -1).mean(1)  # (way, dim)
        support_labels = classes
    if separate:
        return Roles(query, query_labels, support, support_labels, same_set=False)
    images = torch.cat([support, query])
    image_labels = torch.cat([support_labels, query_labels])
    return Roles(images, image_labels, images, image_labels, same_set=True)


def _check_layout(labels: Tensor, classes: Tensor, shape: EpisodeShape) -> None:
    """Raise an error unless labels are laid out as `EpisodeShape` says; `classes` is (way,)."""
    expected = torch.cat(
        [classes.repeat_interleave(shape.n_shot), classes.repeat_interleave(shape.n_query)]
    )
    if not torch.equal(labels, expected) or len(classes.unique()) < shape.n_way:
        raise InputError(
            f"labels must have the layout of an episode: {shape.n_shot} support images of each of "
            f"{shape.n_way} different classes, class by class, then {shape.n_query} queries of "
            "each in the same order."
        )
