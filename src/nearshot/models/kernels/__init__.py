"""Fused GPU kernels for batch norm and the stem; the other packages use `fuse` alone."""
