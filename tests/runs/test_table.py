"""The table of runs and `nearshot compare`, against what was measured run by run."""

import csv
import io
import json
import math
import statistics
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.helpers.settings import TINY, change
from tests.helpers.tiny import prepare_tiny

from nearshot.cli import main
from nearshot.errors import InputError
from nearshot.evaluation import EvaluationSpec, FeatureSet, compare, save_features, welch
from nearshot.runs import Evaluation, evaluate_run, table
from nearshot.training import train

SPEC = EvaluationSpec(n_way=2, n_query=5, n_episodes=40)
OPTIONS = ["--n-way", "2", "--n-query", "5", "--n-shot", "5", "--n-episodes", "40"]


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    prepare_tiny(folder, n_images=12, contrast=12)
    return folder


@pytest.fixture(scope="module")
def sweep(data_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs of two temperatures with two seeds each, of which one temperature is measured."""
    folder = tmp_path_factory.mktemp("sweep")
    for temperature in (1.0, 2.0):
        for seed in (0, 1):
            config = change(TINY, epochs=1, temperature=temperature, seed=seed)
            run = folder / f"t{temperature:.0f}" / f"{seed}"
            train(config, folder=run, data_dir=data_dir, progress=False)
            if temperature == 2:
                evaluate_run(run, SPEC, data_dir=data_dir)
    return folder


def measured(sweep: Path, data_dir: Path, temperature: int) -> list[Evaluation]:
    evaluations = []
    for seed in (0, 1):
        evaluations += evaluate_run(sweep / f"t{temperature}" / f"{seed}", SPEC, data_dir=data_dir)
    return evaluations


def test_a_row_has_the_settings_and_the_pooled_accuracy(sweep: Path, data_dir: Path) -> None:
    rows = table(sweep)
    of_test = [row for row in rows if row["split"] == "test"]
    (row,) = of_test
    means = [evaluation.accuracy.mean for evaluation in measured(sweep, data_dir, 2)]
    assert (row["temperature"], row["n_shot"], row["classifier"]) == (2.0, 5, "centroid")
    assert row["per_run"] == means
    assert row["mean"] == pytest.approx(statistics.fmean(means))
    half_width = 12.706 * statistics.stdev(means) / math.sqrt(2)  # Student's t of one degree
    assert row["between_runs95"] == pytest.approx(half_width, rel=1e-3)
    assert (row["n_runs"], row["n_unfinished"]) == (2, 0)
    assert "seed" not in row
    assert {Path(run).name for run in row["runs"]} == {"0", "1"}
    of_validation = [row for row in rows if row["split"] == "val"]
    assert {row["temperature"] for row in of_validation} == {1.0, 2.0}
    assert {row["evaluation"] for row in of_validation} == {"best epoch"}
    assert len(of_validation) == 8  # two temperatures, shots and classifiers


def test_runs_are_grouped_as_requested(sweep: Path) -> None:
    by_seed = [row for row in table(sweep, group=["seed"]) if row["split"] == "val"]
    assert {(row["seed"], row["n_runs"]) for row in by_seed} == {(0, 2), (1, 2)}
    assert all("temperature" not in row for row in by_seed)
    (single,) = [row for row in table(sweep / "t2" / "0") if row["split"] == "test"]
    assert (single["n_runs"], single["between_runs95"]) == (1, None)
    with pytest.raises(InputError, match="'temperatur'.*temperature"):
        table(sweep, group=["temperatur"])
    with pytest.raises(InputError, match="no run"):
        table(sweep / "t2" / "0" / "weights")
    with pytest.raises(InputError, match="missing"):
        table(sweep / "missing")


def test_the_command_prints_what_the_function_returns(
    sweep: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = table(sweep)
    assert main(["runs", str(sweep), "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out) == rows
    assert main(["runs", str(sweep), "--format", "csv"]) == 0
    lines = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [float(line["mean"]) for line in lines] == [row["mean"] for row in rows]
    assert main(["runs", str(sweep)]) == 0
    printed = capsys.readouterr().out
    assert "temperature" in printed
    for row in rows:
        assert f"{row['mean']:.2f}" in printed


def test_comparing_runs_pairs_episodes_and_seeds(
    sweep: Path, data_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = [str(sweep / f"t{temperature}" / f"{seed}") for temperature in (1, 2) for seed in (0, 1)]
    command = ["compare", *runs, "--data-dir", str(data_dir), *OPTIONS]
    assert main([*command, "--json"]) == 0, capsys.readouterr()
    (row,) = json.loads(capsys.readouterr().out)
    firsts, seconds = (
        [evaluation.accuracy for evaluation in measured(sweep, data_dir, temperature)]
        for temperature in (1, 2)
    )
    both = [
        torch.stack([accuracy.per_episode for accuracy in side]).mean(0)
        for side in (firsts, seconds)
    ]
    differences = both[0] - both[1]
    assert row["over_episodes"]["difference"] == pytest.approx(float(differences.mean()))
    half_width = 1.96 * float(differences.std()) / math.sqrt(len(differences))
    assert row["over_episodes"]["interval95"] == pytest.approx(half_width)
    expected = welch(*([accuracy.mean for accuracy in side] for side in (firsts, seconds)))
    assert row["over_seeds"]["half_width"] == pytest.approx(expected.half_width)
    assert main(command) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "Welch" in printed


def test_single_runs_have_no_interval_over_seeds(
    sweep: Path, data_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = [str(sweep / "t1" / "0"), str(sweep / "t2" / "0")]
    command = ["compare", *runs, "--data-dir", str(data_dir), *OPTIONS, "--json"]
    assert main(command) == 0, capsys.readouterr()
    (row,) = json.loads(capsys.readouterr().out)
    first, second = (measured(sweep, data_dir, temperature)[0].accuracy for temperature in (1, 2))
    assert row["over_episodes"]["interval95"] == pytest.approx(compare(first, second).interval95)
    assert row["over_seeds"] is None
    same = [str(sweep / "t1" / "0"), str(sweep / "t1" / "1")]
    assert main(["compare", *same, "--data-dir", str(data_dir), *OPTIONS]) == 1
    assert "seed alone" in capsys.readouterr().err


def test_features_are_compared_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    labels = torch.arange(4).repeat_interleave(12)
    files = []
    for name, noise in (("mine", 1.0), ("theirs", 3.0)):
        generator = torch.Generator().manual_seed(0)
        centres = torch.randn(4, 8, generator=generator)
        features = centres[labels] + noise * torch.randn(48, 8, generator=generator)
        files.append(str(tmp_path / f"{name}.safetensors"))
        save_features(FeatureSet(features, labels, split="val"), files[-1])
    assert main(["compare", *files, *OPTIONS, "--json"]) == 0, capsys.readouterr()
    (row,) = json.loads(capsys.readouterr().out)
    assert row["means"][0] > row["means"][1]
    assert row["over_episodes"]["difference"] > 0
    save_features(
        replace(FeatureSet(torch.randn(48, 8), labels, split="val"), fingerprint="other"), files[1]
    )
    assert main(["compare", *files, *OPTIONS]) == 1
    assert "fingerprint" in capsys.readouterr().err
