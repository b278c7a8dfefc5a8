"""Experiments: every table and figure of the paper, from runs that are trained once."""

from nearshot.paper.recipes import RECIPES
from nearshot.paper.reproduce import Reproduction, reproduce
from nearshot.paper.results import Results

__all__ = ["RECIPES", "Reproduction", "Results", "reproduce"]
