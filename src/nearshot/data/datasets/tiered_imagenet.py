"""tieredImageNet (Ren et al., 2018): 351, 97 and 160 classes of ImageNet, far apart in WordNet."""

import numpy as np

from nearshot.data.datasets import source
from nearshot.data.datasets.source import SPLITS, Plan, Source, SourceImage
from nearshot.data.pickles import integers, load_pickle, pixels, texts
from nearshot.data.readers import Files

N_CLASSES = 608


def plan_tiered_imagenet(files: Files) -> Plan:
    """Find the images in Ren et al.'s pickles, or in ILSVRC2012's training images by wnid."""
    paths = source.paths_by_name(files)
    image_files = {split: f"{split}_images_png.pkl" for split in SPLITS}
    label_files = {split: f"{split}_labels.pkl" for split in SPLITS}
    if paths.keys() >= {*image_files.values(), *label_files.values()}:
        splits = {}
        for split in SPLITS:
            images_path = paths[image_files[split]]
            splits[split] = _from_pickles(files, images_path, paths[label_files[split]])
        return Plan("*_images_png.pkl with *_labels.pkl", splits)
    groups = source.images_by_folder(files)
    classes = source.standard_splits("tiered-imagenet")
    return Plan("folders by wnid", source.split_images(groups, classes, files, "tieredImageNet"))


def _from_pickles(files: Files, images_path: str, labels_path: str) -> list[SourceImage]:
    pngs = load_pickle(files.read(images_path), images_path)
    content = load_pickle(files.read(labels_path), labels_path)
    class_names = [f"class {label:03}" for label in range(N_CLASSES)]
    if content.get("label_specific_str") is not None:
        class_names = texts(content["label_specific_str"], f"label_specific_str in {labels_path}")
    labels = integers(
        content["label_specific"], f"label_specific in {labels_path}", below=len(class_names)
    )
    images = []
    for i in np.argsort(labels, kind="stable").tolist():
        # An encoded image, kept as an array of its bytes: (n,) or (n, 1).
        png = pngs[i].reshape(-1)
        png = pixels(png, (-1,), f"Image {i} in {images_path}")
        images.append(SourceImage(class_names[labels[i]], f"{images_path}/{i}", png.tobytes))
    return images


TIERED_IMAGENET = Source(
    name="tiered-imagenet",
    description="tieredImageNet: 351 / 97 / 160 classes of ImageNet (Ren et al.'s split)",
    side=84,
    plan=plan_tiered_imagenet,
    where="Ren et al.'s {train,val,test}_images_png.pkl and _labels.pkl, or ILSVRC2012's training "
    "images by wnid",
)
