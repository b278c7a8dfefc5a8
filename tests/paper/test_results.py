"""Results: what is read from a run's files, and files that cannot be read."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
from tests.helpers.made_up import make_up
from tests.helpers.settings import TINY, change
from tests.helpers.tiny import prepare_tiny
from tests.helpers.tiny_jobs import TINY_SIZE, done_in

from nearshot.cli import main
from nearshot.io import read_json
from nearshot.paper import RECIPES
from nearshot.paper.jobs import Job, jobs_of, plan_jobs
from nearshot.paper.result_file import Measurement, RunResult, result_of
from nearshot.paper.results import Results, UnreadableResultWarning
from nearshot.paper.sizes import QUICK
from nearshot.training import RunFolder, train


def test_speeds_leave_out_what_a_process_does_before_its_first_epoch(tmp_path: Path) -> None:
    prepare_tiny(tmp_path / "data")
    config = change(TINY, epochs=4)
    train(config, folder=tmp_path / "run", data_dir=tmp_path / "data", progress=False)
    run = RunFolder(tmp_path / "run")
    assert ["first" in json.loads(line) for line in run.timing.read_text().splitlines()] == [
        True,
        False,
        False,
        False,
    ]
    measured = result_of(run, "tiny", {}).content
    assert measured["end_to_end_images_per_second"] > 0 < measured["first_epoch_seconds"]
    # The third epoch is the first of a process that resumed an hour later; 100 images an epoch.
    times = [(10.0, 0.0), (2.0, 4.0), (9.0, 3604.0), (2.0, 3608.0)]
    with run.timing.open("w") as file:
        for epoch, (seconds, since) in enumerate(times, 1):
            line = {
                "epoch": epoch,
                "time": since,
                "seconds": seconds,
                "images_per_second": 100 / seconds,
            }
            file.write(
                json.dumps(line | ({"first": True, "since_start": 15.0} if epoch in (1, 3) else {}))
                + "\n"
            )
    known = result_of(run, "tiny", {}).content
    assert known["end_to_end_images_per_second"] == pytest.approx(200 / 8)
    assert known["images_per_second"] == pytest.approx(50)
    assert known["first_epoch_seconds"] == 15


def test_what_was_measured_is_not_replaced_by_validation(tmp_path: Path) -> None:
    """Validation is in the training's precision; everything that is measured later, in float32."""
    prepare_tiny(tmp_path / "data")
    results = Results(tmp_path / "results", TINY_SIZE)
    wanted = Measurement("val", 5, "centroid")

    def measured_with(*measurements: Measurement) -> dict[str, Any]:
        job = Job(TINY, TINY_SIZE, measurements, ("a test",))
        results.put(done_in(tmp_path / "run", job, tmp_path / "data"))
        (result,) = results
        return accuracy_in(result, wanted)

    assert measured_with()["is_validation"]
    assert not measured_with(wanted)["is_validation"]
    # Its validation does not replace what was measured.
    assert not measured_with(Measurement("test", 5, "centroid"))["is_validation"]
    (later,) = results
    accuracy_in(later, wanted)["epoch"] = 77
    results.put(RunResult(later.content))
    assert measured_with()["epoch"] == 77
    # Another measurement replaces it.
    assert measured_with(wanted)["epoch"] != 77


def accuracy_in(result: RunResult, measurement: Measurement) -> dict[str, Any]:
    """Return the entry of a measurement in the content of a result."""
    for entry in result.content["accuracies"]:
        if Measurement.from_dict(entry["measurement"]) == measurement:
            return cast("dict[str, Any]", entry)
    raise LookupError(str(measurement))


def changed(part: str | None = None, **changes: Any) -> Callable[[str], str]:
    """Change entries of a result, or of a part of it."""

    def change(text: str) -> str:
        content = json.loads(text)
        (content[part] if part else content).update(changes)
        return json.dumps(content)

    return change


DAMAGES: dict[str, Callable[[str], str]] = {
    "a list": lambda text: "[]",
    "cut": lambda text: text[: len(text) // 2],
    "deep": lambda text: "[" * 100_000,
    "another format": changed(format="something else"),
    "no settings": changed(config=None),
    "an unknown setting": changed("config", colour="blue"),
    "an unknown method": changed("config", method={"name": "magic"}),
    "an earlier version": changed(version=1),
    "an unheard-of measurement": changed(accuracies=[{"measurement": "as good as can be"}]),
}


def damage(results: Results, how: Callable[[str], str]) -> Path:
    job = jobs_of([RECIPES["schedule"]], None, QUICK, [0])[1]
    path = results.path(job.config)
    path.write_text(how(path.read_text()))
    return path


@pytest.mark.parametrize("how", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_result_is_named_once_and_counts_as_not_done(
    how: Callable[[str], str], tmp_path: Path
) -> None:
    path = damage(make_up(tmp_path, ["schedule"], QUICK), how)
    results = Results(tmp_path, QUICK)
    jobs = jobs_of([RECIPES["schedule"]], None, QUICK, [0])
    with pytest.warns(UnreadableResultWarning) as warned:
        plan = plan_jobs(jobs, results, tmp_path / "runs")
    # Without another warning.
    assert len(list(results)) == len(jobs) - 1
    assert [job.id for job in plan.to_train] == [path.stem]
    (message,) = [str(warning.message) for warning in warned]
    assert str(path) in message


def test_all_commands_go_on_without_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = damage(make_up(tmp_path, ["schedule"], QUICK), DAMAGES["a list"])
    where = ["--results", str(tmp_path)]
    commands = [
        ["reproduce", "schedule", "--quick", "--tables-only"],
        ["reproduce", "--list", "--quick"],
    ]
    for command in commands:
        assert main([*command, *where]) == 0
        captured = capsys.readouterr()
        assert captured.err.count("warning") == 1
        assert str(path) in captured.err
    assert "3 of 4 runs done" in captured.out
    assert (tmp_path / "tables" / "quick" / "schedule-glyphs.md").is_file()


def test_the_result_of_another_training_or_a_newer_nearshot_is_put_aside(tmp_path: Path) -> None:
    results = make_up(tmp_path, ["schedule"], QUICK)
    job = jobs_of([RECIPES["schedule"]], None, QUICK, [0])[1]
    first = results.get(job.config)
    assert first is not None
    for number in (1, 2):
        other = json.loads(json.dumps(first.content))
        other["history"][0]["loss"] += number
        results.put(RunResult(other))
    path = damage(results, changed(version=3))
    newer = path.read_bytes()
    with pytest.warns(UnreadableResultWarning, match="version 2"):
        assert not job.is_done(results)
    results.put(first)  # it was trained again
    assert job.is_done(results)
    assert len(list(results)) == 4
    aside = [path.parent / "earlier" / f"{path.stem}-{number}.json" for number in (1, 2, 3)]
    assert read_json(aside[0])["accuracies"] == first.content["accuracies"]
    losses = [
        read_json(path)["history"][0]["loss"] - first.history[0]["loss"] for path in aside[:2]
    ]
    assert losses == pytest.approx([0, 1])
    assert aside[2].read_bytes() == newer
