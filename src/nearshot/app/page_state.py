"""What the page shows of a session, as JSON can hold it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nearshot.app.journal import Step
from nearshot.app.model import Guess, Model
from nearshot.app.project import Photo, Project
from nearshot.app.session import Session
from nearshot.estimator import AccuracyEstimate
from nearshot.estimator.novelty import NONE_OF_THESE
from nearshot.io import readable
from nearshot.models.recommended import advice_on

NO_LABEL_CODE = -1
NONE_OF_THESE_CODE = -2  # "none of these"


@dataclass(frozen=True)
class PhotoAnswer:
    """A photo with its label and its answer; both are "" if there is none."""

    photo: Photo
    label: str
    answer: str
    guess: Guess


def photo_answers(session: Session) -> list[PhotoAnswer]:
    """Return the label and the answer of every photo that is not removed."""
    guesses = session.model.guesses
    answers = []
    with session.lock:
        for photo in session.project.present:
            guess = guesses.get(photo.id, Guess())
            answer = NONE_OF_THESE if guess.is_novel else guess.label
            label = session.project.label_of(photo) or ""
            answers.append(PhotoAnswer(photo, label, answer, guess))
    return answers


def page_state(session: Session) -> dict[str, Any]:
    """Return what the page shows.

    Classes are indices; a label or answer of −1 is none, and −2 is "none of these".
    """
    # Before anything else: what changes from here on has a higher version, and is asked for again.
    version = session.version
    model = session.model
    errors = session.errors
    project = session.project
    with session.lock:
        present = project.present
        codes = {name: code for code, name in enumerate(project.classes)}
        return {
            "version": version,
            "title": readable(project.folder.name),
            "project": readable(str(project.folder)),
            "classes": project.classes,
            "slots": list(project.slots.values()),
            "photos": [_photo_row(answer, codes) for answer in photo_answers(session)],
            "removed": [[photo.id, photo.name, photo.group] for photo in project.removed_photos],
            "accepted": [photo.id for photo in present if photo.key in project.accepted],
            "things": {
                photo.id: project.things[photo.key]
                for photo in present
                if photo.key in project.things
            },
            "undo": _title(project.history.undo),
            "redo": _title(project.history.redo),
            "n_done": sum(photo.id in session.features or photo.id in errors for photo in present),
            "errors": [[photo.id, errors[photo.id]] for photo in present if photo.id in errors],
            "next": [
                photo_id
                for photo_id in model.label_next
                if project.label_of(project.photos[photo_id]) is None
            ],
            "suspicious": _suspicious(project, model, codes),
            "confusion": {
                "classes": [] if model.classifier is None else model.classifier.classes_.tolist(),
                "counts": model.confusion.tolist(),
            },
            "estimate": _estimate(model),
            "notes": [readable(note) for note in model.notes],
            "advice": _advice(session, model),
            "can_export": model.classifier is not None,
            "failure": session.failure,
        }


def _title(steps: Sequence[Step]) -> str:
    """Return what undo or redo would do next; empty if there is nothing."""
    return steps[-1].title if steps else ""


def _photo_row(answer: PhotoAnswer, codes: Mapping[str, int]) -> list[str | int | float]:
    return [
        answer.photo.id,
        answer.photo.name,
        answer.photo.group,
        _code(answer.label, codes),
        _code(answer.answer, codes),
        round(answer.guess.confidence, 3),
        round(answer.guess.doubt, 3),
    ]


def _code(name: str, codes: Mapping[str, int]) -> int:
    """Return the index of a class; a class may be removed while it is still an answer."""
    if name == NONE_OF_THESE:
        return NONE_OF_THESE_CODE
    return codes.get(name, NO_LABEL_CODE)


def _suspicious(
    project: Project, model: Model, codes: Mapping[str, int]
) -> dict[str, tuple[int, float]]:
    """Return the photos whose labels look wrong, with the class that they look like.

    Labels that are confirmed, removed or corrected meanwhile are not among them.
    """
    suspicious = {}
    for photo_id, guess in model.suspicious.items():
        photo = project.photos[photo_id]
        is_settled = photo.key in project.confirmed
        is_settled = is_settled or project.label_of(photo) in (None, guess.label)
        if guess.label in codes and not is_settled:
            suspicious[photo_id] = (codes[guess.label], round(guess.confidence, 3))
    return suspicious


def _estimate(model: Model) -> dict[str, str | float]:
    """Return the expected accuracy, or a sentence about what is missing."""
    estimate = model.estimate
    if not isinstance(estimate, AccuracyEstimate):
        return {"missing": estimate}
    low, high = estimate.interval
    return {"mean": estimate.mean, "low": low, "high": high, "n": estimate.n}


def _advice(session: Session, model: Model) -> str:
    """Return a recommendation if the expected accuracy is low; empty otherwise."""
    if not isinstance(model.estimate, AccuracyEstimate):
        return ""
    return advice_on(session.embedder.backbone, model.estimate.mean)
