"""The episode engine: one pass over the episodes counts the answers of every classifier.

Episodes are drawn and answered in batches. On a CPU each thread takes the next batch and does all
of it, with operations that use that one thread: threads that shared each small operation would wait
for each other.

Every classifier answers by its definition in `nearshot.evaluation.classifiers`, in float64. The
built-in ones have fast paths in float32, which are as exact: an episode in which two classes are
equally near to within rounding, one in many, is answered again by the definition.
"""

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Self

import torch
from torch import Tensor

from nearshot.episode_shape import EpisodeShape
from nearshot.errors import InputError
from nearshot.evaluation.classifiers import (
    CENTROID,
    TIE,
    Classifier,
    FeatureClassifier,
    classifier_name,
    find_classifier,
    first_best,
    is_built_in,
    is_transductive,
)
from nearshot.evaluation.episodes import Episodes, EpisodeSource, check_classes, digest_of
from nearshot.evaluation.features import FeatureSet, prepare_features
from nearshot.evaluation.leaks import ContentGuard
from nearshot.evaluation.similarity import FAST, episode_similarities
from nearshot.evaluation.spec import EvaluationSpec
from nearshot.evaluation.statistics import Accuracy, Protocol
from nearshot.text import with_progress

# Drawing has a fixed cost, so batches are long; but there should be several for each thread.
EPISODES_PER_BATCH = 1024
LEAST_EPISODES_PER_BATCH = 128
BATCHES_PER_THREAD = 4
EPISODES_PER_BATCH_GPU = 4096
GATHERED_BYTES_CPU = 2**25
GATHERED_BYTES_GPU = 2**29
EPISODES_FOR_PROGRESS = 50_000
# Rounding errors of similarities stay under a third of this many units in the last place of 1: see
# the tests.
ROUNDING = 16
# A classifier that is not built in answers about this many queries of the first episode alone, too.
# Scores that differ by more than the tolerance depend on the other queries.
QUERIES_ALONE = 5
ALONE_TOLERANCE = 1e-3


@dataclass(frozen=True, eq=False)
class Task:
    """Features (or images) with their metadata, and the episodes that are answered with them."""

    data: FeatureSet
    episodes: EpisodeSource | Episodes
    progress: bool | None = None

    def __post_init__(self) -> None:
        if isinstance(self.episodes, Episodes):
            check_classes(self.episodes, self.data.labels)

    @cached_property
    def _guard(self) -> ContentGuard | None:
        return None if self.data.content is None else ContentGuard(self.data.content)

    def draw(self, start: int, stop: int) -> Tensor:
        """Draw episodes `start` to `stop` − 1, or to the last; check their content."""
        drawn = self.episodes.draw(start, min(stop, len(self.episodes)))
        if self._guard is not None:
            self._guard.check(drawn, self.episodes.shape.n_query, start)
        return drawn

    def accuracy(self, tally: "Tally", digest: str, adapted: str | None = None) -> Accuracy:
        """Return the accuracy of a tally with its protocol; `digest` is that of the episodes."""
        protocol = Protocol(
            n_way=tally.spec.n_way,
            n_shot=tally.spec.n_shot,
            n_query=tally.spec.n_query,
            n_episodes=len(self.episodes),
            seed=self.episodes.seed,
            episodes=digest,
            classifier=classifier_name(tally.spec.classifier),
            centred=tally.spec.centred,
            normalised=tally.spec.normalise,
            adapted=adapted,
            inductive=tally.inductive,
            split=self.data.split,
            fingerprint=self.data.fingerprint,
            n_skipped_classes=self.episodes.n_skipped_classes,
        )
        return Accuracy.of_counts(tally.n_correct.sum(1), protocol)


@dataclass(frozen=True, eq=False)
class Tally:
    """The correct answers of one evaluation, as they are counted.

    Attributes:
        spec: the evaluation, in which `centred` is not None.
        classify: its classifier.
        inductive: whether each query is answered on its own.
        n_correct: (episode, way) the correct answers so far.
    """

    spec: EvaluationSpec
    classify: FeatureClassifier
    inductive: bool
    n_correct: Tensor

    @classmethod
    def begin(cls, task: Task, spec: EvaluationSpec, *, inductive: bool | None) -> Self:
        """Return a tally without answers."""
        centre = task.data.centre
        if spec.centred is None:
            spec = replace(spec, centred=centre is not None)
        elif spec.centred and centre is None:
            raise InputError(
                "centred needs centre, the mean feature of the training set. Give it, or leave "
                "centred to None."
            )
        classify = find_classifier(spec.classifier, inductive)
        if isinstance(classify, Classifier):
            inductive = True  # `checked` verifies it
        elif is_transductive(spec.classifier):
            inductive = False
        device = task.data.features.device
        n_correct = torch.zeros(len(task.episodes), spec.n_way, dtype=torch.int32, device=device)
        return cls(spec, classify, bool(inductive), n_correct)

    def checked(self, support: Tensor, query: Tensor) -> Self:
        """Return the tally with `inductive` as it is for some episodes: features as for `count`.

        A few queries are answered alone. If their scores differ from those among all queries, the
        classifier looks at the others, whatever was said of it.
        """
        if not self.inductive or is_built_in(self.classify):
            return self
        support = support[:, :, : self.spec.n_shot]
        with torch.no_grad():
            together = self.classify(support.clone(), query.clone())
            if together.shape[:2] != query.shape[:2]:
                return self  # `count` refuses it
            tolerance = ALONE_TOLERANCE * (1 + together.abs().amax())
            step = max(1, query.shape[1] // QUERIES_ALONE)
            for number in range(0, query.shape[1], step):
                only = slice(number, number + 1)
                alone = self.classify(support.clone(), query[:, only].clone())
                # What all classes share, such as a normalisation, changes no answer.
                difference = alone - together[:, only]
                difference = difference - difference.mean(2, keepdim=True)
                if difference.abs().amax() > tolerance:
                    warnings.warn(
                        f"The classifier {classifier_name(self.spec.classifier)!r} answers a query "
                        "differently without the other queries, so the result says that it is not "
                        "inductive.",
                        stacklevel=4,
                    )
                    return replace(self, inductive=False)
        return self

    @property
    def is_defined(self) -> bool:
        """Whether the classifier is a definition, rather than a function of features."""
        return isinstance(self.classify, Classifier)

    @property
    def is_fast(self) -> bool:
        """Whether the classifier has a fast path."""
        return isinstance(self.classify, Classifier) and self.classify in FAST

    def count(self, support: Tensor, query: Tensor) -> Tensor:
        """Return how many of each way's queries are answered correctly, (episode, way).

        Given are features, (episode, way, shot, dim) and (episode, query, dim). Of tied classes the
        first is the answer. Scores of a definition tie within rounding, other scores if they are
        equal.
        """
        n_way = self.spec.n_way
        n_query = self.spec.n_query
        scores = self.classify(support[:, :, : self.spec.n_shot], query)
        expected = (*query.shape[:2], n_way)
        if scores.shape != expected or scores.isnan().any():
            nan = " with NaN" if scores.isnan().any() else ""
            raise InputError(
                f"Classifier {classifier_name(self.spec.classifier)!r} must return scores "
                f"(episode, query, way) {expected} (got {tuple(scores.shape)}{nan})."
            )
        answers = first_best(scores) if self.is_defined else scores.max(2).indices
        truth = torch.arange(n_way, device=scores.device).repeat_interleave(n_query)  # (query,)
        return (answers == truth).view(-1, n_way, n_query).sum(2, dtype=torch.int32)


@dataclass(frozen=True)
class Preparation:
    """What tallies must have in common to be answered with the same prepared features."""

    treatment: EvaluationSpec
    is_defined: bool
    is_fast: bool


def begin_tallies(
    task: Task, specs: Sequence[EvaluationSpec], *, inductive: bool | None
) -> list[Tally]:
    """Return tallies of features without answers, which know whether they are inductive."""
    tallies = []
    for spec in specs:
        tally = Tally.begin(task, spec, inductive=inductive)
        if not is_built_in(tally.classify):
            tally = tally.checked(*_first_episode(task, tally))
        tallies.append(tally)
    return tallies


def _first_episode(task: Task, tally: Tally) -> tuple[Tensor, Tensor]:
    """Return the support and query features of the first episode, as the tally gets them."""
    rows = _query_first(task.draw(0, 1), task.episodes.shape).to(task.data.features.device)
    if tally.is_defined:
        features = _prepared_exactly(task.data, tally.spec, rows)
    else:
        data = replace(task.data, features=task.data.features[rows.flatten()])
        features = prepared(data, tally.spec).view(*rows.shape, -1)
    return _support_and_query(features, task.episodes.shape)


def answer(task: Task, tallies: Sequence[Tally]) -> str:
    """Answer all episodes, count in each tally, and return the digest of the episodes."""
    shape = task.episodes.shape
    device = task.data.features.device
    groups: dict[Preparation, list[Tally]] = {}
    for tally in tallies:
        preparation = Preparation(tally.spec.treatment, tally.is_defined, tally.is_fast)
        groups.setdefault(preparation, []).append(tally)
    answerers: list[_Fast | _Direct] = []
    for preparation, group in groups.items():
        if preparation.is_fast:
            answerers.append(_Fast(task.data, group, shape))
        else:
            answerers.append(_Direct(task.data, group, shape))
    # A function of the user's may not be safe to call from many threads, and may need gradients.
    all_defined = all(tally.is_defined for tally in tallies)
    mode = torch.inference_mode if all_defined else torch.no_grad
    n_threads = torch.get_num_threads() if device.type == "cpu" and all_defined else 1
    batch_size = _episodes_per_batch(task, n_threads)

    def answer_batch(start: int) -> Tensor:
        drawn = task.draw(start, start + batch_size)
        with mode(), torch.autocast(device.type, enabled=False):
            rows = _query_first(drawn, shape).to(device)
            for answerer in answerers:
                answerer.answer(rows, start)
        return drawn

    starts = range(0, len(task.episodes), batch_size)
    progress = task.progress
    if progress is None and len(task.episodes) < EPISODES_FOR_PROGRESS:
        progress = False
    bar = with_progress(starts, f"{len(task.episodes):,} episodes", progress=progress)
    batches = in_threads(answer_batch, starts, n_threads)
    return digest_of((drawn for _, drawn in zip(bar, batches, strict=True)), shape.n_query)


def _episodes_per_batch(task: Task, n_threads: int) -> int:
    """Return how many episodes to draw and answer at once."""
    if task.data.features.device.type == "cpu":
        share = len(task.episodes) // (BATCHES_PER_THREAD * n_threads)
        return min(max(share, LEAST_EPISODES_PER_BATCH), EPISODES_PER_BATCH)
    room = _episodes_in_memory(task.data.features, task.episodes.shape)
    return min(EPISODES_PER_BATCH_GPU, room)


def in_threads(
    work: Callable[[int], Tensor], starts: Iterable[int], n_threads: int
) -> Iterator[Tensor]:
    """Yield the results of `work` in order, each computed by one of `n_threads` threads."""
    if n_threads == 1:
        yield from map(work, starts)
        return
    before = torch.get_num_threads()
    try:
        # The operations of a thread use that thread alone.
        with ThreadPoolExecutor(
            n_threads, initializer=torch.set_num_threads, initargs=(1,)
        ) as pool:
            yield from pool.map(work, starts)
    finally:
        # New threads, and the matrix library, take over a thread's setting.
        torch.set_num_threads(before)


class _Direct:
    """Answers by calling classifiers with the features of the support and query images."""

    def __init__(self, data: FeatureSet, tallies: Sequence[Tally], shape: EpisodeShape) -> None:
        self.tallies = tallies
        self.shape = shape
        first = tallies[0]  # all have the same preparation
        if first.is_defined:
            data = replace(data, features=data.features.double())
        self.features = prepared(data, first.spec)
        self.at_once = _episodes_in_memory(self.features, shape)

    def answer(self, rows: Tensor, start: int) -> None:
        """Count the correct answers of a batch.

        `rows` (episode, image) has the queries of all ways first; the first episode is `start`.
        """
        for offset in range(0, len(rows), self.at_once):
            part = rows[offset : offset + self.at_once]
            features = self.features[part]
            for tally in self.tallies:
                # A user's function may change its arguments.
                own = features if tally.is_defined else features.clone()
                support, query = _support_and_query(own, self.shape)
                first = start + offset
                tally.n_correct[first : first + len(part)] = tally.count(support, query)


class _Fast:
    """Answers for the built-in classifiers, which share the similarities."""

    def __init__(self, data: FeatureSet, tallies: Sequence[Tally], shape: EpisodeShape) -> None:
        self.data = data
        self.tallies = tallies
        self.shape = shape
        self.spec = tallies[0].spec  # all have the same preparation
        self.features = prepared(data, self.spec)
        # Float32 has its digits around zero. Moving features there changes no distance.
        mean = self.features.mean(0)
        sample = self.features[:: max(1, len(self.features) // 256)]
        if mean.square().sum() > 0.1 * sample.square().sum(1).mean():
            self.features = self.features - mean
        self.squares = torch.linalg.vector_norm(self.features, dim=1).square()
        shots_of_means = {tally.spec.n_shot for tally in tallies if tally.classify == CENTROID}
        self.shots_of_means = sorted(shots_of_means)
        self.needs_images = any(tally.classify != CENTROID for tally in tallies)
        # Products round in units of the features' squared length, and normalised features in those
        # of 1. No squared distance is above 4 times that, and the definitions take what differs by
        # TIE of the largest for a tie.
        length = self.squares.max().sqrt()
        size = length * (length.clamp(min=1) if self.spec.normalise else length)
        self.tolerance = max(ROUNDING * torch.finfo(self.features.dtype).eps, 4 * TIE) * size

    def answer(self, rows: Tensor, start: int) -> None:
        """Count the correct answers of a batch, as `_Direct.answer` does."""
        similarities = episode_similarities(
            self.features,
            self.squares,
            rows,
            self.shape,
            self.shots_of_means,
            needs_images=self.needs_images,
        )
        unsure_episodes = []  # for each tally
        for tally in self.tallies:
            scores, gap = FAST[tally.classify](similarities, tally.spec.n_shot)  # type: ignore[index]
            n_correct, is_unsure = count_correct(scores, gap, self.tolerance)
            tally.n_correct[start : start + len(rows)] = n_correct
            unsure_episodes.append(is_unsure)
        # From here on a GPU is waited for, once in a batch.
        at_once = _episodes_in_memory(self.features, self.shape)
        for tally, is_unsure in zip(self.tallies, unsure_episodes, strict=True):
            episodes = is_unsure.nonzero()[:, 0]
            for offset in range(0, len(episodes), at_once):
                part = episodes[offset : offset + at_once]
                features = _prepared_exactly(self.data, self.spec, rows[part])
                support, query = _support_and_query(features, self.shape)
                tally.n_correct[start + part] = tally.count(support, query)


def count_correct(scores: Tensor, gap: Tensor | None, tolerance: Tensor) -> tuple[Tensor, Tensor]:
    """Return how many of each way's queries are answered correctly, and which episodes are unsure.

    The first is (episode, way), the second (episode,). `scores` (episode, way, query) and `gap` are
    those of a fast path. An episode is unsure if an answer depends on less than the tolerance.
    """
    n_way = scores.shape[1]
    by_truth = scores.unflatten(2, (n_way, -1))  # (episode, way, true way, query)
    right = by_truth.diagonal(dim1=1, dim2=2).transpose(1, 2)  # (episode, true way, query)
    is_right = torch.eye(n_way, dtype=torch.bool, device=right.device)[:, :, None]
    best_wrong = by_truth.masked_fill(is_right, -torch.inf).amax(1)
    margin = right - best_wrong  # (episode, true way, query)
    smallest = margin.flatten(1).abs().amin(1)
    if gap is not None:
        smallest = torch.minimum(smallest, gap.amin(1))
    return (margin > 0).sum(2, dtype=torch.int32), smallest <= tolerance


def prepared(data: FeatureSet, spec: EvaluationSpec) -> Tensor:
    """Return all features centred and normalised."""
    centre = data.centre if spec.centred else None
    features = prepare_features(data.features.detach(), centre=centre, normalise=spec.normalise)
    return features.contiguous()


def _prepared_exactly(data: FeatureSet, spec: EvaluationSpec, rows: Tensor) -> Tensor:
    """Return the features of `rows` (episode, image) prepared in float64, (episode, image, dim)."""
    features = data.features[rows.flatten()].double()
    return prepared(replace(data, features=features), spec).view(*rows.shape, -1)


def _query_first(drawn: Tensor, shape: EpisodeShape) -> Tensor:
    """Return the rows (episode, image) of episodes: queries of all ways, then their support."""
    query = drawn[:, :, : shape.n_query].flatten(1)
    support = drawn[:, :, shape.n_query :].flatten(1)
    return torch.cat([query, support], dim=1)


def _support_and_query(features: Tensor, shape: EpisodeShape) -> tuple[Tensor, Tensor]:
    """Split (episode, image, dim) into support by way and queries; those of all ways come first."""
    n_queries = shape.n_way * shape.n_query
    support = features[:, n_queries:].unflatten(1, (shape.n_way, shape.n_shot))
    return support, features[:, :n_queries]


def _episodes_in_memory(features: Tensor, shape: EpisodeShape) -> int:
    """Return how many episodes' features to gather at once."""
    room = GATHERED_BYTES_CPU if features.device.type == "cpu" else GATHERED_BYTES_GPU
    bytes_per_episode = shape.batch_size * features.shape[1] * features.element_size()
    return max(1, room // bytes_per_episode)
