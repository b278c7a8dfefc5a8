"""The progress of a run, and checkpoints: the complete state for an exact resume, in one file written atomically."""

import io
import zipfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from nearshot.data.samplers import Batches
from nearshot.errors import FileFormatError, InputError
from nearshot.io import atomic_write
from nearshot.training.config import TrainConfig, differences
from nearshot.training.methods import PairsInBatch
from nearshot.training.step import Step

FORMAT, VERSION = "nearshot-checkpoint", 1


class Progress:
    """The current epoch, its sums so far, and the best epochs and log records before it."""

    def __init__(self) -> None:
        self.epoch, self.step = 1, 0  # the epochs are counted from 1, and the steps are those taken
        self.best: dict[
            str, dict[str, Any]
        ] = {}  # by "5-shot centroid" and the like, with its epoch
        self.history: list[dict[str, Any]] = []
        self.initial: dict[
            str, float
        ] = {}  # the accuracies of epoch 0, the unchanged initial network
        self.n_steps, self.loss_sum = 0, torch.zeros((), dtype=torch.float64)
        self.pairs = [0.0, 0.0, 0.0]

    def add(self, loss: Tensor, pairs: PairsInBatch | None) -> None:
        """Add a step. The loss stays on its device, since reading it would wait for the device."""
        dtype = torch.float32 if loss.device.type == "mps" else torch.float64  # mps has no float64
        self.loss_sum = self.loss_sum.to(loss.device, dtype) + loss
        self.n_steps += 1
        self.step += 1
        if pairs is not None:
            self.pairs = [total + here for total, here in zip(self.pairs, pairs, strict=True)]

    def next_epoch(self) -> None:
        """Begin the next epoch."""
        self.epoch += 1
        self.n_steps, self.loss_sum, self.pairs = (
            0,
            torch.zeros_like(self.loss_sum),
            [0.0, 0.0, 0.0],
        )


def state_of(step: Step, sampler: Batches, progress: Progress) -> dict[str, Any]:
    """Return the state of a run: weights, optimiser, position, random states and log."""
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
        "progress": dict(vars(progress)),
    }


def load_state(state: dict[str, Any], step: Step, sampler: Batches, progress: Progress) -> bool:
    """Restore a state; return whether the run resumes exactly.

    It does not on another kind of device than before, where random numbers come from a new
    generator.
    """
    device = step.generator.device
    step.learner.load_state_dict(state["learner"])
    step.loss_modules.load_state_dict(state["loss_modules"])
    if step.average is not None:
        step.average.load_state_dict(state["average"])
    of_device: tuple[str, ...] = (
        "lr",
        "fused",
        "foreach",
        "capturable",
    )  # where and how the device computes steps
    kept = [
        {name: group[name] for name in of_device if name in group}
        for group in step.optimiser.param_groups
    ]
    for group, values in zip(state["optimiser"]["param_groups"], kept, strict=True):
        group.update(values)  # before the optimiser places its state by them
    step.optimiser.load_state_dict(state["optimiser"])
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


def write_checkpoint(path: Path, state: dict[str, Any]) -> None:
    """Write a state to a file, atomically."""
    state = {"format": FORMAT, "version": VERSION} | state
    buffer = io.BytesIO()  # so that a full disk is an OSError, and not one of PyTorch's
    torch.save(pytree.tree_map_only(Tensor, lambda tensor: tensor.detach().cpu(), state), buffer)
    with atomic_write(path) as file:
        file.write(buffer.getbuffer())


def read_checkpoint(path: Path) -> dict[str, Any]:
    """Read a checkpoint. No code in the file is executed; a file that is not a checkpoint is refused."""
    problem = f"{path} is not a checkpoint of a training run, or is damaged. Restore it, or start with --overwrite."
    try:
        with zipfile.ZipFile(path) as archive:
            damaged = archive.testzip()  # PyTorch does not look at the checksums
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # the readers of archives and pickles raise many kinds
        raise FileFormatError(problem) from error
    if damaged is not None or not isinstance(state, dict) or state.get("format") != FORMAT:
        raise FileFormatError(problem)
    if state["version"] != VERSION:
        raise FileFormatError(
            f"{path} has format {state['version']}; this version of nearshot reads {VERSION}."
        )
    return state


def check_same_training(
    state: dict[str, Any], config: TrainConfig, fingerprints: dict[str, str]
) -> None:
    """Refuse a checkpoint, or a result, of another configuration or of other data, and name the difference."""
    different = differences(TrainConfig.from_dict(state["config"]), config)
    if different:
        listed = "; ".join(
            f"{name} was {there!r} and is now {here!r}" for name, (there, here) in different.items()
        )
        raise InputError(f"The run has another configuration: {listed}.")
    for split in fingerprints | state["fingerprints"]:
        there, here = (
            str(found.get(split))[:12] for found in (state["fingerprints"], fingerprints)
        )
        if there != here:
            raise InputError(
                f"The run is of other data: the fingerprint of {split} was {there} and is now {here}."
            )
