"""Are probabilities and the expected accuracy as right as they say? Hard problems beside easy ones.

    git clone https://github.com/cyizhuo/CUB-200-2011-dataset
    git clone https://github.com/pan8915/DeepTexture
    git clone https://github.com/jovanzac/Traffic
    unzip "images_*.zip" -d omniglot
    python benchmarks/honesty.py photos cifar-fs=cifar-fs-test tiny=tiny-imagenet-200/train
    python benchmarks/honesty.py look-alikes birds=CUB-200-2011-dataset textures=DeepTexture/images
    python benchmarks/honesty.py letters letters=omniglot/images_background
    python benchmarks/honesty.py signs signs=Traffic/gtsrb
    python benchmarks/honesty.py many-letters pixels=omniglot --draws 4

Give folders in which an image's own folder is its class. Of photos, 20 classes of at least 60 are
used, and at most 130 photos of a class. These support sets are drawn:

- any classes: chosen at random;
- look-alike classes: a class and those whose mean embeddings are nearest to it;
- letters of one script, which the network does not know;
- random labels: the photos of one class, with labels at random; nothing can be learnt;
- bursts: four versions of each photo, by crops or brightness, or four frames of each traffic sign.

Photos that look alike are found as `fit` finds them; frames are also given as groups. With one
photo of each class, nothing can be held out. "Before" is the rule that chose one temperature,
corrected nothing and knew no groups.

The constants of `estimator/calibration.py` and `estimator/leave_one_out.py` were chosen on
CIFAR-FS's validation classes, Tiny-ImageNet's 17 validation classes of tieredImageNet, textures and
birds, on other draws.

Embeddings and outcomes are kept in `--cache`, and more `--draws` add to them. Each command writes
the table of all outcomes to benchmarks/results/honesty.json and .md, and a figure to docs/figures.
It takes half an hour on a core.
"""

import argparse
import itertools
import json
import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.stats
import torch
from PIL import Image, ImageEnhance

from honesty_report import calibration_plot, markdown, summarise
from look_alikes import crop
from nearshot import FewShotClassifier
from nearshot.data.readers import Skipped, files_under, is_image
from nearshot.errors import InputError
from nearshot.estimator import Embedder
from nearshot.estimator.calibration import Temperatures, class_probabilities, typical_temperature
from nearshot.estimator.groups import find_groups
from nearshot.estimator.leave_one_out import held_out_scores
from nearshot.estimator.state import FittedState
from nearshot.models.efficientnet_lite import VARIANTS
from nearshot.text import with_progress

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
FIGURE = ROOT / "docs" / "figures" / "honesty-calibration.svg"
BACKBONE = "efficientnet-lite0"
MAX_CLASSES = 20
MIN_IMAGES = 60
MAX_IMAGES = 130
N_QUERY = 100  # of a class, at most
N_SHOTS = (1, 2, 3, 5, 10)
N_WAYS = (2, 5, 10)
MEASURES = ("photos", "look-alikes", "letters", "signs", "many-letters")
ANY = "any classes"
LOOK_ALIKE = "look-alike classes"
LETTERS = "letters of one script"
RANDOM = "random labels"
FRAMES_OF_A_SIGN = "frames of a sign"
GIVEN = ", groups given"
MANY = "letters, as pixels"
MANY_WAYS = (100, 1000)
MANY_SIDE = 28
BURST_SHOTS = (1, 2, 3, 5)
N_COPIES = 4
N_COPIED = 8  # photos of each class
N_LETTERS = 10  # of each script
FRAMES = (29, 24, 19, 14)  # of one sign
MIN_SIGNS = 18
EARLIER_WIDTH = 0.7  # of the earlier prior of the temperature's logarithm
EARLIER_GRID = np.linspace(-4, 4, 161)
BIN_EDGES = np.linspace(0.5, 1, 11)

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Photos:
    """Embedded images.

    Attributes:
        features: (image, dim)
        labels: (image,) from 0.
        families: (class,) classes of one family only are drawn together.
        copies: the (image, copy, dim) other versions of images, by what differs.
        look_alike_cosine: of the network; None if only equal features look alike.
    """

    features: Array
    labels: Array
    families: Array
    copies: dict[str, Array]
    look_alike_cosine: float | None = VARIANTS[BACKBONE].look_alike_cosine


@dataclass(frozen=True)
class Problem:
    """A kind of support set: the choice of classes, how many there are, and images of each."""

    kind: str
    n_way: int
    n_shot: int


@dataclass(frozen=True)
class Answer:
    """What one rule says of the queries of a support set, as fractions, and their mean log loss.

    The estimate is NaN, and `covered` False, where no image can be held out. `bins` are, by the
    probability of the answer, how many queries there are, their probabilities' sum, and how many
    are right.
    """

    confidence: float
    log_loss: float
    estimate: float
    covered: bool
    bins: list[list[float]]


@dataclass(frozen=True)
class Outcome:
    """How one support set did."""

    accuracy: float
    now: Answer
    before: Answer


def main() -> None:
    parser = argparse.ArgumentParser(
        description=str(__doc__), formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("measure", choices=[*MEASURES, "report"])
    parser.add_argument("datasets", nargs="*", metavar="NAME=FOLDER")
    parser.add_argument("--draws", type=int, default=200, help="of each problem and dataset")
    parser.add_argument("--cache", type=Path, default=Path("runs/honesty"))
    options = parser.parse_args()
    options.cache.mkdir(parents=True, exist_ok=True)
    for dataset in options.datasets:
        name, _, folder = dataset.partition("=")
        photos = embed_dataset(options.measure, name, Path(folder), options.cache)
        file = options.cache / f"{options.measure}-{name}.json"
        outcomes = read_outcomes(file)
        for problem in with_progress(problems(options.measure, name), name):
            measured = outcomes.setdefault(problem, [])
            for seed in range(len(measured), options.draws):
                measured.append(asdict(measure(photos, problem, seed)))
            write_outcomes(file, outcomes)
    write_report(options.cache)


def read_outcomes(file: Path) -> dict[Problem, list[Any]]:
    """Return the outcomes of each problem, if there are any yet."""
    if not file.is_file():
        return {}
    return {Problem(**row["problem"]): row["outcomes"] for row in json.loads(file.read_text())}


def write_outcomes(file: Path, outcomes: dict[Problem, list[Any]]) -> None:
    """Write the outcomes of each problem."""
    rows = [
        {"problem": asdict(problem), "outcomes": measured} for problem, measured in outcomes.items()
    ]
    file.write_text(json.dumps(rows))


def write_report(cache: Path) -> None:
    """Write the tables and the figure of all outcomes in the cache."""
    outcomes: dict[Problem, list[Any]] = {}
    names = []
    for measure_name in MEASURES:
        for file in sorted(cache.glob(f"{measure_name}-*.json")):
            names.append(file.stem.removeprefix(f"{measure_name}-"))
            for problem, measured in read_outcomes(file).items():
                outcomes.setdefault(problem, []).extend(measured)
    kinds = list(dict.fromkeys(problem.kind for problem in outcomes))
    in_order = sorted(outcomes, key=lambda p: (kinds.index(p.kind), p.n_way, p.n_shot))
    rows = [asdict(problem) | summarise(problem.n_way, outcomes[problem]) for problem in in_order]
    report = {"datasets": names, "backbone": BACKBONE, "rows": rows}
    (RESULTS / "honesty.json").write_text(json.dumps(report, indent=1) + "\n")
    (RESULTS / "honesty.md").write_text(markdown(report))
    FIGURE.write_text(calibration_plot(rows))
    print(markdown(report))


def problems(measure_name: str, name: str) -> list[Problem]:
    """Return the problems that are drawn from a dataset, from easy to hopeless."""
    if measure_name == "letters":
        return [Problem(LETTERS, *values) for values in itertools.product(N_WAYS, N_SHOTS)]
    if measure_name == "many-letters":
        return [Problem(MANY, n_way, 5) for n_way in MANY_WAYS]
    if measure_name == "signs":
        frames = f"bursts: {FRAMES_OF_A_SIGN}"
        kinds = (frames, frames + GIVEN)
        return [Problem(*values) for values in itertools.product(kinds, (2, 10), BURST_SHOTS)]
    if measure_name == "look-alikes":
        ways_and_shots = itertools.product((2, 5), N_SHOTS)
        result = [Problem(f"look-alike {name}", *values) for values in ways_and_shots]
        for kind in ("bursts: crops", "bursts: brightness"):
            ways_and_shots = itertools.product((2, 10), BURST_SHOTS)
            result += [Problem(kind, *values) for values in ways_and_shots]
        return result
    result = []
    for kind in (ANY, LOOK_ALIKE):
        result += [Problem(kind, *values) for values in itertools.product(N_WAYS, N_SHOTS)]
    return result + [Problem(RANDOM, 2, n_shot) for n_shot in N_SHOTS]


def embed_dataset(measure_name: str, name: str, folder: Path, cache: Path) -> Photos:
    """Return the embeddings of a dataset, from the cache if they are there."""
    if measure_name == "many-letters":
        return many_letters(images_by_class(folder, 1, pattern="character*/*"))
    if measure_name == "letters":
        by_class = images_by_class(folder, 1, pattern="character*/*")
        of_script: dict[str, list[str]] = {}
        for class_name in by_class:
            of_script.setdefault(class_name.rpartition("/")[0], []).append(class_name)
        chosen = []
        for script in list(of_script)[::3]:
            chosen += of_script[script][:N_LETTERS]
        paths_of_class = {class_name: by_class[class_name] for class_name in chosen}
    elif measure_name == "signs":
        by_class = images_by_class(folder, MIN_SIGNS, pattern="*_00029.ppm")
        paths_of_class = {key: paths[:MIN_SIGNS] for key, paths in by_class.items()}
    else:
        by_class = images_by_class(folder, MIN_IMAGES)
        names = list(by_class)
        n_classes = min(MAX_CLASSES, len(names))
        chosen = [names[number * len(names) // n_classes] for number in range(n_classes)]
        paths_of_class = {class_name: by_class[class_name][:MAX_IMAGES] for class_name in chosen}
    paths = [path for paths in paths_of_class.values() for path in paths]
    labels = np.repeat(np.arange(len(paths_of_class)), [len(p) for p in paths_of_class.values()])
    families = np.zeros(len(paths_of_class), np.int64)
    if measure_name == "letters":
        scripts = [class_name.rpartition("/")[0] for class_name in paths_of_class]
        families = np.unique(scripts, return_inverse=True)[1]
    features = embedded(cache / f"{name}.npy", paths)
    copies = {}
    if measure_name == "signs":
        frames = [
            path.with_name(path.name.replace("_00029", f"_{frame:05}"))
            for path in paths
            for frame in FRAMES[1:]
        ]
        others = embedded(cache / f"{name}-frames.npy", frames)
        others = others.reshape(len(paths), len(FRAMES) - 1, -1)
        copies[FRAMES_OF_A_SIGN] = np.concatenate([features[:, None], others], axis=1)
    if measure_name == "look-alikes":
        is_copied = np.zeros(len(labels), bool)
        for label in range(len(paths_of_class)):
            is_copied[copied_of_class(np.flatnonzero(labels == label))] = True
        copied = [path for path, is_one in zip(paths, is_copied, strict=True) if is_one]
        for version in ("crops", "brightness"):
            versions = embedded(cache / f"{name}-{version}.npy", copied, version)
            copies[version] = np.full((len(paths), N_COPIES, features.shape[1]), np.nan, np.float32)
            copies[version][is_copied] = versions.reshape(len(copied), N_COPIES, -1)
    return Photos(features, labels, families, copies)


def many_letters(by_class: dict[str, list[Path]]) -> Photos:
    """Return the pixels of all letters, ten drawings of each, as features."""
    features = []
    for paths in by_class.values():
        for path in paths[:10]:
            small = (
                Image.open(path).convert("L").resize((MANY_SIDE, MANY_SIDE), Image.Resampling.BOX)
            )
            features.append(255.0 - np.asarray(small, dtype=np.float32).ravel())
    return Photos(
        np.stack(features),
        np.repeat(np.arange(len(by_class)), 10),
        np.zeros(len(by_class), np.int64),
        {},
        look_alike_cosine=None,
    )


def images_by_class(folder: Path, min_images: int, pattern: str = "*") -> dict[str, list[Path]]:
    """Return the images of each class that has enough."""
    by_class: dict[str, list[Path]] = {}
    for path in files_under(folder, Skipped()):
        if is_image(path.name) and path.match(pattern):
            class_folder = path.parent
            if class_folder.name == "images":  # as in Tiny-ImageNet
                class_folder = class_folder.parent
            # Classes in a train and a test folder are one; letters are in folders of their scripts.
            is_letter = class_folder.name.startswith("character")
            class_name = f"{class_folder.parent.name}/" if is_letter else ""
            by_class.setdefault(class_name + class_folder.name, []).append(path)
    return {
        class_name: sorted(paths)
        for class_name, paths in sorted(by_class.items())
        if len(paths) >= min_images
    }


def embedded(file: Path, paths: list[Path], version: str | None = None) -> Array:
    """Return the embeddings of images, or of four versions of each; from a file if it is there."""
    if not file.is_file():
        embed = Embedder(BACKBONE, device="cpu")
        if version is None:
            features = embed(paths, progress=None)
        else:
            generator = np.random.default_rng(0)
            features = np.concatenate([embed(versions(path, version, generator)) for path in paths])
        np.save(file, features)
    return np.asarray(np.load(file))


def copied_of_class(images: Array) -> Array:
    """Return the images of a class that have versions: files with near names may be of a series."""
    return np.asarray(images[np.arange(N_COPIED) * len(images) // N_COPIED])


def versions(path: Path, version: str, generator: np.random.Generator) -> list[Image.Image]:
    """Return four crops of a photo, or four brightnesses."""
    photo = Image.open(path).convert("RGB")
    if version == "crops":
        return [crop(photo, generator) for _ in range(N_COPIES)]
    factors = generator.uniform(0.7, 1.3, N_COPIES)
    return [ImageEnhance.Brightness(photo).enhance(float(factor)) for factor in factors]


def measure(photos: Photos, problem: Problem, seed: int) -> Outcome:
    """Draw a support set, and compare what its classifier says with the rest of the images."""
    generator = np.random.default_rng([seed, problem.n_way, problem.n_shot, len(problem.kind)])
    images_of_classes = list(draw_classes(photos, problem, generator))
    images = np.concatenate([images[: problem.n_shot] for images in images_of_classes])
    codes = np.arange(problem.n_way).repeat(problem.n_shot)
    support = photos.features[images]
    if problem.kind.startswith("bursts: "):
        version = problem.kind.removeprefix("bursts: ").removesuffix(GIVEN)
        copies = photos.copies[version][images]
        support = copies.reshape(-1, copies.shape[2])
        codes = codes.repeat(copies.shape[1])
    queries = [images[problem.n_shot :][:N_QUERY] for images in images_of_classes]
    truth = np.arange(problem.n_way).repeat([len(images) for images in queries])
    if problem.kind.endswith(GIVEN):
        groups = np.arange(len(images)).repeat(len(codes) // len(images))
    else:
        found = find_groups(support, codes, look_alike_cosine=photos.look_alike_cosine)[0]
        groups = found.numbers.numpy()
    model = FewShotClassifier(None).fit(support, codes, groups=groups)
    state = model.fitted_state()
    scores = state.answer(state.prepare(photos.features[np.concatenate(queries)])).scores
    accuracy = float((scores.argmax(1).numpy() == truth).mean())
    estimate = math.nan
    interval = (math.nan, math.nan)
    try:
        expected = model.estimate_accuracy()
        estimate = expected.mean
        interval = expected.interval
    except InputError:
        pass  # one image of each class
    return Outcome(
        accuracy=accuracy,
        now=answer(scores, truth, state.temperatures, estimate, interval),
        before=answer(scores, truth, *earlier_rule(state)),
    )


def earlier_rule(state: FittedState) -> tuple[Temperatures, float, tuple[float, float]]:
    """Return the most probable temperature, the share of held-out images, and its interval."""
    typical = typical_temperature(state.support, "ridge")
    held_out = state.held_out
    if not state.groups.are_single:
        held_out = held_out_scores(state.support, "ridge")  # each image on its own
    n = len(held_out.codes)
    if n == 0:
        return Temperatures.single(typical), math.nan, (math.nan, math.nan)
    images = torch.arange(n)
    log_posterior = []
    for log_multiple in EARLIER_GRID:
        log_probabilities = (held_out.scores / math.exp(log_multiple)).log_softmax(1)
        log_likelihood = float(log_probabilities[images, held_out.codes].sum())
        log_posterior.append(log_likelihood - (log_multiple / EARLIER_WIDTH) ** 2 / 2)
    best = float(EARLIER_GRID[int(np.argmax(log_posterior))])
    n_right = int((held_out.scores.argmax(1) == held_out.codes).sum())
    interval = scipy.stats.binomtest(n_right, n).proportion_ci(0.95, method="exact")
    temperatures = Temperatures.single(typical * math.exp(best))
    return temperatures, n_right / n, (float(interval.low), float(interval.high))


def answer(
    scores: torch.Tensor,
    truth: Array,
    temperatures: Temperatures,
    estimate: float,
    interval: tuple[float, float],
) -> Answer:
    """Return what a rule says of the queries, and how right it is."""
    probabilities = class_probabilities(scores, temperatures).numpy()
    highest = probabilities.max(1)
    is_right = probabilities.argmax(1) == truth
    of_truth = probabilities[np.arange(len(truth)), truth]
    numbers = np.digitize(highest, BIN_EDGES[1:-1])
    sums = [np.ones_like(highest), highest, is_right]
    bins = [np.bincount(numbers, values, len(BIN_EDGES) - 1).round(3).tolist() for values in sums]
    return Answer(
        confidence=float(highest.mean()),
        log_loss=float(-np.log(of_truth.clip(min=1e-12)).mean()),
        estimate=estimate,
        covered=bool(interval[0] <= is_right.mean() <= interval[1]),
        bins=bins,
    )


def draw_classes(
    photos: Photos, problem: Problem, generator: np.random.Generator
) -> Iterator[Array]:
    """Yield the images of each class of a support set, in random order."""
    first = generator.integers(len(photos.families))
    if problem.kind == RANDOM:
        images = generator.permutation(np.flatnonzero(photos.labels == first))
        yield from np.array_split(images, problem.n_way)
        return
    classes = np.flatnonzero(photos.families == photos.families[first])
    chosen = generator.choice(classes, problem.n_way, replace=False)
    if problem.kind.startswith("look-alike"):
        means = class_means(photos)
        distances = np.square(means - means[first]).sum(1)
        chosen = np.argsort(distances)[: problem.n_way]
    for label in chosen:
        images = np.flatnonzero(photos.labels == label)
        if problem.kind in ("bursts: crops", "bursts: brightness"):
            copied = generator.permutation(copied_of_class(images))
            yield np.concatenate(
                [copied[: problem.n_shot], generator.permutation(np.setdiff1d(images, copied))]
            )
        else:
            yield generator.permutation(images)


def class_means(photos: Photos) -> Array:
    """Return the mean direction of each class, (class, dim)."""
    directions = photos.features / np.linalg.norm(photos.features, axis=1, keepdims=True)
    labels = range(len(photos.families))
    return np.stack([directions[photos.labels == label].mean(0) for label in labels])


if __name__ == "__main__":
    main()
