"""`nearshot predict`."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
import tyro
from rich.cells import cell_len
from rich.console import Console

from nearshot.app.copies import copy_into_classes
from nearshot.cli._options import SOME_UNREADABLE, ClassifierFlags, ClassifierOptions, embedder_of, find_queries, option
from nearshot.cli._scores import score_lines, true_labels
from nearshot.cli._tables import padded
from nearshot.errors import InputError, NearshotError
from nearshot.text import counted, print_line, print_message, printable, with_progress

if TYPE_CHECKING:
    from nearshot.estimator import Explanation, FewShotClassifier

    Answer = tuple[Path, Explanation | NearshotError]
    Answers = Iterator[Answer]

BATCH_SIZE = 32
MAX_WIDTH = 60  # of the column of names; longer names shift their line
COLUMNS = ("image", "label", "most_probable", "probability", "novelty", "nearest", "nearest_label", "distance", "error")


@dataclass(frozen=True)
class Predict:
    """Classify images by a few labelled ones: one folder per class in, one output line per image.

    Nothing is trained: labelled images are embedded once, cached, and compared with new ones. Each line has the label,
    its probability, and the nearest labelled image. An image that cannot be read has a line with the reason, and the
    exit status is then 3; so it is if a folder cannot be read, or an image cannot be copied.

    A network trained on images like yours is more accurate: train it with nearshot train --dataset ./my-photos, and use
    it with --backbone RUN.

    Examples: nearshot predict --support ./flowers garden.jpg;
    nearshot predict --support ./flowers holiday/ --unknown-rate 0.05;
    nearshot predict --support ./flowers 'more/*.png' --format csv > answers.csv;
    nearshot predict --support flowers.safetensors holiday/ --format json;
    nearshot predict --support ./flowers holiday/ --unknown-rate 0.05 --copy-to ./sorted;
    nearshot predict --support ./flowers ./flowers-test --score
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
    copy_to: Annotated[Path | None, option("copy nothing", "DIR")] = None
    """Copy every image into DIR/LABEL, and rejected ones into a folder of their own. No file is overwritten: another
    image of the same name becomes "name (2)", and one that is there already is not copied again."""
    score: tyro.conf.FlagCreatePairsOff[bool] = False
    """Compare labels with the names of the folders that the images lie in, and print the accuracy with its 95 %
    interval and the confused classes. With csv and json, they go to standard error."""

    def run(self, console: Console) -> None:
        """Classify images one by one."""
        paths, locked = find_queries(self.images, self.nearest)
        if not paths:
            raise InputError("images must be at least 1 file, folder or pattern (got none).")
        if self.copy_to is not None and self.copy_to.exists() and not self.copy_to.is_dir():
            raise InputError(f"copy_to must be a folder (got the file {self.copy_to}).")
        classifier = self.options.make_classifier(self.support)
        classes = [str(label) for label in classifier.classes_.tolist()]
        truths = true_labels(paths, self.images, classes) if self.score else {}
        found: list[Answer] = []
        answers = _answers(classifier, paths, self.nearest, found)
        if self.format == "table":
            _write_table(answers, console.file, paths, classifier)
        else:
            (_write_csv if self.format == "csv" else _write_json)(answers, console.file)
        labels = {path: str(one.label) for path, one in found if not isinstance(one, NearshotError)}
        n_bad = len(paths) - len(labels)
        if n_bad:
            print_message(f"{n_bad:,} of {counted(len(paths), 'image')} could not be read.")
        if self.score:
            report = Console(stderr=True, markup=False, highlight=False) if self.format != "table" else console
            for line in score_lines(labels, truths, classes):
                print_line(report, printable(line))
        failures = [] if self.copy_to is None else _copy(labels, self.copy_to)
        if n_bad or locked or failures:
            raise SystemExit(SOME_UNREADABLE)


def _copy(labels: Mapping[Path, str], folder: Path) -> list[str]:
    """Copy images into one folder per label, and return sentences about those that could not be copied."""
    done = copy_into_classes(labels.items(), folder)
    same = f"; {done.n_same:,} were there already" if done.n_same else ""
    print_message(f"{counted(done.n_new, 'image')} copied to {folder}{same}.")
    for sentence in done.failures:
        print_message(f"Not copied: {sentence}")
    return done.failures


def _answers(classifier: FewShotClassifier, paths: Sequence[Path], n_neighbors: int, found: list[Answer]) -> Answers:
    """Yield an answer per image, while later ones are being read, and add it to `found`."""
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
            found.append((path, one if isinstance(one, NearshotError) else next(explained)))
            yield found[-1]


def _write_table(answers: Answers, file: IO[str], paths: Sequence[Path], classifier: FewShotClassifier) -> None:
    wide = min(MAX_WIDTH, max(len("image"), *(cell_len(printable(path)) for path in paths)))
    labels = [printable(label) for label in (*classifier.classes_.tolist(), classifier.unknown_label)]
    label_wide = max(len("label"), *map(cell_len, labels))
    file.write(f"{padded('image', wide)}  {padded('label', label_wide)}  probability   nearest labelled image\n")
    for path, result in answers:
        label, rest = "–", f"cannot be read: {printable(result)}"
        if not isinstance(result, NearshotError):
            label, near = result.label, result.neighbours[0]
            sure = f"novelty {result.novelty:.2g}" if result.is_unknown else f"{100 * result.probability:.1f} %"
            rest = f"{sure:12}  {printable(near.name)} (distance {near.distance:.2f})"
        file.write(f"{padded(path, wide)}  {padded(label, label_wide)}  {rest}\n")


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
    entries = []
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
        entries.append(json.dumps(entry))
    file.write("[\n{}\n]\n".format(",\n".join(entries)))
