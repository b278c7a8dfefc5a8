"""The paper's statements as checks on what has been run: confirmed, contradicted, or not yet run.

A difference counts if its 95 % interval leaves zero out: over episodes, paired, for a single training seed, and between
training seeds where there are several. "No difference" is confirmed if the interval lies within a point of zero. Where
neither a statement nor its opposite is more than chance, it is undecided.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal, NamedTuple

import scipy.stats
import torch

from nearshot.episodes import EpisodeShape
from nearshot.evaluation import Accuracy, compare
from nearshot.experiments.recipe import Found
from nearshot.experiments.recipes.ablations import row_config
from nearshot.experiments.recipes.adaptation import LAYERS
from nearshot.experiments.recipes.batch_size import SETUPS, setup_config
from nearshot.experiments.recipes.choices import CHOICES, choice_config
from nearshot.experiments.recipes.pair_subsampling import BATCH_SIZE, FRACTIONS, share_of_pairs, subsampled
from nearshot.experiments.results import Measurement
from nearshot.experiments.settings import BATCH_SIZES
from nearshot.losses import count_pairs
from nearshot.training import PRESETS, TrainConfig

__all__ = ["CLAIMS", "Claim", "Verdict", "check_claims"]

Status = Literal["confirmed", "contradicted", "undecided", "not yet run"]
SAME = 1.0  # differences within so many points are none, as the paper speaks of them
SHOTS = (1, 5)


class Verdict(NamedTuple):
    """What has become of a statement, with the numbers."""

    status: Status
    text: str


@dataclass(frozen=True)
class Claim:
    """A statement of the paper.

    Attributes:
        name: a short name.
        statement: what it says.
        where: the paper's section.
        check: what the results say, on a dataset.
    """

    name: str
    statement: str
    where: str
    check: Callable[[Found, str], Verdict]


class Gap(NamedTuple):
    """One model minus another, in points, with half a 95 % interval, and over how many training seeds."""

    what: str
    difference: float
    interval95: float
    n_seeds: int

    def __str__(self) -> str:
        seeds = f"{self.n_seeds} seeds" if self.n_seeds > 1 else "one seed, over episodes"
        return f"{self.what}: {signed(self.difference)} ± {self.interval95:.2f} ({seeds})"

    @property
    def is_positive(self) -> bool:
        """Whether it is more than chance."""
        return self.difference - self.interval95 > 0

    @property
    def is_negative(self) -> bool:
        """Whether it is the other way round, and more than chance."""
        return self.difference + self.interval95 < 0

    @property
    def is_none(self) -> bool:
        """Whether it is small enough to be none."""
        return abs(self.difference) + self.interval95 < SAME

    @property
    def is_some(self) -> bool:
        """Whether it is too large to be none."""
        return abs(self.difference) - self.interval95 > SAME


def signed(number: float) -> str:
    """Return a number with its sign.

    >>> signed(-0.5)
    '−0.50'
    """
    return f"{number:+.2f}".replace("-", "−")


Side = tuple[TrainConfig, Measurement]


def gap(found: Found, what: str, better: Side, other: Side) -> Gap | None:
    """Return the paired difference of two trainings, seed by seed; None where either has not been run."""
    pairs = [
        compare(*_same_episodes(mine.accuracy(better[1]), yours.accuracy(other[1])))
        for mine in found.runs(better[0])
        for yours in found.runs(other[0])
        if mine.seed == yours.seed and mine.has(better[1]) and yours.has(other[1])
    ]
    if not pairs:
        return None
    differences = torch.tensor([pair.difference for pair in pairs], dtype=torch.float64)
    interval = pairs[0].interval95
    if len(pairs) > 1:
        half = float(scipy.stats.t.ppf(0.975, len(pairs) - 1)) * float(differences.std()) / math.sqrt(len(pairs))
        interval = max(half, 0.0)
    return Gap(what, float(differences.mean()), interval, len(pairs))


def _same_episodes(one: Accuracy, other: Accuracy) -> tuple[Accuracy, Accuracy]:
    """Cut two accuracies to the episodes that both have: fewer episodes of a seed are the first of more."""
    n_shared = min(len(one.per_episode), len(other.per_episode))
    if len(one.per_episode) == len(other.per_episode) or one.protocol.seed != other.protocol.seed:
        return one, other
    first, second = (
        Accuracy(it.per_episode[:n_shared], replace(it.protocol, n_episodes=n_shared, episodes="shared"))
        for it in (one, other)
    )
    return first, second


def judged(
    gaps: Sequence[Gap | None], *, holds: Callable[[Gap], bool], fails: Callable[[Gap], bool] | None = None
) -> Verdict:
    """Confirm if all gaps that were run hold, contradict if one fails, and leave it open otherwise; say which."""
    there = [one for one in gaps if one is not None]
    if not there:
        return Verdict("not yet run", "")
    fails = fails or (lambda one: not holds(one))
    missing = f" {len(gaps) - len(there)} of {len(gaps)} comparisons are not run yet." if len(there) < len(gaps) else ""
    failing = [one for one in there if fails(one)]
    open_ones = [one for one in there if not holds(one) and one not in failing]
    if failing:
        return Verdict("contradicted", f"Not so for {len(failing)} of {len(there)}: {_listed(failing)}.{missing}")
    if open_ones:
        return Verdict("undecided", f"Open for {len(open_ones)} of {len(there)}: {_listed(open_ones)}.{missing}")
    # A statement about all of them is confirmed by all of them.
    return Verdict("undecided" if missing else "confirmed", f"{_listed(there)}.{missing}")


def _listed(gaps: Sequence[Gap]) -> str:
    return "; ".join(map(str, gaps))


def _above(pairs: Callable[[str], Sequence[tuple[str, Side, Side]]]) -> Callable[[Found, str], Verdict]:
    """Check that each first is above its second."""

    def check(found: Found, dataset: str) -> Verdict:
        gaps = [gap(found, what, better, other) for what, better, other in pairs(dataset)]
        return judged(gaps, holds=lambda one: one.is_positive, fails=lambda one: one.is_negative)

    return check


def _same(pairs: Callable[[str], Sequence[tuple[str, Side, Side]]]) -> Callable[[Found, str], Verdict]:
    """Check that there is no difference to speak of."""

    def check(found: Found, dataset: str) -> Verdict:
        gaps = [gap(found, what, one, other) for what, one, other in pairs(dataset)]
        return judged(gaps, holds=lambda one: one.is_none, fails=lambda one: one.is_some)

    return check


def _val(config: TrainConfig, shot: int, classifier: str = "centroid") -> Side:
    return config, Measurement("val", shot, classifier)


def _nca_beats_episodes(dataset: str) -> list[tuple[str, Side, Side]]:
    return [
        (
            f"NCA minus {short} {setup[0]}-shot m+n={setup[1]}, batch {size}, {shot}-shot",
            _val(setup_config(dataset, "nca", size, None), shot, classifier),
            _val(setup_config(dataset, method, size, setup), shot, classifier),
        )
        for method, short, classifier in (("prototypical", "PN", "centroid"), ("matching", "MN", "soft"))
        for size in BATCH_SIZES
        for setup in SETUPS
        for shot in SHOTS
    ]


def _rows(first: int, second: int, sizes: Sequence[int] = BATCH_SIZES) -> Callable[[str], list[tuple[str, Side, Side]]]:
    def pairs(dataset: str) -> list[tuple[str, Side, Side]]:
        return [
            (
                f"row {first} minus row {second}, batch {size}, {shot}-shot",
                _val(row_config(dataset, first, size), shot),
                _val(row_config(dataset, second, size), shot),
            )
            for size in sizes
            for shot in SHOTS
        ]

    return pairs


def _classifiers(dataset: str) -> list[tuple[str, Side, Side]]:
    config = PRESETS[f"{dataset}-nca"]
    return [
        (
            f"{first} minus {second}, {split}",
            (config, Measurement(split, 5, first)),
            (config, Measurement(split, 5, second)),
        )
        for first, second in (("centroid", "soft"), ("soft", "knn"))
        for split in ("val", "test")
    ]


def _five_shots(dataset: str) -> list[tuple[str, Side, Side]]:
    return [
        (
            f"PN 5-shot minus 1-shot training, m+n=8, batch {size}, {shot}-shot",
            _val(setup_config(dataset, "prototypical", size, (5, 8)), shot),
            _val(setup_config(dataset, "prototypical", size, (1, 8)), shot),
        )
        for size in BATCH_SIZES
        for shot in SHOTS
    ]


def _our_episodes(dataset: str) -> list[tuple[str, Side, Side]]:
    return [
        (
            f"{short}, ours minus Snell's episodes, {shot}-shot",
            (PRESETS[f"{dataset}-{method}"], Measurement("test", shot, classifier)),
            (PRESETS[f"{dataset}-{method}-snell"], Measurement("test", shot, classifier)),
        )
        for method, short, classifier in (("prototypical", "PN", "centroid"), ("matching", "MN", "soft"))
        for shot in SHOTS
    ]


def _treatments(dataset: str) -> list[tuple[str, Side, Side]]:
    config = PRESETS[f"{dataset}-nca"]
    return [
        (
            f"centred and normalised minus {other}, {shot}-shot",
            _val(config, shot),
            (config, Measurement("val", shot, "centroid", treatment=other)),
        )
        for other in ("raw", "centred", "normalised")
        for shot in SHOTS
    ]


def _choices(first: str, second: str, classifier: str = "centroid") -> Callable[[str], list[tuple[str, Side, Side]]]:
    def pairs(dataset: str) -> list[tuple[str, Side, Side]]:
        return [
            (
                f"{first} minus {second}, {shot}-shot",
                _val(choice_config(dataset, first), shot, classifier),
                _val(choice_config(dataset, second), shot, classifier),
            )
            for shot in SHOTS
        ]

    return pairs


def _adapted(layers: tuple[int, ...], adapted: str | None) -> Callable[[str], list[tuple[str, Side, Side]]]:
    def pairs(dataset: str) -> list[tuple[str, Side, Side]]:
        config = PRESETS[f"{dataset}-nca"]
        shots = SHOTS if adapted is None else (5,)
        name = "several layers" if adapted is None else adapted
        return [
            (
                f"{name} minus plain, {shot}-shot",
                (config, Measurement("test", shot, "centroid", layers, adapted)),
                (config, Measurement("test", shot, "centroid")),
            )
            for shot in shots
        ]

    return pairs


def _recovered(found: Found, dataset: str) -> Verdict:
    """Row 3 is above row 5, and not below row 1, at every batch size."""
    above = [gap(found, *pair) for pair in _rows(3, 5)(dataset)]
    level = [gap(found, *pair) for pair in _rows(3, 1)(dataset)]
    level_names = {one.what for one in level if one is not None}
    return judged(
        [*above, *level],
        holds=lambda one: (
            one.difference + one.interval95 > 0 and one.difference > -SAME
            if one.what in level_names
            else one.is_positive
        ),
        fails=lambda one: one.difference + one.interval95 < (-SAME if one.what in level_names else 0),
    )


def _gap_closes(found: Found, dataset: str) -> Verdict:
    """Rows 1 and 3: the gap at batch 128 is larger than at 512, where there is none."""
    gaps = {
        (size, shot): gap(found, f"row 3 minus row 1, batch {size}, {shot}-shot", *_sides(dataset, size, shot))
        for size in (128, 512)
        for shot in SHOTS
    }
    if any(one is None for one in gaps.values()):
        return Verdict("not yet run", "")
    there = {key: one for key, one in gaps.items() if one is not None}
    text = "; ".join(map(str, there.values())) + "."
    is_there = all(there[128, shot].is_positive for shot in SHOTS)
    is_gone = all(there[512, shot].is_none for shot in SHOTS)
    if is_there and is_gone:
        return Verdict("confirmed", text)
    is_not_so = any(there[128, shot].is_negative or there[512, shot].is_some for shot in SHOTS)
    return Verdict("contradicted" if is_not_so else "undecided", text)


def _sides(dataset: str, size: int, shot: int) -> tuple[Side, Side]:
    return _val(row_config(dataset, 3, size), shot), _val(row_config(dataset, 1, size), shot)


def _on_the_curve(found: Found, dataset: str) -> Verdict:
    """PN and MN lie within a point of NCA's subsampling curve, at the share of pairs that they use."""
    texts, off, n_wanted = [], 0, 0
    for method, short, classifier in (("prototypical", "PN", "centroid"), ("matching", "MN", "soft")):
        for shot in SHOTS:
            wanted = Measurement("val", shot, classifier)
            curve = [(f, found.pooled(subsampled(dataset, f), wanted)) for f in FRACTIONS]
            known = [(math.log(f), accuracy.mean) for f, accuracy in curve if accuracy is not None]
            for setup in SETUPS[:4]:
                config = setup_config(dataset, method, BATCH_SIZE, setup)
                ours = found.pooled(config, wanted)
                n_wanted += 1
                if ours is None or len(known) < len(FRACTIONS):
                    continue
                expected = _interpolated(known, math.log(share_of_pairs(found.scale.change(config))))
                off += abs(ours.mean - expected) > SAME
                name = f"{short} {setup[0]}-shot m+n={setup[1]}, {shot}-shot"
                texts.append(f"{name}: {signed(ours.mean - expected)} from the curve")
    if not texts:
        return Verdict("not yet run", "")
    status: Status = "contradicted" if off else "undecided" if len(texts) < n_wanted else "confirmed"
    return Verdict(status, "; ".join(texts) + ".")


def _interpolated(points: Sequence[tuple[float, float]], x: float) -> float:
    """Return a polygon's height at x; beyond its ends, that of the nearest end."""
    if x <= points[0][0]:
        return points[0][1]
    for (x0, y0), (x1, y1) in pairwise(points):
        if x <= x1:
            return y0 + (y1 - y0) * (x - x0) / (x1 - x0)
    return points[-1][1]


def _more_pairs(found: Found, dataset: str) -> Verdict:
    """Counted, not trained: w = 20, m = 15, n = 5 gains over 150 % of both kinds of pairs without episodes."""
    shape = EpisodeShape(n_way=20, n_shot=5, n_query=15)
    all_pairs = count_pairs(shape, prototypes=False, separate=False)
    episodic = count_pairs(shape, prototypes=True, separate=True)
    gains = [100 * (a - b) / b for a, b in zip(all_pairs, episodic, strict=True)]
    text = f"+{gains[0]:.0f} % positives, +{gains[1]:.0f} % negatives."
    return Verdict("confirmed" if min(gains) > 150 else "contradicted", text)


def _ranking_by_pairs(found: Found, dataset: str) -> Verdict:
    """Within a batch size, setups with more pairs are better, but for the paper's exceptions (i) and (ii)."""
    texts, wrong, n_sizes = [], 0, 0
    for size in BATCH_SIZES:
        there = []
        for setup in (None, *SETUPS):
            config = setup_config(dataset, "prototypical", size, setup)
            accuracy = found.pooled(config, Measurement("val", 5, "centroid"))
            if accuracy is not None:
                n_pairs = _pairs_of(found.scale.change(config), setup)
                there.append((n_pairs, accuracy.mean, setup))
        if len(there) < 1 + len(SETUPS):
            continue
        n_sizes += 1
        there.sort(key=lambda one: -one[0])
        for (_, better, first), (_, worse, second) in pairwise(there):
            if worse > better and not _is_exception(size, first, second):
                wrong += 1
                texts.append(f"batch {size}: {_name(second)} above {_name(first)} by {worse - better:.2f}")
        texts.append(f"batch {size}: {len(there)} setups ranked")
    if not texts:
        return Verdict("not yet run", "")
    status: Status = "contradicted" if wrong else "undecided" if n_sizes < len(BATCH_SIZES) else "confirmed"
    return Verdict(status, "; ".join(texts) + ".")


def _pairs_of(config: TrainConfig, setup: tuple[int, int] | None) -> int:
    if setup is None:
        return config.batch_size * (config.batch_size - 1) // 2
    return count_pairs(config.shape, prototypes=True, separate=True).total


def _is_exception(size: int, first: tuple[int, int] | None, second: tuple[int, int] | None) -> bool:
    """The paper's: (i) m+n=16 above m+n=8, five shots, any batch; (ii) 1-shot m+n=8 above 5-shot m+n=32 at 128."""
    return (first, second) == ((5, 8), (5, 16)) or (size == 128 and (first, second) == ((5, 32), (1, 8)))


def _name(setup: tuple[int, int] | None) -> str:
    return "NCA" if setup is None else f"PN {setup[0]}-shot m+n={setup[1]}"


def _more_epochs(found: Found, dataset: str) -> Verdict:
    gaps = [gap(found, what, one, other) for what, one, other in _choices(CHOICES[2], CHOICES[0])(dataset)]
    if dataset != "cifar-fs":
        return Verdict("not yet run", "The paper says so of CIFAR-FS only.")
    return judged(
        gaps,
        holds=lambda one: one.is_positive and one.difference + one.interval95 < 2 * SAME,
        fails=lambda one: one.is_negative or one.difference - one.interval95 > SAME,
    )


def _not_above(pairs: Callable[[str], Sequence[tuple[str, Side, Side]]]) -> Callable[[Found, str], Verdict]:
    """Check that no first is above its second by half a point; where that could still be, it is undecided."""

    def check(found: Found, dataset: str) -> Verdict:
        gaps = [gap(found, what, one, other) for what, one, other in pairs(dataset)]
        bound = SAME / 2
        return judged(
            gaps,
            holds=lambda one: one.difference + one.interval95 < bound,
            fails=lambda one: one.difference - one.interval95 > bound,
        )

    return check


def _projection(found: Found, dataset: str) -> Verdict:
    pairs = _choices(CHOICES[1], CHOICES[0])
    return (_above(pairs) if dataset == "mini-imagenet" else _not_above(pairs))(found, dataset)


CLAIMS = tuple(
    Claim(name, statement, where, check)
    for name, where, statement, check in (
        (
            "nca-best",
            "Section 3.2",
            "NCA is better than every episodic setup, at each batch size",
            _above(_nca_beats_episodes),
        ),
        ("replacement", "Section 3.4", "Sampling with replacement makes no difference", _same(_rows(1, 2))),
        ("recovered", "Section 3.4", "All ablations together (row 3) recover what PN lost against NCA", _recovered),
        ("gap-closes", "Section 3.4", "The gap between rows 1 and 3 at batch 128 disappears at 512", _gap_closes),
        ("on-the-curve", "Section 3.3", "PN and MN lie on NCA's subsampling curve", _on_the_curve),
        ("classifiers", "Appendix D", "Nearest centroid > soft assignment > k-NN", _above(_classifiers)),
        ("five-shots", "Appendix F", "Five-shot training beats one-shot training", _above(_five_shots)),
        ("our-episodes", "Section 3.5", "The paper's episodes beat Snell's", _above(_our_episodes)),
        ("more-pairs", "Section 2.2", "w=20, m=15, n=5 gains over 150 % of both kinds of pairs", _more_pairs),
        ("ranking", "Appendix E", "More pairs are better, but for exceptions (i) and (ii)", _ranking_by_pairs),
        ("treatment", "Section 3.1", "Centring and normalising features helps", _above(_treatments)),
        (
            "euclidean",
            "Section 2.2",
            "The Euclidean distance beats the cosine",
            _above(_choices(CHOICES[4], CHOICES[5], "soft")),
        ),
        ("projection", "Appendix F", "A projection helps NCA on miniImageNet only", _projection),
        (
            "dropblock",
            "Appendix F",
            "DropBlock adds nothing to speak of",
            _not_above(_choices(CHOICES[3], CHOICES[0])),
        ),
        ("layers", "Appendix G", "Features of several layers help", _above(_adapted(LAYERS, None))),
        ("fine-tuning", "Appendix G", "Fine-tuning on the support set helps", _above(_adapted((), "fine-tuned"))),
        ("mahalanobis", "Appendix G", "A Mahalanobis matrix does not help", _not_above(_adapted((), "mahalanobis"))),
        ("epochs", "Appendix F", "240 epochs add about 0.5", _more_epochs),
    )
)


def check_claims(found: Found, dataset: str) -> list[tuple[Claim, Verdict]]:
    """Return what the results say about each statement."""
    return [(claim, claim.check(found, dataset)) for claim in CLAIMS]
