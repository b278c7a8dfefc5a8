"""The recipes by name, in the order of the paper."""

from collections.abc import Mapping
from types import MappingProxyType

from nearshot.experiments.recipe import Recipe
from nearshot.experiments.recipes import (
    ablations,
    adaptation,
    adaptation_steps,
    batch_size,
    choices,
    classifiers,
    comparison,
    floor,
    methods,
    pair_subsampling,
    pairs,
    pn_implementations,
    runs,
    schedule,
    supcon,
)

__all__ = ["RECIPES"]

# fmt: off
_MODULES = (
    pairs, batch_size, pair_subsampling, ablations, comparison, classifiers, schedule, adaptation, supcon,
    pn_implementations, choices, floor, methods, adaptation_steps, runs,
)
# fmt: on
RECIPES: Mapping[str, Recipe] = MappingProxyType({module.RECIPE.name: module.RECIPE for module in _MODULES})
"""Every table and figure, by name."""
