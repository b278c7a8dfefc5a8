"""The interface of all backbones: an embedding, its dimension, and the pooled outputs of the stages."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from nearshot.errors import InputError


class Normalisation(NamedTuple):
    """The mean and standard deviation, by channel, that images in [0, 1] are normalised with."""

    mean: tuple[float, float, float]
    std: tuple[float, float, float]


IMAGENET = Normalisation(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))
"""ImageNet's mean and standard deviation, which the published experiments use on every dataset."""


Interpolation = Literal["bilinear", "bicubic"]


@dataclass(frozen=True, eq=False)
class BackboneSpec:
    """What the use of a backbone needs: its name for `build_backbone`, and the square images that it was made for.

    `training_mean` is the mean embedding of the training set, (dim,), for centring; None if it is
    not trained. `interpolation` is how photographs are resized, and `crop` the fraction of their
    shorter side that the square shows.
    """

    name: str
    input_size: int
    normalisation: Normalisation = IMAGENET
    training_mean: Tensor | None = None
    interpolation: Interpolation = "bilinear"
    crop: float = 1.0


class Backbone(nn.Module):
    """A network from normalised images (image, 3, height, width) to embeddings (image, `embedding_dim`)."""

    spec: BackboneSpec
    embedding_dim: int
    stage_dims: tuple[int, ...]
    """The channels of each stage's output, first stage first."""
    blocks: nn.ModuleList

    def set_input_size(self, input_size: int) -> None:
        """Use the network for images of another side, with the same weights."""
        self.spec = replace(self.spec, input_size=input_size)

    def stages(self, images: Tensor) -> list[Tensor]:
        """Return each stage's feature maps, (image, channel, height, width). By default a stage is a block."""
        outputs = [images]
        for block in self.blocks:
            outputs.append(block(outputs[-1]))
        return outputs[1:]

    def forward(self, images: Tensor) -> Tensor:
        """Embed images: (image, 3, height, width) to (image, dim). By default the average of the last stage."""
        return average_over_places(self.stages(images)[-1])

    def multi_layer(self, images: Tensor, stages: Sequence[int] | None = None) -> Tensor:
        """Concatenate the pooled outputs of some stages, counted from 1 (Appendix G's multi-layer features).

        By default all stages but the first, as in the paper: for its `resnet12`, 160 + 320 + 640 =
            1,120 dimensions.
        """
        n_stages = len(self.stage_dims)
        stages = range(2, n_stages + 1) if stages is None else stages
        for stage in stages:
            if not 1 <= stage <= n_stages:
                raise InputError(f"{self.spec.name} has stages 1 to {n_stages}, not {stage}.")
        outputs = self.stages(images)
        return torch.cat([average_over_places(outputs[stage - 1]) for stage in stages], dim=1)


def average_over_places(feature_maps: Tensor) -> Tensor:
    """Return the average over height and width: (image, channel, height, width) to (image, channel)."""
    return feature_maps.flatten(2).mT.mean(
        1
    )  # over (image, place, channel): the gradient then has channels last


def initialise(network: nn.Module, nonlinearity: str) -> None:
    """Initialise convolutions by Kaiming-normal with fan-out, and batch norm as the identity."""
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity=nonlinearity)  # type: ignore[arg-type]
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        elif isinstance(module, nn.BatchNorm2d):
            nn.init.ones_(module.weight)
            nn.init.zeros_(module.bias)
