"""Experiments: every table and figure of the paper, from trainings that are run once."""

from nearshot.experiments.recipes import RECIPES
from nearshot.experiments.reproduce import Reproduction, reproduce
from nearshot.experiments.results import Results

__all__ = ["RECIPES", "Reproduction", "Results", "reproduce"]
