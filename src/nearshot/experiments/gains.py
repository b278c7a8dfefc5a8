"""Cells of differences between models of ours on the same episodes, such as what another use of a network gains."""

from __future__ import annotations

from nearshot.experiments.paired import Gap, gap
from nearshot.experiments.recipe import Found
from nearshot.experiments.results import Measurement
from nearshot.experiments.tables import Cell, Interval, cell, signed
from nearshot.training import TrainConfig

__all__ = ["about_gains", "gain", "gap_cell"]


def gain(found: Found, config: TrainConfig, one: Measurement | None, plain: Measurement) -> Cell:
    """Return what one measurement of a training has more than the plain one on the episodes that both have."""
    return gap_cell(None if one is None else gap(found, "gain", (config, one), (config, plain)))


def gap_cell(one: Gap | None, *, with_seeds: bool = False) -> Cell:
    """Return a difference with its interval, and with that of each training seed in brackets, or a dash."""
    if one is None:
        return cell(None)
    seeds = f" ({', '.join(map(signed, one.by_seed))})" if with_seeds and one.by_seed else ""
    over = "episodes" if one.n_seeds == 1 else "training seeds"
    interval = Interval(one.interval95, over, one.by_seed or (one.difference,))
    return Cell(one.in_points + seeds, one.difference, interval=interval)


def about_gains(found: Found, against: str) -> str:
    """Say what the gains of a table are."""
    return (
        f"Gains are against {against} on the same episodes, of which adapted rows have "
        f"{found.scale.adapted_episodes} at most; ± is over episodes for one training seed, between them for several."
    )
