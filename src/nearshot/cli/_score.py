"""Compare answers with the names of the folders that the images lie in."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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


@dataclass(frozen=True)
class Score:
    """How many images got the name of their folder.

    Attributes:
        answers: for each class, how often its images got each answer.
        n_elsewhere: how many images lie in folders that are not named like a class.
        n_rejected: how many of those were rejected, as they should be.
    """

    answers: Mapping[str, Counter[str]]
    n_elsewhere: int
    n_rejected: int

    @property
    def n_images(self) -> int:
        """The number of images of the classes."""
        return sum(counts.total() for counts in self.answers.values())

    @property
    def n_right(self) -> int:
        """How many of them got the name of their folder."""
        return sum(counts[name] for name, counts in self.answers.items())

    @property
    def interval(self) -> tuple[float, float]:
        """Clopper and Pearson's 95 % interval of the accuracy."""
        from scipy.stats import binomtest  # noqa: PLC0415 (takes a second to import)

        interval = binomtest(self.n_right, self.n_images).proportion_ci(0.95, method="exact")
        return float(interval.low), float(interval.high)

    def as_dict(self) -> dict[str, Any]:
        """Return the accuracy, its interval and the answers, as JSON can hold them."""
        classes = {
            name: {"images": counts.total(), "right": counts[name], "answers": dict(counts)}
            for name, counts in self.answers.items()
        }
        return {
            "images": self.n_images,
            "right": self.n_right,
            "accuracy": self.n_right / self.n_images if self.n_images else None,
            "interval95": list(self.interval) if self.n_images else None,
            "classes": classes,
            "other_folders": {"images": self.n_elsewhere, "rejected": self.n_rejected},
        }

    def lines(self) -> list[str]:
        """Return the accuracy with its interval, and a line per class with its wrong answers.

        Images in folders that are not named like a class have a line of their own.
        """
        if self.n_images == 0:
            return ["", "Accuracy: unknown, since no image of the classes could be read."]
        low, high = self.interval
        accuracy = (
            f"Accuracy: {100 * self.n_right / self.n_images:.1f} % "
            f"(95 % interval {100 * low:.1f} to {100 * high:.1f} %; "
            f"{self.n_right:,} of {counted(self.n_images, 'image')})"
        )
        lines = ["", accuracy]
        rows = [_class_row(name, counts) for name, counts in self.answers.items() if counts]
        lines += aligned(rows)
        if self.n_elsewhere:
            lines.append(
                f"Images of other folders: {self.n_rejected:,} of {self.n_elsewhere:,} rejected."
            )
        return lines


def score_of(
    labels: Mapping[Path, str], truths: Mapping[Path, str], classes: Sequence[str]
) -> Score:
    """Return the score of answers, `labels`, against the names of the images' folders, `truths`."""
    answers: dict[str, Counter[str]] = {name: Counter() for name in classes}
    answers_elsewhere = []
    for path, label in labels.items():
        truth = truths[path]
        if truth in answers:
            answers[truth][label] += 1
        else:
            answers_elsewhere.append(label)
    n_rejected = sum(label not in answers for label in answers_elsewhere)
    return Score(answers, len(answers_elsewhere), n_rejected)


def _class_row(name: str, counts: Counter[str]) -> tuple[str, str]:
    """Return the cells of a class: how many images are right, and what the others are taken for."""
    right = f"{counts[name]:,} of {counts.total():,} right"
    others = [f"{label} {n:,}" for label, n in counts.most_common() if label != name]
    if others:
        right += f"; taken for {', '.join(others)}"
    return f"  {name}", right
