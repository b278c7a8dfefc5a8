"""Results on disk, one small file per run: a folder of them at a size, with training seeds.

All tables and figures are made from these files.
"""

import json
import re
import shutil
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Self

from nearshot.errors import FileFormatError
from nearshot.evaluation import Accuracy, PooledAccuracy, pool_seeds
from nearshot.evaluation.statistics import Difference
from nearshot.io import read_json, write_json
from nearshot.paper.differences import SeedComparison, compare_runs, compare_seeds
from nearshot.paper.identity import run_id
from nearshot.paper.sizes import PAPER, Size
from nearshot.runs import Evaluation
from nearshot.training import RunFolder, TrainConfig
from nearshot.training.config import dataset_name

__all__ = ["LeftOutWarning", "Measurement", "Results", "RunResult", "Side"]

FORMAT, VERSION = "nearshot-result", 1
# Reading a damaged file may raise these.
DAMAGED = (AttributeError, LookupError, OSError, TypeError, ValueError)


class LeftOutWarning(UserWarning):
    """A result or run cannot be read. It is skipped."""


@dataclass(frozen=True)
class Measurement:
    """An accuracy to measure of a run: split, shots, classifier and features.

    The weights are those of the epoch with the best validation accuracy for these shots and this
    classifier.

    Attributes:
        layers: the layers whose outputs are the features; none for the embedding.
        how: how features are treated or adapted to each episode, by its name in `measurement`;
            empty for the usual features, which are centred and normalised.
    """

    split: str
    n_shot: int
    classifier: str = "centroid"
    layers: tuple[int, ...] = ()
    how: str = ""

    @property
    def name(self) -> str:
        """The name in a result file."""
        layers = f"layers {'+'.join(map(str, self.layers))}" if self.layers else ""
        parts = (self.split, f"{self.n_shot}-shot", self.classifier, layers, self.how)
        return " ".join(part for part in parts if part)

    @classmethod
    def named(cls, name: str) -> Self:
        """Return the measurement of a name.

        >>> Measurement.named("test 5-shot centroid layers 2+3+4 fine-tuned").layers
        (2, 3, 4)
        """
        parts = re.fullmatch(r"(\S+) (\d+)-shot (\S+)(?: layers ([\d+]+))?(?: (.+))?", name)
        if parts is None:
            raise FileFormatError(f"{name!r} is not a measurement.")
        split, n_shot, classifier, layers, how = parts.groups(default="")
        numbers = tuple(map(int, layers.split("+"))) if layers else ()
        return cls(split, int(n_shot), classifier, numbers, how)


Side = tuple[TrainConfig, Measurement]
"""One side of a comparison: a run, and what was measured of it."""


class RunResult:
    """The result of a run: its settings, its log and its accuracies, each with all episodes.

    A content that is damaged or of another version is an error, one of `DAMAGED`.

    Attributes:
        config: the run's settings; those that the file lacks have their default.
        id: the run's identity, computed from its settings: neither the file's name nor what it says
            of it counts.
        measurements: everything that was measured.
        by_class: accuracies by class in per cent, {"val 5-shot centroid": {class: accuracy}}; older
            results have none.
        seconds: the duration of training.
        job_seconds: the duration of training and measuring, with start-up; None if the run was
            resumed.
        n_sharing: how many runs shared the GPU; in older results the option of the command tells.
    """

    def __init__(self, content: dict[str, Any]) -> None:
        if (content.get("format"), content.get("version")) != (FORMAT, VERSION):
            raise FileFormatError(
                f"its format is {content.get('format')} {content.get('version')}, not {VERSION}"
            )
        self.content = content
        self.scale: str = content["scale"]
        self.config = TrainConfig.from_dict(content["config"])
        self.id, self.seed = run_id(self.config), self.config.seed
        self.measurements = tuple(map(Measurement.named, content["accuracies"]))
        self.by_class: dict[str, dict[str, float]] = content.get("by_class", {})
        self.history: list[dict[str, Any]] = content["history"]
        self.device = str(content["environment"].get("device", "an unknown device"))
        self.seconds = float(content["seconds"])
        self.job_seconds: float | None = content.get("job_seconds")
        if content.get("training_seconds") is not None:  # as earlier versions wrote it
            self.job_seconds = content["training_seconds"] + (
                content.get("measuring_seconds") or 0.0
            )
        self.n_sharing: int = content.get("n_sharing") or 1

    def has(self, wanted: Measurement) -> bool:
        """Return whether something was measured."""
        return wanted.name in self.content["accuracies"]

    def accuracy(self, wanted: Measurement) -> Accuracy:
        """Return a measured accuracy."""
        return Accuracy.from_dict(self.content["accuracies"][wanted.name])

    def epoch(self, wanted: Measurement) -> int:
        """Return the epoch whose weights were measured."""
        return int(self.content["accuracies"][wanted.name]["epoch"])

    def is_same_run(self, other: "RunResult") -> bool:
        """Return whether both are of one run: they have the same data and the same log."""
        same_data = self.content.get("fingerprints") == other.content.get("fingerprints")
        return same_data and self.history == other.history

    def merged_with(self, before: "RunResult") -> dict[str, Any]:
        """Return the content with earlier measurements of the same run."""
        accuracies = dict(before.content["accuracies"])
        for name, new in self.content["accuracies"].items():
            # Validation may run in another precision, so it never replaces a measurement.
            if new.get("measured") or not accuracies.get(name, {}).get("measured"):
                accuracies[name] = new
        merged = self.content | {
            "accuracies": accuracies,
            "by_class": before.by_class | self.by_class,
        }
        if self.job_seconds is None:
            merged |= {"job_seconds": before.job_seconds, "n_sharing": before.n_sharing}
        return merged


class Results:
    """The results of a folder at a size, SIZE/DATASET/ID.json, with some training seeds.

    Unreadable files give a warning and count as missing.

    Attributes:
        size: the size; every configuration below is the paper's, which the size changes.
        seeds: the training seeds over which accuracies are pooled.
        n_requested: how many seeds were requested, if `seeds` are only those that were run.
    """

    def __init__(
        self, folder: str | Path, size: Size = PAPER, seeds: Iterable[int] = (0, 1, 2)
    ) -> None:
        self.folder = Path(folder)
        self.size = size
        self.seeds = tuple(seeds)
        self.n_requested = len(self.seeds)
        self._cache: dict[Path, tuple[int, RunResult | None]] = {}

    def with_seeds_that_ran(self, configs: Sequence[TrainConfig]) -> "Results":
        """Return the same results without the seeds that no run has, unless that is all of them."""
        ran = {run.seed for config in configs for run in self.runs(config)}
        kept = tuple(seed for seed in self.seeds if seed in ran)
        results = Results(self.folder, self.size, kept or self.seeds)
        results.n_requested = self.n_requested
        results._cache = self._cache
        return results

    # One run.

    def path(self, config: TrainConfig) -> Path:
        """Return the path where a run's result is written; the settings are those of the size."""
        return self._path(config, self.size.name)

    def get(self, config: TrainConfig) -> RunResult | None:
        """Return a run's result, or None if it is missing; the settings are those of the size."""
        path = self.path(config)
        return self._read(path) if path.is_file() else None

    def put(self, result: RunResult) -> None:
        """Write a result atomically, merged with earlier measurements of the same run.

        The same run has the same data and the same log. The result of another run of the same
        settings is kept in the folder "earlier", and so is a file that cannot be read, which a
        newer version may have written.
        """
        path = self._path(result.config, result.scale)
        content = result.content
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_file():
            before = self._read(path)
            if before is not None and before.is_same_run(result):
                content = result.merged_with(before)
            else:
                earlier = path.parent / "earlier"
                earlier.mkdir(exist_ok=True)
                number = 1 + len(list(earlier.glob(f"{path.stem}-*.json")))
                shutil.copy(path, earlier / f"{path.stem}-{number}.json")
        write_json(path, content, compact=True)

    def __iter__(self) -> Iterator[RunResult]:
        """Yield every result of the size, whatever its seed."""
        for path in sorted(self.folder.glob(f"{self.size.name}/*/*.json")):
            result = self._read(path)
            if result is not None:
                yield result

    # All seeds of a configuration of the paper.

    def runs(self, config: TrainConfig) -> list[RunResult]:
        """Return the available results of a configuration, one per seed."""
        changed = self.size.change(config)
        results = [self.get(replace(changed, seed=seed)) for seed in self.seeds]
        return [result for result in results if result is not None]

    def accuracies(self, config: TrainConfig, measurement: Measurement) -> dict[int, Accuracy]:
        """Return the available accuracies of a configuration, by seed."""
        runs = self.runs(config)
        return {run.seed: run.accuracy(measurement) for run in runs if run.has(measurement)}

    def accuracy(self, config: TrainConfig, measurement: Measurement) -> PooledAccuracy | None:
        """Return the accuracy over the available seeds; None if there are none."""
        accuracies = self.accuracies(config, measurement)
        return pool_seeds(list(accuracies.values())) if accuracies else None

    def comparison(self, first: Side, second: Side) -> SeedComparison | None:
        """Return the accuracies of two sides to compare, by seed.

        None where either is missing, or where the size turns both into the same run.
        """
        configs = [self.size.change(config) for config, _ in (first, second)]
        is_one_run = run_id(configs[0]) == run_id(configs[1])
        if is_one_run and first[1] == second[1]:
            return None
        compare = compare_seeds if is_one_run else compare_runs
        return compare(self.accuracies(*first), self.accuracies(*second))

    def difference(self, first: Side, second: Side) -> Difference | None:
        """Return the first side's accuracy minus the second's, with a 95 % interval.

        One run that is measured in two ways is paired by seed, since both sides have the same
        weights. Two runs have Welch's interval: the same seed of two methods draws other batches.
        A single seed has the interval over episodes.
        """
        comparison = self.comparison(first, second)
        return None if comparison is None else comparison.difference()

    # What tables say about themselves.

    def dataset(self, dataset: str) -> str:
        """Return the dataset of the runs: a size may have its own."""
        return self.size.dataset or dataset

    @property
    def label(self) -> str:
        """The size and the seeds, for every table and figure."""
        if len(self.seeds) > 1:
            seeds = f"{len(self.seeds)} training seeds"
        else:
            seeds = f"training seed {self.seeds[0]}"
        if self.n_requested != len(self.seeds):
            seeds += f", of {self.n_requested} requested"
        return f"{self.size.label}; {seeds}"

    def _path(self, config: TrainConfig, size: str) -> Path:
        return self.folder / size / dataset_name(config.dataset) / f"{run_id(config)}.json"

    def _read(self, path: Path) -> RunResult | None:
        """Read a result, unless it is in the cache; if it is unreadable, warn and return None."""
        changed = path.stat().st_mtime_ns
        if path not in self._cache or self._cache[path][0] != changed:
            result = None
            try:
                result = RunResult(read_json(path))
            except DAMAGED as error:
                message = (
                    f"{path} is damaged or of a newer nearshot ({type(error).__name__}: {error}) "
                    "and counts as not done."
                )
                warnings.warn(message, LeftOutWarning, stacklevel=4)
            self._cache[path] = (changed, result)
        return self._cache[path][1]


def result_of(
    run: RunFolder,
    scale: str,
    evaluations: dict[Measurement, Evaluation],
    *,
    n_sharing: int = 1,
) -> RunResult:
    """Return the result of a finished run: its best validation accuracies, and the evaluations."""
    content = run.read("result.json")
    config = TrainConfig.from_dict(content["config"])
    accuracies = {f"val {name}": best for name, best in content["best"].items()}
    for wanted, evaluation in evaluations.items():
        epoch = int(re.findall(r"\d+", evaluation.weights)[0])  # epoch-0010.safetensors
        accuracies[wanted.name] = evaluation.accuracy.as_dict() | {"epoch": epoch, "measured": True}
    timing = [json.loads(line) for line in run.timing.read_text().splitlines()]
    times = list(
        {line["epoch"]: line for line in timing}.values()
    )  # if an epoch was rerun, its latest timing
    rates = sorted(line["images_per_second"] for line in times)
    # Including validation and checkpoints, without the first epoch of each process.
    later = [(before, line) for before, line in pairwise(times) if not line.get("first")]
    later_seconds = sum(line["time"] - before["time"] for before, line in later)
    later_images = sum(line["seconds"] * line["images_per_second"] for _, line in later)
    return RunResult(
        {
            "format": FORMAT,
            "version": VERSION,
            "id": run_id(config),
            "scale": scale,
            "config": config.as_dict(),
            "fingerprints": content["fingerprints"],
            "environment": content["environment"],
            "n_sharing": n_sharing,
            "seconds": sum(line["seconds"] for line in times),
            "images_per_second": rates[len(rates) // 2],
            "end_to_end_images_per_second": later_images / later_seconds
            if later_seconds > 0
            else None,
            "first_epoch_seconds": times[0].get("since_start"),
            "accuracies": accuracies,
            "history": [json.loads(line) for line in run.metrics.read_text().splitlines()],
        }
    )
