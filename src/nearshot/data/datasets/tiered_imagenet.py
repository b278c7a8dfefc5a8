"""tieredImageNet (Ren et al., 2018): 351, 97 and 160 classes of ImageNet, far from each other in WordNet."""

import numpy as np

from nearshot.data.datasets import source
from nearshot.data.datasets.source import SPLITS, Plan, Source, SourceImage
from nearshot.data.readers import Files


def plan_tiered_imagenet(files: Files) -> Plan:
    """Find the images in Ren et al.'s pickles, or in folders of ILSVRC2012's training images by wnid."""
    paths = source.paths_by_name(files)
    if all(f"{split}_{kind}.pkl" in paths for split in SPLITS for kind in ("images_png", "labels")):
        return Plan(
            "*_images_png.pkl with *_labels.pkl",
            {
                s: _from_pickles(files, paths[f"{s}_images_png.pkl"], paths[f"{s}_labels.pkl"])
                for s in SPLITS
            },
        )
    groups, classes = source.images_by_folder(files), source.standard_splits("tiered-imagenet")
    return Plan("folders by wnid", source.split_images(groups, classes, files, "tieredImageNet"))


def _from_pickles(files: Files, images_path: str, labels_path: str) -> list[SourceImage]:
    images, content = (
        source.load_pickle(files.read(path), path) for path in (images_path, labels_path)
    )
    labels, names = (
        np.asarray(content["label_specific"]).astype(np.int64),
        content.get("label_specific_str"),
    )
    found = []
    for i in np.argsort(labels, kind="stable").tolist():
        class_name = str(names[labels[i]]) if names is not None else f"class {labels[i]:03}"
        png = np.asarray(
            images[i], dtype=np.uint8
        )  # an encoded image, kept as an array of its bytes
        found.append(SourceImage(class_name, f"{images_path}/{i}", png.tobytes))
    return found


TIERED_IMAGENET = Source(
    name="tiered-imagenet",
    description="tieredImageNet: 351 / 97 / 160 classes of ImageNet (Ren et al.'s split)",
    side=84,
    plan=plan_tiered_imagenet,
    where="Ren et al.'s {train,val,test}_images_png.pkl and _labels.pkl, or ILSVRC2012's training images by wnid",
)
