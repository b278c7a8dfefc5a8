"""Executors run jobs: on this machine in `local`, on a Ray cluster in `ray`."""

import os
import socket
import sys
import time
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import KW_ONLY, dataclass
from pathlib import Path

from nearshot.errors import NearshotError
from nearshot.io import FileLock
from nearshot.paper.identity import run_id, validation_id
from nearshot.paper.jobs import Job, has_weights
from nearshot.paper.measurement import measure, measure_classes
from nearshot.paper.results import Results, RunResult, result_of, runs_per_gpu
from nearshot.paper.scales import scale_named
from nearshot.runs.network import TrainedRun
from nearshot.text import print_message
from nearshot.training import Hardware, RunFolder, train
from nearshot.training.assembly import open_splits
from nearshot.training.checkpoint import check_same_training

LOCKED = "Another process holds the lock of this run."
STOPPED = "It was stopped and saved a checkpoint; the same command resumes it."
LOG = "log.txt"  # in a run's folder
LOCK = (
    ".job-lock"  # in a run's folder; the trainer's own lock is not held while the run is measured
)
SECONDS_TO_SAVE = 60.0


@dataclass(frozen=True)
class JobTask:
    """What a process needs to do a job. `n_sharing` jobs share a GPU; the result records the command."""

    job: Job
    run_folder: Path
    data_dir: Path | None
    accelerator: str
    n_sharing: int
    command: list[str]


@dataclass(eq=False)
class Executor(ABC):
    """Runs jobs, each in the folder of its identity, and puts their results into a folder.

    A job takes `gpus_per_run` of a GPU, or trains on the CPU if that is 0. If jobs are `small`, one
    core is enough.
    """

    results: Results
    runs: Path
    data_dir: str | Path | None = None
    _: KW_ONLY
    gpus_per_run: float = 1.0
    small: bool = False

    n_at_once = 1
    accelerator = "auto"  # as in `Hardware`

    def __post_init__(self) -> None:
        self.runs, self.n_sharing = Path(self.runs), runs_per_gpu(self.gpus_per_run)

    def prepare(self, jobs: Iterable[Job]) -> None:  # noqa: B027
        """Get ready for jobs before any is started; by default there is nothing to do."""

    @abstractmethod
    def run(self, job: Job) -> str | None:
        """Do a job and return what `attempt` does; called from several threads at once."""

    def stop(self) -> None:  # noqa: B027
        """Ask all jobs to save and stop, wait for them, and end all processes; by default there are none."""

    def log_of(self, job: Job) -> Path:
        """Return the path of a job's log."""
        return self.runs / job.id / LOG

    def task_of(self, job: Job) -> JobTask:
        """Return what another process needs to do a job, with absolute paths."""
        data_dir = None if self.data_dir is None else Path(self.data_dir).absolute()
        return JobTask(
            job,
            (self.runs / job.id).absolute(),
            data_dir,
            self.accelerator,
            self.n_sharing,
            sys.argv,
        )


def attempt(task: JobTask, keep: Callable[[RunResult], None]) -> str | None:
    """Do the job of a task, holding its lock, and keep the result. Return None, or an error message.

    The message is `STOPPED` for a job that was stopped and saved, and `LOCKED` if another process
    holds its lock.
    """
    sys.argv = task.command  # for the result; this process has another command
    task.run_folder.mkdir(parents=True, exist_ok=True)
    lock = FileLock(task.run_folder / LOCK)
    if not lock.acquire():
        return LOCKED
    try:
        print_message(f"on {socket.gethostname()}, process {os.getpid()}")
        keep(do(task))
    except NearshotError as error:
        print_message(error)
        return str(error)
    except Exception as error:  # any error belongs in the log, and the other jobs continue
        traceback.print_exc()
        return f"{type(error).__name__}: {error}"
    finally:
        lock.release()
    return None


def is_locked(run_folder: Path) -> bool:
    """Return whether a process is at the job of a run."""
    lock = FileLock(run_folder / LOCK)
    is_free = not lock.path.is_file() or lock.acquire()
    lock.release()
    return not is_free


def do(task: JobTask) -> RunResult:
    """Train and measure a run, or what is left of it, and return the result."""
    started, run, job, data_dir = (
        time.perf_counter(),
        RunFolder(task.run_folder),
        task.job,
        task.data_dir,
    )
    config, is_new = job.config, not (run.path / "config.json").is_file()
    if not is_new:  # equivalent settings may be written otherwise
        begun = run.read_config()
        is_same = run_id(begun) == run_id(config) and validation_id(begun) == validation_id(config)
        config = begun if is_same else config
    if has_weights(run):
        stores = open_splits(config, data_dir)
        check_same_training(
            run.read("result.json"), config, {name: one.fingerprint for name, one in stores.items()}
        )
    else:
        hardware, again = Hardware(task.accelerator), run.is_finished
        done = train(
            config,
            folder=run.path,
            data_dir=data_dir,
            hardware=hardware,
            resume=not again,
            overwrite=again,
        )
        if not done.finished:
            raise NearshotError(STOPPED)
    device = "cpu" if task.accelerator == "cpu" else None
    # In float32 on a GPU too: fine-tuning needs it, and comparisons need one precision.
    trained = TrainedRun(run.path, data_dir=data_dir, device=device, precision="float32")
    evaluations = measure(
        trained, job.measurements, adapted_episodes=scale_named(job.scale).adapted_episodes
    )
    by_class = measure_classes(
        trained, dict.fromkeys(("val", *(one.split for one in job.measurements)))
    )
    job_seconds = time.perf_counter() - started if is_new else None
    more = {"by_class": by_class, "job_seconds": job_seconds, "n_sharing": task.n_sharing}
    return result_of(run, job.scale, evaluations, more)
