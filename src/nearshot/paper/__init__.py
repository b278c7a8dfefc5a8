"""Experiments: every table and figure of the paper, from runs that are trained once."""

from importlib.util import find_spec

from nearshot.errors import MissingExtraError

if find_spec("matplotlib") is None:
    raise MissingExtraError(
        "The tables and figures of the paper need matplotlib: "
        "pip install '.[reproduce]' in the clone."
    )

from nearshot.paper.recipes import RECIPES
from nearshot.paper.reproduce import Reproduction, reproduce
from nearshot.paper.results import Results

__all__ = ["RECIPES", "Reproduction", "Results", "reproduce"]
