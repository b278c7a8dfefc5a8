"""The datasets that nearshot knows, one file each."""

from collections.abc import Mapping
from types import MappingProxyType

from nearshot.data.datasets.cifar_fs import CIFAR_FS
from nearshot.data.datasets.folder import plan_folder
from nearshot.data.datasets.glyphs import GLYPHS, plan_glyphs
from nearshot.data.datasets.mini_imagenet import MINI_IMAGENET
from nearshot.data.datasets.omniglot import OMNIGLOT, omniglot_name, plan_omniglot
from nearshot.data.datasets.source import Plan, Source
from nearshot.data.datasets.tiered_imagenet import TIERED_IMAGENET
from nearshot.data.datasets.tiny_tiered import TINY_TIERED

__all__ = [
    "SOURCES",
    "Plan",
    "Source",
    "omniglot_name",
    "plan_folder",
    "plan_glyphs",
    "plan_omniglot",
]

SOURCES: Mapping[str, Source] = MappingProxyType(
    {
        source.name: source
        for source in (GLYPHS, CIFAR_FS, MINI_IMAGENET, TIERED_IMAGENET, TINY_TIERED, *OMNIGLOT)
    }
)
"""The datasets that nearshot knows, by name."""
