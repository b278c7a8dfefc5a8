"""Adapting to the support set (Appendix G): fine-tune the whole network, or learn a metric on its features.

Both minimise a loss on the support set alone, by default NCA, which the caller hands in. The queries have no part in
it. Batch norm is frozen, or normalises by the support set while the network is fine-tuned; queries are classified with
the running statistics of training, each on its own: the protocol is inductive. (The published experiments sent support
and queries through batch norm together, in training mode.)

Every episode starts from the same network and ends with one of its own. A chunk of episodes is adapted side by side
with `torch.func`: the parameters are stacked along a new first dimension and one call computes all gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from nearshot.episode_shape import EpisodeShape
from nearshot.errors import InputError, look_up
from nearshot.evaluation.classifiers import CLASSIFIERS, Classifier, ClassifierName, classifier_name
from nearshot.evaluation.episodes import Episodes, EpisodeSource, SmallClasses, check_classes
from nearshot.evaluation.features import check_evaluation_mode, check_one_label_each, prepare_features
from nearshot.evaluation.statistics import Accuracy, Protocol
from nearshot.progress import with_progress

__all__ = ["Adam", "BatchNormMode", "evaluate_fine_tuned", "evaluate_mahalanobis"]

BatchNormMode = Literal["frozen", "support"]
"""What batch norm normalises by in fine-tuning: the running statistics of training, or those of the support set."""
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

    def __post_init__(self) -> None:
        if self.n_steps < 0 or not self.lr > 0 or not self.weight_decay >= 0:
            raise InputError(f"Adam needs no negative steps or weight decay and a positive learning rate, not {self}.")

    def __str__(self) -> str:
        steps = "1 step" if self.n_steps == 1 else f"{self.n_steps} steps"
        return f"{steps} of Adam, lr {self.lr:g}, weight decay {self.weight_decay:g}"

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
    batch_norm: BatchNormMode = "frozen",
    classifier: ClassifierName | Classifier = "centroid",
    centre: Tensor | None = None,
    normalise: bool = True,
    episodes_at_once: int | None = None,
    small_classes: SmallClasses = "raise",
    inductive: bool | None = None,
    split: str | None = None,
    fingerprint: str | None = None,
    progress: bool | None = None,
) -> Accuracy:
    """Fine-tune the whole network on each support set, then classify its queries.

    Args:
        network: from images to embeddings, in evaluation mode; it is left as it is. Parameters that require no gradient
            stay frozen.
        images: (image, 3, height, width) normalised images of the split; they are moved to the network's device.
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
        batch_norm: "frozen" fine-tunes with the running statistics of training; "support" in batch norm's training
            mode, with the mean and variance of the support set. Both evaluate with the running statistics, unchanged.
        classifier: "centroid", "soft", "knn", or a function as in `nearshot.evaluation.classifiers`.
        centre: (dim,) what to subtract from the features; None for nothing.
        normalise: whether to divide features by their length.
        episodes_at_once: how many episodes to adapt side by side; by default 1 on a CPU and 4
            elsewhere; more take more memory and are hardly faster.
        small_classes: what to do about classes with too few images.
        inductive: for functions of your own (`classifier`, `features`), whether they look at each query alone.
        split: which split it is, for the protocol.
        fingerprint: its fingerprint, for the protocol.
        progress: whether to show a bar; by default on a terminal.
    """
    check_evaluation_mode(network)
    _check_batch_norm(network, batch_norm)
    optimiser = Adam() if optimiser is None else optimiser
    trained, frozen = _parameters(network)
    device = next(iter(trained.values())).device
    if episodes_at_once is None:
        episodes_at_once = 1 if device.type == "cpu" else 4
    if episodes_at_once > 1:
        trained, frozen = ({name: _plain(p) for name, p in some.items()} for some in (trained, frozen))
    shape = EpisodeShape(n_way, n_shot, n_query)
    source = _source(images, labels, shape, n_episodes, seed, episodes, small_classes)
    shape = source.shape
    ask = _Questions(shape, classifier, centre, normalise, needs_word=features is not None, inductive=inductive)
    # `functional_call` runs a module's forward, so what else is wanted of the network becomes one.
    feature_module = _AsModule(network, features)
    support_labels = torch.arange(shape.n_way, device=device).repeat_interleave(shape.n_shot)

    def support_loss(parameters: Parameters, support: Tensor) -> Tensor:
        with _batch_statistics(network, used=batch_norm == "support"):
            return loss(functional_call(network, {**parameters, **frozen}, (support,)), support_labels)

    def extract(parameters: Parameters, episode: Tensor) -> Tensor:
        state = {f"network.{name}": value for name, value in (*parameters.items(), *frozen.items())}
        extracted: Tensor = functional_call(feature_module, state, (episode,))
        return extracted

    def features_after(drawn: Tensor) -> Tensor:
        batch = images[_support_then_query(drawn, shape).to(images.device)].to(device)  # (episode, image, 3, h, w)
        if len(batch) == 1:
            adapted = optimiser.minimise(lambda p: grad(support_loss)(p, batch[0, : shape.n_support]), trained)
            with torch.no_grad():
                return extract(adapted, batch[0])[None]
        batch = _plain(batch)
        support = batch[:, : shape.n_support]
        stacked = {name: p.expand(len(batch), *p.shape) for name, p in trained.items()}
        adapted = optimiser.minimise(lambda p: vmap(grad(support_loss))(p, support), stacked)
        with torch.no_grad():
            stacked_features: Tensor = vmap(extract)(adapted, batch)
            return stacked_features

    n_correct = [ask.n_correct(features_after(drawn)) for drawn in _chunks(source, episodes_at_once, progress)]
    through = "" if features is None else f", features by {classifier_name(features)}"
    statistics = {"frozen": "frozen", "support": "in training mode on the support, its statistics restored"}[batch_norm]
    adapted = (
        f"network fine-tuned on the support by {optimiser} of {classifier_name(loss)}{through}, batch norm {statistics}"
    )
    return ask.result(n_correct, source, adapted, split, fingerprint)


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
    classifier: ClassifierName | Classifier = "centroid",
    centre: Tensor | None = None,
    normalise: bool = True,
    episodes_at_once: int = 16,
    small_classes: SmallClasses = "raise",
    inductive: bool | None = None,
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
    source = _source(features, labels, EpisodeShape(n_way, n_shot, n_query), n_episodes, seed, episodes, small_classes)
    shape = source.shape
    prepared = prepare_features(features.detach(), centre=centre, normalise=normalise)
    ask = _Questions(shape, classifier, centre, normalise, needs_word=False, inductive=inductive, prepared=True)
    identity = torch.eye(prepared.shape[1], dtype=prepared.dtype, device=prepared.device)
    support_labels = torch.arange(shape.n_way, device=prepared.device).repeat_interleave(shape.n_shot)

    def support_loss(parameters: Parameters, support: Tensor) -> Tensor:
        return loss(support @ parameters["L"].T, support_labels)

    def mapped(drawn: Tensor) -> Tensor:
        episode = prepared[_support_then_query(drawn, shape).to(prepared.device)]  # (episode, image, dim)
        support = episode[:, : shape.n_support]
        start = {"L": identity.expand(len(episode), *identity.shape)}
        learnt = optimiser.minimise(lambda p: vmap(grad(support_loss))(p, support), start)["L"]
        return episode @ learnt.transpose(1, 2)

    n_correct = [ask.n_correct(mapped(drawn)) for drawn in _chunks(source, episodes_at_once, progress)]
    adapted = f"Mahalanobis matrix learnt on the support by {optimiser} of {classifier_name(loss)}"
    return ask.result(n_correct, source, adapted, split, fingerprint)


class _Questions:
    """What is asked of adapted features, and what becomes of the answers."""

    def __init__(
        self,
        shape: EpisodeShape,
        classifier: ClassifierName | Classifier,
        centre: Tensor | None,
        normalise: bool,
        *,
        needs_word: bool,
        inductive: bool | None,
        prepared: bool = False,
    ) -> None:
        self.shape, self.name, self.prepared = shape, classifier_name(classifier), prepared
        self.centre, self.normalise = centre, normalise
        is_name = isinstance(classifier, str)
        self.classify = look_up(CLASSIFIERS, classifier, "classifier") if isinstance(classifier, str) else classifier
        if inductive is None and (needs_word or not is_name):
            raise InputError(
                "A function of your own is given all queries of an episode: say inductive=True if it looks at each "
                "alone, or inductive=False; the result will carry it."
            )
        self.inductive = True if inductive is None else inductive

    def n_correct(self, features: Tensor) -> Tensor:
        """Return the number of correct answers in each episode; `features` (episode, image, dim), support first."""
        n_episodes, dim = len(features), features.shape[2]
        if not self.prepared:
            flat = prepare_features(features.flatten(0, 1), centre=self.centre, normalise=self.normalise)
            features = flat.view(n_episodes, -1, dim)
        support, query = features[:, : self.shape.n_support], features[:, self.shape.n_support :]
        truth = torch.arange(self.shape.n_way, device=query.device).repeat_interleave(self.shape.n_query)
        answers = self.classify(support.unflatten(1, (self.shape.n_way, self.shape.n_shot)), query).argmax(2)
        return (answers == truth).sum(1).cpu()

    def result(
        self,
        n_correct: list[Tensor],
        source: EpisodeSource | Episodes,
        adapted: str,
        split: str | None,
        fingerprint: str | None,
    ) -> Accuracy:
        """Return the accuracy with its protocol."""
        protocol = Protocol(
            n_way=self.shape.n_way,
            n_shot=self.shape.n_shot,
            n_query=self.shape.n_query,
            n_episodes=len(source),
            seed=source.seed,
            episodes=source.digest,
            classifier=self.name,
            centred=self.centre is not None,
            normalised=self.normalise,
            adapted=adapted,
            inductive=self.inductive,
            split=split,
            fingerprint=fingerprint,
            classes_left_out=source.n_classes_left_out,
        )
        return Accuracy.of_counts(torch.cat(n_correct), protocol)


class _AsModule(nn.Module):
    """A function of a network and images, as a module whose forward it is."""

    def __init__(self, network: nn.Module, function: Callable[[nn.Module, Tensor], Tensor] | None) -> None:
        super().__init__()
        self.network, self.function = network, function

    def forward(self, images: Tensor) -> Tensor:
        output: Tensor = self.network(images) if self.function is None else self.function(self.network, images)
        return output


def _parameters(network: nn.Module) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return what is to be trained, and what stays as it is: frozen parameters and buffers."""
    trained = {name: p.detach() for name, p in network.named_parameters() if p.requires_grad}
    frozen = {name: p.detach() for name, p in network.named_parameters() if not p.requires_grad}
    if not trained:
        raise InputError("The network has no parameter that requires a gradient, so there is nothing to fine-tune.")
    low = next((p.dtype for p in trained.values() if p.dtype.itemsize < 4), None)
    if low is not None:
        raise InputError(f"Adam needs float32 parameters, not {low}: its steps would vanish. Call network.float().")
    return trained, {**frozen, **dict(network.named_buffers())}


def _batch_norms(network: nn.Module) -> list[nn.modules.batchnorm._BatchNorm]:
    return [module for module in network.modules() if isinstance(module, nn.modules.batchnorm._BatchNorm)]


def _check_batch_norm(network: nn.Module, batch_norm: str) -> None:
    if batch_norm not in get_args(BatchNormMode):
        raise InputError(f"batch_norm must be 'frozen' or 'support', not {batch_norm!r}.")
    if batch_norm == "support" and not _batch_norms(network):
        raise InputError("batch_norm='support' needs a network with batch norm, and this one has none.")


@contextmanager
def _batch_statistics(network: nn.Module, *, used: bool) -> Iterator[None]:
    """Let batch norm, if `used`, normalise by its batch for a while; its running statistics stay what they are.

    Everything else, such as dropout, stays in evaluation mode.
    """
    norms = _batch_norms(network) if used else []
    tracked = [norm.track_running_stats for norm in norms]
    try:
        for norm in norms:
            norm.training, norm.track_running_stats = True, False
        yield
    finally:
        for norm, was_tracked in zip(norms, tracked, strict=True):
            norm.training, norm.track_running_stats = False, was_tracked


def _plain(tensor: Tensor) -> Tensor:
    """Return a tensor whose last axis lies together: batch norm on a GPU maps over episodes in no other format.

    A copy, since a 1×1 convolution with channels last passes for one without.
    """
    return tensor.clone(memory_format=torch.contiguous_format)


def _source(
    examples: Tensor,
    labels: Tensor,
    shape: EpisodeShape,
    n_episodes: int,
    seed: int,
    episodes: Episodes | None,
    small_classes: SmallClasses,
) -> EpisodeSource | Episodes:
    check_one_label_each(labels, examples)
    if episodes is not None:
        check_classes(episodes, labels)
        shape = episodes.shape
    if shape.n_shot < 2:
        raise InputError(
            "One shot cannot be adapted to: a support set with one image a class has no two images of the same class, "
            "so there is no positive pair to learn from. Use at least 2 shots."
        )
    if episodes is not None:
        return episodes
    return EpisodeSource(labels, shape, n_episodes=n_episodes, seed=seed, small_classes=small_classes)


def _chunks(source: EpisodeSource | Episodes, at_once: int, progress: bool | None) -> Iterator[Tensor]:
    if at_once < 1:
        raise InputError(f"episodes_at_once must be at least 1, not {at_once}.")
    starts = range(0, len(source), at_once)
    for start in with_progress(starts, f"adapting to {len(source):,} episodes", show=progress):
        yield source.draw(start, min(start + at_once, len(source)))


def _support_then_query(drawn: Tensor, shape: EpisodeShape) -> Tensor:
    """From (episode, way, query + shot) to (episode, image): support class by class, then query class by class."""
    return torch.cat([drawn[:, :, shape.n_query :].flatten(1), drawn[:, :, : shape.n_query].flatten(1)], dim=1)
