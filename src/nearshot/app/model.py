"""What the page shows of a classifier of the labelled photos."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from nearshot.errors import InputError
from nearshot.estimator import AccuracyEstimate, FewShotClassifier
from nearshot.estimator.feature_sets import FeatureSets
from nearshot.estimator.groups import find_groups
from nearshot.estimator.novelty import NONE_OF_THESE
from nearshot.estimator.state import CHAINED, FittedState, plain_columns
from nearshot.estimator.suggestions import (
    Floats,
    choose_next,
    held_out_probabilities,
    rank_unlabelled,
    suspicious_labels,
)
from nearshot.text import upper_first

N_SUGGESTIONS = 24
# With more labels, photos are held out again once this share of the labels has changed.
MAX_ALWAYS_HELD_OUT = 200
SHARE_OF_CHANGES = 0.1
LABEL_TWO_CLASSES = "Label a few photos of two classes to see how accurate this is."
LABEL_TWO_PHOTOS = "Label two photos or more of each class to see how accurate this is."


@dataclass(frozen=True)
class Guess:
    """The answer for a photo; by default there is none.

    Attributes:
        label: the most probable class, even if the photo is novel.
        confidence: its probability.
        doubt: how useful a label would be; see `nearshot.estimator.suggestions.doubt_of`.
        is_novel: whether the photo is like no class.
    """

    label: str = ""
    confidence: float = 0.0
    doubt: float = 0.0
    is_novel: bool = False


@dataclass(frozen=True)
class Model:
    """A classifier and everything that the page shows of it. Photos are given by identifiers.

    Attributes:
        classifier: classifies features; None if there are too few labels.
        support: the labelled photos.
        guesses: the answers for unlabelled photos.
        estimate: the expected accuracy, or a sentence that says what is missing.
        notes: sentences about labelled photos that look alike.
        label_next: the photos to label next.
        suspicious: photos whose labels look wrong, with their held-out answers.
        confusion: how often labelled photos get each answer while held out, (label, answer).
        held_out: the held-out probabilities of labelled photos, (class,).
        calibrated_on: the labels at the last time when photos were held out.
    """

    classifier: FewShotClassifier | None = None
    support: tuple[str, ...] = ()
    guesses: Mapping[str, Guess] = field(default_factory=dict)
    estimate: AccuracyEstimate | str = LABEL_TWO_CLASSES
    notes: tuple[str, ...] = ()
    label_next: tuple[str, ...] = ()
    suspicious: Mapping[str, Guess] = field(default_factory=dict)
    confusion: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros((0, 0), np.int64))
    held_out: Mapping[str, Floats] = field(default_factory=dict)
    calibrated_on: Mapping[str, str] = field(default_factory=dict)


def fit_model(
    features: Mapping[str, Floats],
    labels: Mapping[str, str],
    *,
    centre: Floats | None = None,
    feature_sets: FeatureSets | None = None,
    look_alike_cosine: float | None = None,
    reject_rate: float,
    things: Mapping[str, str] | None = None,
    accepted: Collection[str] = (),
    previous: Model | None = None,
) -> Model:
    """Fit a classifier to the labelled photos, and classify the others.

    `features` (dim,) and `labels` are by the identifiers of photos, and so are `things`: those with
    equal names show the same thing. The labels of `accepted` photos are answers that nobody looked
    at: they train, and are not tested. Photos labelled "none of these" are strays. `centre`,
    `feature_sets` and `look_alike_cosine` are those of the embedder.

    Of many photos, few of whose labels have changed since the `previous` model held photos out,
    none is held out again: a label must not take seconds. What was found by holding out is then
    that of the previous model.
    """
    if things is None:
        things = {}
    support = tuple(
        photo for photo in features if labels.get(photo, NONE_OF_THESE) != NONE_OF_THESE
    )
    others = [photo for photo in features if photo not in labels]
    other_features = np.stack([features[photo] for photo in others]) if others else np.zeros((0, 1))
    if len(support) < 2:
        directions = other_features
        if others:
            directions = _unit_length(plain_columns(feature_sets, other_features))
        chosen = choose_next(directions, N_SUGGESTIONS, look_alike_cosine=look_alike_cosine)
        return Model(label_next=tuple(others[index] for index in chosen))
    classifier = FewShotClassifier(
        None,
        feature_sets=feature_sets,
        centre=centre,
        reject_rate=reject_rate,
        reject_label=NONE_OF_THESE,
    )
    support_features = np.stack([features[photo] for photo in support])
    support_labels = [labels[photo] for photo in support]
    codes_of_support = np.unique(support_labels, return_inverse=True)[1]
    groups, are_chained = find_groups(
        plain_columns(feature_sets, support_features),
        codes_of_support,
        look_alike_cosine=look_alike_cosine,
        names=[things.get(photo) for photo in support],
    )
    strays = [features[photo] for photo in features if labels.get(photo) == NONE_OF_THESE]
    by_hand = [photo not in accepted for photo in support]
    calibrated = None if previous is None else _still_calibrated(previous, labels)
    if calibrated is None:
        classifier.fit(
            support_features,
            support_labels,
            groups=groups.numbers.tolist(),
            none_of_these=strays,
            by_hand=by_hand,
        )
    else:
        classifier.fit_calibrated(
            support_features,
            support_labels,
            calibrated,
            groups=groups.numbers.tolist(),
            none_of_these=strays,
            by_hand=by_hand,
        )
    notes = [f"{upper_first(note)}." for note in groups.notes(classifier.classes_.tolist())]
    if are_chained:
        look_alike_cosine = None
        notes.append(CHAINED)
    guesses: dict[str, Guess] = {}
    label_next: tuple[str, ...] = ()
    if others:
        ranking = rank_unlabelled(
            classifier, other_features, N_SUGGESTIONS, look_alike_cosine=look_alike_cosine
        )
        for index, photo in enumerate(others):
            guesses[photo] = _guess(
                classifier,
                ranking.probabilities[index],
                doubt=float(ranking.doubt[index]),
                is_novel=bool(ranking.is_novel[index]),
            )
        label_next = tuple(others[index] for index in ranking.label_next)
    if previous is not None and calibrated is not None:
        return replace(
            previous,
            classifier=classifier,
            support=support,
            guesses=guesses,
            notes=tuple(notes),
            label_next=label_next,
            held_out={
                photo: shares
                for photo, shares in previous.held_out.items()
                if labels.get(photo) == previous.calibrated_on[photo]
            },
        )
    images, probabilities = held_out_probabilities(classifier)
    tested = [support[image] for image in images]
    codes = classifier.support_labels_[images]
    suspicious = {
        tested[row]: _guess(classifier, probabilities[row])
        for row in suspicious_labels(probabilities, codes)
    }
    return Model(
        classifier=classifier,
        support=support,
        guesses=guesses,
        estimate=_estimate_or_sentence(classifier),
        notes=tuple(notes),
        label_next=label_next,
        suspicious=suspicious,
        confusion=_confusion(codes, probabilities),
        held_out=dict(zip(tested, probabilities, strict=True)),
        calibrated_on=dict(labels),
    )


def _still_calibrated(previous: Model, labels: Mapping[str, str]) -> FittedState | None:
    """Return the state of the previous model, if its held-out photos say enough about new labels.

    Few photos are held out at once. The classes must be the same, and whether there are strays.
    """
    if previous.classifier is None or len(labels) <= MAX_ALWAYS_HELD_OUT:
        return None
    before = previous.calibrated_on
    changed = [photo for photo in labels if labels[photo] != before.get(photo)]
    removed = before.keys() - labels.keys()
    if set(labels.values()) != set(before.values()):
        return None
    if len(changed) + len(removed) > SHARE_OF_CHANGES * len(before):
        return None
    return previous.classifier.fitted_state()


def _guess(
    classifier: FewShotClassifier,
    probabilities: Floats,
    *,
    doubt: float = 0.0,
    is_novel: bool = False,
) -> Guess:
    """Return the guess for the probabilities of one photo, (class,)."""
    best = probabilities.argmax()
    return Guess(
        label=str(classifier.classes_[best]),
        confidence=float(probabilities[best]),
        doubt=doubt,
        is_novel=is_novel,
    )


def _estimate_or_sentence(classifier: FewShotClassifier) -> AccuracyEstimate | str:
    try:
        return classifier.estimate_accuracy()
    except InputError:
        return LABEL_TWO_PHOTOS


def _confusion(codes: npt.NDArray[np.int64], probabilities: Floats) -> npt.NDArray[np.int64]:
    """Return how often photos of each class get each answer, (label, answer)."""
    n_classes = probabilities.shape[1]
    confusion = np.zeros((n_classes, n_classes), np.int64)
    np.add.at(confusion, (codes, probabilities.argmax(1)), 1)
    return confusion


def _unit_length(features: Floats) -> Floats:
    """Return features (image, dim) divided by their lengths."""
    lengths = np.linalg.norm(features, axis=1, keepdims=True)
    return np.asarray(features / np.maximum(lengths, 1e-12))


def nearest_photos(model: Model, feature: Floats, n: int) -> Sequence[str]:
    """Return the labelled photos that are most similar to a feature, (dim,), nearest first."""
    if model.classifier is None:
        return []
    _, indices = model.classifier.kneighbors(feature[None], n)
    return [model.support[index] for index in indices[0]]
