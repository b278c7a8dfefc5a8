"""`nearshot show`."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import numpy as np
import tyro
from rich.console import Console

from nearshot.checks import check_count
from nearshot.cli._options import SOME_UNREADABLE, ClassifierFlags, ClassifierOptions, embedder_of, option
from nearshot.errors import InputError
from nearshot.text import counted, printable


@dataclass(frozen=True)
class Show:
    """Draw a classifier: labelled images, new images with their classes, and all of them on a plane.

    The plane is that of the two principal axes of the features. The file is a self-contained HTML page or a PNG.

    Examples: nearshot show ./flowers --query garden.jpg holiday/; nearshot show ./flowers --query holiday/
    --unknown-rate 0.05 --output f.png; nearshot show flowers.safetensors
    """

    support: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="DIR|BUNDLE")]
    """A folder with one folder of images per class, or a bundle of nearshot export."""
    query: Annotated[tuple[str, ...], option("none", "IMAGES…")] = ()
    """Images to classify: files, folders (all images in them) or patterns."""
    output: Annotated[Path, tyro.conf.arg(metavar="FILE")] = Path("nearshot-show.html")
    """The file to write, .html or .png."""
    nearest: int = 3
    """How many of the nearest labelled images to show beside each (HTML)."""
    options: ClassifierFlags = field(default_factory=ClassifierOptions)

    def run(self, console: Console) -> None:
        """Write the drawing."""
        from nearshot.estimator.image_inputs import find_images  # noqa: PLC0415 (takes seconds to import)
        from nearshot.estimator.plot import check_ending, draw, make_scene  # noqa: PLC0415
        from nearshot.estimator.support import classifier_of  # noqa: PLC0415

        check_ending(self.output)
        check_count(self.nearest, "nearest")
        paths, unread = find_images(self.query)
        classifier = self.options.make_classifier(self.support)
        notes = f"Backbone {embedder_of(classifier).spec.name}, {classifier_of(classifier.classifier).name} classifier."
        if np.isfinite(classifier.threshold_):
            notes += f" An image with a novelty above {classifier.threshold_:.2f} is {classifier.unknown_label}."
        try:
            notes += f" Expected accuracy for new images like these: {classifier.estimate_accuracy()}."
        except InputError as error:  # one class, or one image per class
            notes += f" Expected accuracy: unknown. {error}"
        n_classes, n_images = len(classifier.classes_), len(classifier.support_labels_)
        title = f"{self.support.stem}: {counted(n_classes, 'class', 'classes')}, {counted(n_images, 'labelled image')}"
        scene = make_scene(classifier, paths, self.nearest, title, [notes])
        draw(scene, self.output)
        console.print(f"Written to {self.output} ({self.output.stat().st_size / 1e6:.1f} MB).")
        for sentence in scene.errors:
            console.print(f"Skipped: {printable(sentence)}")
        if scene.errors or unread:
            raise SystemExit(SOME_UNREADABLE)
