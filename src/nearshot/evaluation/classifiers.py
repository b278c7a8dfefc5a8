"""The classifiers of Section 2.3, and ridge regression: class scores from similarities.

Each is defined once: the episode engine, `FewShotClassifier` and the ONNX export all answer through
these definitions. To add a classifier, add an entry to `CLASSIFIERS`:

>>> def nearest_neighbour(similarities: Tensor, class_sizes: Tensor) -> Tensor:
...     return best_of_class(similarities, class_sizes)
>>> own = Classifier("nearest", nearest_neighbour)  # CLASSIFIERS["nearest"] = own
>>> support = torch.tensor([[[0.0], [2.0]], [[5.0], [9.0]]])  # (class, image, dim)
>>> own(support, torch.tensor([[3.0], [6.0]])).argmax(-1)
tensor([0, 1])

Distances come from matrix products, whose last digits depend on how many rows are multiplied at
once. Differences within the rounding error therefore count as ties, and a tie goes to the first
image or class. An image then gets the same answer alone and in a batch, here and in an exported
file.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from nearshot.errors import InputError, look_up
from nearshot.evaluation.transductive import TRANSDUCTIVE

# The tolerance of a tie, relative to the largest distance or score. In float64, products of 4,096
# dimensions that are summed one after the other round by an eighth of it. In float32 only equal
# values are ties.
TIE = 2.0**-42
# A key of CLASSIFIERS; not a Literal, since users add entries.
ClassifierName = str
# Of a ridge regression, relative to the mean squared distance of an image from the mean.
PENALTY = 1.0
# For features that are all zero.
SMALLEST_PENALTY = 1e-30

FeatureClassifier = Callable[[Tensor, Tensor], Tensor]
"""A function of `support` (episode, class, shot, dim) and `query` (episode, query, dim) that
returns scores (episode, query, class). A `Classifier` is one."""
ClassifierOrName = str | FeatureClassifier


@dataclass(frozen=True)
class Classifier:
    """A classifier: class scores computed from similarities; the highest score is the answer.

    `scores` must treat each query on its own, so that the protocol is inductive. To be exported to
    ONNX, it must use tensor operations whose shapes depend on the shapes of its arguments only, not
    on their values.

    A classifier with `fit` learns from the support images first. Any linear classifier can be
    written this way: the scores w·q + b of weights w are, but for ‖q‖², which all classes share,
    the similarities to the points w/2 plus an offset for each class.

    Attributes:
        name: the name in results and messages.
        scores: a function of `similarities` (…, query, point), minus the squared distances, and
            `class_sizes` (class,) int64, the number of points of each class. Points are grouped by
            class: first all of class 0, then all of class 1, and so on. It returns scores (…,
            query, class).
        prototypes: whether the points are the class means, one per class, rather than the support
            images.
        fit: a function of the support images (…, point, dim), grouped by class, and `class_sizes`,
            for a classifier without `prototypes`. It returns the points (…, point, dim) to compare
            queries with, and the second argument of `scores` in place of the sizes.
    """

    name: str
    scores: Callable[[Tensor, Tensor], Tensor]
    prototypes: bool = False
    fit: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]] | None = None

    def __post_init__(self) -> None:
        if self.prototypes and self.fit is not None:
            raise InputError(
                f"prototypes must be False for the classifier {self.name!r}, which has fit (got "
                "True). Let fit return the class means."
            )

    def __call__(self, support: Tensor, query: Tensor) -> Tensor:
        """Return the scores (…, query, class).

        `support` is (…, class, shot, dim), and `query` (…, query, dim).
        """
        points = support.mean(-2, keepdim=True) if self.prototypes else support
        class_sizes = torch.full(points.shape[-3:-2], points.shape[-2], device=points.device)
        points = points.flatten(-3, -2)
        if self.fit is not None:
            points, class_sizes = self.fit(points, class_sizes)
        return self.scores(similarities(points, query), class_sizes)


def similarities(points: Tensor, query: Tensor) -> Tensor:
    """Return −‖q − p‖², (…, query, point), of points (…, point, dim) and query (…, query, dim)."""
    # A common offset changes no distance, but would cost digits in 2qp − ‖p‖² − ‖q‖².
    offset = points.mean(-2, keepdim=True)
    points = points - offset
    query = query - offset
    products = 2 * (query @ points.mT)
    return products - points.square().sum(-1)[..., None, :] - query.square().sum(-1, keepdim=True)


def class_of_points(class_sizes: Tensor, n_points: int) -> Tensor:
    """Return the class of each point, (point,) int64, for points grouped by class."""
    positions = torch.arange(n_points, device=class_sizes.device)
    return (positions[:, None] >= class_sizes.cumsum(0)).sum(1)


def best_of_class(similarities: Tensor, class_sizes: Tensor) -> Tensor:
    """Return the similarity of each class's nearest point, (…, query, class)."""
    classes = class_of_points(class_sizes, similarities.shape[-1]).expand(similarities.shape)
    lowest = similarities.new_full((*similarities.shape[:-1], len(class_sizes)), -torch.inf)
    return lowest.scatter_reduce(-1, classes, similarities, "amax")


def _sum_by_class(values: Tensor, class_sizes: Tensor) -> Tensor:
    """Return the sums (…, query, class) of values (…, query, point)."""
    classes = torch.arange(len(class_sizes), device=values.device)
    is_of_class = class_of_points(class_sizes, values.shape[-1])[:, None] == classes
    # A matrix product is fast and can be exported.
    return values @ is_of_class.to(values)


def tied_nearest(distances: Tensor, k: int | Tensor, tolerance: Tensor) -> Tensor:
    """Return a mask (…, image) of the k nearest images, of `distances` (…, image).

    Of images that tie for the last places, the first are taken. `tolerance` (…, 1) is the largest
    difference that counts as a tie.

    >>> tied_nearest(torch.tensor([3.0, 1.0, 3.0, 2.0]), 3, torch.tensor([0.1]))
    tensor([ True,  True, False,  True])
    """
    # A sort, not topk: its shapes do not depend on k, which an ONNX graph computes.
    last = torch.as_tensor(k, device=distances.device).reshape(1) - 1
    last_distance = distances.sort(dim=-1).values.index_select(-1, last)
    is_nearer = distances < last_distance - tolerance
    is_tied = ~is_nearer & (distances <= last_distance + tolerance)
    n_left = k - is_nearer.sum(-1, keepdim=True)  # places for those that tie
    return is_nearer | (is_tied & (is_tied.cumsum(-1) <= n_left))


def nearest_in_order(distances: Tensor, k: int, tolerance: Tensor) -> Tensor:
    """Return the indices (row, k) of the k nearest images of `distances` (row, image).

    The nearest come first, and of tied images the first. `tolerance` (row, 1) is the largest
    difference that counts as a tie.

    >>> nearest_in_order(torch.tensor([[3.0, 1.01, 3.0, 1.0]]), 3, torch.tensor([[0.1]]))
    tensor([[1, 3, 0]])
    """
    # The k nearest, in the order of the images.
    nearest = tied_nearest(distances, k, tolerance).nonzero()[:, 1].view(-1, k)
    values, order = distances.gather(1, nearest).sort(dim=1)
    # Images that tie have the same rank: the number of steps above the tolerance before them.
    ranks = torch.zeros_like(order)
    ranks[:, 1:] = (values.diff(dim=1) > tolerance).cumsum(1)
    rank_of_image = torch.zeros_like(order).scatter_(1, order, ranks)
    return nearest.gather(1, rank_of_image.argsort(dim=1, stable=True))


def n_behind(nearest: Tensor, tolerance: Tensor) -> Tensor:
    """Return how many classes are farther than each, (…, class) int64.

    `nearest` (…, class) has the distances of their nearest images.
    """
    return (nearest[..., None, :] > (nearest + tolerance)[..., :, None]).sum(-1)


def first_best(scores: Tensor) -> Tensor:
    """Return the class with the highest of scores (…, class), of tied ones the first."""
    tolerance = TIE * scores.abs().masked_fill(scores.isinf(), 0).amax(-1, keepdim=True)
    return (scores >= scores.amax(-1, keepdim=True) - tolerance).int().argmax(-1)


def _centroid_scores(similarities: Tensor, class_sizes: Tensor) -> Tensor:
    return similarities  # to the class means


def _soft_scores(similarities: Tensor, class_sizes: Tensor) -> Tensor:
    """Return the log of the mean of exp(−d²) over the class's images.

    The mean rather than the sum, so that more images do not make a class more likely. It is
    computed by exp(x) − 1: where all distances are tiny, exp(x) has no digits left.
    """
    largest = best_of_class(similarities, class_sizes)
    classes = class_of_points(class_sizes, similarities.shape[-1])
    sums = _sum_by_class((similarities - largest[..., classes]).expm1(), class_sizes)
    return largest + (sums / class_sizes).log1p()


def _knn_scores(
    similarities: Tensor,
    class_sizes: Tensor,
    *,
    k: int | None = None,
    ties: Literal["nearest", "first"] = "nearest",
) -> Tensor:
    """Return the votes of the k nearest images.

    Added is a fraction under 1, which decides between classes with equally many votes.
    """
    n_points = similarities.shape[-1]
    n_classes = len(class_sizes)
    if k is not None and k > n_points:
        raise InputError(f"k must be at most {n_points}, the number of support images (got {k}).")
    tolerance = TIE * similarities.abs().amax(-1, keepdim=True)
    n_voters = class_sizes.amin(0) if k is None else k
    is_voter = tied_nearest(-similarities, n_voters, tolerance)
    votes = _sum_by_class(is_voter.to(similarities), class_sizes)
    if ties == "nearest":
        ahead = n_behind(-best_of_class(similarities, class_sizes), tolerance)
    else:
        ahead = n_classes - 1 - torch.arange(n_classes, device=votes.device)
    return votes + ahead.to(votes) / n_classes


def knn(k: int | None = None, ties: Literal["nearest", "first"] = "nearest") -> Classifier:
    """Return a k-NN classifier.

    Of images that are equally far, the first are the nearer ones. Of classes that still tie, the
    first wins.

    Args:
        k: how many neighbours vote; by default as many as the smallest class has images.
        ties: of classes with equally many votes, the one with the nearest image wins, or the first.
            The latter is what scikit-learn does; it costs more than a point of 5-shot accuracy.
    """
    if k is not None and k < 1:
        raise InputError(f"k must be at least 1 (got {k}).")
    if ties not in ("nearest", "first"):
        raise InputError(f"ties must be 'nearest' or 'first' (got {ties!r}).")
    settings = []
    if k is not None:
        settings.append(f"k={k}")
    if ties != "nearest":
        settings.append(f"ties={ties!r}")
    name = f"knn({', '.join(settings)})" if settings else "knn"
    return Classifier(name, partial(_knn_scores, k=k, ties=ties))


class RidgeProblem(NamedTuple):
    """A ridge regression from images to class membership, in which all classes count equally."""

    mean: Tensor  # (…, 1, dim) the mean of the class means
    roots: Tensor  # (point, 1) the square roots of the images' weights
    rows: Tensor  # (…, point, dim) the images around the mean, times the roots
    targets: Tensor  # (point, class) membership around its mean, times the roots
    penalty: Tensor  # (…, 1, 1)


def ridge_problem(support: Tensor, class_sizes: Tensor) -> RidgeProblem:
    """Return the regression for support images (…, point, dim) grouped by class.

    An image of a class of n images weighs 1/n, so that a class is not less likely for having few
    images. The penalty scales with the features, and does not depend on where their origin is.
    """
    n_points = support.shape[-2]
    n_classes = len(class_sizes)
    classes = class_of_points(class_sizes, n_points)
    weight_of_class = n_points / (n_classes * class_sizes.to(support))
    weights = weight_of_class[classes][:, None]  # 1 on average
    mean = (weights * support).sum(-2, keepdim=True) / n_points
    roots = weights.sqrt()
    rows = roots * (support - mean)
    is_member = classes[:, None] == torch.arange(n_classes, device=support.device)
    targets = roots * (is_member.to(support) - 1 / n_classes)
    # If all images are equal, only rounding is left of the rows, and the second term decides.
    eps = torch.finfo(support.dtype).eps
    rounding = (4 * eps) ** 2 * support.square().sum((-2, -1), keepdim=True)
    penalty = (PENALTY * rows.square().sum((-2, -1), keepdim=True) + rounding) / n_points
    return RidgeProblem(mean, roots, rows, targets, penalty.clamp(min=SMALLEST_PENALTY))


def _fit_ridge(support: Tensor, class_sizes: Tensor) -> tuple[Tensor, Tensor]:
    """Return the points (…, class, dim) and offsets (…, 1, class) of the ridge regression."""
    problem = ridge_problem(support, class_sizes)
    weights = solve_ridge(problem).mT  # (…, class, dim)
    return problem.mean + weights / 2, weights.square().sum(-1)[..., None, :] / 4


def solve_ridge(problem: RidgeProblem) -> Tensor:
    """Return the weights of the features, (…, dim, class)."""
    rows = problem.rows
    n_points, dim = rows.shape[-2:]
    if n_points <= dim:  # then the system of the images is the smaller one
        gram = rows @ rows.mT
        right_side = problem.targets.expand(*gram.shape[:-2], *problem.targets.shape)
        return rows.mT @ _solve_ridge(gram, problem.penalty, right_side)
    gram = rows.mT @ rows
    return _solve_ridge(gram, problem.penalty, rows.mT @ problem.targets)


def _solve_ridge(gram: Tensor, penalty: Tensor, right_side: Tensor) -> Tensor:
    identity = torch.eye(gram.shape[-1]).to(gram)
    factor = torch.linalg.cholesky(gram + penalty * identity)
    return torch.cholesky_solve(right_side, factor)


def _ridge_scores(similarities: Tensor, offsets: Tensor) -> Tensor:
    """Return the predictions of the regression: about 1 for the query's class, and 0 for others.

    They add up to 1 over the classes. That determines what all similarities have in common beside
    the scores, −‖q‖².
    """
    scores = similarities + offsets
    return scores - scores.mean(-1, keepdim=True) + 1 / scores.shape[-1]


CENTROID = Classifier("centroid", _centroid_scores, prototypes=True)
SOFT = Classifier("soft", _soft_scores)
KNN = knn()
RIDGE = Classifier("ridge", _ridge_scores, fit=_fit_ridge)
CLASSIFIERS: dict[str, Classifier] = {
    "centroid": CENTROID,
    "soft": SOFT,
    "knn": KNN,
    "ridge": RIDGE,
}
"""The classifiers by name. Add an entry to use it wherever a classifier is named."""
BUILT_IN = tuple(CLASSIFIERS.values())  # before users add entries


def is_built_in(classifier: ClassifierOrName) -> bool:
    """Return whether a classifier is one of this module, so that its name identifies it."""
    if isinstance(classifier, str):
        return CLASSIFIERS.get(classifier) in BUILT_IN or is_transductive(classifier)
    return classifier in BUILT_IN


def is_transductive(classifier: ClassifierOrName) -> bool:
    """Return whether a classifier is one of `TRANSDUCTIVE`, which no entry of one's own hides."""
    if isinstance(classifier, str):
        return classifier in TRANSDUCTIVE and classifier not in CLASSIFIERS
    return classifier in TRANSDUCTIVE.values()


def check_classifier_name(name: str) -> None:
    """Refuse a name that is in neither registry."""
    look_up({**CLASSIFIERS, **TRANSDUCTIVE}, name, "classifier")


def find_classifier(classifier: ClassifierOrName, inductive: bool | None) -> FeatureClassifier:
    """Return a classifier by its name in a registry, or the given callable unchanged.

    A function of features gets all queries of an episode, so `inductive` must say whether it looks
    at each alone.
    """
    if isinstance(classifier, str):
        check_classifier_name(classifier)
        return CLASSIFIERS[classifier] if classifier in CLASSIFIERS else TRANSDUCTIVE[classifier]
    if (
        inductive is None
        and not is_transductive(classifier)
        and not isinstance(classifier, Classifier)
    ):
        raise InputError(
            f"inductive must be given for {classifier_name(classifier)!r}, a function that gets "
            "all queries of an episode: True if it looks at each query alone, else False."
        )
    return classifier


def classifier_name(classifier: str | Callable[..., Tensor]) -> str:
    """Return the name of a classifier, or of another function, for a result."""
    if isinstance(classifier, str):
        return classifier
    if isinstance(classifier, Classifier):
        return classifier.name
    if isinstance(classifier, partial):
        arguments = [repr(value) for value in classifier.args]
        arguments += [f"{name}={value!r}" for name, value in classifier.keywords.items()]
        return f"{classifier_name(classifier.func)}({', '.join(arguments)})"
    return str(getattr(classifier, "__name__", None) or type(classifier).__name__)
