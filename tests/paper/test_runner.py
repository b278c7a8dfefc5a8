"""Jobs run, fail, stop and resume: here, in other processes, on a node of Ray, by two commands."""

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

import pytest
from rich.console import Console
from tests.helpers.settings import TINY
from tests.helpers.tiny import prepare_tiny
from tests.helpers.tiny_jobs import QUIET, TINY_SIZE, ThisProcess, tiny_job

from nearshot.errors import InputError, MissingExtraError
from nearshot.io import FileLock
from nearshot.paper.executors.base import LOCK, LOCKED, is_locked
from nearshot.paper.executors.local import LocalMachine
from nearshot.paper.executors.ray import RayCluster, do_on_node
from nearshot.paper.identity import run_id
from nearshot.paper.jobs import jobs_of
from nearshot.paper.recipe import Recipe, Row
from nearshot.paper.result_file import Measurement, RunResult
from nearshot.paper.results import Results
from nearshot.paper.runner import run_jobs
from nearshot.training import TrainConfig

TESTS = Path(__file__).parents[1]
WAITING = "is locked by another process"
SHORT, LONG = tiny_job(), tiny_job(epochs=40)
MISSING = replace(SHORT, config=replace(SHORT.config, dataset="missing"))


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    prepare_tiny(folder)
    return folder


@pytest.fixture
def here(tmp_path: Path, data_dir: Path) -> ThisProcess:
    return ThisProcess(Results(tmp_path / "results", TINY_SIZE), tmp_path / "runs", data_dir)


@pytest.fixture
def machine(here: ThisProcess) -> LocalMachine:
    return LocalMachine(here.results, here.runs, here.data_dir)


def when(condition: Callable[[], bool], act: Callable[[], object]) -> None:
    """Do something in a thread as soon as a condition holds."""

    def wait() -> None:
        until(condition)
        act()

    threading.Thread(target=wait, daemon=True).start()


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def n_epochs(folder: Path) -> int:
    metrics = folder / "metrics.jsonl"
    return metrics.read_text().count("\n") if metrics.is_file() else 0


def test_a_job_that_fails_does_not_stop_the_rest_and_is_tried_again(here: ThisProcess) -> None:
    jobs, said = [MISSING, SHORT], io.StringIO()
    outcome = run_jobs(jobs, here, console=Console(file=said, width=30))
    assert outcome.done == [SHORT]
    assert "'missing'" in outcome.failed[0].text
    lines = [
        line.strip() for line in said.getvalue().splitlines() if "/2: " in line
    ]  # whole, whatever the width
    assert all(re.fullmatch(r"[01]/2: \S+ (failed|done) in \d+ s", line) for line in lines)
    path = here.results.path(SHORT.config)
    before = path.stat().st_mtime_ns
    assert len(run_jobs(jobs, here, console=QUIET).failed) == 1
    assert path.stat().st_mtime_ns == before


def test_a_job_that_another_process_finishes_meanwhile_is_done_once(
    here: ThisProcess, tmp_path: Path
) -> None:
    run_jobs([SHORT], here, console=QUIET)

    class Coming(Results):
        """A result that comes just after the first question."""

        def get(self, config: TrainConfig) -> RunResult | None:
            result = super().get(config)
            if result is None:
                self.put(next(iter(here.results)))
            return result

    executor = ThisProcess(Coming(tmp_path / "other", TINY_SIZE), tmp_path / "nowhere", tmp_path)
    assert run_jobs([SHORT], executor, console=QUIET).done == [SHORT]


def test_a_student_is_trained_after_its_teacher_and_identified_by_it(here: ThisProcess) -> None:
    teacher = replace(TINY, epochs=1)
    student = replace(teacher, teacher=run_id(teacher), distillation_weight=0.5)

    def rows(dataset: str) -> list[Row]:
        return [Row("student", student), Row("teacher", teacher)]

    recipe = Recipe("students", "Students", ("tiny",), rows, tables=lambda results, dataset: [])
    second, first = jobs_of([recipe], None, TINY_SIZE, [1])
    assert second.after == first.id
    results = Results(here.results.folder, TINY_SIZE)
    executor = ThisProcess(results, here.runs, here.data_dir)
    outcome = run_jobs([second, first], executor, console=QUIET)
    assert outcome.done == [first, second]
    result = results.get(second.config)
    assert result is not None
    assert result.config.teacher == run_id(teacher)
    # What is measured later needs no teacher.
    more = replace(second, measurements=(Measurement("test", 1),))
    assert run_jobs([more], executor, console=QUIET).done == [more]


def test_a_student_is_not_trained_if_its_teacher_failed(here: ThisProcess) -> None:
    student = replace(SHORT, after=MISSING.id)
    outcome = run_jobs([student, MISSING], here, console=QUIET)
    assert [failure.job for failure in outcome.failed] == [MISSING, student]


@pytest.mark.parametrize(
    ("number", "ends"),
    [
        (signal.SIGINT, KeyboardInterrupt),
        pytest.param(signal.SIGTERM, SystemExit, marks=pytest.mark.slow),
    ],
)
def test_control_c_and_sigterm_save_and_the_same_call_resumes(
    number: signal.Signals, ends: type[BaseException], here: ThisProcess, machine: LocalMachine
) -> None:
    folder = here.runs / LONG.id
    when(lambda: n_epochs(folder) >= 3, lambda: os.kill(os.getpid(), number))
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(ends):
        run_jobs([LONG], machine, console=QUIET)
    assert signal.getsignal(signal.SIGTERM) is before
    assert (folder / "checkpoint.pt").is_file()
    assert not LONG.is_done(machine.results)
    n_before = n_epochs(folder)
    assert run_jobs([LONG], here, console=QUIET).done == [LONG]
    assert n_before < n_epochs(folder) == LONG.config.epochs


@pytest.mark.slow
def test_after_the_time_limit_running_jobs_have_saved_and_others_are_left(
    machine: LocalMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = SimpleNamespace(monotonic=lambda: 0.0, sleep=time.sleep)
    monkeypatch.setattr("nearshot.paper.runner.time", clock)
    when(
        lambda: n_epochs(machine.runs / LONG.id) >= 3,
        lambda: setattr(clock, "monotonic", lambda: 60.0),
    )
    outcome = run_jobs([LONG, SHORT], machine, console=QUIET, minutes=1)
    assert (outcome.done, outcome.failed, outcome.left) == ([], [], [LONG, SHORT])
    assert [(machine.runs / job.id / "checkpoint.pt").is_file() for job in (LONG, SHORT)] == [
        True,
        False,
    ]


@pytest.mark.slow
def test_a_process_that_dies_fails_its_job_only(machine: LocalMachine) -> None:
    machine.prepare = lambda jobs: None  # type: ignore[method-assign]  # it would refuse the last one
    log = machine.log_of(LONG)

    def kill() -> None:
        os.kill(int(log.read_text().splitlines()[0].split()[-1]), signal.SIGKILL)

    when(lambda: n_epochs(log.parent) >= 2, kill)
    outcome = run_jobs([LONG, SHORT, MISSING], machine, console=QUIET)
    assert outcome.done == [SHORT]
    died, missing = outcome.failed
    assert died.text == "ended by signal 9"
    assert "'missing'" in missing.text
    assert missing.text in missing.log.read_text()
    assert "epoch 2/2" in machine.log_of(SHORT).read_text()
    (result,) = machine.results
    command = [Path(word).name if Path(word).is_absolute() else word for word in sys.argv]
    assert result.content["environment"]["command"] == command


@pytest.mark.parametrize(
    ("part", "gpus"), [(1.0, "01"), (0.34, "0101"), (1 / 3, "010101"), (0, [""])]
)
def test_small_jobs_share_gpus(
    part: float, gpus: Sequence[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)  # no process is started here
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    executor = LocalMachine(Results(tmp_path), tmp_path, gpus_per_run=part)
    assert executor.n_at_once == len(gpus)
    assert [variables["CUDA_VISIBLE_DEVICES"] for variables in executor.environments] == list(gpus)
    for wrong in (-0.5, 1.5):
        with pytest.raises(InputError, match=f"gpus_per_run.*{wrong:g}"):
            LocalMachine(Results(tmp_path), tmp_path, gpus_per_run=wrong)


def test_a_node_brings_back_a_result_or_an_error_and_the_end_of_the_log(
    here: ThisProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["nearshot", "reproduce", "--executor", "ray"])
    result, problem, log = do_on_node(here.task_of(SHORT))
    assert problem is None
    assert result is not None
    assert result.content["environment"]["command"] == [
        "nearshot",
        "reproduce",
        "--executor",
        "ray",
    ]
    assert pickle.loads(pickle.dumps(result)).content == result.content
    assert log == here.log_of(SHORT).read_text()
    assert re.match(r"nearshot: on .*, process \d+", log)
    assert "epoch 2/2: loss" in log.splitlines()[-1]
    result, problem, log = do_on_node(here.task_of(MISSING))
    assert result is None
    assert "missing" in str(problem)
    assert log.splitlines()[-1] == f"nearshot: {problem}"
    nothing: dict[str, str] = {}
    monkeypatch.setattr("nearshot.paper.executors.base.do", lambda _: nothing["no reason"])
    _, problem, log = do_on_node(here.task_of(LONG))
    assert problem == "KeyError: 'no reason'"
    assert "Traceback" in log


def test_without_the_extra_ray_its_name_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtraError, match=r"\.\[ray\]"):
        RayCluster(Results(tmp_path), tmp_path)


def another(executor: ThisProcess, *, epochs: int, seeds: list[int]) -> subprocess.Popen[str]:
    """Start another process that runs tiny jobs in the same folders."""
    path = os.pathsep.join([str(TESTS.parent), *filter(None, sys.path)])
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": path}
    where = [str(executor.results.folder), str(executor.runs), str(executor.data_dir)]
    command = [
        sys.executable,
        str(TESTS / "helpers" / "tiny_jobs.py"),
        *where,
        str(epochs),
        *map(str, seeds),
    ]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)


@pytest.mark.slow
def test_each_job_of_two_commands_is_trained_once_and_both_have_all(here: ThisProcess) -> None:
    jobs, said = [tiny_job(seed, epochs=20) for seed in (0, 1, 2)], io.StringIO()
    first = another(here, epochs=20, seeds=[0, 1, 2])
    until(lambda: is_locked(here.runs / jobs[0].id))
    outcome = run_jobs(jobs, here, console=Console(file=said))
    texts = [first.communicate(timeout=100)[0], said.getvalue()]
    assert first.returncode == 0, texts
    assert {job.id for job in outcome.done} == {job.id for job in jobs}
    assert texts[1].count(f"{jobs[0].name} {WAITING}") == 1
    for job in jobs:
        done, taken = f": {job.name} done in ", f": {job.name} done by another process"
        assert sorted((text.count(done), text.count(taken)) for text in texts) == [
            (0, 1),
            (1, 0),
        ], texts
        assert n_epochs(here.runs / job.id) == 20
    assert texts[1].count("done in") > 0  # while it waited, it ran others


@pytest.mark.slow
def test_a_locked_run_is_taken_over_where_it_was_when_its_process_is_killed(
    here: ThisProcess,
) -> None:
    other, said = tiny_job(1), io.StringIO()
    process = another(here, epochs=40, seeds=[0])
    until(lambda: n_epochs(here.runs / LONG.id) > 2)
    when(
        lambda: (
            WAITING in said.getvalue() and other.is_done(Results(here.results.folder, TINY_SIZE))
        ),
        process.kill,
    )
    outcome = run_jobs([LONG, other], here, console=Console(file=said))
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    assert outcome.done == [other, LONG]
    assert said.getvalue().count(WAITING) == 1
    assert f"{LONG.name} done in" in said.getvalue()
    assert n_epochs(here.runs / LONG.id) == 40


def test_a_locked_run_is_not_awaited_beyond_the_time_limit(here: ThisProcess) -> None:
    folder, said = here.runs / SHORT.id, io.StringIO()
    folder.mkdir(parents=True)
    lock = FileLock(folder / LOCK)
    assert lock.acquire()
    assert is_locked(folder)
    assert here.run(SHORT) == LOCKED
    outcome = run_jobs([SHORT], here, console=Console(file=said), minutes=0.02)
    assert (outcome.left, outcome.done, outcome.failed) == ([SHORT], [], [])
    assert said.getvalue().count(WAITING) == 1
    lock.release()
    assert not is_locked(folder)
    assert not is_locked(here.runs / "never")
