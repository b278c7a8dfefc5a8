"""Conv-4: the four-block network of the original Matching and Prototypical Networks."""

from torch import Tensor, nn

from nearshot.errors import InputError
from nearshot.models.backbone import Backbone, BackboneSpec, initialise
from nearshot.models.layers import DropBlock, batch_norm, convolution

N_BLOCKS = 4


class Conv4(Backbone):
    """Four blocks of 3×3 convolution, batch norm, ReLU and 2×2 max-pooling.

    The embedding is the last map, flattened. So its dimension depends on the input: 64 channels
    give 64 at 28×28 and 1,600 at 84×84. `drop_rate` is the share of activations that DropBlock
    drops after each of the last two blocks, in training.

    >>> Conv4("conv4", input_size=84, width=64).embedding_dim
    1600
    """

    def __init__(self, name: str, input_size: int, *, width: int, drop_rate: float = 0.0) -> None:
        super().__init__()
        side = input_size // 2**N_BLOCKS  # each block halves it
        if side < 1:
            raise InputError(
                f"{name} needs images of at least {2**N_BLOCKS}×{2**N_BLOCKS}, not {input_size}."
            )
        self.spec = BackboneSpec(name, input_size)
        self.embedding_dim = width * side**2
        self.stage_dims = (width,) * N_BLOCKS
        self.blocks = nn.ModuleList(
            ConvBlock(3 if i == 0 else width, width) for i in range(N_BLOCKS)
        )
        if drop_rate:
            for block in self.blocks[2:]:
                block.append(DropBlock.for_input(drop_rate, input_size))  # type: ignore[operator]
        initialise(self, "relu")

    def set_input_size(self, input_size: int) -> None:
        """Raise an error unless it is the network's own, which the embedding's dimension needs."""
        if input_size != self.spec.input_size:
            raise InputError(
                f"input_size must be {self.spec.input_size} for this {self.spec.name} (got "
                f"{input_size}): the embedding's dimension depends on it."
            )

    def stages(self, images: Tensor) -> list[Tensor]:
        """Return each block's feature maps."""
        for side in images.shape[2:]:
            self.set_input_size(side)
        return super().stages(images)

    def forward(self, images: Tensor) -> Tensor:
        """Embed images of the size that the network was built for."""
        return self.stages(images)[-1].flatten(1)


class ConvBlock(nn.Sequential):
    """A 3×3 convolution, batch norm, ReLU and 2×2 max-pooling."""

    def __init__(self, width_in: int, width: int) -> None:
        super().__init__(
            convolution(width_in, width, 3, padding=1),
            batch_norm(width),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(2),
        )
