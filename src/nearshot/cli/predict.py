"""`nearshot predict`."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
import tyro
from rich.cells import cell_len
from rich.console import Console

from nearshot.cli._options import SOME_UNREADABLE, ClassifierFlags, ClassifierOptions, embedder_of, find_queries
from nearshot.errors import InputError, NearshotError
from nearshot.progress import with_progress
from nearshot.text import counted, print_message, printable

if TYPE_CHECKING:
    from nearshot.estimator import Explanation, FewShotClassifier

    Answers = Iterator[tuple[Path, Explanation | NearshotError]]

BATCH_SIZE = 32
MAX_WIDTH = 60  # of the column of names; longer names shift their line
COLUMNS = ("image", "label", "most_probable", "probability", "novelty", "nearest", "nearest_label", "distance", "error")


@dataclass(frozen=True)
class Predict:
    """Classify images by a few labelled ones: one folder per class in, one output line per image.

    Nothing is trained: labelled images are embedded once, cached, and compared with new ones. Each line has the label,
    its probability, and the nearest labelled image. An image that cannot be read has a line with the reason, and the
    exit status is then 3; so it is if a folder cannot be read.

    A network trained on images like yours is more accurate: train it with nearshot train --dataset ./my-photos, and use
    it with --backbone RUN.

    Examples: nearshot predict --support ./flowers garden.jpg;
    nearshot predict --support ./flowers holiday/ --unknown-rate 0.05;
    nearshot predict --support ./flowers 'more/*.png' --format csv > answers.csv;
    nearshot predict --support flowers.safetensors holiday/ --format json
    """

    images: Annotated[
        tyro.conf.Positional[tuple[str, ...]], tyro.conf.arg(metavar="IMAGES…", help_behavior_hint="(required)")
    ]
    """Images to classify: files, folders (all images in them) or patterns."""
    support: Annotated[Path, tyro.conf.arg(metavar="DIR|BUNDLE")]
    """A folder with one folder of images per class, whose name is the label; or a .safetensors bundle of nearshot
    export."""
    options: ClassifierFlags = field(default_factory=ClassifierOptions)
    format: Literal["table", "csv", "json"] = "table"
    """A table, or CSV or JSON with more columns: the most probable class, all probabilities (JSON), novelty."""
    nearest: int = 1
    """How many of the nearest labelled images to name in JSON."""

    def run(self, console: Console) -> None:
        """Classify images one by one."""
        paths, locked = find_queries(self.images, self.nearest)
        if not paths:
            raise InputError("images must be at least 1 file, folder or pattern (got none).")
        classifier = self.options.make_classifier(self.support)
        bad: list[Path] = []
        answers = _answers(classifier, paths, self.nearest, bad)
        if self.format == "table":
            _write_table(answers, console.file, paths, classifier)
        else:
            (_write_csv if self.format == "csv" else _write_json)(answers, console.file)
        if bad:
            print_message(f"{len(bad):,} of {counted(len(paths), 'image')} could not be read.")
        if bad or locked:
            raise SystemExit(SOME_UNREADABLE)


def _answers(classifier: FewShotClassifier, paths: Sequence[Path], n_neighbors: int, bad: list[Path]) -> Answers:
    """Yield an answer per image, while later ones are being read; add unreadable images to `bad`."""
    from nearshot.estimator.explanation import explain_answers  # noqa: PLC0415 (imports scikit-learn)

    fitted = classifier._ready()
    features = embedder_of(classifier).stream(paths)
    # A progress bar would mix with lines on the same terminal.
    show = sys.stderr.isatty() and not sys.stdout.isatty()
    for start in with_progress(range(0, len(paths), BATCH_SIZE), "predicting", show=show):
        some = [(path, next(features)) for path in paths[start : start + BATCH_SIZE]]
        good = [one for _, one in some if not isinstance(one, NearshotError)]
        explained = iter(explain_answers(fitted, fitted.prepare(np.stack(good)), n_neighbors) if good else [])
        for path, one in some:
            if isinstance(one, NearshotError):
                bad.append(path)
            yield path, one if isinstance(one, NearshotError) else next(explained)


def _write_table(answers: Answers, file: IO[str], paths: Sequence[Path], classifier: FewShotClassifier) -> None:
    wide = min(MAX_WIDTH, max(len("image"), *(cell_len(printable(path)) for path in paths)))
    labels = [printable(label) for label in (*classifier.classes_.tolist(), classifier.unknown_label)]
    label_wide = max(len("label"), *map(cell_len, labels))
    file.write(f"{_padded('image', wide)}  {_padded('label', label_wide)}  probability   nearest labelled image\n")
    for path, result in answers:
        label, rest = "–", f"cannot be read: {printable(result)}"
        if not isinstance(result, NearshotError):
            label, near = result.label, result.neighbours[0]
            sure = f"novelty {result.novelty:.2g}" if result.is_unknown else f"{100 * result.probability:.1f} %"
            rest = f"{sure:12}  {printable(near.name)} (distance {near.distance:.2f})"
        file.write(f"{_padded(path, wide)}  {_padded(label, label_wide)}  {rest}\n")


def _padded(text: object, width: int) -> str:
    """Return text padded to a number of terminal columns; some letters take two."""
    text = printable(text)
    return text + " " * (width - cell_len(text))


def _write_csv(answers: Answers, file: IO[str]) -> None:
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(COLUMNS)
    for path, result in answers:
        values: list[object] = [""] * 7 + [result]
        if not isinstance(result, NearshotError):
            near, numbers = result.neighbours[0], (f"{result.probability:.6f}", f"{result.novelty:.4f}")
            values = [result.label, result.nearest, *numbers, near.name, near.label, f"{near.distance:.4f}", ""]
        writer.writerow(map(printable, [path, *values]))


def _write_json(answers: Answers, file: IO[str]) -> None:
    """Write a list, one entry per line, in ASCII, since file names may not be valid Unicode."""
    between = "[\n"
    for path, result in answers:
        entry: dict[str, Any] = {"image": str(path)}
        if isinstance(result, NearshotError):
            entry["error"] = str(result)
        else:
            entry |= {
                "label": result.label,
                "unknown": result.is_unknown,
                "probabilities": {str(label): round(share, 6) for label, share in result.probabilities.items()},
                "novelty": result.novelty,
                "nearest": [asdict(one) for one in result.neighbours],
            }
        file.write(f"{between}{json.dumps(entry)}")
        between = ",\n"
    file.write("\n]\n")
