"""The episode engine: one pass over the episodes that counts the correct answers of every classifier.

Episodes are drawn and answered in batches. On a CPU each thread takes the next batch and does all
of it, with operations that use that one thread: threads that shared each small operation would wait
for each other.

Every classifier answers by its definition in `nearshot.evaluation.classifiers`, in float64. The
built-in ones have fast paths in float32, which are as exact: an episode in which two classes are
equally near to within rounding, one in many, is answered again by the definition.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any, Self

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
)
from nearshot.evaluation.episodes import (
    ContentGuard,
    Episodes,
    EpisodeSource,
    EvaluationSettings,
    EvaluationSpec,
    check_classes,
    digest_of,
)
from nearshot.evaluation.features import FeatureSet, check_unseen_classes, prepare_features
from nearshot.evaluation.similarity import FAST, episode_similarities
from nearshot.evaluation.statistics import Accuracy, Protocol
from nearshot.text import with_progress

# Drawing has a fixed cost, so batches are long; but there should be several for each thread.
EPISODES_PER_BATCH, LEAST_EPISODES_PER_BATCH, BATCHES_PER_THREAD = 1024, 128, 4
EPISODES_PER_BATCH_ELSEWHERE = 4096  # to fill a GPU
GATHERED_BYTES_CPU, GATHERED_BYTES = 2**25, 2**29
EPISODES_FOR_PROGRESS = 50_000
# Rounding errors of similarities stay under a third of this many units in the last place of 1: see
# the tests.
ROUNDING = 16


class TaskSettings(EvaluationSettings, total=False):
    """The keyword arguments that all evaluations share, see `evaluate_features`. A field given beside `spec` wins."""

    centre: Tensor | None
    split: str | None
    fingerprint: str | None
    training_classes: Sequence[str] | None
    spec: EvaluationSpec
    episodes: Episodes | None
    progress: bool | None


@dataclass(frozen=True, eq=False)
class Task:
    """An evaluation made ready: features, settings and episodes, checked against each other."""

    data: FeatureSet
    spec: EvaluationSpec
    source: EpisodeSource | Episodes
    progress: bool | None = None

    @classmethod
    def of(
        cls, features: Tensor | FeatureSet, labels: Tensor | None, settings: Mapping[str, Any]
    ) -> Self:
        """Check the arguments of an evaluation. `settings` are those of `TaskSettings`; they win over a feature set."""
        rest = dict(settings)
        about = {
            name: rest.pop(name, None)
            for name in ("centre", "split", "fingerprint", "training_classes")
        }
        about["labels"] = labels
        given: dict[str, Any] = {name: value for name, value in about.items() if value is not None}
        spec: EvaluationSpec = rest.pop("spec", None) or EvaluationSpec()
        episodes: Episodes | None = rest.pop("episodes", None)
        progress = rest.pop("progress", None)
        data = (
            replace(features, **given)
            if isinstance(features, FeatureSet)
            else FeatureSet(features, **given)
        )
        expected, shape = (len(data.features),), tuple(data.labels.shape)
        if shape != expected:
            raise InputError(
                f"labels must be one per image: expected shape {expected}, not {shape}."
            )
        if episodes is not None and "spec" not in settings:
            rest.setdefault("n_shot", episodes.shape.n_shot)
        spec = replace(spec, **rest)
        spec = replace(
            spec, centred=data.centre is not None if spec.centred is None else spec.centred
        )
        if spec.centred and data.centre is None:
            raise InputError(
                "To centre features, give their centre, the mean feature of the training set."
            )
        if data.training_classes is not None:
            if not data.class_names:
                raise InputError(
                    "training_classes needs a FeatureSet with class_names, to compare them with."
                )
            check_unseen_classes(data.training_classes, data.class_names)
        if episodes is None:
            return cls(data, spec, EpisodeSource(data.labels, spec, data.class_names), progress)
        check_classes(episodes, data.labels)
        if spec.n_shot > episodes.shape.n_shot:
            raise InputError(
                f"n_shot must be at most {episodes.shape.n_shot}, as in episodes (got {spec.n_shot})."
            )
        spec = replace(
            spec, n_way=episodes.shape.n_way, n_query=episodes.n_query, n_episodes=len(episodes)
        )
        return cls(data, spec, episodes, progress)

    @cached_property
    def _guard(self) -> ContentGuard | None:
        return None if self.data.content is None else ContentGuard(self.data.content)

    def draw(self, start: int, stop: int) -> Tensor:
        """Draw episodes `start` to `stop` − 1, or to the last; queries that are also support images are refused."""
        drawn = self.source.draw(start, min(stop, len(self.source)))
        if self._guard is not None:
            self._guard.check(drawn, self.source.shape.n_query, start)
        return drawn

    def accuracy(self, tally: "Tally", digest: str, adapted: str | None = None) -> Accuracy:
        """Return the accuracy of a tally with its protocol; `digest` is that of the episodes."""
        protocol = Protocol(
            **asdict(tally.spec.shape),
            n_episodes=len(self.source),
            seed=self.source.seed,
            episodes=digest,
            classifier=tally.name,
            centred=tally.spec.centred,
            normalised=tally.spec.normalise,
            adapted=adapted,
            inductive=tally.spec.inductive is not False
            if adapted
            else tally.is_defined or bool(tally.spec.inductive),
            split=self.data.split,
            fingerprint=self.data.fingerprint,
            classes_left_out=self.source.n_classes_left_out,
        )
        return Accuracy.of_counts(tally.n_correct.sum(1), protocol)


@dataclass(frozen=True, eq=False)
class Tally:
    """The correct answers of one classifier with some settings; `n_correct` is (episode, way), so far."""

    spec: EvaluationSpec
    name: str
    classify: FeatureClassifier
    n_correct: Tensor

    @classmethod
    def begin(cls, task: Task, spec: EvaluationSpec, name: str | None = None) -> Self:
        """Return a tally without answers."""
        n_correct = torch.zeros(
            len(task.source), spec.n_way, dtype=torch.int32, device=task.data.features.device
        )
        classify = find_classifier(spec.classifier, spec.inductive)
        return cls(spec, name or classifier_name(spec.classifier), classify, n_correct)

    @property
    def is_defined(self) -> bool:
        """Whether the classifier is a definition, rather than a function of features."""
        return isinstance(self.classify, Classifier)

    def count(self, support: Tensor, query: Tensor) -> Tensor:
        """Return how many of each way's queries are answered correctly, (episode, way).

        Given are features, (episode, way, shot, dim) and (episode, query, dim). Of tied classes the
        first is the answer. Scores of a definition tie within rounding, other scores if they are
        equal.
        """
        n_way, n_query = self.spec.n_way, self.spec.n_query
        scores = self.classify(support[:, :, : self.spec.n_shot], query)
        expected = (*query.shape[:2], n_way)
        if scores.shape != expected or scores.isnan().any():
            came = f"{tuple(scores.shape)}{' with NaN' if scores.isnan().any() else ''}"
            raise InputError(
                f"Classifier {self.name!r} must return scores (episode, query, way) {expected} (got {came})."
            )
        answers = first_best(scores) if self.is_defined else scores.max(2).indices
        truth = torch.arange(n_way, device=scores.device).repeat_interleave(n_query)  # (query,)
        return (answers == truth).view(-1, n_way, n_query).sum(2, dtype=torch.int32)


def answer(task: Task, tallies: Sequence[Tally]) -> str:
    """Answer the episodes, count the correct answers in each tally, and return the digest of the episodes."""
    source, device, n_query = task.source, task.data.features.device, task.source.shape.n_query
    groups: dict[tuple[bool | None, bool, bool, bool], list[Tally]] = {}
    for tally in tallies:
        is_fast = tally.is_defined and tally.classify in FAST
        groups.setdefault(
            (tally.spec.centred, tally.spec.normalise, tally.is_defined, is_fast), []
        ).append(tally)
    answerers = [
        (_Fast if key[-1] else _Direct)(task.data, group, source.shape)
        for key, group in groups.items()
    ]
    # A function of the user's may not be safe to call from many threads, and may need gradients.
    all_defined = all(tally.is_defined for tally in tallies)
    n_threads = torch.get_num_threads() if device.type == "cpu" and all_defined else 1
    mode = torch.inference_mode if all_defined else torch.no_grad
    if device.type == "cpu":
        share = max(len(source) // (BATCHES_PER_THREAD * n_threads), LEAST_EPISODES_PER_BATCH)
        batch_size = min(share, EPISODES_PER_BATCH)
    else:
        batch_size = min(EPISODES_PER_BATCH_ELSEWHERE, _at_once(task.data.features, source.shape))

    def answer_batch(start: int) -> Tensor:
        drawn = task.draw(start, start + batch_size)
        with mode(), torch.autocast(device.type, enabled=False):
            # (episode, image): queries of all ways, then support of all ways
            rows = torch.cat(
                [drawn[:, :, :n_query].flatten(1), drawn[:, :, n_query:].flatten(1)], dim=1
            ).to(device)
            for one in answerers:
                one.answer(rows, start)
        return drawn

    starts = range(0, len(source), batch_size)
    show = False if task.progress is None and len(source) < EPISODES_FOR_PROGRESS else task.progress
    bar = with_progress(starts, f"{len(source):,} episodes", show=show)
    batches = in_threads(answer_batch, starts, n_threads)
    return digest_of((drawn for _, drawn in zip(bar, batches, strict=True)), n_query)


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
        torch.set_num_threads(
            before
        )  # new threads, and the matrix library, take over a thread's setting


class _Direct:
    """Answers by calling classifiers with the features of the support and query images."""

    def __init__(self, data: FeatureSet, tallies: Sequence[Tally], shape: EpisodeShape) -> None:
        self.tallies, self.shape = tallies, shape
        self.prepared = (_prepared_exactly if tallies[0].is_defined else prepared)(
            data, tallies[0].spec
        )
        self.at_once = _at_once(self.prepared, shape)

    def answer(self, rows: Tensor, start: int) -> None:
        """Count the correct answers of a batch; `rows` (episode, image), the first is episode `start`."""
        for offset in range(0, len(rows), self.at_once):
            some = rows[offset : offset + self.at_once]
            features = self.prepared[some]
            for tally in self.tallies:
                own = (
                    features if tally.is_defined else features.clone()
                )  # a user's function may change them
                where = slice(start + offset, start + offset + len(some))
                tally.n_correct[where] = tally.count(*_support_and_query(own, self.shape))


class _Fast:
    """Answers for the built-in classifiers, which share the similarities."""

    def __init__(self, data: FeatureSet, tallies: Sequence[Tally], shape: EpisodeShape) -> None:
        self.data, self.tallies, self.shape, self.spec = data, tallies, shape, tallies[0].spec
        self.features = prepared(data, self.spec)
        # Float32 has its digits around zero. Moving features there changes no distance.
        mean, some = self.features.mean(0), self.features[:: max(1, len(self.features) // 256)]
        if mean.square().sum() > 0.1 * some.square().sum(1).mean():
            self.features = self.features - mean
        self.squares = torch.linalg.vector_norm(self.features, dim=1).square()
        self.shots_of_means = sorted(
            {tally.spec.n_shot for tally in tallies if tally.classify == CENTROID}
        )
        self.needs_images = any(tally.classify != CENTROID for tally in tallies)
        # Products round in units of the features' squared length, and normalised features in those
        # of 1. No squared distance is above 4 times that, and the definitions take what differs by
        # TIE of the largest for a tie.
        length = self.squares.max().sqrt()
        size = length * (length.clamp(min=1) if self.spec.normalise else length)
        self.tolerance = max(ROUNDING * torch.finfo(self.features.dtype).eps, 4 * TIE) * size

    def answer(self, rows: Tensor, start: int) -> None:
        similarities = episode_similarities(
            self.features,
            self.squares,
            rows,
            self.shape,
            self.shots_of_means,
            images=self.needs_images,
        )
        unsure = {}
        for tally in self.tallies:
            scores, gap = FAST[tally.classify](similarities, tally.spec.n_shot)  # type: ignore[index]
            tally.n_correct[start : start + len(rows)], unsure[tally] = count_correct(
                scores, gap, self.tolerance
            )
        at_once = _at_once(self.features, self.shape)
        for tally, is_unsure in unsure.items():
            episodes = is_unsure.nonzero()[
                :, 0
            ]  # the one moment in a batch when a GPU is waited for
            for part in range(0, len(episodes), at_once):
                some = episodes[part : part + at_once]
                features = _prepared_exactly(self.data, self.spec, rows[some])
                tally.n_correct[start + some] = tally.count(
                    *_support_and_query(features, self.shape)
                )


def count_correct(scores: Tensor, gap: Tensor | None, tolerance: Tensor) -> tuple[Tensor, Tensor]:
    """Return how many of each way's queries are answered correctly, (episode, way), and which episodes are unsure.

    `scores` (episode, way, query) and `gap` are those of a fast path. An episode is unsure,
    (episode,), if an answer depends on less than the tolerance.
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
    return prepare_features(
        data.features.detach(), centre=centre, normalise=spec.normalise
    ).contiguous()


def _prepared_exactly(data: FeatureSet, spec: EvaluationSpec, rows: Tensor | None = None) -> Tensor:
    """Return features prepared in float64: all, or those of `rows` (episode, image) as (episode, image, dim)."""
    given = data.features if rows is None else data.features[rows.flatten()]
    found = prepared(replace(data, features=given.double()), spec)
    return found if rows is None else found.view(*rows.shape, -1)


def _support_and_query(features: Tensor, shape: EpisodeShape) -> tuple[Tensor, Tensor]:
    """Take apart (episode, image, dim), the queries of all ways first."""
    n_queries = shape.n_way * shape.n_query
    return features[:, n_queries:].unflatten(1, (shape.n_way, shape.n_shot)), features[
        :, :n_queries
    ]


def _at_once(features: Tensor, shape: EpisodeShape) -> int:
    """Return how many episodes' features to gather at once."""
    room = GATHERED_BYTES_CPU if features.device.type == "cpu" else GATHERED_BYTES
    return max(1, room // (shape.batch_size * features.shape[1] * features.element_size()))
