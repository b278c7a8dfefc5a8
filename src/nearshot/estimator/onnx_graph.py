"""Pieces of an ONNX graph: pictures of any size to a network's input, and features to labels and probabilities.

The numbers are those of `nearshot.data.images.fit_to_square`, of `nearshot.evaluation.prepare_features` and of
`nearshot.estimator.scores`. ONNX's own Resize differs from Pillow by up to a dozen of 255 levels. So pictures are
resized by two matrix products with Pillow's own weights, whole numbers of 22 bits. The sums are exact in float64, and
the result is Pillow's, level by level. It is across first and then down, or the other way round where Pillow 13 does
so; older versions never do, and there some pixels of tall pictures differ by one level.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from nearshot.evaluation.ties import TIE
from nearshot.io import readable

__all__ = ["Graph", "add_scores", "add_squares", "at_least_one", "first_best", "first_rows", "prepared"]

PREFIX = "nearshot/"  # so that no name can be one of the network's
TYPE_OF_SUMS = 11  # onnx.TensorProto.DOUBLE
ONE = 1 << 22  # the weight of 1
NONE = -1e300  # the score of an image that is not there, under all others and finite


class Graph:
    """Nodes and constants, one after the other; a value is known by its name."""

    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.constants: list[Any] = []
        self._count = 0

    def __call__(self, operator: str, *inputs: str, name: str | None = None, **attributes: Any) -> str:
        """Add a node and return the name of its output."""
        from onnx import helper  # noqa: PLC0415 (an extra)

        output = name or self.name(operator)
        self.nodes.append(helper.make_node(operator, list(inputs), [output], name=self.name("node"), **attributes))
        return output

    def constant(self, value: npt.ArrayLike, dtype: npt.DTypeLike = np.float64) -> str:
        """Add a constant and return its name; float64 unless said otherwise, or text."""
        from onnx import TensorProto, helper, numpy_helper  # noqa: PLC0415

        array, name = np.asarray(value), self.name("constant")
        if array.dtype.kind == "U":
            texts: Any = [readable(text).encode() for text in array.flatten().tolist()]
            self.constants.append(helper.make_tensor(name, TensorProto.STRING, array.shape, texts))
        else:
            self.constants.append(numpy_helper.from_array(np.array(array, dtype, order="C"), name))
        return name

    def cast(self, value: str, dtype: npt.DTypeLike) -> str:
        """Add a conversion."""
        from onnx import helper  # noqa: PLC0415

        return self("Cast", value, to=helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))

    def choice(self, condition: str, then: Callable[[], str], otherwise: Callable[[], str]) -> str:
        """Add a branch; each way adds its nodes and returns the name of its result."""
        from onnx import helper  # noqa: PLC0415

        outside, branches = self.nodes, []
        for way in (then, otherwise):
            self.nodes = []
            result = helper.make_value_info(way(), helper.make_tensor_type_proto(TYPE_OF_SUMS, None))
            branches.append(helper.make_graph(self.nodes, self.name("branch"), [], [result]))
        self.nodes = outside
        return self("If", condition, then_branch=branches[0], else_branch=branches[1])

    def name(self, what: str) -> str:
        """Return a new name."""
        self._count += 1
        return f"{PREFIX}{what}_{self._count}"


def at_least_one(graph: Graph, images: str) -> tuple[str, str]:
    """Return pictures, or a black one of at least 1 × 1 where there are none, and the number there was, (1,).

    Runtimes do not agree on what networks and matrix products are of nothing; `first_rows` takes the black one away.
    """
    count = graph("Shape", images, start=0, end=1)
    none = graph.cast(graph("Equal", count, graph.constant([0], np.int64)), np.int64)
    pads = graph("Mul", none, graph.constant([0, 0, 0, 0, 1, 1, 1, 0], np.int64))
    return graph("Pad", images, pads, graph.constant(0, np.uint8)), count


def first_rows(graph: Graph, values: str, count: str) -> str:
    """Return the first so many rows."""
    first = graph.constant([0], np.int64)
    return graph("Slice", values, first, count, first)


def add_squares(
    graph: Graph, images: str, side: int, mean: tuple[float, ...], std: tuple[float, ...], *, name: str
) -> None:
    """Bring pictures (picture, height, width, 3) uint8 to normalised images (picture, 3, side, side) called `name`."""
    shape = graph("Shape", images)
    height, width = (
        graph.cast(graph("Gather", shape, graph.constant(axis, np.int64), axis=0), np.float64) for axis in (1, 2)
    )
    scale = graph("Div", graph.constant(side), graph("Min", height, width))
    planes = graph("Transpose", graph.cast(images, np.float64), perm=[0, 3, 1, 2])
    new_height, new_width = (_resized(graph, length, scale, side) for length in (height, width))
    down = _weights(graph, height, new_height, side)  # (side, height)
    across = graph("Transpose", _weights(graph, width, new_width, side), perm=[1, 0])  # (width, side)
    whole = graph.choice(
        _down_first(graph, (height, new_height), (width, new_width)),
        lambda: _levels(graph, graph("MatMul", _levels(graph, graph("MatMul", down, planes)), across)),
        lambda: _levels(graph, graph("MatMul", down, _levels(graph, graph("MatMul", planes, across)))),
    )
    squares = graph.cast(whole, np.float32)
    levels = graph("Div", squares, graph.constant(255, np.float32))
    centred = graph("Sub", levels, graph.constant(np.reshape(mean, (1, 3, 1, 1)), np.float32))
    graph("Div", centred, graph.constant(np.reshape(std, (1, 3, 1, 1)), np.float32), name=name)


def _resized(graph: Graph, length: str, scale: str, side: int) -> str:
    """Return a picture's height or width, once its shorter side is `side`."""
    return graph("Max", graph("Round", graph("Mul", length, scale)), graph.constant(side))


def _down_first(graph: Graph, heights: tuple[str, str], widths: tuple[str, str]) -> str:
    """Whether to resize downwards first: the height shrinks, and by over twice as many pixels as the width."""
    shorter, narrower = graph("Sub", *heights), graph("Sub", *widths)
    shrinks = graph("Greater", shorter, graph.constant(0))
    return graph("And", shrinks, graph("Greater", shorter, graph("Mul", narrower, graph.constant(2))))


def _weights(graph: Graph, length: str, resized: str, side: int) -> str:
    """Return how much each of `length` pixels counts for each of the middle `side` of the resized ones, (side, length).

    A triangle as wide as the step between resized pixels, at least one pixel: Pillow's bilinear filter. The weights of
    a resized pixel add up to `ONE`.
    """
    one, half = graph.constant(1), graph.constant(0.5)
    first = graph("Floor", graph("Mul", graph("Sub", resized, graph.constant(side)), half))
    step = graph("Div", length, resized)
    places = graph("Add", graph.constant(np.arange(side)[:, None] + 0.5), first)
    pixels = graph("Add", graph("Range", graph.constant(0), length, one), half)  # (length,)
    distances = graph("Abs", graph("Sub", graph("Mul", places, step), pixels))
    raw = graph("Max", graph("Sub", one, graph("Div", distances, graph("Max", step, one))), graph.constant(0))
    total = graph("ReduceSum", raw, graph.constant([1], np.int64), keepdims=1)
    shares = graph("Div", raw, total)
    return graph("Floor", graph("Add", graph("Mul", shares, graph.constant(ONE)), half))


def _levels(graph: Graph, sums: str) -> str:
    """Return weighted sums as levels of 0 to 255; halves go up, as in Pillow."""
    rounded = graph("Floor", graph("Add", graph("Div", sums, graph.constant(ONE)), graph.constant(0.5)))
    return graph("Min", rounded, graph.constant(255))


def prepared(
    graph: Graph, features: str, centre: npt.NDArray[Any] | None, *, normalise: bool
) -> tuple[str, str | None]:
    """Return features centred and normalised, in float64, and which have no direction, (picture, 1), if any can.

    Python refuses those, which a graph cannot; here they are divided by 1.
    """
    value = graph.cast(features, np.float64)
    if centre is not None:
        value = graph("Sub", value, graph.constant(centre))
    if not normalise:
        return value, None
    length = _length(graph, value)
    lost = graph("Equal", length, graph.constant(0))
    return graph("Div", value, graph("Where", lost, graph.constant(1), length)), lost


def _length(graph: Graph, value: str) -> str:
    squares = graph("ReduceSum", graph("Mul", value, value), graph.constant([1], np.int64), keepdims=1)
    return graph("Sqrt", squares)


def add_scores(
    graph: Graph, query: str, support: npt.NDArray[Any], codes: npt.NDArray[Any], classifier: str, n_neighbors: int
) -> str:
    """Return the scores of prepared features, (query, class), as `nearshot.estimator.scores.class_scores` has them."""
    n_classes = int(codes.max()) + 1
    groups = [np.nonzero(codes == code)[0] for code in range(n_classes)]
    if classifier == "centroid":
        means = np.stack([support[group].mean(0) for group in groups])
        return graph("Neg", squared_distances(graph, query, means))
    squares = squared_distances(graph, query, support)  # (query, image)
    # Each class's images beside each other, with the first again where it has fewer than another.
    most = max(map(len, groups))
    places = np.array([[*group, *[group[0]] * (most - len(group))] for group in groups])
    by_class = graph("Gather", squares, graph.constant(places, np.int64), axis=1)  # (query, class, image)
    if classifier == "soft":
        there = np.array([[0.0] * len(group) + [NONE] * (most - len(group)) for group in groups])
        logs = graph("Add", graph("Neg", by_class), graph.constant(there))
        largest = graph("ReduceMax", logs, graph.constant([2], np.int64), keepdims=1)
        sums = graph("ReduceSum", graph("Exp", graph("Sub", logs, largest)), graph.constant([2], np.int64), keepdims=0)
        counts = graph.constant([len(group) for group in groups])
        flat = graph("Squeeze", largest, graph.constant([2], np.int64))
        return graph("Add", graph("Log", graph("Div", sums, counts)), flat)
    return _votes(graph, squares, by_class, codes, n_neighbors)


def _votes(graph: Graph, squares: str, by_class: str, codes: npt.NDArray[Any], n_neighbors: int) -> str:
    """Return the votes of the nearest images, and under 1 for how near a class's nearest is among the classes'."""
    n_classes = int(codes.max()) + 1
    largest = graph("ReduceMax", squares, graph.constant([1], np.int64), keepdims=1)
    tolerance = graph("Mul", largest, graph.constant(TIE))  # (query, 1)
    voters = graph.cast(_tied_nearest(graph, squares, n_neighbors, tolerance), np.float64)  # (query, image)
    votes = graph("MatMul", voters, graph.constant(np.eye(n_classes)[codes]))
    nearest = graph("ReduceMin", by_class, graph.constant([2], np.int64), keepdims=0)  # (query, class)
    mine = graph("Unsqueeze", nearest, graph.constant([2], np.int64))  # (query, class, 1)
    others = graph("Unsqueeze", nearest, graph.constant([1], np.int64))
    farther = graph("Greater", others, graph("Add", mine, graph("Unsqueeze", tolerance, graph.constant([2], np.int64))))
    behind = graph("ReduceSum", graph.cast(farther, np.float64), graph.constant([2], np.int64), keepdims=0)
    return graph("Add", votes, graph("Div", behind, graph.constant(n_classes)))


def _tied_nearest(graph: Graph, squares: str, n_neighbors: int, tolerance: str) -> str:
    """Return which images are the nearest, (query, image), as `nearshot.evaluation.ties.tied_nearest` does."""
    from onnx import helper  # noqa: PLC0415

    count, across = graph.constant([n_neighbors], np.int64), graph.constant([1], np.int64)
    top = [graph.name("distances"), graph.name("places")]
    graph.nodes.append(
        helper.make_node("TopK", [squares, count], top, name=graph.name("node"), axis=1, largest=0, sorted=1)
    )
    last = graph("ReduceMax", top[0], across, keepdims=1)
    sure = graph("Less", squares, graph("Sub", last, tolerance))
    near = graph("LessOrEqual", squares, graph("Add", last, tolerance))
    tied = graph("And", near, graph("Not", sure))
    left = graph("Sub", count, graph("ReduceSum", graph.cast(sure, np.int64), across, keepdims=1))
    number = graph("CumSum", graph.cast(tied, np.int64), graph.constant(1, np.int64))
    return graph("Or", sure, graph("And", tied, graph("LessOrEqual", number, left)))


def first_best(graph: Graph, scores: str) -> str:
    """Return the class with the highest score, (query,), as `nearshot.evaluation.ties.first_best` does."""
    across = graph.constant([1], np.int64)
    tolerance = graph("Mul", graph("ReduceMax", graph("Abs", scores), across, keepdims=1), graph.constant(TIE))
    least = graph("Sub", graph("ReduceMax", scores, across, keepdims=1), tolerance)
    return graph("ArgMax", graph.cast(graph("GreaterOrEqual", scores, least), np.int32), axis=1, keepdims=0)


def squared_distances(graph: Graph, query: str, points: npt.NDArray[Any]) -> str:
    """Return the squared distances from each query to some points, (query, point), not under 0."""
    offset = points.mean(0)  # which changes no distance, but would cost digits
    query, points = graph("Sub", query, graph.constant(offset)), points - offset
    products = graph("MatMul", query, graph.constant(points.T))
    lengths = graph("ReduceSum", graph("Mul", query, query), graph.constant([1], np.int64), keepdims=1)
    sums = graph("Add", lengths, graph.constant((points**2).sum(1)[None, :]))
    squares = graph("Sub", sums, graph("Mul", products, graph.constant(2)))
    return graph("Max", squares, graph.constant(0))
