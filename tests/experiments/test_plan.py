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
    ENOUGH,
    H200,
    SECONDS_TO_START,
    cost_of,
    duration,
    images_of,
    seconds_of,
)
from nearshot.experiments.executors.base import ThisProcess
from nearshot.experiments.jobs import Job, chosen_jobs, do, jobs_of
from nearshot.experiments.measurement import TREATMENTS
from nearshot.experiments.paper_configs import BATCH_SIZES
from nearshot.experiments.plan import Plan, plan_of
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


def test_jobs_are_sorted_by_what_is_left_of_them(done: Path) -> None:
    results, runs = Results(done / "results"), done / "runs"
    first, second = tiny_job(), tiny_job(seed=1)
    plan = plan_of([first, second], results, runs)
    assert (plan.done, plan.trained, plan.measured, plan.again) == ((first,), (second,), (), ())
    assert plan.sentences() == ["2 trainings: 1 done, 1 to train."]
    more = plan_of([with_more(first)], results, runs)
    assert (more.measured, more.again) == ((with_more(first),), ())
    assert plan_of([first], results, runs).sentences() == []


def test_a_plan_counts_all_and_names_the_first_three(tmp_path: Path) -> None:
    jobs = tuple(tiny_job(seed) for seed in range(8))
    plan = Plan(jobs[:1], jobs[1:2], jobs[2:3], jobs[3:], tmp_path)
    assert plan.left == jobs[1:]
    names = ", ".join(job.name for job in jobs[3:6])
    everything, more, again = plan.sentences()
    assert everything == "8 trainings: 1 done, 1 to train."
    assert more == "1 training to measure more of; the weights are there."
    assert again.startswith("5 trainings to train AGAIN: ")
    assert again.endswith(f" ({names} and 2 more)")
    assert replace(plan, again=jobs[3:6]).sentences()[2].endswith(f" ({names})")
    rather_not = plan.without_again()
    assert rather_not.left == jobs[1:3]
    everything, _, as_they_are = rather_not.sentences()
    assert everything == "8 trainings: 1 done, 1 to train."
    assert as_they_are.startswith("5 trainings left as they are: ")
    assert as_they_are.endswith(f" ({names} and 2 more)")
    assert rather_not.without_again() == rather_not


def test_weights_that_are_gone_are_said_before_they_are_trained_again(done: Path, tmp_path: Path) -> None:
    shutil.copytree(done / "results", tmp_path / "results")
    results = Results(tmp_path / "results")
    before = results.get(tiny_job().config, "tiny")
    assert before is not None
    plan = plan_of([with_more(tiny_job())], results, tmp_path / "runs")
    said = " ".join(plan.sentences())
    assert "1 training to train AGAIN" in said
    assert tiny_job().name in said
    assert "1 training: 0 done, 0 to train." in said
    (again,) = plan.again
    assert set(again.measurements) == {*before.measurements, MORE}  # nothing that was measured is lost
    place = ThisProcess(results, tmp_path / "runs", done / "data", CPU)
    place.start(again, tmp_path / "runs" / again.id)
    assert [problem for _, problem in place.ended()] == [None]
    after = results.get(again.config, "tiny")
    assert after is not None
    assert all(after.has(one) for one in (*before.measurements, MORE))


def test_a_run_without_its_weights_is_trained_again_and_not_taken_for_finished(done: Path, tmp_path: Path) -> None:
    shutil.copytree(done / "runs", tmp_path / "runs")
    job = with_more(tiny_job())
    shutil.rmtree(tmp_path / "runs" / job.id / "weights")
    assert plan_of([job], Results(done / "results"), tmp_path / "runs").again
    result = do(job, tmp_path / "runs" / job.id, data_dir=done / "data", hardware=CPU, show=False)
    assert result.has(MORE)


def test_a_finished_run_is_measured_without_its_checkpoint(done: Path, tmp_path: Path) -> None:
    shutil.copytree(done / "runs", tmp_path / "runs")
    job = with_more(tiny_job())
    run = tmp_path / "runs" / job.id
    (run / "checkpoint.pt").unlink()
    weights = {path: path.read_bytes() for path in (run / "weights").iterdir()}
    assert plan_of([job], Results(done / "results"), tmp_path / "runs").measured
    result = do(job, run, data_dir=done / "data", hardware=CPU, show=False, n_sharing=4)
    assert result.has(MORE)
    assert result.n_sharing == 1  # as it was trained
    assert result.measuring_seconds is None  # which would be taken for seconds of a GPU of its own
    assert do(job, run, data_dir=done / "data", hardware=CPU, show=False).measuring_seconds is not None
    assert {path: path.read_bytes() for path in (run / "weights").iterdir()} == weights
    before = Results(done / "results").get(job.config, "tiny")
    assert before is not None
    assert result.history == before.history
    (run / "job.json").write_text('{"name": "tiny"}')  # of an older runner
    assert do(job, run, data_dir=done / "data", hardware=CPU, show=False, n_sharing=2).n_sharing == 2
    told = json.loads((run / "result.json").read_text())
    told["environment"]["device"] = "another"
    (run / "result.json").write_text(json.dumps(told))
    assert do(job, run, data_dir=done / "data", hardware=CPU, show=False).measuring_seconds is None


def test_a_finished_run_of_other_data_is_not_measured(done: Path, tmp_path: Path) -> None:
    shutil.copytree(done / "runs", tmp_path / "runs")
    job = with_more(tiny_job())
    told = tmp_path / "runs" / job.id / "result.json"
    result = json.loads(told.read_text())
    result["fingerprints"]["val"] = "another"
    told.write_text(json.dumps(result))
    with pytest.raises(InputError, match="The run is of other data: the val split"):
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


def test_the_command_says_it_and_writes_down_how_long_it_took(tmp_path: Path) -> None:
    results = make_up(tmp_path / "results", ["classifiers"], QUICK)
    said = io.StringIO()

    class Nowhere(ThisProcess):
        def start(self, job: Job, run_folder: Path) -> None:
            self._ended.append((job, "nowhere to train"))

    place = Nowhere(results, tmp_path / "runs")
    console = Console(file=said, width=1000)
    reproduce(["adaptation"], scale=QUICK, seeds=1, results=results.folder, place=place, console=console)
    assert "1 training to train AGAIN" in said.getvalue()
    note = json.loads((results.folder / "quick" / "last-run.json").read_text())
    assert (note["done"], note["failed"], note["trained_again"]) == (0, 1, 1)
    assert note["seconds"] >= 0
    assert note["environment"]["torch"]


def test_what_would_be_trained_again_can_be_left_as_it_is(tmp_path: Path) -> None:
    results = make_up(tmp_path / "results", ["classifiers"], QUICK)
    said = io.StringIO()
    done = reproduce(
        ["adaptation"],
        scale=QUICK,
        seeds=1,
        results=results.folder,
        runs=tmp_path / "runs",
        place=ThisProcess(results, tmp_path / "runs"),
        train_again=False,
        console=Console(file=said, width=1000),
    )
    assert said.getvalue().startswith("1 training: 0 done, 0 to train.\n1 training left as it is: there are results")
    assert [done.outcome.done, done.outcome.failed, done.outcome.left] == [[], [], []]
    assert not (tmp_path / "runs").exists()
    assert done.tables  # of what there is


def test_trainings_are_chosen_by_name_in_the_order_of_the_patterns() -> None:
    jobs = jobs_of([RECIPES["comparison"]], "cifar-fs", PAPER, range(2))
    assert chosen_jobs(jobs, []) == jobs
    names = [job.name for job in chosen_jobs(jobs, ["*prototypical,seed=1", "cifar-fs-nca*", "*,seed=1"])]
    assert names[:3] == ["cifar-fs-prototypical,seed=1", "cifar-fs-nca", "cifar-fs-nca,seed=1"]
    assert len(names) == len(set(names)) == len(jobs) // 2 + 1
    with pytest.raises(InputError, match=r"None of these trainings is called 'nca'\. They are: cifar-fs-matching, "):
        chosen_jobs(jobs, ["nca"])
    with pytest.raises(InputError, match=r"is called 'a,b' \(several patterns are separated by spaces\)\. They are: c"):
        chosen_jobs(jobs, ["a,b"])
    with pytest.raises(InputError, match=r"^Nothing of it is trained; leave --only out\.$"):
        chosen_jobs([], ["*"])


def test_the_list_says_what_is_left_as_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_up(tmp_path, ["schedule"], PAPER, dataset="cifar-fs")
    job = jobs_of([RECIPES["schedule"]], "cifar-fs", PAPER, [0])[0]
    again = plan_of([replace(job, measurements=(Measurement("test", 1, "knn"),))], Results(tmp_path), tmp_path)
    assert again.states() == {job.id: "to train again"}
    assert again.without_again().states() == {job.id: "left as it is"}
    make_up(tmp_path, ["comparison"], PAPER, dataset="cifar-fs")
    command = [
        "reproduce",
        "adaptation-steps",
        "--dataset",
        "cifar-fs",
        "--list",
        "--seeds",
        "1",
        "--results",
        str(tmp_path),
    ]
    assert main([*command, "--only", "*"]) == 0
    assert "cifar-fs-nca: to train again" in capsys.readouterr().out
    assert main([*command, "--only", "*", "--no-train-again"]) == 0
    assert "cifar-fs-nca: left as it is" in capsys.readouterr().out


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
    hours = [
        cost_of(jobs_of(RECIPES.values(), None, scale, [0]), results).seconds / 3600
        for scale in (PAPER, smaller(input_size=32), smaller(steps=2))
    ]
    assert 5 < hours[0] < 12
    assert 1.5 < hours[1] < hours[0] / 2
    assert 0.1 < hours[2] < 0.5
    quick = cost_of(jobs_of(RECIPES.values(), None, QUICK, [0]), results, n_at_once=2)
    assert "2 at once" in str(quick)
    assert 300 < quick.seconds < 3600
    assert str(cost_of([], results)) == "–"


def test_what_trainings_took_before_is_what_others_will_take(tmp_path: Path) -> None:
    changes = {"job_seconds": 100.0, "environment": {"device": "Apple M9"}}
    results = make_up(tmp_path, ["schedule"], QUICK, changes=changes)
    job = jobs_of([RECIPES["schedule"]], None, QUICK, [0])[1]
    cost = cost_of([job], results)
    assert str(cost) == "about 2 min on Apple M9, as before"
    assert 60 < cost.seconds < 140


def test_trainings_are_judged_by_others_of_their_batch_size_where_there_are_enough(tmp_path: Path) -> None:
    results = make_up(tmp_path, ["batch-size"], PAPER, dataset="cifar-fs")
    jobs: dict[int, list[Job]] = {size: [] for size in BATCH_SIZES}
    for job in jobs_of([RECIPES["batch-size"]], "cifar-fs", PAPER, [0]):
        jobs[job.config.batch_size].append(job)
    taken = {128: 400.0, 256: 200.0, 512: 100.0}  # for as many images
    for size, some in jobs.items():
        for job in some:
            file = results.path(job.config, "paper")
            content = json.loads(file.read_text())
            content["training_seconds"] = taken[size]
            file.write_text(json.dumps(content))
    for size, (first, *others) in jobs.items():
        assert images_of(first.config) == images_of(jobs[512][0].config)
        assert len(others) >= ENOUGH
        assert cost_of([first], Results(tmp_path)).seconds == pytest.approx(taken[size], rel=0.01)
        for job in (first, *others[ENOUGH - 2 :]) if size == 128 else ():
            results.path(job.config, "paper").unlink()
    # Too few of 128 are left, so that all tell: their median.
    assert cost_of(jobs[128][:1], Results(tmp_path)).seconds == pytest.approx(200.0, rel=0.01)


def test_costs_are_by_the_median_training_as_if_it_had_had_its_gpu_alone(tmp_path: Path) -> None:
    jobs = [replace(tiny_job(seed), config=replace(tiny_job(seed).config, steps_per_epoch=5)) for seed in range(5)]
    (made_up, *_), results = make_up(tmp_path / "made up", ["schedule"], QUICK), Results(tmp_path / "results")
    alone = [(100.0, 1, "Apple M9"), (200.0, 2, "an abacus"), (900.0, 1, "an abacus")]
    for job, (seconds, n_sharing, device) in zip(jobs, alone, strict=False):
        told = {"id": job.id, "scale": job.scale, "config": job.config.as_dict(), "environment": {"device": device}}
        took = {"training_seconds": seconds * n_sharing, "measuring_seconds": seconds * n_sharing / 10}
        results.put(RunResult(made_up.content | told | took | {"n_sharing": n_sharing}))
    n_images = images_of(jobs[4].config)
    assert cost_of(jobs[4:], results, n_at_once=4) == pytest.approx((n_images, 220.0, "an abacus, as before", 1))
    both = cost_of(jobs[3:], results, n_at_once=4)  # no more at once than there are
    assert both == pytest.approx((2 * n_images, 220.0, "an abacus, as before", 2))
    one_by_one = cost_of(iter(jobs[3:]), results)
    assert one_by_one == pytest.approx((2 * n_images, 440.0, "an abacus, as before", 1))
    assert str(both) == "about 4 min on an abacus, as before, 2 at once"
    assert str(cost_of(jobs[4:], results, n_at_once=4)) == "about 4 min on an abacus, as before"


def test_a_small_network_takes_as_long_as_its_images_are_large(tmp_path: Path) -> None:
    """On a core, which was measured at 28×28."""
    seconds = []
    for side in (28, 56):
        job = replace(tiny_job(), config=replace(PRESETS["glyphs-nca"], backbone="conv4", input_size=side))
        cost = cost_of([job], Results(tmp_path))
        seconds.append(cost.seconds - SECONDS_TO_START)
        assert cost.where == "a CPU core"
    assert seconds == pytest.approx([cost.images / CORE_AT_28, 4 * cost.images / CORE_AT_28])


@pytest.mark.parametrize("side", H200)
def test_without_results_costs_are_by_what_an_h200_was_measured_to_take(side: int, tmp_path: Path) -> None:
    job = replace(tiny_job(), config=replace(PRESETS["cifar-fs-nca"], input_size=side))
    expected = images_of(job.config) / H200[side] + SECONDS_TO_START
    assert cost_of([job], Results(tmp_path)) == pytest.approx((images_of(job.config), expected, "an H200", 1))
    assert seconds_of([job], Results(tmp_path), tmp_path, "an H200") == pytest.approx([expected])


@pytest.mark.parametrize(
    ("seconds", "words"), [(0, "1 min"), (89, "1 min"), (91, "2 min"), (3590, "60 min"), (3600, "1.0 h")]
)
def test_a_duration_is_in_whole_minutes_or_tenths_of_hours(seconds: float, words: str) -> None:
    assert duration(seconds) == words


@pytest.mark.parametrize("options", [["--quick"], ["--input-size", "32"], ["--steps", "2"], []])
def test_the_list_tells_names_and_costs(
    options: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    assert main(["reproduce", "--list", *options, "--results", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert set(RECIPES) < {line.split(":")[0] for line in out.splitlines()}  # whole, to be typed again
    assert max(map(len, out.splitlines())) <= 60
    assert "Together: 0 of" in out
    assert "about" in out


def test_the_list_names_the_trainings_that_a_pattern_chooses(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    make_up(tmp_path, ["schedule"], QUICK)
    jobs = jobs_of([RECIPES["schedule"]], None, QUICK, [0, 1])
    shared = ["reproduce", "schedule", "--list", "--quick", "--seeds", "2", "--results", str(tmp_path)]
    assert main([*shared, "--only", "*,seed=1,*", jobs[0].name]) == 0
    said = [line.split(": ") for line in capsys.readouterr().out.splitlines()]
    second = [job.name for job in jobs if job.config.seed == 1]
    names = [line[0].removesuffix(":") for line in said if line[0].startswith(("glyphs", "Together"))]
    assert names == [*second, jobs[0].name, "Together"]  # whole, to be typed again
    states = [line[0].split(";")[0].strip() for line in said if line[0].startswith("    ")]
    assert states[:-1] == ["to train"] * len(second) + ["done"]
    (together,) = [line for line in said if line[0] == "Together"]
    assert together[1] == f"1 of {len(second) + 1} trainings done; left"
    assert main([*shared, "--only", "nothing"]) == 1
    assert "None of these trainings is called 'nothing'" in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize("listing", [["--list"], ["--all", "--tables-only"]])
@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--dataset", "foo"], "There is no dataset of the paper 'foo'; choose one of 'cifar-fs', "),
        (["--quick", "--dataset", "cifar-fs"], "The quick form runs on glyphs; leave the dataset out."),
    ],
)
def test_a_dataset_that_there_is_not_is_refused(
    listing: list[str], options: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["reproduce", *listing, *options, "--results", str(tmp_path)]) == 1
    assert said in " ".join(capsys.readouterr().err.split())
