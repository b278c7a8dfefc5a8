"""Images per second of a training step: the Triton kernels against the best of `torch.compile`, on a GPU.

The step is the paper's: ResNet-12, NCA, batches of 512, bfloat16, channels last, random crops from 84×84 or 32×32
images. Every variant also runs as a CUDA graph, as training does; the graphs in turns, so that a change of the card's clock
hits all of them.

    python benchmarks/kernels.py       # prints a table, writes benchmarks/results/kernels.json and .md
"""

import argparse
import json
import math
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from training import bfloat16_peak, flops_per_image

from nearshot.training import PRESETS, Hardware, TrainConfig
from nearshot.training.learner import Learner
from nearshot.training.step import Step, captured

RESULTS = Path(__file__).parent / "results"
N_TURNS = 5
STEPS_PER_TURN = 30
COMPILE_MODES: dict[str, str | None] = {
    "eager": None,
    "torch.compile, default": "default",
    "torch.compile, max-autotune": "max-autotune-no-cudagraphs",
    "Triton kernels": None,
}
Row = dict[str, Any]
Take = Callable[[Tensor, Tensor], Tensor]


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__), formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=[84, 32], help="the input sizes")
    parser.add_argument("--skip", nargs="*", default=[], help="variants to skip")
    options = parser.parse_args()
    torch.backends.cudnn.benchmark = True  # as training has it
    peak = bfloat16_peak()
    report: Row = {
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "bfloat16_peak_tflops": peak / 1e12,
        "rows": [],
    }
    RESULTS.mkdir(exist_ok=True)
    for size in options.sizes:
        report["rows"] += measure(size, peak, options.skip)
        (RESULTS / "kernels.json").write_text(json.dumps(report, indent=2) + "\n")
        (RESULTS / "kernels.md").write_text(markdown(report))
    print(markdown(report))


def measure(size: int, peak: float, skip: list[str]) -> list[Row]:
    """Time every variant eagerly, then all as graphs, in turns."""
    config = replace(PRESETS["cifar-fs-nca"], input_size=size)
    images = torch.randint(256, (config.batch_size, size, size, 3), dtype=torch.uint8, device="cuda")
    labels = torch.randint(64, (config.batch_size,), device="cuda")
    flops = flops_per_image(config)
    rows: list[Row] = []
    steps: list[Step] = []  # a graph uses their memory without holding it
    graphs: dict[str, Take] = {}
    for name, mode in COMPILE_MODES.items():
        if name in skip:
            continue
        start = time.perf_counter()
        try:
            step = new_step(name, mode, config, size)
            step(images, labels)
            torch.cuda.synchronize()
            first = time.perf_counter() - start
            seconds = [seconds_per_step(step, images, labels) for _ in range(2)]
            graphs[name] = captured(step, images, labels)
            steps.append(step)
        except Exception as error:  # noqa: BLE001 (a mode that this version of PyTorch cannot run)
            print(f"{size}×{size}, {name}: {type(error).__name__}: {error}", flush=True)
            continue
        rows.append({"size": size, "step": name, "first_step_seconds": first} | rates(seconds, config, flops / peak))
        print(rows[-1], flush=True)
    times: dict[str, list[float]] = {name: [] for name in graphs}
    for _ in range(N_TURNS):
        for name, take in graphs.items():
            times[name].append(seconds_per_step(take, images, labels))
    for name, seconds in times.items():
        rows.append({"size": size, "step": f"{name}, as a graph"} | rates(seconds, config, flops / peak))
        print(rows[-1], flush=True)
    return rows


def rates(seconds: list[float], config: TrainConfig, flops_of_peak: float) -> Row:
    median = sorted(seconds)[len(seconds) // 2]
    rate = config.batch_size / median
    return {
        "images_per_second": rate,
        "slowest": config.batch_size / max(seconds),
        "fastest": config.batch_size / min(seconds),
        "share_of_peak": rate * flops_of_peak,
    }


def new_step(name: str, mode: str | None, config: TrainConfig, size: int) -> Step:
    """Return the training step of a fresh network."""
    torch.manual_seed(0)
    torch._dynamo.reset()
    hardware = Hardware(fuse=name == "Triton kernels", compile=False, graph=False)
    learner = Learner(config, size, 64)
    if mode is not None:
        learner.compile(mode=mode)
    return Step(hardware.fabric(config), hardware, config, learner)


def seconds_per_step(take: Take, images: Tensor, labels: Tensor) -> float:
    for _ in range(3):
        take(images, labels)
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(STEPS_PER_TURN):
        take(images, labels)
    torch.cuda.synchronize()
    return (time.perf_counter() - start) / STEPS_PER_TURN


def markdown(report: Row) -> str:
    """Return the table for the documentation."""
    lines = [
        f"Images per second of a training step, median of {N_TURNS} turns of {STEPS_PER_TURN} steps; "
        f"{report['device']}, torch {report['torch']}; {report['bfloat16_peak_tflops']:.0f} TFLOP/s measured.",
        "",
        "| input | step | images/s | slowest–fastest turn | of the peak | first step, s |",
        "|---|---|---:|---:|---:|---:|",
    ]
    for row in report["rows"]:
        lines.append(
            f"| {row['size']}×{row['size']} | {row['step']} | {row['images_per_second']:,.0f} "
            f"| {row['slowest']:,.0f}–{row['fastest']:,.0f} "
            f"| {row['share_of_peak']:.0%} | {row.get('first_step_seconds', math.nan):.1f} |"
        )
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
