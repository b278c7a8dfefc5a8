"""Measure how fast images are classified: 84×84 PNG files with `resnet12`, on two cores.

Several ways to embed the same files take turns, so that a busy moment affects all of them. The best
round counts. The table has wall-clock time and processor time. Then `nearshot predict` runs twice
on a thousand images; the second time embeddings are cached. The images are noise and the network is
untrained, which does not change the time.

    python benchmarks/predict.py       # prints a table, writes benchmarks/results/predict.json;
    takes five minutes
"""

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from nearshot import FewShotClassifier
from nearshot.estimator import Embedder
from nearshot.estimator.onnx import export_onnx
from nearshot.models import IMAGENET, build_backbone, load_backbone, save_backbone
from turns import times_in_turns

RESULTS = Path(__file__).parent / "results"
SIDE = 84
N_CLASSES = 5
N_SHOT = 5
Row = dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=str(__doc__), formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--images", type=int, default=1000, help="how many the command is given (default: 1000)"
    )
    parser.add_argument("--rounds", type=int, default=6, help="of each way to embed (default: 6)")
    parser.add_argument("--threads", type=int, default=2, help="cores to use (default: 2)")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        torch.manual_seed(0)
        save_backbone(build_backbone("resnet12"), folder / "weights.safetensors")
        support = write_images(folder / "support", N_CLASSES, N_SHOT)
        images = write_images(folder / "new", 1, options.images)
        rows = in_turns(ways(folder, support, images[:64]), 64, options.rounds)
        rows += the_command(folder, options.images, options.threads)
    report: Row = {
        "device": platform.processor() or "CPU",
        "threads": options.threads,
        "torch": torch.__version__,
        "load_before": load,
        "images": options.images,
        "rows": rows,
    }
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "predict.json").write_text(json.dumps(report, indent=2) + "\n")
    (RESULTS / "predict.md").write_text(markdown(report))
    print(markdown(report))
    print(f"Written to {RESULTS / 'predict.json'}.")


def write_images(folder: Path, n_classes: int, n_images: int) -> list[Path]:
    rng = np.random.default_rng(0)
    paths = []
    for label in range(n_classes):
        class_folder = folder / f"class {label}"
        class_folder.mkdir(parents=True)
        for number in range(n_images):
            path = class_folder / f"{number:04}.png"
            pixels = rng.integers(0, 256, (SIDE, SIDE, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(path)
            paths.append(path)
    return paths


def ways(
    folder: Path, support: Sequence[Path], images: Sequence[Path]
) -> dict[str, Callable[[], object]]:
    """Return the ways to embed, or to classify, the same files."""
    backbone = load_backbone(folder / "weights.safetensors")
    embedder = Embedder(backbone, device="cpu")
    cached = Embedder(backbone, device="cpu", cache_dir=folder / "cache")
    cached(images)
    classifier = FewShotClassifier(backbone, device="cpu", cache_dir=None).fit(
        support, [path.parent.name for path in support]
    )
    result: dict[str, Callable[[], object]] = {
        "a plain loop, image by image": lambda: [plain(backbone, [path]) for path in images],
        "a plain loop, 32 at a time": lambda: [
            plain(backbone, images[i : i + 32]) for i in range(0, 64, 32)
        ],
        "nearshot": lambda: embedder(images),
        "nearshot, embeddings kept": lambda: cached(images),
        "nearshot, with decision and explanation": lambda: classifier.explain(images),
    }
    try:
        import onnxruntime
    except ImportError:
        return result
    export_onnx(classifier, folder / "classifier.onnx")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    session = onnxruntime.InferenceSession(
        folder / "classifier.onnx", options, providers=["CPUExecutionProvider"]
    )

    def by_onnx() -> None:
        for start in range(0, len(images), 32):
            batch = [np.asarray(Image.open(path)) for path in images[start : start + 32]]
            session.run(None, {"images": np.stack(batch)})

    return result | {"the ONNX file in onnxruntime, with decision": by_onnx}


def plain(backbone: torch.nn.Module, paths: Sequence[Path]) -> Tensor:
    """Embed files as a first script would."""
    mean, std = (torch.tensor(numbers).view(3, 1, 1) for numbers in IMAGENET)
    images = [
        torch.from_numpy(np.array(Image.open(path).convert("RGB"))).permute(2, 0, 1) / 255
        for path in paths
    ]
    with torch.no_grad():
        features: Tensor = backbone((torch.stack(images) - mean) / std)
    return features


def in_turns(ways: dict[str, Callable[[], object]], n_images: int, n_rounds: int) -> list[Row]:
    threads = torch.get_num_threads()
    times = times_in_turns(ways, n_rounds)
    return [
        row(name, n_images, wall, processor / threads) for name, (wall, processor) in times.items()
    ]


def row(way: str, n_images: int, seconds: float, alone: float) -> Row:
    """Return what was measured; `alone`: the seconds that the cores worked, each."""
    rates = {
        "images_per_minute": 60 * n_images / seconds,
        "images_per_minute_of_the_cores": 60 * n_images / alone,
    }
    return {"way": way, **rates, "seconds": seconds, "seconds_of_the_cores": alone}


def the_command(folder: Path, n_images: int, threads: int) -> list[Row]:
    """Run the command as a user would; the time has all of it, starting Python too."""
    command = [
        sys.executable,
        "-m",
        "nearshot",
        "predict",
        "--support",
        str(folder / "support"),
        str(folder / "new"),
    ]
    command += [
        "--backbone",
        str(folder / "weights.safetensors"),
        "--device",
        "cpu",
        "--cache-dir",
        str(folder / "kept"),
    ]
    environment = os.environ | {"OMP_NUM_THREADS": str(threads)}
    rows = []
    for name in (
        "nearshot predict, the whole command",
        "nearshot predict once more, embeddings kept",
    ):
        start = time.perf_counter()
        busy = children_seconds()
        done = subprocess.run(
            [*command, "--format", "csv"],
            check=True,
            capture_output=True,
            text=True,
            env=environment,
        )
        seconds = time.perf_counter() - start
        busy = children_seconds() - busy
        if len(done.stdout.splitlines()) != n_images + 1:
            raise RuntimeError(done.stdout[-500:])
        rows.append(row(name, n_images, seconds, busy / threads))
    return rows


def children_seconds() -> float:
    """Return how long processors have worked for the commands so far."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def markdown(report: Row) -> str:
    """Return the table for the documentation."""
    lines = [
        f"{SIDE}×{SIDE} PNG files through `resnet12`; {report['device']}, {report['threads']} "
        "threads, torch "
        f"{report['torch']}; the machine's load was {report['load_before']:.1f} before. The "
        "command was given "
        f"{report['images']:,} images and {N_CLASSES * N_SHOT} labelled ones.",
        "",
        "| | images a minute, as it was | were the cores free |",
        "|---|---:|---:|",
    ]
    for row in report["rows"]:
        rates = (row["images_per_minute"], row["images_per_minute_of_the_cores"])
        lines.append(f"| {row['way']} | {rates[0]:,.0f} | {rates[1]:,.0f} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
