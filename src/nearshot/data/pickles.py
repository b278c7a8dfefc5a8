"""Load the pickles that some datasets are distributed as, without running code from them."""

from __future__ import annotations

import _codecs
import collections
import io
import pickle
from typing import Any

import numpy as np
from numpy._core import multiarray, numeric

from nearshot.errors import FileFormatError

__all__ = ["load_pickle"]

# All that these pickles need beyond plain containers, strings and numbers: NumPy arrays, and the bytes of Python 2's
# and 3's protocols. Each of these only builds a value.
ALLOWED: dict[tuple[str, str], Any] = {
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
    ("_codecs", "encode"): _codecs.encode,
    ("collections", "OrderedDict"): collections.OrderedDict,
}
for package in ("numpy.core", "numpy._core"):
    ALLOWED[f"{package}.multiarray", "_reconstruct"] = multiarray._reconstruct
    ALLOWED[f"{package}.multiarray", "scalar"] = multiarray.scalar
    ALLOWED[f"{package}.numeric", "_frombuffer"] = numeric._frombuffer  # type: ignore[attr-defined]


class _Unpickler(pickle.Unpickler):
    def __init__(self, data: bytes, name: str) -> None:
        super().__init__(io.BytesIO(data), encoding="latin1")  # keeps every byte of Python 2's strings
        self.name = name

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in ALLOWED:
            raise FileFormatError(
                f"{self.name} asks for {module}.{name}, which no dataset needs. It was not run; do not trust the file."
            )
        return ALLOWED[module, name]

    def persistent_load(self, pid: Any) -> Any:
        raise FileFormatError(f"{self.name} refers to something outside itself ({pid!r}); do not trust the file.")


def load_pickle(data: bytes, name: str) -> Any:
    """Load a pickle of containers, strings, numbers and NumPy arrays; anything else is refused and not run.

    Args:
        data: the file's content.
        name: the file's name in error messages.
    """
    try:
        return _Unpickler(data, name).load()
    except FileFormatError:
        raise
    except Exception as error:  # a damaged pickle can raise anything
        raise FileFormatError(f"{name} is damaged, or not a pickle: {type(error).__name__} {error}.") from error
