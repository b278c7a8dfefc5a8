"""Adapting to the support set, against a plain loop with torch.optim over copies of the network."""

from __future__ import annotations

import copy
import inspect
import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from nearshot.errors import InputError, LeakError
from nearshot.evaluation import (
    CLASSIFIERS,
    Adam,
    compare,
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
FASTER = Adam(n_steps=5, lr=3e-3, weight_decay=5e-4)


@pytest.fixture(scope="module")
def images() -> Tensor:
    """In float64, where no two classes are equally near but for rounding."""
    generator = torch.Generator().manual_seed(0)
    means = torch.randn(6, 3, 16, 16, generator=generator)
    return (means[LABELS] + 2.0 * torch.randn(72, 3, 16, 16, generator=generator)).double()


@pytest.fixture
def network(images: Tensor) -> Any:
    torch.manual_seed(0)
    backbone = build_backbone("conv4-32", input_size=16).double()
    for _ in range(20):
        backbone(images)  # settles the statistics of batch norm
    return backbone.eval()


def nearest(support: Tensor, query: Tensor) -> Tensor:
    """The nearest centroid of each query; support (way, shot, dim), query (way, query, dim)."""
    return torch.cdist(query.flatten(0, 1), support.mean(1)).argmin(1)


def plain_loop(
    network: Any, images: Tensor, optimiser: Adam, multi_layer: bool = False, batch_norm: str = "frozen"
) -> list[float]:
    """One episode after another: copy the network, run torch.optim.Adam on the support, classify."""
    episodes = sample_episodes(LABELS, **SHAPE)
    results = []
    for support_index, query_index in zip(episodes.support, episodes.query, strict=True):
        tuned = copy.deepcopy(network).eval()
        for module in tuned.modules():
            if isinstance(module, torch.nn.BatchNorm2d):
                module.train(batch_norm == "support")
        optim = torch.optim.Adam(tuned.parameters(), lr=optimiser.lr, weight_decay=optimiser.weight_decay)
        for _ in range(optimiser.n_steps):
            optim.zero_grad()
            nca_loss(tuned(images[support_index.flatten()]), torch.arange(3).repeat_interleave(3)).backward()
            optim.step()
        tuned.load_state_dict(dict(network.named_buffers()), strict=False)  # the statistics of training
        tuned.eval()
        with torch.no_grad():
            extract = tuned.multi_layer if multi_layer else tuned
            parts = [extract(images[index.flatten()]) for index in (support_index, query_index)]
        support, query = (torch.nn.functional.normalize(part).view(3, -1, part.shape[1]) for part in parts)
        truth = torch.arange(3).repeat_interleave(4)
        results.append(100 * (nearest(support, query) == truth).double().mean().item())
    return results


def through_stages(network: Any, pictures: Tensor) -> Tensor:
    features: Tensor = network.multi_layer(pictures)
    return features


@pytest.mark.parametrize("episodes_at_once", [1, 4])
@pytest.mark.parametrize("multi_layer", [False, True])
@pytest.mark.parametrize("batch_norm", ["frozen", "support"])
def test_fine_tuning_is_the_plain_loop(
    network: Any, images: Tensor, episodes_at_once: int, multi_layer: bool, batch_norm: Any
) -> None:
    before = copy.deepcopy(network.state_dict())
    accuracy = evaluate_fine_tuned(
        network,
        images,
        LABELS,
        loss=nca_loss,
        optimiser=FASTER,
        batch_norm=batch_norm,
        episodes_at_once=episodes_at_once,
        features=through_stages if multi_layer else None,
        inductive=True if multi_layer else None,
        **SHAPE,
    )
    assert accuracy.per_episode.tolist() == pytest.approx(plain_loop(network, images, FASTER, multi_layer, batch_norm))
    assert not any(module.training for module in network.modules())
    for name, tensor in network.state_dict().items():
        assert torch.equal(tensor, before[name])


def test_episodes_side_by_side_do_without_channels_last(images: Tensor) -> None:
    """In that format batch norm on a GPU, cuDNN's, cannot be mapped over episodes."""
    network: Any = build_backbone("resnet12", input_size=16).double().eval()
    network.to(memory_format=torch.channels_last)
    network.blocks[0].requires_grad_(False)  # what is frozen is in this format too
    strides: list[tuple[int, ...]] = []
    for module in network.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.register_forward_pre_hook(lambda _, given: strides.append(given[0].stride()))
    pictures = images.to(memory_format=torch.channels_last)
    shape: dict[str, Any] = {"n_way": 2, "n_shot": 2, "n_query": 1, "n_episodes": 2}
    once = Adam(n_steps=1)
    evaluate_fine_tuned(network, pictures, LABELS, loss=nca_loss, optimiser=once, episodes_at_once=2, **shape)
    assert strides
    assert all(channel >= row >= column for _, channel, row, column in strides)


def features_after(network: Any, images: Tensor, **settings: Any) -> Tensor:
    """The features of one episode after fine-tuning, (image, dim), support first."""
    seen: list[Tensor] = []

    def remember(net: Any, x: Tensor) -> Tensor:
        features: Tensor = net(x)
        seen.append(features)
        return features

    shape = SHAPE | {"n_episodes": 1}
    evaluate_fine_tuned(network, images, LABELS, loss=nca_loss, features=remember, inductive=True, **shape, **settings)
    return seen[0]


def test_batch_norm_on_the_support_is_that_of_a_network_in_training_mode(network: Any, images: Tensor) -> None:
    """Feature by feature, after three steps, with dropout left off and the statistics of training restored."""
    three = Adam(n_steps=3, lr=3e-3)
    with_dropout = torch.nn.Sequential(network, torch.nn.Dropout(0.5)).eval()
    episode = sample_episodes(LABELS, **SHAPE | {"n_episodes": 1})
    support, query = episode.support[0].flatten(), episode.query[0].flatten()
    tuned = copy.deepcopy(network).train()
    optim = torch.optim.Adam(tuned.parameters(), lr=three.lr, weight_decay=three.weight_decay)
    for _ in range(three.n_steps):
        optim.zero_grad()
        nca_loss(tuned(images[support]), torch.arange(3).repeat_interleave(3)).backward()
        optim.step()
    tuned.load_state_dict(dict(network.named_buffers()), strict=False)
    with torch.no_grad():
        expected = tuned.eval()(images[torch.cat([support, query])])
    ours = features_after(with_dropout, images, optimiser=three, batch_norm="support")
    torch.testing.assert_close(ours, expected)
    frozen = features_after(with_dropout, images, optimiser=three, batch_norm="frozen")
    assert not torch.allclose(frozen, expected, rtol=1e-2)


def test_fine_tuning_changes_the_answers_and_helps_here(network: Any, images: Tensor) -> None:
    plain = evaluate_features(embed(network, images), LABELS, n_way=3, n_shot=5, n_query=5, n_episodes=20)
    tuned = evaluate_fine_tuned(
        network, images, LABELS, loss=nca_loss, optimiser=FASTER, n_way=3, n_shot=5, n_query=5, n_episodes=20
    )
    assert tuned.protocol.episodes == plain.protocol.episodes
    assert tuned.mean > plain.mean


def test_frozen_parameters_stay_frozen(network: Any, images: Tensor) -> None:
    """With all but the last block frozen, the result is that of training the last block alone."""
    for name, parameter in network.named_parameters():
        parameter.requires_grad_(name.startswith("blocks.3"))
    tuned = evaluate_fine_tuned(network, images, LABELS, loss=nca_loss, optimiser=FASTER, **SHAPE)
    assert tuned.per_episode.tolist() == pytest.approx(plain_loop(network, images, FASTER))


def test_results_can_be_compared_in_pairs_with_plain_ones(network: Any, images: Tensor) -> None:
    features = embed(network, images)
    plain = evaluate_features(features, LABELS, split="val", fingerprint="f", **SHAPE)
    same = evaluate_mahalanobis(
        features, LABELS, loss=nca_loss, optimiser=Adam(n_steps=0), split="val", fingerprint="f", **SHAPE
    )
    assert compare(plain, same).ties == 100


def test_without_a_step_nothing_changes(network: Any, images: Tensor) -> None:
    features = embed(network, images)
    centre = features.mean(0) * 0.9
    plain = evaluate_features(features, LABELS, centre=centre, **SHAPE)
    none = Adam(n_steps=0)
    tuned = evaluate_fine_tuned(network, images, LABELS, loss=nca_loss, optimiser=none, centre=centre, **SHAPE)
    mapped = evaluate_mahalanobis(features, LABELS, loss=nca_loss, optimiser=none, centre=centre, **SHAPE)
    assert tuned.per_episode.tolist() == pytest.approx(plain.per_episode.tolist())
    assert mapped.per_episode.tolist() == pytest.approx(plain.per_episode.tolist())


@pytest.mark.parametrize("batch_norm", ["frozen", "support"])
def test_adaptation_is_inductive(network: Any, images: Tensor, batch_norm: Any) -> None:
    """The answer to a query does not depend on the other queries: noise in their place changes nothing."""
    episodes = sample_episodes(LABELS, **{**SHAPE, "n_episodes": 1})
    others = episodes.query[0, :, 1:].flatten()
    spoilt = images.clone()
    spoilt[others] = 50.0 * torch.randn(len(others), 3, 16, 16, generator=torch.Generator().manual_seed(1)).double()
    answers = []
    for pictures in (images, spoilt):
        seen = features_after(network, pictures, optimiser=FASTER, batch_norm=batch_norm)
        first_queries = seen[9:].view(3, 4, -1)[:, 0]
        answers.append(torch.cat([seen[:9], first_queries]))
    torch.testing.assert_close(*answers, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("episodes_at_once", [1, 4])
def test_the_mahalanobis_matrix_is_the_plain_loop(network: Any, images: Tensor, episodes_at_once: int) -> None:
    features = torch.nn.functional.normalize(embed(network, images))
    optimiser = Adam(n_steps=8, lr=0.02, weight_decay=0.01)
    accuracy = evaluate_mahalanobis(
        features, LABELS, loss=nca_loss, optimiser=optimiser, episodes_at_once=episodes_at_once, **SHAPE
    )
    episodes = sample_episodes(LABELS, **SHAPE)
    expected = []
    for support_index, query_index in zip(episodes.support, episodes.query, strict=True):
        matrix = torch.eye(features.shape[1], dtype=torch.float64, requires_grad=True)
        optim = torch.optim.Adam([matrix], lr=optimiser.lr, weight_decay=optimiser.weight_decay)
        for _ in range(optimiser.n_steps):
            optim.zero_grad()
            nca_loss(features[support_index.flatten()] @ matrix.T, torch.arange(3).repeat_interleave(3)).backward()
            optim.step()
        mapped = (features @ matrix.T).detach()
        answers = nearest(mapped[support_index], mapped[query_index])
        expected.append(100 * (answers == torch.arange(3).repeat_interleave(4)).double().mean().item())
    assert accuracy.per_episode.tolist() == pytest.approx(expected)


def test_a_result_says_that_it_was_adapted(network: Any, images: Tensor) -> None:
    tuned = evaluate_fine_tuned(network, images, LABELS, loss=nca_loss, **SHAPE)
    words = "fine-tuned on the support by 5 steps of Adam, lr 0.0001, weight decay 0.0005 of nca_loss"
    assert words in str(tuned.protocol)
    assert "batch norm frozen" in str(tuned.protocol)
    assert tuned.protocol.inductive
    trained = evaluate_fine_tuned(network, images, LABELS, loss=nca_loss, batch_norm="support", **SHAPE)
    assert "batch norm in training mode on the support" in str(trained.protocol)
    assert trained.protocol.inductive
    mapped = evaluate_mahalanobis(embed(network, images), LABELS, loss=nca_loss, **SHAPE)
    words = "Mahalanobis matrix learnt on the support by 20 steps of Adam, lr 0.001, weight decay 0 of nca_loss"
    assert words in str(mapped.protocol)


def test_the_rest_of_the_protocol_is_that_of_plain_features(network: Any, images: Tensor) -> None:
    """And without a step the answers are too, for any classifier, seed and treatment, with small classes left out."""
    labels = torch.cat([LABELS[:60], torch.full((12,), 7)])
    labels[-3:] = 99
    features = embed(network, images)
    settings: dict[str, Any] = SHAPE | {"seed": 3, "classifier": "soft", "centre": features[0] / 2, "normalise": False}
    settings |= {"small_classes": "leave out", "split": "val", "fingerprint": "0123"}
    plain = evaluate_features(features, labels, **settings)
    none = Adam(n_steps=0)
    for adapted in (
        evaluate_fine_tuned(network, images, labels, loss=nca_loss, optimiser=none, **settings),
        evaluate_mahalanobis(features, labels, loss=nca_loss, optimiser=none, **settings),
    ):
        assert replace(adapted.protocol, adapted=None) == plain.protocol
        assert adapted.per_episode.tolist() == pytest.approx(plain.per_episode.tolist())
    assert plain.protocol.classes_left_out == 1
    backwards: Any = {"classifier": lambda s, q: -CLASSIFIERS["centroid"](s, q), "inductive": False, **SHAPE}
    for result in (
        evaluate_fine_tuned(network, images, LABELS, loss=nca_loss, optimiser=none, **backwards),
        evaluate_mahalanobis(features, LABELS, loss=nca_loss, optimiser=none, **backwards),
    ):
        assert not result.protocol.inductive
        assert result.protocol.classifier == "<lambda>"


def test_by_default_episodes_are_those_of_plain_features() -> None:
    plain, tuned, mapped = (
        inspect.signature(function).parameters
        for function in (evaluate_features, evaluate_fine_tuned, evaluate_mahalanobis)
    )
    for name in ("n_way", "n_query", "seed", "classifier", "centre", "normalise", "small_classes"):
        assert tuned[name].default == mapped[name].default == plain[name].default
    assert mapped["n_episodes"].default == plain["n_episodes"].default
    drawn = inspect.signature(sample_episodes).parameters["n_shot"]
    assert tuned["n_shot"].default == mapped["n_shot"].default == drawn.default


def test_one_shot_is_refused_with_the_reason(network: Any, images: Tensor) -> None:
    with pytest.raises(InputError, match="One shot cannot be adapted to.*no positive pair to learn from"):
        evaluate_fine_tuned(network, images, LABELS, loss=nca_loss, n_way=3, n_shot=1, n_query=4)
    with pytest.raises(InputError, match="One shot cannot be adapted to"):
        evaluate_mahalanobis(embed(network, images), LABELS, loss=nca_loss, n_way=3, n_shot=1, n_query=4)


@pytest.mark.parametrize(
    "wrong", [{"n_steps": -1}, {"lr": 0.0}, {"lr": math.nan}, {"weight_decay": -1e-9}, {"weight_decay": math.nan}]
)
def test_an_optimiser_that_cannot_step_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="Adam needs no negative steps or weight decay and a positive learning rate"):
        Adam(**wrong)
    Adam(n_steps=0, lr=1e-9, weight_decay=0.0)


def test_a_network_in_training_mode_is_refused(network: Any, images: Tensor) -> None:
    with pytest.raises(LeakError, match="training mode"):
        evaluate_fine_tuned(network.train(), images, LABELS, loss=nca_loss, **SHAPE)
    with pytest.raises(InputError, match=r"labels must be one per image: expected shape \(72,\), not \(71,\)"):
        evaluate_fine_tuned(network.eval(), images, LABELS[:-1], loss=nca_loss, **SHAPE)
    with pytest.raises(InputError, match="say inductive=True if it looks at each alone"):
        evaluate_fine_tuned(network.eval(), images, LABELS, loss=nca_loss, features=through_stages, **SHAPE)
    with pytest.raises(InputError, match="no classifier 'svm'"):
        evaluate_mahalanobis(torch.randn(72, 4), LABELS, loss=nca_loss, classifier="svm", **SHAPE)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="a way has images of more than one class"):
        episodes = sample_episodes(LABELS, **SHAPE)
        evaluate_fine_tuned(network.eval(), images, LABELS.roll(1), loss=nca_loss, episodes=episodes)
    with pytest.raises(InputError, match="Adam needs float32 parameters, not torch.float16"):
        evaluate_fine_tuned(copy.deepcopy(network).half().eval(), images, LABELS, loss=nca_loss, **SHAPE)
    with pytest.raises(InputError, match="nothing to fine-tune"):
        evaluate_fine_tuned(torch.nn.Flatten().eval(), images, LABELS, loss=nca_loss, **SHAPE)
    with pytest.raises(InputError, match="nothing to fine-tune"):
        frozen = copy.deepcopy(network).eval().requires_grad_(False)
        evaluate_fine_tuned(frozen, images, LABELS, loss=nca_loss, **SHAPE)
    with pytest.raises(InputError, match="batch_norm must be 'frozen' or 'support', not 'query'"):
        evaluate_fine_tuned(network.eval(), images, LABELS, loss=nca_loss, batch_norm="query", **SHAPE)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="needs a network with batch norm"):
        linear = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(768, 4)).double().eval()
        evaluate_fine_tuned(linear, images, LABELS, loss=nca_loss, batch_norm="support", **SHAPE)
    with pytest.raises(InputError, match="episodes_at_once must be at least 1"):
        evaluate_fine_tuned(network.eval(), images, LABELS, loss=nca_loss, episodes_at_once=0, **SHAPE)
