"""Adapting to the support set (Appendix G): fine-tune the network, or learn a metric.

The metric is learnt on the network's features. Both minimise a loss on the support set alone, which
the caller gives. Batch norm is frozen, or
normalises by the support set while the network is fine-tuned. Queries are classified with the
running statistics of training, each on its own, so the protocol is inductive. (The published
experiments sent support and queries through batch norm together, in training mode.)

Every episode starts from the same network.
"""

import copy
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor, nn
from torch.func import vmap
from torch.nn.modules.batchnorm import _BatchNorm

from nearshot.errors import InputError
from nearshot.evaluation.classifiers import ClassifierOrName, classifier_name, is_transductive
from nearshot.evaluation.engine import Tally, Task, prepared
from nearshot.evaluation.episodes import EpisodeSource, digest_of
from nearshot.evaluation.features import Array, FeatureSet, as_feature_set
from nearshot.evaluation.leaks import check_evaluation_mode
from nearshot.evaluation.spec import EvaluationSpec
from nearshot.evaluation.statistics import Accuracy
from nearshot.text import counted, with_progress

BatchNormMode = Literal["frozen", "support"]
"""What batch norm normalises by in fine-tuning: the running statistics of training ("frozen"), or
those of the support set."""
BATCH_NORM_IN_WORDS = {
    "frozen": "frozen",
    "support": "in training mode on the support, its statistics restored",
}
SupportLoss = Callable[[Tensor, Tensor], Tensor]
MATRICES_AT_ONCE = 16


@dataclass(frozen=True)
class Adam:
    """The settings of torch.optim.Adam; the defaults are the paper's.

    A step is an epoch: the support set is one batch.
    """

    n_steps: int = 5
    lr: float = 1e-4
    weight_decay: float = 5e-4

    def __str__(self) -> str:
        steps = counted(self.n_steps, "step")
        return f"{steps} of Adam, lr {self.lr:g}, weight decay {self.weight_decay:g}"

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
    features_name: str | None = None,
    optimiser: Adam | None = None,
    batch_norm: BatchNormMode = "frozen",
    n_way: int = 5,
    n_shot: int = 5,
    n_query: int = 15,
    n_episodes: int = 1000,
    seed: int = 0,
    classifier: ClassifierOrName = "centroid",
    centre: Tensor | None = None,
    centred: bool | None = None,
    normalise: bool = True,
    least_images: int = 1,
    inductive: bool | None = None,
    split: str | None = None,
    fingerprint: str | None = None,
    progress: bool | None = None,
) -> Accuracy:
    """Fine-tune the whole network on each support set, then classify its queries.

    Args:
        network: from images to embeddings, in evaluation mode; it does not change. Parameters that
            require no gradient stay frozen.
        images: (image, 3, height, width) normalised images of the split; they are moved to the
            network's device.
        labels: (image,) integers.
        loss: of the support's embeddings and labels, such as `nearshot.losses.nca_loss`.
        features: what the classifier gets, of the fine-tuned network and images; by default the
            network's output. With `lambda network, images: network.multi_layer(images)`, the loss
            still sees the last stage only, as in the paper. `centre` must fit.
        features_name: what the protocol calls `features`; by default the function's name.
        optimiser: by default the paper's, 5 steps of Adam.
        batch_norm: "frozen" fine-tunes with the running statistics of training; "support" in batch
            norm's training mode, with the mean and variance of the support set. Both evaluate with
            the running statistics, unchanged.
        n_way: the classes of an episode.
        n_shot: the support images of each class, at least 2.
        n_query: the query images of each class.
        n_episodes: the number of episodes.
        seed: the seed of the episodes.
        classifier: as in `evaluate_features`.
        centre: (dim,) the mean feature of the training set.
        centred: whether to subtract the centre; by default, if it is known.
        normalise: whether to divide each feature by its length.
        least_images: classes with fewer images are skipped.
        inductive: for functions as `features` or `classifier`, whether they look at each query
            alone.
        split: the name of the split, for the result's protocol.
        fingerprint: the fingerprint of the dataset split, for the result's protocol.
        progress: whether to show a bar; by default on a terminal.
    """
    check_evaluation_mode(network)
    optimiser = optimiser or Adam()
    statistics = BATCH_NORM_IN_WORDS[batch_norm]
    if features is not None and inductive is None:
        raise InputError(
            "inductive must be given with features: True if it looks at each query alone, else "
            "False."
        )
    spec = EvaluationSpec(
        n_way=n_way,
        n_shot=n_shot,
        n_query=n_query,
        n_episodes=n_episodes,
        seed=seed,
        classifier=classifier,
        centred=centred,
        normalise=normalise,
        least_images=least_images,
    )
    data = as_feature_set(images, labels, centre=centre, split=split, fingerprint=fingerprint)
    task = Task(data, EpisodeSource(labels, spec), progress)
    tally = _begin(task, spec, inductive)
    device = next(network.parameters()).device
    support_labels = torch.arange(n_way, device=device).repeat_interleave(n_shot)

    def features_after(rows: Tensor) -> Tensor:
        episode = images[rows[0].to(images.device)].to(device)  # (image, 3, h, w)
        support = episode[: len(support_labels)]
        tuned = copy.deepcopy(network)
        for module in tuned.modules():
            if batch_norm == "support" and isinstance(module, _BatchNorm):
                # It trains, but dropout does not, and its running statistics do not change.
                module.training = True
                module.track_running_stats = False
        trained = [parameter for parameter in tuned.parameters() if parameter.requires_grad]
        optimiser.minimise(lambda: loss(tuned(support), support_labels), trained)
        tuned.eval()
        with torch.no_grad():
            extracted = tuned(episode) if features is None else features(tuned, episode)
        return prepared(replace(data, features=extracted), tally.spec)[None]

    through = ""
    if features is not None:
        through = f", features by {features_name or classifier_name(features)}"
    adapted = (
        f"network fine-tuned on the support by {optimiser} of {classifier_name(loss)}{through}, "
        f"batch norm {statistics}"
    )
    return _evaluate(task, tally, 1, features_after, adapted)


def evaluate_mahalanobis(
    features: Array | FeatureSet,
    labels: Array | None = None,
    *,
    loss: SupportLoss,
    optimiser: Adam | None = None,
    n_way: int = 5,
    n_shot: int = 5,
    n_query: int = 15,
    n_episodes: int = 10_000,
    seed: int = 0,
    classifier: ClassifierOrName = "centroid",
    centre: Tensor | None = None,
    centred: bool | None = None,
    normalise: bool = True,
    least_images: int = 1,
    training_classes: Sequence[str] | None = None,
    inductive: bool | None = None,
    split: str | None = None,
    fingerprint: str | None = None,
    progress: bool | None = None,
) -> Accuracy:
    """Learn a matrix A = LᵀL on each support set and classify its queries by (x − y)ᵀA(x − y).

    L starts as the identity, so without a step the accuracy is that of the features. The paper
    found no gain in it, and gives no settings. The default here is 5 steps of Adam with learning
    rate 0.0001, which cost nothing on validation classes (docs/results-features.md), and no weight
    decay, which would pull A to zero rather than to the identity.

    Args:
        features: (image, dim), or a `FeatureSet`.
        labels: (image,) integers.
        loss: as in `evaluate_fine_tuned`; it must be one that `torch.func.vmap` supports.
        optimiser: by default 5 steps of Adam without weight decay.
        n_way: the classes of an episode.
        n_shot: the support images of each class, at least 2.
        n_query: the query images of each class.
        n_episodes: the number of episodes.
        seed: the seed of the episodes.
        classifier: as in `evaluate_features`.
        centre: (dim,) the mean feature of the training set.
        centred: whether to subtract the centre; by default, if it is known.
        normalise: whether to divide each feature by its length.
        least_images: classes with fewer images are skipped.
        training_classes: as in `evaluate_features`.
        inductive: for a function as classifier, whether it looks at each query alone.
        split: the name of the split, for the result's protocol.
        fingerprint: the fingerprint of the dataset split, for the result's protocol.
        progress: whether to show a bar; by default on a terminal.
    """
    optimiser = optimiser or Adam(n_steps=5, lr=1e-4, weight_decay=0.0)
    spec = EvaluationSpec(
        n_way=n_way,
        n_shot=n_shot,
        n_query=n_query,
        n_episodes=n_episodes,
        seed=seed,
        classifier=classifier,
        centred=centred,
        normalise=normalise,
        least_images=least_images,
    )
    data = as_feature_set(
        features,
        labels,
        centre=centre,
        split=split,
        fingerprint=fingerprint,
        training_classes=training_classes,
    )
    task = Task(data, EpisodeSource(data.labels, spec, data.class_names), progress)
    tally = _begin(task, spec, inductive)
    all_features = prepared(data, tally.spec)
    device = all_features.device
    support_labels = torch.arange(n_way, device=device).repeat_interleave(n_shot)
    identity = torch.eye(all_features.shape[1], dtype=all_features.dtype, device=device)

    def features_after(rows: Tensor) -> Tensor:
        episodes = all_features[rows.to(device)]  # (episode, image, dim)
        support = episodes[:, : len(support_labels)]
        matrices = identity.repeat(len(episodes), 1, 1).requires_grad_()  # (episode, dim, dim)
        losses = vmap(lambda matrix, images: loss(images @ matrix.T, support_labels))
        optimiser.minimise(lambda: losses(matrices, support).sum(), [matrices])
        return episodes @ matrices.detach().mT

    adapted = f"Mahalanobis matrix learnt on the support by {optimiser} of {classifier_name(loss)}"
    return _evaluate(task, tally, MATRICES_AT_ONCE, features_after, adapted)


def _begin(task: Task, spec: EvaluationSpec, inductive: bool | None) -> Tally:
    """Return a tally for an evaluation that adapts to the support sets."""
    if spec.n_shot < 2:
        raise InputError(
            f"n_shot must be at least 2 to adapt (got {spec.n_shot}): a support set with one image "
            "per class has no two images of the same class, so there is no positive pair to learn "
            "from."
        )
    tally = Tally.begin(task, spec, inductive=inductive)
    # What adapts the features may look at all queries as well, and so may the classifier.
    is_inductive = inductive is not False and not is_transductive(spec.classifier)
    return replace(tally, inductive=is_inductive)


def _evaluate(
    task: Task,
    tally: Tally,
    at_once: int,
    features_after: Callable[[Tensor], Tensor],
    adapted: str,
) -> Accuracy:
    """Answer all episodes and return the accuracy.

    `features_after` adapts to episodes, (episode, image), support first, then query, and returns
    their features (episode, image, dim).
    """
    shape = tally.spec.shape
    batches = []
    starts = range(0, len(task.episodes), at_once)
    description = f"adapting to {len(task.episodes):,} episodes"
    for start in with_progress(starts, description, progress=task.progress):
        drawn = task.draw(start, start + at_once)
        batches.append(drawn)
        query = drawn[:, :, : shape.n_query].flatten(1)
        support = drawn[:, :, shape.n_query :].flatten(1)
        features = features_after(torch.cat([support, query], dim=1))
        support_features = features[:, : shape.n_support]
        by_way = support_features.unflatten(1, (shape.n_way, shape.n_shot))
        if start == 0:
            tally = tally.checked(by_way[:1], features[:1, shape.n_support :])
        n_correct = tally.count(by_way, features[:, shape.n_support :])
        tally.n_correct[start : start + at_once] = n_correct
    return task.accuracy(tally, digest_of(batches, shape.n_query), adapted)
