"""Two backbones that look at the same images: "efficientnet-lite0+efficientnet-lite2"."""

from dataclasses import replace
from pathlib import Path

from torch import nn

from nearshot.errors import InputError
from nearshot.models.backbone import Backbone, BackboneSpec
from nearshot.models.weights import load_backbone

SEPARATOR = "+"


class BackbonePair(nn.Module):
    """Two backbones, each of which has its own images: their sizes and normalisations differ.

    A classifier weighs the feature sets of both. It is not called itself: see `Embedder`.

    Attributes:
        networks: the two.
        spec: that of the first, with the names of both.
    """

    def __init__(self, first: Backbone, second: Backbone) -> None:
        super().__init__()
        self.networks = nn.ModuleList([first, second])
        # The networks stay in their modes.
        self.training = self.networks.training = first.training or second.training

    @property
    def first(self) -> Backbone:
        """The first network, whose embeddings decide what looks alike."""
        return self.networks[0]  # type: ignore[return-value]

    @property
    def second(self) -> Backbone:
        """The second network."""
        return self.networks[1]  # type: ignore[return-value]

    @property
    def spec(self) -> BackboneSpec:
        """The description of the first network, with the names of both."""
        name = f"{self.first.spec.name}{SEPARATOR}{self.second.spec.name}"
        return replace(self.first.spec, name=name)

    def set_input_size(self, input_size: int) -> None:
        """Use both networks for images of another side."""
        self.first.set_input_size(input_size)
        self.second.set_input_size(input_size)


def split_pair(path_or_name: str | Path) -> tuple[str, str] | None:
    """Return the two names of "<name>+<name>"; None for one backbone. An existing path is one.

    >>> split_pair("efficientnet-lite0+efficientnet-lite2")
    ('efficientnet-lite0', 'efficientnet-lite2')
    """
    text = str(path_or_name)
    if SEPARATOR not in text or Path(text).exists():
        return None
    parts = text.split(SEPARATOR)
    for number in range(1, len(parts)):
        first = SEPARATOR.join(parts[:number])
        second = SEPARATOR.join(parts[number:])
        if _is_one(first) and _is_one(second):
            return first, second
    raise InputError(
        f"backbone must be one network, or two with a {SEPARATOR!r} between them (got {text!r})."
    )


def _is_one(text: str) -> bool:
    """Return whether a text can be one network: an existing path, or a name."""
    return text != "" and (SEPARATOR not in text or Path(text).exists())


def load_network(
    path_or_name: str | Path, *, input_size: int | None = None
) -> Backbone | BackbonePair:
    """Return what `load_backbone` returns, or two backbones for "<name>+<name>"."""
    names = split_pair(path_or_name)
    if names is None:
        return load_backbone(path_or_name, input_size=input_size)
    first, second = names
    return BackbonePair(
        load_backbone(first, input_size=input_size), load_backbone(second, input_size=input_size)
    )
