"""Few-shot image classification: train embeddings, evaluate them, and classify your own images."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from nearshot._version import __version__

if TYPE_CHECKING:
    from nearshot.estimator import FewShotClassifier, prepare_images
    from nearshot.models import load_backbone

__all__ = ["FewShotClassifier", "__version__", "load_backbone", "prepare_images"]

PACKAGES = ("data", "estimator", "evaluation", "paper", "losses", "models", "runs", "training")
MODULES = {
    "FewShotClassifier": "nearshot.estimator",
    "load_backbone": "nearshot.models",
    "prepare_images": "nearshot.estimator",
}


def __getattr__(name: str) -> Any:
    """Import on first use: PyTorch and scikit-learn take seconds, and --help needs neither."""
    if name in PACKAGES:
        return import_module(f"nearshot.{name}")
    if name in MODULES:
        return getattr(import_module(MODULES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *PACKAGES})
