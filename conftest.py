"""Settings for all tests."""

from __future__ import annotations

from hypothesis import settings

# A busy machine is slow for reasons of its own, which no test is about.
settings.register_profile("nearshot", deadline=None)
settings.load_profile("nearshot")
