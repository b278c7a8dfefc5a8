"""Mixup and CutMix: training images, or feature maps, that are made of two."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from nearshot.errors import InputError
from nearshot.models import Backbone
from nearshot.training.config import TrainConfig

N_QUANTILES = 1024


def partners(values: Tensor) -> Tensor:
    """Return what each image is mixed with, (image, …): 0 with 1, 2 with 3, and so on.

    Batches are in random order, so these are random pairs. They lie in one share of a batch,
    however many devices share it, as long as shares are even.

    >>> partners(torch.tensor([10, 11, 12, 13])).tolist()
    [11, 10, 13, 12]
    """
    swapped: Tensor = values.unflatten(0, (-1, 2)).flip(1).flatten(0, 1)
    return swapped


class Mixup:
    """Mixes the images of a batch in pairs, with one share λ for the whole batch.

    Mixup (Zhang et al., 2018) gives λ · image + (1 − λ) · partner, with λ from Beta(α, α). With
    `mix_stages`, it mixes the images, or the output of one of the stages before the last, drawn for
    each batch (manifold mixup, Verma et al., 2019). CutMix (Yun et al., 2019) puts a box of the
    partner into the image; λ is the area that is left. The loss is λ · loss(labels) + (1 − λ) ·
    loss(labels of the partners).

    Nothing waits for the device, and no branch depends on a random number, so that a step can be
    captured in a graph: at stages that were not drawn, the weight of the partners is zero.

    Attributes:
        share: λ of the current batch; 1 if it is not mixed.
        weights: the weight of the partners in the images, and after each stage but the last.
    """

    def __init__(self, config: TrainConfig, backbone: Backbone, device: torch.device) -> None:
        self.config = config
        self.backbone = backbone
        blocks = list(getattr(backbone, "blocks", ())) if config.mix_stages else []
        if config.mix_stages and len(blocks) != len(backbone.stage_dims):
            raise InputError(
                "mix_stages needs resnet12, conv4 or a variant as the backbone "
                f"(got {backbone.spec.name})."
            )
        self.share = torch.ones((), dtype=torch.float32, device=device)
        self.weights = torch.zeros(max(len(blocks), 1), dtype=torch.float32, device=device)
        # Top, bottom, left and right, as fractions of the image's sides.
        self._box = torch.zeros(4, dtype=torch.float32, device=device)
        from scipy.stats import beta  # noqa: PLC0415 (`nearshot train --help` does not need it)

        fractions = np.linspace(0, 1, N_QUANTILES + 1)
        self._quantiles = {}
        for alpha in (config.mixup, config.cutmix):
            if alpha:
                quantiles = torch.from_numpy(beta.ppf(fractions, alpha, alpha))
                self._quantiles[alpha] = quantiles.to(self.share)
        for number, block in enumerate(blocks[:-1], start=1):
            block.register_forward_hook(self._hook(number))

    def draw(self, generator: torch.Generator) -> None:
        """Draw how the next batch is mixed."""
        config = self.config
        draws = torch.rand(6, device=self.share.device, generator=generator)
        mixed, kind, amount, stage, y, x = draws.unbind()
        is_mixed = mixed < config.mix_probability
        is_cut = is_mixed & bool(config.cutmix) & (kind < 0.5 if config.mixup else True)
        is_added = is_mixed & bool(config.mixup) & ~is_cut

        cut_side = (1 - self._beta(config.cutmix, amount)).sqrt()
        half_side = torch.where(is_cut, cut_side / 2, 0.0)
        edges = torch.stack([y - half_side, y + half_side, x - half_side, x + half_side])
        self._box.copy_(edges.clamp(0, 1))

        n_stages = len(self.weights)
        is_stage = torch.arange(n_stages, device=stage.device) == (stage * n_stages).floor()
        partner_weight = 1 - self._beta(config.mixup, amount)
        self.weights.copy_(torch.where(is_added & is_stage, partner_weight, 0.0))
        self.share.copy_(1 - self.weights.sum())

    def images(self, images: Tensor) -> Tensor:
        """Mix images (image, 3, height, width) as drawn; the share becomes that of the pixels."""
        height, width = images.shape[2:]
        top, bottom, left, right = self._box.unbind()
        rows = (torch.arange(height, device=images.device) + 0.5) / height
        columns = (torch.arange(width, device=images.device) + 0.5) / width
        is_row_inside = (rows >= top) & (rows < bottom)
        is_column_inside = (columns >= left) & (columns < right)
        is_inside = is_row_inside[:, None] & is_column_inside  # (row, column)
        self.share.sub_(is_inside.float().mean())
        others = partners(images)
        mixed = torch.lerp(images, others, self.weights[0].to(images.dtype))
        return torch.where(is_inside, others, mixed)

    def loss(self, loss_of: Callable[[Any], Tensor], targets: Tensor) -> Tensor:
        """Return the loss of the targets, and of the partners', by their shares."""
        return self.share * loss_of(targets) + (1 - self.share) * loss_of(partners(targets))

    def _hook(
        self, number: int
    ) -> Callable[[nn.Module, tuple[Tensor, ...], Tensor], Tensor | None]:
        def mix(_: nn.Module, __: tuple[Tensor, ...], maps: Tensor) -> Tensor | None:
            if not self.backbone.training:
                return None
            return torch.lerp(maps, partners(maps), self.weights[number].to(maps.dtype))

        return mix

    def _beta(self, alpha: float, uniform: Tensor) -> Tensor:
        """Return the quantile of Beta(α, α), interpolated in a table; 1 for α = 0."""
        if not alpha:
            return torch.ones_like(uniform)
        table = self._quantiles[alpha]
        position = uniform * N_QUANTILES
        below = position.long()
        return torch.lerp(table.take(below), table.take(below + 1), position - below)
