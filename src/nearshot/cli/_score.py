"""Compare answers with the names of the folders that the images lie in."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from nearshot.cli._tables import aligned
from nearshot.errors import InputError
from nearshot.text import counted, format_list


def true_labels(
    paths: Sequence[Path], requested: Sequence[str], classes: Sequence[str]
) -> dict[Path, str]:
    """Return the class of each image by the folders that it lies in.

    It is the innermost folder that is named like a class. Only the requested folders and those
    inside of them count; of an image that was requested itself, its folder. If none is named like a
    class, the result is the name of the innermost. It is an error if that is so for all images.
    """
    labels = {}
    for path in paths:
        folders = _folders_of(path, requested)
        class_folders = [folder for folder in folders if folder in classes]
        labels[path] = class_folders[-1] if class_folders else folders[-1]
    if not set(labels.values()) & set(classes):
        raise InputError(
            f"score needs images in folders that are named like the classes, "
            f"{format_list(classes)} (got {format_list(dict.fromkeys(labels.values()))})."
        )
    return labels


def _folders_of(path: Path, requested: Sequence[str]) -> list[str]:
    """Return the names of the folders that an image lies in, from the requested one inwards."""
    folders = [path.absolute().parent.name]
    for root in map(Path, requested):
        if path != root and path.is_relative_to(root):
            folders = [root.absolute().name, *path.relative_to(root).parts[:-1]]
    return folders


def score_lines(
    labels: Mapping[Path, str], truths: Mapping[Path, str], classes: Sequence[str]
) -> list[str]:
    """Return the accuracy with its interval, and a line per class with what it is taken for.

    `labels` are the answers for images, `truths` the names of their folders. Images in folders that
    are not named like a class should be rejected; they have a line of their own.
    """
    answers: dict[str, Counter[str]] = {name: Counter() for name in classes}
    answers_elsewhere = []
    for path, label in labels.items():
        truth = truths[path]
        if truth in answers:
            answers[truth][label] += 1
        else:
            answers_elsewhere.append(label)
    n_images = sum(counts.total() for counts in answers.values())
    n_right = sum(counts[name] for name, counts in answers.items())
    if n_images == 0:
        return ["", "Accuracy: unknown, since no image of the classes could be read."]
    lines = ["", _accuracy_line(n_right, n_images)]
    lines += aligned([_class_row(name, counts) for name, counts in answers.items() if counts])
    if answers_elsewhere:
        n_rejected = sum(label not in answers for label in answers_elsewhere)
        lines.append(
            f"Images of other folders: {n_rejected:,} of {len(answers_elsewhere):,} rejected."
        )
    return lines


def _accuracy_line(n_right: int, n_images: int) -> str:
    from scipy.stats import binomtest  # noqa: PLC0415 (takes a second to import)

    interval = binomtest(n_right, n_images).proportion_ci(0.95, method="exact")
    return (
        f"Accuracy: {100 * n_right / n_images:.1f} % "
        f"(95 % interval {100 * interval.low:.1f} to {100 * interval.high:.1f} %; "
        f"{n_right:,} of {counted(n_images, 'image')})"
    )


def _class_row(name: str, counts: Counter[str]) -> tuple[str, str]:
    """Return the cells of a class: how many images are right, and what the others are taken for."""
    right = f"{counts[name]:,} of {counts.total():,} right"
    others = [f"{label} {n:,}" for label, n in counts.most_common() if label != name]
    if others:
        right += f"; taken for {', '.join(others)}"
    return f"  {name}", right
