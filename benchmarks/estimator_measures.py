"""What `estimator.py` measures of a classifier over many small support sets."""

import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from scipy.optimize import minimize_scalar
from sklearn.metrics import roc_auc_score
from sklearn.neighbors import KNeighborsClassifier, NearestCentroid

from nearshot import FewShotClassifier
from nearshot.estimator.calibration import typical_temperature
from nearshot.estimator.novelty import choose_threshold, held_out_novelties
from nearshot.evaluation import FeatureSet, prepare_features, sample_episodes
from nearshot.text import with_progress

SHOTS = (1, 2, 5, 10)
RATES = (0.01, 0.05, 0.1, 0.2)
CLASSIFIERS = ("centroid", "soft", "knn")
N_BINS = 15
OURS = "nearshot's novelty"
Array = npt.NDArray[Any]


def measured(
    features: FeatureSet, description: str, n_way: int, n_query: int, n_tasks: int
) -> dict[str, Any]:
    """Return everything that is measured, as JSON can hold it."""
    report: dict[str, Any] = {
        "what": f"{description}; {n_tasks:,} support sets of {n_way} classes, {n_query} queries "
        "of each and of as many unseen "
        "classes",
        "torch": torch.__version__,
        "shots": {},
    }
    for n_shot in SHOTS:
        episodes = tasks(features, n_way, n_shot, n_query, n_tasks)
        print(f"{n_shot} images a class")
        report["shots"][str(n_shot)] = {
            "rejection": rejection(features, episodes),
            "calibration": {name: calibration(features, episodes, name) for name in CLASSIFIERS},
            "estimate": estimates(features, episodes) if n_shot > 1 else None,
            "peers": peers(features, episodes, n_shot) if n_shot in (1, 5) else None,
        }
    return report


@dataclass(frozen=True, eq=False)
class Task:
    """One support set, and what is asked about it."""

    support: Array
    labels: Array
    query: Array
    query_labels: Array
    strangers: Array  # of as many classes that are not in the support set


def tasks(features: FeatureSet, n_way: int, n_shot: int, n_query: int, n_tasks: int) -> list[Task]:
    """Draw episodes of twice as many classes, of which half are known and half unseen."""
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


def model_of(features: FeatureSet, classifier: str = "centroid") -> FewShotClassifier:
    """Return a classifier for features; `photos.py` measures the default classifier."""
    centre = None if features.centre is None else features.centre.numpy()
    return FewShotClassifier(None, centre=centre, classifier=classifier)


def spread_of(values: list[float]) -> dict[str, float]:
    """Return the mean over support sets, its 95 % interval, and the 10th and 90th percentiles."""
    array = np.asarray(values)
    low, high = np.quantile(array, (0.1, 0.9))
    half = 1.96 * array.std(ddof=1) / len(array) ** 0.5
    return {
        "mean": float(array.mean()),
        "interval95": float(half),
        "low": float(low),
        "high": float(high),
    }


# None of these


def newness(model: FewShotClassifier, features: Array) -> dict[str, Array]:
    """Return nearshot's novelty, and others that one might use instead; higher is newer."""
    state = model.fitted_state()
    support = state.support
    query = state.prepare(features)
    to_means = torch.cdist(query, support.means).sort(dim=1).values.numpy()
    return {
        OURS: model.novelty(features),
        "distance to the nearest class mean": to_means[:, 0],
        "distance to the nearest image": torch.cdist(query, support.features).amin(1).numpy(),
        "nearest class mean / second nearest": to_means[:, 0] / to_means[:, 1],
        "1 − highest probability": 1 - model.predict_proba(features).max(1),
    }


def rejection(features: FeatureSet, episodes: list[Task]) -> dict[str, Any]:
    """Return AUROCs by kind of novelty, and the reached rates by the requested rate."""
    auroc: dict[str, list[float]] = {}
    reached: dict[float, dict[str, list[float]]] = {
        rate: {"known": [], "unseen": []} for rate in RATES
    }
    for task in with_progress(episodes, "rejection"):
        model = model_of(features).fit(task.support, task.labels)
        known = newness(model, task.query)
        unseen = newness(model, task.strangers)
        truth = np.repeat([0, 1], [len(task.query), len(task.strangers)])
        for kind in known:
            values = np.concatenate([known[kind], unseen[kind]])
            auroc.setdefault(kind, []).append(100 * float(roc_auc_score(truth, values)))
        left_out = held_out_novelties(model.fitted_state().support)
        for rate in RATES:
            threshold = choose_threshold(left_out, rate)  # what `fit` does with this reject_rate
            reached[rate]["known"].append(100 * float((known[OURS] > threshold).mean()))
            reached[rate]["unseen"].append(100 * float((unseen[OURS] > threshold).mean()))
    return {
        "auroc_percent": {kind: spread_of(values) for kind, values in auroc.items()},
        "rejected_percent": {
            str(rate): {kind: spread_of(values) for kind, values in both.items()}
            for rate, both in reached.items()
        },
    }


# Probabilities


def calibration(features: FeatureSet, episodes: list[Task], classifier: Any) -> dict[str, Any]:
    """Return the calibration with the chosen temperature, 1, and the best in hindsight."""
    losses: dict[str, list[float]] = {"chosen": [], "usual": [], "1": [], "hindsight": []}
    stated: dict[str, list[Array]] = {"chosen": [], "1": []}
    right = []
    temperatures = []
    for task in with_progress(episodes, f"calibration of {classifier}"):
        model = model_of(features, classifier=classifier).fit(task.support, task.labels)
        scores = model.fitted_state().answer(model.fitted_state().prepare(task.query)).scores

        codes = torch.from_numpy(task.query_labels)

        def loss(
            temperature: float, scores: torch.Tensor = scores, codes: torch.Tensor = codes
        ) -> float:
            return float(torch.nn.functional.cross_entropy(scores / temperature, codes))

        best = minimize_scalar(
            lambda log, loss=loss: loss(np.exp(log)), bounds=(-9, 5), method="bounded"
        )
        losses["chosen"].append(loss(model.temperature_))
        losses["usual"].append(loss(typical_temperature(model.fitted_state().support, classifier)))
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
        "stated_percent": {
            kind: 100 * float(np.concatenate(values).mean()) for kind, values in stated.items()
        },
        "calibration_error_percent": {
            kind: calibration_error(curve) for kind, curve in curves.items()
        },
        "log_loss": {kind: spread_of(values) for kind, values in losses.items()},
        "temperature": spread_of(temperatures),
        "reliability": curves,
    }


def reliability(stated: Array, right: Array) -> list[dict[str, float]]:
    """Return the share of right answers by probability, in bins of equal width."""
    bins = np.minimum((stated * N_BINS).astype(int), N_BINS - 1)
    return [
        {
            "stated": float(stated[in_bin].mean()),
            "right": float(right[in_bin].mean()),
            "share": float(in_bin.mean()),
        }
        for in_bin in (bins == number for number in range(N_BINS))
        if in_bin.any()
    ]


def calibration_error(curve: list[dict[str, float]]) -> float:
    """Return the mean distance between stated probability and share of right answers."""
    return 100 * sum(point["share"] * abs(point["stated"] - point["right"]) for point in curve)


# How good will it be?


def estimates(features: FeatureSet, episodes: list[Task]) -> dict[str, Any]:
    """Compare the accuracy estimated from the support set with that on many new images."""
    truths = []
    means = []
    covered = []
    widths = []
    too_low = []
    too_high = []
    for task in with_progress(episodes, "estimates"):
        model = model_of(features).fit(task.support, task.labels)
        truth = model.score(task.query, task.query_labels)
        estimate = model.estimate_accuracy()
        low, high = estimate.interval
        truths.append(100 * truth)
        means.append(100 * estimate.mean)
        covered.append(100.0 * (low <= truth <= high))
        too_low.append(100.0 * (truth > high))
        too_high.append(100.0 * (truth < low))
        widths.append(100 * (high - low))
    errors = np.subtract(means, truths)
    return {
        "true_percent": spread_of(truths),
        "estimated_percent": spread_of(means),
        "estimated_minus_true": spread_of(errors.tolist()),
        "root_mean_square": float(np.sqrt(np.square(errors).mean())),
        "covered_percent": spread_of(covered),
        "interval_too_low_percent": float(np.mean(too_low)),
        "interval_too_high_percent": float(np.mean(too_high)),
        "width": spread_of(widths),
        "each": {"true": truths, "estimated": means},
    }


# Beside scikit-learn


def peers(features: FeatureSet, episodes: list[Task], n_shot: int) -> list[dict[str, Any]]:
    """Return accuracies and times of nearshot and scikit-learn on the same support sets."""
    centre = features.centre

    def prepared(rows: Array) -> Array:
        return np.asarray(prepare_features(torch.from_numpy(rows), centre=centre))

    def as_given(rows: Array) -> Array:
        return rows

    vote = partial(KNeighborsClassifier, n_neighbors=n_shot)
    compared: list[tuple[str, str, Callable[[], Any], Callable[[Array], Array]]] = [
        (
            f"FewShotClassifier, {name}",
            "as given",
            partial(model_of, features, classifier=name),
            as_given,
        )
        for name in CLASSIFIERS
    ]
    compared += [
        (name, treatment, make, treat)
        for name, make in (("NearestCentroid", NearestCentroid), ("KNeighborsClassifier", vote))
        for treatment, treat in (("as given", as_given), ("centred and normalised", prepared))
    ]
    rows = []
    for name, treatment, make, treat in compared:
        accuracies = []
        fits = []
        predictions = []
        for task in with_progress(episodes, name):
            support = treat(task.support)
            query = treat(task.query)
            start = time.perf_counter()
            with warnings.catch_warnings():
                warnings.simplefilter(
                    "ignore"
                )  # NearestCentroid divides by zero where a class has one image
                model = make().fit(support, task.labels)
            between = time.perf_counter()
            answers = model.predict(query)
            fits.append(between - start)
            predictions.append(time.perf_counter() - between)
            accuracies.append(100 * float((answers == task.query_labels).mean()))
        rows.append(
            {
                "classifier": name,
                "features": treatment,
                "accuracy_percent": spread_of(accuracies),
                "fit_ms": 1000 * float(np.median(fits)),
                "predict_ms": 1000 * float(np.median(predictions)),
            }
        )
    return rows
