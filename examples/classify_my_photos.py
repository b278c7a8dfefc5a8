"""Classify photos by a folder with a few photos per class, with "unknown" for photos of other classes.

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
from nearshot.estimator import read_support

LETTERS = {0: "ben", 30: "et", 60: "shin", 90: "sign-e"}  # by their class index in the dataset
STRANGER = {120: "yass"}


def draw_letters(folder: Path, data_dir: Path | None) -> tuple[Path, list[Path]]:
    """Write five images per letter to `photos/<letter>/<n>.png`, and new images, some of another letter."""
    store = open_or_prepare("glyphs", "test", data_dir)
    for label, letter in (LETTERS | STRANGER).items():
        for number, image in enumerate((store.labels == label).nonzero()[:7, 0].tolist()):
            path = (
                folder
                / ("photos" if number < 5 and label in LETTERS else "new")
                / letter
                / f"{number}.png"
            )
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(store.images[image]).save(path)
    return folder / "photos", sorted((folder / "new").rglob("*.png"))


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
        photos, new = options.photos, options.new
        if photos is None:
            photos, new = draw_letters(Path(folder), options.data_dir)
        labelled = read_support(photos)
        model = FewShotClassifier(options.backbone, unknown_rate=0.05).fit(
            labelled.paths, labelled.labels
        )
        print(
            f"Classes: {', '.join(model.classes_)}. Expected accuracy: {model.estimate_accuracy()}."
        )
        for path, answer in zip(new, model.explain(new) if new else [], strict=True):
            nearest = Path(answer.neighbours[0].name)
            print(f"{path.parent.name}/{path.name}: {answer.label}, {100 * answer.probability:.0f} % {answer.nearest}, "
                  f"novelty {answer.novelty:.2f}; most like {nearest.parent.name}/{nearest.name}")  # fmt: skip
    model.save("my_photos.safetensors")
    print(
        "Saved to my_photos.safetensors, for FewShotClassifier.load or nearshot predict --support."
    )


if __name__ == "__main__":
    main()
