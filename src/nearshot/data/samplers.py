"""Samplers: which images make up a batch, as index tensors.

A sampler draws the indices of a whole epoch at once, in one global order that all ranks share. A
batch is a slice of it, and a rank's share is a slice of the batch. So an epoch's indices can be
sent to a device in one copy. The state is small: the random state before the epoch was drawn, and
the number of batches taken since.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from operator import index
from typing import Any, TypedDict, Unpack

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from nearshot.episode_shape import EpisodeShape, ImagesByClass
from nearshot.errors import InputError

__all__ = ["BatchOptions", "Batches", "EpisodeBatches", "IndependentBatches", "ShuffledBatches"]


class BatchOptions(TypedDict, total=False):
    """What all samplers take: `n_batches`, the batches of an epoch; `seed`; and the `rank` of `n_ranks`, 0 of 1.

    The `seed`, or a CPU generator, is the same for all ranks, and each rank gets its share of each
    batch. An episode is cut in the middle of its layout: the loss has to see the shares of all
    ranks, in order.
    """

    n_batches: int | None
    seed: int | torch.Generator
    rank: int
    n_ranks: int


class Batches(ABC):
    """The base of the samplers: epochs, ranks and state. Iterating continues to the end of the current epoch.

    By default an epoch has `usual` batches; it can have more unless each image `is_used_once`.
    """

    def __init__(
        self,
        batch_size: int,
        n_images: int,
        usual: int,
        *,
        is_used_once: bool,
        n_batches: int | None = None,
        seed: int | torch.Generator = 0,
        rank: int = 0,
        n_ranks: int = 1,
    ) -> None:
        self.batch_size, self.n_images, self.rank, self.n_ranks = (
            batch_size,
            n_images,
            rank,
            n_ranks,
        )
        if batch_size % n_ranks:
            raise InputError(
                f"batch_size must be divisible by n_ranks, not {batch_size} by {n_ranks}."
            )
        if usual < 1:
            raise InputError(f"batch_size must be at most n_images, {n_images}, not {batch_size}.")
        self.n_batches = usual if n_batches is None else n_batches
        if self.n_batches < 1 or (is_used_once and self.n_batches > usual):
            bounds = (
                f"from 1 to {usual}, the batches of {batch_size}" if is_used_once else "at least 1"
            )
            raise InputError(
                f"n_batches must be {bounds} in {n_images} images, not {self.n_batches}."
            )
        self.epoch = self._n_taken = 0
        if isinstance(seed, torch.Generator):
            seed = int(torch.randint(2**62, (), generator=seed))
        self._generator = torch.Generator().manual_seed(index(seed))
        self._order: Tensor | None = None

    def __len__(self) -> int:
        return self.n_batches

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
            if self._n_taken == len(
                self
            ):  # after its last batch, the sampler is at the start of the next epoch
                self._order, self._n_taken = None, 0
                self.epoch += 1
            yield batch.tensor_split(self.n_ranks)[self.rank]

    def epoch_indices(self) -> Tensor:
        """Return the rest of the current epoch for all ranks, (image,), to be moved to a device at once."""
        return self._current_order()[self._n_taken * self.batch_size :]

    def state_dict(self) -> dict[str, Any]:
        """Return the state from which another sampler resumes exactly, also in the middle of an epoch."""
        generator = self._generator.get_state() if self._order is None else self._before_epoch
        state = {"generator": generator, "epoch": self.epoch, "batches_taken": self._n_taken}
        return {"settings": self._settings(), **state}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume from the state of a sampler of the same kind and size; the number of ranks may differ."""
        for name, here in self._settings().items():
            there = state["settings"].get(name)
            if there != here:
                raise InputError(
                    f"The state is of a sampler with {name} = {there!r}; this one has {here!r}."
                )
        self._order = None
        self._generator.set_state(state["generator"])
        self.epoch, self._n_taken = state["epoch"], state["batches_taken"]

    def _settings(self) -> dict[str, str | int]:
        """Return what a state must agree with, so that the same random numbers give the same batches."""
        sizes = {
            "n_images": self.n_images,
            "batch_size": self.batch_size,
            "batches_an_epoch": len(self),
        }
        return {"sampler": type(self).__name__, **sizes}

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
        options: `n_batches`, after which an epoch ends early, `seed`, `rank` and `n_ranks`; see
            `BatchOptions`.

    >>> [batch.tolist() for batch in ShuffledBatches(5, batch_size=3, seed=0)]
    [[4, 0, 1], [3, 2]]
    """

    def __init__(
        self,
        n_images: int,
        batch_size: int,
        *,
        drop_last: bool = False,
        **options: Unpack[BatchOptions],
    ) -> None:
        most = n_images // batch_size if drop_last else -(-n_images // batch_size)
        super().__init__(batch_size, n_images, most, is_used_once=True, **options)
        n_last = n_images % batch_size
        if self.n_batches * batch_size > n_images and n_last % self.n_ranks:
            what = f"The last batch of an epoch has {n_last} images, which {self.n_ranks} ranks cannot share equally"
            raise InputError(f"{what}. Use drop_last=True.")

    def _draw_epoch(self, generator: torch.Generator) -> Tensor:
        return torch.randperm(self.n_images, generator=generator)[: len(self) * self.batch_size]


class IndependentBatches(Batches):
    """Each batch a fresh random set of images: with replacement between batches, none inside. Row 2 of Figure 4.

    The arguments are those of `ShuffledBatches`; by default an epoch has the batches that would use
    every image once.
    """

    def __init__(self, n_images: int, batch_size: int, **options: Unpack[BatchOptions]) -> None:
        super().__init__(
            batch_size, n_images, n_images // batch_size, is_used_once=False, **options
        )

    def _draw_epoch(self, generator: torch.Generator) -> Tensor:
        upper = torch.full((self.n_batches,), self.n_images)
        return distinct_integers(self.batch_size, upper, generator).flatten()


class EpisodeBatches(Batches):
    """Episodes: random classes, and random images of each, laid out as in `EpisodeShape` (Section 2.1).

    Episodes are independent of each other: an image may be drawn again in the same epoch.

    Args:
        labels: (image,) the class of every image, whole numbers.
        shape: the classes of an episode, and the support and query images of each.
        least_images: skip classes with fewer images than this. By default no class is skipped, and
            one that is too small for the shape is an error.
        class_names: names for the labels 0, 1, …, used in messages.
        options: `n_batches`, `seed`, `rank` and `n_ranks`; see `BatchOptions`. By default an epoch
            has the episodes that would use every image once.

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
        **options: Unpack[BatchOptions],
    ) -> None:
        self._by_class = ImagesByClass(labels, class_names).without_small_classes(least_images)
        self._by_class.check(shape)
        self.shape = shape
        usual = int(self._by_class.sizes.sum()) // shape.batch_size
        super().__init__(shape.batch_size, len(labels), usual, is_used_once=False, **options)

    def _draw_epoch(self, generator: torch.Generator) -> Tensor:
        n_way, n_shot, each = self.shape.n_way, self.shape.n_shot, self.shape.images_per_class
        n_classes = torch.full((self.n_batches,), len(self._by_class.sizes))
        classes = distinct_integers(n_way, n_classes, generator).flatten()  # (episode · way,)
        places = distinct_integers(each, self._by_class.sizes[classes], generator)
        images = self._by_class.images[self._by_class.starts[classes, None] + places]
        images = images.view(self.n_batches, n_way, each)
        return torch.cat(
            [images[:, :, :n_shot].flatten(1), images[:, :, n_shot:].flatten(1)], dim=1
        ).flatten()

    def _settings(self) -> dict[str, str | int]:
        shape = {"n_way": self.shape.n_way, "n_shot": self.shape.n_shot}
        # All states have "replacement": checkpoints of earlier versions, where it could be False,
        # are told apart.
        return super()._settings() | shape | {"replacement": True, "labels": self._by_class.digest}


def distinct_integers(n_drawn: int, upper: Tensor, generator: torch.Generator) -> Tensor:
    """Draw `n_drawn` distinct integers from range(upper[i]) for every row i, in random order.

    `upper`: (row,) integers, none under `n_drawn`. Returns (row, n_drawn). Every ordered draw is
    equally likely. The time does not depend on `upper`.

    >>> distinct_integers(3, torch.tensor([3, 1000]), torch.Generator().manual_seed(0)).sort(1).values[0]
    tensor([0, 1, 2])
    """
    draw = _redraw_repeated if 2 * n_drawn <= int(upper.min()) else _floyd
    # NumPy, since torch's threads would wait for each other in many small operations.
    return torch.from_numpy(draw(n_drawn, upper.numpy(), generator))


def _uniforms(*shape: int, generator: torch.Generator) -> npt.NDArray[np.float64]:
    fractions: npt.NDArray[np.float64] = torch.rand(
        *shape, dtype=torch.float64, generator=generator
    ).numpy()
    return fractions


def _redraw_repeated(
    n_drawn: int, upper: npt.NDArray[np.int64], generator: torch.Generator
) -> npt.NDArray[np.int64]:
    """Draw independently, then redraw repeated numbers of a row until there are none.

    All numbers are treated alike, so all ordered draws of distinct numbers are equally likely.
    """
    drawn = (_uniforms(len(upper), n_drawn, generator=generator) * upper[:, None]).astype(np.int64)
    rows = np.arange(len(upper))  # that may have repetitions
    while True:
        some = drawn[rows]
        places = some.argsort(1, kind="stable")
        in_order = np.take_along_axis(some, places, 1)
        which, before = np.nonzero(in_order[:, 1:] == in_order[:, :-1])
        if len(which) == 0:
            return drawn
        fresh = _uniforms(len(which), generator=generator) * upper[rows[which]]
        drawn[rows[which], places[which, before + 1]] = fresh.astype(np.int64)
        rows = rows[np.unique(which)]


def _floyd(
    n_drawn: int, upper: npt.NDArray[np.int64], generator: torch.Generator
) -> npt.NDArray[np.int64]:
    """Draw by Floyd's algorithm, then shuffle. If a number is taken, `last` is drawn, which no earlier draw can be."""
    uniforms = _uniforms(2, n_drawn, len(upper), generator=generator)
    drawn = np.empty((n_drawn, len(upper)), dtype=np.int64)
    for t in range(n_drawn):
        last = upper - n_drawn + t
        proposal = (uniforms[0, t] * (last + 1)).astype(np.int64)
        drawn[t] = np.where((drawn[:t] == proposal).any(0), last, proposal)
    return np.ascontiguousarray(np.take_along_axis(drawn, uniforms[1].argsort(0), 0).T)
