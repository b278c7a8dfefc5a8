"""The progress of a run, and the complete state from which it can be resumed exactly."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from nearshot.data.samplers import Batches
from nearshot.training.batches import Composition
from nearshot.training.step import Step, inner_optimiser

__all__ = ["Progress", "load_state", "state_of"]


class Progress:
    """The current epoch, its sums so far, and the best epochs before it.

    Attributes:
        epoch: the current epoch, counted from 1.
        step: the number of steps taken.
        best: by "5-shot centroid" and the like, the best validation accuracy so far, with its epoch.
        history: the log records of earlier epochs.
    """

    def __init__(self) -> None:
        self.epoch, self.step = 1, 0
        self.best: dict[str, dict[str, Any]] = {}
        self.history: list[dict[str, Any]] = []
        self.n_steps, self.loss_sum = 0, torch.zeros((), dtype=torch.float64)
        self.made_of = [0.0, 0.0, 0.0]

    def add(self, loss: Tensor, made_of: Composition | None) -> None:
        """Add a step. The loss stays on its device, since reading it would wait for the device."""
        dtype = torch.float32 if loss.device.type == "mps" else torch.float64  # mps has no float64
        self.loss_sum = self.loss_sum.to(loss.device, dtype) + loss
        self.n_steps += 1
        self.step += 1
        if made_of is not None:
            self.made_of = [total + here for total, here in zip(self.made_of, made_of, strict=True)]

    def epoch_record(self, step: Step) -> dict[str, Any]:
        """Return the log record of the epoch. This waits for the device."""
        record: dict[str, Any] = {
            "epoch": self.epoch,
            "step": self.step,
            "loss": float(self.loss_sum) / self.n_steps,
            "learning_rate": float(inner_optimiser(step.optimiser).param_groups[0]["lr"]),
        }
        if step.log_temperature is not None:
            record["temperature"] = float(step.log_temperature.detach().exp())
        averages = {name: total / self.n_steps for name, total in zip(Composition._fields, self.made_of, strict=True)}
        return record | (averages if any(self.made_of) else {})

    def next_epoch(self) -> None:
        """Begin the next epoch."""
        self.epoch += 1
        self.n_steps, self.loss_sum, self.made_of = 0, torch.zeros_like(self.loss_sum), [0.0, 0.0, 0.0]


def state_of(step: Step, sampler: Batches, progress: Progress) -> dict[str, Any]:
    """Return the state of a run: weights, optimiser, position, random states and log."""
    device = step.generator.device
    return {
        "learner": step.learner.state_dict(),
        "log_temperature": step.log_temperature,
        "optimiser": inner_optimiser(step.optimiser).state_dict(),
        "sampler": sampler.state_dict(),
        "device": device.type,
        "generator": step.generator.get_state(),
        "random": torch.get_rng_state(),
        "random_device": torch.cuda.get_rng_state(device) if device.type == "cuda" else None,
        "progress": dict(vars(progress)),
    }


def load_state(state: dict[str, Any], step: Step, sampler: Batches, progress: Progress) -> bool:
    """Restore a state; return whether the run resumes exactly.

    It does not on another kind of device than before, where random numbers come from a new generator.
    """
    device = step.generator.device
    step.learner.load_state_dict(state["learner"])
    if step.log_temperature is not None:
        with torch.no_grad():
            step.log_temperature.copy_(state["log_temperature"])
    optimiser = inner_optimiser(step.optimiser)
    of_device: tuple[str, ...] = ("lr", "fused", "foreach", "capturable")  # where and how the device computes steps
    kept = [{name: group[name] for name in of_device if name in group} for group in optimiser.param_groups]
    optimiser.load_state_dict(state["optimiser"])
    for group, values in zip(optimiser.param_groups, kept, strict=True):
        group.update(values)
    sampler.load_state_dict(state["sampler"])
    vars(progress).update(state["progress"])
    progress.loss_sum = progress.loss_sum.to(device)
    torch.set_rng_state(state["random"])
    if state["device"] != device.type:
        step.generator.manual_seed(hash((step.config.seed, progress.step)) % 2**63)
        return False
    step.generator.set_state(state["generator"])
    if device.type == "cuda":
        torch.cuda.set_rng_state(state["random_device"], device)
    return True
