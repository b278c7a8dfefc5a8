"""Randomness is an argument: generators from seeds, and sampling without replacement."""

from __future__ import annotations

import torch
from torch import Tensor

from nearshot.errors import InputError

__all__ = ["distinct_integers", "private_generator"]


def private_generator(seed: int | torch.Generator) -> torch.Generator:
    """Return a CPU generator that nobody else uses: for a seed, or for one number drawn from another generator."""
    if isinstance(seed, torch.Generator):
        if seed.device.type != "cpu":
            raise InputError(f"Indices are drawn on the CPU; the generator lives on {seed.device}.")
        seed = int(torch.randint(2**62, (), generator=seed))
    if isinstance(seed, bool) or not isinstance(seed, int):
        raise InputError(f"seed must be a whole number or a torch.Generator, not {seed!r}.")
    return torch.Generator().manual_seed(seed)


def distinct_integers(n_drawn: int, upper: Tensor, generator: torch.Generator) -> Tensor:
    """Draw `n_drawn` distinct integers from range(upper[i]) for every row i, in random order.

    `upper`: (row,) integers, none under `n_drawn` (the caller checks, since it knows what a row means).
    Returns (row, n_drawn). Every ordered draw is equally likely. The time does not depend on `upper`, and grows with
    the square of `n_drawn`.

    >>> distinct_integers(3, torch.tensor([3, 1000]), torch.Generator().manual_seed(0)).sort(1).values[0]
    tensor([0, 1, 2])
    """
    uniforms = torch.rand(2, n_drawn, len(upper), dtype=torch.float64, generator=generator)
    drawn = torch.empty(n_drawn, len(upper), dtype=torch.int64)
    # Floyd's algorithm: the t-th draw is uniform on 0..last, and if that number is taken, it is `last` itself,
    # which no earlier draw could have been. A uniform subset results, whose order is then shuffled.
    for t in range(n_drawn):
        last = upper - n_drawn + t
        proposal = (uniforms[0, t] * (last + 1)).long()
        taken = (drawn[:t] == proposal).any(0)
        drawn[t] = torch.where(taken, last, proposal)
    return drawn.gather(0, uniforms[1].argsort(0)).T.contiguous()
