"""Running jobs on a Ray cluster (extra: ray).

A job is a Ray task. Where its worker or its node is lost, Ray starts it again on another; there it goes on from its
checkpoint, if the run's folder is on a file system that the nodes share, and anew if not. The result comes back through
Ray, so that only the machine that asked needs the results' folder.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import traceback
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from nearshot.errors import FileFormatError, MissingExtraError, NearshotError
from nearshot.experiments.executors.base import SECONDS_TO_SAVE, check_gpus_per_run
from nearshot.experiments.jobs import InterruptedJobError, Job, called, do
from nearshot.experiments.locks import ELSEWHERE, owning
from nearshot.experiments.results import Results, RunResult, runs_per_gpu
from nearshot.training import Hardware
from nearshot.training.signals import handling

__all__ = ["RayCluster", "Report", "do_on_node"]

RETRIES = 10  # of a job whose worker is lost; not for ever, since it may be the job that brings its worker down
LINES_OF_LOG = 100
SECONDS_TO_CONNECT = 10.0


@dataclass(frozen=True)
class Report:
    """What comes back from a node.

    Attributes:
        content: the result's, or None.
        problem: what went wrong; "" for a job that was asked to stop and has saved what it had.
        log: the end of the job's log.
        node: where it ran.
    """

    content: dict[str, Any] | None
    problem: str
    log: str
    node: str


class RayCluster:
    """The Ray cluster that this machine belongs to, or that RAY_ADDRESS names. It has to be there; none is started.

    Args:
        results: where results are put, by this process.
        runs: where run folders are, on this machine and by the same path on the nodes.
        data_dir: where prepared datasets live on the nodes; by default what each node's environment says.
        gpus_per_run: how much of a GPU a job takes; 0 trains on a CPU.
    """

    def __init__(
        self, results: Results, runs: Path, data_dir: str | Path | None = None, *, gpus_per_run: float = 1.0
    ) -> None:
        check_gpus_per_run(gpus_per_run)
        self.results, self.runs, self.gpus_per_run = results, runs, gpus_per_run
        self.n_sharing = runs_per_gpu(gpus_per_run)
        self.data_dir = None if data_dir is None else str(Path(data_dir).absolute())
        self.ray = connected_ray()
        self._check_room()
        # A process of its own for every job, as on one machine: it leaves no memory behind on the GPU.
        options = {"num_cpus": 1, "num_gpus": gpus_per_run, "max_retries": RETRIES, "max_calls": 1}
        self.task = self.ray.remote(**options)(do_on_node)
        self.running: dict[str, tuple[Job, Path, Any]] = {}
        self.stopping = False

    @property
    def n_at_once(self) -> int:
        """How many jobs the nodes can take that are alive now."""
        return max(1, self._room())

    def start(self, job: Job, run_folder: Path) -> None:
        """Hand a job to Ray, which starts it where there is room."""
        self._end_of_log(job).unlink(missing_ok=True)
        hardware = Hardware(accelerator="cuda" if self.gpus_per_run else "cpu")
        folder = str(run_folder.absolute())
        named = self.task.options(name=job.name)  # in Ray's dashboard
        future = named.remote(job.as_dict(), folder, self.data_dir, hardware, tuple(sys.argv), self.n_sharing)
        self.running[job.id] = (job, run_folder, future)

    def ended(self) -> Iterable[tuple[Job, str | None]]:
        """Yield the jobs that have ended. One that saved and stopped unasked, as its node was shut down, goes on."""
        for key, (job, run_folder, future) in list(self.running.items()):
            # Not to be fetched here: a fetch is given up when the time is over, so that none would ever end.
            if not self.ray.wait([future], timeout=0, fetch_local=False)[0]:
                continue
            del self.running[key]
            report = self._report(future)
            if report.content is None and report.problem == "" and not self.stopping:
                self.start(job, run_folder)
            else:
                yield job, self._settle(job, report)

    def stop(self) -> None:
        """Ask all jobs to save and stop, wait for them, and end those that do not."""
        self.stopping = True
        futures = [future for _, _, future in self.running.values()]
        for future in futures:
            self.ray.cancel(future)
        if futures:
            self.ray.wait(futures, num_returns=len(futures), timeout=SECONDS_TO_SAVE, fetch_local=False)
        list(self.ended())  # a result that came meanwhile is kept
        for _, _, future in self.running.values():
            self.ray.cancel(future, force=True)

    def close(self) -> None:
        """Nothing is kept: Ray's workers are its own."""

    def log_of(self, job: Job) -> Path:
        """Return where a job's log is: of a failed one the end, which is on this machine in any case."""
        end = self._end_of_log(job)
        return end if end.is_file() else end.with_name("log.txt")

    def _end_of_log(self, job: Job) -> Path:
        return self.runs / job.id / "log-end.txt"

    def _report(self, future: Any) -> Report:
        errors = self.ray.exceptions
        try:
            report: Report = self.ray.get(future)
        except errors.TaskCancelledError:
            return Report(None, "", "", "Ray")
        except errors.RayError as error:  # the worker was lost too often, or could not even begin
            lines = str(error).strip().splitlines() or [type(error).__name__]
            return Report(None, lines[-1], str(error), "Ray")
        return report

    def _settle(self, job: Job, report: Report) -> str | None:
        """Put a result where it belongs, or keep the end of the log; return what went wrong."""
        problem = report.problem
        if report.content is not None:
            try:
                self.results.put(RunResult(report.content))
            except FileFormatError as error:
                problem = f"{error} Is another version of nearshot installed on {report.node}?"
            else:
                return None
        if problem and problem != ELSEWHERE:
            self._end_of_log(job).parent.mkdir(parents=True, exist_ok=True)
            self._end_of_log(job).write_text(f"{report.log}\nThis is the end of the log on {report.node}.\n")
        return problem

    def _room(self) -> int:
        needed = {"CPU": 1.0} | ({"GPU": self.gpus_per_run} if self.gpus_per_run else {})
        nodes = [node["Resources"] for node in self.ray.nodes() if node["Alive"]]
        return sum(min(int(there.get(name, 0) / much) for name, much in needed.items()) for there in nodes)

    def _check_room(self) -> None:
        if not self._room():
            wanted = f"a CPU and {self.gpus_per_run:g} GPU" if self.gpus_per_run else "a CPU"
            hint = "; --gpus-per-run 0 trains on CPUs" if self.gpus_per_run else ""
            raise NearshotError(f"No node of the Ray cluster has {wanted} to give{hint}.")


def connected_ray() -> Any:
    """Return the module `ray`, connected to the cluster that there is."""
    try:
        import ray  # noqa: PLC0415 (an extra)
    except ImportError as error:
        raise MissingExtraError("Running on a Ray cluster needs the extra: pip install 'nearshot[ray]'.") from error
    if not ray.is_initialized():
        try:
            _check_address(os.environ.get("RAY_ADDRESS", ""))
            # What the jobs print is in their logs; here it would run through the table.
            ray.init(address="auto", log_to_driver=False, logging_level="ERROR")
        except (OSError, RuntimeError, ValueError) as error:
            raise NearshotError(
                "There is no Ray cluster to run on. Start one with ray start --head, or set RAY_ADDRESS to HOST:PORT. "
                f"The reason: {str(error).strip().splitlines()[0]}"
            ) from error
    return ray


def _check_address(address: str) -> None:
    """Look whether somebody listens at an address, since Ray itself would try for minutes."""
    if address == "local":
        raise ValueError("RAY_ADDRESS is 'local', which would start a new one.")
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if port.isdigit():
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=SECONDS_TO_CONNECT).close()
        except OSError as error:
            raise OSError(f"nobody answers at {address} ({error}).") from error


def do_on_node(
    job: dict[str, Any],
    run_folder: str,
    data_dir: str | None,
    hardware: Hardware,
    command: tuple[str, ...],
    n_sharing: int = 1,
) -> Report:
    """Do a job where Ray has started it, or what is left of it, and report.

    Args:
        job: as a dictionary.
        run_folder: the run's, with the log in it.
        data_dir: where prepared datasets live.
        hardware: on what to train.
        command: by which the jobs were asked for.
        n_sharing: how many jobs share a GPU.
    """
    log, node = Path(run_folder) / "log.txt", socket.gethostname()

    def train() -> RunResult:
        return do(Job.from_dict(job), log.parent, data_dir=data_dir, hardware=hardware, n_sharing=n_sharing)

    try:
        with owning(log.parent):  # before a word is said in its log
            return _do_in_log(train, log, command, node)
    except NearshotError as error:  # such as that another process is at it
        return Report(None, str(error), "", node)


def _do_in_log(train: Callable[[], RunResult], log: Path, command: tuple[str, ...], node: str) -> Report:
    content, problem = None, ""
    with log.open("a", buffering=1) as file, redirect_stdout(file), redirect_stderr(file):
        sys.stderr.write(f"on {node}, process {os.getpid()}\n")
        try:
            with called(command), _saving_when_cancelled():
                content = train().content
        except InterruptedJobError as stopped:
            sys.stderr.write(f"{stopped}\n")
        except NearshotError as error:
            sys.stderr.write(f"nearshot: {error}\n")
            problem = str(error)
        except Exception as error:  # whatever it is, it belongs in the log, and the other jobs go on
            traceback.print_exc()
            problem = f"{type(error).__name__}: {error}"
    return Report(content, problem, _end_of(log), node)


def _saving_when_cancelled() -> AbstractContextManager[None]:
    """Let Ray's way to cancel a task, an interrupt, be the way to ask a training to save and stop, SIGTERM.

    Where no training is listening, before and after it, there is nothing to save, and it is an interrupt.
    """
    deaf = signal.getsignal(signal.SIGTERM)

    def ask(signal_number: int, frame: FrameType | None) -> None:
        if signal.getsignal(signal.SIGTERM) is deaf:
            raise KeyboardInterrupt
        signal.raise_signal(signal.SIGTERM)

    return handling(ask, signal.SIGINT)


def _end_of(log: Path) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-LINES_OF_LOG:])
