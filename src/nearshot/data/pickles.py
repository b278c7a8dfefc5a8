"""Read pickles of datasets without running what they ask for.

`pickle` rebuilds any object that a file names, and NumPy's own arrays trust the file: its flags and
lengths become pointers. This reader knows containers, texts, numbers and numeric arrays only. What
a file says about an array is recorded and checked, and the array is made from its bytes.
"""

import codecs
import io
import math
import pickle
import re
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from nearshot.checks import is_integer
from nearshot.errors import FileFormatError
from nearshot.text import printable

# The largest dataset, tieredImageNet's training images, needs 12 million. Each takes under 100
# bytes of memory beside the content of the file.
MOST_OPCODES = 20_000_000
MOST_DIMENSIONS = 8
LARGEST_KEY = 1 << 63
LONGEST_MESSAGE = 200
# Booleans, integers and floating-point numbers of a fixed size.
NUMERIC = re.compile(r"b1|[iu][1248]|f[248]")
BYTE_ORDERS = ("|", "<", ">", "=")


@dataclass(frozen=True)
class _Function:
    """A function of a pickle: our own, which checks its arguments and only builds a value."""

    call: Callable[..., Any]


@dataclass(eq=False)
class _Unfinished:
    """What a pickle builds in two steps; `finish` gives the value from what the second one says.

    It is only on top of the stack, and in the memo at `indices`.
    """

    finish: Callable[[Any], Any]
    indices: list[int] = field(default_factory=list)


def _expect(condition: bool, what: str) -> None:
    if not condition:
        raise pickle.UnpicklingError(what)


def _content(data: Any) -> bytes | bytearray:
    """Return the bytes of an array; Python 2 kept them as text."""
    if type(data) is str:
        return data.encode("latin1")
    _expect(type(data) in (bytes, bytearray), "an array without its bytes")
    content: bytes | bytearray = data
    return content


def _array(dtype: Any, shape: Any, data: Any, order: Any) -> npt.NDArray[Any]:
    """Return an array with the bytes of a pickle, if they are as many as its shape says."""
    _expect(isinstance(dtype, np.dtype), "an array without its type")
    _expect(type(shape) is tuple and len(shape) <= MOST_DIMENSIONS, "an array without its shape")
    for size in shape:
        _expect(type(size) is int and 0 <= size < LARGEST_KEY, "a wrong shape of an array")
    content = _content(data)
    _expect(
        math.prod(shape) * dtype.itemsize == len(content), "an array of another size than its bytes"
    )
    if not content:
        return np.empty(shape, dtype)
    return np.frombuffer(content, dtype).reshape(shape, order=order)


def _new_array(kind: Any, shape: Any, typecode: Any) -> _Unfinished:
    """Stand for numpy.core.multiarray._reconstruct."""
    _expect(isinstance(kind, _Function) and kind.call is _no_array, "an array of another class")

    def finish(state: Any) -> npt.NDArray[Any]:
        _expect(type(state) is tuple and len(state) == 5, "a wrong state of an array")
        _, array_shape, dtype, is_fortran, data = state
        return _array(dtype, array_shape, data, "F" if is_fortran is True else "C")

    return _Unfinished(finish)


def _no_array(*arguments: Any) -> None:
    """Stand for numpy.ndarray, which would return memory as it finds it."""
    raise pickle.UnpicklingError("an array without its bytes")


def _array_of_buffer(data: Any, dtype: Any, shape: Any, order: Any) -> npt.NDArray[Any]:
    """Stand for numpy.core.numeric._frombuffer, of protocol 5."""
    _expect(type(order) is str and order in ("C", "F"), "a wrong order of an array")
    return _array(dtype, shape, data, order)


def _scalar(dtype: Any, data: Any) -> Any:
    """Stand for numpy.core.multiarray.scalar."""
    return _array(dtype, (), data, "C")[()]


def _new_dtype(text: Any, align: Any = False, copy: Any = False) -> _Unfinished:
    """Stand for numpy.dtype."""
    is_numeric = type(text) is str and NUMERIC.fullmatch(text) is not None
    _expect(is_numeric, "an array of something else than numbers")

    def finish(state: Any) -> np.dtype[Any]:
        _expect(type(state) is tuple and len(state) in (8, 9), "a wrong state of a type")
        order = state[1]
        _expect(type(order) is str and order in BYTE_ORDERS, "a wrong byte order")
        # No fields, and a size and flags that are those of the type.
        _expect(list(map(type, state[2:5])) == [type(None)] * 3, "a type with fields")
        _expect(list(map(type, state[5:8])) == [int] * 3, "a wrong state of a type")
        _expect(state[5:8] == (-1, -1, 0), "a type of another size")
        dtype: np.dtype[Any] = np.dtype(text).newbyteorder(order)
        return dtype

    return _Unfinished(finish)


def _encode(text: Any, encoding: Any) -> bytes:
    """Stand for _codecs.encode: bytes in the protocols of Python 2."""
    is_latin1 = type(encoding) is str and encoding == "latin1"
    _expect(type(text) is str and is_latin1, "bytes in another encoding than latin1")
    return codecs.latin_1_encode(text)[0]


def _no_bytes() -> bytes:
    """Stand for bytes(): empty bytes in the protocols of Python 2."""
    return b""


def _ordered(pairs: Any = ()) -> dict[Any, Any]:
    """Stand for collections.OrderedDict."""
    _expect(type(pairs) in (list, tuple), "a wrong dictionary")
    ordered: dict[Any, Any] = {}
    for pair in pairs:
        _expect(type(pair) in (list, tuple) and len(pair) == 2, "a wrong dictionary")
        _set_item(ordered, pair[0], pair[1])
    return ordered


FUNCTIONS = {
    ("numpy", "ndarray"): _Function(_no_array),
    ("numpy", "dtype"): _Function(_new_dtype),
    ("_codecs", "encode"): _Function(_encode),
    ("__builtin__", "bytes"): _Function(_no_bytes),
    ("builtins", "bytes"): _Function(_no_bytes),
    ("collections", "OrderedDict"): _Function(_ordered),
}
for package in ("numpy.core", "numpy._core"):
    FUNCTIONS[f"{package}.multiarray", "_reconstruct"] = _Function(_new_array)
    FUNCTIONS[f"{package}.multiarray", "scalar"] = _Function(_scalar)
    FUNCTIONS[f"{package}.numeric", "_frombuffer"] = _Function(_array_of_buffer)


def _set_item(mapping: dict[Any, Any], key: Any, value: Any) -> None:
    # Other keys can be slow to compare, or nested so deep that hashing them ends the process.
    _expect(type(key) in (str, bytes, int), "a key that is neither text nor a number")
    if type(key) is int:
        _expect(-LARGEST_KEY <= key < LARGEST_KEY, "a key that is too large")
    mapping[key] = value


# The opcodes whose methods of the standard library only push or take values. (Not DUP, so that
# what is unfinished has one place.)
PLAIN_OPCODES = (
    pickle.PROTO
    + pickle.NONE
    + pickle.NEWTRUE
    + pickle.NEWFALSE
    + pickle.INT
    + pickle.BININT
    + pickle.BININT1
    + pickle.BININT2
    + pickle.LONG
    + pickle.LONG1
    + pickle.LONG4
    + pickle.FLOAT
    + pickle.BINFLOAT
    + pickle.STRING
    + pickle.BINSTRING
    + pickle.SHORT_BINSTRING
    + pickle.UNICODE
    + pickle.BINUNICODE
    + pickle.BINUNICODE8
    + pickle.SHORT_BINUNICODE
    + pickle.BINBYTES
    + pickle.BINBYTES8
    + pickle.SHORT_BINBYTES
    + pickle.TUPLE
    + pickle.EMPTY_TUPLE
    + pickle.TUPLE1
    + pickle.TUPLE2
    + pickle.TUPLE3
    + pickle.EMPTY_LIST
    + pickle.EMPTY_DICT
    + pickle.LIST
    + pickle.GLOBAL
    + pickle.STACK_GLOBAL
    + pickle.POP
    + pickle.POP_MARK
    + pickle.MARK
)


class _Reader(pickle._Unpickler):
    """A pickle reader with own methods for every opcode that calls, stores or allocates.

    The standard library's reader in Python, since that in C hashes and allocates what a file asks
    for before it can be checked.
    """

    def __init__(self, data: bytes) -> None:
        # latin1 keeps every byte of Python 2's strings.
        super().__init__(io.BytesIO(data), encoding="latin1")
        self.file = io.BytesIO(data)
        self.n_unfinished = 0
        self.memo: dict[int, Any] = {}
        self.metastack: list[list[Any]] = []
        self.stack: list[Any] = []
        self.append = self.stack.append
        self.readline = self.file.readline

    def load(self) -> Any:
        """Return the value of the pickle."""
        for _ in range(MOST_OPCODES):
            code = self.read(1)
            if code == pickle.STOP:
                _expect(self.n_unfinished == 0, "an array that is not finished")
                return self.stack.pop()
            handler = HANDLERS.get(code)
            if handler is None:
                raise pickle.UnpicklingError(f"the opcode {code!r}, which no dataset needs")
            handler(self)
        raise pickle.UnpicklingError(f"more than {MOST_OPCODES:,} opcodes")

    def read(self, n_bytes: int) -> bytes:
        """Return the next bytes, of which a pickle may promise more than it has."""
        data = self.file.read(n_bytes)
        _expect(len(data) == n_bytes, "it is cut short")
        return data

    def find_class(self, module: str, name: str) -> Any:
        """Return what stands for a function that the pickle names."""
        if (module, name) not in FUNCTIONS:
            raise FileFormatError(
                f"asks for {_shortened(f'{module}.{name}')}, which no dataset needs. It was not run"
            )
        return FUNCTIONS[module, name]

    def pop_mark(self) -> list[Any]:
        """Take the values since the last mark."""
        values = self.stack
        self.stack = self.metastack.pop()
        self.append = self.stack.append
        return values

    def load_frame(self) -> None:
        """Skip the mark of a frame: all bytes are here already."""
        self.read(8)

    def load_bytearray8(self) -> None:
        """Read the bytes first: their promised number is not allocated."""
        (n_bytes,) = struct.unpack("<Q", self.read(8))
        _expect(n_bytes < LARGEST_KEY, "it is cut short")
        self.append(bytearray(self.read(n_bytes)))

    def load_append(self) -> None:
        """Append a value to a list."""
        value = self.stack.pop()
        _expect(type(self.stack[-1]) is list, "a value for no list")
        self.stack[-1].append(value)

    def load_appends(self) -> None:
        """Append values to a list."""
        values = self.pop_mark()
        _expect(type(self.stack[-1]) is list, "values for no list")
        self.stack[-1].extend(values)

    def load_dict(self) -> None:
        """Make a dictionary of keys and values."""
        items = self.pop_mark()
        self.append({})
        self._set_items(items)

    def load_setitem(self) -> None:
        """Set a key of a dictionary."""
        value = self.stack.pop()
        key = self.stack.pop()
        self._set_items([key, value])

    def load_setitems(self) -> None:
        """Set keys of a dictionary."""
        self._set_items(self.pop_mark())

    def _set_items(self, items: list[Any]) -> None:
        mapping = self.stack[-1]
        _expect(type(mapping) is dict and len(items) % 2 == 0, "values for no dictionary")
        for i in range(0, len(items), 2):
            _set_item(mapping, items[i], items[i + 1])

    def load_reduce(self) -> None:
        """Call what stands for a function."""
        arguments = self.stack.pop()
        function = self.stack.pop()
        _expect(isinstance(function, _Function), "a call of no function")
        _expect(type(arguments) is tuple, "a call without arguments")
        value = function.call(*arguments)
        if isinstance(value, _Unfinished):
            self.n_unfinished += 1
        self.append(value)

    def load_build(self) -> None:
        """Finish what was begun by a call."""
        state = self.stack.pop()
        unfinished = self.stack.pop()
        _expect(isinstance(unfinished, _Unfinished), "a state of something finished")
        value = unfinished.finish(state)
        for index in unfinished.indices:
            if self.memo[index] is unfinished:
                self.memo[index] = value
        self.n_unfinished -= 1
        self.append(value)

    def _put(self, index: int) -> None:
        _expect(0 <= index < LARGEST_KEY, "a wrong index")
        value = self.stack[-1]
        self.memo[index] = value
        if isinstance(value, _Unfinished):
            value.indices.append(index)

    def load_put(self) -> None:
        """Remember the last value."""
        self._put(int(self.readline()))

    def load_binput(self) -> None:
        """Remember the last value."""
        self._put(self.read(1)[0])

    def load_long_binput(self) -> None:
        """Remember the last value."""
        self._put(int.from_bytes(self.read(4), "little"))

    def load_memoize(self) -> None:
        """Remember the last value."""
        self._put(len(self.memo))

    def _get(self, index: int) -> None:
        _expect(index in self.memo, "a value that was not remembered")
        value = self.memo[index]
        _expect(not isinstance(value, _Unfinished), "an array that is not finished")
        self.append(value)

    def load_get(self) -> None:
        """Push a remembered value."""
        self._get(int(self.readline()))

    def load_binget(self) -> None:
        """Push a remembered value."""
        self._get(self.read(1)[0])

    def load_long_binget(self) -> None:
        """Push a remembered value."""
        self._get(int.from_bytes(self.read(4), "little"))


HANDLERS: dict[bytes, Callable[[Any], None]] = {
    **{bytes([code]): pickle._Unpickler.dispatch[code] for code in PLAIN_OPCODES},
    pickle.FRAME: _Reader.load_frame,
    pickle.BYTEARRAY8: _Reader.load_bytearray8,
    pickle.APPEND: _Reader.load_append,
    pickle.APPENDS: _Reader.load_appends,
    pickle.DICT: _Reader.load_dict,
    pickle.SETITEM: _Reader.load_setitem,
    pickle.SETITEMS: _Reader.load_setitems,
    pickle.REDUCE: _Reader.load_reduce,
    pickle.BUILD: _Reader.load_build,
    pickle.PUT: _Reader.load_put,
    pickle.BINPUT: _Reader.load_binput,
    pickle.LONG_BINPUT: _Reader.load_long_binput,
    pickle.MEMOIZE: _Reader.load_memoize,
    pickle.GET: _Reader.load_get,
    pickle.BINGET: _Reader.load_binget,
    pickle.LONG_BINGET: _Reader.load_long_binget,
}


def load_pickle(data: bytes, name: str) -> Any:
    """Load a pickle of containers, texts, numbers and numeric NumPy arrays.

    Anything else is refused and not run.
    """
    try:
        return _Reader(data).load()
    except FileFormatError as error:
        raise FileFormatError(f"{name} {error}; do not trust the file.") from None
    except Exception as error:  # a damaged pickle can raise anything
        reason = _shortened(f"{type(error).__name__}, {error}")
        raise FileFormatError(f"{name} is damaged, or not a pickle: {reason}.") from None


def integers(values: Any, name: str, *, below: int) -> npt.NDArray[np.int64]:
    """Return a pickle's list or array of integers from 0 to `below`, (n,)."""
    is_array = isinstance(values, np.ndarray) and values.ndim == 1 and values.dtype.kind in "iu"
    is_list = type(values) is list and all(is_integer(value) for value in values)
    if not is_array and not is_list:
        raise FileFormatError(f"{name} must be integers.")
    if len(values) > 0 and not 0 <= min(values) <= max(values) < below:
        raise FileFormatError(f"{name} must be integers from 0 to {below - 1}.")
    return np.array(values, dtype=np.int64)


def texts(values: Any, name: str) -> list[str]:
    """Return a pickle's list of texts, each in one line."""
    if type(values) is not list or not all(type(value) is str for value in values):
        raise FileFormatError(f"{name} must be a list of texts.")
    return [printable(value) for value in values]


def pixels(values: Any, shape: tuple[int, ...], name: str) -> npt.NDArray[np.uint8]:
    """Return a pickle's array of bytes; any number fits -1 in its shape, but the first."""
    is_bytes = isinstance(values, np.ndarray) and values.dtype == np.uint8
    if not is_bytes or values.ndim != len(shape):
        raise FileFormatError(f"{name} must be an array of bytes with {len(shape)} dimensions.")
    for size, expected in zip(values.shape[1:], shape[1:], strict=True):
        if size == 0 or expected not in (-1, size):
            raise FileFormatError(f"{name} must have the shape {shape} (got {values.shape}).")
    array: npt.NDArray[np.uint8] = values
    return array


def _shortened(text: str) -> str:
    return printable(text[:LONGEST_MESSAGE])
