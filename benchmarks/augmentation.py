"""Images per second through `augment`, from stores of 32×32 and 84×84 to 84×84.

A training step waits for its batch, so the augmentation has to be far quicker than the network. On
CUDA it is timed as a call and as a captured graph, where the host's time for launching it does not
count. The lower bound is the time to fill a tensor of the result's size.

    python benchmarks/augmentation.py

Prints a table and writes benchmarks/results/augmentation-cpu.json or -cuda.json, and .md.
"""

import argparse
import json
import platform
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from nearshot.data.augment import Augmentation, augment

BATCH = 512
SIZE = 84
SIDES = (32, 84)
KINDS = {
    "crop and flip": Augmentation(),
    "and colours": Augmentation(brightness=0.4, contrast=0.4, saturation=0.4),
    "and hue": Augmentation(brightness=0.4, contrast=0.4, saturation=0.4, hue=0.1),
}
RESULTS = Path(__file__).parent / "results"


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
    device = torch.device(parser.parse_args().device)
    rows = [measure(side, kind, device) for side in SIDES for kind in KINDS]
    report: dict[str, object] = {
        "what": f"batches of {BATCH} images to {SIZE}×{SIZE}, float32; the fastest of several runs",
        "torch": torch.__version__,
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "threads": torch.get_num_threads(),
        "processor": platform.processor() or platform.machine(),
        "rows": rows,
    }
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"augmentation-{device.type}.json"
    path.write_text(json.dumps(report, indent=2) + "\n")
    path.with_suffix(".md").write_text(markdown(report, rows))
    print(f"{markdown(report, rows)}\nWritten to {path}.")


def measure(side: int, kind: str, device: torch.device) -> dict[str, float | str]:
    images = torch.randint(256, (BATCH, side, side, 3), dtype=torch.uint8, device=device)
    generator = torch.Generator(device).manual_seed(0)
    result = augment(images, KINDS[kind], size=SIZE, generator=generator)

    def call() -> Tensor:
        return augment(images, KINDS[kind], size=SIZE, generator=generator)

    row: dict[str, float | str] = {
        "side": side,
        "kind": kind,
        "images_per_second": BATCH / seconds(call, device),
        "fill_images_per_second": BATCH / seconds(lambda: torch.full_like(result, 0.5), device),
    }
    if device.type == "cuda":
        row["graph_images_per_second"] = BATCH / seconds(captured(call, generator), device)
    return row


def captured(call: Callable[[], Tensor], generator: torch.Generator) -> Callable[[], None]:
    """Return the replay of a graph of the call."""
    graph = torch.cuda.CUDAGraph()
    graph.register_generator_state(generator)
    with torch.cuda.graph(graph):
        call()
    return graph.replay


def seconds(call: Callable[[], object], device: torch.device, n_runs: int = 10) -> float:
    """Return the time of a call: the fastest run of several, each long enough to measure."""
    n_calls = 50 if device.type == "cuda" else 2
    times = []
    for _ in range(n_runs):
        wait(device)
        start = time.perf_counter()
        for _ in range(n_calls):
            call()
        wait(device)
        times.append((time.perf_counter() - start) / n_calls)
    return min(times)


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def cells(row: dict[str, float | str]) -> list[str]:
    graph = row.get("graph_images_per_second")
    return [
        f"{row['side']}×{row['side']}",
        str(row["kind"]),
        f"{row['images_per_second']:,.0f}",
        "–" if graph is None else f"{graph:,.0f}",
        f"{row['fill_images_per_second']:,.0f}",
    ]


HEADINGS = ("store", "augmentation", "images/s", "as a graph", "a fill of the result")


def markdown(report: dict[str, object], rows: list[dict[str, float | str]]) -> str:
    """Return the table for the documentation."""
    where = (
        report["device"] if report["device"] != "cpu" else f"{report['threads']} threads of a CPU"
    )
    lines = [
        f"Augmentation: {report['what']}; torch {report['torch']}, {where}. In images a second.",
        "",
        "| " + " | ".join(HEADINGS) + " |",
        "|---|---|---:|---:|---:|",
        *("| " + " | ".join(cells(row)) + " |" for row in rows),
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
