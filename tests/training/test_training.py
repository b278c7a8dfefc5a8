"""Training end to end on a tiny dataset."""

import json
import shutil
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.helpers.settings import TINY, change
from tests.helpers.tiny import prepare_tiny
from torch import Tensor

import nearshot
from nearshot.data import Store
from nearshot.data.augment import Augmentation
from nearshot.errors import InputError
from nearshot.evaluation import (
    CLASSIFIERS,
    Classifier,
    EvaluationSpec,
    embed,
    evaluate_features,
    knn,
)
from nearshot.models import build_backbone, save_backbone
from nearshot.runs import evaluate_run, evaluate_weights, open_run
from nearshot.runs.evaluate import CachedEvaluation
from nearshot.training import (
    METHODS,
    RunFolder,
    TrainConfig,
    TrainResult,
    train,
    trainer,
)
from nearshot.training.checkpoint import RunState
from nearshot.training.embedding import images_at_once, in_one_size
from nearshot.training.logging import RunLog
from nearshot.training.plan import open_splits, plan_run
from nearshot.training.trainer import effective_dimensions, warnings_about

TrainTiny = Callable[..., TrainResult]


def records(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def best_of(run: Path) -> dict[str, dict[str, Any]]:
    return dict(json.loads((run / "result.json").read_text())["best"])


@pytest.mark.parametrize("name", METHODS)
def test_every_method_trains_and_its_loss_falls(name: str, train_tiny: TrainTiny) -> None:
    settings = {"temperature": 0.5} if name == "supcon" else {}
    result = train_tiny(method=name, epochs=6, **settings)
    losses = [record["loss"] for record in result.history]
    assert min(losses[2:]) < losses[0]
    assert result.finished
    assert set(result.best) == {"1-shot centroid", "1-shot soft", "5-shot centroid", "5-shot soft"}
    assert result.best["5-shot centroid"].protocol.split == "val"


@pytest.mark.parametrize(
    ("changes", "warns"),
    [
        ({"augmentation": Augmentation()}, True),
        ({"augmentation": Augmentation(), "input_size": 32}, False),  # magnified in evaluation too
        ({"augmentation": Augmentation(crop="padded")}, False),
    ],
    ids=str,
)
def test_published_crops_of_small_images_are_warned_of(
    changes: dict[str, Any], warns: bool, data_dir: Path
) -> None:
    config = change(TINY, **changes)
    plan = plan_run(config, open_splits(config, data_dir))
    assert len(plan.messages) == warns
    assert all("16×16" in message and "padded" in message for message in plan.messages)


def test_a_run_folder_describes_the_run(run: Path, data_dir: Path) -> None:
    config = RunFolder(run).read_config()
    assert config == change(TINY, epochs=5, validate_every=1)
    environment = json.loads((run / "environment.json").read_text())
    assert environment["torch"] == torch.__version__
    assert None not in environment["hardware"].values()  # what was left open is what was used
    assert environment["fingerprints"]["train"] == Store.open("tiny", "train", data_dir).fingerprint
    assert [record["epoch"] for record in records(run)] == [1, 2, 3, 4, 5]
    assert len((run / "timing.jsonl").read_text().splitlines()) == 5


def test_the_best_epoch_is_kept_for_each_shot_and_classifier(run: Path) -> None:
    best = best_of(run)
    for name, entry in best.items():
        means = [record["validation"][name] for record in records(run)]
        assert (entry["epoch"], entry["mean"]) == (1 + means.index(max(means)), max(means))
    kept = {
        f"epoch-{epoch:04d}.safetensors"
        for epoch in {entry["epoch"] for entry in best.values()} | {5}
    }
    assert {file.name for file in (run / "weights").iterdir()} == kept


def test_weights_load_and_give_the_accuracy_that_was_logged(run: Path, data_dir: Path) -> None:
    best = best_of(run)["5-shot centroid"]
    backbone = nearshot.load_backbone(run / "weights" / f"epoch-{best['epoch']:04d}.safetensors")
    store = Store.open("tiny", "val", data_dir)
    mean, std = (torch.tensor(values).view(1, 3, 1, 1) for values in backbone.spec.normalisation)
    images = torch.from_numpy(store.images.copy()).permute(0, 3, 1, 2) / 255
    features = embed(backbone, (images - mean) / std)
    accuracy = evaluate_features(
        features, store.labels, n_way=2, n_episodes=50, centre=backbone.spec.training_mean
    )
    assert accuracy.mean == pytest.approx(best["mean"], abs=0.5)


def test_a_run_is_measured_with_the_epochs_that_were_best(run: Path, data_dir: Path) -> None:
    best = best_of(run)
    specs = [
        EvaluationSpec(n_way=2, n_shot=n_shot, n_episodes=40, classifier=classifier)
        for n_shot, classifier in product((1, 5), ("centroid", "soft", "knn"))
    ]
    evaluations = evaluate_run(run, specs, data_dir=data_dir)
    assert [evaluation.spec for evaluation in evaluations] == specs
    for spec, evaluation in zip(specs, evaluations, strict=True):
        validated = "centroid" if spec.classifier == "knn" else spec.classifier
        epoch = best[f"{spec.n_shot}-shot {validated}"]["epoch"]
        assert evaluation.weights == f"epoch-{epoch:04d}.safetensors"
        weights = run / "weights" / evaluation.weights
        (alone,) = evaluate_weights(weights, spec, data_dir=data_dir)
        assert torch.equal(evaluation.accuracy.per_episode, alone.accuracy.per_episode)


def test_the_classes_of_each_answer_make_it_up(run: Path, tmp_path: Path) -> None:
    data_dir = tmp_path
    prepare_tiny(data_dir, split_seed=0, contrast=4)  # hard to tell apart
    specs = [
        EvaluationSpec(
            n_way=3, n_shot=n_shot, n_query=4, n_episodes=60, classifier=classifier, seed=2
        )
        for n_shot, classifier in product((1, 5), ("centroid", "knn"))
    ]
    names = set(Store.open("tiny", "test", data_dir).class_names)
    measured = evaluate_run(run, specs, by_class=True, data_dir=data_dir)
    kept = evaluate_run(run, specs, by_class=True, data_dir=data_dir)
    weights = run / "weights" / measured[0].weights
    of_file = evaluate_weights(weights, specs, by_class=True, data_dir=data_dir)
    plain = evaluate_run(run, specs, data_dir=data_dir)
    assert all(evaluation.by_class is None for evaluation in plain)
    for evaluation in (*measured, *of_file):
        assert evaluation.by_class is not None
        assert set(evaluation.by_class) == names
        parts = [part.mean * part.n_episodes for part in evaluation.by_class.values()]
        assert sum(parts) / (3 * 60) == pytest.approx(evaluation.accuracy.mean)
    assert len({str(evaluation.by_class) for evaluation in measured}) > 1
    assert [evaluation.by_class for evaluation in kept] == [
        evaluation.by_class for evaluation in measured
    ]
    assert [evaluation.accuracy.as_dict() for evaluation in plain] == [
        evaluation.accuracy.as_dict() for evaluation in measured
    ]


def test_the_test_split_is_read_once(run: Path, data_dir: Path) -> None:
    spec = EvaluationSpec(n_way=2, n_episodes=30)
    first = evaluate_run(run, spec, data_dir=data_dir)
    (run / "weights").rename(run / "elsewhere")  # so nothing can be measured
    again = evaluate_run(run, spec, data_dir=data_dir)
    with pytest.raises(InputError, match="weights file"):
        evaluate_run(run, replace(spec, seed=1), data_dir=data_dir)
    assert [evaluation.as_dict() for evaluation in again] == [
        evaluation.as_dict() for evaluation in first
    ]


def test_embedding_is_logged_unless_the_result_is_stored(
    run: Path, data_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    spec = EvaluationSpec(n_way=2, n_episodes=30)
    for is_embedded in (True, False):
        caplog.clear()
        with caplog.at_level("INFO", logger="nearshot.runs"):
            evaluate_run(run, spec, data_dir=data_dir)
        assert ("60 images of tiny" in caplog.text) == is_embedded


def test_another_evaluation_has_another_file(run: Path, data_dir: Path) -> None:
    spec = EvaluationSpec(n_shot=1)
    opened = open_run(run, data_dir=data_dir, device="cpu", precision="float32")
    rough = open_run(run, data_dir=data_dir, device="cpu", precision="bfloat16")
    weights = opened.best_weights(1, "centroid")
    store = opened.store("test")
    specs = [
        spec,
        replace(spec, split="val"),
        replace(spec, n_shot=5),
        replace(spec, classifier="soft"),
        replace(spec, layers=(3, 4)),
        replace(spec, n_way=4),
        replace(spec, n_query=4),
        replace(spec, least_images=2),
        replace(spec, n_episodes=4),
        replace(spec, seed=4),
        replace(spec, normalise=False),
        replace(spec, centred=False),
        replace(spec, n_views=2),
        replace(spec, power=0.5),
        replace(spec, input_size=8),
    ]
    cached = [CachedEvaluation(opened, other, weights, store) for other in specs]
    cached += [
        CachedEvaluation(opened, spec, weights, store, by_class=True),
        CachedEvaluation(opened, spec, weights, store, adapted="fine-tuned by 5 steps"),
        CachedEvaluation(opened, spec, weights.with_stem("epoch-0099"), store),
        CachedEvaluation(opened, spec, weights, opened.store("val")),
        CachedEvaluation(rough, spec, weights, store),
    ]
    assert len({evaluation.name for evaluation in cached}) == len(cached)
    same = CachedEvaluation(
        opened, replace(spec, classifier=CLASSIFIERS["centroid"]), weights, store
    )
    assert same.name == cached[0].name


def test_a_classifier_of_ones_own_is_measured_each_time(run: Path, data_dir: Path) -> None:
    """Its name does not identify it."""
    for k in (1, 3):
        spec = EvaluationSpec(n_way=2, n_episodes=30, classifier=Classifier("own", knn(k).scores))
        (evaluation,) = evaluate_run(run, spec, data_dir=data_dir)
        plain = replace(spec, classifier=knn(k))
        (expected,) = evaluate_run(run, plain, data_dir=data_dir)
        assert torch.equal(evaluation.accuracy.per_episode, expected.accuracy.per_episode)
    assert not (run / "evaluations").exists()


def test_weights_that_do_not_say_what_they_were_trained_on_need_a_dataset(
    data_dir: Path, tmp_path: Path
) -> None:
    weights = tmp_path / "weights.safetensors"
    spec = EvaluationSpec(n_way=2, n_shot=1, n_episodes=5)
    save_backbone(build_backbone("conv4-32", input_size=16), weights)
    with pytest.raises(InputError, match=r"weights\.safetensors .* dataset"):
        evaluate_weights(weights, spec, data_dir=data_dir)
    spec = replace(spec, dataset="tiny")
    (evaluation,) = evaluate_weights(weights, spec, data_dir=data_dir)
    assert (evaluation.dataset, evaluation.weights) == ("tiny", "weights.safetensors")


def test_equal_seeds_give_equal_runs_and_equal_files(trained: Path, train_tiny: TrainTiny) -> None:
    for seed, same in ((0, True), (2, False)):
        other = train_tiny(f"{seed}/run", epochs=5, validate_every=1, seed=seed).folder
        files = [file.relative_to(trained) for file in (trained / "weights").iterdir()]
        for name in (Path("metrics.jsonl"), *(files if same else ())):
            assert ((other / name).read_bytes() == (trained / name).read_bytes()) is same, name


def test_tensorboard_reads_one_curve_of_a_resumed_run(data_dir: Path, tmp_path: Path) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    config = change(TINY, epochs=3, validate_every=1)
    folder = tmp_path / "run"
    for _ in range(2):  # the second time from its last checkpoint
        train(
            config,
            folder=folder,
            data_dir=data_dir,
            resume=True,
            checkpoint_seconds=0,
            progress=False,
        )
    history = records(folder)
    events = accumulator.EventAccumulator(str(folder)).Reload()
    assert [event.step for event in events.Scalars("loss")] == [1, 2, 3]
    assert [event.value for event in events.Scalars("loss")] == pytest.approx(
        [record["loss"] for record in history]
    )
    assert "validation/5-shot centroid" in events.Tags()["scalars"]
    # TensorBoard orders event files by name: by the second, then by a number as text (10 before 9).
    second = int(time.time())
    while int(time.time()) == second:
        time.sleep(0.01)
    # The log starts again at the first epoch.
    with RunLog(RunFolder(folder), config, RunState(), 6, progress=False) as log:
        log.epoch(history[0] | {"loss": 0.5}, seconds=1.0, images_per_second=1.0)
    events = accumulator.EventAccumulator(str(folder)).Reload()
    assert [(event.step, event.value) for event in events.Scalars("loss")] == [(1, 0.5)]


def test_pairs_and_a_learnt_temperature_are_logged(train_tiny: TrainTiny) -> None:
    history = train_tiny(epochs=2, batch_size=8, learn_temperature=True, temperature=3.0).history
    assert history[0]["anchors_without_positive"] > 0
    assert history[0]["positive_pairs"] + history[0]["negative_pairs"] == 8 * 7 / 2
    assert history[0]["temperature"] != history[1]["temperature"]
    assert history[0]["temperature"] == pytest.approx(3.0, rel=0.5)


def test_a_dataset_without_validation_keeps_the_last_epoch(data_dir: Path, tmp_path: Path) -> None:
    shutil.copytree(data_dir / "tiny", tmp_path / "tiny")
    shutil.rmtree(tmp_path / "tiny" / "16" / "val")
    result = train(
        change(TINY, epochs=2), folder=tmp_path / "run", data_dir=tmp_path, progress=False
    )
    assert result.best == {}
    assert [file.name for file in (tmp_path / "run" / "weights").iterdir()] == [
        "epoch-0002.safetensors"
    ]


def test_an_archive_knows_its_commit(tmp_path: Path) -> None:
    """A copy that `git archive` made, on a machine without git."""
    root = Path(__file__).parents[2]
    git = shutil.which("git")
    if git is None or not (root / ".git").exists():
        pytest.skip("needs a checkout")
    commit = subprocess.check_output([git, "rev-parse", "HEAD"], cwd=root, text=True).strip()
    archive = tmp_path / "source.zip"
    subprocess.run([git, "archive", "--output", archive, "HEAD", "src"], cwd=root, check=True)
    with zipfile.ZipFile(archive) as opened:
        opened.extractall(tmp_path)
    ask = "from nearshot._version import state_of_code; print(state_of_code())"
    alone = {"PYTHONPATH": str(tmp_path / "src"), "PATH": ""}
    answer = subprocess.check_output(
        [sys.executable, "-c", ask], cwd=tmp_path, env=alone, text=True
    )
    assert answer.strip() == str({"commit": commit, "changed": None})


def test_training_leaves_torchs_state_unchanged(
    train_tiny: TrainTiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The setting of cuDNN, and the caller's random numbers."""
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    for before in (False, True):
        monkeypatch.setattr(torch.backends.cudnn, "benchmark", before)
        train_tiny(str(before), epochs=1)
        assert torch.backends.cudnn.benchmark is before
    assert torch.equal(torch.rand(3), expected)


def test_a_network_in_one_size_gives_each_image_its_own_features() -> None:
    sizes = []

    def network(images: Tensor) -> Tensor:
        sizes.append(len(images))
        return images.flatten(1).sum(1, keepdim=True)

    images = torch.arange(3 * 3 * 2 * 2, dtype=torch.float32).view(3, 3, 2, 2)
    cpu = torch.device("cpu")
    assert torch.equal(in_one_size(network, cpu)(images), images.flatten(1).sum(1, keepdim=True))
    in_one_size(network, cpu, most=7)(images)  # no more than there are
    assert sizes == [images_at_once(cpu), 7]


@given(st.integers(0, 100), st.sampled_from([(50, 4), (4, 50)]))
def test_effective_dimensions_are_those_of_the_eigenvalues(
    seed: int, shape: tuple[int, int]
) -> None:
    features = torch.randn(
        shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64
    )
    eigenvalues = torch.linalg.eigvalsh(features.T.cov())
    expected = float(eigenvalues.sum() ** 2 / eigenvalues.square().sum())
    assert effective_dimensions(features) == pytest.approx(expected)


def test_features_that_differ_are_no_problem_and_equal_or_random_ones_are() -> None:
    labels = torch.arange(10).repeat_interleave(20)
    random = torch.Generator().manual_seed(0)
    noise = torch.randn(200, 16, generator=random)
    separate = noise + 10 * torch.randn(10, 16, generator=random)[labels]
    line = noise[:, :1] * torch.ones(16) + 1e-3 * noise
    for problem, features in {None: separate, "chance": noise, "collapse": line}.items():
        accuracy = evaluate_features(features, labels, n_episodes=500, normalise=False)
        messages = warnings_about(features, [accuracy], TrainConfig())
        assert problem in messages[0] if problem else not messages
    assert "collapse" in warnings_about(torch.ones(200, 16), [], TrainConfig())[0]


def test_a_run_warns_from_its_middle_on(
    data_dir: Path,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(trainer, "COLLAPSED", 1e9)
    train(change(TINY, epochs=4, validate_every=1), folder=tmp_path / "run", data_dir=data_dir)
    _, *lines = capfd.readouterr().err.splitlines()  # the first says what is trained
    assert "chance 50 %" in lines[0]
    words = [line.split()[0] for line in lines]
    assert words == ["epoch", "epoch", "Warning:", "epoch", "Warning:", "epoch", "Warning:"]
