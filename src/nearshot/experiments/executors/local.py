"""Run jobs on this machine: in a process for each GPU or part of one, or for some cores of the CPU."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from nearshot.data import open_or_prepare
from nearshot.data.loader import available_memory
from nearshot.errors import InputError
from nearshot.experiments.executors.base import LOG, SECONDS_TO_SAVE, Executor, attempt
from nearshot.experiments.jobs import Job
from nearshot.experiments.results import Results, runs_per_gpu

MEMORY_PER_JOB = 2e9  # bytes; a small job takes about 1 GB
JOBS_PER_PROCESS = 8  # of small jobs; memory fragments after a while
# glibc would return memory to the system between steps, which costs a small run a quarter of its time.
KEEP_MEMORY = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": "2000000000"}


class LocalMachine(Executor):
    """The machine that this runs on.

    Each GPU has one job at a time, or several that share it, each in its own process. On a CPU, jobs run one after the
    other on all cores; small ones run in parallel, one core each, in processes that take several jobs.

    A job takes `gpus_per_run` of a GPU, or trains on the CPU if that is 0. If it is `small`, one core is enough.
    """

    n_at_once = 1

    def __init__(
        self,
        results: Results,
        runs: Path,
        data_dir: str | Path | None = None,
        *,
        small: bool = False,
        gpus_per_run: float = 1.0,
    ) -> None:
        self.results, self.runs, self.data_dir, n_sharing = results, runs, data_dir, runs_per_gpu(gpus_per_run)
        numbers = [str(number) for number in range(torch.cuda.device_count())]
        gpus = os.environ.get("CUDA_VISIBLE_DEVICES", ",".join(numbers)).split(",")[: len(numbers)]
        own = os.environ | ({"CUDA_VISIBLE_DEVICES": ""} if gpus and not gpus_per_run else {})
        self.accelerator = "cuda" if gpus and gpus_per_run else "cpu"
        if self.accelerator == "cuda":
            self.n_sharing = n_sharing
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
        """Prepare datasets that need no download, before several jobs try to; the error lists all that are missing."""
        missing = []
        for dataset, side in dict.fromkeys((job.config.dataset, job.config.side) for job in jobs):
            try:
                open_or_prepare(dataset, "train", self.data_dir, side=side)
            except InputError as error:
                missing.append(str(error))
        if missing:
            raise InputError(" ".join(missing))

    def start(self, job: Job) -> None:
        """Start a job on a free GPU or core."""
        log = self.log_of(job)
        log.parent.mkdir(parents=True, exist_ok=True)
        busy = [slot.gpu for slot in self.slots if slot.job is not None]
        free = min((slot for slot in self.slots if slot.job is None), key=lambda slot: busy.count(slot.gpu))
        free.start(job, json.dumps(self.task_of(job)), log)

    def ended(self) -> Iterable[tuple[Job, str | None]]:
        """Yield the jobs that ended."""
        for slot in self.slots:
            yield from slot.ended()

    def stop(self) -> None:
        """Send SIGTERM, wait until all jobs have saved, and kill those that do not."""
        for slot in self.slots:
            if slot.process is not None:
                slot.process.send_signal(signal.SIGTERM)
        self.close()

    def close(self) -> None:
        """End the processes that were kept for further jobs."""
        deadline = time.monotonic() + SECONDS_TO_SAVE
        for slot in self.slots:
            slot.close(max(0.1, deadline - time.monotonic()))


class _Slot:
    """A GPU or some cores, with its process and the job that it runs."""

    def __init__(self, environment: dict[str, str], jobs_per_process: int = 1) -> None:
        self.environment, self.jobs_per_process, self.n_left = environment, jobs_per_process, 0
        self.gpu = environment.get("CUDA_VISIBLE_DEVICES")
        self.job: Job | None = None
        self.process: Any = None

    def start(self, job: Job, task: str, log: Path) -> None:
        if self.process is None:
            command = [sys.executable, "-c", f"from {__name__} import work; work()"]
            pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "bufsize": 0}
            with log.open("ab") as file:  # in a session of its own: Ctrl-C reaches the runner only
                self.process = subprocess.Popen(  # noqa: S603
                    command, **pipes, stderr=file, env=self.environment, start_new_session=True
                )
            os.set_blocking(self.process.stdout.fileno(), False)
            self.n_left = self.jobs_per_process
        self.job, self.n_left = job, self.n_left - 1
        with suppress(BrokenPipeError):  # if it died, its status tells
            self.process.stdin.write(f"{task}\n".encode())
        if not self.n_left:
            self.process.stdin.close()

    def ended(self) -> Iterable[tuple[Job, str | None]]:
        if self.job is None:
            return
        answer = self.process.stdout.read(10_000)  # None while it works, nothing if the process ended
        if answer is None:
            return
        if answer:
            problem = json.loads(answer)
        else:
            status = self.process.wait()
            problem = f"ended by signal {-status}" if status < 0 else f"ended with status {status}"
        job, self.job = self.job, None
        if not answer or not self.n_left:
            self.close(SECONDS_TO_SAVE)
        yield job, problem

    def close(self, seconds: float) -> None:
        """End the process: it has no more jobs. Kill it if it does not end in time."""
        if self.process is None:
            return
        process, self.process, self.job = self.process, None, None
        process.stdin.close()
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()


def work() -> None:
    """Run jobs in a process of its own: read one line of JSON per job, and answer with one line, its error message."""
    answers = os.dup(1)
    for line in sys.stdin:
        task = json.loads(line)
        with Path(task["run_folder"], LOG).open("ab") as file:  # also for libraries that write to the descriptors
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        problem = attempt(task, Results(task["results"]).put)
        sys.stdout.flush()
        os.write(answers, f"{json.dumps(problem and problem[:500])}\n".encode())  # short enough to be written at once


def n_cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
