"""Images per second of a training step.

On the CPU: the step of the demo (Conv-4 with 32 channels, 28×28 glyphs, NCA, batches of 256, random
crops) against a plain PyTorch loop that does the same with a DataLoader of two workers, PNG files
and Pillow; in one run.

On CUDA: the paper's step (resnet12, 84×84 from 32×32 images, NCA, batches of 512) eagerly, compiled
and as a graph; and the share of the card's bfloat16 peak, measured by a large matrix product in the
same run.

    python benchmarks/training.py

Prints a table and writes benchmarks/results/training-cpu.json or -cuda.json, and .md.
"""

import argparse
import json
import math
import platform
import random
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from rich.console import Console
from rich.table import Table
from torch import Tensor
from torch.utils.data import DataLoader, Dataset
from torch.utils.flop_counter import FlopCounterMode

from nearshot.data import open_or_prepare
from nearshot.data.loader import ImageFeed
from nearshot.losses import nca_loss
from nearshot.models import IMAGENET, build_backbone
from nearshot.training import PRESETS, Hardware, TrainConfig
from nearshot.training.learner import Learner
from nearshot.training.step import Step, captured

RESULTS = Path(__file__).parent / "results"
Row = dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=str(__doc__), formatter_class=argparse.RawDescriptionHelpFormatter
    )
    default = "cuda" if torch.cuda.is_available() else "cpu"
    parser.add_argument(
        "--device",
        choices=("cpu", "cuda"),
        default=default,
        help="by default CUDA where there is one",
    )
    parser.add_argument(
        "--data-dir", type=Path, help="where datasets live (default: ~/.cache/nearshot)"
    )
    parser.add_argument(
        "--sizes", type=int, nargs="+", default=[84, 32], help="on CUDA: the input sizes"
    )
    options = parser.parse_args()
    report: Row = {"torch": torch.__version__, "threads": torch.get_num_threads()}
    if options.device == "cpu":
        report |= {"device": platform.processor() or "CPU", "rows": on_cpu(options.data_dir)}
    else:
        peak = bfloat16_peak()
        report |= {"device": torch.cuda.get_device_name(), "bfloat16_peak_tflops": peak / 1e12}
        report["rows"] = [row for size in options.sizes for row in on_cuda(size, peak)]
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"training-{options.device}.json"
    path.write_text(json.dumps(report, indent=2) + "\n")
    path.with_suffix(".md").write_text(markdown(report))
    show(report)
    print(f"Written to {path}.")


def on_cpu(data_dir: Path | None, n_steps: int = 40) -> list[Row]:
    """Time both on the same images, in turns, so that a busy moment hits both."""
    config = replace(PRESETS["glyphs-nca"], batches="shuffled")
    store = open_or_prepare("glyphs", "train", data_dir)
    images = np.ascontiguousarray(store.images[::4])
    labels = store.labels[::4]
    with tempfile.TemporaryDirectory() as folder:
        for number, pixels in enumerate(images):
            Image.fromarray(pixels).save(Path(folder) / f"{number}.png")
        loops = {
            "plain PyTorch, DataLoader and Pillow": plain_loop(Path(folder), labels, config),
            "nearshot": nearshot_loop(images, labels, config),
        }
        for loop in loops.values():
            for _ in range(3):
                next(loop)
        times: dict[str, list[float]] = {name: [] for name in loops}
        for _ in range(n_steps // 10):
            for name, loop in loops.items():
                start = time.perf_counter()
                for _ in range(10):
                    next(loop)
                times[name].append((time.perf_counter() - start) / 10)
    return [
        {"step": name, "images_per_second": config.batch_size / float(np.median(seconds))}
        for name, seconds in times.items()
    ]


class ImageFiles(Dataset[tuple[Tensor, int]]):
    """PNG files, opened, cropped at random, resized and normalised one by one."""

    def __init__(self, folder: Path, labels: Tensor, config: TrainConfig) -> None:
        self.folder = folder
        self.labels = labels.tolist()
        self.scale = config.augmentation.scale

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        image = Image.open(self.folder / f"{index}.png").convert("RGB")
        width, height = image.size
        area = width * height * random.uniform(*self.scale)
        ratio = math.exp(random.uniform(-0.28, 0.28))
        w = min(width, round(math.sqrt(area * ratio)))
        h = min(height, round(math.sqrt(area / ratio)))
        left = random.randint(0, width - w)
        top = random.randint(0, height - h)
        cut = image.resize((28, 28), Image.Resampling.BILINEAR, (left, top, left + w, top + h))
        values = torch.from_numpy(np.asarray(cut, np.float32) / 255).permute(2, 0, 1)
        mean, std = (torch.tensor(numbers).view(3, 1, 1) for numbers in IMAGENET)
        return (values - mean) / std, self.labels[index]


def plain_loop(folder: Path, labels: Tensor, config: TrainConfig) -> Iterator[None]:
    backbone = build_backbone(config.backbone, input_size=28)
    optimiser = torch.optim.Adam(backbone.parameters(), lr=config.learning_rate)
    loader = DataLoader(
        ImageFiles(folder, labels, config),
        config.batch_size,
        shuffle=True,
        num_workers=2,
        drop_last=True,
        persistent_workers=True,
    )
    while True:
        for images, its_labels in loader:
            loss = nca_loss(backbone(images), its_labels, background=1e-10)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            loss.item()  # as most loops do, to show it
            yield


def nearshot_loop(
    images: np.ndarray[Any, np.dtype[np.uint8]], labels: Tensor, config: TrainConfig
) -> Iterator[None]:
    hardware = Hardware(accelerator="cpu")
    fabric = hardware.fabric(config)
    step = Step(fabric, hardware, config, Learner(config, 28, len(labels.unique())))
    feed = ImageFeed(images, "cpu")
    while True:
        order = torch.randperm(len(labels))[: len(labels) // config.batch_size * config.batch_size]
        for batch, its_labels in zip(
            feed.batches(order, config.batch_size),
            labels[order].split(config.batch_size),
            strict=True,
        ):
            step(batch, its_labels)
            yield


VARIANTS = {
    "eager": Hardware(fuse=False, compile=False, graph=False),
    "as a graph": Hardware(fuse=False, compile=False, graph=True),
    "compiled": Hardware(compile=True, graph=False),
    "compiled, as a graph": Hardware(compile=True, graph=True),
    "fused": Hardware(fuse=True, graph=False),
    "fused, as a graph": Hardware(fuse=True, graph=True),
}


def on_cuda(size: int, peak: float) -> list[Row]:
    config = replace(PRESETS["cifar-fs-nca"], input_size=size)
    images = torch.randint(256, (config.batch_size, 32, 32, 3), dtype=torch.uint8, device="cuda")
    labels = torch.randint(64, (config.batch_size,), device="cuda")
    flops = flops_per_image(config)
    torch.backends.cudnn.benchmark = True  # as training has it
    rows = []
    for name, hardware in VARIANTS.items():
        torch._dynamo.reset()
        torch.cuda.reset_peak_memory_stats()
        fabric = hardware.fabric(config)
        step = Step(fabric, hardware, config, Learner(config, size, 64))
        start = time.perf_counter()
        take = captured(step, images, labels) if step.hardware.graph else step
        take(images, labels)
        torch.cuda.synchronize()
        first = time.perf_counter() - start
        rate = config.batch_size / seconds(partial(take, images, labels))
        rows.append(
            {
                "step": f"{size}×{size}, {name}",
                "images_per_second": rate,
                "tflops": rate * flops / 1e12,
                "share_of_peak": rate * flops / peak,
                "first_step_seconds": first,
                "memory_gib": torch.cuda.max_memory_allocated() / 2**30,
            }
        )
        print(rows[-1], flush=True)
    return rows


def flops_per_image(config: TrainConfig) -> float:
    """Count what forward and backward of the network take, for one image."""
    backbone = build_backbone(config.backbone, input_size=config.input_size)
    counter = FlopCounterMode(display=False)
    with counter:
        backbone(
            torch.zeros(2, 3, config.input_size or 84, config.input_size or 84)
        ).sum().backward()
    return counter.get_total_flops() / 2


def bfloat16_peak(side: int = 8192) -> float:
    """Return the card's operations a second on a large matrix product."""
    a, b = (torch.randn(side, side, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    return 2 * side**3 / seconds(lambda: a @ b)


def seconds(call: Callable[[], object], n_calls: int = 40) -> float:
    for _ in range(5):
        call()
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(n_calls):
        call()
    torch.cuda.synchronize()
    return (time.perf_counter() - start) / n_calls


def headings(report: Row) -> list[str]:
    cuda = "bfloat16_peak_tflops" in report
    return (
        ["step", "images/s", "TFLOP/s", "of the peak", "first step, s", "memory, GiB"]
        if cuda
        else ["step", "images/s"]
    )


def cells(row: Row) -> list[str]:
    shown = [row["step"], f"{row['images_per_second']:,.0f}"]
    if "tflops" in row:
        shown += [f"{row['tflops']:.0f}", f"{row['share_of_peak']:.0%}"]
        shown += [f"{row['first_step_seconds']:.1f}", f"{row['memory_gib']:.1f}"]
    return shown


def markdown(report: Row) -> str:
    """Return the table for the documentation."""
    names = headings(report)
    where = f"{report['device']}, torch {report['torch']}"
    peak = report.get("bfloat16_peak_tflops")
    where += (
        f"; {peak:.0f} TFLOP/s in bfloat16 measured" if peak else f", {report['threads']} threads"
    )
    lines = [
        f"A training step; {where}.",
        "",
        "| " + " | ".join(names) + " |",
        "|---" + "|---:" * (len(names) - 1) + "|",
    ]
    return (
        "\n".join(lines + ["| " + " | ".join(cells(row)) + " |" for row in report["rows"]]) + "\n"
    )


def show(report: Row) -> None:
    table = Table(title=f"A training step on {report['device']}")
    for heading in headings(report):
        table.add_column(heading, justify="left" if heading == "step" else "right")
    for row in report["rows"]:
        table.add_row(*cells(row))
    Console(width=110).print(table)


if __name__ == "__main__":
    main()
