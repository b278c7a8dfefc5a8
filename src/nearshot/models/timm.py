"""Backbones of the timm library, by `timm:<name>`; they need the extra of that name."""

from __future__ import annotations

import difflib
from typing import Any

import torch
from torch import Tensor

from nearshot.errors import InputError, MissingExtraError
from nearshot.models.backbone import Backbone, BackboneSpec, Normalisation, check_images
from nearshot.models.layers import float32_by_default

PREFIX = "timm:"


class TimmBackbone(Backbone):
    """A model of timm without its classifier, such as "timm:resnet18"; pooled features are the embedding.

    `input_size` is by default that of the model; `pretrained` loads its published weights, which timm downloads.
    """

    def __init__(self, name: str, input_size: int | None = None, *, pretrained: bool = False) -> None:
        super().__init__()
        try:
            import timm  # noqa: PLC0415 (an extra)
        except ImportError as error:
            raise MissingExtraError(
                f"Backbone {name!r} needs the timm library: pip install 'nearshot[timm]'."
            ) from error
        model_name = name.removeprefix(PREFIX)
        if not timm.is_model(model_name):
            similar = difflib.get_close_matches(model_name, timm.list_models(), n=5)
            hint = f" Did you mean one of {', '.join(similar)}?" if similar else ""
            raise InputError(f"timm has no model {model_name!r}.{hint}")
        options = {"pretrained": pretrained, "num_classes": 0}
        with float32_by_default():
            try:  # models with a fixed grid of patches need the size; others do not accept it
                size = {} if input_size is None else {"img_size": input_size}
                self.model: Any = timm.create_model(model_name, **options, **size)
            except TypeError:
                self.model = timm.create_model(model_name, **options)
        config = timm.data.resolve_model_data_config(self.model)
        normalisation = Normalisation(tuple(config["mean"]), tuple(config["std"]))
        self.spec = BackboneSpec(name, input_size or config["input_size"][-1], normalisation)
        self.embedding_dim = int(getattr(self.model, "head_hidden_size", None) or self.model.num_features)
        self.stage_dims = tuple(int(stage["num_chs"]) for stage in getattr(self.model, "feature_info", ()))

    def stages(self, images: Tensor) -> list[Tensor]:
        """Return the feature maps of the model's stages, as timm defines them."""
        check_images(images, self.spec.name)
        if not hasattr(self.model, "forward_intermediates"):
            raise InputError(f"timm has no intermediate features of {self.spec.name!r}; use its embedding.")
        maps: list[Tensor] = self.model.forward_intermediates(images, intermediates_only=True, output_fmt="NCHW")
        return maps

    def forward(self, images: Tensor) -> Tensor:
        """Embed images with the model's own pooling."""
        check_images(images, self.spec.name)
        embeddings: Tensor = self.model(images)
        return torch.flatten(embeddings, 1)
