"""Executors run jobs: on this machine in `local`, on a Ray cluster in `ray`."""

import os
import socket
import sys
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import KW_ONLY, dataclass, replace
from pathlib import Path

from nearshot.errors import InputError, NearshotError
from nearshot.io import FileLock
from nearshot.paper.identity import run_id, validation_id
from nearshot.paper.jobs import Job, has_weights
from nearshot.paper.measurement import measure
from nearshot.paper.result_file import RunResult, result_of
from nearshot.paper.results import Results
from nearshot.runs import open_run
from nearshot.text import print_message
from nearshot.training import Hardware, RunFolder, TrainConfig, train
from nearshot.training.checkpoint import check_same_training
from nearshot.training.plan import open_splits

LOCKED = "Another process holds the lock of this run."
STOPPED = "It was stopped and saved a checkpoint; the same command resumes it."
# Files in a run's folder. The trainer's own lock is not held while the run is measured.
LOG = "log.txt"
LOCK = ".job-lock"
SECONDS_TO_SAVE = 60.0


@dataclass(frozen=True)
class JobTask:
    """What a process needs to do a job.

    Attributes:
        accelerator: as in `Hardware`.
        n_sharing: how many jobs share a GPU.
        command: what the user called, which the result records.
    """

    job: Job
    run_folder: Path
    data_dir: Path | None
    accelerator: str
    n_sharing: int
    command: list[str]


@dataclass(eq=False)
class Executor(ABC):
    """Runs jobs, each in the folder of its identity, and puts their results into a folder.

    Attributes:
        results: the folder of results.
        runs: the folder of run folders.
        data_dir: the folder of prepared datasets.
        gpus_per_run: the share of a GPU that a job takes; 0 trains on the CPU.
        small: whether one core is enough for a job on the CPU.
        n_at_once: how many jobs run at the same time.
        accelerator: as in `Hardware`.
        n_sharing: how many jobs share a GPU.
    """

    results: Results
    runs: Path
    data_dir: str | Path | None = None
    _: KW_ONLY
    gpus_per_run: float = 1.0
    small: bool = False

    n_at_once = 1
    accelerator = "auto"

    def __post_init__(self) -> None:
        self.runs = Path(self.runs)
        self.n_sharing = runs_per_gpu(self.gpus_per_run)

    def prepare(self, jobs: Iterable[Job]) -> None:  # noqa: B027
        """Get ready for jobs before any is started; by default there is nothing to do."""

    @abstractmethod
    def run(self, job: Job) -> str | None:
        """Do a job and return what `attempt` does; called from several threads at once."""

    def stop(self) -> None:  # noqa: B027
        """Ask all jobs to save and stop, and end all processes; by default there are none."""

    def log_of(self, job: Job) -> Path:
        """Return the path of a job's log."""
        return self.runs / job.id / LOG

    def task_of(self, job: Job) -> JobTask:
        """Return what another process needs to do a job, with absolute paths."""
        data_dir = None if self.data_dir is None else Path(self.data_dir).absolute()
        return JobTask(
            job,
            run_folder=(self.runs / job.id).absolute(),
            data_dir=data_dir,
            accelerator=self.accelerator,
            n_sharing=self.n_sharing,
            command=sys.argv,
        )


def attempt(task: JobTask, keep: Callable[[RunResult], None]) -> str | None:
    """Do a job, holding its lock, and keep the result. Return None, or an error message.

    The message is `STOPPED` for a job that was stopped and saved, and `LOCKED` if another process
    holds its lock.
    """
    # The result records the command that the user gave; this process may have another.
    sys.argv = task.command
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
    """Return whether a process works on the job of a run."""
    lock = FileLock(run_folder / LOCK)
    is_free = not lock.path.is_file() or lock.acquire()
    lock.release()
    return not is_free


def do(task: JobTask) -> RunResult:
    """Train and measure a run, or what is left of it, and return the result."""
    job = task.job
    run = RunFolder(task.run_folder)
    config = _config_to_train(run, job)
    if has_weights(run):
        stores = open_splits(config, task.data_dir)
        result = run.read("result.json")
        # An initial network and a teacher are not needed any more.
        fingerprints = dict(result["fingerprints"])
        for split, store in stores.items():
            fingerprints[split] = store.fingerprint
        check_same_training(result, config, fingerprints)
    else:
        is_finished = run.is_finished
        trained_run = train(
            config,
            folder=run.path,
            data_dir=task.data_dir,
            hardware=Hardware(task.accelerator),
            resume=not is_finished,
            overwrite=is_finished,
        )
        if not trained_run.finished:
            raise NearshotError(STOPPED)
    trained = open_run(
        run.path,
        data_dir=task.data_dir,
        device="cpu" if task.accelerator == "cpu" else None,
        # On a GPU too: fine-tuning needs it, and comparisons need one precision.
        precision="float32",
    )
    evaluations = measure(trained, job.measurements, adapted_episodes=job.size.adapted_episodes)
    return result_of(
        run,
        job.size.name,
        evaluations,
        n_sharing=task.n_sharing,
        teacher=job.config.teacher,
    )


def _config_to_train(run: RunFolder, job: Job) -> TrainConfig:
    """Return the job's settings, with the folder of its teacher.

    If the run was started with settings that are equivalent, return those.
    """
    config = job.config
    if job.after is not None:
        config = replace(config, teacher=str(run.path.parent / job.after))
    if not (run.path / "config.json").is_file():
        return config
    started = run.read_config()
    is_same_run = run_id(started) == run_id(config)
    is_same_validation = validation_id(started) == validation_id(config)
    return started if is_same_run and is_same_validation else config


def runs_per_gpu(gpus_per_run: float) -> int:
    """Return how many runs share a GPU; 1 if they use none.

    >>> runs_per_gpu(0.5), runs_per_gpu(1 / 3), runs_per_gpu(0.4), runs_per_gpu(0)
    (2, 3, 2, 1)
    """
    if gpus_per_run == 0:
        return 1
    if not 0.01 <= gpus_per_run <= 1:
        raise InputError(f"gpus_per_run must be 0, or between 0.01 and 1 (got {gpus_per_run}).")
    # A third is a little less than 1 / 3 as a float.
    return int(1 / gpus_per_run + 1e-6)
