"""`nearshot export`."""

from dataclasses import dataclass, field
from pathlib import Path
from shlex import quote
from typing import Annotated

import tyro
from rich.console import Console

from nearshot.cli._options import ClassifierFlags, ClassifierOptions
from nearshot.errors import InputError
from nearshot.text import counted


@dataclass(frozen=True)
class Export:
    """Export a classifier to one file: network, preprocessing, features of the labelled images and all settings.

    An .onnx file runs wherever ONNX does (servers, phones, browsers), without nearshot: raw uint8
    images of any size in, labels and probabilities out. It needs the extra onnx: pip install
    'nearshot[onnx]'. A .safetensors file is a bundle for nearshot: FewShotClassifier.load, nearshot
    predict and nearshot show read it. Neither contains images, and neither can run code when it is
    opened.

    Examples: nearshot export ./flowers flowers.onnx --unknown-rate 0.05; nearshot export ./flowers
    flowers.safetensors;
    nearshot export flowers.safetensors flowers.onnx
    """

    support: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="DIR|BUNDLE")]
    """A folder with one folder of images per class, or a bundle."""
    file: Annotated[
        tyro.conf.Positional[Path | None], tyro.conf.arg(metavar="FILE", help_behavior_hint="")
    ] = None
    """The file to write (required); its suffix, .onnx or .safetensors, is the format."""
    output: Annotated[Path | None, tyro.conf.arg(metavar="FILE", help_behavior_hint="")] = None
    """The same as FILE."""
    options: ClassifierFlags = field(default_factory=ClassifierOptions)

    def run(self, console: Console) -> None:
        """Write the file, and print its inputs and outputs."""
        output = self.output or self.file
        if output is None:
            raise InputError(
                "FILE is missing: give the file to write, such as flowers.onnx or flowers.safetensors."
            )
        kind = output.suffix.lower()
        if kind not in (".onnx", ".safetensors"):
            raise InputError(f"output must end in .onnx or .safetensors (got {output.name!r}).")
        classifier = self.options.make_classifier(self.support)
        if kind == ".onnx":
            from nearshot.estimator.onnx import export_onnx  # noqa: PLC0415 (imports scikit-learn)

            export_onnx(classifier, output)
            rejects = ", unknown" if classifier.unknown_rate is not None else ""
            about = "Input: images (image, height, width, 3), uint8 RGB of any size, upright. "
            about += f"Outputs: label, probabilities, novelty{rejects}."
        else:
            classifier.save(output)
            about = f"Next: nearshot predict --support {quote(str(output))} IMAGES…"
        n_classes, n_images = len(classifier.classes_), len(classifier.support_labels_)
        size = f"{output.stat().st_size / 1e6:.1f} MB"
        what = f"{counted(n_classes, 'class', 'classes')}, {counted(n_images, 'labelled image')}"
        console.print(f"Written to {output} ({size}): {what}.\n{about}")
