"""A run can be measured before its end; the finished run is measured anew."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.helpers.settings import TINY, stops
from tests.helpers.tiny import prepare_tiny

from nearshot.cli import main
from nearshot.errors import InputError
from nearshot.evaluation import EvaluationSpec
from nearshot.io import read_json
from nearshot.paper.measurement import measure
from nearshot.paper.results import Measurement
from nearshot.runs import Unfinished, evaluate_run, evaluate_weights, open_run
from nearshot.training import Hardware, TrainConfig, TrainResult, train

CPU = Hardware(accelerator="cpu")
SPECS = [EvaluationSpec(n_way=2, n_shot=n_shot, n_episodes=30) for n_shot in (1, 5)]
Stopped = tuple[Path, TrainResult]


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Classes that are hard to tell apart, so that later epochs are better."""
    folder = tmp_path_factory.mktemp("data")
    prepare_tiny(folder, contrast=12)
    return folder


def trained(config: TrainConfig, folder: Path, data_dir: Path) -> TrainResult:
    return train(config, folder=folder, data_dir=data_dir, hardware=CPU, progress=False)


@pytest.fixture(scope="module")
def a_stopped_run(data_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Stopped:
    """A run of six epochs that was stopped in the middle of its fourth, and its result."""
    folder = tmp_path_factory.mktemp("unfinished")
    config = replace(TINY, epochs=6, validate_every=1, method=stops(20))  # an epoch has 6 steps
    return folder / "run", trained(config, folder / "run", data_dir)


@pytest.fixture
def stopped(a_stopped_run: Stopped, tmp_path: Path) -> Stopped:
    """A copy to do anything with."""
    shutil.copytree(a_stopped_run[0], tmp_path / "run")
    return tmp_path / "run", a_stopped_run[1]


def test_a_stopped_run_is_measured_with_its_best_weights_so_far(
    stopped: Stopped, data_dir: Path
) -> None:
    run, result = stopped
    assert not result.finished
    evaluations = evaluate_run(run, SPECS, data_dir=data_dir, unfinished=True)
    assert [evaluation.spec for evaluation in evaluations] == SPECS
    for evaluation in evaluations:
        assert evaluation.unfinished == Unfinished(epochs_done=3, epochs=6)
        epoch = result.best_epochs[f"{evaluation.spec.n_shot}-shot centroid"]
        assert evaluation.weights == f"epoch-{epoch:04d}.safetensors"
        weights = run / "weights" / evaluation.weights
        (alone,) = evaluate_weights(weights, evaluation.spec, data_dir=data_dir)
        assert torch.equal(evaluation.accuracy.per_episode, alone.accuracy.per_episode)
        assert alone.unfinished is None
    files = list((run / "evaluations").iterdir())
    assert len(files) == 2
    for file in files:
        assert read_json(file)["key"]["unfinished"] == {"epochs_done": 3, "epochs": 6}


def test_recipes_and_who_does_not_ask_for_it_get_no_unfinished_run(
    stopped: Stopped, data_dir: Path
) -> None:
    run, _ = stopped
    with pytest.raises(InputError, match="not a finished run"):
        evaluate_run(run, SPECS, data_dir=data_dir)
    with pytest.raises(InputError, match="finished run"):
        measure(open_run(run, data_dir=data_dir), [Measurement("test", 5, "centroid")])
    assert not (run / "evaluations").exists()


def test_the_finished_run_does_not_answer_with_what_was_measured_before(
    data_dir: Path, tmp_path: Path
) -> None:
    """All epochs are done and the result was not written yet: the same weights, another file."""
    run = tmp_path / "run"
    trained(TINY, run, data_dir)
    (run / "result.json").rename(tmp_path / "result.json")
    before = evaluate_run(run, SPECS, data_dir=data_dir, unfinished=True)
    (tmp_path / "result.json").rename(run / "result.json")
    after = evaluate_run(run, SPECS, data_dir=data_dir, unfinished=True)
    assert [one.weights for one in after] == [one.weights for one in before]
    assert [one.unfinished for one in before] == [Unfinished(3, 3)] * 2
    assert [one.unfinished for one in after] == [None] * 2
    keys = [read_json(file)["key"] for file in (run / "evaluations").iterdir()]
    assert len(keys) == 4
    assert [key["unfinished"] for key in keys].count(None) == 2
    train(
        replace(TINY, seed=1),
        folder=run,
        data_dir=data_dir,
        hardware=CPU,
        overwrite=True,
        progress=False,
    )
    assert not list((run / "evaluations").iterdir())


def test_weights_that_are_opened_may_be_removed(stopped: Stopped, data_dir: Path) -> None:
    opened = open_run(stopped[0], data_dir=data_dir, unfinished=True)
    shutil.rmtree(stopped[0] / "weights")
    assert len(evaluate_run(opened, SPECS)) == 2
    (stopped[0] / "checkpoint.pt").unlink()
    with pytest.raises(InputError, match="nothing to measure yet"):
        evaluate_run(stopped[0], SPECS, data_dir=data_dir, unfinished=True)


def test_the_command_line_says_that_a_run_is_unfinished(
    stopped: Stopped, data_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = [
        "evaluate",
        str(stopped[0]),
        "--data-dir",
        str(data_dir),
        "--n-way",
        "2",
        "--n-episodes",
        "30",
    ]
    assert main(command) == 0
    printed = capsys.readouterr()
    assert "Embedding 60 images of tiny" in printed.err
    out = " ".join(printed.out.split())
    assert "UNFINISHED RUN, after 3 of 6 epochs" in out
    assert (
        "The run is not finished: 3 of 6 epochs are done, and these are the best weights so far."
        in out
    )
    assert main([*command, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [one["unfinished"] for one in found] == [{"epochs_done": 3, "epochs": 6}] * 2
