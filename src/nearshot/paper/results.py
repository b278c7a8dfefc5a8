"""Results on disk, one small file per run: a folder of them at a size, with training seeds.

All tables and figures are made from these files.
"""

import shutil
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from nearshot.evaluation import Accuracy, PooledAccuracy, pool_seeds
from nearshot.evaluation.statistics import Difference
from nearshot.io import read_json, write_json
from nearshot.paper.differences import (
    POOLED_FROM,
    SeedComparison,
    SeedDeviation,
    compare_runs,
    compare_seeds,
    pooled_deviation,
)
from nearshot.paper.identity import run_id
from nearshot.paper.numbers import TITLES
from nearshot.paper.result_file import Measurement, RunResult
from nearshot.paper.sizes import PAPER, Size
from nearshot.training import TrainConfig
from nearshot.training.config import dataset_name

__all__ = ["Measurement", "Results", "RunResult", "Side", "UnreadableResultWarning"]

# Reading a damaged file may raise these.
DAMAGED = (AttributeError, LookupError, OSError, TypeError, ValueError)


class UnreadableResultWarning(UserWarning):
    """A result or run cannot be read. It is skipped."""


Side = tuple[TrainConfig, Measurement]
"""One side of a comparison: a run, and what was measured of it."""


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
        self._deviations: dict[tuple[str, str, int], SeedDeviation | None] = {}

    def with_seeds_that_ran(self, configs: Sequence[TrainConfig]) -> "Results":
        """Return the same results without the seeds that no run has, unless that is all of them."""
        ran = set()
        for config in configs:
            ran |= {run.seed for run in self.runs(config)}
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
        self._deviations.clear()
        path = self._path(result.config, result.size)
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_file():
            before = self._read(path)
            if before is not None and before.is_same_run(result):
                result = result.merged_with(before)
            else:
                earlier = path.parent / "earlier"
                earlier.mkdir(exist_ok=True)
                number = 1 + len(list(earlier.glob(f"{path.stem}-*.json")))
                shutil.copy(path, earlier / f"{path.stem}-{number}.json")
        write_json(path, result.content, compact=True)

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
        firsts = self.accuracies(*first)
        seconds = self.accuracies(*second)
        if is_one_run:
            return None if first[1] == second[1] else compare_seeds(firsts, seconds)
        return compare_runs(firsts, seconds, self.seed_deviation(*first))

    def seed_deviation(self, config: TrainConfig, measurement: Measurement) -> SeedDeviation | None:
        """Return the standard deviation between seeds of all runs on a dataset.

        It is that of accuracies on the same split with the same number of shots, with the usual
        features. None if it is small, or if no run has two seeds: then runs have their own.
        """
        dataset = self.dataset(dataset_name(config.dataset))
        key = (dataset, measurement.split, measurement.n_shot)
        if key not in self._deviations:
            self._deviations[key] = self._pooled_deviation(*key)
        return self._deviations[key]

    def _pooled_deviation(self, dataset: str, split: str, n_shot: int) -> SeedDeviation | None:
        runs: dict[str, dict[str, list[float]]] = {}
        for path in sorted((self.folder / self.size.name / dataset).glob("*.json")):
            result = self._read(path)
            if result is None or result.seed not in self.seeds:
                continue
            by_classifier = runs.setdefault(run_id(replace(result.config, seed=0)), {})
            for classifier in TITLES:
                measurement = Measurement(split, n_shot, classifier)
                if result.has(measurement):
                    mean = result.accuracy(measurement).mean
                    by_classifier.setdefault(classifier, []).append(mean)
        deviation = pooled_deviation(list(run.values()) for run in runs.values())
        if deviation is None or deviation.value <= POOLED_FROM:
            return None
        return deviation

    def difference(self, first: Side, second: Side) -> Difference | None:
        """Return the first side's accuracy minus the second's, with a 95 % interval.

        One run that is measured in two ways is paired by seed, since both sides have the same
        weights. Two runs are not: the same seed of two methods draws other batches.
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
                    f"{path} cannot be read, and counts as not done "
                    f"({type(error).__name__}: {error})."
                )
                warnings.warn(message, UnreadableResultWarning, stacklevel=4)
            self._cache[path] = (changed, result)
        return self._cache[path][1]
