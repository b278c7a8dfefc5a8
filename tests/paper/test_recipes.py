"""Every recipe makes its tables from results, and trains a few steps on a tiny dataset."""

import csv
import io
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from rich.console import Console
from tests.helpers.made_up import make_up, put
from tests.helpers.settings import TINY
from tests.helpers.tiny import prepare_tiny
from tests.helpers.tiny_jobs import ThisProcess, done_in

from nearshot.cli import main
from nearshot.paper import RECIPES, Reproduction, Results, reproduce
from nearshot.paper.identity import resolved, run_id
from nearshot.paper.jobs import jobs_of
from nearshot.paper.numbers import TRAINING_CLASSES
from nearshot.paper.recipe import outputs_of
from nearshot.paper.recipes import last_epoch
from nearshot.paper.recipes.comparison import ROWS
from nearshot.paper.recipes.strong import CANDIDATE, INGREDIENTS, config_with
from nearshot.paper.results import RunResult
from nearshot.paper.sizes import OWN_SIZES, PAPER, QUICK, Size, at_input_size, usual_size
from nearshot.paper.tables import Cell
from nearshot.training import PRESETS, TrainConfig
from nearshot.training.config import differences
from nearshot.training.methods import NCA
from nearshot.training.plan import make_batches


class TinySize(Size):
    """Runs of one step or more, by the number of epochs, on the tiny dataset."""

    def change(self, config: TrainConfig) -> TrainConfig:
        """Batches are of 64 for the paper's 128 and 256 and of 96 for its 512."""
        return replace(
            config,
            dataset="tiny",
            backbone="conv4-32",
            input_size=16,
            epochs=1,
            steps_per_epoch=1 + (config.epochs == 90) + 2 * (config.epochs == 240),
            warm_up=config.warm_up_epochs / config.epochs,
            batch_size=96 if config.batch_size == 512 else 64,
            n_way=None if config.n_way is None else 6,
            n_query=None if config.n_way is None else 6,
            augmentation=TINY.augmentation,
            validation_episodes=20,
            validation_n_way=2,
            learning_rate=0.01,
        )


TINY_SIZE = TinySize("tiny", "TINY: a test", dataset="tiny")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    prepare_tiny(folder, n_classes=32, n_images=40)
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("experiments")


def run(name: str, folder: Path, data: Path) -> Reproduction:
    results = folder / "results"
    runs = folder / "runs"
    return reproduce(
        [name],
        size=TINY_SIZE,
        seeds=1,
        executor=ThisProcess(Results(results, TINY_SIZE), runs, data),
        results=results,
        runs=runs,
        data_dir=data,
        console=Console(quiet=True),
    )


def check_tables(done: Reproduction, label: str) -> None:
    """Every table has numbers, and every form of it has all rows and its size."""
    assert done.tables
    for table in done.tables:
        assert label in table.label or table.name.startswith("pairs")
        values = []
        for row in table.rows:
            if not row.is_quoted:
                values += [cell.value for cell in row.cells if isinstance(cell, Cell)]
        assert any(value is not None for value in values), table.name
        header, *rows = csv.reader(io.StringIO(table.as_csv()))
        assert len(rows) == len(table.rows)
        assert len(set(header)) == len(header)
        assert table.label in table.as_markdown()
        assert table.label in table.as_csv()
    assert all(file.stat().st_size > 100 for file in done.files)
    assert len(done.files) == 2 * len(done.tables) + 2 * len(done.figures)


NEEDS_OTHERS = {"runs": "schedule", "claims": "schedule"}  # recipes without runs of their own


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_fills_its_tables(name: str, tmp_path: Path) -> None:
    make_up(tmp_path, [NEEDS_OTHERS.get(name, name)], QUICK)
    done = reproduce([name], size=QUICK, seeds=1, results=tmp_path, tables_only=True)
    check_tables(done, "QUICK")


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_trains_and_fills_its_tables(name: str, folder: Path, data: Path) -> None:
    if name in NEEDS_OTHERS:
        run(NEEDS_OTHERS[name], folder, data)
    done = run(name, folder, data)
    assert not done.outcome.failed
    check_tables(done, "TINY")


@pytest.fixture(scope="module")
def quick_results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run the quick form of everything, and return the folder of its results."""
    folder = tmp_path_factory.mktemp("everything")
    environment = os.environ | {"NEARSHOT_DATA": str(folder / "data")}
    command = [sys.executable, "-m", "nearshot", "reproduce", "--all", "--quick"]
    subprocess.run(command, check=True, cwd=folder, env=environment, timeout=3600)
    return folder / "results"


@pytest.mark.slow
def test_the_quick_form_of_everything_takes_less_than_an_hour(quick_results: Path) -> None:
    results = Results(quick_results, QUICK)
    assert all(job.is_done(results) for job in jobs_of(RECIPES.values(), None, QUICK, [0]))


@pytest.mark.slow
@pytest.mark.parametrize("name", RECIPES)
def test_the_quick_form_of_a_recipe_fills_its_tables(name: str, quick_results: Path) -> None:
    done = reproduce([name], size=QUICK, seeds=1, results=quick_results, tables_only=True)
    check_tables(done, "QUICK")


def test_a_second_call_trains_nothing_and_results_are_small(folder: Path, data: Path) -> None:
    run("schedule", folder, data)
    again = run("schedule", folder, Path("/nothing/here"))
    assert len(again.outcome.done) == len(jobs_of([RECIPES["schedule"]], None, TINY_SIZE, [0]))
    assert all(path.stat().st_size < 100_000 for path in (folder / "results").glob("*/*/*.json"))
    content = next(iter(Results(folder / "results", TINY_SIZE))).content
    assert content["fingerprints"].keys() == {"train", "val"}
    assert content["environment"]["torch"]


def test_recipes_share_runs() -> None:
    def ids(*names: str) -> list[set[str]]:
        return [
            {job.id for job in jobs_of([RECIPES[name]], "cifar-fs", PAPER, [0])} for name in names
        ]

    batch, ablations, schedule, subsampling = ids(
        "batch-size", "ablations", "schedule", "pair-subsampling"
    )
    assert (
        len(batch) == 30
    )  # 3 NCA, 6 setups × 3 sizes × 2 methods, less 9 of one shot that are the same
    assert len(ablations) == 21
    # NCA, PN and MN of five shots and PN of one, with eight images of a class, at three sizes
    assert len(batch & ablations) == 12
    assert len(schedule - batch) == 2
    assert len(subsampling - batch) == 6
    comparison, classifiers, adaptation = ids("comparison", "classifiers", "adaptation")
    assert classifiers <= comparison
    assert adaptation <= comparison


def test_all_datasets_are_those_that_each_recipe_has(tmp_path: Path) -> None:
    names, datasets = ("comparison", "supcon"), ("cifar-fs", "mini-imagenet", "tiered-imagenet")
    together = jobs_of([RECIPES[name] for name in names], "all", PAPER, range(2))
    assert (
        len({job.id for job in together}) == len(together) == 2 * (3 * 6 + 4 + 2 * 2)
    )  # NCA is the comparison's
    make_up(tmp_path, names, PAPER, dataset="all")
    done = reproduce(names, dataset="all", seeds=1, results=tmp_path, tables_only=True)
    tables = [table.name for table in done.tables]
    shown = [*datasets[:2], "mini-imagenet-84", datasets[2]]
    assert tables[:8:2] == [f"comparison-{name}" for name in shown]
    assert len(set(tables)) == len(tables)


def test_what_was_not_run_has_no_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without results there is only what is counted."""
    nothing = reproduce(dataset="all", seeds=1, results=tmp_path / "nothing", tables_only=True)
    assert {table.name for table in nothing.tables} == {"pairs-table-1", "pairs-appendix-e"}
    assert len(nothing.not_run) == len(RECIPES) - 1
    make_up(tmp_path, ["schedule"], PAPER, dataset="cifar-fs")
    command = ["reproduce", "schedule", "runs", "--dataset", "all", "--tables-only"]
    assert main([*command, "--results", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert "schedule (mini-imagenet), runs (mini-imagenet, tiered-imagenet)" in printed
    names = {file.stem for file in tmp_path.glob("tables/*/*")}
    assert names == {"schedule-cifar-fs", "runs-cifar-fs", "runs-accuracy-cifar-fs"}


def test_claims_are_judged_only_if_they_are_printed(tmp_path: Path) -> None:
    make_up(tmp_path, ["supcon"], QUICK)
    alone = reproduce(["supcon"], size=QUICK, seeds=1, results=tmp_path, tables_only=True)
    assert [table.name for table in alone.tables] == ["supcon-glyphs"]
    everything = reproduce(size=QUICK, seeds=1, results=tmp_path, tables_only=True)
    assert "claims-glyphs" in [table.name for table in everything.tables]
    assert "claims-glyphs" in [figure.name for figure in everything.figures]


def test_the_comparison_has_tables_for_84x84_files_of_mini_imagenet(tmp_path: Path) -> None:
    """With the paper's rows for which there are such presets, and differences between them."""
    results = Results(tmp_path, seeds=[0])
    for number, method in enumerate(("nca", "prototypical", "matching", "simpleshot")):
        put(results, PRESETS[f"mini-imagenet-84-{method}"], 60.0 + number)
    accuracies, differences = outputs_of(RECIPES["comparison"], results, "mini-imagenet").tables
    assert accuracies.name == "comparison-mini-imagenet-84"
    assert differences.name == "comparison-differences-mini-imagenet-84"
    labels = [row.cells[0] for row in accuracies.rows]
    assert labels == [f"{label}, for 84×84 files" for label in list(ROWS)[2:]]
    labels = [row.cells[0] for row in differences.rows]
    assert labels == ["NCA − PN", "NCA − MN", "NCA − SimpleShot"]
    one_shot_test = [row.cells[2] for row in differences.rows]
    values = [cell.value for cell in one_shot_test if isinstance(cell, Cell)]
    assert values == pytest.approx([-1.0, -2.0, -3.0], abs=0.1)


def test_the_last_epoch_is_that_of_the_log_and_the_best_may_be_earlier(tmp_path: Path) -> None:
    """With one seed on a side, the difference is that of the seed that both have."""
    results = Results(tmp_path, seeds=[0, 1])
    for method, seed, curve in (
        ("NCA", 0, (60, 66, 59)),
        ("NCA", 1, (60, 66, 61)),
        ("PN", 1, (60, 62, 63)),
    ):
        config = last_epoch.variants("cifar-fs", method)["as published"]
        put(results, config, 60.0, seeds=[seed])
        (run,) = [run for run in results.runs(config) if run.seed == seed]
        history = []
        for number, value in enumerate(curve, 1):
            validation = {f"{n_shot}-shot centroid": float(value + n_shot) for n_shot in (1, 5)}
            history.append({"epoch": 10 * number, "validation": validation})
        results.put(RunResult(run.content | {"history": history}))
    (table,) = outputs_of(RECIPES["last-epoch"], results, "cifar-fs").tables
    labels = [row.cells[:2] for row in table.rows]
    assert labels == [("as published", "1-shot"), ("as published", "5-shot")]
    values = [
        [cell.value for cell in row.cells[2:] if isinstance(cell, Cell)] for row in table.rows
    ]
    # NCA, PN, NCA − PN at the last epoch, and at the best.
    assert values == [[61.0, 64.0, -2.0, 3.0], [65.0, 68.0, -2.0, 3.0]]


def test_an_ingredient_is_added_alone_and_left_out_alone() -> None:
    """The plain recipe and the candidate differ from their rows in one ingredient."""
    for dataset in RECIPES["strong"].datasets:
        plain = config_with(dataset, ())
        candidate = config_with(dataset, CANDIDATE)
        settings = {}
        for name in INGREDIENTS:
            settings[name] = set(differences(plain, config_with(dataset, [name])))
            assert settings[name]
        for name in CANDIDATE:
            without = config_with(dataset, [other for other in CANDIDATE if other != name])
            assert set(differences(candidate, without)) == settings[name]
        rows = RECIPES["strong"].rows(dataset)
        n_runs = len({run_id(row.config) for row in rows})
        assert n_runs == 1 + len(INGREDIENTS) + 1 + len(CANDIDATE)
        # The test split is not read.
        for row in rows:
            assert {measurement.split for measurement in row.to_measure} <= {"val"}


def test_a_sizes_own_dataset_stands_for_all_of_them() -> None:
    """It is the same for all recipes, so that the same runs are judged by the same claims."""
    for recipe in RECIPES.values():
        for dataset in (None, "all"):
            assert recipe.datasets_for(dataset, QUICK) == ("cifar-fs",)
    supcon = RECIPES["supcon"]
    assert supcon.datasets_for(None) == supcon.datasets_for(None, PAPER) == ("mini-imagenet",)
    assert supcon.datasets_for("all", PAPER) == ("mini-imagenet", "cifar-fs")


def test_a_dataset_with_a_size_of_its_own_is_not_the_papers(tmp_path: Path) -> None:
    """Its accuracies have no numbers beside them, and its differences those of the same split."""
    comparison = RECIPES["comparison"]
    assert "tiny-tiered" in comparison.datasets
    assert "tiny-tiered" not in comparison.datasets_for("all", PAPER)
    assert comparison.datasets_for("tiny-tiered") == ("tiny-tiered",)
    size = usual_size("tiny-tiered")
    assert size == OWN_SIZES["tiny-tiered"]
    assert not size.is_papers
    assert usual_size("cifar-fs") == usual_size(None) == PAPER
    make_up(tmp_path, ["comparison"], size, dataset="tiny-tiered", seeds=3)
    done = reproduce(
        ["comparison", "claims"], dataset="tiny-tiered", results=tmp_path, tables_only=True
    )
    accuracies, differences, claims = done.tables
    assert [row.cells[0] for row in accuracies.rows] == [
        "MN (our episodes)",
        "PN (our episodes)",
        "SimpleShot",
        "NCA soft assignment",
        "NCA nearest centroid",
    ]
    assert "paper" not in accuracies.columns
    papers = {}
    for row in differences.rows:
        cell = row.cells[3]
        assert isinstance(cell, Cell)
        papers[row.cells[0]] = cell.value
    assert papers == {
        "NCA − PN": pytest.approx(1.46),
        "NCA − MN": pytest.approx(1.82),
        "NCA − SimpleShot": pytest.approx(1.68),
    }
    assert len(claims.rows) == 1
    assert {path.parent.name for path in done.files} == {"own"}


@pytest.mark.parametrize("name", RECIPES)
def test_a_row_has_a_label_and_every_row_of_a_run_its_measurements(name: str) -> None:
    recipe = RECIPES[name]
    for dataset in recipe.datasets:
        for row in recipe.rows(dataset):
            assert all(row.labels)
            assert len(row.paper) in (0, len(row.measurements))
            assert all(one in row.measurements for one in row.to_measure)
            if row.from_validation:
                assert {one.split for one in row.measurements if one is not None} <= {"val"}


def test_measuring_for_one_recipe_keeps_what_another_measured(folder: Path, data: Path) -> None:
    first = run("classifiers", folder, data)
    run("adaptation", folder, data)
    again = run("classifiers", folder, data)
    assert [table.rows for table in again.tables] == [table.rows for table in first.tables]
    assert len(again.outcome.done) == 1


def test_a_run_started_for_one_recipe_is_resumed_for_another(data: Path, tmp_path: Path) -> None:
    """NCA ignores how many images a class has in an episode, in which the recipes differ."""
    one, other = (
        next(
            job
            for job in jobs_of([RECIPES[name]], None, TINY_SIZE, [0])
            if isinstance(job.config.method, NCA)
        )
        for name in ("batch-size", "ablations")
    )
    assert one.id == other.id
    assert one.config != other.config
    done_in(tmp_path / "run", one, data)
    (tmp_path / "run" / "result.json").unlink()
    done_in(tmp_path / "run", other, data)


TRAINING_IMAGES = {
    name: n_classes * n_images for name, (n_classes, n_images) in TRAINING_CLASSES.items()
} | {"tiered-imagenet": 448_695, "glyphs": 32_120}


@pytest.mark.parametrize("scale", [QUICK, PAPER, at_input_size(32)], ids=lambda size: size.name)
def test_every_run_of_a_scale_has_images_for_its_batches(scale: Size) -> None:
    """The sampler itself says whether so many steps can be had of so many images."""
    configs = [job.config for job in jobs_of(RECIPES.values(), None, scale, [0])]
    different = {
        (one.dataset, one.epochs, one.steps_per_epoch, *map(str, resolved(one)["batches"])): one
        for one in configs
    }
    for config in different.values():
        n_classes = 64 if config.dataset != "glyphs" else 800
        labels = torch.arange(TRAINING_IMAGES[config.dataset]) % n_classes
        names = [f"class {label}" for label in range(n_classes)]
        batches = make_batches(config, labels, names)
        assert len(batches) == config.steps_per_epoch or config.steps_per_epoch is None


def test_the_quick_form_has_as_many_steps_as_epochs_ask_for() -> None:
    for epochs, shape in ((120, (1, 100)), (240, (2, 100)), (90, (1, 75))):
        config = QUICK.change(TrainConfig(epochs=epochs, warm_up=epochs / 12))
        assert (config.epochs, config.steps_per_epoch) == shape
        assert config.validate_every == config.epochs  # once, at the end, however long
        assert config.warm_up == pytest.approx(config.epochs / 12)
