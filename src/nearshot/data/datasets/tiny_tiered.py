"""tiny-tiered: the classes of tieredImageNet that Tiny-ImageNet has, 61, 17 and 45 of them.

Tiny-ImageNet has 200 classes of ImageNet at 64×64. 123 of them are in Ren et al.'s splits, so
training and test classes lie as far apart in WordNet as in tieredImageNet itself.
"""

from collections import Counter
from collections.abc import Sequence
from pathlib import PurePosixPath

from nearshot.data.datasets import source
from nearshot.data.datasets.source import Plan, Source, SourceImage
from nearshot.data.downloads import Download
from nearshot.data.readers import Files, is_image
from nearshot.errors import FileFormatError
from nearshot.text import counted

TRAINING_IMAGES = 500  # of each class, in train/<wnid>/images
VALIDATION_IMAGES = 50  # of each class, in val/images
ANNOTATIONS = "val_annotations.txt"


def plan_tiny_tiered(files: Files) -> Plan:
    """Find the images in the layout of tiny-imagenet-200.zip.

    Tiny-ImageNet's own training and validation images are both used. Its test images have no
    labels, and are ignored.
    """
    classes = source.standard_splits("tiny-tiered")
    listed = set().union(*classes.values())
    training = _training_images(files, listed)
    validation = _validation_images(files, listed)
    groups = source.by_class([*training, *validation])
    splits = source.split_images(groups, classes, files, "Tiny-ImageNet")
    _check_counts(training, listed, TRAINING_IMAGES, "train", files)
    _check_counts(validation, listed, VALIDATION_IMAGES, "val", files)
    return Plan("tiny-imagenet-200: train/<wnid>/images and val/images", splits)


def _training_images(files: Files, listed: set[str]) -> list[SourceImage]:
    """Return the images in `train/<wnid>/images/` of the listed classes."""
    images = []
    for path in files.members:
        parts = PurePosixPath(path).parts[-4:]
        if len(parts) < 4 or not is_image(path):
            continue
        split, wnid, folder, _ = parts
        if split == "train" and folder == "images" and wnid in listed:
            images.append(source.source_image(files, path, wnid, "/".join(parts)))
    return images


def _validation_images(files: Files, listed: set[str]) -> list[SourceImage]:
    """Return the images that `val/val_annotations.txt` lists for the listed classes."""
    paths = [path for path in files.members if PurePosixPath(path).name == ANNOTATIONS]
    if len(paths) != 1:
        raise FileFormatError(
            f"{files.label} must have one {ANNOTATIONS}, in the folder val (got {len(paths)})."
        )
    table = paths[0]
    folder = PurePosixPath(table).parent / "images"
    text = files.read(table).decode("utf-8", errors="replace")
    images = []
    seen: set[str] = set()
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        where = f"Line {number} of {table} in {files.label}"
        columns = line.split("\t")
        if len(columns) < 2:
            raise FileFormatError(f"{where} needs a file and its class, separated by a tab.")
        file, wnid = columns[:2]
        if wnid not in listed:
            continue
        path = str(folder / file)
        if path not in files.members or not is_image(path):
            raise FileFormatError(f"{where} lists {file!r}, which is no image in {folder}.")
        if path in seen:
            raise FileFormatError(f"{where} lists {file!r} a second time.")
        seen.add(path)
        images.append(source.source_image(files, path, wnid, f"val/images/{file}"))
    return images


def _check_counts(
    images: Sequence[SourceImage], listed: set[str], expected: int, split: str, files: Files
) -> None:
    """Refuse a copy in which a class has too few or too many images."""
    counts = Counter(image.class_name for image in images)
    wrong = sorted(wnid for wnid in listed if counts[wnid] != expected)
    if wrong:
        shown = ", ".join(f"{wnid} has {counts[wnid]}" for wnid in wrong[:3])
        more = f", and {counted(len(wrong) - 3, 'more class', 'more classes')}" if wrong[3:] else ""
        raise FileFormatError(
            f"{files.label} must have {expected} images of each class in {split}: {shown}{more}. "
            "Is the copy damaged?"
        )


TINY_TIERED = Source(
    name="tiny-tiered",
    description="tieredImageNet's split of Tiny-ImageNet: 61 / 17 / 45 classes, 550 images each, "
    "64×64",
    side=64,
    plan=plan_tiny_tiered,
    downloads=(
        Download(
            name="tiny-imagenet-200.zip",
            urls=(
                "https://cs231n.stanford.edu/tiny-imagenet-200.zip",
                "http://cs231n.stanford.edu/tiny-imagenet-200.zip",
            ),
            md5="90528d7ca1a48142e341f4ef8d21d0de",
            n_bytes=248_100_043,
        ),
    ),
    where="tiny-imagenet-200.zip, or its folder",
)
