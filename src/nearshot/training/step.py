"""One step of training: augment, embed, compare, go back, move the weights. Nothing in it waits for the device."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from nearshot.data.augment import augment, normalise_images
from nearshot.models.kernels import fuse
from nearshot.training.config import TrainConfig
from nearshot.training.distributed import gather_batch, synchronise_batch_norm
from nearshot.training.hardware import Hardware
from nearshot.training.methods import Outputs, resolve_method
from nearshot.training.module import Embedded, Learner

if TYPE_CHECKING:
    from lightning_fabric import Fabric

__all__ = ["Step", "captured", "inner_optimiser", "make_step", "tuned_convolutions"]

STEPS_BEFORE_CAPTURE = 5


class Step:
    """A step as a function of a rank's share of the images and of the whole batch's labels; returns the loss.

    Attributes:
        hardware: how the devices are used, nothing of it left open.
        network: the learner, as Fabric set it up.
        optimiser: as Fabric set it up.
        generator: where augmentation and pair subsampling draw from, the same on all ranks.
        log_temperature: a parameter, where the temperature is learnt.
    """

    def __init__(
        self,
        fabric: Fabric,
        hardware: Hardware,
        config: TrainConfig,
        network: nn.Module,
        learner: Learner,
        optimiser: torch.optim.Optimizer,
        generator: torch.Generator,
        log_temperature: nn.Parameter | None = None,
    ) -> None:
        self.fabric, self.hardware, self.config, self.method = fabric, hardware, config, resolve_method(config)
        self.network, self.learner, self.optimiser = network, learner, optimiser
        self.generator, self.log_temperature = generator, log_temperature

    def __call__(self, images: Tensor, labels: Tensor) -> Tensor:
        """Take a step. `images`: (image, height, width, 3) uint8, this rank's share; `labels`: (whole batch,)."""
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
        pictures = augment(
            images, self.config.augmentation, size=spec.input_size, generator=self.generator, share=share
        )
        return normalise_images(pictures, *spec.normalisation).contiguous(memory_format=self.hardware.memory_format)

    def loss(self, embedded: Embedded, labels: Tensor) -> Tensor:
        """Return the loss of the whole batch, of which this rank has embedded its share."""
        temperature = self.config.temperature if self.log_temperature is None else self.log_temperature.exp()
        outputs = Outputs(
            embeddings=gather_batch(embedded.embeddings),
            logits=None if embedded.logits is None else gather_batch(embedded.logits),
            labels=labels,
            temperature=temperature,
            generator=self.generator,
        )
        return self.method.loss(outputs, self.config)

    def backward_in_parts(self, inputs: Tensor, labels: Tensor, part_size: int) -> Tensor:
        """Embed in parts, compare all, then embed each part again and send its share of the gradient back.

        At no time does the memory hold more than one part's activations. The first pass leaves no trace: batch norm's
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
            with self.fabric.no_backward_sync(self.network, enabled=number < len(parts) - 1):  # type: ignore[arg-type]
                products = [
                    (value * gradient[rows]).sum()
                    for value, gradient in zip(self.network(part), gradients, strict=True)
                    if value is not None and gradient is not None
                ]
                self.fabric.backward(torch.stack(products).sum())
        return loss


def make_step(
    fabric: Fabric, hardware: Hardware, config: TrainConfig, *, input_size: int, n_classes: int, n_steps: int
) -> Step:
    """Return the step of a training with new weights, drawn from torch's global generator.

    Args:
        fabric: launched.
        hardware: how to use the devices; what it leaves open is decided here.
        config: what to train.
        input_size: the side of the images that the network sees.
        n_classes: the number of training classes, for a linear head.
        n_steps: how long the training is, which decides whether compiling pays.
    """
    device = fabric.device
    learner = Learner(config, input_size, n_classes).to(device)
    learner = learner.to(memory_format=hardware.memory_format)  # type: ignore[call-overload]
    if config.sync_batch_norm and fabric.world_size > 1:
        synchronise_batch_norm(learner, device)
    hardware = hardware.resolved(device, config, learner.backbone, n_ranks=fabric.world_size, n_steps=n_steps)
    if hardware.fuse:
        fuse(learner.backbone)
    if hardware.compile:
        learner.compile()
    log_temperature = _log_temperature(config, device)
    network, optimiser = fabric.setup(learner, _optimiser(config, learner, log_temperature, device))
    learner.train()
    generator = torch.Generator(device).manual_seed(config.seed)
    return Step(fabric, hardware, config, network, learner, optimiser, generator, log_temperature)


@contextmanager
def tuned_convolutions() -> Iterator[None]:
    """Let cuDNN try out which algorithm is fastest: for training, where sizes never change, and no longer than that.

    Every new size of a batch costs it seconds on large images, more than it wins where few batches have that size.
    """
    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = True
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before


def captured(step: Step, images: Tensor, labels: Tensor) -> Callable[[Tensor, Tensor], Tensor]:
    """Record a step as a CUDA graph, so that a replay launches all of its kernels at once.

    The warm-up that recording needs takes no step: weights, statistics and random numbers are as before. What is
    returned is a function like the step; its result is valid until the next call.
    """
    static_images, static_labels = images.clone(), labels.clone()
    before = _Snapshot(step)
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
    before.restore()

    def replay(images: Tensor, labels: Tensor) -> Tensor:
        static_images.copy_(images, non_blocking=True)
        static_labels.copy_(labels, non_blocking=True)
        graph.replay()
        return loss

    return replay


class _Snapshot:
    """A copy of all that a step changes; it is put back in place, so that a graph that refers to it stays valid."""

    def __init__(self, step: Step) -> None:
        self.step = step
        self.tensors = self._tensors()
        self.values = [tensor.detach().clone() for tensor in self.tensors]
        self.n_states = len(self.tensors)
        self.generator_state = step.generator.get_state()
        self.random_state = _random_state(step.generator.device)

    def _tensors(self) -> list[Tensor]:
        own = [self.step.log_temperature] if self.step.log_temperature is not None else []
        return [*self.step.learner.parameters(), *self.step.learner.buffers(), *own, *self._optimiser_tensors()]

    def _optimiser_tensors(self) -> list[Tensor]:
        states = inner_optimiser(self.step.optimiser).state.values()
        return [value for state in states for value in state.values() if isinstance(value, Tensor)]

    def restore(self) -> None:
        with torch.no_grad():
            for tensor, value in zip(self.tensors, self.values, strict=True):
                tensor.copy_(value)
            for tensor in self._tensors()[self.n_states :]:  # an optimiser's state that was not there before
                tensor.zero_()
        self.step.generator.set_state(self.generator_state)
        _restore(self.random_state, self.step.generator.device)


def _log_temperature(config: TrainConfig, device: torch.device) -> nn.Parameter | None:
    """Return the parameter of a learnt temperature: its logarithm, since it must stay positive."""
    if not config.learn_temperature:
        return None
    return nn.Parameter(torch.tensor(math.log(config.temperature), dtype=torch.float32, device=device))


def _optimiser(
    config: TrainConfig, learner: Learner, log_temperature: nn.Parameter | None, device: torch.device
) -> torch.optim.Optimizer:
    """Return the optimiser. On a GPU its learning rate is a tensor there, so that a graph reads what is set."""
    groups: list[dict[str, Any]] = [{"params": list(learner.parameters()), "weight_decay": config.weight_decay}]
    if log_temperature is not None:  # does not decay: no temperature is the natural one
        groups.append({"params": [log_temperature], "weight_decay": 0.0})
    cuda = device.type == "cuda"
    rate = torch.tensor(config.learning_rate, dtype=torch.float32, device=device) if cuda else config.learning_rate
    if config.optimiser == "adam":
        return torch.optim.Adam(groups, lr=rate, fused=cuda, capturable=cuda)
    return torch.optim.SGD(groups, lr=rate, momentum=config.momentum, nesterov=config.nesterov, fused=cuda)


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
