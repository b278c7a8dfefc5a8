"""Guards against measuring what the model already knows."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor

from nearshot.errors import InputError, LeakError
from nearshot.evaluation.episodes import Episodes

__all__ = ["check_distinct_content", "check_unseen_classes"]


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


def check_distinct_content(episodes: Episodes, content: Tensor) -> None:
    """Refuse episodes in which a query has the same content as a support image: the answer would be given away.

    Args:
        episodes: what will be asked.
        content: (image,) a number for each image's content, equal for images that are the same pixel by pixel.

    """
    if content.ndim != 1 or int(episodes.images.max()) >= len(content):
        raise InputError(f"content must have a number for each image, not shape {tuple(content.shape)}.")
    _, group, size = content.cpu().unique(return_inverse=True, return_counts=True)
    is_repeated = size[group] > 1  # (image,)
    suspects = is_repeated[episodes.images.cpu()].flatten(1).sum(1) > 1  # episodes with two such images or more
    clashes = []
    for episode in suspects.nonzero()[:, 0].tolist():
        support, query = episodes.support[episode].flatten().tolist(), episodes.query[episode].flatten().tolist()
        by_content = {int(group[image]): image for image in support if is_repeated[image]}
        clashes += [(episode, by_content[int(group[q])], q) for q in query if int(group[q]) in by_content]
    if clashes:
        episode, support_image, query_image = clashes[0]
        n_episodes = len({clash[0] for clash in clashes})
        raise LeakError(
            f"In {n_episodes} of {len(episodes)} episodes a query is the same picture as a support image: in episode "
            f"{episode}, images {support_image} and {query_image}. Leave one of each such pair out of the dataset."
        )
