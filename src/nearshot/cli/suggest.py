"""`nearshot suggest`."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

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
    from nearshot.estimator.embedder import Features

UNKNOWN_RATE = 0.05  # of the photos of the classes, which may be taken for novel ones
NOVEL, UNSURE, VARIED = "unlike all classes", "between classes", "unlike the others"
DOUBTFUL = 0.4


class Suggestion(NamedTuple):
    """A line of the output: an image to label, or a label to check."""

    kind: str  # "label next" or "check label"
    image: str
    label: str  # of an image to check; empty otherwise
    looks_like: str  # the most probable class
    probability: float
    why: str


@dataclass(frozen=True)
class Suggest:
    """Suggest images to label next, and labelled images whose labels look wrong.

    Images to label next are doubtful: between two classes, or unlike all of them. Among those, the
    suggested ones are unlike each other, so that a few of them teach most. Images that are labelled
    already are skipped. A label looks wrong if the other labelled images give the image another
    class with a probability of at least 0.7. Images that cannot be read are skipped, with a
    message, and the exit status is then 3; so it is if a folder cannot be read.

    Examples: nearshot suggest --support ./flowers holiday/; nearshot suggest --support ./flowers;
    nearshot suggest --support ./flowers holiday/ --count 50 --format csv > next.csv
    """

    images: Annotated[
        tyro.conf.Positional[tuple[str, ...]], option("check the labels only", "IMAGES…")
    ] = ()
    """Images without labels: files, folders (all images in them) or patterns."""
    support: Annotated[
        Path, tyro.conf.arg(metavar="DIR|BUNDLE", help_behavior_hint="(required)")
    ] = field(kw_only=True)
    """A folder with one folder of images per class, whose name is the label; or a bundle of nearshot export."""
    count: int = 10
    """How many images to suggest at most."""
    format: Literal["table", "csv", "json"] = "table"
    """A table, CSV or JSON."""
    options: ClassifierFlags = field(default_factory=ClassifierOptions)

    def run(self, console: Console) -> None:
        """Print the suggestions."""
        from nearshot.estimator.find_images import find_images  # noqa: PLC0415 (imports scikit-learn)
        from nearshot.estimator.suggestions import are_labelled  # noqa: PLC0415

        check_count(self.count, "count")
        found_images = find_images(self.images)
        paths = found_images.paths
        options = self.options
        if options.unknown_rate is None and self.support.is_dir():
            # No answer has the unknown label, so any will do that is no class.
            options = replace(options, unknown_rate=UNKNOWN_RATE, unknown_label="")
        classifier = options.make_classifier(self.support)
        embedded = embedder_of(classifier).attempt(paths, progress=None) if paths else []
        errors = [one for one in embedded if isinstance(one, NearshotError)]
        new = {
            path: one
            for path, one in zip(paths, embedded, strict=True)
            if not isinstance(one, NearshotError)
        }
        if new:
            known = are_labelled(classifier, np.stack(list(new.values())))
            new = {
                path: one for (path, one), skip in zip(new.items(), known, strict=True) if not skip
            }
            if known.any():
                print_message(f"Skipped: {counted(int(known.sum()), 'image')} labelled already.")
        found = _suggestions(classifier, new, self.count)
        if self.format == "table":
            _print_tables(found, classifier, len(new), console)
        elif self.format == "json":
            console.file.write(f"{json.dumps([one._asdict() for one in found], indent=1)}\n")
        else:
            writer = csv.writer(console.file, lineterminator="\n")
            writer.writerows([Suggestion._fields, *(map(printable, one) for one in found)])
        for error in errors:
            print_message(f"Skipped: {error}")
        if errors or found_images.unread:
            raise SystemExit(SOME_UNREADABLE)


def _suggestions(
    classifier: FewShotClassifier, features: Mapping[Path, Features], count: int
) -> list[Suggestion]:
    """Return the images to label next, of images with their features, and the labelled images to check."""
    from nearshot.estimator.suggestions import (  # noqa: PLC0415 (imports scikit-learn)
        held_out_probabilities,
        rank_unlabelled,
        suspicious_labels,
    )

    names = [str(name) for name in classifier.classes_.tolist()]
    found, paths = list[Suggestion](), list(features)

    def suggest(kind: str, image: object, label: str, shares: Any, why: str) -> None:
        looks_like, share = names[shares.argmax()], round(float(shares.max()), 4)
        found.append(Suggestion(kind, str(image), label, looks_like, share, why))

    if features:
        ranked = rank_unlabelled(classifier, np.stack(list(features.values())), count)
        for place in ranked.label_next:
            why = (
                NOVEL
                if ranked.is_novel[place]
                else UNSURE
                if ranked.doubt[place] > DOUBTFUL
                else VARIED
            )
            suggest("label next", paths[place], "", ranked.probabilities[place], why)
    images, probabilities = held_out_probabilities(classifier)
    codes = classifier.support_labels_[images]
    for place in suspicious_labels(probabilities, codes):
        image, label = classifier.support_names_[images[place]], names[codes[place]]
        suggest("check label", image, label, probabilities[place], "the other images say so")
    return found


def _print_tables(
    found: Sequence[Suggestion], classifier: FewShotClassifier, n_images: int, console: Console
) -> None:
    n_labelled, n_checked = (
        len(classifier.support_labels_),
        len(classifier.fitted_state().held_out.images),
    )
    labelled = counted(n_labelled, "labelled image") + (
        f" ({n_checked:,} checked)" if n_checked < n_labelled else ""
    )
    for kind, title, head in (
        (
            "label next",
            f"Label next, of {counted(n_images, 'image')}:",
            ("image", "why", "looks most like"),
        ),
        ("check label", f"Check these labels, of {labelled}:", ("image", "label", "looks like")),
    ):
        rows = [
            (one.image, getattr(one, head[1]), f"{one.looks_like} ({100 * one.probability:.0f} %)")
            for one in found
            if one.kind == kind
        ]
        if rows:
            console.print("\n  ".join([title, *aligned([head, *rows])]), end="\n\n")
    if all(one.kind == "label next" for one in found):
        console.print(f"No label of {labelled} looks wrong.")
