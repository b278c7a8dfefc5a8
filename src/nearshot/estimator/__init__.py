"""For people with a few photos a class: pictures and labels in, a classifier out."""

from nearshot.estimator.classifier import FewShotClassifier
from nearshot.estimator.embedder import Embedder
from nearshot.estimator.estimate import AccuracyEstimate
from nearshot.estimator.explanation import Explanation, Neighbour
from nearshot.estimator.export import export_onnx
from nearshot.estimator.folders import SupportFolder, read_support

__all__ = [
    "AccuracyEstimate",
    "Embedder",
    "Explanation",
    "FewShotClassifier",
    "Neighbour",
    "SupportFolder",
    "export_onnx",
    "read_support",
]
