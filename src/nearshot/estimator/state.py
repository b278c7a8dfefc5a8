"""The settings and the state of a fitted classifier: one immutable object, replaced by each fit.

A thread that predicts reads it once. Its labels, features, temperature and threshold then belong to
the same support set, even if another thread calls `fit` or `forget` meanwhile.
"""

import math
import warnings
from dataclasses import dataclass, replace
from functools import cached_property
from numbers import Real
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from nearshot.checks import check_count
from nearshot.errors import InputError
from nearshot.estimator.calibration import (
    Temperatures,
    class_probabilities,
    held_out_probabilities,
    typical_temperature,
    weigh_temperatures,
)
from nearshot.estimator.embedder import Embedder
from nearshot.estimator.feature_sets import FeatureSet, FeatureSets
from nearshot.estimator.groups import Groups, find_groups
from nearshot.estimator.head import Head, class_scores, find_classifier, fit_head
from nearshot.estimator.leave_one_out import HeldOutScores, held_out_scores
from nearshot.estimator.novelty import (
    TYPICAL_BY_SCORE,
    choose_threshold,
    class_variances,
    held_out_images,
    held_out_novelties,
    novelties,
    weigh_by_margin,
    weigh_by_score,
)
from nearshot.estimator.read_images import without_tensors
from nearshot.estimator.stacking import (
    MAX_STACKED,
    HeldOutMixture,
    Mixture,
    SetScores,
    SetSpace,
    combine,
    fit_candidates,
    fit_mixture,
    held_out_answers,
    hold_out,
    mean_scores,
    mix,
    plain_features,
    to_unit_length,
)
from nearshot.estimator.strays import RejectionEstimate, StrayRidge, margins_of
from nearshot.estimator.support import Support
from nearshot.evaluation import prepare_features
from nearshot.evaluation.classifiers import RIDGE, Classifier, first_best

CHAINED = (
    "Most photos of most classes look alike to this network, so each counts on its own. If they "
    "show the same thing, the expected accuracy is too high: give groups, or add other photos."
)
NUMBER_KINDS = "biuf"  # kinds of NumPy types
# The cached properties that depend on neither the mixture nor the threshold.
COMPUTED_OF_IMAGES = (
    "_all_held_out",
    "_found_groups",
    "_prepared",
    "set_space",
    "groups",
    "head",
    "held_out",
    "held_out_mixture",
    "is_stacked",
    "support",
    "variances",
)

Array = npt.NDArray[Any]


@dataclass(frozen=True, eq=False, kw_only=True)
class ClassifierSettings:
    """The parameters of a `FewShotClassifier` that its answers depend on."""

    classifier: str
    n_neighbors: int | None
    centre: Literal["auto", "support"] | npt.ArrayLike | None
    normalise: bool
    temperature: Literal["auto"] | float
    reject_rate: float
    reject_label: Any

    @property
    def fixed_temperature(self) -> float | None:
        """The temperature, if it is a number."""
        return None if self.temperature == "auto" else float(self.temperature)

    @property
    def definition(self) -> Classifier:
        """The classifier of `nearshot.evaluation` that `classifier` names."""
        return find_classifier(self.classifier)

    def check(self) -> None:
        """Raise an error if a value is invalid."""
        if not isinstance(self.classifier, str):
            raise InputError(f"classifier must be a name (got {self.classifier!r}).")
        find_classifier(self.classifier)
        if self.n_neighbors is not None:
            check_count(self.n_neighbors, "n_neighbors")
        check_reject_rate(self.reject_rate)
        if self.temperature != "auto" and not _is_number_between(self.temperature, 0, math.inf):
            raise InputError(
                f"temperature must be 'auto' or a number above 0 (got {self.temperature!r})."
            )
        if isinstance(self.centre, str) and self.centre not in ("auto", "support"):
            raise InputError(
                f"centre must be 'auto', 'support', an array or None (got {self.centre!r})."
            )


@dataclass(frozen=True, eq=False)
class Answers:
    """What a classifier says about queries.

    Attributes:
        scores: (query, class); of a mixture, the mean of the candidates' scores.
        codes: (query,) the indices of the classes that win: those with the highest scores, or of a
            mixture with the highest probabilities.
        probabilities: (query, class).
        novelty: (query,).
        is_rejected: (query,) whether the novelty is above the threshold.
    """

    scores: Tensor
    codes: Tensor
    probabilities: Tensor
    novelty: Tensor
    is_rejected: Tensor


@dataclass(frozen=True, eq=False)
class FittedState:
    """A fitted classifier: its settings, and what it has learnt from its support images.

    Attributes:
        settings: the parameters at the time of the fit.
        embedder: turns images into features; None if features are given.
        classes: (class,) the labels, sorted.
        features: (image, dim) as embedded.
        codes: (image,) indices into `classes`.
        names: the names of the images.
        given_groups: the name of the group that was given for each image, or None.
        feature_names: the names of the feature columns, if they have any.
        feature_sets: which columns are which feature set; None if all are one.
        strays: (stray, dim) images of none of the classes, as embedded.
        stray_names: their names.
        centre: (dim,) the mean to subtract, if any.
        temperatures: the divisors of the plain scores, and their weights.
        mixture: the weights of the candidates; None if ridge regression on the plain features, or
            another classifier, answers alone.
        threshold: the novelty above which an image is rejected.
        by_hand: (image,) whether a person gave each label; None if so for all. Other labels train,
            but are not tested where images are held out.
    """

    settings: ClassifierSettings
    embedder: Embedder | None
    classes: Array
    features: Array
    codes: npt.NDArray[np.int64]
    names: list[str]
    given_groups: list[str | None]
    feature_names: Array | None
    centre: Array | None
    feature_sets: FeatureSets | None
    strays: Array
    stray_names: list[str]
    temperatures: Temperatures = Temperatures.single(1.0)  # noqa: RUF009 (it is immutable)
    mixture: Mixture | None = None
    threshold: float = math.inf
    by_hand: npt.NDArray[np.bool_] | None = None

    def check(self) -> None:
        """Raise an error if the parts do not belong together, or hold what no fit gives.

        A fit ends with it, and so does reading a file.
        """
        self.settings.check()
        dim = check_features(self.features, "support_features")
        if check_features(self.strays, "strays", least=0) != dim:
            raise InputError(f"strays must have {dim} columns, as support_features has.")
        if self.centre is not None and (
            self.centre.shape != (dim,) or not np.isfinite(self.centre).all()
        ):
            raise InputError(f"centre must be {dim} finite numbers (got {self.centre.shape}).")
        if not np.array_equal(np.unique(self.classes), self.classes):
            raise InputError("classes must be sorted, and each be there once.")
        codes = self.codes
        if codes.dtype != np.int64 or set(codes.ravel().tolist()) != set(range(len(self.classes))):
            raise InputError("support_labels must be indices of all classes.")
        n_images = len(self.features)
        if codes.shape != (n_images,) or not len(self.names) == len(self.given_groups) == n_images:
            raise InputError(f"There must be a label, a name and a group for {n_images} images.")
        if len(self.stray_names) != len(self.strays):
            raise InputError(f"There must be {len(self.strays)} stray_names.")
        if not all(isinstance(name, str) for name in [*self.names, *self.stray_names]):
            raise InputError("names and stray_names must be texts.")
        if self.feature_names is not None and len(self.feature_names) != dim:
            raise InputError(f"feature_names must be {dim} names.")
        if self.feature_sets is not None and self.feature_sets.dim != dim:
            raise InputError(
                f"feature_sets must have {dim} columns, as support_features has "
                f"(got {self.feature_sets.dim})."
            )
        if self.mixture is not None and not self.is_stacked:
            raise InputError("A mixture needs several candidates, and the classifier 'auto'.")
        if not self.threshold >= 0:  # or not a number at all
            raise InputError(f"threshold must be at least 0 (got {self.threshold}).")
        if self.settings.reject_rate > 0:
            _check_rejection(self.settings, self.classes, n_images + len(self.strays))

    @property
    def labels(self) -> Array:
        """The label of each support image, (image,)."""
        return self.classes[self.codes]

    @cached_property
    def support(self) -> Support:
        """The support set with the plain features, prepared."""
        features = self.plain(self._prepared)
        return Support(features, torch.from_numpy(self.codes), len(self.classes))

    @cached_property
    def _prepared(self) -> Tensor:
        """The prepared features of the support images."""
        return self.prepare(self.features)

    @cached_property
    def head(self) -> Head:
        """The classifier, fitted to the support set."""
        return fit_head(self.settings.classifier, self.support, self.settings.n_neighbors)

    @cached_property
    def held_out(self) -> HeldOutScores:
        """The plain scores that support images with labels by hand get while they are held out."""
        return self._only_by_hand(self._all_held_out)

    @cached_property
    def _all_held_out(self) -> HeldOutScores:
        return held_out_scores(
            self.support, self.settings.classifier, self.settings.n_neighbors, self.groups
        )

    def _only_by_hand(self, held_out: HeldOutScores) -> HeldOutScores:
        if self.by_hand is None:
            return held_out
        return held_out.only(torch.from_numpy(self.by_hand), self.groups)

    def of_hand(self, images: Tensor) -> Tensor:
        """Return those of some support images, given by indices, whose labels are by hand."""
        if self.by_hand is None:
            return images
        return images[torch.from_numpy(self.by_hand)[images]]

    @cached_property
    def held_out_answers(self) -> HeldOutScores:
        """The probabilities of held-out support images, in the place of scores.

        No image has a part in its own answer.
        """
        if self.held_out_mixture is not None:
            return held_out_answers(self.held_out_mixture, self.settings.fixed_temperature)
        held_out = self.held_out
        probabilities = held_out_probabilities(
            held_out.scores, held_out.codes, held_out.rounds, held_out.votes
        )
        return replace(held_out, scores=probabilities)

    @cached_property
    def held_out_mixture(self) -> HeldOutMixture | None:
        """The held-out scores of every candidate; None without a mixture."""
        if self.set_space is None or not self.is_stacked:
            return None
        prepared = self.set_space.prepare(self._prepared)
        codes = self.support.codes
        held_out = hold_out(self._all_held_out, self.set_space, prepared, codes, self.groups)
        return HeldOutMixture(tuple(self._only_by_hand(scores) for scores in held_out.scores))

    @cached_property
    def is_stacked(self) -> bool:
        """Whether several candidates can be weighed."""
        return (
            self.settings.classifier == "auto"
            and bool(self.settings.normalise)
            and self.feature_sets is not None
            and len(self.feature_sets.candidates) > 1
            and len(self.classes) > 1
            and len(self.codes) <= MAX_STACKED
            and len(self.held_out.codes) > 0
        )

    @cached_property
    def set_space(self) -> SetSpace | None:
        """The spaces of the candidates, if there are feature sets."""
        if self.feature_sets is None:
            return None
        return SetSpace.of_support(self.feature_sets, self._prepared)

    @cached_property
    def candidates(self) -> dict[int, SetScores]:
        """The regressions of the mixture's candidates, but for the plain one."""
        if self.mixture is None or self.set_space is None:
            return {}
        prepared = self.set_space.prepare(self._prepared)
        return fit_candidates(self.mixture, self.set_space, prepared, self.support)

    @cached_property
    def stray_scores(self) -> SetScores | None:
        """The scores of classes and strays by feature sets, if there are strays and a mixture."""
        if self.stray_ridge is None or self.mixture is None or self.set_space is None:
            return None
        combination = self.set_space.common(self.mixture)
        return SetScores.of_combination(combination, self.set_space, self.stray_ridge.linear)

    @cached_property
    def common(self) -> Support:
        """The support set in the space in which images are compared: that of `to_common`."""
        return replace(self.support, features=self.to_common(self._prepared))

    @cached_property
    def stray_ridge(self) -> StrayRidge | None:
        """The regression that tells strays from the classes, if there are any."""
        if len(self.strays) == 0:
            return None
        strays = self.to_common(self.prepare(self.strays))
        return StrayRidge(self.common, strays)

    @cached_property
    def groups(self) -> Groups:
        """Which support images show the same thing, as far as it was found or given."""
        return self._found_groups[0]

    @property
    def are_chained(self) -> bool:
        """Whether most images of most classes look alike, so that no groups were found."""
        return self._found_groups[1]

    @cached_property
    def _found_groups(self) -> tuple[Groups, bool]:
        cosine = None if self.embedder is None else self.embedder.look_alike_cosine
        return find_groups(
            self.plain_columns(self.features),
            self.codes,
            look_alike_cosine=cosine,
            names=self.given_groups,
        )

    @cached_property
    def variances(self) -> Tensor:
        """The variance of each class, (class,), which novelty is relative to."""
        return class_variances(self.support)

    def plain_columns(self, features: Array) -> Array:
        """Return the columns of the plain features, (image, dim), as embedded."""
        return plain_columns(self.feature_sets, features)

    def prepare(self, features: Array) -> Tensor:
        """Return features centred and normalised; with feature sets, each set, side by side.

        In float64, so that rounding does not decide near ties.
        """
        centre = None
        if self.centre is not None:
            centre = torch.from_numpy(np.array(self.centre, dtype=np.float64))
        rows = torch.from_numpy(np.array(features, dtype=np.float64))
        if self.feature_sets is None:
            return prepare_features(rows, centre=centre, normalise=bool(self.settings.normalise))
        return torch.cat(
            [
                self._prepare_set(rows, centre, part, is_plain=part in self.feature_sets.plain)
                for part in self.feature_sets.sets
            ],
            dim=1,
        )

    def _prepare_set(
        self, rows: Tensor, centre: Tensor | None, feature_set: FeatureSet, *, is_plain: bool
    ) -> Tensor:
        """Return one set of features, (image, dim of the set), centred and normalised.

        A plain set that is zero is an error, as features are without sets.
        """
        rows = rows[:, feature_set.columns]
        centre = None if centre is None else centre[feature_set.columns]
        if feature_set.is_rooted:
            rows = rows.clamp(min=0).sqrt()
            centre = None
        if is_plain:
            return prepare_features(rows, centre=centre, normalise=bool(self.settings.normalise))
        if centre is not None:
            rows = rows - centre
        return to_unit_length(rows) if self.settings.normalise else rows

    def plain(self, prepared: Tensor) -> Tensor:
        """Return the plain features, (image, dim), of prepared ones."""
        if self.feature_sets is None:
            return prepared
        return plain_features(self.feature_sets, prepared)

    def to_common(self, prepared: Tensor) -> Tensor:
        """Return prepared features in the space in which images are compared, (image, dim).

        Its kernel is the mixture's own: the weighted mean of the kernels of its candidates.
        """
        if self.mixture is None or self.set_space is None:
            return self.plain(prepared)
        return combine(self.set_space.common(self.mixture), self.set_space.prepare(prepared))

    def answer(self, query: Tensor) -> Answers:
        """Return the answers for prepared features, (query, dim)."""
        plain = self.plain(query)
        scores = class_scores(plain, self.support, self.head)
        margins = None
        if self.mixture is None or self.set_space is None:
            probabilities = class_probabilities(scores, self.temperatures)
            codes = first_best(scores)
            if self.stray_ridge is not None:
                margins = self.stray_ridge.margins(plain)
        else:
            prepared = self.set_space.prepare(query)
            scores, probabilities = mix(
                self.mixture,
                scores,
                {number: fitted.scores for number, fitted in self.candidates.items()},
                prepared,
            )
            codes = first_best(probabilities)
            if self.stray_scores is not None:
                margins = margins_of(self.stray_scores.scores(prepared))
        novelty = novelties(plain, self.support, self.variances)
        if margins is not None:
            novelty = weigh_by_margin(novelty, margins)
        elif self.head.classifier is RIDGE:
            novelty = weigh_by_score(novelty, scores)
        return Answers(
            scores=scores,
            codes=codes,
            probabilities=probabilities,
            novelty=novelty,
            is_rejected=novelty > self.threshold,
        )

    def answer_labels(self, answers: Answers) -> Array:
        """Return the label of each answer, or `reject_label` where the image is rejected."""
        labels: Array = self.classes[answers.codes.numpy()]
        if not np.isfinite(self.threshold):
            return labels
        reject_label = np.asarray(self.settings.reject_label)
        if mix_numbers_and_strings(labels, reject_label):
            labels = labels.astype(object)
            reject_label = reject_label.astype(object)
        return np.where(answers.is_rejected.numpy(), reject_label, labels)


def plain_columns(feature_sets: FeatureSets | None, features: Array) -> Array:
    """Return the columns of the plain features, (image, dim), as embedded."""
    if feature_sets is None:
        return features
    sets = feature_sets.plain
    if len(sets) == 1:
        return features[:, sets[0].columns]
    return np.concatenate([features[:, feature_set.columns] for feature_set in sets], axis=1)


def fit_state(
    settings: ClassifierSettings,
    embedder: Embedder | None,
    features: Array,
    labels: Array,
    names: list[str],
    given_groups: list[str | None],
    feature_names: Array | None,
    feature_sets: FeatureSets | None,
    strays: Array,
    stray_names: list[str],
    by_hand: npt.NDArray[np.bool_] | None = None,
    calibrated: FittedState | None = None,
) -> FittedState:
    """Return the state for labelled images, given by features (image, dim), labels and names.

    With `calibrated`, a state of nearly the same images, no image is held out: temperatures, the
    weights of a mixture and the threshold are those of that state.
    """
    classes, codes = np.unique(labels, return_inverse=True)
    if settings.reject_rate > 0:
        _check_rejection(settings, classes, n_images=len(codes) + len(strays))
    uncalibrated = FittedState(
        settings=settings,
        embedder=embedder,
        classes=classes,
        features=features,
        codes=codes,
        names=names,
        given_groups=given_groups,
        feature_names=feature_names,
        centre=_find_centre(settings, embedder, features, feature_sets),
        feature_sets=feature_sets,
        strays=strays,
        stray_names=stray_names,
        by_hand=by_hand,
    )
    if calibrated is not None:
        return replace(
            uncalibrated,
            temperatures=calibrated.temperatures,
            mixture=calibrated.mixture,
            threshold=calibrated.threshold,
        )
    if uncalibrated.are_chained:
        warnings.warn(CHAINED, stacklevel=4)  # the caller of fit or partial_fit
    mixed = replace(
        uncalibrated,
        temperatures=_find_temperatures(uncalibrated),
        mixture=_find_mixture(uncalibrated),
    )
    _copy_computed(uncalibrated, mixed)
    fitted = replace(mixed, threshold=_find_threshold(mixed))
    _copy_computed(mixed, fitted)
    fitted.check()
    return fitted


def _copy_computed(source: FittedState, target: FittedState) -> None:
    """Copy what was computed of the same images, so that it is not computed again."""
    for name in COMPUTED_OF_IMAGES:
        if name in source.__dict__:
            target.__dict__[name] = source.__dict__[name]


def _check_rejection(settings: ClassifierSettings, classes: Array, n_images: int) -> None:
    if settings.reject_label in classes.tolist():
        raise InputError(
            f"reject_label must not be the name of a class (got {settings.reject_label!r}). "
            "Give images of no class as none_of_these, choose another reject_label, or rename "
            "the class."
        )
    if n_images == 1:
        raise InputError(
            "reject_rate needs at least 2 labelled images (got 1). Add one, or set it to 0."
        )


def _find_centre(
    settings: ClassifierSettings,
    embedder: Embedder | None,
    features: Array,
    feature_sets: FeatureSets | None,
) -> Array | None:
    """Return the mean to subtract from features, (dim,), if any."""
    if settings.centre is None:
        return None
    if not isinstance(settings.centre, str):
        centre: Array = np.asarray(without_tensors(settings.centre), dtype=features.dtype)
        return centre if feature_sets is None else _centre_of_plain(centre, feature_sets)
    if settings.centre == "support":
        mean: Array = features.mean(0)
        return mean
    return None if embedder is None else embedder.centre


def _centre_of_plain(centre: Array, feature_sets: FeatureSets) -> Array:
    """Return the mean for all sets, (dim,), of one for the plain sets: 0 elsewhere."""
    columns = [np.arange(part.start, part.stop) for part in feature_sets.plain]
    of_plain = np.concatenate(columns)
    if centre.shape != of_plain.shape:
        return centre
    of_all = np.zeros(feature_sets.dim, dtype=centre.dtype)
    of_all[of_plain] = centre
    return of_all


def _find_temperatures(state: FittedState) -> Temperatures:
    """Return the divisors of the scores, and their weights."""
    if state.settings.temperature != "auto":
        return Temperatures.single(float(state.settings.temperature))
    held_out = state.held_out
    multiples = weigh_temperatures(held_out.scores, held_out.codes, held_out.votes)
    return multiples.times(_typical_temperature(state))


def _find_mixture(state: FittedState) -> Mixture | None:
    """Return the weights of the candidates, if there are several to weigh."""
    if state.held_out_mixture is None:
        return None
    return fit_mixture(state.held_out_mixture, state.settings.fixed_temperature)


def _find_threshold(state: FittedState) -> float:
    """Return the novelty above which an image is rejected; infinite if none is."""
    rate = state.settings.reject_rate
    if rate == 0:
        return math.inf
    support = state.support
    if state.stray_ridge is not None or (
        state.settings.definition is RIDGE and support.between is not None
    ):
        novelty, votes = held_out_own_novelties(state)
        return choose_threshold(novelty, float(rate), votes=votes, typical=TYPICAL_BY_SCORE)
    images = state.of_hand(held_out_images(support, state.groups))
    return choose_threshold(
        held_out_novelties(support, images, state.groups),
        float(rate),
        votes=state.groups.votes(images),
    )


def held_out_own_novelties(state: FittedState) -> tuple[Tensor, Tensor]:
    """Return the novelty of support images while they are held out, (image,), and their votes."""
    support = state.support
    if state.stray_ridge is not None:
        images, margins = state.stray_ridge.held_out_margins(state.groups)
        # If there is no distance between classes, two images of a class have to remain.
        has_distance = torch.isin(images, state.of_hand(held_out_images(support, state.groups)))
        images = images[has_distance]
        by_distance = held_out_novelties(support, images, state.groups)
        novelty = weigh_by_margin(by_distance, margins[has_distance])
        return novelty, state.groups.votes(images)
    held_out = state.held_out
    by_distance = held_out_novelties(support, held_out.images, state.groups)
    scores = held_out.scores * _typical_temperature(state)
    if state.mixture is not None and state.held_out_mixture is not None:
        scores = mean_scores(state.mixture, state.held_out_mixture)
    return weigh_by_score(by_distance, scores), held_out.votes


def estimate_rejection(state: FittedState) -> RejectionEstimate:
    """Return how often images of the classes, and strays, are rejected while they are held out."""
    own = None
    n_own = 0
    if state.stray_ridge is not None or state.support.between is not None:
        novelty, votes = held_out_own_novelties(state)
        n_own = round(float(votes.sum()))
        if n_own > 0:
            own = float(votes[novelty > state.threshold].sum() / votes.sum())
    strays = None
    n_strays = 0
    if state.stray_ridge is not None:
        margins = state.stray_ridge.held_out_stray_margins()
        n_strays = len(margins)
        if n_strays > 0:
            plain = state.plain(state.prepare(state.strays))
            novelty = novelties(plain, state.support, state.variances)
            is_rejected = weigh_by_margin(novelty, margins) > state.threshold
            strays = float(is_rejected.double().mean())
    return RejectionEstimate(own=own, strays=strays, n_own=n_own, n_strays=n_strays)


def _typical_temperature(state: FittedState) -> float:
    settings = state.settings
    return typical_temperature(state.support, settings.classifier, settings.n_neighbors)


def check_reject_rate(reject_rate: Any) -> None:
    """Raise an error unless a rate is a number from 0 to below 1."""
    is_rate = isinstance(reject_rate, Real) and 0 <= float(reject_rate) < 1
    if not is_rate:
        raise InputError(
            f"reject_rate must be at least 0 and below 1, such as 0.05 (got {reject_rate!r})."
        )


def check_features(features: Array, name: str, *, least: int = 1) -> int:
    """Return the dimension of features, (image, dim); an error if they are no finite numbers."""
    if features.ndim != 2 or features.dtype not in (np.float32, np.float64):
        raise InputError(
            f"{name} must be real numbers of shape (image, dim) "
            f"(got {features.dtype} of shape {features.shape})."
        )
    n_images, dim = features.shape
    if n_images < least or dim < 1:
        raise InputError(f"{name} must have at least {least} rows and 1 column.")
    if not np.isfinite(features).all():
        raise InputError(f"{name} must be finite numbers.")
    return int(dim)


def _is_number_between(value: Any, low: float, high: float) -> bool:
    return isinstance(value, Real) and low < float(value) < high


def mix_numbers_and_strings(labels: Array, others: Array) -> bool:
    """Return whether one of two sets of labels holds numbers and the other strings."""
    return (labels.dtype.kind in NUMBER_KINDS) != (others.dtype.kind in NUMBER_KINDS)
