"""Few-shot image classification: train embeddings, measure them honestly, put them to work."""

from typing import TYPE_CHECKING, Any

from nearshot._version import __version__
from nearshot.models import load_backbone

if TYPE_CHECKING:
    from nearshot.estimator import FewShotClassifier

__all__ = ["FewShotClassifier", "__version__", "load_backbone"]


def __getattr__(name: str) -> Any:
    """Import the classifier when it is first asked for: scikit-learn takes a second, and training does not need it."""
    if name != "FewShotClassifier":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from nearshot.estimator import FewShotClassifier  # noqa: PLC0415

    return FewShotClassifier
