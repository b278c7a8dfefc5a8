"""Export a classifier to one ONNX file: raw images in, labels and probabilities out.

Everything but the labels' text is a torch module, which torch exports: resizing as Pillow does, the
backbone, and the same classifier functions that `FewShotClassifier` uses.
"""

from __future__ import annotations

import json
import logging
import math
import warnings
from copy import deepcopy
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from nearshot._version import __version__
from nearshot.data.images import Interpolation
from nearshot.distances import unit_length
from nearshot.errors import InputError, MissingExtraError
from nearshot.estimator.read_images import PREPROCESSING
from nearshot.estimator.novelty import weigh_by_score
from nearshot.estimator.state import Fitted
from nearshot.estimator.support import Head, classifier_of
from nearshot.evaluation.classifiers import RIDGE, first_best, similarities
from nearshot.io import atomic_write, readable

if TYPE_CHECKING:
    from nearshot.estimator.classifier import FewShotClassifier

OPSET = 18
ONE = 1 << 22  # the weight of 1 in `Resize`
INDEX = "nearshot/index"  # of the label; different from all names of the network
ABOUT = """A few-shot classifier made by nearshot {version}.
Input: {given}; any number of images.
Outputs: label, a string per image; probabilities (image, class), in the order of "classes" in the metadata; novelty
(image), about 1 for images of the classes and more for others; and, if the classifier rejects, unknown (image).
An image whose feature is zero cannot be normalised: its novelty is infinite and all classes are equally probable."""


def export_onnx(classifier: FewShotClassifier, path: str | Path) -> None:
    """Write a fitted classifier to one ONNX file, atomically; needs the extra `onnx`.

    Its input is `images`, (image, height, width, 3) uint8 RGB of any size, upright; or `features`,
    (image, dim) float32, for a classifier without a backbone. Its outputs are `label` (image,) as
    strings, `probabilities` (image, class), `novelty` (image,) and, with `unknown_rate`, `unknown`
    (image,). A feature of zeros, which `FewShotClassifier` refuses, has equal probabilities and an
    infinite novelty. A backbone must be a network.
    """
    fitted = classifier._ready()
    try:
        import onnx  # noqa: PLC0415 (an extra)
        import onnxscript  # noqa: F401, PLC0415 (torch's exporter needs it)
    except ImportError as error:
        raise MissingExtraError(
            "The ONNX export needs the onnx library: pip install 'nearshot[onnx]'."
        ) from error
    embedder, entry, about = fitted.embedder, "features", "features (image, dim)"
    example, axes = torch.zeros(2, fitted.features.shape[1]), ["image"]
    if embedder is not None:
        if embedder.network is None:
            raise InputError("backbone must be a torch.nn.Module to be exported (got a function).")
        if embedder.n_views > 1:
            raise InputError(f"n_views must be 1 in an ONNX file (got {embedder.n_views}).")
        side, entry = embedder.spec.input_size, "images"
        about = "images (image, height, width, 3), uint8 RGB of any size, whose centre is cropped"
        example, axes = (
            torch.zeros(2, side + 1, side + 2, 3, dtype=torch.uint8),
            ["image", "height", "width"],
        )
    outputs = [
        "probabilities",
        "novelty",
        *(["unknown"] if np.isfinite(fitted.threshold) else []),
        INDEX,
    ]
    try:
        model = to_onnx(_Decision(fitted).eval().cpu(), example, axes, entry, outputs)
    except Exception as error:  # of many kinds, and long
        reason = next(
            iter(str(error.__cause__ or error).strip().splitlines()), type(error).__name__
        )
        what = f"the classifier {fitted.head.classifier.name!r}{'' if embedder is None else ' with this backbone'}"
        raise InputError(f"torch cannot export {what} to ONNX: {reason}") from error
    _remove_traces(model.graph)
    _add_labels(model.graph, fitted)
    model.producer_name, model.producer_version = "nearshot", __version__
    model.doc_string = ABOUT.format(version=__version__, given=about)
    onnx.helper.set_model_props(model, _metadata(fitted))
    onnx.checker.check_model(model, full_check=True)
    with atomic_write(path) as file:
        file.write(model.SerializeToString())


class Resize(nn.Module):
    """Resize images (image, height, width, 3) uint8 as `fit_to_square` does: levels (image, 3, side, side) float32.

    ONNX's own Resize differs from Pillow by up to a dozen levels. Here images are multiplied by
    Pillow's own weights, which are integers of 22 bits, so that the sums are exact in float64. Rows
    are resized first, or columns where Pillow 13 does so; with older versions some pixels of tall
    images differ by one level.
    """

    def __init__(
        self, side: int, interpolation: Interpolation = "bilinear", crop: float = 1.0
    ) -> None:
        super().__init__()
        self.side, self.is_cubic, self.shorter = (
            side,
            interpolation == "bicubic",
            round(side / crop),
        )

    def forward(self, images: Tensor) -> Tensor:  # noqa: D102
        planes = images.permute(0, 3, 1, 2).double()
        # As tensors, since symbolic sizes cannot be rounded: the length of a column, and of a row.
        height, width = (torch.ones_like(planes[0, 0].select(axis, 0)).sum() for axis in (1, 0))
        # An image of the right size is unchanged.
        shorter = torch.where((height == self.side) & (width == self.side), self.side, self.shorter)
        scale = shorter / torch.minimum(height, width)
        new_height, new_width = (
            torch.maximum((length * scale).round(), shorter) for length in (height, width)
        )
        down = self._weights(planes.shape[2], height, new_height)  # (side, height)
        across = self._weights(planes.shape[3], width, new_width).T  # (width, side)
        shrinks = height - new_height
        columns_first = (shrinks > 0) & (shrinks > 2 * (width - new_width))
        levels: Tensor = torch.cond(
            columns_first,
            lambda down, planes, across: _levels(_levels(down @ planes) @ across),
            lambda down, planes, across: _levels(down @ _levels(planes @ across)),
            (down, planes, across),
        )
        return levels.float()

    def _weights(self, n: int, length: Tensor, resized: Tensor) -> Tensor:
        """Return the weights of `n` pixels for the central `side` of the resized ones, (side, n).

        Pillow's filters are as wide as the step between resized pixels, at least one pixel: a
        triangle, or the cubic with a = −1/2. The weights of a resized pixel add up to `ONE`.
        """
        step, first = length / resized, ((resized - self.side) / 2).floor()
        places = torch.arange(self.side, dtype=torch.float64)[:, None] + 0.5 + first
        pixels = torch.arange(n, dtype=torch.float64) + 0.5
        away = (places * step - pixels).abs() / step.clamp(min=1)
        raw = (1 - away).clamp(min=0)
        if self.is_cubic:
            near, far = (
                (1.5 * away - 2.5) * away**2 + 1,
                ((-0.5 * away + 2.5) * away - 4) * away + 2,
            )
            raw = torch.where(away < 1, near, torch.where(away < 2, far, 0.0))
        weights = raw / raw.sum(1, keepdim=True) * ONE
        return weights.sign() * (weights.abs() + 0.5).floor()


def _levels(sums: Tensor) -> Tensor:
    """Return weighted sums as levels of 0 to 255; halves are rounded up, as in Pillow."""
    return (sums / ONE + 0.5).floor().clamp(min=0, max=255)


class _Decision(nn.Module):
    """A fitted classifier from images, or features, to probabilities, novelty, rejections and label indices."""

    def __init__(self, fitted: Fitted) -> None:
        super().__init__()
        self.classifier, points, given = fitted.head
        self.normalise, self.n_classes = bool(fitted.settings.normalise), len(fitted.classes)
        self.temperature, self.threshold = fitted.temperature, fitted.threshold
        centre = (
            np.zeros(points.shape[1])
            if fitted.centre is None
            else np.array(fitted.centre, dtype=np.float64)
        )
        self.points, self.given, self.centre = (
            nn.Buffer(points),
            nn.Buffer(given),
            nn.Buffer(torch.from_numpy(centre)),
        )
        self.means, self.variances = nn.Buffer(fitted.support.means), nn.Buffer(fitted.variances)
        self.network: nn.Module | None = None
        if fitted.embedder is not None:
            self.network, spec = deepcopy(fitted.embedder.network), fitted.embedder.spec
            self.resize = Resize(spec.input_size, spec.interpolation, spec.crop)
            mean, std = (
                torch.tensor(values, dtype=torch.float32).view(3, 1, 1)
                for values in spec.normalisation
            )
            self.channel_mean, self.channel_std = nn.Buffer(mean), nn.Buffer(std)

    def forward(self, given: Tensor) -> tuple[Tensor, ...]:
        """Return probabilities (image, class), and novelty, rejection, if any, and index of the label, (image,)."""
        features = given
        if self.network is not None:
            features = self.network(
                (self.resize(given) / 255 - self.channel_mean) / self.channel_std
            )
        query = features.double() - self.centre
        if self.normalise:
            lost = (query == 0).all(1, keepdim=True)
            query = unit_length(query)
        scores = Head(self.classifier, self.points, self.given).scores(query)
        novelty = ((-similarities(self.means, query)).clamp(min=0) / self.variances).amin(1)
        if self.classifier is RIDGE:
            novelty = weigh_by_score(novelty, scores)
        if self.normalise:
            scores, novelty = (
                torch.where(lost, 0.0, scores),
                torch.where(lost[:, 0], torch.inf, novelty),
            )
        probabilities, index = (scores / self.temperature).softmax(1).float(), first_best(scores)
        if self.threshold == math.inf:
            return probabilities, novelty.float(), index
        unknown = novelty > self.threshold
        return probabilities, novelty.float(), unknown, torch.where(unknown, self.n_classes, index)


def to_onnx(
    module: nn.Module, example: Tensor, axes: list[str], given: str, outputs: list[str]
) -> Any:
    """Export a module with one input, whose first axes are dynamic; torch's and onnxscript's logs are silenced."""
    log_level = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            program = torch.onnx.export(
                module,
                (example,),
                input_names=[given],
                output_names=outputs,
                dynamic_shapes=(
                    {number: torch.export.Dim(axis) for number, axis in enumerate(axes)},
                ),
                opset_version=OPSET,
                dynamo=True,
                verbose=False,
            )
            return program.model_proto  # type: ignore[union-attr]
    finally:
        logging.disable(log_level)


def _remove_traces(graph: Any) -> None:
    """Remove the paths of this machine, which torch adds."""
    for holder in (graph, *graph.node, *graph.initializer, *graph.value_info):
        del holder.metadata_props[:]
        holder.doc_string = ""
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("g"):  # a branch
                _remove_traces(attribute.g)


def _add_labels(graph: Any, fitted: Fitted) -> None:
    """Add the labels as strings, which torch cannot express, in the place of their indices."""
    from onnx import TensorProto, helper  # noqa: PLC0415 (an extra)

    texts: Any = [
        readable(str(text)).encode() for text in (*fitted.classes, fitted.settings.unknown_label)
    ]
    graph.initializer.append(
        helper.make_tensor("nearshot/labels", TensorProto.STRING, [len(texts)], texts)
    )
    graph.node.append(helper.make_node("Gather", ["nearshot/labels", INDEX], ["label"], axis=0))
    outputs = [
        helper.make_tensor_value_info("label", TensorProto.STRING, ["image"]),
        *graph.output[:-1],
    ]
    del graph.output[:]
    graph.output.extend(outputs)


def _metadata(fitted: Fitted) -> dict[str, str]:
    settings = fitted.settings
    values: dict[str, Any] = {
        "nearshot_version": __version__,
        "classes": [readable(str(label)) for label in fitted.classes.tolist()],
        "classifier": classifier_of(settings.classifier).name,
        "temperature": fitted.temperature,
        "centred": fitted.centre is not None,
        "normalised": bool(settings.normalise),
        "n_support": len(fitted.codes),
    }
    if np.isfinite(fitted.threshold):
        values |= {
            "threshold": fitted.threshold,
            "unknown_label": readable(str(settings.unknown_label)),
        }
        values["unknown_rate"] = settings.unknown_rate
    if fitted.embedder is not None:
        spec = fitted.embedder.spec
        values["backbone"] = spec.name
        values["preprocessing"] = {
            "input": "RGB, uint8, (image, height, width, 3), upright",
            "side": spec.input_size,
            "resizing": f"{spec.interpolation}, {PREPROCESSING}",
            "crop": spec.crop,
            "mean": list(spec.normalisation.mean),
            "std": list(spec.normalisation.std),
        }
    return {
        key: value if isinstance(value, str) else json.dumps(value) for key, value in values.items()
    }
