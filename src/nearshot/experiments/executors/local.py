"""Run jobs on this machine: in a process for each GPU or part of one, or for some cores of the CPU."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

import torch

from nearshot.data import open_or_prepare
from nearshot.data.loader import available_memory
from nearshot.errors import InputError
from nearshot.experiments.executors.base import BUSY, SECONDS_TO_SAVE, STOPPED, check_gpus_per_run
from nearshot.experiments.jobs import LOCKED, Job
from nearshot.experiments.results import Results, runs_per_gpu

__all__ = ["LocalMachine", "n_cores"]

MEMORY_PER_JOB = 2e9  # bytes; a small job takes about 1 GB
JOBS_PER_PROCESS = 8  # of small jobs; memory fragments after a while
# glibc would return memory to the system between steps, which costs a small run a quarter of its time.
KEEP_MEMORY = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": "2000000000"}


class LocalMachine:
    """The machine that this runs on.

    Each GPU has one job at a time, or several that share it, each in its own process. On a CPU, jobs run one after the
    other on all cores; small ones run in parallel, one core each, in processes that take several jobs.

    Args:
        results: the folder of results.
        runs: the folder of run folders.
        data_dir: the folder of prepared datasets.
        small: whether one core is enough for a job.
        gpus_per_run: the share of a GPU that a job takes; 0 trains on the CPU.
    """

    def __init__(
        self,
        results: Results,
        runs: Path,
        data_dir: str | Path | None = None,
        *,
        small: bool = False,
        gpus_per_run: float = 1.0,
    ) -> None:
        check_gpus_per_run(gpus_per_run)
        self.results, self.runs, self.data_dir = results, runs, data_dir
        gpus = _visible_gpus()
        own = os.environ | ({"CUDA_VISIBLE_DEVICES": ""} if gpus and not gpus_per_run else {})
        self.uses_gpus = bool(gpus) and gpus_per_run > 0
        self.n_sharing = runs_per_gpu(gpus_per_run) if self.uses_gpus else 1
        if self.uses_gpus:
            self.slots = [_Slot(own | {"CUDA_VISIBLE_DEVICES": gpu}) for _ in range(self.n_sharing) for gpu in gpus]
        elif small:
            threads_per_job = torch.get_num_threads() if "OMP_NUM_THREADS" in os.environ else 1
            n_slots = max(1, min(n_cores() // threads_per_job, int(available_memory() // MEMORY_PER_JOB)))
            threads = {"OMP_NUM_THREADS": str(n_cores() // n_slots)}
            environment = threads | KEEP_MEMORY | own  # the user's settings win
            self.slots = [_Slot(environment, JOBS_PER_PROCESS) for _ in range(n_slots)]
        else:
            self.slots = [_Slot(own)]
        self.n_at_once = len(self.slots)

    def prepare(self, jobs: Iterable[Job]) -> None:
        """Check the jobs' datasets, and prepare those that need no download, before several jobs try to.

        The error lists all that are missing.
        """
        missing = []
        for dataset, side in dict.fromkeys((job.config.dataset, job.config.side) for job in jobs):
            try:
                open_or_prepare(dataset, "train", self.data_dir, side=side)
            except InputError as error:
                missing.append(str(error))
        if len(missing) > 1:
            missing = [f"({number}) {text}" for number, text in enumerate(missing, 1)]
        if missing:
            raise InputError(" ".join(missing))

    def start(self, job: Job) -> None:
        """Start a job on a free GPU or core."""
        folder, log = self.runs / job.id, self.log_of(job)
        folder.mkdir(parents=True, exist_ok=True)
        task = {
            "job": job.as_dict(),
            "run_folder": str(folder),
            "results": str(self.results.folder),
            "data_dir": None if self.data_dir is None else str(self.data_dir),
            "log": str(log),
            "command": sys.argv,
            "n_sharing": self.n_sharing,
        }
        busy = [slot.gpu for slot in self.slots if slot.job is not None]
        free = min((slot for slot in self.slots if slot.job is None), key=lambda slot: busy.count(slot.gpu))
        free.start(job, json.dumps(task), log)

    def ended(self) -> Iterable[tuple[Job, str | None]]:
        """Yield the jobs that ended."""
        for slot in self.slots:
            job, status = slot.job, slot.status()
            if job is not None and status is not None:
                yield job, self._message(job, status)

    def stop(self) -> None:
        """Send SIGTERM, wait until all jobs have saved, and kill those that do not."""
        for slot in self.slots:
            if slot.process is not None:
                slot.process.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + SECONDS_TO_SAVE
        for slot in self.slots:
            slot.close(max(0.1, deadline - time.monotonic()))

    def close(self) -> None:
        """End the processes that were kept for further jobs."""
        for slot in self.slots:
            slot.close()

    def log_of(self, job: Job) -> Path:
        """Return the path of a job's log."""
        return self.runs / job.id / "log.txt"

    def _message(self, job: Job, status: int) -> str | None:
        known = {0: None, STOPPED: "", BUSY: LOCKED}
        if status in known:
            return known[status]
        if status < 0:
            return f"ended by signal {-status}"
        lines = self.log_of(job).read_text(errors="replace").splitlines()
        return next((line for line in reversed(lines) if line.strip()), "the log is empty")


class _Slot:
    """A GPU or some cores, with its process and the job that it runs."""

    def __init__(self, environment: dict[str, str], jobs_per_process: int = 1) -> None:
        self.environment, self.jobs_per_process, self.n_left = environment, jobs_per_process, 0
        self.job: Job | None = None
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def gpu(self) -> str | None:
        """The GPU, if there is one."""
        return self.environment.get("CUDA_VISIBLE_DEVICES")

    def start(self, job: Job, task: str, log: Path) -> None:
        """Give a task to the process; start one if there is none."""
        if self.process is None or self.process.poll() is not None:
            self.close()
            self.process, self.n_left = self._new_process(log), self.jobs_per_process
        self.job, self.n_left = job, self.n_left - 1
        if self.process.stdin is not None:
            with suppress(BrokenPipeError):  # if it died, its status tells
                self.process.stdin.write(f"{task}\n".encode())
                if not self.n_left:
                    self.process.stdin.close()

    def _new_process(self, log: Path) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "nearshot.experiments.executors.worker"]
        with log.open("ab") as file:
            process = subprocess.Popen(  # noqa: S603
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=file,
                bufsize=0,
                env=self.environment,
                start_new_session=True,  # Ctrl-C reaches the runner only, which asks its processes to save
            )
        if process.stdout is not None:
            os.set_blocking(process.stdout.fileno(), False)
        return process

    def status(self) -> int | None:
        """Return the status of the job if it ended."""
        if self.job is None or self.process is None or self.process.stdout is None:
            return None
        answer: bytes | None = self.process.stdout.read(1)  # None while it works, nothing if the process ended
        if answer is None:
            return None
        self.job = None
        status = int(answer) if answer else self.process.wait()
        if not answer or not self.n_left:
            self.close()
        return status

    def close(self, seconds: float = SECONDS_TO_SAVE) -> None:
        """End the process: it has no more jobs. Kill it if it does not end in time."""
        if self.process is None:
            return
        process, self.process, self.job = self.process, None, None
        if process.stdin is not None:
            process.stdin.close()
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if process.stdout is not None:
            process.stdout.close()


def _visible_gpus() -> Sequence[str]:
    """Return the GPUs that this process may use, by the names that its children know them by."""
    numbers = [str(number) for number in range(torch.cuda.device_count())]
    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    return numbers if given is None else given.split(",")[: len(numbers)]


def n_cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
