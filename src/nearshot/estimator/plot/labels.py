"""Where the classes' names go on the plane."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from nearshot.estimator.plot.scene import Places

__all__ = ["place_names"]

MOST_TRIED = 40  # images of a class
AWAY = 16.0  # from an image's middle to a name's, downwards or up


def place_names(
    names: Sequence[str], groups: Sequence[Places], others: Places, *, letter: float, room: float
) -> list[tuple[float, float]]:
    """Return the middle of each class's name: beside one of its images, where it covers the fewest markers and names.

    Args:
        names: the names.
        groups: (image, 2) for each class, where its images are drawn.
        others: (marker, 2) where other things are drawn.
        letter: about how wide a letter is.
        room: how far from its middle a marker reaches.
    """
    markers = np.concatenate([*groups, others])
    taken: list[tuple[float, float, float]] = []  # the middles of names, and half their widths
    for name, group in zip(names, groups, strict=True):
        half = len(name) * letter / 2
        beside = half + room + 3
        steps = np.array([(0, -AWAY), (0, AWAY), (beside, 0), (-beside, 0)])
        tried = (group[:MOST_TRIED, None] + steps).reshape(-1, 2)
        away = np.abs(tried[:, None] - markers)  # (tried, marker, 2)
        covered = ((away[..., 0] < half + room) & (away[..., 1] < AWAY / 2 + room / 2)).sum(1)
        for x, y, width in taken:
            covered += (np.abs(tried[:, 0] - x) < half + width) & (np.abs(tried[:, 1] - y) < AWAY)
        # Of equally good places the one nearest to the middle of the class.
        x, y = tried[np.lexsort([((tried - group.mean(0)) ** 2).sum(1), covered])[0]].tolist()
        taken.append((x, y, half))
    return [(x, y) for x, y, _ in taken]
