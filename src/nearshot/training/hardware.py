"""On what to train. Nothing here changes what is trained, but for rounding."""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch

from nearshot.data.loader import Residence
from nearshot.devices import uses_bfloat16
from nearshot.errors import InputError
from nearshot.models import Backbone
from nearshot.models.kernels import can_fuse
from nearshot.training.config import TrainConfig

if TYPE_CHECKING:
    from lightning_fabric import Fabric

__all__ = ["Hardware"]

# Compiling takes half a minute, which a short training does not win back.
STEPS_TO_COMPILE = 2000


@dataclass(frozen=True)
class Hardware:
    """Devices, and how to use them. None means: what is fastest here."""

    accelerator: str = "auto"
    """auto, which is cuda where there is one and cpu elsewhere; cpu, cuda or mps."""
    devices: int = 1
    """How many devices of a machine; the batch is shared among them. With torchrun, as many as it has started."""
    nodes: int = 1
    """How many machines. Start the same command on each with torchrun."""
    residence: Residence | None = None
    """Where the images live: on the device, in the host's memory, or on disk, read ahead. None chooses by size."""
    fuse: bool | None = None
    """Batch norm, shortcut and activation in one pass over memory, by kernels of our own; None does on a GPU where the
    network is made for it (resnet12 and conv4 are) and not to be compiled."""
    compile: bool | None = None
    """Compile the network; None does on a GPU where it is not fused, for trainings long enough to win the time back."""
    graph: bool | None = None
    """Replay a step as one CUDA graph; None does on a single GPU, unless the loss is a function of your own: a graph
    repeats what the device did, and not what Python decided."""
    channels_last: bool = True
    """Keep the channels of a pixel together in memory: faster on a GPU, and on a CPU up to three times."""

    def fabric(self, config: TrainConfig) -> Fabric:
        """Return Fabric for this hardware and a configuration's precision."""
        from lightning_fabric import Fabric  # noqa: PLC0415 (takes seconds, which help and refusals need not wait for)

        if self.devices < 1 or self.nodes < 1:
            raise InputError(f"There must be a device and a machine, not {self.devices} and {self.nodes}.")
        accelerator = self.accelerator
        if accelerator == "auto":  # Fabric's would take Apple's, which has no float64 and no deterministic crops
            accelerator = "cuda" if torch.cuda.is_available() else "cpu"
        if accelerator in ("cuda", "gpu") and not torch.cuda.is_available():
            raise InputError(f"accelerator must be one that there is: this machine has cpu, and no {accelerator}.")
        devices, nodes = self._processes()
        logging.getLogger("lightning_fabric").setLevel(logging.WARNING)  # it tells what is in the run's files anyway
        try:
            return Fabric(
                accelerator=accelerator,
                devices=devices,
                num_nodes=nodes,
                strategy="ddp" if devices * nodes > 1 else "auto",
                precision="bf16-mixed" if uses_bfloat16(config.precision, accelerator) else "32-true",
            )
        except (ValueError, RuntimeError) as error:  # Fabric's own are of these kinds
            raise InputError(f"This machine cannot train on {devices} × {accelerator}: {error}") from error

    def _processes(self) -> tuple[int, int]:
        """Return devices and machines: as many as torchrun has started, if it has."""
        if "WORLD_SIZE" not in os.environ or "LOCAL_WORLD_SIZE" not in os.environ:
            return self.devices, self.nodes
        here = int(os.environ["LOCAL_WORLD_SIZE"])
        nodes = int(os.environ["WORLD_SIZE"]) // here
        if (self.devices, self.nodes) not in ((1, 1), (here, nodes)):
            raise InputError(
                f"torchrun has started {here} processes on each of {nodes} machines; {self.devices} devices on "
                f"{self.nodes} were asked for."
            )
        return here, nodes

    def resolved(
        self, device: torch.device, config: TrainConfig, backbone: Backbone, *, n_ranks: int, n_steps: int
    ) -> Hardware:
        """Return what a training uses: fuse, compile and graph decided. What is asked for and impossible is refused.

        Args:
            device: a process's.
            config: what is trained.
            backbone: the network.
            n_ranks: how many processes train together.
            n_steps: how long the training is, which decides whether compiling pays.
        """
        cuda = device.type == "cuda"
        if self.fuse and self.compile:
            raise InputError("A network is fused or compiled, not both.")
        if self.fuse and not can_fuse(backbone, device):
            raise InputError(f"Fusing {backbone.spec.name}'s batch norm is not possible on {device.type}.")
        can_be_captured = cuda and n_ranks == 1
        if self.graph and not can_be_captured:
            raise InputError("A CUDA graph needs a single GPU.")
        fuse, compile_, graph = self.fuse, self.compile, self.graph
        if fuse is None:
            fuse = not compile_ and can_fuse(backbone, device)
        if compile_ is None:
            compile_ = cuda and not fuse and n_steps >= STEPS_TO_COMPILE
        if graph is None:  # micro-batches put random states back in the middle of a step, which a graph cannot
            graph = can_be_captured and isinstance(config.method, str) and config.micro_batch is None
        return replace(self, fuse=fuse, compile=compile_, graph=graph)

    @property
    def memory_format(self) -> torch.memory_format:
        """How images and weights lie in memory."""
        return torch.channels_last if self.channels_last else torch.contiguous_format
