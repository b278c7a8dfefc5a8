"""The state of a run, and checkpoints, from which it resumes exactly."""

import io
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from nearshot.data.samplers import Batches
from nearshot.errors import FileFormatError, InputError, NearshotError
from nearshot.io import atomic_write
from nearshot.training.config import TrainConfig, differences
from nearshot.training.methods import PairsInBatch
from nearshot.training.step import Step

FORMAT = "nearshot-checkpoint"
VERSION = 2
# What every checkpoint has, with its type.
PARTS: dict[str, type] = {
    "config": dict,
    "fingerprints": dict,
    "learner": dict,
    "loss_modules": dict,
    "optimiser": dict,
    "sampler": dict,
    "progress": dict,
    "device": str,
    "generator": Tensor,
    "random": Tensor,
}


def _no_loss() -> Tensor:
    return torch.zeros((), dtype=torch.float64)


def _no_pairs() -> list[float]:
    return [0.0, 0.0, 0.0]


@dataclass
class RunState:
    """What a run is at; a checkpoint holds it whole.

    Attributes:
        epoch: the current epoch, counted from 1.
        step: how many steps were taken in all.
        best: by "5-shot centroid" and the like, the best accuracy on the validation split so far,
            with its epoch.
        history: the log records of the epochs before the current one.
        initial: the accuracies of epoch 0, the unchanged initial network.
        n_steps: how many steps of the current epoch were taken.
        loss_sum: the sum of their losses.
        pairs: the sums of their `PairsInBatch`.
    """

    epoch: int = 1
    step: int = 0
    best: dict[str, dict[str, Any]] = field(default_factory=dict)
    history: list[dict[str, Any]] = field(default_factory=list)
    initial: dict[str, float] = field(default_factory=dict)
    n_steps: int = 0
    loss_sum: Tensor = field(default_factory=_no_loss)
    pairs: list[float] = field(default_factory=_no_pairs)

    def add(self, loss: Tensor, pairs: PairsInBatch | None) -> None:
        """Add a step. The loss stays on its device, since reading it would wait for the device."""
        dtype = torch.float32 if loss.device.type == "mps" else torch.float64  # mps has no float64
        self.loss_sum = self.loss_sum.to(loss.device, dtype) + loss
        self.n_steps += 1
        self.step += 1
        if pairs is not None:
            self.pairs = [total + count for total, count in zip(self.pairs, pairs, strict=True)]

    def next_epoch(self) -> None:
        """Begin the next epoch."""
        self.epoch += 1
        self.n_steps = 0
        self.loss_sum = torch.zeros_like(self.loss_sum)
        self.pairs = _no_pairs()

    def best_epochs(self) -> dict[str, int]:
        """Return the epochs of the best accuracies so far."""
        return {name: int(values["epoch"]) for name, values in self.best.items()}


def state_of(step: Step, sampler: Batches, state: RunState) -> dict[str, Any]:
    """Return what a run needs to resume: weights, optimiser, position, random states and log."""
    device = step.generator.device
    return {
        "learner": step.learner.state_dict(),
        "loss_modules": step.loss_modules.state_dict(),
        "average": None if step.average is None else step.average.state_dict(),
        "optimiser": step.optimiser.state_dict(),
        "sampler": sampler.state_dict(),
        "device": device.type,
        "generator": step.generator.get_state(),
        "random": torch.get_rng_state(),
        "random_device": torch.cuda.get_rng_state(device) if device.type == "cuda" else None,
        "progress": dict(vars(state)),
    }


def load_state(checkpoint: dict[str, Any], step: Step, sampler: Batches, state: RunState) -> bool:
    """Inverse of `state_of`; return whether the run resumes exactly.

    It does not on another kind of device than before, where random numbers come from a new
    generator.
    """
    try:
        return _load_state(checkpoint, step, sampler, state)
    except NearshotError:
        raise
    except (LookupError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise FileFormatError(
            f"The checkpoint does not fit this run: {reason} Overwrite the run."
        ) from error


def _load_state(checkpoint: dict[str, Any], step: Step, sampler: Batches, state: RunState) -> bool:
    device = step.generator.device
    step.learner.load_state_dict(checkpoint["learner"])
    step.loss_modules.load_state_dict(checkpoint["loss_modules"])
    if step.average is not None:
        step.average.load_state_dict(checkpoint["average"])
    _load_optimiser(step.optimiser, checkpoint["optimiser"])
    sampler.load_state_dict(checkpoint["sampler"])
    for name, value in checkpoint["progress"].items():
        setattr(state, name, value)
    state.loss_sum = state.loss_sum.to(device)
    torch.set_rng_state(checkpoint["random"])
    if checkpoint["device"] != device.type:
        step.generator.manual_seed(hash((step.config.seed, state.step)) % 2**63)
        return False
    step.generator.set_state(checkpoint["generator"])
    if device.type == "cuda":
        torch.cuda.set_rng_state(checkpoint["random_device"], device)
    return True


def _load_optimiser(optimiser: torch.optim.Optimizer, saved: dict[str, Any]) -> None:
    """Load the state of an optimiser; where and how this device computes steps stays."""
    of_device = ("lr", "fused", "foreach", "capturable")
    for group, saved_group in zip(optimiser.param_groups, saved["param_groups"], strict=True):
        for name in of_device:
            if name in group:
                saved_group[name] = group[name]  # before the optimiser places its state by it
    optimiser.load_state_dict(saved)


def write_checkpoint(path: Path, state: dict[str, Any]) -> None:
    """Write a state to a file, atomically."""
    state = {"format": FORMAT, "version": VERSION} | state
    buffer = io.BytesIO()  # so that a full disk is an OSError, and not one of PyTorch's
    torch.save(pytree.tree_map_only(Tensor, lambda tensor: tensor.detach().cpu(), state), buffer)
    with atomic_write(path) as file:
        file.write(buffer.getbuffer())


def read_checkpoint(path: Path) -> dict[str, Any]:
    """Read a checkpoint, or refuse a file that is not one. No code in the file is executed."""
    problem = (
        f"{path} is not a checkpoint of a training run, or is damaged. Restore it, or overwrite "
        "the run."
    )
    try:
        with zipfile.ZipFile(path) as archive:
            damaged = archive.testzip()  # PyTorch does not look at the checksums
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # the readers of archives and pickles raise many kinds
        raise FileFormatError(problem) from error
    if damaged is not None or not isinstance(state, dict) or state.get("format") != FORMAT:
        raise FileFormatError(problem)
    if state.get("version") != VERSION:
        raise FileFormatError(
            f"{path} has format {state.get('version')!r}; this version of nearshot reads {VERSION}."
        )
    wrong = [name for name, kind in PARTS.items() if not isinstance(state.get(name), kind)]
    if wrong:
        raise FileFormatError(f"{path} lacks {', '.join(wrong)}: it is damaged. Overwrite the run.")
    return state


def check_same_training(
    state: Mapping[str, Any], config: TrainConfig, fingerprints: Mapping[str, str]
) -> None:
    """Refuse a checkpoint, or a result, of other settings or data, and name the difference."""
    different = differences(TrainConfig.from_dict(state["config"]), config)
    if different:
        changes = [
            f"{name} was {old!r} and is now {new!r}" for name, (old, new) in different.items()
        ]
        raise InputError(f"The run has another configuration: {'; '.join(changes)}.")
    earlier_fingerprints = state["fingerprints"]
    for split in {**fingerprints, **earlier_fingerprints}:
        old = str(earlier_fingerprints.get(split))[:12]
        new = str(fingerprints.get(split))[:12]
        if old != new:
            raise InputError(
                f"The run is of other data: the fingerprint of {split} was {old} and is now {new}."
            )
