"""Running jobs on this machine: a process for each GPU, or for some cores of its CPU."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import IO

import torch

from nearshot.data import open_or_prepare
from nearshot.data.loader import available_memory
from nearshot.errors import InputError, NearshotError
from nearshot.experiments.executors.base import SECONDS_TO_SAVE, check_gpus_per_run
from nearshot.experiments.jobs import BUSY, STOPPED, Job
from nearshot.experiments.locks import ELSEWHERE
from nearshot.experiments.results import Results, runs_per_gpu

__all__ = ["LocalMachine", "n_cores"]

MEMORY_A_JOB = 2e9  # bytes; a small one takes about 1 GB
JOBS_A_PROCESS = 8  # memory that is kept falls to pieces after a while
# A step frees what the next one asks for again. glibc would give it back to the system in between, which costs a
# quarter of a small training's time; elsewhere these mean nothing.
KEEP_MEMORY = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": "2000000000"}


class LocalMachine:
    """The machine that this runs on.

    On each GPU a job at a time, or several where they take a part of it, each in a process of its own, which leaves no
    memory behind. On a CPU one after the other on all cores, likewise; but small ones side by side, a core each, in
    processes that take several.

    Args:
        results: where results are put.
        runs: where run folders are.
        data_dir: where prepared datasets live.
        small: whether the jobs are so small that one core is enough for each.
        gpus_per_run: how much of a GPU a job takes; 0 trains on the CPU.
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
        self.n_sharing = runs_per_gpu(gpus_per_run) if self.uses_gpus else 1  # a GPU
        if self.uses_gpus:
            self.slots = [_Slot(own | {"CUDA_VISIBLE_DEVICES": gpu}) for _ in range(self.n_sharing) for gpu in gpus]
        elif small:
            n_slots = _room_on_the_cpu()
            threads = {"OMP_NUM_THREADS": str(n_cores() // n_slots)}
            environment = threads | KEEP_MEMORY | own  # what the user says goes before
            self.slots = [_Slot(environment, JOBS_A_PROCESS) for _ in range(n_slots)]
        else:
            self.slots = [_Slot(own)]
        self.n_at_once = len(self.slots)

    def prepare(self, jobs: Iterable[Job]) -> None:
        """See that the jobs' datasets are there, and make those that are made here, before several jobs try to.

        All that are missing are named at once.
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

    def start(self, job: Job, run_folder: Path) -> None:
        """Start a job on a free GPU or core."""
        run_folder.mkdir(parents=True, exist_ok=True)
        task = {
            "job": job.as_dict(),
            "run_folder": str(run_folder),
            "results": str(self.results.folder),
            "data_dir": None if self.data_dir is None else str(self.data_dir),
            "log": str(self.log_of(job)),
            "command": sys.argv,
            "n_sharing": self.n_sharing,
        }
        busy = [slot.gpu for slot in self.slots if slot.job is not None]
        free = min((slot for slot in self.slots if slot.job is None), key=lambda slot: busy.count(slot.gpu))
        free.start(job, json.dumps(task), self.log_of(job))

    def ended(self) -> Iterable[tuple[Job, str | None]]:
        """Yield the jobs that have ended."""
        for slot in self.slots:
            job, status = slot.job, slot.status()
            if job is not None and status is not None:
                yield job, None if status == 0 else self._what_went_wrong(job, status)

    def stop(self) -> None:
        """Send SIGTERM, wait for all to save, and kill those that do not."""
        for slot in self.slots:
            slot.ask_to_stop()
        deadline = time.monotonic() + SECONDS_TO_SAVE
        for slot in self.slots:
            slot.wait(max(0.1, deadline - time.monotonic()))

    def close(self) -> None:
        """End the processes that were kept for further jobs."""
        for slot in self.slots:
            slot.wait(SECONDS_TO_SAVE)

    def log_of(self, job: Job) -> Path:
        """Return where a job's log is."""
        return self.runs / job.id / "log.txt"

    def _what_went_wrong(self, job: Job, code: int) -> str:
        if code == BUSY:
            return ELSEWHERE
        lines = self.log_of(job).read_text(errors="replace").splitlines()
        sentence = next((line for line in reversed(lines) if line.strip()), "it left no word")
        return f"ended by signal {-code}" if code < 0 else ("" if code == STOPPED else sentence)


class _Slot:
    """A GPU or some cores, the process that works there, and the job it is at."""

    def __init__(self, environment: dict[str, str], jobs_a_process: int = 1) -> None:
        self.environment, self.jobs_a_process, self.n_left = environment, jobs_a_process, 0
        self.job: Job | None = None
        self.process: subprocess.Popen[str] | None = None
        self.answers: SimpleQueue[int] = SimpleQueue()

    @property
    def gpu(self) -> str | None:
        """The GPU that it is on, if there is one."""
        return self.environment.get("CUDA_VISIBLE_DEVICES")

    def start(self, job: Job, task: str, log: Path) -> None:
        """Hand a task to the process; start one where there is none."""
        if self.process is None or self.process.poll() is not None:
            self.wait(SECONDS_TO_SAVE)
            self.process, self.n_left = self._start_process(log), self.jobs_a_process
        self.job, self.n_left = job, self.n_left - 1
        with suppress(BrokenPipeError):  # if it has died, its status will say so
            self._stdin.write(task + "\n")
            self._stdin.flush()
            if not self.n_left:
                self._stdin.close()

    @property
    def _stdin(self) -> IO[str]:
        if self.process is None or self.process.stdin is None:
            raise NearshotError("There is no process to talk to.")
        return self.process.stdin

    def _start_process(self, log: Path) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "nearshot.experiments.executors.worker"]
        with log.open("ab") as file:
            # A session of its own: Ctrl-C reaches the runner, which asks its processes to save.
            process = subprocess.Popen(  # noqa: S603
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=file,
                text=True,
                env=self.environment,
                start_new_session=True,
            )
        self.answers = SimpleQueue()
        threading.Thread(target=_listen, args=(process, self.answers), daemon=True).start()
        return process

    def status(self) -> int | None:
        """Return how the job has ended; None where it has not."""
        try:
            status = self.answers.get_nowait()
        except Empty:
            return None
        self.job = None
        if not self.n_left or (self.process is not None and self.process.poll() is not None):
            self.wait(SECONDS_TO_SAVE)
        return status

    def ask_to_stop(self) -> None:
        """Ask the process to save and stop."""
        if self.process is not None:
            self.process.send_signal(signal.SIGTERM)

    def wait(self, seconds: float) -> None:
        """Give the process no more jobs, wait for its end, and kill it if that does not come."""
        if self.process is None:
            return
        with suppress(BrokenPipeError):  # it may have ended already
            self._stdin.close()
        process, self.process, self.job = self.process, None, None
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _listen(process: subprocess.Popen[str], answers: SimpleQueue[int]) -> None:
    """Pass the answers of a process on, and at its end how it ended."""
    if process.stdout is not None:
        with process.stdout:
            for line in process.stdout:
                answers.put(int(line))
    answers.put(process.wait())


def _visible_gpus() -> Sequence[str]:
    """Return the GPUs that this process may use, by the names that its children know them by."""
    numbers = [str(number) for number in range(torch.cuda.device_count())]
    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    return numbers if given is None else given.split(",")[: len(numbers)]


def n_cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _room_on_the_cpu() -> int:
    """Return how many small jobs fit at once: as many as there are cores and memory for."""
    threads_a_job = torch.get_num_threads() if "OMP_NUM_THREADS" in os.environ else 1
    return max(1, min(n_cores() // threads_a_job, int(available_memory() // MEMORY_A_JOB)))
