"""Guards against leaks: what an evaluation must not use."""

import functools
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Any, Self

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from nearshot.errors import LeakError
from nearshot.evaluation.episodes import Episodes
from nearshot.text import counted, format_list


def check_evaluation_mode(network: Callable[..., object]) -> None:
    """Refuse a network whose embeddings depend on the rest of the batch, as in training mode."""
    while isinstance(network, functools.partial):
        network = network.func
    owner = getattr(network, "__self__", network)  # of a bound method, such as backbone.multi_layer
    if not isinstance(owner, nn.Module):
        return
    for name, module in owner.named_modules():
        if module.training:
            raise LeakError(
                "The network is in training mode: its batch norm would let the images of a batch "
                "see each other. Call network.eval() first."
            )
        if isinstance(module, _BatchNorm) and module.running_mean is None:
            raise LeakError(
                f"The network's batch norm {name!r} keeps no running statistics, so images of a "
                "batch see each other."
            )


def check_unseen_classes(training_classes: Iterable[str], evaluated_classes: Iterable[str]) -> None:
    """Refuse to evaluate on classes that were trained on.

    Few-shot accuracy is about new classes (Section 2.1).

    >>> check_unseen_classes(["otter", "seal"], ["seal", "whale"])
    Traceback (most recent call last):
    nearshot.errors.LeakError: 1 evaluated class was trained on: 'seal'. ...
    """
    seen = sorted(set(training_classes) & set(evaluated_classes))
    if seen:
        n_seen = counted(len(seen), "evaluated class was", "evaluated classes were")
        raise LeakError(
            f"{n_seen} trained on: {format_list(seen)}. Few-shot accuracy needs unseen classes."
        )


@dataclass(frozen=True)
class TrainingClasses:
    """The classes of a training split, as a run records them in its folder and in its weights.

    Measured splits are compared with this record, since another preparation moves classes between
    splits. A class is identified by its name: in the dataset that it was trained in, and among
    known datasets, such as miniImageNet and tieredImageNet, whose names are WordNet's. In other
    datasets, such as a user's own, an equal name may be another class.

    Attributes:
        dataset: the name of the dataset.
        class_names: the names of its training classes.
    """

    dataset: str
    class_names: tuple[str, ...]

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        """Inverse of `as_dict`."""
        return cls(values["dataset"], tuple(values["classes"]))

    def as_dict(self) -> dict[str, Any]:
        """Return the record in a run's folder and in the metadata of its weights."""
        return {"dataset": self.dataset, "classes": list(self.class_names)}

    def shares_names_with(self, dataset: str, known_datasets: Collection[str]) -> bool:
        """Return whether an equal name is the same class in another dataset."""
        if dataset == self.dataset:
            return True
        return dataset in known_datasets and self.dataset in known_datasets

    def with_earlier(
        self, earlier: "TrainingClasses", known_datasets: Collection[str]
    ) -> "TrainingClasses":
        """Return the classes with those of an earlier run, if equal names are the same class."""
        if not self.shares_names_with(earlier.dataset, known_datasets):
            return self
        # A dictionary keeps the order, and each name once.
        names = dict.fromkeys(self.class_names + earlier.class_names)
        return TrainingClasses(self.dataset, tuple(names))

    def check_unseen(
        self,
        dataset: str,
        split: str,
        class_names: Iterable[str],
        *,
        known_datasets: Collection[str],
    ) -> None:
        """Refuse a split that has training classes, unless it is the training split itself."""
        is_own = dataset == self.dataset
        if is_own and split == "train":
            return
        if not self.shares_names_with(dataset, known_datasets):
            return
        try:
            check_unseen_classes(self.class_names, class_names)
        except LeakError as error:
            if is_own:
                advice = (
                    f"{self.dataset} had other splits when the network was trained: prepare those "
                    "again, or retrain."
                )
            else:
                advice = (
                    f"The network was trained on {self.dataset}, which has them too: measure it "
                    "on another dataset."
                )
            raise LeakError(f"{error} {advice}") from None

    def warning_about(self, dataset: str, class_names: Iterable[str]) -> str | None:
        """Return a warning if another dataset has names that were trained on; None otherwise."""
        shared = sorted(set(self.class_names) & set(class_names))
        if dataset == self.dataset or not shared:
            return None
        return (
            f"The network was trained on {self.dataset}, with classes of the same names as in "
            f"{dataset}: {format_list(shared)}. If they are the same classes, this is not the "
            "accuracy on unseen ones."
        )


class ContentGuard:
    """Refuses episodes in which a query is the same image as a support image: a given answer.

    `content` (image,) has a number for each image, equal for images that are the same pixel by
    pixel.
    """

    def __init__(self, content: Tensor) -> None:
        _, self._group, size = content.cpu().unique(return_inverse=True, return_counts=True)
        self._is_repeated = size[self._group] > 1  # (image,)

    def check(self, drawn: Tensor, n_query: int, first_episode: int = 0) -> None:
        """Check episodes (episode, way, query + shot); the first has number `first_episode`."""
        drawn = drawn.cpu()
        n_repeated = self._is_repeated[drawn].flatten(1).sum(1)  # (episode,)
        suspects = (n_repeated > 1).nonzero()[:, 0]
        query = drawn[suspects, :, :n_query].flatten(1)
        support = drawn[suspects, :, n_query:].flatten(1)
        is_same = self._group[support][:, :, None] == self._group[query][:, None]
        clashes = is_same.nonzero()
        if len(clashes) == 0:
            return
        row, support_place, query_place = clashes[0].tolist()
        n_episodes = len(clashes[:, 0].unique())
        last = first_episode + len(drawn) - 1
        episode = first_episode + int(suspects[row])
        raise LeakError(
            f"In {n_episodes} of the episodes {first_episode} to {last} a query is the same as a "
            f"support image: in episode {episode}, images {int(support[row, support_place])} and "
            f"{int(query[row, query_place])}. Remove one of each such pair."
        )


def check_distinct_content(episodes: Episodes, content: Tensor) -> None:
    """Refuse episodes in which a query is the same image as a support image.

    `content` (image,) is a store's.
    """
    ContentGuard(content).check(episodes.images, episodes.n_query)
