"""One training step: augment, embed, compute the loss, back-propagate, update.

Nothing in it waits for the device.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call

from nearshot.data.augment import augment, normalise_images, turn_images
from nearshot.errors import InputError
from nearshot.losses import cross_entropy_loss
from nearshot.models.kernels import fuse
from nearshot.training.config import TrainConfig
from nearshot.training.distributed import gather_batch
from nearshot.training.hardware import Hardware
from nearshot.training.learner import N_TURNS, Embedded, Learner, Teacher, WeightAverage
from nearshot.training.methods import Batch
from nearshot.training.mixup import Mixup

if TYPE_CHECKING:
    from lightning_fabric import Fabric

STEPS_BEFORE_CAPTURE = 5


class Prepared(NamedTuple):
    """A batch as the network sees it."""

    images: Tensor  # (image, 3, height, width) of this rank, augmented and normalised
    # (image,) of the whole batch: the quarters by which each image is turned.
    turns: Tensor | None = None
    # Of the teacher to this rank's images, before they are mixed.
    answers: Tensor | None = None


class Step:
    """A training step: a function of a rank's share of the images and of the whole batch's labels.

    Attributes:
        network: the learner, on the device, as Fabric set it up.
        optimiser: the one inside Fabric's, which has a copy of its attributes that may be out of
            date.
        generator: the random numbers of augmentation and pair subsampling, the same on all ranks.
        loss_modules: what the method trains beside the network, such as a learnt temperature. Its
            gradients are of the whole batch, and equal on all ranks.
    """

    def __init__(
        self,
        fabric: Fabric,
        hardware: Hardware,
        config: TrainConfig,
        learner: Learner,
        teacher: Teacher | None = None,
    ) -> None:
        device = fabric.device
        self.fabric = fabric
        self.hardware = hardware
        self.config = config
        self.learner = learner
        self.teacher = teacher
        self.loss_modules = nn.ModuleDict(learner.loss_modules).to(device)
        _place(learner, device, hardware)
        if teacher is not None:
            _place(teacher, device, hardware)
        if config.sync_batch_norm and fabric.world_size > 1:
            if device.type != "cuda":
                raise InputError(f"sync_batch_norm needs GPUs (got {device.type}).")
            nn.SyncBatchNorm.convert_sync_batchnorm(learner)
        if hardware.fuse:
            fuse(learner.backbone)
        self.average: WeightAverage | None = None
        if config.ema_decay:
            self.average = WeightAverage(learner, config.ema_decay)
        self.mixup: Mixup | None = None
        if config.mixup or config.cutmix:
            self.mixup = Mixup(config, learner.backbone, device)
        if hardware.compile:
            learner.compile()
        self.optimiser = self._new_optimiser()
        self.network, self._fabric_optimiser = fabric.setup(learner, self.optimiser)
        learner.train()
        self.generator = torch.Generator(device).manual_seed(config.seed)

    def _new_optimiser(self) -> torch.optim.Optimizer:
        """Return the optimiser. On a GPU its learning rate is a tensor, which a graph reads."""
        config = self.config
        device = self.fabric.device
        groups = self._parameter_groups()
        is_cuda = device.type == "cuda"
        rate: float | Tensor = config.learning_rate
        if is_cuda:
            rate = torch.tensor(rate, dtype=torch.float32, device=device)
        if config.optimiser == "adam":
            return torch.optim.Adam(groups, lr=rate, fused=is_cuda, capturable=is_cuda)
        return torch.optim.SGD(
            groups, lr=rate, momentum=config.momentum, nesterov=config.nesterov, fused=is_cuda
        )

    def _parameter_groups(self) -> list[dict[str, Any]]:
        """Return the weights, and apart from them the scalars of the method, which do not decay.

        No value of a scalar, such as a learnt temperature, is the natural one.
        """
        weights = [weight for weight in self.learner.parameters() if weight.requires_grad]
        scalars: list[nn.Parameter] = []
        for weight in self.loss_modules.parameters():
            if weight.requires_grad:
                (weights if weight.ndim else scalars).append(weight)
        groups: list[dict[str, Any]] = [
            {"params": weights, "weight_decay": self.config.weight_decay}
        ]
        if scalars:
            groups.append({"params": scalars, "weight_decay": 0.0})
        return groups

    def __call__(self, images: Tensor, labels: Tensor) -> Tensor:
        """Take a step and return the loss.

        `images` (image, height, width, 3) uint8 are of this rank, and `labels` of all.
        """
        prepared = self.prepare(images)
        self.optimiser.zero_grad()
        if self.config.micro_batch is None:
            loss = self.loss(self.network(prepared.images), labels, prepared)
            self.fabric.backward(loss)
        else:
            loss = self._backward_in_parts(prepared, labels, self.config.micro_batch)
        self._fabric_optimiser.step()
        if self.average is not None:
            self.average.update(self.learner)
        return loss.detach()

    def prepare(self, images: Tensor) -> Prepared:
        """Augment, normalise, turn and mix the images of this rank, and ask the teacher.

        All ranks draw for the whole batch, and take their share.
        """
        config = self.config
        spec = self.learner.backbone.spec
        rank = self.fabric.global_rank
        n_ranks = self.fabric.world_size
        inputs = augment(
            images,
            config.augmentation,
            size=spec.input_size,
            generator=self.generator,
            share=(rank, n_ranks),
        )
        inputs = normalise_images(inputs, *spec.normalisation)
        turns = None
        if config.rotation_weight:
            n_images = len(images)
            shape = (n_ranks * n_images,)
            turns = torch.randint(N_TURNS, shape, device=images.device, generator=self.generator)
            inputs = turn_images(inputs, turns[rank * n_images : (rank + 1) * n_images])
        inputs = inputs.contiguous(memory_format=self.hardware.memory_format)
        answers = None
        if self.teacher is not None:
            parts = inputs.split(config.micro_batch or len(inputs))
            with torch.no_grad(), self.fabric.autocast():
                answers = torch.cat([self.teacher(part) for part in parts])
        if self.mixup is not None:
            self.mixup.draw(self.generator)
            inputs = self.mixup.images(inputs)
        return Prepared(inputs, turns, answers)

    def loss(self, embedded: Embedded, labels: Tensor, prepared: Prepared) -> Tensor:
        """Return the loss of the whole batch, of which this rank has embedded its share."""
        config = self.config
        logits = None if embedded.logits is None else gather_batch(embedded.logits)
        batch = Batch(
            embeddings=gather_batch(embedded.embeddings),
            labels=labels,
            logits=logits,
            modules=dict(self.loss_modules.items()),
            shape=config.shape if config.batch_kind == "episodes" else None,
            generator=self.generator,
        )

        def method_loss(labels: Tensor) -> Tensor:
            return self._method_loss(replace(batch, labels=labels))

        loss = self._mixed(method_loss, labels)
        if embedded.turns is not None and prepared.turns is not None:
            turn_loss = partial(cross_entropy_loss, gather_batch(embedded.turns))
            loss = loss + config.rotation_weight * self._mixed(turn_loss, prepared.turns)
        if self.teacher is not None and prepared.answers is not None:
            answers = gather_batch(prepared.answers)
            teacher_loss = partial(self.teacher.loss, batch, config=config)
            loss = loss + config.distillation_weight * self._mixed(teacher_loss, answers)
        return loss

    def _method_loss(self, batch: Batch) -> Tensor:
        loss = self.config.method.loss(batch)
        if not isinstance(loss, Tensor) or loss.ndim or not loss.requires_grad:
            raise InputError(
                f"The loss of {self.config.method_name} must be a tensor of one number with a "
                f"gradient (got {loss!r})."
            )
        return loss

    def _mixed(self, loss_of: Callable[[Tensor], Tensor], targets: Tensor) -> Tensor:
        """Return a loss of the targets, and of their partners' where images are mixed."""
        return loss_of(targets) if self.mixup is None else self.mixup.loss(loss_of, targets)

    def set_learning_rate(self, step: int, n_steps: int) -> None:
        """Set the learning rate of a step, counted from 0, of `n_steps`."""
        rate = self.config.learning_rate * learning_rate_factor(step, n_steps, self.config)
        for group in self.optimiser.param_groups:
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(rate)
            else:
                group["lr"] = rate

    def _backward_in_parts(self, prepared: Prepared, labels: Tensor, part_size: int) -> Tensor:
        """Embed in parts and compute the loss; then embed each part again and back-propagate.

        The memory never holds more than one part's activations. The first pass changes nothing:
        batch norm's statistics go to copies, and the second pass draws the same random numbers.
        """
        parts = prepared.images.split(part_size)
        buffers = {name: buffer.clone() for name, buffer in self.learner.named_buffers()}
        random = torch.cuda if prepared.images.is_cuda else torch
        random_state = random.get_rng_state()
        with torch.no_grad(), self.fabric.autocast():
            first_pass = [functional_call(self.learner, buffers, (part,)) for part in parts]
        embedded = _joined(first_pass)
        loss = self.loss(embedded, labels, prepared)
        self.fabric.backward(loss)
        gradients = [None if output is None else output.grad for output in embedded]

        random.set_rng_state(random_state)
        for number, part in enumerate(parts):
            rows = slice(number * part_size, (number + 1) * part_size)
            is_last = number == len(parts) - 1
            with self.fabric.no_backward_sync(self.network, enabled=not is_last):
                products = []
                for output, gradient in zip(self.network(part), gradients, strict=True):
                    if output is not None and gradient is not None:
                        products.append((output * gradient[rows]).sum())
                self.fabric.backward(torch.stack(products).sum())
        return loss


def _place(network: nn.Module, device: torch.device, hardware: Hardware) -> None:
    """Move a network to its device, in the memory format of the hardware."""
    network.to(device)
    network.to(memory_format=hardware.memory_format)  # type: ignore[call-overload]


def _joined(parts: Sequence[Embedded]) -> Embedded:
    """Return the outputs of all parts as one, which requires a gradient."""
    outputs: list[Tensor | None] = []
    for output_of_parts in zip(*parts, strict=True):
        if output_of_parts[0] is None:
            outputs.append(None)
        else:
            outputs.append(torch.cat(output_of_parts).requires_grad_())
    return Embedded._make(outputs)


def learning_rate_factor(step: int, n_steps: int, config: TrainConfig) -> float:
    """Return the factor of the learning rate at a step, counted from 0.

    It is the schedule's, after a linear warm-up.

    >>> config = TrainConfig(epochs=10, milestones=(0.7,), warm_up=2)
    >>> [learning_rate_factor(step, 10, config) for step in (0, 1, 6, 7, 9)]
    [0.5, 1.0, 1.0, 0.1, 0.1]
    """
    warm_up_steps = config.warm_up_epochs * (n_steps // config.epochs)
    rise = min(1.0, (step + 1) / warm_up_steps) if warm_up_steps else 1.0
    if config.schedule == "steps":
        n_passed = sum(step >= round(fraction * n_steps) for fraction in config.milestones)
        return float(rise * config.decay**n_passed)
    if config.schedule == "cosine":
        done = max(0.0, step - warm_up_steps) / max(1.0, n_steps - warm_up_steps)
        return rise * 0.5 * (1 + math.cos(math.pi * done))
    return rise


def changing_tensors(step: Step) -> dict[str, Tensor]:
    """Return everything that a step changes, by name."""
    modules: dict[str, nn.Module] = {"learner": step.learner, "loss_modules": step.loss_modules}
    if step.average is not None:
        modules["average"] = step.average
    tensors: dict[str, Tensor] = {}
    for prefix, module in modules.items():
        tensors.update(module.named_parameters(prefix))
        tensors.update(module.named_buffers(prefix))
    for number, state in step.optimiser.state_dict()["state"].items():
        for name, value in state.items():
            if isinstance(value, Tensor):
                tensors[f"optimiser.{number}.{name}"] = value
    return tensors


def captured(step: Step, images: Tensor, labels: Tensor) -> Callable[[Tensor, Tensor], Tensor]:
    """Record a step as a CUDA graph, whose replay launches all kernels at once.

    The warm-up that recording needs leaves weights, statistics and random numbers unchanged.
    Returns a function like the step; its result is valid until the next call.
    """
    saved = {name: tensor.detach().clone() for name, tensor in changing_tensors(step).items()}
    generator_state = step.generator.get_state()
    random_state = torch.cuda.get_rng_state()
    static_images = images.clone()
    static_labels = labels.clone()
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
    with torch.no_grad():  # in place, as a graph needs
        for name, tensor in changing_tensors(step).items():
            if name in saved:
                tensor.copy_(saved[name])
            else:  # state of the optimiser that did not exist before
                tensor.zero_()
    step.generator.set_state(generator_state)
    torch.cuda.set_rng_state(random_state)

    def replay(images: Tensor, labels: Tensor) -> Tensor:
        static_images.copy_(images, non_blocking=True)
        static_labels.copy_(labels, non_blocking=True)
        graph.replay()
        return loss

    return replay
