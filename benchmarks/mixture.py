"""The default beside one ridge regression, on photographs that nothing was chosen on.

    git clone https://github.com/3ba2ii/Flower-Classifier
    git clone https://github.com/cyizhuo/CUB-200-2011-dataset
    git clone https://github.com/jovanzac/Traffic
    python benchmarks/mixture.py flowers=Flower-Classifier/flowers birds=CUB-200-2011-dataset
    python benchmarks/mixture.py signs=Traffic/gtsrb --images 18 --pattern '*_00029.ppm'

Give any folders in which an image's own folder is its class. Of each, 20 classes of 25 images are
used; of traffic signs, the last of the 30 frames of each sign. The feature sets and the constants
of `estimator/stacking.py` were chosen on other images (`benchmarks/feature_sets.py`).

Support sets of 10 classes are drawn. Compared are histograms of gradients, the embedding of one
network, its feature sets, and those of two networks. Embeddings are kept in `--cache`, and results
are added to those of earlier datasets, in benchmarks/results/mixture.json and .md.
"""

import argparse
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.metrics import roc_auc_score

import photos as photos_benchmark
from nearshot import FewShotClassifier
from nearshot.errors import InputError
from nearshot.estimator import Embedder
from nearshot.estimator.feature_sets import FeatureSets
from nearshot.text import with_progress
from photos import N_COLOURS, RESULTS, Array, Photos, draws, find_photos, hog_and_colours, mean_of
from photos_report import photos as photos_text
from photos_report import table

NETWORKS = "efficientnet-lite0+efficientnet-lite2"
N_SHOTS = (1, 2, 3, 5, 10)
SUMMARY_SHOTS = 5
MAX_CLASSES = 20
N_QUERY = 15
MEASURES = {
    "accuracy": "Accuracy in per cent",
    "log_loss": "Log loss",
    "auroc": "AUROC in per cent of telling the images of ten other classes",
    "estimate_error": "Expected minus true accuracy, in points",
    "covered": "How often the interval of the expected accuracy holds the truth, in per cent",
}


@dataclass(frozen=True)
class Method:
    """Features, and the classifier of them.

    Attributes:
        features: (image, dim)
        feature_sets: which columns are which set; None if all are one.
        classifier: the parameter of `FewShotClassifier`.
    """

    features: Array
    feature_sets: FeatureSets | None
    classifier: str


def main() -> None:
    parser = argparse.ArgumentParser(
        description=str(__doc__), formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("datasets", nargs="+", metavar="NAME=FOLDER")
    parser.add_argument("--images", type=int, default=25, help="images of a class")
    parser.add_argument("--pattern", default="*", help="which file names are read (default: all)")
    parser.add_argument("--draws", type=int, default=20)
    parser.add_argument("--cache", type=Path, default=Path("photos-cache"))
    options = parser.parse_args()
    photos_benchmark.N_CLASSES = MAX_CLASSES
    photos_benchmark.N_DRAWS = options.draws
    file = RESULTS / "mixture.json"
    report: dict[str, Any] = {"datasets": {}}
    if file.is_file():
        report |= json.loads(file.read_text())
    report["draws"] = options.draws
    for dataset in options.datasets:
        name, _, folder = dataset.partition("=")
        paths_of_class = find_photos(Path(folder), options.images, options.pattern)
        labels = np.repeat(np.arange(len(paths_of_class)), options.images)
        paths = [path for paths in paths_of_class.values() for path in paths]
        methods = embedded(name, paths, options.cache)
        report["datasets"][name] = {
            method_name: measure(method, labels)
            for method_name, method in with_progress(list(methods.items()), name)
        }
        file.write_text(json.dumps(report, indent=1) + "\n")
        (RESULTS / "mixture.md").write_text(markdown(report))
        (RESULTS / "mixture-summary.md").write_text(summary(report))
    print(markdown(report))


def embedded(name: str, paths: list[Path], cache: Path) -> dict[str, Method]:
    """Return the features of the images by each method; what is in the cache is not repeated."""
    cache.mkdir(parents=True, exist_ok=True)
    embedder = Embedder(NETWORKS, device="cpu", all_sets=True)
    sets_file = cache / f"{name}-feature-sets.npy"
    hog_file = cache / f"{name}-hog-alone.npy"
    if not sets_file.is_file():
        np.save(sets_file, embedder(paths, progress=None).astype(np.float16))
    if not hog_file.is_file():
        np.save(hog_file, hog_and_colours(paths)[:, :-N_COLOURS])
    of_two = np.load(sets_file).astype(np.float32)
    first = embedder.networks[0]
    of_first = of_two[:, : first.dim]
    return {
        "HOG, ridge": Method(np.load(hog_file), None, "ridge"),
        "`efficientnet-lite0`, ridge": Method(of_first, first.feature_sets, "ridge"),
        "**`efficientnet-lite0`: the default**": Method(of_first, first.feature_sets, "auto"),
        "with `efficientnet-lite2`": Method(of_two, embedder.feature_sets, "auto"),
    }


def measure(method: Method, labels: Array) -> list[dict[str, Any]]:
    """Return the measures of a method, a row for each number of images of a class."""
    n_way = min(10, len(np.unique(labels)) // 2)
    rows = []
    for n_shot in N_SHOTS:
        values: dict[str, list[float]] = {name: [] for name in MEASURES}
        for draw in draws(Photos(method.features, labels), n_way, n_shot, n_query=N_QUERY):
            model = FewShotClassifier(
                None, classifier=method.classifier, feature_sets=method.feature_sets
            ).fit(draw.support, draw.labels)
            probabilities = model.predict_proba(draw.query)
            is_right = probabilities.argmax(1) == draw.query_labels
            of_truth = probabilities[np.arange(len(is_right)), draw.query_labels]
            accuracy = float(is_right.mean())
            images = np.concatenate([draw.query, draw.strangers])
            is_strange = np.arange(len(images)) >= len(draw.query)
            values["accuracy"].append(100 * accuracy)
            values["log_loss"].append(float(-np.log(of_truth.clip(min=1e-12)).mean()))
            values["auroc"].append(100 * float(roc_auc_score(is_strange, model.novelty(images))))
            try:
                estimate = model.estimate_accuracy()
            except InputError:  # one image of each class
                continue
            low, high = estimate.interval
            values["estimate_error"].append(100 * (estimate.mean - accuracy))
            values["covered"].append(100.0 * (low <= accuracy <= high))
        row: dict[str, Any] = {"n_way": n_way, "n_shot": n_shot}
        for name, numbers in values.items():
            row[name] = mean_of(numbers) if len(numbers) > 1 else None
        rows.append(row)
    return rows


def summary(report: Mapping[str, Any]) -> str:
    """Return the table in the README: accuracy with a few images of each class."""
    datasets = report["datasets"]
    methods = next(iter(datasets.values()))
    body = []
    for method_name in methods:
        cells = []
        for of_dataset in datasets.values():
            (row,) = [row for row in of_dataset[method_name] if row["n_shot"] == SUMMARY_SHOTS]
            cells.append(number(row["accuracy"], "accuracy"))
        body.append([method_name, *cells])
    heading = (
        f"Accuracy in per cent, ten classes (signs: nine), {SUMMARY_SHOTS} photos of each, mean of "
        f"{report['draws']} draws and its 95 % interval:"
    )
    return f"{heading}\n\n{table(['', *datasets], body)}\n"


def markdown(report: Mapping[str, Any]) -> str:
    """Return a table of each measure."""
    parts = []
    for name, title in MEASURES.items():
        shots = N_SHOTS if name not in ("estimate_error", "covered") else N_SHOTS[1:]
        body = []
        for dataset, methods in report["datasets"].items():
            for method_name, rows in methods.items():
                cells = [number(row[name], name) for row in rows if row["n_shot"] in shots]
                body.append([dataset, method_name, *cells])
        heading = f"{title}, ten classes (signs: nine), mean of {report['draws']} draws:"
        parts.append(f"{heading}\n\n{table(['', '', *map(photos_text, shots)], body)}")
    return "\n\n".join(parts) + "\n"


def number(value: Mapping[str, float] | None, measure_name: str) -> str:
    """Return a mean, with its 95 % interval where there is room for it."""
    if value is None or math.isnan(value["mean"]):
        return "–"
    if measure_name == "accuracy":
        return f"{value['mean']:.1f} ± {value['interval95']:.1f}"
    text = f"{value['mean']:.2f}" if measure_name == "log_loss" else f"{value['mean']:.1f}"
    return text.replace("-", "−")


if __name__ == "__main__":
    main()
