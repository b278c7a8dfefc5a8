"""`nearshot evaluate`."""

import json
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.console import Console
from rich.table import Table

from nearshot.cli._options import option
from nearshot.devices import Precision
from nearshot.evaluation.classifiers import CLASSIFIERS
from nearshot.runs.evaluate import Evaluation, Request, evaluate_run, evaluate_weights
from nearshot.text import counted, print_message

HARDEST, EASIEST = 30, 10  # how many classes are shown if there are more
FITTED = "or what the split allows"


@dataclass(frozen=True)
class Evaluate:
    """Measure the few-shot accuracy of a trained network, on episodes of classes that it was not trained on.

    Where a split has too few classes or images for the default episodes, their settings are
    lowered, with a message. Settings that you give are never changed.

    Examples: nearshot evaluate runs/glyphs-nca; nearshot evaluate runs/cifar-fs-nca --classifier
    centroid soft knn;
    nearshot evaluate runs/glyphs-nca --split val --by-class; nearshot evaluate weights.safetensors
    --dataset omniglot --split test --json
    """

    path: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="RUN|WEIGHTS")]
    """A run's folder, a weights file, or a name such as resnet12-nca-cifar-fs. A run is measured
    with the epoch that was best on the validation split, for each number of shots and classifier.
    An unfinished run is measured with its best epoch so far."""
    dataset: str | None = None
    """A prepared dataset, or a folder; by default the one that the network was trained on."""
    split: str = "test"
    """The split. Choose between models on val, and look at test once."""
    n_shot: Annotated[
        tuple[int, ...] | None, option(f"1 5, {FITTED}", "INT [INT ...]", "--shots")
    ] = None
    """Support images per class; one or several numbers."""
    classifier: Annotated[
        tuple[str, ...],
        tyro.conf.arg(metavar=f"{{{','.join(CLASSIFIERS)}}} ...", help_behavior_hint=""),
    ] = ()
    """Nearest centroid, soft assignment, k-NN, ridge; one or several. By default soft assignment
    for a run of Matching Networks, and nearest centroid for all others."""
    layers: Annotated[tuple[int, ...], tyro.conf.arg(help_behavior_hint="")] = ()
    """Use the pooled outputs of these stages together, such as 2 3 4 (Appendix G); by default the embedding."""
    n_views: Annotated[int, tyro.conf.arg(aliases=("--views",))] = 1
    """Average the embeddings of this many views of each image: the image, its mirror image, and crops."""
    power: float = 1.0
    """Raise each feature to this power before it is centred, such as 0.5; needs the training split."""
    input_size: int | None = None
    """The side of the images that the network sees, if not the one that it was trained with; needs
    the training split."""
    n_way: Annotated[int | None, option(f"5, {FITTED}", "INT", "--way")] = None
    """Classes per episode."""
    n_query: Annotated[int | None, option(f"15, {FITTED}", "INT", "--queries")] = None
    """Query images per class."""
    least_images: Annotated[
        int | None, option("1, or more where a few classes are tiny", "INT")
    ] = None
    """Skip classes with fewer images. By default a few classes that are far smaller than the others
    are skipped, with a message that names them."""
    n_episodes: Annotated[int, tyro.conf.arg(aliases=("--episodes",))] = 10_000
    """The number of episodes."""
    seed: int = 0
    """The seed of the episodes."""
    by_class: bool = False
    """Show the accuracy of each class, too, the hardest first."""
    side: int | None = None
    """The side of the images, where the dataset was prepared in several."""
    data_dir: Annotated[Path | None, tyro.conf.arg(metavar="DIR")] = None
    """The folder of prepared datasets; by default $NEARSHOT_DATA, or ~/.cache/nearshot."""
    device: str | None = None
    """cpu or cuda; by default a GPU if there is one."""
    precision: Precision = "auto"
    """The precision of the network; auto is bfloat16 on a GPU, as in training."""
    json: bool = False
    """Print JSON, with every episode's accuracy, instead of a table."""

    def run(self, console: Console) -> None:
        """Measure, and print a table or JSON."""
        asked: dict[str, Any] = {
            name: getattr(self, name) for name in ("n_way", "n_query", "least_images")
        }
        asked["shots"] = self.n_shot
        given = {name: value for name, value in asked.items() if value is not None}
        same = (
            "dataset",
            "split",
            "layers",
            "n_views",
            "power",
            "input_size",
            "n_episodes",
            "seed",
            "side",
        )
        others = {name: getattr(self, name) for name in same}
        request = Request(classifiers=self.classifier, by_class=self.by_class, **given, **others)
        measure = partial(evaluate_run, unfinished=True) if self.path.is_dir() else evaluate_weights
        where: dict[str, Any] = {
            "data_dir": self.data_dir,
            "device": self.device,
            "precision": self.precision,
        }
        found = measure(
            self.path, request, **where, fit=asked.keys() - given.keys(), tell=print_message
        )
        if self.json:
            console.print(json.dumps([_as_json(evaluation) for evaluation in found], indent=2))
            return
        console.print(_table(found))
        if self.by_class:
            console.print(_table_by_class(found))
        if found[0].unfinished is not None:
            done = f"The run is not finished: {found[0].unfinished} are done"
            console.print(
                f"{done}, and these are the best weights so far. The finished run will be measured anew."
            )


def _as_json(evaluation: Evaluation) -> dict[str, Any]:
    """Return the evaluation for JSON, with the accuracy of every episode as a list, in per cent."""
    accuracy = evaluation.accuracy.as_dict()
    del accuracy["n_correct"]  # the same, compressed
    accuracy["per_episode"] = [
        round(value, 4) for value in evaluation.accuracy.per_episode.tolist()
    ]
    return evaluation.as_dict() | {"accuracy": accuracy}


def _table(found: list[Evaluation]) -> Table:
    protocol = found[0].accuracy.protocol
    unfinished, left_out = found[0].unfinished, protocol.classes_left_out
    table = Table(
        *("shots", "classifier", "accuracy %", "weights"),
        title=("" if unfinished is None else f"UNFINISHED RUN, after {unfinished}\n")
        + f"{found[0].dataset}, {protocol.split} split: {protocol.n_way}-way (chance {100 / protocol.n_way:.4g} %), "
        f"{counted(protocol.n_query, 'query', 'queries')} a class, "
        f"{protocol.n_episodes:,} episodes, seed {protocol.seed}, inductive"
        + (
            f"; features of layers {', '.join(map(str, found[0].layers))}"
            if found[0].layers
            else ""
        )
        + "".join(f"; {label}" for label in found[0].options.labels)
        + (f"; {counted(left_out, 'small class', 'small classes')} left out" if left_out else ""),
    )
    for evaluation in found:
        table.add_row(
            str(evaluation.n_shot),
            evaluation.classifier,
            str(evaluation.accuracy),
            evaluation.weights,
        )
    return table


def _table_by_class(found: list[Evaluation]) -> Table:
    """Return a row per class, sorted by the last accuracy, and a column per accuracy; of many classes, both ends."""
    columns = [evaluation.by_class or {} for evaluation in found]
    names = sorted(columns[-1], key=lambda name: columns[-1][name].mean)
    headings = [f"{evaluation.n_shot}-shot {evaluation.classifier} %" for evaluation in found]
    table = Table(
        "class",
        *headings,
        title=f"By class, the hardest first: {counted(len(names), 'class', 'classes')}",
    )
    n_left_out = max(0, len(names) - HARDEST - EASIEST)
    for place, name in enumerate(names):
        if n_left_out and place == HARDEST:
            table.add_row(f"… {n_left_out} more, which --json has", end_section=True)
        if not HARDEST <= place < HARDEST + n_left_out:
            table.add_row(name, *(str(column[name]) for column in columns))
    return table
