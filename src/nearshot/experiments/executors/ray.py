"""Run jobs on a Ray cluster (extra: ray).

A job is a Ray task. If its worker or node is lost, Ray starts it on another node. There it resumes from its checkpoint
if the nodes share the run folder's file system, and starts anew if not. Results come back through Ray, so that only
the machine that asked needs the folder of results.
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
from nearshot.experiments.executors.base import SECONDS_TO_SAVE, Executor, check_gpus_per_run
from nearshot.experiments.jobs import LOCKED, InterruptedJobError, Job, called, do, run_lock
from nearshot.experiments.results import Results, RunResult, runs_per_gpu
from nearshot.training import Hardware
from nearshot.training.signals import handling

__all__ = ["NodeReport", "RayCluster", "do_on_node"]

RETRIES = 10  # of a job whose worker is lost; not for ever, since it may be the job that brings its worker down
LINES_OF_LOG = 100
SECONDS_TO_CONNECT = 10.0


@dataclass(frozen=True)
class NodeReport:
    """What a node returns.

    Attributes:
        content: the content of the result, or None.
        problem: the error message; "" for a job that was stopped and saved.
        log: the end of the job's log.
        node: the host's name.
    """

    content: dict[str, Any] | None
    problem: str
    log: str
    node: str


class RayCluster(Executor):
    """The Ray cluster of this machine or of RAY_ADDRESS. No cluster is started.

    Args:
        results: the folder of results, which this process writes to.
        runs: the folder of run folders, at the same path on all nodes.
        data_dir: the folder of prepared datasets on the nodes; by default that of each node's environment.
        gpus_per_run: the share of a GPU that a job takes; 0 trains on a CPU.
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
        # One process per job, so that no GPU memory stays allocated.
        options = {"num_cpus": 1, "num_gpus": gpus_per_run, "max_retries": RETRIES, "max_calls": 1}
        self.task = self.ray.remote(**options)(do_on_node)
        self.running: dict[str, tuple[Job, Any]] = {}
        self.stopping = False

    @property
    def n_at_once(self) -> int:
        """How many jobs the nodes that are alive can take."""
        return max(1, self._room())

    def start(self, job: Job) -> None:
        """Give a job to Ray, which starts it when there is room."""
        self._end_of_log(job).unlink(missing_ok=True)
        hardware = Hardware(accelerator="cuda" if self.gpus_per_run else "cpu")
        folder = str((self.runs / job.id).absolute())
        named = self.task.options(name=job.name)  # in Ray's dashboard
        future = named.remote(job.as_dict(), folder, self.data_dir, hardware, tuple(sys.argv), self.n_sharing)
        self.running[job.id] = (job, future)

    def ended(self) -> Iterable[tuple[Job, str | None]]:
        """Yield the jobs that ended. A job that was stopped by its node's shutdown is started again."""
        for key, (job, future) in list(self.running.items()):
            # Not fetched: Ray gives a fetch up when the time is over, so that none would ever end.
            if not self.ray.wait([future], timeout=0, fetch_local=False)[0]:
                continue
            del self.running[key]
            report = self._report(future)
            if report.content is None and report.problem == "" and not self.stopping:
                self.start(job)
            else:
                yield job, self._settle(job, report)

    def stop(self) -> None:
        """Ask all jobs to save and stop, wait for them, and end those that do not."""
        self.stopping = True
        futures = [future for _, future in self.running.values()]
        for future in futures:
            self.ray.cancel(future)
        if futures:
            self.ray.wait(futures, num_returns=len(futures), timeout=SECONDS_TO_SAVE, fetch_local=False)
        list(self.ended())  # keep results that came meanwhile
        for _, future in self.running.values():
            self.ray.cancel(future, force=True)

    def log_of(self, job: Job) -> Path:
        """Return the path of a job's log; of a failed job its end, which is always on this machine."""
        end = self._end_of_log(job)
        return end if end.is_file() else end.with_name("log.txt")

    def _end_of_log(self, job: Job) -> Path:
        return self.runs / job.id / "log-end.txt"

    def _report(self, future: Any) -> NodeReport:
        errors = self.ray.exceptions
        try:
            report: NodeReport = self.ray.get(future)
        except errors.TaskCancelledError:
            return NodeReport(None, "", "", "Ray")
        except errors.RayError as error:  # the worker was lost too often, or could not start
            lines = str(error).strip().splitlines() or [type(error).__name__]
            return NodeReport(None, lines[-1], str(error), "Ray")
        return report

    def _settle(self, job: Job, report: NodeReport) -> str | None:
        """Write the result, or the end of the log; return the error message."""
        problem = report.problem
        if report.content is not None:
            try:
                self.results.put(RunResult(report.content))
            except FileFormatError as error:
                problem = f"{error} Is another version of nearshot installed on {report.node}?"
            else:
                return None
        if problem and problem != LOCKED:
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
    """Return the module `ray`, connected to the running cluster."""
    try:
        import ray  # noqa: PLC0415 (an extra)
    except ImportError as error:
        raise MissingExtraError("Running on a Ray cluster needs the extra: pip install 'nearshot[ray]'.") from error
    if not ray.is_initialized():
        try:
            _check_address(os.environ.get("RAY_ADDRESS", ""))
            # Jobs print to their logs; here it would disturb the table.
            ray.init(address="auto", log_to_driver=False, logging_level="ERROR")
        except (OSError, RuntimeError, ValueError) as error:
            raise NearshotError(
                "There is no Ray cluster to run on. Start one with ray start --head, or set RAY_ADDRESS to HOST:PORT. "
                f"The reason: {str(error).strip().splitlines()[0]}"
            ) from error
    return ray


def _check_address(address: str) -> None:
    """Check that an address answers, since Ray itself would try for minutes."""
    if address == "local":
        raise ValueError("RAY_ADDRESS is 'local', which would start a new one.")
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if port.isdigit():
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=SECONDS_TO_CONNECT).close()
        except OSError as error:
            raise OSError(f"nothing answers at {address} ({error}).") from error


def do_on_node(
    job: dict[str, Any],
    run_folder: str,
    data_dir: str | None,
    hardware: Hardware,
    command: tuple[str, ...],
    n_sharing: int = 1,
) -> NodeReport:
    """Run a job, or what is left of it, on the node where Ray started it.

    Args:
        job: as a dictionary.
        run_folder: the run's folder, which has the log.
        data_dir: the folder of prepared datasets.
        hardware: the hardware to train on.
        command: the command that started the jobs.
        n_sharing: how many jobs share a GPU.
    """
    log, node = Path(run_folder) / "log.txt", socket.gethostname()

    def train() -> RunResult:
        return do(Job.from_dict(job), log.parent, data_dir=data_dir, hardware=hardware, n_sharing=n_sharing)

    try:
        with run_lock(log.parent):  # before anything is written to its log
            return _do_in_log(train, log, command, node)
    except NearshotError as error:  # such as a lock
        return NodeReport(None, str(error), "", node)


def _do_in_log(train: Callable[[], RunResult], log: Path, command: tuple[str, ...], node: str) -> NodeReport:
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
        except Exception as error:  # any error belongs in the log, and the other jobs continue
            traceback.print_exc()
            problem = f"{type(error).__name__}: {error}"
    return NodeReport(content, problem, _end_of(log), node)


def _saving_when_cancelled() -> AbstractContextManager[None]:
    """Turn the interrupt by which Ray cancels a task into SIGTERM, on which a run saves and stops.

    Before and after training there is nothing to save, and it stays an interrupt.
    """
    default = signal.getsignal(signal.SIGTERM)

    def ask(signal_number: int, frame: FrameType | None) -> None:
        if signal.getsignal(signal.SIGTERM) is default:
            raise KeyboardInterrupt
        signal.raise_signal(signal.SIGTERM)

    return handling(ask, signal.SIGINT)


def _end_of(log: Path) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-LINES_OF_LOG:])
