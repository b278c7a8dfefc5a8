"""The log of a run: on the terminal, in its folder, in TensorBoard and Weights & Biases."""

import hashlib
import json
import math
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from nearshot.errors import MissingExtraError
from nearshot.io import append_line, atomic_write, naming_a_full_disk
from nearshot.training.checkpoint import RunState
from nearshot.training.config import TrainConfig
from nearshot.training.run_folder import RunFolder

SLOW = 3600.0  # seconds
NO_CURVES = ("epoch", "time", "first", "since_start", "validation")


class RunLog:
    """Writes and shows one line per epoch.

    The files of a resumed run first shrink to the epochs of its checkpoint.

    Only the first of several ranks `writes` files. `progress` None shows a bar on a terminal and
    plain lines elsewhere; `wandb_project` is a Weights & Biases project to log to as well; `called`
    is when `train` was called, by `time.perf_counter`, by default now.
    """

    def __init__(
        self,
        folder: RunFolder,
        config: TrainConfig,
        state: RunState,
        steps_per_epoch: int,
        *,
        writes: bool = True,
        progress: bool | None = False,
        wandb_project: str | None = None,
        called: float | None = None,
    ) -> None:
        self.folder = folder
        self.state = state
        self.n_epochs = config.epochs
        self.n_steps = config.epochs * steps_per_epoch
        self.first_step = state.step
        self.chance = 100 / config.validation_n_way
        self.started = time.perf_counter()
        self.called: float | None = self.started if called is None else called
        self.writes = writes
        self.events = None
        self.wandb = None
        n_done = len(state.history)
        if writes:
            _write_lines(folder.metrics, state.history)
            _write_lines(folder.timing, _timings(folder, n_done))
            with suppress(ImportError):
                # It takes a second to import.
                from torch.utils.tensorboard import SummaryWriter  # noqa: PLC0415

                # Curves of a resumed run end before its first epoch.
                self.events = SummaryWriter(str(folder.path), purge_step=n_done + 1)
        if wandb_project is not None:
            run_id = hashlib.sha256(str(folder.path.resolve()).encode()).hexdigest()[:16]
            self.wandb = import_wandb().init(
                project=wandb_project,
                name=folder.path.name,
                id=run_id,
                config=config.as_dict(),
                resume="allow",
            )
        console = Console(
            stderr=True, markup=False, highlight=False, soft_wrap=True, quiet=progress is False
        )
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
        )
        has_bar = progress is not False and sys.stderr.isatty()
        self.bar = Progress(*columns, console=console, transient=True, disable=not has_bar)
        first = f"epoch {n_done + 1}/{self.n_epochs}"
        self.task = self.bar.add_task(first, total=self.n_steps, completed=self.first_step)

    def __enter__(self) -> Self:
        self.bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.bar.stop()
        if self.wandb is not None:
            self.wandb.finish(exit_code=0 if kind is None else 1)
        if self.events is not None:
            with naming_a_full_disk(self.folder.path):
                self.events.close()

    def step(self) -> None:
        """Advance the bar."""
        self.bar.advance(self.task)

    def epoch(self, record: dict[str, Any], *, seconds: float, images_per_second: float) -> None:
        """Log an epoch."""
        if not self.writes:
            return
        now = time.time()
        timing = {
            "epoch": record["epoch"],
            "time": now,
            "seconds": seconds,
            "images_per_second": images_per_second,
        }
        if self.called is not None:
            # The first epoch of this process, whose start-up is part of the time.
            timing |= {"first": True, "since_start": time.perf_counter() - self.called}
            self.called = None
        append_line(self.folder.metrics, json.dumps(record) + "\n")
        append_line(self.folder.timing, json.dumps(timing) + "\n")
        self._draw_curves(record | timing, now)
        self._show(record, images_per_second)

    def _draw_curves(self, record: dict[str, Any], now: float) -> None:
        """Add the numbers of an epoch to TensorBoard and Weights & Biases."""
        scalars = {}
        for name, value in record.items():
            if name not in NO_CURVES and math.isfinite(value):
                scalars[name] = float(value)
        for name, accuracy in record.get("validation", {}).items():
            scalars[f"validation/{name}"] = float(accuracy)
        if self.events is not None:
            with naming_a_full_disk(self.folder.path):
                for name, value in scalars.items():
                    self.events.add_scalar(name, value, record["epoch"], walltime=now)
                self.events.flush()
        if self.wandb is not None:
            self.wandb.log(scalars, step=record["epoch"])

    def _show(self, record: dict[str, Any], images_per_second: float) -> None:
        """Show an epoch on the terminal."""
        epoch = record["epoch"]
        speed = f"loss {record['loss']:.4f}, {images_per_second:,.0f} images/s"
        following = min(epoch + 1, self.n_epochs)
        self.bar.update(self.task, description=f"epoch {following}/{self.n_epochs}, {speed}")
        time_left = _duration(self._seconds_left())
        line = f"epoch {epoch}/{self.n_epochs}: {speed}, {time_left} left"
        unpaired = record.get("anchors_without_positive", 0)
        if unpaired:
            line += f", {unpaired:.1f} anchors per batch without a positive"
        accuracies = self.described(record.get("validation", {}))
        if accuracies:
            line += f"; {accuracies}"
        self.say(line)

    def warn_if_slow(self) -> None:
        """Say how long the run is going to take, if it is long."""
        if self._seconds_left() > SLOW:
            self.say(
                f"At this speed the run takes {_duration(self._seconds_left())}. A GPU is much "
                "faster."
            )

    def _seconds_left(self) -> float:
        """Return the time of the remaining steps at the speed so far, with everything included."""
        n_taken = max(1, self.state.step - self.first_step)
        return (time.perf_counter() - self.started) / n_taken * (self.n_steps - self.state.step)

    def say(self, *messages: str) -> None:
        """Show messages."""
        for message in messages:
            self.bar.console.print(message)

    def described(self, validation: dict[str, float]) -> str:
        """Return validation accuracies as text, with that of guessing; empty if there are none."""
        accuracies = ", ".join(f"{name} {value:.2f} %" for name, value in validation.items())
        return f"validation {accuracies} (chance {self.chance:.4g} %)" if accuracies else ""


def _duration(seconds: float) -> str:
    minutes, remainder = divmod(round(seconds), 60)
    if minutes >= 48 * 60:
        return f"{minutes // (24 * 60)} days"
    return (
        f"{minutes // 60} h {minutes % 60:02d} min"
        if minutes >= 60
        else f"{minutes} min {remainder:02d} s"
    )


def import_wandb() -> Any:
    """Return the Weights & Biases library, or raise an error that says how to install it."""
    try:
        import wandb  # noqa: PLC0415
    except ImportError as error:
        raise MissingExtraError(
            "wandb needs the extra: pip install '.[wandb]' in the clone."
        ) from error
    return wandb


def _timings(folder: RunFolder, n_epochs: int) -> list[dict[str, Any]]:
    """Return the timings of the first epochs; if an epoch was rerun, its latest."""
    if not folder.timing.is_file():
        return []
    by_epoch = {}
    for line in folder.timing.read_text().splitlines():
        try:
            timing = json.loads(line)
        except ValueError:
            continue  # the end of a line that a killed process was writing
        if timing["epoch"] <= n_epochs:
            by_epoch[int(timing["epoch"])] = timing
    return list(by_epoch.values())


def _write_lines(path: Path, records: list[dict[str, Any]]) -> None:
    with atomic_write(path) as file:
        file.write("".join(json.dumps(record) + "\n" for record in records).encode())
