"""Time and peak memory of `nca_loss` against pytorch-metric-learning's, forward and backward.

The two compute the same number. The floor is the time of three matrix products: one for the
distances, and one for the gradient of either end. `nca_loss` can come out a little under it: at 512
and 2,048, where one block holds all pairs, the symmetry of the distances saves it a product, and at
8,192 its blocks stay in the cache, which a large product does not.

    python benchmarks/nca_loss.py

Prints a table and writes benchmarks/results/nca_loss.json and .md.
"""

import argparse
import json
import platform
import time
from collections.abc import Callable
from pathlib import Path

import torch
from pytorch_metric_learning.distances import LpDistance
from pytorch_metric_learning.losses import NCALoss
from torch import Tensor

from memory import peak_mib_in_new_process, peak_mib_since_reset, reset_peak
from nearshot.losses import nca_loss

SIZES = (512, 2048, 8192)
DIM = 640
N_CLASSES = 64
RESULTS = Path(__file__).parent / "results" / "nca_loss.json"

PEER = NCALoss(distance=LpDistance(normalize_embeddings=False, p=2, power=2))
LOSSES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "nearshot": nca_loss,
    "pytorch-metric-learning": PEER,
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=str(__doc__), formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--memory", nargs=2, metavar=("LOSS", "SIZE"), help="print one loss's peak memory and stop"
    )
    options = parser.parse_args()
    if options.memory:
        print(peak_memory(LOSSES[options.memory[0]], int(options.memory[1])))
        return
    rows = [measure(size) for size in SIZES]
    report: dict[str, object] = {
        "what": f"forward and backward, {DIM} dimensions, {N_CLASSES} classes, float32; "
        "the fastest of several runs",
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "processor": platform.processor() or platform.machine(),
        "rows": rows,
    }
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(report, indent=2) + "\n")
    RESULTS.with_suffix(".md").write_text(markdown(report, rows))
    print(f"{markdown(report, rows)}\nWritten to {RESULTS}.")


def batch(size: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(size)
    embeddings = 0.05 * torch.randn(size, DIM, generator=generator)
    return embeddings.requires_grad_(), torch.randint(N_CLASSES, (size,), generator=generator)


def measure(size: int) -> dict[str, float]:
    """Time the losses and a matrix product in turns, so that other load affects all alike."""
    embeddings, labels = batch(size)
    plain = embeddings.detach()
    seconds: dict[str, list[float]] = {name: [] for name in (*LOSSES, "matrix product")}
    for _ in range(5 if size > 4096 else 30):
        for name, loss in LOSSES.items():
            embeddings.grad = None
            start = time.perf_counter()
            loss(embeddings, labels).backward()
            seconds[name].append(time.perf_counter() - start)
        start = time.perf_counter()
        plain @ plain.T
        seconds["matrix product"].append(time.perf_counter() - start)
    best = {name: 1e3 * min(times) for name, times in seconds.items()}
    mib = {name: peak_mib_in_new_process(__file__, name, str(size)) for name in LOSSES}
    return {
        "size": size,
        "nearshot_ms": best["nearshot"],
        "peer_ms": best["pytorch-metric-learning"],
        "three_products_ms": 3 * best["matrix product"],
        "times_faster": best["pytorch-metric-learning"] / best["nearshot"],
        "times_the_floor": best["nearshot"] / (3 * best["matrix product"]),
        "nearshot_mib": mib["nearshot"],
        "peer_mib": mib["pytorch-metric-learning"],
        "share_of_memory": mib["nearshot"] / mib["pytorch-metric-learning"],
    }


def peak_memory(loss: Callable[[Tensor, Tensor], Tensor], size: int) -> float:
    """Return the extra memory of one forward and backward pass, after a small one."""
    embeddings, labels = batch(400)
    loss(embeddings, labels).backward()
    embeddings, labels = batch(size)
    before = reset_peak()
    loss(embeddings, labels).backward()
    return peak_mib_since_reset() - before


def markdown(report: dict[str, object], rows: list[dict[str, float]]) -> str:
    """Return the table for the documentation."""
    lines = [
        f"NCA loss against pytorch-metric-learning's `NCALoss`: {report['what']}; "
        f"torch {report['torch']}, {report['threads']} threads. The floor is three matrix "
        "products.",
        "",
        "| images | nearshot | peer | times faster | time / floor | nearshot memory | peer memory "
        "|",
        "|---:|---:|---:|---:|---:|---:|---:|",
    ]
    lines += [
        f"| {row['size']:,} | {row['nearshot_ms']:.1f} ms | {row['peer_ms']:.1f} ms | "
        f"{row['times_faster']:.2f} | "
        f"{row['times_the_floor']:.2f} | {row['nearshot_mib']:.0f} MiB | {row['peer_mib']:.0f} "
        "MiB |"
        for row in rows
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
