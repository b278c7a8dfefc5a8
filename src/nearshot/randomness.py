"""Randomness is an argument: generators from seeds, and sampling without replacement."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from nearshot.checks import is_integer
from nearshot.errors import InputError

__all__ = ["distinct_integers", "kept_randomness", "private_generator"]


@contextmanager
def kept_randomness() -> Iterator[None]:
    """Leave the caller's own random numbers on the CPU as they were, whatever is drawn or seeded inside."""
    before = torch.get_rng_state()
    try:
        yield
    finally:
        torch.set_rng_state(before)


def private_generator(seed: int | torch.Generator) -> torch.Generator:
    """Return a CPU generator that nobody else uses: for a seed, or for one number drawn from another generator."""
    if isinstance(seed, torch.Generator):
        if seed.device.type != "cpu":
            raise InputError(f"Indices are drawn on the CPU; the generator lives on {seed.device}.")
        seed = int(torch.randint(2**62, (), generator=seed))
    if not is_integer(seed):
        raise InputError(f"seed must be a whole number or a torch.Generator, not {seed!r}.")
    return torch.Generator().manual_seed(int(seed))


def distinct_integers(n_drawn: int, upper: Tensor, generator: torch.Generator) -> Tensor:
    """Draw `n_drawn` distinct integers from range(upper[i]) for every row i, in random order.

    `upper`: (row,) integers, none under `n_drawn` (the caller checks, since it knows what a row means).
    Returns (row, n_drawn). Every ordered draw is equally likely. The time does not depend on `upper`.

    >>> distinct_integers(3, torch.tensor([3, 1000]), torch.Generator().manual_seed(0)).sort(1).values[0]
    tensor([0, 1, 2])
    """
    if len(upper) == 0 or n_drawn == 0:
        return torch.empty(len(upper), n_drawn, dtype=torch.int64)
    sparse = 2 * n_drawn <= int(upper.min())
    draw = _draw_again_what_repeats if sparse else _floyd
    # NumPy, because many small operations are no work for several threads: on a busy machine they wait for each other.
    return torch.from_numpy(draw(n_drawn, upper.numpy(), generator))


def _uniforms(*shape: int, generator: torch.Generator) -> npt.NDArray[np.float64]:
    fractions: npt.NDArray[np.float64] = torch.rand(*shape, dtype=torch.float64, generator=generator).numpy()
    return fractions


def _draw_again_what_repeats(
    n_drawn: int, upper: npt.NDArray[np.int64], generator: torch.Generator
) -> npt.NDArray[np.int64]:
    """Draw independently, then draw anew whatever occurred earlier in its row, until nothing does.

    No number is treated differently from another, so all ordered draws of distinct numbers are equally likely.
    """
    drawn = (_uniforms(len(upper), n_drawn, generator=generator) * upper[:, None]).astype(np.int64)
    rows = np.arange(len(upper))  # those that may have repetitions
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


def _floyd(n_drawn: int, upper: npt.NDArray[np.int64], generator: torch.Generator) -> npt.NDArray[np.int64]:
    """Floyd's algorithm, which is quick for few draws and never repeats itself, however few numbers there are.

    The t-th draw is uniform on 0..last; if that number is taken, it is `last` itself, which no earlier draw could have
    been. A uniform subset results, whose order is then shuffled.
    """
    uniforms = _uniforms(2, n_drawn, len(upper), generator=generator)
    drawn = np.empty((n_drawn, len(upper)), dtype=np.int64)
    for t in range(n_drawn):
        last = upper - n_drawn + t
        proposal = (uniforms[0, t] * (last + 1)).astype(np.int64)
        drawn[t] = np.where((drawn[:t] == proposal).any(0), last, proposal)
    return np.ascontiguousarray(np.take_along_axis(drawn, uniforms[1].argsort(0), 0).T)
