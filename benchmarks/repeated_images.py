"""Count the images that a dataset has twice, and those that two splits share.

    python benchmarks/repeated_images.py
    python benchmarks/repeated_images.py mini-imagenet --output .

Prints a table and writes benchmarks/results/repeated-images.json and .md.
"""

import argparse
import json
from pathlib import Path

from nearshot.data import Store
from nearshot.data.inspection import Occurrence, repeated_images, splits_that_share
from nearshot.data.store import prepared_splits

RESULTS = Path(__file__).parent / "results"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=str(__doc__), formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "dataset", nargs="?", default="cifar-fs", help="a prepared dataset (default: cifar-fs)"
    )
    parser.add_argument(
        "--data-dir", type=Path, help="where datasets live (default: ~/.cache/nearshot)"
    )
    parser.add_argument("--output", type=Path, default=RESULTS, help="the folder of the result")
    options = parser.parse_args()
    splits = prepared_splits(options.dataset, options.data_dir)
    stores = {split: Store(folder) for split, folder in splits.items()}
    groups = repeated_images(stores)
    across = [group for group in groups if len({occurrence.split for occurrence in group}) > 1]
    shared = splits_that_share(groups)
    report = {
        "dataset": options.dataset,
        "fingerprints": {split: store.fingerprint for split, store in stores.items()},
        "images": {split: len(store) for split, store in stores.items()},
        "repeated": len(groups),
        "in two splits": len(across),
        "shared": {" and ".join(pair): number for pair, number in shared.items()},
        "in two splits, by image": [list(map(description, group)) for group in across],
    }
    lines = [
        f"| splits of {options.dataset} | images in both |",
        "|---|---:|",
        *(f"| {first} and {second} | {number:,} |" for (first, second), number in shared.items()),
        "",
        f"{len(groups):,} images occur more than once, {len(across):,} of them in more than one "
        "split.",
    ]
    options.output.mkdir(exist_ok=True)
    (options.output / "repeated-images.json").write_text(json.dumps(report, indent=2) + "\n")
    (options.output / "repeated-images.md").write_text("\n".join(lines) + "\n")
    print("\n".join(lines))


def description(occurrence: Occurrence) -> str:
    """Return where an image occurs."""
    return f"{occurrence.split}: {occurrence.image_name} ({occurrence.class_name})"


if __name__ == "__main__":
    main()
