"""How well `FewShotClassifier` keeps its promises, over many support sets of classes that its backbone never saw.

Four questions, asked of thousands of small support sets: does the novelty tell unseen classes from known ones, and is
the chosen rate of false rejections reached; are probabilities as right as they say; does the accuracy that is
estimated from the support set alone hold; and how does it compare with scikit-learn's classifiers, in answers and in
time.

By default a small network is trained on nearshot's glyphs for a minute, and asked about letters of scripts that it
has not seen. The constants of the estimator were chosen on validation classes, of the glyphs and of CIFAR-FS; these
are test classes. Any backbone, dataset or features can be asked about instead.

    python benchmarks/estimator.py                                          # takes four minutes
    python benchmarks/estimator.py --dataset cifar-fs --backbone resnet12-nca-cifar-fs --images 60
    python benchmarks/estimator.py --features test.safetensors --name birds
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from matplotlib.figure import Figure
from scipy.optimize import minimize_scalar
from sklearn.metrics import roc_auc_score
from sklearn.neighbors import KNeighborsClassifier, NearestCentroid

from nearshot import FewShotClassifier, load_backbone
from nearshot.data import Store, prepare
from nearshot.data.loading import ImageFeed
from nearshot.estimator.calibration import usual_temperature
from nearshot.estimator.rejection import choose_threshold, left_out_novelties
from nearshot.evaluation import FeatureSet, load_features, prepare_features, sample_episodes
from nearshot.models import Backbone
from nearshot.progress import with_progress

RESULTS = Path(__file__).parent / "results"
FIGURES = Path(__file__).parent.parent / "docs" / "figures"  # where the documentation finds them
SHOTS = (1, 2, 5, 10)
RATES = (0.01, 0.05, 0.1, 0.2)
CLASSIFIERS = ("centroid", "soft", "knn")
N_BINS = 15
OURS = "nearshot's novelty"
# Okabe and Ito's colours, which the colour-blind tell apart.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#000000")
Array = npt.NDArray[Any]


@dataclass(frozen=True, eq=False)
class Task:
    """One support set, and what is asked about it."""

    support: Array
    labels: Array
    query: Array
    query_labels: Array
    strangers: Array  # of as many classes that are not in the support set


def trained_on_glyphs(data_dir: Path | None, steps: int) -> Backbone:
    """Train `conv4-32` with NCA on the training scripts."""
    from nearshot.data.augment import Augmentation
    from nearshot.training import PRESETS, RunFolder, train

    prepare("glyphs", data_dir=data_dir)
    plain = Augmentation(crop="centre", flip=0.0)
    config = replace(PRESETS["glyphs-nca"], epochs=1, steps_per_epoch=steps, augmentation=plain)
    with tempfile.TemporaryDirectory() as folder:
        train(config, folder=folder, data_dir=data_dir, show=False)
        return load_backbone(RunFolder(folder).weights_of(1))


def embedded(backbone: Backbone, dataset: str, n_images: int | None, data_dir: Path | None) -> FeatureSet:
    """Embed the test split, or some images of each class."""
    from nearshot.training.embedding import embed_images

    store = Store.open(dataset, "test", data_dir)
    labels = store.labels.numpy()
    chance = np.random.default_rng(0)
    of_classes = [chance.permutation(np.flatnonzero(labels == label))[:n_images] for label in np.unique(labels)]
    rows = np.concatenate(of_classes)
    cpu = torch.device("cpu")
    features = embed_images(backbone, ImageFeed(np.ascontiguousarray(store.images[rows]), cpu), device=cpu)
    centre = backbone.spec.training_mean
    return FeatureSet(features, store.labels[rows], centre=centre, split="test", fingerprint=store.fingerprint)


def tasks(features: FeatureSet, n_way: int, n_shot: int, n_query: int, n_tasks: int) -> list[Task]:
    """Draw episodes of twice as many classes: half are known, the queries of the others are strangers."""
    drawn = sample_episodes(
        features.labels, n_way=2 * n_way, n_shot=n_shot, n_query=n_query, n_episodes=n_tasks, seed=0
    )
    rows = features.features.numpy()
    return [
        Task(
            support=rows[support[:n_way].flatten()],
            labels=np.repeat(np.arange(n_way), n_shot),
            query=rows[query[:n_way].flatten()],
            query_labels=np.repeat(np.arange(n_way), n_query),
            strangers=rows[query[n_way:].flatten()],
        )
        for support, query in zip(drawn.support.numpy(), drawn.query.numpy(), strict=True)
    ]


def model_of(features: FeatureSet, **settings: Any) -> FewShotClassifier:
    return FewShotClassifier(centre=None if features.centre is None else features.centre.numpy(), **settings)


def spread_of(values: list[float]) -> dict[str, float]:
    """Return the mean over support sets with its 95 % interval, and between what values four of five lie."""
    array = np.asarray(values)
    low, high = np.quantile(array, (0.1, 0.9))
    half = 1.96 * array.std(ddof=1) / len(array) ** 0.5
    return {"mean": float(array.mean()), "interval95": float(half), "low": float(low), "high": float(high)}


# None of these


def newness(model: FewShotClassifier, pictures: Array) -> dict[str, Array]:
    """Return nearshot's novelty, and others that one might use instead; higher is newer."""
    support, query = model._support, model._prepare(pictures, model.centre_)
    to_means = torch.cdist(query, model._spread.means).sort(dim=1).values.numpy()
    return {
        OURS: model.novelty(pictures),
        "distance to the nearest class mean": to_means[:, 0],
        "distance to the nearest image": torch.cdist(query, support.features).amin(1).numpy(),
        "nearest class mean / second nearest": to_means[:, 0] / to_means[:, 1],
        "1 − highest probability": 1 - model.predict_proba(pictures).max(1),
    }


def rejection(features: FeatureSet, asked: list[Task]) -> dict[str, Any]:
    """Return AUROCs by kind of novelty, and the rates that are reached by the rate that is asked for."""
    auroc: dict[str, list[float]] = {}
    reached: dict[float, dict[str, list[float]]] = {rate: {"known": [], "unseen": []} for rate in RATES}
    for task in with_progress(asked, "rejection"):
        model = model_of(features).fit(task.support, task.labels)
        known, unseen = (newness(model, pictures) for pictures in (task.query, task.strangers))
        truth = np.repeat([0, 1], [len(task.query), len(task.strangers)])
        for kind in known:
            values = np.concatenate([known[kind], unseen[kind]])
            auroc.setdefault(kind, []).append(100 * float(roc_auc_score(truth, values)))
        left_out = left_out_novelties(model._support)
        for rate in RATES:
            threshold = choose_threshold(left_out, rate)  # what `fit` does with this unknown_rate
            reached[rate]["known"].append(100 * float((known[OURS] > threshold).mean()))
            reached[rate]["unseen"].append(100 * float((unseen[OURS] > threshold).mean()))
    return {
        "auroc_percent": {kind: spread_of(values) for kind, values in auroc.items()},
        "rejected_percent": {
            str(rate): {kind: spread_of(values) for kind, values in both.items()} for rate, both in reached.items()
        },
    }


# Probabilities


def calibration(features: FeatureSet, asked: list[Task], classifier: Any) -> dict[str, Any]:
    """Return how right probabilities are: with the chosen temperature, with 1, and with the best in hindsight."""
    losses: dict[str, list[float]] = {"chosen": [], "usual": [], "1": [], "hindsight": []}
    stated: dict[str, list[Array]] = {"chosen": [], "1": []}
    right, temperatures = [], []
    for task in with_progress(asked, f"calibration of {classifier}"):
        model = model_of(features, classifier=classifier).fit(task.support, task.labels)
        query = model._prepare(task.query, model.centre_)
        scores = model._scores(query)

        codes = torch.from_numpy(task.query_labels)

        def loss(temperature: float, scores: torch.Tensor = scores, codes: torch.Tensor = codes) -> float:
            return float(torch.nn.functional.cross_entropy(scores / temperature, codes))

        best = minimize_scalar(lambda log, loss=loss: loss(np.exp(log)), bounds=(-9, 5), method="bounded")
        losses["chosen"].append(loss(model.temperature_))
        losses["usual"].append(loss(usual_temperature(model._support, classifier)))
        losses["1"].append(loss(1.0))
        losses["hindsight"].append(float(best.fun))
        temperatures.append(model.temperature_)
        right.append(np.asarray(scores.argmax(1)) == task.query_labels)
        stated["chosen"].append((scores / model.temperature_).softmax(1).amax(1).numpy())
        stated["1"].append(scores.softmax(1).amax(1).numpy())
    hits = np.concatenate(right)
    curves = {kind: reliability(np.concatenate(values), hits) for kind, values in stated.items()}
    return {
        "accuracy_percent": 100 * float(hits.mean()),
        "stated_percent": {kind: 100 * float(np.concatenate(values).mean()) for kind, values in stated.items()},
        "calibration_error_percent": {kind: calibration_error(curve) for kind, curve in curves.items()},
        "log_loss": {kind: spread_of(values) for kind, values in losses.items()},
        "temperature": spread_of(temperatures),
        "reliability": curves,
    }


def reliability(stated: Array, right: Array) -> list[dict[str, float]]:
    """Return the share of right answers by what probability they were given, in bins of equal width."""
    places = np.minimum((stated * N_BINS).astype(int), N_BINS - 1)
    return [
        {"stated": float(stated[here].mean()), "right": float(right[here].mean()), "share": float(here.mean())}
        for here in (places == number for number in range(N_BINS))
        if here.any()
    ]


def calibration_error(curve: list[dict[str, float]]) -> float:
    """Return the expected calibration error: by how much stated probability and share of right answers differ."""
    return 100 * sum(point["share"] * abs(point["stated"] - point["right"]) for point in curve)


# How good will it be?


def estimates(features: FeatureSet, asked: list[Task]) -> dict[str, Any]:
    """Return how the accuracy that is estimated from the support set compares with that on many new images."""
    truths, means, covered, widths, too_low, too_high = [], [], [], [], [], []
    for task in with_progress(asked, "estimates"):
        model = model_of(features).fit(task.support, task.labels)
        truth, estimate = model.score(task.query, task.query_labels), model.estimate_accuracy()
        low, high = estimate.interval
        truths.append(100 * truth)
        means.append(100 * estimate.mean)
        covered.append(100.0 * (low <= truth <= high))
        too_low.append(100.0 * (truth > high))
        too_high.append(100.0 * (truth < low))
        widths.append(100 * (high - low))
    gaps = np.subtract(means, truths)
    return {
        "true_percent": spread_of(truths),
        "estimated_percent": spread_of(means),
        "estimated_minus_true": spread_of(gaps.tolist()),
        "root_mean_square": float(np.sqrt(np.square(gaps).mean())),
        "covered_percent": spread_of(covered),
        "interval_too_low_percent": float(np.mean(too_low)),
        "interval_too_high_percent": float(np.mean(too_high)),
        "width": spread_of(widths),
        "each": {"true": truths, "estimated": means},
    }


# Beside scikit-learn


def peers(features: FeatureSet, asked: list[Task], n_shot: int) -> list[dict[str, Any]]:
    """Return accuracies and times of nearshot's and scikit-learn's classifiers on the same support sets."""
    centre = features.centre

    def prepared(rows: Array) -> Array:
        return np.asarray(prepare_features(torch.from_numpy(rows), centre=centre))

    def as_given(rows: Array) -> Array:
        return rows

    vote = partial(KNeighborsClassifier, n_neighbors=n_shot)
    compared: list[tuple[str, str, Callable[[], Any], Callable[[Array], Array]]] = [
        (f"FewShotClassifier, {name}", "as given", partial(model_of, features, classifier=name), as_given)
        for name in CLASSIFIERS
    ]
    compared += [
        (name, what, make, treat)
        for name, make in (("NearestCentroid", NearestCentroid), ("KNeighborsClassifier", vote))
        for what, treat in (("as given", as_given), ("centred and normalised", prepared))
    ]
    rows = []
    for name, what, make, treat in compared:
        accuracies, fits, predictions = [], [], []
        for task in with_progress(asked, name):
            support, query = treat(task.support), treat(task.query)
            start = time.perf_counter()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # NearestCentroid divides by zero where a class has one image
                model = make().fit(support, task.labels)
            between = time.perf_counter()
            answers = model.predict(query)
            fits.append(between - start)
            predictions.append(time.perf_counter() - between)
            accuracies.append(100 * float((answers == task.query_labels).mean()))
        rows.append(
            {
                "classifier": name,
                "features": what,
                "accuracy_percent": spread_of(accuracies),
                "fit_ms": 1000 * float(np.median(fits)),
                "predict_ms": 1000 * float(np.median(predictions)),
            }
        )
    return rows


# The report


def measured(features: FeatureSet, what: str, n_way: int, n_query: int, n_tasks: int) -> dict[str, Any]:
    report: dict[str, Any] = {
        "what": f"{what}; {n_tasks:,} support sets of {n_way} classes, {n_query} queries of each and of as many unseen "
        "classes",
        "torch": torch.__version__,
        "shots": {},
    }
    for n_shot in SHOTS:
        asked = tasks(features, n_way, n_shot, n_query, n_tasks)
        print(f"{n_shot} images a class")
        report["shots"][str(n_shot)] = {
            "rejection": rejection(features, asked),
            "calibration": {name: calibration(features, asked, name) for name in CLASSIFIERS},
            "estimate": estimates(features, asked) if n_shot > 1 else None,
            "peers": peers(features, asked, n_shot) if n_shot in (1, 5) else None,
        }
    return report


def plus_minus(value: dict[str, float], digits: int = 1) -> str:
    mean = round(value["mean"], digits) + 0.0  # no −0.0
    return f"{mean:.{digits}f} ± {value['interval95']:.{digits}f}".replace("-", "−")


def table(headings: list[str], rows: list[list[str]]) -> list[str]:
    return [
        f"| {' | '.join(headings)} |",
        "|---|" + "---:|" * (len(headings) - 1),
        *(f"| {' | '.join(row)} |" for row in rows),
        "",
    ]


def markdown(report: dict[str, Any], pictures: dict[str, str]) -> str:
    """Return the tables for the documentation."""
    shots = report["shots"]
    names = [f"{n_shot} image{'s' if n_shot != '1' else ''} a class" for n_shot in shots]
    lines = [f"{report['what']}. ± is the 95 % interval of the mean over support sets.", ""]

    lines += [
        "**None of these.** AUROC in per cent of telling unseen classes from known ones, by what is compared:",
        "",
    ]
    kinds = list(shots["1"]["rejection"]["auroc_percent"])
    rows = [[kind, *(plus_minus(one["rejection"]["auroc_percent"][kind]) for one in shots.values())] for kind in kinds]
    lines += table(["", *names], rows)
    lines += [
        "Asked to reject so many of the known, `predict` rejects of the known / of the unseen, in per cent (in "
        "brackets: in four of five support sets, of the known):",
        "",
    ]
    rows = []
    for rate in map(str, RATES):
        cells = [one["rejection"]["rejected_percent"][rate] for one in shots.values()]
        rows.append(
            [
                f"{100 * float(rate):.0f} %",
                *(
                    f"{c['known']['mean']:.1f} ({c['known']['low']:.0f}–{c['known']['high']:.0f}) / "
                    f"{c['unseen']['mean']:.0f}"
                    for c in cells
                ),
            ]
        )
    lines += table(["asked for", *names], rows)
    lines += [f"![Rejection]({pictures['rejection']})", ""]

    lines += [
        "**Probabilities.** Accuracy, the mean probability that answers are given, and the expected calibration error "
        f"({N_BINS} bins), in per cent; log losses with the chosen temperature, the usual one (the prior alone), 1 "
        "(the softmax of squared distances as it is), and the best in hindsight for each support set:",
        "",
    ]
    rows = []
    for one, name in zip(shots.values(), names, strict=True):
        for classifier, found in one["calibration"].items():
            loss = found["log_loss"]
            rows.append(
                [
                    f"{classifier}, {name}",
                    f"{found['accuracy_percent']:.1f}",
                    f"{found['stated_percent']['chosen']:.1f}",
                    f"{found['calibration_error_percent']['chosen']:.1f}",
                    *(f"{loss[kind]['mean']:.3f}" for kind in ("chosen", "usual", "1", "hindsight")),
                ]
            )
    headings = ["", "accuracy", "stated", "error", "log loss", "usual", "1", "hindsight"]
    lines += table(headings, rows)
    lines += [f"![Calibration]({pictures['calibration']})", ""]

    lines += [
        "**How good will it be?** The accuracy that is estimated from the support set alone, against that on "
        "new images, in per cent:",
        "",
    ]
    rows = []
    for one, name in zip(shots.values(), names, strict=True):
        found = one["estimate"]
        if found is not None:
            rows.append(
                [
                    name,
                    plus_minus(found["true_percent"]),
                    plus_minus(found["estimated_percent"]),
                    plus_minus(found["estimated_minus_true"]),
                    f"{found['root_mean_square']:.1f}",
                    f"{found['width']['mean']:.0f}",
                    f"{found['covered_percent']['mean']:.0f} %",
                    f"{found['interval_too_low_percent']:.1f} %",
                    f"{found['interval_too_high_percent']:.1f} %",
                ]
            )
    headings = [
        "",
        "true",
        "estimated",
        "bias",
        "typical error",
        "interval's width",
        "covers",
        "lies too low",
        "too high",
    ]
    lines += table(headings, rows)
    lines += [
        "An image is recognised by one image fewer of each class than there will be, so the estimate is for a little "
        "less than what there is; with two images a class, for half of it. The 95 % interval takes left-out images for "
        "independent, and covers less where they fail together.",
        "",
        f"![Estimates]({pictures['estimate']})",
        "",
    ]

    lines += ["**Beside scikit-learn**, on the same support sets; milliseconds are medians for one of them:", ""]
    rows = []
    for n_shot in ("1", "5"):
        for row in shots[n_shot]["peers"] or []:
            rows.append(
                [
                    f"{n_shot}-shot, {row['classifier']}",
                    row["features"],
                    plus_minus(row["accuracy_percent"], 2),
                    f"{row['fit_ms']:.1f}",
                    f"{row['predict_ms']:.1f}",
                ]
            )
    lines += table(["", "features", "accuracy, %", "fit, ms", "predict, ms"], rows)
    lines += [
        "`FewShotClassifier` is given the features as they are and centres and normalises them itself; to fit is also "
        "to choose the temperature by leaving images out. KNeighborsClassifier gives ties to the lowest label.",
    ]
    return "\n".join(lines) + "\n"


def draw_rejection(report: dict[str, Any], path: Path) -> None:
    """Draw AUROCs by number of images, and the rates that are reached."""
    figure = Figure(figsize=(10, 3.6), layout="constrained")
    left, middle, right = figure.subplots(1, 3)
    shots = report["shots"]
    for number, kind in enumerate(shots["1"]["rejection"]["auroc_percent"]):
        found = [one["rejection"]["auroc_percent"][kind] for one in shots.values()]
        means, half = [one["mean"] for one in found], [one["interval95"] for one in found]
        left.errorbar(SHOTS, means, half, marker="oDs^v"[number], color=COLOURS[number], label=kind, capsize=2)
    left.set(xscale="log", xticks=SHOTS, xticklabels=SHOTS, xlabel="images a class", ylabel="AUROC, %")
    left.set_title("unseen classes against known ones", fontsize=9)
    left.minorticks_off()
    left.set_ylim(bottom=left.get_ylim()[0] - 8)  # room for the legend
    left.legend(fontsize=6, loc="lower right")
    for axes, kind in ((middle, "known"), (right, "unseen")):
        for number, (n_shot, one) in enumerate(shots.items()):
            cells = [one["rejection"]["rejected_percent"][str(rate)][kind] for rate in RATES]
            xs = [100 * rate * 1.04 ** (number - 1.5) for rate in RATES]
            means = [cell["mean"] for cell in cells]
            spans = [[m - c["low"] for m, c in zip(means, cells, strict=True)]]
            spans += [[c["high"] - m for m, c in zip(means, cells, strict=True)]]
            spans = np.maximum(spans, 0).tolist()
            axes.errorbar(xs, means, spans, marker="oDs^"[number], color=COLOURS[number], label=n_shot, capsize=2)
        ticks = [100 * rate for rate in RATES]
        axes.set(xscale="log", xticks=ticks, xticklabels=[f"{tick:.0f}" for tick in ticks], xlabel="rate asked for, %")
        axes.minorticks_off()
        axes.set_title(f"of {kind} classes (bars: four of five support sets)", fontsize=8)
        axes.set_ylabel("rejected, %")
        axes.legend(fontsize=7, title="images a class", title_fontsize=7)
    ticks = [100 * rate for rate in RATES]
    middle.plot(ticks, ticks, color="grey", linestyle=":", linewidth=1)
    figure.savefig(path, dpi=150, metadata={"Software": None})


def draw_calibration(report: dict[str, Any], path: Path) -> None:
    """Draw the share of right answers against the probability that was stated."""
    figure = Figure(figsize=(10, 3.6), layout="constrained")
    for axes, classifier in zip(figure.subplots(1, 3), CLASSIFIERS, strict=True):
        axes.plot([0, 1], [0, 1], color="grey", linestyle=":", linewidth=1)
        for number, (n_shot, one) in enumerate(report["shots"].items()):
            found = one["calibration"][classifier]
            for kind, style in (("chosen", "-"), ("1", "--")):
                curve = [point for point in found["reliability"][kind] if point["share"] > 0.003]
                axes.plot(
                    [point["stated"] for point in curve],
                    [point["right"] for point in curve],
                    marker="oDs^"[number] if kind == "chosen" else "",
                    linestyle=style,
                    linewidth=1.2 if kind == "chosen" else 0.8,
                    markersize=4,
                    color=COLOURS[number],
                    label=n_shot if kind == "chosen" else None,
                )
        axes.set(xlabel="stated probability", ylabel="share of right answers", xlim=(0.15, 1.02), ylim=(0.15, 1.02))
        axes.set_title(f"{classifier}; dashed: temperature 1", fontsize=9)
        axes.legend(fontsize=7, title="images a class", title_fontsize=7)
    figure.savefig(path, dpi=150, metadata={"Software": None})


def draw_estimates(report: dict[str, Any], path: Path) -> None:
    """Draw how far estimates are from the truth."""
    figure = Figure(figsize=(10, 3.2), layout="constrained")
    shown = {n_shot: one["estimate"] for n_shot, one in report["shots"].items() if one["estimate"] is not None}
    for number, (axes, (n_shot, found)) in enumerate(zip(figure.subplots(1, len(shown)), shown.items(), strict=True)):
        gaps = np.subtract(found["each"]["estimated"], found["each"]["true"])
        axes.hist(gaps, bins=np.arange(-50, 22, 2), color=COLOURS[number], alpha=0.8)
        axes.axvline(0, color="black", linewidth=0.8)
        axes.axvline(gaps.mean(), color="black", linestyle="--", linewidth=1)
        axes.set(xlabel="estimated − true accuracy, points", yticks=[], xlim=(-50, 20))
        axes.set_title(
            f"{n_shot} images a class: mean {round(gaps.mean(), 1) + 0.0:.1f}, "
            f"interval covers {found['covered_percent']['mean']:.0f} %",
            fontsize=8,
        )
    figure.savefig(path, dpi=150, metadata={"Software": None})


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__), formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--features", type=Path, help="a features file of classes that the backbone never saw")
    parser.add_argument("--backbone", help="a trained backbone to embed with (default: one that is trained on glyphs)")
    parser.add_argument("--dataset", default="glyphs", help="whose test split to embed (default: glyphs)")
    parser.add_argument("--images", type=int, help="how many images of each class to embed (default: all)")
    parser.add_argument("--name", help="what the results are called (default: as the dataset)")
    parser.add_argument("--tasks", type=int, default=500, help="how many support sets of each size (default: 500)")
    parser.add_argument("--steps", type=int, default=150, help="training steps on the glyphs (default: 150)")
    parser.add_argument("--data-dir", type=Path, help="where datasets live (default: ~/.cache/nearshot)")
    parser.add_argument("--output", type=Path, default=RESULTS, help="where results go (default: benchmarks/results)")
    parser.add_argument("--figures", type=Path, default=FIGURES, help="where figures go (default: docs/figures)")
    options = parser.parse_args()
    name = options.name or options.dataset
    if options.features is not None:
        features = load_features(options.features)
        what = f"Features of {name}, {features.split or 'split unknown'}"
    elif options.backbone is not None:
        features = embedded(load_backbone(options.backbone), options.dataset, options.images, options.data_dir)
        what = f"`{options.backbone}` on {len(features.labels):,} images of the test classes of {options.dataset}"
    else:
        trained = trained_on_glyphs(options.data_dir, options.steps)
        features = embedded(trained, "glyphs", options.images, options.data_dir)
        what = (
            f"`conv4-32`, trained with NCA for {options.steps} steps on nearshot's glyphs, on letters of unseen scripts"
        )
    n_images = int(torch.bincount(features.labels).min())
    report = measured(features, what, n_way=5, n_query=min(30, n_images - max(SHOTS)), n_tasks=options.tasks)
    for folder in (options.output, options.figures):
        folder.mkdir(parents=True, exist_ok=True)
    stem = f"estimator-{name}"
    pictures = {kind: f"{stem}-{kind}.png" for kind in ("rejection", "calibration", "estimate")}
    draw_rejection(report, options.figures / pictures["rejection"])
    draw_calibration(report, options.figures / pictures["calibration"])
    draw_estimates(report, options.figures / pictures["estimate"])
    text = markdown(report, {kind: f"figures/{name}" for kind, name in pictures.items()})
    for one in report["shots"].values():  # thousands of numbers, drawn above
        if one["estimate"] is not None:
            del one["estimate"]["each"]
    (options.output / f"{stem}.json").write_text(json.dumps(report, indent=1) + "\n")
    (options.output / f"{stem}.md").write_text(text)
    print(text)
    print(f"Written to {options.output / stem}.json and .md, and {options.figures / stem}-*.png.")


if __name__ == "__main__":
    main()
