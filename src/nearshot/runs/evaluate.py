"""Measuring trained weights on a split: the step after training, taken once for the test split."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from nearshot.data import Store, open_or_prepare
from nearshot.data.store import read_manifest
from nearshot.devices import Precision, chosen_device
from nearshot.episode_shape import EpisodeShape, ImagesByClass
from nearshot.errors import FileFormatError, InputError
from nearshot.evaluation import (
    Accuracy,
    ClassAccuracy,
    evaluate_classes,
    evaluate_many,
    sample_episodes,
)
from nearshot.evaluation.classifiers import ClassifierName
from nearshot.models import load_backbone, read_notes
from nearshot.checks import convert_numpy_fields
from nearshot.training.methods import METHODS
from nearshot.training.run_folder import RunFolder
from nearshot.training.episode_limits import check_classes, episodes_that_fit
from nearshot.runs.network import TrainedNetwork, TrainedRun, Unfinished, training_split
from nearshot.training.classes import TrainedOn
from nearshot.runs.unfinished import UnfinishedRun

__all__ = ["Evaluation", "Request", "evaluate_run", "evaluate_weights", "file_name"]


MANY = 500  # images, which a slow network takes a while for


@dataclass(frozen=True)
class Request:
    """What to measure.

    Attributes:
        dataset: a prepared dataset or a folder; None for the one that the weights were trained on.
        split: which split.
        shots: the numbers of shots.
        classifiers: "centroid", "soft", "knn"; none for what the run's method is reported with: soft assignment for
            Matching Networks, nearest centroid for all others.
        layers: the stages whose pooled outputs are the features, counted from 1; none for the network's embedding.
        n_way: classes in an episode.
        n_query: queries of each class.
        least_images: classes of fewer images are left out.
        n_episodes: how many episodes.
        seed: which episodes.
        side: the side of the prepared images, where there are several.
        by_class: whether to tell the accuracy of each class, too.
    """

    dataset: str | None = None
    split: str = "test"
    shots: tuple[int, ...] = (1, 5)
    classifiers: tuple[ClassifierName, ...] = ()
    layers: tuple[int, ...] = ()
    n_way: int = 5
    n_query: int = 15
    least_images: int = 1
    n_episodes: int = 10_000
    seed: int = 0
    side: int | None = None
    by_class: bool = False

    def __post_init__(self) -> None:
        convert_numpy_fields(self)
        if not isinstance(self.shots, tuple):
            raise InputError(f"shots must be numbers in a row, such as (1, 5), not {self.shots!r}.")
        for n_shot in self.shots:
            EpisodeShape(self.n_way, n_shot, self.n_query)  # checks the numbers
        if self.least_images < 1:
            raise InputError(f"least_images must be at least 1, not {self.least_images}.")


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
        unfinished: how far the run was, where it was measured before its end.
        by_class: the accuracy of each class, over the same episodes, where that was asked for.
    """

    n_shot: int
    classifier: str
    accuracy: Accuracy
    weights: str
    dataset: str
    layers: tuple[int, ...] = ()
    unfinished: Unfinished | None = None
    by_class: dict[str, ClassAccuracy] | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return it as JSON can hold it."""
        how_far = None if self.unfinished is None else asdict(self.unfinished)
        values = vars(self) | {"accuracy": self.accuracy.as_dict(), "unfinished": how_far}
        del values["by_class"]
        if self.by_class is not None:
            values["by_class"] = {name: one.as_dict() for name, one in self.by_class.items()}
        return values

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Evaluation:
        """Return the evaluation of which `as_dict` gave the values."""
        accuracy, layers = Accuracy.from_dict(values["accuracy"]), tuple(values["layers"])
        how_far = values.get("unfinished")
        unfinished = None if how_far is None else Unfinished(**how_far)
        classes = values.get("by_class")
        by_class = None if classes is None else {name: ClassAccuracy.from_dict(one) for name, one in classes.items()}
        own = {"accuracy": accuracy, "layers": layers, "unfinished": unfinished, "by_class": by_class}
        return cls(**values | own)


def evaluate_weights(
    path: str | Path,
    request: Request,
    *,
    data_dir: str | Path | None = None,
    device: torch.device | str | None = None,
    precision: Precision = "auto",
    fit: Collection[str] = (),
    tell: Callable[[str], object] | None = None,
) -> list[Evaluation]:
    """Measure a weights file.

    Args:
        path: a file of `save_backbone`, or a name that `load_backbone` knows.
        request: what to measure.
        data_dir: where prepared datasets live.
        device: where; by default a GPU if there is one.
        precision: what the network computes in; "auto" is bfloat16 on a GPU, as in training.
        fit: which of "n_way", "shots" and "n_query" may be lowered to what the split allows; with "least_images", a few
            classes that are far smaller than the others are left out.
        tell: what is called with a sentence for each that is, with one if classes of another dataset have names that
            were trained on, and, where no bar shows how far it is, with one before many images are embedded.
    """
    notes = {} if str(path).startswith("timm:") else read_notes(path)
    request = replace(request, classifiers=request.classifiers or ("centroid",))
    own = notes.get("dataset")
    dataset = request.dataset or own
    if dataset is None:
        raise InputError(f"{path} does not say what it was trained on; give a dataset.")
    store = open_or_prepare(dataset, request.split, data_dir, side=request.side)
    trained_on, training = TrainedOn.of_notes(notes, path), None
    if trained_on is None or request.layers:  # else it is not needed, and opening a folder of pictures may prepare it
        training = training_split(own, data_dir, request.side if dataset == own else None)
    trained_on = trained_on or TrainedOn.of_split(training)
    if trained_on is not None:
        trained_on.check_unseen(store, request.split)
        _say(tell, trained_on.doubt(store))
    request = _fitted(request, store, fit, tell)
    network = TrainedNetwork(
        load_backbone(path), Path(path).name, device=chosen_device(device), precision=precision, training=training
    )
    return _measure(network, request, dataset, store, tell)


def evaluate_run(
    run: str | Path | TrainedRun,
    request: Request,
    *,
    data_dir: str | Path | None = None,
    device: torch.device | str | None = None,
    precision: Precision = "auto",
    unfinished: bool = False,
    fit: Collection[str] = (),
    tell: Callable[[str], object] | None = None,
) -> list[Evaluation]:
    """Measure each number of shots and classifier with the epoch that was best for it on the validation split.

    (k-NN has no best epoch of its own, and takes nearest centroid's; shots that were not validated take the nearest
    number's.) What was measured is kept in the run's folder, and asking the same of the same data again gives the same
    answer without measuring again. What was measured before the run's end says so, is kept apart by its name, and
    answers nothing that is asked of the finished run.

    Args:
        run: the run's folder, or the run opened, where several things are asked of it: then the rest is as it says.
        request: what to measure.
        data_dir: where prepared datasets live.
        device: where; by default a GPU if there is one.
        precision: what the network computes in; "auto" is bfloat16 on a GPU, as in training.
        unfinished: whether a run that was stopped, or is still training, is measured as it is; else it is refused.
        fit: which of "n_way", "shots" and "n_query" may be lowered to what the split allows; with "least_images", a few
            classes that are far smaller than the others are left out.
        tell: what is called with a sentence for each that is, with one if the dataset is not as it was trained on or
            classes of another have names that were trained on, and, where no bar shows how far it is, with one before
            many images are embedded.
    """
    if not isinstance(run, TrainedRun):
        kind = UnfinishedRun if unfinished and not RunFolder(run).is_finished else TrainedRun
        run = kind(run, data_dir=data_dir, device=device, precision=precision)
    method = METHODS.get(run.config.method_name)
    usual: ClassifierName = "centroid" if method is None else method.classifier
    request = replace(request, classifiers=request.classifiers or (usual,))
    store = run.store(request.split, request.dataset, request.side)
    _say(tell, _prepared_anew(run, request, store))
    _say(tell, None if run.trained_on is None else run.trained_on.doubt(store))
    request = _fitted(request, store, fit, tell)
    folder = run.run.path / "evaluations"
    names: list[str] = []
    missing: dict[Path, dict[tuple[int, ClassifierName], str]] = {}
    for n_shot, classifier in _pairs(request):
        weights = run.best_weights(n_shot, classifier)
        one = replace(request, shots=(n_shot,), classifiers=(classifier,))
        names.append(file_name(run, one, weights, store))
        if not (folder / names[-1]).is_file():
            missing.setdefault(weights, {})[n_shot, classifier] = names[-1]
    for weights, wanted in missing.items():  # images are embedded once for all that is asked of the same weights
        several = replace(
            request,
            shots=tuple(dict.fromkeys(n_shot for n_shot, _ in wanted)),
            classifiers=tuple(dict.fromkeys(classifier for _, classifier in wanted)),
        )
        folder.mkdir(exist_ok=True)
        measured = _measure(run.network(weights), several, request.dataset or run.config.dataset, store, tell)
        found: dict[tuple[int, str], Evaluation] = {(one.n_shot, one.classifier): one for one in measured}
        for pair, name in wanted.items():
            run.run.write(f"evaluations/{name}", replace(found[pair], unfinished=run.unfinished).as_dict())
    return [Evaluation.from_dict(run.run.read(f"evaluations/{name}")) for name in names]


def file_name(run: TrainedRun, request: Request, weights: Path, store: Store, also: Sequence[str] = ()) -> str:
    """Return a name that says what was measured on which data, so that another question has another file.

    Args:
        run: the run; one before its end has names of its own.
        request: with one number of shots and one classifier.
        weights: the weights file.
        store: the split.
        also: whatever else was done, such as an adaptation.
    """
    parts = [] if run.unfinished is None else [f"unfinished-{run.unfinished}".replace(" ", "-")]
    parts += [request.split, weights.stem, f"{request.n_way}-way-{request.shots[0]}-shot-{request.n_query}-query"]
    parts += [f"classes-of-{request.least_images}-images-or-more"] if request.least_images > 1 else []
    parts += [request.classifiers[0], f"{request.n_episodes}-episodes-seed-{request.seed}"]
    parts += [f"layers-{'+'.join(map(str, request.layers))}"] if request.layers else []
    parts += ["by-class"] if request.by_class else []
    parts += [word.replace(" ", "-") for word in also]
    parts += ["bfloat16" if run.bfloat16 else "float32", store.dataset, store.fingerprint[:12]]
    return ",".join(parts) + ".json"


def _prepared_anew(run: TrainedRun, request: Request, store: Store) -> str | None:
    """Say that the dataset of a run was prepared anew since it was trained, perhaps with other classes in each split.

    None where it was not, or where that cannot be told: of another dataset, or of images of another side.
    """
    if request.dataset not in (None, run.config.dataset) or request.side not in (None, run.config.side):
        return None
    try:
        there = str(run.run.read("environment.json")["fingerprints"]["train"])[:12]
        here = str(read_manifest(store.folder.parent / "train")["fingerprint"])[:12]
    except (InputError, FileFormatError, LookupError, TypeError):
        return None
    if there == here:
        return None
    anew = (
        f"{store.dataset} was prepared anew since {run.run.path} was trained: its training split had the fingerprint "
        f"{there} and now has {here}."
    )
    if request.split == "train":
        return anew
    if run.run.read_trained_on() is not None:  # what shares a class was refused
        return f"{anew} By their names, the classes of the {request.split} split were not trained on."
    return f"{anew} If its splits have other classes now, the network may have seen those of the {request.split} split."


def _say(tell: Callable[[str], object] | None, sentence: str | None) -> None:
    if tell is not None and sentence is not None:
        tell(sentence)


def _fitted(request: Request, store: Store, fit: Collection[str], tell: Callable[[str], object] | None) -> Request:
    """Return the request with what may give way made to fit what the split has, each said.

    What the split has not is refused here, before its images are embedded.
    """
    if fit:
        check_classes({request.split: store.labels})
        small = episodes_that_fit(
            store.labels,
            request.split,
            n_way=request.n_way,
            shots=request.shots,
            n_query=request.n_query,
            least_images=request.least_images,
            free=fit,
            class_names=store.class_names,
        )
        for sentence in small.said:
            _say(tell, sentence)
        request = replace(
            request, n_way=small.n_way, shots=small.shots, n_query=small.n_query, least_images=small.least_images
        )
    by_class = ImagesByClass(store.labels, store.class_names).without_small_classes(request.least_images)
    if fit:
        by_class.check(EpisodeShape(n_way=2, n_shot=1, n_query=1))  # what cannot give way any further
    by_class.check(EpisodeShape(request.n_way, max(request.shots, default=1), request.n_query))
    return request


def _measure(
    network: TrainedNetwork, request: Request, dataset: str, store: Store, tell: Callable[[str], object] | None
) -> list[Evaluation]:
    if tell is not None and len(store) >= MANY and not sys.stderr.isatty():
        tell(f"Embedding {len(store):,} images of {dataset} with {network.name} on {network.device.type}.")
    features = network.feature_set(store, request.split, request.layers)
    shape: dict[str, Any] = {
        "n_way": request.n_way,
        "n_query": request.n_query,
        "n_episodes": request.n_episodes,
        "seed": request.seed,
        "small_classes": request.least_images,
    }
    results = evaluate_many(features, n_shots=request.shots, classifiers=request.classifiers, **shape)
    by_class: dict[tuple[int, str], dict[str, ClassAccuracy]] = {}
    if request.by_class:
        episodes = sample_episodes(features.labels, n_shot=max(request.shots), **shape)  # the same
        for n_shot, classifier in _pairs(request):
            found = evaluate_classes(features, n_shot=n_shot, classifier=classifier, episodes=episodes)
            by_class[n_shot, classifier] = found
    return [
        Evaluation(
            measured.n_shot,
            measured.classifier,
            accuracy,
            network.name,
            dataset,
            request.layers,
            by_class=by_class.get((measured.n_shot, measured.classifier)),
        )
        for measured, accuracy in results.items()
    ]


def _pairs(request: Request) -> list[tuple[int, ClassifierName]]:
    if not request.shots:
        raise InputError("There is nothing to measure: give numbers of shots.")
    return [(n_shot, classifier) for n_shot in request.shots for classifier in request.classifiers]
