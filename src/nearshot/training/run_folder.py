"""A run is a folder: its configuration, its log, its checkpoint, its weights and its result.

config.json         the configuration, resolved
environment.json    versions, hardware, the state of the code, the command
training_classes.json    the names of the classes that are trained on
metrics.jsonl       a line an epoch: loss, learning rate, batches, accuracies; the same for the same run
timing.jsonl        a line an epoch: when, how long, how many images a second
events.out.tfevents.nearshot    the same for TensorBoard
checkpoint.pt       what it takes to go on
weights/            epoch-0010.safetensors, …: the best epochs, and at the end the last one
result.json         the best epochs with their accuracies; only a finished run has it
job.json            how `nearshot reproduce` trained it; other runs have none
evaluations/        what was measured since; before the end under names that begin with "unfinished"
"""

from __future__ import annotations

import hashlib
import json
import platform
import sys
from collections.abc import Collection
from importlib import metadata
from pathlib import Path
from shlex import quote
from typing import Any

import torch

from nearshot._version import __version__, state_of_code
from nearshot.errors import FileFormatError, InputError
from nearshot.io import FileLock, atomic_write
from nearshot.training.classes import TrainedOn
from nearshot.training.config import TrainConfig, dataset_name
from nearshot.training.presets import closest_preset

__all__ = ["RunFolder", "best_epoch", "describe_environment", "device_name", "run_name"]

LONGEST_NAME = 120
CLASSES, JOB = "training_classes.json", "job.json"


def run_name(config: TrainConfig) -> str:
    """Return a folder's name for a configuration: its nearest preset and what differs from it.

    >>> run_name(TrainConfig(seed=3))
    'default,seed=3'
    """
    preset, different = closest_preset(config)
    own = {name: dataset_name(str(value)) if name == "dataset" else value for name, (_, value) in different.items()}
    name = ",".join([preset, *(f"{key}={_short(value)}" for key, value in own.items())])
    name = "".join(letter if letter.isalnum() or letter in ".,=+-_" else "-" for letter in name)
    if len(name) <= LONGEST_NAME:
        return name
    return f"{name[: LONGEST_NAME - 9]}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"


class RunFolder:
    """Where a run's files are, and how they are read and written."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.checkpoint = self.path / "checkpoint.pt"
        self.metrics = self.path / "metrics.jsonl"
        self.timing = self.path / "timing.jsonl"
        self.events = self.path / "events.out.tfevents.nearshot"
        self.weights = self.path / "weights"
        self._lock = FileLock(self.path / ".lock")  # two trainings in a folder would mix their files

    def weights_of(self, epoch: int) -> Path:
        """Return the file of an epoch's weights."""
        return self.weights / f"epoch-{epoch:04d}.safetensors"

    def keep_weights(self, epochs: set[int], *, before: int) -> None:
        """Remove the weights of all other epochs before some epoch; later ones may be wanted meanwhile."""
        for epoch in range(1, before):
            if epoch not in epochs:
                self.weights_of(epoch).unlink(missing_ok=True)

    @property
    def is_finished(self) -> bool:
        """Whether the run has its result."""
        return (self.path / "result.json").is_file()

    def write(self, name: str, content: dict[str, Any]) -> None:
        """Write a JSON file, whole or not at all."""
        with atomic_write(self.path / name) as file:
            file.write((json.dumps(content, indent=2, ensure_ascii=False) + "\n").encode())

    def read(self, name: str) -> dict[str, Any]:
        """Read a JSON file of the run."""
        file = self.path / name
        if not file.is_file():
            what = "a run" if name == "config.json" else "a finished run"
            raise InputError(f"{self.path} is not {what}: it has no {name}.")
        try:
            content = json.loads(file.read_text(encoding="utf-8"))
        except ValueError as error:
            raise FileFormatError(f"{file} is damaged: {error}.") from error
        if not isinstance(content, dict):
            raise FileFormatError(f"{file} is not a file of a run.")
        return content

    def read_best(self) -> dict[str, dict[str, Any]]:
        """Return the best epochs of a finished run, by "5-shot centroid" and the like."""
        best = self.read("result.json").get("best")
        if not isinstance(best, dict) or not all(isinstance(one, dict) and "epoch" in one for one in best.values()):
            raise FileFormatError(f"{self.path / 'result.json'} is damaged: it has no best epochs.")
        return best

    def best_weights(self, n_shot: int, classifier: str) -> Path:
        """Return a finished run's weights of the epoch that was best for these; of the last, if none was validated."""
        epoch = best_epoch(self.read_best(), n_shot, classifier)
        return self.weights_of(self.read_config().epochs if epoch is None else epoch)

    def read_config(self) -> TrainConfig:
        """Return the run's configuration."""
        content = self.read("config.json")
        try:
            return TrainConfig.from_dict(content)
        except (TypeError, ValueError) as error:
            raise FileFormatError(f"{self.path / 'config.json'} is damaged: {error}") from error

    def as_begun(self, config: TrainConfig, free: Collection[str]) -> TrainConfig | None:
        """Return settings with those that may change as the run has them, however they were fitted then.

        None where there is no checkpoint to go on from, or nothing says what they were.
        """
        if not self.checkpoint.is_file():
            return None
        try:
            begun = self.read_config()
        except (InputError, FileFormatError):
            return None
        return config.changed(**{name: getattr(begun, name) for name in free})

    def read_trained_on(self) -> TrainedOn | None:
        """Return the classes that the run was trained on; None for a run from before they were written down."""
        if not (self.path / CLASSES).is_file():
            return None
        content = self.read(CLASSES)
        try:
            return TrainedOn.from_dict(content)
        except ValueError as error:
            raise FileFormatError(f"{self.path / CLASSES} is damaged: {error}") from error

    def start(self, *, resume: bool, overwrite: bool) -> bool:
        """Make the folder and own it; return whether there is a checkpoint to go on from."""
        if resume and overwrite:
            raise InputError(
                "To go on with a run and to start it again are two things: --resume or --overwrite (in Python, "
                "resume=True or overwrite=True)."
            )
        try:
            self.weights.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"The run's folder {self.path} cannot be made: {error.strerror}.") from error
        if not self._lock.acquire():
            raise InputError(f"Another training is running in {self.path}.")
        for unfinished in [*self.path.glob(".*.partial"), *self.weights.glob(".*.partial")]:
            unfinished.unlink()  # of a process that was killed while it wrote
        if overwrite:
            self._clear()
        there = self.checkpoint.is_file()
        if self.is_finished and not there:
            self.release()
            raise InputError(
                f"The run in {self.path} is finished, and its checkpoint is gone, so there is nothing to go on from. "
                f"nearshot evaluate {quote(str(self.path))} measures it; --overwrite starts anew."
            )
        if there and not resume:
            self.release()
            raise InputError(
                f"There is a run in {self.path} already. Go on with --resume, or start anew: --overwrite (in Python, "
                "resume=True or overwrite=True)."
            )
        return there

    def release(self) -> None:
        """Let others have the folder."""
        self._lock.release()

    def describe(self, config: TrainConfig, environment: dict[str, Any], trained_on: TrainedOn) -> None:
        """Write the configuration, the classes and the environment; those where a run was before stay in the last."""
        before: list[Any] = []
        if self.checkpoint.is_file() and (self.path / "environment.json").is_file():
            last = self.read("environment.json")
            before = [*last.pop("earlier", []), last]
        self.write("config.json", config.as_dict())
        self.write(CLASSES, trained_on.as_dict())
        self.write("environment.json", environment | ({"earlier": before} if before else {}))

    def _clear(self) -> None:
        """Remove the files of a run, and nothing else."""
        files = [self.path / name for name in ("config.json", "environment.json", CLASSES, "result.json", JOB)]
        files += [self.metrics, self.timing, self.events, self.checkpoint]
        files += [*self.weights.glob("epoch-*.safetensors"), *(self.path / "evaluations").glob("*.json")]
        for file in files:
            file.unlink(missing_ok=True)


def best_epoch(best: dict[str, dict[str, Any]], n_shot: int, classifier: str) -> int | None:
    """Return the epoch that was best for some shots and a classifier on the validation split; None if none was.

    For a number of shots that was not validated, the nearest one's; for a classifier that was not, nearest centroid's.

    >>> best_epoch({"1-shot centroid": {"epoch": 10}, "5-shot centroid": {"epoch": 20}}, 7, "knn")
    20
    """
    validated = classifier if any(name.endswith(f"-shot {classifier}") for name in best) else "centroid"
    epochs = {
        int(name.split("-shot ")[0]): int(one["epoch"])
        for name, one in best.items()
        if name.endswith(f"-shot {validated}")
    }
    nearest = min(epochs, key=lambda other: (abs(other - n_shot), other), default=None)
    return None if nearest is None else epochs[nearest]


def describe_environment(device: torch.device) -> dict[str, Any]:
    """Return versions, hardware, command and the state of the code."""
    packages = ("numpy", "pillow", "lightning-fabric")
    return {
        "nearshot": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        **{name: _version_of(name) for name in packages},
        "system": platform.platform(),
        "device": device_name(device),
        "threads": torch.get_num_threads(),
        # Where things lie is the machine's affair, and may be nobody else's.
        "command": [Path(word).name if Path(word).is_absolute() else word for word in sys.argv],
        "code": state_of_code(),
    }


def device_name(device: torch.device) -> str:
    """Return what a GPU, or the processor, is called."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else _processor()


def _processor() -> str:
    """Return what the processor is called."""
    described = Path("/proc/cpuinfo")
    lines = described.read_text().splitlines() if described.is_file() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return next((name for name in names if name), platform.processor() or "CPU")


def _short(value: object) -> str:
    if isinstance(value, list | tuple):
        return "+".join(map(_short, value))
    return f"{value:g}" if isinstance(value, float) else str(value)


def _version_of(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
