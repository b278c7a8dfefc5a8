"""Which classes a network was trained on, as they were when it was, and whether a split to be measured has any of them.

Prepared datasets change: another seed or other fractions move classes from one split to another. So a training writes
its classes down, in its folder and in its weights, and they are what the split is compared with.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nearshot.data import Store
from nearshot.data.datasets import SOURCES
from nearshot.errors import FileFormatError, LeakError
from nearshot.evaluation import check_unseen_classes
from nearshot.text import format_list

__all__ = ["NOTE", "TrainedOn"]

NOTE = "training_classes"  # among the notes of weights


@dataclass(frozen=True)
class TrainedOn:
    """The classes that were trained on.

    A class is known by its name: in the dataset that it was trained in, and among the datasets that nearshot knows,
    such as miniImageNet and tieredImageNet, which name their classes alike. In other datasets, such as a user's own, an
    equal name may well be another class.

    Attributes:
        dataset: the name under which the dataset was prepared.
        class_names: the names of the classes of its training split.
    """

    dataset: str
    class_names: tuple[str, ...]

    @classmethod
    def of_split(cls, training: Store | None) -> TrainedOn | None:
        """Return the classes of a training split, if there is one."""
        return None if training is None else cls(training.dataset, training.class_names)

    @classmethod
    def of_notes(cls, notes: dict[str, str], path: str | Path) -> TrainedOn | None:
        """Return what the notes of weights say; None for weights from before it was noted.

        Args:
            notes: the notes.
            path: the weights, for errors.
        """
        if NOTE not in notes:
            return None
        try:
            return cls.from_dict(json.loads(notes[NOTE]))
        except (ValueError, RecursionError) as error:
            raise FileFormatError(f"The note {NOTE!r} of {path} is not one of a training: {error}") from error

    def as_note(self) -> dict[str, str]:
        """Return it as a note of weights."""
        return {NOTE: json.dumps(self.as_dict())}

    def as_dict(self) -> dict[str, Any]:
        """Return it as JSON can hold it."""
        return {"dataset": self.dataset, "classes": list(self.class_names)}

    @classmethod
    def from_dict(cls, values: Any) -> TrainedOn:
        """Return what `as_dict` gave the values of; ValueError for any others."""
        dataset, names = (values.get("dataset"), values.get("classes")) if isinstance(values, dict) else (None, None)
        if not isinstance(dataset, str) or not isinstance(names, list) or not all(isinstance(n, str) for n in names):
            raise ValueError("it does not name a dataset and its classes.")
        return cls(dataset, tuple(names))

    def check_unseen(self, store: Store, split: str) -> None:
        """Refuse a split that has classes that were trained on.

        Args:
            store: the split.
            split: what it is asked for as; the training split of the same dataset is asked for knowingly.
        """
        is_own = store.dataset == self.dataset
        if split == "train" if is_own else not {store.dataset, self.dataset} <= SOURCES.keys():
            return
        try:
            check_unseen_classes(self.class_names, store.class_names)
        except LeakError as error:
            advice = (
                f"{self.dataset} had other splits when the network was trained: prepare it as it was, or train again."
                if is_own
                else f"The network was trained on {self.dataset}, which has them too: measure it on another dataset."
            )
            raise LeakError(f"{error} {advice}") from None

    def doubt(self, store: Store) -> str | None:
        """Say that a split of another dataset has classes of names that were trained on; None if it has none."""
        shared = sorted(set(self.class_names) & set(store.class_names))
        if store.dataset == self.dataset or not shared:
            return None
        return (
            f"The network was trained on {self.dataset}, with classes of the same names as in {store.dataset}: "
            f"{format_list(shared)}. If they are the same classes, this is not the accuracy on unseen ones."
        )
