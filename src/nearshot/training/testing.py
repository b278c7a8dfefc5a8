"""Measuring trained weights on a split: the step after training, taken once for the test split."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nearshot.data import Store, open_or_prepare
from nearshot.data.loading import ImageFeed
from nearshot.errors import InputError
from nearshot.evaluation import Accuracy, FeatureSet, evaluate_many
from nearshot.evaluation.classifiers import ClassifierName
from nearshot.models import Backbone, load_backbone, read_notes
from nearshot.training.embedding import embed_images
from nearshot.training.runs import RunFolder

__all__ = ["Evaluation", "Request", "evaluate_run", "evaluate_weights"]


@dataclass(frozen=True)
class Request:
    """What to measure.

    Attributes:
        dataset: a prepared dataset or a folder; None for the one that the weights were trained on.
        split: which split.
        shots: the numbers of shots.
        classifiers: "centroid", "soft", "knn".
        layers: the stages whose pooled outputs are the features, counted from 1; none for the network's embedding.
        n_way: classes in an episode.
        n_query: queries of each class.
        n_episodes: how many episodes.
        seed: which episodes.
        side: the side of the prepared images, where there are several.
    """

    dataset: str | None = None
    split: str = "test"
    shots: tuple[int, ...] = (1, 5)
    classifiers: tuple[ClassifierName, ...] = ("centroid",)
    layers: tuple[int, ...] = ()
    n_way: int = 5
    n_query: int = 15
    n_episodes: int = 10_000
    seed: int = 0
    side: int | None = None


@dataclass(frozen=True, eq=False)
class Evaluation:
    """An accuracy, and which weights it is of.

    Attributes:
        n_shot: the number of shots.
        classifier: the classifier.
        accuracy: with its protocol and every episode's value.
        weights: the weights file's name.
        dataset: what it was measured on.
        layers: which stages' outputs were the features; empty for the embedding.
    """

    n_shot: int
    classifier: str
    accuracy: Accuracy
    weights: str
    dataset: str
    layers: tuple[int, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Return it as JSON can hold it."""
        return vars(self) | {"accuracy": self.accuracy.as_dict()}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Evaluation:
        """Return the evaluation of which `as_dict` gave the values."""
        accuracy, layers = Accuracy.from_dict(values["accuracy"]), tuple(values["layers"])
        return cls(**values | {"accuracy": accuracy, "layers": layers})


def evaluate_weights(
    path: str | Path,
    request: Request,
    *,
    data_dir: str | Path | None = None,
    device: torch.device | str | None = None,
    bfloat16: bool | None = None,
) -> list[Evaluation]:
    """Measure a weights file.

    Args:
        path: a file of `save_backbone`, or a name that `load_backbone` knows.
        request: what to measure.
        data_dir: where prepared datasets live.
        device: where; by default a GPU if there is one.
        bfloat16: whether the network computes in bfloat16; by default on a GPU, as in training.
    """
    device = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    backbone = load_backbone(path).to(device)
    notes = read_notes(path) if Path(path).is_file() else {}
    trained_on = notes.get("dataset")
    dataset = request.dataset or trained_on
    if dataset is None:
        raise InputError(f"{path} does not say what it was trained on; give a dataset.")
    store = open_or_prepare(dataset, request.split, data_dir, side=request.side)
    embedded = _Embedder(backbone, device, device.type == "cuda" if bfloat16 is None else bfloat16, request.layers)
    training = _training_split(trained_on, data_dir, request)
    data = FeatureSet(
        features=embedded(store),
        labels=store.labels,
        centre=_centre(embedded, backbone, training),
        class_names=store.class_names,
        split=request.split,
        fingerprint=store.fingerprint,
    )
    results = evaluate_many(
        data,
        n_way=request.n_way,
        n_shots=request.shots,
        n_query=request.n_query,
        n_episodes=request.n_episodes,
        classifiers=request.classifiers,
        seed=request.seed,
        training_classes=training.class_names if training is not None and request.split != "train" else None,
    )
    return [
        Evaluation(measured.n_shot, measured.classifier, accuracy, Path(path).name, dataset, request.layers)
        for measured, accuracy in results.items()
    ]


def evaluate_run(
    folder: str | Path,
    request: Request,
    *,
    data_dir: str | Path | None = None,
    device: torch.device | str | None = None,
    bfloat16: bool | None = None,
) -> list[Evaluation]:
    """Measure each number of shots and classifier with the epoch that was best for it on the validation split.

    (k-NN has no best epoch of its own, and takes nearest centroid's.) What was measured is kept in the run's folder,
    and asking again gives the same answer without measuring again.
    """
    run = RunFolder(folder)
    config = run.read_config()
    best = run.read("result.json")["best"]
    wanted: dict[Path, list[tuple[int, ClassifierName]]] = {}
    for n_shot in request.shots:
        for classifier in request.classifiers:
            chosen_by = f"{n_shot}-shot {'centroid' if classifier == 'knn' else classifier}"
            epoch = best[chosen_by]["epoch"] if chosen_by in best else config.epochs
            wanted.setdefault(run.weights_of(epoch), []).append((n_shot, classifier))
    evaluations = []
    for weights, pairs in wanted.items():
        name = _file_name(request, weights)
        if (run.path / "evaluations" / name).is_file():
            measured = [Evaluation.from_dict(values) for values in run.read(f"evaluations/{name}")["evaluations"]]
        else:
            everything = _with(request, shots={*request.shots, 1, 5}, classifiers=("centroid", "soft", "knn"))
            measured = evaluate_weights(weights, everything, data_dir=data_dir, device=device, bfloat16=bfloat16)
            (run.path / "evaluations").mkdir(exist_ok=True)
            run.write(f"evaluations/{name}", {"evaluations": [one.as_dict() for one in measured]})
        evaluations += [one for one in measured if (one.n_shot, one.classifier) in pairs]
    order = {(n_shot, name): i for i, (n_shot, name) in enumerate(_pairs(request))}
    return sorted(evaluations, key=lambda one: order[one.n_shot, one.classifier])


class _Embedder:
    """A trained network as a function from a store to features."""

    def __init__(self, backbone: Backbone, device: torch.device, bfloat16: bool, layers: Sequence[int]) -> None:
        self.backbone, self.device, self.bfloat16, self.layers = backbone, device, bfloat16, layers

    def __call__(self, store: Store) -> Tensor:
        network = partial(self.backbone.multi_layer, stages=self.layers) if self.layers else None
        feed = ImageFeed(store.images, self.device)
        return embed_images(self.backbone, feed, device=self.device, network=network, bfloat16=self.bfloat16)


def _centre(embedder: _Embedder, backbone: Backbone, training: Store | None) -> Tensor | None:
    """Return the mean feature of the training set: the one saved with the weights, unless features are others."""
    if not embedder.layers:
        return backbone.spec.training_mean
    if training is None:
        raise InputError("Features of layers are centred by their mean over the training set, which is not prepared.")
    return embedder(training).mean(0)


def _training_split(trained_on: str | None, data_dir: str | Path | None, request: Request) -> Store | None:
    """Return the split that was trained on, if it is there: for its classes, and for its mean."""
    if trained_on is None:
        return None
    try:
        return open_or_prepare(trained_on, "train", data_dir, side=request.side)
    except InputError:
        return None


def _pairs(request: Request) -> list[tuple[int, str]]:
    return [(n_shot, classifier) for n_shot in request.shots for classifier in request.classifiers]


def _with(request: Request, shots: set[int], classifiers: tuple[ClassifierName, ...]) -> Request:
    return Request(**vars(request) | {"shots": tuple(sorted(shots)), "classifiers": classifiers})


def _file_name(request: Request, weights: Path) -> str:
    """Return a name that says what was measured, so that another request has another."""
    shots = "+".join(map(str, sorted({*request.shots, 1, 5})))
    parts = [request.split, weights.stem, f"{request.n_way}-way-{shots}-shot-{request.n_query}-query"]
    parts += [f"{request.n_episodes}-episodes-seed-{request.seed}"]
    parts += [f"layers-{'+'.join(map(str, request.layers))}"] if request.layers else []
    parts += [Path(request.dataset).name] if request.dataset else []
    return ",".join(parts) + ".json"
