"""Which cosine tells that two photos show the same thing, and what groups do to the estimate.

    python benchmarks/look_alikes.py ./photos --backbone efficientnet-lite0

The folder has one folder of at least 25 photos per class. Two tables are printed, a row per cosine:

- of ten different photos of a class, how many groups are found, where ten are right;
- with three photos of each class and four slightly different crops of each: the groups of a class,
  where three are right, and the expected minus the true accuracy, in points. The first row is
  without groups, the last one with the right ones.

`look_alike_cosine` of a backbone is the highest cosine whose estimate is within two points of that
with the right groups, for CIFAR-FS, Tiny-ImageNet and textures.
"""

import argparse
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image

from nearshot import FewShotClassifier
from nearshot.estimator import Embedder, read_support
from nearshot.estimator.groups import find_look_alikes

COSINES = (0.82, 0.84, 0.86, 0.88, 0.90, 0.92)
N_PHOTOS = 25  # per class
N_CROPPED = 10  # of these
N_CROPS = 4  # of each of them
N_SHOT = 3
MAX_WAYS = 10
N_DRAWS = 20

Features = npt.NDArray[np.float32]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=str(__doc__), formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="one folder of photos per class")
    parser.add_argument("--backbone", default="efficientnet-lite0")
    options = parser.parse_args()
    photos, crops = embed(options.folder, options.backbone)
    print("| cosine | groups of ten photos |\n|---|---:|")
    for cosine in COSINES:
        print(f"| {cosine:.2f} | {groups_of_ten(photos, cosine):.2f} |")
    print("\n| cosine | groups of a class | expected minus true accuracy |\n|---|---:|---:|")
    for group_cosine in (None, *COSINES, 1.0):
        name = {None: "no groups", 1.0: "the right groups"}.get(group_cosine, f"{group_cosine}")
        n_groups, difference = measure_bursts(photos, crops, group_cosine)
        print(f"| {name} | {n_groups:.2f} | {100 * difference:+.1f} |", flush=True)


def embed(folder: Path, backbone: str) -> tuple[Features, Features]:
    """Return the features of photos, (class, photo, dim), and crops, (class, photo, crop, dim)."""
    generator = np.random.default_rng(0)
    embedder = Embedder(backbone)
    labelled = read_support(folder)
    labels = np.array(labelled.labels)
    photos = []
    crops = []
    for name in labelled.class_names:
        indices = np.flatnonzero(labels == name)
        if len(indices) < N_PHOTOS:
            continue
        chosen = generator.permutation(indices)[:N_PHOTOS]
        images = [Image.open(labelled.paths[index]).convert("RGB") for index in chosen]
        photos.append(embedder(images))
        cropped = []
        for image in images[:N_CROPPED]:
            cropped += [crop(image, generator) for _ in range(N_CROPS)]
        crops.append(embedder(cropped).reshape(N_CROPPED, N_CROPS, -1))
    return np.stack(photos), np.stack(crops)


def crop(image: Image.Image, generator: np.random.Generator) -> Image.Image:
    """Return 85 to 95 % of the sides of an image, from anywhere in it."""
    share = generator.uniform(0.85, 0.95)
    width, height = image.size
    left = generator.uniform(0, width * (1 - share))
    top = generator.uniform(0, height * (1 - share))
    right = left + width * share
    bottom = top + height * share
    return image.crop((round(left), round(top), round(right), round(bottom)))


def groups_of_ten(photos: Features, cosine: float) -> float:
    """Return the mean number of groups among ten different photos of a class."""
    generator = np.random.default_rng(0)
    counts = []
    for of_class in photos:
        for _ in range(N_DRAWS):
            chosen = of_class[generator.permutation(N_PHOTOS)[:10]]
            numbers = find_look_alikes(chosen, np.zeros(10, np.int64), cosine)
            counts.append(len(set(numbers.tolist())))
    return float(np.mean(counts))


def measure_bursts(photos: Features, crops: Features, cosine: float | None) -> tuple[float, float]:
    """Return the mean groups of a class, and the expected minus the true accuracy.

    None is without groups, and 1 with the right ones.
    """
    n_groups = []
    differences = []
    for seed in range(N_DRAWS):
        generator = np.random.default_rng(seed)
        classes = generator.permutation(len(photos))[:MAX_WAYS]
        shots = generator.permuted(np.tile(np.arange(N_CROPPED), (len(classes), 1)), axis=1)
        support = np.stack(
            [crops[code, chosen] for code, chosen in zip(classes, shots[:, :N_SHOT], strict=True)]
        ).reshape(-1, photos.shape[-1])
        labels = np.arange(len(classes)).repeat(N_SHOT * N_CROPS)
        groups = None
        if cosine == 1:
            groups = np.arange(len(support)) // N_CROPS
        elif cosine is not None:
            groups = find_look_alikes(support, labels, cosine)
        model = FewShotClassifier(None).fit(support, labels, groups=groups)
        query = photos[classes, N_CROPPED:]
        truth = model.score(
            query.reshape(-1, query.shape[-1]), np.arange(len(classes)).repeat(query.shape[1])
        )
        counts = model.fitted_state().groups.counts
        n_groups.append(float(counts.double().mean()))
        if int(counts.max()) > 1:
            differences.append(model.estimate_accuracy().mean - truth)
    return float(np.mean(n_groups)), float(np.mean(differences))


if __name__ == "__main__":
    main()
