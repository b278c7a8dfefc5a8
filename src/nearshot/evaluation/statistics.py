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

from nearshot.checks import to_python
from nearshot.errors import InputError, LeakError
from nearshot.text import counted

NORMAL_95 = 1.96  # as the paper has it
ONE_BYTE = "<u1"  # how the correct answers of an episode are stored
FOUR_BYTES = "<u4"
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
        n_skipped_classes: how many classes were skipped for having too few images.
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
    n_skipped_classes: int = 0

    def __str__(self) -> str:
        parts = [
            f"{self.n_way}-way {self.n_shot}-shot",
            f"{self.n_query} queries a class",
            f"{self.n_episodes:,} episodes",
            "episodes from elsewhere" if self.seed is None else f"seed {self.seed}",
            self.classifier,
            self.features,
            f"adapted: {self.adapted}" if self.adapted else "not adapted",
            "inductive" if self.inductive else "transductive",
        ]
        if self.split:
            parts.append(f"{self.split} split")
        if self.n_skipped_classes:
            skipped = counted(self.n_skipped_classes, "class", "classes")
            parts.append(f"{skipped} with too few images skipped")
        return ", ".join(parts)

    @property
    def features(self) -> str:
        """How the features were treated, in words."""
        if self.centred is None:
            return "features of other code"
        if self.centred and self.normalised:
            return "centred and normalised features"
        if self.centred:
            return "centred features"
        return "normalised features" if self.normalised else "raw features"

    def as_dict(self) -> dict[str, Any]:
        """Return it as JSON can hold it; NumPy's numbers become Python's."""
        return {name: to_python(value) for name, value in dataclasses.asdict(self).items()}


@dataclass(frozen=True, eq=False)
class Accuracy:
    """An accuracy in per cent, over episodes; `per_episode` (episode,) has that of each."""

    per_episode: Tensor
    protocol: Protocol

    @classmethod
    def of_counts(cls, n_correct: Tensor, protocol: Protocol) -> Self:
        """Return the accuracy for the correct answers in each episode, (episode,) integers."""
        n_questions = protocol.n_way * protocol.n_query
        per_episode = n_correct.cpu().to(torch.float64, copy=True)
        # In place: for very many episodes, more copies would need much memory.
        return cls(per_episode.mul_(100).div_(n_questions), protocol)

    @property
    def mean(self) -> float:
        """The mean over episodes, in per cent."""
        return float(self.per_episode.double().mean())

    @property
    def interval95(self) -> float:
        """Half the width of the 95 % interval over episodes, 1.96 σ / √N, in per cent.

        NaN for a single episode.
        """
        return interval(self.per_episode)

    def __str__(self) -> str:
        return with_interval(self.mean, self.interval95)

    def __repr__(self) -> str:
        return f"Accuracy({self} %; {self.protocol})"

    def as_dict(self) -> dict[str, Any]:
        """Return it as JSON can hold it; the correct answers are compressed."""
        n_questions = self.protocol.n_way * self.protocol.n_query
        n_correct = (self.per_episode.double() * n_questions / 100).round().numpy()
        count_type = ONE_BYTE if n_questions < 256 else FOUR_BYTES
        content = zlib.compress(n_correct.astype(count_type).tobytes(), 9)
        return {
            "mean": self.mean,
            "interval95": None if len(self.per_episode) == 1 else self.interval95,
            "protocol": self.protocol.as_dict(),
            "n_correct": base64.b64encode(content).decode(),
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Inverse of `as_dict`."""
        protocol = Protocol(**values["protocol"])
        content = zlib.decompress(base64.b64decode(values["n_correct"]))
        count_type = ONE_BYTE if len(content) == protocol.n_episodes else FOUR_BYTES
        n_correct = np.frombuffer(content, count_type).astype(np.int64)
        return cls.of_counts(torch.from_numpy(n_correct), protocol)


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
        """The mean and its interval over episodes; then the seeds, if there are several.

        Of two seeds, both means are shown: their interval would be thirteen times as wide as they
        differ.
        """
        text = with_interval(self.mean, self.interval95)
        if len(self.per_seed) == 1:
            return text
        if len(self.per_seed) == 2:
            first, second = self.per_seed
            return f"{text} (2 seeds: {first:.2f}, {second:.2f})"
        return f"{text} (± {self.between_seeds95:.2f} between seeds)"


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
            f"{self.difference:+.2f} ± {self.interval95:.2f} (wins {self.wins:.0f} %, "
            f"ties {self.ties:.0f} %, loses {self.losses:.0f} % of the episodes)"
        )


@dataclass(frozen=True)
class Difference:
    """The mean of some seeds' accuracies minus that of others, in points.

    Attributes:
        mean: the difference.
        half_width: half the width of its interval.
        n_first: the number of seeds on the first side.
        n_second: the number of seeds on the second side.
    """

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
        half_width = math.sqrt(error) * student(error**2 / parts, confidence)
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
    half_width = error * student(n_seeds - 1, confidence)
    return Difference(statistics.fmean(differences), half_width, n_seeds, n_seeds)


def _check_seeds(firsts: Sequence[float], seconds: Sequence[float]) -> None:
    if len(firsts) < 2 or len(seconds) < 2:
        raise InputError(
            "firsts and seconds must have the accuracies of at least 2 seeds each (got "
            f"{len(firsts)} and {len(seconds)})."
        )


def student(degrees_of_freedom: float, confidence: float) -> float:
    """Return how many standard errors wide half an interval of Student's t is."""
    import scipy.stats  # noqa: PLC0415 (takes most of a second)

    return float(scipy.stats.t.isf((1 - confidence) / 2, degrees_of_freedom))


def pool_seeds(accuracies: Sequence[Accuracy]) -> PooledAccuracy:
    """Pool the accuracies of models that differ only in their training seed (Section 3.1).

    The models must have been measured on the same episodes, or each on episodes of its own.
    """
    protocols = [replace(accuracy.protocol, episodes="", seed=None) for accuracy in accuracies]
    _check_same_protocol(protocols, "pooled")
    n_seeds = len(accuracies)
    n_different = len({accuracy.protocol.episodes for accuracy in accuracies})
    if n_different not in (1, n_seeds):
        raise InputError(
            f"{n_seeds} models must have the same episodes, or each its own (got {n_different} "
            "sets)."
        )
    per_seed = [accuracy.mean for accuracy in accuracies]
    together = torch.cat([accuracy.per_episode.double() for accuracy in accuracies])
    # Of episodes that all models answered, each counts once.
    independent = together if n_different == n_seeds else together.view(n_seeds, -1).mean(0)
    between_seeds = math.nan
    if n_seeds > 1:
        error = statistics.stdev(per_seed) / math.sqrt(n_seeds)
        between_seeds = student(n_seeds - 1, 0.95) * error
    return PooledAccuracy(
        mean=float(together.mean()),
        interval95=interval(independent),
        paper95=interval(together),
        between_seeds95=between_seeds,
        per_seed=tuple(per_seed),
        protocol=accuracies[0].protocol,
    )


def compare(first: Accuracy, second: Accuracy) -> Comparison:
    """Compare two accuracies episode by episode; they must be of the same episodes and images."""
    _check_same_episodes(first, second)
    return _comparison(first.per_episode.double() - second.per_episode.double())


def _check_same_episodes(first: Accuracy, second: Accuracy) -> None:
    for name in ("episodes", "split", "fingerprint"):
        value = getattr(first.protocol, name)
        other = getattr(second.protocol, name)
        if value != other:
            raise InputError(
                f"The two accuracies are of different {name} and cannot be compared in pairs "
                f"({value} and {other}): ({first.protocol}) and ({second.protocol}). Use the same "
                "split, shape, number and seed."
            )


def compare_seeds(firsts: Sequence[Accuracy], seconds: Sequence[Accuracy]) -> Comparison:
    """Compare the means over seeds of two recipes, episode by episode.

    All must be of the same episodes and images.
    """
    for accuracy in (*firsts, *seconds):
        _check_same_episodes(firsts[0], accuracy)
    first = torch.stack([accuracy.per_episode.double() for accuracy in firsts]).mean(0)
    second = torch.stack([accuracy.per_episode.double() for accuracy in seconds]).mean(0)
    return _comparison(first - second)


def _comparison(differences: Tensor) -> Comparison:
    return Comparison(
        difference=float(differences.mean()),
        interval95=interval(differences),
        wins=_percent(differences > 0),
        ties=_percent(differences == 0),
        losses=_percent(differences < 0),
    )


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
    if len(values) < 2:
        return math.nan
    return NORMAL_95 * float(values.double().std()) / math.sqrt(len(values))


def with_interval(mean: float, half_width: float) -> str:
    """Return a mean with its interval; without, if that is NaN."""
    return f"{mean:.2f}" if math.isnan(half_width) else f"{mean:.2f} ± {half_width:.2f}"


def _percent(is_true: Tensor) -> float:
    return 100 * float(is_true.double().mean())


def _check_same_protocol(protocols: Sequence[Protocol], verb: str) -> None:
    for protocol in protocols[1:]:
        if protocol != protocols[0]:
            raise InputError(
                f"Accuracies of different protocols cannot be {verb} together: ({protocols[0]}) "
                f"and ({protocol})."
            )
