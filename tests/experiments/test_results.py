"""Results: what is read from a run's files."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from settings import TINY
from tiny import prepare_tiny

from nearshot.experiments.jobs import Job, do
from nearshot.experiments.results import Measurement, Results, RunResult, result_of
from nearshot.training import RunFolder, train


def test_speeds_leave_out_what_a_process_does_before_its_first_epoch(tmp_path: Path) -> None:
    prepare_tiny(tmp_path / "data")
    train(replace(TINY, epochs=4), folder=tmp_path / "run", data_dir=tmp_path / "data", show=False)
    run = RunFolder(tmp_path / "run")
    lines = [json.loads(line) for line in run.timing.read_text().splitlines()]
    assert [line.get("first", False) for line in lines] == [True, False, False, False]
    assert lines[0]["since_start"] > lines[0]["seconds"]
    measured = result_of(run, "tiny", {}).content
    assert 0 < measured["end_to_end_images_per_second"] <= max(line["images_per_second"] for line in lines[1:])
    # The third epoch is the first of a process that resumed an hour later; 100 images an epoch.
    times = [(10.0, 0.0), (2.0, 4.0), (9.0, 3604.0), (2.0, 3608.0)]
    with run.timing.open("w") as file:
        for epoch, (seconds, since) in enumerate(times, 1):
            line = {"epoch": epoch, "time": since, "seconds": seconds, "images_per_second": 100 / seconds}
            file.write(json.dumps(line | ({"first": True, "since_start": 15.0} if epoch in (1, 3) else {})) + "\n")
    known = result_of(run, "tiny", {}).content
    assert known["end_to_end_images_per_second"] == pytest.approx(200 / 8)
    assert known["images_per_second"] == pytest.approx(50)
    assert known["first_epoch_seconds"] == 15


@pytest.mark.parametrize(
    ("words", "n_sharing"),
    [
        ([], 1),
        (["--gpus-per-run", "0.25"], 4),
        (["--gpus-per-run=0.5", "--seeds", "1"], 2),
        (["--gpus-per-run", "0"], 1),
    ],
)
def test_a_result_knows_how_many_shared_its_gpu(words: list[str], n_sharing: int) -> None:
    content = {"format": "nearshot-result", "version": 1, "id": "", "scale": "", "history": []}
    environment = {"command": ["nearshot", "reproduce", *words]}
    assert RunResult(content | {"environment": environment}).n_sharing == n_sharing
    assert RunResult(content).n_sharing == 1
    assert RunResult(content | {"environment": environment, "n_sharing": 3}).n_sharing == 3  # if it says so itself
    assert RunResult(content | {"job_seconds": 100.0}).training_seconds == 100  # as older results have it


def test_what_was_measured_is_not_replaced_by_what_validation_found(tmp_path: Path) -> None:
    """Validation is in the training's precision, and everything that is measured later in float32."""
    prepare_tiny(tmp_path / "data")
    results, wanted = Results(tmp_path / "results"), Measurement("val", 5, "centroid")

    def found_with(*measurements: Measurement) -> dict[str, Any]:
        job = Job(TINY, "tiny", measurements, ("a test",))
        results.put(do(job, tmp_path / "run", data_dir=tmp_path / "data", show=False))
        result = results.get(TINY, "tiny")
        assert result is not None
        found: dict[str, Any] = result.content["accuracies"][wanted.name]
        return found

    assert "measured" not in found_with()
    assert found_with(wanted)["measured"]
    assert found_with(Measurement("test", 5, "centroid"))["measured"]  # of which validation's was in the way
    changed = results.get(TINY, "tiny").content  # type: ignore[union-attr]
    changed["accuracies"][wanted.name] |= {"epoch": 77}
    results.put(RunResult(changed))
    assert found_with()["epoch"] == 77
    assert found_with(wanted)["epoch"] != 77  # but by another measurement it is


def test_the_time_of_measuring_is_known_where_a_run_was_measured_once(tmp_path: Path) -> None:
    prepare_tiny(tmp_path / "data")
    results, config = Results(tmp_path / "results"), replace(TINY, epochs=2, validation_episodes=10)
    found = []
    for wanted, n_sharing in (((), 2), ((Measurement("test", 5, "centroid"),), 1)):
        job = Job(config, "tiny", wanted, ("a test",))
        results.put(do(job, tmp_path / "run", data_dir=tmp_path / "data", show=False, n_sharing=n_sharing))
        found += list(results)
    first, later = found
    assert first.training_seconds > 0 < first.measuring_seconds  # type: ignore[operator]
    assert (later.training_seconds, later.measuring_seconds, later.n_sharing) == (first.training_seconds, None, 2)
