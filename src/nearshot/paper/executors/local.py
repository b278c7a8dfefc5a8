"""Run jobs on this machine: a process for each GPU or part of one, or for some CPU cores."""

import json
import os
import pickle
import subprocess
import sys
import time
from collections.abc import Iterable

import torch

from nearshot.allocator import KEPT_MEMORY
from nearshot.data import open_or_prepare
from nearshot.data.loader import available_memory
from nearshot.paper.executors.base import SECONDS_TO_SAVE, Executor, attempt
from nearshot.paper.jobs import Job
from nearshot.paper.results import Results

# Bytes; a small job takes about 1 GB.
MEMORY_PER_JOB = 2e9


class LocalMachine(Executor):
    """The machine that this runs on. Each job has its own process.

    Each GPU has one job at a time, or several that share it. On a CPU, jobs run one after the other
    on all cores; small ones run in parallel, one core each.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        gpus = visible_gpus() if self.gpus_per_run else []
        if gpus:
            self.accelerator = "cuda"
            self.environments = [
                os.environ | {"CUDA_VISIBLE_DEVICES": gpu} for gpu in gpus * self.n_sharing
            ]
        else:
            self.accelerator = "cpu"
            self.n_sharing = 1
            self.environments = cpu_environments(small=self.small)
        # A running job takes one from the list, and puts it back.
        self.n_at_once = len(self.environments)
        self._processes: set[subprocess.Popen[bytes]] = set()
        self._is_stopping = False

    def prepare(self, jobs: Iterable[Job]) -> None:
        """Prepare datasets that need no download, before several jobs try to."""
        for dataset, side in dict.fromkeys((job.config.dataset, job.config.side) for job in jobs):
            open_or_prepare(dataset, "train", self.data_dir, side=side)

    def run(self, job: Job) -> str | None:
        """Do a job in a process of its own, on a free GPU or core."""
        environment = self.environments.pop(0)
        log = self.log_of(job)
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
        deadline = time.monotonic() + SECONDS_TO_SAVE
        processes = list(self._processes)
        for process in processes:
            process.terminate()
        for process in processes:
            try:
                process.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()


def work() -> None:
    """Do the job of a pickled task on standard input; answer with its error message as JSON."""
    answer = os.dup(1)
    # What libraries print goes to the log, like messages.
    os.dup2(2, 1)
    # It comes from the process that started this one.
    task, results = pickle.load(sys.stdin.buffer)  # noqa: S301
    problem = attempt(task, Results(results).put)
    os.write(answer, json.dumps(problem).encode())


def visible_gpus() -> list[str]:
    """Return the GPUs of this machine as values of CUDA_VISIBLE_DEVICES."""
    n_gpus = torch.cuda.device_count()
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return [str(number) for number in range(n_gpus)]
    return visible.split(",")[:n_gpus]


def cpu_environments(*, small: bool) -> list[dict[str, str]]:
    """Return an environment for each job that runs on the CPU at the same time.

    One job takes all cores. If jobs are small, each takes one core, or OMP_NUM_THREADS of them.
    """
    without_gpus = os.environ | {"CUDA_VISIBLE_DEVICES": ""}
    if not small:
        return [without_gpus]
    threads_per_job = torch.get_num_threads() if "OMP_NUM_THREADS" in os.environ else 1
    n_by_cores = n_cores() // threads_per_job
    n_by_memory = int(available_memory() // MEMORY_PER_JOB)
    n_jobs = max(1, min(n_by_cores, n_by_memory))
    defaults = KEPT_MEMORY | {"OMP_NUM_THREADS": str(n_cores() // n_jobs)}
    return [defaults | without_gpus] * n_jobs


def n_cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
