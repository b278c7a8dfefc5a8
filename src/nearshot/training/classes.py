"""The classes that a network was trained on, and whether a split to be measured contains any of them.

Prepared datasets change: another seed or other fractions move classes between splits. So a run records its training
classes in its folder and in its weights, and measured splits are compared with this record.
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

NOTE = "training_classes"  # the key in the metadata of weights


@dataclass(frozen=True)
class TrainingClasses:
    """The classes of a training split.

    A class is identified by its name: in the dataset that it was trained in, and among the datasets that nearshot
    knows, such as miniImageNet and tieredImageNet. In other datasets, such as a user's own, an equal name may be
    another class.

    Attributes:
        dataset: the name under which the dataset was prepared.
        class_names: the names of the classes of its training split.
    """

    dataset: str
    class_names: tuple[str, ...]

    @classmethod
    def of_split(cls, training: Store | None) -> TrainingClasses | None:
        """Return the classes of a training split, if there is one."""
        return None if training is None else cls(training.dataset, training.class_names)

    @classmethod
    def of_notes(cls, notes: dict[str, str], path: str | Path) -> TrainingClasses | None:
        """Return the classes in the metadata of the weights at `path`; None for weights of older versions."""
        if NOTE not in notes:
            return None
        try:
            return cls.from_dict(json.loads(notes[NOTE]))
        except (ValueError, RecursionError) as error:
            raise FileFormatError(f"The metadata {NOTE!r} of {path} is damaged: {error}") from error

    def as_note(self) -> dict[str, str]:
        """Return the metadata of weights."""
        return {NOTE: json.dumps(self.as_dict())}

    def as_dict(self) -> dict[str, Any]:
        """Return JSON values."""
        return {"dataset": self.dataset, "classes": list(self.class_names)}

    @classmethod
    def from_dict(cls, values: Any) -> TrainingClasses:
        """Return the classes that `as_dict` described; other values raise ValueError."""
        dataset, names = (values.get("dataset"), values.get("classes")) if isinstance(values, dict) else (None, None)
        if not isinstance(dataset, str) or not isinstance(names, list) or not all(isinstance(n, str) for n in names):
            raise ValueError("it must name a dataset and its classes.")
        return cls(dataset, tuple(names))

    def check_unseen(self, store: Store, split: str) -> None:
        """Refuse a split that has training classes, unless it is `split="train"` of the same dataset."""
        is_own = store.dataset == self.dataset
        if split == "train" if is_own else not {store.dataset, self.dataset} <= SOURCES.keys():
            return
        try:
            check_unseen_classes(self.class_names, store.class_names)
        except LeakError as error:
            advice = (
                f"{self.dataset} had other splits when the network was trained: prepare those again, or retrain."
                if is_own
                else f"The network was trained on {self.dataset}, which has them too: measure it on another dataset."
            )
            raise LeakError(f"{error} {advice}") from None

    def doubt(self, store: Store) -> str | None:
        """Return a warning if a split of another dataset has class names that were trained on; None otherwise."""
        shared = sorted(set(self.class_names) & set(store.class_names))
        if store.dataset == self.dataset or not shared:
            return None
        return (
            f"The network was trained on {self.dataset}, with classes of the same names as in {store.dataset}: "
            f"{format_list(shared)}. If they are the same classes, this is not the accuracy on unseen ones."
        )
