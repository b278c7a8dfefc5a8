"""The registry of backbones."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType

from nearshot.errors import look_up
from nearshot.models.backbone import Backbone
from nearshot.models.conv4 import Conv4
from nearshot.models.efficientnet_lite import VARIANTS, EfficientNetLite
from nearshot.models.resnet12 import DROP_RATE, ResNet12, ResNet12MetaOpt
from nearshot.models.timm import PREFIX as TIMM_PREFIX
from nearshot.models.timm import TimmBackbone

BACKBONES: Mapping[str, Callable[[str, int], Backbone]] = MappingProxyType(
    {
        "conv4": partial(Conv4, width=64),
        "conv4-32": partial(Conv4, width=32),
        "conv4-32-dropblock": partial(Conv4, width=32, drop_rate=DROP_RATE),
        **dict.fromkeys(VARIANTS, EfficientNetLite),
        "resnet12": ResNet12,
        "resnet12-dropblock": partial(ResNet12, drop_rate=DROP_RATE),
        "resnet12-metaopt": ResNet12MetaOpt,
    }
)
"""The backbones by name, each a function of (name, input_size). A name fixes the architecture: weights refer to it."""
DEFAULT_INPUT_SIZE = 84


def build_backbone(name: str, *, input_size: int | None = None) -> Backbone:
    """Return a new, untrained backbone, in float32.

    Args:
        name: one of `BACKBONES`, or "timm:" and the name of a timm model (needs the extra `timm`).
        input_size: the side of its images; by default 84, as in the paper, or the published side of an EfficientNet or
            timm model.

    >>> backbone = build_backbone("resnet12")
    >>> sum(parameter.numel() for parameter in backbone.parameters())
    9427840
    >>> build_backbone("resnet11")
    Traceback (most recent call last):
    nearshot.errors.InputError: There is no backbone 'resnet11'; choose one of 'conv4', ... Did you mean 'resnet12'?
    """
    if str(name).startswith(TIMM_PREFIX):
        return TimmBackbone(name, input_size)
    maker = look_up({**BACKBONES, f"{TIMM_PREFIX}<name>": TimmBackbone}, name, "backbone")
    if input_size is None:
        input_size = VARIANTS[name].input_size if name in VARIANTS else DEFAULT_INPUT_SIZE
    return maker(name, input_size)
