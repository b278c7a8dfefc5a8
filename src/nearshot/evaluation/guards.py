"""Guards against leaks: training classes, and queries that are also in the support."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor

from nearshot.errors import InputError, LeakError
from nearshot.evaluation.episodes import Episodes

__all__ = ["ContentGuard", "check_distinct_content", "check_unseen_classes"]


def check_unseen_classes(training_classes: Iterable[str], evaluated_classes: Iterable[str]) -> None:
    """Refuse to evaluate on classes that were trained on; few-shot accuracy is about new ones (Section 2.1).

    >>> check_unseen_classes(["otter", "seal"], ["seal", "whale"])
    Traceback (most recent call last):
    nearshot.errors.LeakError: 1 of the evaluated classes was trained on: 'seal'. ...
    """
    seen = sorted(set(training_classes) & set(evaluated_classes))
    if seen:
        named = ", ".join(map(repr, seen[:5])) + (", …" if len(seen) > 5 else "")
        raise LeakError(
            f"{len(seen)} of the evaluated classes {'was' if len(seen) == 1 else 'were'} trained on: {named}. "
            "Few-shot accuracy needs unseen classes."
        )


class ContentGuard:
    """Refuses episodes in which a query is the same image as a support image, which would give the answer away.

    Args:
        content: (image,) a number for each image's content, equal for images that are the same pixel by pixel.
    """

    def __init__(self, content: Tensor) -> None:
        if content.ndim != 1:
            raise InputError(f"content must have shape (image,) (got {tuple(content.shape)}).")
        _, self._group, size = content.cpu().unique(return_inverse=True, return_counts=True)
        self._is_repeated = size[self._group] > 1  # (image,)

    def check(self, drawn: Tensor, n_query: int, first_episode: int = 0) -> None:
        """Check episodes (episode, way, query + shot), of which the first has the number `first_episode`."""
        drawn = drawn.cpu()
        if int(drawn.max()) >= len(self._group):
            raise InputError(f"content has {len(self._group)} images, and episodes refer to image {int(drawn.max())}.")
        suspects = self._is_repeated[drawn].flatten(1).sum(1) > 1  # episodes with two repeated images or more
        clashes = []
        for episode in suspects.nonzero()[:, 0].tolist():
            query = drawn[episode, :, :n_query].flatten().tolist()
            support = drawn[episode, :, n_query:].flatten().tolist()
            by_content = {int(self._group[image]): image for image in support if self._is_repeated[image]}
            clashes += [
                (episode, by_content[int(self._group[q])], q) for q in query if int(self._group[q]) in by_content
            ]
        if clashes:
            episode, support_image, query_image = clashes[0]
            raise LeakError(
                f"In {len({clash[0] for clash in clashes})} of the episodes {first_episode} to "
                f"{first_episode + len(drawn) - 1} a query is the same image as a support image: in episode "
                f"{first_episode + episode}, images {support_image} and {query_image}. Remove one of each such pair "
                "from the dataset."
            )


def check_distinct_content(episodes: Episodes, content: Tensor) -> None:
    """Refuse episodes in which a query is the same image as a support image.

    Args:
        episodes: the episodes.
        content: (image,) a number for each image's content, such as a store's `content`.
    """
    ContentGuard(content).check(episodes.images, episodes.n_query)
