"""Going through the episodes once, and counting every classifier's correct answers.

Episodes are drawn and answered in runs. On a CPU each thread takes the next run and does all of it, with operations
that use that one thread: threads that shared each small operation would wait for each other after every one.

The built-in classifiers answer as if their arithmetic were exact. In float32 two classes can be equally near to as many
digits as there are; such an episode, one in many, is answered again, in float64, from the features as they were given.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import torch
from torch import Tensor

from nearshot.episode_shape import EpisodeShape
from nearshot.errors import InputError
from nearshot.evaluation.classifiers import Classifier, FeatureClassifier
from nearshot.evaluation.episodes import Episodes, EpisodeSource, QuestionDigest
from nearshot.evaluation.features import prepare_features
from nearshot.evaluation.guards import ContentGuard
from nearshot.evaluation.similarity import FAST, Nearness, NearnessFinder, Scores
from nearshot.evaluation.ties import first_best
from nearshot.progress import with_progress

__all__ = ["Job", "Treated", "answer"]

# Drawing has a fixed cost, so runs are long; but there should be several for each thread.
EPISODES_PER_RUN, LEAST_EPISODES_PER_RUN, RUNS_PER_THREAD = 1024, 128, 4
EPISODES_PER_RUN_ELSEWHERE = 4096  # to fill a GPU
EPISODES_AT_ONCE_CPU = 256  # their scores stay in a core's cache
GATHERED_BYTES = 2**29
GATHERED_BYTES_EXACTLY = 2**25
EPISODES_FOR_PROGRESS = 50_000
# Rounding errors of nearness stay under a third of this many units in the last place of 1: see the tests.
ROUNDING = 16


@dataclass(frozen=True, eq=False)
class Job:
    """One accuracy to be: of which shots and classifier, and where its correct answers are counted."""

    n_shot: int
    name: str
    classify: FeatureClassifier
    n_correct: Tensor  # (episode, way)

    @classmethod
    def begin(
        cls, n_shot: int, name: str, classify: FeatureClassifier, source: EpisodeSource | Episodes, device: torch.device
    ) -> Job:
        """Return a job with nothing counted yet."""
        dtype = torch.int16 if source.shape.n_query < 2**15 else torch.int32  # there may be millions of them
        return cls(n_shot, name, classify, torch.zeros(len(source), source.shape.n_way, dtype=dtype, device=device))


@dataclass(frozen=True, eq=False)
class Treated:
    """Features, what is to be done to them, and the jobs that want them so."""

    features: Tensor  # (image, dim) as they were given
    centre: Tensor | None
    normalise: bool
    jobs: Sequence[Job]

    def prepared(self) -> Tensor:
        """Return the features centred and normalised."""
        return prepare_features(self.features, centre=self.centre, normalise=self.normalise).contiguous()

    def prepared_exactly(self, rows: Tensor | None = None) -> Tensor:
        """Return the features of all images, or of some, prepared in float64."""
        given = self.features if rows is None else self.features[rows]
        centre = None if self.centre is None else self.centre.double()
        return prepare_features(given.double(), centre=centre, normalise=self.normalise)


def answer(
    treated: Sequence[Treated], source: EpisodeSource | Episodes, content: Tensor | None, progress: bool | None
) -> str:
    """Go through the episodes once and count every job's correct answers; return the digest of the questions."""
    device = treated[0].features.device
    own = any(not isinstance(job.classify, Classifier) for group in treated for job in group.jobs)
    respondents = [respondent for group in treated for respondent in _respondents(group, source.shape)]
    # A function of the user's may not bear many threads, and may want gradients.
    n_threads = torch.get_num_threads() if device.type == "cpu" and not own else 1
    mode = torch.no_grad if own else torch.inference_mode
    run_length = _run_length(len(source), n_threads, device)

    def answer_run(start: int) -> Tensor:
        drawn = source.draw(start, min(start + run_length, len(source)))
        with mode(), torch.autocast(device.type, enabled=False):
            rows = _queries_then_support(drawn, source.shape.n_query).to(device)
            for respondent in respondents:
                respondent.answer(rows, start)
        return drawn

    digest, guard = QuestionDigest(), None if content is None else ContentGuard(content)
    starts = range(0, len(source), run_length)
    if progress is None and len(source) < EPISODES_FOR_PROGRESS:
        progress = False  # it takes about a second
    runs = in_threads(answer_run, with_progress(starts, f"{len(source):,} episodes", show=progress), n_threads)
    for start, drawn in zip(starts, runs, strict=True):
        digest.update(drawn, source.shape.n_query)
        if guard is not None:
            guard.check(drawn, source.shape.n_query, start)
    return digest.hexdigest()


def in_threads(work: Callable[[int], Tensor], starts: Iterable[int], n_threads: int) -> Iterator[Tensor]:
    """Yield the results of `work` in order, a few ahead, each computed by one of `n_threads` threads.

    >>> [int(square) for square in in_threads(lambda i: torch.tensor(i * i), range(5), n_threads=2)]
    [0, 1, 4, 9, 16]
    """
    if n_threads == 1:
        yield from map(work, starts)
        return
    before = torch.get_num_threads()
    pending: deque[Future[Tensor]] = deque()
    try:
        # A thread's own operations are to use that thread alone.
        with ThreadPoolExecutor(n_threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            for start in starts:
                pending.append(pool.submit(work, start))
                if len(pending) > 2 * n_threads:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
    finally:
        for future in pending:
            future.cancel()
        torch.set_num_threads(before)  # a thread's setting is what new threads, and the matrix library, start with


class _Fast:
    """Answers for the built-in classifiers, which share the similarities."""

    def __init__(self, group: Treated, jobs: Sequence[Job], prepared: Tensor, shape: EpisodeShape) -> None:
        self.group, self.jobs, self.shape = group, jobs, shape
        features = _around_zero(prepared)
        means = sorted({job.n_shot for job in jobs if _uses_means(job)})
        images_wanted = any(not _uses_means(job) for job in jobs)
        self.nearness = Nearness(features, shape, tuple(means), images_wanted)
        self.at_once = EPISODES_AT_ONCE_CPU
        if features.device.type != "cpu":
            self.at_once = _at_once(GATHERED_BYTES, features, shape)
        self.at_once_exactly = _at_once(GATHERED_BYTES_EXACTLY, features, shape)
        # Products round in units of the features' squared length, and normalised features in those of 1.
        length = self.nearness.squares.max().sqrt()
        size = length * (length.clamp(min=1) if group.normalise else length)
        self.tolerance = ROUNDING * torch.finfo(features.dtype).eps * size

    def answer(self, rows: Tensor, start: int) -> None:
        """Count the correct answers of a run of episodes; `rows` (episode, image), the first is episode `start`."""
        unsure: dict[Job, list[Tensor]] = {job: [] for job in self.jobs}
        finder = NearnessFinder(self.nearness, min(self.at_once, len(rows)))
        for offset in range(0, len(rows), self.at_once):
            some = rows[offset : offset + self.at_once]
            nearness = finder.of(some)
            for job in self.jobs:
                n_correct, is_unsure = count_correct(FAST[job.classify](nearness, job.n_shot), self.tolerance)
                job.n_correct[start + offset : start + offset + len(some)] = n_correct
                unsure[job].append(is_unsure)
        for job, masks in unsure.items():
            episodes = torch.cat(masks).nonzero()[:, 0]  # the one moment in a run when a GPU is waited for
            for part in range(0, len(episodes), self.at_once_exactly):
                some = episodes[part : part + self.at_once_exactly]
                job.n_correct[start + some] = self._count_exactly(job, rows[some]).to(job.n_correct.dtype)

    def _count_exactly(self, job: Job, rows: Tensor) -> Tensor:
        """Count the correct answers of episodes in float64."""
        prepared = self.group.prepared_exactly(rows.flatten())
        support, query = _split(prepared.view(*rows.shape, -1), self.shape)
        return _count(job.classify, job.classify(support[:, :, : job.n_shot], query), self.shape)


class _Direct:
    """Answers by calling classifiers with the features of the support and query images."""

    def __init__(self, jobs: Sequence[Job], prepared: Tensor, shape: EpisodeShape) -> None:
        self.jobs, self.prepared, self.shape = jobs, prepared, shape
        room = GATHERED_BYTES_EXACTLY if prepared.device.type == "cpu" else GATHERED_BYTES
        self.at_once = _at_once(room, prepared, shape)

    def answer(self, rows: Tensor, start: int) -> None:
        """Count the correct answers of a run of episodes; `rows` (episode, image), the first is episode `start`."""
        for offset in range(0, len(rows), self.at_once):
            some = rows[offset : offset + self.at_once]
            support, query = _split(self.prepared[some], self.shape)
            for job in self.jobs:
                scores = job.classify(support[:, :, : job.n_shot].clone(), query.clone())  # functions may change them
                _check_scores(scores, query, self.shape.n_way, job.name)
                job.n_correct[start + offset : start + offset + len(some)] = _count(job.classify, scores, self.shape)


def _respondents(group: Treated, shape: EpisodeShape) -> Iterator[_Fast | _Direct]:
    """Yield what answers the jobs: fast paths, definitions in float64, and the user's functions of features."""
    fast = [job for job in group.jobs if job.classify in FAST]
    defined = [job for job in group.jobs if isinstance(job.classify, Classifier) and job.classify not in FAST]
    own = [job for job in group.jobs if not isinstance(job.classify, Classifier)]
    if fast or own:
        prepared = group.prepared()
        if own:
            yield _Direct(own, prepared, shape)
        if fast:
            yield _Fast(group, fast, prepared, shape)
    if defined:
        yield _Direct(defined, group.prepared_exactly(), shape)


def _uses_means(job: Job) -> bool:
    return isinstance(job.classify, Classifier) and job.classify.prototypes


def count_correct(scores: Scores, tolerance: Tensor) -> tuple[Tensor, Tensor]:
    """Return how many of each way's queries are answered correctly, (episode, way), and which episodes are unsure.

    Unsure is one where an answer hangs on less than the tolerance; (episode,).

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


def _count(classify: FeatureClassifier, scores: Tensor, shape: EpisodeShape) -> Tensor:
    """Count correct answers, (episode, way), by scores (episode, query, way); of ties, the first is the answer."""
    # Scores of a definition have rounding errors; those of a user's function are compared as they are.
    answers = first_best(scores) if isinstance(classify, Classifier) else scores.max(2).indices
    truth = torch.arange(shape.n_way, device=scores.device).repeat_interleave(shape.n_query)  # (query,)
    return (answers == truth).view(-1, shape.n_way, shape.n_query).sum(2, dtype=torch.int32)


def _around_zero(features: Tensor) -> Tensor:
    """Move features to around zero, where float32 has its digits, unless they are there; no distance changes."""
    mean, some = features.mean(0), features[:: max(1, len(features) // 256)]
    far = mean.square().sum() > 0.1 * some.square().sum(1).mean()
    return features - mean if far else features


def _queries_then_support(drawn: Tensor, n_query: int) -> Tensor:
    """From (episode, way, query + shot) to (episode, image): queries of all ways, then support of all ways."""
    return torch.cat([drawn[:, :, :n_query].flatten(1), drawn[:, :, n_query:].flatten(1)], dim=1)


def _split(gathered: Tensor, shape: EpisodeShape) -> tuple[Tensor, Tensor]:
    """From (episode, image, dim) to support (episode, way, shot, dim) and query (episode, query, dim)."""
    n_queries = shape.n_way * shape.n_query
    return gathered[:, n_queries:].unflatten(1, (shape.n_way, shape.n_shot)), gathered[:, :n_queries]


def _run_length(n_episodes: int, n_threads: int, device: torch.device) -> int:
    if device.type != "cpu":
        return EPISODES_PER_RUN_ELSEWHERE
    share = n_episodes // (RUNS_PER_THREAD * n_threads)
    return min(max(share, LEAST_EPISODES_PER_RUN), EPISODES_PER_RUN)


def _at_once(room: int, features: Tensor, shape: EpisodeShape) -> int:
    """Return how many episodes' features there is room for, in bytes."""
    return max(1, room // (shape.batch_size * features.shape[1] * features.element_size()))


def _check_scores(scores: Tensor, query: Tensor, n_way: int, classifier: str) -> None:
    expected = (*query.shape[:2], n_way)
    if not isinstance(scores, Tensor) or scores.shape != expected:
        came = tuple(scores.shape) if isinstance(scores, Tensor) else type(scores).__name__
        raise InputError(
            f"Classifier {classifier!r} returned {came}; expected scores {expected}, (episode, query, way)."
        )
    if scores.isnan().any():
        raise InputError(f"Classifier {classifier!r} returned scores that are NaN.")
