"""A session of the app: photos are embedded in the background, and every label makes a new classifier."""

import io
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from nearshot.app.project import UNKNOWN, Photo, Project
from nearshot.data.images import decode
from nearshot.errors import InputError, NearshotError
from nearshot.estimator import AccuracyEstimate, Embedder, FewShotClassifier
from nearshot.estimator.suggestions import (
    Floats,
    held_out_probabilities,
    choose_next,
    rank_unlabelled,
    suspicious_labels,
)
from nearshot.io import atomic_write, readable

BATCH_SIZE = 16  # photos embedded before labels are looked at again
SECONDS = 2.0  # between two fits while photos are embedded; a label is fitted at once
N_SUGGESTIONS = 24
N_NEIGHBORS = 4
THUMBNAIL_SIDE, LARGE_SIDE = 320, 1600


class Guess(NamedTuple):
    """The answer for a photo; by default there is none."""

    label: str = ""  # the most probable class, even if the photo is novel
    confidence: float = 0.0
    doubt: float = 0.0
    is_novel: bool = False


@dataclass(frozen=True)
class Model:
    """A classifier and everything that the page shows of it. Photos are given by their identifiers."""

    classifier: FewShotClassifier | None = None  # of features; None if there are too few labels
    support: tuple[str, ...] = ()
    guesses: Mapping[str, Guess] = field(default_factory=dict)  # of unlabelled photos
    # The expected accuracy, or a sentence that says what is missing.
    estimate: AccuracyEstimate | str = (
        "Label a few photos of two classes to see how accurate this is."
    )
    label_next: tuple[str, ...] = ()
    suspicious: Mapping[str, Guess] = field(
        default_factory=dict
    )  # labels that look wrong, with held-out answers
    confusion: npt.NDArray[np.int64] = field(
        default_factory=lambda: np.zeros((0, 0), np.int64)
    )  # (label, answer)
    held_out: Mapping[str, Floats] = field(
        default_factory=dict
    )  # probabilities (class,) of held-out labelled photos


def fit_model(features: Mapping[str, Floats], labels: Mapping[str, str], **settings: Any) -> Model:
    """Fit a classifier to the labelled photos, and classify the others; `settings` are the classifier's.

    `features` (dim,) and `labels` are by the identifiers of photos.
    """
    support = tuple(one for one in features if one in labels)
    others = [one for one in features if one not in labels]
    vectors = np.stack([features[one] for one in others]) if others else np.zeros((0, 1))
    if len(support) < 2:
        directions = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
        return Model(
            label_next=tuple(others[place] for place in choose_next(directions, N_SUGGESTIONS))
        )
    classifier = FewShotClassifier(None, unknown_label=UNKNOWN, **settings)
    classifier.fit(np.stack([features[one] for one in support]), [labels[one] for one in support])
    try:
        estimate: AccuracyEstimate | str = classifier.estimate_accuracy()
    except InputError:
        estimate = "Label two photos or more of each class to see how accurate this is."
    guesses, chosen = {}, []
    if others:
        ranked = rank_unlabelled(classifier, vectors, N_SUGGESTIONS)
        guesses = _guesses(others, classifier, ranked.probabilities, ranked.doubt, ranked.is_novel)
        chosen = ranked.label_next.tolist()
    places, probabilities = held_out_probabilities(classifier)
    codes, tested = classifier.support_labels_[places], [support[place] for place in places]
    wrong, n = suspicious_labels(probabilities, codes), len(classifier.classes_)
    return Model(
        classifier,
        support,
        guesses,
        estimate,
        tuple(others[place] for place in chosen),
        _guesses([tested[place] for place in wrong], classifier, probabilities[wrong]),
        np.bincount(n * codes + probabilities.argmax(1), minlength=n * n).reshape(n, n),
        dict(zip(tested, probabilities, strict=True)),
    )


def _guesses(
    ids: Sequence[str],
    classifier: FewShotClassifier,
    probabilities: Floats,
    *others: npt.NDArray[Any],
) -> dict[str, Guess]:
    """Return guesses by identifier; `others` are their doubt and novelty, if they are known."""
    labels = classifier.classes_[probabilities.argmax(1)]
    columns = (column.tolist() for column in (labels, probabilities.max(1, initial=0), *others))
    return {one: Guess(*values) for one, *values in zip(ids, *columns, strict=True)}


class Session:
    """A project at work: one thread embeds its photos and fits the classifier whenever a label has changed."""

    def __init__(self, project: Project, embedder: Embedder, unknown_rate: float = 0.05) -> None:
        self.project, self.embedder, self.unknown_rate = project, embedder, unknown_rate
        self.version = 1  # increases with every change that the page should show
        self.features: dict[str, Floats] = {}  # of embedded photos, by identifier
        self.errors: dict[
            str, str
        ] = {}  # a sentence for every photo that cannot be read, by identifier
        self.model = Model()
        self.failure = ""  # the error that ended the thread
        self._is_stale, self._is_working, self._is_ended = True, False, False
        self.lock = threading.Condition()  # held while the project changes
        self._thread = threading.Thread(target=self._work, name="nearshot", daemon=True)

    def start(self) -> None:
        """Start to embed photos."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread and release the project."""
        with self.lock:
            self._is_ended = True
            self.lock.notify_all()
        self._thread.join()
        self.project.close()

    def change(self, change: Callable[[Project], Any]) -> Any:
        """Change the project, and return what the change returns; a new classifier follows."""
        with self.lock:
            result = change(self.project)
            self._is_stale = True
            self.version += 1
            self.lock.notify_all()
            return result

    @property
    def is_busy(self) -> bool:
        """Whether photos or labels wait to be processed."""
        with self.lock:
            return self._is_working or self._is_stale or bool(self._waiting())

    def classifier(self) -> FewShotClassifier:
        """Return a classifier of images from all labelled photos, to export."""
        with self.lock:
            labels = {photo: self.project.label_of(photo) for photo in self.project.present}
        labelled = [
            photo
            for photo, label in labels.items()
            if label is not None
            and photo.id not in self.errors
            and photo.path.is_file()  # it may be deleted by now
        ]
        if len(labelled) < 2:
            raise InputError("Label at least 2 photos first.")
        cache = None if self.embedder.cache is None else self.embedder.cache.folder.parent
        model = FewShotClassifier(
            self.embedder.backbone, device=self.embedder.device, cache_dir=cache
        )
        model.set_params(unknown_rate=self.unknown_rate, unknown_label=UNKNOWN)
        return model.fit(
            [str(photo.path) for photo in labelled], [labels[photo] for photo in labelled]
        )

    def explain(self, photo: Photo) -> dict[str, Any]:
        """Return the probabilities of the classes for a photo, and the most similar labelled photos.

        A labelled photo is judged by the others, if its class has any.
        """
        model, feature = self.model, self.features.get(photo.id)
        if model.classifier is None or feature is None:
            return {"probabilities": [], "nearest": []}
        row = feature[None]
        shares = model.held_out.get(photo.id)
        if shares is None:
            shares = model.classifier.predict_proba(row)[0]
        order = np.argsort(-shares, kind="stable")[:6]
        _, places = model.classifier.kneighbors(row, N_NEIGHBORS + 1)
        near = [model.support[place] for place in places[0]]
        return {
            "probabilities": [
                [str(model.classifier.classes_[code]), float(shares[code])] for code in order
            ],
            "nearest": [one for one in near if one != photo.id][:N_NEIGHBORS],
        }

    def _waiting(self) -> list[Photo]:
        return [
            one
            for one in self.project.present
            if one.id not in self.features and one.id not in self.errors
        ]

    def _work(self) -> None:
        fitted_at = 0.0
        try:
            while True:
                with self.lock:
                    self._is_working = False
                    while not (self._is_ended or self._is_stale or self._waiting()):
                        self.lock.wait()
                    if self._is_ended:
                        return
                    batch, is_stale = self._waiting()[:BATCH_SIZE], self._is_stale
                    present = {
                        photo.id: self.project.label_of(photo) for photo in self.project.present
                    }
                    self._is_stale, self._is_working = False, True
                if is_stale:
                    features = {one: self.features[one] for one in present if one in self.features}
                    labels = {one: label for one, label in present.items() if label is not None}
                    settings = {"centre": self.embedder.centre, "unknown_rate": self.unknown_rate}
                    self.model = fit_model(features, labels, **settings)
                    fitted_at = time.monotonic()
                else:
                    self._embed(batch)
                with self.lock:
                    if not is_stale and (
                        not self._waiting() or time.monotonic() > fitted_at + SECONDS
                    ):
                        self._is_stale = True
                    self.version += 1
        except Exception as error:
            traceback.print_exc()  # a bug, or a computer without memory: for the terminal, and a sentence for the page
            self.failure = f"{type(error).__name__}: {error}"
            self.version += 1

    def _embed(self, photos: Sequence[Photo]) -> None:
        for photo, one in zip(
            photos, self.embedder.attempt([photo.path for photo in photos]), strict=True
        ):
            if isinstance(one, NearshotError):
                self.errors[photo.id] = readable(str(one).replace(str(photo.path), photo.name))
            else:
                self.features[photo.id] = one


def smaller_jpeg(data: bytes, name: str, side: int) -> bytes:
    """Decode an image and return it as a JPEG with at most `side` pixels on each side."""
    image = decode(data, name, shrink_to=side)
    image.thumbnail((side, side))
    file = io.BytesIO()
    image.save(file, "JPEG", quality=85)
    return file.getvalue()


def version_of(project: Project, photo: Photo, *, large: bool = False) -> bytes:
    """Return a photo as large as a screen, or as a thumbnail, which is made once for each content of the file."""
    try:
        state = photo.path.stat()
        path = (
            project.folder
            / "thumbnails"
            / f"{photo.id}-{state.st_size:x}-{state.st_mtime_ns:x}.jpg"
        )
        if path.exists() and not large:
            return path.read_bytes()
        data = photo.path.read_bytes()
    except OSError as error:
        raise InputError(f"{photo.name} cannot be read: {error.strerror}.") from error
    if large:
        return smaller_jpeg(data, photo.name, LARGE_SIDE)
    small = smaller_jpeg(data, photo.name, THUMBNAIL_SIDE)
    path.parent.mkdir(exist_ok=True)
    with atomic_write(path, durable=False) as file:
        file.write(small)
    return small
