"""Run jobs on this machine: in a process for each GPU or part of one, or for some cores of the CPU."""

import json
import os
import pickle
import subprocess
import sys
import time
from collections.abc import Iterable

import torch

from nearshot.data import open_or_prepare
from nearshot.data.loader import available_memory
from nearshot.paper.executors.base import SECONDS_TO_SAVE, Executor, attempt
from nearshot.paper.jobs import Job
from nearshot.paper.results import Results

MEMORY_PER_JOB = 2e9  # bytes; a small job takes about 1 GB
# glibc would return memory to the system between steps, which costs a small run a quarter of its
# time.
KEEP_MEMORY = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": "2000000000"}


class LocalMachine(Executor):
    """The machine that this runs on. Each job has its own process.

    Each GPU has one job at a time, or several that share it. On a CPU, jobs run one after the other
    on all cores; small ones run in parallel, one core each.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        numbers = [str(number) for number in range(torch.cuda.device_count())]
        gpus = os.environ.get("CUDA_VISIBLE_DEVICES", ",".join(numbers)).split(",")[: len(numbers)]
        if gpus and self.gpus_per_run:
            self.accelerator = "cuda"
            self.environments = [
                os.environ | {"CUDA_VISIBLE_DEVICES": gpu} for gpu in gpus * self.n_sharing
            ]
        else:
            self.accelerator, self.n_sharing = "cpu", 1
            environment, n_workers = os.environ | {"CUDA_VISIBLE_DEVICES": ""}, 1
            if self.small:
                threads_per_job = torch.get_num_threads() if "OMP_NUM_THREADS" in os.environ else 1
                n_workers = max(
                    1, min(n_cores() // threads_per_job, int(available_memory() // MEMORY_PER_JOB))
                )
                threads = {"OMP_NUM_THREADS": str(n_cores() // n_workers)}
                environment = threads | KEEP_MEMORY | environment  # the user's settings win
            self.environments = [environment] * n_workers
        self.n_at_once = len(self.environments)  # those of running jobs are taken from the list
        self._processes: set[subprocess.Popen[bytes]] = set()
        self._is_stopping = False

    def prepare(self, jobs: Iterable[Job]) -> None:
        """Prepare datasets that need no download, before several jobs try to."""
        for dataset, side in dict.fromkeys((job.config.dataset, job.config.side) for job in jobs):
            open_or_prepare(dataset, "train", self.data_dir, side=side)

    def run(self, job: Job) -> str | None:
        """Do a job in a process of its own, on a free GPU or core."""
        environment, log = self.environments.pop(0), self.log_of(job)
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as file:
            process = subprocess.Popen(  # noqa: S603
                [sys.executable, "-c", f"from {__name__} import work; work()"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=file,
                env=environment,
                start_new_session=True,  # Ctrl-C reaches the runner only
            )
        self._processes.add(process)
        if self._is_stopping:
            process.terminate()
        answer, _ = process.communicate(
            pickle.dumps((self.task_of(job), self.results.folder.absolute()))
        )
        self._processes.remove(process)
        self.environments.append(environment)
        if answer:
            return json.loads(answer)  # type: ignore[no-any-return]
        status = process.returncode
        return f"ended by signal {-status}" if status < 0 else f"ended with status {status}"

    def stop(self) -> None:
        """Send SIGTERM, wait until all jobs have saved, and kill those that do not."""
        self._is_stopping = True
        deadline, processes = time.monotonic() + SECONDS_TO_SAVE, list(self._processes)
        for process in processes:
            process.terminate()
        for process in processes:
            try:
                process.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()


def work() -> None:
    """Do a job in a process of its own: read its pickled task, and answer with its error message as JSON."""
    answer = os.dup(1)
    os.dup2(2, 1)  # what libraries print goes to the log, like messages
    task, results = pickle.load(sys.stdin.buffer)  # noqa: S301 (of the process that started this one)
    problem = attempt(task, Results(results).put)
    os.write(answer, json.dumps(problem).encode())


def n_cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
