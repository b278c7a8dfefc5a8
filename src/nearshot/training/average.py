"""An exponential moving average of the weights, which is evaluated and saved in place of the weights themselves."""

from __future__ import annotations

import copy
from typing import cast

import torch
from torch import Tensor, nn

from nearshot.models import Backbone


class WeightAverage(nn.Module):
    """The average of a learner's weights over the steps of a run: its modules once more, in evaluation mode.

    After step t, average ← average + w · (weights − average), with w = max(1 − decay, 9 / (9 + t)): the first step
    weighs 0.9, so that short runs keep nothing of the initial weights. Batch norm's running statistics are averaged
    too, as timm and TensorFlow do: they then belong to the weights of the same steps.

    Nothing here waits for the device, so that a step can be captured in a graph. That is why this is not PyTorch's
    `AveragedModel`, which counts on the host.
    """

    n_steps: Tensor
    backbone: Backbone

    def __init__(self, learner: nn.Module, decay: float) -> None:
        super().__init__()
        self.decay = decay
        for name, module in learner.named_children():
            self.add_module(name, copy.deepcopy(module).eval().requires_grad_(False))
        device = next(learner.parameters()).device
        self.register_buffer("n_steps", torch.zeros((), dtype=torch.float32, device=device))

    @torch.no_grad()
    def update(self, learner: nn.Module) -> None:
        """Take a step's weights into the average."""
        self.n_steps += 1
        weight = (9 / (9 + self.n_steps)).clamp_(min=1 - self.decay)
        own, current = dict(self.named_children()), dict(learner.named_children())
        pairs = [pair for name in own for pair in zip(_state(own[name]), _state(current[name]), strict=True)]
        floating = [pair for pair in pairs if pair[0].is_floating_point()]  # all but batch norm's counts of batches
        averages, weights = (list(tensors) for tensors in zip(*floating, strict=True))
        change = cast(list[Tensor], torch._foreach_sub(weights, averages))
        torch._foreach_mul_(change, weight)
        torch._foreach_add_(averages, change)


def _state(module: nn.Module) -> list[Tensor]:
    return [*module.parameters(), *module.buffers()]
