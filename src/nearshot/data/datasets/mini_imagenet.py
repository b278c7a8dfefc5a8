"""miniImageNet (Vinyals et al., 2016), split by Ravi and Larochelle: 64, 16 and 20 classes, 600 images each."""

from collections.abc import Callable
from pathlib import PurePosixPath

import numpy as np

from nearshot.data.datasets import source
from nearshot.data.datasets.source import SPLITS, Plan, Source, SourceImage
from nearshot.data.readers import Files

IMAGES_PER_CLASS = 600


def plan_mini_imagenet(files: Files) -> Plan:
    """Find the images in any of the five layouts in which miniImageNet is distributed."""
    paths = source.paths_by_name(files)
    phases = ("train_phase_train", "val", "test")
    layouts: list[tuple[str, list[str], Callable[[Files, str], list[SourceImage]]]] = [
        (
            "mini-imagenet-cache-*.pkl",
            [f"mini-imagenet-cache-{split}.pkl" for split in SPLITS],
            _from_cache,
        ),
        (
            "miniImageNet_category_split_*.pickle",
            [f"miniImageNet_category_split_{phase}.pickle" for phase in phases],
            _from_category_split,
        ),
        (
            "images/ with train.csv, val.csv and test.csv",
            [f"{split}.csv" for split in SPLITS],
            _from_csv,
        ),
    ]
    for layout, names, read in layouts:
        if paths.keys() >= set(names):
            return Plan(
                layout,
                {
                    split: read(files, paths[name])
                    for split, name in zip(SPLITS, names, strict=True)
                },
            )
    return _from_wnid_folders(files)


def _from_csv(files: Files, table: str) -> list[SourceImage]:
    by_name = source.paths_by_name(files)
    listed = source.read_table(files, table, lambda file: by_name.get(PurePosixPath(file).name))
    images = [source.source_image(files, path, label, file) for file, path, label in listed]
    return sorted(images, key=lambda image: (image.class_name, image.name))


def _from_wnid_folders(files: Files) -> Plan:
    groups, classes = source.images_by_folder(files), source.standard_splits("mini-imagenet")
    layout, listed = "folders by wnid", [name for names in classes.values() for name in names]
    if any(len(groups.get(name, ())) > IMAGES_PER_CLASS for name in listed):
        # ILSVRC2012's training images. Only Ravi and Larochelle's tables say which 600 they chose.
        layout += f", the first {IMAGES_PER_CLASS} images of each by name (not Ravi and Larochelle's choice)"
        groups = {name: group[:IMAGES_PER_CLASS] for name, group in groups.items()}
    return Plan(layout, source.split_images(groups, classes, files, "miniImageNet"))


def _from_cache(files: Files, path: str) -> list[SourceImage]:
    content = source.load_pickle(files.read(path), path)
    images, classes = content["image_data"], content["class_dict"]
    return [
        SourceImage(name, f"{name}/{i}", images[i].copy)
        for name in sorted(classes)
        for i in classes[name]
    ]


def _from_category_split(files: Files, path: str) -> list[SourceImage]:
    content = source.load_pickle(files.read(path), path)
    images, labels = content["data"], np.asarray(content["labels"])
    order = np.argsort(labels, kind="stable").tolist()
    return [
        SourceImage(f"category {int(labels[i]):03}", f"{path}/{i}", images[i].copy) for i in order
    ]


MINI_IMAGENET = Source(
    name="mini-imagenet",
    description="miniImageNet: 64 / 16 / 20 classes of ImageNet, 600 images each (Ravi and Larochelle's split)",
    side=84,
    plan=plan_mini_imagenet,
    where="images/ with train.csv, val.csv and test.csv; folders by wnid; ILSVRC2012's training images; "
    "mini-imagenet-cache-*.pkl; or miniImageNet_category_split_*.pickle",
)
