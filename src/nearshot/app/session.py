"""A session of the app: one thread embeds photos, and fits a classifier after every change."""

import threading
import time
import traceback
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from nearshot.app.model import Model, fit_model, nearest_photos
from nearshot.app.project import Photo, Project
from nearshot.errors import InputError, NearshotError
from nearshot.estimator import Embedder, FewShotClassifier
from nearshot.estimator.backbone_choice import BackboneChoice, measure_backbone
from nearshot.estimator.novelty import NONE_OF_THESE
from nearshot.estimator.suggestions import Floats
from nearshot.io import readable
from nearshot.models.recommended import MORE_ACCURATE, installed_backbones

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
class Labelled:
    """The readable photos with labels, for a classifier of images.

    Attributes:
        paths, labels: the photos of classes.
        things: what each of them shows, as far as the user recorded it.
        by_hand: whether somebody looked at each label.
        strays: the photos that are labelled as none of these.
    """

    paths: Sequence[str]
    labels: Sequence[str]
    things: Sequence[str | None]
    by_hand: Sequence[bool]
    strays: Sequence[str]


@dataclass(frozen=True)
class BackboneOffer:
    """Another backbone, and what it would do for the labelled photos, beside the present one."""

    present: BackboneChoice
    offered: BackboneChoice


@dataclass(frozen=True)
class _Step:
    """What the thread does next: fit a classifier, or else embed a batch of photos.

    Attributes:
        is_fit: whether it fits.
        labels: the labels of the present photos by identifier; None of unlabelled ones.
        things: what present photos show, by identifier, as far as the user recorded it.
        accepted: the present photos whose labels are answers that nobody looked at one by one.
        batch: the next photos to embed.
        embedder: embeds them.
        features: of the photos that it has embedded, by identifier.
    """

    is_fit: bool
    labels: Mapping[str, str | None]
    things: Mapping[str, str]
    accepted: Collection[str]
    batch: Sequence[Photo]
    embedder: Embedder
    features: dict[str, Floats]


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
        labelled = self._labelled()
        classifier = FewShotClassifier(
            self.embedder.backbone,
            reject_rate=self.reject_rate,
            reject_label=NONE_OF_THESE,
            device=self.embedder.device,
            cache_dir=self._cache_dir(),
        )
        return classifier.fit(
            labelled.paths,
            labelled.labels,
            groups=labelled.things,
            none_of_these=labelled.strays,
            by_hand=labelled.by_hand,
        )

    def offer(self) -> BackboneOffer | None:
        """Measure the more accurate backbone on the labelled photos, beside the present one.

        None if it is not installed, or in use.
        """
        is_installed = MORE_ACCURATE in installed_backbones()
        if not is_installed or self.embedder.spec.name == MORE_ACCURATE:
            return None
        return BackboneOffer(
            present=self._measure(self.embedder.backbone), offered=self._measure(MORE_ACCURATE)
        )

    def _measure(self, backbone: Any) -> BackboneChoice:
        labelled = self._labelled()
        return measure_backbone(
            backbone,
            labelled.paths,
            labelled.labels,
            groups=labelled.things,
            by_hand=labelled.by_hand,
            device=self.embedder.device,
            cache_dir=self._cache_dir(),
        )

    def use_backbone(self, backbone: str) -> None:
        """Embed all photos with another backbone, and fit to its features."""
        embedder = Embedder(
            backbone, device=self.embedder.device, cache_dir=self._cache_dir(), all_sets=True
        )
        with self.lock:
            self.embedder = embedder
            self.features = {}
            self.model = Model()
            self._needs_fit = True
            self.version += 1
            self.lock.notify_all()

    def _cache_dir(self) -> Path | None:
        cache = self.embedder.cache
        return None if cache is None else cache.folder.parent

    def _labelled(self) -> Labelled:
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
        return Labelled(paths, labels, things, by_hand, strays)

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
                    self._embed(step)
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
                embedder=self.embedder,
                features=self.features,
            )
            self._needs_fit = False
            self._is_working = True
            return step

    def _fit(self, step: _Step) -> None:
        """Fit the model to the labels of the present photos."""
        model = fit_model(
            {photo: step.features[photo] for photo in step.labels if photo in step.features},
            {photo: label for photo, label in step.labels.items() if label is not None},
            centre=step.embedder.centre,
            feature_sets=step.embedder.feature_sets,
            look_alike_cosine=step.embedder.look_alike_cosine,
            reject_rate=self.reject_rate,
            things=step.things,
            accepted=step.accepted,
            previous=self.model,
        )
        with self.lock:
            if step.embedder is self.embedder:  # else its features are gone
                self.model = model

    def _embed(self, step: _Step) -> None:
        results = step.embedder.attempt([photo.path for photo in step.batch])
        for photo, result in zip(step.batch, results, strict=True):
            if isinstance(result, NearshotError):
                message = str(result).replace(str(photo.path), photo.name)
                self.errors[photo.id] = readable(message)
            else:
                step.features[photo.id] = result
