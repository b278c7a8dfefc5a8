"""Evaluation of trained weights on a split."""

import sys
from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Self

import torch

from nearshot.checks import convert_numpy_fields
from nearshot.data import Store, open_or_prepare
from nearshot.devices import Precision, chosen_device
from nearshot.episode_shape import EpisodeShape, ImagesByClass
from nearshot.errors import InputError, look_up
from nearshot.evaluation import (
    CLASSIFIERS,
    Accuracy,
    ClassAccuracy,
    EvaluationSpec,
    evaluate_classes,
    evaluate_features,
)
from nearshot.models import load_backbone, read_notes
from nearshot.runs.network import (
    EMBEDDING,
    FeatureOptions,
    TrainedNetwork,
    TrainedRun,
    Unfinished,
    training_split,
)
from nearshot.training.autoconfig import EVALUATION_SETTINGS, check_split, fit_episodes
from nearshot.training.methods import METHODS
from nearshot.training.run_folder import TrainingClasses, classes_of_network

__all__ = ["Evaluation", "Request", "evaluate_run", "evaluate_weights", "file_name"]
MANY = 500  # images, which a slow network takes a while for
Tell = Callable[[str], object]


def _ignore(message: str) -> None:
    """Show no message."""


@dataclass(frozen=True)
class Request:
    """What to measure.

    Attributes:
        dataset: a prepared dataset or a folder; None for the one that the weights were trained on.
        split: the name of the split.
        shots: the numbers of shots.
        classifiers: names in `CLASSIFIERS`. If empty, the classifier that the run's method is
            reported with: soft assignment for Matching Networks, nearest centroid for all others.
        layers: the stages whose pooled outputs are the features, counted from 1; if empty, the
            network's embedding.
        least_images: classes with fewer images are skipped.
        side: the side of the prepared images, where there are several.
        by_class: whether to measure the accuracy of each class, too.
        n_views: as in `FeatureOptions`, like `power` and `input_size`.

    All others are as in `EvaluationSpec`.
    """

    dataset: str | None = None
    split: str = "test"
    shots: tuple[int, ...] = (1, 5)
    classifiers: tuple[str, ...] = ()
    layers: tuple[int, ...] = ()
    n_way: int = 5
    n_query: int = 15
    least_images: int = 1
    n_episodes: int = 10_000
    seed: int = 0
    side: int | None = None
    by_class: bool = False
    n_views: int = 1
    power: float = 1.0
    input_size: int | None = None

    def __post_init__(self) -> None:
        convert_numpy_fields(self)
        if not self.shots or self.n_views < 1 or not self.power > 0:
            given = f"{self.shots}, {self.n_views} and {self.power}"
            raise InputError(
                f"shots must not be empty, n_views be at least 1, and power be positive (got {given})."
            )
        for name in self.classifiers:
            look_up(CLASSIFIERS, name, "classifier")
        for n_shot in self.shots:
            self.spec(n_shot)  # checks the numbers

    def spec(self, n_shot: int) -> EvaluationSpec:
        """Return the settings of an evaluation with `n_shot` shots."""
        return EvaluationSpec(
            self.n_way,
            n_shot,
            self.n_query,
            self.n_episodes,
            self.seed,
            small_classes=self.least_images,
        )

    @property
    def options(self) -> FeatureOptions:
        """How features are made."""
        return FeatureOptions(self.n_views, self.power, self.input_size)

    @property
    def parts(self) -> list["Request"]:
        """A request for each number of shots with each classifier."""
        return [
            replace(self, shots=(n_shot,), classifiers=(name,))
            for n_shot in self.shots
            for name in self.classifiers
        ]


@dataclass(frozen=True, eq=False)
class Evaluation:
    """An accuracy of some weights.

    Attributes:
        weights: the name of the weights file.
        dataset: the dataset it was measured on.
        layers: the stages whose outputs were the features; empty for the embedding.
        unfinished: the run's progress, if it was measured before its end.
        by_class: the accuracy of each class over the same episodes, if requested.
        options: how features were made of embeddings.
    """

    n_shot: int
    classifier: str
    accuracy: Accuracy
    weights: str
    dataset: str
    layers: tuple[int, ...] = ()
    unfinished: Unfinished | None = None
    by_class: dict[str, ClassAccuracy] | None = None
    options: FeatureOptions = EMBEDDING

    def as_dict(self) -> dict[str, Any]:
        """Return it as JSON can hold it."""
        values = vars(self) | {"accuracy": self.accuracy.as_dict(), "options": asdict(self.options)}
        values["unfinished"] = None if self.unfinished is None else asdict(self.unfinished)
        by_class = values.pop("by_class")
        return (
            values
            if by_class is None
            else values | {"by_class": {n: one.as_dict() for n, one in by_class.items()}}
        )

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        """Return the evaluation of which `as_dict` gave the values."""
        own: dict[str, Any] = {
            "accuracy": Accuracy.from_dict(values["accuracy"]),
            "layers": tuple(values["layers"]),
        }
        own["options"] = FeatureOptions(**values.get("options", {}))
        if values.get("unfinished"):
            own["unfinished"] = Unfinished(**values["unfinished"])
        if "by_class" in values:
            own["by_class"] = {
                name: ClassAccuracy.from_dict(one) for name, one in values["by_class"].items()
            }
        return cls(**values | own)


def evaluate_weights(
    path: str | Path,
    request: Request,
    *,
    data_dir: str | Path | None = None,
    device: torch.device | str | None = None,
    precision: Precision = "auto",
    fit: Collection[str] = (),
    tell: Tell = _ignore,
) -> list[Evaluation]:
    """Measure a weights file.

    Args:
        path: a file of `save_backbone`, or a name that `load_backbone` knows.
        request: what to measure.
        data_dir: the folder of prepared datasets.
        device: where to compute; by default a GPU if there is one.
        precision: what the network computes in; "auto" is bfloat16 on a GPU, as in training.
        fit: which of "n_way", "shots" and "n_query" may be lowered to what the split allows; with
            "least_images", a few classes that are far smaller than the others are skipped.
        tell: called with each message, such as about lowered settings, or before many images are
            embedded.
    """
    own = read_notes(path).get("dataset")
    dataset = request.dataset or own
    if dataset is None:
        raise InputError(f"{path} does not say what it was trained on; give a dataset.")
    store = open_or_prepare(dataset, request.split, data_dir, side=request.side)
    trained_on, training = classes_of_network(str(path)), None
    # Else it is not needed, and opening a folder of images may prepare it.
    if trained_on is None or request.layers or request.power != 1 or request.input_size is not None:
        training = training_split(own, data_dir, request.side if dataset == own else None)
    if trained_on is None and training is not None:
        trained_on = TrainingClasses(training.dataset, training.class_names)
    if trained_on is not None:
        trained_on.check_unseen(store, request.split)
    request = replace(request, classifiers=request.classifiers or ("centroid",))
    request = _fitted(request, store, trained_on, fit, tell)
    how: dict[str, Any] = {
        "device": chosen_device(device),
        "precision": precision,
        "options": request.options,
    }
    network = TrainedNetwork(load_backbone(path), Path(path).name, training=training, **how)
    return [_measure(network, one, dataset, store, tell) for one in request.parts]


def evaluate_run(
    run: str | Path | TrainedRun,
    request: Request,
    *,
    data_dir: str | Path | None = None,
    device: torch.device | str | None = None,
    precision: Precision = "auto",
    unfinished: bool = False,
    fit: Collection[str] = (),
    tell: Tell = _ignore,
) -> list[Evaluation]:
    """Measure a run: each number of shots and classifier with the epoch that `best_epoch` finds for it.

    Results are kept in the run's folder, and the same request for the same data reads them. Results
    of an unfinished run say so, and have other file names: the finished run is measured anew.

    `run` is the run's folder; or the run opened, which then determines `data_dir`, `device`,
    `precision` and `unfinished`: whether to measure a run that was stopped, or is still training,
    instead of refusing it. The other arguments are those of `evaluate_weights`.
    """
    if not isinstance(run, TrainedRun):
        run = TrainedRun(
            run, data_dir=data_dir, device=device, precision=precision, unfinished=unfinished
        )
    method = METHODS.get(run.config.method_name)
    request = replace(
        request, classifiers=request.classifiers or (method.classifier if method else "centroid",)
    )
    store = run.store(request.split, request.dataset, request.side)
    request = _fitted(request, store, run.trained_on, fit, tell)
    found = []
    for one in request.parts:
        weights = run.best_weights(one.shots[0], one.classifiers[0])
        name = f"evaluations/{file_name(run, one, weights, store)}"
        if not (run.run.path / name).is_file():
            (run.run.path / "evaluations").mkdir(exist_ok=True)
            network, dataset = (
                run.network(weights, request.options),
                request.dataset or run.config.dataset,
            )
            measured = _measure(network, one, dataset, store, tell)
            run.run.write(name, replace(measured, unfinished=run.unfinished).as_dict())
        found.append(Evaluation.from_dict(run.run.read(name)))
    return found


def file_name(
    run: TrainedRun, request: Request, weights: Path, store: Store, also: Sequence[str] = ()
) -> str:
    """Return the name of a result's file, which is another for another request, other data or an unfinished run.

    `request` has one number of shots and one classifier; `also` is anything else, such as an
    adaptation.
    """
    parts = [] if run.unfinished is None else [f"unfinished-{run.unfinished}".replace(" ", "-")]
    parts += [
        request.split,
        weights.stem,
        f"{request.n_way}-way-{request.shots[0]}-shot-{request.n_query}-query",
    ]
    parts += (
        [f"classes-of-{request.least_images}-images-or-more"] if request.least_images > 1 else []
    )
    parts += [request.classifiers[0], f"{request.n_episodes}-episodes-seed-{request.seed}"]
    parts += [f"layers-{'+'.join(map(str, request.layers))}"] if request.layers else []
    parts += ["by-class"] if request.by_class else []
    parts += [word.replace(" ", "-") for word in (*request.options.labels, *also)]
    parts += ["bfloat16" if run.bfloat16 else "float32", store.dataset, store.fingerprint[:12]]
    return ",".join(parts) + ".json"


def _fitted(
    request: Request,
    store: Store,
    trained_on: TrainingClasses | None,
    fit: Collection[str],
    tell: Tell,
) -> Request:
    """Return the request with the settings in `fit` lowered to what the split allows, each with a message.

    A request that the split does not allow is refused here, before its images are embedded.
    """
    if trained_on is not None and (doubt := trained_on.doubt(store)):
        tell(doubt)
    by_class = ImagesByClass(store.labels, store.class_names)
    if fit:
        check_split(request.split, store.labels)
        asked: dict[str, Any] = {name: getattr(request, name) for name in EVALUATION_SETTINGS}
        fitting, messages = fit_episodes(by_class, request.split, **asked, auto=fit)
        for message in messages:
            tell(message)
        request = replace(request, **fitting)
    shape = EpisodeShape(request.n_way, max(request.shots), request.n_query)
    by_class.without_small_classes(request.least_images).check(shape)
    return request


def _measure(
    network: TrainedNetwork, request: Request, dataset: str, store: Store, tell: Tell
) -> Evaluation:
    """Measure a request of one number of shots and one classifier. The images are embedded once per network."""
    if (
        len(store) >= MANY
        and (store.folder, request.layers) not in network.embedded
        and not sys.stderr.isatty()
    ):
        tell(
            f"Embedding {len(store):,} images of {dataset} with {network.name} on {network.device.type}."
        )
    features = network.feature_set(store, request.split, request.layers)
    n_shot, classifier = request.shots[0], request.classifiers[0]
    spec = replace(request.spec(n_shot), classifier=classifier)
    accuracy = evaluate_features(features, spec=spec)
    by_class = evaluate_classes(features, spec=spec) if request.by_class else None
    more: dict[str, Any] = {
        "layers": request.layers,
        "by_class": by_class,
        "options": request.options,
    }
    return Evaluation(n_shot, classifier, accuracy, network.name, dataset, **more)
