"""A classifier as one ONNX file: raw pictures in, labels and probabilities out, wherever ONNX runs."""

from __future__ import annotations

import json
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from nearshot._version import __version__
from nearshot.errors import InputError, MissingExtraError
from nearshot.estimator.embedder import Embedder
from nearshot.estimator.inputs import PREPROCESSING
from nearshot.estimator.onnx_graph import (
    Graph,
    add_scores,
    add_squares,
    at_least_one,
    first_best,
    first_rows,
    prepared,
    squared_distances,
)
from nearshot.estimator.scores import n_voters
from nearshot.estimator.state import Fitted
from nearshot.io import atomic_write, readable

if TYPE_CHECKING:
    from nearshot.estimator.classifier import FewShotClassifier

__all__ = ["export_onnx"]

OPSET, IR_VERSION = 18, 10
NORMALISED, FEATURES = "normalised_images", "features"
LARGEST = 2**31 - 2**20  # what a file of this kind can hold
ABOUT = """A few-shot classifier made by nearshot {version}.
Input: {given}; any number of pictures, also none.
Outputs: label, a text for each picture; probabilities (picture, class), in the order of the metadata's "classes";
novelty (picture), about 1 for pictures of the classes and more for others{unknown}.{lost}"""
LOST = """
A picture whose feature is zero has no direction: its novelty is infinite and all classes are equally probable."""


def export_onnx(classifier: FewShotClassifier, path: str | Path) -> None:
    """Write a fitted classifier to one ONNX file, whole or not at all; needs the extra `onnx`.

    The file holds backbone, preprocessing, centring, support set and temperature. Its input is `images`, (picture,
    height, width, 3) uint8 of any size, upright and in RGB; or `features`, (picture, dim) float32, if the classifier
    has no backbone. Its outputs are `label` (picture,) as text, `probabilities` (picture, class), `novelty` (picture,)
    and, where the classifier rejects, `unknown` (picture,). The metadata say the classes, the version and how pictures
    are prepared. Of no pictures, the outputs are empty. A feature of zeros, which `FewShotClassifier` refuses, has
    equal probabilities and an infinite novelty.

    Args:
        classifier: a fitted `FewShotClassifier`; its backbone a network, not a function.
        path: the file, by custom ending in `.onnx`.
    """
    fitted = classifier._ready()
    onnx = _import_onnx()
    from onnx import TensorProto, helper  # noqa: PLC0415 (an extra)

    embedder = fitted.embedder
    graph, given, count = Graph(), FEATURES, None
    if embedder is None:
        inside = helper.make_graph([], "nearshot", [], [])
        entry = helper.make_tensor_value_info(FEATURES, TensorProto.FLOAT, ["picture", fitted.learnt.features.shape[1]])
    else:
        given = "images"
        entry = helper.make_tensor_value_info(given, TensorProto.UINT8, ["picture", "height", "width", 3])
        some, count = at_least_one(graph, given)
        add_squares(graph, some, embedder.input_size, *embedder.normalisation, name=NORMALISED)
        inside = _network(embedder)
    before, graph.nodes = graph.nodes, []
    outputs = _decide(graph, fitted, FEATURES if count is None else first_rows(graph, FEATURES, count))
    infos = [helper.make_tensor_value_info(name, kind, shape) for name, kind, shape in outputs]
    whole = helper.make_graph(
        [*before, *inside.node, *graph.nodes], "nearshot", [entry], infos, [*inside.initializer, *graph.constants]
    )
    model = helper.make_model(
        whole,
        producer_name="nearshot",
        producer_version=__version__,
        opset_imports=[helper.make_opsetid("", OPSET)],
        ir_version=IR_VERSION,
        doc_string=_about(fitted),
    )
    helper.set_model_props(model, _metadata(fitted))
    onnx.checker.check_model(model, full_check=True)
    with atomic_write(path) as file:
        file.write(model.SerializeToString())


def _decide(graph: Graph, fitted: Fitted, features: str) -> list[tuple[str, int, list[Any]]]:
    """Add everything from features on; return name, type and shape of the outputs."""
    from onnx import TensorProto  # noqa: PLC0415

    settings, learnt = fitted.settings, fitted.learnt
    support, spread = fitted.support, fitted.spread
    classes = [str(label) for label in learnt.classes.tolist()]
    query, lost = prepared(graph, features, learnt.centre, normalise=bool(settings.normalise))
    voters = n_voters(support, settings.n_neighbors)
    scores = add_scores(graph, query, support.features.numpy(), support.codes.numpy(), settings.classifier, voters)
    if lost is not None:
        scores = graph("Where", lost, graph.constant(0), scores)  # of all classes alike
    logits = graph("Div", scores, graph.constant(learnt.temperature))
    graph("Cast", graph("Softmax", logits, axis=1), to=TensorProto.FLOAT, name="probabilities")
    squares = squared_distances(graph, query, spread.means.numpy())
    relative = graph("Div", squares, graph.constant(spread.variances.numpy()[None, :]))
    novelty = graph("ReduceMin", relative, graph.constant([1], np.int64), keepdims=0)
    if lost is not None:
        novelty = graph("Where", graph("Squeeze", lost, graph.constant([1], np.int64)), graph.constant(np.inf), novelty)
    graph("Cast", novelty, to=TensorProto.FLOAT, name="novelty")
    best = first_best(graph, scores)
    outputs: list[tuple[str, int, list[Any]]] = [
        ("label", TensorProto.STRING, ["picture"]),
        ("probabilities", TensorProto.FLOAT, ["picture", len(classes)]),
        ("novelty", TensorProto.FLOAT, ["picture"]),
    ]
    if np.isfinite(learnt.threshold):
        graph("Greater", novelty, graph.constant(learnt.threshold), name="unknown")
        answer = graph("Where", "unknown", graph.constant(len(classes), np.int64), best)
        labels = graph.constant([*classes, str(settings.unknown_label)])
        outputs.append(("unknown", TensorProto.BOOL, ["picture"]))
    else:
        answer, labels = best, graph.constant(classes)
    graph("Gather", labels, answer, axis=0, name="label")
    return outputs


def _network(embedder: Embedder) -> Any:
    """Return the backbone's graph, from normalised images to features."""
    if embedder.network is None:
        raise InputError("A backbone that is a function of your own cannot be exported; make it a torch.nn.Module.")
    side = embedder.input_size
    example = torch.zeros(2, 3, side, side, dtype=torch.float32, device=embedder.device)
    try:
        with _quietly():
            program = torch.onnx.export(
                embedder.network,
                (example,),
                input_names=[NORMALISED],
                output_names=[FEATURES],
                dynamic_shapes=({0: torch.export.Dim("picture")},),
                opset_version=OPSET,
                dynamo=True,
                verbose=False,
            )
            model: Any = program.model_proto  # type: ignore[union-attr]
    except Exception as error:  # of many kinds, and long
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise InputError(f"torch cannot express this backbone in ONNX: {reason}") from error
    if model.ByteSize() > LARGEST:
        raise InputError(f"The backbone takes {model.ByteSize() / 2**30:.1f} GiB; one ONNX file holds less than 2.")
    for holder in (*model.graph.node, *model.graph.initializer):  # they tell of the machine that it was made on
        del holder.metadata_props[:]
        holder.doc_string = ""
    return model.graph


@contextmanager
def _quietly() -> Iterator[None]:
    """Keep what torch and onnxscript say about themselves off the user's screen."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "onnxscript", "onnx_ir")]
    levels = [logger.level for logger in loggers]
    try:
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def _metadata(fitted: Fitted) -> dict[str, str]:
    """Return what one must know to use the file, as text."""
    settings, learnt, embedder = fitted.settings, fitted.learnt, fitted.embedder
    told: dict[str, Any] = {
        "nearshot_version": __version__,
        "classes": [readable(str(label)) for label in learnt.classes.tolist()],
        "classifier": settings.classifier,
        "temperature": learnt.temperature,
        "centred": learnt.centre is not None,
        "normalised": bool(settings.normalise),
        "n_support": len(learnt.codes),
    }
    if np.isfinite(learnt.threshold):
        told |= {"threshold": learnt.threshold, "unknown_label": readable(str(settings.unknown_label))}
        told["unknown_rate"] = settings.unknown_rate
    if embedder is not None:
        spec = getattr(embedder.backbone, "spec", None)
        told["backbone"] = type(embedder.backbone).__name__ if spec is None else spec.name
        told["preprocessing"] = {
            "input": "RGB, uint8, (picture, height, width, 3), upright",
            "side": embedder.input_size,
            "resizing": PREPROCESSING,
            "mean": list(embedder.normalisation.mean),
            "std": list(embedder.normalisation.std),
        }
    return {key: value if isinstance(value, str) else json.dumps(value) for key, value in told.items()}


def _about(fitted: Fitted) -> str:
    given = "features (picture, dim)"
    if fitted.embedder is not None:
        given = "images (picture, height, width, 3), uint8 RGB of any size; the centre is cut out"
    unknown = "; unknown (picture), whether that is too much" if np.isfinite(fitted.learnt.threshold) else ""
    lost = LOST if fitted.settings.normalise else ""
    return ABOUT.format(version=__version__, given=given, unknown=unknown, lost=lost)


def _import_onnx() -> Any:
    try:
        import onnx  # noqa: PLC0415 (an extra)
        import onnxscript  # noqa: F401, PLC0415 (torch's exporter needs it)
    except ImportError as error:
        raise MissingExtraError("An ONNX file needs the onnx library: pip install 'nearshot[onnx]'.") from error
    return onnx
