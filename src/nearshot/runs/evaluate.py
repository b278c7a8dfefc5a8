"""Evaluation of trained weights on a split. Results of a run are kept in its folder."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Self

import torch
from torch import nn

from nearshot.data import Store
from nearshot.devices import Precision
from nearshot.episode_shape import ImagesByClass
from nearshot.evaluation import (
    Accuracy,
    ClassAccuracy,
    EvaluationSpec,
    FeatureSet,
    evaluate_many,
)
from nearshot.evaluation.classifiers import ClassifierOrName, classifier_name, is_built_in
from nearshot.evaluation.measure import evaluate_with_classes
from nearshot.runs.network import rows_of
from nearshot.runs.own_network import NormalisationOrName
from nearshot.runs.run import TrainedRun, TrainedWeights, Unfinished, open_run, open_weights

__all__ = [
    "CachedEvaluation",
    "Evaluation",
    "evaluate_network",
    "evaluate_run",
    "evaluate_weights",
]


@dataclass(frozen=True, eq=False)
class Evaluation:
    """An accuracy of some weights.

    Attributes:
        spec: what was measured.
        accuracy: the accuracy.
        weights: the name of the weights file.
        dataset: the dataset that it was measured on.
        unfinished: the run's progress, if it was measured before its end.
        by_class: the accuracy of each class over the same episodes, if requested.
    """

    spec: EvaluationSpec
    accuracy: Accuracy
    weights: str
    dataset: str
    unfinished: Unfinished | None = None
    by_class: dict[str, ClassAccuracy] | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return it as JSON can hold it."""
        by_class = None
        if self.by_class is not None:
            by_class = {name: accuracy.as_dict() for name, accuracy in self.by_class.items()}
        return {
            "spec": self.spec.as_dict(),
            "accuracy": self.accuracy.as_dict(),
            "weights": self.weights,
            "dataset": self.dataset,
            "unfinished": None if self.unfinished is None else asdict(self.unfinished),
            "by_class": by_class,
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Inverse of `as_dict`."""
        unfinished = None
        if values["unfinished"] is not None:
            unfinished = Unfinished(**values["unfinished"])
        by_class = None
        if values["by_class"] is not None:
            by_class = {}
            for name, accuracy in values["by_class"].items():
                by_class[name] = ClassAccuracy.from_dict(accuracy)
        return cls(
            EvaluationSpec.from_dict(values["spec"]),
            Accuracy.from_dict(values["accuracy"]),
            values["weights"],
            values["dataset"],
            unfinished,
            by_class,
        )


def evaluate_run(
    run: str | Path | TrainedRun,
    specs: EvaluationSpec | Sequence[EvaluationSpec],
    *,
    by_class: bool = False,
    inductive: bool | None = None,
    data_dir: str | Path | None = None,
    device: torch.device | str | None = None,
    precision: Precision = "auto",
    unfinished: bool = False,
    progress: bool | None = None,
) -> list[Evaluation]:
    """Measure a run: each evaluation with the epoch that was best for its shots and classifier.

    Results are kept in the run's folder, and the same evaluation of the same data reads them. Those
    of an unfinished run say so, and the finished run is measured anew. Results of classifiers that
    are not built in are not kept.

    Args:
        run: the run's folder; or the run opened, which then determines `data_dir`, `device`,
            `precision` and `unfinished`.
        specs: what to measure, one or several.
        by_class: whether to measure the accuracy of each class, too.
        inductive: for a function as classifier, whether it looks at each query alone.
        data_dir: the folder of prepared datasets; by default $NEARSHOT_DATA, or ~/.cache/nearshot.
        device: where to compute; by default a GPU if there is one.
        precision: what the network computes in; "auto" is bfloat16 on a GPU, as in training.
        unfinished: whether to measure a run that was stopped, or is still training, instead of
            refusing it.
        progress: whether to show a bar; by default on a terminal, for very many episodes.
    """
    if not isinstance(run, TrainedRun):
        run = open_run(
            run, data_dir=data_dir, device=device, precision=precision, unfinished=unfinished
        )
    evaluations = []
    for spec, store in _open_splits(run, specs):
        weights = run.best_weights(spec.n_shot, classifier_name(spec.classifier))
        cached = CachedEvaluation(run, spec, weights, store, by_class=by_class)
        evaluation = cached.read()
        if evaluation is None:
            network = run.network(weights, input_size=spec.input_size)
            evaluation = _measure(
                network.feature_set(store, spec),
                spec,
                network.name,
                spec.dataset or run.config.dataset,
                by_class=by_class,
                inductive=inductive,
                progress=progress,
            )
            evaluation = replace(evaluation, unfinished=run.unfinished)
            cached.write(evaluation)
        evaluations.append(evaluation)
    return evaluations


def evaluate_weights(
    weights: str | Path | nn.Module | TrainedWeights,
    specs: EvaluationSpec | Sequence[EvaluationSpec],
    *,
    normalisation: NormalisationOrName | None = None,
    by_class: bool = False,
    inductive: bool | None = None,
    data_dir: str | Path | None = None,
    device: torch.device | str | None = None,
    precision: Precision = "auto",
    progress: bool | None = None,
) -> list[Evaluation]:
    """Measure a network.

    `weights` and `normalisation` are those of `open_weights`; or `weights` is a network opened,
    which then determines `normalisation`, `data_dir`, `device` and `precision`. The other arguments
    are those of `evaluate_run`.
    """
    if not isinstance(weights, TrainedWeights):
        weights = open_weights(
            weights,
            normalisation=normalisation,
            data_dir=data_dir,
            device=device,
            precision=precision,
        )
    evaluations = []
    for spec, store in _open_splits(weights, specs):
        is_own_dataset = spec.dataset in (None, weights.dataset)
        network = weights.network(
            input_size=spec.input_size,
            side=spec.side if is_own_dataset else None,
            prepared_side=store.manifest["side"],
        )
        evaluation = _measure(
            network.feature_set(store, spec),
            spec,
            network.name,
            str(spec.dataset or weights.dataset),
            by_class=by_class,
            inductive=inductive,
            progress=progress,
        )
        evaluations.append(evaluation)
    return evaluations


def evaluate_network(
    network: str | Path | nn.Module,
    dataset: str | Path,
    *,
    split: str = "test",
    normalisation: NormalisationOrName | None = None,
    input_size: int | None = None,
    n_way: int = 5,
    n_shot: int | Sequence[int] = (1, 5),
    n_query: int = 15,
    n_episodes: int = 10_000,
    seed: int = 0,
    classifier: ClassifierOrName | Sequence[ClassifierOrName] = "centroid",
    least_images: int = 1,
    max_images: int | None = None,
    inductive: bool | None = None,
    data_dir: str | Path | None = None,
    device: torch.device | str | None = None,
    precision: Precision = "auto",
    cache: bool = True,
    progress: bool | None = None,
) -> list[Evaluation]:
    """Measure a network of your own on a split: for each number of shots, each classifier.

    The split is opened, or prepared; its images are scaled, normalised and embedded in batches, in
    evaluation mode. The features are kept on disk for the next time.

    Args:
        network: a module from images (image, 3, height, width) to embeddings (image, dim); or what
            else `open_weights` takes.
        dataset: a prepared dataset, or a folder of images.
        split: the split; choose between networks on "val", and look at "test" once.
        normalisation: how the images are normalised, as in `open_weights`.
        input_size: the side of the images that the network sees; by default that of the network, or
            else of the prepared images.
        n_way: the classes of an episode.
        n_shot: the support images of each class; one or several numbers.
        n_query: the query images of each class.
        n_episodes: the number of episodes.
        seed: the seed of the episodes.
        classifier: as in `evaluate_features`; one or several.
        least_images: classes with fewer images are skipped.
        max_images: use at most this many images of each class, for a first look.
        inductive: for a function as classifier, whether it looks at each query alone.
        data_dir: the folder of prepared datasets; by default $NEARSHOT_DATA, or ~/.cache/nearshot.
        device: where to compute; by default a GPU if there is one.
        precision: what the network computes in; see `open_weights`.
        cache: whether to keep the features on disk.
        progress: whether to show a bar; by default on a terminal.
    """
    weights = open_weights(
        network,
        normalisation=normalisation,
        data_dir=data_dir,
        device=device,
        precision=precision,
        cache=cache,
    )
    several_shots = (n_shot,) if isinstance(n_shot, int) else tuple(n_shot)
    several_classifiers: Sequence[ClassifierOrName] = (
        (classifier,) if isinstance(classifier, str) or callable(classifier) else classifier
    )
    specs = []
    for shots in several_shots:
        for name in several_classifiers:
            spec = EvaluationSpec(
                dataset=str(dataset),
                split=split,
                input_size=input_size,
                max_images=max_images,
                n_way=n_way,
                n_shot=shots,
                n_query=n_query,
                n_episodes=n_episodes,
                seed=seed,
                least_images=least_images,
                classifier=name,
            )
            specs.append(spec)
    return evaluate_weights(weights, specs, inductive=inductive, progress=progress)


def evaluate_feature_file(
    path: str | Path,
    features: FeatureSet,
    specs: Sequence[EvaluationSpec],
    *,
    by_class: bool = False,
) -> list[Evaluation]:
    """Measure the features of a file."""
    name = Path(path).name
    return [_measure(features, spec, name, name, by_class=by_class) for spec in specs]


class CachedEvaluation:
    """The file of an evaluation in the folder of a run.

    Another evaluation, other weights, other data, another precision and an unfinished run have
    other files. Classifiers that are not built in have none: their names do not identify them.

    Args:
        run: the run.
        spec: what is measured.
        weights: the weights file.
        store: the split.
        by_class: whether the accuracy of each class is measured, too.
        adapted: how the network or its features are adapted to each episode, if at all.
    """

    def __init__(
        self,
        run: TrainedRun,
        spec: EvaluationSpec,
        weights: Path,
        store: Store,
        *,
        by_class: bool = False,
        adapted: str | None = None,
    ) -> None:
        self._run = run.run
        self._key = {
            "spec": spec.identity,
            "weights": weights.name,
            "dataset": store.dataset,
            "fingerprint": store.fingerprint,
            "precision": "bfloat16" if run.bfloat16 else "float32",
            "unfinished": None if run.unfinished is None else asdict(run.unfinished),
            "by_class": by_class,
            "adapted": adapted,
        }
        content = json.dumps(self._key, sort_keys=True)
        self.name: str | None = None  # in the run's folder
        if is_built_in(spec.classifier):
            digest = hashlib.sha256(content.encode()).hexdigest()
            self.name = f"evaluations/{digest[:16]}.json"

    def read(self) -> Evaluation | None:
        """Return the evaluation, or None if there is no file."""
        if self.name is None or not (self._run.path / self.name).is_file():
            return None
        return Evaluation.from_dict(self._run.read(self.name)["evaluation"])

    def write(self, evaluation: Evaluation) -> None:
        """Write the evaluation, unless its classifier is not built in."""
        if self.name is None:
            return
        (self._run.path / "evaluations").mkdir(exist_ok=True)
        self._run.write(self.name, {"key": self._key, "evaluation": evaluation.as_dict()})


def _open_splits(
    trained: TrainedRun | TrainedWeights, specs: EvaluationSpec | Sequence[EvaluationSpec]
) -> list[tuple[EvaluationSpec, Store]]:
    """Return each spec with its split.

    What a split does not allow is refused here, before its images are embedded.
    """
    if isinstance(specs, EvaluationSpec):
        specs = [specs]
    with_stores = []
    for spec in specs:
        store = trained.store(spec.split, spec.dataset, spec.side)
        labels = store.labels[rows_of(store, spec.max_images)]
        by_class = ImagesByClass(labels, store.class_names)
        by_class.without_small_classes(spec.least_images).check(spec.shape)
        with_stores.append((spec, store))
    return with_stores


def _measure(
    features: FeatureSet,
    spec: EvaluationSpec,
    weights: str,
    dataset: str,
    *,
    by_class: bool,
    inductive: bool | None = None,
    progress: bool | None = None,
) -> Evaluation:
    class_accuracies = None
    if by_class:
        accuracy, class_accuracies = evaluate_with_classes(
            features, spec, inductive=inductive, progress=progress
        )
    else:
        (accuracy,) = evaluate_many(features, specs=[spec], inductive=inductive, progress=progress)
    return Evaluation(spec, accuracy, weights, dataset, by_class=class_accuracies)
