"""Measure how many photographs a minute are embedded, from JPEG files to features, on two cores.

nearshot embeds them with an empty cache (cold) and a full one (warm), with `efficientnet-lite0` and
with its small network. Beside it, first scripts do the same with timm's own loader and network,
where timm is installed, and with scikit-learn on histograms of oriented gradients. Ways take turns,
so that a busy moment affects all of them; the best round counts. The table has wall-clock time and
processor time. timm's networks are untrained, which does not change the time. Without a folder, the
photos are drawn: smooth noise of 500×667 pixels.

    python benchmarks/photos_per_minute.py [FOLDER]     # writes
    benchmarks/results/photos-per-minute.json and .md
"""

import argparse
import importlib.util
import json
import os
import platform
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from sklearn.linear_model import LogisticRegression

from nearshot.estimator import Embedder
from nearshot.models import build_backbone
from nearshot.models.recommended import PHOTOS, SMALL, TIMM_BACKBONES, TIMM_INPUT_SIZE
from turns import times_in_turns

RESULTS = Path(__file__).parent / "results"
HAS_TIMM = importlib.util.find_spec("timm") is not None
HOG_SIDE = 128
HOG_CELL = 16
HOG_ANGLES = 9
Row = dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=str(__doc__), formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "folder", type=Path, nargs="?", help="JPEG photos, at any depth (default: drawn ones)"
    )
    parser.add_argument("--photos", type=int, default=128, help="how many to embed (default: 128)")
    parser.add_argument("--rounds", type=int, default=5, help="of each way (default: 5)")
    parser.add_argument("--threads", type=int, default=2, help="cores to use (default: 2)")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        paths = (
            sorted(options.folder.rglob("*.jpg"))
            if options.folder
            else drawn_photos(folder, options.photos)
        )
        photos = paths[:: max(1, len(paths) // options.photos)][: options.photos]
        rows = in_turns(ways(photos, folder), len(photos), options.rounds)
    report: Row = {
        "device": platform.processor() or "CPU",
        "threads": options.threads,
        "torch": torch.__version__,
        "load_before": load,
        "photos": len(photos),
        "kind": "photographs" if options.folder else "drawn photos of 500×667 pixels",
        "rows": rows,
    }
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "photos-per-minute.json").write_text(json.dumps(report, indent=2) + "\n")
    (RESULTS / "photos-per-minute.md").write_text(markdown(report))
    print(markdown(report))


def drawn_photos(folder: Path, n: int) -> list[Path]:
    rng = np.random.default_rng(0)
    paths = [folder / f"{number}.jpg" for number in range(n)]
    for path in paths:
        coarse = Image.fromarray(rng.integers(0, 256, (50, 67, 3), dtype=np.uint8))
        coarse.resize((667, 500), Image.Resampling.BICUBIC).save(path, quality=90)
    return paths


def ways(photos: Sequence[Path], folder: Path) -> dict[str, Callable[[], object]]:
    """Return the ways to embed the same files."""
    cold = Embedder(PHOTOS, device="cpu")
    small = Embedder(SMALL, device="cpu")
    warm = Embedder(PHOTOS, device="cpu", cache_dir=folder / "cache")
    warm(photos)
    result: dict[str, Callable[[], object]] = {
        f"nearshot, {PHOTOS}": lambda: cold(photos),
        f"nearshot, {PHOTOS}, warm": lambda: warm(photos),
        f"nearshot, {SMALL}": lambda: small(photos),
        "scikit-learn, HOG and logistic regression": lambda: by_hog(photos),
    }
    if HAS_TIMM:
        result["timm's tf_efficientnet_lite0, a plain loop, 32 at a time"] = by_timm(
            "tf_efficientnet_lite0", photos
        )
        for name in TIMM_BACKBONES:
            backbone = build_backbone(name, input_size=TIMM_INPUT_SIZE).eval()
            embedder = Embedder(backbone, device="cpu", copy=False)
            result[f"nearshot, {name} at {TIMM_INPUT_SIZE}"] = lambda embedder=embedder: embedder(
                photos
            )  # type: ignore[misc]
    return result


def by_timm(name: str, photos: Sequence[Path]) -> Callable[[], object]:
    """Return the loop of timm's documentation."""
    import timm

    model: Any = timm.create_model(name, num_classes=0).eval()
    transform = timm.data.create_transform(
        **timm.data.resolve_model_data_config(model), is_training=False
    )

    def embed() -> list[torch.Tensor]:
        features = []
        for start in range(0, len(photos), 32):
            images = [
                transform(Image.open(path).convert("RGB")) for path in photos[start : start + 32]
            ]
            with torch.inference_mode():
                features.append(model(torch.stack(images)))
        return features

    return embed


def by_hog(photos: Sequence[Path]) -> npt.NDArray[np.int64]:
    features = np.stack([hog(path) for path in photos])
    labels = np.arange(len(photos)) % 10
    model = LogisticRegression(max_iter=20, tol=0.1).fit(features[:50], labels[:50])
    return np.asarray(model.predict(features))


def hog(path: Path) -> npt.NDArray[np.float64]:
    """Return the histograms of oriented gradients of a grey 128×128 image, at unit length."""
    with Image.open(path) as opened:
        opened.draft("L", (2 * HOG_SIDE, 2 * HOG_SIDE))
        grey = np.asarray(opened.convert("L").resize((HOG_SIDE, HOG_SIDE)), dtype=np.float64)
    down, across = np.gradient(grey)
    strength = np.hypot(down, across)
    angle = np.arctan2(down, across) % np.pi
    cells = np.arange(HOG_SIDE) // HOG_CELL
    cell = cells[:, None] * (HOG_SIDE // HOG_CELL) + cells
    bins = cell * HOG_ANGLES + np.minimum((angle / np.pi * HOG_ANGLES).astype(int), HOG_ANGLES - 1)
    counts = np.bincount(bins.ravel(), strength.ravel(), (HOG_SIDE // HOG_CELL) ** 2 * HOG_ANGLES)
    return np.asarray(counts / (np.linalg.norm(counts) + 1e-9))


def in_turns(ways: dict[str, Callable[[], object]], n_photos: int, n_rounds: int) -> list[Row]:
    return [
        {
            "way": name,
            "photos_per_minute": 60 * n_photos / wall,
            "processor_ms_per_photo": 1000 * processor / n_photos,
        }
        for name, (wall, processor) in times_in_turns(ways, n_rounds).items()
    ]


def markdown(report: Row) -> str:
    """Return the table for the documentation."""
    lines = [
        f"{report['photos']:,} {report['kind']} in JPEG files, decoding included; "
        f"{report['device']}, "
        f"{report['threads']} threads, torch {report['torch']}; the machine's load was "
        f"{report['load_before']:.1f} "
        "before. Warm: the embeddings are cached.",
        "",
        "| | photos a minute, as it was | allowed by the processor time | processor time per "
        "photo, ms |",
        "|---|---:|---:|---:|",
    ]
    for row in report["rows"]:
        busy = row["processor_ms_per_photo"]
        allowed = 60_000 * report["threads"] / busy
        lines.append(
            f"| {row['way']} | {row['photos_per_minute']:,.0f} | {allowed:,.0f} | {busy:.1f} |"
        )
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
