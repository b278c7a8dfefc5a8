"""Very large batches, exactly: as the dense loss, in little memory, in reasonable time."""

from __future__ import annotations

import subprocess
import sys

import torch

from nearshot.losses import nca_loss

LARGE_BATCH = """
import resource, time, torch
from nearshot.losses import nca_loss

generator = torch.Generator().manual_seed(0)
embeddings = (0.3 * torch.randn(32_768, 128, generator=generator)).requires_grad_()
labels = torch.randint(1000, (32_768,), generator=generator)
nca_loss(embeddings[:512], labels[:512]).backward()
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
start = time.perf_counter()
loss = nca_loss(embeddings, labels)
loss.backward()
seconds = time.perf_counter() - start
extra_mib = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
assert loss.isfinite() and embeddings.grad.isfinite().all()
print(seconds, extra_mib)
"""


def test_32768_embeddings_in_under_two_gib_and_90_seconds() -> None:
    command = [sys.executable, "-c", LARGE_BATCH]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    seconds, extra_mib = map(float, output.split())
    assert seconds < 90
    assert extra_mib < 2048


def test_blocks_equal_the_dense_loss_at_size_in_float32() -> None:
    generator = torch.Generator().manual_seed(0)
    embeddings = 0.3 * torch.randn(4096, 128, generator=generator)
    labels = torch.randint(100, (4096,), generator=generator)
    results = []
    for in_blocks, dtype in [(True, torch.float32), (False, torch.float32), (False, torch.float64)]:
        z = embeddings.to(dtype, copy=True).requires_grad_()
        loss = nca_loss(z, labels, background=1e-10, in_blocks=in_blocks)
        loss.backward()
        assert z.grad is not None
        results.append((loss.detach().double(), z.grad.double()))
    (value, gradient), *others = results
    for other_value, other_gradient in others:
        torch.testing.assert_close(value, other_value, rtol=1e-5, atol=0)
        assert (gradient - other_gradient).norm() < 1e-5 * other_gradient.norm()
