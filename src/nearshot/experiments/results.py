"""Results on disk: one small file a trained run, from which all tables and figures are made."""

from __future__ import annotations

import hashlib
import json
import re
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

from nearshot.errors import FileFormatError, NearshotError
from nearshot.evaluation import Accuracy
from nearshot.experiments.identity import WATCHING, run_id
from nearshot.experiments.scales import OWN
from nearshot.io import atomic_write
from nearshot.runs.evaluate import Evaluation
from nearshot.training import RunFolder, TrainConfig
from nearshot.training.config import dataset_name

__all__ = [
    "DAMAGED",
    "LeftOutWarning",
    "Measurement",
    "Results",
    "RunResult",
    "reason_of",
    "result_of",
    "trainings_a_gpu",
]

FORMAT, VERSION = "nearshot-result", 1
# What stands in a result for the tables and the report to take, and its types.
NEEDED: dict[str, tuple[type, ...]] = {
    "id": (str,),
    "scale": (str,),
    "config": (dict,),
    "fingerprints": (dict,),
    "environment": (dict,),
    "seconds": (int, float),
    "images_per_second": (int, float),
    "accuracies": (dict,),
    "history": (list,),
}
# What reading a damaged file may raise, whatever is wrong with it.
DAMAGED = (ArithmeticError, AttributeError, LookupError, OSError, RuntimeError, TypeError, ValueError)


class LeftOutWarning(UserWarning):
    """Something among results or runs cannot be used. It is left out, and all else goes on."""


@dataclass(frozen=True)
class Measurement:
    """What of a run is wanted: a split, shots and a classifier, the features, and how they are adapted.

    The weights are those of the epoch that was best for these shots and this classifier on the validation split.
    """

    split: str
    n_shot: int
    classifier: str
    layers: tuple[int, ...] = ()
    adapted: str | None = None
    treatment: str = "centred and normalised"

    @property
    def name(self) -> str:
        """A name for the file."""
        layers = f"layers {'+'.join(map(str, self.layers))}" if self.layers else ""
        parts = [self.split, f"{self.n_shot}-shot", self.classifier, layers, self.adapted or ""]
        parts += [self.treatment] if self.treatment != "centred and normalised" else []
        return " ".join(part for part in parts if part)

    @classmethod
    def named(cls, name: str) -> Measurement:
        """Return the measurement of a name.

        >>> Measurement.named("test 5-shot centroid layers 2+3+4 fine-tuned").layers
        (2, 3, 4)
        """
        parts = re.fullmatch(
            r"(?P<split>\S+) (?P<shots>\d+)-shot (?P<classifier>\S+)(?: layers (?P<layers>[\d+]+))?"
            r"(?: (?P<adapted>fine-tuned(?: \d+ steps?)?|mahalanobis))?(?: (?P<treatment>centred|normalised|raw))?",
            name,
        )
        if parts is None:
            raise FileFormatError(f"{name!r} is not a measurement.")
        layers = tuple(map(int, (parts["layers"] or "").split("+"))) if parts["layers"] else ()
        treatment = parts["treatment"] or "centred and normalised"
        return cls(parts["split"], int(parts["shots"]), parts["classifier"], layers, parts["adapted"], treatment)


class RunResult:
    """What a training gave: its settings, its log and its accuracies, each with all episodes."""

    def __init__(self, content: dict[str, Any]) -> None:
        if not isinstance(content, dict) or content.get("format") != FORMAT:
            raise FileFormatError("This is not a result.")
        if content.get("version") != VERSION:
            raise FileFormatError(f"This is a result of format {content.get('version')}, not {VERSION}.")
        self.content = content
        self.id: str = content["id"]
        self.scale: str = content["scale"]
        self.history: list[dict[str, Any]] = content["history"]

    def check(self) -> None:
        """Refuse a result of which something would be missing, or be of another kind, when it is asked for."""
        wrong = [name for name, kinds in NEEDED.items() if not isinstance(self.content.get(name), kinds)]
        if wrong:
            raise FileFormatError(f"its {wrong[0]!r} is missing, or not what it should be")
        if run_id(self.config) and not (isinstance(self.seed, int) and isinstance(self.config.dataset, str)):
            raise FileFormatError("its settings are not what they should be")
        for one in self.measurements:
            told = self.content["accuracies"][one.name]
            _ = self.accuracy(one), self.epoch(one), float(told["mean"]), float(told["interval95"] or 0)
        for line in self.history:
            _ = float(line["epoch"]), float(line.get("loss") or 0), dict(line.get("validation") or {})
        for classes in self.by_class.values():
            _ = {str(name): float(accuracy) for name, accuracy in classes.items()}
        _ = self.n_sharing, float(self.training_seconds or 0), float(self.measuring_seconds or 0)

    @cached_property
    def config(self) -> TrainConfig:
        """The training's settings."""
        return TrainConfig.from_dict(self.content["config"])

    @property
    def seed(self) -> int:
        """The training's seed."""
        return self.config.seed

    @property
    def seconds(self) -> float:
        """How long the training took."""
        return float(self.content["seconds"])

    @property
    def training_seconds(self) -> float | None:
        """How long the training took, with start and validation; None where it was not done in one go.

        Older results do not tell measuring apart: there it is all that was done, by the name of job_seconds.
        """
        return self.content.get("training_seconds", self.content.get("job_seconds"))

    @property
    def measuring_seconds(self) -> float | None:
        """How long measuring took, at all times together; None where some of it was not told apart."""
        return self.content.get("measuring_seconds")

    @property
    def device(self) -> str:
        """What it was trained on."""
        return str(self.content.get("environment", {}).get("device", "an unknown device"))

    @property
    def n_sharing(self) -> int:
        """How many trainings shared the GPU; where a result does not say so, by the command that asked for it."""
        if "n_sharing" in self.content:
            return int(self.content["n_sharing"])
        command = self.content.get("environment", {}).get("command") or []
        found = re.search(r"--gpus-per-run[ =]([\d.]+)", " ".join(map(str, command)))
        return trainings_a_gpu(float(found[1])) if found else 1

    @property
    def measurements(self) -> tuple[Measurement, ...]:
        """All that was measured."""
        return tuple(Measurement.named(name) for name in self.content["accuracies"])

    def has(self, wanted: Measurement) -> bool:
        """Whether something was measured."""
        return wanted.name in self.content["accuracies"]

    def accuracy(self, wanted: Measurement) -> Accuracy:
        """Return a measured accuracy."""
        return Accuracy.from_dict(self.content["accuracies"][wanted.name])

    @property
    def by_class(self) -> dict[str, dict[str, float]]:
        """Accuracies by class in per cent, {"val 5-shot centroid": {class: accuracy}}; none in older results."""
        return dict(self.content.get("by_class", {}))

    def epoch(self, wanted: Measurement) -> int:
        """Return the epoch whose weights were measured."""
        return int(self.content["accuracies"][wanted.name]["epoch"])


class Results:
    """A folder of results, by scale and dataset. Of a file that cannot be read a warning tells, and it is none."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self._read_before: dict[Path, tuple[int, RunResult | None]] = {}

    def path(self, config: TrainConfig, scale: str) -> Path:
        """Return where a training's result is, or will be."""
        name = run_id(config)
        if scale == OWN:  # where runs may differ in nothing but how they were validated
            watched = repr([getattr(config, setting) for setting in WATCHING])
            name += f"-{hashlib.sha256(watched.encode()).hexdigest()[:8]}"
        return self.folder / scale / dataset_name(config.dataset) / f"{name}.json"

    def get(self, config: TrainConfig, scale: str) -> RunResult | None:
        """Return a training's result, or None where it has not been run."""
        path = self.path(config, scale)
        return self._read(path) if path.is_file() else None

    def put(self, result: RunResult) -> None:
        """Write a result, whole or not at all."""
        path = self.path(result.config, result.scale)
        path.parent.mkdir(parents=True, exist_ok=True)
        content = self._with_what_was_measured(path, result)
        _write(path, content)

    def __iter__(self) -> Iterator[RunResult]:
        yield from self.of_scale("*")

    def of_scale(self, scale: str) -> Iterator[RunResult]:
        """Yield the results of a scale."""
        for path in sorted(self.folder.glob(f"{scale}/*/*.json")):
            result = self._read(path)
            if result is not None:
                yield result

    def _with_what_was_measured(self, path: Path, result: RunResult) -> dict[str, Any]:
        """Return a result together with what was measured of the same run before, perhaps for another recipe.

        The same run is one with the same log on the same data. Of another training of the same settings the numbers are
        not mixed with these; its result is put aside, in the folder "earlier", and nothing of it is lost. Likewise a
        file that cannot be read, which may be a newer nearshot's.
        """
        if not path.is_file():
            return result.content
        there = self._read(path)
        before = {} if there is None else there.content
        if there is None or any(before.get(name) != result.content.get(name) for name in ("fingerprints", "history")):
            earlier = path.parent / "earlier"
            earlier.mkdir(exist_ok=True)
            n_before = len(list(earlier.glob(f"{path.stem}-*.json")))
            with atomic_write(earlier / f"{path.stem}-{n_before + 1}.json") as file:
                file.write(path.read_bytes())
            return result.content
        merged = dict(result.content)
        if result.training_seconds is None:
            merged["training_seconds"] = there.training_seconds
        times = there.measuring_seconds, result.measuring_seconds
        merged["measuring_seconds"] = None if None in times else sum(filter(None, times))
        for name in ("accuracies", "by_class"):
            if name in before or name in merged:
                merged[name] = before.get(name, {}) | merged.get(name, {})
        # What was measured, in one precision with all else that was, is not replaced by what validation found.
        measured = {name: one for name, one in before["accuracies"].items() if one.get("measured")}
        merged["accuracies"] |= {
            name: one for name, one in measured.items() if not merged["accuracies"][name].get("measured")
        }
        return merged

    def _read(self, path: Path) -> RunResult | None:
        """Read a result, or take it from before if the file has not changed; tables ask for the same ones often.

        Where it cannot be read it is None, and a warning says so once.
        """
        changed = path.stat().st_mtime_ns
        if path not in self._read_before or self._read_before[path][0] != changed:
            read = _read_result(path)
            if isinstance(read, str):
                warnings.warn(read, LeftOutWarning, stacklevel=3)
            self._read_before[path] = (changed, None if isinstance(read, str) else read)
        return self._read_before[path][1]


def _read_result(path: Path) -> RunResult | str:
    """Return a file's result, or what is wrong with it."""
    try:
        content = json.loads(path.read_text())
        version = content.get("version") if isinstance(content, dict) and content.get("format") == FORMAT else None
        if isinstance(version, int) and version > VERSION:
            return (
                f"{path} was written by a newer nearshot (format {version}; this one reads {VERSION}) and counts as "
                "not done; update nearshot to read it."
            )
        result = RunResult(content)
        result.check()
    except DAMAGED as error:
        return (
            f"{path} is damaged ({reason_of(error)}) and counts as not done; delete it, or let nearshot reproduce "
            "train it again."
        )
    return result


def reason_of(error: Exception) -> str:
    """Say what is wrong with a file, by what was raised when it was read; no full stop at the end."""
    says_all = isinstance(error, NearshotError | ValueError)
    return f"{error}".rstrip(".") if says_all else f"{type(error).__name__}: {error}"


def _write(path: Path, content: dict[str, Any]) -> None:
    with atomic_write(path) as file:
        file.write((json.dumps(content, ensure_ascii=False, separators=(",", ":")) + "\n").encode())


def trainings_a_gpu(gpus_per_run: float) -> int:
    """Return how many trainings run on a GPU at once, if each takes so much of it; 1 if they use none.

    >>> trainings_a_gpu(0.5), trainings_a_gpu(1 / 3), trainings_a_gpu(0.4), trainings_a_gpu(0)
    (2, 3, 2, 1)
    """
    return int(1 / gpus_per_run + 1e-6) if gpus_per_run else 1


def result_of(
    run: RunFolder,
    scale: str,
    evaluations: dict[Measurement, Evaluation],
    *,
    by_class: dict[str, dict[str, float]] | None = None,
    training_seconds: float | None = None,
    measuring_seconds: float | None = 0.0,
    n_sharing: int = 1,
) -> RunResult:
    """Make the result of a finished run: the validation accuracies of its best epochs, and what was measured since."""
    content = run.read("result.json")
    config = TrainConfig.from_dict(content["config"])
    accuracies = {}
    for name, best in content["best"].items():
        shots, classifier = name.split("-shot ")
        accuracies[Measurement("val", int(shots), classifier).name] = best
    for wanted, evaluation in evaluations.items():
        epoch = int(evaluation.weights.removeprefix("epoch-").removesuffix(".safetensors"))
        accuracies[wanted.name] = evaluation.accuracy.as_dict() | {"epoch": epoch, "measured": True}
    lines = [json.loads(line) for line in run.metrics.read_text().splitlines()]
    timing = [json.loads(line) for line in run.timing.read_text().splitlines()]
    last_time = {line["epoch"]: line for line in timing}  # an epoch may have been run again after a kill
    rates = sorted(line["images_per_second"] for line in last_time.values())
    times = list(last_time.values())
    return RunResult(
        {
            "format": FORMAT,
            "version": VERSION,
            "id": run_id(config),
            "scale": scale,
            "config": config.as_dict(),
            "fingerprints": content["fingerprints"],
            "environment": content["environment"],
            "seconds": sum(line["seconds"] for line in last_time.values()),
            "images_per_second": rates[len(rates) // 2],
            "training_seconds": training_seconds,
            "measuring_seconds": measuring_seconds,
            "n_sharing": n_sharing,
            "end_to_end_images_per_second": _end_to_end(times),
            "first_epoch_seconds": times[0].get("since_start"),
            "accuracies": accuracies,
            "by_class": by_class or {},
            "history": lines,
        }
    )


def _end_to_end(times: list[dict[str, Any]]) -> float | None:
    """Return the images a second from the end of the first epoch to that of the last, validation and files included.

    Epochs that a process began with are left out: it had to load, compile and warm up first.
    """
    later = [(before, line) for before, line in pairwise(times) if not line.get("first")]
    seconds = sum(line["time"] - before["time"] for before, line in later)
    images = sum(line["seconds"] * line["images_per_second"] for _, line in later)
    return images / seconds if seconds > 0 else None
