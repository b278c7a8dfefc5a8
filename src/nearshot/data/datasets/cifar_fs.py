"""CIFAR-FS (Bertinetto et al., 2019): CIFAR-100's 60,000 images in 64, 16 and 20 classes."""

from collections.abc import Iterator

from nearshot.data.datasets import source
from nearshot.data.datasets.source import Plan, Source, SourceImage
from nearshot.data.downloads import Download
from nearshot.data.readers import Files


def plan_cifar_fs(files: Files) -> Plan:
    """Find the images in `cifar100/data/<class>/*.png`, or in the pickles of CIFAR-100 for Python."""
    paths = source.paths_by_name(files)
    if {"train", "test", "meta"} <= paths.keys():
        layout, groups = "CIFAR-100's python pickles", source.by_class(_from_pickles(files, paths))
    else:
        layout, groups = "cifar100.zip: data/<class>/<image>.png", source.images_by_folder(files)
    return Plan(
        layout, source.split_images(groups, source.standard_splits("cifar-fs"), files, "CIFAR-FS")
    )


def _from_pickles(files: Files, paths: dict[str, str]) -> Iterator[SourceImage]:
    class_names = source.load_pickle(files.read(paths["meta"]), "meta")["fine_label_names"]
    for part in ("train", "test"):
        content = source.load_pickle(files.read(paths[part]), part)
        pixels = (
            content["data"].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
        )  # (image, height, width, 3)
        for image, label, name in zip(
            pixels, content["fine_labels"], content["filenames"], strict=True
        ):
            yield SourceImage(class_names[label], f"{class_names[label]}/{name}", image.copy)


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
    where="the original cifar100.zip, its parts, or CIFAR-100's python version (cifar-100-python.tar.gz)",
)
