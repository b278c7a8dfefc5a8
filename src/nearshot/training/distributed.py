"""Several processes that share a batch: embeddings are gathered, and gradients are scattered back.

In a single process, every function here is a no-op.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from nearshot.errors import NearshotError

if TYPE_CHECKING:
    from lightning_fabric import Fabric

Value = TypeVar("Value")
# Gloo, the backend of CPUs, raises plain RuntimeErrors. Most name its source files; one does not.
GLOO_ERRORS = ("gloo", "Application timeout caused pair closure")


@contextmanager
def stopping_lost_ranks(fabric: Fabric, folder: Path) -> Iterator[None]:
    """Turn the error of a rank that waits in vain into one sentence; end the ranks it started."""
    try:
        yield
    except RuntimeError as error:
        is_of_gloo = any(text in str(error) for text in GLOO_ERRORS)
        if not isinstance(error, dist.DistError) and not is_of_gloo:
            raise
        for process in getattr(fabric.strategy.launcher, "procs", ()):
            process.kill()
        raise NearshotError(
            f"Training stopped: a rank other than {fabric.global_rank} of {fabric.world_size} "
            f"ended or did not answer. The checkpoint in {folder} is unharmed. Resume to continue "
            "from it."
        ) from error


def on_first_rank(fabric: Fabric, work: Callable[[], Value]) -> Value:
    """Call a function on the first rank, and return its value on all ranks.

    An error there is raised on all ranks. Otherwise the other ranks would wait forever.
    """
    answer: Value | NearshotError | OSError | None = None
    if fabric.is_global_zero:
        try:
            answer = work()
        except (NearshotError, OSError) as error:
            answer = error
    answer = fabric.broadcast(answer)
    if isinstance(answer, NearshotError | OSError):
        raise answer
    return answer  # type: ignore[return-value]


def any_rank(fabric: Fabric, value: bool) -> bool:
    """Return whether a value is true on any rank."""
    if fabric.world_size == 1:
        return value
    total = fabric.all_reduce(
        torch.tensor(float(value), dtype=torch.float32, device=fabric.device), reduce_op="sum"
    )
    return isinstance(total, Tensor) and bool(total > 0)


def gather_batch(share: Tensor) -> Tensor:
    """Return the whole batch, (n_ranks · image, …), of which each rank has an equal share.

    Every rank then computes the same loss of the whole batch. The gradient of a rank's share is
    multiplied by the number of ranks, since DDP averages the gradients of the weights and their sum
    is needed. Other gradients, such as that of a learnt temperature, are the same on every rank, so
    their average is already right.
    """
    if not (dist.is_available() and dist.is_initialized()) or dist.get_world_size() == 1:
        return share
    gathered: Tensor = _Gather.apply(share)  # type: ignore[no-untyped-call]
    return gathered


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, share: Tensor) -> Tensor:
        shares = [torch.empty_like(share) for _ in range(dist.get_world_size())]
        dist.all_gather(shares, share.contiguous())
        return torch.cat(shares)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        n_ranks = dist.get_world_size()
        return gradients[0].chunk(n_ranks)[dist.get_rank()] * n_ranks
