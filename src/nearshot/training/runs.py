"""A run is a folder: its configuration, its log, its checkpoint, its weights and its result.

config.json         the configuration, resolved
environment.json    versions, hardware, the state of the code, the command
metrics.jsonl       a line an epoch: loss, learning rate, batches, accuracies; the same for the same run
timing.jsonl        a line an epoch: when, how long, how many images a second
events.out.tfevents.nearshot    the same for TensorBoard
checkpoint.pt       what it takes to go on
weights/            epoch-0010.safetensors, …: the best epochs, and at the end the last one
result.json         the best epochs with their accuracies; only a finished run has it
"""

from __future__ import annotations

import hashlib
import json
import platform
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from nearshot._version import __version__
from nearshot.errors import FileFormatError, InputError
from nearshot.files import write_whole
from nearshot.training.config import TrainConfig, dataset_name
from nearshot.training.presets import closest_preset

__all__ = ["RunFolder", "describe_environment", "run_name"]

LONGEST_NAME = 120


def run_name(config: TrainConfig) -> str:
    """Return a folder's name for a configuration: its nearest preset and what differs from it.

    >>> run_name(TrainConfig(seed=3))
    'default,seed=3'
    """
    preset, different = closest_preset(config)
    own = {name: dataset_name(str(value)) if name == "dataset" else value for name, (_, value) in different.items()}
    name = ",".join([preset, *(f"{key}={_short(value)}" for key, value in own.items())])
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
        """Write a JSON file, whole or not at all."""
        with write_whole(self.path / name) as file:
            file.write((json.dumps(content, indent=2, ensure_ascii=False) + "\n").encode())

    def read(self, name: str) -> dict[str, Any]:
        """Read a JSON file of the run."""
        file = self.path / name
        if not file.is_file():
            raise InputError(f"{self.path} is not a finished run: it has no {name}.")
        try:
            content: dict[str, Any] = json.loads(file.read_text())
        except ValueError as error:
            raise FileFormatError(f"{file} is damaged: {error}.") from error
        return content

    def read_config(self) -> TrainConfig:
        """Return the run's configuration."""
        return TrainConfig.from_dict(self.read("config.json"))

    def start(self, *, resume: bool, overwrite: bool) -> bool:
        """Make the folder; return whether there is a checkpoint to go on from."""
        there = self.checkpoint.is_file()
        if there and overwrite:
            shutil.rmtree(self.path)
            there = False
        if there and not resume:
            raise InputError(f"There is a run in {self.path} already. Go on with --resume, or start anew: --overwrite.")
        self.weights.mkdir(parents=True, exist_ok=True)
        return there


def describe_environment(device: torch.device) -> dict[str, Any]:
    """Return versions, hardware, command and the state of the code."""
    packages = ("numpy", "pillow", "lightning-fabric")
    return {
        "nearshot": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        **{name: _version_of(name) for name in packages},
        "system": platform.platform(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor() or "CPU",
        "threads": torch.get_num_threads(),
        "command": [Path(sys.argv[0]).name, *sys.argv[1:]],
        "code": _state_of_code(),
    }


def _short(value: object) -> str:
    if isinstance(value, list | tuple):
        return "+".join(map(_short, value))
    return f"{value:g}" if isinstance(value, float) else str(value)


def _version_of(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _state_of_code() -> dict[str, Any] | None:
    """Return the commit that runs, and whether files were changed since; None where there is no git."""
    git = shutil.which("git")
    if git is None:
        return None

    def ask(*arguments: str) -> str | None:
        folder = Path(__file__).parent
        answer = subprocess.run([git, *arguments], cwd=folder, capture_output=True, text=True, check=False)  # noqa: S603
        return answer.stdout.strip() if answer.returncode == 0 else None

    commit = ask("rev-parse", "HEAD")
    return None if commit is None else {"commit": commit, "changed": bool(ask("status", "--porcelain", "."))}
