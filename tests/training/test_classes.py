"""Training classes are never measured as unseen, whatever splits the dataset has by then."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from tests.helpers.tiny import prepare_tiny

from nearshot.cli import main
from nearshot.data import Store
from nearshot.errors import FileFormatError, LeakError
from nearshot.io import read_json
from nearshot.models import load_backbone, read_notes, save_backbone
from nearshot.paper.measurement import measure, measure_classes
from nearshot.paper.results import Measurement
from nearshot.runs.evaluate import Request, evaluate_run, evaluate_weights
from nearshot.runs.network import TrainedRun
from nearshot.training.run_folder import TrainingClasses

ASKED = Request(n_way=2, n_episodes=5, shots=(1,), n_query=5)
RAW = Measurement("test", 1, "centroid", how="raw")
RECORD = "training_classes.json"


@pytest.fixture(scope="module")
def split_anew(data_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder with the same pictures, split by another seed: a test class was trained on."""
    folder = tmp_path_factory.mktemp("anew")
    stores = prepare_tiny(folder, split_seed=1)
    assert set(Store.open("tiny", "train", data_dir).class_names) & set(stores["test"].class_names)
    return folder


def the_weights(run: Path) -> Path:
    return next((run / "weights").iterdir())


def without_note(run: Path, **notes: str) -> Path:
    """Make weights as they were before classes were noted, or with other notes."""
    weights = the_weights(run)
    others = {
        name: text for name, text in read_notes(weights).items() if name != "training_classes"
    }
    save_backbone(load_backbone(weights), weights, notes=others | notes)
    return weights


def test_a_run_and_its_weights_record_the_training_classes(trained: Path, data_dir: Path) -> None:
    training = Store.open("tiny", "train", data_dir)
    expected = {"dataset": "tiny", "classes": list(training.class_names)}
    assert read_json(trained / RECORD) == expected
    assert json.loads(read_notes(the_weights(trained))["training_classes"]) == expected


@pytest.mark.parametrize(
    "measuring",
    [
        lambda run, data: evaluate_run(run, ASKED, data_dir=data),
        lambda run, data: evaluate_weights(the_weights(run), ASKED, data_dir=data),
        lambda run, data: evaluate_weights(
            the_weights(run), replace(ASKED, dataset="tiny"), data_dir=data
        ),
        lambda run, data: measure(TrainedRun(run, data_dir=data), [RAW]),
        lambda run, data: measure_classes(TrainedRun(run, data_dir=data), ["test"]),
    ],
    ids=["run", "weights", "weights on a dataset", "recipe", "by class"],
)
def test_training_classes_are_refused_whatever_the_splits_are_now(
    measuring: Callable[[Path, Path], object], run: Path, split_anew: Path, tmp_path: Path
) -> None:
    alone = tmp_path / "data"  # the training split is missing
    shutil.copytree(split_anew / "tiny" / "16" / "test", alone / "tiny" / "16" / "test")
    for data in (split_anew, alone):
        with pytest.raises(LeakError, match=r"'class\d\d'.* tiny had other splits"):
            measuring(run, data)
    assert not (run / "evaluations").exists()
    assert main(["evaluate", str(run), "--data-dir", str(split_anew)]) == 1
    (run / "result.json").unlink()
    with pytest.raises(LeakError, match="tiny"):
        evaluate_run(run, ASKED, data_dir=split_anew, unfinished=True)


def test_weights_that_know_their_classes_do_not_need_the_training_split(
    run: Path, tmp_path: Path
) -> None:
    prepare_tiny(tmp_path)
    (tmp_path / "tiny" / "16" / "train" / "manifest.json").write_text("{")
    assert evaluate_weights(the_weights(run), ASKED, data_dir=tmp_path)
    with pytest.raises(FileFormatError):
        evaluate_weights(the_weights(run), replace(ASKED, layers=(3, 4)), data_dir=tmp_path)
    with pytest.raises(FileFormatError):
        evaluate_weights(without_note(run), ASKED, data_dir=tmp_path)


def test_without_a_record_the_current_training_split_decides(run: Path, tmp_path: Path) -> None:
    prepare_tiny(tmp_path)
    splits = tmp_path / "tiny" / "16"
    (splits / "leaky").symlink_to(splits / "train")
    with pytest.raises(LeakError):
        evaluate_weights(without_note(run), replace(ASKED, split="leaky"), data_dir=tmp_path)


def test_the_training_split_may_be_requested(run: Path, data_dir: Path, split_anew: Path) -> None:
    asked = replace(ASKED, split="train")
    for where in (data_dir, split_anew):
        assert evaluate_weights(the_weights(run), asked, data_dir=where)
        assert evaluate_run(run, asked, data_dir=where)


def test_equal_names_in_a_dataset_of_ones_own_give_a_warning(run: Path, tmp_path: Path) -> None:
    stores = prepare_tiny(tmp_path, name="others", seed=1)
    record = json.loads((run / RECORD).read_text())
    shared = set(record["classes"]) & set(stores["test"].class_names)
    asked = replace(ASKED, dataset="others")
    said = list[str]()
    assert evaluate_run(run, asked, data_dir=tmp_path, tell=said.append)
    assert evaluate_weights(the_weights(run), asked, data_dir=tmp_path, tell=said.append)
    assert said[0] == said[1]
    assert all(name in said[0] for name in ("tiny", "others", *map(repr, shared)))


@pytest.mark.parametrize("split", ["train", "test"])
def test_the_datasets_that_nearshot_knows_share_classes_where_they_share_names(
    split: str, tmp_path: Path
) -> None:
    """Some of miniImageNet's test classes are among tieredImageNet's training classes, by their names in WordNet."""
    store = prepare_tiny(tmp_path, name="mini-imagenet", n_images=2)[split]
    one = store.class_names[0]
    with pytest.raises(LeakError, match=f"'{one}'.* on tiered-imagenet"):
        TrainingClasses("tiered-imagenet", (one, "n00000001")).check_unseen(store, split)
    TrainingClasses("tiered-imagenet", ("n00000001",)).check_unseen(store, split)
    TrainingClasses("my-photos", (one,)).check_unseen(store, split)
    assert TrainingClasses("my-photos", ("n00000001",)).doubt(store) is None
