"""A classifier from a few labelled images per class."""

from nearshot.estimator.classifier import FewShotClassifier
from nearshot.estimator.embedder import Embedder
from nearshot.estimator.explanation import Explanation, Neighbour
from nearshot.estimator.find_images import SupportFolder, read_support
from nearshot.estimator.input_images import prepare_images
from nearshot.estimator.leave_one_out import AccuracyEstimate
from nearshot.estimator.onnx import export_onnx

__all__ = [
    "AccuracyEstimate",
    "Embedder",
    "Explanation",
    "FewShotClassifier",
    "Neighbour",
    "SupportFolder",
    "export_onnx",
    "prepare_images",
    "read_support",
]
