"""Jobs in processes of their own, here and on a node of Ray: done, failed, stopped, resumed."""

from __future__ import annotations

import io
import json
import os
import queue
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from locks import locked
from made_up import make_up
from rich.console import Console
from settings import TINY
from tiny import prepare_tiny
from tiny_jobs import QUIET, ThisProcess, tiny_job

from nearshot.errors import InputError, MissingExtraError, NearshotError
from nearshot.experiments import RECIPES, reproduce
from nearshot.experiments.executors.local import LocalMachine
from nearshot.experiments.executors.ray import RayCluster, do_on_node
from nearshot.experiments.jobs import Job, jobs_of
from nearshot.experiments.reproduce import ReproductionOptions
from nearshot.experiments.results import Results, RunResult
from nearshot.experiments.runner import run_jobs
from nearshot.experiments.scales import QUICK, smaller
from nearshot.training import TrainConfig

SHORT = replace(TINY, epochs=2, validation_episodes=10)
LONG = replace(TINY, epochs=30, validate_every=30, validation_episodes=10)


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    prepare_tiny(folder)
    return folder


def job_of(config: TrainConfig, **changes: Any) -> Job:
    return Job(replace(config, **changes), "test", (), ("a test",))


def here(folder: Path, data_dir: Path | None = None) -> ThisProcess:
    return ThisProcess(Results(folder / "results"), folder / "runs", data_dir)


def machine(folder: Path, data_dir: Path | None = None, **options: Any) -> LocalMachine:
    return LocalMachine(Results(folder / "results"), folder / "runs", data_dir, **options)


def after_epochs(metrics: Path, number: int, act: Callable[[], None]) -> None:
    """Do something in a thread as soon as a run has trained some epochs."""

    def wait() -> None:
        while not metrics.is_file() or metrics.read_text().count("\n") < number:
            time.sleep(0.02)
        act()

    threading.Thread(target=wait, daemon=True).start()


def test_a_job_that_fails_does_not_stop_the_rest_and_is_tried_again(data_dir: Path, tmp_path: Path) -> None:
    jobs, executor, said = [job_of(SHORT, dataset="missing"), job_of(SHORT)], here(tmp_path, data_dir), io.StringIO()
    outcome = run_jobs(jobs, executor, console=Console(file=said, width=30))
    assert [job.id for job in outcome.done] == [jobs[1].id]
    assert "'missing'" in outcome.failed[0].text
    lines = [line.strip() for line in said.getvalue().splitlines() if "/2: " in line]  # whole, whatever the width
    assert all(re.fullmatch(r"[01]/2: \S+ (failed|done) in \d+ s", line) for line in lines)
    path = executor.results.path(jobs[1].config, "test")
    before = path.stat().st_mtime_ns
    assert len(run_jobs(jobs, executor, console=QUIET).failed) == 1
    assert path.stat().st_mtime_ns == before


def test_a_job_that_another_process_finishes_meanwhile_is_done_once(data_dir: Path, tmp_path: Path) -> None:
    job, elsewhere = job_of(SHORT), here(tmp_path / "elsewhere", data_dir)
    run_jobs([job], elsewhere, console=QUIET)

    class Coming(Results):
        """A result that comes just after the first question."""

        def get(self, config: TrainConfig, scale: str) -> RunResult | None:
            found = super().get(config, scale)
            if found is None:
                self.put(next(iter(elsewhere.results)))
            return found

    executor = ThisProcess(Coming(tmp_path / "results"), tmp_path / "runs", data_dir)
    assert run_jobs([job], executor, console=QUIET).done == [job]


@pytest.mark.parametrize(
    ("number", "ends"),
    [(signal.SIGINT, KeyboardInterrupt), pytest.param(signal.SIGTERM, SystemExit, marks=pytest.mark.slow)],
)
def test_control_c_and_sigterm_save_and_the_same_call_resumes(
    number: signal.Signals, ends: type[BaseException], data_dir: Path, tmp_path: Path
) -> None:
    job, metrics = job_of(LONG), tmp_path / "runs" / job_of(LONG).id / "metrics.jsonl"
    after_epochs(metrics, 3, lambda: os.kill(os.getpid(), number))
    before = signal.getsignal(signal.SIGTERM)
    executor = machine(tmp_path, data_dir)
    with pytest.raises(ends):
        run_jobs([job], executor, console=QUIET)
    assert signal.getsignal(signal.SIGTERM) is before
    assert (metrics.parent / "checkpoint.pt").is_file()
    assert not job.is_done(executor.results)
    n_before = metrics.read_text().count("\n")
    assert run_jobs([job], here(tmp_path, data_dir), console=QUIET).done == [job]
    assert n_before < metrics.read_text().count("\n") == LONG.epochs


@pytest.mark.slow
def test_small_jobs_share_a_process_and_one_that_dies_fails_its_job_only(data_dir: Path, tmp_path: Path) -> None:
    jobs = [*(job_of(SHORT, seed=seed) for seed in range(2)), job_of(LONG), job_of(SHORT, dataset="missing")]
    executor = machine(tmp_path, data_dir, small=True)
    executor.workers, executor.n_at_once = executor.workers[:1], 1
    executor._free = queue.SimpleQueue()
    executor._free.put(executor.workers[0])
    processes: list[Any] = []
    run = executor.run

    def listening(job: Job) -> str | None:
        problem = run(job)
        processes.append(executor.workers[0].process)
        return problem

    executor.run = listening  # type: ignore[method-assign]
    executor.prepare = lambda jobs: None  # type: ignore[method-assign]  # it would refuse the last one
    metrics = executor.runs / jobs[2].id / "metrics.jsonl"
    after_epochs(metrics, 2, lambda: os.kill(executor.workers[0].process.pid, signal.SIGKILL))
    outcome = run_jobs(jobs, executor, console=QUIET)
    assert outcome.done == jobs[:2]
    assert outcome.failed[0].text == "ended by signal 9"
    assert "'missing'" in outcome.failed[1].text
    assert outcome.failed[1].log.is_file()
    assert processes[0] is processes[1] is processes[2] is not processes[3]
    assert all(one.poll() is not None for one in processes)  # none is left
    assert all("epoch 2/2" in executor.log_of(job).read_text() for job in jobs[:2])
    commands = [result.content["environment"]["command"] for result in executor.results]
    assert commands[0] == [Path(word).name if Path(word).is_absolute() else word for word in sys.argv]


@pytest.mark.parametrize(("part", "gpus"), [(1.0, "01"), (0.34, "0101"), (1 / 3, "010101"), (0, [""])])
def test_small_jobs_share_gpus(
    part: float, gpus: Sequence[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)  # no process is started here
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    executor = machine(tmp_path, gpus_per_run=part)
    assert executor.n_at_once == len(gpus)
    assert [worker.environment["CUDA_VISIBLE_DEVICES"] for worker in executor.workers] == list(gpus)


@pytest.mark.parametrize("part", [-0.5, 1.5, 0.001])
def test_a_share_of_a_gpu_is_checked(part: float, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=f"gpus_per_run.*{part:g}"):
        machine(tmp_path, gpus_per_run=part)


class Pretended(ThisProcess):
    """All jobs are done at once."""

    def run(self, job: Job) -> str | None:
        return None


def test_jobs_that_would_take_too_long_are_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = [job_of(SHORT, seed=seed) for seed in range(4)]
    minutes = {job.id: many for job, many in zip(jobs, (4, 100, 6, 7), strict=True)}
    monkeypatch.setattr(
        "nearshot.experiments.runner.seconds_left", lambda some, *_: [60.0 * minutes[job.id] for job in some]
    )
    console = Console(file=(said := io.StringIO()), force_terminal=True, color_system=None, width=200)
    executor = Pretended(Results(tmp_path / "results"), tmp_path / "runs")
    outcome = run_jobs(jobs, executor, console=console, minutes=20)
    assert outcome.done == [jobs[0], jobs[2], jobs[3]]
    assert outcome.left == [jobs[1]]
    assert "2 done, 1 running, 0 left, 1 for another time" in said.getvalue()
    again = run_jobs(jobs, executor, console=QUIET, minutes=5)
    assert again.done == [jobs[0]]
    assert again.left == jobs[1:]


def test_with_little_time_no_run_is_started_and_tables_show_what_is_available(tmp_path: Path) -> None:
    said, scale = io.StringIO(), smaller(quick=True)
    results = make_up(tmp_path / "results", ["schedule"], scale)
    for file in sorted((results.folder / "quick" / "glyphs").iterdir())[1:]:
        file.unlink()
    options = ReproductionOptions(
        minutes=0.01, results=results.folder, runs=tmp_path / "runs", data_dir=tmp_path / "data"
    )
    done = reproduce(["schedule"], options, scale=scale, console=Console(file=said))
    assert len(done.outcome.left) == 3
    assert "Not done" in said.getvalue()
    assert [table.name for table in done.tables] == ["schedule-glyphs"]
    assert not (tmp_path / "data").exists()


def test_a_folder_that_is_not_writable_is_reported_before_anything_is_trained(data_dir: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:  # pytest's own is closed to other users
        results, runs = Path(folder, "results"), Path(folder, "runs")
        results.mkdir()
        runs.mkdir()
        Path(folder).chmod(0o755)
        runs.chmod(0o777)
        scale, executor = smaller(quick=True, steps=2), ThisProcess(Results(results), runs, data_dir)
        with locked(results, rights=0o555), pytest.raises(NearshotError, match=re.escape(str(results))):
            reproduce(["schedule"], scale=scale, results=results, runs=runs, executor=executor, console=QUIET)
        assert not list(runs.iterdir())


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"names": "pairs"}, r"names must be .*\['pairs'\]"),
        ({"names": ["pairs"], "seeds": 0}, "seeds must be at least 1 .*0"),
        ({"names": ["pairs"], "minutes": 0}, "minutes must be positive .*0"),
    ],
    ids=str,
)
def test_a_wrong_argument_is_one_clear_sentence(given: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=message):
        reproduce(**given, results=tmp_path, console=QUIET)


def on_node(folder: Path, data_dir: Path) -> tuple[dict[str, Any] | None, str | None, list[str]]:
    task = ThisProcess(Results(folder), folder.parent, data_dir).task_of(tiny_job())
    command = ("nearshot", "reproduce", "--on", "ray")
    content, problem, log, _ = do_on_node(replace(task, run_folder=folder, command=command))
    assert log == (folder / "log.txt").read_text().rstrip("\n")
    return content, problem, log.splitlines()


def test_a_node_brings_back_a_result_or_an_error_and_the_end_of_the_log(
    data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content, problem, log = on_node(tmp_path / "run", data_dir)
    assert problem is None
    assert content is not None
    assert content["environment"]["command"] == ["nearshot", "reproduce", "--on", "ray"]
    assert json.loads(json.dumps(content)) == content
    assert re.fullmatch(r"nearshot: on .*, process \d+", log[0])
    assert "epoch 2/2: loss" in log[-1]
    content, problem, log = on_node(tmp_path / "other", tmp_path / "empty")
    assert content is None
    assert "tiny" in str(problem)
    assert log[-1] == f"nearshot: {problem}"
    nothing: dict[str, str] = {}
    monkeypatch.setattr("nearshot.experiments.executors.base.do", lambda *_, **__: nothing["no reason"])
    content, problem, log = on_node(tmp_path / "third", data_dir)
    assert problem == "KeyError: 'no reason'"
    assert any("Traceback" in line for line in log)


@pytest.mark.parametrize(("address", "reason"), [("127.0.0.1:1", "nothing answers"), ("local", "start a new one")])
def test_where_no_cluster_is_none_is_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, address: str, reason: str
) -> None:
    with monkeypatch.context() as without, pytest.raises(MissingExtraError, match=r"nearshot\[ray\]"):
        without.setitem(sys.modules, "ray", None)
        RayCluster(Results(tmp_path), tmp_path)
    ray = pytest.importorskip("ray")
    monkeypatch.setenv("RAY_ADDRESS", address)
    with pytest.raises(NearshotError, match=f"no Ray cluster.*{reason}"):
        RayCluster(Results(tmp_path), tmp_path)
    assert not ray.is_initialized()


@pytest.mark.slow
def test_the_quick_form_of_everything_takes_less_than_an_hour(tmp_path: Path) -> None:
    environment = os.environ | {"NEARSHOT_DATA": str(tmp_path / "data")}
    started = time.monotonic()
    for command in (["reproduce", "--all", "--quick"], ["report"]):
        subprocess.run([sys.executable, "-m", "nearshot", *command], check=True, cwd=tmp_path, env=environment)
    assert time.monotonic() - started < 3600
    results = Results(tmp_path / "results")
    assert all(job.is_done(results) for job in jobs_of(RECIPES.values(), None, QUICK, [0]))
    page = (tmp_path / "results" / "report.html").read_text()
    assert "not a reproduction" in page
    assert page.count("QUICK") > len(RECIPES)
