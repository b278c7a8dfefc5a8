"""A classifier to its file and back: what of it is saved, and how it is put together again.

The file itself is `nearshot.estimator.bundle`'s.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from nearshot.errors import FileFormatError, InputError
from nearshot.estimator.bundle import Bundle, read_bundle, write_bundle
from nearshot.estimator.settings import check_parameters
from nearshot.estimator.state import Fitted, Settings
from nearshot.models import Backbone

if TYPE_CHECKING:
    from nearshot.estimator.classifier import FewShotClassifier

    Kind = TypeVar("Kind", bound=FewShotClassifier)

__all__ = ["load_classifier", "save_classifier"]

SAVED_PARAMETERS = Settings._fields


def save_classifier(fitted: Fitted, path: str | Path) -> None:
    """Write a fitted classifier to a file."""
    embeds = None if fitted.embedder is None else fitted.embedder.backbone
    parameters = fitted.settings._asdict()
    parameters |= {name: value.item() for name, value in parameters.items() if isinstance(value, np.generic)}
    if not (fitted.settings.centre is None or isinstance(fitted.settings.centre, str)):
        parameters["centre"] = "array"
    saved = Bundle(
        fitted.learnt,
        parameters,
        feature_names=None if fitted.columns is None else fitted.columns.tolist(),
        backbone=embeds if isinstance(embeds, Backbone) else None,
        needs_backbone=embeds is not None and not isinstance(embeds, Backbone),
    )
    write_bundle(saved, path)


def load_classifier(
    kind: type[Kind], path: str | Path, *, backbone: Any, device: Any, cache_dir: str | Path | None
) -> Kind:
    """Return a saved classifier as one of a class; the other arguments are those of `FewShotClassifier.load`."""
    saved = read_bundle(path)
    if saved.needs_backbone and backbone is None:
        raise InputError(f"The backbone of {path} is not in the file; give it again: load(path, backbone=…).")
    if not saved.needs_backbone and backbone is not None:
        raise InputError(f"{path} needs no backbone but its own; leave `backbone` out.")
    parameters = {name: value for name, value in saved.parameters.items() if name in SAVED_PARAMETERS}
    if parameters.get("centre") == "array":
        parameters["centre"] = saved.learnt.centre
    model = kind(saved.backbone if backbone is None else backbone, device=device, cache_dir=cache_dir, **parameters)
    try:
        check_parameters(model.get_params(deep=False))
    except InputError as error:
        raise FileFormatError(f"{path} is damaged: {error}") from error
    columns = None if saved.feature_names is None else np.array(saved.feature_names, dtype=object)
    # The file's own backbone is nobody else's, and is taken as it is.
    embedder, dim = model._make_embedder(copy=backbone is not None), saved.learnt.features.shape[1]
    if embedder is not None:
        if embedder.dim not in (None, dim):
            raise InputError(f"The backbone gives {embedder.dim} numbers a picture; that of {path} gave {dim}.")
        embedder.dim = dim  # which a function says by its answers only
    model._fitted = Fitted.of(model._settings(), saved.learnt, embedder, columns)
    return model
