"""The operations that torch runs, and those among them that a CUDA graph cannot contain."""

from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode

# What makes a tensor from numbers of the host, or asks for a number on the device: neither can be
# captured in a graph.
BETWEEN_HOST_AND_DEVICE = {"lift_fresh", "_local_scalar_dense", "nonzero", "equal"}


class Dispatched(TorchDispatchMode):
    """Notes the names of all operations that torch runs."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.names: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.add(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))
