"""`nearshot export`."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from shlex import quote
from typing import Annotated

import tyro
from rich.console import Console

from nearshot.cli._options import Making, MakingOptions
from nearshot.errors import InputError

__all__ = ["Export"]


@dataclass(frozen=True)
class Export:
    """Put a classifier into one file: network, preprocessing, labelled pictures' features and all settings.

    A .onnx file runs wherever ONNX does (servers, phones, browsers), without nearshot: raw uint8 pictures of any size
    in, labels and probabilities out. It needs the extra onnx: pip install 'nearshot[onnx]'. A .safetensors file is a
    bundle for nearshot itself: FewShotClassifier.load reads it, and so do nearshot predict and nearshot show. Neither
    has pictures in it, and neither can run code when it is opened.

    Examples: nearshot export ./flowers flowers.onnx --unknown-rate 0.05; nearshot export ./flowers flowers.safetensors;
    nearshot export flowers.safetensors flowers.onnx
    """

    support: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="DIR|BUNDLE")]
    """A folder with a folder of pictures for each class; or a bundle."""
    output: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="FILE")]
    """The file to write; its ending, .onnx or .safetensors, says which kind."""
    making: MakingOptions = field(default_factory=Making)

    def run(self, console: Console) -> None:
        """Write the file, and say what it takes and gives."""
        kind = self.output.suffix.lower()
        if kind not in (".onnx", ".safetensors"):
            raise InputError(f"The file ends in .onnx or .safetensors, not {self.output.name!r}.")
        classifier = self.making.classifier_of(self.support)
        if kind == ".onnx":
            from nearshot.estimator.onnx import export_onnx  # noqa: PLC0415 (imports scikit-learn)

            export_onnx(classifier, self.output)
        else:
            classifier.save(self.output)
        size = self.output.stat().st_size / 1e6
        console.print(
            f"Written to {self.output} ({size:.1f} MB): {len(classifier.classes_):,} classes, "
            f"{len(classifier.support_labels_):,} labelled pictures."
        )
        if kind == ".onnx":
            rejects = ", unknown" if classifier.unknown_rate is not None else ""
            console.print(
                "Input: images (picture, height, width, 3), uint8 RGB of any size, upright. "
                f"Outputs: label, probabilities, novelty{rejects}."
            )
        else:
            console.print(f"Next: nearshot predict --support {quote(str(self.output))} IMAGES…")
