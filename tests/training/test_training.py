"""Training end to end on a tiny dataset."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import zipfile
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from settings import TINY
from tiny import prepare_tiny
from torch import Tensor

import nearshot
from nearshot.data import Store
from nearshot.errors import InputError
from nearshot.evaluation import EvaluationSpec, embed, evaluate_features
from nearshot.losses import nca_loss
from nearshot.models import build_backbone, save_backbone
from nearshot.runs import evaluate as evaluation_module
from nearshot.runs.evaluate import Request, evaluate_run, evaluate_weights, file_name
from nearshot.runs.network import TrainedRun
from nearshot.training import METHODS, Hardware, OwnLoss, TrainConfig, train
from nearshot.training.autoconfig import EVALUATION_SETTINGS
from nearshot.training.checkpoint import Progress
from nearshot.training.embedding import images_at_once, in_one_size
from nearshot.training.logging import RunLog
from nearshot.training.methods import Composition, compositions, resolve_method
from nearshot.training.run_folder import RunFolder


@pytest.mark.parametrize("name", METHODS)
def test_every_method_trains_and_its_loss_falls(name: str, data_dir: Path, tmp_path: Path) -> None:
    result = train(
        replace(TINY, method=name, epochs=6, temperature=0.5 if name == "supcon" else 1.0),
        folder=tmp_path / "run",
        data_dir=data_dir,
        show=False,
    )
    losses = [record["loss"] for record in result.history]
    assert min(losses[2:]) < losses[0]
    assert result.finished
    assert set(result.best) == {"1-shot centroid", "1-shot soft", "5-shot centroid", "5-shot soft"}
    assert result.best["5-shot centroid"].protocol.split == "val"


def test_a_run_folder_describes_the_run(run: Path, data_dir: Path) -> None:
    assert TrainConfig.from_dict(json.loads((run / "config.json").read_text())) == replace(
        TINY, epochs=5, validate_every=1
    )
    environment = json.loads((run / "environment.json").read_text())
    assert environment["torch"] == torch.__version__
    assert None not in environment["hardware"].values()  # what was left open is what was used
    assert environment["fingerprints"]["train"] == Store.open("tiny", "train", data_dir).fingerprint
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [record["epoch"] for record in records] == [1, 2, 3, 4, 5]
    assert len((run / "timing.jsonl").read_text().splitlines()) == 5


def test_the_best_epoch_is_kept_for_each_shot_and_classifier(run: Path) -> None:
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    best = json.loads((run / "result.json").read_text())["best"]
    for name, entry in best.items():
        means = [record["validation"][name] for record in records]
        assert entry["epoch"] == 1 + means.index(max(means))
        assert entry["mean"] == max(means)
    kept = {f"epoch-{epoch:04d}.safetensors" for epoch in {entry["epoch"] for entry in best.values()} | {5}}
    assert {file.name for file in (run / "weights").iterdir()} == kept


def test_weights_load_and_give_the_accuracy_that_was_logged(run: Path, data_dir: Path) -> None:
    best = json.loads((run / "result.json").read_text())["best"]["5-shot centroid"]
    backbone = nearshot.load_backbone(run / "weights" / f"epoch-{best['epoch']:04d}.safetensors")
    store = Store.open("tiny", "val", data_dir)
    mean, std = (torch.tensor(values).view(1, 3, 1, 1) for values in backbone.spec.normalisation)
    images = torch.from_numpy(store.images.copy()).permute(0, 3, 1, 2) / 255
    features = embed(backbone, (images - mean) / std)
    accuracy = evaluate_features(features, store.labels, n_way=2, n_episodes=50, centre=backbone.spec.training_mean)
    assert accuracy.mean == pytest.approx(best["mean"], abs=0.5)


def test_a_run_is_measured_with_the_epochs_that_were_best(run: Path, data_dir: Path) -> None:
    best = json.loads((run / "result.json").read_text())["best"]
    request = Request(n_way=2, n_episodes=40, classifiers=("centroid", "soft", "knn"))
    found = evaluate_run(run, request, data_dir=data_dir)
    assert [(one.n_shot, one.classifier) for one in found] == [
        (n_shot, name) for n_shot in (1, 5) for name in ("centroid", "soft", "knn")
    ]
    for one in found:
        chosen_by = f"{one.n_shot}-shot {'centroid' if one.classifier == 'knn' else one.classifier}"
        assert one.weights == f"epoch-{best[chosen_by]['epoch']:04d}.safetensors"
        alone = evaluate_weights(
            run / "weights" / one.weights,
            Request(n_way=2, n_episodes=40, shots=(1, 5), classifiers=(one.classifier,)),
            data_dir=data_dir,
        )
        twin = next(other for other in alone if other.n_shot == one.n_shot)
        assert torch.equal(one.accuracy.per_episode, twin.accuracy.per_episode)


def test_the_classes_of_each_answer_make_it_up(run: Path, tmp_path: Path) -> None:
    data_dir = tmp_path
    prepare_tiny(data_dir, split_seed=0, contrast=4)  # hard to tell apart
    request = Request(n_way=3, n_query=4, n_episodes=60, classifiers=("centroid", "knn"), seed=2, by_class=True)
    names = set(Store.open("tiny", "test", data_dir).class_names)
    measured = evaluate_run(run, request, data_dir=data_dir)
    kept = evaluate_run(run, request, data_dir=data_dir)
    of_file = evaluate_weights(run / "weights" / measured[0].weights, request, data_dir=data_dir)
    plain = evaluate_run(run, replace(request, by_class=False), data_dir=data_dir)
    assert all(one.by_class is None and "by_class" not in one.as_dict() for one in plain)
    for one in (*measured, *of_file):
        assert one.by_class is not None
        assert set(one.by_class) == names
        parts = [part.mean * part.n_episodes for part in one.by_class.values()]
        assert sum(parts) / (3 * 60) == pytest.approx(one.accuracy.mean)
    assert len({str(one.by_class) for one in measured}) > 1
    assert [one.by_class for one in kept] == [one.by_class for one in measured]
    assert [one.accuracy.as_dict() for one in plain] == [one.accuracy.as_dict() for one in measured]


def test_the_test_split_is_read_once(run: Path, data_dir: Path) -> None:
    request = Request(n_way=2, n_episodes=30)
    first = evaluate_run(run, request, data_dir=data_dir)
    (run / "weights").rename(run / "elsewhere")  # so nothing can be measured
    try:
        again = evaluate_run(run, request, data_dir=data_dir)
        with pytest.raises(InputError, match="no weights file"):
            evaluate_run(run, replace(request, seed=1), data_dir=data_dir)
    finally:
        (run / "elsewhere").rename(run / "weights")
    assert [one.as_dict() for one in again] == [one.as_dict() for one in first]


def test_another_question_has_another_file(run: Path, data_dir: Path) -> None:
    asked = Request(shots=(1,), classifiers=("centroid",))
    opened = TrainedRun(run, data_dir=data_dir, device="cpu", precision="float32")
    rough = TrainedRun(run, data_dir=data_dir, device="cpu", precision="bfloat16")
    weights, store = opened.best_weights(1, "centroid"), opened.store("test")
    changes: list[dict[str, Any]] = [
        {"split": "val"},
        {"shots": (5,)},
        {"classifiers": ("soft",)},
        {"layers": (3, 4)},
        {"n_way": 4},
        {"n_query": 4},
        {"least_images": 2},
        {"least_images": 3},
        {"n_episodes": 4},
        {"seed": 4},
        {"by_class": True},
    ]
    names = [file_name(opened, replace(asked, **change), weights, store) for change in ({}, *changes)]
    names.append(file_name(opened, asked, weights.with_stem("epoch-0099"), store))
    names.append(file_name(opened, asked, weights, opened.store("val")))
    names.append(file_name(opened, asked, weights, store, also=["fine-tuned by 5 steps"]))
    names.append(file_name(rough, asked, weights, store))
    assert len(set(names)) == len(names)
    assert not any(" " in name for name in names)


def test_a_measurement_follows_the_request(run: Path, data_dir: Path) -> None:
    asked = Request(
        split="val", shots=(2,), classifiers=("knn",), n_way=2, n_query=7, least_images=20, n_episodes=12, seed=3
    )
    weights = sorted((run / "weights").iterdir())[0]
    for found in (evaluate_run(run, asked, data_dir=data_dir), evaluate_weights(weights, asked, data_dir=data_dir)):
        (one,) = found
        assert (one.n_shot, one.classifier, one.dataset, one.layers) == (2, "knn", "tiny", ())
        said = asdict(one.accuracy.protocol)
        assert (said["n_shot"], said["classifier"]) == (2, "knn")
        for name in ("split", "n_way", "n_query", "n_episodes", "seed"):
            assert said[name] == getattr(asked, name)


def test_by_default_runs_are_validated_and_measured_on_the_episodes_of_plain_features() -> None:
    by_default = vars(EvaluationSpec())
    for name in ("n_way", "n_query", "n_episodes", "seed"):
        assert getattr(Request(), name) == by_default[name]
    config = TrainConfig()
    validation = {"n_way": config.validation_way, "n_query": config.validation_queries}
    assert validation | {"n_episodes": config.validation_episodes} == {
        name: by_default[name] for name in ("n_way", "n_query", "n_episodes")
    }
    assert config.validation_shots == Request().shots


def test_a_message_precedes_the_embedding_of_many_images(
    data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights, asked = tmp_path / "weights.safetensors", Request(dataset="tiny", n_way=2, n_episodes=5)
    save_backbone(build_backbone("conv4-32", input_size=16), weights)
    n_images = len(Store.open("tiny", "test", data_dir))
    for many, expected in (
        (n_images + 1, []),
        (n_images, [f"Embedding {n_images} images of tiny with weights.safetensors on cpu."]),
    ):
        said: list[str] = []
        monkeypatch.setattr(evaluation_module, "MANY", many)
        evaluate_weights(weights, asked, data_dir=data_dir, device="cpu", tell=said.append)
        assert said == expected


def test_without_shots_there_is_nothing_to_measure(run: Path, data_dir: Path) -> None:
    asked, weights = Request(n_way=2, shots=()), sorted((run / "weights").iterdir())[0]
    for fit in ((), EVALUATION_SETTINGS):
        with pytest.raises(InputError, match="There is nothing to measure: give numbers of shots"):
            evaluate_run(run, asked, data_dir=data_dir, fit=fit)
        with pytest.raises(InputError, match="There is nothing to measure: give numbers of shots"):
            evaluate_weights(weights, asked, data_dir=data_dir, fit=fit)


def test_weights_that_do_not_say_what_they_were_trained_on_need_a_dataset(data_dir: Path, tmp_path: Path) -> None:
    weights, asked = tmp_path / "weights.safetensors", Request(n_way=2, n_episodes=5, shots=(1,))
    save_backbone(build_backbone("conv4-32", input_size=16), weights)
    with pytest.raises(InputError, match=r"weights\.safetensors does not say what it was trained on; give a dataset\."):
        evaluate_weights(weights, asked, data_dir=data_dir)
    (found,) = evaluate_weights(weights, replace(asked, dataset="tiny"), data_dir=data_dir)
    assert (found.dataset, found.weights) == ("tiny", "weights.safetensors")


def test_layers_are_features(run: Path, data_dir: Path) -> None:
    weights = sorted((run / "weights").iterdir())[0]
    request = Request(split="val", n_way=2, n_episodes=20, layers=(3, 4))
    assert evaluate_weights(weights, request, data_dir=data_dir)[0].layers == (3, 4)


def test_equal_seeds_give_equal_runs_and_equal_files(trained: Path, data_dir: Path, tmp_path: Path) -> None:
    config = replace(TINY, epochs=5, validate_every=1)
    for seed, same in ((0, True), (2, False)):
        train(replace(config, seed=seed), folder=tmp_path / str(seed) / "run", data_dir=data_dir, show=False)
        files = [file.relative_to(trained) for file in (trained / "weights").iterdir()]
        for name in (Path("metrics.jsonl"), *(files if same else ())):
            other = tmp_path / str(seed) / "run" / name
            assert (other.read_bytes() == (trained / name).read_bytes()) is same, name


def test_a_loss_of_ones_own_may_be_the_built_in_one(data_dir: Path, tmp_path: Path) -> None:
    def own(embeddings: Tensor, labels: Tensor) -> Tensor:
        return nca_loss(embeddings, labels, background=1e-10)

    results = [
        train(replace(TINY, epochs=1, method=method), folder=tmp_path / name, data_dir=data_dir, show=False)
        for name, method in (("own", OwnLoss("nca", own)), ("built-in", "nca"))
    ]
    assert results[0].history[0]["loss"] == results[1].history[0]["loss"]
    assert json.loads((tmp_path / "own" / "config.json").read_text())["method"] == "own-nca"


def test_tensorboard_reads_one_curve_of_a_resumed_run(data_dir: Path, tmp_path: Path) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    config = replace(TINY, epochs=3, validate_every=1)
    for _ in range(2):  # the second time from its first checkpoint, as after a kill in the second epoch
        train(config, folder=tmp_path / "run", data_dir=data_dir, resume=True, checkpoint_seconds=0, show=False)
        state = torch.load(tmp_path / "run" / "checkpoint.pt", weights_only=True)
        assert state["progress"]["epoch"] == 4
    history = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    events = accumulator.EventAccumulator(str(tmp_path / "run")).Reload()
    assert [event.step for event in events.Scalars("loss")] == [1, 2, 3]
    assert [event.value for event in events.Scalars("loss")] == pytest.approx([record["loss"] for record in history])
    assert "validation/5-shot centroid" in events.Tags()["scalars"]
    log = RunLog(RunFolder(tmp_path / "run"), config, Progress(), 6, show=False)  # starts again at the first epoch
    with log:
        log.epoch(history[0] | {"loss": 0.5}, seconds=1.0, images_per_second=1.0)
    events = accumulator.EventAccumulator(str(tmp_path / "run")).Reload()
    assert [(event.step, event.value) for event in events.Scalars("loss")] == [(1, 0.5)]


def test_without_tensorboard_there_is_no_event_file(
    data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    assert train(replace(TINY, epochs=1), folder=tmp_path / "run", data_dir=data_dir, show=False).finished
    assert not list((tmp_path / "run").glob("events*"))


@pytest.mark.parametrize("residence", ["memory", "disk"])
def test_where_the_images_live_changes_nothing(residence: str, data_dir: Path, tmp_path: Path) -> None:
    losses = {
        train(
            replace(TINY, epochs=1),
            folder=tmp_path / str(place),
            data_dir=data_dir,
            hardware=Hardware(residence=place),  # type: ignore[arg-type]
            show=False,
        ).history[0]["loss"]
        for place in (None, residence)
    }
    assert len(losses) == 1


def test_a_batch_is_counted_as_a_loop_counts_it() -> None:
    labels = torch.tensor([[0, 0, 0, 1, 1, 2], [3, 3, 4, 5, 6, 7]])
    expected = []
    for batch in labels.tolist():
        positive = sum(batch[i] == batch[j] for i in range(6) for j in range(i))
        alone = sum(batch.count(label) == 1 for label in batch)
        expected.append(Composition(alone, positive, 15 - positive))
    assert compositions(labels, TINY, resolve_method(TINY)) == expected


def test_shuffled_batches_of_many_classes_are_reported_as_unpaired(data_dir: Path, tmp_path: Path) -> None:
    config = replace(TINY, epochs=1, batch_size=8)
    record = train(config, folder=tmp_path / "run", data_dir=data_dir, show=False).history[0]
    assert record["anchors_without_positive"] > 0
    assert record["positive_pairs"] + record["negative_pairs"] == 8 * 7 / 2


def test_kept_fractions_are_counted(data_dir: Path, tmp_path: Path) -> None:
    config = replace(TINY, epochs=1, keep_positives=0.25, keep_negatives=0.1)
    some = train(config, folder=tmp_path / "some", data_dir=data_dir, show=False).history[0]
    every = train(replace(TINY, epochs=1), folder=tmp_path / "all", data_dir=data_dir, show=False).history[0]
    assert some["positive_pairs"] == pytest.approx(0.25 * every["positive_pairs"], abs=0.5)
    assert some["negative_pairs"] == pytest.approx(0.1 * every["negative_pairs"], abs=0.5)


def test_a_learnt_temperature_is_logged(data_dir: Path, tmp_path: Path) -> None:
    config = replace(TINY, epochs=2, learn_temperature=True, temperature=3.0)
    history = train(config, folder=tmp_path / "run", data_dir=data_dir, show=False).history
    assert history[0]["temperature"] != history[1]["temperature"]
    assert history[0]["temperature"] == pytest.approx(3.0, rel=0.5)


def test_a_dataset_without_validation_keeps_the_last_epoch(data_dir: Path, tmp_path: Path) -> None:
    shutil.copytree(data_dir / "tiny", tmp_path / "tiny")
    shutil.rmtree(tmp_path / "tiny" / "16" / "val")
    result = train(replace(TINY, epochs=2), folder=tmp_path / "run", data_dir=tmp_path, show=False)
    assert result.best == {}
    assert [file.name for file in (tmp_path / "run" / "weights").iterdir()] == ["epoch-0002.safetensors"]


def test_an_archive_knows_its_commit(tmp_path: Path) -> None:
    """A copy that `git archive` made, on a machine without git."""
    root = Path(__file__).parents[2]
    git = shutil.which("git")
    if git is None or not (root / ".git").exists():
        pytest.skip("needs a checkout")
    commit = subprocess.run([git, "rev-parse", "HEAD"], cwd=root, capture_output=True, text=True, check=True).stdout
    archive = tmp_path / "source.zip"
    subprocess.run([git, "archive", "--output", archive, "HEAD", "src"], cwd=root, check=True)
    with zipfile.ZipFile(archive) as opened:
        opened.extractall(tmp_path)
    ask = "import torch, nearshot.training.run_folder as r; print(r.describe_environment(torch.device('cpu'))['code'])"
    answer = subprocess.run(
        [sys.executable, "-c", ask],
        cwd=tmp_path,
        env={"PYTHONPATH": str(tmp_path / "src"), "PATH": ""},
        capture_output=True,
        text=True,
        check=True,
    )
    assert answer.stdout.strip() == str({"commit": commit.strip(), "changed": None})


def test_training_leaves_torchs_state_unchanged(data_dir: Path, tmp_path: Path) -> None:
    """The setting of cuDNN, and the caller's random numbers."""
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    for before in (False, True):
        torch.backends.cudnn.benchmark = before
        train(replace(TINY, epochs=1), folder=tmp_path / str(before), data_dir=data_dir, show=False)
        assert torch.backends.cudnn.benchmark is before
    torch.backends.cudnn.benchmark = False
    assert torch.equal(torch.rand(3), expected)


def test_a_network_in_one_size_gives_each_image_its_own_features() -> None:
    sizes = []

    def network(images: Tensor) -> Tensor:
        sizes.append(len(images))
        return images.flatten(1).sum(1, keepdim=True)

    images = torch.arange(3 * 3 * 2 * 2, dtype=torch.float32).view(3, 3, 2, 2)
    features = in_one_size(network, torch.device("cpu"))(images)
    assert sizes == [images_at_once(torch.device("cpu"))]
    assert torch.equal(features, images.flatten(1).sum(1, keepdim=True))
    in_one_size(network, torch.device("cpu"), most=7)(images)  # no more than there are
    assert sizes[1:] == [7]
