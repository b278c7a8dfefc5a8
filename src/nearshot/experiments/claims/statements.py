"""The paper's statements, each with what was compared to judge it."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from nearshot.episodes import EpisodeShape
from nearshot.evaluation import Accuracy, compare
from nearshot.experiments.claims.judging import Claim, Pairs, Verdict, above, judged, listed, not_above, same
from nearshot.experiments.claims.ranking import EXCEPTIONS_IN_WORDS, exceptions_hold, more_pairs_rank_higher
from nearshot.experiments.gaps import LUCK, SAME, Gap, Side, gap, over_seeds, pooled
from nearshot.experiments.recipe import Found
from nearshot.experiments.recipes.ablations import row_config
from nearshot.experiments.recipes.adaptation import LAYERS
from nearshot.experiments.recipes.batch_size import IN_FIGURE, METHODS, SETUPS, setup_config
from nearshot.experiments.recipes.choices import CHOICES, choice_config
from nearshot.experiments.recipes.pair_subsampling import BATCH_SIZE, FRACTIONS, share_of_pairs, subsampled
from nearshot.experiments.results import Measurement
from nearshot.experiments.settings import BATCH_SIZES
from nearshot.losses import count_pairs
from nearshot.training import PRESETS, TrainConfig

__all__ = ["CLAIMS"]

SHOTS = (1, 5)
Compared = tuple[str, Side, Side]


def _val(config: TrainConfig, shot: int, classifier: str = "centroid") -> Side:
    return config, Measurement("val", shot, classifier)


def _other_than_centroid(classifier: str) -> str:
    return "" if classifier == "centroid" else f"{classifier}, "


def _nca_beats_episodes(dataset: str) -> list[Compared]:
    return [
        (
            f"NCA minus {short} {setup[0]}-shot m+n={setup[1]}, batch {size}, {classifier}, {shot}-shot",
            _val(setup_config(dataset, "nca", size, None), shot, classifier),
            _val(setup_config(dataset, method, size, setup), shot, classifier),
        )
        for method, (short, classifier) in METHODS.items()
        for size in BATCH_SIZES
        for setup in SETUPS
        for shot in SHOTS
    ]


def _rows(first: int, second: int, sizes: Sequence[int] = BATCH_SIZES) -> Pairs:
    def pairs(dataset: str) -> list[Compared]:
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


def _classifiers(dataset: str) -> list[Compared]:
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


def _five_shots(dataset: str) -> list[Compared]:
    return [
        (
            f"{short} 5-shot minus 1-shot training, m+n=8, batch {size}, {classifier}, {shot}-shot",
            _val(setup_config(dataset, method, size, (5, 8)), shot, classifier),
            _val(setup_config(dataset, method, size, (1, 8)), shot, classifier),
        )
        for method, (short, classifier) in METHODS.items()
        for size in BATCH_SIZES
        for shot in SHOTS
    ]


def _on_test(what: str, better: str, other: str) -> Pairs:
    """Compare presets on the test split for each episodic method, with the classifier that it is reported with."""

    def pairs(dataset: str) -> list[Compared]:
        return [
            (
                f"{what.format(short)}, {classifier}, {shot}-shot",
                (PRESETS[f"{dataset}-{better.format(method)}"], Measurement("test", shot, classifier)),
                (PRESETS[f"{dataset}-{other.format(method)}"], Measurement("test", shot, classifier)),
            )
            for method, (short, classifier) in METHODS.items()
            for shot in SHOTS
        ]

    return pairs


def _treatments(dataset: str) -> list[Compared]:
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


def _choices(first: str, second: str, classifier: str = "centroid") -> Pairs:
    def pairs(dataset: str) -> list[Compared]:
        return [
            (
                f"{first} minus {second}, {_other_than_centroid(classifier)}{shot}-shot",
                _val(choice_config(dataset, first), shot, classifier),
                _val(choice_config(dataset, second), shot, classifier),
            )
            for shot in SHOTS
        ]

    return pairs


def _several_layers(dataset: str) -> list[Compared]:
    config = PRESETS[f"{dataset}-nca"]
    return [
        (
            f"several layers minus the last, {shot}-shot",
            (config, Measurement("test", shot, "centroid", LAYERS)),
            (config, Measurement("test", shot, "centroid")),
        )
        for shot in SHOTS
    ]


def _adapted(adapted: str, *choices: tuple[int, ...]) -> Pairs:
    """Compare adapted features with the same features as they are, for each choice of layers; five shots."""

    def pairs(dataset: str) -> list[Compared]:
        config = PRESETS[f"{dataset}-nca"]
        return [
            (
                f"{adapted} minus plain, {'several layers' if layers else 'last layer'}, 5-shot",
                (config, Measurement("test", 5, "centroid", layers, adapted)),
                (config, Measurement("test", 5, "centroid", layers)),
            )
            for layers in choices
        ]

    return pairs


def _recovered(found: Found, dataset: str) -> Verdict:
    """Row 3 is above row 5, and not below row 1, at every batch size."""
    above = [gap(found, *pair) for pair in _rows(3, 5)(dataset)]
    level = [gap(found, *pair) for pair in _rows(3, 1)(dataset)]
    level_names = {one.what for one in level if one is not None}
    return judged(
        [*above, *level],
        holds=lambda one: one.low > (-SAME if one.what in level_names else 0),
        fails=lambda one: one.high < (-SAME if one.what in level_names else 0),
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
    there = dict(zip(gaps, pooled([one for one in gaps.values() if one is not None]), strict=True))
    text = f"{listed(list(there.values()))}."
    is_there = all(there[128, shot].is_positive for shot in SHOTS)
    is_gone = all(there[512, shot].is_none for shot in SHOTS)
    if is_there and is_gone:
        return Verdict("confirmed", text)
    among = {key: one.among(len(there)) for key, one in there.items()}
    is_not_so = any(among[128, shot].is_negative or among[512, shot].is_some for shot in SHOTS)
    return Verdict("contradicted" if is_not_so else "undecided", text)


def _sides(dataset: str, size: int, shot: int) -> tuple[Side, Side]:
    return _val(row_config(dataset, 3, size), shot), _val(row_config(dataset, 1, size), shot)


def _on_the_curve(found: Found, dataset: str) -> Verdict:
    """PN and MN lie within a point of NCA's subsampling curve, at the share of pairs that they use."""
    gaps = [
        _from_the_curve(found, dataset, method, setup, Measurement("val", shot, classifier))
        for method, (_, classifier) in METHODS.items()
        for setup in IN_FIGURE
        for shot in SHOTS
    ]
    return judged(gaps, holds=lambda one: one.is_none, fails=lambda one: one.is_some)


def _from_the_curve(found: Found, dataset: str, method: str, setup: tuple[int, int], wanted: Measurement) -> Gap | None:
    """Return a setup minus the curve at its share of pairs: between two fractions, their accuracies by log share."""
    config = setup_config(dataset, method, BATCH_SIZE, setup)
    share = share_of_pairs(found.scale.change(config))
    below = max((one for one in FRACTIONS if one <= share), default=FRACTIONS[0])
    above_it = min((one for one in FRACTIONS if one >= share), default=FRACTIONS[-1])
    weight = 0.0 if below == above_it else math.log(share / below) / math.log(above_it / below)
    sides = [{run.seed: run for run in found.runs(subsampled(dataset, fraction))} for fraction in (below, above_it)]
    comparisons = []
    for run in found.runs(config):
        if run.has(wanted) and all(run.seed in side and side[run.seed].has(wanted) for side in sides):
            low, high = (side[run.seed].accuracy(wanted) for side in sides)
            curve = Accuracy(torch.lerp(low.per_episode, high.per_episode, weight), low.protocol)
            comparisons.append(compare(run.accuracy(wanted), curve))
    name = f"{METHODS[method][0]} {setup[0]}-shot m+n={setup[1]} minus the curve at {100 * share:.0f} % of the pairs"
    kind = f"{wanted.n_shot}-shot"
    return over_seeds(f"{name}, {wanted.classifier}, {kind}", comparisons, luck=LUCK, kind=kind)


def _more_pairs(found: Found, dataset: str) -> Verdict:
    """Counted, not trained: w = 20, m = 15, n = 5 gains over 150 % of both kinds of pairs without episodes."""
    shape = EpisodeShape(n_way=20, n_shot=5, n_query=15)
    all_pairs = count_pairs(shape, prototypes=False, separate=False)
    episodic = count_pairs(shape, prototypes=True, separate=True)
    gains = [100 * (a - b) / b for a, b in zip(all_pairs, episodic, strict=True)]
    text = f"+{gains[0]:.0f} % positives, +{gains[1]:.0f} % negatives."
    return Verdict("confirmed" if min(gains) > 150 else "contradicted", text)


def _more_epochs(found: Found, dataset: str) -> Verdict:
    gaps = [gap(found, what, one, other) for what, one, other in _choices(CHOICES[2], CHOICES[0])(dataset)]
    if dataset != "cifar-fs":
        return Verdict("not yet run", "The paper says so of CIFAR-FS only.")
    return judged(
        gaps,
        holds=lambda one: one.is_positive and one.high < 2 * SAME,
        fails=lambda one: one.is_negative or one.low > SAME,
    )


def _projection(found: Found, dataset: str) -> Verdict:
    pairs = _choices(CHOICES[1], CHOICES[0])
    return (above(pairs) if dataset == "mini-imagenet" else not_above(pairs))(found, dataset)


CLAIMS = tuple(
    Claim(name, statement, where, check)
    for name, where, statement, check in (
        (
            "nca-best",
            "Section 3.2",
            "NCA is better than every episodic setup, at each batch size",
            above(_nca_beats_episodes),
        ),
        ("replacement", "Section 3.4", "Sampling with replacement makes no difference", same(_rows(1, 2))),
        ("recovered", "Section 3.4", "All ablations together (row 3) recover what PN lost against NCA", _recovered),
        ("gap-closes", "Section 3.4", "The gap between rows 1 and 3 at batch 128 disappears at 512", _gap_closes),
        ("on-the-curve", "Section 3.3", "PN and MN lie on NCA's subsampling curve", _on_the_curve),
        ("classifiers", "Appendix D", "Nearest centroid > soft assignment > k-NN", above(_classifiers)),
        ("five-shots", "Appendix F", "Five-shot training beats one-shot training", above(_five_shots)),
        (
            "nca-on-test",
            "Section 3.5",
            "NCA beats PN and MN on the test split, our episodes",
            above(_on_test("NCA minus {}", "nca", "{}")),
        ),
        (
            "our-episodes",
            "Section 3.5",
            "The paper's episodes beat Snell's",
            above(_on_test("{}, ours minus Snell's episodes", "{}", "{}-snell")),
        ),
        ("more-pairs", "Section 2.1", "w=20, m=15, n=5 gains over 150 % of both kinds of pairs", _more_pairs),
        (
            "ranking",
            "Appendix E",
            "In a batch, more pairs are better, exceptions (i) and (ii) aside",
            more_pairs_rank_higher,
        ),
        ("ranking-exceptions", "Appendix E", f"Fewer pairs, and better: {EXCEPTIONS_IN_WORDS}", exceptions_hold),
        ("treatment", "Section 3.1", "Centring and normalising features helps", above(_treatments)),
        (
            "euclidean",
            "Section 2.2",
            "The Euclidean distance beats the cosine",
            above(_choices(CHOICES[4], CHOICES[5], "soft")),
        ),
        ("projection", "Appendix F", "A projection helps NCA on miniImageNet only", _projection),
        (
            "dropblock",
            "Appendix F",
            "DropBlock adds nothing to speak of",
            not_above(_choices(CHOICES[3], CHOICES[0])),
        ),
        ("layers", "Appendix G", "Features of several layers help", above(_several_layers)),
        (
            "fine-tuning",
            "Appendix G",
            "Fine-tuning on the support set helps",
            above(_adapted("fine-tuned", (), LAYERS)),
        ),
        ("mahalanobis", "Appendix G", "A Mahalanobis matrix does not help", not_above(_adapted("mahalanobis", ()))),
        ("epochs", "Appendix F", "240 epochs add about 0.5", _more_epochs),
    )
)
