"""Results of version 1 are upgraded to those of the same runs today."""

import base64
import gzip
import importlib.util
import json
import zlib
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from nearshot.paper import RECIPES
from nearshot.paper.identity import run_id, validation_id
from nearshot.paper.jobs import jobs_of
from nearshot.paper.results import Results, RunResult
from nearshot.paper.sizes import PAPER, QUICK, Size, at_input_size
from nearshot.training import TrainConfig

ROOT = Path(__file__).parents[2]
SIZES = [PAPER, at_input_size(32), QUICK]


def load_script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("migrate", ROOT / "results" / "migrate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


migrate = load_script()


@cache
def version_1() -> dict[str, dict[str, Any]]:
    """Return every job of version 1, {size: {id: {"config", "recipes", "validation"}}}."""
    path = Path(__file__).parent / "data" / "identities-v1.json.gz"
    with gzip.open(path) as file:
        return dict(json.load(file))


def result_of_version_1(config: dict[str, Any]) -> dict[str, Any]:
    protocol = {
        "n_way": 5,
        "n_shot": 5,
        "n_query": 15,
        "n_episodes": 2,
        "seed": 0,
        "episodes": "beef",
        "classifier": "centroid",
        "centred": True,
        "normalised": True,
        "adapted": None,
        "inductive": True,
        "split": "val",
        "fingerprint": None,
        "classes_left_out": 0,
    }
    adapted = (
        "network fine-tuned on the support by 5 steps of Adam, lr 0.0001, weight decay 0.0005 of "
        "nca_loss, features by layers_of, batch norm frozen"
    )
    # The counts 30 and 45, with four bytes each.
    counts = base64.b64encode(zlib.compress(bytes([30, 0, 0, 0, 45, 0, 0, 0]))).decode()
    accuracy = {"mean": 50.0, "interval95": 1.0, "n_correct": counts}
    return {
        "format": "nearshot-result",
        "version": 1,
        "id": "0123456789abcdef",
        "scale": "paper",
        "config": config,
        "fingerprints": {"train": "f00d", "val": "cafe"},
        "environment": {"command": ["nearshot", "reproduce", "--all", "--gpus-per-run", "0.25"]},
        "seconds": 100.0,
        "images_per_second": 1000.0,
        "training_seconds": 110.0,
        "accuracies": {
            "val 5-shot centroid": accuracy | {"protocol": protocol, "epoch": 110},
            "test 5-shot centroid layers 2+3 fine-tuned": accuracy
            | {"protocol": protocol | {"adapted": adapted}, "epoch": 120, "measured": True},
        },
        "by_class": {"val 5-shot centroid": {"otter": 50.0}},
        "history": [{"epoch": 1, "step": 75, "loss": 4.0}],
    }


@pytest.mark.parametrize("size", SIZES, ids=lambda size: size.name)
def test_every_run_of_version_1_is_a_run_of_today(size: Size) -> None:
    dataset = None if size is QUICK else "all"
    validations = {
        job.id: validation_id(job.config)
        for job in jobs_of(RECIPES.values(), dataset, size, range(3))
    }
    old_jobs = version_1()[size.name]
    new_ids = set()
    for job in old_jobs.values():
        config = TrainConfig.from_dict(migrate.upgrade_config(job["config"]))
        new_id = run_id(config)
        new_ids.add(new_id)
        if RECIPES.keys() & set(job["recipes"]):
            assert validations[new_id] == validation_id(config), job["recipes"]
    assert len(new_ids) == len(old_jobs)


def test_an_upgraded_result_is_read_and_upgrading_it_again_changes_nothing() -> None:
    old = result_of_version_1(next(iter(version_1()["paper"].values()))["config"])
    before = json.dumps(old)
    new = migrate.upgrade(old)
    assert json.dumps(old) == before
    assert migrate.upgrade(new) == new
    result = RunResult(new)
    assert result.n_sharing == 4
    validated, fine_tuned = result.measurements
    assert (validated.split, validated.n_shot, validated.layers) == ("val", 5, ())
    assert (fine_tuned.layers, fine_tuned.how) == ((2, 3), "fine-tuned")
    assert result.epoch(fine_tuned) == 120
    assert result.accuracy(fine_tuned).per_episode.tolist() == pytest.approx([40, 60])
    adapted = result.accuracy(fine_tuned).protocol.adapted
    assert adapted is not None
    assert "layers_of" not in adapted
    assert "layers 2+3" in adapted


def test_settings_that_an_old_file_lacks_have_the_default_of_then() -> None:
    old = next(iter(version_1()["paper"].values()))["config"]
    assert migrate.upgrade_config({}) == migrate.upgrade_config(migrate.CONFIG)
    without = {name: value for name, value in old.items() if value != migrate.CONFIG[name]}
    assert migrate.upgrade_config(without) == migrate.upgrade_config(old)


def test_other_files_are_refused() -> None:
    for content in ({"format": "else"}, {"format": "nearshot-result", "version": 3}):
        with pytest.raises(ValueError, match="must be"):
            migrate.upgrade(content)


def test_a_folder_is_upgraded_into_the_results(tmp_path: Path) -> None:
    old = result_of_version_1(next(iter(version_1()["paper"].values()))["config"])
    folder = tmp_path / "measured" / "paper" / "cifar-fs"
    folder.mkdir(parents=True)
    (folder / "old-id.json").write_text(json.dumps(old))
    results = tmp_path / "results"
    migrate.main(tmp_path / "measured", results)
    (result,) = Results(results)
    path = results / "paper" / result.config.dataset / f"{result.id}.json"
    assert path.is_file()
    # In place, a file of version 1 is replaced.
    (path.parent / "old-id.json").write_text(json.dumps(old))
    migrate.main(results, results)
    assert list(results.rglob("*.json")) == [path]


def test_committed_results_are_of_version_2_and_have_the_names_of_their_runs() -> None:
    n_files = 0
    for path in (ROOT / "results").glob("*/*/*.json"):
        content = json.loads(path.read_text(encoding="utf-8"))
        assert path.stem == RunResult(content).id
        n_files += 1
    assert n_files >= 90
