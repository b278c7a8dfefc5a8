"""Two commands that need the same runs at once: each is trained by one of them, and both have all results."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console
from tiny import prepare_tiny
from tiny_jobs import QUIET, ThisProcess, tiny_job

from nearshot.experiments.executors.base import LOCK, LOCKED, is_locked
from nearshot.experiments.executors.local import LocalMachine
from nearshot.experiments.results import Results
from nearshot.experiments.runner import run_jobs
from nearshot.io import FileLock

TESTS = Path(__file__).parents[1]
ENVIRONMENT = os.environ | {
    "OMP_NUM_THREADS": "1",
    "PYTHONPATH": os.pathsep.join([*map(str, (TESTS / "training", TESTS / "experiments")), *filter(None, sys.path)]),
}
WAITING = "is locked by another process"


def another(folder: Path, *, epochs: int, seeds: list[int]) -> subprocess.Popen[str]:
    command = [sys.executable, str(TESTS / "experiments" / "tiny_jobs.py"), str(folder), str(epochs)]
    return subprocess.Popen([*command, *map(str, seeds)], env=ENVIRONMENT, stdout=subprocess.PIPE, text=True)


def until(condition: Callable[[], bool], seconds: float = 120.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.fixture
def executor(tmp_path: Path) -> ThisProcess:
    prepare_tiny(tmp_path / "data")
    return ThisProcess(Results(tmp_path / "results"), tmp_path / "runs", tmp_path / "data")


@pytest.mark.slow
def test_each_is_trained_once_and_both_have_all(executor: ThisProcess, tmp_path: Path) -> None:
    jobs = [tiny_job(seed, epochs=20) for seed in (0, 1, 2)]
    runs, said = executor.runs, io.StringIO()
    first = another(tmp_path, epochs=20, seeds=[0, 1, 2])
    until(lambda: is_locked(runs / jobs[0].id))
    outcome = run_jobs(jobs, executor, console=Console(file=said))
    texts = [first.communicate(timeout=100)[0], said.getvalue()]
    assert first.returncode == 0, texts
    assert {job.id for job in outcome.done} == {job.id for job in jobs}
    assert not outcome.failed
    assert texts[1].count(f"{jobs[0].name} {WAITING}") == 1
    for job in jobs:
        done, taken = f": {job.name} done in ", f": {job.name} done by another process"
        assert sorted((text.count(done), text.count(taken)) for text in texts) == [(0, 1), (1, 0)], texts
        assert (runs / job.id / "metrics.jsonl").read_text().count("\n") == 20
    assert texts[1].count("done in") > 0  # while it waited, it ran others


@pytest.mark.slow
def test_a_locked_run_is_taken_over_where_it_was_when_its_process_is_killed(
    executor: ThisProcess, tmp_path: Path
) -> None:
    job, other = tiny_job(0, epochs=40), tiny_job(1)
    process = another(tmp_path, epochs=40, seeds=[0])
    said, metrics = io.StringIO(), executor.runs / job.id / "metrics.jsonl"
    until(lambda: metrics.is_file() and metrics.read_text().count("\n") > 2)

    def kill() -> None:
        until(lambda: WAITING in said.getvalue() and other.is_done(Results(tmp_path / "results")))
        process.kill()

    threading.Thread(target=kill, daemon=True).start()
    outcome = run_jobs([job, other], executor, console=Console(file=said))
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    assert [one.id for one in outcome.done] == [other.id, job.id]
    assert not outcome.failed
    assert said.getvalue().count(WAITING) == 1
    assert f"{job.name} done in" in said.getvalue()
    assert metrics.read_text().count("\n") == 40


@pytest.fixture
def lock(executor: ThisProcess) -> FileLock:
    folder = executor.runs / tiny_job().id
    folder.mkdir(parents=True)
    lock = FileLock(folder / LOCK)
    assert lock.acquire()
    return lock


@pytest.mark.slow
def test_a_worker_that_comes_too_late_is_no_failure(executor: ThisProcess, lock: FileLock) -> None:
    machine = LocalMachine(executor.results, executor.runs, executor.data_dir)
    assert machine.run(tiny_job()) == LOCKED
    assert machine.log_of(tiny_job()).read_text() == ""


def test_a_locked_run_is_not_awaited_beyond_the_time_limit(executor: ThisProcess, lock: FileLock) -> None:
    job, runs, said = tiny_job(), executor.runs, io.StringIO()
    assert is_locked(runs / job.id)
    assert executor.run(job) == LOCKED
    outcome = run_jobs([job], executor, console=Console(file=said), minutes=0.02)
    assert (outcome.left, outcome.done, outcome.failed) == ([job], [], [])
    assert said.getvalue().count(WAITING) == 1
    lock.release()
    assert not is_locked(runs / job.id)
    assert not is_locked(runs / "never")
    assert run_jobs([job], executor, console=QUIET).done == [job]
