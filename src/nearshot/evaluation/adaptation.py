"""Adapting to the support set (Appendix G): fine-tune the whole network, or learn a metric on its features.

Both minimise a loss on the support set alone, by default NCA, which the caller hands in. The queries have no part in
it and batch norm is frozen, so each query is classified on its own: the protocol is inductive. (The published
experiments sent support and queries through batch norm together, in training mode.)

Every episode starts from the same network and ends with one of its own. A chunk of episodes is adapted side by side
with `torch.func`: the parameters are stacked along a new first dimension and one call computes all gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from nearshot.episodes import EpisodeShape
from nearshot.errors import InputError, look_up
from nearshot.evaluation.classifiers import CLASSIFIERS, Classifier, ClassifierName
from nearshot.evaluation.episodes import Episodes, EpisodeSource, check_classes
from nearshot.evaluation.features import check_evaluation_mode, prepare_features
from nearshot.evaluation.statistics import Accuracy, Protocol
from nearshot.progress import with_progress

__all__ = ["Adam", "evaluate_fine_tuned", "evaluate_mahalanobis"]

SupportLoss = Callable[[Tensor, Tensor], Tensor]
Parameters = Mapping[str, Tensor]


@dataclass(frozen=True)
class Adam:
    """Adam as torch.optim.Adam has it, with weight decay added to the gradient; the defaults are the paper's.

    Attributes:
        n_steps: steps on the support set; each is an epoch, since the support set is one batch.
        lr: the learning rate.
        weight_decay: the weight decay.

    """

    n_steps: int = 5
    lr: float = 1e-4
    weight_decay: float = 5e-4

    def minimise(self, gradient: Callable[[Parameters], Parameters], start: Parameters) -> Parameters:
        """Return the parameters after `n_steps` steps; stacked parameters of many episodes are stepped alike."""
        beta1, beta2, epsilon = 0.9, 0.999, 1e-8
        names = list(start)
        parameters = [start[name].clone() for name in names]
        first = [torch.zeros_like(p) for p in parameters]
        second = [torch.zeros_like(p) for p in parameters]
        for step in range(1, self.n_steps + 1):
            by_name = gradient(dict(zip(names, parameters, strict=True)))
            gradients = [by_name[name] for name in names]
            gradients = list(torch._foreach_add(gradients, parameters, alpha=self.weight_decay))
            torch._foreach_lerp_(first, gradients, 1 - beta1)
            torch._foreach_mul_(second, beta2)
            torch._foreach_addcmul_(second, gradients, gradients, 1 - beta2)
            denominators = torch._foreach_sqrt(second)
            torch._foreach_div_(denominators, (1 - beta2**step) ** 0.5)
            torch._foreach_add_(denominators, epsilon)
            torch._foreach_addcdiv_(parameters, first, denominators, -self.lr / (1 - beta1**step))
        return dict(zip(names, parameters, strict=True))


def evaluate_fine_tuned(
    network: nn.Module,
    images: Tensor,
    labels: Tensor,
    *,
    loss: SupportLoss,
    n_way: int = 5,
    n_shot: int = 5,
    n_query: int = 15,
    n_episodes: int = 1000,
    seed: int = 0,
    episodes: Episodes | None = None,
    features: Callable[[nn.Module, Tensor], Tensor] | None = None,
    optimiser: Adam | None = None,
    classifier: ClassifierName = "centroid",
    centre: Tensor | None = None,
    normalise: bool = True,
    episodes_at_once: int | None = None,
    split: str | None = None,
    fingerprint: str | None = None,
    progress: bool | None = None,
) -> Accuracy:
    """Fine-tune the whole network on each support set, then classify its queries.

    Args:
        network: from images to embeddings, in evaluation mode; it is left as it is.
        images: (image, 3, height, width) normalised images of the split, on the network's device.
        labels: (image,) whole numbers.
        loss: of the support's embeddings and labels, such as `nearshot.losses.nca_loss`.
        n_way: classes in an episode.
        n_shot: support images of each class; at least 2.
        n_query: query images of each class.
        n_episodes: how many episodes.
        seed: which episodes.
        episodes: these episodes instead.
        features: what the classifier gets, of the fine-tuned network and images; by default the network's output. With
            `lambda network, images: network.multi_layer(images)`, the loss still sees the last stage only, as in the
            paper. `centre` must fit.
        optimiser: by default the paper's, 5 steps of Adam.
        classifier: "centroid", "soft" or "knn".
        centre: (dim,) what to subtract from the features; None for nothing.
        normalise: whether to divide features by their length.
        episodes_at_once: how many episodes to adapt side by side; by default 1 on a CPU and 16 elsewhere.
        split: which split it is, for the protocol.
        fingerprint: its fingerprint, for the protocol.
        progress: whether to show a bar; by default on a terminal.

    """
    check_evaluation_mode(network)
    optimiser = Adam() if optimiser is None else optimiser
    if episodes_at_once is None:
        episodes_at_once = 1 if images.device.type == "cpu" else 16
    source = _source(labels, EpisodeShape(n_way, n_shot, n_query), n_episodes, seed, episodes)
    shape = source.shape
    # `functional_call` runs a module's forward, so what else is wanted of the network becomes one.
    feature_module = _AsModule(network, features)
    trained = {name: p.detach() for name, p in network.named_parameters()}
    buffers = dict(network.named_buffers())
    support_labels = torch.arange(shape.n_way, device=images.device).repeat_interleave(shape.n_shot)

    def support_loss(parameters: Parameters, support: Tensor) -> Tensor:
        return loss(functional_call(network, (dict(parameters), buffers), (support,)), support_labels)

    def extract(parameters: Parameters, episode: Tensor) -> Tensor:
        state = {f"network.{name}": value for name, value in (*parameters.items(), *buffers.items())}
        extracted: Tensor = functional_call(feature_module, state, (episode,))
        return extracted

    def features_after(drawn: Tensor) -> tuple[Tensor, Tensor]:
        order = _support_then_query(drawn, shape)  # (episode, image)
        n_support = shape.n_support
        if len(order) == 1:
            batch = images[order[0]]
            adapted = optimiser.minimise(lambda p: grad(support_loss)(p, batch[:n_support]), trained)
            with torch.no_grad():
                all_features = extract(adapted, batch)[None]
        else:
            batch = images[order]  # (episode, image, 3, height, width)
            stacked = {name: p.expand(len(order), *p.shape) for name, p in trained.items()}
            adapted = optimiser.minimise(lambda p: vmap(grad(support_loss))(p, batch[:, :n_support]), stacked)
            with torch.no_grad():
                all_features = vmap(extract)(adapted, batch)
        return all_features[:, :n_support], all_features[:, n_support:]

    description = (
        f"network fine-tuned on the support by {optimiser.n_steps} steps of Adam, lr {optimiser.lr:g}, "
        f"weight decay {optimiser.weight_decay:g}, batch norm frozen"
    )
    correct = [
        _correct(*features_after(drawn), shape, classifier, centre, normalise)
        for drawn in _chunks(source, episodes_at_once, progress)
    ]
    return _result(correct, source, classifier, centre, normalise, description, split, fingerprint)


def evaluate_mahalanobis(
    features: Tensor,
    labels: Tensor,
    *,
    loss: SupportLoss,
    n_way: int = 5,
    n_shot: int = 5,
    n_query: int = 15,
    n_episodes: int = 10_000,
    seed: int = 0,
    episodes: Episodes | None = None,
    optimiser: Adam | None = None,
    classifier: ClassifierName = "centroid",
    centre: Tensor | None = None,
    normalise: bool = True,
    episodes_at_once: int = 16,
    split: str | None = None,
    fingerprint: str | None = None,
    progress: bool | None = None,
) -> Accuracy:
    """Learn a positive semi-definite matrix A = LᵀL on each support set and classify its queries by (x − y)ᵀA(x − y).

    L starts as the identity, so without a step the accuracy is that of the features as they are. The paper found no
    gain in it, and gives no settings; the optimiser's default here is 20 steps of Adam with learning rate 0.001 and no
    weight decay (which would pull A to zero rather than to the identity). The other arguments are those of
    `evaluate_fine_tuned` and `evaluate_features`.
    """
    optimiser = Adam(n_steps=20, lr=1e-3, weight_decay=0.0) if optimiser is None else optimiser
    source = _source(labels, EpisodeShape(n_way, n_shot, n_query), n_episodes, seed, episodes)
    shape = source.shape
    prepared = prepare_features(features, centre=centre, normalise=normalise)
    identity = torch.eye(prepared.shape[1], dtype=prepared.dtype, device=prepared.device)
    support_labels = torch.arange(shape.n_way, device=prepared.device).repeat_interleave(shape.n_shot)

    def support_loss(parameters: Parameters, support: Tensor) -> Tensor:
        return loss(support @ parameters["L"].T, support_labels)

    correct = []
    for drawn in _chunks(source, episodes_at_once, progress):
        episode = prepared[_support_then_query(drawn, shape).to(prepared.device)]  # (episode, image, dim)
        support = episode[:, : shape.n_support]
        start = {"L": identity.expand(len(episode), *identity.shape)}
        learnt = optimiser.minimise(lambda p, s=support: vmap(grad(support_loss))(p, s), start)["L"]  # type: ignore[misc]
        mapped = episode @ learnt.transpose(1, 2)
        correct.append(
            _correct(mapped[:, : shape.n_support], mapped[:, shape.n_support :], shape, classifier, None, False)
        )
    description = (
        f"Mahalanobis matrix learnt on the support by {optimiser.n_steps} steps of Adam, lr {optimiser.lr:g}, "
        f"weight decay {optimiser.weight_decay:g}"
    )
    return _result(correct, source, classifier, centre, normalise, description, split, fingerprint)


class _AsModule(nn.Module):
    """A function of a network and images, as a module whose forward it is."""

    def __init__(self, network: nn.Module, function: Callable[[nn.Module, Tensor], Tensor] | None) -> None:
        super().__init__()
        self.network, self.function = network, function

    def forward(self, images: Tensor) -> Tensor:
        output: Tensor = self.network(images) if self.function is None else self.function(self.network, images)
        return output


def _source(
    labels: Tensor, shape: EpisodeShape, n_episodes: int, seed: int, episodes: Episodes | None
) -> EpisodeSource | Episodes:
    if episodes is not None:
        check_classes(episodes, labels)
        shape = episodes.shape
    if shape.n_shot < 2:
        raise InputError(
            "One shot cannot be adapted to: a support set with one image a class has no two images of the same class, "
            "so there is no positive pair to learn from. Use at least 2 shots."
        )
    return episodes if episodes is not None else EpisodeSource(labels, shape, n_episodes=n_episodes, seed=seed)


def _chunks(source: EpisodeSource | Episodes, at_once: int, progress: bool | None) -> Iterator[Tensor]:
    if at_once < 1:
        raise InputError(f"episodes_at_once must be at least 1, not {at_once}.")
    starts = range(0, len(source), at_once)
    for start in with_progress(starts, f"adapting to {len(source):,} episodes", show=progress):
        yield source.draw(start, min(start + at_once, len(source)))


def _support_then_query(drawn: Tensor, shape: EpisodeShape) -> Tensor:
    """From (episode, way, query + shot) to (episode, image): support class by class, then query class by class."""
    return torch.cat([drawn[:, :, shape.n_query :].flatten(1), drawn[:, :, : shape.n_query].flatten(1)], dim=1)


def _correct(
    support: Tensor,
    query: Tensor,
    shape: EpisodeShape,
    classifier: ClassifierName,
    centre: Tensor | None,
    normalise: bool,
) -> Tensor:
    """Return the share of correct answers in each episode, (episode,), from features (episode, image, dim)."""
    classify: Classifier = look_up(CLASSIFIERS, classifier, "classifier")
    n_episodes, dim = len(support), support.shape[2]
    support, query = (
        prepare_features(part.reshape(-1, dim), centre=centre, normalise=normalise).view(n_episodes, -1, dim)
        if centre is not None or normalise
        else part
        for part in (support, query)
    )
    truth = torch.arange(shape.n_way, device=query.device).repeat_interleave(shape.n_query)
    answers = classify(support.unflatten(1, (shape.n_way, shape.n_shot)), query).argmax(2)
    return (answers == truth).double().mean(1).cpu()


def _result(
    correct: list[Tensor],
    source: EpisodeSource | Episodes,
    classifier: ClassifierName,
    centre: Tensor | None,
    normalise: bool,
    adapted: str,
    split: str | None,
    fingerprint: str | None,
) -> Accuracy:
    protocol = Protocol(
        n_way=source.shape.n_way,
        n_shot=source.shape.n_shot,
        n_query=source.shape.n_query,
        n_episodes=len(source),
        seed=source.seed,
        episodes=source.digest,
        classifier=classifier,
        centred=centre is not None,
        normalised=normalise,
        adapted=adapted,
        split=split,
        fingerprint=fingerprint,
    )
    return Accuracy(100 * torch.cat(correct), protocol)
