"""Few-shot image classification: train embeddings, measure them honestly, put them to work."""

from typing import TYPE_CHECKING, Any

from nearshot._version import __version__

if TYPE_CHECKING:
    from nearshot.estimator import FewShotClassifier
    from nearshot.models import load_backbone

__all__ = ["FewShotClassifier", "__version__", "load_backbone"]


def __getattr__(name: str) -> Any:
    """Import what is asked for when it is: PyTorch and scikit-learn take seconds, and a command's help needs none."""
    if name == "FewShotClassifier":
        from nearshot.estimator import FewShotClassifier  # noqa: PLC0415

        return FewShotClassifier
    if name == "load_backbone":
        from nearshot.models import load_backbone  # noqa: PLC0415

        return load_backbone
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
