"""Prototypical Networks."""

from dataclasses import dataclass
from typing import ClassVar

from nearshot.training.methods.episodic import EpisodicMethod


@dataclass(frozen=True)
class PrototypicalNetworks(EpisodicMethod):
    """Each query image picks among the mean support embeddings of the classes (Section 2.2)."""

    title: ClassVar[str] = "Prototypical Networks"
    prototypes: ClassVar[bool] = True
    separate: ClassVar[bool] = True
