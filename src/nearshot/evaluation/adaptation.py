"""Adapting to the support set (Appendix G): fine-tune the whole network, or learn a metric on its features.

Both minimise a loss on the support set alone, which the caller gives. Batch norm is frozen, or normalises by the
support set while the network is fine-tuned. Queries are classified with the running statistics of training, each on its
own, so the protocol is inductive. (The published experiments sent support and queries through batch norm together, in
training mode.)

Every episode starts from the same network. Several episodes are adapted side by side with `torch.func`: their
parameters are stacked along a new first dimension, and one call computes all gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal, Unpack, get_args

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from nearshot.errors import InputError
from nearshot.evaluation.classifiers import classifier_name
from nearshot.evaluation.engine import Tally, Task, TaskSettings, prepared
from nearshot.evaluation.episodes import digest_of
from nearshot.evaluation.features import FeatureSet, check_evaluation_mode
from nearshot.evaluation.statistics import Accuracy
from nearshot.text import counted, with_progress

BatchNormMode = Literal["frozen", "support"]
"""What batch norm normalises by in fine-tuning: the running statistics of training, or those of the support set."""
SupportLoss = Callable[[Tensor, Tensor], Tensor]
Parameters = Mapping[str, Tensor]


@dataclass(frozen=True)
class Adam:
    """The settings of torch.optim.Adam; the defaults are the paper's. A step is an epoch: the support is one batch."""

    n_steps: int = 5
    lr: float = 1e-4
    weight_decay: float = 5e-4

    def __str__(self) -> str:
        return f"{counted(self.n_steps, 'step')} of Adam, lr {self.lr:g}, weight decay {self.weight_decay:g}"

    def minimise(self, gradient: Callable[[Parameters], Parameters], start: Parameters) -> Parameters:
        """Return the parameters after `n_steps` steps; they may be stacked, of many episodes."""
        parameters = {name: p.clone() for name, p in start.items()}
        optimiser = torch.optim.Adam(parameters.values(), lr=self.lr, weight_decay=self.weight_decay)
        for _ in range(self.n_steps):
            for name, of_parameter in gradient(parameters).items():
                parameters[name].grad = of_parameter
            optimiser.step()
        return parameters


class AdaptationSettings(TaskSettings, total=False):
    """The keyword arguments that both evaluations share."""

    episodes_at_once: int | None


def evaluate_fine_tuned(
    network: nn.Module,
    images: Tensor,
    labels: Tensor,
    *,
    loss: SupportLoss,
    features: Callable[[nn.Module, Tensor], Tensor] | None = None,
    optimiser: Adam | None = None,
    batch_norm: BatchNormMode = "frozen",
    **settings: Unpack[AdaptationSettings],
) -> Accuracy:
    """Fine-tune the whole network on each support set, then classify its queries.

    Args:
        network: from images to embeddings, in evaluation mode; it does not change. Parameters that require no gradient
            stay frozen.
        images: (image, 3, height, width) normalised images of the split; they are moved to the network's device.
        labels: (image,) whole numbers.
        loss: of the support's embeddings and labels, such as `nearshot.losses.nca_loss`.
        features: what the classifier gets, of the fine-tuned network and images; by default the network's output. With
            `lambda network, images: network.multi_layer(images)`, the loss still sees the last stage only, as in the
            paper. `centre` must fit.
        optimiser: by default the paper's, 5 steps of Adam.
        batch_norm: "frozen" fine-tunes with the running statistics of training; "support" in batch norm's training
            mode, with the mean and variance of the support set. Both evaluate with the running statistics, unchanged.
        settings: those of `evaluate_features`, with 1,000 episodes by default, at least 2 shots, and `inductive` also
            for `features`; and `episodes_at_once`, to adapt side by side, by default 1 on a CPU and 4 elsewhere.
    """
    check_evaluation_mode(network)
    if batch_norm not in get_args(BatchNormMode):
        raise InputError(f"batch_norm must be 'frozen' or 'support' (got {batch_norm!r}).")
    if batch_norm == "support" and not _batch_norms(network):
        raise InputError("batch_norm='support' needs a network with batch norm, and this one has none.")
    optimiser = Adam() if optimiser is None else optimiser
    trained, frozen = _parameters(network)
    device = next(iter(trained.values())).device
    if "spec" not in settings:
        settings = {"n_episodes": 1000, **settings}
    task, at_once = _task(images, labels, settings, at_once=1 if device.type == "cpu" else 4)
    if features is not None and task.spec.inductive is None:
        raise InputError("inductive must be given with features: True if it looks at each query alone, else False.")
    if at_once > 1:
        trained, frozen = ({name: _contiguous(p) for name, p in some.items()} for some in (trained, frozen))
    shape = task.spec.shape
    # `functional_call` runs a module's forward, so the function of the network becomes one.
    feature_module = _AsModule(network, features)
    support_labels = torch.arange(shape.n_way, device=device).repeat_interleave(shape.n_shot)

    def support_loss(parameters: Parameters, support: Tensor) -> Tensor:
        with _batch_statistics(network, used=batch_norm == "support"):
            return loss(functional_call(network, {**parameters, **frozen}, (support,)), support_labels)

    def extract(parameters: Parameters, episode: Tensor) -> Tensor:
        state = {f"network.{name}": value for name, value in (*parameters.items(), *frozen.items())}
        extracted: Tensor = functional_call(feature_module, state, (episode,))
        return extracted

    def features_after(rows: Tensor) -> Tensor:
        batch = images[rows.to(images.device)].to(device)  # (episode, image, 3, h, w)
        if len(batch) == 1:
            adapted = optimiser.minimise(lambda p: grad(support_loss)(p, batch[0, : shape.n_support]), trained)
            with torch.no_grad():
                extracted = extract(adapted, batch[0])[None]
        else:
            batch = _contiguous(batch)
            support = batch[:, : shape.n_support]
            stacked = {name: p.expand(len(batch), *p.shape) for name, p in trained.items()}
            adapted = optimiser.minimise(lambda p: vmap(grad(support_loss))(p, support), stacked)
            with torch.no_grad():
                extracted = vmap(extract)(adapted, batch)
        found = prepared(replace(task.data, features=extracted.flatten(0, 1)), task.spec)
        return found.view(len(batch), shape.batch_size, -1)

    through = "" if features is None else f", features by {classifier_name(features)}"
    statistics = {"frozen": "frozen", "support": "in training mode on the support, its statistics restored"}[batch_norm]
    words = f"network fine-tuned on the support by {optimiser} of {classifier_name(loss)}{through}"
    return _evaluate(task, at_once, features_after, f"{words}, batch norm {statistics}")


def evaluate_mahalanobis(
    features: Tensor | FeatureSet,
    labels: Tensor | None = None,
    *,
    loss: SupportLoss,
    optimiser: Adam | None = None,
    **settings: Unpack[AdaptationSettings],
) -> Accuracy:
    """Learn a positive semi-definite matrix A = LᵀL on each support set and classify its queries by (x − y)ᵀA(x − y).

    L starts as the identity, so without a step the accuracy is that of the features. The paper found no gain in it, and
    gives no settings. The default here is 5 steps of Adam with learning rate 0.0001, which cost nothing on validation
    classes (docs/results-features.md), and no weight decay, which would pull A to zero rather than to the identity.

    The arguments are those of `evaluate_features`, with at least 2 shots; `loss` and `episodes_at_once`, by default 16,
    are as in `evaluate_fine_tuned`.
    """
    optimiser = Adam(n_steps=5, lr=1e-4, weight_decay=0.0) if optimiser is None else optimiser
    task, at_once = _task(features, labels, settings, at_once=16)
    shape, given = task.spec.shape, prepared(task.data, task.spec)
    identity = torch.eye(given.shape[1], dtype=given.dtype, device=given.device)
    support_labels = torch.arange(shape.n_way, device=given.device).repeat_interleave(shape.n_shot)

    def support_loss(parameters: Parameters, support: Tensor) -> Tensor:
        return loss(support @ parameters["L"].T, support_labels)

    def mapped(rows: Tensor) -> Tensor:
        episode = given[rows.to(given.device)]  # (episode, image, dim)
        support = episode[:, : shape.n_support]
        start = {"L": identity.expand(len(episode), *identity.shape)}
        learnt = optimiser.minimise(lambda p: vmap(grad(support_loss))(p, support), start)["L"]
        return episode @ learnt.transpose(1, 2)

    words = f"Mahalanobis matrix learnt on the support by {optimiser} of {classifier_name(loss)}"
    return _evaluate(task, at_once, mapped, words)


def _task(
    examples: Tensor | FeatureSet, labels: Tensor | None, settings: Mapping[str, Any], at_once: int
) -> tuple[Task, int]:
    """Return the evaluation, whose data are images or features, and how many episodes to adapt side by side."""
    shared = dict(settings)
    given = shared.pop("episodes_at_once", None)
    at_once = at_once if given is None else given
    if at_once < 1:
        raise InputError(f"episodes_at_once must be at least 1 (got {at_once}).")
    task = Task.of(examples, labels, shared)
    if task.spec.n_shot < 2:
        raise InputError(
            "n_shot must be at least 2 to adapt (got 1): a support set with one image per class has no two images "
            "of the same class, so there is no positive pair to learn from."
        )
    return task, at_once


def _evaluate(task: Task, at_once: int, features_after: Callable[[Tensor], Tensor], adapted: str) -> Accuracy:
    """Return the accuracy; `features_after` adapts to episodes, (episode, image), support first, then query."""
    shape, tally, batches = task.spec.shape, Tally.begin(task, task.spec), []
    starts = range(0, len(task.source), at_once)
    for start in with_progress(starts, f"adapting to {len(task.source):,} episodes", show=task.progress):
        drawn = task.source.draw(start, min(start + at_once, len(task.source)))
        batches.append(drawn)
        support, query = drawn[:, :, shape.n_query : shape.images_per_class], drawn[:, :, : shape.n_query]
        features = features_after(torch.cat([support.flatten(1), query.flatten(1)], dim=1))
        by_way = features[:, : shape.n_support].unflatten(1, (shape.n_way, shape.n_shot))
        tally.n_correct[start : start + at_once] = tally.count(by_way, features[:, shape.n_support :])
    return task.accuracy(tally, digest_of(batches, shape.n_query), adapted)


class _AsModule(nn.Module):
    """A module whose forward is a function of a network and images."""

    def __init__(self, network: nn.Module, function: Callable[[nn.Module, Tensor], Tensor] | None) -> None:
        super().__init__()
        self.network, self.function = network, function

    def forward(self, images: Tensor) -> Tensor:
        output: Tensor = self.network(images) if self.function is None else self.function(self.network, images)
        return output


def _parameters(network: nn.Module) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
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


@contextmanager
def _batch_statistics(network: nn.Module, *, used: bool) -> Iterator[None]:
    """If `used`, let batch norm, but no dropout, train for a while, without changing its running statistics."""
    norms = _batch_norms(network) if used else []
    tracked = [norm.track_running_stats for norm in norms]
    try:
        for norm in norms:
            norm.training, norm.track_running_stats = True, False
        yield
    finally:
        for norm, was_tracked in zip(norms, tracked, strict=True):
            norm.training, norm.track_running_stats = False, was_tracked


def _contiguous(tensor: Tensor) -> Tensor:
    """Return a copy without channels last, in which batch norm on a GPU cannot be mapped over episodes.

    Always a copy: the weights of a 1×1 convolution with channels last look contiguous.
    """
    return tensor.clone(memory_format=torch.contiguous_format)
