"""Jobs in processes of their own: done, failed, stopped, gone on with."""

from __future__ import annotations

import io
import os
import re
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from locks import locked
from made_up import make_up
from rich.console import Console
from settings import TINY
from tiny import prepare_tiny

from nearshot.cli import main
from nearshot.errors import InputError, NearshotError
from nearshot.experiments import reproduce
from nearshot.experiments.budget import TimeLimit
from nearshot.experiments.costs import SECONDS_TO_MEASURE, cost_of, seconds_of
from nearshot.experiments.executors.base import ThisProcess
from nearshot.experiments.executors.local import LocalMachine
from nearshot.experiments.jobs import Job, do
from nearshot.experiments.results import Measurement, Results, RunResult
from nearshot.experiments.runner import run_jobs
from nearshot.experiments.scales import smaller
from nearshot.training import TrainConfig

QUIET = Console(quiet=True)
SHORT = replace(TINY, epochs=2, validation_episodes=10)
LONG = replace(TINY, epochs=60, validate_every=60, validation_episodes=10)


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    prepare_tiny(folder)
    return folder


def job_of(config: object, **changes: object) -> Job:
    return Job(replace(config, **changes), "test", (), ("a test",))  # type: ignore[type-var, arg-type]


def test_one_that_fails_does_not_stop_the_rest_and_is_tried_again(data_dir: Path, tmp_path: Path) -> None:
    results = Results(tmp_path / "results")
    jobs = [job_of(SHORT, dataset="missing"), job_of(SHORT)]
    place = LocalMachine(results, tmp_path / "runs", data_dir, small=True)
    outcome = run_jobs(jobs, results, tmp_path / "runs", place, console=QUIET)
    assert [job.id for job in outcome.done] == [jobs[1].id]
    assert "'missing' is not prepared" in outcome.failed[0].text
    assert outcome.failed[0].log.is_file()
    before = results.path(jobs[1].config, "test").stat().st_mtime_ns
    again = run_jobs(jobs, results, tmp_path / "runs", place, console=QUIET)
    assert len(again.failed) == 1
    assert results.path(jobs[1].config, "test").stat().st_mtime_ns == before


def test_one_that_another_process_finishes_while_the_jobs_are_sorted_is_done_once(
    data_dir: Path, tmp_path: Path
) -> None:
    job, elsewhere = job_of(SHORT), Results(tmp_path / "elsewhere")
    run_jobs([job], elsewhere, tmp_path / "runs", ThisProcess(elsewhere, tmp_path / "runs", data_dir), console=QUIET)

    class Coming(Results):
        """A result that comes just after the first question."""

        def get(self, config: TrainConfig, scale: str) -> RunResult | None:
            found = super().get(config, scale)
            if found is None:
                self.put(next(iter(elsewhere)))
            return found

    results = Coming(tmp_path / "results")
    place = ThisProcess(results, tmp_path / "runs", data_dir)
    assert run_jobs([job], results, tmp_path / "runs", place, console=QUIET).done == [job]


@pytest.mark.parametrize(("number", "ends"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, SystemExit)])
def test_control_c_and_sigterm_save_and_the_same_call_goes_on(
    number: signal.Signals, ends: type[BaseException], data_dir: Path, tmp_path: Path
) -> None:
    results, runs = Results(tmp_path / "results"), tmp_path / "runs"
    job = job_of(LONG)

    def interrupt() -> None:
        metrics = runs / job.id / "metrics.jsonl"
        while not metrics.is_file() or metrics.read_text().count("\n") < 3:
            time.sleep(0.05)
        os.kill(os.getpid(), number)

    threading.Thread(target=interrupt, daemon=True).start()
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(ends):
        run_jobs([job], results, runs, LocalMachine(results, runs, data_dir), console=QUIET)
    assert signal.getsignal(signal.SIGTERM) is before
    assert (runs / job.id / "checkpoint.pt").is_file()
    assert not job.is_done(results)
    n_before = (runs / job.id / "metrics.jsonl").read_text().count("\n")
    outcome = run_jobs([job], results, runs, LocalMachine(results, runs, data_dir), console=QUIET)
    assert [one.id for one in outcome.done] == [job.id]
    lines = (runs / job.id / "metrics.jsonl").read_text().count("\n")
    assert n_before < lines == LONG.epochs


def test_small_ones_run_side_by_side_in_processes_that_are_kept(data_dir: Path, tmp_path: Path) -> None:
    results, runs = Results(tmp_path / "results"), tmp_path / "runs"
    jobs = [job_of(SHORT, seed=seed) for seed in range(3)]
    place = LocalMachine(results, runs, data_dir, small=True)
    assert place.n_at_once >= 1
    place.slots, place.n_at_once = place.slots[:1], 1  # so that one process has to do all
    processes = set()
    start = place.start

    def listening(job: Job, run_folder: Path) -> None:
        start(job, run_folder)
        processes.add(place.slots[0].process)

    place.start = listening  # type: ignore[method-assign]
    outcome = run_jobs(jobs, results, runs, place, console=QUIET)
    assert {job.id for job in outcome.done} == {job.id for job in jobs}
    assert len(processes) == 1
    assert all(process is not None and process.poll() == 0 for process in processes)  # closed at the end
    assert all("epoch 2/2" in (runs / job.id / "log.txt").read_text() for job in jobs)
    commands = [result.content["environment"]["command"] for result in results]
    assert commands[0] == [Path(word).name if Path(word).is_absolute() else word for word in sys.argv]


@pytest.mark.parametrize(("part", "n_at_once"), [(1.0, 2), (0.5, 4), (0.34, 4), (0.1, 20), (1 / 3, 6)])
def test_small_ones_share_gpus(part: float, n_at_once: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)  # no process is started here
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    place = LocalMachine(Results(tmp_path), tmp_path, gpus_per_run=part)
    assert place.n_at_once == n_at_once
    assert [slot.environment["CUDA_VISIBLE_DEVICES"] for slot in place.slots][:3] == ["0", "1", "0"][: len(place.slots)]


def test_gpus_can_be_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    place = LocalMachine(Results(tmp_path), tmp_path, gpus_per_run=0)
    assert [slot.environment["CUDA_VISIBLE_DEVICES"] for slot in place.slots] == [""]
    with pytest.raises(InputError, match=r"not 1\.5"):
        LocalMachine(Results(tmp_path), tmp_path, gpus_per_run=1.5)


def test_what_would_take_too_long_is_left_for_another_time(data_dir: Path, tmp_path: Path) -> None:
    results, runs = Results(tmp_path / "results"), tmp_path / "runs"
    jobs = [job_of(SHORT, seed=seed) for seed in range(3)]
    expected = {jobs[0].id: 1.0, jobs[1].id: 1e6, jobs[2].id: 1.0}
    asked: list[int] = []

    def seconds_of(waiting: Sequence[Job]) -> list[float]:
        asked.append(len(waiting))
        return [expected[job.id] for job in waiting]

    place = ThisProcess(results, runs, data_dir)
    outcome = run_jobs(jobs, results, runs, place, console=QUIET, limit=TimeLimit(1e5, seconds_of))
    assert [job.id for job in outcome.done] == [jobs[0].id, jobs[2].id]
    assert outcome.left == [jobs[1]]
    assert not outcome.failed
    assert not outcome.stopped
    assert asked == [3, 2, 1]  # once, and after each that was done
    again = run_jobs(jobs, results, runs, place, console=QUIET, limit=TimeLimit(0.5, seconds_of))
    assert (len(again.done), again.left) == (2, [jobs[1]])


def test_the_table_tells_the_time_of_what_will_be_begun_and_how_many_wait_for_another(tmp_path: Path) -> None:
    jobs = [job_of(SHORT, seed=seed) for seed in range(5)]
    minutes = {job.id: many for job, many in zip(jobs, (4, 100, 6, 7, 8), strict=True)}
    said, results = io.StringIO(), Results(tmp_path / "results")

    class Watched(ThisProcess):
        """A job is done when the table has shown that it runs."""

        n_done, began = 0, said.tell()

        def start(self, job: Job, run_folder: Path) -> None:
            self.job = job

        def ended(self) -> list[tuple[Job, str | None]]:
            if f"{self.n_done} done, 1 running" not in said.getvalue()[self.began :]:
                return []
            self.n_done += 1
            return [(self.job, None)]

    def shown(some: Sequence[Job], limit: TimeLimit | None) -> str:
        Watched.began = began = said.tell()
        console = Console(file=said, force_terminal=True, color_system=None, width=200)
        run_jobs(some, results, tmp_path, Watched(results, tmp_path), console=console, limit=limit)
        return " ".join(re.sub(r"\x1b\[[?\d;]*[A-Za-z]", "", said.getvalue()[began:]).split())

    limited = shown(jobs, TimeLimit(20 * 60, lambda some: [60.0 * minutes[job.id] for job in some]))
    assert "0 done, 1 running, 2 left, about 17 min to go, 2 for another time" in limited
    assert "1 done, 1 running, 1 left, about 13 min to go, 2 for another time" in limited  # sooner than was thought
    assert "2 done, 1 running, 1 left, about 15 min to go, 1 for another time" in limited
    plain = shown(jobs[:3], None)
    assert "0 done, 1 running, 2 left, about" not in plain  # nothing is known yet
    assert "1 done, 1 running, 1 left, about 1 min to go" in plain
    assert "for another time" not in plain


def test_expectations_are_of_what_is_left_and_of_this_device(data_dir: Path, tmp_path: Path) -> None:
    results, runs = Results(tmp_path / "results"), tmp_path / "runs"
    done, other = job_of(SHORT, steps_per_epoch=3), job_of(LONG, steps_per_epoch=3)
    result = do(done, runs / done.id, data_dir=data_dir, show=False)
    results.put(result)
    took, measuring = result.training_seconds, result.measuring_seconds
    assert took is not None
    assert measuring is not None
    per_epoch = took / SHORT.epochs
    again, fresh = seconds_of([done, other], results, runs, result.device)
    assert again == pytest.approx(measuring)  # its weights are there
    assert fresh == pytest.approx(60 * per_epoch + measuring)
    assert cost_of([other], results).seconds == pytest.approx(fresh)
    adapting = replace(done, measurements=(Measurement("val", 5, "centroid", adapted="fine-tuned"),))
    assert seconds_of([adapting], results, runs, result.device) == [SECONDS_TO_MEASURE]  # nobody has done that yet
    (runs / other.id).mkdir()
    (runs / other.id / "metrics.jsonl").write_text("{}\n" * 45)
    assert seconds_of([other], results, runs, result.device) == [pytest.approx(15 * per_epoch + measuring)]
    slower = job_of(SHORT, seed=1, steps_per_epoch=3)
    content = result.content | {"config": slower.config.as_dict(), "id": slower.id, "training_seconds": 100 * took}
    content["environment"] = content["environment"] | {"device": "an abacus"}
    results.put(RunResult(content))
    assert seconds_of([other], results, runs, result.device) == [pytest.approx(15 * per_epoch + measuring)]
    assert seconds_of([other], results, runs, "an abacus") == [pytest.approx(1500 * per_epoch + measuring)]
    assert seconds_of([other], results, runs, "unheard of")[0] > 15 * per_epoch  # of all that there are


def test_with_little_time_nothing_is_begun_and_tables_are_made_of_what_there_is(tmp_path: Path) -> None:
    said = io.StringIO()
    where = {"results": tmp_path / "results", "runs": tmp_path / "runs", "data_dir": tmp_path / "data"}
    scale = smaller(quick=True)
    make_up(where["results"], ["schedule"], scale)
    for file in sorted((tmp_path / "results" / "quick" / "glyphs").iterdir())[1:]:
        file.unlink()
    done = reproduce(["schedule"], scale=scale, seeds=1, minutes=0.01, console=Console(file=said), **where)  # type: ignore[arg-type]
    assert len(done.outcome.left) == 3
    assert "3 would have taken longer" in said.getvalue()
    assert [table.name for table in done.tables] == ["schedule-glyphs"]
    assert not (tmp_path / "data").exists()
    with pytest.raises(InputError, match="some time"):
        reproduce(["schedule"], scale=scale, seeds=1, minutes=0, console=QUIET, **where)  # type: ignore[arg-type]


def test_a_process_that_dies_fails_its_job_only(data_dir: Path, tmp_path: Path) -> None:
    results, runs = Results(tmp_path / "results"), tmp_path / "runs"
    jobs = [job_of(LONG), job_of(SHORT)]
    place = LocalMachine(results, runs, data_dir)

    def kill() -> None:
        metrics = runs / jobs[0].id / "metrics.jsonl"
        while not metrics.is_file() or metrics.read_text().count("\n") < 2:
            time.sleep(0.05)
        process = place.slots[0].process
        assert process is not None
        process.kill()

    threading.Thread(target=kill, daemon=True).start()
    outcome = run_jobs(jobs, results, runs, place, console=QUIET)
    assert [failure.text for failure in outcome.failed] == ["ended by signal 9"]
    assert [job.id for job in outcome.done] == [jobs[1].id]


def test_a_dataset_that_is_not_there_is_said_once_and_nothing_is_begun(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="'cifar-fs' is not prepared .* Run: nearshot data prepare"):
        reproduce(
            ["schedule"],
            results=tmp_path / "results",
            runs=tmp_path / "runs",
            data_dir=tmp_path / "data",
            console=QUIET,
        )
    assert not (tmp_path / "runs").exists()


def test_results_that_could_not_be_written_are_found_out_before_anything_is_trained(data_dir: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:  # into pytest's own nobody else may look
        results, runs = Path(folder, "results"), Path(folder, "runs")
        results.mkdir()
        runs.mkdir()
        Path(folder).chmod(0o755)
        runs.chmod(0o777)
        place = ThisProcess(Results(results), runs, data_dir)
        where = {"results": results, "runs": runs, "place": place, "console": QUIET}
        answer = rf"^Results cannot be written to {re.escape(str(results))}\S*: Permission denied\.$"
        with locked(results, rights=0o555), pytest.raises(NearshotError, match=answer):
            reproduce(["schedule"], scale=smaller(quick=True, steps=2), seeds=1, **where)  # type: ignore[arg-type]
        assert not list(runs.iterdir())


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"names": "pairs"}, r"names must be several; for one, write \['pairs'\]"),
        ({"names": ["pairs"], "only": "*"}, r"only must be several; for one, write \['\*'\]"),
        ({"names": ["pairs"], "scale": "quick"}, r"scale must be one that .*smaller\(…\) gives, not 'quick'"),
        ({"names": ["pairs"], "seeds": 1.5}, "at least 1 training seed, not 1.5"),
    ],
    ids=str,
)
def test_a_slip_in_python_is_one_clear_sentence(given: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=message):
        reproduce(**given, results=tmp_path, console=QUIET)


def test_without_a_terminal_every_job_that_ends_is_a_line(data_dir: Path, tmp_path: Path) -> None:
    said = io.StringIO()
    jobs = [job_of(SHORT, dataset="missing"), job_of(SHORT)]
    results = Results(tmp_path / "results")
    place = ThisProcess(results, tmp_path / "runs", data_dir)
    run_jobs(jobs, results, tmp_path / "runs", place, console=Console(file=said, width=30))
    lines = [line.strip() for line in said.getvalue().splitlines() if "/2: " in line]
    assert all(line.endswith(" s") for line in lines)  # whole, whatever the width
    assert [line.split(": ")[0] for line in lines] == ["0/2", "1/2"]
    assert ["failed in" in lines[0], "done in" in lines[1]] == [True, True]


@pytest.mark.parametrize("seeds", [0, -1])
def test_there_is_at_least_one_seed(seeds: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(InputError, match=f"at least 1 training seed, not {seeds}"):
        reproduce(["schedule"], scale=smaller(quick=True), seeds=seeds, results=tmp_path, console=QUIET)
    for options in (["schedule"], ["--list"], ["--all", "--tables-only"]):
        assert main(["reproduce", *options, "--quick", "--seeds", str(seeds), "--results", str(tmp_path)]) == 1
        assert f"--seeds must be at least 1, not {seeds}." in capsys.readouterr().err
