"""Networks of other code, measured as trained ones are."""

import sys
from importlib import import_module
from pathlib import Path

import torch
from torch import Tensor, nn

from nearshot.errors import FileFormatError, InputError
from nearshot.models import IMAGENET, Backbone, BackboneSpec, Normalisation
from nearshot.models.timm import PREFIX as TIMM_PREFIX

__all__ = ["NORMALISATIONS", "OwnNetwork", "find_normalisation", "is_own", "load_own"]

EXPORTED = ".pt2"
NORMALISATIONS = {
    "imagenet": IMAGENET,
    "none": Normalisation((0.0, 0.0, 0.0), (1.0, 1.0, 1.0)),
}
"""Normalisations by name; with "none", pixels are from 0 to 1."""
NormalisationOrName = Normalisation | tuple[tuple[float, ...], tuple[float, ...]] | str


class OwnNetwork(Backbone):
    """Any module from images to embeddings as a `Backbone`. Its layers have no names here.

    Args:
        network: from normalised images (image, 3, height, width) to embeddings (image, dim); it is
            used as it is, in evaluation mode.
        name: what results call it.
        normalisation: the mean and standard deviation of each channel.
        input_size: the side of its images; by default that of the prepared images.
    """

    def __init__(
        self, network: nn.Module, name: str, normalisation: Normalisation, input_size: int
    ) -> None:
        super().__init__()
        self.network = network
        self.spec = BackboneSpec(name, input_size, normalisation)
        self.stage_dims = ()
        self.eval()

    def train(self, mode: bool = True) -> "OwnNetwork":
        """Refuse to leave evaluation mode; an exported network has no other."""
        del mode
        for module in self.modules():
            module.training = False
        return self

    def stages(self, images: Tensor) -> list[Tensor]:
        """Raise an error: the stages of the network are not known."""
        raise InputError(f"layers must be empty for {self.spec.name}, whose stages are not known.")

    def forward(self, images: Tensor) -> Tensor:
        """Embed images: (image, 3, height, width) to (image, dim)."""
        embeddings = self.network(images)
        if not isinstance(embeddings, Tensor) or embeddings.shape[:1] != images.shape[:1]:
            shape = getattr(embeddings, "shape", type(embeddings).__name__)
            raise InputError(
                f"The network {self.spec.name} must return embeddings (image, dim) for images "
                f"{tuple(images.shape)} (got {shape})."
            )
        return embeddings.flatten(1)

    def multi_layer(self, images: Tensor, stages: object = None) -> Tensor:
        """Raise an error, as `stages` does."""
        del stages
        return self.stages(images)[0]


def find_normalisation(normalisation: NormalisationOrName | None, name: str) -> Normalisation:
    """Return the mean and standard deviation of an own network's images; they must be given."""
    if isinstance(normalisation, str) and normalisation in NORMALISATIONS:
        return NORMALISATIONS[normalisation]
    numbers = torch.as_tensor(() if isinstance(normalisation, str | None) else normalisation)
    if numbers.shape == (2, 3):
        mean, std = numbers.tolist()
        return Normalisation(tuple(mean), tuple(std))
    raise InputError(
        f"normalisation must say how {name} was trained: 'imagenet', 'none' for pixels from 0 to "
        f"1, or the mean and standard deviation of each channel (got {normalisation!r})."
    )


def is_own(name: str) -> bool:
    """Return whether a name is "module:function" or a file of torch.export.

    >>> is_own("my_networks:resnet"), is_own("network.pt2"), is_own("timm:resnet18")
    (True, True, False)
    """
    if name.startswith(TIMM_PREFIX):
        return False
    if name.endswith(EXPORTED):
        return True
    module, colon, function = name.partition(":")
    return bool(colon) and function.isidentifier() and module.replace(".", "_").isidentifier()


def load_own(name: str) -> nn.Module:
    """Return the network of "module:function", which is imported and called, or of a .pt2 file."""
    return _load_exported(Path(name)) if name.endswith(EXPORTED) else _call_function(name)


def _call_function(name: str) -> nn.Module:
    module_name, _, function_name = name.partition(":")
    # The module may be in the current folder, as with `python -m nearshot`.
    if str(Path.cwd()) not in sys.path:
        sys.path.append(str(Path.cwd()))
    try:
        module = import_module(module_name)
    except ImportError as error:
        raise InputError(f"The network {name!r} cannot be imported: {error}.") from error
    function = getattr(module, function_name, None)
    network = function() if callable(function) else function
    if not isinstance(network, nn.Module):
        raise InputError(
            f"{name!r} must be a function without arguments that returns a torch.nn.Module (got "
            f"{type(network).__name__})."
        )
    return network


def _load_exported(path: Path) -> nn.Module:
    if not path.is_file():
        raise InputError(f"There is no file {str(path)!r}.")
    try:
        module: nn.Module = torch.export.load(path).module()
    except Exception as error:  # of a damaged archive, anything
        raise FileFormatError(f"{path} is not a network of torch.export: {error}.") from error
    return module
