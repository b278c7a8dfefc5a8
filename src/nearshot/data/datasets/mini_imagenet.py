"""miniImageNet (Vinyals et al., 2016), split by Ravi and Larochelle: 64, 16 and 20 classes."""

from collections.abc import Callable
from operator import itemgetter
from pathlib import PurePosixPath

import numpy as np

from nearshot.data.datasets import source
from nearshot.data.datasets.source import SPLITS, Plan, Source, SourceImage
from nearshot.data.pickles import integers, load_pickle, pixels, texts
from nearshot.data.readers import Files

IMAGES_PER_CLASS = 600
N_CLASSES = 100


def plan_mini_imagenet(files: Files) -> Plan:
    """Find the images in any of the five layouts in which miniImageNet is distributed."""
    paths = source.paths_by_name(files)
    cache_files = [f"mini-imagenet-cache-{split}.pkl" for split in SPLITS]
    if paths.keys() >= set(cache_files):
        return _one_file_a_split(files, "mini-imagenet-cache-*.pkl", cache_files, _from_cache)
    phases = ("train_phase_train", "val", "test")
    pickles = [f"miniImageNet_category_split_{phase}.pickle" for phase in phases]
    if paths.keys() >= set(pickles):
        layout = "miniImageNet_category_split_*.pickle"
        return _one_file_a_split(files, layout, pickles, _from_category_split)
    tables = [f"{split}.csv" for split in SPLITS]
    if paths.keys() >= set(tables):
        layout = "images/ with train.csv, val.csv and test.csv"
        return _one_file_a_split(files, layout, tables, _from_csv)
    return _from_wnid_folders(files)


def _one_file_a_split(
    files: Files,
    layout: str,
    names: list[str],
    read: Callable[[Files, str], list[SourceImage]],
) -> Plan:
    """Return the plan of a layout with one file for each split; `read` reads the file at a path."""
    paths = source.paths_by_name(files)
    splits = {}
    for split, name in zip(SPLITS, names, strict=True):
        splits[split] = read(files, paths[name])
    return Plan(layout, splits)


def _from_csv(files: Files, table: str) -> list[SourceImage]:
    paths = source.paths_by_name(files)

    def path_of(file: str) -> str | None:
        return paths.get(PurePosixPath(file).name)

    rows = source.read_table(files, table, path_of)
    images = [source.source_image(files, row.path, row.label, row.file) for row in rows]
    return sorted(images, key=lambda image: (image.class_name, image.name))


def _from_wnid_folders(files: Files) -> Plan:
    groups = source.images_by_folder(files)
    classes = source.standard_splits("mini-imagenet")
    layout = "folders by wnid"
    listed = set().union(*classes.values())
    if any(len(groups.get(name, ())) > IMAGES_PER_CLASS for name in listed):
        # ILSVRC2012's training images. Only Ravi and Larochelle's tables say which 600 they chose.
        layout += (
            f", the first {IMAGES_PER_CLASS} images of each by name "
            "(not Ravi and Larochelle's choice)"
        )
        groups = {name: group[:IMAGES_PER_CLASS] for name, group in groups.items()}
    return Plan(layout, source.split_images(groups, classes, files, "miniImageNet"))


def _from_cache(files: Files, path: str) -> list[SourceImage]:
    content = load_pickle(files.read(path), path)
    data = pixels(content["image_data"], (-1, -1, -1, 3), f"image_data in {path}")
    classes = content["class_dict"]
    names = texts(list(classes), f"class_dict in {path}")
    images = []
    for name, rows in sorted(zip(names, classes.values(), strict=True), key=itemgetter(0)):
        indices = integers(rows, f"class_dict in {path}", below=len(data)).tolist()
        images += [SourceImage(name, f"{name}/{i}", data[i].copy) for i in indices]
    return images


def _from_category_split(files: Files, path: str) -> list[SourceImage]:
    content = load_pickle(files.read(path), path)
    data = pixels(content["data"], (-1, -1, -1, 3), f"data in {path}")
    labels = integers(content["labels"], f"labels in {path}", below=N_CLASSES)
    images = []
    for i in np.argsort(labels, kind="stable").tolist():
        class_name = f"category {labels[i]:03}"
        images.append(SourceImage(class_name, f"{path}/{i}", data[i].copy))
    return images


MINI_IMAGENET = Source(
    name="mini-imagenet",
    description="miniImageNet: 64 / 16 / 20 classes of ImageNet, 600 images each (Ravi and "
    "Larochelle's split)",
    side=84,
    plan=plan_mini_imagenet,
    where="images/ with train.csv, val.csv and test.csv; folders by wnid; ILSVRC2012's training "
    "images; mini-imagenet-cache-*.pkl; or miniImageNet_category_split_*.pickle",
)
