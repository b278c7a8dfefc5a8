"""Run jobs on this machine: in a process for each GPU or part of one, or for some cores of the CPU."""

from __future__ import annotations

import json
import os
import pickle
import queue
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
from nearshot.experiments.jobs import Job, JobTask
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

    def __init__(
        self,
        results: Results,
        runs: str | Path,
        data_dir: str | Path | None = None,
        *,
        small: bool = False,
        gpus_per_run: float = 1.0,
    ) -> None:
        super().__init__(results, runs, data_dir)
        n_sharing = runs_per_gpu(gpus_per_run)
        numbers = [str(number) for number in range(torch.cuda.device_count())]
        gpus = os.environ.get("CUDA_VISIBLE_DEVICES", ",".join(numbers)).split(",")[: len(numbers)]
        own = os.environ | ({"CUDA_VISIBLE_DEVICES": ""} if gpus and not gpus_per_run else {})
        self.accelerator = "cuda" if gpus and gpus_per_run else "cpu"
        if self.accelerator == "cuda":
            self.n_sharing = n_sharing
            self.workers = [_Worker(own | {"CUDA_VISIBLE_DEVICES": gpu}) for _ in range(n_sharing) for gpu in gpus]
        elif small:
            threads_per_job = torch.get_num_threads() if "OMP_NUM_THREADS" in os.environ else 1
            n_workers = max(1, min(n_cores() // threads_per_job, int(available_memory() // MEMORY_PER_JOB)))
            threads = {"OMP_NUM_THREADS": str(n_cores() // n_workers)}
            environment = threads | KEEP_MEMORY | own  # the user's settings win
            self.workers = [_Worker(environment, JOBS_PER_PROCESS) for _ in range(n_workers)]
        else:
            self.workers = [_Worker(own)]
        self.n_at_once = len(self.workers)
        self._free = queue.SimpleQueue[_Worker]()
        for worker in self.workers:
            self._free.put(worker)

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

    def run(self, job: Job) -> str | None:
        """Do a job on a free GPU or core."""
        worker = self._free.get()
        try:
            return worker.run(self.task_of(job), self.results.folder.absolute())
        finally:
            self._free.put(worker)

    def stop(self) -> None:
        """Send SIGTERM, wait until all jobs have saved, and kill those that do not."""
        deadline = time.monotonic() + SECONDS_TO_SAVE
        for worker in self.workers:
            if worker.process is not None:
                worker.process.terminate()
        for worker in self.workers:
            worker.close(max(0.1, deadline - time.monotonic()))


class _Worker:
    """A process on a GPU or some cores, which does some jobs one after the other, and then is replaced."""

    def __init__(self, environment: dict[str, str], jobs_per_process: int = 1) -> None:
        self.environment, self.jobs_per_process, self.n_left = environment, jobs_per_process, 0
        self.process: Any = None

    def run(self, task: JobTask, results: Path) -> str | None:
        """Do a job, put its result into a folder, and return its error message, or that its process died."""
        task.run_folder.mkdir(parents=True, exist_ok=True)
        if not self.n_left:
            command = [sys.executable, "-c", f"from {__name__} import work; work()"]
            pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
            with (task.run_folder / LOG).open("ab") as log:  # in a session of its own: Ctrl-C reaches the runner only
                self.process = subprocess.Popen(  # noqa: S603
                    command, **pipes, stderr=log, env=self.environment, start_new_session=True
                )
            self.n_left = self.jobs_per_process
        self.n_left -= 1
        with suppress(BrokenPipeError):  # if it died, its status tells
            pickle.dump((task, results), self.process.stdin)
            self.process.stdin.flush()
        answer = self.process.stdout.readline()
        if not answer or not self.n_left:
            self.close()
        if answer:
            problem: str | None = json.loads(answer)
            return problem
        status = self.process.returncode
        return f"ended by signal {-status}" if status < 0 else f"ended with status {status}"

    def close(self, seconds: float = SECONDS_TO_SAVE) -> None:
        """End the process: it has no more jobs. Kill it if it does not end in time."""
        self.n_left = 0
        if self.process is not None:
            with suppress(BrokenPipeError):
                self.process.stdin.close()
            try:
                self.process.wait(seconds)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
            self.process.stdout.close()


def work() -> None:
    """Do jobs in a process of its own: read pickled tasks, and answer each with one line of JSON, its error message."""
    answers = os.dup(1)
    with suppress(EOFError):
        while True:
            task, results = pickle.load(sys.stdin.buffer)  # noqa: S301 (of the process that started this one)
            with (task.run_folder / LOG).open("ab") as file:  # also for libraries that write to the descriptors
                os.dup2(file.fileno(), 1)
                os.dup2(file.fileno(), 2)
            problem = attempt(task, Results(results).put)
            sys.stdout.flush()
            os.write(answers, f"{json.dumps(problem and problem[:500])}\n".encode())  # the log has all of it


def n_cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
