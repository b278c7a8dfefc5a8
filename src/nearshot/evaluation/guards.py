"""Guards against leaks: training classes, and queries that are also in the support."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor

from nearshot.errors import LeakError
from nearshot.evaluation.episodes import Episodes
from nearshot.text import counted, format_list


def check_unseen_classes(training_classes: Iterable[str], evaluated_classes: Iterable[str]) -> None:
    """Refuse to evaluate on classes that were trained on; few-shot accuracy is about new ones (Section 2.1).

    >>> check_unseen_classes(["otter", "seal"], ["seal", "whale"])
    Traceback (most recent call last):
    nearshot.errors.LeakError: 1 evaluated class was trained on: 'seal'. ...
    """
    seen = sorted(set(training_classes) & set(evaluated_classes))
    if seen:
        n_seen = counted(len(seen), "evaluated class was", "evaluated classes were")
        raise LeakError(f"{n_seen} trained on: {format_list(seen)}. Few-shot accuracy needs unseen classes.")


class ContentGuard:
    """Refuses episodes in which a query is the same image as a support image, which would give the answer away.

    `content` (image,) has a number for each image, equal for images that are the same pixel by pixel.
    """

    def __init__(self, content: Tensor) -> None:
        _, self._group, size = content.cpu().unique(return_inverse=True, return_counts=True)
        self._is_repeated = size[self._group] > 1  # (image,)

    def check(self, drawn: Tensor, n_query: int, first_episode: int = 0) -> None:
        """Check episodes (episode, way, query + shot), of which the first has the number `first_episode`."""
        drawn = drawn.cpu()
        suspects = (self._is_repeated[drawn].flatten(1).sum(1) > 1).nonzero()[:, 0]  # with two repeated images or more
        query, support = drawn[suspects, :, :n_query].flatten(1), drawn[suspects, :, n_query:].flatten(1)
        clashes = (self._group[support][:, :, None] == self._group[query][:, None]).nonzero()
        if len(clashes):
            episode, shot, question = clashes[0].tolist()
            raise LeakError(
                f"In {len(clashes[:, 0].unique())} of the episodes {first_episode} to "
                f"{first_episode + len(drawn) - 1} a query is the same image as a support image: in episode "
                f"{first_episode + int(suspects[episode])}, images {int(support[episode, shot])} and "
                f"{int(query[episode, question])}. Remove one of each such pair from the dataset."
            )


def check_distinct_content(episodes: Episodes, content: Tensor) -> None:
    """Refuse episodes in which a query is the same image as a support image, by a store's `content` (image,)."""
    ContentGuard(content).check(episodes.images, episodes.n_query)
