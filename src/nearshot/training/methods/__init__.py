"""Training methods, one file each: its settings, its loss, and what it trains beside the network.

To add one, write the formula in `nearshot.losses`, the settings here, and one line in `METHODS`.
"""

import dataclasses
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar

from torch import Tensor

from nearshot.errors import InputError, look_up
from nearshot.training.methods.episodic import EpisodicMethod
from nearshot.training.methods.matching import MatchingNetworks
from nearshot.training.methods.method import Batch, LearntTemperature, Method, PairsInBatch
from nearshot.training.methods.nca import NCA
from nearshot.training.methods.nca_prototypes import NCAWithPrototypes
from nearshot.training.methods.prototypical import PrototypicalNetworks
from nearshot.training.methods.simpleshot import SimpleShot
from nearshot.training.methods.supcon import SupCon

__all__ = [
    "METHODS",
    "NCA",
    "Batch",
    "EpisodicMethod",
    "LearntTemperature",
    "MatchingNetworks",
    "Method",
    "NCAWithPrototypes",
    "PairsInBatch",
    "PrototypicalNetworks",
    "SimpleShot",
    "SupCon",
    "UnknownMethod",
    "change_method",
    "method_as_dict",
    "method_class",
    "method_from_dict",
    "method_name",
]

METHODS: Mapping[str, type[Method]] = MappingProxyType(
    {
        "nca": NCA,
        "prototypical": PrototypicalNetworks,
        "matching": MatchingNetworks,
        "nca-prototypes": NCAWithPrototypes,
        "simpleshot": SimpleShot,
        "supcon": SupCon,
    }
)
"""The training methods by name; `TrainConfig.method` may also be a `Method` of your own."""


@dataclass(frozen=True)
class UnknownMethod(Method):
    """A method of a stored run whose class cannot be imported here.

    The run can be listed and measured, not resumed.
    """

    title: ClassVar[str] = "unknown method"

    name: str
    settings: Mapping[str, Any] = field(hash=False)

    def loss(self, batch: Batch) -> Tensor:
        """Refuse to train."""
        raise InputError(
            f"The method {self.name} cannot be imported here. Train where its module can be."
        )


def method_class(name: str) -> type[Method]:
    """Return the class of a method: one of `METHODS`, or of "module:Class", which is imported.

    >>> method_class("matching")
    <class 'nearshot.training.methods.matching.MatchingNetworks'>
    """
    module_name, colon, class_name = name.partition(":")
    if not colon:
        return look_up(METHODS, name, "method")
    is_script = module_name == _script_name()
    try:
        module = sys.modules["__main__"] if is_script else import_module(module_name)
    except ImportError as error:
        raise InputError(f"method {name!r} cannot be imported: {error}.") from error
    kind = getattr(module, class_name, None)
    if not isinstance(kind, type) or not issubclass(kind, Method):
        raise InputError(f"method must name a subclass of Method, and {name!r} is {kind!r}.")
    return kind


def method_name(method: Method) -> str:
    """Return the name of a method in files and options; that of your own is "module:Class".

    >>> method_name(NCA(temperature=0.5))
    'nca'
    """
    if isinstance(method, UnknownMethod):
        return method.name
    kind = type(method)
    for name, registered in METHODS.items():
        if kind is registered:
            return name
    module_name = _script_name() if kind.__module__ == "__main__" else kind.__module__
    return f"{module_name}:{kind.__qualname__}"


def change_method(method: Method, kind: type[Method]) -> Method:
    """Return a method of a kind, with the settings of `method` that both have.

    >>> change_method(NCA(temperature=0.5, keep_positives=0.1), PrototypicalNetworks).temperature
    0.5
    """
    names = {item.name for item in dataclasses.fields(kind)}
    settings = {}
    for item in dataclasses.fields(method):
        if item.name in names:
            settings[item.name] = getattr(method, item.name)
    return kind(**settings)


def _script_name() -> str:
    """Return the name by which the running script can be imported."""
    return Path(getattr(sys.modules["__main__"], "__file__", None) or "__main__").stem


def method_as_dict(method: Method) -> dict[str, Any]:
    """Return the name of a method and its settings, for JSON."""
    if isinstance(method, UnknownMethod):
        return {"name": method.name, **method.settings}
    settings = {item.name: getattr(method, item.name) for item in dataclasses.fields(method)}
    return {"name": method_name(method), **settings}


def method_from_dict(values: Mapping[str, Any]) -> Method:
    """Inverse of `method_as_dict`. A class that cannot be imported gives an `UnknownMethod`."""
    if not isinstance(values, Mapping) or "name" not in values:
        raise InputError(f"method must be a dictionary with a name (got {values!r}).")
    settings = {name: value for name, value in values.items() if name != "name"}
    name = str(values["name"])
    try:
        kind = method_class(name)
    except InputError:
        if ":" not in name:
            raise
        return UnknownMethod(name, settings)
    unknown = settings.keys() - {item.name for item in dataclasses.fields(kind)}
    if unknown:
        raise InputError(f"The method {name} has no setting {min(unknown)!r}.")
    # JSON has no tuples.
    settings = {
        name: tuple(value) if isinstance(value, list) else value for name, value in settings.items()
    }
    return kind(**settings)
