"""Backbones, from images to embeddings, and the heads used in training."""

from nearshot.models.backbone import IMAGENET, Backbone, BackboneSpec, Normalisation
from nearshot.models.layers import LinearHead, ProjectionHead
from nearshot.models.weights import (
    BACKBONES,
    build_backbone,
    load_backbone,
    read_notes,
    save_backbone,
)

__all__ = [
    "BACKBONES",
    "IMAGENET",
    "Backbone",
    "BackboneSpec",
    "LinearHead",
    "Normalisation",
    "ProjectionHead",
    "build_backbone",
    "load_backbone",
    "read_notes",
    "save_backbone",
]
