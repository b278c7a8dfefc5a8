"""`FewShotClassifier`: a handful of labelled pictures in, a classifier out."""

from __future__ import annotations

import warnings
from copy import copy
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
import numpy.typing as npt
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_consistent_length, check_is_fitted, column_or_1d, validate_data
from torch import Tensor

from nearshot.errors import InputError
from nearshot.estimator.accuracy_estimate import AccuracyEstimate, estimate_from
from nearshot.estimator.arrays import without_tensors
from nearshot.estimator.embedder import Embedder
from nearshot.estimator.explanation import Explanation, explain_answers, nearest_images
from nearshot.estimator.inputs import name_of, picture_list
from nearshot.estimator.leave_one_out import left_out_scores
from nearshot.estimator.saving import load_classifier, save_classifier
from nearshot.estimator.settings import check_labels, check_parameters, refuse_pictures
from nearshot.estimator.state import NUMBERS, Fitted, FittedAttribute, Labelled, Settings, is_mixed, learn
from nearshot.evaluation.classifiers import ClassifierName
from nearshot.evaluation.ties import first_best
from nearshot.text import format_list

__all__ = ["FewShotClassifier"]

Array = npt.NDArray[Any]


class FewShotClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """Classify pictures, or features, by a few labelled ones of each class. Nothing is trained.

    A scikit-learn estimator: it works in pipelines, `cross_val_score` and `GridSearchCV`. While one thread learns or
    forgets, others may ask: each answer is by the support set of before or of after, whole.

    Args:
        backbone: what embeds pictures: the path of a weights file, a name (`timm:<model>`), a network in evaluation
            mode, or a function of a uint8 array (picture, side, side, 3); see `Embedder`. Pictures are then given as a
            list of paths, Pillow images and uint8 arrays. None: `X` are features already, (image, dim).
        classifier: "centroid" (the nearest class mean), "soft" (soft assignment) or "knn" (votes of the nearest images,
            ties to the nearest), as in Section 2.3 of the paper. What is equally near is decided by order, the first
            image and the first class, so that a label does not depend on what else is asked.
        n_neighbors: how many images vote in "knn"; by default as many as the smallest class has.
        centre: what is subtracted from features. "auto": the mean feature of the backbone's training set if it is
            stored with it, else nothing. "support": the support images' own mean; not the default, since of a few
            images, or of one class, it is mostly noise. An array, or None for nothing.
        normalise: whether features are divided by their length.
        temperature: what scores are divided by before the softmax of `predict_proba`. "auto": chosen so that left-out
            support images get the highest likelihood.
        unknown_rate: the share of pictures of known classes that may be taken for unknown, such as 0.05; `predict` then
            answers `unknown_label` for what is unlike all classes. None: every picture gets a class.
        unknown_label: what to answer then. With whole-number classes, a whole number such as -1 keeps the answers whole
            numbers.
        device: where to embed: "cpu", "cuda", …; "auto" is a GPU if there is one.
        cache_dir: a folder to keep embeddings in, so that no picture is embedded twice; None for none.
        verbose: whether to show a bar on a terminal while pictures are embedded.

    Attributes:
        classes_: the labels, sorted.
        n_features_in_: the dimension of a feature.
        support_features_: (image, dim) as embedded, before centring.
        support_labels_: (image,) each one's place in `classes_`.
        support_names_: the paths of the support images, or "image 3" where there is none.
        centre_: (dim,) what is subtracted, or None.
        temperature_: what scores are divided by.
        threshold_: the novelty over which a picture is unknown; infinite without `unknown_rate`.

    >>> features = np.array([[1.0, 0.1], [0.9, 0.0], [0.0, 1.0], [0.1, 0.8]])
    >>> model = FewShotClassifier().fit(features, ["cat", "cat", "dog", "dog"])
    >>> model.predict([[5.0, 1.0], [0.2, 3.0]])
    array(['cat', 'dog'], dtype='<U3')
    >>> model.partial_fit([[-1.0, -0.1]], ["fish"]).predict([[-2.0, 0.0]])
    array(['fish'], dtype='<U4')
    >>> model.forget("fish").classes_
    array(['cat', 'dog'], dtype='<U4')
    """

    _fitted: Fitted  # all there is after `fit`; whoever answers takes it once
    classes_ = FittedAttribute[Array](lambda fitted: fitted.learnt.classes)
    n_features_in_ = FittedAttribute[int](lambda fitted: fitted.learnt.features.shape[1])
    feature_names_in_ = FittedAttribute[Array](lambda fitted: fitted.columns)
    support_features_ = FittedAttribute[Array](lambda fitted: fitted.learnt.features)
    support_labels_ = FittedAttribute[Array](lambda fitted: fitted.learnt.codes)
    support_names_ = FittedAttribute[list[str]](lambda fitted: fitted.learnt.names)
    centre_ = FittedAttribute[Array | None](lambda fitted: fitted.learnt.centre, may_be_none=True)
    temperature_ = FittedAttribute[float](lambda fitted: fitted.learnt.temperature)
    threshold_ = FittedAttribute[float](lambda fitted: fitted.learnt.threshold)
    embedder_ = FittedAttribute[Embedder | None](lambda fitted: fitted.embedder, may_be_none=True)

    def __init__(
        self,
        backbone: Any = None,
        *,
        classifier: ClassifierName = "centroid",
        n_neighbors: int | None = None,
        centre: Literal["auto", "support"] | npt.ArrayLike | None = "auto",
        normalise: bool = True,
        temperature: Literal["auto"] | float = "auto",
        unknown_rate: float | None = None,
        unknown_label: Any = "unknown",
        device: Any = "auto",
        cache_dir: str | Path | None = None,
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
        self.verbose = verbose

    def fit(self, X: Any, y: Any) -> Self:  # noqa: N803
        """Learn classes from labelled images, and forget those of before."""
        check_parameters(self.get_params(deep=False))
        settings, embedder = self._settings(), self._make_embedder()
        given = self._labelled(X, y, embedder=embedder, known=None)
        if settings.unknown_rate is not None and is_mixed(given.labels, settings.unknown_label):
            hint = "-1" if given.labels.dtype.kind in NUMBERS else '"unknown"'
            warnings.warn(
                f"The labels are such as {given.labels.tolist()[0]!r} and unknown_label is {self.unknown_label!r}, so "
                f"answers will be a mix that scikit-learn cannot score. unknown_label={hint} keeps them of one type.",
                stacklevel=2,
            )
        self._fitted = learn(settings, given, embedder)
        return self

    def partial_fit(self, X: Any, y: Any, classes: Any = None) -> Self:  # noqa: N803
        """Add labelled images, of classes known or new; nothing is trained again.

        Args:
            X: the images or features.
            y: their labels.
            classes: all labels that may come, if others are to be refused; scikit-learn gives them in the first call.
                A class is there from its first image on.
        """
        if classes is not None:
            strangers = set(np.asarray(y).ravel().tolist()) - set(np.asarray(classes).ravel().tolist())
            if strangers:
                raise InputError(f"y has {format_list(strangers)}, which is not among `classes`.")
        if not self.__sklearn_is_fitted__():
            return self.fit(X, y)
        check_parameters(self.get_params(deep=False))
        fitted = self._fitted
        given = self._labelled(X, y, embedder=fitted.embedder, known=fitted)
        known = fitted.labels()
        if (known.dtype.kind in NUMBERS) != (given.labels.dtype.kind in NUMBERS):
            raise InputError(
                f"The labels so far are such as {known.tolist()[0]!r} and the new ones such as "
                f"{given.labels.tolist()[0]!r}; "
                "give labels of one type."
            )
        features = np.concatenate([fitted.learnt.features, given.features])
        labels, names = np.concatenate([known, given.labels]), [*fitted.learnt.names, *given.names]
        self._fitted = learn(self._settings(), Labelled(features, labels, names, fitted.columns), fitted.embedder)
        return self

    def forget(self, label: Any) -> Self:
        """Forget a class and all its images."""
        check_is_fitted(self)
        check_parameters(self.get_params(deep=False))
        fitted = self._fitted
        learnt, labels = fitted.learnt, fitted.labels()
        label = label.item() if isinstance(label, np.generic) else label  # which a message would call np.str_('cat')
        if label not in learnt.classes.tolist():
            raise InputError(
                f"There is no class {label!r} to forget; there are {format_list(learnt.classes.tolist())}."
            )
        if len(learnt.classes) == 1:
            raise InputError(f"{label!r} is the only class; without it nothing is left. Call fit with others instead.")
        stays = labels != label
        names = [name for name, kept in zip(learnt.names, stays, strict=True) if kept]
        left = Labelled(learnt.features[stays], labels[stays], names, fitted.columns)
        self._fitted = learn(self._settings(), left, fitted.embedder)
        return self

    def predict(self, X: Any) -> Array:  # noqa: N803
        """Return the label of each image, or `unknown_label` for those unlike all classes if `unknown_rate` is set."""
        fitted = self._ready()
        query = self._query(X, fitted)
        return fitted.answers(first_best(fitted.scores(query)), fitted.novelties(query))

    def predict_proba(self, X: Any) -> npt.NDArray[np.float64]:  # noqa: N803
        """Return the probability of each class, (image, class) in the order of `classes_`.

        It is the probability given that the image is of one of these classes; how far that can be doubted is `novelty`.
        """
        fitted = self._ready()
        scores = fitted.scores(self._query(X, fitted))
        probabilities: npt.NDArray[np.float64] = fitted.probabilities(scores).numpy()
        return probabilities

    def novelty(self, X: Any) -> npt.NDArray[np.float64]:  # noqa: N803
        """Return how unlike any class each image is: about 1 for images of a class, and more for others."""
        fitted = self._ready()
        values: npt.NDArray[np.float64] = fitted.novelties(self._query(X, fitted)).numpy()
        return values

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:  # noqa: N803
        """Return the share of right answers. An image that is rejected is right where `y` has `unknown_label`."""
        answers = self.predict(X)
        labels = column_or_1d(y)
        check_consistent_length(answers, labels)
        right = [bool(answer == label) for answer, label in zip(answers.tolist(), labels.tolist(), strict=True)]
        return float(np.average(right, weights=sample_weight))

    def kneighbors(self, X: Any, n_neighbors: int = 5) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]:  # noqa: N803
        """Return the distances to the nearest support images and their places among these, nearest first.

        Both are (image, neighbour), with as many neighbours as there are images if there are fewer than asked for.
        Distances are between prepared features: of unit length, 0 is the same direction, and √2 a right angle.
        """
        fitted = self._ready()
        distances, indices = nearest_images(self._query(X, fitted), fitted.support, n_neighbors)
        return distances.numpy(), indices.numpy()

    def explain(self, X: Any, n_neighbors: int = 3) -> list[Explanation]:  # noqa: N803
        """Return for each image its label and what it rests on: the nearest support images, with their distances."""
        fitted = self._ready()
        return explain_answers(fitted, self._query(X, fitted), n_neighbors)

    def estimate_accuracy(self) -> AccuracyEstimate:
        """Estimate how many new pictures will be right, from the support images alone: each is left out once.

        One image of every class is left out at a time, or a twentieth of each where there are more than 20; of more
        than a thousand images, a thousand are asked about. The answers are those among the classes, before any
        rejection. It is for pictures of classes with two images or more: the others cannot be asked about.
        """
        fitted = self._ready()
        left_out = left_out_scores(fitted.support, fitted.settings.classifier, fitted.settings.n_neighbors)
        return estimate_from(left_out, fitted.support.counts)

    def save(self, path: str | Path) -> None:
        """Write everything to one safetensors file: images' features, labels, settings, and the backbone's weights.

        A backbone that is a function, or a network of one's own, is not in it: give it to `load` again.
        """
        save_classifier(self._ready(), path)

    @classmethod
    def load(
        cls, path: str | Path, *, backbone: Any = None, device: Any = "auto", cache_dir: str | Path | None = None
    ) -> Self:
        """Return a saved classifier. Nothing in the file is executed.

        Args:
            path: what `save` wrote.
            backbone: where the backbone could not be saved, the same function or network again.
            device: where to embed.
            cache_dir: a folder to keep embeddings in, so that no picture is embedded twice.
        """
        return load_classifier(cls, path, backbone=backbone, device=device, cache_dir=cache_dir)

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "_fitted")

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.two_d_array = self.backbone is None
        tags.input_tags.string = self.backbone is not None
        return tags

    def _labelled(self, X: Any, y: Any, *, embedder: Embedder | None, known: Fitted | None) -> Labelled:  # noqa: N803
        """Return the features of labelled images with labels and names; `known` is what they are to fit, if any."""
        first, columns = (0, None) if known is None else (len(known.learnt.names), known.columns)
        check_labels(y)
        if embedder is None:
            refuse_pictures(X)
            checker = self._as_of(known)
            features, labels = validate_data(
                checker, without_tensors(X), y, reset=known is None, dtype=(np.float64, np.float32)
            )
            columns = getattr(checker, "feature_names_in_", None)
            names = [f"image {first + number}" for number in range(len(features))]
        else:
            pictures = picture_list(X)
            labels = column_or_1d(y, warn=True)
            check_consistent_length(pictures, labels)
            features = embedder(pictures, progress=self._progress())
            names = [name_of(picture, number) for number, picture in enumerate(pictures, first)]
        check_classification_targets(np.tile(labels, 2))  # one image a class is no sign of a regression here
        return Labelled(features, labels, names, columns)

    def _as_of(self, fitted: Fitted | None) -> Self:
        """Return a shallow copy with another state, or none, for scikit-learn to note or check columns in."""
        other = copy(self)
        if fitted is not None:
            other._fitted = fitted
        else:
            other.__dict__.pop("_fitted", None)
        return other

    def _settings(self) -> Settings:
        return Settings(*(getattr(self, name) for name in Settings._fields))

    def _ready(self) -> Fitted:
        """Return what answers; refuse before `fit`, and by settings that the temperature and threshold are not of."""
        check_is_fitted(self)
        fitted = self._fitted
        for name, value, now in zip(Settings._fields, fitted.settings, self._settings(), strict=True):
            if now is not value and not np.array_equal(now, value):
                raise InputError(
                    f"{name} is {now!r}, but was {value!r} when the classifier was fitted; call fit again."
                )
        return fitted

    def _make_embedder(self, *, copy: bool = True) -> Embedder | None:
        if self.backbone is None:
            return None
        return Embedder(self.backbone, device=self.device, cache_dir=self.cache_dir, copy=copy)

    def _query(self, X: Any, fitted: Fitted) -> Tensor:  # noqa: N803
        """Return the prepared features of new images."""
        if fitted.embedder is None:
            refuse_pictures(X)
            features = validate_data(
                self._as_of(fitted), without_tensors(X), reset=False, dtype=(np.float64, np.float32)
            )
        else:
            features = fitted.embedder(X, progress=self._progress())
        return fitted.prepare(features)

    def _progress(self) -> bool | None:
        return None if self.verbose else False  # None: on a terminal
