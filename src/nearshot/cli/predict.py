"""`nearshot predict`."""

from __future__ import annotations

import csv
import json
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
import tyro
from rich.cells import cell_len
from rich.console import Console

from nearshot.checks import check_count
from nearshot.cli._options import (
    SOME_UNREADABLE,
    ClassifierFlags,
    ClassifierOptions,
    embedder_of,
    option,
)
from nearshot.cli._tables import aligned, padded
from nearshot.errors import InputError, NearshotError
from nearshot.text import counted, format_list, print_line, print_message, printable, with_progress

if TYPE_CHECKING:
    from nearshot.estimator import Explanation, FewShotClassifier

    Answer = Explanation | NearshotError

BATCH_SIZE = 32
MAX_WIDTH = 60  # of the column of names; longer names shift their line
COLUMNS = (
    "image",
    "label",
    "most_probable",
    "probability",
    "novelty",
    "nearest",
    "nearest_label",
    "distance",
    "error",
)


@dataclass(frozen=True)
class Predict:
    """Classify images by a few labelled ones: one folder per class in, one output line per image.

    Nothing is trained: labelled images are embedded once, cached, and compared with new ones. Each
    line has the label, its probability, and the nearest labelled image. An image that cannot be
    read has a line with the reason, and the exit status is then 3; so it is if a folder cannot be
    read, or an image cannot be copied.

    A network trained on images like yours is more accurate: train it with nearshot train --dataset
    ./my-photos, and use it with --backbone RUN.

    Examples: nearshot predict --support ./flowers garden.jpg;
    nearshot predict --support ./flowers holiday/ --unknown-rate 0.05;
    nearshot predict --support ./flowers 'more/*.png' --format csv > answers.csv;
    nearshot predict --support flowers.safetensors holiday/ --format json;
    nearshot predict --support ./flowers holiday/ --unknown-rate 0.05 --copy-to ./sorted;
    nearshot predict --support ./flowers ./flowers-test --score
    """

    images: Annotated[
        tyro.conf.Positional[tuple[str, ...]],
        tyro.conf.arg(metavar="IMAGES…", help_behavior_hint="(required)"),
    ]
    """Images to classify: files, folders (all images in them) or patterns."""
    support: Annotated[Path, tyro.conf.arg(metavar="DIR|BUNDLE")]
    """A folder with one folder of images per class, whose name is the label; or a .safetensors
    bundle of nearshot export."""
    options: ClassifierFlags = field(default_factory=ClassifierOptions)
    format: Literal["table", "csv", "json"] = "table"
    """A table, or CSV or JSON with more columns: the most probable class, all probabilities (JSON), novelty."""
    nearest: int = 1
    """How many of the nearest labelled images to name in JSON."""
    copy_to: Annotated[str | None, option("copy nothing", "DIR")] = None
    """Copy every image into DIR/LABEL, and rejected ones into a folder of their own. No file is
    overwritten: another image of the same name becomes "name (2)", and one that is there already is
    not copied again."""
    score: tyro.conf.FlagCreatePairsOff[bool] = False
    """Compare labels with the names of the folders that the images lie in, and print the accuracy
    with its 95 % interval and the confused classes. With csv and json, they go to standard
    error."""

    def run(self, console: Console) -> None:
        """Classify images one by one."""
        from nearshot.estimator.copy_images import CopyResult, copy_into_classes  # noqa: PLC0415
        from nearshot.estimator.find_images import find_images  # noqa: PLC0415 (imports scikit-learn)

        check_count(self.nearest, "nearest")
        if self.copy_to is not None:
            check_apart(self.copy_to, self.support)
        found_images = find_images(self.images)
        paths = found_images.paths
        if not paths:
            raise InputError("images must be at least 1 file, folder or pattern (got none).")
        classifier = self.options.make_classifier(self.support)
        classes = [str(label) for label in classifier.classes_.tolist()]
        truths = true_labels(paths, self.images, classes) if self.score else {}
        labels, write = {}, console.file.write
        wide = min(MAX_WIDTH, max(len("image"), *(cell_len(printable(path)) for path in paths)))
        label_wide = max(
            len("label"),
            *(cell_len(printable(one)) for one in (*classes, classifier.unknown_label)),
        )
        table, entries = csv.writer(console.file, lineterminator="\n"), []
        if self.format == "table":
            write(
                f"{padded('image', wide)}  {padded('label', label_wide)}  probability   nearest labelled image\n"
            )
        elif self.format == "csv":
            table.writerow(COLUMNS)
        for path, answer in _answers(classifier, paths, self.nearest):
            if self.format == "table":
                label, rest = _in_table(answer)
                write(f"{padded(path, wide)}  {padded(label, label_wide)}  {rest}\n")
            elif self.format == "csv":
                table.writerow(map(printable, [path, *_in_csv(answer)]))
            else:  # in ASCII, since file names may not be valid Unicode
                entries.append(json.dumps({"image": str(path)} | _in_json(answer)))
            if not isinstance(answer, NearshotError):
                labels[path] = str(answer.label)
        if self.format == "json":
            write("[\n{}\n]\n".format(",\n".join(entries)))
        if n_bad := len(paths) - len(labels):
            print_message(f"{n_bad:,} of {counted(len(paths), 'image')} could not be read.")
        if self.score:
            report = (
                Console(stderr=True, markup=False, highlight=False)
                if self.format != "table"
                else console
            )
            for line in score_lines(labels, truths, classes):
                print_line(report, printable(line))
        done = (
            CopyResult()
            if self.copy_to is None
            else copy_into_classes(labels.items(), Path(self.copy_to))
        )
        if self.copy_to is not None:
            same = f"; {done.n_same:,} were there already" if done.n_same else ""
            print_message(f"{counted(done.n_new, 'image')} copied to {self.copy_to}{same}.")
        for sentence in done.failures:
            print_message(f"Not copied: {sentence}")
        if done.earlier:
            print_message(done.about_earlier)
        if n_bad or found_images.unread or done.failures:
            raise SystemExit(SOME_UNREADABLE)


def check_apart(copy_to: str, support: Path) -> None:
    """Raise an error if the folder for copies has no name, or if copies would mix with labelled images."""
    if not copy_to:  # as of a shell's variable that is not set
        raise InputError(
            "copy_to must be the name of a folder (got an empty text). For this folder, use --copy-to ."
        )
    copies, labelled = Path(copy_to).resolve(), support.resolve()
    if labelled.is_dir() and (copies.is_relative_to(labelled) or labelled.is_relative_to(copies)):
        raise InputError(
            f"copy_to must be apart from the labelled images in {support}, or predictions would count as labels (got "
            f"{copy_to}). Choose another folder."
        )


def _answers(
    classifier: FewShotClassifier, paths: Sequence[Path], n_neighbors: int
) -> Iterator[tuple[Path, Answer]]:
    """Yield an answer per image, while later ones are being read."""
    from nearshot.estimator.explanation import explain_answers  # noqa: PLC0415 (imports scikit-learn)

    fitted = classifier.fitted_state()
    features = embedder_of(classifier).stream(paths)
    # A progress bar would mix with lines on the same terminal.
    show = sys.stderr.isatty() and not sys.stdout.isatty()
    for start in with_progress(range(0, len(paths), BATCH_SIZE), "predicting", show=show):
        some = [(path, next(features)) for path in paths[start : start + BATCH_SIZE]]
        good = [one for _, one in some if not isinstance(one, NearshotError)]
        explained = iter(
            explain_answers(fitted, fitted.prepare(np.stack(good)), n_neighbors) if good else []
        )
        for path, one in some:
            yield path, one if isinstance(one, NearshotError) else next(explained)


def _in_table(answer: Answer) -> tuple[object, str]:
    """Return the label, and what follows it."""
    if isinstance(answer, NearshotError):
        return "–", f"cannot be read: {printable(answer)}"
    near = answer.neighbours[0]
    sure = (
        f"novelty {answer.novelty:.2g}"
        if answer.is_unknown
        else f"{100 * answer.probability:.1f} %"
    )
    return answer.label, f"{sure:12}  {printable(near.name)} (distance {near.distance:.2f})"


def _in_csv(answer: Answer) -> list[object]:
    if isinstance(answer, NearshotError):
        return [""] * 7 + [answer]
    near, numbers = answer.neighbours[0], (f"{answer.probability:.6f}", f"{answer.novelty:.4f}")
    return [
        answer.label,
        answer.nearest,
        *numbers,
        near.name,
        near.label,
        f"{near.distance:.4f}",
        "",
    ]


def _in_json(answer: Answer) -> dict[str, Any]:
    if isinstance(answer, NearshotError):
        return {"error": str(answer)}
    return {
        "label": answer.label,
        "unknown": answer.is_unknown,
        "probabilities": {
            str(label): round(share, 6) for label, share in answer.probabilities.items()
        },
        "novelty": answer.novelty,
        "nearest": [asdict(one) for one in answer.neighbours],
    }


def true_labels(
    paths: Sequence[Path], given: Sequence[str], classes: Sequence[str]
) -> dict[Path, str]:
    """Return the class of each image by the folders that it lies in: the innermost that is named like a class.

    Those are the folders inside of a given one, and the given one itself; of an image that is
    given, its folder. If none is named like a class, the result is the name of the innermost. It is
    an error if that is so for all images.
    """
    found = {}
    for path in paths:
        names = [path.absolute().parent.name]
        for root in map(Path, given):
            if path != root and path.is_relative_to(root):
                names = [root.absolute().name, *path.relative_to(root).parts[:-1]]
        found[path] = next((name for name in reversed(names) if name in classes), names[-1])
    if not set(found.values()) & set(classes):
        raise InputError(
            f"score needs images in folders that are named like the classes, {format_list(classes)} "
            f"(got {format_list(dict.fromkeys(found.values()))})."
        )
    return found


def score_lines(
    labels: Mapping[Path, str], truths: Mapping[Path, str], classes: Sequence[str]
) -> list[str]:
    """Return the accuracy with its interval, a line per class with what it is taken for, and what was not scored.

    `labels` are the answers for images, `truths` the names of their folders. Folders that are not
    named like a class are not scored; their images should be rejected.
    """
    from scipy.stats import binomtest  # noqa: PLC0415 (takes a second to import)

    answers = {
        name: Counter(label for path, label in labels.items() if truths[path] == name)
        for name in classes
    }
    strangers = [label for path, label in labels.items() if truths[path] not in answers]
    n, n_right = (
        sum(one.total() for one in answers.values()),
        sum(one[name] for name, one in answers.items()),
    )
    if n == 0:
        return ["", "Accuracy: unknown, since no image of the classes could be read."]
    interval = binomtest(n_right, n).proportion_ci(0.95, method="exact")
    limits = f"{100 * interval.low:.1f} to {100 * interval.high:.1f} %"
    lines = [
        "",
        f"Accuracy: {100 * n_right / n:.1f} % (95 % interval {limits}; {n_right:,} of {counted(n, 'image')})",
    ]
    rows = []
    for name, found in answers.items():
        others = ", ".join(
            f"{other} {count:,}" for other, count in found.most_common() if other != name
        )
        right = (
            f"{found[name]:,} of {found.total():,} right{f'; taken for {others}' if others else ''}"
        )
        rows += [(f"  {name}", right)] if found else []
    lines += aligned(rows)
    if strangers:
        n_rejected = sum(label not in answers for label in strangers)
        lines.append(f"Images of other folders: {n_rejected:,} of {len(strangers):,} rejected.")
    return lines
