"""Trained networks: by what loss and schedule, and what is made of their features."""

from __future__ import annotations

from nearshot.experiments.claims.compare import Compared, Pairs, by, gaps_of, on_val
from nearshot.experiments.claims.verdict import Limits, Verdict, above, judged, not_above
from nearshot.experiments.paired import SAME
from nearshot.experiments.paper_configs import SHOTS
from nearshot.experiments.recipe import Found
from nearshot.experiments.recipes import schedule, supcon
from nearshot.experiments.recipes.adaptation import LAYERS
from nearshot.experiments.recipes.batch_size import METHODS
from nearshot.experiments.recipes.choices import CHOICES, choice_config
from nearshot.experiments.results import Measurement
from nearshot.training import PRESETS

__all__ = [
    "adapted_and_plain",
    "choices",
    "classifiers",
    "more_epochs",
    "nca_and_contrastive",
    "on_test",
    "projection",
    "schedules",
    "several_layers",
    "treatments",
]


def classifiers(dataset: str) -> list[Compared]:
    """Nearest centroid and soft assignment, soft assignment and k-NN, with NCA's features."""
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


def on_test(what: str, better: str, other: str) -> Pairs:
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


def nca_and_contrastive(dataset: str) -> list[Compared]:
    """NCA and the supervised contrastive loss: as the paper's experiments ran it, and as Khosla et al. wrote it."""
    *contrastive, nca = supcon.ROWS
    return [
        (
            f"NCA minus {row}, {wanted.n_shot}-shot",
            (supcon.row_config(dataset, nca), wanted),
            (supcon.row_config(dataset, row), wanted),
        )
        for row in contrastive
        for wanted in supcon.TEST
    ]


def schedules(dataset: str) -> list[Compared]:
    """The paper's schedule and SimpleShot's, for PN and NCA."""
    return [
        (
            f"{short}, the paper's schedule minus SimpleShot's, {shot}-shot",
            on_val(schedule.row_config(dataset, f"{short} (the paper's)"), shot),
            on_val(schedule.row_config(dataset, f"{short} (SimpleShot's schedule)"), shot),
        )
        for short in ("PN", "NCA")
        for shot in SHOTS
    ]


def treatments(dataset: str) -> list[Compared]:
    """Features centred and normalised, and with less than that done to them."""
    config = PRESETS[f"{dataset}-nca"]
    return [
        (
            f"centred and normalised minus {other}, {shot}-shot",
            on_val(config, shot),
            (config, Measurement("val", shot, "centroid", treatment=other)),
        )
        for other in ("raw", "centred", "normalised")
        for shot in SHOTS
    ]


def choices(first: str, second: str, classifier: str = "centroid") -> Pairs:
    """Compare two choices that the text speaks of."""

    def pairs(dataset: str) -> list[Compared]:
        return [
            (
                f"{first} minus {second}, {by(classifier)}{shot}-shot",
                on_val(choice_config(dataset, first), shot, classifier),
                on_val(choice_config(dataset, second), shot, classifier),
            )
            for shot in SHOTS
        ]

    return pairs


def several_layers(dataset: str) -> list[Compared]:
    """Features of several layers, and of the last."""
    config = PRESETS[f"{dataset}-nca"]
    return [
        (
            f"several layers minus the last, {shot}-shot",
            (config, Measurement("test", shot, "centroid", LAYERS)),
            (config, Measurement("test", shot, "centroid")),
        )
        for shot in SHOTS
    ]


def adapted_and_plain(adapted: str, *layers_to_take: tuple[int, ...]) -> Pairs:
    """Compare adapted features with the same features as they are, for each choice of layers; five shots."""

    def pairs(dataset: str) -> list[Compared]:
        config = PRESETS[f"{dataset}-nca"]
        return [
            (
                f"{adapted} minus plain, {'several layers' if layers else 'last layer'}, 5-shot",
                (config, Measurement("test", 5, "centroid", layers, adapted)),
                (config, Measurement("test", 5, "centroid", layers)),
            )
            for layers in layers_to_take
        ]

    return pairs


def more_epochs(found: Found, dataset: str) -> Verdict:
    """Twice the epochs gain something, and less than a point: the paper has about half of one."""
    return judged((gaps_of(found, choices(CHOICES[2], CHOICES[0])(dataset)), Limits(0.0, SAME)))


def projection(found: Found, dataset: str) -> Verdict:
    """A projection helps NCA on miniImageNet, and not elsewhere."""
    pairs = choices(CHOICES[1], CHOICES[0])
    return (above(pairs) if dataset == "mini-imagenet" else not_above(pairs))(found, dataset)
