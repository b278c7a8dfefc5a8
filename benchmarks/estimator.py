"""How well `FewShotClassifier` rejects, calibrates and estimates its accuracy on unseen classes.

Four questions, asked of thousands of small support sets: does the novelty tell unseen classes from
known ones, and is the chosen rate of false rejections reached; are probabilities as right as they
say; does the accuracy that is estimated from the support set alone hold; and how does it compare
with scikit-learn's classifiers, in answers and in time.

By default a small network is trained on nearshot's glyphs for a minute, and asked about letters of
scripts that it has not seen. The constants of the estimator were chosen on validation classes, of
the glyphs and of CIFAR-FS; these are test classes. Any backbone, dataset or features can be asked
about instead.

    python benchmarks/estimator.py                                          # takes four minutes
    python benchmarks/estimator.py --dataset cifar-fs --backbone resnet12-nca-cifar-fs --images 60
    python benchmarks/estimator.py --features test.safetensors --name birds
"""

import argparse
import json
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from estimator_measures import SHOTS, measured
from estimator_report import draw, markdown
from nearshot import load_backbone
from nearshot.data import Store, prepare
from nearshot.data.loader import ImageFeed
from nearshot.evaluation import FeatureSet, load_features
from nearshot.models import Backbone

RESULTS = Path(__file__).parent / "results"
FIGURES = Path(__file__).parent.parent / "docs" / "figures"  # where the documentation finds them


def trained_on_glyphs(data_dir: Path | None, steps: int) -> Backbone:
    """Train `conv4-32` with NCA on the training scripts."""
    from nearshot.data.augment import Augmentation
    from nearshot.training import PRESETS, RunFolder, train

    prepare("glyphs", data_dir=data_dir)
    plain = Augmentation(crop="centre", flip=0.0)
    config = replace(PRESETS["glyphs-nca"], epochs=1, steps_per_epoch=steps, augmentation=plain)
    with tempfile.TemporaryDirectory() as folder:
        train(config, folder=folder, data_dir=data_dir, progress=False)
        return load_backbone(RunFolder(folder).weights_of(1))


def embedded(
    backbone: Backbone, dataset: str, n_images: int | None, data_dir: Path | None
) -> FeatureSet:
    """Embed the test split, or some images of each class."""
    from nearshot.training.embedding import embed_images

    store = Store.open(dataset, "test", data_dir)
    labels = store.labels.numpy()
    of_classes = [np.flatnonzero(labels == label) for label in np.unique(labels)]
    rows = np.concatenate(
        [np.random.default_rng(0).permutation(images)[:n_images] for images in of_classes]
    )
    cpu = torch.device("cpu")
    features = embed_images(backbone, ImageFeed(np.ascontiguousarray(store.images[rows]), cpu))
    centre = backbone.spec.training_mean
    return FeatureSet(
        features, store.labels[rows], centre=centre, split="test", fingerprint=store.fingerprint
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=str(__doc__), formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--features", type=Path, help="a features file of classes that the backbone never saw"
    )
    parser.add_argument(
        "--backbone",
        help="a trained backbone to embed with (default: one that is trained on glyphs)",
    )
    parser.add_argument(
        "--dataset", default="glyphs", help="whose test split to embed (default: glyphs)"
    )
    parser.add_argument(
        "--images", type=int, help="how many images of each class to embed (default: all)"
    )
    parser.add_argument("--name", help="what the results are called (default: as the dataset)")
    parser.add_argument(
        "--tasks", type=int, default=500, help="how many support sets of each size (default: 500)"
    )
    parser.add_argument(
        "--steps", type=int, default=150, help="training steps on the glyphs (default: 150)"
    )
    parser.add_argument(
        "--data-dir", type=Path, help="where datasets live (default: ~/.cache/nearshot)"
    )
    parser.add_argument(
        "--output",
        type=Path,
        default=RESULTS,
        help="where results go (default: benchmarks/results)",
    )
    parser.add_argument(
        "--figures", type=Path, default=FIGURES, help="where figures go (default: docs/figures)"
    )
    options = parser.parse_args()
    name = options.name or options.dataset
    if options.features is not None:
        features = load_features(options.features)
        description = f"Features of {name}, {features.split or 'split unknown'}"
    elif options.backbone is not None:
        features = embedded(
            load_backbone(options.backbone), options.dataset, options.images, options.data_dir
        )
        description = (
            f"`{options.backbone}` on {len(features.labels):,} images of the test classes of "
            f"{options.dataset}"
        )
    else:
        trained = trained_on_glyphs(options.data_dir, options.steps)
        features = embedded(trained, "glyphs", options.images, options.data_dir)
        description = (
            f"`conv4-32`, trained with NCA for {options.steps} steps on nearshot's glyphs, on "
            "letters of unseen scripts"
        )
    n_images = int(torch.bincount(features.labels).min())
    report = measured(
        features,
        description,
        n_way=5,
        n_query=min(30, n_images - max(SHOTS)),
        n_tasks=options.tasks,
    )
    for folder in (options.output, options.figures):
        folder.mkdir(parents=True, exist_ok=True)
    stem = f"estimator-{name}"
    figures = draw(report, options.figures, stem)
    text = markdown(report, {kind: f"figures/{name}" for kind, name in figures.items()})
    for measurements in report["shots"].values():  # thousands of numbers, drawn above
        if measurements["estimate"] is not None:
            del measurements["estimate"]["each"]
    (options.output / f"{stem}.json").write_text(json.dumps(report, indent=1) + "\n")
    (options.output / f"{stem}.md").write_text(text)
    print(text)
    print(f"Written to {options.output / stem}.json and .md, and {options.figures / stem}-*.png.")


if __name__ == "__main__":
    main()
