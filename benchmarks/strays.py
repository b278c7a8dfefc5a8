"""How well strays are told from a few classes, when strays of their kind, or of others, are taught.

    python benchmarks/strays.py birds=CUB/test flowers=flowers textures=DeepTexture/images

Each name has a folder with one folder of photos per class. A draw takes five of its classes with 2,
5 or 10 photos each, and ten strays of five more classes. Then it measures, as AUROC in per cent of
novelty and as the share rejected at `reject_rate=0.05`, further photos of the classes against:
further strays of the taught classes ("same"), classes of the same name that were not taught
("other"), and photos of the other names ("far"). The classes' own accuracy cannot change: labels
and probabilities do not depend on strays. The results are written to
benchmarks/results/strays.{json,md}. Weights of strays and the rule of novelty were chosen on
textures, Omniglot's background set and CIFAR-FS's validation classes.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
import tyro
from sklearn.metrics import roc_auc_score

from nearshot import FewShotClassifier
from nearshot.data.store import data_folder
from nearshot.estimator import Embedder
from nearshot.estimator.find_images import read_support
from nearshot.io import write_json
from nearshot.models.feature_sets import FeatureSets

RESULTS = Path(__file__).parent / "results"
SHOTS = (2, 5, 10)
N_CLASSES = 5
N_TAUGHT = 10  # strays
N_QUERY = 6  # photos of each class
RATE = 0.05
N_CLASSES_EMBEDDED = 15
N_IMAGES_EMBEDDED = 16  # of each class

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Options:
    """Measure how well strays are told from a few classes."""

    folders: Annotated[tuple[str, ...], tyro.conf.Positional]
    """Each NAME=FOLDER."""
    draws: int = 40
    backbone: str = "efficientnet-lite0"


@dataclass(frozen=True, eq=False)
class Photos:
    """Embedded photos: features (image, dim) and the class of each, (image,)."""

    features: Array
    codes: Array


@dataclass(frozen=True, eq=False)
class Draw:
    """The photos of one draw, by indices; `far` are features."""

    support: Array
    strays: Array
    own: Array
    same: Array
    other: Array
    far: Array


def embed(embedder: Embedder, folder: str) -> Photos:
    """Embed the first photos of some classes, evenly spread over the folder's."""
    labelled = read_support(folder)
    names = labelled.class_names
    n_chosen = min(len(names), N_CLASSES_EMBEDDED)
    chosen = [names[number * len(names) // n_chosen] for number in range(n_chosen)]
    paths = []
    codes = []
    for code, name in enumerate(chosen):
        of_class = [
            path
            for path, label in zip(labelled.paths, labelled.labels, strict=True)
            if label == name
        ]
        paths += of_class[:N_IMAGES_EMBEDDED]
        codes += [code] * len(of_class[:N_IMAGES_EMBEDDED])
    return Photos(embedder(paths), np.array(codes))


def draw(photos: Photos, others: list[Photos], n_shot: int, seed: int) -> Draw:
    """Draw classes, strays and queries."""
    generator = np.random.default_rng(seed)
    classes = generator.permutation(int(photos.codes.max()) + 1)
    n_taught = min(N_CLASSES, (len(classes) - N_CLASSES) // 2)
    images = {code: generator.permutation(np.flatnonzero(photos.codes == code)) for code in classes}
    own = classes[:N_CLASSES]
    taught = classes[N_CLASSES : N_CLASSES + n_taught]
    untaught = classes[N_CLASSES + n_taught :][:N_CLASSES]
    per_class = N_TAUGHT // n_taught
    far = np.concatenate([other.features for other in others])
    return Draw(
        support=np.concatenate([images[code][:n_shot] for code in own]),
        strays=np.concatenate([images[code][:per_class] for code in taught]),
        own=np.concatenate([images[code][n_shot : n_shot + N_QUERY] for code in own]),
        same=np.concatenate([images[code][per_class : per_class + N_QUERY] for code in taught]),
        other=np.concatenate([images[code][:N_QUERY] for code in untaught]),
        far=far[generator.permutation(len(far))[: N_CLASSES * N_QUERY]],
    )


def measure(photos: Photos, drawn: Draw, sets: FeatureSets | None) -> dict[str, dict[str, float]]:
    """Return AUROC, rates of rejection and estimated rates, without and with strays."""
    measured = {}
    for name, strays in (("without", None), ("with", photos.features[drawn.strays])):
        model = FewShotClassifier(None, feature_sets=sets, reject_rate=RATE)
        model.fit(photos.features[drawn.support], photos.codes[drawn.support], none_of_these=strays)
        own = model.novelty(photos.features[drawn.own])
        values = {"own rejected": float((own > model.threshold_).mean())}
        kinds = {
            "same": photos.features[drawn.same],
            "other": photos.features[drawn.other],
            "far": drawn.far,
        }
        for kind, features in kinds.items():
            novelty = model.novelty(features)
            is_stray = np.arange(len(own) + len(novelty)) >= len(own)
            values[f"{kind} auroc"] = float(roc_auc_score(is_stray, np.append(own, novelty)))
            values[f"{kind} rejected"] = float((novelty > model.threshold_).mean())
        estimate = model.estimate_rejection()
        values["own estimated"] = float("nan") if estimate.own is None else estimate.own
        values["same estimated"] = float("nan") if estimate.strays is None else estimate.strays
        measured[name] = values
    return measured


def report(results: dict[str, Any]) -> str:
    """Return the tables."""
    lines = [
        "# Strays, measured",
        "",
        f"`python benchmarks/strays.py`: {N_CLASSES} classes, {N_TAUGHT} taught strays, mean of "
        f"{results['draws']} draws, `{results['backbone']}`. In per cent, without → with strays: "
        "AUROC of novelty, then what is rejected of it at `reject_rate=0.05`; in brackets what "
        "`estimate_rejection` says.",
        "",
        "| | photos | like the taught | other classes | other kinds | own rejected |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for row in results["rows"]:
        without = row["without"]
        taught = row["with"]
        cells = [row["name"], str(row["n_shot"])]
        for kind in ("same", "other", "far"):
            auroc = f"{100 * without[f'{kind} auroc']:.0f} → {100 * taught[f'{kind} auroc']:.0f}"
            before = 100 * without[f"{kind} rejected"]
            rejected = f"{before:.0f} → {100 * taught[f'{kind} rejected']:.0f}"
            if kind == "same":
                rejected += f" ({100 * taught['same estimated']:.0f})"
            cells.append(f"{auroc}; {rejected}")
        own = f"{100 * without['own rejected']:.0f} → {100 * taught['own rejected']:.0f}"
        cells.append(f"{own} ({100 * taught['own estimated']:.0f})")
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def main(options: Options) -> None:
    """Measure, and write the results."""
    embedder = Embedder(options.backbone, cache_dir=data_folder() / "embeddings", all_sets=True)
    photos = {}
    for folder in options.folders:
        name, path = folder.split("=", 1)
        photos[name] = embed(embedder, path)
    rows = []
    for name, of_name in photos.items():
        others = [other for other_name, other in photos.items() if other_name != name]
        for n_shot in SHOTS:
            measured = [
                measure(of_name, draw(of_name, others, n_shot, seed), embedder.feature_sets)
                for seed in range(options.draws)
            ]
            row: dict[str, Any] = {"name": name, "n_shot": n_shot}
            for state in ("without", "with"):
                row[state] = {
                    key: float(np.mean([values[state][key] for values in measured]))
                    for key in measured[0][state]
                }
            rows.append(row)
            print(name, n_shot, row["with"], flush=True)
    results = {"backbone": options.backbone, "draws": options.draws, "rows": rows}
    write_json(RESULTS / "strays.json", results)
    (RESULTS / "strays.md").write_text(report(results), encoding="utf-8")


if __name__ == "__main__":
    main(tyro.cli(Options))
