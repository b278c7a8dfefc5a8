"""Feature sets: which ones a mixture should choose from.

Three kinds of images, none of which the classifier's accuracy is reported on: textures
(https://github.com/pan8915/DeepTexture), letters (Omniglot's background set) and small photographs
(the 16 validation classes of CIFAR-FS, a folder each):

    python benchmarks/feature_sets.py DeepTexture/images images_background cifar-fs/val

Writes benchmarks/results/feature-sets.json and .md.
"""

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from nearshot import FewShotClassifier
from nearshot.data.readers import is_image
from nearshot.estimator import Embedder
from nearshot.estimator.feature_sets import FeatureSets
from nearshot.models.recommended import MORE_ACCURATE, PHOTOS, SMALL
from photos import RESULTS, Photos, draws, mean_of
from photos_report import number, table

N_WAY = 10
N_SHOTS = (2, 5)
N_IMAGES = 20  # of a class
MAX_CLASSES = 30
KINDS = ("textures", "letters", "small photographs")


def images_by_class(folder: Path) -> dict[str, list[Path]]:
    """Return the first images of up to 30 classes: all folders with enough images, evenly."""
    by_class: dict[str, list[Path]] = {}
    for path in sorted(folder.rglob("*")):
        if is_image(path.name):
            by_class.setdefault(str(path.parent.relative_to(folder)), []).append(path)
    names = sorted(name for name, paths in by_class.items() if len(paths) >= N_IMAGES)
    n_classes = min(MAX_CLASSES, len(names))
    chosen = [names[number * len(names) // n_classes] for number in range(n_classes)]
    return {name: by_class[name][:N_IMAGES] for name in chosen}


def variants(sets: FeatureSets) -> dict[str, FeatureSets]:
    """Return the sets with fewer candidates: the plain one, without each set, and all."""
    names = {"plain ridge": sets.candidates[:1], "mixture": sets.candidates}
    for feature_set in sets.sets:
        if feature_set not in sets.plain:
            names[f"without {feature_set.name}"] = _without(sets, feature_set.name)
    return {name: FeatureSets(sets.sets, candidates) for name, candidates in names.items()}


def _without(sets: FeatureSets, name: str) -> tuple[tuple[str, ...], ...]:
    """Return the candidates without a set; the roots of the embedding become the embedding."""
    (plain,) = sets.candidates[0]
    is_root = sets.columns(name) == sets.columns(plain)
    candidates = [sets.candidates[0]]
    for candidate in sets.candidates[1:]:
        if is_root:
            kept = tuple(plain if part == name else part for part in candidate)
        else:
            kept = tuple(part for part in candidate if part != name)
        if kept and kept not in candidates:
            candidates.append(kept)
    return tuple(candidates)


def measured(photos: Photos, sets: FeatureSets, n_shot: int) -> dict[str, Any]:
    """Return the accuracy in per cent and the log loss, means over draws."""
    percents = []
    losses = []
    for draw in draws(photos, N_WAY, n_shot):
        model = FewShotClassifier(None, feature_sets=sets).fit(draw.support, draw.labels)
        probabilities = model.predict_proba(draw.query)
        right = probabilities.argmax(1) == draw.query_labels
        percents.append(100 * float(right.mean()))
        of_label = probabilities[np.arange(len(draw.query)), draw.query_labels]
        losses.append(-float(np.log(of_label.clip(1e-12)).mean()))
    return {"accuracy": mean_of(percents), "log_loss": mean_of(losses)}


def rows_of(
    backbone: str, images: Mapping[str, Mapping[str, Sequence[Path]]], cache: Path | None
) -> dict[str, Any]:
    """Return the rows of a network: variant, kind, number of photos."""
    embedder = Embedder(backbone, device="cpu", cache_dir=cache, all_sets=True)
    if embedder.feature_sets is None:
        raise ValueError(backbone)
    sets = embedder.feature_sets
    if len(sets.plain) == 1:
        rows = variants(sets)
    else:
        plain = FeatureSets(sets.sets, sets.candidates[:1])
        rows = {"plain ridge": plain, "mixture": sets}
    results: dict[str, Any] = {name: {} for name in rows}
    for kind, by_class in images.items():
        paths = [path for of_class in by_class.values() for path in of_class]
        labels = np.repeat(np.arange(len(by_class)), N_IMAGES)
        photos = Photos(embedder(paths, progress=None), labels)
        for name, row in rows.items():
            results[name][kind] = {shot: measured(photos, row, shot) for shot in N_SHOTS}
    return results


def markdown(report: Mapping[str, Any]) -> str:
    """Return the tables of a report."""
    text = (
        f"Accuracy in per cent, {N_WAY} classes with {' or '.join(map(str, N_SHOTS))} images each, "
        "and the log loss with 5, mean over the three kinds. Means of 20 draws and their 95 % "
        "intervals.\n"
    )
    for backbone, rows in report.items():
        body = []
        for name, kinds in rows.items():
            cells = []
            for kind in KINDS:
                by_shot = [kinds[kind][shot]["accuracy"] for shot in N_SHOTS]
                cells.append(" / ".join(number(value) for value in by_shot))
            losses = [kinds[kind][5]["log_loss"]["mean"] for kind in KINDS]
            body.append([name, *cells, f"{np.mean(losses):.3f}"])
        text += f"\n## `{backbone}`\n\n{table(['', *KINDS, 'log loss'], body)}\n"
    return text


def main() -> None:
    parser = argparse.ArgumentParser(
        description=str(__doc__), formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for kind in KINDS:
        parser.add_argument(kind.replace(" ", "-"), type=Path, help="one folder per class")
    parser.add_argument("--cache", type=Path, help="a cache of embeddings")
    parser.add_argument("--output", type=Path, default=RESULTS, help="where results go")
    options = vars(parser.parse_args())
    images = {kind: images_by_class(options[kind.replace(" ", "-")]) for kind in KINDS}
    report = {
        backbone: rows_of(backbone, images, options["cache"])
        for backbone in (PHOTOS, SMALL, MORE_ACCURATE)
    }
    options["output"].mkdir(parents=True, exist_ok=True)
    file = options["output"] / "feature-sets.json"
    file.write_text(json.dumps(report, indent=1) + "\n")
    file.with_suffix(".md").write_text(markdown(report))
    print(markdown(report))


if __name__ == "__main__":
    main()
