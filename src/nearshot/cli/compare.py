"""`nearshot compare`."""

import json
from dataclasses import asdict, dataclass, replace
from itertools import combinations
from pathlib import Path
from string import ascii_uppercase
from typing import Annotated, Any

import tyro
from rich.console import Console

from nearshot.cli._options import option
from nearshot.cli._tables import aligned
from nearshot.cli.evaluate import Evaluate, SpecOptions
from nearshot.devices import Precision
from nearshot.errors import InputError
from nearshot.evaluation import Accuracy, welch
from nearshot.evaluation.classifiers import classifier_name
from nearshot.evaluation.statistics import Comparison, Difference, compare_seeds
from nearshot.runs import Evaluation
from nearshot.text import counted
from nearshot.training.run_folder import RunFolder

PAIRED = (
    "Over episodes: paired differences, on the same episodes, of these networks; training again is "
    "not covered."
)
WELCH = (
    "Over seeds: Welch's interval for networks trained again; it needs two seeds or more on each "
    "side."
)


@dataclass(frozen=True)
class _Side:
    """What is compared: a run with all its seeds, or a single network or file of features."""

    name: str
    seeds: tuple[tuple[Evaluation, ...], ...]  # for each seed, all evaluations

    def accuracies(self, number: int) -> list[Accuracy]:
        """Return the accuracies of each seed."""
        return [evaluations[number].accuracy for evaluations in self.seeds]


@dataclass(frozen=True)
class _Row:
    """The difference of two sides."""

    first: str
    second: str
    n_shot: int
    classifiers: tuple[str, str]
    means: tuple[float, float]
    over_episodes: Comparison
    over_seeds: Difference | None


@dataclass(frozen=True)
class Compare:
    """Compare runs, networks or features on the same episodes.

    Runs that differ in their seed alone are one side. For each pair of sides there are two
    intervals: paired over episodes, which is about these networks, and Welch's over seeds, which is
    about training them again.

    Examples:
      nearshot compare runs/cifar-fs-nca runs/cifar-fs-prototypical --split val
      nearshot compare runs/nca-0 runs/nca-1 runs/pn-0 runs/pn-1 --n-shot 5
      nearshot compare mine.npz theirs.npz --classifier ridge
    """

    networks: Annotated[
        tyro.conf.Positional[tuple[str, ...]], tyro.conf.arg(metavar="RUN RUN [RUN ...]")
    ]
    """Run folders, features files, or what else nearshot evaluate takes; two or more."""
    spec: SpecOptions
    n_shot: Annotated[
        tuple[int, ...] | None, option("1 5, or what the split allows", "INT [INT ...]")
    ] = None
    """Support images per class; one or several numbers."""
    classifier: Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME ...")] = ()
    """One or several; by default that of each run's method."""
    n_way: Annotated[int | None, option("5, or what the split allows", "INT")] = None
    """Classes per episode."""
    n_query: Annotated[int | None, option("15, or what the split allows", "INT")] = None
    """Query images per class."""
    least_images: Annotated[int | None, option("1", "INT")] = None
    """Skip classes with fewer images."""
    data_dir: Annotated[Path | None, tyro.conf.arg(metavar="DIR")] = None
    """The folder of prepared datasets; by default $NEARSHOT_DATA, or ~/.cache/nearshot."""
    device: str | None = None
    """cpu or cuda; by default a GPU if there is one."""
    precision: Precision = "auto"
    """The precision of the networks; auto is bfloat16 on a GPU, as in training."""
    json: bool = False
    """Print JSON instead of a table."""

    def run(self, console: Console) -> None:
        """Measure, and print the differences."""
        sides = self._sides()
        if len(sides) < 2:
            raise InputError(
                f"networks must be of two kinds or more (got {len(sides)}). Runs that differ in "
                "their seed alone are one; nearshot runs pools their accuracies."
            )
        rows = []
        for first, second in combinations(sides, 2):
            rows += [_row(first, second, number) for number in range(len(first.seeds[0]))]
        if self.json:
            console.print(json.dumps([asdict(row) for row in rows], indent=2))
            return
        for line in _lines(rows, sides):
            console.print(line)

    def _sides(self) -> list[_Side]:
        """Measure all, and put runs that differ in their seed alone together."""
        groups: dict[Any, list[str]] = {}
        for network in self.networks:
            key: Any = network
            if (Path(network) / "config.json").is_file():
                key = replace(RunFolder(network).read_config(), seed=0)
            groups.setdefault(key, []).append(network)
        sides = []
        for networks in groups.values():
            name = networks[0]
            if len(networks) > 1:
                name = f"{networks[0]} and {len(networks) - 1} more"
            seeds = tuple(tuple(self._evaluate(network)) for network in networks)
            sides.append(_Side(name, seeds))
        return sides

    def _evaluate(self, network: str) -> list[Evaluation]:
        return Evaluate(
            network,
            self.spec,
            n_shot=self.n_shot,
            classifier=self.classifier,
            n_way=self.n_way,
            n_query=self.n_query,
            least_images=self.least_images,
            data_dir=self.data_dir,
            device=self.device,
            precision=self.precision,
        ).evaluations()


def _row(first: _Side, second: _Side, number: int) -> _Row:
    """Return the difference of two sides in one of their evaluations."""
    firsts = first.accuracies(number)
    seconds = second.accuracies(number)
    first_means = [accuracy.mean for accuracy in firsts]
    second_means = [accuracy.mean for accuracy in seconds]
    over_seeds = None
    if min(len(firsts), len(seconds)) > 1:
        over_seeds = welch(first_means, second_means)
    first_spec = first.seeds[0][number].spec
    second_spec = second.seeds[0][number].spec
    return _Row(
        first.name,
        second.name,
        first_spec.n_shot,
        (classifier_name(first_spec.classifier), classifier_name(second_spec.classifier)),
        (sum(first_means) / len(firsts), sum(second_means) / len(seconds)),
        compare_seeds(firsts, seconds),
        over_seeds,
    )


def _lines(rows: list[_Row], sides: list[_Side]) -> list[str]:
    """Return the sides with a letter each, a line for each difference, and what the ± are."""
    evaluation = sides[0].seeds[0][0]
    spec = evaluation.spec
    letters = {}
    lines = []
    for letter, side in zip(_letters(len(sides)), sides, strict=True):
        letters[side.name] = letter
        seeds = counted(len(side.seeds), "seed")
        lines.append(f"{letter}: {side.name} ({seeds})")
    lines.append(
        f"{evaluation.dataset}, {spec.split} split: {spec.n_way}-way, "
        f"{spec.n_episodes:,} episodes, seed {spec.seed}; points of accuracy"
    )
    cells = [("difference", "n_shot", "classifier", "over episodes", "over seeds", "accuracies %")]
    for row in rows:
        first, second = row.classifiers
        paired = f"{row.over_episodes.difference:+.2f} ± {row.over_episodes.interval95:.2f}"
        cells.append(
            (
                f"{letters[row.first]} − {letters[row.second]}",
                str(row.n_shot),
                first if first == second else f"{first}, {second}",
                paired,
                "–" if row.over_seeds is None else str(row.over_seeds),
                f"{row.means[0]:.2f}, {row.means[1]:.2f}",
            )
        )
    return [*lines, "", *aligned(cells), "", PAIRED, WELCH]


def _letters(number: int) -> list[str]:
    """Return A, B, …, and numbers if there are too many."""
    if number <= len(ascii_uppercase):
        return list(ascii_uppercase[:number])
    return [str(position) for position in range(1, number + 1)]
