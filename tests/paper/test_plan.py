"""The plan of jobs, and what is printed before anything is trained."""

import io
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console
from tests.helpers.made_up import make_up
from tests.helpers.tiny import prepare_tiny
from tests.helpers.tiny_jobs import TINY_SIZE, ThisProcess, done_in, tiny_job

from nearshot.cli import main
from nearshot.errors import InputError
from nearshot.io import read_json, write_json
from nearshot.paper import RECIPES, Results, reproduce
from nearshot.paper.jobs import Job, JobPlan, choose_jobs, jobs_of, plan_jobs
from nearshot.paper.results import Measurement
from nearshot.paper.sizes import PAPER, QUICK

MORE = Measurement("test", 1, "soft")


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a job done: its data, its run and its result."""
    folder = tmp_path_factory.mktemp("plan")
    prepare_tiny(folder / "data")
    job = tiny_job()
    Results(folder / "results", TINY_SIZE).put(
        done_in(folder / "runs" / job.id, job, folder / "data")
    )
    return folder


def with_more(job: Job) -> Job:
    return replace(job, measurements=(*job.measurements, MORE))


def test_jobs_are_classified_by_what_is_left(done: Path, tmp_path: Path) -> None:
    results, runs = Results(done / "results", TINY_SIZE), done / "runs"
    first, second = tiny_job(), tiny_job(seed=1)
    assert plan_jobs([first, second], results, runs) == JobPlan(done=[first], to_train=[second])
    more = with_more(first)
    assert plan_jobs([more], results, runs) == JobPlan(to_measure=[more])
    without_weights = plan_jobs([more], results, tmp_path)
    (again,) = without_weights.to_train_again
    assert without_weights == JobPlan(to_train_again=[again])
    skipped = plan_jobs([more], results, tmp_path, train_again=False)
    assert skipped == JobPlan(skipped=[again])


def test_weights_that_are_gone_are_trained_again_and_nothing_measured_is_lost(
    done: Path, tmp_path: Path
) -> None:
    shutil.copytree(done / "results", tmp_path / "results")
    shutil.copytree(done / "runs", tmp_path / "runs")
    shutil.rmtree(tmp_path / "runs" / tiny_job().id / "weights")
    results = Results(tmp_path / "results", TINY_SIZE)
    before = results.get(tiny_job().config)
    assert before is not None
    (again,) = plan_jobs([with_more(tiny_job())], results, tmp_path / "runs").to_train_again
    assert set(again.measurements) == {*before.measurements, MORE}
    executor = ThisProcess(results, tmp_path / "runs", done / "data")
    assert executor.run(again) is None
    after = results.get(again.config)
    assert after is not None
    assert all(after.has(measurement) for measurement in (*before.measurements, MORE))


def test_a_finished_run_is_measured_without_its_checkpoint_but_not_on_other_data(
    done: Path, tmp_path: Path
) -> None:
    shutil.copytree(done / "runs", tmp_path / "runs")
    job = with_more(tiny_job())
    run = tmp_path / "runs" / job.id
    (run / "checkpoint.pt").unlink()
    weights = {path: path.read_bytes() for path in (run / "weights").iterdir()}
    assert plan_jobs([job], Results(done / "results", TINY_SIZE), tmp_path / "runs").to_measure
    result = done_in(run, job, done / "data")
    assert result.has(MORE)
    assert {path: path.read_bytes() for path in (run / "weights").iterdir()} == weights
    content = read_json(run / "result.json")
    content["fingerprints"]["val"] = "of other data"
    write_json(run / "result.json", content)
    with pytest.raises(InputError, match="val"):
        done_in(run, job, done / "data")


def test_the_command_says_what_it_trains_again_or_skips_and_writes_a_summary(
    tmp_path: Path,
) -> None:
    results, said = make_up(tmp_path / "results", ["classifiers"], QUICK), io.StringIO()

    class Nowhere(ThisProcess):
        def run(self, job: Job) -> str | None:
            return "nowhere to train"

    executor, console = Nowhere(results, tmp_path / "runs"), Console(file=said, width=1000)
    done = reproduce(
        ["adaptation"],
        size=QUICK,
        train_again=False,
        executor=executor,
        results=results.folder,
        runs=tmp_path / "runs",
        console=console,
    )
    assert "Runs: 1 skipped." in said.getvalue()
    assert [done.outcome.done, done.outcome.failed, done.outcome.left] == [[], [], []]
    assert done.tables  # of what is available
    reproduce(
        ["adaptation"], size=QUICK, results=results.folder, executor=executor, console=console
    )
    assert "Runs: 1 to train again." in said.getvalue()
    summary = json.loads((results.folder / "quick" / "last-run.json").read_text())
    assert (summary["done"], summary["failed"], summary["trained_again"]) == (0, 1, 1)
    assert summary["environment"]["torch"]


def test_runs_are_chosen_by_name_in_the_order_of_the_patterns() -> None:
    jobs = jobs_of([RECIPES["comparison"]], "cifar-fs", PAPER, range(2))
    assert choose_jobs(jobs, []) == jobs
    names = [
        job.name for job in choose_jobs(jobs, ["*prototypical,seed=1", "cifar-fs-nca*", "*,seed=1"])
    ]
    assert names[:3] == ["cifar-fs-prototypical,seed=1", "cifar-fs-nca", "cifar-fs-nca,seed=1"]
    assert len(names) == len(set(names)) == len(jobs) // 2 + 1
    with pytest.raises(InputError, match="'nca'.*cifar-fs-matching, "):
        choose_jobs(jobs, ["nca"])


def test_a_missing_dataset_is_named_before_anything_is_started(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where = [
        "--results",
        str(tmp_path / "results"),
        "--runs",
        str(tmp_path / "runs"),
        "--data-dir",
        str(tmp_path),
    ]
    assert main(["reproduce", "comparison", "--dataset", "cifar-fs", "--seeds", "1", *where]) == 1
    assert "nearshot data prepare cifar-fs" in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


@pytest.fixture
def listed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., str]:
    def run(*options: str, width: int = 300) -> str:
        monkeypatch.setenv("COLUMNS", str(width))
        assert main(["reproduce", "--list", *options, "--results", str(tmp_path)]) == 0
        return capsys.readouterr().out

    return run


@pytest.mark.parametrize("options", [["--quick"], ["--input-size", "32"]])
def test_the_list_has_names_and_what_is_left(
    options: list[str], listed: Callable[..., str]
) -> None:
    out = listed(*options, width=60)
    assert set(RECIPES) < {line.split(":")[0] for line in out.splitlines()}  # whole, to be copied
    assert max(map(len, out.splitlines())) <= 60
    assert "Together: 0 of" in out
    assert "to train" in out


def test_the_list_names_the_runs_that_a_pattern_chooses(
    tmp_path: Path, listed: Callable[..., str]
) -> None:
    make_up(tmp_path, ["schedule"], QUICK)
    jobs = jobs_of([RECIPES["schedule"]], None, QUICK, [0, 1])
    out = listed("schedule", "--quick", "--seeds", "2", "--only", "*,seed=1,*", jobs[0].name)
    entries = dict(line.split(": ", 1) for line in out.splitlines() if line.startswith(("gl", "T")))
    second = [job.name for job in jobs if job.config.seed == 1]
    assert list(entries) == [*second, jobs[0].name, "Together"]
    assert list(entries.values())[:-1] == ["to train"] * len(second) + ["done"]
    assert entries["Together"] == f"1 of {len(second) + 1} runs done, {len(second)} to train"
    make_up(tmp_path, ["comparison"], PAPER, dataset="cifar-fs")
    asked = ("adaptation-steps", "--dataset", "cifar-fs", "--seeds", "1", "--only", "*")
    assert "cifar-fs-nca: to train again" in listed(*asked)
    assert "cifar-fs-nca: skipped" in listed(*asked, "--no-train-again")


@pytest.mark.parametrize(
    ("options", "said"),
    [(["--dataset", "foo"], "'foo'"), (["--quick", "--dataset", "cifar-fs"], "'cifar-fs'")],
)
def test_an_unknown_dataset_is_an_error(
    options: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for command in (["--list"], ["--all", "--tables-only"]):
        assert main(["reproduce", *command, *options, "--results", str(tmp_path)]) == 1
        assert said in capsys.readouterr().err
