"""CIFAR-FS (Bertinetto et al., 2019): CIFAR-100's 60,000 images in 64, 16 and 20 classes."""

from collections.abc import Iterator

from nearshot.data.datasets import source
from nearshot.data.datasets.source import Plan, Source, SourceImage
from nearshot.data.downloads import Download
from nearshot.data.pickles import integers, load_pickle, pixels, texts
from nearshot.data.readers import Files


def plan_cifar_fs(files: Files) -> Plan:
    """Find the images in `cifar100/data/<class>/*.png`, or in CIFAR-100's pickles for Python."""
    paths = source.paths_by_name(files)
    if {"train", "test", "meta"} <= paths.keys():
        layout = "CIFAR-100's python pickles"
        groups = source.by_class(_from_pickles(files, paths))
    else:
        layout = "cifar100.zip: data/<class>/<image>.png"
        groups = source.images_by_folder(files)
    classes = source.standard_splits("cifar-fs")
    return Plan(layout, source.split_images(groups, classes, files, "CIFAR-FS"))


def _from_pickles(files: Files, paths: dict[str, str]) -> Iterator[SourceImage]:
    meta = load_pickle(files.read(paths["meta"]), "meta")
    class_names = texts(meta["fine_label_names"], "fine_label_names in meta")
    for part in ("train", "test"):
        content = load_pickle(files.read(paths[part]), part)
        rows = pixels(content["data"], (-1, 3 * 32 * 32), f"data in {part}")
        # (image, height, width, 3)
        images = rows.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
        names = texts(content["filenames"], f"filenames in {part}")
        labels = integers(content["fine_labels"], f"fine_labels in {part}", below=len(class_names))
        for image, label, name in zip(images, labels, names, strict=True):
            class_name = class_names[label]
            yield SourceImage(class_name, f"{class_name}/{name}", image.copy)


CIFAR_FS = Source(
    name="cifar-fs",
    description="CIFAR-FS: CIFAR-100 in 64 / 16 / 20 classes, 600 images each, 32×32",
    side=32,
    plan=plan_cifar_fs,
    downloads=(
        Download(
            name="cifar-100-python.tar.gz",
            urls=(
                "https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz",
                "https://cave.cs.toronto.edu/kriz/cifar-100-python.tar.gz",
            ),
            md5="eb9058c3a382ffc7106e4002c42a8d85",
            n_bytes=169_001_437,
        ),
    ),
    where="the original cifar100.zip, its parts, or CIFAR-100's python version "
    "(cifar-100-python.tar.gz)",
)
