"""Accuracies with their uncertainty and their protocol, pooled over seeds and compared in pairs."""

from __future__ import annotations

import base64
import dataclasses
import math
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from nearshot.checks import convert_numpy_fields
from nearshot.errors import FileFormatError, InputError, LeakError

__all__ = [
    "Accuracy",
    "Comparison",
    "PooledAccuracy",
    "Protocol",
    "compare",
    "interval",
    "pool_seeds",
    "select_best",
    "with_interval",
]

NORMAL_95 = 1.96  # as the paper has it
Key = TypeVar("Key")


@dataclass(frozen=True)
class Protocol:
    """How an accuracy was measured: everything that must agree for two numbers to be comparable.

    Attributes:
        n_way: classes in an episode.
        n_shot: support images of each class.
        n_query: query images of each class.
        n_episodes: how many episodes.
        seed: the seed that they were drawn with; None for episodes from elsewhere.
        episodes: a hash of the questions, that is of the query images of every episode.
        classifier: the classifier's name.
        centred: whether the training set's mean feature was subtracted; None where other code did the work.
        normalised: whether features were divided by their length; None where other code did the work.
        adapted: how the network or the features were adapted to each support set; None if they were not.
        inductive: whether each query was classified on its own, without looking at the other queries.
        split: which split was measured, such as "val" or "test".
        fingerprint: the fingerprint of the dataset split.
        classes_left_out: how many classes had too few images and were left out.
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
        treatment = " and ".join(
            word for word, done in (("centred", self.centred), ("normalised", self.normalised)) if done
        )
        raw = "raw features" if self.centred is not None else "features of other code"
        class_or_classes = "class" if self.classes_left_out == 1 else "classes"
        left_out = f"{self.classes_left_out} {class_or_classes} with too few images left out"
        parts = [
            f"{self.n_way}-way {self.n_shot}-shot, {self.n_query} queries a class, {self.n_episodes:,} episodes",
            "episodes from elsewhere" if self.seed is None else f"seed {self.seed}",
            self.classifier,
            f"{treatment} features" if treatment else raw,
            f"adapted: {self.adapted}" if self.adapted else "not adapted",
            "inductive" if self.inductive else "transductive",
        ]
        parts += [f"{self.split} split"] if self.split else []
        return ", ".join(parts + ([left_out] if self.classes_left_out else []))


@dataclass(frozen=True, eq=False)
class Accuracy:
    """An accuracy in per cent, over episodes.

    Attributes:
        per_episode: (episode,) the accuracy of each episode, in per cent.
        protocol: how it was measured.
    """

    per_episode: Tensor
    protocol: Protocol

    @classmethod
    def of_counts(cls, n_correct: Tensor, protocol: Protocol) -> Accuracy:
        """Return the accuracy for the number of correct answers in each episode, (episode,) whole numbers."""
        in_percent = n_correct.cpu().to(torch.float64, copy=True).mul_(100).div_(protocol.n_way * protocol.n_query)
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
        """Return all of it as JSON can hold it; the correct answers of each episode as compressed text.

        >>> protocol = Protocol(5, 1, 15, 2, 0, "", "centroid", True, True)
        >>> accuracy = Accuracy.of_counts(torch.tensor([60, 45]), protocol)
        >>> Accuracy.from_dict(accuracy.as_dict()).per_episode
        tensor([80., 60.], dtype=torch.float64)
        """
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
    def from_dict(cls, values: Mapping[str, Any]) -> Accuracy:
        """Return the accuracy of which `as_dict` gave the values."""
        try:
            protocol = Protocol(**values["protocol"])
            content = zlib.decompress(base64.b64decode(values["n_correct"]))
            # Files of earlier versions have four bytes for every count.
            n_correct = np.frombuffer(content, "<u1" if len(content) == protocol.n_episodes else "<u4")
            if len(n_correct) != protocol.n_episodes:
                raise ValueError(f"it has {len(n_correct)} of {protocol.n_episodes} episodes")  # noqa: TRY301
        except (KeyError, TypeError, ValueError, zlib.error) as error:
            raise FileFormatError(f"This is not a saved accuracy, or it is damaged: {error}.") from error
        return cls.of_counts(torch.from_numpy(n_correct.astype(np.int64)), protocol)


@dataclass(frozen=True)
class PooledAccuracy:
    """The accuracy of one configuration trained with several seeds, in per cent.

    Attributes:
        mean: the mean over all seeds' episodes.
        interval95: half the 95 % interval over episodes: how well the mean of these very models is known. Where the
            models answered the same episodes, an episode counts once, with the mean of their accuracies.
        paper95: the same as the paper has it, 1.96 σ / √N over all seeds' episodes, as if they were independent. For
            models on the same episodes it is too small.
        between_seeds95: half the 95 % interval of the mean over seeds (Student's t): how well the mean of other models,
            trained the same way with other seeds, is known. NaN for a single seed.
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
        told = self.about_seeds()
        return f"{self.mean:.2f} ± {self.interval95:.2f}{f' ({told})' if told else ''}"

    def about_seeds(self, n_asked: int | None = None) -> str:
        """Say how much seeds differ, and how many there are where more were asked for; nothing where it is one of one.

        Two are told as they are: the interval of their mean is thirteen times as wide as they differ, and says little.
        """
        n_seeds = len(self.per_seed)
        n_seeds_told = f"{n_seeds} seeds" if n_asked in (None, n_seeds) else f"{n_seeds} of {n_asked} seeds"
        if n_seeds == 2:
            return f"{n_seeds_told}: {', '.join(f'{mean:.2f}' for mean in self.per_seed)}"
        between = f"± {self.between_seeds95:.2f} between seeds" if n_seeds > 1 else ""
        missing = "" if n_asked in (None, n_seeds) else n_seeds_told
        return "; ".join(part for part in (between, missing) if part)


@dataclass(frozen=True)
class Comparison:
    """One model minus another on the same episodes, in per cent.

    Attributes:
        difference: the mean difference of the accuracies; positive if the first is better.
        interval95: half its 95 % interval over episodes. Sharing episodes makes it far smaller than the intervals of
            the two accuracies.
        wins: the share of episodes in which the first is strictly better.
        ties: the share of episodes in which they are equal.
        losses: the share of episodes in which the second is strictly better.
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


def pool_seeds(accuracies: Sequence[Accuracy]) -> PooledAccuracy:
    """Pool the accuracies of models that differ only in their training seed.

    All episodes are taken together, as in the paper (Section 3.1), and the interval between seeds is given beside it.
    The models must have been measured on the same episodes, or each on episodes of its own.
    """
    if not accuracies:
        raise InputError("There is no accuracy to pool.")
    _check_same_protocol([accuracy.protocol for accuracy in accuracies], "pooled", but=("episodes", "seed"))
    means = torch.tensor([accuracy.mean for accuracy in accuracies], dtype=torch.float64)
    together = torch.cat([accuracy.per_episode.double() for accuracy in accuracies])
    n_seeds = len(means)
    n_different = len({accuracy.protocol.episodes for accuracy in accuracies})
    if n_different not in (1, n_seeds):
        raise InputError(
            f"{n_seeds} models were measured on {n_different} different sets of episodes. Measure all on the same, or "
            "each on its own."
        )
    independent = together if n_different == n_seeds else together.view(n_seeds, -1).mean(0)
    between = math.nan
    if n_seeds > 1:
        import scipy.stats  # noqa: PLC0415 (takes most of a second)

        between = float(scipy.stats.t.ppf(0.975, n_seeds - 1)) * float(means.std()) / math.sqrt(n_seeds)
    return PooledAccuracy(
        mean=float(together.mean()),
        interval95=interval(independent),
        paper95=interval(together),
        between_seeds95=between,
        per_seed=tuple(means.tolist()),
        protocol=accuracies[0].protocol,
    )


def compare(first: Accuracy, second: Accuracy) -> Comparison:
    """Compare two accuracies episode by episode; they must be of the same questions about the same images."""
    for name in ("episodes", "split", "fingerprint"):
        here, there = getattr(first.protocol, name), getattr(second.protocol, name)
        if here != there:
            raise InputError(
                f"The two accuracies are of different {name} and cannot be compared in pairs ({here} and {there}): "
                f"({first.protocol}) and ({second.protocol}). Use the same split, shape, number and seed."
            )
    differences = first.per_episode.double() - second.per_episode.double()
    return Comparison(
        difference=float(differences.mean()),
        interval95=interval(differences),
        wins=100 * float((differences > 0).double().mean()),
        ties=100 * float((differences == 0).double().mean()),
        losses=100 * float((differences < 0).double().mean()),
    )


def select_best(candidates: Mapping[Key, Accuracy]) -> Key:
    """Return the key of the highest mean accuracy; of equals, the first. Accuracies on a test split are refused.

    Accuracies are given by a name of each model, or its epoch, and say that they are of the validation split, as with
    `evaluate_features(…, split="val")`. To choose a model by its test accuracy is to report a number that no new data
    will confirm.
    """
    if not isinstance(candidates, Mapping):
        raise InputError(
            "To select, accuracies need names, such as {'first': …, 'second': …}; this is a "
            f"{type(candidates).__name__}."
        )
    if not candidates:
        raise InputError("There is no accuracy to select from.")
    for accuracy in candidates.values():
        split = accuracy.protocol.split
        if split is None:
            raise InputError("To select a model, its accuracy must say of which split it is, such as split='val'.")
        if split.lower() == "test":
            raise LeakError("Models must not be selected on the test split. Use the validation split.")
    _check_same_protocol([accuracy.protocol for accuracy in candidates.values()], "selected from", but=())
    return max(candidates, key=lambda key: candidates[key].mean)


def interval(values: Tensor) -> float:
    """Return half the width of the 95 % interval of a mean, 1.96 σ / √N; NaN for a single value."""
    if len(values) < 2:
        return math.nan
    return NORMAL_95 * float(values.double().std()) / math.sqrt(len(values))


def with_interval(mean: float, half: float) -> str:
    """Return a mean with its interval, where there is one.

    >>> with_interval(61.5, 0.25), with_interval(61.5, math.nan)
    ('61.50 ± 0.25', '61.50')
    """
    return f"{mean:.2f}" + ("" if math.isnan(half) else f" ± {half:.2f}")


def _check_same_protocol(protocols: Sequence[Protocol], what: str, but: tuple[str, ...]) -> None:
    blank = {"episodes": "", "seed": None}
    first, *others = (replace(protocol, **{name: blank[name] for name in but}) for protocol in protocols)  # type: ignore[arg-type]
    for other in others:
        if other != first:
            raise InputError(f"Accuracies of different protocols cannot be {what} together: ({first}) and ({other}).")
