"""Very large batches, exactly: as the dense loss, in little memory, in reasonable time."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from nearshot.distances import squared_euclidean
from nearshot.losses import nca_loss

BENCHMARKS = Path(__file__).parent.parent.parent / "benchmarks"
# A child process, since the peak of this one is that of whatever ran before; and `memory` resets what it inherits.
LARGE_BATCH = """
import sys, time, torch
sys.path.insert(0, sys.argv[1])
from memory import peak_mib_since_reset, reset_peak
from nearshot.losses import nca_loss

generator = torch.Generator().manual_seed(0)
embeddings = (0.3 * torch.randn(32_768, 128, generator=generator)).requires_grad_()
labels = torch.randint(1000, (32_768,), generator=generator)
nca_loss(embeddings[:512], labels[:512]).backward()
before = reset_peak()
start = time.perf_counter()
loss = nca_loss(embeddings, labels)
loss.backward()
print(time.perf_counter() - start, peak_mib_since_reset() - before)
"""


@pytest.mark.slow
def test_32768_embeddings_in_under_two_gib_and_90_seconds() -> None:
    command = [sys.executable, "-c", LARGE_BATCH, str(BENCHMARKS)]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    seconds, extra_mib = map(float, output.split())
    assert seconds < 90
    assert 10 < extra_mib < 2048


def test_blocks_equal_the_dense_loss_at_size_in_float32() -> None:
    generator = torch.Generator().manual_seed(0)
    embeddings = 0.3 * torch.randn(2048, 128, generator=generator)
    labels = torch.randint(100, (2048,), generator=generator)
    results = []
    distances: list[Any] = ["euclidean", squared_euclidean, squared_euclidean]  # a callable is not split up
    for distance, dtype in zip(distances, (torch.float32, torch.float32, torch.float64), strict=True):
        z = embeddings.to(dtype, copy=True).requires_grad_()
        loss = nca_loss(z, labels, background=1e-10, distance=distance)
        loss.backward()
        assert z.grad is not None
        results.append((loss.detach().double(), z.grad.double()))
    (value, gradient), *others = results
    for other_value, other_gradient in others:
        torch.testing.assert_close(value, other_value, rtol=1e-5, atol=0)
        assert (gradient - other_gradient).norm() < 1e-5 * other_gradient.norm()
