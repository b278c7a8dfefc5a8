"""Jobs in processes of their own, here and on a node of Ray: done, failed, stopped, resumed."""

from __future__ import annotations

import io
import os
import pickle
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from made_up import make_up
from rich.console import Console
from settings import TINY
from tiny import prepare_tiny
from tiny_jobs import QUIET, ThisProcess, tiny_job

from nearshot.errors import InputError, MissingExtraError
from nearshot.experiments import RECIPES, reproduce
from nearshot.experiments.executors.local import LocalMachine
from nearshot.experiments.executors.ray import RayCluster, do_on_node
from nearshot.experiments.jobs import Job, jobs_of
from nearshot.experiments.reproduce import ReproductionOptions
from nearshot.experiments.results import Results, RunResult
from nearshot.experiments.runner import run_jobs
from nearshot.experiments.scales import QUICK
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
def test_a_process_that_dies_fails_its_job_only(data_dir: Path, tmp_path: Path) -> None:
    jobs = [job_of(LONG), job_of(SHORT), job_of(SHORT, dataset="missing")]
    executor = machine(tmp_path, data_dir, small=True)
    executor.prepare = lambda jobs: None  # type: ignore[method-assign]  # it would refuse the last one
    log = executor.log_of(jobs[0])

    def kill() -> None:
        os.kill(int(log.read_text().splitlines()[0].split()[-1]), signal.SIGKILL)

    after_epochs(log.parent / "metrics.jsonl", 2, kill)
    outcome = run_jobs(jobs, executor, console=QUIET)
    assert outcome.done == jobs[1:2]
    failed = {failure.job.id: failure for failure in outcome.failed}
    assert failed[jobs[0].id].text == "ended by signal 9"
    assert "'missing'" in failed[jobs[2].id].text
    assert failed[jobs[2].id].text in failed[jobs[2].id].log.read_text()
    assert "epoch 2/2" in executor.log_of(jobs[1]).read_text()
    (result,) = executor.results
    command = [Path(word).name if Path(word).is_absolute() else word for word in sys.argv]
    assert result.content["environment"]["command"] == command


@pytest.mark.parametrize(("part", "gpus"), [(1.0, "01"), (0.34, "0101"), (1 / 3, "010101"), (0, [""])])
def test_small_jobs_share_gpus(
    part: float, gpus: Sequence[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)  # no process is started here
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    executor = machine(tmp_path, gpus_per_run=part)
    assert executor.n_at_once == len(gpus)
    assert [one["CUDA_VISIBLE_DEVICES"] for one in executor.environments] == list(gpus)


@pytest.mark.parametrize("part", [-0.5, 1.5, 0.001])
def test_a_share_of_a_gpu_is_checked(part: float, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=f"gpus_per_run.*{part:g}"):
        machine(tmp_path, gpus_per_run=part)


@pytest.mark.slow
def test_after_the_time_limit_running_jobs_have_saved_and_others_are_left(
    data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs, executor = [job_of(LONG, seed=seed) for seed in range(2)], machine(tmp_path, data_dir)
    clock = SimpleNamespace(monotonic=lambda: 0.0, sleep=time.sleep)
    monkeypatch.setattr("nearshot.experiments.runner.time", clock)
    metrics = executor.runs / jobs[0].id / "metrics.jsonl"
    after_epochs(metrics, 3, lambda: setattr(clock, "monotonic", lambda: 60.0))
    outcome = run_jobs(jobs, executor, console=QUIET, minutes=1)
    assert (outcome.done, outcome.failed, outcome.left) == ([], [], jobs)
    assert [(executor.runs / job.id / "checkpoint.pt").is_file() for job in jobs] == [True, False]


def test_without_time_tables_show_what_is_available(tmp_path: Path) -> None:
    said, results = io.StringIO(), make_up(tmp_path / "results", ["schedule"], QUICK)
    for file in sorted((results.folder / "quick" / "glyphs").iterdir())[1:]:
        file.unlink()
    executor, options = ThisProcess(results, tmp_path), ReproductionOptions(minutes=0, results=results.folder)
    done = reproduce(["schedule"], options, scale=QUICK, executor=executor, console=Console(file=said))
    assert len(done.outcome.left) == 3
    assert "Not done" in said.getvalue()
    assert [table.name for table in done.tables] == ["schedule-glyphs"]


def test_a_node_brings_back_a_result_or_an_error_and_the_end_of_the_log(
    data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["nearshot", "reproduce", "--on", "ray"])
    result, problem, log = do_on_node(here(tmp_path, data_dir).task_of(tiny_job()))
    assert problem is None
    assert result is not None
    assert result.content["environment"]["command"] == ["nearshot", "reproduce", "--on", "ray"]
    assert pickle.loads(pickle.dumps(result)).content == result.content
    assert log == here(tmp_path).log_of(tiny_job()).read_text()
    assert re.match(r"nearshot: on .*, process \d+", log)
    assert "epoch 2/2: loss" in log.splitlines()[-1]
    result, problem, log = do_on_node(here(tmp_path / "other", tmp_path / "empty").task_of(tiny_job()))
    assert result is None
    assert "tiny" in str(problem)
    assert log.splitlines()[-1] == f"nearshot: {problem}"
    nothing: dict[str, str] = {}
    monkeypatch.setattr("nearshot.experiments.executors.base.do", lambda _: nothing["no reason"])
    _, problem, log = do_on_node(here(tmp_path / "third", data_dir).task_of(tiny_job()))
    assert problem == "KeyError: 'no reason'"
    assert "Traceback" in log


def test_without_the_extra_ray_its_name_is_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtraError, match=r"nearshot\[ray\]"):
        RayCluster(Results(tmp_path), tmp_path)


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
