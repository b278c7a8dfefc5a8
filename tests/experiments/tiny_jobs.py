"""Jobs that take seconds, on the tiny dataset."""

from __future__ import annotations

from dataclasses import replace

from settings import TINY

from nearshot.experiments.jobs import Job
from nearshot.experiments.results import Measurement
from nearshot.training import Hardware

__all__ = ["CPU", "tiny_job"]

CPU = Hardware(accelerator="cpu")


def tiny_job(seed: int = 0, *, epochs: int = 2) -> Job:
    """Return a job of some epochs, each about a tenth of a second on one thread."""
    config = replace(TINY, epochs=epochs, seed=seed, validate_every=20, validation_shots=(1,))
    wanted = (Measurement("val", 1, "centroid"), Measurement("test", 1, "centroid"))
    return Job(config, "tiny", wanted, ("test",))
