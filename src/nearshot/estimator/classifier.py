"""`FewShotClassifier`: a scikit-learn classifier from a handful of labelled images."""

import warnings
from collections.abc import Callable
from copy import copy
from dataclasses import fields
from numbers import Number
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
import numpy.typing as npt
import torch
from sklearn.base import BaseEstimator, ClassifierMixin, TransformerMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import (
    check_array,
    check_consistent_length,
    check_is_fitted,
    column_or_1d,
    validate_data,
)
from torch import Tensor, nn

from nearshot.data.images import Pixels
from nearshot.errors import FileFormatError, InputError, NearshotError
from nearshot.estimator.bundle import names_in_folder, read_bundle, write_bundle
from nearshot.estimator.embedder import Embedder
from nearshot.estimator.embedding_cache import default_cache_folder
from nearshot.estimator.explanation import Explanation, explain_answers
from nearshot.estimator.feature_sets import FeatureSets
from nearshot.estimator.leave_one_out import AccuracyEstimate, estimate_accuracy
from nearshot.estimator.novelty import NONE_OF_THESE
from nearshot.estimator.read_images import are_images, image_list, image_name, without_tensors
from nearshot.estimator.repeated_images import warn_about_repeated_images
from nearshot.estimator.state import (
    Array,
    ClassifierSettings,
    FittedState,
    estimate_rejection,
    fit_state,
    mix_numbers_and_strings,
)
from nearshot.estimator.strays import RejectionEstimate
from nearshot.models.recommended import AUTO
from nearshot.text import counted, format_list


class FewShotClassifier(ClassifierMixin, TransformerMixin, BaseEstimator):  # type: ignore[misc]
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
        feature_sets: which columns are which feature set, if `X` are features; a backbone has its
            own. None: all columns are one set.
        classifier: a name in `nearshot.evaluation.CLASSIFIERS`: "ridge" (ridge regression from
            features to classes, all of which count equally), "centroid" (nearest class mean),
            "soft" (soft assignment) or "knn" (votes of the nearest images, ties to the nearest),
            the last three as in Section 2.3 of the paper, or one of your own. "auto" is a mixture
            of ridge regressions on several feature sets, weighed by held-out images
            (`nearshot.estimator.stacking`); with a single feature set, one photo per class, or over
            4,000 photos, it is "ridge". Ties go to the first class and the first image, so an
            answer does not depend on the batch.
        n_neighbors: how many images vote in "knn"; by default as many as the smallest class has.
        centre: the mean to subtract from features. "auto": the mean feature of the backbone's
            training set if it is stored with it, else nothing. "support": the mean of the support
            images; not the default, since it is noisy for few images or one class. An array, or
            None for nothing.
        normalise: whether to divide features by their length.
        temperature: the divisor of the scores before the softmax of `predict_proba`. "auto"
            averages over temperatures, weighted by the likelihood of held-out support images.
        reject_rate: the share of images of your own classes that you accept to lose, such as 0.05;
            `predict` then returns `reject_label` for images unlike all classes, or like those that
            were given as `none_of_these`. 0: every image gets a class.
        reject_label: the label of rejected images. With integer classes, an integer such as -1
            keeps answers integers.
        device: where to embed: "cpu", "cuda", …; "auto" is a GPU if there is one.
        cache_dir: a folder that caches embeddings by content; None for no cache. "auto": for images
            that are given as paths, `embeddings` in $NEARSHOT_DATA or ~/.cache/nearshot, with at
            most 50,000 images per network.
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
        temperature_: the divisor of the scores; the geometric mean, where several are averaged.
        threshold_: the novelty above which an image is rejected; infinite if none is.
        embedder_: the `Embedder`, or None for features.

    >>> features = np.array([[1.0, 0.1], [0.9, 0.0], [0.0, 1.0], [0.1, 0.8]])
    >>> model = FewShotClassifier().fit(features, ["cat", "cat", "dog", "dog"])
    >>> model.predict([[5.0, 1.0], [0.2, 3.0]])
    array(['cat', 'dog'], dtype='<U3')
    """

    def __init__(
        self,
        backbone: str | Path | nn.Module | Callable[[Pixels], Any] | None = "auto",
        *,
        feature_sets: FeatureSets | None = None,
        classifier: str = "auto",
        n_neighbors: int | None = None,
        centre: Literal["auto", "support"] | npt.ArrayLike | None = "auto",
        normalise: bool = True,
        temperature: Literal["auto"] | float = "auto",
        reject_rate: float = 0.0,
        reject_label: Any = NONE_OF_THESE,
        device: str | torch.device = "auto",
        cache_dir: str | Path | None = AUTO,
        input_size: int | None = None,
        n_views: int = 1,
        verbose: bool = False,
    ) -> None:
        self.backbone = backbone
        self.feature_sets = feature_sets
        self.classifier = classifier
        self.n_neighbors = n_neighbors
        self.centre = centre
        self.normalise = normalise
        self.temperature = temperature
        self.reject_rate = reject_rate
        self.reject_label = reject_label
        self.device = device
        self.cache_dir = cache_dir
        self.input_size = input_size
        self.n_views = n_views
        self.verbose = verbose

    def fit(
        self,
        X: Any,  # noqa: N803
        y: Any,
        groups: Any = None,
        none_of_these: Any = None,
        by_hand: Any = None,
    ) -> Self:
        """Learn classes from labelled images, and forget the previous ones.

        Args:
            X: the images, or features (image, dim).
            y: the label of each image.
            groups: the name of each image's group: a specimen, a camera, a sequence; None for an
                image without one. Images of a group show the same thing, so they are held out
                together and count once wherever images are held out: for probabilities, the
                expected accuracy and the threshold of novelty. Answers do not depend on them.
                Images of a class that look alike to a backbone for photographs are groups already.
            none_of_these: images, or features, of none of the classes. They teach what to reject,
                so they need a `reject_rate`. Probabilities do not depend on them.
            by_hand: whether a person gave each label; by default all. Other labels, such as answers
                that were accepted unseen, train, but they are not tested where images are held out:
                the easy answers of a classifier would flatter its own accuracy.
        """
        return self._learn(X, y, groups, none_of_these, by_hand, previous=None)

    def partial_fit(
        self,
        X: Any,  # noqa: N803
        y: Any,
        classes: Any = None,
        groups: Any = None,
        none_of_these: Any = None,
        by_hand: Any = None,
    ) -> Self:
        """Add labelled images of known or new classes.

        `groups`, `none_of_these` and `by_hand` are as in `fit`; equal names of groups in several
        calls are one group. `classes`, which scikit-learn passes, is ignored.
        """
        previous = self._fitted_state if self.__sklearn_is_fitted__() else None
        return self._learn(X, y, groups, none_of_these, by_hand, previous=previous)

    def fit_calibrated(
        self,
        X: Any,  # noqa: N803
        y: Any,
        calibrated: FittedState,
        groups: Any = None,
        none_of_these: Any = None,
        by_hand: Any = None,
    ) -> Self:
        """Learn as `fit` does, without holding images out, which takes most of its time.

        Temperatures, weights and the threshold are those of `calibrated`, a state of nearly the
        same images and of the same classes.
        """
        return self._learn(
            X, y, groups, none_of_these, by_hand, previous=None, calibrated=calibrated
        )

    def forget(self, label: Any) -> Self:
        """Forget a class and all its images, or the strays if `label` is the `reject_label`."""
        check_is_fitted(self)
        settings = self._settings()
        settings.check()
        state = self._fitted_state
        classes = state.classes.tolist()
        if isinstance(label, np.generic):
            label = label.item()
        forgets_strays = len(state.strays) > 0 and label == settings.reject_label
        if not forgets_strays and (label not in classes or len(classes) == 1):
            raise InputError(
                f"label must be one of several classes, here {format_list(classes)} "
                f"(got {label!r})."
            )
        kept = np.flatnonzero(state.labels != label)
        smaller = fit_state(
            settings,
            state.embedder,
            state.features[kept],
            state.labels[kept],
            [state.names[image] for image in kept],
            [state.given_groups[image] for image in kept],
            state.feature_names,
            state.feature_sets,
            state.strays[:0] if forgets_strays else state.strays,
            [] if forgets_strays else state.stray_names,
            None if state.by_hand is None else state.by_hand[kept],
        )
        return self._set_state(smaller)

    def predict(self, X: Any, *, errors: Literal["raise", "skip"] = "raise") -> Array:  # noqa: N803
        """Return the label of each image.

        With `reject_rate`, images unlike all classes get `reject_label`. An image that cannot be
        read is an error; with `errors="skip"` it is warned about, and its label is None.
        """
        if errors == "raise":
            state, query = self._query(X)
            return state.answer_labels(state.answer(query))
        state, query, is_readable = self._readable_query(X, errors)
        labels = np.full(len(is_readable), None, dtype=object)
        if is_readable.any():
            labels[is_readable] = state.answer_labels(state.answer(query))
        return labels

    def predict_proba(
        self,
        X: Any,  # noqa: N803
        *,
        errors: Literal["raise", "skip"] = "raise",
    ) -> npt.NDArray[np.float64]:
        """Return the probability of each class, (image, class) in the order of `classes_`.

        It is conditional on the image being of one of the classes. See `novelty` for images that
        may not be. An image that cannot be read is an error; with `errors="skip"` it is warned
        about, and its probabilities are NaN.
        """
        if errors == "raise":
            state, query = self._query(X)
            return state.answer(query).probabilities.numpy()
        state, query, is_readable = self._readable_query(X, errors)
        probabilities = np.full((len(is_readable), len(state.classes)), np.nan)
        if is_readable.any():
            probabilities[is_readable] = state.answer(query).probabilities.numpy()
        return probabilities

    def transform(self, X: Any) -> Array:  # noqa: N803
        """Return the plain embedding of each image, (image, dim); of features, the features.

        So a pipeline can have any classifier of scikit-learn behind this one. With feature sets it
        is the first candidate's: what the network gives without them.
        """
        state = self.fitted_state()
        return state.plain_columns(self._features(state, X))

    def novelty(self, X: Any) -> npt.NDArray[np.float64]:  # noqa: N803
        """Return how unlike all classes each image is, (image,).

        About 1 for images of a class, and more for others.
        """
        state, query = self._query(X)
        return state.answer(query).novelty.numpy()

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:  # noqa: N803
        """Return the accuracy. A rejected image is right if its label in `y` is `reject_label`."""
        answers = self.predict(X)
        labels = column_or_1d(y)
        check_consistent_length(answers, labels)
        # Compared one by one: numbers and strings can be mixed.
        pairs = zip(answers.tolist(), labels.tolist(), strict=True)
        is_right = [bool(answer == label) for answer, label in pairs]
        return float(np.average(is_right, weights=sample_weight))

    def kneighbors(
        self,
        X: Any,  # noqa: N803
        n_neighbors: int = 5,
    ) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]:
        """Return the distances to the nearest support images and their indices, nearest first.

        Both are (image, neighbour), with at most as many neighbours as there are support images.
        Distances are between prepared features: at unit length, 0 is the same direction and √2 a
        right angle.
        """
        state, query = self._query(X)
        distances, indices = state.common.nearest(state.to_common(query), n_neighbors)
        return distances.numpy(), indices.numpy()

    def explain(self, X: Any, n_neighbors: int = 3) -> list[Explanation]:  # noqa: N803
        """Return the label of each image with the nearest support images and their distances."""
        state, query = self._query(X)
        return explain_answers(state, query, n_neighbors)

    def estimate_accuracy(self) -> AccuracyEstimate:
        """Estimate the accuracy for new images by leave-one-out on the support images.

        Images that show the same thing are held out together, and count once. Rejection is not part
        of it. Classes with a single image, or group, cannot be tested. Classifiers other than ridge
        test at most a thousand images.
        """
        state = self.fitted_state()
        held_out = state.held_out if state.mixture is None else state.held_out_answers
        return estimate_accuracy(held_out, state.groups, state.classes.tolist())

    def estimate_rejection(self) -> RejectionEstimate:
        """Estimate how often images are rejected, by leave-one-out on support images and strays."""
        return estimate_rejection(self.fitted_state())

    def fitted_state(self) -> FittedState:
        """Return what was fitted: an immutable object, which other modules of nearshot work with.

        It is an error before `fit`, or if a parameter has changed since.
        """
        check_is_fitted(self)
        state = self._fitted_state
        now = self._settings()
        for field in fields(ClassifierSettings):
            fitted_value = getattr(state.settings, field.name)
            value = getattr(now, field.name)
            if value is not fitted_value and not np.array_equal(value, fitted_value):
                raise InputError(
                    f"{field.name} was {fitted_value!r} in fit and is {value!r} now. "
                    "Call fit again."
                )
        return state

    def save(self, path: str | Path, *, image_folder: str | Path | None = None) -> None:
        """Write the features, labels, settings and backbone weights to one safetensors file.

        The write is atomic. A backbone that is a function, or a network of your own, is not saved:
        give it to `load` again. The paths of images are saved relative to `image_folder`; by
        default, to the deepest folder that holds all of those with absolute paths.
        """
        write_bundle(self.fitted_state(), path, image_folder=image_folder)

    @classmethod
    def load(
        cls,
        path: str | Path,
        *,
        backbone: nn.Module | Callable[[Pixels], Any] | None = None,
        device: str | torch.device = "auto",
        cache_dir: str | Path | None = AUTO,
        image_folder: str | Path | None = None,
    ) -> Self:
        """Return a saved classifier. Nothing in the file is executed.

        A `backbone` that could not be saved must be given again. `image_folder` is where the
        labelled images are now: the paths in the file are relative to it. `partial_fit` reads them
        there, to notice an image that is labelled twice. The other arguments are those of the
        constructor.
        """
        bundle = read_bundle(path)
        names = bundle.names
        if image_folder is not None:
            names = names_in_folder(names, image_folder)
        if bundle.needs_backbone and backbone is None:
            raise InputError(
                f"backbone is required: {path} was saved without it. Call load(path, backbone=…)."
            )
        if not bundle.needs_backbone and backbone is not None:
            raise InputError(f"backbone must be None: {path} needs none but its own.")
        if bundle.backbone is not None:
            backbone = bundle.backbone
        settings = bundle.settings
        model = cls(
            AUTO if backbone is None else backbone,
            feature_sets=bundle.feature_sets if backbone is None else None,
            classifier=settings.classifier,
            n_neighbors=settings.n_neighbors,
            centre=settings.centre,
            normalise=settings.normalise,
            temperature=settings.temperature,
            reject_rate=settings.reject_rate,
            reject_label=settings.reject_label,
            device=device,
            cache_dir=cache_dir,
            n_views=bundle.n_views,
        )
        embedder = None
        if backbone is not None:
            embedder = Embedder(
                backbone,
                device=device,
                cache_dir=default_cache_folder() if cache_dir == AUTO else cache_dir,
                copy=bundle.backbone is None,
                n_views=bundle.n_views,
                all_sets=_has_candidates(bundle.feature_sets),
            )
            _check_sets(embedder, bundle.feature_sets, path)
            embedder.dim = bundle.features.shape[1]  # features of another dimension are refused
        state = FittedState(
            settings=settings,
            embedder=embedder,
            classes=bundle.classes,
            features=bundle.features,
            codes=bundle.codes,
            names=names,
            given_groups=bundle.given_groups,
            feature_names=bundle.feature_names,
            centre=bundle.centre,
            feature_sets=bundle.feature_sets,
            strays=bundle.strays,
            stray_names=bundle.stray_names,
            temperatures=bundle.temperatures,
            mixture=bundle.mixture,
            threshold=bundle.threshold,
            by_hand=bundle.by_hand,
        )
        try:
            state.check()
        except InputError as error:
            raise FileFormatError(f"{path} is damaged: {error}") from error
        return model._set_state(state)

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "_fitted_state")

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.two_d_array = self.backbone is None or self.backbone == AUTO
        tags.input_tags.string = self.backbone is not None
        return tags

    def _settings(self) -> ClassifierSettings:
        return ClassifierSettings(
            classifier=self.classifier,
            n_neighbors=self.n_neighbors,
            centre=self.centre,
            normalise=self.normalise,
            temperature=self.temperature,
            reject_rate=self.reject_rate,
            reject_label=self.reject_label,
        )

    def _set_state(self, state: FittedState) -> Self:
        """Take a new state. Predictions read `_fitted_state`; the attributes are for users."""
        self._fitted_state = state
        self.embedder_ = state.embedder
        self.classes_ = state.classes
        self.n_features_in_ = state.features.shape[1]
        self.support_features_ = state.features
        self.support_labels_ = state.codes
        self.support_names_ = state.names
        self.centre_ = state.centre
        self.temperature_ = state.temperatures.geometric_mean
        self.threshold_ = state.threshold
        if state.feature_names is not None:
            self.feature_names_in_ = state.feature_names
        elif hasattr(self, "feature_names_in_"):
            del self.feature_names_in_
        return self

    def _learn(
        self,
        X: Any,  # noqa: N803
        y: Any,
        groups: Any,
        none_of_these: Any,
        by_hand: Any,
        *,
        previous: FittedState | None,
        calibrated: FittedState | None = None,
    ) -> Self:
        """Learn labelled images, in addition to those of the previous state, if any."""
        settings = self._settings()
        settings.check()
        _check_every_label_is_given(y)
        embedder = self._make_embedder(X) if previous is None else previous.embedder
        feature_names = None
        if embedder is None:
            # scikit-learn writes attributes to the checked estimator, so it is a copy.
            checked = copy(self) if previous is None else copy(self)._set_state(previous)
            features, labels = _validate_features(checked, X, y, reset=previous is None)
            feature_names = getattr(checked, "feature_names_in_", None)
            images = list(features)
        else:
            images = image_list(X)
            labels = column_or_1d(y, warn=True)
            check_consistent_length(images, labels)
            features = self._embed(embedder, images)
        # Given twice: scikit-learn takes one image per class for a regression.
        check_classification_targets(np.tile(labels, 2))
        n_previous = 0 if previous is None else len(previous.names)
        names = [image_name(image, n_previous + number) for number, image in enumerate(images)]
        given_groups = _group_names(groups, len(images))
        are_by_hand = _flags(by_hand, len(images))
        if previous is not None:
            _check_label_types(previous.labels, labels)
            features = np.concatenate([previous.features, features])
            labels = np.concatenate([previous.labels, labels])
            names = previous.names + names
            given_groups = previous.given_groups + given_groups
            are_by_hand = np.concatenate([_flags(previous.by_hand, n_previous), are_by_hand])
            images = previous.names + images
        strays, stray_names = self._learn_strays(none_of_these, embedder, features, previous)
        feature_sets = self.feature_sets if embedder is None else embedder.feature_sets
        state = fit_state(
            settings,
            embedder,
            features,
            labels,
            names,
            given_groups,
            feature_names,
            feature_sets,
            strays,
            stray_names,
            None if are_by_hand.all() else are_by_hand,
            calibrated,
        )
        if embedder is not None:
            warn_about_repeated_images(state, images)
        return self._set_state(state)

    def _learn_strays(
        self,
        none_of_these: Any,
        embedder: Embedder | None,
        features: Array,
        previous: FittedState | None,
    ) -> tuple[Array, list[str]]:
        """Return the features of all strays, (stray, dim), and their names.

        `features` are those of the labelled images.
        """
        strays = features[:0] if previous is None else previous.strays
        names = [] if previous is None else previous.stray_names
        if none_of_these is None:
            return strays, names
        if embedder is None:
            added = without_tensors(none_of_these)
            if len(added) == 0:
                return strays, names
            added = check_array(added, dtype=features.dtype, input_name="none_of_these")
            if added.shape[1] != features.shape[1]:
                raise InputError(
                    f"none_of_these must have {features.shape[1]} columns, as X has "
                    f"(got {added.shape[1]})."
                )
            images = list(added)
        else:
            images = image_list(none_of_these)
            if len(images) == 0:
                return strays, names
            added = self._embed(embedder, images)
        added_names = [image_name(image, len(names) + k) for k, image in enumerate(images)]
        return np.concatenate([strays, added]), names + added_names

    def _query(self, X: Any) -> tuple[FittedState, Tensor]:  # noqa: N803
        """Return the state, and the prepared features of new images."""
        state = self.fitted_state()
        return state, state.prepare(self._features(state, X))

    def _features(self, state: FittedState, X: Any) -> Array:  # noqa: N803
        """Return the features of new images, (image, dim), as embedded."""
        if state.embedder is None:
            validated: Array = _validate_features(copy(self)._set_state(state), X, reset=False)
            return validated
        return self._embed(state.embedder, X)

    def _readable_query(
        self,
        X: Any,  # noqa: N803
        errors: str,
    ) -> tuple[FittedState, Tensor, npt.NDArray[np.bool_]]:
        """Return the state, the prepared features of readable images, and which are readable."""
        if errors != "skip":
            raise InputError(f"errors must be 'raise' or 'skip' (got {errors!r}).")
        state = self.fitted_state()
        if state.embedder is None:
            _, query = self._query(X)
            return state, query, np.ones(len(query), dtype=bool)
        results = state.embedder.attempt(X, progress=None if self.verbose else False)
        failures = [result for result in results if isinstance(result, NearshotError)]
        if failures:
            warnings.warn(
                f"{len(failures):,} of {counted(len(results), 'image')} cannot be read: "
                f"{format_list(failures, str)}",
                stacklevel=3,
            )
        features = [result for result in results if not isinstance(result, NearshotError)]
        is_readable = np.array([not isinstance(result, NearshotError) for result in results])
        if not features:
            return state, torch.zeros(0, state.features.shape[1]), is_readable
        return state, state.prepare(np.stack(features)), is_readable

    def _make_embedder(self, X: Any) -> Embedder | None:  # noqa: N803
        """Return the embedder of images; None if `X` are features."""
        if self.backbone is None or (self.backbone == AUTO and not are_images(X)):
            return None
        return Embedder(
            self.backbone,
            device=self.device,
            cache_dir=self._cache_folder(X),
            input_size=self.input_size,
            n_views=self.n_views,
            all_sets=self.classifier == AUTO and bool(self.normalise),
        )

    def _cache_folder(self, X: Any) -> str | Path | None:  # noqa: N803
        """Return the folder of cached embeddings; with "auto", only for images that are paths."""
        if self.cache_dir != AUTO:
            return self.cache_dir
        first = next(iter(image_list(X)), None)
        return default_cache_folder() if isinstance(first, str | Path) else None

    def _embed(self, embedder: Embedder, images: Any) -> Array:
        return embedder(images, progress=None if self.verbose else False)


def _has_candidates(feature_sets: FeatureSets | None) -> bool:
    """Return whether there is more to weigh than the plain features."""
    return feature_sets is not None and len(feature_sets.candidates) > 1


def _check_sets(embedder: Embedder, saved: FeatureSets | None, path: str | Path) -> None:
    """Raise an error if a network does not return the feature sets that a file was saved with."""
    offered = () if embedder.feature_sets is None else embedder.feature_sets.sets
    if offered != (() if saved is None else saved.sets):
        raise FileFormatError(
            f"{path} was saved by a version of nearshot with other feature sets. Export it again."
        )


def _check_every_label_is_given(y: Any) -> None:
    if y is None:  # scikit-learn has its own error
        return
    for number, label in enumerate(np.asarray(y, dtype=object).ravel()):
        is_nan = label != label  # as in tables
        if label is None or is_nan:
            raise InputError(f"Every image needs a label (got {label!r} for image {number}).")
    if isinstance(y, list | tuple):  # of which NumPy would make texts
        texts = [label for label in y if isinstance(label, str)]
        numbers = [label for label in y if isinstance(label, Number)]
        if texts and numbers:
            raise InputError(f"Labels must be of one type (got {texts[0]!r} and {numbers[0]!r}).")


def _group_names(groups: Any, n_images: int) -> list[str | None]:
    """Return the name of each image's group as text; None where it is missing."""
    if groups is None:
        return [None] * n_images
    values = np.asarray(groups, dtype=object).ravel().tolist()
    if len(values) != n_images:
        raise InputError(f"groups must have {n_images} names, one per image (got {len(values)}).")
    names: list[str | None] = []
    for value in values:
        is_nan = value != value  # as in tables
        names.append(None if value is None or is_nan else str(value))
    return names


def _flags(by_hand: Any, n_images: int) -> npt.NDArray[np.bool_]:
    """Return whether each image's label is by hand."""
    if by_hand is None:
        return np.ones(n_images, dtype=bool)
    flags = np.asarray(by_hand)
    if flags.shape != (n_images,) or flags.dtype != bool:
        raise InputError(
            f"by_hand must be True or False for each of {n_images} images "
            f"(got {flags.dtype} {flags.shape})."
        )
    return flags


def _check_label_types(previous: Array, labels: Array) -> None:
    if mix_numbers_and_strings(previous, labels):
        before = previous.tolist()[0]
        now = labels.tolist()[0]
        raise InputError(f"Labels must be of one type (got {before!r} before and {now!r} now).")


def _validate_features(
    estimator: FewShotClassifier, features: Any, *labels: Any, reset: bool
) -> Any:
    """Return features, and labels if given, as scikit-learn checks them; images are an error."""
    if are_images(features):
        raise InputError(
            "X must be features, as in fit or since backbone is None (got images). "
            "For images, set backbone='auto' and fit images."
        )
    return validate_data(
        estimator, without_tensors(features), *labels, reset=reset, dtype=(np.float64, np.float32)
    )
