"""Samplers: which images make up a batch, as index tensors.

A sampler draws the indices of a whole epoch at once, in one global order that all ranks share. A
batch is a slice of it, and a rank's share is a slice of the batch. So an epoch's indices can be
sent to a device in one copy. The state is small: the random state before the epoch was drawn, and
the number of batches taken since.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from operator import index
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from nearshot.checks import check_count, check_seed
from nearshot.episode_shape import EpisodeShape, ImagesByClass
from nearshot.errors import InputError

__all__ = ["Batches", "EpisodeBatches", "IndependentBatches", "ShuffledBatches"]


class Batches(ABC):
    """The base of the samplers: epochs, ranks and state.

    Iterating continues to the end of the current epoch.

    Args:
        n_images: how many images there are.
        batch_size: images in a batch, over all ranks.
        default_batches: the batches of an epoch by default; those that use every image once.
        most_batches: the most batches that an epoch can have; None for no limit.
        n_batches: the batches of an epoch; by default `default_batches`.
        seed: the seed, or a CPU generator that it is drawn from; the same for all ranks.
        rank: the number of this rank, which gets its share of each batch. An episode is cut in the
            middle of its layout: the loss has to see the shares of all ranks, in order.
        n_ranks: how many ranks there are.
    """

    def __init__(
        self,
        n_images: int,
        batch_size: int,
        *,
        default_batches: int,
        most_batches: int | None,
        n_batches: int | None,
        seed: int | torch.Generator,
        rank: int,
        n_ranks: int,
    ) -> None:
        check_count(n_ranks, "n_ranks")
        if batch_size % n_ranks:
            raise InputError(
                f"batch_size must be divisible by n_ranks, not {batch_size} by {n_ranks}."
            )
        if default_batches < 1:
            raise InputError(f"batch_size must be at most n_images, {n_images}, not {batch_size}.")
        if n_batches is None:
            n_batches = default_batches
        if n_batches < 1:
            raise InputError(f"n_batches must be at least 1, not {n_batches}.")
        if most_batches is not None and n_batches > most_batches:
            raise InputError(
                f"n_batches must be at most {most_batches}, the batches of {batch_size} in "
                f"{n_images} images, not {n_batches}."
            )
        self.n_images = n_images
        self.batch_size = batch_size
        self.n_batches = n_batches
        self.rank = rank
        self.n_ranks = n_ranks
        self.epoch = 0
        if isinstance(seed, torch.Generator):
            seed = int(torch.randint(2**62, (), generator=seed))
        check_seed(index(seed))
        self._generator = torch.Generator().manual_seed(index(seed))
        self._order: Tensor | None = None
        self._n_taken = 0

    def __len__(self) -> int:
        return self.n_batches

    @abstractmethod
    def _draw_epoch(self, generator: torch.Generator) -> Tensor:
        """Return the indices of an epoch, batch after batch, for all ranks together."""

    def __iter__(self) -> Iterator[Tensor]:
        """Yield this rank's share of each remaining batch of the epoch, (image,) int64."""
        epoch = self.epoch
        while self.epoch == epoch:
            start = self._n_taken * self.batch_size
            batch = self._current_order()[start : start + self.batch_size]
            self._n_taken += 1
            # After its last batch, the sampler is at the start of the next epoch.
            if self._n_taken == len(self):
                self._order = None
                self._n_taken = 0
                self.epoch += 1
            yield batch.tensor_split(self.n_ranks)[self.rank]

    def epoch_indices(self) -> Tensor:
        """Return the rest of the current epoch for all ranks, (image,), to be moved to a device."""
        return self._current_order()[self._n_taken * self.batch_size :]

    def state_dict(self) -> dict[str, Any]:
        """Return the state from which another sampler resumes exactly, also within an epoch."""
        generator = self._generator.get_state() if self._order is None else self._before_epoch
        return {
            "settings": self._settings(),
            "generator": generator,
            "epoch": self.epoch,
            "batches_taken": self._n_taken,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume from the state of a sampler of the same kind and size, of any number of ranks."""
        for name, own_value in self._settings().items():
            value = state["settings"].get(name)
            if value != own_value:
                raise InputError(
                    f"The state is of a sampler with {name} = {value!r}; "
                    f"this one has {own_value!r}."
                )
        self._order = None
        self._generator.set_state(state["generator"])
        self.epoch = state["epoch"]
        self._n_taken = state["batches_taken"]

    def _settings(self) -> dict[str, str | int]:
        """Return what a state must agree with: the same random numbers give the same batches."""
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
    """Every image once per epoch, in random order: plain mini-batches, row 1 of Figure 4.

    Args:
        n_images: how many images there are.
        batch_size: images in a batch, over all ranks; the last batch of an epoch may be smaller.
        drop_last: skip a last batch that is not full.
        n_batches: the batches after which an epoch ends early; by default it has all.
        seed: the seed, or a CPU generator that it is drawn from; the same for all ranks.
        rank: the number of this rank, which gets its share of each batch.
        n_ranks: how many ranks there are.

    >>> [batch.tolist() for batch in ShuffledBatches(5, batch_size=3, seed=0)]
    [[4, 0, 1], [3, 2]]
    """

    def __init__(
        self,
        n_images: int,
        batch_size: int,
        *,
        drop_last: bool = False,
        n_batches: int | None = None,
        seed: int | torch.Generator = 0,
        rank: int = 0,
        n_ranks: int = 1,
    ) -> None:
        check_count(batch_size, "batch_size")
        n_full, n_last = divmod(n_images, batch_size)
        all_batches = n_full if drop_last or n_last == 0 else n_full + 1
        super().__init__(
            n_images,
            batch_size,
            default_batches=all_batches,
            most_batches=all_batches,
            n_batches=n_batches,
            seed=seed,
            rank=rank,
            n_ranks=n_ranks,
        )
        if self.n_batches > n_full and n_last % n_ranks:
            raise InputError(
                f"The last batch of an epoch has {n_last} images, which {n_ranks} ranks cannot "
                "share equally. Use drop_last=True."
            )

    def _draw_epoch(self, generator: torch.Generator) -> Tensor:
        return torch.randperm(self.n_images, generator=generator)[: len(self) * self.batch_size]


class IndependentBatches(Batches):
    """Each batch a fresh random set of images: row 2 of Figure 4.

    An image is drawn with replacement between batches, and without within a batch.

    Args:
        n_images: how many images there are.
        batch_size: images in a batch, over all ranks.
        n_batches: the batches of an epoch; by default as many as would use every image once.
        seed: the seed, or a CPU generator that it is drawn from; the same for all ranks.
        rank: the number of this rank, which gets its share of each batch.
        n_ranks: how many ranks there are.
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
        check_count(batch_size, "batch_size")
        super().__init__(
            n_images,
            batch_size,
            default_batches=n_images // batch_size,
            most_batches=None,
            n_batches=n_batches,
            seed=seed,
            rank=rank,
            n_ranks=n_ranks,
        )

    def _draw_epoch(self, generator: torch.Generator) -> Tensor:
        upper = torch.full((self.n_batches,), self.n_images)
        return distinct_integers(self.batch_size, upper, generator).flatten()


class EpisodeBatches(Batches):
    """Episodes: random classes, and random images of each (Section 2.1).

    They are laid out as in `EpisodeShape`, and independent of each other: an image may be drawn
    again in the same epoch.

    Args:
        labels: (image,) the class of every image, whole numbers.
        shape: the classes of an episode, and the support and query images of each.
        least_images: skip classes with fewer images than this. By default no class is skipped, and
            one that is too small for the shape is an error.
        class_names: names for the labels 0, 1, …, used in messages.
        n_batches: the episodes of an epoch; by default as many as would use every image once.
        seed: the seed, or a CPU generator that it is drawn from; the same for all ranks.
        rank: the number of this rank, which gets its share of each episode.
        n_ranks: how many ranks there are.

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
        least_images: int = 1,
        class_names: Sequence[str] | None = None,
        n_batches: int | None = None,
        seed: int | torch.Generator = 0,
        rank: int = 0,
        n_ranks: int = 1,
    ) -> None:
        self._by_class = ImagesByClass(labels, class_names).without_small_classes(least_images)
        self._by_class.check(shape)
        self.shape = shape
        super().__init__(
            len(labels),
            shape.batch_size,
            default_batches=int(self._by_class.sizes.sum()) // shape.batch_size,
            most_batches=None,
            n_batches=n_batches,
            seed=seed,
            rank=rank,
            n_ranks=n_ranks,
        )

    def _draw_epoch(self, generator: torch.Generator) -> Tensor:
        n_way = self.shape.n_way
        n_shot = self.shape.n_shot
        images_per_class = self.shape.images_per_class
        n_classes = torch.full((self.n_batches,), len(self._by_class.sizes))
        classes = distinct_integers(n_way, n_classes, generator).flatten()  # (episode · way,)
        sizes = self._by_class.sizes[classes]
        within_class = distinct_integers(images_per_class, sizes, generator)
        images = self._by_class.images[self._by_class.starts[classes, None] + within_class]
        images = images.view(self.n_batches, n_way, images_per_class)
        support = images[:, :, :n_shot].flatten(1)  # (episode, way · shot)
        query = images[:, :, n_shot:].flatten(1)  # (episode, way · query)
        return torch.cat([support, query], dim=1).flatten()

    def _settings(self) -> dict[str, str | int]:
        return {
            **super()._settings(),
            "n_way": self.shape.n_way,
            "n_shot": self.shape.n_shot,
            "labels": self._by_class.digest,
        }


def distinct_integers(n_drawn: int, upper: Tensor, generator: torch.Generator) -> Tensor:
    """Draw `n_drawn` distinct integers from range(upper[i]) for every row i, in random order.

    `upper`: (row,) integers, none under `n_drawn`. Returns (row, n_drawn). Every ordered draw is
    equally likely. The time does not depend on `upper`.

    >>> generator = torch.Generator().manual_seed(0)
    >>> distinct_integers(3, torch.tensor([3, 1000]), generator)[0].sort().values
    tensor([0, 1, 2])
    """
    draw = _redraw_repeated if 2 * n_drawn <= int(upper.min()) else _floyd
    # NumPy, since torch's threads would wait for each other in many small operations.
    return torch.from_numpy(draw(n_drawn, upper.numpy(), generator))


def _uniforms(*shape: int, generator: torch.Generator) -> npt.NDArray[np.float64]:
    drawn = torch.rand(*shape, dtype=torch.float64, generator=generator)
    uniforms: npt.NDArray[np.float64] = drawn.numpy()
    return uniforms


def _redraw_repeated(
    n_drawn: int, upper: npt.NDArray[np.int64], generator: torch.Generator
) -> npt.NDArray[np.int64]:
    """Draw independently, then redraw repeated numbers of a row until there are none.

    All numbers are treated alike, so all ordered draws of distinct numbers are equally likely.
    """
    drawn = (_uniforms(len(upper), n_drawn, generator=generator) * upper[:, None]).astype(np.int64)
    rows = np.arange(len(upper))  # that may have repetitions
    while True:
        unchecked = drawn[rows]
        order = unchecked.argsort(1, kind="stable")
        in_order = np.take_along_axis(unchecked, order, 1)
        repeated_rows, before = np.nonzero(in_order[:, 1:] == in_order[:, :-1])
        if len(repeated_rows) == 0:
            return drawn
        fresh = _uniforms(len(repeated_rows), generator=generator) * upper[rows[repeated_rows]]
        columns = order[repeated_rows, before + 1]
        drawn[rows[repeated_rows], columns] = fresh.astype(np.int64)
        rows = rows[np.unique(repeated_rows)]


def _floyd(
    n_drawn: int, upper: npt.NDArray[np.int64], generator: torch.Generator
) -> npt.NDArray[np.int64]:
    """Draw by Floyd's algorithm, then shuffle.

    If a number is taken, `last` is drawn, which no earlier draw can be.
    """
    uniforms = _uniforms(2, n_drawn, len(upper), generator=generator)
    drawn = np.empty((n_drawn, len(upper)), dtype=np.int64)
    for t in range(n_drawn):
        last = upper - n_drawn + t
        proposal = (uniforms[0, t] * (last + 1)).astype(np.int64)
        is_taken = (drawn[:t] == proposal).any(0)
        drawn[t] = np.where(is_taken, last, proposal)
    return np.ascontiguousarray(np.take_along_axis(drawn, uniforms[1].argsort(0), 0).T)
