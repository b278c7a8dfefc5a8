"""What another use of the same network gains: both on the same episodes, where their tables' means may not be."""

from __future__ import annotations

from nearshot.experiments.gaps import gap
from nearshot.experiments.recipe import Found
from nearshot.experiments.results import Measurement
from nearshot.experiments.tables import Cell, cell
from nearshot.training import TrainConfig

__all__ = ["about_gains", "gain"]


def gain(found: Found, config: TrainConfig, one: Measurement | None, plain: Measurement) -> Cell:
    """Return what one measurement of a training has more than the plain one on the episodes that both have."""
    gained = None if one is None else gap(found, "gain", (config, one), (config, plain))
    return cell(None) if gained is None else Cell(gained.in_points, gained.difference)


def about_gains(found: Found, against: str) -> str:
    """Say what the gains of a table are."""
    return (
        f"Gains are against {against} on the same episodes, of which adapted rows have "
        f"{found.scale.adapted_episodes} at most; ± is over episodes for one training seed, between them for several."
    )
