"""A session of the app: one thread embeds photos, and fits a classifier after every change."""

import threading
import time
import traceback
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from nearshot.app.model import Model, fit_model, nearest_photos
from nearshot.app.project import Photo, Project
from nearshot.errors import InputError, NearshotError
from nearshot.estimator import Embedder, FewShotClassifier
from nearshot.estimator.novelty import NONE_OF_THESE
from nearshot.estimator.suggestions import Floats
from nearshot.io import readable

BATCH_SIZE = 16  # photos embedded before labels are looked at again
SECONDS_BETWEEN_FITS = 2.0  # while photos are embedded; a label is fitted at once
N_NEIGHBORS = 4
N_CLASSES_SHOWN = 6  # of the probabilities of a photo

Result = TypeVar("Result")


@dataclass(frozen=True)
class PhotoExplanation:
    """What the answer for a photo is based on.

    Attributes:
        probabilities: the most probable classes with their probabilities, the highest first.
        nearest: the identifiers of the most similar labelled photos, the nearest first.
    """

    probabilities: Sequence[tuple[str, float]] = ()
    nearest: Sequence[str] = ()


@dataclass(frozen=True)
class _Step:
    """What the thread does next: fit a classifier, or else embed a batch of photos.

    Attributes:
        is_fit: whether it fits.
        labels: the labels of the present photos by identifier; None of unlabelled ones.
        things: what present photos show, by identifier, as far as the user recorded it.
        accepted: the present photos whose labels are answers that nobody looked at one by one.
        batch: the next photos to embed.
    """

    is_fit: bool
    labels: Mapping[str, str | None]
    things: Mapping[str, str]
    accepted: Collection[str]
    batch: Sequence[Photo]


class Session:
    """A project at work: one thread embeds its photos and fits a classifier after every change.

    Attributes:
        version: increases with every change that the page should show.
        features: the features of embedded photos, (dim,), by identifier.
        errors: a sentence for every photo that cannot be read, by identifier.
        model: the last classifier, and what the page shows of it.
        failure: the error that ended the thread; empty if there is none.
        lock: held while the project changes.
    """

    def __init__(self, project: Project, embedder: Embedder, reject_rate: float = 0.05) -> None:
        self.project = project
        self.embedder = embedder
        self.reject_rate = reject_rate
        self.version = 1
        self.features: dict[str, Floats] = {}
        self.errors: dict[str, str] = {}
        self.model = Model()
        self.failure = ""
        self.lock = threading.Condition()
        self._needs_fit = True
        self._is_working = False
        self._is_ended = False
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

    def change(self, function: Callable[[Project], Result]) -> Result:
        """Call a function that changes the project, and return its result.

        A new classifier follows.
        """
        with self.lock:
            result = function(self.project)
            self._needs_fit = True
            self.version += 1
            self.lock.notify_all()
            return result

    @property
    def is_busy(self) -> bool:
        """Whether photos or labels wait to be processed."""
        with self.lock:
            return self._is_working or self._needs_fit or bool(self._waiting_photos())

    def classifier(self) -> FewShotClassifier:
        """Return a classifier of images from all labelled photos, to export."""
        paths = []
        labels = []
        things = []
        by_hand = []
        strays = []
        with self.lock:
            for photo in self.project.present:
                label = self.project.label_of(photo)
                is_readable = photo.id not in self.errors and photo.path.is_file()
                if label == NONE_OF_THESE and is_readable:
                    strays.append(str(photo.path))
                elif label is not None and is_readable:
                    paths.append(str(photo.path))
                    labels.append(label)
                    things.append(self.project.things.get(photo.key))
                    by_hand.append(photo.key not in self.project.accepted)
        if len(paths) < 2:
            raise InputError("Label at least 2 photos first.")
        cache = self.embedder.cache
        classifier = FewShotClassifier(
            self.embedder.backbone,
            reject_rate=self.reject_rate,
            reject_label=NONE_OF_THESE,
            device=self.embedder.device,
            cache_dir=None if cache is None else cache.folder.parent,
        )
        return classifier.fit(paths, labels, groups=things, none_of_these=strays, by_hand=by_hand)

    def explain(self, photo: Photo) -> PhotoExplanation:
        """Return what the answer for a photo is based on.

        A labelled photo is judged by the others, if its class has any.
        """
        model = self.model
        feature = self.features.get(photo.id)
        if model.classifier is None or feature is None:
            return PhotoExplanation()
        shares = model.held_out.get(photo.id)
        if shares is None:
            shares = model.classifier.predict_proba(feature[None])[0]
        ranking = np.argsort(-shares, kind="stable")[:N_CLASSES_SHOWN]
        classes = model.classifier.classes_
        nearest = nearest_photos(model, feature, N_NEIGHBORS + 1)
        others = [photo_id for photo_id in nearest if photo_id != photo.id]
        return PhotoExplanation(
            probabilities=[(str(classes[code]), float(shares[code])) for code in ranking],
            nearest=others[:N_NEIGHBORS],
        )

    def _waiting_photos(self) -> list[Photo]:
        """Return the photos that are not embedded yet."""
        return [
            photo
            for photo in self.project.present
            if photo.id not in self.features and photo.id not in self.errors
        ]

    def _work(self) -> None:
        """Fit after every change, and embed photos in between, until the session ends."""
        fitted_at = 0.0
        try:
            while (step := self._wait_for_step()) is not None:
                if step.is_fit:
                    self._fit(step)
                    fitted_at = time.monotonic()
                else:
                    self._embed(step.batch)
                with self.lock:
                    is_fit_due = time.monotonic() > fitted_at + SECONDS_BETWEEN_FITS
                    if not step.is_fit and (is_fit_due or not self._waiting_photos()):
                        self._needs_fit = True
                    self.version += 1
        except Exception as error:
            # A bug, or a computer without memory: for the terminal, and a sentence for the page.
            traceback.print_exc()
            self.failure = f"{type(error).__name__}: {error}"
            self.version += 1

    def _wait_for_step(self) -> _Step | None:
        """Wait until photos or labels are to be processed; return None at the session's end."""
        with self.lock:
            self._is_working = False
            self.project.sync()
            while not (self._is_ended or self._needs_fit or self._waiting_photos()):
                self.lock.wait()
            if self._is_ended:
                return None
            present = self.project.present
            things = self.project.things
            step = _Step(
                is_fit=self._needs_fit,
                labels={photo.id: self.project.label_of(photo) for photo in present},
                things={photo.id: things[photo.key] for photo in present if photo.key in things},
                accepted={photo.id for photo in present if photo.key in self.project.accepted},
                batch=self._waiting_photos()[:BATCH_SIZE],
            )
            self._needs_fit = False
            self._is_working = True
            return step

    def _fit(self, step: _Step) -> None:
        """Fit the model to the labels of the present photos."""
        self.model = fit_model(
            {photo: self.features[photo] for photo in step.labels if photo in self.features},
            {photo: label for photo, label in step.labels.items() if label is not None},
            centre=self.embedder.centre,
            feature_sets=self.embedder.feature_sets,
            look_alike_cosine=self.embedder.look_alike_cosine,
            reject_rate=self.reject_rate,
            things=step.things,
            accepted=step.accepted,
            previous=self.model,
        )

    def _embed(self, photos: Sequence[Photo]) -> None:
        results = self.embedder.attempt([photo.path for photo in photos])
        for photo, result in zip(photos, results, strict=True):
            if isinstance(result, NearshotError):
                message = str(result).replace(str(photo.path), photo.name)
                self.errors[photo.id] = readable(message)
            else:
                self.features[photo.id] = result
