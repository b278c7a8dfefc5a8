"""Measurements of a run: a split is embedded once, and everything has one precision."""

from pathlib import Path

import pytest
import torch
from tests.helpers.settings import TINY, change
from tests.helpers.tiny import prepare_tiny
from torch import nn

from nearshot.data import Store
from nearshot.devices import Precision
from nearshot.evaluation import (
    Adam,
    EvaluationSpec,
    evaluate_features,
    evaluate_fine_tuned,
)
from nearshot.losses import nca_loss
from nearshot.models import load_backbone
from nearshot.models.weights import load_head
from nearshot.paper.measurement import FINE_TUNED, FineTuning, measure
from nearshot.paper.results import Measurement
from nearshot.runs import TrainedRun, evaluate_run, open_run
from nearshot.runs.network import TrainedNetwork
from nearshot.training import Hardware, train

LAYERS = (2, 3)
EVERYTHING = (
    *(
        Measurement(split, shot, name)
        for split in ("val", "test")
        for shot in (1, 5)
        for name in ("centroid", "soft")
    ),
    Measurement("test", 5, "knn"),
    Measurement("val", 5, "centroid", how="raw"),
    Measurement("val", 1, "centroid", how="centred"),
    Measurement("test", 5, "centroid", LAYERS),
    Measurement("test", 5, "centroid", (), "fine-tuned"),
    Measurement("test", 5, "centroid", LAYERS, "fine-tuned"),
    Measurement("test", 5, "centroid", LAYERS, "fine-tuned 2 steps support norm"),
    Measurement("test", 5, "centroid", (), "mahalanobis"),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("measuring")
    prepare_tiny(folder / "data", n_classes=20, n_images=30, contrast=20)
    cpu = Hardware(accelerator="cpu")
    train(TINY, folder=folder / "run", data_dir=folder / "data", hardware=cpu, progress=False)
    return folder


def opened(folder: Path, precision: Precision = "float32") -> TrainedRun:
    for file in (folder / "run").glob("evaluations/*.json"):
        file.unlink()
    return open_run(folder / "run", data_dir=folder / "data", device="cpu", precision=precision)


@pytest.fixture
def embedded(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str, tuple[int, ...]]]:
    """The weights, split and layers of each pass over a split's images."""
    passes: list[tuple[str, str, tuple[int, ...]]] = []
    before = TrainedNetwork._embed

    def listening(
        self: TrainedNetwork,
        store: Store,
        layers: tuple[int, ...],
        n_views: int,
        power: float,
        rows: torch.Tensor,
    ) -> torch.Tensor:
        passes.append((self.name, store.folder.name, layers))
        return before(self, store, layers, n_views, power, rows)

    monkeypatch.setattr(TrainedNetwork, "_embed", listening)
    return passes


def test_a_split_is_embedded_once_for_all_that_is_asked(
    folder: Path, embedded: list[tuple[str, str, tuple[int, ...]]]
) -> None:
    run = opened(folder)
    evaluations = measure(run, EVERYTHING, adapted_episodes=6)
    assert set(evaluations) == set(EVERYTHING)
    assert len(embedded) == len(set(embedded))
    assert {(split, layers) for _, split, layers in embedded} == {
        ("val", ()),
        ("test", ()),
        ("test", LAYERS),
        ("train", LAYERS),  # for the mean that centres them
    }
    embedded.clear()
    again = measure(
        open_run(folder / "run", data_dir=folder / "data", device="cpu"),
        EVERYTHING,
        adapted_episodes=6,
    )
    assert embedded == []  # all of it was in files
    assert all(
        torch.equal(
            again[measurement].accuracy.per_episode, evaluations[measurement].accuracy.per_episode
        )
        for measurement in EVERYTHING
    )


def test_it_is_what_evaluating_each_alone_gives(folder: Path) -> None:
    run = opened(folder)
    evaluations = measure(run, EVERYTHING, adapted_episodes=6)
    plain = EvaluationSpec(classifier="soft", n_way=2, n_episodes=50)
    other = evaluate_run(opened(folder), plain)[0]
    assert torch.equal(
        evaluations[Measurement("test", 5, "soft")].accuracy.per_episode, other.accuracy.per_episode
    )
    store = run.store("val")
    features = run.network(run.best_weights(5, "centroid")).features(store)
    raw = evaluate_features(
        features, store.labels, n_way=2, n_episodes=50, centre=None, normalise=False
    )
    measured = evaluations[Measurement("val", 5, "centroid", how="raw")].accuracy
    assert torch.equal(measured.per_episode, raw.per_episode)
    assert measured.protocol.centred is False
    assert (
        evaluations[
            Measurement("test", 5, "centroid", (), "mahalanobis")
        ].accuracy.protocol.n_episodes
        == 6
    )
    layers = evaluations[Measurement("test", 5, "centroid", LAYERS, "fine-tuned")].accuracy.protocol
    assert layers.adapted is not None
    assert "features by layers 2+3" in layers.adapted
    viewed = Measurement("val", 5, "centroid", how="2 views")
    spec = EvaluationSpec(split="val", n_way=2, n_episodes=50, n_views=2)
    accuracy = measure(run, [viewed])[viewed].accuracy.per_episode
    assert torch.equal(accuracy, evaluate_run(opened(folder), spec)[0].accuracy.per_episode)
    assert not torch.equal(
        accuracy, evaluations[Measurement("val", 5, "centroid")].accuracy.per_episode
    )


def test_fine_tuning_by_no_step_is_the_plain_row_in_the_same_precision(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The precision of adapted rows is that of plain ones: without a step, they answer the same."""
    monkeypatch.setitem(FINE_TUNED, "fine-tuned", FineTuning(Adam(n_steps=0)))
    for precision in ("float32", "bfloat16"):
        run = opened(folder, precision)
        plain, tuned = (
            Measurement("test", 5, "centroid", LAYERS, adapted) for adapted in ("", "fine-tuned")
        )
        evaluations = measure(run, (plain, tuned), adapted_episodes=6)
        first = evaluations[plain].accuracy.per_episode[:6]
        assert torch.equal(evaluations[tuned].accuracy.per_episode, first)


def test_published_fine_tuning_goes_through_the_projection(folder: Path, tmp_path: Path) -> None:
    """The loss sees projected embeddings, the classifier the backbone's."""
    config = change(TINY, projection=6)
    train(
        config,
        folder=tmp_path / "run",
        data_dir=folder / "data",
        hardware=Hardware(accelerator="cpu"),
        progress=False,
    )
    run = open_run(tmp_path / "run", data_dir=folder / "data", device="cpu")
    weights = run.best_weights(5, "centroid")
    backbone, projection, store = (
        load_backbone(weights),
        load_head(weights, "projection"),
        run.store("test"),
    )
    assert projection is not None
    wanted = Measurement("test", 5, "centroid", (), "fine-tuned 2 steps support norm")
    expected = evaluate_fine_tuned(
        nn.Sequential(backbone, projection).eval(),
        run.network(weights).images(store),
        store.labels,
        loss=nca_loss,
        features=lambda network, images: network[0](images),  # type: ignore[index]
        optimiser=Adam(n_steps=2),
        batch_norm="support",
        inductive=True,
        n_way=2,
        n_episodes=6,
        centre=backbone.spec.training_mean,
    )
    assert torch.equal(
        measure(run, [wanted], adapted_episodes=6)[wanted].accuracy.per_episode,
        expected.per_episode,
    )
