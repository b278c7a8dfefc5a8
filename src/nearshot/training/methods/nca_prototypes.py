"""NCA with prototypes, row 7 of Figure 4."""

from dataclasses import dataclass
from typing import ClassVar

from nearshot.training.methods.episodic import EpisodicMethod


@dataclass(frozen=True)
class NCAWithPrototypes(EpisodicMethod):
    """NCA on the query images and the classes' mean support embeddings (row 7 of Figure 4)."""

    title: ClassVar[str] = "NCA with prototypes"
    prototypes: ClassVar[bool] = True
