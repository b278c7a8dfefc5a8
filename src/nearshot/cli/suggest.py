"""`nearshot suggest`."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Literal

import numpy as np
import tyro
from rich.console import Console

from nearshot.checks import check_count
from nearshot.cli._options import (
    SOME_UNREADABLE,
    ClassifierFlags,
    ClassifierOptions,
    embedder_of,
    option,
)
from nearshot.cli._tables import aligned
from nearshot.errors import NearshotError
from nearshot.text import counted, print_message, printable

if TYPE_CHECKING:
    from nearshot.estimator import FewShotClassifier
    from nearshot.estimator.embedding_cache import Features

NOVEL = "unlike all classes"
DOUBTFUL = "between classes"
VARIED = "unlike the others"
LEAST_DOUBT = 0.4  # of a doubtful image
CONTRADICTED = "the other images say so"


@dataclass(frozen=True)
class Suggestion:
    """A line of the output: an image to label, or a label to check.

    Attributes:
        kind: "label next" or "check label".
        image: its path or name.
        label: the label of an image to check; empty otherwise.
        looks_like: the most probable class.
        probability: of that class.
        why: the reason, in a few words.
    """

    kind: Literal["label next", "check label"]
    image: str
    label: str
    looks_like: str
    probability: float
    why: str

    @property
    def likeness(self) -> str:
        """The most probable class with its probability."""
        return f"{self.looks_like} ({100 * self.probability:.0f} %)"


@dataclass(frozen=True)
class Suggest:
    """Suggest images to label next, and labelled images whose labels look wrong.

    Images to label next are doubtful: between two classes, or unlike all of them. Among those, the
    suggested ones are unlike each other, so that a few of them teach most; of photos that look
    alike, one is suggested. Images that are labelled already are skipped. A label looks wrong if
    the other labelled images give the image another class with a probability of at least 0.7.
    Images that cannot be read are skipped, with a message, and the exit status is then 3; so it is
    if a folder cannot be read.

    Examples:
      nearshot suggest --support ./flowers holiday/
      nearshot suggest --support ./flowers
      nearshot suggest --support ./flowers holiday/ --count 50 --format csv > next.csv
    """

    images: Annotated[
        tyro.conf.Positional[tuple[str, ...]], option("check the labels only", "IMAGES…")
    ] = ()
    """Images without labels: files, folders (all images in them) or patterns."""
    support: Annotated[
        Path, tyro.conf.arg(metavar="DIR|BUNDLE", help_behavior_hint="(required)")
    ] = field(kw_only=True)
    """A folder with one folder of images per class, whose name is the label; or a bundle of
    nearshot export."""
    count: int = 10
    """How many images to suggest at most."""
    format: Literal["table", "csv", "json"] = "table"
    """A table, CSV or JSON."""
    options: ClassifierFlags = field(default_factory=ClassifierOptions)

    def run(self, console: Console) -> None:
        """Print the suggestions."""
        from nearshot.estimator.find_images import find_images  # noqa: PLC0415 (imports scikit-learn)

        check_count(self.count, "count")
        images = find_images(self.images)
        classifier = self.options.make_classifier(self.support)
        features, errors = _embed(classifier, images.paths)
        features = _without_labelled(classifier, features)
        suggestions = [
            *_images_to_label(classifier, features, self.count),
            *_labels_to_check(classifier),
        ]
        if self.format == "table":
            _print_tables(suggestions, classifier, len(features), console)
        elif self.format == "json":
            entries = [asdict(suggestion) for suggestion in suggestions]
            console.file.write(f"{json.dumps(entries, indent=1)}\n")
        else:
            _write_csv(suggestions, console.file)
        for error in errors:
            print_message(f"Skipped: {error}")
        if errors or images.unread:
            raise SystemExit(SOME_UNREADABLE)


def _embed(
    classifier: FewShotClassifier, paths: Sequence[Path]
) -> tuple[dict[Path, Features], list[NearshotError]]:
    """Return the feature of each readable image, (dim,), and the errors of the others."""
    features: dict[Path, Features] = {}
    errors: list[NearshotError] = []
    if not paths:
        return features, errors
    results = embedder_of(classifier).attempt(paths, progress=None)
    for path, result in zip(paths, results, strict=True):
        if isinstance(result, NearshotError):
            errors.append(result)
        else:
            features[path] = result
    return features, errors


def _without_labelled(
    classifier: FewShotClassifier, features: Mapping[Path, Features]
) -> dict[Path, Features]:
    """Return the features of images that are not labelled already; print how many are."""
    from nearshot.estimator.suggestions import are_labelled  # noqa: PLC0415 (imports scikit-learn)

    if not features:
        return {}
    is_labelled = are_labelled(classifier, np.stack(list(features.values())))
    n_labelled = int(is_labelled.sum())
    if n_labelled > 0:
        print_message(f"Skipped: {counted(n_labelled, 'image')} labelled already.")
    new_features = {}
    for (path, feature), is_known in zip(features.items(), is_labelled, strict=True):
        if not is_known:
            new_features[path] = feature
    return new_features


def _images_to_label(
    classifier: FewShotClassifier, features: Mapping[Path, Features], count: int
) -> list[Suggestion]:
    from nearshot.estimator.suggestions import rank_unlabelled  # noqa: PLC0415 (imports scikit-learn)

    if not features:
        return []
    paths = list(features)
    ranking = rank_unlabelled(classifier, np.stack(list(features.values())), count)
    suggestions = []
    for image in ranking.label_next:
        if ranking.is_novel[image]:
            why = NOVEL
        elif ranking.doubt[image] > LEAST_DOUBT:
            why = DOUBTFUL
        else:
            why = VARIED
        probabilities = ranking.probabilities[image]
        suggestions.append(
            Suggestion(
                kind="label next",
                image=str(paths[image]),
                label="",
                looks_like=str(classifier.classes_[probabilities.argmax()]),
                probability=round(float(probabilities.max()), 4),
                why=why,
            )
        )
    return suggestions


def _labels_to_check(classifier: FewShotClassifier) -> list[Suggestion]:
    from nearshot.estimator.suggestions import (  # noqa: PLC0415 (imports scikit-learn)
        held_out_probabilities,
        suspicious_labels,
    )

    images, probabilities = held_out_probabilities(classifier)
    codes = classifier.support_labels_[images]
    return [
        Suggestion(
            kind="check label",
            image=classifier.support_names_[images[row]],
            label=str(classifier.classes_[codes[row]]),
            looks_like=str(classifier.classes_[probabilities[row].argmax()]),
            probability=round(float(probabilities[row].max()), 4),
            why=CONTRADICTED,
        )
        for row in suspicious_labels(probabilities, codes)
    ]


def _write_csv(suggestions: Sequence[Suggestion], file: IO[str]) -> None:
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow([column.name for column in fields(Suggestion)])
    for suggestion in suggestions:
        writer.writerow([printable(value) for value in asdict(suggestion).values()])


def _print_tables(
    suggestions: Sequence[Suggestion],
    classifier: FewShotClassifier,
    n_images: int,
    console: Console,
) -> None:
    to_label = [row for row in suggestions if row.kind == "label next"]
    to_check = [row for row in suggestions if row.kind == "check label"]
    n_labelled = len(classifier.support_labels_)
    n_checked = len(classifier.fitted_state().held_out.images)
    labelled_images = counted(n_labelled, "labelled image")
    if n_checked < n_labelled:
        labelled_images += f" ({n_checked:,} checked)"
    if to_label:
        rows = [("image", "why", "looks most like")]
        rows += [(row.image, row.why, row.likeness) for row in to_label]
        _print_table(f"Label next, of {counted(n_images, 'image')}:", rows, console)
    if to_check:
        rows = [("image", "label", "looks like")]
        rows += [(row.image, row.label, row.likeness) for row in to_check]
        _print_table(f"Check these labels, of {labelled_images}:", rows, console)
    else:
        console.print(f"No label of {labelled_images} looks wrong.")


def _print_table(title: str, rows: Sequence[Sequence[str]], console: Console) -> None:
    console.print("\n  ".join([title, *aligned(rows)]), end="\n\n")
