"""Accuracies with their uncertainty and their protocol, pooled over seeds and compared in pairs."""

import base64
import dataclasses
import math
import statistics
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self, TypeVar

import numpy as np
import torch
from torch import Tensor

from nearshot.checks import convert_numpy_fields
from nearshot.errors import InputError, LeakError
from nearshot.text import counted

NORMAL_95 = 1.96  # as the paper has it
Key = TypeVar("Key")


@dataclass(frozen=True)
class Protocol:
    """How an accuracy was measured. Two accuracies are comparable if their protocols agree.

    Attributes:
        n_way, n_shot, n_query, n_episodes: as in `EvaluationSpec`.
        seed: the seed of the episodes; None if other code drew them.
        episodes: a hash of the query images of every episode.
        classifier: the classifier's name.
        centred, normalised: whether the training set's mean feature was subtracted, and features
            were divided by their length; None if other code computed the features.
        adapted: how the network or the features were adapted to each support set; None if they were
            not.
        inductive: whether each query was classified on its own, without looking at the other
            queries.
        split: the name of the split, such as "val" or "test".
        fingerprint: the fingerprint of the dataset split.
        classes_left_out: how many classes were skipped for having too few images.
    """

    n_way: int
    n_shot: int
    n_query: int
    n_episodes: int
    seed: int | None
    episodes: str
    classifier: str
    centred: bool | None
    normalised: bool | None
    adapted: str | None = None
    inductive: bool = True
    split: str | None = None
    fingerprint: str | None = None
    classes_left_out: int = 0

    def __post_init__(self) -> None:
        convert_numpy_fields(self)

    def __str__(self) -> str:
        treated = [
            word
            for word, done in (("centred", self.centred), ("normalised", self.normalised))
            if done
        ]
        features = " and ".join(treated) or ("raw" if self.centred is not None else "")
        skipped = counted(self.classes_left_out, "class", "classes")
        parts = (
            f"{self.n_way}-way {self.n_shot}-shot, {self.n_query} queries a class, {self.n_episodes:,} episodes",
            "episodes from elsewhere" if self.seed is None else f"seed {self.seed}",
            self.classifier,
            f"{features} features" if features else "features of other code",
            f"adapted: {self.adapted}" if self.adapted else "not adapted",
            "inductive" if self.inductive else "transductive",
            f"{self.split} split" if self.split else "",
            f"{skipped} with too few images left out" if self.classes_left_out else "",
        )
        return ", ".join(part for part in parts if part)


@dataclass(frozen=True, eq=False)
class Accuracy:
    """An accuracy in per cent, over episodes; `per_episode` (episode,) has that of each."""

    per_episode: Tensor
    protocol: Protocol

    @classmethod
    def of_counts(cls, n_correct: Tensor, protocol: Protocol) -> Self:
        """Return the accuracy for the number of correct answers in each episode, (episode,) whole numbers."""
        in_percent = (
            n_correct.cpu()
            .to(torch.float64, copy=True)
            .mul_(100)
            .div_(protocol.n_way * protocol.n_query)
        )
        return cls(in_percent, protocol)

    @property
    def mean(self) -> float:
        """The mean over episodes, in per cent."""
        return float(self.per_episode.double().mean())

    @property
    def interval95(self) -> float:
        """Half the width of the 95 % interval over episodes, 1.96 σ / √N, in per cent. NaN for a single episode."""
        return interval(self.per_episode)

    def __str__(self) -> str:
        return with_interval(self.mean, self.interval95)

    def __repr__(self) -> str:
        return f"Accuracy({self} %; {self.protocol})"

    def as_dict(self) -> dict[str, Any]:
        """Return it as JSON can hold it, with the correct answers of each episode as compressed text."""
        n_questions = self.protocol.n_way * self.protocol.n_query
        n_correct = (self.per_episode.double() * n_questions / 100).round().numpy()
        n_correct = n_correct.astype("<u1" if n_questions < 256 else "<u4")  # most are small
        return {
            "mean": self.mean,
            "interval95": None if len(self.per_episode) == 1 else self.interval95,
            "protocol": dataclasses.asdict(self.protocol),
            "n_correct": base64.b64encode(zlib.compress(n_correct.tobytes(), 9)).decode(),
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Return the accuracy of which `as_dict` gave the values."""
        protocol = Protocol(**values["protocol"])
        content = zlib.decompress(base64.b64decode(values["n_correct"]))
        # Files of earlier versions have four bytes for every count.
        n_correct = np.frombuffer(content, "<u1" if len(content) == protocol.n_episodes else "<u4")
        return cls.of_counts(torch.from_numpy(n_correct.astype(np.int64)), protocol)


@dataclass(frozen=True)
class PooledAccuracy:
    """The accuracy of one configuration trained with several seeds, in per cent.

    Attributes:
        mean: the mean over all seeds' episodes.
        interval95: half the 95 % interval over episodes, of the mean of these models. If the models
            answered the same episodes, an episode counts once, with the mean of their accuracies.
        paper95: the paper's interval, 1.96 σ / √N over all seeds' episodes, as if they were
            independent. For models on the same episodes it is too small.
        between_seeds95: half the 95 % interval of the mean over seeds (Student's t), which covers
            the seed variance. NaN for a single seed.
        per_seed: the mean of each seed.
        protocol: how each was measured.
    """

    mean: float
    interval95: float
    paper95: float
    between_seeds95: float
    per_seed: tuple[float, ...]
    protocol: Protocol = field(repr=False)

    def __str__(self) -> str:
        seeds = self.about_seeds()
        return f"{self.mean:.2f} ± {self.interval95:.2f}{f' ({seeds})' if seeds else ''}"

    def about_seeds(self, n_asked: int | None = None) -> str:
        """Return the seed variance, and the number of seeds if `n_asked` is another; empty for one of one seed.

        Of two seeds, both means are shown: their interval is thirteen times as wide as their
            difference.
        """
        n_seeds = len(self.per_seed)
        complete = n_asked in (None, n_seeds)
        number = f"{n_seeds} seeds" if complete else f"{n_seeds} of {n_asked} seeds"
        if n_seeds == 2:
            return f"{number}: {', '.join(f'{mean:.2f}' for mean in self.per_seed)}"
        between = f"± {self.between_seeds95:.2f} between seeds" if n_seeds > 1 else ""
        return "; ".join(part for part in (between, "" if complete else number) if part)


@dataclass(frozen=True)
class Comparison:
    """One model minus another on the same episodes, in per cent.

    Attributes:
        difference: the mean paired difference; positive if the first is better.
        interval95: half its 95 % interval over episodes, far smaller than the intervals of the two
            accuracies.
        wins, ties, losses: the shares of episodes in which the first is strictly better, equal and
            worse.
    """

    difference: float
    interval95: float
    wins: float
    ties: float
    losses: float

    def __str__(self) -> str:
        return (
            f"{self.difference:+.2f} ± {self.interval95:.2f} "
            f"(wins {self.wins:.0f} %, ties {self.ties:.0f} %, loses {self.losses:.0f} % of the episodes)"
        )


@dataclass(frozen=True)
class Difference:
    """The mean of some seeds' accuracies minus that of others, in points, with half its interval."""

    mean: float
    half_width: float
    n_first: int
    n_second: int

    def __str__(self) -> str:
        return f"{self.mean:+.2f} ± {self.half_width:.2f}"


def welch(
    firsts: Sequence[float], seconds: Sequence[float], *, confidence: float = 0.95
) -> Difference:
    """Return the difference of two runs, each with at least two seeds, with Welch's interval.

    The seeds are not paired: the same seed of another method draws other batches.

    >>> print(welch([62.0, 62.5, 63.0], [60.0, 61.0]))
    +2.00 ± 2.99
    """
    _check_seeds(firsts, seconds)
    n_first = len(firsts)
    n_second = len(seconds)
    first_error = statistics.variance(firsts) / n_first  # squared
    second_error = statistics.variance(seconds) / n_second
    error = first_error + second_error
    half_width = 0.0
    if error > 0:
        parts = first_error**2 / (n_first - 1) + second_error**2 / (n_second - 1)
        half_width = math.sqrt(error) * _student(error**2 / parts, confidence)
    mean = statistics.fmean(firsts) - statistics.fmean(seconds)
    return Difference(mean, half_width, n_first, n_second)


def paired(
    firsts: Sequence[float], seconds: Sequence[float], *, confidence: float = 0.95
) -> Difference:
    """Return the difference of one run measured in two ways, with Student's interval over seeds.

    Both sides of a pair have the same weights, so what they share cancels. At least two seeds.

    >>> print(paired([62.0, 64.0, 66.0], [61.0, 62.5, 65.0]))
    +1.17 ± 0.72
    """
    _check_seeds(firsts, seconds)
    n_seeds = len(firsts)
    differences = [first - second for first, second in zip(firsts, seconds, strict=True)]
    error = statistics.stdev(differences) / math.sqrt(n_seeds)
    half_width = error * _student(n_seeds - 1, confidence)
    return Difference(statistics.fmean(differences), half_width, n_seeds, n_seeds)


def _check_seeds(firsts: Sequence[float], seconds: Sequence[float]) -> None:
    if len(firsts) < 2 or len(seconds) < 2:
        raise InputError(
            "firsts and seconds must have the accuracies of at least 2 seeds each (got "
            f"{len(firsts)} and {len(seconds)})."
        )


def _student(degrees_of_freedom: float, confidence: float) -> float:
    """Return how many standard errors wide half an interval of Student's t is."""
    import scipy.stats  # noqa: PLC0415 (takes most of a second)

    return float(scipy.stats.t.isf((1 - confidence) / 2, degrees_of_freedom))


def pool_seeds(accuracies: Sequence[Accuracy]) -> PooledAccuracy:
    """Pool the accuracies of models that differ only in their training seed (Section 3.1).

    The models must have been measured on the same episodes, or each on episodes of its own.
    """
    _check_same_protocol(
        [accuracy.protocol for accuracy in accuracies], "pooled", episodes="", seed=None
    )
    means = torch.tensor([accuracy.mean for accuracy in accuracies], dtype=torch.float64)
    together = torch.cat([accuracy.per_episode.double() for accuracy in accuracies])
    n_seeds = len(means)
    n_different = len({accuracy.protocol.episodes for accuracy in accuracies})
    if n_different not in (1, n_seeds):
        raise InputError(
            f"{n_seeds} models must have the same episodes, or each its own (got {n_different} sets)."
        )
    independent = together if n_different == n_seeds else together.view(n_seeds, -1).mean(0)
    between = math.nan
    if n_seeds > 1:
        between = _student(n_seeds - 1, 0.95) * float(means.std()) / math.sqrt(n_seeds)
    intervals = (interval(independent), interval(together), between)
    return PooledAccuracy(
        float(together.mean()), *intervals, tuple(means.tolist()), accuracies[0].protocol
    )


def compare(first: Accuracy, second: Accuracy) -> Comparison:
    """Compare two accuracies episode by episode; they must be of the same episodes and images."""
    for name in ("episodes", "split", "fingerprint"):
        here, there = getattr(first.protocol, name), getattr(second.protocol, name)
        if here != there:
            raise InputError(
                f"The two accuracies are of different {name} and cannot be compared in pairs ({here} and {there}): "
                f"({first.protocol}) and ({second.protocol}). Use the same split, shape, number and seed."
            )
    differences = first.per_episode.double() - second.per_episode.double()
    shares = [
        100 * float(where.double().mean())
        for where in (differences > 0, differences == 0, differences < 0)
    ]
    return Comparison(float(differences.mean()), interval(differences), *shares)


def select_best(candidates: Mapping[Key, Accuracy]) -> Key:
    """Return the key of the highest mean accuracy; of equals, the first.

    Accuracies are given by the names or epochs of models, with their split, as in
    `evaluate_features(…, split="val")`. Accuracies on a test split are refused: a model that is
    selected by them has no honest test accuracy.
    """
    for accuracy in candidates.values():
        split = accuracy.protocol.split
        if split is None:
            raise InputError(
                "split must be known to select a model, such as evaluate_features(…, split='val')."
            )
        if split.lower() == "test":
            raise LeakError(
                "Models must not be selected on the test split. Use the validation split."
            )
    _check_same_protocol([accuracy.protocol for accuracy in candidates.values()], "selected from")
    return max(candidates, key=lambda key: candidates[key].mean)


def interval(values: Tensor) -> float:
    """Return half the width of the 95 % interval of a mean, 1.96 σ / √N; NaN for a single value."""
    return (
        math.nan
        if len(values) < 2
        else NORMAL_95 * float(values.double().std()) / math.sqrt(len(values))
    )


def with_interval(mean: float, half: float) -> str:
    """Return a mean with its interval, where there is one."""
    return f"{mean:.2f}" + ("" if math.isnan(half) else f" ± {half:.2f}")


def _check_same_protocol(protocols: Sequence[Protocol], what: str, **but: Any) -> None:
    first, *others = (replace(protocol, **but) for protocol in protocols)
    for other in others:
        if other != first:
            raise InputError(
                f"Accuracies of different protocols cannot be {what} together: ({first}) and ({other})."
            )
