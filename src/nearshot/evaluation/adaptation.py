"""Adapting to the support set (Appendix G): fine-tune the whole network, or learn a metric on its features.

Both minimise a loss on the support set alone, which the caller gives. Batch norm is frozen, or
normalises by the support set while the network is fine-tuned. Queries are classified with the
running statistics of training, each on its own, so the protocol is inductive. (The published
experiments sent support and queries through batch norm together, in training mode.)

Every episode starts from the same network.
"""

import copy
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, Unpack

import torch
from torch import Tensor, nn
from torch.func import vmap
from torch.nn.modules.batchnorm import _BatchNorm

from nearshot.errors import InputError
from nearshot.evaluation.classifiers import classifier_name
from nearshot.evaluation.engine import Tally, Task, TaskSettings, prepared
from nearshot.evaluation.episodes import digest_of
from nearshot.evaluation.features import FeatureSet, check_evaluation_mode
from nearshot.evaluation.statistics import Accuracy
from nearshot.text import counted, with_progress

BatchNormMode = Literal["frozen", "support"]
"""What batch norm normalises by in fine-tuning: the running statistics of training, or those of the support set."""
BATCH_NORM_IN_WORDS = {
    "frozen": "frozen",
    "support": "in training mode on the support, its statistics restored",
}
SupportLoss = Callable[[Tensor, Tensor], Tensor]
MATRICES_AT_ONCE = 16


@dataclass(frozen=True)
class Adam:
    """The settings of torch.optim.Adam; the defaults are the paper's. A step is an epoch: the support is one batch."""

    n_steps: int = 5
    lr: float = 1e-4
    weight_decay: float = 5e-4

    def __str__(self) -> str:
        return f"{counted(self.n_steps, 'step')} of Adam, lr {self.lr:g}, weight decay {self.weight_decay:g}"

    def minimise(self, loss: Callable[[], Tensor], parameters: Iterable[Tensor]) -> None:
        """Change the parameters in `n_steps` steps."""
        optimiser = torch.optim.Adam(parameters, lr=self.lr, weight_decay=self.weight_decay)
        for _ in range(self.n_steps):
            optimiser.zero_grad()
            with torch.enable_grad():
                loss().backward()
            optimiser.step()


def evaluate_fine_tuned(
    network: nn.Module,
    images: Tensor,
    labels: Tensor,
    *,
    loss: SupportLoss,
    features: Callable[[nn.Module, Tensor], Tensor] | None = None,
    optimiser: Adam | None = None,
    batch_norm: BatchNormMode = "frozen",
    **settings: Unpack[TaskSettings],
) -> Accuracy:
    """Fine-tune the whole network on each support set, then classify its queries.

    Args:
        network: from images to embeddings, in evaluation mode; it does not change. Parameters that
            require no gradient stay frozen.
        images: (image, 3, height, width) normalised images of the split; they are moved to the
            network's device.
        labels: (image,) whole numbers.
        loss: of the support's embeddings and labels, such as `nearshot.losses.nca_loss`.
        features: what the classifier gets, of the fine-tuned network and images; by default the
            network's output. With `lambda network, images: network.multi_layer(images)`, the loss
            still sees the last stage only, as in the paper. `centre` must fit.
        optimiser: by default the paper's, 5 steps of Adam.
        batch_norm: "frozen" fine-tunes with the running statistics of training; "support" in batch
            norm's training mode, with the mean and variance of the support set. Both evaluate with
            the running statistics, unchanged.
        settings: those of `evaluate_features`, with 1,000 episodes by default, at least 2 shots,
            and `inductive` also for `features`.
    """
    check_evaluation_mode(network)
    optimiser, statistics = optimiser or Adam(), BATCH_NORM_IN_WORDS[batch_norm]
    if "spec" not in settings:
        settings = {"n_episodes": 1000, **settings}
    task = _task(images, labels, settings)
    if features is not None and task.spec.inductive is None:
        raise InputError(
            "inductive must be given with features: True if it looks at each query alone, else False."
        )
    shape, device = task.spec.shape, next(network.parameters()).device
    support_labels = torch.arange(shape.n_way, device=device).repeat_interleave(shape.n_shot)

    def features_after(rows: Tensor) -> Tensor:
        episode = images[rows[0].to(images.device)].to(device)  # (image, 3, h, w)
        tuned = copy.deepcopy(network)
        for module in tuned.modules():
            if batch_norm == "support" and isinstance(module, _BatchNorm):
                # It trains, but dropout does not, and its running statistics do not change.
                module.training, module.track_running_stats = True, False
        trained = [parameter for parameter in tuned.parameters() if parameter.requires_grad]
        optimiser.minimise(lambda: loss(tuned(episode[: shape.n_support]), support_labels), trained)
        tuned.eval()
        with torch.no_grad():
            extracted = tuned(episode) if features is None else features(tuned, episode)
        return prepared(replace(task.data, features=extracted), task.spec)[None]

    through = "" if features is None else f", features by {classifier_name(features)}"
    words = f"network fine-tuned on the support by {optimiser} of {classifier_name(loss)}{through}"
    return _evaluate(task, 1, features_after, f"{words}, batch norm {statistics}")


def evaluate_mahalanobis(
    features: Tensor | FeatureSet,
    labels: Tensor | None = None,
    *,
    loss: SupportLoss,
    optimiser: Adam | None = None,
    **settings: Unpack[TaskSettings],
) -> Accuracy:
    """Learn a positive semi-definite matrix A = LᵀL on each support set and classify its queries by (x − y)ᵀA(x − y).

    L starts as the identity, so without a step the accuracy is that of the features. The paper
    found no gain in it, and gives no settings. The default here is 5 steps of Adam with learning
    rate 0.0001, which cost nothing on validation classes (docs/results-features.md), and no weight
    decay, which would pull A to zero rather than to the identity.

    The arguments are those of `evaluate_features`, with at least 2 shots; `loss` is as in
    `evaluate_fine_tuned`, and must be one that `torch.func.vmap` supports.
    """
    optimiser = optimiser or Adam(n_steps=5, lr=1e-4, weight_decay=0.0)
    task = _task(features, labels, settings)
    shape, given = task.spec.shape, prepared(task.data, task.spec)
    support_labels = torch.arange(shape.n_way, device=given.device).repeat_interleave(shape.n_shot)

    def mapped(rows: Tensor) -> Tensor:
        episodes = given[rows.to(given.device)]  # (episode, image, dim)
        support = episodes[:, : shape.n_support]
        matrices = torch.eye(given.shape[1], dtype=given.dtype, device=given.device).repeat(
            len(episodes), 1, 1
        )
        matrices.requires_grad_()  # (episode, dim, dim)
        losses = vmap(lambda matrix, images: loss(images @ matrix.T, support_labels))
        optimiser.minimise(lambda: losses(matrices, support).sum(), [matrices])
        return episodes @ matrices.detach().mT

    words = f"Mahalanobis matrix learnt on the support by {optimiser} of {classifier_name(loss)}"
    return _evaluate(task, MATRICES_AT_ONCE, mapped, words)


def _task(
    examples: Tensor | FeatureSet, labels: Tensor | None, settings: Mapping[str, Any]
) -> Task:
    """Return the evaluation, whose data are images or features."""
    task = Task.of(examples, labels, settings)
    if task.spec.n_shot < 2:
        raise InputError(
            "n_shot must be at least 2 to adapt (got 1): a support set with one image per class has no two images "
            "of the same class, so there is no positive pair to learn from."
        )
    return task


def _evaluate(
    task: Task, at_once: int, features_after: Callable[[Tensor], Tensor], adapted: str
) -> Accuracy:
    """Return the accuracy; `features_after` adapts to episodes, (episode, image), support first, then query."""
    shape, tally, batches = task.spec.shape, Tally.begin(task, task.spec), []
    starts = range(0, len(task.source), at_once)
    for start in with_progress(
        starts, f"adapting to {len(task.source):,} episodes", show=task.progress
    ):
        drawn = task.draw(start, start + at_once)
        batches.append(drawn)
        support, query = (
            drawn[:, :, shape.n_query : shape.images_per_class],
            drawn[:, :, : shape.n_query],
        )
        features = features_after(torch.cat([support.flatten(1), query.flatten(1)], dim=1))
        by_way = features[:, : shape.n_support].unflatten(1, (shape.n_way, shape.n_shot))
        tally.n_correct[start : start + at_once] = tally.count(
            by_way, features[:, shape.n_support :]
        )
    return task.accuracy(tally, digest_of(batches, shape.n_query), adapted)
