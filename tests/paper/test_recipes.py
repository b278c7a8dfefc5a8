"""Every recipe makes its tables from results; end to end it trains a few steps on a tiny dataset."""

import csv
import io
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
from nearshot.paper.numbers import TRAINING_CLASSES, figure_config
from nearshot.paper.recipe import Found, outputs_of
from nearshot.paper.recipes.comparison import ROWS
from nearshot.paper.recipes.strong import CANDIDATE, INGREDIENTS, config_with
from nearshot.paper.results import RunResult
from nearshot.paper.sizes import PAPER, QUICK, Size, at_input_size
from nearshot.paper.tables import Cell
from nearshot.training import PRESETS, TrainConfig
from nearshot.training.config import differences
from nearshot.training.methods import make_batches


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
            validation_way=2,
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
    results, runs = folder / "results", folder / "runs"
    place = ThisProcess(Results(results), runs, data)
    return reproduce(
        [name],
        size=TINY_SIZE,
        seeds=1,
        executor=place,
        results=results,
        runs=runs,
        data_dir=data,
        console=Console(quiet=True),
    )


def check_tables(done: Reproduction, name: str, label: str) -> None:
    """Every table has numbers, and every form of it has all rows and its scale."""
    assert done.tables
    for table in done.tables:
        assert name == "pairs" or label in table.label
        ours = [row for row in table.rows if "quoted" not in str(row[0])]
        numbers = [cell for row in ours for cell in row[1:] if not isinstance(cell, str)]
        assert any(cell.value is not None for cell in numbers), table.name
        assert table.as_markdown().count("\n| ") == len(table.rows) + 2
        assert table.as_latex().count(r"\\") == len(table.rows) + 1
        header, *rows = csv.reader(io.StringIO(table.as_csv()))
        assert len(rows) == len(table.rows)
        assert len(set(header)) == len(header)
        assert all(table.label in form for form in (table.as_markdown(), table.as_csv()))
    assert all(file.stat().st_size > 100 for file in done.files)
    assert len(done.files) == 3 * len((*done.tables, *done.claims)) + 2 * len(done.figures)


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_fills_its_tables(name: str, tmp_path: Path) -> None:
    make_up(tmp_path, [name] if name != "runs" else ["schedule"], QUICK)
    check_tables(
        reproduce([name], size=QUICK, seeds=1, results=tmp_path, tables_only=True), name, "QUICK"
    )


TRAINED_FAST = ("schedule", "adaptation")  # the others train in the slow tier


@pytest.mark.parametrize(
    "name",
    [
        name if name in TRAINED_FAST else pytest.param(name, marks=pytest.mark.slow)
        for name in RECIPES
    ],
)
def test_a_recipe_trains_and_fills_its_tables(name: str, folder: Path, data: Path) -> None:
    if name == "runs":
        run("schedule", folder, data)
    done = run(name, folder, data)
    assert not done.outcome.failed
    check_tables(done, name, "TINY")


def test_a_second_call_trains_nothing_and_results_are_small(folder: Path, data: Path) -> None:
    run("schedule", folder, data)
    again = run("schedule", folder, Path("/nothing/here"))
    assert len(again.outcome.done) == len(jobs_of([RECIPES["schedule"]], None, TINY_SIZE, [0]))
    assert all(path.stat().st_size < 100_000 for path in (folder / "results").glob("*/*/*.json"))
    content = next(iter(Results(folder / "results"))).content
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
    """Without results there is only what is counted, and no statement is judged."""
    nothing = reproduce(dataset="all", seeds=1, results=tmp_path / "nothing", tables_only=True)
    assert {table.name for table in nothing.tables} == {"pairs-table-1", "pairs-appendix-e"}
    assert nothing.claims == ()
    assert len(nothing.not_run) == len(RECIPES) - 1
    make_up(tmp_path, ["schedule"], PAPER, dataset="cifar-fs")
    command = [
        "reproduce",
        "schedule",
        "runs",
        "--dataset",
        "all",
        "--tables-only",
        "--results",
        str(tmp_path),
    ]
    assert main(command) == 0
    assert (
        ": schedule (mini-imagenet), runs (mini-imagenet, tiered-imagenet).\n"
        in capsys.readouterr().out
    )
    made = {"schedule-cifar-fs", "runs-cifar-fs", "runs-accuracy-cifar-fs"}
    assert {
        file.stem for file in tmp_path.glob("tables/*/*")
    } == made  # nothing is said of mini-imagenet


def test_the_comparison_has_tables_for_84x84_files_of_mini_imagenet(tmp_path: Path) -> None:
    """With the paper's rows for which there are such presets, and differences between them."""
    found = Found(Results(tmp_path), PAPER, (0,))
    for number, method in enumerate(("nca", "prototypical", "matching", "simpleshot")):
        put(found.results, PRESETS[f"mini-imagenet-84-{method}"], 60.0 + number)
    tables = {
        table.name: table
        for table in outputs_of(RECIPES["comparison"], found, "mini-imagenet").tables
    }
    assert tables.keys() == {
        "comparison-mini-imagenet-84",
        "comparison-differences-mini-imagenet-84",
    }
    accuracies, differences = tables.values()
    assert [row[0] for row in accuracies.rows] == [f"{row}, for 84×84 files" for row in [*ROWS][2:]]
    assert [row[0] for row in differences.rows] == ["NCA − PN", "NCA − MN", "NCA − SimpleShot"]
    gaps = [
        row[2].value for row in differences.rows if isinstance(row[2], Cell)
    ]  # with one shot, on the test split
    assert gaps == pytest.approx([-1.0, -2.0, -3.0], abs=0.1)


def test_the_last_epoch_is_that_of_the_log_and_the_best_may_be_earlier(tmp_path: Path) -> None:
    """With one seed on a side, the difference is that of the seed that both have."""
    found = Found(Results(tmp_path), PAPER, (0, 1))
    for method, seed, curve in (
        ("nca", 0, (60, 66, 59)),
        ("nca", 1, (60, 66, 61)),
        ("prototypical", 1, (60, 62, 63)),
    ):
        config = figure_config("cifar-fs", method, 512)
        put(found.results, config, 60.0, seeds=[seed])
        (run,) = (one for one in found.runs(config) if one.seed == seed)
        both = [
            {f"{shot}-shot centroid": float(value + shot) for shot in (1, 5)} for value in curve
        ]
        history = [{"epoch": 10 * number, "validation": one} for number, one in enumerate(both, 1)]
        found.results.put(RunResult(run.content | {"history": history}))
    (table,) = outputs_of(RECIPES["last-epoch"], found, "cifar-fs").tables
    assert [row[:2] for row in table.rows] == [
        ("as published", "1-shot"),
        ("as published", "5-shot"),
    ]
    values = [[cell.value for cell in row if isinstance(cell, Cell)] for row in table.rows]
    assert values == [
        [61.0, 64.0, -2.0, 3.0],
        [65.0, 68.0, -2.0, 3.0],
    ]  # NCA, PN, NCA − PN at the last, at the best
    assert [str(cell) for cell in table.rows[0][2:4]] == [
        "61.00 (60.00, 62.00)",
        "64.00 (1 of 2 seeds)",
    ]


def test_an_ingredient_is_added_alone_and_left_out_alone() -> None:
    """The plain recipe and the candidate differ from each of their rows in the settings of one ingredient."""
    for dataset in RECIPES["strong"].datasets:
        plain, candidate = config_with(dataset, ()), config_with(dataset, CANDIDATE)
        settings = {
            name: {*differences(plain, config_with(dataset, [name]))} for name in INGREDIENTS
        }
        assert all(settings.values())
        for name in CANDIDATE:
            without = config_with(dataset, [one for one in CANDIDATE if one != name])
            assert {*differences(candidate, without)} == settings[name]
        wanted = RECIPES["strong"].wanted(dataset)
        assert (
            len({run_id(config) for config in wanted})
            == len(wanted)
            == 1 + len(INGREDIENTS) + 1 + len(CANDIDATE)
        )
        assert {one.split for measured in wanted.values() for one in measured} == {
            "val"
        }  # the test split is not read


def test_a_scales_own_dataset_stands_for_all_of_them(tmp_path: Path) -> None:
    """It is the same for all recipes, so that the same runs are judged by the same statements."""
    assert {recipe.on(meant, QUICK) for recipe in RECIPES.values() for meant in (None, "all")} == {
        ("cifar-fs",)
    }
    assert RECIPES["supcon"].on(None) == RECIPES["supcon"].on(None, PAPER) == ("mini-imagenet",)
    make_up(tmp_path, ["supcon"], QUICK)
    alone, together = (
        reproduce(names, size=QUICK, seeds=1, results=tmp_path, tables_only=True)
        for names in (["supcon"], ["supcon", "comparison"])
    )
    assert alone.claims == together.claims == ()
    everything = reproduce(size=QUICK, seeds=1, results=tmp_path, tables_only=True)
    assert [claims.name for claims in everything.claims] == ["claims-glyphs"]
    verdicts = {str(row[0]): str(row[2]) for row in everything.claims[0].rows}
    assert verdicts["NCA beats the supervised contrastive loss"] != "not yet run"


def test_measuring_for_one_recipe_keeps_what_another_measured(folder: Path, data: Path) -> None:
    first = run("classifiers", folder, data)
    run("adaptation", folder, data)
    again = run("classifiers", folder, data)
    assert [table.rows for table in again.tables] == [table.rows for table in first.tables]
    assert len(again.outcome.done) == 1


def test_a_run_started_for_one_recipe_is_resumed_for_another(data: Path, tmp_path: Path) -> None:
    """NCA does not look at how many images a class would have in an episode, in which the recipes differ."""
    one, other = (
        next(
            job
            for job in jobs_of([RECIPES[name]], None, TINY_SIZE, [0])
            if job.config.method == "nca"
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
