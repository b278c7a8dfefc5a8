"""Are probabilities and the expected accuracy as right as they say? Hard problems beside easy ones.

    python benchmarks/honesty.py cifar=cifar100/data tiny=tiny-imagenet-200/train birds=CUB-200

Give any folders in which an image's own folder is its class. Of each, 20 classes of at least 60
images are used, and at most 130 images of a class. From each dataset, support sets are drawn:

- any classes: chosen at random;
- look-alike classes: a class and those whose mean embeddings are nearest to it;
- random labels: the images of one class, with labels at random; nothing can be learnt.

With one image of each class, nothing can be held out. The constants of `estimator/calibration.py`
and `estimator/leave_one_out.py` were chosen on CIFAR-FS's validation classes, Tiny-ImageNet's 17
validation classes of tieredImageNet, textures (pan8915/DeepTexture) and birds (CUB-200-2011), on
other draws.

Images are embedded once, into `--cache`; then it takes about ten minutes on a core. The results are
in benchmarks/results/honesty.json and .md.
"""

import argparse
import itertools
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from nearshot import FewShotClassifier
from nearshot.data.readers import Skipped, files_under, is_image
from nearshot.errors import InputError
from nearshot.estimator import Embedder
from nearshot.text import with_progress

RESULTS = Path(__file__).parent / "results"
BACKBONE = "efficientnet-lite0"
MAX_CLASSES = 20
MIN_IMAGES = 60
MAX_IMAGES = 130
N_SHOTS = (1, 2, 3, 5, 10)
N_WAYS = (2, 5, 10)
ANY = "any classes"
LOOK_ALIKE = "look-alike classes"
RANDOM = "random labels"

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Problem:
    """A kind of support set: the choice of classes, how many there are, and images of each."""

    kind: str
    n_way: int
    n_shot: int


@dataclass(frozen=True)
class Outcome:
    """How one support set did: fractions, and the mean log loss of the queries.

    The estimate is NaN, and `covered` False, where no image can be held out.
    """

    accuracy: float
    confidence: float
    log_loss: float
    estimate: float
    covered: bool


def main() -> None:
    parser = argparse.ArgumentParser(
        description=str(__doc__), formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("datasets", nargs="+", metavar="NAME=FOLDER")
    parser.add_argument("--draws", type=int, default=400, help="support sets of each problem")
    parser.add_argument("--cache", type=Path, default=Path("runs/honesty"))
    options = parser.parse_args()
    outcomes: dict[Problem, list[Outcome]] = {}
    n_draws = math.ceil(options.draws / len(options.datasets))
    names = []
    for dataset in options.datasets:
        name, _, folder = dataset.partition("=")
        names.append(name)
        features, labels = embed_dataset(name, Path(folder), options.cache)
        for problem in with_progress(problems(), name):
            results = outcomes.setdefault(problem, [])
            for seed in range(n_draws):
                results.append(measure(features, labels, problem, seed))
    rows = [summarise(problem, results) for problem, results in outcomes.items()]
    report = {"datasets": names, "backbone": BACKBONE, "draws": n_draws * len(names), "rows": rows}
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "honesty.json").write_text(json.dumps(report, indent=1) + "\n")
    (RESULTS / "honesty.md").write_text(markdown(report))
    print(markdown(report))


def embed_dataset(name: str, folder: Path, cache: Path) -> tuple[Array, Array]:
    """Return the features of a dataset's images, (image, dim), and their classes, (image,)."""
    by_class: dict[str, list[Path]] = {}
    for path in files_under(folder, Skipped()):
        if is_image(path.name):
            class_name = path.parent.name
            if class_name == "images":  # as in Tiny-ImageNet
                class_name = path.parent.parent.name
            by_class.setdefault(class_name, []).append(path)
    class_names = sorted(key for key, paths in by_class.items() if len(paths) >= MIN_IMAGES)
    n_classes = min(MAX_CLASSES, len(class_names))
    chosen = [class_names[number * len(class_names) // n_classes] for number in range(n_classes)]
    paths: list[Path] = []
    labels: list[int] = []
    for label, class_name in enumerate(chosen):
        of_class = sorted(by_class[class_name])[:MAX_IMAGES]
        paths += of_class
        labels += [label] * len(of_class)
    file = cache / f"{name}.npy"
    if not file.is_file():
        cache.mkdir(parents=True, exist_ok=True)
        np.save(file, Embedder(BACKBONE, device="cpu")(paths, progress=None))
    return np.load(file), np.array(labels)


def problems() -> list[Problem]:
    """Return all problems, from easy to hopeless."""
    kinds = (ANY, LOOK_ALIKE)
    result = [Problem(*values) for values in itertools.product(kinds, N_WAYS, N_SHOTS)]
    result += [Problem(RANDOM, 2, n_shot) for n_shot in N_SHOTS[1:]]
    return result


def measure(features: Array, labels: Array, problem: Problem, seed: int) -> Outcome:
    """Draw a support set, and compare what its classifier says with the rest of the images."""
    generator = np.random.default_rng([seed, problem.n_way, problem.n_shot, len(problem.kind)])
    images_of_classes = list(draw_classes(features, labels, problem, generator))
    support = np.concatenate([images[: problem.n_shot] for images in images_of_classes])
    query = np.concatenate([images[problem.n_shot :] for images in images_of_classes])
    codes = np.arange(problem.n_way).repeat(problem.n_shot)
    truth = np.arange(problem.n_way).repeat(
        [len(images) - problem.n_shot for images in images_of_classes]
    )
    model = FewShotClassifier(None).fit(features[support], codes)
    probabilities = model.predict_proba(features[query])
    accuracy = float((probabilities.argmax(1) == truth).mean())
    of_truth = probabilities[np.arange(len(truth)), truth]
    estimate = math.nan
    covered = False
    try:
        expected = model.estimate_accuracy()
        low, high = expected.interval
        estimate = expected.mean
        covered = low <= accuracy <= high
    except InputError:
        pass  # one image of each class
    return Outcome(
        accuracy=accuracy,
        confidence=float(probabilities.max(1).mean()),
        log_loss=float(-np.log(of_truth.clip(min=1e-12)).mean()),
        estimate=estimate,
        covered=covered,
    )


def draw_classes(
    features: Array, labels: Array, problem: Problem, generator: np.random.Generator
) -> Iterator[Array]:
    """Yield the images of each class of a support set, in random order."""
    classes = np.unique(labels)
    first = generator.choice(classes)
    if problem.kind == RANDOM:
        images = generator.permutation(np.flatnonzero(labels == first))
        yield from np.array_split(images, problem.n_way)
        return
    chosen = generator.choice(classes, problem.n_way, replace=False)
    if problem.kind == LOOK_ALIKE:
        means = class_means(features, labels, classes)
        distances = np.square(means - means[classes == first]).sum(1)
        chosen = classes[np.argsort(distances)[: problem.n_way]]
    for label in chosen:
        yield generator.permutation(np.flatnonzero(labels == label))


def class_means(features: Array, labels: Array, classes: Array) -> Array:
    """Return the mean direction of each class, (class, dim)."""
    directions = features / np.linalg.norm(features, axis=1, keepdims=True)
    return np.stack([directions[labels == label].mean(0) for label in classes])


def summarise(problem: Problem, results: Sequence[Outcome]) -> dict[str, Any]:
    """Return the means over support sets, in per cent where they are fractions."""
    accuracy = mean([result.accuracy for result in results])
    confidence = mean([result.confidence for result in results])
    estimate = mean([result.estimate for result in results])
    return asdict(problem) | {
        "accuracy": 100 * accuracy,
        "overconfidence": 100 * (confidence - accuracy),
        "confidence": 100 * confidence,
        "log_loss": mean([result.log_loss for result in results]),
        "uniform_log_loss": math.log(problem.n_way),
        "estimate_error": None if math.isnan(estimate) else 100 * (estimate - accuracy),
        "coverage": None if math.isnan(estimate) else 100 * mean([r.covered for r in results]),
        "draws": len(results),
    }


def mean(values: Sequence[float]) -> float:
    return float(np.mean(values))


def markdown(report: dict[str, Any]) -> str:
    """Return the table for the documentation."""
    lines = [
        f"Mean of {report['draws']} support sets, drawn from {', '.join(report['datasets'])}; "
        f"`{report['backbone']}`, ridge. Confidence is the mean probability of the answer. The log "
        "loss of an answer that knows nothing is in brackets. Coverage is how often the 95 % "
        "interval holds the accuracy on the other images.",
        "",
        "| classes | ways | photos | accuracy % | confidence − accuracy | log loss "
        "| estimate − accuracy | coverage % |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for row in report["rows"]:
        cells = [row["kind"], str(row["n_way"]), str(row["n_shot"]), f"{row['accuracy']:.1f}"]
        cells.append(signed(row["overconfidence"]))
        cells.append(f"{row['log_loss']:.2f} ({row['uniform_log_loss']:.2f})")
        if row["estimate_error"] is None:
            cells += ["–", "–"]
        else:
            cells += [signed(row["estimate_error"]), f"{row['coverage']:.0f}"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def signed(number: float) -> str:
    return f"{number:+.1f}".replace("-", "−")


if __name__ == "__main__":
    main()
