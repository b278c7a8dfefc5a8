"""`FewShotClassifier`: a scikit-learn classifier from a handful of labelled images."""

import itertools
from copy import copy
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
import numpy.typing as npt
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import (
    check_consistent_length,
    check_is_fitted,
    column_or_1d,
    validate_data,
)
from torch import Tensor

from nearshot.errors import InputError
from nearshot.estimator.bundle import read_bundle, write_bundle
from nearshot.estimator.embedder import Embedder
from nearshot.estimator.explanation import Explanation, explain_answers
from nearshot.estimator.read_images import are_images, image_list, image_name, without_tensors
from nearshot.estimator.leave_one_out import AccuracyEstimate, estimate_from
from nearshot.estimator.state import (
    Array,
    ClassifierSettings,
    Fitted,
    are_mixed,
    learn,
    warn_about_repeated_images,
)
from nearshot.models.recommended import AUTO
from nearshot.text import format_list


class FewShotClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """Classify images, or features, by a few labelled images per class. Nothing is trained.

    A scikit-learn estimator: it works in pipelines, `cross_val_score` and `GridSearchCV`. It is
    thread-safe: while one thread calls `fit`, `partial_fit` or `forget`, every prediction of
    another uses one consistent support set.

    Args:
        backbone: embeds images: a name (`efficientnet-lite0`, `timm:<model>`), the path of a
            weights file, a network in evaluation mode, or a function of a uint8 array (image, side,
            side, 3); see `Embedder`. Images are given as a list of paths, Pillow images and uint8
            arrays. "auto": the best installed for photographs, which is `efficientnet-lite0` with
            the extra `photos`; features, (image, dim), are used unchanged. None: `X` are features.
        classifier: a name in `nearshot.evaluation.CLASSIFIERS`: "ridge" (ridge regression from
            features to classes, all of which count equally), "centroid" (nearest class mean),
            "soft" (soft assignment) or "knn" (votes of the nearest images, ties to the nearest),
            the last three as in Section 2.3 of the paper, or one of your own. "auto" is "ridge",
            the most accurate on photographs (`benchmarks/photos.py`). Ties go to the first class
            and the first image, so an answer does not depend on the batch.
        n_neighbors: how many images vote in "knn"; by default as many as the smallest class has.
        centre: the mean to subtract from features. "auto": the mean feature of the backbone's
            training set if it is stored with it, else nothing. "support": the mean of the support
            images; not the default, since it is noisy for few images or one class. An array, or
            None for nothing.
        normalise: whether to divide features by their length.
        temperature: the divisor of the scores before the softmax of `predict_proba`. "auto"
            maximises the likelihood of held-out support images.
        unknown_rate: the fraction of images of known classes that may be rejected, such as 0.05;
            `predict` then returns `unknown_label` for images unlike all classes. None: every image
            gets a class.
        unknown_label: the label of rejected images. With integer classes, an integer such as -1
            keeps answers integers.
        device: where to embed: "cpu", "cuda", …; "auto" is a GPU if there is one.
        cache_dir: a folder that caches embeddings by content; None for no cache.
        input_size: the side that images are resized to; by default the backbone's own.
        n_views: how many views of each image are embedded and averaged: the image, its mirror
            image, and crops.
        verbose: whether to show a progress bar on a terminal while images are embedded.

    Attributes:
        classes_: the labels, sorted.
        n_features_in_: the dimension of a feature.
        feature_names_in_: the names of the feature columns, if `X` had any.
        support_features_: (image, dim) as embedded, before centring.
        support_labels_: (image,) indices into `classes_`.
        support_names_: the paths of the support images, or "image 3" for images without a path.
        centre_: (dim,) the mean that is subtracted, or None.
        temperature_: the divisor of the scores.
        threshold_: the novelty above which an image is unknown; infinite without `unknown_rate`.
        embedder_: the `Embedder`, or None for features.

    >>> features = np.array([[1.0, 0.1], [0.9, 0.0], [0.0, 1.0], [0.1, 0.8]])
    >>> model = FewShotClassifier().fit(features, ["cat", "cat", "dog", "dog"])
    >>> model.predict([[5.0, 1.0], [0.2, 3.0]])
    array(['cat', 'dog'], dtype='<U3')
    """

    def __init__(
        self,
        backbone: Any = "auto",
        *,
        classifier: str = "auto",
        n_neighbors: int | None = None,
        centre: Literal["auto", "support"] | npt.ArrayLike | None = "auto",
        normalise: bool = True,
        temperature: Literal["auto"] | float = "auto",
        unknown_rate: float | None = None,
        unknown_label: Any = "unknown",
        device: Any = "auto",
        cache_dir: str | Path | None = None,
        input_size: int | None = None,
        n_views: int = 1,
        verbose: bool = False,
    ) -> None:
        self.backbone = backbone
        self.classifier = classifier
        self.n_neighbors = n_neighbors
        self.centre = centre
        self.normalise = normalise
        self.temperature = temperature
        self.unknown_rate = unknown_rate
        self.unknown_label = unknown_label
        self.device = device
        self.cache_dir = cache_dir
        self.input_size = input_size
        self.n_views = n_views
        self.verbose = verbose

    def fit(self, X: Any, y: Any) -> Self:  # noqa: N803
        """Learn classes from labelled images, and forget the previous ones."""
        return self._learn(X, y, None)

    def partial_fit(self, X: Any, y: Any, classes: Any = None) -> Self:  # noqa: N803
        """Add labelled images of known or new classes. `classes`, which scikit-learn gives, is not needed."""
        return self._learn(X, y, self._fitted if self.__sklearn_is_fitted__() else None)

    def forget(self, label: Any) -> Self:
        """Forget a class and all its images."""
        check_is_fitted(self)
        settings, known = self._settings().check(), self._fitted
        classes, labels = known.classes.tolist(), known.classes[known.codes]
        label = label.item() if isinstance(label, np.generic) else label
        if label not in classes or len(classes) == 1:
            raise InputError(
                f"label must be one of several classes, here {format_list(classes)} (got {label!r})."
            )
        kept = labels != label
        names = [name for name, keep in zip(known.names, kept, strict=True) if keep]
        return self._set(
            learn(
                settings, known.embedder, known.features[kept], labels[kept], names, known.columns
            )
        )

    def predict(self, X: Any) -> Array:  # noqa: N803
        """Return the label of each image; with `unknown_rate`, `unknown_label` for images unlike all classes."""
        fitted, query = self._query(X)
        return fitted.labels(fitted.answer(query))

    def predict_proba(self, X: Any) -> npt.NDArray[np.float64]:  # noqa: N803
        """Return the probability of each class, (image, class) in the order of `classes_`.

        It is conditional on the image being of one of the classes. See `novelty` for images that
        may not be.
        """
        fitted, query = self._query(X)
        return fitted.answer(query).probabilities.numpy()

    def novelty(self, X: Any) -> npt.NDArray[np.float64]:  # noqa: N803
        """Return how unlike all classes each image is: about 1 for images of a class, and more for others."""
        fitted, query = self._query(X)
        return fitted.answer(query).novelty.numpy()

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:  # noqa: N803
        """Return the accuracy. A rejected image is right if its label in `y` is `unknown_label`."""
        answers = self.predict(X)
        labels = column_or_1d(y)
        check_consistent_length(answers, labels)
        right = [
            bool(answer == label)
            for answer, label in zip(answers.tolist(), labels.tolist(), strict=True)
        ]
        return float(np.average(right, weights=sample_weight))

    def kneighbors(
        self, X: Any, n_neighbors: int = 5
    ) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]:
        """Return the distances to the nearest support images and their indices, nearest first.

        Both are (image, neighbour), with at most as many neighbours as there are support images.
        Distances are between prepared features: at unit length, 0 is the same direction and √2 a
            right angle.
        """
        fitted, query = self._query(X)
        distances, indices = fitted.support.nearest(query, n_neighbors)
        return distances.numpy(), indices.numpy()

    def explain(self, X: Any, n_neighbors: int = 3) -> list[Explanation]:  # noqa: N803
        """Return the label of each image and what it is based on: the nearest support images and their distances."""
        return explain_answers(*self._query(X), n_neighbors)

    def estimate_accuracy(self) -> AccuracyEstimate:
        """Estimate the accuracy for new images from the support images alone, by leave-one-out, without rejection.

        Classes with a single image cannot be tested. Classifiers other than ridge test at most a
        thousand images.
        """
        fitted = self._ready()
        return estimate_from(fitted.held_out, fitted.support.counts)

    def save(self, path: str | Path) -> None:
        """Write the features, labels, settings and backbone weights to one safetensors file, atomically.

        A backbone that is a function, or a network of your own, is not saved: give it to `load`
            again.
        """
        write_bundle(self._ready(), path)

    @classmethod
    def load(
        cls, path: str | Path, *, backbone: Any = None, device: Any = "auto", cache_dir: Any = None
    ) -> Self:
        """Return a saved classifier. Nothing in the file is executed.

        A `backbone` that could not be saved must be given again. The other arguments are those of
        the constructor.
        """
        learnt, parameters, saved, needs_backbone = read_bundle(path)
        if needs_backbone and backbone is None:
            raise InputError(
                f"backbone is required: {path} was saved without it. Call load(path, backbone=…)."
            )
        if not needs_backbone and backbone is not None:
            raise InputError(f"backbone must be None: {path} needs none but its own.")
        model = cls(saved or backbone or AUTO, device=device, cache_dir=cache_dir, **parameters)
        embedder = model._make_embedder(None, copy=backbone is not None)
        if embedder is not None:
            embedder.dim = learnt["features"].shape[1]  # other embeddings will be refused
        return model._set(Fitted(model._settings().check(), embedder, **learnt))

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "_fitted")

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.two_d_array = self.backbone is None or self.backbone == AUTO
        tags.input_tags.string = self.backbone is not None
        return tags

    def _set(self, fitted: Fitted) -> Self:
        """Take a new state. Predictions read `_fitted` alone, in one step; the attributes are for users."""
        self._fitted, self.embedder_ = fitted, fitted.embedder
        self.classes_, self.n_features_in_ = fitted.classes, fitted.features.shape[1]
        self.support_features_, self.support_labels_ = fitted.features, fitted.codes
        self.support_names_, self.centre_ = fitted.names, fitted.centre
        self.temperature_, self.threshold_ = fitted.temperature, fitted.threshold
        if fitted.columns is not None:
            self.feature_names_in_ = fitted.columns
        else:
            self.__dict__.pop("feature_names_in_", None)
        return self

    def _learn(self, X: Any, y: Any, known: Fitted | None) -> Self:  # noqa: N803
        """Learn labelled images, in addition to those that are `known`."""
        settings = self._settings().check()
        for number, label in enumerate(() if y is None else np.asarray(y, dtype=object).ravel()):
            if label is None or label != label:  # NaN, as in tables
                raise InputError(f"Every image needs a label (got {label!r} for image {number}).")
        embedder, columns = self._make_embedder(X) if known is None else known.embedder, None
        if embedder is None:
            checker = (
                copy(self) if known is None else copy(self)._set(known)
            )  # scikit-learn writes attributes to it
            images, labels = _validated(checker, X, y, reset=known is None)
            features, columns = images, getattr(checker, "feature_names_in_", None)
        else:
            images, labels = image_list(X), column_or_1d(y, warn=True)
            check_consistent_length(images, labels)
            features = self._embed(embedder, images)
        check_classification_targets(
            np.tile(labels, 2)
        )  # one image per class is no sign of a regression here
        known_names = [] if known is None else known.names
        names = [*known_names, *map(image_name, images, itertools.count(len(known_names)))]
        if known is not None:
            known_labels = known.classes[known.codes]
            if are_mixed(known_labels, labels):
                first, second = known_labels.tolist()[0], labels.tolist()[0]
                raise InputError(
                    f"Labels must be of one type (got {first!r} before and {second!r} now)."
                )
            features, labels = (
                np.concatenate([known.features, features]),
                np.concatenate([known_labels, labels]),
            )
        fitted = learn(settings, embedder, features, labels, names, columns)
        if embedder is not None:
            warn_about_repeated_images(fitted, [*known_names, *images])
        return self._set(fitted)

    def _query(self, X: Any) -> tuple[Fitted, Tensor]:  # noqa: N803
        """Return the state, and the prepared features of new images."""
        fitted = self._ready()
        if fitted.embedder is None:
            features = _validated(copy(self)._set(fitted), X, reset=False)
        else:
            features = self._embed(fitted.embedder, X)
        return fitted, fitted.prepare(features)

    def _embed(self, embedder: Embedder, images: Any) -> Array:
        return embedder(images, progress=None if self.verbose else False)

    def _settings(self) -> ClassifierSettings:
        return ClassifierSettings(*(getattr(self, name) for name in ClassifierSettings._fields))

    def _ready(self) -> Fitted:
        """Return the state; raise an error before `fit`, or if a parameter has changed since."""
        check_is_fitted(self)
        fitted = self._fitted
        for name, value, now in zip(
            ClassifierSettings._fields, fitted.settings, self._settings(), strict=True
        ):
            if now is not value and not np.array_equal(now, value):
                raise InputError(f"{name} was {value!r} in fit and is {now!r} now. Call fit again.")
        return fitted

    def _make_embedder(self, X: Any, *, copy: bool = True) -> Embedder | None:  # noqa: N803
        if self.backbone is None or (self.backbone == AUTO and not are_images(X)):
            return None
        where: dict[str, Any] = {"device": self.device, "cache_dir": self.cache_dir, "copy": copy}
        return Embedder(self.backbone, **where, input_size=self.input_size, n_views=self.n_views)


def _validated(checker: FewShotClassifier, features: Any, *labels: Any, reset: bool) -> Any:
    """Return features, and labels if any, as scikit-learn checks them; paths and images are refused."""
    if are_images(features):
        raise InputError(
            "X must be features, as in fit or since backbone is None (got images). For images, set backbone='auto' and "
            "fit images."
        )
    return validate_data(
        checker, without_tensors(features), *labels, reset=reset, dtype=(np.float64, np.float32)
    )
