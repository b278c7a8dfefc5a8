"""The interface of all backbones: an embedding, its dimension, and the stages' outputs."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from nearshot.errors import InputError
from nearshot.models.feature_sets import EMBEDDING, FeatureSets, project


class Normalisation(NamedTuple):
    """The mean and standard deviation, by channel, that images in [0, 1] are normalised with."""

    mean: tuple[float, float, float]
    std: tuple[float, float, float]


IMAGENET = Normalisation(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))
"""ImageNet's mean and standard deviation, which the published experiments use on every dataset."""


Interpolation = Literal["bilinear", "bicubic"]


@dataclass(frozen=True, eq=False)
class BackboneSpec:
    """What the use of a backbone needs: its name, and the images that it was made for.

    Attributes:
        name: its name for `build_backbone`.
        input_size: the side of the square images.
        normalisation: the mean and standard deviation of each channel.
        training_mean: the mean embedding of the training set, (dim,), for centring; None if the
            backbone is not trained.
        interpolation: how photographs are resized.
        crop: the fraction of a photograph's shorter side that the square shows.
        look_alike_cosine: the cosine of embeddings from which two photographs of a class most
            likely show the same thing; None if it was not measured.
    """

    name: str
    input_size: int
    normalisation: Normalisation = IMAGENET
    training_mean: Tensor | None = None
    interpolation: Interpolation = "bilinear"
    crop: float = 1.0
    look_alike_cosine: float | None = None


class Backbone(nn.Module):
    """A network from normalised images (image, 3, height, width) to embeddings (image, dim).

    Attributes:
        spec: what its use needs.
        embedding_dim: the dimension of the embeddings.
        stage_dims: the channels of each stage's output, first stage first.
        blocks: the layers, a stage each unless `stages` says otherwise.
    """

    spec: BackboneSpec
    embedding_dim: int
    stage_dims: tuple[int, ...]
    blocks: nn.ModuleList

    def extra_repr(self) -> str:
        """Say what images the network expects."""
        mean, std = self.spec.normalisation
        side = self.spec.input_size
        return (
            f"for images (image, 3, {side}, {side}) from 0 to 1, normalised by mean={tuple(mean)}, "
            f"std={tuple(std)}: see nearshot.prepare_images"
        )

    def set_input_size(self, input_size: int) -> None:
        """Use the network for images of another side, with the same weights."""
        self.spec = replace(self.spec, input_size=input_size)

    def stages(self, images: Tensor) -> list[Tensor]:
        """Return each stage's feature maps, (image, channel, height, width).

        By default a stage is a block.
        """
        outputs = []
        x = images
        for block in self.blocks:
            x = block(x)
            outputs.append(x)
        return outputs

    def forward(self, images: Tensor) -> Tensor:
        """Embed images: (image, 3, height, width) to (image, dim).

        By default the embedding is the average of the last stage over places.
        """
        return average_over_places(self.stages(images)[-1])

    @property
    def feature_sets(self) -> FeatureSets | None:
        """The columns of `flat_features`; None if the backbone offers its embedding alone."""
        return None

    def named_features(self, images: Tensor) -> dict[str, Tensor]:
        """Return the feature sets of images by name, (image, n) each, the embedding first."""
        return {EMBEDDING: self(images)}

    def flat_features(self, images: Tensor) -> Tensor:
        """Return the feature sets of images side by side, as `feature_sets` describes them.

        It costs one forward pass. Large sets are projected, the embedding is not.
        """
        embedding, *others = self.named_features(images).values()
        return torch.cat([embedding, *(project(values) for values in others)], dim=1)

    def multi_layer(self, images: Tensor, stages: Sequence[int] | None = None) -> Tensor:
        """Concatenate the pooled outputs of some stages: Appendix G's multi-layer features.

        Stages are counted from 1. By default all but the first are used, as in the paper: for its
        `resnet12`, 160 + 320 + 640 = 1,120 dimensions.
        """
        n_stages = len(self.stage_dims)
        if stages is None:
            stages = range(2, n_stages + 1)
        for stage in stages:
            if not 1 <= stage <= n_stages:
                raise InputError(f"{self.spec.name} has stages 1 to {n_stages}, not {stage}.")
        outputs = self.stages(images)
        return torch.cat([average_over_places(outputs[stage - 1]) for stage in stages], dim=1)


def average_over_places(feature_maps: Tensor) -> Tensor:
    """Return the average over height and width, (image, channel)."""
    # Averaged over (image, place, channel), so that the gradient has channels last.
    return feature_maps.flatten(2).mT.mean(1)


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
