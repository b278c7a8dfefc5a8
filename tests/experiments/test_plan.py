"""What is said before anything is trained: what is done, what is left, what has to be trained again, and the cost."""

from __future__ import annotations

import io
import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_up import make_up
from rich.console import Console
from tiny import prepare_tiny
from tiny_jobs import CPU, tiny_job

from nearshot.cli import main
from nearshot.errors import FileFormatError, InputError
from nearshot.experiments import RECIPES, Results, reproduce
from nearshot.experiments.costs import (
    CORE_AT_28,
    H200,
    SECONDS_TO_MEASURE,
    SECONDS_TO_START,
    describe_cost,
    estimates,
    images_of,
    rough_duration,
    seconds_left,
)
from nearshot.experiments.executors.base import ThisProcess
from nearshot.experiments.jobs import Job, chosen_jobs, do, jobs_of
from nearshot.experiments.measurement import TREATMENTS
from nearshot.experiments.plan import JobPlan, plan_of
from nearshot.experiments.reproduce import ReproductionOptions
from nearshot.experiments.results import Measurement, RunResult
from nearshot.experiments.scales import PAPER, QUICK, smaller
from nearshot.training import PRESETS

MORE = Measurement("test", 1, "soft")


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a job done: its data, its run and its result."""
    folder = tmp_path_factory.mktemp("plan")
    prepare_tiny(folder / "data")
    job = tiny_job()
    Results(folder / "results").put(
        do(job, folder / "runs" / job.id, data_dir=folder / "data", hardware=CPU, show=False)
    )
    return folder


def with_more(job: Job) -> Job:
    return replace(job, measurements=(*job.measurements, MORE))


def test_jobs_are_classified_by_what_is_left(done: Path, tmp_path: Path) -> None:
    results, runs = Results(done / "results"), done / "runs"
    first, second = tiny_job(), tiny_job(seed=1)
    assert plan_of([first, second], results, runs) == JobPlan(runs, done=(first,), trained=(second,))
    assert plan_of([with_more(first)], results, runs) == JobPlan(runs, measured=(with_more(first),))
    assert plan_of([first], results, runs).sentences() == []
    gone = plan_of([with_more(first)], results, tmp_path)
    assert gone.states() == {first.id: "to train again"}
    skipped = plan_of([with_more(first)], results, tmp_path, train_again=False)
    assert (skipped.left, skipped.skipped, skipped.states()) == ((), gone.again, {first.id: "skipped"})


def test_a_plan_counts_all_and_names_the_first_three(tmp_path: Path) -> None:
    jobs = tuple(tiny_job(seed) for seed in range(8))
    plan = JobPlan(tmp_path, jobs[:1], jobs[1:2], jobs[2:3], jobs[3:])
    assert plan.left == jobs[1:]
    names = ", ".join(job.name for job in jobs[3:6])
    everything, more, again = plan.sentences()
    assert everything == "8 runs: 1 done, 1 to train."
    assert more.startswith("1 run to measure")
    assert again.startswith("5 runs to train AGAIN: ")
    assert again.endswith(f" ({names} and 2 more)")
    assert replace(plan, again=jobs[3:6]).sentences()[2].endswith(f" ({names})")
    assert replace(plan, again=(), skipped=jobs[3:]).sentences()[2].startswith("5 runs skipped: ")


def test_weights_that_are_gone_are_trained_again_and_nothing_measured_is_lost(done: Path, tmp_path: Path) -> None:
    shutil.copytree(done / "results", tmp_path / "results")
    shutil.copytree(done / "runs", tmp_path / "runs")
    shutil.rmtree(tmp_path / "runs" / tiny_job().id / "weights")
    results = Results(tmp_path / "results")
    before = results.get(tiny_job().config, "tiny")
    assert before is not None
    (again,) = plan_of([with_more(tiny_job())], results, tmp_path / "runs").again
    assert set(again.measurements) == {*before.measurements, MORE}
    executor = ThisProcess(results, tmp_path / "runs", done / "data", CPU)
    executor.start(again)
    assert [problem for _, problem in executor.ended()] == [None]
    after = results.get(again.config, "tiny")
    assert after is not None
    assert all(after.has(one) for one in (*before.measurements, MORE))


def test_a_finished_run_is_measured_without_its_checkpoint(done: Path, tmp_path: Path) -> None:
    shutil.copytree(done / "runs", tmp_path / "runs")
    job = with_more(tiny_job())
    run = tmp_path / "runs" / job.id
    (run / "checkpoint.pt").unlink()
    weights = {path: path.read_bytes() for path in (run / "weights").iterdir()}
    assert plan_of([job], Results(done / "results"), tmp_path / "runs").measured
    result = do(job, run, data_dir=done / "data", hardware=CPU, show=False)
    assert result.has(MORE)
    assert {path: path.read_bytes() for path in (run / "weights").iterdir()} == weights
    before = Results(done / "results").get(job.config, "tiny")
    assert before is not None
    assert result.history == before.history


def test_a_finished_run_of_other_data_is_not_measured(done: Path, tmp_path: Path) -> None:
    shutil.copytree(done / "runs", tmp_path / "runs")
    job = with_more(tiny_job())
    file = tmp_path / "runs" / job.id / "result.json"
    result = json.loads(file.read_text())
    result["fingerprints"]["val"] = "another"
    file.write_text(json.dumps(result))
    with pytest.raises(InputError, match="val"):
        do(job, tmp_path / "runs" / job.id, data_dir=done / "data", hardware=CPU, show=False)


def test_another_training_of_the_same_settings_puts_the_earlier_result_aside(done: Path, tmp_path: Path) -> None:
    shutil.copytree(done / "results", tmp_path / "results")
    results = Results(tmp_path / "results")
    first = results.get(tiny_job().config, "tiny")
    assert first is not None
    for number in (1, 2):
        other = json.loads(json.dumps(first.content))
        other["history"][0]["loss"] += number
        results.put(RunResult(other))
    assert len(list(results)) == 1
    aside = sorted((tmp_path / "results").glob("*/*/earlier/*.json"))
    assert [json.loads(path.read_text())["history"][0]["loss"] for path in aside] == [
        first.history[0]["loss"],
        first.history[0]["loss"] + 1,
    ]
    assert json.loads(aside[0].read_text())["accuracies"] == first.content["accuracies"]


def test_the_command_says_it_and_writes_a_summary(tmp_path: Path) -> None:
    results = make_up(tmp_path / "results", ["classifiers"], QUICK)
    said = io.StringIO()

    class Nowhere(ThisProcess):
        def start(self, job: Job) -> None:
            self._ended.append((job, "nowhere to train"))

    executor, console = Nowhere(results, tmp_path / "runs"), Console(file=said, width=1000)
    reproduce(["adaptation"], scale=QUICK, results=results.folder, executor=executor, console=console)
    assert "1 run to train AGAIN" in said.getvalue()
    summary = json.loads((results.folder / "quick" / "last-run.json").read_text())
    assert (summary["done"], summary["failed"], summary["trained_again"]) == (0, 1, 1)
    assert summary["seconds"] >= 0
    assert summary["environment"]["torch"]


def test_a_run_that_would_be_trained_again_can_be_skipped(tmp_path: Path) -> None:
    results = make_up(tmp_path / "results", ["classifiers"], QUICK)
    said, executor = io.StringIO(), ThisProcess(results, tmp_path / "runs")
    options = ReproductionOptions(train_again=False, results=results.folder, runs=tmp_path / "runs")
    done = reproduce(["adaptation"], options, scale=QUICK, executor=executor, console=Console(file=said))
    assert "1 run skipped" in said.getvalue()
    assert [done.outcome.done, done.outcome.failed, done.outcome.left] == [[], [], []]
    assert not (tmp_path / "runs").exists()
    assert done.tables  # of what is available


def test_runs_are_chosen_by_name_in_the_order_of_the_patterns() -> None:
    jobs = jobs_of([RECIPES["comparison"]], "cifar-fs", PAPER, range(2))
    assert chosen_jobs(jobs, []) == jobs
    names = [job.name for job in chosen_jobs(jobs, ["*prototypical,seed=1", "cifar-fs-nca*", "*,seed=1"])]
    assert names[:3] == ["cifar-fs-prototypical,seed=1", "cifar-fs-nca", "cifar-fs-nca,seed=1"]
    assert len(names) == len(set(names)) == len(jobs) // 2 + 1
    for pattern in ("nca", "a,b"):
        with pytest.raises(InputError, match=f"{pattern!r}.*cifar-fs-matching, "):
            chosen_jobs(jobs, [pattern])
    with pytest.raises(InputError, match="only"):
        chosen_jobs([], ["*"])


def test_all_datasets_that_are_missing_are_named_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    where = ["--results", str(tmp_path / "results"), "--runs", str(tmp_path / "runs"), "--data-dir", str(tmp_path)]
    assert main(["reproduce", "comparison", "--dataset", "all", "--seeds", "1", *where]) == 1
    said = capsys.readouterr().err
    assert all(name in said for name in RECIPES["comparison"].datasets)


measurements = st.builds(
    Measurement,
    st.sampled_from(["train", "val", "test"]),
    st.integers(1, 50),
    st.sampled_from(["centroid", "soft", "knn"]),
    st.lists(st.integers(1, 9), max_size=4).map(tuple),
    st.sampled_from([None, "fine-tuned", "mahalanobis"]),
    st.sampled_from(list(TREATMENTS)),
)


@given(measurements)
def test_a_measurement_is_found_again_by_its_name(one: Measurement) -> None:
    assert Measurement.named(one.name) == one


def test_a_name_that_is_none_is_refused() -> None:
    with pytest.raises(FileFormatError, match="'5-shot' is not a measurement"):
        Measurement.named("5-shot")


@pytest.mark.parametrize(
    ("preset", "images"),
    [
        ("cifar-fs-nca", 240 * 75 * 512),
        ("cifar-fs-prototypical-snell", 240 * 75 * 20 * 20),  # 400 images a batch, not 512
        ("tiered-imagenet-nca", 150 * 439 * 1008),
        ("tiered-imagenet-simpleshot", 150 * (448_695 // 1023) * 1023),
    ],
)
def test_costs_count_the_images_that_batches_have(preset: str, images: int) -> None:
    assert images_of(PRESETS[preset]) == images


def test_every_scale_has_an_estimate_and_smaller_ones_cost_less(tmp_path: Path) -> None:
    results = Results(tmp_path)
    paper, small, trial, quick = (
        sum(one.seconds for one in estimates(jobs_of(RECIPES.values(), None, scale, [0]), results)) / 3600
        for scale in (PAPER, smaller(input_size=32), smaller(steps=2), QUICK)
    )
    assert 5 < paper < 12
    assert 1.5 < small < paper / 2
    assert 0.1 < trial < 0.5
    assert 0.1 < quick < 1
    assert describe_cost([], results) == ""


def test_estimates_are_the_median_of_earlier_runs_on_a_gpu_alone(tmp_path: Path) -> None:
    jobs = [replace(tiny_job(seed), config=replace(tiny_job(seed).config, steps_per_epoch=5)) for seed in range(5)]
    (made_up, *_), results = make_up(tmp_path / "made up", ["schedule"], QUICK), Results(tmp_path / "results")
    alone = [(100.0, 1, "Apple M9"), (200.0, 2, "an abacus"), (900.0, 1, "an abacus")]
    for job, (seconds, n_sharing, device) in zip(jobs, alone, strict=False):
        changes = {"scale": job.scale, "config": job.config.as_dict(), "environment": {"device": device}}
        took = {"training_seconds": seconds * n_sharing, "measuring_seconds": seconds * n_sharing / 10}
        results.put(RunResult(made_up.content | changes | took | {"n_sharing": n_sharing}))
    assert estimates(jobs[4:], results)[0] == pytest.approx((200.0, 20.0, "an abacus, as before"))
    assert estimates(jobs[4:], results, "Apple M9")[0] == pytest.approx((100.0, 10.0, "Apple M9, as before"))
    assert estimates(jobs[4:], results, "unheard of")[0].training == pytest.approx(200.0)
    assert describe_cost(jobs[3:], results, 4).endswith("about 4 min on an abacus, as before, 2 at once")
    assert describe_cost(jobs[4:], results, 4).endswith("about 4 min on an abacus, as before")
    other = replace(jobs[4], config=replace(jobs[4].config, batch_size=2 * jobs[4].config.batch_size))
    assert estimates([other], results)[0].training == pytest.approx(400.0)  # by other batch sizes, if need be
    slow = made_up.content | {"scale": other.scale, "config": replace(other.config, seed=9).as_dict()}
    results.put(RunResult(slow | {"training_seconds": 1000.0, "n_sharing": 1}))
    assert estimates([other], results)[0].training == pytest.approx(1000.0)


def test_the_rest_of_a_run_takes_its_share_of_the_epochs(done: Path, tmp_path: Path) -> None:
    results, runs = Results(done / "results"), tmp_path / "runs"
    shutil.copytree(done / "runs", runs)
    job = replace(tiny_job(), config=replace(tiny_job().config, steps_per_epoch=5))
    other = replace(job, config=replace(job.config, epochs=60))
    (whole,) = estimates([other], results)
    assert seconds_left([tiny_job(), other], results, runs, "") == pytest.approx([whole.measuring, whole.seconds])
    (runs / other.id).mkdir()
    (runs / other.id / "metrics.jsonl").write_text("{}\n" * 45)
    assert seconds_left([other], results, runs, "") == pytest.approx([whole.training / 4 + whole.measuring])
    adapting = replace(tiny_job(), measurements=(Measurement("val", 5, "centroid", adapted="fine-tuned"),))
    assert seconds_left([adapting], results, runs, "") == [SECONDS_TO_MEASURE]  # no earlier run tells


@pytest.mark.parametrize(
    ("preset", "backbone", "side", "rate", "where"),
    [
        ("glyphs-nca", "conv4", 28, CORE_AT_28, "a CPU core"),
        ("glyphs-nca", "conv4", 56, CORE_AT_28 / 4, "a CPU core"),
        ("cifar-fs-nca", "resnet12", 84, H200[84], "an H200"),
        ("cifar-fs-nca", "resnet12", 32, H200[32], "an H200"),
    ],
)
def test_without_results_estimates_are_by_known_machines(
    preset: str, backbone: str, side: int, rate: float, where: str, tmp_path: Path
) -> None:
    job = replace(tiny_job(), config=replace(PRESETS[preset], backbone=backbone, input_size=side))
    expected = images_of(job.config) / rate + SECONDS_TO_START
    assert estimates([job], Results(tmp_path)) == [pytest.approx((expected, 0.0, where))]


@pytest.mark.parametrize(
    ("seconds", "words"), [(0, "1 min"), (89, "1 min"), (91, "2 min"), (3590, "60 min"), (3600, "1.0 h")]
)
def test_a_duration_is_in_whole_minutes_or_tenths_of_hours(seconds: float, words: str) -> None:
    assert rough_duration(seconds) == words


@pytest.mark.parametrize("options", [["--quick"], ["--input-size", "32", "--steps", "2"]])
def test_the_list_has_names_and_costs(
    options: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    assert main(["reproduce", "--list", *options, "--results", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert set(RECIPES) < {line.split(":")[0] for line in out.splitlines()}  # whole, to be copied
    assert max(map(len, out.splitlines())) <= 60
    assert "Together:\n    0 of" in out
    assert "about" in out


def test_the_list_names_the_runs_that_a_pattern_chooses(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    make_up(tmp_path, ["schedule"], QUICK)
    jobs = jobs_of([RECIPES["schedule"]], None, QUICK, [0, 1])
    shared = ["reproduce", "schedule", "--list", "--quick", "--seeds", "2", "--results", str(tmp_path)]
    assert main([*shared, "--only", "*,seed=1,*", jobs[0].name]) == 0
    entries = dict(line.split(": ", 1) for line in capsys.readouterr().out.splitlines() if line.startswith(("gl", "T")))
    second = [job.name for job in jobs if job.config.seed == 1]
    assert list(entries) == [*second, jobs[0].name, "Together"]
    assert list(entries.values())[:-1] == ["to train"] * len(second) + ["done"]
    assert entries["Together"].startswith(f"1 of {len(second) + 1} runs done; left")
    assert main([*shared, "--only", "nothing"]) == 1
    assert "'nothing'" in " ".join(capsys.readouterr().err.split())


def test_the_list_shows_what_is_trained_again_or_skipped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_up(tmp_path, ["comparison"], PAPER, dataset="cifar-fs")
    command = ["reproduce", "adaptation-steps", "--dataset", "cifar-fs", "--list", "--seeds", "1", "--only", "*"]
    for options, state in (([], "to train again"), (["--no-train-again"], "skipped")):
        assert main([*command, *options, "--results", str(tmp_path)]) == 0
        assert f"cifar-fs-nca: {state}" in capsys.readouterr().out


@pytest.mark.parametrize("listing", [["--list"], ["--all", "--tables-only"]])
@pytest.mark.parametrize(
    ("options", "said"), [(["--dataset", "foo"], "'foo'"), (["--quick", "--dataset", "cifar-fs"], "'cifar-fs'")]
)
def test_an_unknown_dataset_is_an_error(
    listing: list[str], options: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["reproduce", *listing, *options, "--results", str(tmp_path)]) == 1
    assert said in capsys.readouterr().err
