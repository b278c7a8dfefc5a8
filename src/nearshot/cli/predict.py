"""`nearshot predict`."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import tyro
from rich.cells import cell_len
from rich.console import Console

from nearshot.cli._options import SOME_UNREADABLE, Making, MakingOptions, read_squares
from nearshot.cli._warnings import print_warnings
from nearshot.errors import InputError, NearshotError
from nearshot.progress import with_progress
from nearshot.text import counted, print_message, printable

if TYPE_CHECKING:
    from nearshot.estimator import Explanation, FewShotClassifier

__all__ = ["Predict"]

AT_ONCE = 32
WIDEST = 60  # of a column of names; longer ones push their line to the right
COLUMNS = ("image", "label", "most_probable", "probability", "novelty", "nearest", "nearest_label", "distance", "error")


@dataclass(frozen=True)
class Predict:
    """Classify pictures by a few labelled ones: a folder for each class in, a line for each picture out.

    Nothing is trained: labelled pictures are embedded once, kept by their content, and compared with the new ones. Each
    line has the label, its probability, and the nearest labelled picture. A picture that cannot be read has a line that
    says why, and the exit status is then 3; so it is where a folder within what was given cannot be read.

    A network trained on pictures like yours does better: nearshot train --dataset ./my-photos makes one, and --backbone
    RUN uses it.

    Examples: nearshot predict --support ./flowers garden.jpg;
    nearshot predict --support ./flowers holiday/ --unknown-rate 0.05;
    nearshot predict --support ./flowers 'more/*.png' --format csv > answers.csv;
    nearshot predict --support flowers.safetensors holiday/ --format json
    """

    images: Annotated[
        tyro.conf.Positional[tuple[str, ...]], tyro.conf.arg(metavar="IMAGES…", help_behavior_hint="(required)")
    ]
    """What to classify: files, folders (with all pictures in them) or patterns."""
    support: Annotated[Path, tyro.conf.arg(metavar="DIR|BUNDLE")]
    """A folder with a folder of pictures for each class, whose name is the label; or a .safetensors file that nearshot
    export wrote."""
    making: MakingOptions = field(default_factory=Making)
    format: Literal["table", "csv", "json"] = "table"
    """A table to read, or CSV or JSON with more columns: the most probable class, all probabilities (JSON), novelty."""
    nearest: int = 1
    """How many of the nearest labelled pictures to name in JSON."""

    def run(self, console: Console) -> None:
        """Answer, picture by picture."""
        from nearshot.estimator.folders import find_pictures  # noqa: PLC0415 (imports scikit-learn)

        with print_warnings():
            paths, locked = find_pictures(self.images)
        if not paths:
            raise InputError("Say which pictures to classify: files, folders or patterns.")
        if self.nearest < 1:
            raise InputError(f"--nearest must be at least 1, not {self.nearest}.")
        classifier = self.making.classifier_of(self.support)
        n_bad = 0

        def watched() -> Iterator[Answer]:
            nonlocal n_bad
            for answer in _answers(classifier, paths, self.nearest):
                n_bad += isinstance(answer.told, NearshotError)
                yield answer

        WRITERS[self.format](watched(), console.file, paths, classifier)
        if n_bad:
            print_message(f"{n_bad:,} of {counted(len(paths), 'picture')} could not be read.")
        if n_bad or locked:
            raise SystemExit(SOME_UNREADABLE)


class Answer(NamedTuple):
    """A picture and what is said about it."""

    path: Path
    told: Explanation | NearshotError


def _answers(classifier: FewShotClassifier, paths: Sequence[Path], n_neighbors: int) -> Iterator[Answer]:
    """Yield an answer for each picture, while later ones are being read."""
    squares = read_squares(paths, classifier)
    # A bar among lines on the same screen would be in their way.
    show = sys.stderr.isatty() and not sys.stdout.isatty()
    for start in with_progress(range(0, len(paths), AT_ONCE), "predicting", show=show):
        some = paths[start : start + AT_ONCE]
        read = [next(squares) for _ in some]
        good = [one for one in read if not isinstance(one, NearshotError)]
        explained = iter(classifier.explain(good, n_neighbors) if good else [])
        for path, one in zip(some, read, strict=True):
            yield Answer(path, one if isinstance(one, NearshotError) else next(explained))


def _write_table(
    answers: Iterator[Answer], file: IO[str], paths: Sequence[Path], classifier: FewShotClassifier
) -> None:
    """Write aligned lines as they come."""
    wide = min(WIDEST, max(len("image"), *(cell_len(printable(path)) for path in paths)))
    labels = [printable(label) for label in (*classifier.classes_.tolist(), classifier.unknown_label)]
    label_wide = max(len("label"), *map(cell_len, labels))
    file.write(f"{_padded('image', wide)}  {_padded('label', label_wide)}  probability   nearest labelled picture\n")
    for path, told in answers:
        if isinstance(told, NearshotError):
            file.write(f"{_padded(path, wide)}  {_padded('–', label_wide)}  cannot be read: {printable(told)}\n")
            continue
        near = told.neighbours[0]
        sure = f"novelty {told.novelty:.2g}" if told.is_unknown else f"{100 * told.probability:.1f} %"
        where = f"{printable(near.name)} (distance {near.distance:.2f})"
        file.write(f"{_padded(path, wide)}  {_padded(told.label, label_wide)}  {sure:12}  {where}\n")


def _padded(text: object, width: int) -> str:
    """Return text in one line that fills so many columns of a terminal, in which some letters take two."""
    text = printable(text)
    return text + " " * (width - cell_len(text))


def _write_csv(answers: Iterator[Answer], file: IO[str], *_: object) -> None:
    writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
    writer.writeheader()
    for path, told in answers:
        if isinstance(told, NearshotError):
            writer.writerow({"image": printable(path), "error": printable(told)})
            continue
        near = told.neighbours[0]
        writer.writerow(
            {
                "image": printable(path),
                "label": printable(told.label),
                "most_probable": printable(told.nearest),
                "probability": f"{told.probability:.6f}",
                "novelty": f"{told.novelty:.4f}",
                "nearest": printable(near.name),
                "nearest_label": printable(near.label),
                "distance": f"{near.distance:.4f}",
            }
        )


def _write_json(answers: Iterator[Answer], file: IO[str], *_: object) -> None:
    """Write a list, an entry a line; in ASCII, as names of files may hold what no encoding has."""
    between = "[\n"
    for path, told in answers:
        file.write(f"{between}{json.dumps(_as_dict(path, told))}")
        between = ",\n"
    file.write("\n]\n")


def _as_dict(path: Path, told: Explanation | NearshotError) -> dict[str, Any]:
    if isinstance(told, NearshotError):
        return {"image": str(path), "error": str(told)}
    return {
        "image": str(path),
        "label": told.label,
        "unknown": told.is_unknown,
        "probabilities": {str(label): round(share, 6) for label, share in told.probabilities.items()},
        "novelty": told.novelty,
        "nearest": [asdict(one) for one in told.neighbours],
    }


Writer = Callable[[Iterator[Answer], IO[str], Sequence[Path], "FewShotClassifier"], None]
WRITERS: dict[str, Writer] = {"table": _write_table, "csv": _write_csv, "json": _write_json}
