"""Two commands that want the same trainings at once: each is trained by one of them, and both have all results."""

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
from tiny_jobs import tiny_job

from nearshot.experiments.budget import TimeLimit
from nearshot.experiments.executors.base import ThisProcess
from nearshot.experiments.executors.local import LocalMachine
from nearshot.experiments.jobs import Job
from nearshot.experiments.locks import ELSEWHERE, LOCK, BusyJobError, is_owned, owning
from nearshot.experiments.results import Results
from nearshot.experiments.runner import run_jobs

TESTS = Path(__file__).parents[1]
ENVIRONMENT = os.environ | {
    "OMP_NUM_THREADS": "1",
    "PYTHONPATH": os.pathsep.join([*map(str, (TESTS / "training", TESTS / "experiments")), *filter(None, sys.path)]),
}
WAITING = "is being trained by another process; waiting for it."


def another(folder: Path, *, epochs: int, seeds: list[int]) -> subprocess.Popen[str]:
    command = [sys.executable, str(TESTS / "experiments" / "one_of_two.py"), str(folder), str(epochs)]
    return subprocess.Popen([*command, *map(str, seeds)], env=ENVIRONMENT, stdout=subprocess.PIPE, text=True)


def until(condition: Callable[[], bool], seconds: float = 120.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_each_is_trained_once_and_both_have_all(tmp_path: Path) -> None:
    prepare_tiny(tmp_path / "data")
    jobs = [tiny_job(seed, epochs=20) for seed in (0, 1, 2)]
    results, runs, said = Results(tmp_path / "results"), tmp_path / "runs", io.StringIO()
    first = another(tmp_path, epochs=20, seeds=[0, 1, 2])
    until(lambda: is_owned(runs / jobs[0].id))
    outcome = run_jobs(jobs, results, runs, ThisProcess(results, runs, tmp_path / "data"), console=Console(file=said))
    told = [first.communicate(timeout=100)[0], said.getvalue()]
    assert first.returncode == 0, told
    assert {job.id for job in outcome.done} == {job.id for job in jobs}
    assert not outcome.failed
    assert told[1].count(f"{jobs[0].name} {WAITING}") == 1
    for job in jobs:
        done, taken = f": {job.name} done in ", f": {job.name} done by another process"
        assert sorted((text.count(done), text.count(taken)) for text in told) == [(0, 1), (1, 0)], told
        assert (runs / job.id / "metrics.jsonl").read_text().count("\n") == 20
    assert told[1].count("done in") > 0  # while it waited, it went on with others


def test_a_worker_that_comes_too_late_is_no_failure(tmp_path: Path) -> None:
    results, runs, job = Results(tmp_path / "results"), tmp_path / "runs", tiny_job()
    place = LocalMachine(results, runs, tmp_path / "data")
    ended: list[tuple[Job, str | None]] = []

    def has_ended() -> bool:
        ended.extend(place.ended())
        return bool(ended)

    with owning(runs / job.id):
        place.start(job, runs / job.id)
        until(has_ended)
    place.close()
    assert ended == [(job, ELSEWHERE)]
    assert place.log_of(job).read_text() == ""


def test_one_that_is_killed_is_taken_over_where_it_was(tmp_path: Path) -> None:
    prepare_tiny(tmp_path / "data")
    job, other = tiny_job(0, epochs=80), tiny_job(1)
    process = another(tmp_path, epochs=80, seeds=[0])
    results, runs, said = Results(tmp_path / "results"), tmp_path / "runs", io.StringIO()
    metrics = runs / job.id / "metrics.jsonl"
    until(lambda: metrics.is_file() and metrics.read_text().count("\n") > 2)

    def kill() -> None:
        until(lambda: WAITING in said.getvalue() and other.is_done(Results(tmp_path / "results")))
        process.kill()

    threading.Thread(target=kill, daemon=True).start()
    place = ThisProcess(results, runs, tmp_path / "data")
    outcome = run_jobs([job, other], results, runs, place, console=Console(file=said))
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    assert [one.id for one in outcome.done] == [other.id, job.id]
    assert not outcome.failed
    assert said.getvalue().count(WAITING) == 1
    assert f"{job.name} done in" in said.getvalue()
    assert metrics.read_text().count("\n") == 80


def test_there_is_no_waiting_beyond_the_time_that_there_is(tmp_path: Path) -> None:
    prepare_tiny(tmp_path / "data")
    results, runs, job = Results(tmp_path / "results"), tmp_path / "runs", tiny_job()
    limit = TimeLimit(1.0, lambda jobs: [0.1 for _ in jobs])
    place = ThisProcess(results, runs, tmp_path / "data")
    said = io.StringIO()
    with owning(runs / job.id):
        assert is_owned(runs / job.id)
        with pytest.raises(BusyJobError), owning(runs / job.id):
            pass
        outcome = run_jobs([job], results, runs, place, console=Console(file=said), limit=limit)
    assert (outcome.elsewhere, outcome.left, outcome.done, outcome.failed) == ([job], [], [], [])
    assert said.getvalue().count(WAITING) == 1
    assert not is_owned(runs / job.id)
    assert not is_owned(runs / "never")
    assert run_jobs([job], results, runs, place, console=Console(quiet=True)).done == [job]


def test_a_job_that_cannot_be_owned_fails_with_the_reason(tmp_path: Path) -> None:
    results, runs, job = Results(tmp_path / "results"), tmp_path / "runs", tiny_job()
    (runs / job.id / LOCK).mkdir(parents=True)
    assert not is_owned(runs / job.id)
    place = ThisProcess(results, runs, tmp_path / "data")
    (failure,) = run_jobs([job], results, runs, place, console=Console(quiet=True)).failed
    assert failure.text.startswith(f"{runs / job.id / LOCK} cannot be locked: Is a directory. Remove it if")


@pytest.mark.skipif(os.geteuid() == 0, reason="a superuser may open every file")
def test_whether_a_job_is_owned_can_be_asked_where_nobody_may_look(tmp_path: Path) -> None:
    (tmp_path / LOCK).touch(mode=0)
    assert not is_owned(tmp_path)
