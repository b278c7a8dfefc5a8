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
    """Export a classifier to one file: network, preprocessing, labelled features and settings.

    An .onnx file runs wherever ONNX does (servers, phones, browsers), without nearshot: raw uint8
    images of any size in, labels and probabilities out. It needs the extra onnx: pip install
    '.[onnx]' in the clone. A .safetensors file is a bundle for nearshot: FewShotClassifier.load,
    nearshot predict and nearshot suggest read it. Neither contains images, and neither can run code
    when it is opened.

    Examples:
      nearshot export ./flowers flowers.onnx --reject-rate 0.02
      nearshot export ./flowers flowers.safetensors
      nearshot export flowers.safetensors flowers.onnx
    """

    support: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="DIR|BUNDLE")]
    """A folder with one folder of images per class, or a bundle."""
    output: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="FILE")]
    """The file to write; its suffix, .onnx or .safetensors, is the format."""
    options: ClassifierFlags = field(default_factory=ClassifierOptions)

    def run(self, console: Console) -> None:
        """Write the file, and print its inputs and outputs."""
        suffix = self.output.suffix.lower()
        if suffix not in (".onnx", ".safetensors"):
            raise InputError(
                f"output must end in .onnx or .safetensors (got {self.output.name!r})."
            )
        classifier = self.options.make_classifier(self.support)
        if suffix == ".onnx":
            from nearshot.estimator.onnx import export_onnx  # noqa: PLC0415 (imports scikit-learn)

            export_onnx(classifier, self.output)
            outputs = "label, probabilities, novelty"
            if classifier.reject_rate > 0:
                outputs += ", rejected"
            usage = (
                "Input: images (image, height, width, 3), uint8 RGB of any size, upright. "
                f"Outputs: {outputs}."
            )
        else:
            image_folder = self.support if self.support.is_dir() else None
            classifier.save(self.output, image_folder=image_folder)
            usage = f"Next: nearshot predict --support {quote(str(self.output))} IMAGES…"
        megabytes = self.output.stat().st_size / 1e6
        classes = counted(len(classifier.classes_), "class", "classes")
        images = counted(len(classifier.support_labels_), "labelled image")
        console.print(
            f"Written to {self.output} ({megabytes:.1f} MB): {classes}, {images}.\n{usage}"
        )
