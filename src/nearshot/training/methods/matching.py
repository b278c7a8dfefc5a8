"""Matching Networks."""

from dataclasses import dataclass
from typing import ClassVar

from nearshot.evaluation.classifiers import ClassifierName
from nearshot.training.methods.episodic import EpisodicMethod


@dataclass(frozen=True)
class MatchingNetworks(EpisodicMethod):
    """Each query image picks among the support images of all classes (Section 2.2)."""

    title: ClassVar[str] = "Matching Networks"
    classifier: ClassVar[ClassifierName] = "soft"
    separate: ClassVar[bool] = True
