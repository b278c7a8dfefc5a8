"""Jobs on a Ray cluster: two real nodes on this machine, one of which is killed while it works."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.helpers.tiny import prepare_tiny
from tests.helpers.tiny_jobs import QUIET, TINY_SIZE, ThisProcess, tiny_job

from nearshot.paper import Results
from nearshot.paper.executors.ray import RayCluster
from nearshot.paper.jobs import Job
from nearshot.paper.runner import Outcome, run_jobs

pytestmark = pytest.mark.slow

EPOCHS = 150  # long enough to be interrupted and killed


class Watched(RayCluster):
    """A cluster on which something happens once, as soon as it can."""

    def __init__(
        self,
        results: Results,
        runs: Path,
        data_dir: Path,
        *,
        happens: Callable[[], bool] = lambda: True,
        gpus_per_run: float = 0,
    ) -> None:
        super().__init__(results, runs, data_dir, gpus_per_run=gpus_per_run)
        self.happens = happens
        self.happened = False
        self.started: list[str] = []

    def run(self, job: Job) -> str | None:
        self.started.append(job.id)
        return super().run(job)

    def log_of(self, job: Job) -> Path:
        """The runner shows the end of each log again and again."""
        if threading.current_thread() is threading.main_thread():
            self.happened = self.happened or self.happens()
        return super().log_of(job)


class TwoNodes:
    """A cluster whose second node can be killed, and the folders of some jobs."""

    def __init__(self, cluster: Any, second: Any, folder: Path) -> None:
        self.cluster = cluster
        self.second = second
        self.data = folder / "data"
        self.runs = folder / "runs"
        self.results = Results(folder / "results", TINY_SIZE)
        prepare_tiny(self.data)

    def run(
        self, jobs: list[Job], happens: Callable[[], bool] = lambda: True
    ) -> tuple[Outcome, Watched]:
        executor = Watched(self.results, self.runs, self.data, happens=happens)
        return run_jobs(jobs, executor, console=QUIET), executor

    def log(self, job: Job) -> list[str]:
        file = self.runs / job.id / "log.txt"
        return file.read_text().splitlines() if file.is_file() else []

    def on_second(self, job: Job) -> bool:
        """Whether a job's last process is the second node's."""
        processes = [line.split()[-1] for line in self.log(job) if line.startswith("nearshot: on ")]
        raylet = str(self.second.all_processes["raylet"][0].process.pid)
        parent = ["ps", "-o", "ppid=", "-p", processes[-1] if processes else "0"]
        return (
            subprocess.run(parent, check=False, capture_output=True, text=True).stdout.strip()
            == raylet
        )


def interrupt() -> bool:
    raise KeyboardInterrupt


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TwoNodes]:
    ray = pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("PYTHONPATH", ":".join(sys.path))  # the nodes have what we have
        cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "num_gpus": 1})
        environment.setenv("RAY_ADDRESS", cluster.address)
        try:
            second = cluster.add_node(num_cpus=1, num_gpus=0)
            yield TwoNodes(cluster, second, tmp_path_factory.mktemp("ray"))
        finally:
            ray.shutdown()
            cluster.shutdown()


def test_as_many_jobs_at_once_as_nodes_have_room_for(nodes: TwoNodes) -> None:
    for gpus_per_run, n_at_once in ((0, 2), (1, 1), (0.25, 1)):  # the GPU's node has CPUs for one
        executor = Watched(nodes.results, nodes.runs, nodes.data, gpus_per_run=gpus_per_run)
        assert executor.n_at_once == n_at_once


def test_jobs_survive_ctrl_c_the_loss_of_a_node_and_a_broken_job(
    nodes: TwoNodes, tmp_path: Path
) -> None:
    """Interrupted; run again while a node is killed and one job is broken; mended and run again."""
    jobs = [tiny_job(seed, epochs=EPOCHS) for seed in range(4)]
    *good, broken = jobs

    with pytest.raises(KeyboardInterrupt):
        nodes.run(good, lambda: all(len(nodes.log(job)) > 4 for job in good[:2]) and interrupt())
    assert [job for job in good if (nodes.runs / job.id / "checkpoint.pt").is_file()] == good[:2]
    assert [sum("was stopped" in line for line in nodes.log(job)) for job in good] == [1, 1, 0]
    assert not list(nodes.results)

    damaged = nodes.runs / broken.id / "checkpoint.pt"
    damaged.parent.mkdir(parents=True)
    damaged.write_bytes(b"no checkpoint")
    before = {job.id: len(nodes.log(job)) for job in good}
    killed: list[Job] = []

    def kill() -> bool:
        killed.extend(
            job for job in good if len(nodes.log(job)) > before[job.id] + 3 and nodes.on_second(job)
        )
        if killed:
            nodes.cluster.remove_node(nodes.second, allow_graceful=False)
        return bool(killed)

    outcome, _ = nodes.run(jobs, kill)
    assert {job.id for job in outcome.done} == {job.id for job in good}
    [failure] = outcome.failed
    assert failure.job == broken
    assert "checkpoint.pt" in failure.text
    epochs: list[list[int]] = []  # of each time that it was started
    for line in nodes.log(killed[0]):
        if line.startswith("nearshot: on "):
            epochs.append([])
        elif line.startswith("epoch "):
            epochs[-1].append(int(line.split()[1].split("/")[0]))
    interrupted, lost, last = epochs
    assert interrupted[-1] + 1 == lost[0]
    assert lost[-1] < EPOCHS
    assert lost[0] <= last[0] <= lost[-1] + 1
    assert last[-1] == EPOCHS

    damaged.unlink()
    again, executor = nodes.run(jobs)
    assert executor.started == [broken.id]
    assert not again.failed
    assert len(again.done) == len(jobs)
    reference = ThisProcess(Results(tmp_path / "results", TINY_SIZE), tmp_path / "runs", nodes.data)
    run_jobs(
        jobs, reference, console=QUIET
    )  # tests have one thread, as a node that gives a job one CPU
    for job in jobs:
        ours = nodes.results.get(job.config)
        theirs = reference.results.get(job.config)
        assert ours is not None
        assert theirs is not None
        for part in ("config", "fingerprints", "accuracies", "history"):
            assert ours.content[part] == theirs.content[part], part


def test_a_gpu_that_torch_cannot_see_is_a_failure_and_not_a_slow_run(
    nodes: TwoNodes, tmp_path: Path
) -> None:
    if torch.cuda.is_available():
        pytest.skip("needs a machine without a GPU")
    results = Results(tmp_path / "results", TINY_SIZE)
    executor = RayCluster(results, tmp_path / "runs", nodes.data, gpus_per_run=0.5)
    outcome = run_jobs([tiny_job()], executor, console=QUIET)
    [failure] = outcome.failed
    assert failure.text in failure.log.read_text()
    assert "CUDA" in failure.text.upper()


def test_a_job_that_was_stopped_by_its_node_goes_on(nodes: TwoNodes) -> None:
    """A node that is shut down sends SIGTERM, on which a training saves and stops."""
    job = tiny_job(9, epochs=EPOCHS)

    def terminate() -> bool:
        lines = nodes.log(job)
        if len(lines) >= 4:
            os.kill(int(lines[0].split()[-1]), signal.SIGTERM)
        return len(lines) >= 4

    outcome, _ = nodes.run([job], terminate)
    assert outcome.done == [job]
    assert sum("was stopped" in line for line in nodes.log(job)) == 1
    assert sum(line.startswith("nearshot: on ") for line in nodes.log(job)) == 2
