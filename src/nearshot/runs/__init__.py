"""Trained runs: opening them, embedding with their weights and measuring them."""

from nearshot.runs.evaluate import Evaluation, evaluate_network, evaluate_run, evaluate_weights
from nearshot.runs.run import TrainedRun, TrainedWeights, Unfinished, open_run, open_weights
from nearshot.runs.runs_table import table

__all__ = [
    "Evaluation",
    "TrainedRun",
    "TrainedWeights",
    "Unfinished",
    "evaluate_network",
    "evaluate_run",
    "evaluate_weights",
    "open_run",
    "open_weights",
    "table",
]
