"""The recipes by name, in the order of the paper."""

from collections.abc import Mapping

from nearshot.paper.recipe import Recipe
from nearshot.paper.recipes import (
    ablations,
    batches,
    choices,
    comparison,
    epochs,
    features,
    pairs,
    runs,
    strong,
)

__all__ = ["RECIPES"]

_IN_ORDER = (
    *(pairs.RECIPE, batches.BATCHES, batches.SUBSAMPLING, ablations.RECIPE, comparison.COMPARE),
    *(
        features.CLASSIFY,
        choices.SCHEDULES,
        features.ADAPT,
        comparison.CONTRAST,
        comparison.IMPLEMENTATIONS,
    ),
    *(
        choices.STATED_CHOICES,
        choices.FLOOR,
        choices.EVERY_METHOD,
        features.ADAPT_STEPS,
        comparison.SNELL,
    ),
    *(epochs.EPOCHS, epochs.LAST_EPOCH, strong.RECIPE, runs.RECIPE),
)
RECIPES: Mapping[str, Recipe] = {recipe.name: recipe for recipe in _IN_ORDER}
"""Every table and figure, by name."""
