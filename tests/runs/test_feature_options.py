"""Views, powers and other input sizes of a trained run: features and centres against loops, and what results say."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.helpers.settings import TINY
from tests.helpers.tiny import prepare_tiny

from nearshot.data.augment import normalise_images, view_of
from nearshot.errors import InputError
from nearshot.evaluation import evaluate_features
from nearshot.models import load_backbone
from nearshot.runs.evaluate import Request, evaluate_run, evaluate_weights
from nearshot.runs.network import FeatureOptions, TrainedRun
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
        replace(TINY, backbone="resnet12", epochs=1, validate_every=1),
        folder=folder,
        data_dir=data_dir,
        show=False,
    )
    return folder


OPTIONS = [
    FeatureOptions(),
    FeatureOptions(n_views=4),
    FeatureOptions(power=0.5),
    FeatureOptions(input_size=20),
    FeatureOptions(n_views=3, power=0.7, input_size=12),
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_features_and_centre_are_those_of_a_loop(
    options: FeatureOptions, trained: Path, data_dir: Path
) -> None:
    run = TrainedRun(trained, data_dir=data_dir)
    weights = run.best_weights(5, "centroid")
    network, store = run.network(weights, options), run.store("test")
    backbone = load_backbone(weights)

    def features(images: torch.Tensor, n_views: int) -> torch.Tensor:
        total = torch.zeros(len(images), backbone.embedding_dim)
        for number in range(n_views):
            view = view_of(images, number, options.input_size or backbone.spec.input_size)
            with torch.no_grad():
                total += backbone(normalise_images(view, *backbone.spec.normalisation))
        mean = total / n_views
        return torch.where(mean < 0, -1.0, 1.0) * mean.abs() ** options.power

    expected = features(torch.from_numpy(store.images.copy()), options.n_views)
    torch.testing.assert_close(network.features(store), expected, rtol=1e-3, atol=1e-4)
    assert run.network(weights, options) is network
    training = run._training
    assert training is not None
    mean = features(torch.from_numpy(training.images.copy()), 1).mean(0)
    centre = network.centre()
    assert centre is not None
    torch.testing.assert_close(centre, mean, rtol=1e-3, atol=1e-3)


def test_results_are_of_their_options_and_say_so(trained: Path, data_dir: Path) -> None:
    base = Request(shots=(5,), n_way=2, n_query=5, n_episodes=50)
    requests = [replace(base, **vars(options)) for options in OPTIONS]
    found = [evaluate_run(trained, request, data_dir=data_dir)[0] for request in requests]
    assert [one.options for one in found] == OPTIONS
    assert len({one.accuracy.per_episode.numpy().tobytes() for one in found}) > 2
    again = [
        evaluate_run(trained, request, data_dir=data_dir)[0] for request in requests
    ]  # from files
    assert [one.as_dict() for one in again] == [one.as_dict() for one in found]
    run = TrainedRun(trained, data_dir=data_dir)
    network, store = run.network(run.best_weights(5, "centroid"), OPTIONS[-1]), run.store("test")
    accuracy = evaluate_features(
        network.features(store),
        store.labels,
        centre=network.centre(),
        n_shot=5,
        n_way=2,
        n_query=5,
        n_episodes=50,
    )
    assert accuracy.mean == found[-1].accuracy.mean


def test_weights_alone_need_the_training_split_for_some(
    trained: Path, data_dir: Path, tmp_path: Path
) -> None:
    weights = TrainedRun(trained, data_dir=data_dir).best_weights(5, "centroid")
    request = Request(dataset="tiny", shots=(1,), n_way=2, n_query=5, n_episodes=20)
    for options in (OPTIONS[0], OPTIONS[-1]):
        found = evaluate_weights(weights, replace(request, **vars(options)), data_dir=data_dir)
        assert found[0].options == options
    (data_dir / "tiny").rename(tmp_path / "aside")
    try:
        prepare_tiny(data_dir / "more", name="other", seed=3, n_images=12)
        elsewhere = replace(request, dataset="other", n_views=2)
        assert (
            evaluate_weights(weights, elsewhere, data_dir=data_dir / "more")[0].options.n_views == 2
        )
        with pytest.raises(InputError, match="power.*training split"):
            evaluate_weights(weights, replace(elsewhere, power=0.5), data_dir=data_dir / "more")
    finally:
        (tmp_path / "aside").rename(data_dir / "tiny")
