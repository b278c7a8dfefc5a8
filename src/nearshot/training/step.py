"""One training step: augment, embed, compute the loss, back-propagate, update. Nothing in it waits for the device."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from nearshot.data.augment import augment, normalise_images
from nearshot.models.kernels import fuse
from nearshot.training.config import TrainConfig
from nearshot.training.distributed import gather_batch, synchronise_batch_norm
from nearshot.training.hardware import Hardware
from nearshot.training.methods import LossInputs, resolve_method
from nearshot.training.module import Embedded, Learner

if TYPE_CHECKING:
    from lightning_fabric import Fabric

__all__ = ["Step", "captured", "inner_optimiser"]

STEPS_BEFORE_CAPTURE = 5


class Step:
    """A training step: a function of a rank's share of the images and of the whole batch's labels.

    Args:
        fabric: launched.
        hardware: how to use the devices; fuse and compile are off where they are None.
        config: what to train.
        learner: the network, which moves to the device.

    Attributes:
        network: the learner, as Fabric set it up.
        optimiser: as Fabric set it up.
        generator: the random numbers of augmentation and pair subsampling, the same on all ranks.
        log_temperature: the logarithm of a learnt temperature, which must stay positive; None if it is not learnt.
    """

    def __init__(self, fabric: Fabric, hardware: Hardware, config: TrainConfig, learner: Learner) -> None:
        device = fabric.device
        learner = learner.to(device).to(memory_format=hardware.memory_format)  # type: ignore[call-overload]
        if config.sync_batch_norm and fabric.world_size > 1:
            synchronise_batch_norm(learner, device)
        if hardware.fuse:
            fuse(learner.backbone)
        if hardware.compile:
            learner.compile()
        self.fabric, self.hardware, self.config, self.method = fabric, hardware, config, resolve_method(config)
        self.learner = learner
        self.log_temperature: nn.Parameter | None = None
        if config.learn_temperature:
            start = torch.tensor(math.log(config.temperature), dtype=torch.float32, device=device)
            self.log_temperature = nn.Parameter(start)
        self.network, self.optimiser = fabric.setup(learner, self._new_optimiser())
        learner.train()
        self.generator = torch.Generator(device).manual_seed(config.seed)

    def _new_optimiser(self) -> torch.optim.Optimizer:
        """Return the optimiser. On a GPU its learning rate is a tensor there, so that a graph reads what is set."""
        config, device = self.config, self.fabric.device
        groups: list[dict[str, Any]] = [{"params": list(self.learner.parameters())}]
        groups[0]["weight_decay"] = config.weight_decay
        if self.log_temperature is not None:  # without decay, since no temperature is the natural one
            groups.append({"params": [self.log_temperature], "weight_decay": 0.0})
        cuda = device.type == "cuda"
        rate = torch.tensor(config.learning_rate, dtype=torch.float32, device=device) if cuda else config.learning_rate
        if config.optimiser == "adam":
            return torch.optim.Adam(groups, lr=rate, fused=cuda, capturable=cuda)
        return torch.optim.SGD(groups, lr=rate, momentum=config.momentum, nesterov=config.nesterov, fused=cuda)

    def __call__(self, images: Tensor, labels: Tensor) -> Tensor:
        """Take a step and return the loss.

        Args:
            images: (image, height, width, 3) uint8, this rank's share.
            labels: (image,) of the whole batch.
        """
        inputs = self.prepare(images)
        self.optimiser.zero_grad()
        if self.config.micro_batch is None:
            loss = self.loss(self.network(inputs), labels)
            self.fabric.backward(loss)
        else:
            loss = self.backward_in_parts(inputs, labels, self.config.micro_batch)
        self.optimiser.step()
        return loss.detach()

    def prepare(self, images: Tensor) -> Tensor:
        """Augment and normalise the images of this rank. All ranks draw for the whole batch, and take their share."""
        spec = self.learner.backbone.spec
        share = (self.fabric.global_rank, self.fabric.world_size)
        augmented = augment(
            images, self.config.augmentation, size=spec.input_size, generator=self.generator, share=share
        )
        return normalise_images(augmented, *spec.normalisation).contiguous(memory_format=self.hardware.memory_format)

    def loss(self, embedded: Embedded, labels: Tensor) -> Tensor:
        """Return the loss of the whole batch, of which this rank has embedded its share."""
        temperature = self.config.temperature if self.log_temperature is None else self.log_temperature.exp()
        logits = None if embedded.logits is None else gather_batch(embedded.logits)
        inputs = LossInputs(gather_batch(embedded.embeddings), logits, labels, temperature, self.generator)
        return self.method.loss(inputs, self.config)

    def backward_in_parts(self, inputs: Tensor, labels: Tensor, part_size: int) -> Tensor:
        """Embed in parts, compute the loss of all, then embed each part again and back-propagate its gradient.

        The memory never holds more than one part's activations. The first pass changes nothing: batch norm's
        statistics go to copies, and the second pass draws the same random numbers.
        """
        parts = inputs.split(part_size)
        buffers = {name: buffer.clone() for name, buffer in self.learner.named_buffers()}
        random_state = _random_state(inputs.device)
        with torch.no_grad(), self.fabric.autocast():
            first_pass = [functional_call(self.learner, buffers, (part,)) for part in parts]
        embedded = _joined(first_pass)
        loss = self.loss(embedded, labels)
        self.fabric.backward(loss)
        gradients = [None if value is None else value.grad for value in embedded]
        _restore(random_state, inputs.device)
        for number, part in enumerate(parts):
            rows = slice(number * part_size, (number + 1) * part_size)
            with self.fabric.no_backward_sync(self.network, enabled=number < len(parts) - 1):
                products = [
                    (value * gradient[rows]).sum()
                    for value, gradient in zip(self.network(part), gradients, strict=True)
                    if value is not None and gradient is not None
                ]
                self.fabric.backward(torch.stack(products).sum())
        return loss


def captured(step: Step, images: Tensor, labels: Tensor) -> Callable[[Tensor, Tensor], Tensor]:
    """Record a step as a CUDA graph, whose replay launches all kernels at once.

    The warm-up that recording needs leaves weights, statistics and random numbers unchanged. Returns a function like
    the step; its result is valid until the next call.
    """
    static_images, static_labels = images.clone(), labels.clone()
    restore = _snapshot(step)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(STEPS_BEFORE_CAPTURE):
            step(static_images, static_labels)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    graph.register_generator_state(step.generator)
    step.optimiser.zero_grad()
    with torch.cuda.graph(graph):
        loss = step(static_images, static_labels)
    restore()

    def replay(images: Tensor, labels: Tensor) -> Tensor:
        static_images.copy_(images, non_blocking=True)
        static_labels.copy_(labels, non_blocking=True)
        graph.replay()
        return loss

    return replay


def _snapshot(step: Step) -> Callable[[], None]:
    """Copy everything that a step changes; return a function that restores it in place, as a graph needs."""

    def changing() -> list[Tensor]:
        own = [step.log_temperature] if step.log_temperature is not None else []
        moments = [value for state in inner_optimiser(step.optimiser).state.values() for value in state.values()]
        tensors = [value for value in moments if isinstance(value, Tensor)]
        return [*step.learner.parameters(), *step.learner.buffers(), *own, *tensors]

    before = changing()
    values = [tensor.detach().clone() for tensor in before]
    device = step.generator.device
    generator_state, random_state = step.generator.get_state(), _random_state(device)

    def restore() -> None:
        with torch.no_grad():
            for tensor, value in zip(before, values, strict=True):
                tensor.copy_(value)
            for tensor in changing()[len(before) :]:  # optimiser state that did not exist before
                tensor.zero_()
        step.generator.set_state(generator_state)
        _restore(random_state, device)

    return restore


def inner_optimiser(optimiser: torch.optim.Optimizer) -> torch.optim.Optimizer:
    """Return the optimiser inside Fabric's, which has a copy of its attributes that may be out of date."""
    inner: torch.optim.Optimizer = getattr(optimiser, "optimizer", optimiser)
    return inner


def _joined(parts: list[Embedded]) -> Embedded:
    """Return the parts as one, the leaves of a new graph."""
    embeddings = torch.cat([part.embeddings for part in parts]).requires_grad_()
    with_logits = [part.logits for part in parts if part.logits is not None]
    return Embedded(embeddings, torch.cat(with_logits).requires_grad_() if with_logits else None)


def _random_state(device: torch.device) -> Tensor:
    return torch.cuda.get_rng_state(device) if device.type == "cuda" else torch.get_rng_state()


def _restore(state: Tensor, device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.set_rng_state(state, device)
    else:
        torch.set_rng_state(state)
