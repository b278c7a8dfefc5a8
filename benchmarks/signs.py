r"""Traffic signs: what training on other signs gains, and the cost of photos of one sign only.

The repository has 43 classes of signs. Each sign was filmed: 30 frames, of which the last is the
largest. 19 classes have at least 18 signs, and `photos.py` measures them. Train on 19 others, with
six frames of each sign, and validate on the five others with the most signs; settings are the
defaults:

    git clone https://github.com/jovanzac/Traffic && cd Traffic/gtsrb && mkdir ../signs
    printf '%s\n' 1 2 3 4 5 7 8 9 10 11 12 13 14 17 18 25 31 35 38 > ../test.txt
    printf '%s\n' 15 23 26 28 33 > ../val.txt
    printf '%s\n' 0 6 16 19 20 21 22 24 27 29 30 32 34 36 37 39 40 41 42 > ../train.txt
    find $(cat ../test.txt ../val.txt) -name '*_00029.ppm' -exec cp --parents {} ../signs \;
    find $(cat ../train.txt) -name '*[49].ppm' -exec cp --parents {} ../signs \;
    cd .. && nearshot data prepare ./signs --side 224 \
        --train-classes train.txt --val-classes val.txt --test-classes test.txt
    nearshot train --dataset ./signs --side 224 --output runs/signs
    python benchmarks/signs.py Traffic/gtsrb Traffic/runs/signs

Writes benchmarks/results/signs.json and .md.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np

from nearshot import FewShotClassifier
from nearshot.estimator import Embedder
from nearshot.training.run_folder import weights_of_run
from photos import (
    MAIN_WAY,
    N_COLOURS,
    N_DRAWS,
    PHOTOS,
    RESULTS,
    Array,
    Photos,
    draws,
    find_photos,
    hog_and_colours,
    mean_of,
)
from photos_report import number, table

N_SIGNS = 18
N_SHOT = 5
FRAMES = (29, 24, 19, 14, 9)  # of one sign, the last first
SUPPORTS = ("five signs", "one sign")


def measured(features: Array, centre: Array | None) -> dict[str, Any]:
    """Return the true and the expected accuracy; features are (class, sign, frame, dim)."""
    percents: dict[str, dict[str, list[float]]] = {
        name: {"accuracy": [], "expected": []} for name in SUPPORTS
    }
    n_classes, n_signs = features.shape[:2]
    places = Photos(np.arange(n_classes * n_signs), np.repeat(np.arange(n_classes), n_signs))
    by_sign = features.reshape(n_classes * n_signs, len(FRAMES), -1)
    for draw in draws(places, MAIN_WAY, N_SHOT):  # the draws of `photos.py`
        one_each = by_sign[draw.support[::N_SHOT]]  # (class, frame, dim)
        supports = (by_sign[draw.support, 0], one_each.reshape(len(draw.labels), -1))
        for name, support in zip(SUPPORTS, supports, strict=True):
            model = FewShotClassifier(None, centre=centre).fit(support, draw.labels)
            right = model.predict(by_sign[draw.query, 0]) == draw.query_labels
            percents[name]["accuracy"].append(100 * float(right.mean()))
            percents[name]["expected"].append(100 * model.estimate_accuracy().mean)
    return {
        name: {key: mean_of(values) for key, values in lists.items()}
        for name, lists in percents.items()
    }


def markdown(report: dict[str, Any]) -> str:
    """Return the table of a report."""
    head = [f"{name}: {key}" for name in SUPPORTS for key in ("accuracy", "expected")]
    body = [
        [title, *(number(row[name][key]) for name in SUPPORTS for key in row[name])]
        for title, row in report["rows"].items()
    ]
    return (
        "Accuracy in per cent on other signs, and the accuracy that `estimate_accuracy` expects: "
        f"{MAIN_WAY} classes, "
        f"ridge regression, mean of {report['draws']} draws and its 95 % interval. The {N_SHOT} "
        "photos of each class "
        f"show five signs, or are frames of one:\n\n{table(['', *head], body)}\n"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=str(__doc__), formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="one folder per class, with files SIGN_FRAME.ppm")
    parser.add_argument(
        "run", type=Path, help="the folder of a run that was trained on other classes of signs"
    )
    parser.add_argument(
        "--output",
        type=Path,
        default=RESULTS,
        help="where results go (default: benchmarks/results)",
    )
    options = parser.parse_args()
    signs = find_photos(options.folder, N_SIGNS, "*_00029.ppm")
    paths = [
        path.with_name(path.name.replace("_00029", f"_{frame:05}"))
        for of_class in signs.values()
        for path in of_class
        for frame in FRAMES
    ]
    shape = (len(signs), N_SIGNS, len(FRAMES), -1)
    rows = {"HOG": measured(hog_and_colours(paths)[:, :-N_COLOURS].reshape(shape), None)}
    networks = {
        f"`{PHOTOS}`": PHOTOS,
        f"`{PHOTOS}`, trained on other signs": weights_of_run(options.run),
    }
    for name, backbone in networks.items():
        embedder = Embedder(backbone, device="cpu")
        rows[name] = measured(embedder(paths, progress=None).reshape(shape), embedder.centre)
    report = {"draws": N_DRAWS, "rows": rows}
    options.output.mkdir(parents=True, exist_ok=True)
    (options.output / "signs.json").write_text(json.dumps(report, indent=1) + "\n")
    (options.output / "signs.md").write_text(markdown(report))
    print(markdown(report))


if __name__ == "__main__":
    main()
