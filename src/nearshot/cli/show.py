"""`nearshot show`."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import numpy as np
import tyro
from rich.console import Console

from nearshot.cli._options import SOME_UNREADABLE, Making, MakingOptions, read_squares
from nearshot.cli._warnings import print_warnings
from nearshot.errors import InputError, NearshotError
from nearshot.text import printable

if TYPE_CHECKING:
    from nearshot.estimator import FewShotClassifier

__all__ = ["Show"]


@dataclass(frozen=True)
class Show:
    """Draw what a classifier sees: labelled pictures, new ones with decisions, and all of them on a plane.

    The plane is that of the two principal axes of the features as they are compared. The file is one page of HTML,
    which fetches nothing, or a PNG.

    Examples: nearshot show ./flowers --query garden.jpg holiday/; nearshot show ./flowers --query holiday/
    --unknown-rate 0.05 --output f.png; nearshot show flowers.safetensors
    """

    support: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="DIR|BUNDLE")]
    """A folder with a folder of pictures for each class; or a bundle that nearshot export wrote."""
    query: Annotated[tuple[str, ...], tyro.conf.arg(metavar="IMAGES…", help_behavior_hint="(default: none)")] = ()
    """What to ask about: files, folders (with all pictures in them) or patterns."""
    output: Annotated[Path, tyro.conf.arg(metavar="FILE")] = Path("nearshot-show.html")
    """The file to write, .html or .png."""
    nearest: int = 3
    """How many of the nearest labelled pictures to show beside each (HTML)."""
    making: MakingOptions = field(default_factory=Making)

    def run(self, console: Console) -> None:
        """Draw, and say where it is."""
        # scikit-learn and matplotlib take seconds, which the help need not wait for
        from nearshot.estimator.folders import find_pictures  # noqa: PLC0415
        from nearshot.estimator.plot import draw, make_scene  # noqa: PLC0415
        from nearshot.estimator.plot.output import check_ending  # noqa: PLC0415

        check_ending(self.output)
        if self.nearest < 1:
            raise InputError(f"--nearest must be at least 1, not {self.nearest}.")
        with print_warnings():
            paths, locked = find_pictures(self.query)
        classifier = self.making.classifier_of(self.support)
        read = list(read_squares(paths, classifier))
        errors = [str(one) for one in read if isinstance(one, NearshotError)]
        good = [path for path, one in zip(paths, read, strict=True) if not isinstance(one, NearshotError)]
        scene = make_scene(
            classifier,
            good,
            n_neighbors=self.nearest,
            title=_title(self.support, classifier),
            notes=_notes(classifier),
            errors=errors,
        )
        with print_warnings():
            draw(scene, self.output)
        console.print(f"Written to {self.output} ({self.output.stat().st_size / 1e6:.1f} MB).")
        for error in errors:
            console.print(f"Left out: {printable(error)}")
        if errors or locked:
            raise SystemExit(SOME_UNREADABLE)


def _notes(classifier: FewShotClassifier) -> list[str]:
    """Say how decisions are made, and how good they may be."""
    spec = getattr(classifier.embedder_.backbone, "spec", None) if classifier.embedder_ is not None else None
    notes = [f"Backbone {spec.name if spec else 'of your own'}, {classifier.classifier} classifier."]
    if np.isfinite(classifier.threshold_):
        notes.append(f"Over a novelty of {classifier.threshold_:.2f} a picture is {classifier.unknown_label}.")
    try:
        notes.append(f"Expected to be right for new pictures like these: {classifier.estimate_accuracy()}.")
    except InputError as error:  # one class, or no second picture of any
        notes.append(f"There is no telling how often this will be right. {error}")
    return [" ".join(notes)]


def _title(support: Path, classifier: FewShotClassifier) -> str:
    n_classes, n_images = len(classifier.classes_), len(classifier.support_labels_)
    return f"{support.stem}: {n_classes:,} class{'' if n_classes == 1 else 'es'} by {n_images:,} labelled pictures"
