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
from nearshot.data.datasets import SOURCES
from nearshot.data.datasets.source import standard_splits
from nearshot.errors import FileFormatError, LeakError
from nearshot.evaluation import EvaluationSpec, TrainingClasses
from nearshot.io import read_json
from nearshot.models import load_backbone, read_notes, save_backbone
from nearshot.paper.measurement import measure
from nearshot.paper.results import Measurement
from nearshot.runs import evaluate_run, evaluate_weights, open_run

SPEC = EvaluationSpec(n_way=2, n_shot=1, n_query=5, n_episodes=5)
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
        lambda run, data: evaluate_run(run, SPEC, data_dir=data),
        lambda run, data: evaluate_weights(the_weights(run), SPEC, data_dir=data),
        lambda run, data: evaluate_weights(
            the_weights(run), replace(SPEC, dataset="tiny"), data_dir=data
        ),
        lambda run, data: measure(open_run(run, data_dir=data), [RAW]),
        lambda run, data: evaluate_run(run, SPEC, data_dir=data, by_class=True),
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
        evaluate_run(run, SPEC, data_dir=split_anew, unfinished=True)


def test_weights_that_know_their_classes_do_not_need_the_training_split(
    run: Path, tmp_path: Path
) -> None:
    prepare_tiny(tmp_path)
    (tmp_path / "tiny" / "16" / "train" / "manifest.json").write_text("{")
    assert evaluate_weights(the_weights(run), SPEC, data_dir=tmp_path)
    with pytest.raises(FileFormatError):
        evaluate_weights(the_weights(run), replace(SPEC, layers=(3, 4)), data_dir=tmp_path)
    with pytest.raises(FileFormatError):
        evaluate_weights(without_note(run), SPEC, data_dir=tmp_path)


def test_without_a_record_the_current_training_split_decides(run: Path, tmp_path: Path) -> None:
    prepare_tiny(tmp_path)
    splits = tmp_path / "tiny" / "16"
    (splits / "leaky").symlink_to(splits / "train")
    with pytest.raises(LeakError):
        evaluate_weights(without_note(run), replace(SPEC, split="leaky"), data_dir=tmp_path)


def test_the_training_split_may_be_requested(run: Path, data_dir: Path, split_anew: Path) -> None:
    spec = replace(SPEC, split="train")
    for where in (data_dir, split_anew):
        assert evaluate_weights(the_weights(run), spec, data_dir=where)
        assert evaluate_run(run, spec, data_dir=where)


def test_equal_names_in_a_dataset_of_ones_own_give_a_warning(run: Path, tmp_path: Path) -> None:
    stores = prepare_tiny(tmp_path, name="others", seed=1)
    record = json.loads((run / RECORD).read_text())
    shared = set(record["classes"]) & set(stores["test"].class_names)
    spec = replace(SPEC, dataset="others")
    with pytest.warns(UserWarning, match="tiny.* others") as of_run:
        assert evaluate_run(run, spec, data_dir=tmp_path)
    with pytest.warns(UserWarning, match="tiny.* others") as of_weights:
        assert evaluate_weights(the_weights(run), spec, data_dir=tmp_path)
    message = str(of_run[0].message)
    assert message == str(of_weights[0].message)
    assert all(repr(name) in message for name in shared)


@pytest.mark.parametrize("split", ["train", "test"])
def test_the_datasets_that_nearshot_knows_share_classes_where_they_share_names(
    split: str, tmp_path: Path
) -> None:
    """Some of miniImageNet's test classes are training classes of tieredImageNet."""
    store = prepare_tiny(tmp_path, name="mini-imagenet", n_images=2)[split]
    name = store.class_names[0]

    def check(classes: TrainingClasses) -> None:
        classes.check_unseen(store.dataset, split, store.class_names, known_datasets=SOURCES)

    with pytest.raises(LeakError, match=f"'{name}'.* on tiered-imagenet"):
        check(TrainingClasses("tiered-imagenet", (name, "n00000001")))
    check(TrainingClasses("tiered-imagenet", ("n00000001",)))
    check(TrainingClasses("my-photos", (name,)))
    other = TrainingClasses("my-photos", ("n00000001",))
    assert other.warning_about(store.dataset, store.class_names) is None


def test_tiny_tiered_tests_classes_that_mini_imagenet_trains() -> None:
    training = TrainingClasses("mini-imagenet", tuple(standard_splits("mini-imagenet")["train"]))
    tested = standard_splits("tiny-tiered")["test"]
    shared = set(training.class_names) & set(tested)
    assert len(shared) == 5
    with pytest.raises(LeakError, match="5 evaluated classes"):
        training.check_unseen("tiny-tiered", "test", tested, known_datasets=SOURCES)
