"""The episode engine: one pass over the episodes that counts the correct answers of every classifier.

Episodes are drawn and answered in batches. On a CPU each thread takes the next batch and does all of it, with
operations that use that one thread: threads that shared each small operation would wait for each other.

Every classifier answers by its definition in `nearshot.evaluation.classifiers`, in float64. The built-in ones have fast
paths in float32, which are as exact: an episode in which two classes are equally near to within rounding, one in many,
is answered again by the definition.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import torch
from torch import Tensor

from nearshot.episode_shape import EpisodeShape
from nearshot.errors import InputError
from nearshot.evaluation.classifiers import Classifier, FeatureClassifier, classifier_name, find_classifier
from nearshot.evaluation.episodes import QuestionDigest
from nearshot.evaluation.features import FeatureSet, prepare_features
from nearshot.evaluation.guards import ContentGuard
from nearshot.evaluation.similarity import FAST, Scores, SimilarityBuffers, SimilarityPlan
from nearshot.evaluation.spec import EvaluationSpec
from nearshot.evaluation.task import Task
from nearshot.evaluation.ties import TIE, first_best
from nearshot.progress import with_progress

__all__ = ["Tally", "answer", "count_correct", "in_threads"]

# Drawing has a fixed cost, so batches are long; but there should be several for each thread.
EPISODES_PER_BATCH, LEAST_EPISODES_PER_BATCH, BATCHES_PER_THREAD = 1024, 128, 4
EPISODES_PER_BATCH_ELSEWHERE = 4096  # to fill a GPU
EPISODES_AT_ONCE_CPU = 256  # their scores stay in a core's cache
GATHERED_BYTES = 2**29
GATHERED_BYTES_EXACTLY = 2**25
EPISODES_FOR_PROGRESS = 50_000
# Rounding errors of similarities stay under a third of this many units in the last place of 1: see the tests.
ROUNDING = 16


@dataclass(frozen=True, eq=False)
class Tally:
    """The correct answers of one classifier with some settings.

    Attributes:
        spec: the settings.
        name: the name of the classifier in results.
        classify: the classifier.
        n_correct: (episode, way) how many queries were answered correctly so far.
    """

    spec: EvaluationSpec
    name: str
    classify: FeatureClassifier
    n_correct: Tensor

    @classmethod
    def begin(cls, task: Task, spec: EvaluationSpec, name: str | None = None) -> Tally:
        """Return a tally without answers."""
        dtype = torch.int16 if spec.n_query < 2**15 else torch.int32  # there may be millions of episodes
        n_correct = torch.zeros(len(task.source), spec.n_way, dtype=dtype, device=task.data.features.device)
        classify = find_classifier(spec.classifier, spec.inductive)
        return cls(spec, name or classifier_name(spec.classifier), classify, n_correct)

    @property
    def is_defined(self) -> bool:
        """Whether the classifier is a definition, rather than a function of features."""
        return isinstance(self.classify, Classifier)


def answer(task: Task, tallies: Sequence[Tally]) -> str:
    """Answer the episodes, count the correct answers in each tally, and return the digest of the episodes."""
    source, device = task.source, task.data.features.device
    groups: dict[tuple[bool | None, bool], list[Tally]] = {}
    for tally in tallies:
        groups.setdefault((tally.spec.centred, tally.spec.normalise), []).append(tally)
    answerers = [one for group in groups.values() for one in _answerers(task.data, group, source.shape)]
    # A function of the user's may not be safe to call from many threads, and may need gradients.
    all_defined = all(tally.is_defined for tally in tallies)
    n_threads = torch.get_num_threads() if device.type == "cpu" and all_defined else 1
    mode = torch.inference_mode if all_defined else torch.no_grad
    batch_size = _batch_size(len(source), n_threads, device)

    def answer_batch(start: int) -> Tensor:
        drawn = source.draw(start, min(start + batch_size, len(source)))
        with mode(), torch.autocast(device.type, enabled=False):
            rows = _queries_then_support(drawn, source.shape.n_query).to(device)
            for one in answerers:
                one.answer(rows, start)
        return drawn

    digest, guard = QuestionDigest(), None if task.data.content is None else ContentGuard(task.data.content)
    starts = range(0, len(source), batch_size)
    show = False if task.progress is None and len(source) < EPISODES_FOR_PROGRESS else task.progress
    batches = in_threads(answer_batch, starts, n_threads)
    for start in with_progress(starts, f"{len(source):,} episodes", show=show):
        drawn = next(batches)
        digest.update(drawn, source.shape.n_query)
        if guard is not None:
            guard.check(drawn, source.shape.n_query, start)
    return digest.hexdigest()


def in_threads(work: Callable[[int], Tensor], starts: Iterable[int], n_threads: int) -> Iterator[Tensor]:
    """Yield the results of `work` in order, each computed by one of `n_threads` threads.

    >>> [int(square) for square in in_threads(lambda i: torch.tensor(i * i), range(5), n_threads=2)]
    [0, 1, 4, 9, 16]
    """
    if n_threads == 1:
        yield from map(work, starts)
        return
    before = torch.get_num_threads()
    try:
        # The operations of a thread use that thread alone.
        with ThreadPoolExecutor(n_threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            yield from pool.map(work, starts)
    finally:
        torch.set_num_threads(before)  # new threads, and the matrix library, take over a thread's setting


class _Direct:
    """Answers by calling classifiers with the features of the support and query images."""

    def __init__(self, data: FeatureSet, tallies: Sequence[Tally], shape: EpisodeShape, *, exactly: bool) -> None:
        self.tallies, self.shape = tallies, shape
        self.prepared = _prepared_exactly(data, tallies[0].spec) if exactly else _prepared(data, tallies[0].spec)
        room = GATHERED_BYTES_EXACTLY if self.prepared.device.type == "cpu" else GATHERED_BYTES
        self.at_once = _at_once(room, self.prepared, shape)

    def answer(self, rows: Tensor, start: int) -> None:
        """Count the correct answers of a batch; `rows` (episode, image), the first is episode `start`."""
        for offset in range(0, len(rows), self.at_once):
            some = rows[offset : offset + self.at_once]
            features = self.prepared[some]
            for tally in self.tallies:
                own = features if tally.is_defined else features.clone()  # a user's function may change them
                n_correct = _count(tally, own, self.shape)
                tally.n_correct[start + offset : start + offset + len(some)] = n_correct


class _Fast:
    """Answers for the built-in classifiers, which share the similarities."""

    def __init__(self, data: FeatureSet, tallies: Sequence[Tally], shape: EpisodeShape) -> None:
        self.data, self.tallies, self.shape, self.spec = data, tallies, shape, tallies[0].spec
        features = _around_zero(_prepared(data, self.spec))
        uses_means = {tally: isinstance(tally.classify, Classifier) and tally.classify.prototypes for tally in tallies}
        means = sorted({tally.spec.n_shot for tally in tallies if uses_means[tally]})
        self.plan = SimilarityPlan(features, shape, tuple(means), needs_images=not all(uses_means.values()))
        self.at_once = EPISODES_AT_ONCE_CPU
        if features.device.type != "cpu":
            self.at_once = _at_once(GATHERED_BYTES, features, shape)
        self.at_once_exactly = _at_once(GATHERED_BYTES_EXACTLY, features, shape)
        # Products round in units of the features' squared length, and normalised features in those of 1. No squared
        # distance is above 4 times that, and the definitions take what differs by TIE of the largest for a tie.
        length = self.plan.squares.max().sqrt()
        size = length * (length.clamp(min=1) if self.spec.normalise else length)
        self.tolerance = max(ROUNDING * torch.finfo(features.dtype).eps, 4 * TIE) * size

    def answer(self, rows: Tensor, start: int) -> None:
        """Count the correct answers of a batch; `rows` (episode, image), the first is episode `start`."""
        unsure: dict[Tally, list[Tensor]] = {tally: [] for tally in self.tallies}
        buffers = SimilarityBuffers(self.plan, min(self.at_once, len(rows)))
        for offset in range(0, len(rows), self.at_once):
            some = rows[offset : offset + self.at_once]
            similarities = buffers.compute(some)
            for tally in self.tallies:
                scores = FAST[tally.classify](similarities, tally.spec.n_shot)  # type: ignore[index]
                n_correct, is_unsure = count_correct(scores, self.tolerance)
                tally.n_correct[start + offset : start + offset + len(some)] = n_correct
                unsure[tally].append(is_unsure)
        for tally, masks in unsure.items():
            episodes = torch.cat(masks).nonzero()[:, 0]  # the one moment in a batch when a GPU is waited for
            for part in range(0, len(episodes), self.at_once_exactly):
                some = episodes[part : part + self.at_once_exactly]
                features = _prepared_exactly(self.data, self.spec, rows[some])
                tally.n_correct[start + some] = _count(tally, features, self.shape).to(tally.n_correct.dtype)


def _answerers(data: FeatureSet, tallies: Sequence[Tally], shape: EpisodeShape) -> Iterator[_Fast | _Direct]:
    """Yield what answers tallies of the same treatment: functions of features, fast paths, and definitions."""
    own = [tally for tally in tallies if not tally.is_defined]
    fast = [tally for tally in tallies if tally.is_defined and tally.classify in FAST]
    defined = [tally for tally in tallies if tally.is_defined and tally.classify not in FAST]
    if own:
        yield _Direct(data, own, shape, exactly=False)
    if fast:
        yield _Fast(data, fast, shape)
    if defined:
        yield _Direct(data, defined, shape, exactly=True)


def count_correct(scores: Scores, tolerance: Tensor) -> tuple[Tensor, Tensor]:
    """Return how many of each way's queries are answered correctly, (episode, way), and which episodes are unsure.

    An episode is unsure, (episode,), if an answer depends on less than the tolerance.

    >>> values = torch.tensor([[[0.9, 0.5], [0.1, 0.4]]])  # (episode, way, query); query 0 is of way 0 and 1 of 1
    >>> count_correct(Scores(values), torch.tensor(0.2))
    (tensor([[1, 0]], dtype=torch.int32), tensor([True]))
    """
    n_way = scores.values.shape[1]
    by_truth = scores.values.unflatten(2, (n_way, -1))  # (episode, way, true way, query)
    right = by_truth.diagonal(dim1=1, dim2=2).transpose(1, 2)  # (episode, true way, query)
    is_right = torch.eye(n_way, dtype=torch.bool, device=right.device)[:, :, None]
    best_wrong = by_truth.masked_fill(is_right, -torch.inf).amax(1)
    margin = right - best_wrong  # (episode, true way, query)
    n_correct = (margin > 0).sum(2, dtype=torch.int32)
    smallest = margin.flatten(1).abs().amin(1)
    if scores.gap is not None:
        smallest = torch.minimum(smallest, scores.gap.amin(1))
    return n_correct, smallest <= tolerance


def _count(tally: Tally, features: Tensor, shape: EpisodeShape) -> Tensor:
    """Classify the queries of episodes and count the correct answers, (episode, way); `features` (episode, image, dim).

    Of tied classes the first is the answer. Scores of a definition tie within rounding, other scores if they are equal.
    """
    n_queries = shape.n_way * shape.n_query
    query, support = features[:, :n_queries], features[:, n_queries:].unflatten(1, (shape.n_way, shape.n_shot))
    scores = tally.classify(support[:, :, : tally.spec.n_shot], query)
    expected = (*query.shape[:2], shape.n_way)
    if not isinstance(scores, Tensor) or scores.shape != expected:
        came = tuple(scores.shape) if isinstance(scores, Tensor) else type(scores).__name__
        raise InputError(f"Classifier {tally.name!r} must return scores (episode, query, way) {expected} (got {came}).")
    if scores.isnan().any():
        raise InputError(f"Classifier {tally.name!r} must not return NaN.")
    answers = first_best(scores) if tally.is_defined else scores.max(2).indices
    truth = torch.arange(shape.n_way, device=scores.device).repeat_interleave(shape.n_query)  # (query,)
    return (answers == truth).view(-1, shape.n_way, shape.n_query).sum(2, dtype=torch.int32)


def _prepared(data: FeatureSet, spec: EvaluationSpec) -> Tensor:
    """Return all features centred and normalised."""
    centre = data.centre if spec.centred else None
    return prepare_features(data.features.detach(), centre=centre, normalise=spec.normalise).contiguous()


def _prepared_exactly(data: FeatureSet, spec: EvaluationSpec, rows: Tensor | None = None) -> Tensor:
    """Return features prepared in float64: all, or those of `rows` (episode, image) as (episode, image, dim)."""
    centre = data.centre.double() if spec.centred and data.centre is not None else None
    given = data.features.detach() if rows is None else data.features.detach()[rows.flatten()]
    prepared = prepare_features(given.double(), centre=centre, normalise=spec.normalise)
    return prepared if rows is None else prepared.view(*rows.shape, -1)


def _around_zero(features: Tensor) -> Tensor:
    """Move features to around zero, where float32 has its digits, unless they are there; no distance changes."""
    mean, some = features.mean(0), features[:: max(1, len(features) // 256)]
    far = mean.square().sum() > 0.1 * some.square().sum(1).mean()
    return features - mean if far else features


def _queries_then_support(drawn: Tensor, n_query: int) -> Tensor:
    """From (episode, way, query + shot) to (episode, image): queries of all ways, then support of all ways."""
    return torch.cat([drawn[:, :, :n_query].flatten(1), drawn[:, :, n_query:].flatten(1)], dim=1)


def _batch_size(n_episodes: int, n_threads: int, device: torch.device) -> int:
    if device.type != "cpu":
        return EPISODES_PER_BATCH_ELSEWHERE
    share = n_episodes // (BATCHES_PER_THREAD * n_threads)
    return min(max(share, LEAST_EPISODES_PER_BATCH), EPISODES_PER_BATCH)


def _at_once(room: int, features: Tensor, shape: EpisodeShape) -> int:
    """Return how many episodes' features fit into `room` bytes."""
    return max(1, room // (shape.batch_size * features.shape[1] * features.element_size()))
