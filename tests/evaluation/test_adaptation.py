"""Adapting to the support set, against a plain loop with torch.optim over copies of the network."""

import copy
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from nearshot.errors import InputError, LeakError
from nearshot.evaluation import (
    CLASSIFIERS,
    Accuracy,
    Adam,
    adaptation,
    embed,
    evaluate_features,
    evaluate_fine_tuned,
    evaluate_mahalanobis,
    sample_episodes,
)
from nearshot.losses import nca_loss
from nearshot.models import build_backbone

LABELS = torch.arange(6).repeat_interleave(12)
SHAPE: dict[str, Any] = {"n_way": 3, "n_shot": 3, "n_query": 4, "n_episodes": 6}
NONE = Adam(n_steps=0)
FASTER = Adam(n_steps=5, lr=3e-3, weight_decay=5e-4)


def fine_tuned(network: Any, images: Tensor, labels: Tensor = LABELS, **settings: Any) -> Accuracy:
    return evaluate_fine_tuned(network, images, labels, **{"loss": nca_loss, **SHAPE, **settings})


def mapped(features: Tensor, labels: Tensor = LABELS, **settings: Any) -> Accuracy:
    return evaluate_mahalanobis(features, labels, **{"loss": nca_loss, **SHAPE, **settings})


@pytest.fixture(scope="module")
def images() -> Tensor:
    """In float64, where no two classes are equally near but for rounding."""
    generator = torch.Generator().manual_seed(0)
    means = torch.randn(6, 3, 16, 16, generator=generator)
    return (means[LABELS] + 2.0 * torch.randn(72, 3, 16, 16, generator=generator)).double()


@pytest.fixture(scope="module")
def settled(images: Tensor) -> Any:
    torch.manual_seed(0)
    backbone = build_backbone("conv4-32", input_size=16).double()
    for _ in range(20):
        backbone(images)  # settles the statistics of batch norm
    return backbone.eval()


@pytest.fixture
def network(settled: Any) -> Any:
    return copy.deepcopy(settled)


def nearest(support: Tensor, query: Tensor) -> Tensor:
    """The nearest centroid of each query; support (way, shot, dim), query (way, query, dim)."""
    return torch.cdist(query.flatten(0, 1), support.mean(1)).argmin(1)


def tuned(
    network: Any, images: Tensor, support: Tensor, optimiser: Adam, batch_norm: str = "frozen"
) -> Any:
    """A copy of the network after torch.optim.Adam on the support (way, shot).

    Its batch norm has the running statistics of training.
    """
    copied = copy.deepcopy(network).eval()
    for module in copied.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.train(batch_norm == "support")
    optim = torch.optim.Adam(
        copied.parameters(), lr=optimiser.lr, weight_decay=optimiser.weight_decay
    )
    for _ in range(optimiser.n_steps):
        optim.zero_grad()
        nca_loss(copied(images[support.flatten()]), torch.arange(3).repeat_interleave(3)).backward()
        optim.step()
    copied.load_state_dict(dict(network.named_buffers()), strict=False)
    return copied.eval()


def plain_loop(
    network: Any,
    images: Tensor,
    optimiser: Adam,
    multi_layer: bool = False,
    batch_norm: str = "frozen",
) -> list[float]:
    """One episode after another: copy the network, fine-tune it, classify."""
    episodes = sample_episodes(LABELS, **SHAPE)
    results = []
    for support_index, query_index in zip(episodes.support, episodes.query, strict=True):
        adapted = tuned(network, images, support_index, optimiser, batch_norm)
        with torch.no_grad():
            extract = adapted.multi_layer if multi_layer else adapted
            parts = [extract(images[index.flatten()]) for index in (support_index, query_index)]
        support, query = (
            torch.nn.functional.normalize(part).view(3, -1, part.shape[1]) for part in parts
        )
        truth = torch.arange(3).repeat_interleave(4)
        results.append(100 * (nearest(support, query) == truth).double().mean().item())
    return results


def through_stages(network: Any, images: Tensor) -> Tensor:
    features: Tensor = network.multi_layer(images)
    return features


@pytest.mark.parametrize("multi_layer", [False, True])
@pytest.mark.parametrize("batch_norm", ["frozen", "support"])
def test_fine_tuning_is_the_plain_loop(
    network: Any, images: Tensor, multi_layer: bool, batch_norm: Any
) -> None:
    before = copy.deepcopy(network.state_dict())
    features: Any = {"features": through_stages, "inductive": True} if multi_layer else {}
    accuracy = fine_tuned(network, images, optimiser=FASTER, batch_norm=batch_norm, **features)
    assert accuracy.per_episode.tolist() == pytest.approx(
        plain_loop(network, images, FASTER, multi_layer, batch_norm)
    )
    assert not any(module.training for module in network.modules())
    for name, tensor in network.state_dict().items():
        assert torch.equal(tensor, before[name])


def features_after(network: Any, images: Tensor, **settings: Any) -> Tensor:
    """The features of one episode after fine-tuning, (image, dim), support first."""
    seen: list[Tensor] = []

    def remember(net: Any, x: Tensor) -> Tensor:
        features: Tensor = net(x)
        seen.append(features)
        return features

    fine_tuned(network, images, features=remember, inductive=True, n_episodes=1, **settings)
    return seen[0]


def test_batch_norm_on_the_support_is_that_of_a_network_in_training_mode(
    network: Any, images: Tensor
) -> None:
    """Feature by feature, after three steps, without dropout, with the statistics restored."""
    three = Adam(n_steps=3, lr=3e-3)
    with_dropout = torch.nn.Sequential(network, torch.nn.Dropout(0.5)).eval()
    episode = sample_episodes(LABELS, **SHAPE | {"n_episodes": 1})
    rows = torch.cat([episode.support[0].flatten(), episode.query[0].flatten()])
    expected = tuned(network, images, episode.support[0], three, "support")(images[rows]).detach()
    ours = features_after(with_dropout, images, optimiser=three, batch_norm="support")
    torch.testing.assert_close(ours, expected)
    frozen = features_after(with_dropout, images, optimiser=three, batch_norm="frozen")
    assert not torch.allclose(frozen, expected, rtol=1e-2)


def test_frozen_parameters_stay_frozen(network: Any, images: Tensor) -> None:
    """With all but the last block frozen, the result is that of training the last block alone."""
    for name, parameter in network.named_parameters():
        parameter.requires_grad_(name.startswith("blocks.3"))
    accuracy = fine_tuned(network, images, optimiser=FASTER)
    assert accuracy.per_episode.tolist() == pytest.approx(plain_loop(network, images, FASTER))


@pytest.mark.parametrize("batch_norm", ["frozen", "support"])
def test_adaptation_is_inductive(network: Any, images: Tensor, batch_norm: Any) -> None:
    """The answer to a query does not depend on the other queries: they may as well be noise."""
    episodes = sample_episodes(LABELS, **{**SHAPE, "n_episodes": 1})
    others = episodes.query[0, :, 1:].flatten()
    generator = torch.Generator().manual_seed(1)
    noisy = images.clone()
    noisy[others] = 50.0 * torch.randn(len(others), 3, 16, 16, generator=generator).double()

    def features_of_support_and_first_queries(images: Tensor) -> Tensor:
        features = features_after(network, images, optimiser=FASTER, batch_norm=batch_norm)
        first_queries = features[9:].view(3, 4, -1)[:, 0]
        return torch.cat([features[:9], first_queries])

    expected = features_of_support_and_first_queries(images)
    with_noise = features_of_support_and_first_queries(noisy)
    torch.testing.assert_close(with_noise, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("at_once", [1, 4])
def test_the_mahalanobis_matrix_is_the_plain_loop(
    network: Any, images: Tensor, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(adaptation, "MATRICES_AT_ONCE", at_once)
    features = torch.nn.functional.normalize(embed(network, images))
    optimiser = Adam(n_steps=8, lr=0.02, weight_decay=0.01)
    accuracy = mapped(features, optimiser=optimiser)
    episodes = sample_episodes(LABELS, **SHAPE)
    expected = []
    for support_index, query_index in zip(episodes.support, episodes.query, strict=True):
        matrix = torch.eye(features.shape[1], dtype=torch.float64, requires_grad=True)
        optim = torch.optim.Adam([matrix], lr=optimiser.lr, weight_decay=optimiser.weight_decay)
        for _ in range(optimiser.n_steps):
            optim.zero_grad()
            support = features[support_index.flatten()] @ matrix.T
            nca_loss(support, torch.arange(3).repeat_interleave(3)).backward()
            optim.step()
        moved = (features @ matrix.T).detach()
        answers = nearest(moved[support_index], moved[query_index])
        is_right = answers == torch.arange(3).repeat_interleave(4)
        expected.append(100 * is_right.double().mean().item())
    assert accuracy.per_episode.tolist() == pytest.approx(expected)


def test_a_result_says_that_it_was_adapted(network: Any, images: Tensor) -> None:
    for batch_norm, words in (("frozen", "batch norm frozen"), ("support", "in training mode")):
        protocol = fine_tuned(network, images, batch_norm=batch_norm, n_episodes=1).protocol
        assert protocol.adapted is not None
        for part in ("fine-tuned", "5 steps of Adam, lr 0.0001", "nca_loss", words):
            assert part in protocol.adapted
        assert protocol.inductive
    protocol = mapped(embed(network, images)).protocol
    assert protocol.adapted is not None
    for part in ("Mahalanobis", "5 steps of Adam, lr 0.0001, weight decay 0", "nca_loss"):
        assert part in protocol.adapted


def test_the_rest_of_the_protocol_is_that_of_plain_features(network: Any, images: Tensor) -> None:
    """And so are the answers without a step, for any classifier, seed and treatment."""
    labels = torch.cat([LABELS[:60], torch.full((12,), 7)])
    labels[-3:] = 99
    features = embed(network, images)
    settings: dict[str, Any] = SHAPE | {
        "seed": 3,
        "classifier": "soft",
        "centre": features[0] / 2,
        "normalise": False,
        "least_images": 7,
        "split": "val",
        "fingerprint": "0123",
    }
    plain = evaluate_features(features, labels, **settings)
    assert plain.protocol.n_skipped_classes == 1
    for evaluate, examples in ((partial(fine_tuned, network), images), (mapped, features)):
        adapted = evaluate(examples, labels, optimiser=NONE, **settings)
        assert replace(adapted.protocol, adapted=None) == plain.protocol
        assert adapted.per_episode.tolist() == pytest.approx(plain.per_episode.tolist())
    backwards: Any = {"classifier": lambda s, q: -CLASSIFIERS["centroid"](s, q), "inductive": False}
    result = mapped(features, optimiser=NONE, **backwards)
    assert (result.protocol.classifier, result.protocol.inductive) == ("<lambda>", False)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"n_shot": 1}, "n_shot must be at least 2"),
        ({"features": through_stages}, "inductive"),
        ({"classifier": lambda support, query: query}, "inductive"),
    ],
)
def test_bad_input_is_refused(
    network: Any, images: Tensor, given: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        fine_tuned(network, images, **given)
    with pytest.raises(LeakError, match="training mode"):
        fine_tuned(network.train(), images)
