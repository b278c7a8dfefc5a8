"""The recipes by name, in the order of the paper: one module per table or figure."""

from collections.abc import Mapping

from nearshot.paper.recipe import Recipe
from nearshot.paper.recipes import (
    ablations,
    adaptation,
    adaptation_steps,
    batch_size,
    choices,
    claims,
    classifiers,
    comparison,
    epochs,
    floor,
    last_epoch,
    methods,
    pair_subsampling,
    pairs,
    pn_implementations,
    runs,
    schedule,
    snell_ways,
    strong,
    supcon,
)

__all__ = ["RECIPES"]

_IN_ORDER = (
    pairs.RECIPE,
    batch_size.RECIPE,
    pair_subsampling.RECIPE,
    ablations.RECIPE,
    comparison.RECIPE,
    classifiers.RECIPE,
    schedule.RECIPE,
    adaptation.RECIPE,
    supcon.RECIPE,
    pn_implementations.RECIPE,
    choices.RECIPE,
    floor.RECIPE,
    methods.RECIPE,
    adaptation_steps.RECIPE,
    snell_ways.RECIPE,
    epochs.RECIPE,
    last_epoch.RECIPE,
    strong.RECIPE,
    runs.RECIPE,
    claims.RECIPE,
)
RECIPES: Mapping[str, Recipe] = {recipe.name: recipe for recipe in _IN_ORDER}
"""Every table and figure, by name."""
