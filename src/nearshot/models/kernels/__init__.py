"""Fused GPU kernels for batch norm and the stem, behind one entry: `fuse`."""

from nearshot.models.kernels.fusion import can_fuse, fuse

__all__ = ["can_fuse", "fuse"]
