"""Checkpoints: everything that an exact resume needs, in one file that is written atomically."""

from __future__ import annotations

import io
import pickle
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Self

import torch
from torch.utils import _pytree as pytree

from nearshot.errors import FileFormatError, InputError
from nearshot.io import atomic_write
from nearshot.training.config import TrainConfig, differences

__all__ = ["CheckpointWriter", "check_same_training", "read_checkpoint"]

FORMAT, VERSION = "nearshot-checkpoint", 1
NEEDED = {"version", "config", "fingerprints", "learner", "optimiser", "sampler", "generator", "progress"}


class CheckpointWriter:
    """Writes checkpoints in a thread while training continues; the state is copied first.

    One checkpoint is written at a time. An error, such as a full disk, is raised at the next call.
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
        copied = pytree.tree_map_only(torch.Tensor, _copied, {"format": FORMAT, "version": VERSION} | state)
        self._last = self._thread.submit(self._write, copied, afterwards)

    @property
    def seconds_since_last(self) -> float:
        """Seconds since the last checkpoint was started, or since the writer was made."""
        return time.monotonic() - self._when

    def wait(self) -> None:
        """Wait until everything is written."""
        last, self._last = self._last, None
        if last is not None:
            last.result()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Wait for the last checkpoint, and end the thread."""
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
    """Read a checkpoint. No code in the file is executed; a file that is not a checkpoint is refused."""
    if not path.is_file():
        raise InputError(f"There is no checkpoint at {path} to resume from.")
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
        readable = isinstance(state, dict) and state.get("format") == FORMAT and state.keys() >= NEEDED
    except (pickle.UnpicklingError, RuntimeError, ValueError, EOFError, KeyError) as error:
        reason = str(error).split(". ")[0].splitlines()[0].rstrip(".") if str(error) else type(error).__name__
        raise FileFormatError(f"{path} is not a checkpoint, or is damaged: {reason}.") from error
    if not readable:
        raise FileFormatError(f"{path} is not a checkpoint of a training run, or is incomplete.")
    if state["version"] != VERSION:
        raise FileFormatError(f"{path} has format {state['version']}; this version of nearshot reads {VERSION}.")
    return dict(state)


def check_same_training(state: dict[str, Any], config: TrainConfig, fingerprints: dict[str, str]) -> None:
    """Refuse a checkpoint, or a result, of another configuration or of other data, and name the difference."""
    different = differences(TrainConfig.from_dict(state["config"]), config)
    if different:
        listed = "; ".join(f"{name} was {there!r} and is now {here!r}" for name, (there, here) in different.items())
        raise InputError(f"The run has another configuration: {listed}.")
    for split in fingerprints | state["fingerprints"]:
        there, here = (str(found.get(split))[:12] for found in (state["fingerprints"], fingerprints))
        if there != here:
            raise InputError(
                f"The run is of other data: the {split} split had the fingerprint {there} and now has {here}."
            )


def _copied(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().to("cpu", copy=True)
