"""Pickles as some datasets are distributed in, read without running what is in them."""

from __future__ import annotations

import io
import pickle
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from nearshot.errors import FileFormatError

__all__ = ["load_pickle"]

# All that the datasets' pickles need beyond plain containers, strings and numbers: NumPy arrays, and how Python 2's
# and 3's protocols spell bytes. None of these does anything but build a value.
_MULTIARRAY = ("numpy.core.multiarray", "numpy._core.multiarray")
_NUMERIC = ("numpy.core.numeric", "numpy._core.numeric")


def _allowed() -> dict[tuple[str, str], Any]:
    import _codecs  # noqa: PLC0415
    import collections  # noqa: PLC0415

    import numpy._core.multiarray as multiarray  # noqa: PLC0415
    import numpy._core.numeric as numeric  # noqa: PLC0415

    allowed: dict[tuple[str, str], Any] = {
        ("numpy", "ndarray"): np.ndarray,
        ("numpy", "dtype"): np.dtype,
        ("_codecs", "encode"): _codecs.encode,
        ("collections", "OrderedDict"): collections.OrderedDict,
    }
    for module in _MULTIARRAY:
        allowed[module, "_reconstruct"] = multiarray._reconstruct
        allowed[module, "scalar"] = multiarray.scalar
    for module in _NUMERIC:
        allowed[module, "_frombuffer"] = numeric._frombuffer  # type: ignore[attr-defined]
    return allowed


ALLOWED = _allowed()


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: BinaryIO, name: str, encoding: str) -> None:
        super().__init__(file, encoding=encoding)
        self.name = name

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in ALLOWED:
            raise FileFormatError(
                f"{self.name} asks for {module}.{name}, which no dataset needs. It was not run; do not trust the file."
            )
        return ALLOWED[module, name]

    def persistent_load(self, pid: Any) -> Any:
        raise FileFormatError(f"{self.name} refers to something outside itself ({pid!r}); do not trust the file.")


def load_pickle(source: Path | bytes, name: str | None = None, *, encoding: str = "latin1") -> Any:
    """Read a pickle of containers, strings, numbers and NumPy arrays; anything else in it is refused and not run.

    Args:
        source: a file, or its content.
        name: what to call it in an error; by default the path.
        encoding: how Python 2's strings are to be read; "latin1" keeps every byte.
    """
    name = name or str(source if isinstance(source, Path) else "the pickle")
    try:
        if isinstance(source, Path):
            with source.open("rb") as file:
                return _Unpickler(file, name, encoding).load()
        return _Unpickler(io.BytesIO(source), name, encoding).load()
    except FileFormatError:
        raise
    except (pickle.UnpicklingError, EOFError, ValueError, TypeError, KeyError, IndexError, AttributeError) as error:
        raise FileFormatError(f"{name} is damaged, or not a pickle: {error}.") from error
    except (ImportError, MemoryError, OverflowError, RecursionError, UnicodeError) as error:
        raise FileFormatError(f"{name} cannot be read as a pickle: {type(error).__name__} {error}.") from error
