"""What a run leaves behind while it runs: lines for people, lines for programs, curves for TensorBoard."""

from __future__ import annotations

import hashlib
import json
import math
import sys
import time
from types import TracebackType
from typing import Any, Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from nearshot.errors import MissingExtraError
from nearshot.io import append_line, atomic_write, naming_a_full_disk
from nearshot.training.config import TrainConfig
from nearshot.training.run_folder import RunFolder
from nearshot.training.state import Progress as TrainingProgress
from nearshot.training.tensorboard import append_scalars, start_events

__all__ = ["Recorder", "import_wandb"]

NO_CURVES = ("epoch", "time", "first", "since_start")


class Recorder:
    """Writes and shows a line an epoch. A resumed run's files begin with the epochs up to its checkpoint, and no more.

    Args:
        folder: the run's.
        config: its configuration.
        progress: how far the run is.
        steps_per_epoch: for the progress bar.
        show: whether to show anything; None shows a bar on a terminal and plain lines elsewhere.
        wandb: a Weights & Biases project to log to as well.
        called: when the training was called for, by `time.perf_counter`; by default now.
    """

    def __init__(
        self,
        folder: RunFolder,
        config: TrainConfig,
        progress: TrainingProgress,
        steps_per_epoch: int,
        *,
        show: bool | None,
        wandb: str | None = None,
        called: float | None = None,
    ) -> None:
        self.folder, self.history, self.n_epochs = folder, list(progress.history), config.epochs
        self.is_first = True
        self.n_steps, self.first_step, self.n_taken = config.epochs * steps_per_epoch, progress.step, 0
        self.begun = time.perf_counter()
        self.called = self.begun if called is None else called
        with atomic_write(folder.metrics) as file:
            file.write("".join(_line(record) for record in self.history).encode())
        timings = _timings(folder, len(self.history))
        with atomic_write(folder.timing) as file:
            file.write("".join(_line(timing) for timing in timings.values()).encode())
        start_events(
            folder.events,
            [
                (record["epoch"], timings.get(record["epoch"], {}).get("time", 0.0), _scalars(record | timing))
                for record in self.history
                for timing in (timings.get(record["epoch"], {}),)
            ],
        )
        self.console = Console(stderr=True, markup=False, highlight=False, soft_wrap=True, quiet=show is False)
        self.bar: Progress | None = None
        self.task: TaskID | None = None
        if show is not False and sys.stderr.isatty():
            self.bar, self.task = self._bar()
        self.wandb = None if wandb is None else _start_wandb(wandb, folder, config)

    def __enter__(self) -> Self:
        if self.bar is not None:
            self.bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.bar is not None:
            self.bar.stop()
        if self.wandb is not None:
            self.wandb.finish(exit_code=0 if kind is None else 1)

    def step(self) -> None:
        """Move the bar on."""
        self.n_taken += 1
        if self.bar is not None and self.task is not None:
            self.bar.advance(self.task)

    def epoch(self, record: dict[str, Any], *, seconds: float, images_per_second: float) -> None:
        """Add an epoch."""
        self.history.append(record)
        now = time.time()
        timing = {"epoch": record["epoch"], "time": now, "seconds": seconds, "images_per_second": images_per_second}
        if self.is_first:  # of this process, which had to start; the time since the epoch before says nothing
            timing |= {"first": True, "since_start": time.perf_counter() - self.called}
            self.is_first = False
        append_line(self.folder.metrics, _line(record))
        append_line(self.folder.timing, _line(timing))
        with naming_a_full_disk(self.folder.events):
            append_scalars(self.folder.events, record["epoch"], now, _scalars(record | timing))
        if self.wandb is not None:
            self.wandb.log(_scalars(record | timing), step=record["epoch"])
        self._show(record, images_per_second)

    def say(self, sentence: str) -> None:
        """Show a sentence."""
        (self.bar.console if self.bar is not None else self.console).print(sentence)

    def _show(self, record: dict[str, Any], images_per_second: float) -> None:
        a_step = (time.perf_counter() - self.begun) / max(self.n_taken, 1)  # with validation and all else
        left = a_step * (self.n_steps - self.first_step - self.n_taken)
        if self.bar is not None and self.task is not None:
            following = min(record["epoch"] + 1, self.n_epochs)
            about = f"epoch {following}/{self.n_epochs}, loss {record['loss']:.4f}, {images_per_second:,.0f} images/s"
            self.bar.update(self.task, description=about)
        measured = ", ".join(f"{name} {value:.2f} %" for name, value in record.get("validation", {}).items())
        unpaired = record.get("anchors_without_positive", 0)
        self.say(
            f"epoch {record['epoch']}/{self.n_epochs}: loss {record['loss']:.4f}, {images_per_second:,.0f} images/s, "
            f"{_duration(left)} left"
            + (f", {unpaired:.1f} anchors a batch without a positive" if unpaired else "")
            + (f"; validation {measured}" if measured else "")
        )

    def _bar(self) -> tuple[Progress, TaskID]:
        columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), TimeRemainingColumn())
        bar = Progress(*columns, console=self.console, transient=True)
        first = f"epoch {len(self.history) + 1}/{self.n_epochs}"
        return bar, bar.add_task(first, total=self.n_steps, completed=self.first_step)


def _timings(folder: RunFolder, n_epochs: int) -> dict[int, dict[str, Any]]:
    """Return the times of the epochs that stand; of one that was run again, the last."""
    if not folder.timing.is_file():
        return {}
    found = {}
    for line in folder.timing.read_text().splitlines():
        try:
            timing = json.loads(line)
        except ValueError:
            continue  # the end of a line that a killed process was writing
        if timing["epoch"] <= n_epochs:
            found[int(timing["epoch"])] = timing
    return found


def _line(record: dict[str, Any]) -> str:
    return json.dumps(record) + "\n"


def _scalars(record: dict[str, Any]) -> dict[str, float]:
    """Return the numbers of a record, those of inner records under joined names; an infinite or missing one is left."""
    found: dict[str, float] = {}
    for name, value in record.items():
        if isinstance(value, dict):
            found |= {f"{name}/{inner}": number for inner, number in _scalars(value).items()}
        elif (
            isinstance(value, int | float)
            and name not in ("epoch", "time", "first", "since_start")
            and math.isfinite(value)
        ):
            found[name] = float(value)
    return found


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60} h {minutes % 60:02d} min" if minutes >= 60 else f"{minutes} min {rest:02d} s"


def import_wandb() -> Any:
    """Return the library of Weights & Biases, or say how to get it."""
    try:
        import wandb  # noqa: PLC0415
    except ImportError as error:
        raise MissingExtraError(
            "Logging to Weights & Biases needs the extra: pip install 'nearshot[wandb]'."
        ) from error
    return wandb


def _start_wandb(project: str, folder: RunFolder, config: TrainConfig) -> Any:
    wandb = import_wandb()
    place = hashlib.sha256(str(folder.path.resolve()).encode()).hexdigest()[:16]
    return wandb.init(project=project, name=folder.path.name, id=place, config=config.as_dict(), resume="allow")
