"""What can be taken out of the app: the classifier, a table of the photos, and copies."""

import csv
import io
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from nearshot.app.label_table import plain_cell
from nearshot.app.page_state import photo_answers
from nearshot.app.session import Session
from nearshot.estimator import export_onnx
from nearshot.estimator.copy_images import copy_into_classes
from nearshot.io import readable


def export_bundle(session: Session) -> bytes:
    """Return the classifier as a bundle for nearshot."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "classifier.safetensors"
        session.classifier().save(path, image_folder=session.project.folder)
        return path.read_bytes()


def export_onnx_file(session: Session) -> bytes:
    """Return the classifier as an ONNX file."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "classifier.onnx"
        export_onnx(session.classifier(), path)
        return path.read_bytes()


def export_table(session: Session) -> bytes:
    """Return a table of all photos as CSV, with paths relative to the project."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\r\n")
    writer.writerow(["photo", "label", "predicted", "confidence"])
    for answer in photo_answers(session):
        confidence = f"{answer.guess.confidence:.4f}" if answer.answer else ""
        cells = [Path(answer.photo.key).as_posix(), answer.label, answer.answer, confidence]
        writer.writerow([plain_cell(cell) for cell in cells])
    # With a byte order mark, without which Excel misreads letters.
    return file.getvalue().encode("utf-8-sig")


EXPORTS: dict[str, Callable[[Session], bytes]] = {
    "classifier.safetensors": export_bundle,
    "classifier.onnx": export_onnx_file,
    "photos.csv": export_table,
}
"""Functions that return the content of a file to download, by its name."""


def copy_photos(session: Session, include_predicted: bool) -> dict[str, Any]:
    """Copy the labelled photos into `sorted/` of the project, one folder per class.

    With `include_predicted`, the others are copied as well, by their answers.
    """
    folder = session.project.folder / "sorted"
    labelled_photos = []
    for answer in photo_answers(session):
        label = answer.label
        if not label and include_predicted:
            label = answer.answer
        if label:
            labelled_photos.append((answer.photo.path, label))
    result = copy_into_classes(labelled_photos, folder)
    return {
        "folder": readable(str(folder)),
        "new": result.n_new,
        "same": result.n_same,
        "failures": [readable(failure) for failure in result.failures],
        "earlier": readable(result.about_earlier),
    }
