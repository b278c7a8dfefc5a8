"""The two networks called ResNet-12: that of the paper's experiments, and Lee et al.'s."""

import torch.nn.functional as F
from torch import Tensor, nn

from nearshot.models.backbone import Backbone, BackboneSpec, average_over_places, initialise
from nearshot.models.feature_sets import (
    FeatureSets,
    chosen_stages,
    features_of_stages,
    sets_of_stages,
)
from nearshot.models.layers import DropBlock, batch_norm, convolution

WIDTHS = (64, 160, 320, 640)
# The slope of Lee et al.'s leaky ReLU.
SLOPE = 0.1
# Lee et al.'s share of activations dropped in training.
DROP_RATE = 0.1


class StagedBackbone(Backbone):
    """What both networks share: their stages are feature sets."""

    is_rooted: bool  # whether no stage has negative values

    @property
    def feature_sets(self) -> FeatureSets | None:
        """The columns of `flat_features`."""
        return sets_of_stages(self.embedding_dim, self.stage_dims, is_rooted=self.is_rooted)

    def named_features(self, images: Tensor) -> dict[str, Tensor]:
        """Return the feature sets by name, (image, n) each, the embedding first."""
        maps = self.stages(images)
        middle, late = chosen_stages(len(maps))
        embedding = average_over_places(maps[-1])
        return features_of_stages(embedding, maps[middle], maps[late])


class ResNet12(StagedBackbone):
    """The network of the published experiments: 9,427,840 parameters.

    A 3×3 stem of 64 channels, then stages of 1, 1, 2 and 1 basic blocks (two 3×3 convolutions and a
    shortcut) with 64, 160, 320 and 640 channels, halving the side from the second stage on; the
    embedding is the average over places. The paper calls it the ResNet-12 of Lee et al., which is
    another network: see `ResNet12MetaOpt`.

    `drop_rate` is the share of activations that DropBlock drops after each of the last two stages,
    in training. The paper's network has none; `resnet12-dropblock` has Lee et al.'s 0.1, and is the
    same network otherwise.
    """

    embedding_dim = WIDTHS[-1]
    stage_dims = WIDTHS
    is_rooted = True

    def __init__(self, name: str, input_size: int, *, drop_rate: float = 0.0) -> None:
        super().__init__()
        self.spec = BackboneSpec(name, input_size)
        self.stem = Stem(WIDTHS[0])
        self.blocks = nn.ModuleList(
            [
                nn.Sequential(BasicBlock(64, 64, stride=1)),
                nn.Sequential(BasicBlock(64, 160, stride=2)),
                nn.Sequential(BasicBlock(160, 320, stride=2), BasicBlock(320, 320, stride=1)),
                nn.Sequential(BasicBlock(320, 640, stride=2)),
            ]
        )
        if drop_rate:
            for block in self.blocks[2:]:
                block.append(DropBlock.for_input(drop_rate, input_size))  # type: ignore[operator]
        initialise(self, "relu")

    def stages(self, images: Tensor) -> list[Tensor]:
        """Return each stage's feature maps."""
        return super().stages(self.stem(images))


class Stem(nn.Sequential):
    """A 3×3 convolution of the images, batch norm and ReLU."""

    def __init__(self, width: int) -> None:
        super().__init__(
            convolution(3, width, 3, padding=1, bias=False),
            batch_norm(width),
            nn.ReLU(inplace=True),
        )


class BasicBlock(nn.Module):
    """relu(bn(conv(relu(bn(conv(x))))) + shortcut(x))."""

    def __init__(self, width_in: int, width_out: int, *, stride: int) -> None:
        super().__init__()
        self.residual = nn.Sequential(
            convolution(width_in, width_out, 3, stride, padding=1, bias=False),
            batch_norm(width_out),
            nn.ReLU(inplace=True),
            convolution(width_out, width_out, 3, padding=1, bias=False),
            batch_norm(width_out),
        )
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or width_in != width_out:
            self.shortcut = nn.Sequential(
                convolution(width_in, width_out, 1, stride, bias=False), batch_norm(width_out)
            )

    def forward(self, x: Tensor) -> Tensor:
        """Apply the block."""
        return F.relu(self.residual(x) + self.shortcut(x))


class ResNet12MetaOpt(StagedBackbone):
    """Lee et al.'s ResNet-12 (MetaOptNet): 12,424,320 parameters; for images of at least 16×16.

    Four stages of three 3×3 convolutions with leaky ReLU, a 1×1 shortcut and 2×2 max-pooling, 64,
    160, 320 and 640 channels; dropout after the first two stages and DropBlock after the last two.
    The embedding is the average over places, as in later work (Lee et al. flatten the last map).
    Lee et al. raise DropBlock's rate over 40,000 steps, more than a whole training of the paper has
    (9,000); here it is active from the first step.
    """

    embedding_dim = WIDTHS[-1]
    stage_dims = WIDTHS
    is_rooted = False

    def __init__(self, name: str, input_size: int) -> None:
        super().__init__()
        self.spec = BackboneSpec(name, input_size)
        self.blocks = nn.ModuleList()
        width_in = 3
        for number, width in enumerate(WIDTHS):
            drop = (
                nn.Dropout(DROP_RATE) if number < 2 else DropBlock.for_input(DROP_RATE, input_size)
            )
            self.blocks.append(MetaOptStage(width_in, width, drop))
            width_in = width
        initialise(self, "leaky_relu")


class MetaOptStage(nn.Module):
    """drop(maxpool(leaky(three convolutions + shortcut)))."""

    def __init__(self, width_in: int, width: int, drop: nn.Module) -> None:
        super().__init__()
        self.residual = nn.Sequential(
            convolution(width_in, width, 3, padding=1, bias=False),
            batch_norm(width),
            nn.LeakyReLU(SLOPE, inplace=True),
            convolution(width, width, 3, padding=1, bias=False),
            batch_norm(width),
            nn.LeakyReLU(SLOPE, inplace=True),
            convolution(width, width, 3, padding=1, bias=False),
            batch_norm(width),
        )
        self.shortcut = nn.Sequential(
            convolution(width_in, width, 1, bias=False), batch_norm(width)
        )
        self.drop = drop

    def forward(self, x: Tensor) -> Tensor:
        """Apply the stage."""
        x = F.leaky_relu(self.residual(x) + self.shortcut(x), SLOPE)
        dropped: Tensor = self.drop(F.max_pool2d(x, 2))
        return dropped
