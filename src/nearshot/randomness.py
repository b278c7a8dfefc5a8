"""Random generators from seeds, and sampling without replacement."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from nearshot.checks import is_integer
from nearshot.errors import InputError


def private_generator(seed: int | torch.Generator) -> torch.Generator:
    """Return a new CPU generator, with a seed, or with a number drawn from another generator."""
    if isinstance(seed, torch.Generator):
        if seed.device.type != "cpu":
            raise InputError(f"Indices are drawn on the CPU; the generator lives on {seed.device}.")
        seed = int(torch.randint(2**62, (), generator=seed))
    if not is_integer(seed):
        raise InputError(f"seed must be a whole number or a torch.Generator, not {seed!r}.")
    return torch.Generator().manual_seed(int(seed))


def distinct_integers(n_drawn: int, upper: Tensor, generator: torch.Generator) -> Tensor:
    """Draw `n_drawn` distinct integers from range(upper[i]) for every row i, in random order.

    `upper`: (row,) integers, none under `n_drawn`, which the caller checks. Returns (row, n_drawn). Every ordered draw
    is equally likely. The time does not depend on `upper`.

    >>> distinct_integers(3, torch.tensor([3, 1000]), torch.Generator().manual_seed(0)).sort(1).values[0]
    tensor([0, 1, 2])
    """
    if len(upper) == 0 or n_drawn == 0:
        return torch.empty(len(upper), n_drawn, dtype=torch.int64)
    sparse = 2 * n_drawn <= int(upper.min())
    draw = _redraw_repeated if sparse else _floyd
    # NumPy, since torch's threads would wait for each other in many small operations.
    return torch.from_numpy(draw(n_drawn, upper.numpy(), generator))


def _uniforms(*shape: int, generator: torch.Generator) -> npt.NDArray[np.float64]:
    fractions: npt.NDArray[np.float64] = torch.rand(*shape, dtype=torch.float64, generator=generator).numpy()
    return fractions


def _redraw_repeated(n_drawn: int, upper: npt.NDArray[np.int64], generator: torch.Generator) -> npt.NDArray[np.int64]:
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


def _floyd(n_drawn: int, upper: npt.NDArray[np.int64], generator: torch.Generator) -> npt.NDArray[np.int64]:
    """Draw by Floyd's algorithm, then shuffle. If a number is taken, `last` is drawn, which no earlier draw can be."""
    uniforms = _uniforms(2, n_drawn, len(upper), generator=generator)
    drawn = np.empty((n_drawn, len(upper)), dtype=np.int64)
    for t in range(n_drawn):
        last = upper - n_drawn + t
        proposal = (uniforms[0, t] * (last + 1)).astype(np.int64)
        drawn[t] = np.where((drawn[:t] == proposal).any(0), last, proposal)
    return np.ascontiguousarray(np.take_along_axis(drawn, uniforms[1].argsort(0), 0).T)
