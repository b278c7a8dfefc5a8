"""`FewShotClassifier`: a handful of labelled pictures in, a classifier out."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
import numpy.typing as npt
import torch
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_consistent_length, check_is_fitted, column_or_1d, validate_data
from torch import Tensor

from nearshot.errors import InputError
from nearshot.estimator.bundle import Learnt
from nearshot.estimator.calibration import choose_temperature, usual_temperature
from nearshot.estimator.checks import check_labels, check_parameters, refuse_pictures, warn_of_repeated
from nearshot.estimator.embedder import Embedder
from nearshot.estimator.estimate import AccuracyEstimate, estimate_from
from nearshot.estimator.explanation import Explanation, explain_answers, nearest_images
from nearshot.estimator.left_out import left_out_scores
from nearshot.estimator.pictures import name_of, picture_list
from nearshot.estimator.rejection import choose_threshold, class_spread, left_out_novelties, novelties
from nearshot.estimator.saving import SAVED_PARAMETERS, load_classifier, save_classifier
from nearshot.estimator.scores import Support, class_scores
from nearshot.evaluation import prepare_features
from nearshot.evaluation.classifiers import ClassifierName
from nearshot.telling import listed

__all__ = ["FewShotClassifier"]

Array = npt.NDArray[Any]
NUMBERS = "biuf"  # kinds of NumPy's types


class FewShotClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """Classify pictures, or features, by a few labelled ones of each class. Nothing is trained.

    A scikit-learn estimator: it works in pipelines, `cross_val_score` and `GridSearchCV`.

    Args:
        backbone: what embeds pictures: the path of a weights file, a name (`timm:<model>`), a network in evaluation
            mode, or a function of a uint8 array (picture, side, side, 3); see `Embedder`. Pictures are then given as a
            list of paths, Pillow images and uint8 arrays. None: `X` are features already, (image, dim).
        classifier: "centroid" (the nearest class mean), "soft" (soft assignment) or "knn" (votes of the nearest images,
            ties to the nearest), as in Section 2.3 of the paper.
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
        embedder = self._make_embedder()
        features, labels, names = self._labelled(X, y, embedder=embedder, reset=True)
        if self.unknown_rate is not None and self._is_mixed(labels):
            hint = "-1" if labels.dtype.kind in NUMBERS else '"unknown"'
            warnings.warn(
                f"The labels are such as {labels.tolist()[0]!r} and unknown_label is {self.unknown_label!r}, so "
                f"answers will be a mix that scikit-learn cannot score. unknown_label={hint} keeps them of one type.",
                stacklevel=2,
            )
        return self._settle(features, labels, names, embedder)

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
                raise InputError(f"y has {listed(strangers)}, which is not among `classes`.")
        if not self.__sklearn_is_fitted__():
            return self.fit(X, y)
        check_parameters(self.get_params(deep=False))
        features, labels, names = self._labelled(X, y, embedder=self.embedder_, reset=False)
        known = self.classes_[self.support_labels_]
        if (known.dtype.kind in NUMBERS) != (labels.dtype.kind in NUMBERS):
            raise InputError(
                f"The labels so far are such as {known.tolist()[0]!r} and the new ones such as "
                f"{labels.tolist()[0]!r}; "
                "give labels of one type."
            )
        features, labels = np.concatenate([self.support_features_, features]), np.concatenate([known, labels])
        return self._settle(features, labels, [*self.support_names_, *names], self.embedder_)

    def forget(self, label: Any) -> Self:
        """Forget a class and all its images."""
        check_is_fitted(self)
        check_parameters(self.get_params(deep=False))
        label = label.item() if isinstance(label, np.generic) else label  # which a message would call np.str_('cat')
        if label not in self.classes_.tolist():
            raise InputError(f"There is no class {label!r} to forget; there are {listed(self.classes_.tolist())}.")
        if len(self.classes_) == 1:
            raise InputError(f"{label!r} is the only class; without it nothing is left. Call fit with others instead.")
        labels = self.classes_[self.support_labels_]
        stays = labels != label
        names = [name for name, kept in zip(self.support_names_, stays, strict=True) if kept]
        return self._settle(self.support_features_[stays], labels[stays], names, self.embedder_)

    def predict(self, X: Any) -> Array:  # noqa: N803
        """Return the label of each image, or `unknown_label` for those unlike all classes if `unknown_rate` is set."""
        query = self._query(X)
        return self._answers(self._scores(query).argmax(1), novelties(query, self._spread))

    def predict_proba(self, X: Any) -> npt.NDArray[np.float64]:  # noqa: N803
        """Return the probability of each class, (image, class) in the order of `classes_`.

        It is the probability given that the image is of one of these classes; how far that can be doubted is `novelty`.
        """
        scores = self._scores(self._query(X))
        probabilities: npt.NDArray[np.float64] = (scores / self.temperature_).softmax(1).numpy()
        return probabilities

    def novelty(self, X: Any) -> npt.NDArray[np.float64]:  # noqa: N803
        """Return how unlike any class each image is: about 1 for images of a class, and more for others."""
        values: npt.NDArray[np.float64] = novelties(self._query(X), self._spread).numpy()
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
        distances, indices = nearest_images(self._query(X), self._support, n_neighbors)
        return distances.numpy(), indices.numpy()

    def explain(self, X: Any, n_neighbors: int = 3) -> list[Explanation]:  # noqa: N803
        """Return for each image its label and what it rests on: the nearest support images, with their distances."""
        return explain_answers(self, self._query(X), n_neighbors)

    def estimate_accuracy(self) -> AccuracyEstimate:
        """Estimate how many new pictures will be right, from the support images alone: each is left out once.

        One image of every class is left out at a time, or a twentieth of each where there are more than 20; of more
        than a thousand images, a thousand are asked about. The answers are those among the classes, before any
        rejection. It is for pictures of classes with two images or more: the others cannot be asked about.
        """
        self._check_ready()
        left_out = left_out_scores(self._support, self.classifier, self.n_neighbors)
        return estimate_from(left_out, self._support.counts)

    def save(self, path: str | Path) -> None:
        """Write everything to one safetensors file: images' features, labels, settings, and the backbone's weights.

        A backbone that is a function, or a network of one's own, is not in it: give it to `load` again.
        """
        self._check_ready()
        save_classifier(self, path)

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
        return hasattr(self, "threshold_")

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.two_d_array = self.backbone is None
        tags.input_tags.string = self.backbone is not None
        return tags

    def _labelled(self, X: Any, y: Any, *, embedder: Embedder | None, reset: bool) -> tuple[Array, Array, list[str]]:  # noqa: N803
        """Return the features of labelled images, their labels and names."""
        first = 0 if reset else len(self.support_names_)
        check_labels(y)
        if embedder is None:
            refuse_pictures(X)
            features, labels = validate_data(self, X, y, reset=reset, dtype=(np.float64, np.float32))
            names = [f"image {first + number}" for number in range(len(features))]
        else:
            pictures = picture_list(X)
            labels = column_or_1d(y, warn=True)
            check_consistent_length(pictures, labels)
            features = embedder(pictures, progress=self._progress())
            names = [name_of(picture, number) for number, picture in enumerate(pictures, first)]
        with warnings.catch_warnings():  # one image a class is no sign of a regression here
            warnings.filterwarnings("ignore", "The number of unique classes is greater than 50%")
            check_classification_targets(labels)
        return features, labels, names

    def _settle(self, features: Array, labels: Array, names: list[str], embedder: Embedder | None) -> Self:
        """Take a support set: all that `predict` needs is computed before anything of the old one is replaced."""
        classes, codes = np.unique(labels, return_inverse=True)
        if self.unknown_rate is not None and self.unknown_label in classes.tolist():
            raise InputError(f"{self.unknown_label!r} is a class's label; choose another unknown_label.")
        centre = self._centre_of(features, embedder)
        support = Support(self._prepare(features, centre), torch.from_numpy(codes), len(classes))
        if embedder is not None:
            warn_of_repeated(support, names, classes.tolist())
        temperature, threshold = self._temperature_of(support), self._threshold_of(support)
        return self._adopt(Learnt(classes, features, codes, names, centre, temperature, threshold), embedder)

    def _adopt(self, learnt: Learnt, embedder: Embedder | None) -> Self:
        prepared = self._prepare(learnt.features, learnt.centre)
        self._support = Support(prepared, torch.from_numpy(learnt.codes), len(learnt.classes))
        self._spread = class_spread(self._support)
        self.classes_, self.support_labels_ = learnt.classes, learnt.codes
        self.support_features_, self.support_names_ = learnt.features, learnt.names
        self.centre_, self.temperature_, self.threshold_ = learnt.centre, learnt.temperature, learnt.threshold
        self.n_features_in_ = learnt.features.shape[1]
        self.embedder_ = embedder
        self._settings = {name: getattr(self, name) for name in SAVED_PARAMETERS}
        return self

    def _check_ready(self) -> None:
        """Refuse to answer before `fit`, and by settings that the temperature and threshold are not of."""
        check_is_fitted(self)
        for name, value in self._settings.items():
            now = getattr(self, name)
            if now is not value and not np.array_equal(now, value):
                raise InputError(
                    f"{name} is {now!r}, but was {value!r} when the classifier was fitted; call fit again."
                )

    def _make_embedder(self, *, copy: bool = True) -> Embedder | None:
        if self.backbone is None:
            return None
        return Embedder(self.backbone, device=self.device, cache_dir=self.cache_dir, copy=copy)

    def _centre_of(self, features: Array, embedder: Embedder | None) -> Array | None:
        if self.centre is None:
            return None
        if isinstance(self.centre, str):
            if self.centre == "support":
                return np.asarray(features.mean(0))
            return None if embedder is None else embedder.centre
        return np.asarray(self.centre, dtype=features.dtype)

    def _prepare(self, features: Array, centre: Array | None) -> Tensor:
        """Centre and normalise, in float64: near ties are decided by the features and not by rounding."""
        given = torch.from_numpy(np.array(features, dtype=np.float64))
        offset = None if centre is None else torch.from_numpy(np.array(centre, dtype=np.float64))
        return prepare_features(given, centre=offset, normalise=bool(self.normalise))

    def _temperature_of(self, support: Support) -> float:
        if self.temperature != "auto":
            return float(self.temperature)
        scores, codes, _ = left_out_scores(support, self.classifier, self.n_neighbors)
        return choose_temperature(scores, codes) * usual_temperature(support, self.classifier, self.n_neighbors)

    def _threshold_of(self, support: Support) -> float:
        if self.unknown_rate is None:
            return float("inf")
        if len(support.codes) == 1:
            raise InputError(
                "A single image does not tell how far is too far, so nothing can be unknown. Give a second one, of any "
                "class, or unknown_rate=None."
            )
        return choose_threshold(left_out_novelties(support), float(self.unknown_rate))

    def _query(self, X: Any) -> Tensor:  # noqa: N803
        """Return the prepared features of new images."""
        self._check_ready()
        if self.embedder_ is None:
            refuse_pictures(X)
            features = validate_data(self, X, reset=False, dtype=(np.float64, np.float32))
        else:
            features = self.embedder_(X, progress=self._progress())
        return self._prepare(features, self.centre_)

    def _progress(self) -> bool | None:
        return None if self.verbose else False  # None: on a terminal

    def _scores(self, query: Tensor) -> Tensor:
        return class_scores(query, self._support, self.classifier, self.n_neighbors)

    def _is_mixed(self, labels: Array) -> bool:
        """Whether one of the labels and `unknown_label` is a number and the other a text: they have no common type."""
        return (np.asarray(self.unknown_label).dtype.kind in NUMBERS) != (labels.dtype.kind in NUMBERS)

    def _answers(self, codes: Tensor, newness: Tensor) -> Array:
        """Return labels, or the unknown one where an image is too new."""
        labels: Array = self.classes_[codes.numpy()]
        if not np.isfinite(self.threshold_):
            return labels
        unknown = np.asarray(self.unknown_label)
        if self._is_mixed(labels):
            labels, unknown = labels.astype(object), unknown.astype(object)
        return np.where((newness > self.threshold_).numpy(), unknown, labels)
