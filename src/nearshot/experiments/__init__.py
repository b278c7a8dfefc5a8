"""Experiments: every table and figure of the paper, from runs that are trained once."""

from nearshot.experiments.recipes import RECIPES
from nearshot.experiments.reproduce import Reproduction, reproduce
from nearshot.experiments.results import Results

__all__ = ["RECIPES", "Reproduction", "Results", "reproduce"]
