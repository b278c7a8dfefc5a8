"""Training, from a configuration to a run's folder."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nearshot.evaluation import Accuracy
from nearshot.randomness import kept_randomness
from nearshot.training.assembly import Training
from nearshot.training.checkpoint import CheckpointWriter
from nearshot.training.config import TrainConfig
from nearshot.training.distributed import any_rank, on_first_rank
from nearshot.training.hardware import Hardware
from nearshot.training.logging import Recorder, import_wandb
from nearshot.training.run_folder import RunFolder
from nearshot.training.signals import stop_signal
from nearshot.training.state import Progress
from nearshot.training.step import tuned_convolutions

if TYPE_CHECKING:
    from lightning_fabric import Fabric

__all__ = ["TrainResult", "train"]

# Ranks have to agree on stopping, which means waiting for each other.
STEPS_BETWEEN_STOP_CHECKS = 20


@dataclass(frozen=True)
class TrainResult:
    """What a training gave.

    Attributes:
        folder: the run's folder.
        best: for each of "1-shot centroid" and the like, the accuracy of the best epoch on the validation split.
        best_epochs: for each of them, which epoch it is.
        history: what was logged, an entry an epoch.
        finished: False where the run was asked to stop before its end.
        rank: of the process, among those that trained together; 0 is the one to speak for all.
    """

    folder: Path
    best: dict[str, Accuracy]
    best_epochs: dict[str, int]
    history: list[dict[str, Any]]
    finished: bool
    rank: int = 0


@kept_randomness()
def train(
    config: TrainConfig,
    *,
    folder: str | Path | None = None,
    data_dir: str | Path | None = None,
    hardware: Hardware | None = None,
    fit: Collection[str] = (),
    resume: bool = False,
    overwrite: bool = False,
    checkpoint_seconds: float = 10.0,
    show: bool | None = None,
    wandb: str | None = None,
) -> TrainResult:
    """Train a network, and keep the epochs that are best on the validation split.

    Ctrl-C and SIGTERM raise nothing: the run saves, and the result says that it is not `finished`. So look at that
    before going on to another training. (A second Ctrl-C does not wait. In a thread, neither is noticed.)

    Args:
        config: what to train.
        folder: where the run's files go; by default runs/ and a name made from the configuration.
        data_dir: where prepared datasets live; by default $NEARSHOT_DATA, or ~/.cache/nearshot.
        hardware: on what; by default one GPU if there is one, else the CPU.
        fit: the names of settings that may give way to the data: a smaller batch where there are few images, fewer ways
            where there are few classes. Of "batch_size", "images_per_class", "n_shot", "least_images",
            "validation_way", "validation_shots" and "validation_queries". Each change is said, and the run's files have
            the settings as they were changed; a resumed run keeps them.
        resume: go on from the folder's checkpoint, if it has one.
        overwrite: start again where there is a run already.
        checkpoint_seconds: how old the last checkpoint must be for a new one at the end of an epoch.
        show: whether to show progress; by default a bar on a terminal and a line an epoch elsewhere.
        wandb: a Weights & Biases project to log to as well (needs the extra `wandb`).
    """
    called = time.perf_counter()
    if wandb is not None:
        import_wandb()  # what is missing is said before anything is overwritten
    training = Training(config, hardware or Hardware(), folder, data_dir, fit, resume=resume)
    config, fabric, run, progress = training.config, training.fabric, training.run, training.progress
    with tuned_convolutions(), _owned(run, fabric, resume=resume, overwrite=overwrite) as goes_on:
        exactly = training.go_on() if goes_on else True
        training.describe()
        with (
            _recorder(training, show=show, wandb=wandb, called=called) as recorder,
            CheckpointWriter(run.checkpoint) as writer,
            stop_signal() as stopping,
        ):
            _say_what_is_unusual(recorder, training, resume=resume, goes_on=goes_on, exactly=exactly)
            training.warm_up()
            while progress.epoch <= config.epochs:
                started, n_images = time.perf_counter(), 0
                for number, n_left in training.steps():
                    n_images += training.sampler.batch_size
                    if recorder is not None:
                        recorder.step()
                    if n_left and _is_time_to_stop(stopping, fabric, number):
                        training.save(recorder, writer)
                        return _result(fabric, run, progress, finished=False)
                record = training.record()
                seconds = time.perf_counter() - started
                if progress.epoch % config.validate_every == 0 or progress.epoch == config.epochs:
                    record["validation"] = training.validated()
                if recorder is not None:
                    recorder.epoch(record, seconds=seconds, images_per_second=n_images / seconds)
                progress.next_epoch()
                stops = any_rank(fabric, stopping()) and progress.epoch <= config.epochs
                if stops or progress.epoch > config.epochs or writer.seconds_since_last >= checkpoint_seconds:
                    training.save(recorder, writer)
                if stops:
                    return _result(fabric, run, progress, finished=False)
            writer.wait()
            if recorder is not None:
                progress.history = recorder.history
                run.write("result.json", _summary(config, run, progress, training.fingerprints))
        fabric.barrier()
    return _result(fabric, run, progress, finished=True)


@contextmanager
def _owned(run: RunFolder, fabric: Fabric, *, resume: bool, overwrite: bool) -> Iterator[bool]:
    """Own the run's folder, on the first rank; yields whether it has a checkpoint to go on from."""
    goes_on = on_first_rank(fabric, lambda: run.start(resume=resume, overwrite=overwrite))
    try:
        yield goes_on
    finally:
        run.release()


def _say_what_is_unusual(
    recorder: Recorder | None, training: Training, *, resume: bool, goes_on: bool, exactly: bool
) -> None:
    if recorder is None:
        return
    for change in training.changes:
        recorder.say(change)
    if "val" not in training.stores:
        recorder.say("There is no validation split, so no epoch is the best; the last one is kept.")
    n_query = training.validate.n_query
    if n_query < training.config.validation_queries:
        recorder.say(
            f"Validation classes have few images: episodes have {n_query} queries of each instead of "
            f"{training.config.validation_queries}."
        )
    if resume and not goes_on:
        recorder.say("There is no checkpoint to go on from; this is a new run.")
    if not exactly:
        recorder.say("The checkpoint is of another kind of device; chance is another from here on.")


def _is_time_to_stop(stopping: Callable[[], bool], fabric: Fabric, number: int) -> bool:
    """Whether to stop after a step. Several ranks ask each other only now and then."""
    if fabric.world_size == 1:
        return stopping()
    return number % STEPS_BETWEEN_STOP_CHECKS == 0 and any_rank(fabric, stopping())


def _summary(config: TrainConfig, run: RunFolder, progress: Progress, fingerprints: dict[str, str]) -> dict[str, Any]:
    return {
        "run": run.path.name,
        "config": config.as_dict(),
        "fingerprints": fingerprints,
        "best": progress.best,
        "last": progress.history[-1],
        "environment": run.read("environment.json"),
    }


def _result(fabric: Fabric, run: RunFolder, progress: Progress, *, finished: bool) -> TrainResult:
    best, history = fabric.broadcast((progress.best, progress.history))
    fabric.barrier()  # nobody leaves while another is still listening
    return TrainResult(
        folder=run.path,
        best={name: Accuracy.from_dict(values) for name, values in best.items()},
        best_epochs={name: int(values["epoch"]) for name, values in best.items()},
        history=history,
        finished=finished,
        rank=fabric.global_rank,
    )


@contextmanager
def _recorder(training: Training, *, show: bool | None, wandb: str | None, called: float) -> Iterator[Recorder | None]:
    """Yield what records the run: on the first rank only."""
    if not training.fabric.is_global_zero:
        yield None
        return
    with Recorder(
        training.run, training.config, training.progress, len(training.sampler), show=show, wandb=wandb, called=called
    ) as recorder:
        yield recorder
