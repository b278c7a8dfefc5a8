"""Which network, which classifier and which "none of these" suit a few photographs per class.

    git clone https://github.com/3ba2ii/Flower-Classifier
    git clone https://github.com/cyizhuo/CUB-200-2011-dataset
    git clone https://github.com/jovanzac/Traffic
    python benchmarks/photos.py flowers=Flower-Classifier/flowers birds=CUB-200-2011-dataset
    python benchmarks/photos.py signs=Traffic/gtsrb --images 18 --pattern '*_00029.ppm'

Give any folders in which an image's own folder is its class. Of each, 60 classes of 40 images are
used, evenly spread over the sorted names; with the slower ResNet-12, every second class and 20
images of it. Of traffic signs, only the last of the 30 frames of each sign is used: the others show
the same sign. 19 classes have at least 18 signs.

Every image is embedded once, and the embeddings are kept in `--cache`. Choices were made on flowers
and on the validation classes of CIFAR-FS; birds were then measured once. No setting was chosen on
signs, but the row of HOG alone was added because an earlier trial found it the best on them.
Results are added to those of earlier datasets. It takes about a quarter of an hour on a core.
"""

import argparse
import json
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score

from nearshot import FewShotClassifier
from nearshot.data.readers import Skipped, files_under, is_image
from nearshot.estimator import Embedder
from nearshot.estimator.read_images import read_each
from nearshot.evaluation import CLASSIFIERS
from nearshot.text import with_progress
from photos_report import markdown, summary

RESULTS = Path(__file__).parent / "results"
N_CLASSES = 60
N_IMAGES = 40
N_DRAWS = 20
N_QUERY = 15
SHOTS = (1, 2, 5, 10, 20)
MAIN_WAY = 10
OTHER_WAYS = (5, 20, 50)
OTHER_SHOTS = (1, 5, 20)
PHOTOS = "efficientnet-lite0"
SMALL = "resnet12-nca-cifar-fs"
N_COLOURS = 64
MAX_LOGISTIC = 100  # support images; more take scikit-learn minutes for all draws
# classes, and images of each, that are also embedded in other views
VIEW_CLASSES = 20
VIEW_SUPPORT = 5
UNEVEN_WAYS = (5, 10, 20)
UNEVEN_SIZES = (1, 2, 3, 5, 10, 20)
RATE = 0.05
Array = npt.NDArray[Any]


class Photos(NamedTuple):
    """Features of images, and their classes."""

    features: Array  # (image, dim)
    labels: Array  # (image,)
    centre: Array | None = None  # the mean feature of the network's training set


class Draw(NamedTuple):
    """A support set, queries of its classes, and of as many other classes."""

    support: Array
    labels: Array
    query: Array
    query_labels: Array
    strangers: Array


def find_photos(folder: Path, n_images: int, pattern: str) -> dict[str, list[Path]]:
    """Return the images of some classes, evenly spread over all that have enough."""
    by_class: dict[str, list[Path]] = {}
    for path in files_under(folder, Skipped()):
        if is_image(path.name) and path.match(pattern):
            by_class.setdefault(path.parent.name, []).append(path)
    names = sorted(name for name, paths in by_class.items() if len(paths) >= n_images)
    n_classes = min(N_CLASSES, len(names))
    chosen = [names[number * len(names) // n_classes] for number in range(n_classes)]
    return {name: sorted(by_class[name], key=lambda path: path.name)[:n_images] for name in chosen}


def thinned(photos: dict[str, list[Path]]) -> dict[str, list[Path]]:
    """Return the images for the slower network: half of many classes, and half of each."""
    if len(photos) <= N_CLASSES // 2:
        return photos
    return {
        name: paths[: len(paths) // 2]
        for number, (name, paths) in enumerate(photos.items())
        if number % 2 == 0
    }


def thinned_features(photos: Photos) -> Photos:
    """Return the features of the same images."""
    if len(np.unique(photos.labels)) <= N_CLASSES // 2:
        return photos
    places = np.arange(len(photos.labels))
    n_images = np.bincount(photos.labels).max()
    chosen = (photos.labels % 2 == 0) & (places % n_images < n_images // 2)
    return photos._replace(features=photos.features[chosen], labels=photos.labels[chosen])


def embedded(name: str, photos: dict[str, list[Path]], backbone: str, cache: Path) -> Photos:
    """Return the features of the images; what is in the cache is not embedded again."""
    paths = [path for of_class in photos.values() for path in of_class]
    labels = np.repeat(np.arange(len(photos)), [len(of_class) for of_class in photos.values()])
    file = cache / f"{name}-{backbone}.npy"
    embed: Any = hog_and_colours if backbone == "hog" else Embedder(backbone, device="cpu")
    if not file.is_file():
        print(f"{name}: {len(paths):,} images, {backbone}")
        features = embed(paths) if backbone == "hog" else embed(paths, progress=None)
        cache.mkdir(parents=True, exist_ok=True)
        np.save(file, features)
    return Photos(np.load(file), labels, getattr(embed, "centre", None))


def hog_and_colours(paths: list[Path]) -> Array:
    """Return histograms of gradients (8 × 8 cells, 9 angles) and colours, of unit length."""
    histograms = []
    for square in read_each(paths, lambda content: content.square(64)):
        grey = np.asarray(square, dtype=np.float64).mean(2)
        down, across = np.gradient(grey)
        sizes = np.hypot(down, across)
        directions = (np.arctan2(down, across) % np.pi / np.pi * 9).astype(int) % 9
        cells = np.zeros((8, 8, 9))
        rows, columns = np.indices(grey.shape) // 8
        np.add.at(cells, (rows, columns, directions), sizes)
        blocks = np.lib.stride_tricks.sliding_window_view(cells, (2, 2), (0, 1)).reshape(7, 7, 36)
        gradients = (blocks / (np.linalg.norm(blocks, axis=2, keepdims=True) + 1e-9)).ravel()
        levels = np.asarray(square) // 64
        colours = np.bincount(
            (levels[..., 0] * 16 + levels[..., 1] * 4 + levels[..., 2]).ravel(), minlength=N_COLOURS
        )
        histograms.append(
            np.concatenate([unit(gradients[None])[0], unit(np.sqrt(colours)[None])[0]])
        )
    return np.stack(histograms).astype(np.float32)


def draws(photos: Photos, n_way: int, n_shot: int, *, n_query: int = N_QUERY) -> Iterator[Draw]:
    """Draw support sets, and the rest of their classes' images as queries."""
    classes = [np.flatnonzero(photos.labels == label) for label in np.unique(photos.labels)]
    for seed in range(N_DRAWS):
        generator = np.random.default_rng([n_way, n_shot, seed])
        mixed = [
            generator.permutation(classes[number])
            for number in generator.permutation(len(classes))[: 2 * n_way]
        ]
        query = [images[n_shot : n_shot + n_query] for images in mixed[:n_way]]
        strangers = np.concatenate(
            [images[:n_query] for images in mixed[n_way:]] or [np.zeros(0, int)]
        )
        yield Draw(
            photos.features[np.concatenate([images[:n_shot] for images in mixed[:n_way]])],
            np.repeat(np.arange(n_way), n_shot),
            photos.features[np.concatenate(query)],
            np.repeat(np.arange(n_way), [len(images) for images in query]),
            photos.features[strangers],
        )


def unit(features: Array) -> Array:
    return np.asarray(features / np.linalg.norm(features, axis=1, keepdims=True))


def unchanged(draw: Draw, centre: Array | None) -> tuple[Array, Array]:
    return draw.support, draw.query


def normalised(draw: Draw, centre: Array | None) -> tuple[Array, Array]:
    offset = 0 if centre is None else centre
    return unit(draw.support - offset), unit(draw.query - offset)


def support_centred(draw: Draw, centre: Array | None) -> tuple[Array, Array]:
    mean = draw.support.mean(0)
    return unit(draw.support - mean), unit(draw.query - mean)


def defined(name: str) -> Callable[[Array, Array, Array], Array]:
    """Return a classifier of nearshot as a function of support, labels and query."""

    def answers(support: Array, labels: Array, query: Array) -> Array:
        n_way = labels.max() + 1
        images = torch.from_numpy(support).double().view(n_way, -1, support.shape[1])
        return CLASSIFIERS[name](images, torch.from_numpy(query).double()).argmax(1).numpy()

    return answers


def logistic(strength: float) -> Callable[[Array, Array, Array], Array]:
    """Return scikit-learn's logistic regression."""

    def answers(support: Array, labels: Array, query: Array) -> Array:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            warnings.filterwarnings("ignore", "The number of unique classes")  # one image of each
            return np.asarray(
                LogisticRegression(C=strength, max_iter=200).fit(support, labels).predict(query)
            )

    return answers


TREATMENTS = {
    "as they are": unchanged,
    "normalised": normalised,
    "centred on the support": support_centred,
}
HEADS: dict[str, Callable[[Array, Array, Array], Array]] = {
    **{name: defined(name) for name in CLASSIFIERS},
    "logistic, C = 30": logistic(30.0),
}


def mean_of(values: list[float]) -> dict[str, float]:
    """Return the mean over draws and its 95 % interval."""
    return {
        "mean": float(np.mean(values)),
        "interval95": float(1.96 * np.std(values, ddof=1) / len(values) ** 0.5),
    }


def accuracies(photos: Photos, settings: list[tuple[int, int]]) -> list[dict[str, Any]]:
    """Return the accuracy of every classifier by ways, shots and feature treatment."""
    rows = []
    n_classes = len(np.unique(photos.labels))
    n_images = np.bincount(photos.labels).max()
    for n_way, n_shot in with_progress(
        [setting for setting in settings if setting[0] <= n_classes], "classifiers"
    ):
        if 2 * n_shot > n_images:
            continue
        percents: dict[tuple[str, str], list[float]] = {}
        for draw in draws(photos, n_way, n_shot):
            for treatment, treat in TREATMENTS.items():
                support, query = treat(draw, photos.centre)
                for head, answers in HEADS.items():
                    is_slow = head.startswith("logistic") and len(support) > MAX_LOGISTIC
                    if is_slow or (n_way != MAIN_WAY and treatment != "normalised"):
                        continue
                    right = answers(support, draw.labels, query) == draw.query_labels
                    percents.setdefault((head, treatment), []).append(100 * float(right.mean()))
        rows += [
            {
                "n_way": n_way,
                "n_shot": n_shot,
                "head": head,
                "features": treatment,
                "accuracy_percent": mean_of(values),
            }
            for (head, treatment), values in percents.items()
        ]
    return rows


def uneven(photos: Photos) -> list[dict[str, Any]]:
    """Return accuracies if classes have different numbers of images."""
    rows = []
    classes = [np.flatnonzero(photos.labels == label) for label in np.unique(photos.labels)]
    sizes = [size for size in UNEVEN_SIZES if 2 * size <= len(classes[0])]
    for n_way in (way for way in UNEVEN_WAYS if way <= len(classes)):
        percents: dict[str, list[float]] = {}
        for seed in range(N_DRAWS):
            generator = np.random.default_rng([n_way, seed])
            mixed = [
                generator.permutation(classes[number])
                for number in generator.permutation(len(classes))[:n_way]
            ]
            counts = generator.choice(sizes, n_way)
            support = np.concatenate(
                [images[:count] for images, count in zip(mixed, counts, strict=True)]
            )
            query = np.concatenate([images[max(sizes) :][:N_QUERY] for images in mixed])
            labels = np.repeat(np.arange(n_way), counts)
            truth = np.repeat(np.arange(n_way), len(query) // n_way)
            for name in CLASSIFIERS:
                model = FewShotClassifier(
                    None, classifier=name, centre=photos.centre, temperature=1.0
                )
                answers = model.fit(photos.features[support], labels).predict(
                    photos.features[query]
                )
                percents.setdefault(name, []).append(100 * float((answers == truth).mean()))
            known = unit(photos.features[support])
            new = unit(photos.features[query])
            for name, balance in (
                ("logistic, C = 30", None),
                ("logistic, C = 30, balanced", "balanced"),
            ):
                regression = LogisticRegression(C=30, max_iter=200, class_weight=balance).fit(
                    known, labels
                )
                percents.setdefault(name, []).append(
                    100 * float((regression.predict(new) == truth).mean())
                )
        rows += [
            {"n_way": n_way, "head": k, "accuracy_percent": mean_of(v)} for k, v in percents.items()
        ]
    return rows


def unknowns(photos: Photos) -> list[dict[str, Any]]:
    """Return how well unseen classes are detected, and the rates that `reject_rate` reaches."""
    rows = []
    n_classes = len(np.unique(photos.labels))
    n_images = np.bincount(photos.labels).max()
    n_way = min(MAIN_WAY, n_classes // 2)
    for n_shot in with_progress([shot for shot in SHOTS if 2 * shot <= n_images], "unknown"):
        auroc: dict[str, list[float]] = {}
        rates: dict[str, list[float]] = {}
        for draw in draws(photos, n_way, n_shot):
            truth = np.repeat([0, 1], [len(draw.query), len(draw.strangers)])
            models = {
                name: FewShotClassifier(
                    None, classifier=name, centre=photos.centre, reject_rate=RATE, reject_label=-1
                ).fit(draw.support, draw.labels)
                for name in ("auto", "centroid")
            }
            for kind, values in newness(
                models, np.concatenate([draw.query, draw.strangers])
            ).items():
                auroc.setdefault(kind, []).append(100 * float(roc_auc_score(truth, values)))
            for name, model in models.items():
                for group, images in (("known", draw.query), ("unseen", draw.strangers)):
                    rejected = 100 * float((model.novelty(images) > model.threshold_).mean())
                    rates.setdefault(f"{name}, {group}", []).append(rejected)
        rows.append(
            {
                "n_way": n_way,
                "n_shot": n_shot,
                "auroc_percent": {kind: mean_of(values) for kind, values in auroc.items()},
                "rejected_percent": {kind: mean_of(values) for kind, values in rates.items()},
            }
        )
    return rows


def newness(models: dict[str, FewShotClassifier], images: Array) -> dict[str, Array]:
    """Return how new images are, in several ways; higher is newer."""
    fitted = models["auto"].fitted_state()
    query = fitted.prepare(images)
    scores = fitted.answer(query).scores
    return {
        "distance to the class mean": models["centroid"].novelty(images),
        "distance to the nearest photo": torch.cdist(query, fitted.support.features)
        .amin(1)
        .numpy(),
        "highest probability": 1 - models["auto"].predict_proba(images).max(1),
        "highest score": -scores.amax(1).numpy(),
        "energy": -(scores / models["auto"].temperature_).logsumexp(1).numpy(),
        "distance and score": models["auto"].novelty(images),
    }


def views(photos: dict[str, list[Path]], plain: Photos, cache: Path) -> list[dict[str, Any]]:
    """Return the accuracy with support images in several views, for 10 of the first classes."""
    embedder = Embedder(PHOTOS, device="cpu")
    side = 256
    paths = [
        path
        for of_class in list(photos.values())[:VIEW_CLASSES]
        for path in of_class[:VIEW_SUPPORT]
    ]
    network = embedder.networks[0]
    file = cache / "views.npy"
    if not file.is_file():
        cut = side - embedder.spec.input_size
        embeddings = []
        for square in read_each(paths, lambda content: content.square(side)):
            large = np.asarray(square)
            middle = large[cut // 2 : side - cut // 2, cut // 2 : side - cut // 2]
            corners = [
                large[y : y + side - cut, x : x + side - cut] for y in (0, cut) for x in (0, cut)
            ]
            embeddings.append(network.embed_squares(np.stack([middle[:, ::-1], *corners])))
        np.save(file, np.stack(embeddings))
    more = np.load(file).reshape(VIEW_CLASSES, VIEW_SUPPORT, 5, -1)
    features = plain.features.reshape(len(photos), N_IMAGES, -1)[:VIEW_CLASSES]
    rows = []
    for n_shot in (1, 2, 5):
        found_by: dict[str, list[float]] = {}
        for seed in range(N_DRAWS):
            generator = np.random.default_rng([n_shot, seed])
            classes = generator.permutation(VIEW_CLASSES)[:10]
            images = generator.permutation(VIEW_SUPPORT)[:n_shot]
            query = features[classes, VIEW_SUPPORT:].reshape(-1, features.shape[2])
            truth = np.repeat(np.arange(10), N_IMAGES - VIEW_SUPPORT)
            for kind, n_views in (("one view", 0), ("and mirrored", 1), ("and four corners", 5)):
                chosen = np.concatenate(
                    [features[classes][:, images][:, :, None], more[classes][:, images, :n_views]],
                    axis=2,
                )
                support = chosen.reshape(10, -1, features.shape[2]).reshape(-1, features.shape[2])
                labels = np.repeat(np.arange(10), n_shot * (1 + n_views))
                answers = defined("ridge")(unit(support), labels, unit(query))
                found_by.setdefault(kind, []).append(100 * float((answers == truth).mean()))
        rows += [
            {"n_shot": n_shot, "views": k, "accuracy_percent": mean_of(v)}
            for k, v in found_by.items()
        ]
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=str(__doc__), formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "datasets", nargs="+", metavar="NAME=FOLDER", help="images in folders by class"
    )
    parser.add_argument(
        "--images",
        type=int,
        default=N_IMAGES,
        help="images of a class; classes of fewer are skipped",
    )
    parser.add_argument("--pattern", default="*", help="which file names are read (default: all)")
    parser.add_argument(
        "--small", nargs="*", default=["cifar-fs"], help="datasets that are shown with ResNet-12"
    )
    parser.add_argument(
        "--views", default="flowers", help="the dataset on which more views are tried"
    )
    parser.add_argument(
        "--cache", type=Path, default=Path("photos-cache"), help="where embeddings are kept"
    )
    parser.add_argument(
        "--output",
        type=Path,
        default=RESULTS,
        help="where results go (default: benchmarks/results)",
    )
    options = parser.parse_args()
    file = options.output / "photos.json"
    report: dict[str, Any] = {"datasets": {}}
    if file.is_file():
        report |= json.loads(file.read_text())
    report |= {"draws": N_DRAWS, "queries": N_QUERY, "rate": RATE}
    grid = [(MAIN_WAY, shot) for shot in SHOTS] + [
        (way, shot) for way in OTHER_WAYS for shot in OTHER_SHOTS
    ]
    for argument in options.datasets:
        name, folder = argument.split("=", 1)
        photos = find_photos(Path(folder), options.images, options.pattern)
        features = embedded(name, photos, PHOTOS, options.cache)
        hog = thinned_features(embedded(name, photos, "hog", options.cache))
        few = {
            "hog": hog,
            "hog alone": hog._replace(features=hog.features[:, :-N_COLOURS]),
            SMALL: embedded(name, thinned(photos), SMALL, options.cache),
            PHOTOS: thinned_features(features),
        }
        network = SMALL if name in options.small else PHOTOS
        shown = few[SMALL] if network == SMALL else features
        report["datasets"][name] = {
            "n_classes": len(photos),
            "n_images": options.images,
            "network": network,
            "networks": {
                network_name: accuracies(features, [(MAIN_WAY, 5)])
                for network_name, features in few.items()
            },
            "accuracy": accuracies(shown, grid),
            "uneven": uneven(shown),
            "unknown": unknowns(shown),
        }
        if name == options.views:
            report["views"] = views(photos, features, options.cache)
    options.output.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(report, indent=1) + "\n")
    text = markdown(report)
    (options.output / "photos.md").write_text(text)
    (options.output / "photos-summary.md").write_text(summary(report))
    print(text)


if __name__ == "__main__":
    main()
