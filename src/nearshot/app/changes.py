"""What the page may ask of a project: one action of a person is one request and one entry."""

from collections.abc import Callable
from typing import Any

from nearshot.app.journal import Step
from nearshot.app.project import Photo, Project

Body = dict[str, Any]


def label(project: Project, body: Body) -> None:
    """Label photos: `labels` are names by identifier, None removes a label."""
    project.set_labels(body["labels"])


def accept(project: Project, body: Body) -> None:
    """Take answers as labels of photos without one; `is_seen` if the user looked at each."""
    project.accept(body["labels"], is_seen=bool(body["is_seen"]))


def confirm(project: Project, body: Body) -> None:
    """Record that labels are right."""
    project.confirm(body["ids"])


def remove(project: Project, body: Body) -> None:
    """Take photos out, or put them back."""
    project.set_removed(body["ids"], removed=bool(body["removed"]))


def same_thing(project: Project, body: Body) -> None:
    """Record that photos show the same thing, or that they do not."""
    project.set_same_thing(body["ids"], same=bool(body["same"]))


def add_class(project: Project, body: Body) -> str:
    """Add a class, and label photos with it."""
    return project.add_class(body["name"], body.get("ids", ()))


def rename_class(project: Project, body: Body) -> str:
    """Rename a class, or merge it into another."""
    return project.rename_class(body["name"], body["new_name"], merge=bool(body.get("merge")))


def remove_class(project: Project, body: Body) -> None:
    """Remove a class and its labels."""
    project.remove_class(body["name"])


def label_by_folders(project: Project, body: Body) -> None:
    """Label photos by the names of their folders."""
    project.label_by_folders(int(body.get("level", 0)))


def undo(project: Project, body: Body) -> dict[str, Any]:
    """Take back the last action."""
    return _as_json(project.undo())


def redo(project: Project, body: Body) -> dict[str, Any]:
    """Do what was taken back again."""
    return _as_json(project.redo())


def _as_json(step: tuple[Step, list[Photo]]) -> dict[str, Any]:
    done, photos = step
    return {"title": done.title, "ids": [photo.id for photo in photos]}


CHANGES: dict[str, Callable[[Project, Body], Any]] = {
    "label": label,
    "accept": accept,
    "confirm": confirm,
    "remove": remove,
    "same-thing": same_thing,
    "add-class": add_class,
    "rename-class": rename_class,
    "remove-class": remove_class,
    "label-by-folders": label_by_folders,
    "undo": undo,
    "redo": redo,
}
"""Changes of a project by the last part of their address, each with the JSON of its request."""
