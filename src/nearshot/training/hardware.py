"""Devices, and how a run uses them. Nothing here changes what is trained, except for rounding."""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING

import torch

from nearshot.data.loader import Residence
from nearshot.devices import uses_bfloat16
from nearshot.errors import InputError, MissingExtraError
from nearshot.models import Backbone
from nearshot.models.kernels import can_fuse
from nearshot.training.config import TrainConfig
from nearshot.training.methods import METHODS

if TYPE_CHECKING:
    from lightning_fabric import Fabric

__all__ = ["Hardware"]

# Compiling takes half a minute, which a shorter run does not win back.
STEPS_TO_COMPILE = 2000


@dataclass(frozen=True)
class Hardware:
    """Devices, and how to use them. The defaults choose what is fastest."""

    accelerator: str = "auto"
    """auto, cpu, cuda or mps; auto is cuda where available, and cpu otherwise."""
    devices: int = 1
    """Devices per machine, which share each batch. With torchrun, as many as it has started."""
    nodes: int = 1
    """Machines. Start the same command on each with torchrun."""
    residence: Residence | None = None
    """Where the images live: on the device, in the host's memory, or on disk, read ahead. By
    default by size."""
    fuse: bool | None = None
    """Compute batch norm, shortcut and activation in one Triton kernel. By default on a GPU for
    networks that support it (resnet12 and conv4) and are not compiled."""
    compile: bool | None = None
    """Compile the network. By default on a GPU where it is not fused, for runs long enough to win
    the time back."""
    graph: bool | None = None
    """Replay a step as a CUDA graph. By default on a single GPU, except for a method of your own
    and for micro-batches: a graph repeats what the device did, not what Python decided."""
    timeout_minutes: float = 10.0
    """Minutes that the processes of a run wait for each other, before it stops with an error."""
    channels_last: bool = True
    """Store images and weights with the channels last: faster on a GPU, and up to three times
    faster on a CPU."""

    def fabric(self, config: TrainConfig) -> Fabric:
        """Return Fabric for this hardware and a configuration's precision."""
        try:
            from lightning_fabric import Fabric  # noqa: PLC0415 (takes seconds to import)
            from lightning_fabric.strategies.ddp import DDPStrategy  # noqa: PLC0415
        except ImportError as error:
            raise MissingExtraError(
                "Training needs the library lightning-fabric: pip install '.[train]' in the clone."
            ) from error

        accelerator = self.accelerator
        if accelerator == "auto":
            # Fabric would choose mps, which has no float64 and no deterministic crops.
            accelerator = "cuda" if torch.cuda.is_available() else "cpu"
        devices = self.devices
        nodes = self.nodes
        if "WORLD_SIZE" in os.environ and "LOCAL_WORLD_SIZE" in os.environ:
            # As many as torchrun has started.
            devices = int(os.environ["LOCAL_WORLD_SIZE"])
            nodes = int(os.environ["WORLD_SIZE"]) // devices
        strategy: DDPStrategy | str = "auto"
        if devices * nodes > 1:
            strategy = DDPStrategy(timeout=timedelta(minutes=self.timeout_minutes))
        is_bfloat16 = uses_bfloat16(config.precision, accelerator)
        # No stack traces of processes that lose each other.
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
        logging.getLogger("lightning_fabric").setLevel(logging.WARNING)
        try:
            return Fabric(
                accelerator=accelerator,
                devices=devices,
                num_nodes=nodes,
                strategy=strategy,
                precision="bf16-mixed" if is_bfloat16 else "32-true",
            )
        except (TypeError, ValueError, RuntimeError) as error:  # the kinds that Fabric raises
            raise InputError(
                f"This machine cannot train on {devices} × {accelerator}: {error}"
            ) from error

    def launch(self, config: TrainConfig) -> Fabric:
        """Start the processes of a run; return Fabric of this one."""
        fabric = self.fabric(config)
        fabric.launch()
        return fabric

    def resolved(
        self,
        device: torch.device,
        config: TrainConfig,
        backbone: Backbone,
        *,
        n_ranks: int,
        n_steps: int,
    ) -> Hardware:
        """Return the hardware with fuse, compile and graph decided, or refuse what is impossible.

        `n_ranks` processes train together; `n_steps`, the length of the run, decides whether
        compiling pays.
        """
        # Fused kernels neither wait for the statistics of other processes, nor keep those of an
        # initial network.
        waits = config.sync_batch_norm and n_ranks > 1
        fusible = can_fuse(backbone, device) and not waits and config.init is None
        capturable = device.type == "cuda" and n_ranks == 1
        if self.fuse and self.compile:
            raise InputError("fuse and compile exclude each other; choose one.")
        if self.fuse and not fusible:
            raise InputError(f"fuse is not possible for {backbone.spec.name} on {device.type}.")
        if self.graph and not capturable:
            raise InputError("graph, a CUDA graph, needs a single GPU.")
        fuse = self.fuse
        compile_ = self.compile
        graph = self.graph
        if fuse is None:
            fuse = not compile_ and fusible
        if compile_ is None:
            compile_ = device.type == "cuda" and not fuse and n_steps >= STEPS_TO_COMPILE
        if graph is None:
            # Micro-batches restore random states in the middle of a step, which a graph cannot.
            is_built_in = type(config.method) in METHODS.values()
            graph = capturable and is_built_in and config.micro_batch is None
        return replace(self, fuse=fuse, compile=compile_, graph=graph)

    @property
    def memory_format(self) -> torch.memory_format:
        """The memory format of images and weights."""
        return torch.channels_last if self.channels_last else torch.contiguous_format
