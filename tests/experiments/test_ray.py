"""Jobs on a Ray cluster: two real nodes on this machine, one of which is killed while it works."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file
from settings import TINY
from tiny import prepare_tiny

from nearshot.errors import InputError, MissingExtraError, NearshotError
from nearshot.experiments import Results
from nearshot.experiments.jobs import Job
from nearshot.experiments.on_ray import RayCluster, do_on_node
from nearshot.experiments.results import Measurement
from nearshot.experiments.runner import Outcome, Place, ThisProcess, run_jobs
from nearshot.training import Hardware

QUIET = Console(quiet=True)
CPU = Hardware(accelerator="cpu")
EPOCHS = 60  # several seconds on one thread
WANTED = (Measurement("val", 1, "centroid"), Measurement("test", 1, "centroid"))
COMMAND = ("nearshot", "reproduce", "--on", "ray")


def job(seed: int, epochs: int = EPOCHS) -> Job:
    config = replace(TINY, epochs=epochs, seed=seed, validate_every=20, validation_shots=(1,))
    return Job(config, "tiny", WANTED, ("test",))


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    prepare_tiny(folder, n_classes=16, n_images=20)
    return folder


# On the node, without Ray.


def test_a_job_on_a_node_brings_back_its_result_and_the_end_of_its_log(tmp_path: Path, data: Path) -> None:
    report = do_on_node(job(0, epochs=2).as_dict(), str(tmp_path / "run"), str(data), CPU, COMMAND)
    assert report.problem == ""
    assert report.content is not None
    assert report.content["environment"]["command"] == list(COMMAND)
    assert json.loads(json.dumps(report.content)) == report.content
    assert report.log.splitlines()[0].startswith(f"on {report.node}, process ")
    assert "epoch 2/2: loss" in report.log.splitlines()[-1]
    assert report.log == (tmp_path / "run" / "log.txt").read_text().rstrip("\n")


def test_a_job_that_fails_on_a_node_brings_back_the_sentence(tmp_path: Path) -> None:
    report = do_on_node(job(0).as_dict(), str(tmp_path / "run"), str(tmp_path / "empty"), CPU, COMMAND)
    assert report.content is None
    assert "tiny" in report.problem
    assert report.log.splitlines()[-1] == f"nearshot: {report.problem}"


def test_an_error_that_nobody_foresaw_leaves_its_traceback_in_the_log(tmp_path: Path) -> None:
    broken = job(0).as_dict()
    del broken["config"]
    report = do_on_node(broken, str(tmp_path / "run"), None, CPU, COMMAND)
    assert report.problem == "KeyError: 'config'"
    assert "Traceback" in report.log


# Without a cluster.


def test_without_ray_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtraError, match=r"nearshot\[ray\]"):
        RayCluster(Results(tmp_path), tmp_path)


@pytest.mark.parametrize("much", [-0.5, 1.5])
def test_a_training_takes_at_most_a_gpu(tmp_path: Path, much: float) -> None:
    with pytest.raises(InputError, match=f"not {much:g}"):
        RayCluster(Results(tmp_path), tmp_path, gpus_per_run=much)


@pytest.mark.filterwarnings("ignore::DeprecationWarning:ray", "ignore::FutureWarning:ray")
@pytest.mark.parametrize(("address", "reason"), [("127.0.0.1:1", "nobody answers"), ("local", "start a new one")])
def test_where_no_cluster_is_none_is_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, address: str, reason: str
) -> None:
    ray = pytest.importorskip("ray")
    monkeypatch.setenv("RAY_ADDRESS", address)
    with pytest.raises(NearshotError, match=f"no Ray cluster.*{reason}"):
        RayCluster(Results(tmp_path), tmp_path)
    assert not ray.is_initialized()


# On a cluster of two nodes.


class Watched:
    """A place at which something happens once, as soon as it can."""

    def __init__(self, place: RayCluster, happens: Callable[[], bool]) -> None:
        self.place, self.happens, self.happened = place, happens, False
        self.started: list[str] = []

    @property
    def n_at_once(self) -> int:
        return self.place.n_at_once

    def start(self, job: Job, run_folder: Path) -> None:
        self.started.append(job.id)
        self.place.start(job, run_folder)

    def ended(self) -> Iterable[tuple[Job, str | None]]:
        self.happened = self.happened or self.happens()
        return self.place.ended()

    def stop(self) -> None:
        self.place.stop()

    def log_of(self, job: Job) -> Path:
        return self.place.log_of(job)


class TwoNodes:
    """A cluster whose second node can be killed, and the folders of some jobs."""

    def __init__(self, cluster: Any, second: Any, folder: Path, data: Path) -> None:
        self.cluster, self.second, self.data = cluster, second, data
        self.runs, self.results = folder / "runs", Results(folder / "results")

    def place(self, **options: float) -> RayCluster:
        return RayCluster(self.results, self.runs, self.data, gpus_per_run=options.get("gpus_per_run", 0))

    def run(self, jobs: list[Job], happens: Callable[[], bool]) -> tuple[Outcome, Watched]:
        place = Watched(self.place(), happens)
        return run_jobs(jobs, self.results, self.runs, place, console=QUIET), place

    def log(self, job: Job) -> list[str]:
        file = self.runs / job.id / "log.txt"
        return file.read_text().splitlines() if file.is_file() else []

    def on_second(self, job: Job) -> bool:
        """Whether a job's last process is the second node's."""
        processes = [line.split()[-1] for line in self.log(job) if line.startswith("on ")]
        raylet = self.second.all_processes["raylet"][0].process.pid
        return bool(processes) and parent(processes[-1]) == str(raylet)

    def kill_second(self) -> None:
        self.cluster.remove_node(self.second, allow_graceful=False)


def parent(process: str) -> str:
    return subprocess.run(["ps", "-o", "ppid=", "-p", process], capture_output=True, text=True).stdout.strip()  # noqa: S607


def never() -> bool:
    return False


def interrupt() -> bool:
    raise KeyboardInterrupt


@dataclass
class Story:
    """What happened: interrupted, run again while a node was killed and one job was broken, mended and run again."""

    nodes: TwoNodes
    jobs: list[Job]
    interrupted: list[Job]
    killed: Job
    outcome: Outcome
    again: Outcome
    started_again: list[str]
    reference: ThisProcess


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory, data: Path) -> Iterator[TwoNodes]:
    ray = pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("PYTHONPATH", ":".join(sys.path))  # the nodes have what we have
        cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "num_gpus": 1})
        environment.setenv("RAY_ADDRESS", cluster.address)
        try:
            yield TwoNodes(cluster, cluster.add_node(num_cpus=1, num_gpus=0), tmp_path_factory.mktemp("ray"), data)
        finally:
            ray.shutdown()
            cluster.shutdown()


@pytest.fixture(scope="module")
def story(nodes: TwoNodes, tmp_path_factory: pytest.TempPathFactory) -> Story:
    jobs = [job(seed) for seed in range(4)]
    *good, broken = jobs

    with pytest.raises(KeyboardInterrupt):
        nodes.run(good, lambda: all(len(nodes.log(one)) > 4 for one in good[:2]) and interrupt())
    interrupted = [one for one in good if (nodes.runs / one.id / "checkpoint.pt").is_file()]
    assert not list(nodes.results)

    damaged = nodes.runs / broken.id / "checkpoint.pt"
    damaged.parent.mkdir(parents=True)
    damaged.write_bytes(b"no checkpoint")
    before = {one.id: len(nodes.log(one)) for one in good}
    killed: list[Job] = []

    def kill() -> bool:
        killed.extend(one for one in good if len(nodes.log(one)) > before[one.id] + 3 and nodes.on_second(one))
        if killed:
            nodes.kill_second()
        return bool(killed)

    outcome, _ = nodes.run(jobs, kill)
    damaged.unlink()
    again, place = nodes.run(jobs, never)

    folder = tmp_path_factory.mktemp("reference")
    reference = ThisProcess(Results(folder / "results"), folder / "runs", nodes.data, CPU)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as on a node that gives a job one CPU; sums over threads are rounded otherwise
    run_jobs(jobs, reference.results, reference.runs, reference, console=QUIET)
    torch.set_num_threads(threads)
    return Story(nodes, jobs, interrupted, killed[0], outcome, again, place.started, reference)


on_a_cluster = [
    pytest.mark.slow,
    # Ray's own: files that it leaves to the garbage collector, and what it will do otherwise one day.
    pytest.mark.filterwarnings(
        "ignore::ResourceWarning",
        "ignore::DeprecationWarning:ray",
        "ignore::FutureWarning:ray",
        "ignore::pytest.PytestUnraisableExceptionWarning",
    ),
]


def marked(test: Callable[..., None]) -> Callable[..., None]:
    for mark in on_a_cluster:
        test = mark(test)
    return test


@marked
def test_as_many_jobs_at_once_as_nodes_have_room_for(nodes: TwoNodes) -> None:
    assert nodes.place().n_at_once == 2
    assert nodes.place(gpus_per_run=1).n_at_once == 1
    assert nodes.place(gpus_per_run=0.25).n_at_once == 1  # of four places on the GPU, its node has CPUs for one


@marked
def test_ctrl_c_leaves_checkpoints(story: Story) -> None:
    assert story.interrupted == story.jobs[:2]
    for one in story.interrupted:
        stopped = [line for line in story.nodes.log(one) if "was asked to stop" in line]
        assert len(stopped) == 1


@marked
def test_a_job_survives_the_loss_of_its_node_and_goes_on_from_its_checkpoint(story: Story) -> None:
    starts, epochs = [], []
    for line in story.nodes.log(story.killed):
        if line.startswith("on "):
            starts.append(line)
            epochs.append([])
        elif line.startswith("epoch "):
            epochs[-1].append(int(line.split()[1].split("/")[0]))
    assert len(set(starts)) == 3  # at first, after Ctrl-C, and after its node was killed
    interrupted, lost, last = epochs
    assert last[-1] == EPOCHS
    assert lost[-1] < EPOCHS
    if story.killed in story.interrupted:
        assert lost[0] == last[0] == interrupted[-1] + 1


@marked
def test_a_failed_job_is_reported_and_the_others_finish(story: Story) -> None:
    *good, broken = story.jobs
    assert {one.id for one in story.outcome.done} == {one.id for one in good}
    [failure] = story.outcome.failed
    assert failure.job == broken
    assert "is not a checkpoint, or is damaged" in failure.text
    assert failure.log.name == "log-end.txt"


@marked
def test_again_does_only_what_failed(story: Story) -> None:
    assert story.started_again == [story.jobs[-1].id]
    assert not story.again.failed
    assert len(story.again.done) == len(story.jobs)


@marked
def test_results_are_those_of_one_process_bit_by_bit(story: Story) -> None:
    for one in story.jobs:
        ours, theirs = (place.results.get(one.config, one.scale) for place in (story.nodes, story.reference))
        assert ours is not None
        assert theirs is not None
        for part in ("id", "config", "fingerprints", "accuracies", "history"):
            assert ours.content[part] == theirs.content[part], part
        for file in (story.reference.runs / one.id / "weights").iterdir():
            weights = load_file(story.nodes.runs / one.id / "weights" / file.name)
            for name, there in load_file(file).items():
                assert torch.equal(weights[name], there), name


@marked
def test_a_gpu_that_torch_cannot_see_is_a_failure_and_not_a_slow_run(nodes: TwoNodes, tmp_path: Path) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    results = Results(tmp_path / "results")
    place = RayCluster(results, tmp_path / "runs", nodes.data, gpus_per_run=0.5)
    outcome = run_jobs([job(0, epochs=1)], results, tmp_path / "runs", place, console=QUIET)
    [failure] = outcome.failed
    assert "Traceback" in failure.log.read_text()
    assert "CUDA" in failure.text.upper()


@marked
def test_a_job_that_was_stopped_by_its_node_goes_on(nodes: TwoNodes, tmp_path: Path) -> None:
    """A node that is shut down sends SIGTERM, on which a training saves and stops."""
    results, runs = Results(tmp_path / "results"), tmp_path / "runs"
    one = job(9)
    log = runs / one.id / "log.txt"

    def terminate() -> bool:
        lines = log.read_text().splitlines() if log.is_file() else []
        if len(lines) < 4:
            return False
        subprocess.run(["kill", "-TERM", lines[0].split()[-1]], check=True)  # noqa: S607
        return True

    place: Place = Watched(RayCluster(results, runs, nodes.data, gpus_per_run=0), terminate)
    outcome = run_jobs([one], results, runs, place, console=QUIET)
    assert outcome.done == [one]
    assert log.read_text().count("was asked to stop") == 1
    assert log.read_text().count("on ") >= 2
