"""Which images make up a batch: three samplers that yield index tensors.

A sampler draws the indices of a whole epoch at once, as one global order that all ranks share; a batch is a slice of it
and a rank's share is a slice of the batch. So an epoch's indices can be sent to a device in one copy, and the position
in an epoch is all there is to remember: the state is the generator's, as it was before the epoch was drawn, and the
number of batches taken since.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from nearshot.checks import is_integer
from nearshot.episode_shape import EpisodeShape, ImagesByClass
from nearshot.errors import InputError
from nearshot.randomness import distinct_integers, private_generator

__all__ = ["Batches", "EpisodeBatches", "IndependentBatches", "ShuffledBatches"]


class Batches(ABC):
    """What the samplers share: epochs, ranks and state. Iterating goes on from the current position to the epoch's end.

    >>> batches = ShuffledBatches(10, batch_size=4, seed=0)
    >>> iterator = iter(batches)
    >>> first = next(iterator)
    >>> state = batches.state_dict()
    >>> rest = list(iterator)
    >>> again = ShuffledBatches(10, batch_size=4, seed=1)
    >>> again.load_state_dict(state)
    >>> [torch.equal(a, b) for a, b in zip(again, rest, strict=True)]
    [True, True]
    """

    def __init__(self, batch_size: int, n_images: int, seed: int | torch.Generator, rank: int, n_ranks: int) -> None:
        if not 0 <= rank < n_ranks:
            raise InputError(f"rank must be under the number of ranks, {n_ranks}, and not negative; it is {rank}.")
        if batch_size % n_ranks:
            raise InputError(f"A batch of {batch_size} does not divide among {n_ranks} ranks.")
        self.batch_size = batch_size
        self.n_images = n_images
        self.rank, self.n_ranks = rank, n_ranks
        self.epoch = 0
        self._generator = private_generator(seed)
        self._before_epoch = self._generator.get_state()
        self._order: Tensor | None = None
        self._n_taken = 0

    @abstractmethod
    def __len__(self) -> int:
        """Batches in an epoch."""

    @abstractmethod
    def _draw_epoch(self, generator: torch.Generator) -> Tensor:
        """Return the indices of an epoch, batch after batch, for all ranks together."""

    def __iter__(self) -> Iterator[Tensor]:
        """Yield this rank's share of each batch, (image,) int64, from the current position to the end of the epoch."""
        epoch = self.epoch
        while self.epoch == epoch:
            start = self._n_taken * self.batch_size
            batch = self._current_order()[start : start + self.batch_size]
            self._n_taken += 1
            if self._n_taken == len(self):  # who stops after the last batch is at the start of the next epoch
                self._order, self._n_taken = None, 0
                self.epoch += 1
                self._before_epoch = self._generator.get_state()
            yield batch.tensor_split(self.n_ranks)[self.rank]

    def epoch_indices(self) -> Tensor:
        """Return what is left of the current epoch for all ranks, (image,), to be moved to a device at once."""
        return self._current_order()[self._n_taken * self.batch_size :]

    def state_dict(self) -> dict[str, Any]:
        """Return what it takes to go on exactly here, in the middle of an epoch too."""
        return {
            "settings": self._settings(),
            "generator": self._before_epoch,
            "epoch": self.epoch,
            "batches_taken": self._n_taken,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where another sampler of the same kind and size was; the number of ranks may differ."""
        missing = self.state_dict().keys() - state.keys()
        if missing:
            raise InputError(f"This is not a sampler's state: it has no {', '.join(sorted(missing))}.")
        for name, here in self._settings().items():
            there = state["settings"].get(name)
            if there != here:
                raise InputError(f"The state is of a sampler with {name} = {there!r}; this one has {here!r}.")
        self._generator.set_state(state["generator"])
        self._before_epoch = state["generator"]
        self._order = None
        self.epoch = state["epoch"]
        self._n_taken = state["batches_taken"]

    def _settings(self) -> dict[str, str | int]:
        """Return what must agree for a state to fit: with it, the same draws give the same batches."""
        return {
            "sampler": type(self).__name__,
            "n_images": self.n_images,
            "batch_size": self.batch_size,
            "batches_an_epoch": len(self),
        }

    def _current_order(self) -> Tensor:
        if self._order is None:
            self._before_epoch = self._generator.get_state()
            self._order = self._draw_epoch(self._generator)
        return self._order


class ShuffledBatches(Batches):
    """Every image once an epoch, in random order: plain mini-batches, row 1 of Figure 4.

    Args:
        n_images: how many images there are.
        batch_size: images in a batch, over all ranks; the last batch of an epoch may be smaller.
        seed: a seed, or a CPU generator.
        drop_last: leave out a last batch that is not full.
        n_batches: end an epoch after so many batches; the next one shuffles all images anew.
        rank: which rank's share of each batch to yield.
        n_ranks: among how many ranks a batch is shared.
    """

    def __init__(
        self,
        n_images: int,
        batch_size: int,
        *,
        seed: int | torch.Generator = 0,
        drop_last: bool = False,
        n_batches: int | None = None,
        rank: int = 0,
        n_ranks: int = 1,
    ) -> None:
        _check_batch_size(batch_size, n_images, at_most=n_images if drop_last else None)
        super().__init__(batch_size, n_images, seed, rank, n_ranks)
        self.drop_last = drop_last
        most = n_images // batch_size if drop_last else -(-n_images // batch_size)
        self.n_batches = _batches_an_epoch(n_batches, most)
        if self.n_batches > most:
            raise InputError(
                f"{n_images} images fill {most} shuffled batches of {batch_size}; {n_batches} were asked for. Have "
                "more epochs instead, or independent batches."
            )
        if self.n_batches * batch_size > n_images and n_images % batch_size % n_ranks:
            raise InputError(
                f"The last batch of an epoch has {n_images % batch_size} images, which do not divide among {n_ranks} "
                "ranks. Use drop_last=True."
            )

    def __len__(self) -> int:
        return self.n_batches

    def _draw_epoch(self, generator: torch.Generator) -> Tensor:
        return torch.randperm(self.n_images, generator=generator)[: len(self) * self.batch_size]


class IndependentBatches(Batches):
    """Each batch a fresh random set of images: with replacement between batches, none inside. Row 2 of Figure 4.

    Args:
        n_images: how many images there are.
        batch_size: images in a batch, over all ranks.
        n_batches: batches an epoch; by default as many as fit the images once.
        seed: a seed, or a CPU generator.
        rank: which rank's share of each batch to yield.
        n_ranks: among how many ranks a batch is shared.
    """

    def __init__(
        self,
        n_images: int,
        batch_size: int,
        *,
        n_batches: int | None = None,
        seed: int | torch.Generator = 0,
        rank: int = 0,
        n_ranks: int = 1,
    ) -> None:
        _check_batch_size(batch_size, n_images, at_most=n_images)
        super().__init__(batch_size, n_images, seed, rank, n_ranks)
        self.n_batches = _batches_an_epoch(n_batches, n_images // batch_size)

    def __len__(self) -> int:
        return self.n_batches

    def _draw_epoch(self, generator: torch.Generator) -> Tensor:
        upper = torch.full((self.n_batches,), self.n_images)
        return distinct_integers(self.batch_size, upper, generator).flatten()


class EpisodeBatches(Batches):
    """Episodes: random classes, and random images of each, laid out as `EpisodeShape` says (Section 2.1).

    With replacement, episodes are independent of each other, as in the paper. Without, every image is in at most one
    episode of an epoch: the images of each class are shuffled and dealt out to random episodes.

    Args:
        labels: (image,) the class of every image, whole numbers.
        shape: ways, shots and queries.
        replacement: whether an image may be drawn again in the same epoch.
        n_batches: episodes an epoch; by default as many as fit the images once, or, without replacement, as many as
            there can be.
        least_images: leave out classes with fewer images than this; by default none, and one that is too small for the
            shape is an error.
        class_names: names for the labels 0, 1, …, used in messages.
        seed: a seed, or a CPU generator.
        rank: which rank's share of each episode to yield. An episode is cut in the middle of its layout; the loss has
            to see all shares together, in the order of the ranks.
        n_ranks: among how many ranks an episode is shared.

    >>> labels = torch.arange(4).repeat_interleave(10)
    >>> episode = next(iter(EpisodeBatches(labels, EpisodeShape(n_way=2, n_shot=1, n_query=2))))
    >>> labels[episode].tolist()  # a support image of each of two classes, then two queries of each
    [3, 2, 3, 3, 2, 2]
    """

    def __init__(
        self,
        labels: Tensor,
        shape: EpisodeShape,
        *,
        replacement: bool = True,
        n_batches: int | None = None,
        least_images: int = 1,
        class_names: Sequence[str] | None = None,
        seed: int | torch.Generator = 0,
        rank: int = 0,
        n_ranks: int = 1,
    ) -> None:
        self._by_class = ImagesByClass(labels, class_names).without_small_classes(least_images)
        self._by_class.check(shape)
        super().__init__(shape.batch_size, len(labels), seed, rank, n_ranks)
        self.shape, self.replacement = shape, replacement
        n_images = int(self._by_class.sizes.sum())
        most = n_images // shape.batch_size if replacement else self._most_without_replacement()
        self.n_batches = _batches_an_epoch(n_batches, most)
        if not replacement and self.n_batches > most:
            raise InputError(
                f"Without replacement an epoch has at most {most} episodes of {shape.n_way} classes × "
                f"{shape.images_per_class} images here; {self.n_batches} were asked for."
            )

    def __len__(self) -> int:
        return self.n_batches

    def _draw_epoch(self, generator: torch.Generator) -> Tensor:
        draw = self._draw_with_replacement if self.replacement else self._draw_without_replacement
        images = draw(generator)  # (episode, way, image of the class)
        support, query = images[:, :, : self.shape.n_shot], images[:, :, self.shape.n_shot :]
        return torch.cat([support.flatten(1), query.flatten(1)], dim=1).flatten()

    def _settings(self) -> dict[str, str | int]:
        return super()._settings() | {
            "n_way": self.shape.n_way,
            "n_shot": self.shape.n_shot,
            "replacement": self.replacement,
            "labels": self._by_class.digest,
        }

    def _draw_with_replacement(self, generator: torch.Generator) -> Tensor:
        n_classes = torch.full((self.n_batches,), len(self._by_class.sizes))
        classes = distinct_integers(self.shape.n_way, n_classes, generator).flatten()  # (episode · way,)
        places = distinct_integers(self.shape.images_per_class, self._by_class.sizes[classes], generator)
        images = self._by_class.images[self._by_class.starts[classes, None] + places]
        return images.view(self.n_batches, self.shape.n_way, self.shape.images_per_class)

    def _draw_without_replacement(self, generator: torch.Generator) -> Tensor:
        hands = self._by_class.sizes // self.shape.images_per_class  # how often each class can still be dealt
        shuffled = self._by_class.images.clone()
        for start, size in zip(self._by_class.starts.tolist(), self._by_class.sizes.tolist(), strict=True):
            of_class = shuffled[start : start + size]
            of_class.copy_(of_class[torch.randperm(size, generator=generator)])
        next_image = self._by_class.starts.clone()
        episodes = []
        for n_left in range(self.n_batches, 0, -1):
            # Chance decides, but the rest must still work out. Σ min(hands, n_left) is what the episodes left could
            # use. A class with a hand for each of them loses one whether it is drawn now or not; the others only if
            # they are. So of those full classes, all but the spare hands have to be drawn now.
            full = hands >= n_left
            spare = int(hands.clamp(max=n_left).sum()) - n_left * self.shape.n_way
            n_forced = max(0, int(full.sum()) - spare)
            lots = torch.rand(len(hands), dtype=torch.float64, generator=generator)
            forced = torch.where(full, lots, 2.0).argsort()[:n_forced]
            lots[hands == 0] = 2.0  # never drawn
            lots[forced] = -1.0  # always drawn
            classes = lots.argsort()[: self.shape.n_way]
            classes = classes[torch.randperm(self.shape.n_way, generator=generator)]
            episodes.append(shuffled[next_image[classes, None] + torch.arange(self.shape.images_per_class)])
            next_image[classes] += self.shape.images_per_class
            hands[classes] -= 1
        return torch.stack(episodes)[torch.randperm(self.n_batches, generator=generator)]

    def _most_without_replacement(self) -> int:
        """The largest number e of episodes: in e episodes a class can be used min(hands, e) times."""
        hands = self._by_class.sizes // self.shape.images_per_class
        low, high = 0, int(hands.sum()) // self.shape.n_way
        while low < high:
            middle = (low + high + 1) // 2
            fits = int(hands.clamp(max=middle).sum()) >= middle * self.shape.n_way
            low, high = (middle, high) if fits else (low, middle - 1)
        return low


def _check_batch_size(batch_size: int, n_images: int, at_most: int | None) -> None:
    for name, value in (("batch_size", batch_size), ("n_images", n_images)):
        if not is_integer(value):
            raise InputError(f"{name} must be a whole number, not {value!r}.")
    if batch_size < 1 or n_images < 1:
        raise InputError(f"A batch of {batch_size} from {n_images} images: both must be at least 1.")
    if at_most is not None and batch_size > at_most:
        raise InputError(
            f"A batch of {batch_size} different images needs that many; there are {n_images}. Lower batch_size."
        )


def _batches_an_epoch(asked: int | None, fitting: int) -> int:
    n_batches = fitting if asked is None else asked
    if n_batches < 1:
        raise InputError(f"An epoch needs at least one batch, not {n_batches}.")
    return n_batches
