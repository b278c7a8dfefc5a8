"""Compare labels with the folders that images lie in."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from rich.cells import cell_len

from nearshot.cli._tables import padded
from nearshot.errors import InputError
from nearshot.text import counted, format_list, printable


def true_labels(paths: Iterable[Path], given: Sequence[str], classes: Sequence[str]) -> dict[Path, str]:
    """Return the class of each image by the folders that it lies in: the innermost that is named like a class.

    Those are the folders inside of a given one, and the given one itself; of an image that is given, its folder. If
    none is named like a class, the result is the name of the innermost. It is an error if that is so for all images.
    """
    roots = [Path(one).expanduser() for one in given]
    found = {}
    for path in paths:
        names = [path.absolute().parent.name]
        for root in roots:
            if path != root and path.is_relative_to(root):
                names = [root.absolute().name, *path.relative_to(root).parts[:-1]]
        found[path] = next((name for name in reversed(names) if name in classes), names[-1])
    if not set(found.values()) & set(classes):
        raise InputError(
            f"score needs images in folders that are named like the classes, {format_list(classes)} "
            f"(got {format_list(dict.fromkeys(found.values()))})."
        )
    return found


def score_lines(labels: Mapping[Path, str], truths: Mapping[Path, str], classes: Sequence[str]) -> list[str]:
    """Return the accuracy with its interval, a line per class with what it is taken for, and what was not scored.

    `labels` are the answers for images, `truths` the names of their folders. Folders that are not named like a class
    are not scored; their images should be rejected.
    """
    from scipy.stats import binomtest  # noqa: PLC0415 (takes a second to import)

    answers = {name: Counter(label for path, label in labels.items() if truths[path] == name) for name in classes}
    strangers = [label for path, label in labels.items() if truths[path] not in answers]
    n, n_right = sum(one.total() for one in answers.values()), sum(one[name] for name, one in answers.items())
    if n == 0:
        return ["", "Accuracy: unknown, since no image of the classes could be read."]
    interval = binomtest(n_right, n).proportion_ci(0.95, method="exact")
    limits = f"{100 * interval.low:.1f} to {100 * interval.high:.1f} %"
    lines = ["", f"Accuracy: {100 * n_right / n:.1f} % (95 % interval {limits}; {n_right:,} of {counted(n, 'image')})"]
    wide = max(map(cell_len, map(printable, classes)))
    for name, found in answers.items():
        others = ", ".join(f"{other} {count:,}" for other, count in found.most_common() if other != name)
        if found:
            right = f"{found[name]:,} of {found.total():,} right"
            lines.append(f"  {padded(name, wide)}  {right}{f'; taken for {others}' if others else ''}")
    if strangers:
        n_rejected = sum(label not in answers for label in strangers)
        lines.append(f"Images of other folders: {n_rejected:,} of {len(strangers):,} rejected.")
    return lines
