"""`nearshot predict`."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import numpy as np
import tyro
from rich.console import Console

from nearshot.checks import check_count
from nearshot.cli._answers import Format, answer_writer
from nearshot.cli._options import (
    SOME_UNREADABLE,
    ClassifierFlags,
    ClassifierOptions,
    embedder_of,
    option,
)
from nearshot.cli._score import score_of, true_labels
from nearshot.errors import InputError, NearshotError
from nearshot.text import counted, print_line, print_message, printable, with_progress

if TYPE_CHECKING:
    from nearshot.cli._answers import Answer
    from nearshot.estimator import Explanation, FewShotClassifier

BATCH_SIZE = 32


@dataclass(frozen=True)
class Predict:
    """Classify images by a few labelled ones: one folder per class in, one output line per image.

    Nothing is trained: labelled images are embedded once, cached, and compared with new ones. Each
    line has the label, its probability, and the nearest labelled image. An image that cannot be
    read has a line with the reason, and the exit status is then 3; so it is if a folder cannot be
    read, or an image cannot be copied.

    A network trained on images like yours is more accurate: train it with nearshot train --dataset
    ./my-photos, and use it with --backbone RUN.

    Examples:
      nearshot predict --support ./flowers garden.jpg
      nearshot predict --support ./flowers holiday/ --reject-rate 0.1
      nearshot predict --support ./flowers 'more/*.png' --format csv > answers.csv
      nearshot predict --support flowers.safetensors holiday/ --format jsonl
      find . -name '*.jpg' | nearshot predict --support ./flowers - --format jsonl
      nearshot predict --support ./flowers holiday/ --copy-to ./sorted
      nearshot predict --support ./flowers ./flowers-test --score
    """

    images: Annotated[
        tyro.conf.Positional[tuple[str, ...]],
        tyro.conf.arg(metavar="IMAGES…", help_behavior_hint="(required)"),
    ]
    """Images to classify: files, folders (all images in them) or patterns. - reads a list of files
    from standard input, one a line."""
    support: Annotated[Path, tyro.conf.arg(metavar="DIR|BUNDLE")]
    """A folder with one folder of images per class, whose name is the label; or a .safetensors
    bundle of nearshot export."""
    options: ClassifierFlags = field(default_factory=ClassifierOptions)
    format: Format = "table"
    """A table, or CSV or JSON with more columns: the most probable class, all probabilities (JSON),
    novelty. jsonl is one JSON object a line, written as soon as its image is classified."""
    nearest: int = 1
    """How many of the nearest labelled images to name in JSON."""
    copy_to: Annotated[str | None, option("copy nothing", "DIR")] = None
    """Copy every image into DIR/LABEL, and rejected ones into a folder of their own. No file is
    overwritten: another image of the same name becomes "name (2)", and one that is there already is
    not copied again."""
    score: tyro.conf.FlagCreatePairsOff[bool] = False
    """Compare labels with the names of the folders that the images lie in, and print the accuracy
    with its 95 % interval and the confused classes. With json and jsonl they are part of the
    output, with csv they go to standard error."""

    def run(self, console: Console) -> None:
        """Classify images one by one."""
        from nearshot.estimator.find_images import find_images  # noqa: PLC0415 (imports scikit-learn)

        check_count(self.nearest, "nearest")
        if self.copy_to is not None:
            check_apart(self.copy_to, self.support)
        requested = with_listed(self.images)
        images = find_images(requested)
        paths = images.paths
        if not paths:
            raise InputError("images must be at least 1 file, folder or pattern (got none).")
        classifier = self.options.make_classifier(self.support)
        classes = [str(label) for label in classifier.classes_.tolist()]
        truths = true_labels(paths, requested, classes) if self.score else {}
        writer = answer_writer(
            self.format, console.file, paths, [*classes, str(classifier.reject_label)]
        )
        labels = {}
        for path, answer in _answers(classifier, paths, self.nearest):
            writer.write(path, answer)
            if not isinstance(answer, NearshotError):
                labels[path] = str(answer.label)
        score = score_of(labels, truths, classes) if self.score else None
        writer.close(None if score is None else score.as_dict())
        n_unreadable = len(paths) - len(labels)
        if n_unreadable > 0:
            print_message(f"{n_unreadable:,} of {counted(len(paths), 'image')} could not be read.")
        if score is not None and self.format in ("table", "csv"):
            self._print_score(score.lines(), console)
        n_not_copied = 0
        if self.copy_to is not None:
            n_not_copied = _copy_images(labels, self.copy_to)
        if n_unreadable > 0 or images.unread or n_not_copied > 0:
            raise SystemExit(SOME_UNREADABLE)

    def _print_score(self, lines: Sequence[str], console: Console) -> None:
        if self.format != "table":  # so that the output remains CSV
            console = Console(stderr=True, markup=False, highlight=False)
        for line in lines:
            print_line(console, printable(line))


def with_listed(images: Sequence[str]) -> list[str]:
    """Return the images with "-" replaced by the files that standard input lists.

    They are separated by line breaks, or by zeros, as `find -print0` writes them.
    """
    requested: list[str] = []
    for image in images:
        if image != "-":
            requested.append(image)
            continue
        listed = os.fsdecode(sys.stdin.buffer.read())
        separator = "\0" if "\0" in listed else "\n"
        requested += [line for line in listed.split(separator) if line.strip()]
    return requested


def check_apart(copy_to: str, support: Path) -> None:
    """Raise an error if the folder for copies would mix with labelled images."""
    copies = Path(copy_to).resolve()
    labelled = support.resolve()
    if not labelled.is_dir():
        return
    if copies.is_relative_to(labelled) or labelled.is_relative_to(copies):
        raise InputError(
            f"copy_to must be apart from the labelled images in {support}, or predictions would "
            f"count as labels (got {copy_to}). Choose another folder."
        )


def _answers(
    classifier: FewShotClassifier, paths: Sequence[Path], n_neighbors: int
) -> Iterator[tuple[Path, Answer]]:
    """Yield an answer per image, while later ones are being read."""
    from nearshot.estimator.explanation import explain_answers  # noqa: PLC0415 (imports scikit-learn)

    state = classifier.fitted_state()
    results = embedder_of(classifier).stream(paths)
    # A progress bar would mix with lines on the same terminal.
    progress = sys.stderr.isatty() and not sys.stdout.isatty()
    starts = range(0, len(paths), BATCH_SIZE)
    for start in with_progress(starts, "predicting", progress=progress):
        batch = [(path, next(results)) for path in paths[start : start + BATCH_SIZE]]
        features = [result for _, result in batch if not isinstance(result, NearshotError)]
        explanations: Iterator[Explanation] = iter(())
        if features:
            query = state.prepare(np.stack(features))
            explanations = iter(explain_answers(state, query, n_neighbors))
        for path, result in batch:
            if isinstance(result, NearshotError):
                yield path, result
            else:
                yield path, next(explanations)


def _copy_images(labels: Mapping[Path, str], copy_to: str) -> int:
    """Copy images into folders of their labels; return how many could not be copied."""
    from nearshot.estimator.copy_images import copy_into_classes  # noqa: PLC0415 (imports scikit-learn)

    result = copy_into_classes(labels.items(), Path(copy_to))
    message = f"{counted(result.n_new, 'image')} copied to {copy_to}"
    if result.n_same > 0:
        message += f"; {result.n_same:,} were there already"
    print_message(f"{message}.")
    for failure in result.failures:
        print_message(f"Not copied: {failure}")
    if result.earlier:
        print_message(result.about_earlier)
    return len(result.failures)
