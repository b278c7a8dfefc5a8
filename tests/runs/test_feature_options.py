"""Views, powers and other input sizes of a trained run: features and centres against loops."""

from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from tests.helpers.settings import TINY, change
from tests.helpers.tiny import prepare_tiny
from torch import Tensor

from nearshot.data import Store
from nearshot.data.augment import normalise_images, view_of
from nearshot.errors import InputError
from nearshot.evaluation import CLASSIFIERS, Classifier, EvaluationSpec, evaluate_features
from nearshot.models import load_backbone
from nearshot.runs import evaluate_run, evaluate_weights, open_run
from nearshot.training import train


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    prepare_tiny(folder, n_classes=10, n_images=10, contrast=20)  # hard to tell
    return folder


@pytest.fixture(scope="module")
def trained(data_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of a network that takes images of any size."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    train(
        change(TINY, backbone="resnet12", epochs=1, validate_every=1),
        folder=folder,
        data_dir=data_dir,
        progress=False,
    )
    return folder


PLAIN = EvaluationSpec(n_way=2, n_query=5, n_episodes=50)
SPECS = {
    "plain": PLAIN,
    "views": replace(PLAIN, n_views=4),
    "power": replace(PLAIN, power=0.5),
    "input size": replace(PLAIN, input_size=20),
    "all": replace(PLAIN, n_views=3, power=0.7, input_size=12),
}


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_features_and_centre_are_those_of_a_loop(
    spec: EvaluationSpec, trained: Path, data_dir: Path
) -> None:
    run = open_run(trained, data_dir=data_dir)
    weights = run.best_weights(5, "centroid")
    network = run.network(weights, input_size=spec.input_size)
    store = run.store("test")
    backbone = load_backbone(weights)

    def features(images: torch.Tensor, n_views: int) -> torch.Tensor:
        total = torch.zeros(len(images), backbone.embedding_dim)
        for number in range(n_views):
            view = view_of(images, number, spec.input_size or backbone.spec.input_size)
            with torch.no_grad():
                total += backbone(normalise_images(view, *backbone.spec.normalisation))
        mean = total / n_views
        return torch.where(mean < 0, -1.0, 1.0) * mean.abs() ** spec.power

    expected = features(torch.from_numpy(store.images.copy()), spec.n_views)
    data = network.feature_set(store, spec)
    torch.testing.assert_close(data.features, expected, rtol=1e-3, atol=1e-4)
    assert run.network(weights, input_size=spec.input_size) is network
    training = Store.open("tiny", "train", data_dir)
    mean = features(torch.from_numpy(training.images.copy()), 1).mean(0)
    assert data.centre is not None
    torch.testing.assert_close(data.centre, mean, rtol=1e-3, atol=1e-3)


def test_results_are_of_their_options_and_say_so(trained: Path, data_dir: Path) -> None:
    specs = list(SPECS.values())
    evaluations = evaluate_run(trained, specs, data_dir=data_dir)
    assert [evaluation.spec for evaluation in evaluations] == specs
    contents = {evaluation.accuracy.per_episode.numpy().tobytes() for evaluation in evaluations}
    assert len(contents) > 2
    from_files = evaluate_run(trained, specs, data_dir=data_dir)
    assert [again.as_dict() for again in from_files] == [first.as_dict() for first in evaluations]
    run = open_run(trained, data_dir=data_dir)
    network = run.network(run.best_weights(5, "centroid"), input_size=specs[-1].input_size)
    data = network.feature_set(run.store("test"), specs[-1])
    accuracy = evaluate_features(data, n_way=2, n_query=5, n_episodes=50)
    assert accuracy.mean == evaluations[-1].accuracy.mean


def test_a_classifier_of_ones_own_is_measured_each_time(
    trained: Path, data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its name does not tell what it does."""
    means = []
    for sign in (1, -1):
        own = Classifier("mine", partial(times, sign), prototypes=True)
        monkeypatch.setitem(CLASSIFIERS, "mine", own)
        spec = replace(PLAIN, classifier="mine")
        (evaluation,) = evaluate_run(trained, spec, data_dir=data_dir)
        means.append(evaluation.accuracy.mean)
    assert means[0] > 50 > means[1]


def times(sign: int, similarities: Tensor, class_sizes: Tensor) -> Tensor:
    return sign * similarities


def test_weights_alone_need_the_training_split_for_some(
    trained: Path, data_dir: Path, tmp_path: Path
) -> None:
    weights = open_run(trained, data_dir=data_dir).best_weights(5, "centroid")
    for spec in (SPECS["plain"], SPECS["all"]):
        (evaluation,) = evaluate_weights(weights, spec, data_dir=data_dir)
        (of_run,) = evaluate_run(trained, spec, data_dir=data_dir)
        assert torch.equal(evaluation.accuracy.per_episode, of_run.accuracy.per_episode)
    (data_dir / "tiny").rename(tmp_path / "aside")
    try:
        prepare_tiny(data_dir / "more", name="other", seed=3, n_images=12)
        elsewhere = replace(SPECS["views"], dataset="other")
        with pytest.warns(UserWarning, match="classes of the same names"):
            assert evaluate_weights(weights, elsewhere, data_dir=data_dir / "more")
        powered = replace(elsewhere, power=0.5)
        with (
            pytest.warns(UserWarning, match="classes of the same names"),
            pytest.raises(InputError, match="power.*training split"),
        ):
            evaluate_weights(weights, powered, data_dir=data_dir / "more")
    finally:
        (tmp_path / "aside").rename(data_dir / "tiny")
