"""Export a classifier to one ONNX file: raw images in, labels and probabilities out.

Everything but the labels' text is a torch module, which torch exports: resizing as Pillow does, the
backbone, and the same classifier functions that `FewShotClassifier` uses.
"""

from __future__ import annotations

import json
import logging
import math
import warnings
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from nearshot._version import __version__
from nearshot.data.images import Interpolation
from nearshot.distances import unit_length
from nearshot.errors import InputError, MissingExtraError
from nearshot.estimator.calibration import class_probabilities
from nearshot.estimator.embedding_network import EmbeddingNetwork, round_to_half
from nearshot.estimator.head import Head
from nearshot.estimator.novelty import weigh_by_margin, weigh_by_score
from nearshot.estimator.read_images import PREPROCESSING
from nearshot.estimator.ridge import LinearScores
from nearshot.estimator.stacking import (
    Mixture,
    SetScores,
    SetSpace,
    combine,
    mix,
    plain_features,
)
from nearshot.estimator.state import FittedState
from nearshot.estimator.strays import StrayRidge, margins_of
from nearshot.evaluation.classifiers import RIDGE, first_best, similarities
from nearshot.io import atomic_write, readable
from nearshot.models import Backbone, BackboneSpec

if TYPE_CHECKING:
    from nearshot.estimator.classifier import FewShotClassifier

OPSET = 18
UNIT_WEIGHT = 1 << 22  # the weight of 1 in `Resize`
INDEX = "nearshot/index"  # of the label; different from all names of the network
ABOUT = """A few-shot classifier made by nearshot {version}.
Input: {input}; any number of images.
Outputs: label, a string per image; probabilities (image, class), in the order of "classes" in the metadata; novelty
(image), about 1 for images of the classes and more for others; and, if the classifier rejects, rejected (image).
An image whose feature is zero cannot be normalised: its novelty is infinite and all classes are equally probable."""  # noqa: E501 (the text of a file)


@dataclass(frozen=True)
class _Input:
    """The input of the graph: its name, its description, an example, and its dynamic axes."""

    name: str
    about: str
    example: Tensor
    axes: tuple[str, ...]


def export_onnx(classifier: FewShotClassifier, path: str | Path) -> None:
    """Write a fitted classifier to one ONNX file, atomically; needs the extra `onnx`.

    Its input is `images`, (image, height, width, 3) uint8 RGB of any size, upright; or `features`,
    (image, dim) float32, for a classifier without a backbone. Its outputs are `label` (image,) as
    strings, `probabilities` (image, class), `novelty` (image,) and, with `reject_rate`, `rejected`
    (image,). A feature of zeros, which `FewShotClassifier` refuses, has equal probabilities and an
    infinite novelty. A backbone must be a network.
    """
    state = classifier.fitted_state()
    try:
        import onnx  # noqa: PLC0415 (an extra)
        import onnxscript  # noqa: F401, PLC0415 (torch's exporter needs it)
    except ImportError as error:
        raise MissingExtraError(
            "The ONNX export needs the onnx library: pip install '.[onnx]' in the clone."
        ) from error
    graph_input = _graph_input(state)
    outputs = ["probabilities", "novelty", INDEX]
    if np.isfinite(state.threshold):
        outputs.insert(2, "rejected")
    try:
        model = to_onnx(
            _Decision(state).eval().cpu(),
            graph_input.example,
            axes=graph_input.axes,
            input_name=graph_input.name,
            output_names=outputs,
        )
    except Exception as error:  # of many kinds, and long
        raise InputError(_export_failure(state, error)) from error
    _remove_traces(model.graph)
    _add_labels(model.graph, state)
    model.producer_name = "nearshot"
    model.producer_version = __version__
    model.doc_string = ABOUT.format(version=__version__, input=graph_input.about)
    onnx.helper.set_model_props(model, _metadata(state))
    onnx.checker.check_model(model, full_check=True)
    with atomic_write(path) as file:
        file.write(model.SerializeToString())


def _graph_input(state: FittedState) -> _Input:
    embedder = state.embedder
    if embedder is None:
        return _Input(
            name="features",
            about="features (image, dim)",
            example=torch.zeros(2, state.features.shape[1]),
            axes=("image",),
        )
    if embedder.network is None:
        raise InputError("backbone must be a torch.nn.Module to be exported (got a function).")
    if embedder.n_views > 1:
        raise InputError(f"n_views must be 1 in an ONNX file (got {embedder.n_views}).")
    side = embedder.spec.input_size
    return _Input(
        name="images",
        about="images (image, height, width, 3), uint8 RGB of any size, whose centre is cropped",
        example=torch.zeros(2, side + 1, side + 2, 3, dtype=torch.uint8),
        axes=("image", "height", "width"),
    )


def _export_failure(state: FittedState, error: Exception) -> str:
    """Return one sentence about an error of torch's exporter, with the first line of its text."""
    lines = str(error.__cause__ or error).strip().splitlines()
    reason = lines[0] if lines else type(error).__name__
    subject = f"the classifier {state.head.classifier.name!r}"
    if state.embedder is not None:
        subject += " with this backbone"
    return f"torch cannot export {subject} to ONNX: {reason}"


class Resize(nn.Module):
    """Resize images (image, height, width, 3) uint8 as `fit_to_square` does.

    The result are levels of 0 to 255, (image, 3, side, side) float32.

    ONNX's own Resize differs from Pillow by up to a dozen levels. Here images are multiplied by
    Pillow's own weights, which are integers of 22 bits, so that the sums are exact in float64. Rows
    are resized first, or columns where Pillow 13 does so; with older versions some pixels of tall
    images differ by one level.
    """

    def __init__(
        self, side: int, interpolation: Interpolation = "bilinear", crop: float = 1.0
    ) -> None:
        super().__init__()
        self.side = side
        self.is_cubic = interpolation == "bicubic"
        self.shorter = round(side / crop)

    def forward(self, images: Tensor) -> Tensor:  # noqa: D102
        planes = images.permute(0, 3, 1, 2).double()
        # As tensors, since symbolic sizes cannot be rounded.
        height = torch.ones_like(planes[0, 0].select(1, 0)).sum()
        width = torch.ones_like(planes[0, 0].select(0, 0)).sum()
        # An image of the right size is unchanged.
        shorter = torch.where((height == self.side) & (width == self.side), self.side, self.shorter)
        scale = shorter / torch.minimum(height, width)
        new_height = torch.maximum((height * scale).round(), shorter)
        new_width = torch.maximum((width * scale).round(), shorter)
        down = self._weights(planes.shape[2], height, new_height)  # (side, height)
        across = self._weights(planes.shape[3], width, new_width).T  # (width, side)
        shrinks = height - new_height
        columns_first = (shrinks > 0) & (shrinks > 2 * (width - new_width))
        levels: Tensor = torch.cond(
            columns_first, _resize_columns_first, _resize_rows_first, (down, planes, across)
        )
        return levels.float()

    def _weights(self, n_pixels: int, length: Tensor, new_length: Tensor) -> Tensor:
        """Return the weights of pixels for the central `side` of the resized ones, (side, pixel).

        Pillow's filters are as wide as the step between resized pixels, at least one pixel: a
        triangle, or the cubic with a = −1/2. The weights of a resized pixel add up to
        `UNIT_WEIGHT`.
        """
        step = length / new_length
        first = ((new_length - self.side) / 2).floor()
        centres = torch.arange(self.side, dtype=torch.float64)[:, None] + 0.5 + first
        pixels = torch.arange(n_pixels, dtype=torch.float64) + 0.5
        distance = (centres * step - pixels).abs() / step.clamp(min=1)
        if self.is_cubic:
            near = (1.5 * distance - 2.5) * distance**2 + 1
            far = ((-0.5 * distance + 2.5) * distance - 4) * distance + 2
            raw = torch.where(distance < 1, near, torch.where(distance < 2, far, 0.0))
        else:
            raw = (1 - distance).clamp(min=0)
        weights = raw / raw.sum(1, keepdim=True) * UNIT_WEIGHT
        return weights.sign() * (weights.abs() + 0.5).floor()


def _resize_columns_first(down: Tensor, planes: Tensor, across: Tensor) -> Tensor:
    return _levels(_levels(down @ planes) @ across)


def _resize_rows_first(down: Tensor, planes: Tensor, across: Tensor) -> Tensor:
    return _levels(down @ _levels(planes @ across))


def _levels(sums: Tensor) -> Tensor:
    """Return weighted sums as levels of 0 to 255; halves are rounded up, as in Pillow."""
    return (sums / UNIT_WEIGHT + 0.5).floor().clamp(min=0, max=255)


class EmbedImages(nn.Module):
    """A network of an `Embedder` as a module: from images of any size to features (image, dim)."""

    def __init__(self, embedding_network: EmbeddingNetwork) -> None:
        super().__init__()
        spec = embedding_network.spec
        self.network = deepcopy(embedding_network.network)
        self.has_sets = embedding_network.feature_sets is not None
        self.resize = Resize(spec.input_size, spec.interpolation, spec.crop)
        self.channel_mean = nn.Buffer(_channels(spec.normalisation.mean))
        self.channel_std = nn.Buffer(_channels(spec.normalisation.std))

    def forward(self, images: Tensor) -> Tensor:
        """Return the features of one view of each image."""
        normalised = (self.resize(images) / 255 - self.channel_mean) / self.channel_std
        if not self.has_sets or not isinstance(self.network, Backbone):
            embeddings: Tensor = self.network(normalised)  # type: ignore[misc]
            return embeddings
        return round_to_half(self.network.flat_features(normalised))


class _Preparation(nn.Module):
    """Centre and normalise features, as `FittedState.prepare` does.

    A feature of zeros has no direction. It stays zero, and is marked.
    """

    def __init__(self, state: FittedState) -> None:
        super().__init__()
        self.feature_sets = state.feature_sets
        self.normalise = bool(state.settings.normalise)
        centre = np.zeros(state.features.shape[1]) if state.centre is None else state.centre
        self.centre = nn.Buffer(torch.from_numpy(np.array(centre, dtype=np.float64)))

    def forward(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Return the prepared features, (image, dim), and which images are zero, (image,)."""
        features = features.double()
        if self.feature_sets is None:
            rows = features - self.centre
            is_zero = (rows == 0).all(1) & self.normalise
            return self._normalised(rows), is_zero
        of_sets = []
        is_zero = torch.zeros_like(features[:, 0], dtype=torch.bool)
        for feature_set in self.feature_sets.sets:
            rows = features[:, feature_set.columns]
            if feature_set.is_rooted:
                rows = rows.clamp(min=0).sqrt()
            else:
                rows = rows - self.centre[feature_set.columns]
            if feature_set in self.feature_sets.plain and self.normalise:
                is_zero = is_zero | (rows == 0).all(1)
            of_sets.append(self._normalised(rows))
        return torch.cat(of_sets, dim=1), is_zero

    def plain(self, prepared: Tensor) -> Tensor:
        """Return the plain features, (image, dim), of prepared ones."""
        if self.feature_sets is None:
            return prepared
        return plain_features(self.feature_sets, prepared)

    def _normalised(self, rows: Tensor) -> Tensor:
        return unit_length(rows) if self.normalise else rows


class _PlainAnswers(nn.Module):
    """The scores and probabilities of one classifier on plain features."""

    def __init__(self, state: FittedState) -> None:
        super().__init__()
        self.classifier = state.head.classifier
        self.points = nn.Buffer(state.head.points)
        self.class_sizes = nn.Buffer(state.head.class_sizes)
        self.temperatures = state.temperatures

    def forward(
        self, query: Tensor, plain: Tensor, is_zero: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return scores and probabilities, (image, class), and the class that wins, (image,)."""
        scores = Head(self.classifier, self.points, self.class_sizes).scores(plain)
        scores = torch.where(is_zero[:, None], 0.0, scores)
        return scores, class_probabilities(scores, self.temperatures), first_best(scores)

    def to_common(self, query: Tensor, plain: Tensor) -> Tensor:
        """Return the space in which strays are told apart, (image, dim)."""
        return plain


class _MixedAnswers(nn.Module):
    """The scores and probabilities of a mixture."""

    def __init__(self, state: FittedState, mixture: Mixture, space: SetSpace) -> None:
        super().__init__()
        self.mixture = mixture
        self.feature_sets = space.feature_sets
        self.means = _constants(space.means)
        self.plain = _PlainAnswers(state)
        self.candidates = nn.ModuleDict(
            {str(number): _SetScores(scores) for number, scores in state.candidates.items()}
        )
        self.common = space.common(mixture)

    def forward(
        self, query: Tensor, plain: Tensor, is_zero: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return scores and probabilities, (image, class), and the class that wins, (image,)."""
        plain_scores, _, _ = self.plain(query, plain, is_zero)
        candidates = {int(number): scores for number, scores in self.candidates.items()}
        prepared = self._prepare(query)
        scores, probabilities = mix(self.mixture, plain_scores, candidates, prepared)
        n_classes = scores.shape[1]
        probabilities = torch.where(is_zero[:, None], 1 / n_classes, probabilities)
        return scores, probabilities, first_best(probabilities)

    def to_common(self, query: Tensor, plain: Tensor) -> Tensor:
        """Return the space in which strays are told apart, (image, dim)."""
        return combine(self.common, self._prepare(query))

    def _prepare(self, query: Tensor) -> tuple[Tensor, ...]:
        return SetSpace(self.feature_sets, tuple(self.means)).prepare(query)


class _SetScores(nn.Module):
    """Scores that are linear in feature sets, as constants of the graph."""

    def __init__(self, scores: SetScores) -> None:
        super().__init__()
        self.positions = scores.positions
        self.weights = _constants(scores.weights)
        self.offset = nn.Buffer(scores.offset)

    def forward(self, prepared: Sequence[Tensor]) -> Tensor:
        """Return the scores, (image, class)."""
        return SetScores(self.positions, tuple(self.weights), self.offset).scores(prepared)


class _Margins(nn.Module):
    """How far strays are behind the best class."""

    def __init__(self, ridge: StrayRidge) -> None:
        super().__init__()
        self.weights = nn.Buffer(ridge.linear.weights)
        self.mean = nn.Buffer(ridge.linear.mean)
        self.shares = nn.Buffer(ridge.linear.shares)

    def forward(self, common: Tensor) -> Tensor:
        """Return the margins, (image,)."""
        return margins_of(LinearScores(self.weights, self.mean, self.shares).scores(common))


def _constants(tensors: Sequence[Tensor]) -> nn.ParameterList:
    return nn.ParameterList([nn.Parameter(tensor, requires_grad=False) for tensor in tensors])


class _Decision(nn.Module):
    """A fitted classifier as a module: from images, or features, to everything but the labels."""

    def __init__(self, state: FittedState) -> None:
        super().__init__()
        self.preparation = _Preparation(state)
        self.n_classes = len(state.classes)
        self.threshold = state.threshold
        self.means = nn.Buffer(state.support.means)
        self.variances = nn.Buffer(state.variances)
        self.uses_score = state.head.classifier is RIDGE
        if state.mixture is None or state.set_space is None:
            self.answers: _PlainAnswers | _MixedAnswers = _PlainAnswers(state)
        else:
            self.answers = _MixedAnswers(state, state.mixture, state.set_space)
        self.strays = None if state.stray_ridge is None else _Margins(state.stray_ridge)
        self.networks: nn.ModuleList | None = None
        if state.embedder is not None:
            self.networks = nn.ModuleList(map(EmbedImages, state.embedder.networks))

    def forward(self, inputs: Tensor) -> tuple[Tensor, ...]:
        """Return the probabilities, novelty, rejection (if the classifier rejects) and label index.

        The probabilities are (image, class), the others (image,).
        """
        features = inputs
        if self.networks is not None:
            features = torch.cat([embed(inputs) for embed in self.networks], dim=1)
        query, is_zero = self.preparation(features)
        plain = self.preparation.plain(query)
        scores, probabilities, index = self.answers(query, plain, is_zero)
        squares = (-similarities(self.means, plain)).clamp(min=0)
        novelty = (squares / self.variances).amin(1)
        if self.strays is not None:
            common = self.answers.to_common(query, plain)
            novelty = weigh_by_margin(novelty, self.strays(common))
        elif self.uses_score:
            novelty = weigh_by_score(novelty, scores)
        novelty = torch.where(is_zero, torch.inf, novelty)
        probabilities = probabilities.float()
        if self.threshold == math.inf:
            return probabilities, novelty.float(), index
        is_rejected = novelty > self.threshold
        index = torch.where(is_rejected, self.n_classes, index)
        return probabilities, novelty.float(), is_rejected, index


def _channels(values: tuple[float, float, float]) -> Tensor:
    return torch.tensor(values, dtype=torch.float32).view(3, 1, 1)


def to_onnx(
    module: nn.Module,
    example: Tensor,
    *,
    axes: tuple[str, ...],
    input_name: str,
    output_names: list[str],
) -> Any:
    """Export a module with one input, whose first axes are dynamic.

    The logs of torch and onnxscript are silenced.
    """
    dynamic_shape = {number: torch.export.Dim(axis) for number, axis in enumerate(axes)}
    log_level = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            program = torch.onnx.export(
                module,
                (example,),
                input_names=[input_name],
                output_names=output_names,
                dynamic_shapes=(dynamic_shape,),
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


def _add_labels(graph: Any, state: FittedState) -> None:
    """Add an output of labels as strings, which torch cannot express, in place of their indices."""
    from onnx import TensorProto, helper  # noqa: PLC0415 (an extra)

    labels = [*state.classes, state.settings.reject_label]
    texts: Any = [readable(str(label)).encode() for label in labels]
    graph.initializer.append(
        helper.make_tensor("nearshot/labels", TensorProto.STRING, [len(texts)], texts)
    )
    graph.node.append(helper.make_node("Gather", ["nearshot/labels", INDEX], ["label"], axis=0))
    label_output = helper.make_tensor_value_info("label", TensorProto.STRING, ["image"])
    outputs = [label_output, *graph.output[:-1]]
    del graph.output[:]
    graph.output.extend(outputs)


def _metadata(state: FittedState) -> dict[str, str]:
    settings = state.settings
    values: dict[str, Any] = {
        "nearshot_version": __version__,
        "classes": [readable(str(label)) for label in state.classes.tolist()],
        "classifier": settings.definition.name,
        "temperature": state.temperatures.geometric_mean,
        "centred": state.centre is not None,
        "normalised": bool(settings.normalise),
        "n_support": len(state.codes),
    }
    if np.isfinite(state.threshold):
        values["threshold"] = state.threshold
        values["reject_label"] = readable(str(settings.reject_label))
        values["reject_rate"] = settings.reject_rate
    if state.embedder is not None:
        values["backbone"] = state.embedder.spec.name
        preprocessing = [_preprocessing(network.spec) for network in state.embedder.networks]
        values["preprocessing"] = preprocessing[0] if len(preprocessing) == 1 else preprocessing
    return {
        name: value if isinstance(value, str) else json.dumps(value)
        for name, value in values.items()
    }


def _preprocessing(spec: BackboneSpec) -> dict[str, Any]:
    """Describe what the graph does to images before a network."""
    return {
        "input": "RGB, uint8, (image, height, width, 3), upright",
        "side": spec.input_size,
        "resizing": f"{spec.interpolation}, {PREPROCESSING}",
        "crop": spec.crop,
        "mean": list(spec.normalisation.mean),
        "std": list(spec.normalisation.std),
    }
