"""Run jobs on a Ray cluster (extra: ray).

A job is a Ray task. If its worker or node is lost, Ray starts it on another node. There it resumes from its checkpoint
if the nodes share the run folder's file system, and starts anew if not. Results come back through Ray, so that only
the machine that asked needs the folder of results.
"""

from __future__ import annotations

import os
import signal
import socket
from contextlib import AbstractContextManager, redirect_stderr, redirect_stdout
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

from nearshot.errors import MissingExtraError, NearshotError
from nearshot.experiments.executors.base import LOG, SECONDS_TO_SAVE, Executor, attempt
from nearshot.experiments.jobs import LOCKED, STOPPED, Job, JobTask
from nearshot.experiments.results import Results, RunResult, runs_per_gpu
from nearshot.training.signals import handling

RETRIES = 10  # of a job whose worker is lost; not for ever, since it may be the job that brings its worker down
LINES_OF_LOG = 100
SECONDS_TO_CONNECT = 10.0


class NodeReport(NamedTuple):
    """What a node returns: the result's content, the message of `attempt`, the end of the log, and the host's name."""

    content: dict[str, Any] | None
    problem: str | None
    log: str
    node: str


class RayCluster(Executor):
    """The Ray cluster of this machine or of RAY_ADDRESS. No cluster is started.

    The arguments are those of `LocalMachine`. The folder of run folders has the same path on all nodes, and so has that
    of prepared datasets, if it is given. This process writes the results.
    """

    def __init__(
        self, results: Results, runs: str | Path, data_dir: str | Path | None = None, *, gpus_per_run: float = 1.0
    ) -> None:
        super().__init__(results, runs, data_dir)
        self.gpus_per_run = gpus_per_run
        self.n_sharing, self.accelerator = runs_per_gpu(gpus_per_run), "cuda" if gpus_per_run else "cpu"
        self.ray = connected_ray()
        if not self._room():
            wanted = f"a CPU and {gpus_per_run:g} GPU" if gpus_per_run else "a CPU"
            raise NearshotError(f"No node of the Ray cluster has {wanted} to give; --gpus-per-run 0 trains on CPUs.")
        # One process per job, so that no GPU memory stays allocated.
        options = {"num_cpus": 1, "num_gpus": gpus_per_run, "max_retries": RETRIES, "max_calls": 1}
        self.task = self.ray.remote(**options)(do_on_node)
        self.running: dict[str, Any] = {}
        self.stopping = False

    @property
    def n_at_once(self) -> int:  # type: ignore[override]
        """How many jobs the nodes that are alive can take."""
        return max(1, self._room())

    def run(self, job: Job) -> str | None:
        """Give a job to Ray and wait for it. One that was stopped by its node's shutdown is started again."""
        report = NodeReport(None, STOPPED, "", "")
        while report.problem == STOPPED and not self.stopping:
            task = self.task.options(name=job.name)  # with a name in Ray's dashboard
            self.running[job.id] = task.remote(self.task_of(job))
            report = self._report(self.running[job.id])
        del self.running[job.id]
        if report.content is not None:
            self.results.put(RunResult(report.content))
        elif report.problem not in (STOPPED, LOCKED):
            self._keep_log(self.log_of(job), report)
        return report.problem

    def stop(self) -> None:
        """Ask all jobs to save and stop, wait for them, and end those that do not."""
        self.stopping = True
        futures = list(self.running.values())
        for future in futures:
            self.ray.cancel(future)
        if futures:
            self.ray.wait(futures, num_returns=len(futures), timeout=SECONDS_TO_SAVE, fetch_local=False)
        for future in list(self.running.values()):
            self.ray.cancel(future, force=True)

    @staticmethod
    def _keep_log(log: Path, report: NodeReport) -> None:
        """Add the end of a failed job's log to the one here, unless its node shares the file system."""
        if not log.is_file() or report.log not in log.read_text(errors="replace"):
            log.parent.mkdir(parents=True, exist_ok=True)
            with log.open("a") as file:
                file.write(f"{report.log}\nThis is the end of the log on {report.node}.\n")

    def _report(self, future: Any) -> NodeReport:
        try:
            report: NodeReport = self.ray.get(future)
        except self.ray.exceptions.TaskCancelledError:
            return NodeReport(None, STOPPED, "", "Ray")
        except self.ray.exceptions.RayError as error:  # the worker was lost too often, or could not start
            text = str(error).strip() or type(error).__name__
            return NodeReport(None, text.splitlines()[-1], text, "Ray")
        return report

    def _room(self) -> int:
        needed = {"CPU": 1.0} | ({"GPU": self.gpus_per_run} if self.gpus_per_run else {})
        nodes = [node["Resources"] for node in self.ray.nodes() if node["Alive"]]
        return sum(min(int(there.get(name, 0) / much) for name, much in needed.items()) for there in nodes)


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


def do_on_node(task: JobTask) -> NodeReport:
    """Do the job of a task, or what is left of it, on the node where Ray started it."""
    log, found = task.run_folder / LOG, list[RunResult]()
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("a", buffering=1) as file, redirect_stdout(file), redirect_stderr(file), _saving_when_cancelled():
        problem = attempt(task, found.append)
    end = "\n".join(log.read_text(errors="replace").splitlines()[-LINES_OF_LOG:])
    return NodeReport(found[0].content if found else None, problem, end, socket.gethostname())


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
