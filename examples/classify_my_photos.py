"""A folder of a few pictures for each class in, labels for new ones out, and "unknown" for what is none of them.

Without photos of yours it makes some: letters of scripts that its backbone has never seen, as PNG files.

    python examples/classify_my_photos.py
    python examples/classify_my_photos.py --photos ./my-photos --backbone timm:resnet50 new/*.jpg
"""

import argparse
import tempfile
from dataclasses import replace
from pathlib import Path

from PIL import Image

from nearshot import FewShotClassifier
from nearshot.data import prepare
from nearshot.estimator.folders import read_support
from nearshot.training import PRESETS, RunFolder, train


def draw_letters(folder: Path, data_dir: Path | None) -> list[Path]:
    """Write five pictures of each of four letters as `photos/<letter>/<n>.png`; return new ones, also of a fifth."""
    store = prepare("glyphs", data_dir=data_dir)["test"]
    for number, label in enumerate((0, 30, 60, 90, 120)):
        name = store.class_names[label].split()[-1]
        for place, image in enumerate((store.labels == label).nonzero()[0][:7]):
            kind = "photos" if place < 5 and number < 4 else "new"
            path = folder / kind / name / f"{place}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(store.images[image]).save(path)
    return sorted((folder / "new").rglob("*.png"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("new", nargs="*", type=Path, help="the pictures to classify")
    parser.add_argument("--photos", type=Path, help="a folder with a folder of pictures for each class")
    parser.add_argument("--backbone", help="a weights file or timm:<model> (default: trained on glyphs in a minute)")
    parser.add_argument("--steps", type=int, default=150, help="how long to train it (default: 150 steps)")
    parser.add_argument("--data-dir", type=Path, help="where datasets live (default: ~/.cache/nearshot)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        new = options.new if options.photos else draw_letters(Path(scratch), options.data_dir)
        if options.backbone is None:
            config = replace(PRESETS["glyphs-nca"], epochs=1, steps_per_epoch=options.steps)
            train(config, folder=Path(scratch, "run"), data_dir=options.data_dir, show=False)
        photos = read_support(options.photos or Path(scratch, "photos"))
        model = FewShotClassifier(options.backbone or RunFolder(Path(scratch, "run")).weights_of(1), unknown_rate=0.05)
        model.fit(photos.paths, photos.labels)
        print(f"Classes: {', '.join(model.classes_)}. Expected to be right: {model.estimate_accuracy()}")
        for path, told in zip(new, model.explain(new, n_neighbors=1), strict=True):
            print(f"{path.relative_to(scratch) if path.is_relative_to(scratch) else path}: {told}")
        model.save("my_photos.safetensors")  # one file to deploy: FewShotClassifier.load("my_photos.safetensors")


if __name__ == "__main__":
    main()
