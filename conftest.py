"""Settings for all tests."""

from __future__ import annotations

from importlib.util import find_spec

from hypothesis import settings

# Kernels for a GPU: what imports them asks first whether Triton is there.
collect_ignore = [] if find_spec("triton") else ["src/nearshot/models/norm_kernels.py"]

# A busy machine is slow for reasons of its own, which no test is about.
settings.register_profile("nearshot", deadline=None)
settings.load_profile("nearshot")
