"""Checkpoints: all that it takes to go on exactly, in one file that is there whole or not at all."""

from __future__ import annotations

import io
import pickle
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch

from nearshot.errors import FileFormatError, InputError
from nearshot.io import atomic_write
from nearshot.training.config import TrainConfig, differences

__all__ = ["CheckpointWriter", "check_same_training", "read_checkpoint"]

FORMAT, VERSION = "nearshot-checkpoint", 1
NEEDED = {"version", "config", "fingerprints", "learner", "optimiser", "sampler", "generator", "progress"}


class CheckpointWriter:
    """Writes checkpoints while training goes on: a state is copied at once, and written by a thread.

    One is written at a time; a new one waits for the last. An error, such as a full disk, is raised at the next call.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._last: Future[None] | None = None
        self._when = time.monotonic()

    def save(self, state: dict[str, Any], *, afterwards: Callable[[], None] | None = None) -> None:
        """Write a state; `afterwards` is called once it is safely on the disk."""
        self.wait()
        self._when = time.monotonic()
        copied = _copied({"format": FORMAT, "version": VERSION} | state)
        self._last = self._thread.submit(self._write, copied, afterwards)

    @property
    def seconds_since_last(self) -> float:
        """How old the last checkpoint is, or the writer where there is none."""
        return time.monotonic() - self._when

    def wait(self) -> None:
        """Wait until everything is written."""
        last, self._last = self._last, None
        if last is not None:
            last.result()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Write what is left, and end the thread."""
        try:
            self.wait()
        finally:
            self._thread.shutdown()

    def _write(self, state: dict[str, Any], afterwards: Callable[[], None] | None) -> None:
        with atomic_write(self.path) as file:
            buffer = io.BytesIO()
            torch.save(state, buffer)
            file.write(buffer.getbuffer())
        if afterwards is not None:
            afterwards()


def read_checkpoint(path: Path) -> dict[str, Any]:
    """Read a checkpoint. Nothing in the file is executed; what is no checkpoint is refused."""
    if not path.is_file():
        raise InputError(f"There is no checkpoint to go on from at {path}.")
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
        readable = isinstance(state, dict) and state.get("format") == FORMAT and state.keys() >= NEEDED
    except (pickle.UnpicklingError, RuntimeError, ValueError, EOFError, KeyError) as error:
        raise FileFormatError(f"{path} is not a checkpoint, or is damaged: {_first_sentence(error)}.") from error
    if not readable:
        raise FileFormatError(f"{path} is not a checkpoint of a training, or is not complete.")
    if state["version"] != VERSION:
        raise FileFormatError(f"{path} is of format {state['version']}; this version of nearshot reads {VERSION}.")
    return dict(state)


def check_same_training(state: dict[str, Any], config: TrainConfig, fingerprints: dict[str, str]) -> None:
    """Refuse a checkpoint, or a result, of another configuration or of other data, and say what differs."""
    different = differences(TrainConfig.from_dict(state["config"]), config)
    if different:
        listed = "; ".join(f"{name} was {there!r} and is now {here!r}" for name, (there, here) in different.items())
        raise InputError(f"The run is of another training: {listed}.")
    for split in fingerprints | state["fingerprints"]:
        there, here = (str(found.get(split))[:12] for found in (state["fingerprints"], fingerprints))
        if there != here:
            raise InputError(
                f"The run is of other data: the {split} split had the fingerprint {there} and now has {here}."
            )


def _copied(value: Any) -> Any:
    """Copy tensors to the host, so that training can go on changing them."""
    if isinstance(value, torch.Tensor):
        return value.detach().to("cpu", copy=True)
    if isinstance(value, dict):
        return {key: _copied(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_copied(item) for item in value)
    return value


def _first_sentence(error: Exception) -> str:
    return str(error).split(". ")[0].splitlines()[0].rstrip(".") if str(error) else type(error).__name__
