"""Few-shot image classification: train embeddings, measure them honestly, put them to work."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from nearshot._version import __version__

if TYPE_CHECKING:
    from nearshot.estimator import FewShotClassifier
    from nearshot.models import load_backbone

__all__ = ["FewShotClassifier", "__version__", "load_backbone"]

PARTS = ("data", "estimator", "evaluation", "experiments", "losses", "models", "training")


def __getattr__(name: str) -> Any:
    """Import what is asked for when it is: PyTorch and scikit-learn take seconds, and a command's help needs none."""
    if name in PARTS:
        return import_module(f"nearshot.{name}")
    if name == "FewShotClassifier":
        return import_module("nearshot.estimator").FewShotClassifier
    if name == "load_backbone":
        return import_module("nearshot.models").load_backbone
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *PARTS})
