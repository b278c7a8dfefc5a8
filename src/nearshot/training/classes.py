"""The classes that a network was trained on, and whether a split to be measured contains any of them.

Prepared datasets change: another seed or other fractions move classes between splits. So a run records its training
classes in its folder and in its weights, and measured splits are compared with this record.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from nearshot.data import Store
from nearshot.data.datasets import SOURCES
from nearshot.errors import LeakError
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
    def from_dict(cls, values: dict[str, Any]) -> TrainingClasses:
        """Return the classes of a record that `as_dict` made."""
        return cls(values["dataset"], tuple(values["classes"]))

    def as_dict(self) -> dict[str, Any]:
        """Return the record in a run's folder and in the metadata of its weights."""
        return {"dataset": self.dataset, "classes": list(self.class_names)}

    def with_earlier(self, earlier: TrainingClasses) -> TrainingClasses:
        """Return the classes with those of an earlier training, where an equal name is the same class."""
        if earlier.dataset != self.dataset and not {earlier.dataset, self.dataset} <= SOURCES.keys():
            return self
        return TrainingClasses(self.dataset, tuple(dict.fromkeys(self.class_names + earlier.class_names)))

    def check_unseen(self, store: Store, split: str) -> None:
        """Refuse a split that has training classes, unless it is `split="train"` of the same dataset."""
        is_own = store.dataset == self.dataset
        if split == "train" if is_own else not {store.dataset, self.dataset} <= SOURCES.keys():
            return
        advice = f"The network was trained on {self.dataset}, which has them too: measure it on another dataset."
        if is_own:
            advice = f"{self.dataset} had other splits when the network was trained: prepare those again, or retrain."
        try:
            check_unseen_classes(self.class_names, store.class_names)
        except LeakError as error:
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
