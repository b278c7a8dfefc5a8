"""The name of a loss of one's own: what it is called, and a mark of its code and of all that it was given.

Two trainings are the same if their settings are, so a loss has to be told from another, in this process and the next:
by its lines, and by the values it was made with, such as the margin of a module, a default, a closure or a partial.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import types
from collections.abc import Callable, Mapping, Sequence, Set
from contextlib import suppress
from enum import Enum
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from nearshot.errors import InputError

__all__ = ["name_of_own"]

PLAIN = (bool, int, float, complex, str, bytes, type(None), type(Ellipsis), torch.dtype, torch.device, range)
# Of what these make, such as a log, a lock or a file, nothing is a loss's own.
PASSING = ("logging", "threading", "_thread", "weakref", "_weakref", "io", "_io", "queue", "multiprocessing", "socket")


def name_of_own(loss: Callable[..., Any]) -> str:
    """Return a name for a loss of one's own, the same for the same code and values.

    >>> def triplet(embeddings, labels, margin=0.2): ...
    >>> name_of_own(triplet).startswith("own-triplet-")
    True
    >>> name_of_own(functools.partial(triplet, margin=0.3)) == name_of_own(functools.partial(triplet, margin=0.4))
    False
    """
    inner: Any = _uncompiled(loss)
    while isinstance(inner, functools.partial):
        inner = _uncompiled(inner.func)
    name = inner.__name__ if isinstance(inner, types.FunctionType | types.BuiltinFunctionType) else type(inner).__name__
    name = "".join(letter for letter in name if letter.isalnum() or letter == "_")
    try:
        mark = _hash(_Description().of(loss).encode())[:8]
    except RecursionError as error:
        raise InputError(f"The loss {name} holds things too deep within each other to be told from others.") from error
    return f"own-{name}-{mark}"


class _Description:
    """Says what a thing is made of, without where it lies in memory.

    A thing is described once, and then known by the hash of that; one within itself is named by how far out it is.
    """

    def __init__(self) -> None:
        self._around: list[int] = []
        self._known: dict[int, str] = {}
        self._kept: list[object] = []  # so that no other thing gets the place of one that is known

    def of(self, thing: object) -> str:
        """Describe anything."""
        thing = _uncompiled(thing)
        if isinstance(thing, PLAIN) and not isinstance(thing, Enum):
            return repr(thing)
        if id(thing) in self._around:
            return f"<{self._around.index(id(thing))}>"
        if id(thing) not in self._known:
            self._around.append(id(thing))
            parts = self._parts(thing)
            self._around.pop()
            self._known[id(thing)] = f"{type(thing).__qualname__} {_hash(', '.join(parts).encode())}"
            self._kept.append(thing)
        return self._known[id(thing)]

    def _parts(self, thing: Any) -> list[str]:
        if isinstance(thing, functools.partial):
            return [self.of(part) for part in (thing.func, thing.args, thing.keywords)]
        if isinstance(thing, types.MethodType):
            return [self.of(thing.__func__), self.of(thing.__self__)]
        if isinstance(thing, types.FunctionType):
            return self._of_function(thing)
        if isinstance(thing, type):
            return self._of_class(thing)
        if isinstance(thing, types.ModuleType | types.BuiltinFunctionType):
            return [thing.__name__]
        if isinstance(thing, torch.jit.ScriptFunction):
            return [str(thing.code)]
        if isinstance(thing, Enum):
            return [repr(thing.value)]
        if isinstance(thing, Tensor):
            return _of_tensor(thing)
        if isinstance(thing, np.ndarray | np.generic):
            return [str(thing.dtype), str(thing.shape), _hash(thing.tobytes()) if thing.dtype != object else ""]
        if isinstance(thing, Mapping):
            return [f"{self.of(key)}: {self.of(value)}" for key, value in thing.items()]
        if isinstance(thing, Set):
            return sorted(map(self.of, thing))
        if isinstance(thing, Sequence):
            return [self.of(value) for value in thing]
        return [self.of(type(thing)), *self._of_attributes(thing)]

    def _of_function(self, function: types.FunctionType) -> list[str]:
        code = function.__code__
        # A line may have two functions without a name, and what was typed in has no lines.
        lines = "" if function.__name__ == "<lambda>" else _lines(code)
        parts = [lines or repr([(one.co_code, one.co_names, _constants(one)) for one in _codes(code)])]
        parts += [self.of(function.__defaults__), self.of(function.__kwdefaults__)]
        for cell in function.__closure__ or ():
            try:
                parts.append(self.of(cell.cell_contents))
            except ValueError:  # it is empty, so far
                parts.append("")
        for name in sorted({name for one in _codes(code) for name in one.co_names}):
            value = function.__globals__.get(name)
            beside = isinstance(value, types.FunctionType | type) and value.__module__ == function.__module__
            if beside or (value is not None and isinstance(value, (*PLAIN, tuple)) and not name.startswith("__")):
                parts.append(f"{name}={self.of(value)}")
        return parts

    def _of_class(self, kind: type) -> list[str]:
        parts = [kind.__qualname__]
        for one in filter(_is_own, kind.__mro__):
            parts.append(_lines(one))
            for name, value in sorted(vars(one).items()):
                inner = getattr(value, "__func__", getattr(value, "fget", value))  # of a static method or a property
                if isinstance(inner, types.FunctionType) or (isinstance(inner, PLAIN) and not name.startswith("__")):
                    parts.append(f"{name}={self.of(inner)}")
        return parts

    def _of_attributes(self, thing: Any) -> list[str]:
        if type(thing).__module__.partition(".")[0] in PASSING:
            return []
        given = {}
        for one in type(thing).__mro__:
            slots = one.__dict__.get("__slots__", ())
            for name in (slots,) if isinstance(slots, str) else slots:
                mangled = f"_{one.__name__.lstrip('_')}{name}" if name[:2] == "__" != name[-2:] else name
                with suppress(Exception):  # it has no value yet
                    given[mangled] = getattr(thing, mangled)
        with suppress(Exception):  # most have one
            given |= vars(thing)
        if isinstance(thing, nn.Module):
            # What every module has: hooks, whether it is being trained, and whether it was compiled.
            new = {*vars(nn.Module()), "_is_torch_compile", "_compile_kwargs"}
            given = {name: value for name, value in given.items() if name not in new}
            given |= {"parameters": thing._parameters, "buffers": thing._buffers, "modules": thing._modules}
        return [f"{name}={self.of(given[name])}" for name in sorted(given)]


def _of_tensor(tensor: Tensor) -> list[str]:
    what = [str(tensor.dtype)]
    try:
        what.append(str(tuple(tensor.shape)))
        plain = tensor.detach().to_dense().cpu().resolve_conj().resolve_neg().contiguous().reshape(-1)
        return [*what, _hash(plain.view(torch.uint8).numpy().tobytes() if len(plain) else b"")]
    except (RuntimeError, NotImplementedError):  # it has no values, or none of a kind that can be read so
        return what


def _uncompiled(thing: Any) -> Any:
    """Return what `torch.compile` was given: the same loss, only faster."""
    if isinstance(thing, types.FunctionType):
        return getattr(thing, "_torchdynamo_orig_callable", thing)
    return getattr(thing, "_orig_mod", thing) if isinstance(thing, nn.Module) else thing


def _lines(thing: Any) -> str:
    """Return the lines that code or a class is written in; none where there are none."""
    try:
        return inspect.getsource(thing)
    except (OSError, TypeError):
        return ""


def _is_own(one: type) -> bool:
    """Whether a class is somebody's own, rather than of a library that is pinned by its version."""
    return one.__module__.partition(".")[0] not in ("builtins", "torch", "numpy", "abc", "typing", "nearshot")


def _codes(code: types.CodeType) -> list[types.CodeType]:
    """Return a function's code, and that of the functions within."""
    inner = [one for one in code.co_consts if isinstance(one, types.CodeType)]
    return [code, *(found for one in inner for found in _codes(one))]


def _constants(code: types.CodeType) -> list[str]:
    plain = [one for one in code.co_consts if not isinstance(one, types.CodeType)]
    return [repr(sorted(map(repr, one))) if isinstance(one, frozenset) else repr(one) for one in plain]


def _hash(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
