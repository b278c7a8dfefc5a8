"""Backbones of the timm library, by `timm:<name>`; they need the extra of that name."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies

import torch
from torch import Tensor

from nearshot.errors import FileFormatError, InputError, MissingExtraError, NearshotError
from nearshot.models.backbone import Backbone, BackboneSpec, Interpolation, Normalisation
from nearshot.models.feature_sets import (
    FeatureSets,
    chosen_stages,
    features_of_stages,
    sets_of_stages,
)
from nearshot.models.layers import float32_by_default

PREFIX = "timm:"


class TimmBackbone(Backbone):
    """A model of timm without its classifier; pooled features are the embedding.

    Args:
        name: such as "timm:resnet18", or "timm:resnet18@weights.safetensors" with a weights file.
        input_size: the side of the images; by default the model's.
        pretrained: load the published weights, which timm downloads once.
    """

    def __init__(
        self, name: str, input_size: int | None = None, *, pretrained: bool = False
    ) -> None:
        super().__init__()
        name, _, file = name.partition("@")
        try:
            import timm  # noqa: PLC0415 (an extra)
        except ImportError as error:
            raise MissingExtraError(
                f"Backbone {name!r} needs the timm library: pip install '.[timm]' in the clone."
            ) from error
        model_name = name.removeprefix(PREFIX)
        with float32_by_default(), _in_one_sentence(name):
            if file:
                self.model: Any = _create(model_name, None, pretrained=False)
                _load_file(self.model, Path(file).expanduser(), name)
            else:
                self.model = _create(model_name, input_size, pretrained=pretrained)
            config = timm.data.resolve_model_data_config(self.model)
        normalisation = Normalisation(tuple(config["mean"]), tuple(config["std"]))
        is_bicubic = config["interpolation"] == "bicubic"
        interpolation: Interpolation = "bicubic" if is_bicubic else "bilinear"
        self.spec = BackboneSpec(
            name,
            config["input_size"][-1],
            normalisation,
            interpolation=interpolation,
            crop=config["crop_pct"],
        )
        hidden_size = getattr(self.model, "head_hidden_size", None)
        self.embedding_dim = int(hidden_size or self.model.num_features)
        stages = getattr(self.model, "feature_info", ())
        self.stage_dims = tuple(int(stage["num_chs"]) for stage in stages)
        if input_size is not None:
            self.set_input_size(input_size)

    def set_input_size(self, input_size: int) -> None:
        """Use the model for images of another side; a grid of patches is interpolated."""
        super().set_input_size(input_size)
        with _in_one_sentence(self.spec.name, f" at input_size {input_size}"):
            if hasattr(self.model, "set_input_size"):
                self.model.set_input_size(img_size=(input_size, input_size))
            is_training = self.model.training
            # Many models fail only when they meet images.
            with torch.inference_mode():
                self.model.eval()(torch.zeros(1, 3, input_size, input_size, dtype=torch.float32))
            self.model.train(is_training)

    def stages(self, images: Tensor) -> list[Tensor]:
        """Return the feature maps of the model's stages, as timm defines them."""
        maps: list[Tensor] = self.model.forward_intermediates(
            images, intermediates_only=True, output_fmt="NCHW"
        )
        return maps

    @property
    def feature_sets(self) -> FeatureSets | None:
        """The columns of `flat_features`; None for a model without `forward_intermediates`."""
        if not hasattr(self.model, "forward_intermediates"):
            return None
        return sets_of_stages(self.embedding_dim, self.stage_dims, is_rooted=False)

    def named_features(self, images: Tensor) -> dict[str, Tensor]:
        """Return the feature sets by name, (image, n) each, the embedding first."""
        if self.feature_sets is None:
            return super().named_features(images)
        last, maps = self.model.forward_intermediates(
            images, indices=list(chosen_stages(len(self.stage_dims))), output_fmt="NCHW"
        )
        embedding = torch.flatten(self.model.forward_head(last), 1)
        return features_of_stages(embedding, *maps)

    def forward(self, images: Tensor) -> Tensor:
        """Embed images with the model's own pooling."""
        embeddings: Tensor = self.model(images)
        return torch.flatten(embeddings, 1)


def _create(model_name: str, input_size: int | None, *, pretrained: bool) -> Any:
    import timm  # noqa: PLC0415 (an extra)

    with _offline_if_unreachable() if pretrained else nullcontext():
        if input_size is not None:
            # Models with a fixed grid of patches need the size; others do not accept it.
            with suppress(TypeError):
                return timm.create_model(
                    model_name, img_size=input_size, pretrained=pretrained, num_classes=0
                )
        return timm.create_model(model_name, pretrained=pretrained, num_classes=0)


@contextmanager
def _offline_if_unreachable() -> Iterator[None]:
    """Use downloaded weights only, where their server cannot be reached.

    The client would try again for a minute.
    """
    from huggingface_hub import constants  # noqa: PLC0415 (timm needs it)

    before = constants.HF_HUB_OFFLINE
    try:
        socket.create_connection((urlsplit(constants.ENDPOINT).hostname, 443), timeout=5).close()
    except OSError:
        constants.HF_HUB_OFFLINE = before or not getproxies()  # a proxy may reach it
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE = before


def _load_file(model: Any, path: Path, name: str) -> None:
    """Load a weights file, in timm's names; no code in it is run."""
    if not path.is_file():
        raise InputError(f"There is no weights file {path}.")
    import timm  # noqa: PLC0415 (an extra)

    keys = timm.models.load_checkpoint(model, str(path), strict=False, weights_only=True)
    if keys.missing_keys:
        raise FileFormatError(
            f"{path} has no weights of {name}: {len(keys.missing_keys):,} tensors are missing, "
            f"such as {keys.missing_keys[0]!r}."
        )


@contextmanager
def _in_one_sentence(name: str, where: str = "") -> Iterator[None]:
    """Turn every error of timm and its downloads into one sentence."""
    try:
        yield
    except NearshotError:
        raise
    except Exception as error:  # of many kinds
        reason = (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
        raise InputError(f"timm cannot make {name!r}{where}: {reason}.") from error
