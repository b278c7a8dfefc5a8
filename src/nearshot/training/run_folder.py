"""The folder of a run: its configuration, log, checkpoint, weights and result.

config.json              the configuration, resolved
environment.json         versions, hardware, state of the code, command
training_classes.json    the names of the training classes
metrics.jsonl            one line per epoch: loss, learning rate, batches, accuracies; reproducible
timing.jsonl             one line per epoch: time, duration, images per second
events.out.tfevents.*    both, for TensorBoard (needs the extra `tensorboard`)
checkpoint.pt            the state to resume from
weights/                 epoch-0010.safetensors, …: the best epochs, and at the end the last one
result.json              the best epochs with their accuracies; only a finished run has it
evaluations/             later measurements, each with the key that its name is a hash of
"""

import hashlib
import json
import platform
import re
import sys
from importlib import metadata
from pathlib import Path
from shlex import quote
from typing import Any

import torch

from nearshot._version import __version__, state_of_code
from nearshot.data.datasets import SOURCES
from nearshot.errors import InputError
from nearshot.evaluation import TrainingClasses
from nearshot.io import FileLock, read_json, write_json
from nearshot.models import read_notes
from nearshot.training.config import TrainConfig, dataset_name, differences
from nearshot.training.presets import PHOTOS, closest_preset

__all__ = ["RunFolder", "best_epoch", "describe_environment", "folder_name", "run_name"]

# By "5-shot centroid" and the like: the best epoch and its accuracy.
Best = dict[str, dict[str, Any]]
CLASSES = "training_classes.json"
NOTE = "training_classes"  # the key in the metadata of weights


def run_name(config: TrainConfig) -> str:
    """Return the name of a run in lists and tables: the nearest preset and the differences from it.

    >>> run_name(TrainConfig(seed=3))
    'default,seed=3'
    """
    preset, different = closest_preset(config)
    parts = [preset]
    for name, (_, value) in different.items():
        shown = dataset_name(str(value)) if name == "dataset" else _short(value)
        parts.append(f"{name}={shown}")
    return re.sub(r"[^\w.,=+-]", "-", ",".join(parts))


def folder_name(config: TrainConfig) -> str:
    """Return a short name for a run's folder.

    It is the preset, or the dataset and the method; then the seed, and a hash of other changes.

    >>> from dataclasses import replace
    >>> folder_name(replace(PHOTOS, dataset="./birds", seed=3))
    'birds-nca-seed3'
    >>> folder_name(replace(PHOTOS, dataset="birds", epochs=9))
    'birds-nca-f62f'
    """
    preset, different = closest_preset(config)
    if config.dataset not in SOURCES:
        different = differences(PHOTOS, config)
    if preset == "default" or "method" in different:
        preset = f"{dataset_name(config.dataset)}-{config.method_name}"
    parts = [preset]
    if config.seed:
        parts.append(f"seed{config.seed}")
    others = {
        name: value
        for name, (_, value) in different.items()
        if name not in ("dataset", "method", "seed")
    }
    if others:
        content = json.dumps(others, sort_keys=True).encode()
        parts.append(hashlib.sha256(content).hexdigest()[:4])
    return re.sub(r"[^\w.+-]", "-", "-".join(parts))


class RunFolder:
    """The files of a run: their paths, reading, writing, and the per-run lock."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.checkpoint = self.path / "checkpoint.pt"
        self.metrics = self.path / "metrics.jsonl"
        self.timing = self.path / "timing.jsonl"
        self.weights = self.path / "weights"
        self._lock = FileLock(self.path / ".lock")

    def weights_of(self, epoch: int) -> Path:
        """Return the file of an epoch's weights."""
        return self.weights / f"epoch-{epoch:04d}.safetensors"

    def keep_weights(self, epochs: set[int]) -> None:
        """Remove the weights of all other epochs."""
        kept = {self.weights_of(epoch) for epoch in epochs}
        for file in self.weights.glob("epoch-*.safetensors"):
            if file not in kept:
                file.unlink()

    @property
    def is_finished(self) -> bool:
        """Whether the run has its result."""
        return (self.path / "result.json").is_file()

    def write(self, name: str, content: dict[str, Any]) -> None:
        """Write a JSON file atomically."""
        write_json(self.path / name, content)

    def read(self, name: str) -> dict[str, Any]:
        """Read a JSON file of the run."""
        file = self.path / name
        if not file.is_file():
            kind = "run" if name == "config.json" else "finished run"
            raise InputError(f"{self.path} is not a {kind}: it has no {name}.")
        return read_json(file)

    def read_best(self) -> Best:
        """Return the best epochs of a finished run."""
        return dict(self.read("result.json")["best"])

    def best_weights(self, n_shot: int, classifier: str, best: Best | None = None) -> Path:
        """Return the weights of the best epoch for these; of the last epoch, if there is none.

        `best` are the best epochs so far of an unfinished run; by default, the run is finished.
        """
        if best is None:
            best = self.read_best()
        epoch = best_epoch(best, n_shot, classifier)
        if epoch is None:
            epoch = self.read_config().epochs
        return self.weights_of(epoch)

    def read_config(self) -> TrainConfig:
        """Return the run's configuration."""
        return TrainConfig.from_dict(self.read("config.json"))

    def read_trained_on(self) -> TrainingClasses:
        """Return the training classes."""
        return TrainingClasses.from_dict(self.read(CLASSES))

    def start(self, *, resume: bool, overwrite: bool) -> bool:
        """Make and lock the folder; return whether there is a checkpoint to resume from."""
        if resume and overwrite:
            raise InputError("Use either resume or overwrite, not both.")
        self.weights.mkdir(parents=True, exist_ok=True)
        if not self._lock.acquire():
            raise InputError(
                f"Another process is training in {self.path}. Wait for it, or choose another "
                "folder."
            )
        # Of a process that was killed while it wrote.
        for partial in [*self.path.glob(".*.partial"), *self.weights.glob(".*.partial")]:
            partial.unlink()
        if overwrite:
            self._remove_files()
        has_checkpoint = self.checkpoint.is_file()
        if has_checkpoint and resume:
            return True
        if not has_checkpoint and not self.is_finished:
            return False
        self.release()
        if has_checkpoint:
            raise InputError(
                f"There is a run in {self.path} already. Continue it with resume, or replace it "
                "with overwrite."
            )
        raise InputError(
            f"The run in {self.path} is finished, and its checkpoint is missing, so it cannot be "
            f"resumed. Measure it with nearshot evaluate {quote(str(self.path))}, or start again "
            "with overwrite."
        )

    def _remove_files(self) -> None:
        """Remove the files of a run, and no others."""
        files = [
            self.path / "config.json",
            self.path / "environment.json",
            self.path / CLASSES,
            self.path / "result.json",
            self.metrics,
            self.timing,
            self.checkpoint,
            *self.path.glob("events.out.tfevents.*"),
            *self.weights.glob("epoch-*.safetensors"),
            *(self.path / "evaluations").glob("*.json"),
        ]
        for file in files:
            file.unlink(missing_ok=True)

    def release(self) -> None:
        """Release the lock."""
        self._lock.release()

    def describe(
        self, config: TrainConfig, environment: dict[str, Any], classes: TrainingClasses
    ) -> None:
        """Write the configuration, the classes and the environment.

        The environments of earlier processes of the run are kept under "earlier".
        """
        if self.checkpoint.is_file() and (self.path / "environment.json").is_file():
            last = self.read("environment.json")
            earlier = last.pop("earlier", [])
            environment = environment | {"earlier": [*earlier, last]}
        self.write("config.json", config.as_dict())
        self.write(CLASSES, classes.as_dict())
        self.write("environment.json", environment)


def weights_of_run(name: str | Path) -> str | Path:
    """Return the best weights for five shots of a run's folder; other names unchanged."""
    return RunFolder(name).best_weights(5, "centroid") if Path(name).is_dir() else name


def classes_of_network(network: str) -> TrainingClasses | None:
    """Return the classes that a run or a weights file was trained on; None if they are unknown."""
    if Path(network).is_dir():
        return RunFolder(network).read_trained_on()
    notes = read_notes(network)
    return TrainingClasses.from_dict(json.loads(notes[NOTE])) if NOTE in notes else None


def best_epoch(best: Best, n_shot: int, classifier: str) -> int | None:
    """Return the epoch with the best validation accuracy for a number of shots and a classifier.

    None if no epoch was validated. Shots that were not validated have the nearest ones' epoch;
    other classifiers have nearest centroid's.

    >>> best_epoch({"1-shot centroid": {"epoch": 10}, "5-shot centroid": {"epoch": 20}}, 7, "knn")
    20
    """
    has_classifier = any(name.endswith(f"-shot {classifier}") for name in best)
    suffix = f"-shot {classifier if has_classifier else 'centroid'}"
    epochs = {}
    for name, accuracy in best.items():
        if name.endswith(suffix):
            epochs[int(name.removesuffix(suffix))] = int(accuracy["epoch"])
    nearest = min(epochs, key=lambda validated: (abs(validated - n_shot), validated), default=None)
    return None if nearest is None else epochs[nearest]


def describe_environment(device: torch.device) -> dict[str, Any]:
    """Return versions, hardware, command and the state of the code."""
    # Without absolute paths, which may be private.
    command = [Path(word).name if Path(word).is_absolute() else word for word in sys.argv]
    return {
        "nearshot": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": metadata.version("numpy"),
        "pillow": metadata.version("pillow"),
        "lightning-fabric": metadata.version("lightning-fabric"),
        "system": platform.platform(),
        "device": _device_name(device),
        "threads": torch.get_num_threads(),
        "command": command,
        "code": state_of_code(),
    }


def _device_name(device: torch.device) -> str:
    """Return the model of a GPU or of the processor."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    cpu_info = Path("/proc/cpuinfo")
    if cpu_info.is_file():
        model = re.search(r"^model name\s*: *(\S.*)", cpu_info.read_text(), re.MULTILINE)
        if model is not None:
            return model[1].strip()
    return platform.processor() or "CPU"


def _short(value: object) -> str:
    if isinstance(value, list | tuple):
        return "+".join(map(_short, value))
    return f"{value:g}" if isinstance(value, float) else str(value)
