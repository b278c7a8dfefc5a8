"""Run jobs on a Ray cluster (extra: ray).

A job is a Ray task. If its worker or node is lost, Ray starts it on another node. There it resumes
from its checkpoint if the nodes share the run folder's file system, and starts anew if not. Results
come back through Ray, so that only the machine that asked needs the folder of results.
"""

from contextlib import redirect_stderr, redirect_stdout
from typing import Any

from nearshot.errors import MissingExtraError, NearshotError
from nearshot.paper.executors.base import (
    LOCKED,
    LOG,
    SECONDS_TO_SAVE,
    STOPPED,
    Executor,
    JobTask,
    attempt,
)
from nearshot.paper.jobs import Job
from nearshot.paper.results import RunResult

# Of a job whose worker is lost; not for ever, since the job may be what brings its worker down.
RETRIES = 10
LETTERS_OF_LOG = 10_000


class RayCluster(Executor):
    """The Ray cluster of this machine or of RAY_ADDRESS. No cluster is started.

    The folder of run folders has the same path on all nodes, and so has that of prepared datasets,
    if it is given. This process writes the results.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        self.ray = connected_ray()
        self.accelerator = "cuda" if self.gpus_per_run else "cpu"
        if not self._room():
            needed = f"a CPU and {self.gpus_per_run:g} GPU" if self.gpus_per_run else "a CPU"
            raise NearshotError(
                f"No node of the Ray cluster has {needed} to give; gpus_per_run=0 trains on CPUs."
            )
        remote = self.ray.remote(
            num_cpus=1,
            num_gpus=self.gpus_per_run,
            max_retries=RETRIES,
            # One process per job, so that no GPU memory stays allocated.
            max_calls=1,
        )
        self.task = remote(do_on_node)
        self.running: dict[str, Any] = {}
        self.stopping = False

    @property
    def n_at_once(self) -> int:  # type: ignore[override]
        """How many jobs the nodes that are alive can take."""
        return max(1, self._room())

    def _room(self) -> int:
        n_jobs = 0
        for node in self.ray.nodes():
            if not node["Alive"]:
                continue
            resources = node["Resources"]
            n_on_node = int(resources.get("CPU", 0))
            if self.gpus_per_run:
                n_by_gpus = int(resources.get("GPU", 0) / self.gpus_per_run)
                n_on_node = min(n_on_node, n_by_gpus)
            n_jobs += n_on_node
        return n_jobs

    def run(self, job: Job) -> str | None:
        """Give a job to Ray and wait. A job stopped by its node's shutdown is started again."""
        result: RunResult | None = None
        problem: str | None = STOPPED
        text = ""
        while problem == STOPPED and not self.stopping:
            task = self.task.options(name=job.name)  # with a name in Ray's dashboard
            self.running[job.id] = task.remote(self.task_of(job))
            try:
                result, problem, text = self.ray.get(self.running[job.id])
            except self.ray.exceptions.TaskCancelledError:
                problem = STOPPED
            except self.ray.exceptions.RayError as error:
                # The worker was lost too often, or could not start.
                text = str(error).strip() or type(error).__name__
                problem = text.splitlines()[-1]
        self.running.pop(job.id, None)
        log = self.log_of(job)
        if result is not None:
            self.results.put(result)
        elif problem not in (STOPPED, LOCKED) and not log.is_file():
            # The node has another file system.
            log.parent.mkdir(parents=True, exist_ok=True)
            log.write_text(text)
        return problem

    def stop(self) -> None:
        """Ask all jobs to save and stop, wait for them, and end those that do not."""
        self.stopping = True
        futures = list(self.running.values())
        for future in futures:
            self.ray.cancel(future)
        if futures:
            self.ray.wait(
                futures, num_returns=len(futures), timeout=SECONDS_TO_SAVE, fetch_local=False
            )
        for future in list(self.running.values()):
            self.ray.cancel(future, force=True)


def connected_ray() -> Any:
    """Return the module `ray`, connected to the running cluster."""
    try:
        import ray  # noqa: PLC0415 (an extra)
    except ImportError as error:
        raise MissingExtraError(
            "Running on a Ray cluster needs the extra: pip install '.[ray]' in the clone."
        ) from error
    if not ray.is_initialized():
        # Jobs print to their logs; here it would disturb the table.
        try:
            ray.init(address="auto", log_to_driver=False, logging_level="ERROR")
        except (OSError, RuntimeError, ValueError) as error:
            raise NearshotError(
                "There is no Ray cluster to run on. Start one with ray start --head, or set "
                f"RAY_ADDRESS to HOST:PORT. "
                f"The reason: {str(error).strip().splitlines()[0]}"
            ) from error
    return ray


def do_on_node(task: JobTask) -> tuple[RunResult | None, str | None, str]:
    """Do the job of a task, or what is left of it, on the node where Ray started it.

    Return the result, the message of `attempt`, and the end of the log. Ray cancels a task by an
    interrupt, on which a run saves and stops; before and after training there is nothing to save.
    """
    log = task.run_folder / LOG
    results: list[RunResult] = []
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("a", buffering=1) as file, redirect_stdout(file), redirect_stderr(file):
        problem = attempt(task, results.append)
    end_of_log = log.read_text(errors="replace")[-LETTERS_OF_LOG:]
    return (results[0] if results else None), problem, end_of_log
