"""Classify photos by a few labelled ones, with "none of these" for photos of other classes.

Without photos of yours it draws some: letters that its backbone has never seen, as PNG files.

    python examples/classify_my_photos.py
    python examples/classify_my_photos.py --photos ./my-photos new/*.jpg --backbone timm:resnet50
"""

import argparse
import tempfile
from pathlib import Path

from PIL import Image

from nearshot import FewShotClassifier
from nearshot.data import open_or_prepare
from nearshot.estimator import Explanation, read_support

CLASSES = {0: "ben", 30: "et", 60: "shin", 90: "sign-e"}  # by their class index in the dataset
STRANGER = {120: "yass"}  # a letter of no class
N_LABELLED = 5
N_NEW = 2


def draw_letters(folder: Path, data_dir: Path | None) -> tuple[Path, list[Path]]:
    """Write labelled images to photos/LETTER, and new ones, some of another letter, to new/LETTER.

    Return the folder of labelled images, and the paths of the new ones.
    """
    store = open_or_prepare("glyphs", "test", data_dir)
    for code, letter in {**CLASSES, **STRANGER}.items():
        images = (store.labels == code).nonzero()[: N_LABELLED + N_NEW, 0].tolist()
        for number, image in enumerate(images):
            is_labelled = code in CLASSES and number < N_LABELLED
            path = folder / ("photos" if is_labelled else "new") / letter / f"{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(store.images[image]).save(path)
    return folder / "photos", sorted((folder / "new").rglob("*.png"))


def classify(
    photos: Path, new: list[Path], backbone: str
) -> tuple[FewShotClassifier, list[Explanation]]:
    """Return a classifier of labelled photos, and its answers for new ones."""
    labelled = read_support(photos)
    model = FewShotClassifier(backbone, reject_rate=0.05)
    model.fit(labelled.paths, labelled.labels)
    return model, model.explain(new) if new else []


def print_answer(path: Path, answer: Explanation) -> None:
    nearest = Path(answer.neighbours[0].name)
    print(
        f"{path.parent.name}/{path.name}: {answer.label}, "
        f"{100 * answer.probability:.0f} % {answer.nearest}, novelty {answer.novelty:.2f}; "
        f"most like {nearest.parent.name}/{nearest.name}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("new", nargs="*", type=Path, help="the photos to classify")
    parser.add_argument("--photos", type=Path, help="a folder with one folder of photos per class")
    parser.add_argument(
        "--backbone", default="resnet12-nca-cifar-fs", help="a weights file or timm:<model>"
    )
    parser.add_argument(
        "--data-dir", type=Path, help="where datasets live (default: ~/.cache/nearshot)"
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        photos = options.photos
        new = options.new
        if photos is None:
            photos, new = draw_letters(Path(folder), options.data_dir)
        model, answers = classify(photos, new, options.backbone)
    classes = ", ".join(model.classes_)
    print(f"Classes: {classes}. Expected accuracy: {model.estimate_accuracy()}.")
    for path, answer in zip(new, answers, strict=True):
        print_answer(path, answer)
    model.save("my_photos.safetensors")
    print("Saved to my_photos.safetensors.")
    print("Next: nearshot predict --support my_photos.safetensors PHOTOS")


if __name__ == "__main__":
    main()
