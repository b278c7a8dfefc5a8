"""`nearshot evaluate`."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.console import Console
from rich.table import Table
from torch import Tensor

from nearshot.cli._options import option
from nearshot.devices import Precision
from nearshot.episode_shape import ImagesByClass
from nearshot.errors import InputError
from nearshot.evaluation import TRANSDUCTIVE, EvaluationSpec, load_features
from nearshot.evaluation.classifiers import CLASSIFIERS, ClassifierOrName, classifier_name
from nearshot.evaluation.features import is_features_file
from nearshot.evaluation.fit import check_split, fit_episodes
from nearshot.runs import (
    Evaluation,
    TrainedRun,
    TrainedWeights,
    evaluate_run,
    evaluate_weights,
    open_run,
    open_weights,
)
from nearshot.runs.evaluate import evaluate_feature_file
from nearshot.runs.network import rows_of
from nearshot.text import counted, print_message

HARDEST = 30  # how many classes are shown if there are more
EASIEST = 10
FITTED = "or what the split allows"


# The fields of an evaluation are options. Five are fixed here: `Evaluate` takes several values of
# them, or chooses them by the split.
@dataclass(frozen=True, kw_only=True)
class OneEvaluation(EvaluationSpec):
    """The features, their split and the episodes."""

    n_way: tyro.conf.Fixed[int] = 5
    n_shot: tyro.conf.Fixed[int] = 5
    n_query: tyro.conf.Fixed[int] = 15
    least_images: tyro.conf.Fixed[int] = 1
    classifier: tyro.conf.Fixed[ClassifierOrName] = "centroid"


SpecOptions = Annotated[
    OneEvaluation,
    tyro.conf.OmitArgPrefixes,
    tyro.conf.SuppressFixed,
    tyro.conf.arg(name="evaluation"),
]


@dataclass(frozen=True)
class Evaluate:
    """Measure the few-shot accuracy of a network, on classes that it was not trained on.

    Where a split has too few classes or images for the default episodes, their settings are
    lowered, with a message. Settings that you give are never changed. Features are kept on disk, so
    that another classifier or number of shots takes seconds.

    Examples:
      nearshot evaluate runs/glyphs-nca
      nearshot evaluate runs/cifar-fs-nca --classifier centroid soft knn
      nearshot evaluate runs/glyphs-nca --split val --by-class
      nearshot evaluate efficientnet-lite0 --dataset ./my-photos
      nearshot evaluate my_networks:resnet --dataset cifar-fs --normalisation imagenet
      nearshot evaluate features.npz --n-shot 1 5 --json
    """

    network: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="NETWORK")]
    """A run's folder; a weights file, or a name such as resnet12-nca-cifar-fs, efficientnet-lite0
    or timm:NAME; module:function, a function of yours that returns a torch.nn.Module; a .pt2 file
    of torch.export (open those that you trust); or features, as .npz or .safetensors. A run is
    measured with the epoch that was best on the validation split, for each number of shots and
    classifier. An unfinished run is measured with its best epoch so far."""
    spec: SpecOptions
    n_shot: Annotated[tuple[int, ...] | None, option(f"1 5, {FITTED}", "INT [INT ...]")] = None
    """Support images per class; one or several numbers."""
    classifier: Annotated[
        tuple[str, ...],
        tyro.conf.arg(
            metavar=f"{{{','.join((*CLASSIFIERS, *TRANSDUCTIVE))}}} ...", help_behavior_hint=""
        ),
    ] = ()
    """Nearest centroid, soft assignment, k-NN, ridge; or one that sees all queries of an episode:
    LaplacianShot, BD-CSPN, optimal transport (which assumes equally many queries of each class).
    One or several. By default soft assignment
    for a run of Matching Networks, and nearest centroid for all others."""
    n_way: Annotated[int | None, option(f"5, {FITTED}", "INT")] = None
    """Classes per episode."""
    n_query: Annotated[int | None, option(f"15, {FITTED}", "INT")] = None
    """Query images per class."""
    least_images: Annotated[
        int | None, option("1, or more where a few classes are tiny", "INT")
    ] = None
    """Skip classes with fewer images. By default a few classes that are far smaller than the others
    are skipped, with a message that names them."""
    normalisation: Annotated[
        str | None,
        option("that of the network; needed for module:function and .pt2", "NAME"),
    ] = None
    """How images are normalised for a network of yours: imagenet, or none for pixels from 0 to
    1. In Python, evaluate_network takes any mean and standard deviation."""
    by_class: bool = False
    """Show the accuracy of each class, too, the hardest first."""
    data_dir: Annotated[Path | None, tyro.conf.arg(metavar="DIR")] = None
    """The folder of prepared datasets; by default $NEARSHOT_DATA, or ~/.cache/nearshot."""
    device: str | None = None
    """cpu or cuda; by default a GPU if there is one."""
    precision: Precision = "auto"
    """The precision of the network; auto is bfloat16 on a GPU, as in training."""
    no_cache: tyro.conf.FlagCreatePairsOff[bool] = False
    """Do not keep features on disk."""
    json: bool = False
    """Print JSON, with every episode's accuracy, instead of a table."""

    def run(self, console: Console) -> None:
        """Measure, and print a table or JSON."""
        evaluations = self.evaluations()
        if self.json:
            content = [_as_json(evaluation) for evaluation in evaluations]
            console.print(json.dumps(content, indent=2))
            return
        console.print(_table(evaluations))
        if self.by_class:
            console.print(_table_by_class(evaluations))
        unfinished = evaluations[0].unfinished
        if unfinished is not None:
            console.print(
                f"The run is not finished: {unfinished} are done, and these are the best weights "
                "so far. The finished run will be measured anew."
            )

    def evaluations(self) -> list[Evaluation]:
        """Measure what the argument names."""
        if is_features_file(self.network):
            return self._evaluate_features()
        if Path(self.network).is_dir():
            if self.normalisation is not None:
                raise InputError("normalisation is that of the run. Leave it out.")
            run = open_run(
                self.network,
                data_dir=self.data_dir,
                device=self.device,
                precision=self.precision,
                unfinished=True,
                cache=not self.no_cache,
            )
            return evaluate_run(run, self._specs_of(run), by_class=self.by_class)
        weights = open_weights(
            self.network,
            normalisation=self.normalisation,
            data_dir=self.data_dir,
            device=self.device,
            precision=self.precision,
            cache=not self.no_cache,
        )
        return evaluate_weights(weights, self._specs_of(weights), by_class=self.by_class)

    def _evaluate_features(self) -> list[Evaluation]:
        """Measure the features of a file."""
        for name in ("dataset", "side", "input_size", "max_images"):
            if getattr(self.spec, name) is not None:
                raise InputError(
                    f"{name} has no effect on the features of {self.network}. Leave it out."
                )
        features = load_features(self.network)
        split = features.split or self.spec.split
        specs = self._specs(features.labels, features.class_names, split, "centroid")
        return evaluate_feature_file(self.network, features, specs, by_class=self.by_class)

    def _specs_of(self, trained: TrainedRun | TrainedWeights) -> list[EvaluationSpec]:
        """Return the specs for the split of a trained network."""
        store = trained.store(self.spec.split, self.spec.dataset, self.spec.side)
        labels = store.labels[rows_of(store, self.spec.max_images)]
        return self._specs(labels, store.class_names, self.spec.split, trained.classifier)

    def _specs(
        self, labels: Tensor, class_names: Sequence[str], split: str, classifier: str
    ) -> list[EvaluationSpec]:
        """Return an evaluation for each number of shots and classifier."""
        check_split(split, labels)
        fitted = fit_episodes(
            ImagesByClass(labels, class_names),
            split,
            n_way=self.n_way,
            n_shot=self.n_shot,
            n_query=self.n_query,
            least_images=self.least_images,
        )
        for message in fitted.messages:
            print_message(message)
        specs = []
        for n_shot in fitted.n_shot:
            for name in self.classifier or (classifier,):
                spec = replace(
                    self.spec,
                    split=split,
                    n_way=fitted.n_way,
                    n_shot=n_shot,
                    n_query=fitted.n_query,
                    least_images=fitted.least_images,
                    classifier=name,
                )
                # An `EvaluationSpec` itself: an instance of another class does not equal one.
                specs.append(EvaluationSpec.from_dict(spec.as_dict()))
        return specs


def _as_json(evaluation: Evaluation) -> dict[str, Any]:
    """Return the evaluation for JSON, with the accuracy of every episode as a list, in per cent."""
    accuracy = evaluation.accuracy.as_dict()
    del accuracy["n_correct"]  # the same, compressed
    per_episode = evaluation.accuracy.per_episode.tolist()
    accuracy["per_episode"] = [round(value, 4) for value in per_episode]
    return evaluation.as_dict() | {"accuracy": accuracy}


def _table(evaluations: list[Evaluation]) -> Table:
    """Return a row for each evaluation."""
    table = Table("n_shot", "classifier", "accuracy %", "weights", title=_title(evaluations))
    for evaluation in evaluations:
        classifier = classifier_name(evaluation.spec.classifier)
        if not evaluation.accuracy.protocol.inductive:
            classifier += " (transductive)"
        table.add_row(
            str(evaluation.spec.n_shot),
            classifier,
            str(evaluation.accuracy),
            evaluation.weights,
        )
    return table


def _title(evaluations: list[Evaluation]) -> str:
    """Return what all evaluations of a table have in common."""
    evaluation = evaluations[0]
    spec = evaluation.spec
    parts = [
        f"{evaluation.dataset}, {spec.split} split: {spec.n_way}-way "
        f"(chance {100 / spec.n_way:.4g} %), {counted(spec.n_query, 'query', 'queries')} a class, "
        f"{spec.n_episodes:,} episodes, seed {spec.seed}"
    ]
    if all(each.accuracy.protocol.inductive for each in evaluations):
        parts[0] += ", inductive"
    if spec.layers:
        parts.append(f"features of layers {', '.join(map(str, spec.layers))}")
    if spec.n_views != 1:
        parts.append(f"{spec.n_views} views")
    if spec.power != 1:
        parts.append(f"power {spec.power:g}")
    if spec.input_size is not None:
        parts.append(f"input size {spec.input_size}")
    if spec.max_images is not None:
        parts.append(f"at most {counted(spec.max_images, 'image')} of each class")
    protocol = evaluation.accuracy.protocol
    if not (protocol.centred and protocol.normalised):
        parts.append(protocol.features)
    n_skipped = protocol.n_skipped_classes
    if n_skipped:
        parts.append(f"{counted(n_skipped, 'small class', 'small classes')} skipped")
    title = "; ".join(parts)
    if evaluation.unfinished is not None:
        title = f"UNFINISHED RUN, after {evaluation.unfinished}\n{title}"
    return title


def _table_by_class(evaluations: list[Evaluation]) -> Table:
    """Return a row for each class, sorted by the last accuracy; of many classes, both ends."""
    columns = [evaluation.by_class or {} for evaluation in evaluations]
    headings = []
    for evaluation in evaluations:
        classifier = classifier_name(evaluation.spec.classifier)
        headings.append(f"{evaluation.spec.n_shot}-shot {classifier} %")
    names = sorted(columns[-1], key=lambda name: columns[-1][name].mean)
    title = f"By class, the hardest first: {counted(len(names), 'class', 'classes')}"
    table = Table("class", *headings, title=title)
    n_hidden = max(0, len(names) - HARDEST - EASIEST)
    for number, name in enumerate(names):
        if n_hidden and number == HARDEST:
            table.add_row(f"… {n_hidden} more, which --json has", end_section=True)
        is_hidden = HARDEST <= number < HARDEST + n_hidden
        if not is_hidden:
            table.add_row(name, *(str(column[name]) for column in columns))
    return table
